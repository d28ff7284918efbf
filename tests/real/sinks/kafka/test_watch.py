"""Rows judged while they are copied: refused in the same words, copied as they are, and for one decision alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Committable, Decision, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused, SinkUnavailable
from epochal.sinks.kafka import KafkaSink, judging, preparing
from epochal.sinks.protocol import WatchingSink
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import set_max_message_bytes

FIRST = Epoch(Decision("q1", 0, ONE, "f0"), 1)
OTHER = Epoch(Decision("q1", 0, ONE, "f1"), 1)


@pytest.fixture
def make(kafka_server: servers.Kafka, topic: str) -> Callable[..., KafkaSink]:
    def made(schema: Any, **options: Any) -> KafkaSink:
        sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, votes=False, **options)
        sink.create(QUERY, schema)
        set_max_message_bytes(kafka_server.bootstrap, topic, 2_000)
        sink.look(QUERY)
        sink.fence(QUERY, ONE)
        return sink

    return made


def vote(sink: KafkaSink, stage: SparkStage, rows: DataFrame, *, watched: Epoch | None) -> Committable:
    seen = sink.watch(watched, rows) if watched is not None else rows
    copy = stage.write(0, ONE, seen)
    return sink.prepare(replace(FIRST, copy=copy), stage.read(copy), ONE)


def no_pass_over_the_copy(*_: object) -> Any:
    raise AssertionError("the copy was read")


BAD = {
    "json": ("named_struct('x', if(id < 2, double('NaN'), 1d)) AS v", {}),
    "no value": ("if(id < 2, null, 'v') AS v", {"value": "v"}),
    "too large": ("repeat('x', 1800 + cast(id as int) * 100) AS v", {"value": "v"}),
    "of two": ("if(id < 2, null, repeat('x', 1800 + cast(id as int) * 100)) AS v", {"value": "v"}),
    "header": ("array(named_struct('key', if(id < 2, null, 'k'), 'value', 'v')) AS h", {"headers": "h"}),
    "partition": ("cast(id * 7 as int) AS p", {"partition": "p"}),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_written_is_refused_in_the_same_words(
    case: str, spark: SparkSession, make: Callable[..., KafkaSink], stage: SparkStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    column, options = BAD[case]
    rows = spark.range(0, 5, numPartitions=2).selectExpr("id", column)
    sink = make(rows.schema, **options)
    with pytest.raises(PrepareRefused) as of_the_copy:
        vote(sink, stage, rows, watched=None)
    monkeypatch.setattr(preparing, "check_rows", no_pass_over_the_copy)
    with pytest.raises(PrepareRefused) as while_copied:
        vote(sink, stage, rows, watched=FIRST)
    assert str(while_copied.value) == str(of_the_copy.value)


def test_a_vote_counts_what_was_seen_and_reads_nothing(
    spark: SparkSession, make: Callable[..., KafkaSink], stage: SparkStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the columns are called, those of a record among them."""
    rows = spark.range(5).selectExpr("cast(id as string) AS key", "'v' AS value", "id AS `a.b`", "struct(id) AS s")
    sink = make(rows.schema, key="value", value="key")
    assert isinstance(sink, WatchingSink)
    assert sink.watch(OTHER, rows).schema == rows.schema
    of_the_copy = vote(sink, stage, rows, watched=None)
    monkeypatch.setattr(preparing, "check_rows", no_pass_over_the_copy)
    while_copied = vote(sink, stage, rows, watched=FIRST)
    assert while_copied.rows == of_the_copy.rows == 5
    assert while_copied.payload["encoding"] == of_the_copy.payload["encoding"]
    copies = [each.payload["copy"] for each in (while_copied, of_the_copy)]
    assert copies[0]["schema"] == copies[1]["schema"]


@pytest.mark.parametrize("watched", [OTHER, None], ids=["another decision", "nothing"])
def test_what_was_seen_is_of_one_decision(
    watched: Epoch | None, spark: SparkSession, make: Callable[..., KafkaSink], stage: SparkStage
) -> None:
    """A redo, or another process, judges the copy itself."""
    fine, bad = (spark.range(3).selectExpr(f"if(id < {n}, null, 'v') AS v") for n in (0, 1))
    sink = make(fine.schema, value="v")
    if watched is not None:
        stage.write(0, ONE, sink.watch(watched, fine))
    with pytest.raises(PrepareRefused, match="1 rows have no value"):
        vote(sink, stage, bad, watched=None)


def test_what_was_seen_is_used_once(spark: SparkSession, make: Callable[..., KafkaSink], stage: SparkStage) -> None:
    fine, bad = (spark.range(3).selectExpr(f"if(id < {n}, null, 'v') AS v") for n in (0, 1))
    sink = make(fine.schema, value="v")
    assert vote(sink, stage, fine, watched=FIRST).rows == 3
    with pytest.raises(PrepareRefused, match="1 rows have no value"):
        vote(sink, stage, bad, watched=None)


@pytest.mark.parametrize("rows", ["range(0)", "range(9) WHERE id < 0", "range(9) WHERE false"])
def test_no_rows_are_a_vote(rows: str, spark: SparkSession, make: Callable[..., KafkaSink], stage: SparkStage) -> None:
    found = spark.sql(f"SELECT cast(id as string) AS v FROM {rows}")
    assert vote(make(found.schema, value="v"), stage, found, watched=FIRST).rows == 0


@pytest.mark.parametrize(
    "options",
    [{"where": "id > 1"}, {"select": ["id"]}, {"slots": 2}, {"value": lambda: lambda row, _: str(row["id"]).encode()}],
    ids=["where", "select", "slots", "value="],
)
def test_rows_that_become_other_ones_first_are_judged_from_the_copy(
    options: dict[str, Any], spark: SparkSession, make: Callable[..., KafkaSink]
) -> None:
    rows = spark.range(3).toDF("id")
    assert make(rows.schema, **options).watch(FIRST, rows) is rows


def test_rows_that_another_session_would_write_otherwise_are_judged_from_the_copy(
    spark: SparkSession, make: Callable[..., KafkaSink]
) -> None:
    rows = spark.range(3).toDF("id")
    sink = make(rows.schema)
    before = spark.conf.get("spark.sql.legacy.timeParserPolicy")
    try:
        spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
        assert sink.watch(FIRST, rows) is rows
    finally:
        spark.conf.set("spark.sql.legacy.timeParserPolicy", before or "CORRECTED")
    for other in (
        "id AS ID",
        "named_struct('a', 1, 'A', 2) AS s",
        "map('k', array(named_struct('a', 1, 'A', 2))) AS m",
    ):
        twice = spark.range(3).selectExpr("id", other)
        assert sink.watch(FIRST, twice) is twice


def test_a_topic_that_takes_less_by_the_time_of_the_vote_is_asked_of_the_copy(
    spark: SparkSession,
    make: Callable[..., KafkaSink],
    stage: SparkStage,
    kafka_server: servers.Kafka,
    topic: str,
) -> None:
    rows = spark.range(3).selectExpr("repeat('x', 2500) AS v")
    sink = make(rows.schema, value="v")
    set_max_message_bytes(kafka_server.bootstrap, topic, 3_000)
    copy = stage.write(0, ONE, sink.watch(FIRST, rows))
    set_max_message_bytes(kafka_server.bootstrap, topic, 2_000)
    with pytest.raises(PrepareRefused, match="the largest has 2500 bytes, the limit is 1900"):
        sink.prepare(replace(FIRST, copy=copy), stage.read(copy), ONE)


def test_brokers_that_do_not_answer_leave_it_to_the_vote(
    spark: SparkSession, make: Callable[..., KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Any:
        raise SinkUnavailable("no broker", help="wait")

    rows = spark.range(3).toDF("id")
    sink = make(rows.schema)
    monkeypatch.setattr(judging, "as_looked_at", away)
    assert sink.watch(FIRST, rows) is rows


def test_names_of_our_own_columns_are_refused(spark: SparkSession, kafka_server: servers.Kafka, topic: str) -> None:
    """They would be left out of the value, or make it NULL."""
    for name in ("__epochal_hash", "__epochal_kept", "__epochal_met", "__epochal_row"):
        with pytest.raises(Misconfigured, match=f"'{name}' is Epochal's own"):
            KafkaSink(kafka_server.bootstrap, topic=topic).create(QUERY, spark.range(1).toDF(name).schema)
