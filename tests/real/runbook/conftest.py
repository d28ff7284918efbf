"""A job of its own for every corner, on servers and a Spark session that all share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from epochal.chaos import servers
from tests.real.runbook.support import Corner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MakeCorner(Protocol):
    def __call__(self, title: str, server: servers.Postgres | None = None, mode: str = "") -> Corner: ...


@pytest.fixture
def corner(
    spark: SparkSession, postgres_server: servers.Postgres, kafka_server: servers.Kafka, tmp_path: Path
) -> Iterator[MakeCorner]:
    """Makes the job for a section of the page, after two epochs: ids 1, 2 and 3."""
    made: list[str] = []

    def make(title: str, server: servers.Postgres | None = None, mode: str = "") -> Corner:
        name = f"corner_{uuid.uuid4().hex[:12]}"
        dsn = (server or postgres_server).create_database(name)
        made.append(name)
        job = Corner(spark, tmp_path / name, dsn, kafka_server.bootstrap, name, title)
        if mode:
            job.edit('name="table")', f'name="table", mode=epochal.sinks.postgres.{mode})')
        job.made().create(job.rows().schema)
        for ids in ((1, 2), (3,)):
            job.add(*ids)
        job.go()
        return job

    yield make
    for name in made:
        postgres_server.drop_database(name)
