"""The log in Postgres keeps the contract, on a real server, and everything that is special about a server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from epochal.chaos import servers
from epochal.chaos.contract.logs import ProcessContract, commit, fence, filled
from epochal.chaos.servers.toxiproxy import Proxy
from epochal.chaos.simulate.driver import Person
from epochal.chaos.simulate.pipelines import Pipeline
from epochal.chaos.simulate.schedule import Action
from epochal.chaos.simulate.simulation import Simulation
from epochal.checkpoints.log import Entry, EpochLog, Operator, encode
from epochal.checkpoints.postgres import CREATE, PostgresLog
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE
from epochal.coordinator.model.errors import LogCorrupt, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.protocol.actions import RewriteMarker
from tests.remedies import installed_by

SECRET = "s3cr3t-Passw0rd"
LATE = commit(77, token=99)


@pytest.fixture
def log(pg_database: str) -> PostgresLog:
    """A log that was created, with short waits."""
    created = PostgresLog(pg_database, "flights", timeout=1)
    created.create()
    return created


class TestPostgresLog(ProcessContract):
    @pytest.fixture
    def open_log(self, pg_database: str) -> Callable[[], EpochLog]:
        PostgresLog(pg_database, "flights").create()
        return lambda: PostgresLog(pg_database, "flights")

    @pytest.fixture
    def source(self, pg_database: str) -> str:
        return f"from epochal.checkpoints.postgres import PostgresLog; log = PostgresLog({pg_database!r}, 'flights')"


@pytest.mark.wide
class TestPostgresLogOnTheOldestServer(TestPostgresLog):
    @pytest.fixture
    def postgres_server(self, oldest_postgres: servers.Postgres) -> servers.Postgres:
        return oldest_postgres


def execute(dsn: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """What a second connection sees or does."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


# --- making it ----------------------------------------------------------------------------------


def test_create_is_idempotent_also_for_many_at_once(pg_database: str) -> None:
    gate = threading.Barrier(6)

    def create(number: int) -> None:
        gate.wait(120)
        PostgresLog(pg_database, f"log-{number % 2}").create()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(create, range(6)))
    filled(PostgresLog(pg_database, "log-0"), 2)
    PostgresLog(pg_database, "log-0").create()
    assert len(PostgresLog(pg_database, "log-0").read()) == 2


def test_tables_that_others_create_meanwhile_are_tried_again_and_not_for_ever(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def meanwhile(_log: PostgresLog, _connection: object, what: str, *_: object) -> None:
        tried.append(what)
        raise psycopg.errors.UniqueViolation

    monkeypatch.setattr(PostgresLog, "_commit", meanwhile)
    with pytest.raises(SinkUnavailable, match="others create the same tables over and over"):
        log.create()
    assert tried == ["create"] * 10


def test_only_create_takes_an_object_that_is_there_for_no_error(log: PostgresLog) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation), log._transaction("read"):
        raise psycopg.errors.UniqueViolation


@pytest.mark.parametrize("statements", [(), CREATE])
@pytest.mark.remedy(
    "the epoch log … does not exist",
    "call create() once before the query starts, or give the name of the log that exists",
)
def test_a_log_that_was_not_created_is_refused_and_not_empty(pg_database: str, statements: tuple[str, ...]) -> None:
    for statement in statements:
        execute(pg_database, statement)
    log = PostgresLog(pg_database, "flights")
    for verb in (log.read, lambda: log.append(0, fence()), lambda: log.compact(1, [])):
        with pytest.raises(Misconfigured, match=r"log 'flights' does not exist\n  Help: call create\(\)"):
            verb()
    PostgresLog(pg_database, "others").create()
    assert PostgresLog(pg_database, "others").append(0, fence())
    log.create()
    assert log.append(0, fence())


def test_logs_of_one_database_do_not_meet(pg_database: str, log: PostgresLog) -> None:
    other = PostgresLog(pg_database, "other")
    other.create()
    entries = filled(log, 4)
    filled(other, 2)
    log.compact(3, entries[:1])
    assert [e.position for e in log.read()] == [0, 3]
    assert [e.position for e in other.read()] == [0, 1]


@pytest.mark.remedy(
    "the epoch log … may not be used (…): …",
    "grant USAGE on schema epochal, and SELECT, INSERT, UPDATE, DELETE on its tables log and log_floor",
)
def test_a_role_without_rights_is_told_which(pg_database: str, log: PostgresLog) -> None:
    role = f"reader_{pg_database.rpartition('_')[2]}"
    execute(pg_database, f"CREATE ROLE {role} LOGIN")
    try:
        stranger = PostgresLog(pg_database.replace("postgres@", f"{role}@"), "flights")
        with pytest.raises(Misconfigured, match=r"may not be used \(read\): permission denied for schema epochal"):
            stranger.read()
        execute(pg_database, f"GRANT USAGE ON SCHEMA epochal TO {role}")
        tables = "epochal.log, epochal.log_floor"
        execute(pg_database, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}")
        stranger.create()
        entries = filled(stranger, 3)
        stranger.compact(2, entries[:1])
        assert [e.position for e in log.read()] == [0, 2]
    finally:
        execute(pg_database, f"DROP OWNED BY {role}; DROP ROLE {role}")


# --- what every transaction sets ----------------------------------------------------------------


def test_a_commit_waits_for_the_disk_whatever_the_database_says(pg_database: str, log: PostgresLog) -> None:
    """P8: the same holds for the time limits, and for whether a transaction may write."""
    limit = settings_of(pg_database, "transaction_timeout")
    alter = f"ALTER DATABASE {pg_database.rpartition('/')[2]} SET"
    for setting in (
        "synchronous_commit = off",
        *(f"{name} = '1min'" for name in limit),
        "default_transaction_read_only = on",
    ):
        execute(pg_database, f"{alter} {setting}")
    pg_database += "?options=-c%20default_transaction_read_only%3Doff"
    execute(pg_database, "CREATE TABLE seen (setting text, value text)")
    watch(
        pg_database,
        "INSERT INTO public.seen SELECT name, setting FROM (SELECT name, current_setting(name, true) AS setting FROM"
        " unnest(ARRAY['synchronous_commit','transaction_isolation','lock_timeout','statement_timeout',"
        "'idle_in_transaction_session_timeout','transaction_read_only','transaction_timeout']) name) s"
        " WHERE setting IS NOT NULL;",
    )
    assert log.append(0, fence())
    assert dict(execute(pg_database, "SELECT * FROM seen")) == {
        "synchronous_commit": "on",
        "transaction_isolation": "read committed",
        "lock_timeout": "1s",
        "statement_timeout": "1s",
        "idle_in_transaction_session_timeout": "1s",
        "transaction_read_only": "off",
        **dict.fromkeys(limit, "0"),
    }


def settings_of(dsn: str, *names: str) -> list[str]:
    """Those of these settings that the server has: ``transaction_timeout`` came with version 17."""
    return [name for (name,) in execute(dsn, "SELECT name FROM pg_settings WHERE name = ANY(%s)", list(names))]


def watch(dsn: str, body: str) -> None:
    """Run ``body`` in the server before each new row of the log."""
    execute(
        dsn,
        f"CREATE FUNCTION public.watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$",
    )
    execute(dsn, "CREATE TRIGGER watch BEFORE INSERT ON epochal.log FOR EACH ROW EXECUTE FUNCTION public.watch()")


# --- appends and compactions that overlap -------------------------------------------------------


@contextmanager
def sleeping_append(dsn: str, position: int) -> Iterator[Callable[[], bool]]:
    """An append of ``LATE`` sleeps in the server, its position found free; the call wakes it for its answer."""
    late = encode(LATE).hex()
    watch(dsn, f"IF NEW.record = '\\x{late}' THEN PERFORM pg_advisory_xact_lock(42); END IF;")
    with ThreadPoolExecutor(1) as pool, psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(42)")
        answer = pool.submit(PostgresLog(dsn, "flights").append, position, LATE)
        try:
            wait_for(dsn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")

            def wake() -> bool:
                holder.execute("SELECT pg_advisory_unlock(42)")
                return answer.result(120)

            yield wake
        finally:
            holder.execute("SELECT pg_advisory_unlock_all()")


def wait_for(dsn: str, count: str) -> None:
    """Until ``count`` is not 0, at most two minutes."""
    limit = time.monotonic() + 120
    while execute(dsn, count) == [(0,)]:
        assert time.monotonic() < limit, "it never came to pass"
        time.sleep(0.02)


def test_a_floor_cannot_rise_while_an_append_is_under_way(pg_database: str, log: PostgresLog) -> None:
    entries = filled(log, 3)
    with sleeping_append(pg_database, 3) as wake:
        for position in (3, 4, 5):
            assert log.append(position, commit(position))
        with pytest.raises(SinkUnavailable, match="while locking tuple"):
            log.compact(5, entries[:1])
        assert not wake()
    log.compact(5, entries[:1])
    assert list(log.read()) == [entries[0], Entry(5, commit(5))]


def test_of_two_compactions_the_higher_floor_stays(pg_database: str, log: PostgresLog) -> None:
    entries = filled(log, 6)
    with psycopg.connect(pg_database) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT 1 FROM epochal.log_floor FOR SHARE")
        lower = pool.submit(PostgresLog(pg_database, "flights").compact, 3, entries[:1])
        wait_for(pg_database, "SELECT count(*) FROM pg_locks WHERE NOT granted")
        holder.execute("UPDATE epochal.log_floor SET floor = 5")
        holder.execute("DELETE FROM epochal.log WHERE position BETWEEN 1 AND 4")
        holder.commit()
        lower.result(120)
    assert execute(pg_database, "SELECT floor FROM epochal.log_floor") == [(5,)]
    assert list(log.read()) == [entries[0], entries[5]]


def test_a_floor_and_its_deletions_are_one_transaction(pg_database: str, log: PostgresLog) -> None:
    entries = filled(log, 4)
    execute(
        pg_database,
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
    )
    execute(pg_database, "CREATE TRIGGER no BEFORE DELETE ON epochal.log EXECUTE FUNCTION public.refuse()")
    with pytest.raises(SinkUnavailable, match="no"):
        log.compact(3, entries[:1])
    assert list(log.read()) == entries
    assert execute(pg_database, "SELECT floor FROM epochal.log_floor") == [(0,)]


# --- what is in the table is not trusted --------------------------------------------------------


def test_a_lost_row_is_a_gap(pg_database: str, log: PostgresLog) -> None:
    filled(log, 4)
    execute(pg_database, "DELETE FROM epochal.log WHERE position = 2")
    with pytest.raises(LogCorrupt, match="has no record at position 2, but one at 3"):
        log.read()


def test_a_torn_row_is_named(pg_database: str, log: PostgresLog) -> None:
    filled(log, 4)
    execute(pg_database, "UPDATE epochal.log SET record = substr(record, 1, 100) WHERE position = 2")
    with pytest.raises(LogCorrupt, match="log 'flights', position 2 is not a whole record"):
        log.read()


# --- a server that does not answer --------------------------------------------------------------


def no_secret(error: BaseException) -> bool:
    """Whether neither the error nor what it hides shows the password."""
    chain: list[BaseException] = [error]
    while (inner := chain[-1].__cause__) is not None:
        chain.append(inner)
    return all(SECRET not in f"{e} {e!r} {e.args}" for e in chain)


def test_a_server_that_is_down_is_named_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    log = PostgresLog(f"postgresql://me:{SECRET}@127.0.0.1:{port}/db", "flights", timeout=2)
    for verb in (log.read, log.create, lambda: log.append(0, fence()), lambda: log.compact(1, [])):
        with pytest.raises(SinkUnavailable, match=f"postgres:127.0.0.1:{port}/db, log 'flights'") as raised:
            verb()
        assert no_secret(raised.value)


@pytest.mark.remedy(
    "the … of the epoch log failed: …",
    "start the server or make it reachable, then restart the query or repeat the command",
)
def test_a_server_that_is_reached_again(proxied_dsn: str, postgres_proxy: Proxy, log: PostgresLog) -> None:
    far = PostgresLog(proxied_dsn, "flights", timeout=2)
    postgres_proxy.cut()
    with pytest.raises(SinkUnavailable, match="append at position 0 of the epoch log failed"):
        far.append(0, LATE)
    postgres_proxy.clear()
    assert far.append(0, LATE)
    assert list(log.read()) == [Entry(0, LATE)]


def test_a_server_that_never_speaks_is_named_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        log = PostgresLog(f"postgresql://me:{SECRET}@127.0.0.1:{port}/db", "flights", timeout=2)
        with pytest.raises(SinkUnavailable, match="timeout") as raised:
            log.read()
        assert no_secret(raised.value)


@pytest.mark.remedy(
    "the answer to the COMMIT of the … was lost: …",
    "repeat the same request: it finds what it did before",
)
def test_a_lost_answer_to_commit_is_unknown_and_the_repeat_finds_the_record(
    proxied_dsn: str, postgres_proxy: Proxy, log: PostgresLog
) -> None:
    with at_commit(proxied_dsn.encode(), postgres_proxy.lose_answer), pytest.raises(OutcomeUnknown, match="COMMIT"):
        PostgresLog(proxied_dsn, "flights", timeout=2).append(0, LATE)
    postgres_proxy.clear()
    assert not PostgresLog(proxied_dsn, "flights").append(0, LATE)
    assert list(log.read()) == [Entry(0, LATE)]


def test_an_answer_to_commit_that_never_comes_is_unknown_in_bounded_time(
    proxied_dsn: str, postgres_proxy: Proxy, log: PostgresLog
) -> None:
    with at_commit(proxied_dsn.encode(), postgres_proxy.half_open), pytest.raises(OutcomeUnknown, match="COMMIT"):
        PostgresLog(proxied_dsn, "flights", timeout=1).append(0, LATE)
    postgres_proxy.clear()
    assert list(log.read()) == [Entry(0, LATE)]


@contextmanager
def at_commit(dsn: bytes, fault: Callable[[], None]) -> Iterator[None]:
    """``fault`` strikes between the last statement of the first transaction and its COMMIT."""
    struck = []
    commit = psycopg.Connection.commit

    def struck_commit(connection: psycopg.Connection[object]) -> None:
        fault()
        struck.append(dsn)
        commit(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", struck_commit)
        yield
    assert struck, "no COMMIT was sent"


def test_a_connection_that_ends_before_commit_had_no_effect(pg_database: str, log: PostgresLog) -> None:
    watch(pg_database, "PERFORM pg_terminate_backend(pg_backend_pid());")
    with pytest.raises(SinkUnavailable, match="it had no effect"):
        log.append(0, fence())
    assert list(log.read()) == []


def test_a_dropped_answer_to_a_compaction_is_unknown_and_its_repeat_changes_nothing(log: PostgresLog) -> None:
    entries = filled(log, 4)
    with failpoints.armed(f"{Point.LOG_AFTER_FLOOR.value}=drop-answer"), pytest.raises(OutcomeUnknown):
        log.compact(3, entries[:1])
    log.compact(3, entries[:1])
    assert list(log.read()) == [entries[0], entries[3]]


# --- the coordinator over it --------------------------------------------------------------------

IN_SINKS = {Point.IN_WRITE, Point.BEFORE_VOTE, Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH}
IN_THE_KIT = {Point.BEFORE_CALL, Point.AT_ROW, Point.AFTER_JOB, Point.AFTER_RETURN}  # around a foreign function
IN_REDO = {Point.BEFORE_REDO, Point.AFTER_REDO_DECIDED}
IN_APPLY = {Point.BEFORE_APPLY, Point.AFTER_APPLY}
IN_ACTS = (Point.BEFORE_MARK, Point.AFTER_MARK, Point.BEFORE_OPERATOR, Point.AFTER_OPERATOR)
EPOCHS = 3


def simulated(dsn: str, name: str, *modes: str) -> Simulation:
    """Sinks, durable copy and Spark are simulated; coordinator and log are real."""
    log = PostgresLog(dsn, name, timeout=1)
    log.create()
    world = Simulation(Pipeline(("delta", "pg"), ("kafka",), modes=modes or (TWO_PHASE,)))
    world.checkpoint.log = log  # type: ignore[assignment]  # only the copy of a checkpoint asks for more
    world.logs = [world.checkpoint.log]
    return world


def ends_of(world: Simulation) -> dict[str, str]:
    """How each start ended, once they have followed each other to the end and every invariant holds."""
    with failpoints.handler(world.hit):
        world.play(EPOCHS - 1)
        world.converge(EPOCHS)
    outcome = world.outcome(EPOCHS)
    assert world.unstruck() == []
    assert not outcome.wrong, str(outcome)
    return dict(outcome.ends)


@pytest.mark.parametrize("point", IN_ACTS, ids=lambda point: point.value)
def test_a_person_who_dies_at_any_point_says_it_again(pg_database: str, point: Point) -> None:
    world, act = simulated(pg_database, "acts"), RewriteMarker(sink="pg", why="a test", at="2026-11-23T12:00:00+00:00")
    with failpoints.handler(world.hit):
        assert world.driver("d1", 0).go().finished
        world.server.table(world.pipeline.app, "pg").marker = None
        world.order("d2", point.value, Action.CRASH)
        assert Person(world, world.checkpoint, "d2", act).go().outcome == "killed"
        if not any(isinstance(entry.record, Operator) for entry in world.checkpoint.log.read()):
            assert Person(world, world.checkpoint, "d3", act).go().finished
        world.converge(1)
    outcome = world.outcome(1)
    assert world.unstruck() == []
    assert not outcome.wrong, str(outcome)


@pytest.mark.parametrize(
    "point",
    [point for point in Point if point not in IN_SINKS | IN_THE_KIT | {*IN_ACTS}],
    ids=lambda point: point.value,
)
def test_after_a_crash_at_any_point_the_next_start_converges(pg_database: str, point: Point) -> None:
    first = simulated(pg_database, "first", IDEMPOTENT if point in IN_APPLY else TWO_PHASE)
    if point in IN_REDO:
        first.order("d1", "after-decide", Action.LOSE_PREPARED)
    first.order("d1", point.value, Action.CRASH)
    assert ends_of(first) == {"d1": "killed", "d2": "finished", "last": "finished"}

    settling = simulated(pg_database, "settling", TWO_PHASE, IDEMPOTENT if point in IN_APPLY else TWO_PHASE)
    settling.order("d1", "after-decide", Action.CRASH, epoch=1)
    if point in IN_REDO:
        settling.order("d2", "before-settle", Action.LOSE_PREPARED)
    settling.order("d2", point.value, Action.CRASH)
    assert ends_of(settling) == {"d1": "killed", "d2": "killed", "d3": "finished", "last": "finished"}


def test_an_append_whose_answer_is_lost_is_repeated_and_found(pg_database: str) -> None:
    world = simulated(pg_database, "unanswered")
    world.order("d1", "log-after-append", Action.DROP_ANSWER, times=EPOCHS)
    assert ends_of(world) == {"d1": "finished", "last": "finished"}


# --- secrets and set-up -------------------------------------------------------------------------


def test_describe_shows_no_password() -> None:
    log = PostgresLog(f"postgresql://me:{SECRET}@db.example:5433/lake", "flights")
    assert log.describe() == "postgres:db.example:5433/lake, log 'flights'"
    asked = PostgresLog(lambda: f"postgresql://me:{SECRET}@db.example/lake", "flights")
    assert asked.describe() == "postgres, log 'flights'"


@pytest.mark.remedy(
    "the connection string of the epoch log … is malformed",
    "write it as postgresql://user@host:port/database, or as key=value pairs",
)
def test_a_malformed_dsn_is_refused_and_not_shown(pg_database: str) -> None:
    log = PostgresLog(f"postgresql:/me:{SECRET}@db.example/lake", "flights")
    with pytest.raises(Misconfigured, match="connection string of the epoch log 'flights' is malformed") as raised:
        log.read()
    assert no_secret(raised.value)
    assert log.describe() == "postgres, log 'flights'"
    pairs = " ".join(f"{name}={value}" for name, value in conninfo_to_dict(pg_database).items())
    for number, dsn in enumerate((pg_database, pairs)):
        PostgresLog(dsn, "flights").create()
        assert PostgresLog(dsn, "flights").append(number, fence())


def test_a_dsn_may_be_asked_for_at_each_connection(pg_database: str, log: PostgresLog) -> None:
    asked = []

    def dsn() -> str:
        asked.append(True)
        return pg_database

    called = PostgresLog(dsn, "flights")
    assert called.append(0, fence())
    assert list(called.read()) == list(log.read())
    assert len(asked) == 2
    assert called.describe() == log.describe()


@pytest.mark.remedy("an epoch log in Postgres needs the package psycopg: …", "pip install 'epochal[postgres]'")
def test_a_log_is_read_once_the_driver_is_there(log: PostgresLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(Misconfigured, match="needs the package psycopg") as refused:
            log.read()
    assert "psycopg" in installed_by(refused.value.help)
    assert log.read() == []


def test_a_missing_driver_is_refused_with_the_line_that_installs_it() -> None:
    source = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from epochal.checkpoints.postgres import PostgresLog\n"
        "from epochal.coordinator.model.errors import Misconfigured\n"
        "log = PostgresLog('postgresql://db.example/lake', 'flights')\n"
        "try:\n    log.read()\nexcept Misconfigured as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
    )
    assert "needs the package psycopg" in done.stdout
    assert "Help: pip install 'epochal[postgres]'" in done.stdout
