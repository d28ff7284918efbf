"""One broker, one topic per test, and nothing left open on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.chaos import servers
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.support import APP, hanging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topic(kafka_server: servers.Kafka, topic_name: str) -> Iterator[str]:
    """A topic name of the test's own; afterwards no transaction is open on it or on its marker topics."""
    yield topic_name
    if not kafka_server.running():
        kafka_server.start()
    names = [f"__epochal.{app}.{topic_name}" for app in (APP, f"{APP}-2")] + [topic_name, f"{topic_name}-2"]
    assert hanging(kafka_server.bootstrap, *names) == []


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> SparkStage:
    """Where this test's durable copies lie."""
    return SparkStage(f"file://{tmp_path}", lambda: spark)
