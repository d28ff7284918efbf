"""The servers of the run answer, each to a client of its own."""

from __future__ import annotations

import psycopg
from pyspark.sql import SparkSession

from epochal.chaos import servers
from tests.integration.kafka.support import produce, read_topic


def test_pg(pg_database: str) -> None:
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_kafka(kafka_server: servers.Kafka, topic_name: str) -> None:
    kafka_server.create_topic(topic_name, partitions=2)
    produce(kafka_server.bootstrap, topic_name, b"zero")
    produce(kafka_server.bootstrap, topic_name, b"one", partition=1)
    records = read_topic(kafka_server.bootstrap, topic_name)
    assert [(r.partition, r.value) for r in records] == [(0, b"zero"), (1, b"one")]


def test_spark(spark: SparkSession) -> None:
    assert spark.range(5).count() == 5
