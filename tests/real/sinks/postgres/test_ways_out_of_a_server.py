"""Servers that are slow, full, away, or end a connection: each help is followed, and the epoch is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from epochal.chaos.servers.postgres import PostgresServer
from epochal.chaos.strike.disk import Disk, why_not
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import (
    ONE,
    QUERY,
    SCHEMA,
    TWO,
    batches,
    epoch,
    observe,
    ready,
    rows,
    stored,
    task,
    visible,
    voted,
)

pytestmark = pytest.mark.wide

FUNCTION = "CREATE FUNCTION strike() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM {}; RETURN NEW; END $$"
SAYS_FULL = (
    "CREATE FUNCTION full_() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$"
)


@pytest.mark.remedy(
    "… did not complete the statement: …",
    "end what slows the statement down or cancels it, or raise answer_timeout= or bulk_timeout= of the sink",
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_statement_that_takes_longer_than_it_may(pg_database: str, ended: bool) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    observe(pg_database, FUNCTION.format("pg_sleep(3)"))
    observe(pg_database, "CREATE TRIGGER slow BEFORE UPDATE ON epochal.sinks FOR EACH ROW EXECUTE FUNCTION strike()")
    hasty = support.sink(pg_database, answer_timeout=0.5)
    hasty.look(QUERY)
    with pytest.raises(SinkUnavailable, match="did not complete the statement") as slow:
        hasty.fence(QUERY, ONE)
    assert slow.value.state == "SQLSTATE 57014"
    if ended:
        observe(pg_database, "DROP TRIGGER slow ON epochal.sinks")
    again = support.sink(pg_database, answer_timeout=5.0 if ended else 60.0)
    again.look(QUERY)
    again.fence(QUERY, TWO)
    assert again.look(QUERY).fence == TWO


@contextmanager
def full_disk(server: PostgresServer) -> Iterator[None]:
    """Fill the small disk that holds the rows.  Where no disk can be mounted, the server only says that it is full."""
    if why_not():
        observe(server.dsn, SAYS_FULL)
        observe(server.dsn, "CREATE TRIGGER full_ BEFORE INSERT ON epochal.attempts EXECUTE FUNCTION full_()")
        yield
        observe(server.dsn, "DROP TRIGGER full_ ON epochal.attempts")
        return
    with Disk(server.directory / "small", megabytes=16) as disk:
        space, owner = disk.folder / "rows", server.directory.stat()
        space.mkdir(mode=0o700)
        os.chown(space, owner.st_uid, owner.st_gid)
        observe(server.dsn, f"CREATE TABLESPACE small LOCATION '{space}'")
        observe(server.dsn, "ALTER TABLE flights__rows SET TABLESPACE small")
        disk.fill()
        yield
        disk.drain()
        observe(server.dsn, "ALTER TABLE flights__rows SET TABLESPACE pg_default")
        observe(server.dsn, "DROP TABLESPACE small")


@pytest.mark.remedy(
    "… did not complete the statement: …",
    "give the server what it lacks (disk space, memory, connections), and restart the query",
)
def test_a_server_whose_disk_is_full() -> None:
    with PostgresServer() as server:
        ready(server.dsn).close()
        with full_disk(server):
            with pytest.raises(SinkUnavailable, match="did not complete the statement") as full:
                write_partition(task(server.dsn), batches(range(100_000)))
            assert full.value.state == "SQLSTATE 53100"
        restarted = support.sink(server.dsn)
        restarted.look(QUERY)
        restarted.fence(QUERY, TWO)
        vote = voted([write_partition(task(server.dsn, TWO), batches([1, 2]))], epoch(0, TWO))
        assert restarted.commit(vote, TWO) is CommitOutcome.COMMITTED
        assert visible(server.dsn) == [1, 2]
        restarted.close()


@pytest.mark.remedy("a task could not write: …", "make the server reachable from the executors, and restart the query")
def test_a_task_whose_commit_is_not_answered(spark: SparkSession, pg_database: str) -> None:
    """The server ends the connection in the task's COMMIT."""
    sink = ready(pg_database)
    observe(pg_database, FUNCTION.format("pg_terminate_backend(pg_backend_pid())"))
    observe(
        pg_database,
        "CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON epochal.attempts DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION strike()",
    )
    with pytest.raises(SinkUnavailable, match=r"a task could not write: .* did not answer COMMIT"):
        sink.prepare(epoch(), rows(spark, [1, 2]), ONE)
    observe(pg_database, "DROP TRIGGER cut ON epochal.attempts")
    restarted = support.sink(pg_database)
    restarted.look(QUERY)
    restarted.fence(QUERY, TWO)
    restarted.abort(QUERY, TWO)
    restarted.commit(restarted.prepare(epoch(0, TWO), rows(spark, [1, 2]), TWO), TWO)
    assert visible(pg_database) == [1, 2]


@pytest.mark.remedy(
    "column … of … is …, the rows need …",
    "start the query again: the table was altered while the epoch was written",
)
def test_a_table_that_is_altered_while_an_epoch_is_written(spark: SparkSession, pg_database: str) -> None:
    """The start that comes after it names what brings table and rows together."""
    ready(pg_database)
    observe(pg_database, "DROP VIEW flights; ALTER TABLE flights__rows ALTER COLUMN id TYPE double precision")
    told = write_partition(task(pg_database), batches([1, 2]))["refused"]
    assert "is double precision, the rows need bigint" in told
    assert stored(pg_database) == []
    restarted = support.sink(pg_database)
    with pytest.raises(Misconfigured, match="the rows need bigint") as refused:
        restarted.check(QUERY, SCHEMA)
    converted = rows(spark, [1, 2]).selectExpr(refused.value.help.removeprefix("convert it in the query: "), "attempt")
    restarted.create(QUERY, converted.schema)
    restarted.check(QUERY, converted.schema)
    restarted.look(QUERY)
    restarted.fence(QUERY, TWO)
    vote = restarted.prepare(epoch(0, TWO), converted, TWO)
    assert restarted.commit(vote, TWO) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1, 2]
