"""Idempotent mode under real kills: a driver dies between two sinks, and what a function reads changes meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from epochal.chaos import servers
from epochal.chaos.strike.standby import Standby, Start
from tests.real.kills.support import END_S, SEEN_S, drivers, ends_named
from tests.real.sinks.delta.support import read
from tests.real.sinks.kafka.support import await_markers, read_topic

EPOCHS, ROWS = 3, 10
pytestmark = pytest.mark.timeout(1800)

Row = tuple[int, str, str]


def between_the_sinks(epoch: int) -> tuple[str, str]:
    """The first shows the epoch, and the second is not asked to."""
    return f"after-sink-commit@alpha:{epoch}=barrier", f"before-sink-commit@beta:{epoch}=barrier"


@pytest.fixture(scope="module")
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standby]:
    """Drivers that run one task at a time, and none of them twice."""
    with drivers("local[1]", tmp_path_factory.mktemp("one-at-a-time")) as them:
        yield them


class Tables:
    """Two sinks of one query, whose rows hold what a file said when they were evaluated, and the time.

    Delta tables; those that are named in ``topics`` are topics of a broker, and those in ``tables`` lie in Postgres.
    """

    def __init__(
        self,
        drivers: Standby,
        folder: Path,
        app: str = "idempotent",
        bootstrap: str = "",
        topics: Sequence[str] = (),
        dsn: str = "",
        tables: Sequence[str] = (),
    ) -> None:
        self.drivers = drivers
        self.folder = folder
        self.dsn = dsn
        self.tables = tables
        self.app = app
        self.bootstrap = bootstrap
        self.topics = topics
        self.rate = folder / "rate"
        self.rate.write_text("1.1")
        self.starts = 0
        (folder / "source").mkdir()
        for epoch in range(EPOCHS):
            lines = [json.dumps({"id": epoch * ROWS + n}) for n in range(ROWS)]
            (folder / "source" / f"{epoch}.json").write_text("\n".join(lines))

    @contextmanager
    def start(self, *armed: str, mode: str = "idempotent") -> Iterator[Start]:
        self.starts += 1
        places = {name: self.place(name) for name in ("alpha", "beta")}
        settings = {"job": "looked-up", "folder": str(self.folder), "mode": mode, "app": self.app, **places}
        with self.drivers.begin(self.folder / f"start-{self.starts}", settings, armed) as driver:
            yield driver

    def place(self, name: str) -> str:
        if name in self.tables:
            return self.dsn
        if name not in self.topics:
            return str(self.folder / name)
        return f"kafka://{self.bootstrap}/{self.app}-{name}"

    def kill(self, *armed: str, mode: str = "idempotent") -> None:
        """A start that is seen blocked at the first of these points, and dies there."""
        with self.start(*armed, mode=mode) as driver:
            driver.see_blocked(armed[0], SEEN_S)
            assert {death.signal for death in driver.kill()} == {signal.SIGKILL}

    def finish(self, mode: str = "idempotent") -> None:
        with self.start(mode=mode) as driver:
            assert driver.wait(END_S) == 0, driver.tail()

    def rows(self, table: str, *, unfinished: bool = False) -> list[Row]:
        """What readers see; ``unfinished``: who died has left a transaction open, which the next start ends."""
        if table in self.topics:
            if not unfinished:
                await_markers(self.bootstrap, f"{self.app}-{table}")
            records = read_topic(self.bootstrap, f"{self.app}-{table}")
            found = [json.loads(record.value or b"") for record in records]
        elif table in self.tables:
            with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
                found = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
        else:
            found = read(self.folder / table).to_pylist()
        return sorted((row["id"], row["rate"], row["at"]) for row in found)

    def check_exact(self) -> None:
        """Every id once, and the same rows in both tables."""
        assert [row[0] for row in self.rows("alpha")] == list(range(EPOCHS * ROWS))
        assert self.rows("alpha") == self.rows("beta")


@pytest.fixture
def tables(one_at_a_time: Standby, tmp_path: Path) -> Tables:
    return Tables(one_at_a_time, tmp_path)


def brought_up(tables: Tables, *, said: str = "", refusals: int = 1) -> None:
    """The first shows the epoch when its start dies; the second gets those rows and that time, and is given no others.

    Meanwhile the file says something else: as long as it does, each start is refused (``refusals`` are tried).
    """
    tables.kill(*between_the_sinks(1))
    before = tables.rows("alpha"), tables.rows("beta")
    assert (len(before[0]), len(before[1])) == (2 * ROWS, ROWS)
    tables.rate.write_text("1.2")
    for _ in range(refusals):
        with tables.start() as driver:
            ends_named(driver, "NonDeterministicReplay")
            assert said in driver.tail(60)
        assert (tables.rows("alpha"), tables.rows("beta")) == before
    tables.rate.write_text("1.1")
    tables.finish()
    assert set(before[0]) < set(tables.rows("alpha"))
    tables.check_exact()


@pytest.mark.wide
def test_what_a_function_reads_has_changed_when_the_epoch_is_replayed(tables: Tables) -> None:
    brought_up(tables, said="evaluated more than once, and not to the same rows", refusals=2)


@pytest.mark.wide
def test_postgres_shows_the_epoch_and_delta_is_brought_up(
    one_at_a_time: Standby, tmp_path: Path, pg_database: str
) -> None:
    brought_up(Tables(one_at_a_time, tmp_path, dsn=pg_database, tables=["alpha"]))


@pytest.mark.wide
def test_killed_in_turn_at_points_of_an_epoch_it_goes_on(tables: Tables) -> None:
    """Each epoch twice: as it is evaluated for the first time, and as it is replayed."""
    for point in ("after-apply:0", "before-vote@beta:0", "after-prepare:1", "before-return:1"):
        tables.kill(f"{point}=barrier")
    tables.finish()
    tables.check_exact()


@pytest.mark.wide
def test_the_modes_take_turns_on_epochs_that_one_of_two_sinks_shows(tables: Tables) -> None:
    tables.kill(*between_the_sinks(0), mode="idempotent")
    tables.kill(*between_the_sinks(1), mode="two-phase")
    tables.finish("idempotent")
    tables.check_exact()


# Kafka, which cannot hold rows back: it shows the epoch before a sink that can is asked to


@pytest.fixture
def with_kafka(
    one_at_a_time: Standby, tmp_path: Path, kafka_server: servers.Kafka, topic_name: str
) -> Callable[..., Tables]:
    return lambda *topics: Tables(one_at_a_time, tmp_path, topic_name, kafka_server.bootstrap, topics)


@pytest.mark.wide
def test_kafka_shows_the_epoch_and_delta_is_brought_up(with_kafka: Callable[..., Tables]) -> None:
    brought_up(with_kafka("alpha"))


@pytest.mark.wide
def test_of_two_topics_the_second_aborts_what_the_first_does_not_show(with_kafka: Callable[..., Tables]) -> None:
    brought_up(with_kafka("alpha", "beta"), said="nothing of this evaluation was written", refusals=2)


@pytest.mark.wide
def test_killed_in_turn_where_kafka_is_written_it_goes_on(with_kafka: Callable[..., Tables]) -> None:
    tables = with_kafka("alpha")
    for point in ("in-write", "before-publish", "after-publish"):
        tables.kill(f"{point}@alpha:1=barrier")
        published = point == "after-publish"
        assert len(tables.rows("alpha", unfinished=not published)) == (2 * ROWS if published else ROWS)
        assert len(tables.rows("beta")) == ROWS
    tables.finish()
    tables.check_exact()


@pytest.mark.wide
def test_tasks_that_die_where_kafka_is_written_change_nothing(with_kafka: Callable[..., Tables]) -> None:
    tables = with_kafka("alpha")
    rules = ("in-write@alpha:1=kill", "after-publish@alpha:2=kill")
    with tables.start(*rules) as driver:
        assert driver.wait(END_S) == 0, driver.tail()
        assert all(driver.was_hit(rule) for rule in rules)
    tables.check_exact()


@pytest.mark.wide
def test_with_kafka_the_modes_take_turns_on_epochs_in_doubt(with_kafka: Callable[..., Tables]) -> None:
    tables = with_kafka("alpha")
    tables.kill("after-sink-commit@alpha:0=barrier", mode="idempotent")
    tables.kill("after-sink-commit@alpha:1=barrier", mode="two-phase")
    tables.finish("idempotent")
    tables.check_exact()
