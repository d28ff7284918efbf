"""Fixtures that every folder shares; a server or a Spark session starts when the first test asks for it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from epochal.chaos import servers
from epochal.coordinator.environment.versions import POSTGRES
from tests import remedies, selection
from tests.databases import Databases

# Examples that Hypothesis draws fail for what they find, never for how long they take.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is marked with a remedy must have met the error of that remedy."""
    marks = [remedies.of_marker(mark.args, mark.kwargs, item.nodeid) for mark in item.iter_markers("remedy")]
    if not marks:
        return (yield)
    with remedies.errors_made() as made:
        result = yield
    for mark in marks:
        assert mark.was_met(made), f"no error was made with {mark.what!r} and {mark.help!r}"
    return result


@pytest.fixture(scope="session")
def databases() -> Databases:
    """The databases of the whole run."""
    return Databases()


@pytest.fixture
def pg_database(postgres_server: servers.Postgres, databases: Databases) -> Iterator[str]:
    """Connection string of an empty database of this test's own."""
    with databases.one(postgres_server) as dsn:
        yield dsn


@pytest.fixture
def topic_name() -> str:
    """A topic name of this test's own; the topic itself is not made."""
    return f"test-{uuid.uuid4().hex[:12]}"


class Proof:
    """Keeps the tests of ``make test`` (``tests/selection.py``); the others run in ``make test-all``."""

    def __init__(self) -> None:
        self._names = selection.named_by_bugs()
        self._kept = selection.thinned()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        by_case = {asked.partition("[")[0] for asked in config.args if "::" in asked and "[" in asked}
        kept = {test: cases for test, cases in self._kept.items() if test not in by_case}  # not all were collected
        if lost := selection.lost_cases(kept, [item.nodeid for item in items]):
            raise pytest.UsageError(f"tests/thinned.toml keeps cases that do not exist: {', '.join(lost)}")
        items[:] = [item for item in items if self._keeps(item)]

    def _keeps(self, item: pytest.Item) -> bool:
        wide = item.get_closest_marker("wide") is not None
        return selection.in_proof(item.nodeid, wide=wide, names=self._names, kept=self._kept)


class Fast:
    """Keeps the tests of ``make test-fast``: those that are neither ``wide`` nor ``slow``."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(map(item.get_closest_marker, ("wide", "slow")))]


class EveryTestPassed:
    """Fails a run in which anything but a passed test was reported, and prints collected = passed.

    A file that is skipped as a whole has no tests to be counted; what is left over in the reports shows it.
    """

    def __init__(self) -> None:
        self.collected = 0

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
        terminalreporter.write_line(f"{self.collected} collected {sign} {reported or 'nothing'}")

    def _all_passed(self, reporter: pytest.TerminalReporter) -> bool:
        return self._reported(reporter) == {"passed": self.collected}

    @staticmethod
    def _reported(reporter: pytest.TerminalReporter) -> dict[str, int]:
        """How many reports of each kind; setups and teardowns that passed have none."""
        return {kind: len(reports) for kind, reports in reporter.stats.items() if kind not in ("", "warnings")}


class Seconds:
    """Writes how long each file took, set-up and tear-down included, for ``tests/seconds.json``."""

    def __init__(self, into: Path) -> None:
        self._into = into
        self._took: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._took[file] = self._took.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        self._into.mkdir(parents=True, exist_ok=True)
        took = {file: round(seconds, 1) for file, seconds in sorted(self._took.items())}
        (self._into / f"{os.getpid()}.json").write_text(json.dumps(took, indent=0))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("epochal")
    group.addoption("--proof", action="store_true", help="only the tests of `make test`")
    group.addoption("--fast", action="store_true", help="only tests that are neither wide nor slow")
    group.addoption("--seconds-into", type=Path, metavar="FOLDER", help="write there how long each file took")


def pytest_configure(config: pytest.Config) -> None:
    """`make test` allows no test that did not run and pass."""
    config.addinivalue_line("markers", "wide: repeats what tests of the proof show, at more places or for longer")
    config.addinivalue_line("markers", "remedy(what, help, over=()): meets this error and follows its help to the end")
    config.addinivalue_line("markers", "slow: takes seconds although it needs neither Spark nor a server")
    if config.getoption("--proof"):
        config.pluginmanager.register(Proof(), "proof")
    if config.getoption("--fast"):
        config.pluginmanager.register(Fast(), "fast")
    if os.environ.get("EPOCHAL_EVERY_TEST") == "1":
        config.pluginmanager.register(EveryTestPassed(), "every-test-passed")
    if folder := config.getoption("--seconds-into"):
        config.pluginmanager.register(Seconds(folder), "seconds")
