"""The sink contract on a real Postgres."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from epochal.chaos.contract import IdempotentContract, MarkedContract, ModeContract, SinkContract
from epochal.chaos.contract.harness import query
from epochal.chaos.contract.idempotent import Applying
from epochal.chaos.contract.sinks import ONE, TWO, Start
from epochal.chaos.contract.spark import SparkHarness
from epochal.chaos.servers import Postgres
from epochal.coordinator.environment.versions import POSTGRES
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert
from epochal.sinks.postgres.modes import Mode
from epochal.sinks.protocol import RedoSink, Sink
from tests.real.sinks.postgres import support
from tests.real.sinks.projected import ProjectedRows


class PostgresHarness(SparkHarness):
    """One table in a database of the test's own."""

    secrets: Sequence[str] = (support.PASSWORD,)
    prepare_is_fenced = True

    def __init__(self, spark: SparkSession, server: Postgres, dsn: str, mode: Mode) -> None:
        super().__init__(spark)
        self._server = server
        self.dsn = dsn
        self._mode = mode

    def named(self, name: str) -> Sink:
        return PostgresSink(self.address, table="flights", name=name, mode=self._mode, **self.options)

    def neighbour(self) -> Sink:
        return PostgresSink(self.address, table="others", name="out", mode=self._mode, **self.options)

    @property
    def address(self) -> str:
        return support.with_password(self.dsn)

    def visible(self) -> list[tuple[str, str]]:
        found = support.observe(self.dsn, "SELECT id, attempt FROM flights ORDER BY id")
        return [(str(key), str(attempt)) for key, attempt in found]

    def restart_server(self) -> None:
        self._server.crash()
        self._server.start()

    def source(self) -> str:
        return (
            "sys.modules['pyspark'] = None  # a commit needs no Spark\n"
            "from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert\n"
            f"sink = PostgresSink({self.address!r}, table='flights', name='out', mode={self._mode!r}, "
            f"**{self.options!r})"
        )


class OnPostgres:
    """To be mixed in: an empty database per test, and a sink of this mode."""

    mode: Mode = Append()

    @pytest.fixture
    def harness(self, spark: SparkSession, postgres_server: Postgres, pg_database: str) -> PostgresHarness:
        return PostgresHarness(spark, postgres_server, pg_database, self.mode)


class TestPostgresSink(OnPostgres, SinkContract):
    def test_it_votes(self, harness: PostgresHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)


class TestMarkedPostgresSink(OnPostgres, MarkedContract):
    def test_audit_and_view_follow_the_name(self, harness: PostgresHarness, one: Start) -> None:
        here, there = (Start(harness, ONE, part) for part in _postgres(one).renamed("other"))
        there.fenced()
        _postgres(there).mark(there.query, here.look().marker, ONE)
        assert [row.sink for row in _postgres(there).epochs(harness.app)] == ["other"]
        Start(harness, TWO, harness.named("other")).fenced().show(["b"], 1)
        assert support.observe(harness.dsn, "SELECT id FROM flights ORDER BY id") == [("a",), ("b",)]


def _postgres(start: Start) -> PostgresSink:
    assert isinstance(start.sink, PostgresSink)
    return start.sink


@pytest.mark.wide
class TestMarkedPlainPostgresSink(OnPostgres, MarkedContract):
    mode = Plain()


class OnTheOldestServer:
    """To be mixed in."""

    @pytest.fixture
    def postgres_server(self, oldest_postgres: Postgres) -> Postgres:
        return oldest_postgres

    def test_the_server_is_the_oldest(self, pg_database: str) -> None:
        [(version,)] = support.observe(pg_database, "SHOW server_version")
        assert version.startswith(POSTGRES[0])


@pytest.mark.wide
class TestPostgresSinkOnTheOldestServer(OnTheOldestServer, TestPostgresSink):
    pass


@pytest.mark.wide
class TestPlainPostgresSink(OnPostgres, ModeContract):
    mode = Plain()


class ProjectedPostgresHarness(ProjectedRows, PostgresHarness):
    """The same table, of some columns and rows."""


@pytest.mark.wide
class TestUpsertingPostgresSinkWithSelectAndWhere(ModeContract):
    """An id that stands twice is told apart by a number, so no row of the contract replaces another."""

    mode = Upsert(key=["id", "twice"])

    @pytest.fixture
    def harness(self, spark: SparkSession, postgres_server: Postgres, pg_database: str) -> PostgresHarness:
        return ProjectedPostgresHarness(spark, postgres_server, pg_database, self.mode)


@pytest.mark.wide
class TestUpsertingPostgresSinkOnTheOldestServer(OnTheOldestServer, OnPostgres, ModeContract):
    mode = Upsert(key=["id", "n"])


class TestPostgresSinkInIdempotentMode(OnPostgres, IdempotentContract):
    def test_the_digest_is_that_of_the_rows_before_select_and_where(
        self, harness: PostgresHarness, one: Applying
    ) -> None:
        whole = one.give(["a", "b"]).digest
        some = PostgresSink(
            harness.address, table="others", name="some", mode=self.mode, select=["id", "n"], where="id = 'a'"
        )
        some.create(query(harness.app), harness.schema)
        other = Applying(harness, ONE, some)
        other.fenced()
        assert other.give(["a", "b"]).digest == whole
        assert support.observe(harness.dsn, "SELECT id FROM others") == [("a",)]


@pytest.mark.wide
class TestUpsertingPostgresSinkInIdempotentMode(TestPostgresSinkInIdempotentMode):
    mode = Upsert(key=["id", "n"])
