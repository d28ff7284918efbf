"""Fixtures that every folder shares; a server or a Spark session starts when the first test asks for it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.chaos import servers
from epochal.coordinator.environment.versions import POSTGRES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochal.chaos.servers.hdfs import HdfsServer
    from epochal.chaos.servers.toxiproxy import Proxy, ToxiproxyServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.Postgres]:
    """One Postgres for the whole run; a test that crashes it need not start it again."""
    server = servers.choose_postgres()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def oldest_postgres() -> Iterator[servers.Postgres]:
    """An embedded one of the oldest version that is called tested; `postgres_server` is of the newest."""
    from epochal.chaos.servers.postgres import PostgresServer

    with PostgresServer(version=POSTGRES[0]) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[servers.Kafka]:
    """One Kafka broker for the whole run; a test that crashes it need not start it again."""
    server = servers.choose_kafka()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def hdfs_server() -> Iterator[HdfsServer]:
    """One HDFS for the whole run; a test that crashes it need not start it again."""
    from epochal.chaos.servers.hdfs import HdfsServer

    with HdfsServer() as server:
        yield server


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
    from epochal.chaos.job import jvm
    from epochal.chaos.servers.spark import spark_session

    session = spark_session("local[2]", app="epochal-tests", conf=jvm.short_lived())
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _servers_are_up(request: pytest.FixtureRequest) -> None:
    """Start again what an earlier test left down."""
    for name in ("postgres_server", "kafka_server", "hdfs_server"):
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


class WideLast:
    """Tests marked ``wide`` run after all others; those that have not begun within the time are left out, and told.

    Wide is what repeats something that other tests show, at more places.  Machines differ in pace, the same one from
    hour to hour by a factor of two or three: where it is slow, a run that is cut off has shown nothing.
    """

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.left_out = 0
        self._over = time.monotonic() + minutes * 60

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=self._wide)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not self._wide(item) or time.monotonic() < self._over:
            return None
        self.left_out += 1
        return True

    @staticmethod
    def _wide(item: pytest.Item) -> bool:
        return item.get_closest_marker("wide") is not None


class EveryTestPassed:
    """Fails a run in which anything but a passed test was reported, and prints collected = passed.

    A file that is skipped as a whole has no tests to be counted; what is left over in the reports tells of it.
    Wide tests for which there was no time are told beside.
    """

    def __init__(self, wide: WideLast) -> None:
        self.collected = 0
        self._wide = wide

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.collected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected += len(session.items)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        if session.exitstatus == pytest.ExitCode.OK and not self._all_passed(reporter):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        sign = "=" if self._all_passed(terminalreporter) else "IS NOT"
        reported = ", ".join(f"{times} {kind}" for kind, times in self._reported(terminalreporter).items())
        left_out = self._wide.left_out
        late = f", {left_out} wide ones LEFT OUT after {self._wide.minutes:g} minutes" if left_out else ""
        terminalreporter.write_line(f"{self.collected} collected {sign} {reported or 'nothing'}{late}")

    def _all_passed(self, reporter: pytest.TerminalReporter) -> bool:
        return self._reported(reporter) == {"passed": self.collected - self._wide.left_out}

    @staticmethod
    def _reported(reporter: pytest.TerminalReporter) -> dict[str, int]:
        """How many reports of each kind; setups and teardowns that passed have none."""
        return {kind: len(reports) for kind, reports in reporter.stats.items() if kind not in ("", "warnings")}


def pytest_configure(config: pytest.Config) -> None:
    """`make test` allows no test that did not run and pass, but wide ones on a slow machine."""
    config.addinivalue_line("markers", "wide: repeats what other tests show, at more places; runs last")
    if os.environ.get("EPOCHAL_EVERY_TEST") == "1":
        wide = WideLast(float(os.environ.get("EPOCHAL_WIDE_MINUTES") or "inf"))
        config.pluginmanager.register(wide, "wide-last")
        config.pluginmanager.register(EveryTestPassed(wide), "every-test-passed")
