"""The sink contract on a real Postgres."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from epochal.chaos.contract import SinkContract
from epochal.chaos.contract.spark import SparkHarness
from epochal.chaos.servers import Postgres
from epochal.coordinator.versions import POSTGRES
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.protocol import RedoSink, Sink
from tests.integration.postgres import support
from tests.integration.projected import ProjectedRows


class PostgresHarness(SparkHarness):
    """One table in a database of the test's own."""

    secrets: Sequence[str] = (support.PASSWORD,)
    prepare_is_fenced = True

    def __init__(self, spark: SparkSession, server: Postgres, dsn: str) -> None:
        super().__init__(spark)
        self._server = server
        self._dsn = dsn

    def named(self, name: str) -> Sink:
        return PostgresSink(support.with_password(self._dsn), table="flights", name=name, **self.options)

    def neighbour(self) -> Sink:
        return PostgresSink(support.with_password(self._dsn), table="others", name="out", **self.options)

    def visible(self) -> list[tuple[str, str]]:
        found = support.observe(self._dsn, "SELECT id, attempt FROM flights ORDER BY id")
        return [(str(key), str(attempt)) for key, attempt in found]

    def restart_server(self) -> None:
        self._server.crash()
        self._server.start()

    def source(self) -> str:
        return (
            "sys.modules['pyspark'] = None  # a commit needs no Spark\n"
            "from epochal.sinks.postgres import PostgresSink\n"
            f"sink = PostgresSink({support.with_password(self._dsn)!r}, table='flights', name='out', "
            f"**{self.options!r})"
        )


class TestPostgresSink(SinkContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, postgres_server: Postgres, pg_database: str) -> PostgresHarness:
        return PostgresHarness(spark, postgres_server, pg_database)

    def test_it_votes(self, harness: PostgresHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)


class ProjectedPostgresHarness(ProjectedRows, PostgresHarness):
    """The same table, of some columns and rows."""


class TestPostgresSinkWithSelectAndWhere(SinkContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, postgres_server: Postgres, pg_database: str) -> PostgresHarness:
        return ProjectedPostgresHarness(spark, postgres_server, pg_database)


class TestPostgresSinkOnTheOldestServer(TestPostgresSink):
    @pytest.fixture
    def postgres_server(self, oldest_postgres: Postgres) -> Postgres:
        return oldest_postgres

    def test_the_server_is_the_oldest(self, pg_database: str) -> None:
        [(version,)] = support.observe(pg_database, "SHOW server_version")
        assert version.startswith(POSTGRES[0])
