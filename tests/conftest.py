"""Fixtures that every folder shares; a server or a Spark session starts when the first test asks for it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.chaos import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochal.chaos.servers.toxiproxy import Proxy, ToxiproxyServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.Postgres]:
    """One Postgres for the whole run; a test that crashes it need not start it again."""
    server = servers.choose_postgres()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[servers.Kafka]:
    """One Kafka broker for the whole run; a test that crashes it need not start it again."""
    server = servers.choose_kafka()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def toxiproxy_server() -> Iterator[ToxiproxyServer]:
    """One Toxiproxy for the whole run."""
    from epochal.chaos.servers.toxiproxy import ToxiproxyServer

    with ToxiproxyServer() as server:
        yield server


@pytest.fixture
def postgres_proxy(postgres_server: servers.Postgres, toxiproxy_server: ToxiproxyServer) -> Iterator[Proxy]:
    """A link to the Postgres server of the run; `proxied_dsn` names a database behind it."""
    with toxiproxy_server.proxy(postgres_server.address) as proxy:
        yield proxy


@pytest.fixture
def kafka_proxy(kafka_server: servers.Kafka, toxiproxy_server: ToxiproxyServer) -> Iterator[Proxy]:
    """A link to the broker of the run, to be used as bootstrap server: its clients stay behind it."""
    with toxiproxy_server.proxy(kafka_server.proxied_upstream, port=kafka_server.proxied_port) as proxy:
        yield proxy


@pytest.fixture
def proxied_dsn(pg_database: str, postgres_server: servers.Postgres, postgres_proxy: Proxy) -> str:
    """The database of `pg_database`, reached through `postgres_proxy`."""
    return pg_database.replace(postgres_server.address, postgres_proxy.address)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One `local[2]` session with Delta and Kafka for the whole run."""
    from epochal.chaos.servers.spark import spark_session

    session = spark_session("local[2]", app="epochal-tests")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _servers_are_up(request: pytest.FixtureRequest) -> None:
    """Start again what an earlier test left down."""
    for name in ("postgres_server", "kafka_server"):
        if name in request.fixturenames:
            server = request.getfixturevalue(name)
            if not server.running():
                server.start()


@pytest.fixture
def pg_database(postgres_server: servers.Postgres) -> Iterator[str]:
    """Connection string of an empty database of this test's own."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres_server.create_database(name)
    if not postgres_server.running():
        postgres_server.start()
    postgres_server.drop_database(name)


@pytest.fixture
def topic_name() -> str:
    """A topic name of this test's own; the topic itself is not made."""
    return f"test-{uuid.uuid4().hex[:12]}"


class EveryTestPassed:
    """Fails a run in which a test was skipped, deselected or expected to fail, and prints collected = passed."""

    def __init__(self) -> None:
        self.collected = 0
        self.deselected = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = len(session.items)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.deselected += len(items)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self._passed(session) != self.collected + self.deselected:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = len(terminalreporter.stats.get("passed", []))
        everything = self.collected + self.deselected
        sign = "=" if passed == everything else "IS NOT"
        terminalreporter.write_line(f"{everything} collected {sign} {passed} passed")

    @staticmethod
    def _passed(session: pytest.Session) -> int:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        return len(reporter.stats.get("passed", []))


def pytest_configure(config: pytest.Config) -> None:
    """`make test` allows no test that did not run and pass."""
    if os.environ.get("EPOCHAL_EVERY_TEST") == "1":
        config.pluginmanager.register(EveryTestPassed(), "every-test-passed")
