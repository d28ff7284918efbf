"""What a row is in Kafka, read back by an independent consumer and compared exactly."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Decision, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.kafka import rows as kafka_rows
from epochal.sinks.kafka.rows import Encoding
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import Record, read_topic, set_max_message_bytes


class Job:
    """A sink on a topic, and epochs written through it."""

    def __init__(self, server: servers.Kafka, topic: str, stage: SparkStage, **options: Any) -> None:
        self._server, self.topic, self._stage = server, topic, stage
        self.sink = KafkaSink(server.bootstrap, topic=topic, name=topic, **options)
        self._epoch = 0

    def write(self, rows: DataFrame, offsets: str = "") -> list[Record]:
        """One epoch of ``rows``; everything that a reader sees after it."""
        if self._epoch == 0:
            self.sink.create(QUERY, rows.schema)
            self.sink.check(QUERY, rows.schema)
            self.sink.look(QUERY)
            self.sink.fence(QUERY, ONE)
        epoch = Epoch(Decision("q1", self._epoch, ONE, f"f{self._epoch}"), self._epoch + 1, offsets)
        copy = self._stage.write(self._epoch, ONE, rows)
        committable = self.sink.prepare(replace(epoch, copy=copy), self._stage.read(copy), ONE)
        self.sink.commit(committable, ONE)
        self._epoch += 1
        return read_topic(self._server.bootstrap, self.topic)


@pytest.fixture
def job(kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> Job:
    return Job(kafka_server, topic, stage)


def texts(records: Sequence[Record]) -> list[str]:
    return [(r.value or b"").decode() for r in records]


NASTY = ["", " ", '"', "\\", "\t\r\n", "a\x00b", "\x1f\x7f", "é", "日本", "😀", "\U0010fffd", "\ufeff", "null"]


def test_text_of_every_kind_comes_back(spark: SparkSession, job: Job) -> None:
    rows = spark.createDataFrame([(t, n) for n, t in enumerate(NASTY)], "t string, n int").coalesce(1)
    assert [json.loads(t)["t"] for t in texts(job.write(rows))] == NASTY


def test_the_json_is_as_documented(spark: SparkSession, job: Job) -> None:
    rows = spark.sql(
        """select 9223372036854775807L as long, cast(-1 as tinyint) as small, true as yes, null as nothing_s,
        cast('99999999999999999999999999999999999.999' as decimal(38, 3)) as big,
        cast('0.00000000000000000001' as decimal(38, 20)) as tiny, cast(1 as decimal(5, 2)) as plain,
        0.1d as double, cast(0.1 as float) as float, 1.7976931348623157e308d as largest, -0.0d as zero,
        date '0001-01-01' as first, date '1582-10-10' as gregorian, date '9999-12-31' as last,
        timestamp '2013-01-31 23:59:59.123456 UTC' as at, timestamp_ntz '1500-01-01 00:00:00.000001' as naive,
        cast('\\0a' as binary) as bytes, array(1, null) as list, map('k', 1, 'j', null) as map,
        named_struct('x', cast(null as int), 'y', array(named_struct('z', '😀'))) as nested"""
    ).withColumn("nothing_s", f.lit(None).cast("string"))
    assert texts(job.write(rows)) == [
        '{"long":9223372036854775807,"small":-1,"yes":true,"nothing_s":null,'
        '"big":99999999999999999999999999999999999.999,"tiny":1E-20,"plain":1.00,'
        '"double":0.1,"float":0.1,"largest":1.7976931348623157E308,"zero":-0.0,'
        '"first":"0001-01-01","gregorian":"1582-10-10","last":"9999-12-31",'
        '"at":"2013-01-31T23:59:59.123456Z","naive":"1500-01-01T00:00:00.000001",'
        '"bytes":"AGE=","list":[1,null],"map":{"k":1,"j":null},'
        '"nested":{"x":null,"y":[{"z":"😀"}]}}'
    ]


def test_numbers_come_back_exactly(spark: SparkSession, job: Job) -> None:
    decimals = [Decimal("12345678901234567890.123456789012345678"), Decimal("-0.000000000000000001"), None]
    doubles = [5e-324, 2.2250738585072014e-308, 0.1 + 0.2, -1e22, 123456789.123456789]
    rows = spark.createDataFrame(
        [(decimals[n % 3], d) for n, d in enumerate(doubles)], "c decimal(38,18), d double"
    ).coalesce(1)
    found = [json.loads(t, parse_float=Decimal) for t in texts(job.write(rows))]
    assert [r["c"] for r in found] == [decimals[n % 3] for n in range(5)]
    assert [float(r["d"]) for r in found] == doubles


def test_times_come_back_exactly_whatever_the_sessions_settings(spark: SparkSession, job: Job) -> None:
    times = [datetime(1, 1, 3), datetime(1582, 10, 5), datetime(1969, 12, 31, 23, 59, 59, 999_999)]
    times += [datetime(2013, 3, 10, 2, 30, 0, 1), datetime(9999, 12, 30, 23, 59, 59, 999_999)]
    rows = spark.createDataFrame([(t, t.date()) for t in times], "t timestamp_ntz, d date").coalesce(1)
    rows = rows.withColumn("z", f.timestamp_micros(f.lit(0)) + f.make_dt_interval(secs=f.lit(1)))
    before = {k: spark.conf.get(k) for k in ("spark.sql.session.timeZone", "spark.sql.legacy.timeParserPolicy")}
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
        found = [json.loads(t) for t in texts(job.write(rows))]
    finally:
        for key, value in before.items():
            spark.conf.set(key, value or "")
    assert [datetime.fromisoformat(r["t"]) for r in found] == times
    assert [date.fromisoformat(r["d"]) for r in found] == [t.date() for t in times]
    assert {r["z"] for r in found} == {"1970-01-01T00:00:01.000000Z"}


def test_binary_comes_back_exactly(spark: SparkSession, job: Job) -> None:
    blobs = [b"", b"\x00\xff", bytes(range(256)), None]
    rows = spark.createDataFrame([(b,) for b in blobs], "b binary").coalesce(1)
    found = [json.loads(t)["b"] for t in texts(job.write(rows))]
    assert [base64.b64decode(b) if b is not None else None for b in found] == blobs


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        ("v", "cast('NaN' as double)"),
        ("v", "cast('-Infinity' as float)"),
        ("v", "array(0d, cast('NaN' as double))"),
        ("v", "map('a', named_struct('b', array(cast('Infinity' as double))))"),
        ("v", "timestamp_micros(253402300800000000)"),
        ("v", "timestamp_micros(-62135596800000001)"),
        ("v", "cast(date_from_unix_date(2932897) as timestamp_ntz)"),
        ("v", "date_from_unix_date(2932897)"),
        ("v", "date_from_unix_date(-719163)"),
        ("v", "cast(x'ff' as string)"),
        ("v", "map(cast(x'ff' as string), 1)"),
    ],
)
def test_a_value_that_json_cannot_hold_is_refused(spark: SparkSession, job: Job, column: str, expression: str) -> None:
    good = spark.range(2).selectExpr("id", f"case when id < 0 then {expression} end as {column}")
    bad = spark.range(2).selectExpr("id", f"{expression} as {column}")
    with pytest.raises(PrepareRefused) as refused:
        job.write(good.union(bad))
    assert f"2 rows, for instance in column {column!r}" in str(refused.value)
    assert read_topic(job.sink._core.bootstrap, job.topic) == []


def test_the_extremes_that_json_holds_are_accepted(spark: SparkSession, job: Job) -> None:
    rows = spark.sql(
        "select timestamp_micros(253402300799999999) as a, timestamp_micros(-62135596800000000) as b, "
        "date_from_unix_date(2932896) as c, date_from_unix_date(-719162) as d, "
        "timestamp_ntz '9999-12-31 23:59:59.999999' as e, timestamp_ntz '0001-01-01 00:00:00' as f"
    )
    assert json.loads(texts(job.write(rows))[0]) == {
        "a": "9999-12-31T23:59:59.999999Z",
        "b": "0001-01-01T00:00:00.000000Z",
        "c": "9999-12-31",
        "d": "0001-01-01",
        "e": "9999-12-31T23:59:59.999999",
        "f": "0001-01-01T00:00:00.000000",
    }


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "kind",
    ["map<int,string>", "map<string,interval day>", "interval day", "array<map<date,int>>", "struct<a:interval year>"],
)
def test_a_type_that_json_cannot_hold_is_refused(kind: str) -> None:
    from pyspark.sql.types import _parse_datatype_string  # type: ignore[attr-defined,unused-ignore]

    schema = StructType().add("v", _parse_datatype_string(kind))
    with pytest.raises(Misconfigured, match="column 'v"):
        Encoding(None, None, "random").check(schema, "s")


# key, value, order


def test_keys_go_where_javas_producer_puts_them(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    """murmur2 as Kafka's own tests list it, by ``(hash & 0x7fffffff) % partitions``."""
    murmur2 = {
        "21": -973932308,
        "foobar": -790332482,
        "a-little-bit-long-string": -985981536,
        "a-little-bit-longer-string": -1486304829,
        "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    }
    job = Job(kafka_server, topic, stage, key="k", partitions=7)
    records = job.write(spark.createDataFrame([(k,) for k in murmur2], "k string"))
    assert {(r.key or b"").decode(): r.partition for r in records} == {
        key: (hash_ & 0x7FFFFFFF) % 7 for key, hash_ in murmur2.items()
    }


def test_rows_without_a_key_are_spread(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    job = Job(kafka_server, topic, stage, key="k", value="v", partitions=4)
    rows = spark.range(20_000).selectExpr("cast(null as string) as k", "repeat('v', 100) as v")
    records = job.write(rows)
    assert {r.key for r in records} == {None}
    assert len({r.partition for r in records}) > 1
    assert len(records) == 20_000


def test_a_value_column_is_the_value(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    job = Job(kafka_server, topic, stage, key="k", value="v", tombstones=True)
    pairs = [(b"k1", b"\x00\xff"), (b"", b""), (None, b"x"), (b"gone", None)]
    rows = spark.createDataFrame(pairs, "k binary, v binary").coalesce(1)
    assert [(r.key, r.value) for r in job.write(rows)] == pairs


def test_rows_of_one_partition_keep_their_order(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    job = Job(kafka_server, topic, stage, key="p", value="n")
    sizes = {0: 30_000, 1: 10, 2: 60_000, 3: 1}
    rows = spark.range(0, 4, numPartitions=4).selectExpr(
        "cast(id as string) as p", "explode(sequence(1, array(30000, 10, 60000, 1)[int(id)])) as n"
    )
    records = job.write(rows.selectExpr("p", "cast(n as string) as n"))
    for partition, size in sizes.items():
        mine = [int(r.value or b"") for r in records if r.key == str(partition).encode()]
        assert mine == list(range(1, size + 1))


def test_epochs_follow_each_other_in_a_partition(spark: SparkSession, job: Job) -> None:
    for n in range(3):
        records = job.write(spark.range(n * 100, (n + 1) * 100, numPartitions=2).selectExpr("id"))
    firsts = [json.loads(r.value or b"")["id"] // 100 for r in records]
    assert firsts == sorted(firsts)
    assert len(records) == 300


# sizes and keys that the topic does not take


@pytest.mark.remedy(
    "… rows are larger than topic … takes: the largest has … bytes, the limit is …",
    "raise … of the topic (it is …), or make rows smaller",
)
def test_rows_larger_than_the_topic_takes_are_refused_before_the_decision(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    job = Job(kafka_server, topic, stage, value="v", topic_config={"max.message.bytes": "5000"})
    rows = spark.range(10).selectExpr("repeat('x', int(1000 * id)) as v")
    with pytest.raises(PrepareRefused) as refused:
        job.write(rows)
    assert "5 rows are larger" in str(refused.value)
    assert "the largest has 9000 bytes, the limit is 4900" in str(refused.value)
    fits = spark.range(3).selectExpr("repeat('x', 4900) as v")
    assert [len(r.value or b"") for r in job.write(fits)] == [4900] * 3
    set_max_message_bytes(kafka_server.bootstrap, topic, 10_000)
    assert len(job.write(rows)) == 13


def test_a_smaller_batch_of_the_users_is_kept(spark: SparkSession, job: Job) -> None:
    """Large rows may need it, and the task meets them after the decision."""
    batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(batch)
    for given, taken in (("7", "7"), ("0", "10000"), ("20000", "10000")):
        spark.conf.set(batch, given)
        try:
            assert job.sink._core.own_session({}).conf.get(batch) == taken
        finally:
            spark.conf.set(batch, before or "10000")
        job.sink.close()


OFFSETS = json.dumps({f"topic-{n}": {str(p): 123_456_789 for p in range(20)} for n in range(100)})
"""Of a source with 2,000 partitions: 40 kB."""


def test_the_offsets_of_a_wide_source_go_with_rows_of_a_narrow_topic(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    """The marker's record holds them, and its topic has a limit of its own; batches of rows stay as the topic takes."""
    job = Job(kafka_server, topic, stage, value="v", topic_config={"max.message.bytes": "5000"})
    rows = spark.range(50).selectExpr("repeat('x', 900) as v").coalesce(1)
    assert len(job.write(rows, OFFSETS)) == 50
    assert len(job.write(rows.where("false"), OFFSETS)) == 50


@pytest.mark.remedy(
    "the marker's record takes … bytes, most of them offsets, and its topic … takes …",
    "raise max.message.bytes of that topic, to … at most, or read fewer partitions",
)
def test_offsets_that_the_marker_topic_does_not_take_are_refused_before_the_decision(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    job = Job(kafka_server, topic, stage, value="v")
    rows = spark.range(1).selectExpr("'x' as v")
    job.write(rows)
    marker = f"__epochal.{QUERY.app}.{topic}"
    set_max_message_bytes(kafka_server.bootstrap, marker, 20_000)
    with pytest.raises(PrepareRefused, match=r"the marker's record takes \d+ bytes, most of them offsets") as refused:
        job.write(rows, OFFSETS)
    assert f"its topic '{marker}' takes 20000" in refused.value.what
    assert len(read_topic(kafka_server.bootstrap, topic)) == 1
    assert len(job.write(rows, OFFSETS[:10_000])) == 2
    set_max_message_bytes(kafka_server.bootstrap, marker, 100_000)
    assert len(job.write(rows, OFFSETS)) == 3


@pytest.mark.remedy(
    "… rows have no key (column … is null), and topic … is compacted", "give these rows a key, or filter them out"
)
def test_a_compacted_topic_takes_no_row_without_a_key(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    job = Job(kafka_server, topic, stage, key="k", topic_config={"cleanup.policy": "compact"})
    rows = spark.createDataFrame([("a",), (None,)], "k string")
    with pytest.raises(PrepareRefused, match="1 rows have no key"):
        job.write(rows)
    assert len(job.write(rows.where("k is not null"))) == 1
    assert len(job.write(rows.fillna("none"))) == 3


def test_the_first_and_the_last_microsecond() -> None:
    """The bounds in the code, computed another way."""
    epoch = datetime(1970, 1, 1)
    assert (datetime(1, 1, 1) - epoch) // timedelta(microseconds=1) == kafka_rows._FIRST
    assert (datetime(9999, 12, 31, 23, 59, 59, 999_999) - epoch) // timedelta(microseconds=1) == kafka_rows._LAST
