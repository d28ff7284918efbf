"""`epochal doctor` and `Pipeline.doctor` beside a real job: all good, several things wrong, servers away, secrets."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql.types import StructType

from epochal import Pipeline
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model.epoch import Json, Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.query.diagnosis import Diagnosis, Finding, Verdict
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.kafka.topics import newest_timestamp
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.protocol import Schema, Sink
from tests.real.coordinator.console.support import Console
from tests.real.coordinator.query.support import FAST
from tests.real.sinks.kafka.support import set_config
from tests.real.sinks.postgres.support import observe

COLUMNS = (
    "id bigint, name string, at timestamp, day date, amount decimal(16,6), ratio double, small double, even boolean,"
    " raw binary, local timestamp_ntz, many array<bigint>"
)
SECRET = "open-Sesame-43"
FIELDS = {"of", "what", "verdict", "value", "cautions", "error"}
"""The fields of a finding: programs read them."""


def told(found: Json, of: str) -> dict[str, Json]:
    return {finding["what"]: finding for finding in found["findings"] if finding["of"] == of}


def verdicts(found: Json, of: str) -> dict[str, str]:
    return {what: finding["verdict"] for what, finding in told(found, of).items()}


def in_python(diagnosis: Diagnosis, verdict: Verdict) -> dict[tuple[str, str], Finding]:
    return {(finding.of, finding.what): finding for finding in diagnosis.of(verdict)}


# --- all is fine ---------------------------------------------------------------------------------


def test_all_is_fine_without_spark(console: Console) -> None:
    found = console.epochal("doctor", console.checkpoint, "--schema", COLUMNS, code=0)
    assert (found["app"], found["checkpoint"], found["notes"]) == (console.app, str(console.checkpoint), [])
    assert [finding for finding in found["findings"] if finding.keys() != FIELDS] == []
    assert (found["counts"]["wrong"], found["counts"]["unknown"]) == (0, 0)
    table, topic = told(found, "sink table"), told(found, "sink topic")
    assert table["rights on epochal.sinks"]["value"] == "SELECT, UPDATE"
    assert "Postgres " in table["server"]["value"]
    assert "fsync=on, full_page_writes=on" in table["settings of the server"]["value"]
    assert "wal_level=" in table["settings of the server"]["value"]
    assert "psycopg " in table["connection"]["value"]
    assert table["clock"]["value"].startswith("the server's clock is 0.")
    assert "a record of topic" in topic["clock"]["value"]
    assert "s behind this machine's clock; Kafka tells nobody its time" in topic["clock"]["value"]
    assert [each["clock"]["verdict"] for each in (table, topic)] == ["fine", "fine"]
    assert "librdkafka " in topic["client"]["value"]
    assert "1 partitions, 1 replicas" in topic["topics"]["value"]
    assert "max.message.bytes=" in topic[f"limits of {console.topic}"]["value"]
    assert "message.timestamp.before.max.ms=" in topic[f"timestamps of {console.topic}"]["value"]
    assert "WRITE" in topic[f"rights on {console.topic}"]["value"]
    no_spark = "no Spark session runs in this process"
    assert (table["executors"]["verdict"], table["executors"]["value"]) == ("not asked", no_spark)
    assert told(found, "sink lake")["table"]["value"] == f"it is asked through Spark, and {no_spark}"
    checkpoint = told(found, "checkpoint")
    assert "1 starts, last epoch 2" in checkpoint["epoch log"]["value"]
    assert " free" in checkpoint["file system of the checkpoint"]["value"]
    assert checkpoint["log and sinks agree"]["verdict"] == "fine"


def test_all_is_fine_as_people_are_told_it(console: Console) -> None:
    text = console.told("doctor", console.checkpoint, code=0)
    assert "sink table\n  ✓ columns of the rows" not in text
    assert "  - columns of the rows: the columns of the rows are not known here" in text
    assert "  ✓ server: Postgres " in text
    assert "  ✓ log and sinks agree" in text


@pytest.mark.wide
def test_it_works_without_a_pipeline_and_before_there_is_a_checkpoint(console: Console, tmp_path: Path) -> None:
    found = console.epochal("doctor", tmp_path / "new", "--pipeline", "", code=0)
    assert verdicts(found, "checkpoint") == {
        "name of the checkpoint": "fine",
        "file system of the checkpoint": "fine",
        "epoch log": "fine",
    }
    assert "the sinks were not asked" in found["notes"][0]
    found = console.epochal("doctor", tmp_path / "new", code=1)  # the sinks show epochs that this checkpoint lacks
    error = told(found, "checkpoint")["log and sinks agree"]["error"]
    assert error["kind"] == "CheckpointMismatch"
    assert "in this process" in console.told("doctor", "--pipeline", "", code=0)


def test_a_check_and_a_doctor_ask_the_same_and_with_spark_all_of_it(console: Console) -> None:
    pipeline = console.made()
    where = str(console.checkpoint)
    found = pipeline.doctor(console.rows(), where)
    checked = pipeline.check(console.rows(), where)
    assert [(f.of, f.what, f.verdict) for f in found.findings] == [(f.of, f.what, f.verdict) for f in checked.findings]
    assert found.of(Verdict.NOT_ASKED) == []
    assert found.is_fine
    value = {(f.of, f.what): f.value for f in found.findings}
    assert "Python 3." in value["sink table", "executors"]
    assert "psycopg " in value["sink table", "executors"]
    assert "Spark 4.2" in value["Spark", "Spark"]
    assert "sql.caseSensitive=false" in value["Spark", "settings of the session"]
    assert value["sink lake", "table"].startswith(str(console.lake))
    assert value["sink lake", "internal methods of Delta"].startswith("Delta ")
    assert value["Spark", "internal methods of Spark"].endswith("classes have the methods that are called")
    assert "FileSource" in value["query", "sources"] or "json" in value["query", "sources"]


# --- several things are wrong --------------------------------------------------------------------


@pytest.fixture
def role(console: Console) -> Iterator[str]:
    """A role that may do all but two things."""
    name = f"w_{uuid.uuid4().hex[:12]}"
    observe(console.dsn, f"CREATE ROLE {name} LOGIN")
    for grant in (
        "USAGE ON SCHEMA epochal",
        "SELECT ON epochal.sinks",
        "SELECT, INSERT, DELETE ON epochal.epochs",
        "SELECT, INSERT, DELETE ON epochal.attempts",
        "SELECT, INSERT ON rows__rows",
        "USAGE ON SEQUENCE epochal.attempt",
    ):
        observe(console.dsn, f"GRANT {grant} TO {name}")
    yield name
    observe(console.dsn, f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def short_topic(console: Console) -> Iterator[None]:
    """A topic that may refuse records of a decided epoch for their age."""
    setting = "message.timestamp.before.max.ms"
    set_config(console.bootstrap, console.topic, setting, "1000")
    yield
    set_config(console.bootstrap, console.topic, setting, str(2**63 - 1))


def sinks_of(console: Console, dsn: str, bootstrap: str) -> list[Any]:
    return [
        PostgresSink(dsn, table="rows", name="table", connect_timeout=2.0),
        KafkaSink(bootstrap, topic=console.topic, name="topic", key="name", select=["id", "name"], request_timeout=2.0),
        DeltaSink(str(console.lake), name="lake"),
    ]


@pytest.mark.usefixtures("short_topic")
def test_every_wrong_answer_is_told_and_a_check_raises_the_first(console: Console, role: str) -> None:
    dsn = console.dsn.replace("postgres@", f"{role}@")
    sinks = sinks_of(console, dsn, console.bootstrap)
    sinks += [DeltaSink(str(console.folder / "no lake"), name="gone")]
    pipeline = Pipeline(app=console.app, sinks=sinks, retry=FAST)
    found = pipeline.doctor(console.rows())
    wrong = in_python(found, Verdict.WRONG)
    assert set(wrong) == {
        ("sink table", "rights on epochal.sinks"),
        ("sink table", 'rights on "rows__rows"'),
        ("sink topic", f"timestamps of {console.topic}"),
        ("sink gone", "table"),
    }
    helps = [finding.error.help for finding in wrong.values() if finding.error is not None]
    assert helps[0] == f"GRANT SELECT, UPDATE ON epochal.sinks TO {role}"
    unasked = in_python(found, Verdict.NOT_ASKED)
    assert unasked["sink gone", "columns"].value == "needs a good answer to: table"
    assert ("sink topic", "executors") not in unasked
    assert ("sink table", "publications") not in unasked
    with pytest.raises(Misconfigured, match=f"the role {role} lacks UPDATE on epochal.sinks"):
        pipeline.check(console.rows())


def test_what_is_wrong_ends_with_code_1(console: Console) -> None:
    with console.changed("ALTER TABLE rows__rows RENAME day TO dag", "ALTER TABLE rows__rows RENAME dag TO day"):
        found = console.epochal("doctor", "--schema", COLUMNS, code=1)
        wrong = [finding["what"] for finding in found["findings"] if finding["verdict"] == "wrong"]
        assert wrong == ['columns of "rows__rows"']
        text = console.told("doctor", "--schema", COLUMNS, code=1)
        assert "✗ columns of" in text
        assert "Help: " in text


# --- clocks --------------------------------------------------------------------------------------


@pytest.fixture
def late_clock(console: Console) -> Iterator[str]:
    """A schema with a clock that is 25 s late, for whoever has it before the server's own in the search path."""
    late = "SELECT pg_catalog.clock_timestamp() - interval '25 s'"
    observe(console.dsn, "CREATE SCHEMA late")
    observe(console.dsn, f"CREATE FUNCTION late.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $${late}$$")
    yield f"{console.dsn}{'&' if '?' in console.dsn else '?'}options=-csearch_path%3Dlate,pg_catalog,public"
    observe(console.dsn, "DROP SCHEMA late CASCADE")


def test_a_server_whose_clock_is_late_is_a_caution_and_no_refusal(console: Console, late_clock: str) -> None:
    sinks = sinks_of(console, late_clock, console.bootstrap)[:1]
    found = Pipeline(app=console.app, sinks=sinks, retry=FAST).doctor(console.rows())
    (finding,) = (f for f in found.findings if (f.of, f.what) == ("sink table", "clock"))
    assert finding.verdict is Verdict.CAUTION
    assert "the server's clock is 2" in finding.cautions[0]
    assert "s behind this machine's" in finding.cautions[0]
    assert found.of(Verdict.WRONG) == []


def test_a_record_that_is_dated_ahead_is_found(console: Console) -> None:
    topic = f"{console.topic}-dated"
    link = KafkaSink(console.bootstrap, topic=topic, name="dated")._core.link()
    with AdminClient({"bootstrap.servers": console.bootstrap, "log_level": 0}) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        try:
            assert newest_timestamp(link, topic) is None
            ahead = time.time() + 30
            producer = Producer({"bootstrap.servers": console.bootstrap, "log_level": 0})
            for seconds in (ahead, ahead - 3600):  # the newest is not the last
                producer.produce(topic, b"x", timestamp=int(seconds * 1000))
            assert producer.flush(60) == 0
            assert newest_timestamp(link, topic) == pytest.approx(ahead, abs=0.002)
        finally:
            admin.delete_topics([topic])[topic].result(60)


# --- a server is away ----------------------------------------------------------------------------


def job_of(console: Console, tmp_path: Path, dsn: str, bootstrap: str) -> Path:
    file = tmp_path / "away.py"
    file.write_text(
        console.file.read_text()
        .replace(repr(console.dsn), repr(dsn))
        .replace(repr(console.bootstrap), repr(bootstrap))
        .replace('name="topic"', 'name="topic", request_timeout=2.0')
    )
    return file


def test_a_server_that_is_away_is_one_cross_and_not_the_end(console: Console, tmp_path: Path) -> None:
    file = job_of(console, tmp_path, "postgresql://postgres@127.0.0.1:1/db", console.bootstrap)
    found = console.epochal("doctor", "--pipeline", f"{file}:pipeline", "--schema", COLUMNS, code=3)
    unanswered = [(f["of"], f["what"]) for f in found["findings"] if f["verdict"] == "unknown"]
    assert unanswered == [("sink table", "connection")]
    assert told(found, "sink table")["connection"]["error"]["kind"] == "SinkUnavailable"
    assert set(verdicts(found, "sink table").values()) == {"unknown", "not asked", "fine"}
    assert "fine" in verdicts(found, "sink topic").values()


@contextmanager
def silent() -> Iterator[int]:
    """A server that takes every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        for connection in taken:
            connection.close()


@pytest.mark.wide
def test_servers_that_say_nothing_keep_nobody_waiting(console: Console, tmp_path: Path) -> None:
    with silent() as port:
        file = job_of(console, tmp_path, f"postgresql://postgres@127.0.0.1:{port}/db", f"127.0.0.1:{port}")
        began = time.monotonic()
        found = console.epochal("doctor", console.checkpoint, "--pipeline", f"{file}:pipeline", "--timeout", 3, code=3)
        assert time.monotonic() - began < 60
    late = {(f["of"], f["what"]): f["value"] for f in found["findings"] if f["verdict"] == "unknown"}
    assert late["sink table", "connection"] == "no answer within 3 s; the questions after it were not asked"
    assert ("sink topic", "topics") in late
    assert verdicts(found, "checkpoint")["epoch log"] == "fine"


@pytest.mark.wide
def test_executors_that_never_come_keep_nobody_waiting(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that asks an executor is cancelled when the time is over."""
    monkeypatch.setattr("epochal.sinks.postgres.write.reached", _forever)
    pipeline = Pipeline(app=console.app, sinks=sinks_of(console, console.dsn, console.bootstrap)[:1], retry=FAST)
    found = pipeline.doctor(console.rows(), seconds=10)
    assert list(in_python(found, Verdict.UNKNOWN)) == [("sink table", "executors")]
    tracker = console.spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 120
    while tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tracker.getActiveJobsIds()) == []


def _forever(*_: object) -> str:
    time.sleep(3600)
    return ""


# --- it changes nothing --------------------------------------------------------------------------


def state_of(console: Console) -> Json:
    """All that a doctor could change: catalogues and rows, topics and their ends, files and their times."""
    catalogue = "SELECT 'c', oid::text, relname, reltuples::text, relacl::text FROM pg_class WHERE oid > 16000"
    housekeeping = " UNION ALL ".join(
        f"SELECT '{table}', t::text, xmin::text, '', '' FROM epochal.{table} t" for table in ("sinks", "epochs")
    )
    with AdminClient({"bootstrap.servers": console.bootstrap, "log_level": 0}) as admin:
        names = [name for name in admin.list_topics(timeout=60).topics if console.topic in name]
    return {
        "database": sorted(map(str, observe(console.dsn, f"{catalogue} UNION ALL {housekeeping}"))),
        "attempt": observe(console.dsn, "SELECT last_value, is_called FROM epochal.attempt"),
        "topics": sorted(names),
        "ends": {name: ends(console, name) for name in names},
        "files": {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for folder in (console.checkpoint, console.lake)
            for path in (folder, *folder.rglob("*"))
        },
    }


def ends(console: Console, topic: str) -> list[tuple[int, int]]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": console.bootstrap, "group.id": "outside", "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        return [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60) for p in sorted(partitions)]
    finally:
        consumer.close()


@pytest.mark.wide
def test_nothing_is_changed(console: Console, tmp_path: Path) -> None:
    """With all questions, and where tables, topics and folders are missing, which nobody may make then."""
    before = state_of(console)
    console.made().doctor(console.rows(), str(console.checkpoint))
    console.epochal("doctor", console.checkpoint, "--schema", COLUMNS, code=0)
    missing: list[Sink] = [
        PostgresSink(console.dsn, table="nowhere", name="nowhere"),
        KafkaSink(console.bootstrap, topic=f"{console.topic}-nowhere", name="no-topic"),
        DeltaSink(str(tmp_path / "lake"), name="no-lake"),
    ]
    Pipeline(app=console.app, sinks=missing, retry=FAST).doctor(console.rows(), str(tmp_path / "checkpoint"))
    assert state_of(console) == before
    assert list(tmp_path.iterdir()) == []


# --- secrets -------------------------------------------------------------------------------------


class Leaky(MemorySink):
    """A sink of somebody else, whose errors quote its address."""

    def check(self, query: Query, schema: Schema) -> None:  # noqa: ARG002
        raise Misconfigured(f"cannot use amqp://user:{SECRET}@host/", help=f"try api_key={SECRET}", state=SECRET_FORM)


class Raw(MemorySink):
    def check(self, query: Query, schema: Schema) -> None:  # noqa: ARG002
        raise RuntimeError(f"the vault says {SECRET}")


SECRET_FORM = f"{{'password': '{SECRET}'}}"
KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"


def vault() -> Any:
    raise OSError(f"the vault takes no {SECRET}")


def test_no_secret_is_told_wherever_it_stands(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server: Any
) -> None:
    """In addresses, options, callbacks, the environment, the session, the checkpoint's place and others' errors."""
    monkeypatch.setenv("PGPASSWORD", SECRET)
    monkeypatch.setenv("EPOCHAL_AT_OWN_RISK", f"token={SECRET}")
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"*:*:*:*:{SECRET}\n")
    passfile.chmod(0o600)
    host = f"127.0.0.1:{postgres_server.port}"
    server = MemoryServer()
    postgres: dict[str, Any] = {
        "uri": f"postgresql://postgres:{SECRET}@{host}/no_such_database",
        "words": f"host=127.0.0.1 port=1 user=w password={SECRET} dbname=d connect_timeout=2",
        "malformed": f"host=127.0.0.1 password={SECRET}' port=",
        "at": f"postgresql://w:{SECRET}@{SECRET}@127.0.0.1/d",
        "key": f"postgresql://w@127.0.0.1:1/d?sslkey={tmp_path}/k&sslpassword={SECRET}&passfile={passfile}",
        "options": f"host=127.0.0.1 port={postgres_server.port} user=postgres dbname=d options='-c token={SECRET}'",
        "vault": vault,
        "good": console.dsn.replace("postgres@", f"postgres:{SECRET}@"),
    }
    kafka: dict[str, Any] = {
        "plain": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": SECRET},
        "pem": {"security.protocol": "SSL", "ssl.key.pem": KEY, "ssl.key.password": SECRET, "ssl.certificate.pem": "x"},
        "oauth": {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.config": f"secret={SECRET}"},
        "unknown": {"no.such.secret": SECRET},
        "ours": {"transactional.id": "x", "sasl.password": SECRET},
        "vault": vault,
    }
    sinks: list[Sink] = [
        *(PostgresSink(dsn, table="rows", name=f"pg-{name}", connect_timeout=2.0) for name, dsn in postgres.items()),
        *(
            KafkaSink(console.bootstrap, topic="t", name=f"k-{name}", options=options, request_timeout=1.0)
            for name, options in kafka.items()
        ),
        KafkaSink(f"SASL://w:{SECRET}@127.0.0.1:1", topic="t", name="k-address", request_timeout=1.0),
        DeltaSink(f"s3a://key:{SECRET}@bucket/lake", name="lake"),
        Leaky("leaky", server),
        Raw("raw", server),
    ]
    log = PostgresLog(f"postgresql://w:{SECRET}@127.0.0.1:1/d", "log", timeout=2.0)
    pipeline = Pipeline(app=console.app, sinks=sinks, retry=FAST, log=log)
    console.spark.conf.set("spark.hadoop.fs.s3a.secret.key", SECRET)
    try:
        for checkpoint in (str(tmp_path / "c"), f"s3a://key:{SECRET}@bucket/c"):
            found = pipeline.doctor(console.rows(), checkpoint)
            shown = f"{found}{found!r}{found.findings!r}{json.dumps([f.to_json() for f in found.findings])}"
            assert SECRET not in shown
            assert len({f.of for f in found.findings}) == len(sinks) + 5
    finally:
        console.spark.conf.unset("spark.hadoop.fs.s3a.secret.key")


def test_no_secret_of_a_job_that_cannot_be_loaded_is_told(console: Console, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(f"raise ValueError('postgresql://w:{SECRET}@db/d')")
    text = console.told("doctor", "--pipeline", f"{file}:pipeline", code=2)
    assert "postgresql://w:***@db/d" in text
    assert SECRET not in text + str(console.epochal("doctor", "--pipeline", f"{file}:pipeline", code=2))


def test_the_columns_of_the_command_are_those_of_the_job(console: Console) -> None:
    """``COLUMNS`` would else be wrong here without notice."""
    kinds: StructType = console.rows().schema
    assert ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in kinds.fields) == COLUMNS
