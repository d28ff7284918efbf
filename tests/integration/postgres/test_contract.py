"""The sink contract on a real Postgres."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.chaos.servers import Postgres
from epochal.coordinator.epoch import Actor, Copy, Json
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.protocol import RedoSink, Sink
from tests.contract.sink_contract import SinkContract
from tests.integration.postgres import support

SCHEMA = StructType().add("id", "string").add("attempt", "string").add("n", "long")


class PostgresHarness:
    """One table in a database of the test's own."""

    app = "flights"
    schema = SCHEMA
    secrets: Sequence[str] = (support.PASSWORD,)

    def __init__(self, spark: SparkSession, server: Postgres, dsn: str) -> None:
        self._spark = spark
        self._server = server
        self._dsn = dsn

    def sink(self) -> Sink:
        return self.named("out")

    def named(self, name: str) -> Sink:
        return PostgresSink(support.with_password(self._dsn), table="flights", name=name)

    def neighbour(self) -> Sink:
        return PostgresSink(support.with_password(self._dsn), table="others", name="out")

    def rows(self, ids: Sequence[str], attempt: str) -> DataFrame:
        return self._spark.createDataFrame([(key, attempt, n) for n, key in enumerate(ids)], SCHEMA)

    def no_partitions(self) -> DataFrame:
        return self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), SCHEMA)

    def copy(self, rows: DataFrame, epoch: int, by: Actor) -> Copy | None:  # noqa: ARG002
        return None

    def visible(self) -> list[tuple[str, str]]:
        found = support.observe(self._dsn, "SELECT id, attempt FROM flights ORDER BY id")
        return [(str(key), str(attempt)) for key, attempt in found]

    def restart_server(self) -> None:
        self._server.crash()
        self._server.start()

    def commit_in_another_process(self, committable: Json, by: Json) -> str:
        return support.commit_in_another_process(self._dsn, self.app, committable, by)


class TestPostgresSink(SinkContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, postgres_server: Postgres, pg_database: str) -> PostgresHarness:
        return PostgresHarness(spark, postgres_server, pg_database)

    def test_it_votes(self, harness: PostgresHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)
