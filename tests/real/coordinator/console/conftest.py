"""One small job for all commands; what a test changes it puts back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.chaos import servers
from tests.real.coordinator.console.support import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def console(
    spark: SparkSession,
    postgres_server: servers.Postgres,
    kafka_server: servers.Kafka,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Console]:
    name = f"console_{uuid.uuid4().hex[:12]}"
    dsn = postgres_server.create_database(name)
    job = Console(spark, tmp_path_factory.mktemp("console"), dsn, kafka_server.bootstrap, name)
    job.made().create(job.rows().schema)
    for ids in ((1, 2, 3), (4,), (5, 6)):
        job.add(*ids)
    job.go()
    yield job
    postgres_server.drop_database(name)
