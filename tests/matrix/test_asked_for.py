"""The server or Spark of a row is of the version that the row names."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pyspark.sql import SparkSession

from epochal.chaos.servers.kafka import KafkaServer
from tests.real.sinks.postgres import support


def test_postgres(pg_database: str) -> None:
    [(version,)] = support.observe(pg_database, "SHOW server_version")
    assert version.split(".")[0] == os.environ["EPOCHAL_POSTGRES_VERSION"]


def test_kafka(kafka_server: KafkaServer) -> None:
    """Brokers do not tell their version; their jars do."""
    command = Path(f"/proc/{kafka_server.pid}/cmdline").read_text()
    assert f"kafka_2.13-{os.environ['EPOCHAL_KAFKA_VERSION']}.jar" in command


def test_python() -> None:
    assert platform.python_version().startswith(os.environ["EPOCHAL_PYTHON_VERSION"] + ".")


def test_spark(spark: SparkSession) -> None:
    assert spark.version == os.environ["EPOCHAL_SPARK_VERSION"]


def test_delta(spark: SparkSession) -> None:
    package = getattr(spark._jvm, "io.delta.package")
    assert package.VERSION() == os.environ["EPOCHAL_DELTA_VERSION"]
