"""Arguments and topics that a Kafka sink refuses: each help, followed to the letter, makes what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from epochal import Pipeline
from epochal.chaos import servers
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Committable, Decision, Epoch, Query
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused, SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.query import operate
from epochal.sinks import KafkaSink
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.kafka.attempts import ONE
from tests.real.sinks.kafka.support import APP, read_topic, set_config

pytestmark = pytest.mark.wide

QUERY = Query(APP, "q1", "r1", "file:/checkpoint")
SCHEMA = StructType().add("id", StringType()).add("n", LongType())
Given = Mapping[str, Any]


def setting(name: str, value: str, *, marker: bool = False) -> Callable[[str, str], Given]:
    """Give the topic, or the marker topic, this setting."""

    def way(bootstrap: str, topic: str) -> Given:
        set_config(bootstrap, f"__epochal.{APP}.{topic}" if marker else topic, name, value)
        return {}

    return way


def given(**arguments: Any) -> Callable[[str, str], Given]:
    return lambda _bootstrap, _topic: arguments


Way = Callable[[str, str], Given]


@pytest.mark.parametrize(
    ("wrong", "broken", "ways"),
    [
        pytest.param(
            {},
            setting("cleanup.policy", "compact"),
            [given(key="id")],
            marks=pytest.mark.remedy("topic … is compacted, so its rows need a key", "name the key's column with key="),
            id="no key",
        ),
        pytest.param(
            {},
            setting("retention.ms", "60000"),
            [given(transaction_timeout=60), setting("retention.ms", "3600000")],
            marks=pytest.mark.remedy(
                "topic … deletes rows after … s, and a transaction may last … s: rows could be gone before they become"
                " visible",
                "raise retention.ms, or take transaction_timeout=… or less",
            ),
            id="retention",
        ),
        pytest.param(
            {},
            setting("max.message.bytes", "1500"),
            [setting("max.message.bytes", "2000")],
            marks=pytest.mark.remedy(
                "topic … takes no batch of … bytes", "set max.message.bytes and segment.bytes to … or more"
            ),
            id="small messages",
        ),
        pytest.param(
            {},
            setting("cleanup.policy", "delete", marker=True),
            [setting("cleanup.policy", "compact", marker=True)],
            marks=pytest.mark.remedy(
                "the marker topic … must have cleanup.policy=compact",
                "set cleanup.policy=compact: with another one the newest marker could be deleted",
            ),
            id="the marker topic",
        ),
        pytest.param(
            {"transaction_timeout": 901},
            given(),
            [given(transaction_timeout=900)],
            marks=pytest.mark.remedy(
                "transaction_timeout=… s is above the broker's maximum of … s", "take transaction_timeout=… or less"
            ),
            id="a long transaction",
        ),
        pytest.param(
            {"key": "gone"},
            given(),
            [given(key="id")],
            marks=pytest.mark.remedy(
                "there is no column … to be the …", "name one of these columns with …=, as it is written there"
            ),
            id="no column",
        ),
        pytest.param(
            {"key": "n"},
            given(),
            [given(key="id")],
            marks=pytest.mark.remedy(
                "column … cannot be the …: it has the type …", "a key is bytes: cast the column to string or binary"
            ),
            id="a number as a key",
        ),
        pytest.param(
            {"value": "n"},
            given(),
            [given(value="id")],
            marks=pytest.mark.remedy(
                "column … cannot be the …: it has the type …", "a value is bytes: cast the column to string or binary"
            ),
            id="a number as a value",
        ),
        pytest.param(
            {"options": {"acks": "1", "message.max.bytes": 9}},
            given(),
            [given(options={"compression.type": "zstd", "linger.ms": 20})],
            marks=pytest.mark.remedy("the options … are not for the user to set: …", "leave them out"),
            id="options of ours",
        ),
        pytest.param(
            {"options": {"no.such.option": "1"}},
            given(),
            [given(options={"linger.ms": 20})],
            marks=pytest.mark.remedy(
                "librdkafka does not take these options: …", "see librdkafka's CONFIGURATION.md for names and values"
            ),
            id="options that do not exist",
        ),
    ],
)
def test_what_the_help_says_is_taken(
    kafka_server: servers.Kafka, topic: str, wrong: Given, broken: Way, ways: Sequence[Way]
) -> None:
    made = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    made.create(QUERY, SCHEMA)
    made.check(QUERY, SCHEMA)
    broken(kafka_server.bootstrap, topic)
    for way in ways:
        with pytest.raises(Misconfigured):
            KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, **wrong).check(QUERY, SCHEMA)
        right = way(kafka_server.bootstrap, topic)
        KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, **right).check(QUERY, SCHEMA)


@pytest.mark.remedy("topics … do not exist", "call pipeline.create(schema) once")
@pytest.mark.remedy(
    "the marker topic … needs a partition for each of … slots", "call pipeline.create(schema), which adds them"
)
def test_create_makes_topics_and_partitions(kafka_server: servers.Kafka, topic: str) -> None:
    for slots in (1, 3):
        sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, slots=slots)
        with pytest.raises(Misconfigured):
            sink.check(QUERY, SCHEMA)
        sink.create(QUERY, SCHEMA)
        sink.check(QUERY, SCHEMA)


@pytest.mark.remedy("no column is left to be the value", "select more columns, or name the value's column with value=")
def test_a_value_is_made_of_the_other_columns(kafka_server: servers.Kafka, topic: str) -> None:
    only = StructType().add("n", LongType())
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, partition="n")
    with pytest.raises(Misconfigured):
        sink.create(QUERY, only)
    sink.create(QUERY, SCHEMA)
    KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, partition="n", value="id").check(QUERY, SCHEMA)


def as_text(row: Mapping[str, Any], topic: str) -> bytes | None:  # noqa: ARG001
    return str(row).encode()


@pytest.mark.remedy(
    "column … has the type …, which JSON does not hold exactly",
    "cast the column to another type (a string, for instance), or encode the row yourself with value=",
)
def test_a_type_that_json_does_not_hold(kafka_server: servers.Kafka, topic: str) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    interval = StructType().add("id", StringType()).add("b", CalendarIntervalType())
    with pytest.raises(Misconfigured):
        sink.create(QUERY, interval)
    sink.create(QUERY, StructType().add("id", StringType()).add("b", DoubleType()))
    sink.check(QUERY, StructType().add("id", StringType()).add("b", StringType()))
    KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, value=lambda: as_text).check(QUERY, interval)


# --- columns and rows ----------------------------------------------------------------------------

PAIRS = ArrayType(StructType().add("key", StringType(), False).add("value", StringType()))


@pytest.mark.parametrize(
    ("given", "wrong", "right"),
    [
        pytest.param(
            {"headers": "h"},
            StructType().add("id", StringType()).add("h", MapType(StringType(), StringType())),
            StructType().add("id", StringType()).add("h", PAIRS),
            marks=pytest.mark.remedy(
                "column … cannot be the …: it has the type …",
                "headers have Spark's type …, or string values; map_entries(...) makes them from a map",
            ),
            id="headers",
        ),
        pytest.param(
            {"topic": "dest"},
            StructType().add("id", StringType()).add("dest", IntegerType()),
            StructType().add("id", StringType()).add("dest", StringType()),
            marks=pytest.mark.remedy(
                "column … cannot be the …: it has the type …",
                "the name of a topic is text: cast the column to string",
            ),
            id="topic",
        ),
        pytest.param(
            {"partition": "p"},
            StructType().add("id", StringType()).add("p", StringType()),
            StructType().add("id", StringType()).add("p", IntegerType()),
            marks=pytest.mark.remedy(
                "column … cannot be the …: it has the type …",
                "the number of a partition is an integer: cast the column to int",
            ),
            id="partition",
        ),
        pytest.param(
            {},
            StructType().add("__epochal_hash", StringType()),
            StructType().add("hash", StringType()),
            marks=pytest.mark.remedy("the column name … is Epochal's own", "rename the column"),
            id="a name of ours",
        ),
    ],
)
def test_columns_that_the_help_names_are_taken(
    kafka_server: servers.Kafka, topic: str, given: Given, wrong: StructType, right: StructType
) -> None:
    lists = {"topics": [topic]} if "topic" in given else {}
    sink = KafkaSink(kafka_server.bootstrap, **{"topic": topic, "name": topic, **given, **lists})
    with pytest.raises(Misconfigured):
        sink.create(QUERY, wrong)
    sink.create(QUERY, right)
    sink.check(QUERY, right)


def fails() -> Callable[[Mapping[str, Any], str], bytes | None]:
    def value(row: Mapping[str, Any], topic: str) -> bytes:
        raise KeyError(f"no schema for {topic}: {sorted(row)}")

    return value


def made() -> Callable[[Mapping[str, Any], str], bytes | None]:
    return as_text


@pytest.mark.parametrize(
    ("given", "wrong", "ways"),
    [
        pytest.param(
            {},
            "double('NaN') AS x",
            [({}, "0D AS x"), ({}, "string(double('NaN')) AS x"), ({"value": made}, "double('NaN') AS x")],
            marks=pytest.mark.remedy(
                "JSON cannot hold these values exactly: … rows, for instance in column …",
                "NaN, infinities, years outside 0001 to 9999 and text that is not UTF-8 have no place in JSON: replace"
                " them, cast the column to string, or encode the row yourself with value=",
            ),
            id="NaN",
        ),
        pytest.param(
            {"topic": "dest", "topics": ["{topic}"]},
            "'{topic}-2' AS dest",
            [
                ({"topic": "dest", "topics": ["{topic}", "{topic}-2"]}, "'{topic}-2' AS dest"),
                ({"topic": "dest", "topics": ["{topic}"], "where": "dest = '{topic}'"}, "'{topic}-2' AS dest"),
            ],
            marks=pytest.mark.remedy(
                "… rows are for topics that are not declared (column …): …",
                "declare the topic in topics=, which has …, or keep such rows out with where=",
            ),
            id="a topic that is not declared",
        ),
        pytest.param(
            {"partition": "p"},
            "1 AS p",
            [({"partition": "p"}, "0 AS p"), ({"partition": "p"}, "int(NULL) AS p")],
            marks=pytest.mark.remedy(
                "… rows are for partitions that do not exist (column …): …; …",
                "partitions count from 0; NULL leaves the choice to the partitioner",
            ),
            id="a partition",
        ),
        pytest.param(
            {"headers": "h"},
            "array(named_struct('key', string(null), 'value', x'00')) AS h",
            [
                ({"headers": "h"}, "array(named_struct('key', 'a', 'value', binary(null))) AS h"),
                ({"headers": "h"}, "cast(null AS array<struct<key:string,value:binary>>) AS h"),
            ],
            marks=pytest.mark.remedy(
                "… rows have a header without a key (column …)",
                "give every header a key; its value may be NULL, and so may the whole column",
            ),
            id="a header without a key",
        ),
        pytest.param(
            {"headers": "h"},
            "array(named_struct('key', string(x'ff'), 'value', x'00')) AS h",
            [({"headers": "h"}, "array(named_struct('key', 'a', 'value', x'ff00')) AS h")],
            marks=pytest.mark.remedy(
                "… rows have a header whose key holds a NUL or is not UTF-8 (column …)",
                "give headers keys of text; any bytes can be their values",
            ),
            id="a header that is no text",
        ),
        pytest.param(
            {"value": "v"},
            "string(NULL) AS v",
            [
                ({"value": "v", "tombstones": True}, "string(NULL) AS v"),
                ({"value": "v", "where": "v IS NOT NULL"}, "string(NULL) AS v"),
            ],
            marks=pytest.mark.remedy(
                "… rows have no value (…): each would be a tombstone, which deletes its key",
                "pass tombstones=True if that is what these rows are for, or keep them out with where=",
            ),
            id="no value",
        ),
        pytest.param(
            {"value": fails},
            "1 AS n",
            [({"value": made}, "1 AS n")],
            marks=pytest.mark.remedy(
                "value= made no value of … rows, and was not called again: …",
                "fix what the function reports; the epoch is evaluated again at the next start",
            ),
            id="a function that fails",
        ),
    ],
)
def test_rows_that_the_help_describes_are_taken(
    spark: SparkSession,
    stage: SparkStage,
    kafka_server: servers.Kafka,
    topic: str,
    given: Given,
    wrong: str,
    ways: Sequence[tuple[Given, str]],
) -> None:
    def vote(epoch: int, arguments: Given, column: str) -> tuple[KafkaSink, Committable]:
        """As a start does that evaluates the epoch."""
        filled = {name: of_this(value) for name, value in arguments.items()}
        sink = KafkaSink(kafka_server.bootstrap, **{"topic": topic, "name": topic, "key": "k", **filled})
        rows = spark.sql(f"SELECT 'k' AS k, 1 AS id, {of_this(column)}")
        sink.create(QUERY, rows.schema)
        sink.check(QUERY, rows.schema)
        sink.look(QUERY)
        sink.fence(QUERY, ONE)
        copy = stage.write(epoch, ONE, rows)
        asked = Epoch(Decision("q1", epoch, ONE, f"f{epoch}"), epoch + 1, copy=copy)
        return sink, sink.prepare(asked, stage.read(copy), ONE)

    def of_this(value: Any) -> Any:
        if isinstance(value, list):
            return [of_this(each) for each in value]
        return value.replace("{topic}", topic) if isinstance(value, str) else value

    for epoch, (arguments, column) in enumerate(ways):
        with pytest.raises(PrepareRefused):
            vote(epoch, given, wrong)
        sink, committable = vote(epoch, arguments, column)
        assert sink.commit(committable, ONE) is CommitOutcome.COMMITTED


@pytest.mark.remedy(
    "topic … holds a record that is not this sink's: …",
    "give the sink another name; nobody but the sink may write to that topic",
)
def test_a_marker_topic_that_others_write_to(kafka_server: servers.Kafka, topic: str) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    sink.create(QUERY, SCHEMA)
    others = Producer({"bootstrap.servers": kafka_server.bootstrap, "log_level": 0})
    others.produce(f"__epochal.{APP}.{topic}", b"{}", b"marker")
    assert others.flush(30) == 0
    with pytest.raises(Misconfigured):
        sink.look(QUERY)
    named = KafkaSink(kafka_server.bootstrap, topic=topic, name=f"{topic}-2")
    named.create(QUERY, SCHEMA)
    named.check(QUERY, SCHEMA)
    named.look(QUERY)
    named.fence(QUERY, ONE)


@pytest.mark.remedy(
    "… is not the one that the epoch was prepared for",
    "the topic was dropped and made again, and the decided rows belong to the old one: `epochal resolve --accept …`"
    " goes on without this epoch",
)
@pytest.mark.remedy(
    "topic … is not the one that the newest epoch was written to",
    "leave it out of topics= for one epoch",
    over=["… is not the one that the epoch was prepared for"],
)
def test_a_decided_epoch_of_a_topic_that_was_made_anew_is_given_up(
    spark: SparkSession, tmp_path: Path, kafka_server: servers.Kafka, topic: str
) -> None:
    job, both, struck = Job(spark, tmp_path, sinks=()), [topic, f"{topic}-2"], list[int]()

    def rows() -> DataFrame:
        return job.df().selectExpr("id", f"'{topic}' AS dest")

    def pipeline(names: Sequence[str]) -> Pipeline:
        sink = KafkaSink(kafka_server.bootstrap, topic="dest", topics=names, name=topic)
        made = Pipeline(app=APP, sinks=[sink], retry=FAST)
        made.create(rows().schema)
        return made

    def run(number: int, names: Sequence[str]) -> None:
        job.add(number)
        job.run(pipeline(names), rows())

    def made_anew(point: Point, sink: str, epoch: int) -> None:
        if point is Point.BEFORE_SINK_COMMIT and sink == topic and not struck:
            struck.append(epoch)
            kafka_server.delete_topic(both[1])
            kafka_server.create_topic(both[1])

    run(1, both)
    with failpoints.handler(made_anew), pytest.raises(StreamingQueryException, match="the epoch was prepared for"):
        run(2, both)
    assert struck == [1]
    with pytest.raises(StreamingQueryException, match="the newest epoch was written to"):
        job.run(pipeline(both), rows())
    with pytest.raises(StreamingQueryException, match="the epoch was prepared for") as refused:
        job.run(pipeline(both[:1]), rows())
    assert f"`epochal resolve --accept {topic}`" in str(refused.value)
    operate.accept(pipeline(both[:1]), str(job.checkpoint), topic, why="the topic was made anew")
    run(3, both[:1])
    run(4, both)
    assert [record.value for record in read_topic(kafka_server.bootstrap, topic)] == [
        b'{"id":%d}' % number for number in (1, 3, 4)
    ]


@pytest.mark.remedy(
    "Kafka cannot hold rows back, and there is no durable copy to produce them from",
    "run the sink in an epochal.Pipeline, which makes the copy",
)
@pytest.mark.remedy(
    "the rows of position … cannot be found: …", "compare the row counts that epochs(app) of each sink returns"
)
@pytest.mark.remedy(
    "the sink was used with slots=…, each with a marker of its own, and these cannot be written by hand",
    "a sink with slots= keeps its name",
)
def test_an_epoch_of_a_pipeline(spark: SparkSession, tmp_path: Path, kafka_server: servers.Kafka, topic: str) -> None:
    def made(name: str = topic) -> KafkaSink:
        return KafkaSink(kafka_server.bootstrap, topic=topic, name=name, key="k", slots=2)

    job = Job(spark, tmp_path, sinks=())
    rows = job.df().selectExpr("id", "name AS k")
    pipeline = Pipeline(app=APP, sinks=[made()], retry=FAST)
    pipeline.create(rows.schema)
    alone = made()
    alone.look(QUERY)
    with pytest.raises(PrepareRefused, match="there is no durable copy"):
        alone.prepare(Epoch(Decision("q1", 0, ONE, "f"), 1), None, ONE)
    job.add(1, 2)
    job.run(pipeline, rows)
    with pytest.raises(SinkUnavailable, match="the rows of position 1 cannot be found"):
        list(alone.inspection(QUERY).rows(1, ["id"]))
    assert [told.rows for told in alone.epochs(APP)] == [2]
    renamed = Pipeline(app=APP, sinks=[made("another")], retry=FAST)
    with pytest.raises(Misconfigured, match="was used with slots=2"):
        operate.rename(renamed, str(job.checkpoint), topic, "another", why="a better name")
    job.add(3)
    job.run(pipeline, rows)
    assert len(read_topic(kafka_server.bootstrap, topic)) == 3
