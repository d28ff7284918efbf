"""What holds inside a sink's transactions, whatever the database and the role say."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from epochal.chaos.servers.postgres import PostgresServer
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.sinks.postgres import Plain, PostgresSink
from epochal.sinks.postgres.address import Address, Limits, ServerRefused
from epochal.sinks.postgres.client import open_session
from epochal.sinks.postgres.publish import Publish
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import (
    ONE,
    PATIENT,
    QUERY,
    TWO,
    batches,
    epoch,
    observe,
    ready,
    task,
    visible,
    voted,
)

HOSTILE = {
    "database": {
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "synchronous_commit": "off",
        "lock_timeout": "0",
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "enable_seqscan": "on",
        "transaction_timeout": "1min",
    },
    "role": {
        "default_transaction_isolation": "repeatable read",
        "default_transaction_read_only": "on",
        "synchronous_commit": "local",
        "lock_timeout": "1ms",
        "statement_timeout": "2min",
        "idle_in_transaction_session_timeout": "2min",
        "enable_seqscan": "on",
        "transaction_timeout": "1min",
    },
}
OURS = {
    "transaction_isolation": "read committed",
    "transaction_read_only": "off",
    "synchronous_commit": "on",
    "lock_timeout": "40s",
    "idle_in_transaction_session_timeout": "30s",
    "enable_seqscan": "off",
    "transaction_timeout": "0",
    "application_name": "epochal out 1/11",
}
SETTINGS = [*OURS, "statement_timeout"]


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest, pg_database: str) -> str:
    """A database whose tables are made and watched, and which then got these defaults, or its role did."""
    ready(pg_database)
    watch(pg_database)
    name = name_of(pg_database)
    whose = f"DATABASE {name}" if request.param == "database" else f"ROLE CURRENT_USER IN DATABASE {name}"
    alter = [f"ALTER {whose} SET {setting} = '{value}'" for setting, value in HOSTILE[request.param].items()]
    observe(pg_database, "; ".join(alter))
    return pg_database


@pytest.fixture
def sink(hostile: str) -> Iterator[PostgresSink]:
    made = support.sink(hostile, lock_timeout=40.0, answer_timeout=30.0, bulk_timeout=100.0)
    made.look(QUERY)
    yield made
    made.close()


def name_of(dsn: str) -> str:
    return f'"{dsn.rpartition("/")[2]}"'


def watch(dsn: str) -> None:
    """Have the server note what holds whenever one of the sink's tables is written."""
    settings = ", ".join(f"'{setting}'" for setting in SETTINGS)
    observe(
        dsn,
        "CREATE TABLE seen (place text, setting text, value text);"
        " CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO seen SELECT TG_TABLE_NAME, setting, current_setting(setting)"
        f" FROM unnest(ARRAY[{settings}]) setting; RETURN NULL; END $$",
    )
    for table in ("epochal.sinks", "epochal.epochs", "epochal.attempts", "flights__rows"):
        observe(dsn, f"CREATE TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON {table} EXECUTE FUNCTION watch()")


def seen(dsn: str, table: str) -> dict[str, str]:
    """What held whenever that table was written."""
    found = observe(dsn, "SELECT DISTINCT setting, value FROM seen WHERE place = %s", table)
    assert len(found) == len(SETTINGS), found
    return dict(found)


def test_a_task_of_prepare(hostile: str) -> None:
    vote = write_partition(
        task(hostile, limits=dataclasses.replace(PATIENT, lock=40.0, answer=30.0, copy=50.0)), batches([1])
    )
    assert vote["rows"] == 1
    assert seen(hostile, "flights__rows") == {**OURS, "statement_timeout": "50s"}
    assert seen(hostile, "attempts") == {**OURS, "statement_timeout": "30s"}


def test_a_commit(hostile: str, sink: PostgresSink) -> None:
    vote = voted([write_partition(task(hostile), batches([1]))], epoch())
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(hostile) == [1]
    for table in ("epochs", "sinks"):
        assert seen(hostile, table) == {**OURS, "statement_timeout": "100s"}


def test_a_fence_and_an_abort(hostile: str, sink: PostgresSink) -> None:
    sink.fence(QUERY, TWO)
    ours = {**OURS, "application_name": "epochal out 2/22"}
    assert seen(hostile, "sinks") == {**ours, "statement_timeout": "30s"}
    sink.abort(QUERY, TWO)
    assert seen(hostile, "flights__rows") == {**ours, "statement_timeout": "100s"}


def test_nothing_of_it_outlives_the_transaction(hostile: str) -> None:
    """A pooler in transaction mode hands the connection to somebody else afterwards."""
    settings = ", ".join(f"current_setting('{setting}')" for setting in SETTINGS if "transaction_" not in setting)
    session = open_session(Address(hostile), "out", Limits())
    try:
        before = session.run(f"SELECT {settings}")
        with session.transaction(bulk=True):
            assert session.run(f"SELECT {settings}") != before
        assert session.run(f"SELECT {settings}") == before
    finally:
        session.close()


def test_a_publish_that_takes_longer_than_a_transaction_may(pg_database: str) -> None:
    """P8: the role's transaction_timeout is a second, and a trigger of the table takes longer."""
    sink = ready(pg_database, mode=Plain())
    observe(
        pg_database,
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END';"
        " CREATE TRIGGER linger AFTER INSERT ON flights EXECUTE FUNCTION linger();"
        f" ALTER ROLE CURRENT_USER IN DATABASE {name_of(pg_database)} SET transaction_timeout = '1s'",
    )
    sink.close()
    copy = "COPY flights__staged (id, attempt, _epoch, _attempt) FROM STDIN (FORMAT binary)"
    vote = voted([write_partition(task(pg_database, copy=copy, table="flights__staged"), batches([1]))], epoch())
    vote.payload["publish"] = Publish(("id", "attempt")).to_json()
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1]
    sink.close()


JUDGED = {
    "statement_timeout": "set in each transaction",
    "lock_timeout": "set in each transaction",
    "transaction_timeout": "set in each transaction",
    "idle_in_transaction_session_timeout": "set in each transaction",
    "idle_session_timeout": "between transactions alone: a session that ended is opened anew",
    "deadlock_timeout": "ends nothing that is not in a deadlock",
    "tcp_user_timeout": "of the link, which may break at any time",
    "wal_sender_timeout": "of replicas",
    "wal_receiver_timeout": "of replicas",
}


def test_every_timeout_that_a_role_can_have_was_judged(pg_database: str) -> None:
    """P8: a new version of the server may bring another one."""
    can = "SELECT name FROM pg_settings WHERE name LIKE '%timeout%' AND context IN ('user', 'superuser')"
    assert {name for (name,) in observe(pg_database, can)} <= set(JUDGED)


@pytest.mark.remedy(
    "… answered COMMIT with …",
    "restart the query if it has ended: nothing became visible, and the request is made again",
)
def test_a_failed_transaction_is_not_taken_for_a_committed_one(pg_database: str) -> None:
    """Postgres answers COMMIT with ROLLBACK, and no error, where a statement has failed before."""
    with (
        contextlib.closing(open_session(Address(pg_database), "out", Limits())) as session,
        pytest.raises(SinkUnavailable, match="answered COMMIT with ROLLBACK"),
        session.transaction(),
        pytest.raises(ServerRefused),
    ):
        session.run("CREATE TABLE made (); SELECT 1/0")
    assert observe(pg_database, "SELECT to_regclass('made')") == [(None,)]
    with contextlib.closing(open_session(Address(pg_database), "out", Limits())) as again, again.transaction():
        again.run("CREATE TABLE made ()")
    assert observe(pg_database, "SELECT to_regclass('made')") == [("made",)]


def test_a_server_that_may_lose_what_it_has_acknowledged_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer(settings={"fsync": "off", "full_page_writes": "off"}) as server:
        sink = support.sink(server.dsn)
        sink.create(QUERY, support.SCHEMA)
        sink.check(QUERY, support.SCHEMA)
        sink.close()
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(": ")[2].partition(":")[0] for text in warned] == [
        "the server has fsync=off",
        "the server has full_page_writes=off",
    ]
