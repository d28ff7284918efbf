"""Columns whose names meet ours, or words of SQL, in every role."""

from __future__ import annotations

import json
from datetime import date

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from epochal.chaos import servers
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.spark.names import quoted
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.hostile import NAMES, day, days
from tests.real.sinks.kafka.test_routes import headers_of
from tests.real.sinks.kafka.test_rows import Job


def test_columns_of_every_name_are_fields_of_the_value(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> None:
    """P2, P3."""
    records = Job(kafka_server, topic, stage).write(days(spark, NAMES, 1, 2))
    found = [{name: date.fromisoformat(value) for name, value in json.loads(r.value or b"").items()} for r in records]
    assert found == [{name: day(number, n) for n, name in enumerate(NAMES)} for number in (1, 2)]


def routed(
    spark: SparkSession, server: servers.Kafka, topic: str, stage: SparkStage, names: tuple[str, ...], **options: object
) -> None:
    """One record whose key, value, topic, partition and headers come from columns with these names."""
    key, value, dest, partition, headers = names
    job = Job(server, topic, stage)
    job.sink = KafkaSink(
        server.bootstrap,
        topic=dest,
        topics=[topic],
        name=topic,
        key=key,
        value=value,
        partition=partition,
        headers=headers,
        partitions=2,
        **options,  # type: ignore[arg-type]
    )
    rows = spark.sql("SELECT 'k' AS k, 'v' AS v, 0 AS p, map_entries(map('h', 'x')) AS h").select(
        f.col("k").alias(key),
        f.col("v").alias(value),
        f.lit(topic).alias(dest),
        f.col("p").alias(partition),
        f.col("h").alias(headers),
    )
    [record] = job.write(rows)
    assert (record.key, record.value, record.partition) == (b"k", b"v", 0)
    assert headers_of(server, topic) == [[("h", b"x")]]


@pytest.mark.parametrize("names", [("value", "key", "partition", "headers", "topic"), ("a.b", "a`b", "`", "*", "slot")])
@pytest.mark.parametrize("projected", [False, True])
def test_columns_of_every_role_are_called_like_parts_of_a_record(
    spark: SparkSession,
    kafka_server: servers.Kafka,
    topic: str,
    stage: SparkStage,
    names: tuple[str, ...],
    *,
    projected: bool,
) -> None:
    """P2, P3."""
    options = {"select": list(names), "where": f"{quoted(names[0])} = 'k'", "slots": 2} if projected else {}
    routed(spark, kafka_server, topic, stage, names, **options)


@pytest.mark.wide
@pytest.mark.parametrize("turn", range(len(NAMES)))
def test_columns_of_every_name_have_every_role(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage, turn: int
) -> None:
    """P2, P3."""
    routed(spark, kafka_server, topic, stage, (*NAMES, *NAMES)[turn : turn + 5])
