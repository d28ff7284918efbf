"""The embedded servers themselves."""

from __future__ import annotations

import psycopg
from pyspark.sql import SparkSession

from epochal.chaos import servers


def test_pg(pg_database: str) -> None:
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_kafka(kafka_server: servers.Kafka, topic_name: str) -> None:
    kafka_server.create_topic(topic_name, partitions=2)


def test_spark(spark: SparkSession) -> None:
    assert spark.range(5).count() == 5
