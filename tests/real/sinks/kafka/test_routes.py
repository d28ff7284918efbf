"""Where a row goes: its topic out of a list, its partition, its headers; and what of them is refused, and when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Committable, Decision, Epoch
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured, PrepareRefused
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.kafka.rows import Encoding
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import hanging, read_topic

A_MAP = "map_entries(map('a', x'00ff', 'b', cast(null as binary))) AS h"


@dataclass
class Job:
    """A sink that is fenced once it has written, and the epochs written through it."""

    server: servers.Kafka
    stage: SparkStage
    sink: KafkaSink
    epoch: int = 0

    def prepare(self, rows: DataFrame) -> Committable:
        if self.epoch == 0:
            self.sink.create(QUERY, rows.schema)
            self.sink.check(QUERY, rows.schema)
            self.sink.look(QUERY)
            self.sink.fence(QUERY, ONE)
        epoch = Epoch(Decision("q1", self.epoch, ONE, f"f{self.epoch}"), self.epoch + 1)
        copy = self.stage.write(self.epoch, ONE, rows)
        return self.sink.prepare(replace(epoch, copy=copy), self.stage.read(copy), ONE)

    def write(self, rows: DataFrame) -> None:
        committable = Committable.from_json(json.loads(json.dumps(self.prepare(rows).to_json())))
        assert self.sink.commit(committable, ONE) is CommitOutcome.COMMITTED
        self.epoch += 1


Make = Callable[..., Job]


@pytest.fixture
def make(kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> Make:
    """A job of one topic, or of the list ``topics``."""

    def made(**options: Any) -> Job:
        return Job(kafka_server, stage, KafkaSink(kafka_server.bootstrap, **{"topic": topic, "name": topic, **options}))

    return made


@pytest.fixture
def both(kafka_server: servers.Kafka, topic: str) -> Iterator[list[str]]:
    names = [topic, f"{topic}-2"]
    yield names
    assert hanging(kafka_server.bootstrap, *names) == []


def values(job: Job, topic: str) -> list[str]:
    return [(r.value or b"").decode() for r in read_topic(job.server.bootstrap, topic)]


def headers_of(server: servers.Kafka, topic: str) -> list[list[tuple[str, bytes | None]] | None]:
    """Of every row of partition 0, as a consumer is given them."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "outside", "log_level": 0})
    try:
        place = TopicPartition(topic, 0, 0)
        end = consumer.get_watermark_offsets(place, timeout=120)[1]
        consumer.assign([place])
        found: list[Any] = []
        while len(found) < end - 1:  # the last offset is the transaction's end
            message = consumer.poll(20)
            assert message is not None
            found.append(message.headers())
        return found
    finally:
        consumer.close()


# where rows go


@pytest.mark.parametrize("slots", [1, 2])
def test_each_row_goes_to_the_topic_that_it_names(spark: SparkSession, make: Make, both: list[str], slots: int) -> None:
    """The column is not part of the JSON."""
    job = make(topic="dest", topics=both, slots=slots)
    rows = spark.range(6).selectExpr(f"element_at(array('{both[0]}', '{both[1]}'), int(id % 2) + 1) AS dest", "id")
    job.write(rows.coalesce(1))
    assert [values(job, name) for name in both] == [
        ['{"id":0}', '{"id":2}', '{"id":4}'],
        ['{"id":1}', '{"id":3}', '{"id":5}'],
    ]


def test_a_row_goes_to_the_partition_that_it_names(spark: SparkSession, make: Make, topic: str) -> None:
    """And by its key where it names none."""
    job = make(partitions=7, key="k", partition="p", value="k")
    rows = [("a", 3), ("foobar", 6), ("foobar", None), ("b", 0)]
    job.write(spark.createDataFrame(rows, "k string, p short").coalesce(1))
    murmur2 = (-790332482 & 0x7FFFFFFF) % 7
    found = [(r.partition, r.value) for r in read_topic(job.server.bootstrap, topic)]
    assert sorted(found) == sorted([(3, b"a"), (6, b"foobar"), (murmur2, b"foobar"), (0, b"b")])


def test_headers_are_read_back(spark: SparkSession, make: Make, kafka_server: servers.Kafka, topic: str) -> None:
    job = make(headers="h", value="v")
    rows = spark.sql(
        f"select 'x' AS v, {A_MAP} union all select 'y', null union all select 'z', array() "
        "union all select 'w', array(named_struct('key', 'ü', 'value', x''), named_struct('key', 'ü', 'value', x'01'))"
    )
    job.write(rows.coalesce(1))
    assert headers_of(kafka_server, topic) == [
        [("a", b"\x00\xff"), ("b", None)],
        None,
        None,
        [("ü", b""), ("ü", b"\x01")],
    ]


def test_headers_may_be_text(spark: SparkSession, make: Make, kafka_server: servers.Kafka, topic: str) -> None:
    make(headers="h", value="v").write(spark.sql("select 'x' AS v, map_entries(map('a', 'text')) AS h"))
    assert headers_of(kafka_server, topic) == [[("a", b"text")]]


def test_a_tombstone_is_written_when_it_is_asked_for(spark: SparkSession, make: Make, topic: str) -> None:
    """An empty value is no tombstone."""
    rows = spark.createDataFrame([("a", b"x"), ("a", None), ("b", b"")], "k string, v binary").coalesce(1)
    job = make(key="k", value="v", tombstones=True)
    job.write(rows)
    assert [(r.key, r.value) for r in read_topic(job.server.bootstrap, topic)] == [
        (b"a", b"x"),
        (b"a", None),
        (b"b", b""),
    ]


def test_topics_with_limits_of_their_own_take_what_each_allows(
    spark: SparkSession, make: Make, kafka_server: servers.Kafka, both: list[str]
) -> None:
    """A batch of the client is of one partition, and must not be larger than the strictest topic takes."""
    kafka_server.create_topic(both[0], 1, {"max.message.bytes": "5000"})
    kafka_server.create_topic(both[1], 1, {"max.message.bytes": "200000"})
    job = make(topic="dest", topics=both, value="v")
    small = spark.range(100).selectExpr(f"'{both[0]}' AS dest", "repeat('s', 1000) AS v")
    large = spark.range(1).selectExpr(f"'{both[1]}' AS dest", "repeat('l', 190000) AS v")
    job.write(small.union(large).coalesce(1))
    assert [len(values(job, name)) for name in both] == [100, 1]
    over = spark.range(1).selectExpr(f"'{both[0]}' AS dest", "repeat('l', 6000) AS v")
    with pytest.raises(PrepareRefused, match=rf"1 rows are larger than topic '{both[0]}' takes"):
        job.write(over)


# what this epoch cannot do is refused before it is decided


@pytest.mark.parametrize(
    ("options", "rows", "told"),
    [
        (
            {"topic": "dest"},
            "'elsewhere' AS dest",
            "1 rows are for topics that are not declared (column 'dest'): 'else",
        ),
        ({"topic": "dest"}, "cast(null AS string) AS dest", "topics that are not declared (column 'dest'): NULL"),
        ({"partition": "p"}, "2 AS p", "1 rows are for partitions that do not exist (column 'p'): 2; "),
        ({"partition": "p"}, "-1 AS p", "(column 'p'): -1; "),
        ({"partition": "p"}, "4294967296 AS p", "(column 'p'): 4294967296; "),
        ({"headers": "h"}, "array(named_struct('key', string(null), 'value', x'00')) AS h", "header without a key"),
        ({"headers": "h"}, "array(cast(null AS struct<key:string,value:binary>)) AS h", "header without a key"),
        (
            {"headers": "h"},
            "array(named_struct('key', string(x'ff'), 'value', x'00')) AS h",
            "1 rows have a header whose key holds a NUL or is not UTF-8 (column 'h')",
        ),
        pytest.param(
            {"headers": "h"},
            "array(named_struct('key', decode(x'610062', 'utf-8'), 'value', x'00')) AS h",
            "1 rows have a header whose key holds a NUL or is not UTF-8 (column 'h')",
            id="a NUL in the key of a header",
        ),
        (
            {"value": "v"},
            "cast(null AS string) AS v",
            "1 rows have no value (column 'v' is NULL): each would be a tomb",
        ),
        ({"headers": "h"}, "map_entries(map('a', repeat('x', 1100000))) AS h", "1 rows are larger than topic"),
        (
            {"slots": 2},
            "double('NaN') AS v",
            "JSON cannot hold these values exactly: 1 rows, for instance in column 'v",
        ),
        ({"slots": 2, "topic": "dest"}, "'elsewhere' AS dest", "topics that are not declared (column 'dest'): 'else"),
        ({"slots": 2, "partition": "p"}, "4294967296 AS p", "(column 'p'): 4294967296; "),
        ({"slots": 2, "value": "v"}, "cast(null AS string) AS v", "1 rows have no value (column 'v' is NULL)"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(
    spark: SparkSession, make: Make, topic: str, options: dict[str, Any], rows: str, told: str
) -> None:
    lists = {"topics": [topic]} if "topic" in options else {}
    job = make(partitions=2, **lists, **options)
    with pytest.raises(PrepareRefused) as refused:
        job.write(spark.sql(f"select 1 AS id, {rows}"))
    assert told in str(refused.value)
    assert "nothing of the epoch was decided" in (refused.value.state or "")
    assert read_topic(job.server.bootstrap, topic) == []


@pytest.mark.remedy(
    "… is not the one that was looked at",
    "the topic was dropped and made again; restart the query to have it looked at",
    over=["topic … is not the one that the newest epoch was written to"],
)
@pytest.mark.remedy(
    "topic … is not the one that the newest epoch was written to",
    "it was dropped and made again, and its rows are lost; if that was meant, leave it out of topics= for one epoch",
)
def test_a_topic_that_is_gone_is_named_before_the_decision(spark: SparkSession, make: Make, both: list[str]) -> None:
    job = make(topic="dest", topics=both)
    rows = spark.sql(f"select 1 AS id, '{both[0]}' AS dest")
    job.write(rows)
    job.server.delete_topic(both[1])
    with pytest.raises(Misconfigured, match=rf"topics \['{both[1]}'\] do not exist"):
        job.prepare(rows)
    job.server.create_topic(both[1])
    with pytest.raises(PrepareRefused, match="is not the one that was looked at"):
        job.prepare(rows)
    with pytest.raises(CheckpointMismatch, match=f"topic '{both[1]}' is not the one that the newest epoch was written"):
        job.sink.look(QUERY)
    for epoch, names in enumerate([both[:1], both], start=1):
        again = make(topic="dest", topics=names)
        again.sink.check(QUERY, rows.schema)
        again.sink.look(QUERY)
        again.epoch = epoch
        again.write(rows)
    assert [len(values(job, name)) for name in both] == [3, 0]


def test_a_decided_epoch_of_a_topic_that_was_made_anew_is_refused(
    spark: SparkSession, make: Make, both: list[str]
) -> None:
    job = make(topic="dest", topics=both, votes=False)
    committable = job.prepare(spark.sql(f"select 1 AS id, '{both[0]}' AS dest"))
    job.server.delete_topic(both[1])
    job.server.create_topic(both[1])
    with pytest.raises(CheckpointMismatch, match="is not the one that the epoch was prepared for"):
        job.sink.commit(committable, ONE)


def test_a_list_grows_and_shrinks_between_starts(spark: SparkSession, make: Make, both: list[str]) -> None:
    """An epoch that was decided before is finished with the list of then."""
    first = make(topic="dest", topics=both[:1])
    first.write(spark.sql(f"select 1 AS id, '{both[0]}' AS dest"))
    grown = make(topic="dest", topics=both)
    grown.sink.create(QUERY, None)
    assert grown.sink.look(QUERY).identity == first.sink.look(QUERY).identity
    grown.epoch = 1
    committable = grown.prepare(spark.sql(f"select 2 AS id, '{both[1]}' AS dest"))
    shrunk = make(topic="dest", topics=both[:1])
    shrunk.sink.look(QUERY)
    assert shrunk.sink.commit(committable, ONE) is CommitOutcome.COMMITTED
    shrunk.epoch = 2
    shrunk.write(spark.sql(f"select 3 AS id, '{both[0]}' AS dest"))
    assert [values(shrunk, name) for name in both] == [['{"id":1}', '{"id":3}'], ['{"id":2}']]


# what can never work is refused at start


@pytest.mark.parametrize(
    ("options", "schema", "told"),
    [
        ({"partition": "p"}, "id int", "there is no column 'p' to be the partition"),
        ({"partition": "p"}, "p string", "column 'p' cannot be the partition: it has the type string"),
        ({"headers": "h"}, "h map<string,string>", "column 'h' cannot be the headers: it has the type map<"),
        ({"headers": "h"}, "h array<struct<value:binary,key:string>>", "column 'h' cannot be the headers"),
        ({"headers": "h"}, "h array<struct<key:string,value:int>>", "column 'h' cannot be the headers"),
        ({"topic": "t"}, "t int", "column 't' cannot be the topic: it has the type int"),
        ({"topic": "t"}, "id int", "there is no column 't' to be the topic"),
        ({"partition": "p"}, "p int", "no column is left to be the value"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_start(
    spark: SparkSession, options: dict[str, Any], schema: str, told: str
) -> None:
    with pytest.raises(Misconfigured) as refused:
        Encoding(None, None, "random", **options).check(spark.createDataFrame([], schema).schema, "s")
    assert told in str(refused.value)
