"""Values that a function of the user's makes: in tasks, once, before the vote."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Committable, Decision, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.kafka.encode import murmur2
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import OPTIONS, SECRET, read_topic

Value = Callable[[Mapping[str, Any], str], Any]


def prepare(sink: KafkaSink, stage: SparkStage, rows: DataFrame) -> Committable:
    """Epoch 0 of ``ONE``."""
    sink.create(QUERY, rows.schema)
    sink.check(QUERY, rows.schema)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    copy = stage.write(0, ONE, rows)
    return sink.prepare(Epoch(Decision("q1", 0, ONE, "f"), 1, copy=copy), stage.read(copy), ONE)


@pytest.fixture
def make(kafka_server: servers.Kafka, topic: str) -> Callable[..., KafkaSink]:
    def made(value: Callable[[], Value], **more: Any) -> KafkaSink:
        settings = {"topic": topic, "name": topic, "options": OPTIONS, **more}
        return KafkaSink(kafka_server.bootstrap, value=value, **settings)

    return made


def told(row: Mapping[str, Any], topic: str) -> bytes:
    return f"{topic}:{sorted(row.items())}".encode()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("slots", [1, 2])
def test_a_function_makes_the_value_of_a_row_once(
    make: Callable[..., KafkaSink],
    kafka_server: servers.Kafka,
    topic: str,
    spark: SparkSession,
    stage: SparkStage,
    tmp_path: Path,
    slots: int,
) -> None:
    """What it returned is kept: a start that has no such function commits it."""
    calls = tmp_path / "calls"

    def encoder() -> Value:
        def value(row: Mapping[str, Any], topic: str) -> bytes:
            with open(calls, "a") as file:
                file.write(f"{row['n']}\n")
            return f"{topic}:{sorted(row.items())}".encode()

        return value

    rows = spark.range(4).selectExpr("id AS n", "string(id) AS k", "map_entries(map('h', 'x')) AS h").coalesce(1)
    sink = make(encoder, slots=slots, key="k", headers="h", where="n > 0", partitions=2)
    committable = prepare(sink, stage, rows)
    assert (committable.rows, committable.left_out) == (3, 1)
    other = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, options=OPTIONS)
    other.look(QUERY)
    again = Committable.from_json(json.loads(json.dumps(committable.to_json())))
    assert other.commit(again, ONE) is CommitOutcome.COMMITTED
    found = {r.key: r.value for r in read_topic(kafka_server.bootstrap, topic)}
    assert found == {str(n).encode(): f"{topic}:[('k', '{n}'), ('n', {n})]".encode() for n in (1, 2, 3)}
    assert sorted(calls.read_text().split()) == ["1", "2", "3"]


def test_the_row_of_a_list_comes_with_its_topic(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    def encoder() -> Value:
        return lambda row, topic: f"{row['n']} for {topic}".encode()

    names = [topic, f"{topic}-2"]
    sink = make(encoder, topic="t", topics=names)
    rows = spark.createDataFrame([(0, names[1]), (1, names[0])], "n int, t string")
    assert sink.commit(prepare(sink, stage, rows), ONE) is CommitOutcome.COMMITTED
    found = [[r.value for r in read_topic(kafka_server.bootstrap, name)] for name in names]
    assert found == [[f"1 for {names[0]}".encode()], [f"0 for {names[1]}".encode()]]


def _fails() -> Value:
    def value(row: Mapping[str, Any], topic: str) -> bytes:
        raise KeyError(f"no schema {topic} for {row['n']}, asked with {SECRET}")

    return value


def _no_text() -> Value:
    return lambda row, _: str(row)


def _none() -> Value:
    return lambda row, _: b"x" if row["n"] else None


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (_fails, "value= made no value of 2 rows, and was not called again: KeyError: 'no schema"),
        (_no_text, "TypeError: a value is bytes or None, and it returned str"),
        (_none, "1 rows have no value (the function of value= returned None)"),
    ],
)
def test_a_function_that_makes_no_value_refuses_the_epoch(
    make: Callable[..., KafkaSink],
    kafka_server: servers.Kafka,
    topic: str,
    spark: SparkSession,
    stage: SparkStage,
    encoder: Callable[[], Value],
    said: str,
) -> None:
    rows = spark.range(2).selectExpr("id AS n").coalesce(1)
    with pytest.raises(PrepareRefused) as refused:
        prepare(make(encoder), stage, rows)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
    assert read_topic(kafka_server.bootstrap, topic) == []


def test_none_is_a_tombstone_when_that_was_asked_for(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    sink = make(_none, tombstones=True, key="k")
    rows = spark.range(2).selectExpr("id AS n", "string(id) AS k").coalesce(1)
    assert sink.commit(prepare(sink, stage, rows), ONE) is CommitOutcome.COMMITTED
    assert [(r.key, r.value) for r in read_topic(kafka_server.bootstrap, topic)] == [(b"0", None), (b"1", b"x")]


def _cannot_be_made() -> Value:
    raise ConnectionError(f"the registry is away, asked with {SECRET}")


def _not_callable() -> Any:
    return b"a value"


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (_cannot_be_made, "ConnectionError: the registry is away"),
        (_not_callable, "it returned bytes, not a function"),
    ],
)
@pytest.mark.remedy(
    "the function of value= cannot be used in a task: …",
    "it is called once per task, and returns a function of a row (a dict) and a topic; make clients in it",
)
def test_a_function_that_cannot_work_is_refused_at_start(
    make: Callable[..., KafkaSink], spark: SparkSession, encoder: Callable[[], Any], said: str
) -> None:
    sink, schema = make(encoder), spark.range(1).schema
    sink.create(QUERY, schema)
    with pytest.raises(Misconfigured, match="the function of value= cannot be used in a task") as refused:
        sink.check(QUERY, schema)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
    make(lambda: told).check(QUERY, schema)


@pytest.mark.remedy("the function of value= cannot be used in a task: …", "make clients in it")
def test_a_function_that_cannot_be_sent_is_refused_at_start(
    make: Callable[..., KafkaSink], spark: SparkSession
) -> None:
    import threading

    lock = threading.Lock()

    def encoder() -> Value:
        with lock:
            return told

    sink, schema = make(encoder), spark.range(1).schema
    sink.create(QUERY, schema)
    with pytest.raises(Misconfigured, match=r"cannot be used in a task: .*[Pp]ickl"):
        sink.check(QUERY, schema)

    def makes_its_own() -> Value:
        with threading.Lock():
            return told

    make(makes_its_own).check(QUERY, schema)


def test_an_older_version_reads_no_committable_of_made_values(
    make: Callable[..., KafkaSink], spark: SparkSession, stage: SparkStage
) -> None:
    committable = prepare(make(_none, tombstones=True, votes=False), stage, spark.range(2).selectExpr("id AS n"))
    told_ = json.loads(json.dumps(committable.to_json()))
    assert told_["payload"]["encoding"]["version"] == 3
    assert SECRET not in json.dumps(told_)


def test_murmur2_is_javas() -> None:
    """As Kafka's own tests list it; and of keys of every length."""
    known = {
        "21": -973932308,
        "foobar": -790332482,
        "a-little-bit-long-string": -985981536,
        "a-little-bit-longer-string": -1486304829,
        "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    }
    assert murmur2([key.encode() for key in known]) == [hash_ & 0x7FFFFFFF for hash_ in known.values()]
    keys = [bytes(range(n, n + length)) for n in range(3) for length in range(20)]
    assert murmur2(keys) == [one for key in keys for one in murmur2([key])]
    assert murmur2([]) == []
