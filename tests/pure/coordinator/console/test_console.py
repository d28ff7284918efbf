"""The console command without servers: how the pipeline is found, exit codes, what is printed, and what is imported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from epochal import Pipeline
from epochal.chaos.contract.logs import filled
from epochal.chaos.servers.objects import Fault, ObjectServer
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit, Entry, Fence, Operator, Participant, Record, SinkStanding
from epochal.checkpoints.objects import ObjectLog
from epochal.coordinator.console import app as console
from epochal.coordinator.console import audit, cli, columns, reconcile, render, verify
from epochal.coordinator.console.load import load
from epochal.coordinator.console.log import _told
from epochal.coordinator.console.render import FINE, UNKNOWN, USAGE, WRONG, Answer, CannotTell, Usage, answering
from epochal.coordinator.console.standing import Standing, log_of, resolve
from epochal.coordinator.model.epoch import (
    Actor,
    Committable,
    Decision,
    Digest,
    EpochRequest,
    Json,
    Marker,
    Query,
    SinkState,
)
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.protocol.history import History
from epochal.sinks.epochs import Epochs, ShownEpoch, Wanted
from epochal.sinks.inspection import row_hash

RUNNER = CliRunner()
ONE = Actor(1, 11)
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = """
import epochal
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink

pipeline = epochal.Pipeline(
    app="app",
    sinks=[
        PostgresSink("postgresql://127.0.0.1:1/nowhere", table="t", name="table", connect_timeout=2.0),
        KafkaSink("127.0.0.1:1", topic="t", name="topic", request_timeout=1.0),
        DeltaSink("lake", name="lake"),
    ],
)
number = 7

def made():
    return pipeline

def broken():
    raise KeyError("no such secret")
"""


def command() -> typer.Typer:
    app = typer.Typer()
    console.add_to(app)
    return app


def run(*words: object, code: int) -> str:
    done = RUNNER.invoke(command(), list(map(str, words)))
    assert done.exit_code == code, (done.output, done.stderr, done.exception)
    return done.stdout


def error_of(*words: object, code: int) -> str:
    """As people are told it."""
    done = RUNNER.invoke(command(), list(map(str, words)))
    assert done.exit_code == code, (done.output, done.exception)
    return done.stderr


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "a_job.py"
    file.write_text(JOB)
    return file


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One start and two epochs, by the log; Spark has planned and committed both."""
    root = tmp_path / "checkpoint"
    for folder in ("offsets", "commits"):
        (root / folder).mkdir(parents=True)
        for epoch in (0, 1):
            (root / folder / str(epoch)).write_text("v1\n{}")
    (root / "metadata").write_text(json.dumps({"id": "q1"}))
    log = FilesLog(root / "epochal" / "log")
    records: list[Record] = [fence(root), commit(0), commit(1)]
    for position, record in enumerate(records):
        assert log.append(position, record)
    return root


def fence(root: Path) -> Fence:
    return Fence(ONE, Query("app", "q1", "r1", f"file:{root}"), 0)


def commit(epoch: int) -> Commit:
    decision = Decision("q1", epoch, ONE, f"fingerprint-{epoch}")
    vote = Participant("memory:1", Committable("one", decision, epoch + 1, 10))
    return Commit(decision, ONE, {"one": vote}, offsets=f"v1\n{{}}\n{epoch}", done_through={"one": epoch - 1})


# --- finding the pipeline ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pipeline", "made"])
def test_a_pipeline_is_found_in_a_file(job: Path, name: str) -> None:
    assert isinstance(load(f"{job}:{name}"), Pipeline)


def test_a_pipeline_is_found_in_a_module_beside_the_command(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load("a_job:pipeline").app == "app"


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "helper_of_a_job.py").write_text(JOB)
    (tmp_path / "b_job.py").write_text("from helper_of_a_job import pipeline")
    assert load(f"{tmp_path / 'b_job.py'}:pipeline").app == "app"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give --pipeline, or set EPOCHAL_PIPELINE"),
        ("a_job", "names no pipeline; it is written as job:pipeline"),
        ("{job}:not there", "names no pipeline"),
        ("{job}:missing", "has no missing"),
        ("{job}:number", "is int, not an epochal.Pipeline"),
        ("{job}:broken", "calling it raised KeyError: 'no such secret'"),
        ("/nowhere/job.py:pipeline", "there is no file /nowhere/job.py"),
        ("no_such_module_at_all:pipeline", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_pipeline_is_wrong_usage(job: Path, text: str, said: str, checkpoint: Path) -> None:
    told = error_of("verify", checkpoint, "--pipeline", text.format(job=job), code=USAGE)
    assert said in told


def test_a_file_that_ends_the_process_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "c_job.py").write_text("raise SystemExit(0)")
    with pytest.raises(Usage, match="cannot be imported: SystemExit"):
        load(f"{tmp_path / 'c_job.py'}:pipeline")


def test_a_file_that_the_job_itself_lacks_is_not_taken_for_the_job(tmp_path: Path) -> None:
    (tmp_path / "f_job.py").write_text("open('/nowhere/secret.txt')")
    with pytest.raises(Usage, match=r"cannot be imported: FileNotFoundError: .*/nowhere/secret\.txt"):
        load(f"{tmp_path / 'f_job.py'}:pipeline")
    assert "f_job" not in sys.modules


def test_the_error_of_a_job_that_has_left_the_list_of_modules_is_told(tmp_path: Path) -> None:
    (tmp_path / "g_job.py").write_text("import sys; del sys.modules['g_job']; raise ValueError('of the job')")
    with pytest.raises(Usage, match="cannot be imported: ValueError: of the job"):
        load(f"{tmp_path / 'g_job.py'}:pipeline")


@pytest.mark.parametrize("text", ["{0}", "def pipeline():\n    {0}"])
def test_an_error_of_ours_in_the_job_stays_what_it_is(tmp_path: Path, text: str) -> None:
    """It has its own exit code and its own advice."""
    raised = "from epochal.coordinator.model.errors import SinkUnavailable as S; raise S('no server', help='start it')"
    (tmp_path / "d_job.py").write_text(text.format(raised))
    with pytest.raises(SinkUnavailable, match="no server"):
        load(f"{tmp_path / 'd_job.py'}:pipeline")


def test_control_c_while_the_job_is_imported_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "e_job.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(f"{tmp_path / 'e_job.py'}:pipeline")


# --- exit codes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Usage("x"), USAGE),
        (Misconfigured("x", help="y"), USAGE),
        (CheckpointMismatch("x", help="y"), WRONG),
        (SinkUnavailable("x", help="y"), UNKNOWN),
        (OutcomeUnknown("x", help="y"), UNKNOWN),
        (CannotTell("x"), UNKNOWN),
        (RuntimeError("x"), UNKNOWN),
    ],
)
def test_an_error_ends_with_the_code_of_its_kind(error: Exception, code: int) -> None:
    app = typer.Typer()

    @answering
    def fails(as_json: bool = False) -> Answer:  # noqa: ARG001
        raise error

    app.command()(fails)
    done = RUNNER.invoke(app, [])
    assert done.exit_code == code
    assert "x" in done.stderr
    assert done.stdout == ""
    told = json.loads(RUNNER.invoke(app, ["--as-json"]).stdout)
    assert (told["version"], told["command"], told["exit"]) == (1, "fails", code)
    assert (told["error"]["kind"], told["error"]["what"]) == (type(error).__name__, "x")


def test_a_folder_that_is_no_checkpoint_is_wrong_usage(tmp_path: Path) -> None:
    assert "is no checkpoint of a query" in error_of("status", tmp_path, code=USAGE)


def test_a_log_that_only_spark_reaches_cannot_be_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.console.standing.running_session", lambda: None)
    told = error_of("log", "hdfs://name/checkpoint", code=UNKNOWN)
    assert "cannot tell: the epoch log below hdfs://name/checkpoint is reached through Spark's JVM" in told


def test_a_log_on_an_object_store_is_read_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the credentials of the environment."""
    pytest.importorskip("obstore")
    monkeypatch.setattr("epochal.coordinator.console.standing.running_session", lambda: None)
    with ObjectServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        filled(ObjectLog("s3a://lake/checkpoint/epochal/log"), 3)
        told = json.loads(run("log", "s3a://lake/checkpoint", "--json", code=FINE))
    assert told["log"] == f"objects:s3a://lake/checkpoint/epochal/log at {server.endpoint}"
    assert [record["kind"] for record in told["records"]] == ["fence", "commit", "commit"]


@pytest.mark.parametrize("conditional", [True, False])
def test_the_doctor_tries_whether_a_store_refuses_to_overwrite(
    monkeypatch: pytest.MonkeyPatch, conditional: bool
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr("epochal.coordinator.console.doctor.running_session", lambda: None)
    with ObjectServer() as server:
        server.conditional = conditional
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        told = json.loads(run("doctor", "s3a://lake/checkpoint", "--json", code=FINE if conditional else WRONG))
        assert server.objects == {}
    (finding,) = (each for each in told["findings"] if each["what"] == "conditional put")
    assert finding["verdict"] == ("fine" if conditional else "wrong")
    if not conditional:
        assert "ignores the condition that a put must not overwrite" in finding["error"]["what"]


def test_a_store_that_is_away_is_one_cross_for_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr("epochal.coordinator.console.doctor.running_session", lambda: None)
    with ObjectServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.break_next(Fault(method="PUT", lands=False, answer=403, times=100))
        told = json.loads(run("doctor", "s3a://lake/checkpoint", "--json", code=WRONG))
    (finding,) = (each for each in told["findings"] if each["what"] == "conditional put")
    assert finding["error"]["kind"] == "Misconfigured"
    assert "may not be used (trial of the store)" in finding["error"]["what"]


def test_the_bucket_policy_is_printed_without_asking_the_store() -> None:
    told = run("log", "s3://lake/checkpoint", "--policy", code=FINE)
    (statement,) = json.loads(told)["Statement"]
    assert statement["Resource"] == "arn:aws:s3:::lake/checkpoint/epochal/log/*"
    assert statement["Effect"] == "Deny"


def test_a_log_on_a_disk_has_no_bucket_policy(checkpoint: Path) -> None:
    assert "--policy is for a log on an object store" in error_of("log", checkpoint, "--policy", code=USAGE)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_a_checkpoint_is_named_as_a_query_names_it(checkpoint: Path, form: str) -> None:
    assert resolve(form.format(checkpoint)) == f"file:{checkpoint}"


def test_a_pipelines_own_log_is_read(checkpoint: Path, tmp_path: Path) -> None:
    own = FilesLog(tmp_path / "elsewhere")

    class WithLog:
        log = own

    assert log_of(WithLog(), f"file:{checkpoint}") is own  # type: ignore[arg-type]


# --- what is printed --------------------------------------------------------------------------------


def test_every_command_has_help_with_an_example_and_json() -> None:
    for each in console.COMMANDS:
        told = run(each.__name__, "--help", code=0)
        assert f"Example: epochal {each.__name__}" in told
        assert "--json" in told


def test_status_of_the_log_alone(checkpoint: Path) -> None:
    told = json.loads(run("status", checkpoint, "--json", code=FINE))
    assert (told["app"], told["asked"], told["spark"]) == ("app", False, {"planned": 1, "committed": 1})
    assert (told["log"]["last_epoch"], told["log"]["last_is"]) == (1, "decided")
    assert [(row["name"], row["visible_by_log"]) for row in told["sinks"]] == [("one", 0)]
    assert "at least 0" in run("status", checkpoint, code=FINE)


def test_status_says_that_sparks_metadata_is_missing(checkpoint: Path, job: Path) -> None:
    """S3: with a pipeline it is what a start would refuse, and it says what to write; without one it is a note."""
    (checkpoint / "metadata").unlink()
    told = json.loads(run("status", checkpoint, "--pipeline", f"{job}:pipeline", "--json", code=WRONG))["error"]
    assert told["kind"] == "CheckpointMismatch"
    assert told["what"].startswith("Spark's file metadata is missing in the checkpoint")
    assert '{"id":"q1"}' in told["help"]
    note = "Spark's file metadata is missing, so a start would refuse this checkpoint: --pipeline says what to do"
    assert note in json.loads(run("status", checkpoint, "--json", code=FINE))["notes"]
    assert "Spark's file metadata is missing" in run("status", checkpoint, code=FINE)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"id"'])
@pytest.mark.remedy(
    "Spark's file metadata is not as Spark writes it",
    'or write {"id":"..."} into it, with the id of the query that `epochal log` shows',
)
def test_status_names_a_metadata_file_that_is_damaged(checkpoint: Path, job: Path, text: str) -> None:
    """S3: and the log names the query whose id belongs into it."""
    (checkpoint / "metadata").write_text(text)
    for words in ([], ["--pipeline", f"{job}:pipeline"]):
        told = json.loads(run("status", checkpoint, *words, "--json", code=WRONG))["error"]
        assert told["what"] == "Spark's file metadata is not as Spark writes it"
        assert "the id of the query that `epochal log` shows" in told["help"]
    assert (
        "app app, query q1, run r1" in json.loads(run("log", checkpoint, "--json", code=FINE))["records"][0]["summary"]
    )
    (checkpoint / "metadata").write_text('{"id":"q1"}')
    assert json.loads(run("status", checkpoint, "--json", code=FINE))["spark"]["committed"] == 1


def test_an_epoch_that_a_person_closed_for_a_sink_is_not_in_doubt_there() -> None:
    held: list[Record] = [commit(1), Operator(ONE, {}, "", "", {"one": SinkStanding("a table", (None,), 1)})]
    history = History.of([Entry(n, record) for n, record in enumerate(held)])
    states = {"one": SinkState("a table", ONE, None)}
    ask = EpochRequest(Query("app", "q1", "", "file:/c"), 1, "")
    for known, in_doubt in ((history, []), (History(history.entries[:1]), ["one"])):
        standing = Standing("file:/c", "log", known, states, {}, ask, 0, 0, None)
        assert list(standing.in_doubt) == in_doubt


def test_watching_goes_on_until_it_is_interrupted(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a look that fails: what was down may come back."""
    pauses: list[float] = []
    log = checkpoint / "epochal" / "log"

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            (log / "foreign").write_text("")
        elif len(pauses) == 2:
            (log / "foreign").unlink()
        else:
            raise KeyboardInterrupt

    # its own alone: threads of another test's Spark sleep too
    monkeypatch.setattr("epochal.coordinator.console.status.time", SimpleNamespace(sleep=sleep))
    told = run("status", checkpoint, "--watch", "--every", 0.5, "--json", code=FINE)
    assert [json.loads(text)["exit"] for text in told.splitlines()] == [FINE, WRONG, FINE]
    assert pauses == [0.5] * 3


def test_log_of_a_checkpoint(checkpoint: Path) -> None:
    told = run("log", checkpoint, "--offsets", code=FINE)
    assert "decided: one position 2 (10 rows)" in told
    assert "3 records, 3 shown" in told
    (last,) = json.loads(run("log", checkpoint, "--last", 1, "--json", code=FINE))["records"]
    assert (last["position"], last["kind"], last["epoch"], last["by"]) == (2, "commit", 1, "g1/000b")


def test_what_a_person_said_is_a_line_of_the_log() -> None:
    said = {"act": "retire", "sink": "one", "unreachable": True}
    record = Operator(Actor(1, 11), said, why="the cluster is gone", at="2026-11-23T12:00:00+00:00")
    told = _told(Entry(7, record), offsets=True, committables=True)
    assert (told["kind"], told["by"]) == ("operator", "g1/000b")
    assert told["summary"] == "retire sink=one unreachable=True, at 2026-11-23T12:00:00+00:00: the cluster is gone"
    assert told["record"]["why"] == "the cluster is gone"


def test_markup_in_a_message_stays_text(capsys: pytest.CaptureFixture[str]) -> None:
    Answer("status", {}, FINE, [render.line("[red]as it is[/]" + "x" * 300)]).print(as_json=False)
    assert capsys.readouterr().out == f"[red]as it is[/]{'x' * 300}\n"


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress("verify", 10) as at:
        at(5)
    assert capsys.readouterr() == ("", "")


# --- what is imported -------------------------------------------------------------------------------

WITHOUT_SPARK = """
import sys
from typer.testing import CliRunner
import typer
from epochal.coordinator.console.app import add_to
app = typer.Typer()
add_to(app)
for words in (["status", CHECKPOINT], ["log", CHECKPOINT], ["status", CHECKPOINT, "--pipeline", JOB, "--json"]):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == (3 if "--pipeline" in words else 0), (words, done.output, done.exception)
assert '"asked": true' in done.output
assert not {"pyspark", "py4j", "pandas", "epochal.chaos.cli"} & sys.modules.keys()
"""


def test_no_command_imports_pyspark(checkpoint: Path, job: Path) -> None:
    """Also where a job module names a sink of each kind; none of their servers is there."""
    source = WITHOUT_SPARK.replace("CHECKPOINT", repr(str(checkpoint))).replace("JOB", repr(f"{job}:pipeline"))
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False, cwd=job.parent
    )
    assert done.returncode == 0, done.stderr


def test_an_installation_without_the_chaos_kit_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "GROUP", "no.such.group")
    monkeypatch.setattr(sys, "argv", ["epochal", "chaos", "--help"])
    assert cli.main() == USAGE
    assert "no entry point chaos in the group no.such.group" in capsys.readouterr().err


def test_the_chaos_kit_is_listed_and_imported_when_it_is_asked_for() -> None:
    source = (
        "import sys; from epochal.coordinator.console.cli import main; sys.argv = ['epochal', *sys.argv[1:]]; main()"
    )
    told = {}
    for words in (["--help"], ["chaos", "--help"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", source, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        told[words[0]] = done
    assert "chaos" in told["--help"].stdout
    assert "epochal.chaos.cli" not in told["--help"].stderr
    assert "simulate" in told["chaos"].stdout


# --- the rules of verify and reconcile --------------------------------------------------------------


def shown(position: int, epoch: int | None = None, **changed: Any) -> ShownEpoch:
    number = position - 1 if epoch is None else epoch
    decision = Decision("q1", number, ONE, f"fingerprint-{number}")
    row = ShownEpoch("app", "one", position, number, "q1", decision.id, "", 10, None, None, AT)
    return replace(row, **changed)


def kinds(
    *rows: ShownEpoch, logged: Iterator[Commit | Operator] | tuple[Commit | Operator, ...] = ()
) -> list[tuple[str, int | None]]:
    """What is found of one sink's audit."""
    account = verify.Account()
    history = History.of([Entry(n, record) for n, record in enumerate(logged)])
    whole = verify._Whole("one", account, history, verify._by_epoch(history), None)
    for page in reversed([rows[n : n + 2] for n in range(0, len(rows), 2)]):
        whole.page(page)
    return [(finding.kind, finding.position) for finding in account.findings]


def said(position: int, *, sink: str = "one", expected: int | None = None) -> Operator:
    """A person has retired or accepted the sink where it stood, or skipped epochs."""
    stands = {sink: SinkStanding("a table", (Marker(position, 0),), position)} if expected is None else {}
    return Operator(Actor(9, 9), {"act": "said"}, "so", "2026-01-01", stands=stands, expected=expected)


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (said(2), []),
        (said(0, expected=4), []),
        (said(1), [("gap", 3)]),
        (said(2, sink="two"), [("gap", 3)]),
        (said(0, expected=5), [("gap", 3)]),
    ],
    ids=["went on from there", "skipped", "from elsewhere", "another sink", "others skipped"],
)
def test_only_the_gap_that_a_person_spoke_of_is_none(record: Operator, found: list[tuple[str, int]]) -> None:
    rows = (shown(1), shown(2), shown(3, epoch=4), shown(4, epoch=5))
    assert kinds(*rows, logged=(record,)) == found


def test_an_audit_without_a_gap() -> None:
    assert kinds(*map(shown, range(1, 8))) == []
    assert kinds(*map(shown, range(3, 8))) == []  # the oldest are kept no longer


def test_gaps_are_found_also_between_two_pages() -> None:
    for gone in range(2, 7):
        assert kinds(*(shown(n) for n in range(1, 8) if n != gone)) == [("gap", gone)]


def test_an_epoch_that_is_left_out_is_found_unless_another_checkpoint_begins() -> None:
    assert kinds(shown(1), shown(2, epoch=2)) == [("gap", 2)]
    assert kinds(shown(1), shown(2, epoch=0, incarnation="q2")) == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"decision": 5}, [("decision", 2)]),
        ({"rows": 11}, [("count", 2)]),
        ({"offsets": "v1\n{}\n7"}, [("offsets", 2)]),
        ({"epoch": 9}, [("gap", 2), ("decision", 2)]),
    ],
)
def test_the_audit_is_held_against_the_log(changed: dict[str, Any], found: list[tuple[str, int]]) -> None:
    rows = [shown(1), shown(2, **changed)]
    assert sorted(kinds(*rows, logged=(commit(0), commit(1)))) == sorted(found)


def test_an_epoch_below_the_logs_floor_is_not_held_against_it() -> None:
    assert kinds(shown(1, decision=5), shown(2), logged=(commit(1),)) == []


@pytest.mark.parametrize(
    ("offsets", "digest", "kind"), [("a", Digest(10, 2), "digest"), ("b", Digest(10, 1), "offsets")]
)
def test_sinks_are_held_against_each_other(offsets: str, digest: Digest, kind: str) -> None:
    account = verify.Account()
    first = shown(1, digest=Digest(10, 1), offsets="a")
    for row in (first, replace(first, sink="two", position=5, digest=digest, offsets=offsets)):
        verify._Whole(row.sink, account, History.of([]), {}, None).page([row])
    assert [(finding.kind, finding.sink) for finding in account.findings] == [(kind, "two")]


def test_pages_go_from_the_newest_to_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PAGE", 3)
    kept = [shown(n) for n in range(3, 11) if n not in (5, 6, 7)]

    class Audited:
        def epochs(
            self, app: str, *, first: int | None = None, last: int | None = None, limit: int | None = None
        ) -> Epochs:
            assert app == "app"
            return Wanted.of("one", first, last, limit).of_all(kept)

    pages = [[row.position for row in page] for page in audit.pages(Audited(), "app")]  # type: ignore[arg-type]
    assert pages == [[8, 9, 10], [3, 4]]


def test_statements_count_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MOST_ROWS", 25)
    rows = [shown(n) for n in range(1, 6)] + [shown(6, rows=100), shown(7)]
    assert [[row.position for row in part] for part in verify._parts(rows)] == [[1, 2], [3, 4], [5], [6], [7]]


def test_a_rows_hash_is_of_its_values_alone() -> None:
    pairs: list[tuple[Any, Any, str]] = [
        (1, 1, "integer"),
        (0.1, 0.10000000149011612, "real"),
        (math.nan, math.nan, "double"),
    ]
    for one, other, kind in pairs:
        assert row_hash([one], [kind]) == row_hash([other], [kind])
    different: list[tuple[list[Any], list[str]]] = [
        ([None], ["text"]),
        ([""], ["text"]),
        ([0.0], ["double"]),
        ([-0.0], ["double"]),
        (["a", "b"], ["text", "text"]),
        (["ab", ""], ["text", "text"]),
        (["", "ab"], ["text", "text"]),
    ]
    hashes = [row_hash(row, kinds) for row, kinds in different]
    assert len(set(hashes)) == len(hashes)
    assert all(0 <= hashed < 1 << 63 for hashed in hashes)


def test_two_sinks_with_other_projections_are_not_compared() -> None:
    class Content:
        unattributed = ""

        def __init__(self, projection: Json) -> None:
            self.projection = projection

    class Named:
        name = "n"

    def side(projection: Json) -> reconcile.Side:
        return reconcile.Side(Named(), {}, Content(projection))  # type: ignore[arg-type]

    assert reconcile._reasons(side({"where": None}), side({"where": None})) == []
    assert reconcile._reasons(side({"where": None}), side({"where": "x"})) == [
        "the two sinks get different columns or rows of an epoch (select=, where=, bad_rows=)"
    ]


# --- columns without a JVM --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("id bigint, at timestamp", "struct<id:bigint,at:timestamp>"),
        ("id: INT, `a b` string NOT NULL", "struct<id:int,a b:string>"),
        ("d decimal(10, 2), e numeric", "struct<d:decimal(10,2),e:decimal(10,0)>"),
        (
            "a array<struct<x:int,y:decimal(3,1)>>, m map<string,array<long>>",
            "struct<a:array<struct<x:int,y:decimal(3,1)>>,m:map<string,array<bigint>>>",
        ),
    ],
)
def test_columns_as_spark_writes_them(text: str, simple: str) -> None:
    assert columns.parse(text).simpleString() == simple


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--schema has no column"),
        ("id", "'id' is no column with its type"),
        ("id bigint, at", "'at' is no column with its type"),
        ("id money", "'money'"),
        ("m map<string>", "map<string>"),
        ("a array<what>", "'what'"),
    ],
)
def test_what_is_no_column_is_wrong_usage(text: str, said: str) -> None:
    with pytest.raises(Usage, match="--schema") as wrong:
        columns.parse(text)
    assert said in str(wrong.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "give exactly one of --accept SINK"),
        (("--accept", "a", "--marker", "b"), "give exactly one of --accept SINK"),
        (("--skipped", "7..."), "--skipped '7...': it is written as 7 or 7..9"),
        (("--accept", "a", "--yes"), "--yes needs --why: the log keeps the reason"),
        (("--accept", "a", "--why", " ", "--yes"), "--yes needs --why: the log keeps the reason"),
    ],
)
def test_what_a_person_did_not_say_is_asked_for_before_anything_is_loaded(given: tuple[str, ...], told: str) -> None:
    said = error_of("resolve", "/nowhere", "--pipeline", "nowhere.py:pipeline", *given, code=USAGE)
    assert told in " ".join(said.split())
