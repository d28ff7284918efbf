"""The servers and the session of the tests, as the fuzz wants them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from epochal.chaos import servers
from tests.databases import Databases
from tests.fuzz.run import Bounded
from tests.fuzz.trial import Servers


@pytest.fixture(scope="module")
def bounded(
    spark: SparkSession,
    postgres_server: servers.Postgres,
    kafka_server: servers.Kafka,
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bounded]:
    folder = tmp_path_factory.mktemp("fuzz")
    with (
        databases.one(postgres_server) as dsn,
        Servers.using(spark, dsn, kafka_server.bootstrap, folder) as shared,
    ):
        yield Bounded(shared)
