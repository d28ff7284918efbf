"""The doctor: it asks what a start asks, each question by itself, within a time limit, and tells no secret."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from epochal import Pipeline
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.environment.redaction import HIDDEN, redacted
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import CheckpointMismatch, EpochalError, Misconfigured, SinkUnavailable
from epochal.coordinator.query.diagnosis import Diagnosis, Finding, Verdict, ask_all
from epochal.coordinator.query.doctor import Part, diagnose, require_all
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.protocol import Schema, Sink
from epochal.sinks.questions import Answer, NotAsked, Question, Questioned, Told, questions_of, require

SECRET = "hunter2-and-3"
QUERY = Query("app", "", "", "")
SCHEMA = StructType().add("id", "long")


def answers(*questions: Question) -> dict[str, Finding]:
    return {finding.what: finding for finding in ask_all("it", questions)}


def raising(error: Exception) -> Callable[[], Told]:
    def ask() -> Told:
        raise error

    return ask


# --- one question after the other ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "verdict"),
    [
        (lambda: None, Verdict.FINE),
        (lambda: "18.1", Verdict.FINE),
        (lambda: Answer("7", ["beware"]), Verdict.CAUTION),
        (raising(Misconfigured("no", help="mend it")), Verdict.WRONG),
        (raising(CheckpointMismatch("no", help="mend it")), Verdict.WRONG),
        (raising(SinkUnavailable("away", help="start it")), Verdict.UNKNOWN),
        (raising(KeyError("odd")), Verdict.UNKNOWN),
        (raising(NotAsked("no Spark")), Verdict.NOT_ASKED),
    ],
)
def test_what_an_answer_means(ask: Callable[[], Told], verdict: Verdict) -> None:
    assert answers(Question("it", ask))["it"].verdict is verdict


def test_it_goes_on_after_an_error_and_skips_only_what_makes_no_sense_then() -> None:
    found = answers(
        Question("table", raising(Misconfigured("there is no table", help="make it"))),
        Question("columns", lambda: "never asked", needs=("table",)),
        Question("keys", lambda: "never asked", needs=("columns",)),
        Question("executors", lambda: "Python 3.11"),
    )
    assert [finding.verdict.value for finding in found.values()] == ["wrong", "not asked", "not asked", "fine"]
    assert (found["columns"].value, found["keys"].value) == (
        "needs a good answer to: table",
        "needs a good answer to: columns",
    )
    assert found["table"].error is not None
    assert (found["table"].error.what, found["table"].error.help) == ("there is no table", "make it")


def test_a_caution_is_a_good_answer_for_what_needs_it() -> None:
    found = answers(Question("a", lambda: Answer(cautions=["beware"])), Question("b", lambda: "yes", needs=("a",)))
    assert found["b"].verdict is Verdict.FINE


def test_a_list_of_questions_that_breaks_off_is_told_too() -> None:
    def questions() -> Iterator[Question]:
        yield Question("first", lambda: "yes")
        raise Misconfigured("app 'x y' is no name", help="give another")

    first, broken = ask_all("it", questions())
    assert (first.verdict, broken.verdict, broken.what) == (Verdict.FINE, Verdict.WRONG, "questions")


def test_a_check_raises_the_first_error_and_warns_of_what_it_has_seen_until_then() -> None:
    asked: list[str] = []

    def asking(what: str) -> Callable[[], Told]:
        return lambda: asked.append(what)

    questions = [
        Question("a", lambda: Answer(cautions=["beware"])),
        Question("b", raising(NotAsked("no Spark"))),
        Question("c", raising(Misconfigured("no", help="mend it"))),
        Question("d", asking("d")),
    ]
    for check in (
        lambda warn: require(questions, warn),
        lambda warn: require_all([Part("it", lambda: iter(questions))], warn),
    ):
        warned: list[str] = []
        with pytest.raises(Misconfigured, match="mend it"):
            check(warned.append)
        assert (warned, asked) == (["beware"], [])


def test_a_logged_caution_of_a_sink_names_the_sink() -> None:
    warned: list[str] = []
    questions = [Question("a", lambda: Answer(cautions=["beware"]))]
    parts = [Part("query", lambda: iter(questions)), Part("sink s", lambda: iter(questions), named=True)]
    require_all(parts, warned.append)
    assert warned == ["beware", "sink s: beware"]


# --- within a time limit -------------------------------------------------------------------------


def test_a_part_without_an_answer_is_one_cross_and_keeps_nobody_waiting() -> None:
    """As a server that takes the connection and says nothing."""
    forever = threading.Event()

    def silent() -> Iterator[Question]:
        yield Question("before", lambda: "yes")
        yield Question("connection", lambda: str(forever.wait()))
        yield Question("after", lambda: "never asked")

    began = time.monotonic()
    found = diagnose([Part("silent", silent), Part("other", lambda: iter([Question("it", lambda: "yes")]))], 0.3, None)
    assert time.monotonic() - began < 30
    forever.set()
    assert [(f.of, f.what, f.verdict.value) for f in found.findings] == [
        ("silent", "before", "fine"),
        ("silent", "connection", "unknown"),
        ("other", "it", "fine"),
    ]
    assert found.findings[1].value == "no answer within 0.3 s; the questions after it were not asked"
    assert not found.is_fine


def test_parts_are_asked_at_the_same_time_and_told_in_their_order() -> None:
    both = threading.Barrier(2, timeout=60)
    parts = [Part(name, lambda: iter([Question("it", lambda: str(both.wait() >= 0))])) for name in ("a", "b")]
    assert [(f.of, f.value) for f in diagnose(parts, 60, None).findings] == [("a", "True"), ("b", "True")]


# --- a pipeline, and sinks that know nothing of it -----------------------------------------------


class Strange(MemorySink):
    """A sink of somebody else: it has ``check``, and no list of questions."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        super().__init__(name, MemoryServer())
        self._error = error
        self.closed = 0

    def check(self, query: Query, schema: Schema) -> None:  # noqa: ARG002
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.closed += 1


def told_of(pipeline: Pipeline, of: str, **options: Any) -> list[Finding]:
    return [finding for finding in pipeline.doctor(**options).findings if finding.of == of]


def test_a_sink_that_lists_no_questions_is_one_line() -> None:
    [fine] = told_of(Pipeline(app="app", sinks=[Strange("s")]), "sink s", schema=SCHEMA)
    assert (fine.what, fine.verdict) == ("check", Verdict.FINE)
    refusing = Strange("s", Misconfigured("the moon is full", help="wait"))
    [wrong] = told_of(Pipeline(app="app", sinks=[refusing]), "sink s", schema=SCHEMA)
    assert (wrong.verdict, str(wrong)) == (
        Verdict.WRONG,
        "✗ check\n    Misconfigured: the moon is full\n    Help: wait",
    )
    [unasked] = told_of(Pipeline(app="app", sinks=[refusing]), "sink s")
    assert (unasked.verdict, unasked.value) == (Verdict.NOT_ASKED, "the columns of the rows are not known here")


def test_what_an_unknown_error_says_is_not_told_but_where_it_was_raised() -> None:
    broken = Strange("s", RuntimeError(f"cannot log in with {SECRET}"))
    found = Pipeline(app="app", sinks=[broken]).doctor(schema=SCHEMA)
    [error] = [finding.error for finding in found.of(Verdict.UNKNOWN)]
    assert error is not None
    assert error.kind == "RuntimeError"
    assert "test_doctor.py" in error.what
    assert SECRET not in f"{found}{[finding.to_json() for finding in found.findings]}"


def test_a_subclass_that_overrides_check_alone_is_asked_by_its_check() -> None:
    class Mine(PostgresSink):
        def check(self, query: Query, schema: Schema) -> None:  # noqa: ARG002
            raise Misconfigured("not on Fridays", help="wait")

    mine = Mine("postgresql://127.0.0.1:1/db", table="t")
    assert isinstance(mine, Questioned)
    assert [question.what for question in questions_of(mine, QUERY, SCHEMA)] == ["check"]
    ours = PostgresSink("postgresql://127.0.0.1:1/db", table="t")
    assert len(list(questions_of(ours, QUERY, SCHEMA))) > 10


@pytest.mark.parametrize("sink", [Strange("s"), Strange("s", Misconfigured("no", help="mend it"))])
def test_the_sinks_that_are_asked_are_closed(sink: Strange, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Strange] = []
    pipeline = Pipeline(app="app", sinks=[sink])
    new_sinks = pipeline.new_sinks

    def noted() -> tuple[Sink, ...]:
        sinks = new_sinks()
        made.extend(sink for sink in sinks if isinstance(sink, Strange))
        return sinks

    monkeypatch.setattr(pipeline, "new_sinks", noted)
    pipeline.doctor(schema=SCHEMA)
    assert [each.closed for each in made] == [1]


def test_what_can_be_asked_of_nothing_but_a_pipeline_is_asked_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epochal.coordinator.query.pipeline.running_session", lambda: None)  # one of other tests
    found = Pipeline(app="app", sinks=[Strange("s")], log=MemoryLog()).doctor()
    assert found.is_fine
    assert {(f.of, f.what): f.verdict.value for f in found.findings if f.of != "this process"} == {
        ("Spark", "Spark"): "not asked",
        ("query", "plan"): "not asked",
        ("query", "columns"): "not asked",
        ("sink s", "check"): "not asked",
        ("epoch log", "epoch log"): "fine",
    }
    assert next(f.value for f in found.findings if f.what == "epoch log").endswith("0 records, 0 starts, no epoch yet")
    assert {f.what for f in found.findings if f.of == "this process"} == {
        *("Epochal", "Python", "machine", "packages", "versions at own risk")
    }


def test_the_disk_under_a_log_that_lies_elsewhere_is_asked_too(tmp_path: Path) -> None:
    log = FilesLog(tmp_path / "log")
    found = Pipeline(app="app", sinks=[Strange("s")], log=log).doctor()
    told = {f.what: f.value for f in found.findings if f.of == "epoch log"}
    assert told["file system of the log"].startswith(f"{tmp_path}: ")
    assert told["epoch log"].startswith(f"files:{tmp_path}/log: 0 records")
    assert list(tmp_path.iterdir()) == []


def test_versions_that_a_person_answers_for_are_a_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_AT_OWN_RISK", "Spark 4.3")
    [found] = Pipeline(app="app", sinks=[Strange("s")]).doctor().of(Verdict.CAUTION)
    assert found.cautions == ("EPOCHAL_AT_OWN_RISK=Spark 4.3: nothing is promised with these",)


def test_it_is_printed_as_one_list_with_ticks() -> None:
    found = Diagnosis(
        (
            Finding("sink a", "server", Verdict.FINE, "Postgres 18"),
            Finding("sink a", "settings", Verdict.CAUTION, "fsync=off", ("it loses rows",)),
            Finding("sink b", "table", Verdict.NOT_ASKED, "no Spark"),
        )
    )
    assert str(found).splitlines() == [
        *("sink a", "  ✓ server: Postgres 18", "  ! settings: fsync=off", "      it loses rows"),
        *("sink b", "  - table: no Spark", "1 fine, 1 caution, 1 not asked"),
    ]
    assert repr(found) == "Diagnosis(1 fine, 1 caution, 1 not asked)"


# --- secrets -------------------------------------------------------------------------------------

HOSTILE: Sequence[str] = (
    f"cannot connect to postgresql://writer:{SECRET}@db/flights",
    f"postgres://writer:a@b/{SECRET}@db:5432/flights is away",
    f"host=db password={SECRET} user=w",
    f"host=db password = '{SECRET} with \\' blanks' user=w",
    f"PGPASSWORD={SECRET}",
    f"{{'sasl.password': '{SECRET}', 'sasl.username': 'w'}}",
    f'{{"sasl.oauthbearer.client.secret": "{SECRET}"}}',
    f'sasl.jaas.config=PlainLoginModule required username="w" password="{SECRET}";',
    f"ssl.key.password={SECRET}, ssl.ca.location=/ca.pem",
    f"-----BEGIN RSA PRIVATE KEY-----\nMII{SECRET}\n-----END RSA PRIVATE KEY-----",
    f"'-----BEGIN ENCRYPTED PRIVATE KEY-----\\nMII{SECRET}",
    f"spark.hadoop.fs.s3a.secret.key={SECRET}",
    f"fs.azure.account.key.lake.dfs.core.windows.net={SECRET}",
    f"s3a://AKIA1:{SECRET}@bucket/checkpoint",
    f"https://lake.blob.core.windows.net/c?sv=1&sig={SECRET}&se=2",
    f"Authorization: Basic {SECRET}",
    f"the header was Bearer {SECRET}",
    f"token={SECRET}",
    f"eyJhbGciOi.{SECRET}.c2ln",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_secret_is_hidden_by_its_form(text: str) -> None:
    assert SECRET not in redacted(text)
    assert HIDDEN in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "Postgres at db:5432, database flights, user writer, TLS, psycopg 3.3 (binary, libpq 18.0)",
        "the connection string cannot be read (it is not shown, as it may hold a password)",
        "bootstrap servers a:9092,b:9092; sasl.mechanism=PLAIN, sasl.password, sasl.username",
        "abfss://container@account.dfs.core.windows.net/checkpoint",
        'GRANT SELECT, UPDATE ON epochal.sinks TO "writer"',
        "give a libpq conninfo or postgresql:// URI, with special characters of the password percent-encoded",
        "hdfs://name:8020/checkpoint",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_secret_of_the_environment_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    monkeypatch.setenv("MY_TOKEN", "on")  # too short to be one
    assert redacted(f"FATAL: {SECRET} is on nobody's list") == f"FATAL: {HIDDEN} is on nobody's list"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_part_of_a_finding_tells_a_secret(text: str) -> None:
    error = Misconfigured(text, help=text, state=text)
    found = Diagnosis(
        tuple(
            ask_all(
                "it",
                [
                    Question("value", lambda: text),
                    Question("caution", lambda: Answer(text, [text])),
                    Question("not asked", raising(NotAsked(text))),
                    Question("wrong", raising(error)),
                    Question("unknown", raising(ValueError(text))),
                ],
            )
        )
    )
    assert [finding.verdict.value for finding in found.findings] == [
        *("fine", "caution", "not asked", "wrong", "unknown")
    ]
    assert SECRET not in f"{found} {found!r} {found.findings!r} {[finding.to_json() for finding in found.findings]}"


def test_the_error_itself_is_not_changed() -> None:
    """What a start raises still says all that it said."""
    error: EpochalError = Misconfigured("password=1234567", help="mend it")
    [_] = ask_all("it", [Question("wrong", raising(error))])
    assert error.what == "password=1234567"
