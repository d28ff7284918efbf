"""What commands refuse or cannot tell, where a sink is missing, silent, in doubt or refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit, Entry, Fence, Participant
from epochal.coordinator.console import clean, reconcile, sql, standing, txns, verify
from epochal.coordinator.console.reconcile import Side
from epochal.coordinator.console.render import CannotTell, Usage
from epochal.coordinator.console.standing import Standing
from epochal.coordinator.model.epoch import Actor, Committable, Decision, EpochRequest, Marker, Query, SinkState
from epochal.coordinator.model.errors import CheckpointMismatch, CommitInDoubt, Misconfigured, SinkUnavailable
from epochal.coordinator.protocol.history import History
from epochal.sinks import KafkaSink
from epochal.sinks.epochs import Epochs, ShownEpoch, Wanted
from epochal.sinks.inspection import Described
from epochal.sinks.memory import MemoryServer, MemorySink

ONE = Actor(1, 11)
QUERY = Query("app", "q1", "r1", "file:/checkpoint")
DOWN = SinkUnavailable("no server", sink="topic", help="start it")
REFUSED = CheckpointMismatch("another checkpoint", sink="table", help="put it back")
JOB = """
import epochal
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink

NOWHERE = "postgresql://127.0.0.1:1/nowhere"
table = PostgresSink(NOWHERE, table="t", name="table", bad_rows=DeltaSink("bad", name="bad"), connect_timeout=2.0)
topic = KafkaSink("127.0.0.1:1", topic="t", name="topic", request_timeout=1.0)
pipeline = epochal.Pipeline(app="app", sinks=[table, topic])
two = epochal.Pipeline(app="app", sinks=[table, PostgresSink(NOWHERE, table="u", name="other")])
lake = epochal.Pipeline(app="app", sinks=[DeltaSink("lake", name="lake")])
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "a_refusing_job.py"
    file.write_text(JOB)
    return str(file)


def checkpoint(tmp_path: Path, *records: Fence | Commit) -> str:
    root = tmp_path / "checkpoint"
    log = FilesLog(root / "epochal" / "log")
    for position, record in enumerate(records):
        assert log.append(position, record)
    (root / "epochal").mkdir(parents=True, exist_ok=True)
    return str(root)


def called(command: Callable[..., object], *given: object, **more: object) -> Any:
    """Call a command without ``answering``, which would turn what it raises into an exit code."""
    return cast("Any", command).__wrapped__(*given, **more)


def commit(epoch: int, sink: str = "table") -> Commit:
    decision = Decision("q1", epoch, ONE, f"fingerprint-{epoch}")
    vote = Participant("memory:1", Committable(sink, decision, epoch + 1, 10))
    return Commit(decision, ONE, {sink: vote}, offsets="", done_through={sink: epoch - 1})


def stood(*records: Fence | Commit, **changed: Any) -> Standing:
    history = History.of([Entry(position, record) for position, record in enumerate(records)])
    ask = EpochRequest(QUERY, 0, "")
    given: dict[str, Any] = {"states": {}, "unanswered": {}, "refusal": None, **changed}
    return Standing("file:/checkpoint", "log", history, ask=ask, planned=None, committed=None, **given)


IN_DOUBT = {"states": {"topic": SinkState("memory:1", ONE, None)}}


# --- reconcile -------------------------------------------------------------------------------------------


def test_an_empty_log_has_nothing_to_compare(tmp_path: Path, job: str) -> None:
    with pytest.raises(CannotTell, match="the epoch log is empty"):
        called(reconcile.reconcile, checkpoint(tmp_path), "table", "topic", f"{job}:pipeline")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("nowhere", Usage, "the pipeline has no sink 'nowhere'; it has"),
        ("bad", CannotTell, "gets the rows that sink 'table' cannot hold"),
    ],
)
def test_a_sink_that_cannot_be_compared_is_named(
    tmp_path: Path, job: str, name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        called(reconcile.reconcile, checkpoint(tmp_path, Fence(ONE, QUERY, 0)), name, "topic", f"{job}:pipeline")


def test_a_sink_without_an_audit_cannot_be_compared() -> None:
    pipeline = cast("Any", SimpleNamespace(app="app", sinks=[SimpleNamespace(name="plain")]))
    with pytest.raises(CannotTell, match="sink 'plain' has no audit"):
        reconcile._side(pipeline, "plain", "q1", 0, None, True)


def test_sinks_that_tell_of_no_epoch_in_common_cannot_be_compared() -> None:
    sides = [Side(cast("Any", None), {epoch: cast("Any", None)}, None) for epoch in (1, 2)]
    with pytest.raises(CannotTell, match="no epoch in this range"):
        reconcile._common(*sides)


# --- sql -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "sink", "said"),
    [
        ("pipeline", "topic", "--sink 'topic' is no Postgres sink; there is 'table'"),
        ("two", "", "name one sink with --sink: 'table', 'other'"),
        ("lake", "", "the pipeline has none in Postgres"),
    ],
)
def test_sql_is_of_one_postgres_sink(job: str, pipeline: str, sink: str, said: str) -> None:
    with pytest.raises(Usage, match=re.escape(said)):
        called(sql.sql, f"{job}:{pipeline}", sink, "id bigint")


# --- txns ------------------------------------------------------------------------------------------------


def test_only_a_kafka_sink_has_transactions_to_abort(tmp_path: Path, job: str) -> None:
    with pytest.raises(Usage, match="--abort 'table' is no Kafka sink of the pipeline; it has none"):
        called(txns.txns, checkpoint(tmp_path), f"{job}:two", "table")


@pytest.mark.parametrize(
    "ask", [lambda at: txns._sink("topic", asked(), at), lambda at: aborted(at), lambda at: finished(at)]
)
def test_transactions_of_a_sink_that_does_not_answer_are_not_told(ask: Callable[[Standing], object]) -> None:
    with pytest.raises(SinkUnavailable, match="no server"):
        ask(stood(unanswered={"topic": DOWN}))


def test_nothing_is_aborted_where_a_start_would_be_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="another checkpoint"):
        aborted(stood(refusal=REFUSED))


def test_nothing_is_aborted_while_an_epoch_is_in_doubt() -> None:
    with pytest.raises(CommitInDoubt, match="decided, and not shown yet: nothing is aborted"):
        aborted(stood(commit(0, "topic"), **IN_DOUBT))


def test_nothing_is_finished_where_a_start_would_be_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="another checkpoint"):
        finished(stood(refusal=REFUSED))


def test_nothing_is_finished_that_no_open_transaction_holds() -> None:
    with pytest.raises(CommitInDoubt, match="decided, and no open transaction holds it: nothing is finished"):
        finished(stood(commit(0, "topic"), **IN_DOUBT))
    assert finished(stood()) == ["no epoch is decided and not shown: nothing is finished"]


def test_what_lies_in_the_marker_topic_is_read_once_for_all_ids() -> None:
    reads = list[int]()

    def epoch_inside() -> int:
        reads.append(1)
        return 7

    opened = [Described(f"epochal-app-topic-{n}", "Ongoing", True, True, (n, 0), None, 60.0, []) for n in range(3)]
    there = SimpleNamespace(**vars(asked()), epoch_inside=epoch_inside)
    there.described = lambda: opened
    told = txns._sink("topic", cast("Any", there), stood())
    assert [(each["epoch"], each["by_log"]) for each in told["transactions"]] == [(7, "not decided")] * 3
    assert len(reads) == 1


@pytest.mark.parametrize("can_commit", [True, False])
def test_the_transaction_that_is_shown_as_decided_is_the_one_that_is_finished(can_commit: bool) -> None:
    mine, other = (
        Described(name, "Ongoing", True, can_commit, (n, 0), None, 60.0, []) for n, name in enumerate(("mine", "other"))
    )
    there = SimpleNamespace(**vars(asked()), is_prepared=lambda found, _: found is mine, epoch_inside=lambda: None)
    there.described = lambda: [other, mine]
    at = stood(commit(0, "topic"), **IN_DOUBT)
    told = txns._sink("topic", cast("Any", there), at)["transactions"]
    assert [each["by_log"] for each in told] == ["not this one", "decided"]
    sink = KafkaSink("localhost:1", topic="topic", name="topic")
    if can_commit:
        assert str(mine) in txns._finished(sink, cast("Any", there), at, yes=False)[0]
    else:
        with pytest.raises(CommitInDoubt, match="no open transaction holds it"):
            txns._finished(sink, cast("Any", there), at, yes=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "give either CHECKPOINT or --bootstrap"),
        ({"checkpoint": "c", "bootstrap": "b"}, "give either CHECKPOINT or --bootstrap"),
        ({"checkpoint": "c", "finish": "topic", "abort": "topic"}, "give one of --finish and --abort"),
        ({"bootstrap": "b", "abort": "topic"}, "--finish and --abort need CHECKPOINT"),
    ],
)
def test_txns_refuses_what_contradicts_itself(words: dict[str, str], said: str) -> None:
    with pytest.raises(Usage, match=said):
        called(txns.txns, **words)


def asked() -> Any:
    def never() -> list[str]:
        raise AssertionError("nothing may be aborted")

    return SimpleNamespace(ids=["epochal-app-topic"], transactions=list, abort=never, described=list)


def finished(at: Standing) -> list[str]:
    return txns._finished(cast("Any", SimpleNamespace(name="topic")), asked(), at, yes=True)


def aborted(at: Standing) -> list[str]:
    return txns._aborted("topic", asked(), at, yes=True)


# --- clean, verify ---------------------------------------------------------------------------------------


def test_nothing_is_removed_where_a_start_would_be_refused(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean, "take", lambda *_: stood(refusal=REFUSED))
    with pytest.raises(CheckpointMismatch, match="another checkpoint"):
        called(clean.clean, checkpoint(tmp_path), f"{job}:pipeline", yes=True)


class Audited(MemorySink):
    """A sink whose audit has an epoch above its marker."""

    def __init__(self) -> None:
        super().__init__("table", MemoryServer())

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        del query, by
        return SinkState("memory:1", ONE, Marker(1, 7))

    def epochs(
        self, app: str, *, first: int | None = None, last: int | None = None, limit: int | None = None
    ) -> Epochs:
        at = datetime(2026, 1, 1, tzinfo=timezone.utc)
        rows = [ShownEpoch(app, self.name, p, p - 1, "q1", 7, "", 10, None, None, at) for p in (1, 2)]
        return Wanted.of(self.name, first, last, limit).of_all(rows)


def test_verify_asks_the_log_the_rules_of_a_start_and_every_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """One finding of each."""
    at = stood(commit(0), commit(2), refusal=REFUSED, states={"table": SinkState("memory:1", ONE, Marker(3, 7))})
    monkeypatch.setattr(verify, "_settled", lambda *_: at)
    pipeline = cast("Any", SimpleNamespace(app="app", sinks=[Audited()]))
    _, account = verify.examine(pipeline, "file:/checkpoint")
    found = {(finding.kind, finding.what.partition(":")[0]) for finding in account.findings}
    assert ("gap", "the log has no record of epoch 1") in found
    assert ("refused", "a start would end with CheckpointMismatch") in found
    assert ("gap", "the marker stands at position 3, the audit's newest is 2") in found


# --- where the state is read -----------------------------------------------------------------------------


def test_an_interrupt_in_a_look_is_no_silent_sink() -> None:
    class Interrupted(Audited):
        def look(self, *_: object, **__: object) -> SinkState:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        standing._look(cast("Any", [Interrupted()]), QUERY)


def test_no_session_is_started_to_read_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "running_session", lambda: None)
    with pytest.raises(Misconfigured, match="no Spark session runs in this process"):
        standing.spark()
