"""Publish, fence and abort against the real server: every guard, and every way to wait."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos.servers import Postgres
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    Fenced,
    MarkerLost,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import AnswerDropped, FailpointError, Point
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.postgres.committing import SPARE_PAGES
from epochal.sinks.postgres.core import Core
from epochal.sinks.postgres.session import Session
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import (
    ONE,
    QUERY,
    TWO,
    batches,
    epoch,
    observe,
    ready,
    registered,
    rows,
    stored,
    task,
    visible,
    voted,
)

OLDER = "epochal out"
"""The application name of an Epochal that did not name its actors."""
ROW = "SELECT * FROM epochal.sinks FOR UPDATE"


@contextmanager
def holding(dsn: str, name: str = OLDER, statement: str = ROW) -> Iterator[psycopg.Connection]:
    """Somebody holds the sink's row, or something else, in an open transaction."""
    with psycopg.connect(dsn, application_name=name) as connection:
        connection.execute(statement.encode())
        yield connection
        connection.close()


@contextmanager
def when_copying(dsn: str, act: Callable[[], object]) -> Iterator[None]:
    """Does it as soon as a task's COPY is under way; what it raises counts for more than what the body raises."""
    seen = (
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active' AND datname = current_database()"
    )

    def wait() -> None:
        deadline = time.monotonic() + 120
        while not observe(dsn, seen) and time.monotonic() < deadline:
            time.sleep(0.05)
        act()

    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(wait)
        try:
            yield
        finally:
            acting.result()


def slow(spark: SparkSession) -> DataFrame:
    """Two partitions of 12,000 rows that take seconds after the first 10,000, which are one Arrow batch."""
    nap = "if(id % 12000 < 10000, null, java_method('java.lang.Thread', 'sleep', 2L))"
    return spark.range(0, 24_000, 1, 2).selectExpr("id", f"coalesce({nap}, 'a') attempt")


def test_commit_leaves_the_audit_and_nothing_else(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)
    sink.commit(vote, ONE)
    assert observe(
        pg_database,
        "SELECT app, sink, position, epoch, incarnation, decision, offsets, row_count, watermark FROM epochal.epochs",
    ) == [("flights", "out", 1, 0, "q1", vote.decision.id, "[0]", 10, 0)]
    assert registered(pg_database) == []
    sink.close()
    assert observe(
        pg_database,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'epochal%' AND xact_start NOTNULL",
    ) == [(0,)]


def test_at_most_so_many_connections_write(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database, connections=2)
    vote = sink.prepare(epoch(), rows(spark, range(100)).repartition(9), ONE)
    assert len(vote.payload["attempts"]) == 2
    assert vote.rows == 100


def test_marker_and_rows_are_seen_at_once_by_whoever_reads(pg_database: str) -> None:
    """A replica replays transactions in their order: rows that lie there before the marker are never missed."""
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches([1, 2]))], epoch())
    reads: dict[Point, tuple[object, ...]] = {}

    def read(point: Point, _sink: str, _epoch: int) -> None:
        [markers] = observe(pg_database, "SELECT (SELECT count(*) FROM epochal.epochs), published FROM epochal.sinks")
        reads[point] = (*markers, visible(pg_database), stored(pg_database))

    with failpoints.handler(read):
        sink.commit(vote, ONE)
    both = [(1, 1), (1, 2)]
    assert reads == {Point.BEFORE_PUBLISH: (0, 0, [], both), Point.AFTER_PUBLISH: (1, 1, [1, 2], both)}


@pytest.mark.remedy(
    "prepared rows are gone, and none of them is visible: …",
    "stop what deletes rows of this table, and start the query again: the rows are redone",
)
def test_a_lost_row_is_noticed_and_nothing_becomes_visible(pg_database: str) -> None:
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches(range(10)))], epoch())
    observe(pg_database, "DELETE FROM flights__rows WHERE id = 7")
    with pytest.raises(PreparedLost, match=r"attempt 1 of 10 rows has 9"):
        sink.commit(vote, ONE)
    assert visible(pg_database) == []
    again = voted([write_partition(task(pg_database), batches(range(10)))], epoch(redo=1))
    assert sink.commit(again, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == list(range(10))
    assert len(stored(pg_database)) == 10


FILLED = 400_000
"""Rows that a table has from before: many more pages than SPARE_PAGES."""


def fill(dsn: str, then: str = "") -> int:
    """Rows below every position, whose pages no vacuum has seen; how many pages the table has after that."""
    values = f"SELECT n, 'before', 0, 0 FROM generate_series(1000, {1000 + FILLED - 1}) AS n"
    statements = f"""ALTER TABLE flights__rows SET (autovacuum_enabled = off)
        INSERT INTO flights__rows (id, attempt, _epoch, _attempt) {values}
        {then}"""
    for statement in filter(None, map(str.strip, statements.splitlines())):
        observe(dsn, statement)
    [(pages,)] = observe(dsn, "SELECT pg_relation_size('flights__rows') / current_setting('block_size')::int")
    assert pages > 8 * SPARE_PAGES
    return int(pages)


def looked_at(dsn: str, sink: PostgresSink) -> int:
    """How many pages of the rows table were looked at so far: told when a back-end ends."""
    sink.close()
    back_ends = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + 120
    while observe(dsn, back_ends) != [(0,)]:
        assert time.monotonic() < deadline, observe(dsn, "SELECT application_name, state FROM pg_stat_activity")
        time.sleep(0.02)
    looks = "SELECT heap_blks_hit + heap_blks_read FROM pg_statio_user_tables WHERE relname = 'flights__rows'"
    return int(observe(dsn, looks)[0][0])


@pytest.mark.parametrize("vacuumed", ["never", "long ago"])
def test_a_publish_reads_its_own_pages_alone(spark: SparkSession, pg_database: str, vacuumed: str) -> None:
    """Not what was written since the last vacuum, however fast that was."""
    sink = ready(pg_database)
    pages = fill(pg_database)
    if vacuumed == "long ago":
        observe(pg_database, "VACUUM ANALYZE flights__rows")
        pages = fill(pg_database) - pages
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)
    before = looked_at(pg_database, sink)
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert looked_at(pg_database, sink) - before < 2 * SPARE_PAGES < pages
    assert observe(pg_database, "SELECT count(*) FROM flights WHERE id < 1000") == [(10,)]


def test_two_processes_read_a_large_epoch(
    spark: SparkSession, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ready(pg_database)
    fill(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(200_000)), ONE)
    run, plans, found = Session.run, [], []

    def explained(session: Session, sql: str, *arguments: object, **how: Any) -> Any:
        answer = run(session, sql, *arguments, **how)
        if "UNION ALL" in sql:
            plans.append("\n".join(line for (line,) in run(session, f"EXPLAIN {sql}", *arguments, **how)))
            found.append([int(count) for count, *_ in answer])
        return answer

    monkeypatch.setattr(Session, "run", explained)
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    ((plan,), ((below, above),)) = plans, found
    assert "Parallel Append" in plan
    assert plan.count("Tid Range Scan") == 2
    assert below + above == 200_000
    assert min(below, above) > 50_000


def test_rows_that_found_room_before_the_end_are_found(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database)
    half = 1000 + FILLED // 2
    pages = fill(pg_database, f"DELETE FROM flights__rows WHERE id BETWEEN 1000 AND {half - 1}\nVACUUM flights__rows")
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)
    [(page,)] = observe(pg_database, "SELECT max((ctid::text::point)[0]) FROM flights__rows WHERE _epoch = 1")
    assert page < pages - SPARE_PAGES
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert observe(pg_database, "SELECT count(*) FROM flights WHERE id < 1000") == [(10,)]


def test_a_losers_rows_are_dropped_wherever_they_are(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database)
    observe(pg_database, "INSERT INTO flights__rows (id, _epoch, _attempt) VALUES (5, 1, 900)")
    observe(
        pg_database,
        "INSERT INTO epochal.attempts (app, sink, position, attempt, generation, token, row_count)"
        f" VALUES ('{QUERY.app}', 'out', 1, 900, {TWO.generation}, {TWO.token}, 1)",
    )
    fill(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert observe(pg_database, "SELECT id FROM flights__rows WHERE _epoch = 1 ORDER BY id") == [
        (key,) for key in range(10)
    ]


def test_a_redo_drops_the_rows_of_before_wherever_they_are(spark: SparkSession, pg_database: str) -> None:
    """They are nobody's any more, if their registration is what was lost."""
    sink = ready(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)
    observe(pg_database, "DELETE FROM epochal.attempts")
    with pytest.raises(PreparedLost):
        sink.commit(vote, ONE)
    fill(pg_database)
    again = sink.prepare(epoch(redo=1), rows(spark, range(10)), ONE)
    assert sink.commit(again, ONE) is CommitOutcome.COMMITTED
    assert [key for position, key in stored(pg_database) if position == 1] == list(range(10))


@pytest.mark.parametrize(
    "loss",
    [
        "DELETE FROM flights__rows WHERE id = 7",
        "UPDATE flights__rows SET _attempt = 77 WHERE id = 7",
        "INSERT INTO flights__rows SELECT * FROM flights__rows WHERE id = 7",
        "DELETE FROM epochal.attempts",
        "UPDATE epochal.attempts SET row_count = 11",
    ],
)
def test_in_a_long_table_a_loss_is_noticed_too(spark: SparkSession, pg_database: str, loss: str) -> None:
    sink = ready(pg_database)
    fill(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(10)).coalesce(1), ONE)
    observe(pg_database, loss)
    with pytest.raises(PreparedLost):
        sink.commit(vote, ONE)
    assert observe(pg_database, "SELECT count(*) FROM flights WHERE id < 1000") == [(0,)]


def test_more_attempts_than_a_query_has_columns(pg_database: str) -> None:
    """As with connections=2000, of which few are open at a time: the server takes 1,664."""
    sink = ready(pg_database)
    many = "FROM generate_series(1, 1700) AS n"
    observe(pg_database, f"INSERT INTO flights__rows (id, _epoch, _attempt) SELECT n, 1, n {many}")
    observe(pg_database, "INSERT INTO flights__rows (id, _epoch, _attempt) VALUES (0, 1, 1701)")  # a loser's
    observe(
        pg_database,
        "INSERT INTO epochal.attempts (app, sink, position, attempt, generation, token, row_count)"
        f" SELECT '{QUERY.app}', 'out', 1, n, {ONE.generation}, {ONE.token}, 1 {many}",
    )
    vote = voted([{"attempt": attempt, "rows": 1} for attempt in range(1, 1701)], epoch())
    observe(pg_database, "UPDATE flights__rows SET _attempt = 1701 WHERE id = 7")
    with pytest.raises(PreparedLost, match="visible: attempt 7 of 1 rows has 0\n"):
        sink.commit(vote, ONE)
    observe(pg_database, "UPDATE flights__rows SET _attempt = 7 WHERE id = 7")
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert [key for _, key in stored(pg_database)] == visible(pg_database) == list(range(1, 1701))


def test_a_lost_registration_is_noticed(pg_database: str) -> None:
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches(range(10)))], epoch())
    observe(pg_database, "DELETE FROM epochal.attempts")
    with pytest.raises(PreparedLost):
        sink.commit(vote, ONE)
    assert visible(pg_database) == []


@pytest.mark.remedy(
    "epochal.attempts lacks rows that the tasks voted for: …",
    "stop what deletes rows of the table epochal.attempts, and restart the query",
)
def test_prepare_reads_back_what_it_votes_for(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database)
    observe(
        pg_database,
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER forget"
        " BEFORE INSERT ON epochal.attempts FOR EACH ROW EXECUTE FUNCTION forget()",
    )
    with pytest.raises(PrepareRefused, match=r"epochal\.attempts lacks rows that the tasks voted for"):
        sink.prepare(epoch(), rows(spark, [1]), ONE)
    observe(pg_database, "DROP TRIGGER forget ON epochal.attempts")
    sink.abort(QUERY, ONE)
    assert sink.commit(sink.prepare(epoch(), rows(spark, [1]), ONE), ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1]


def test_prepare_by_a_fenced_actor_runs_no_job(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database)
    sink.fence(QUERY, TWO)
    with pytest.raises(Fenced):
        sink.prepare(epoch(), rows(spark, [1]), ONE)
    assert observe(pg_database, "SELECT is_called FROM epochal.attempt") == [(False,)]


@pytest.mark.parametrize(("position", "error"), [(1, CheckpointMismatch), (3, MarkerLost)])
def test_prepare_at_another_place_than_the_next_is_refused(
    spark: SparkSession, pg_database: str, position: int, error: type[Exception]
) -> None:
    sink = ready(pg_database)
    sink.commit(sink.prepare(epoch(), rows(spark, [1]), ONE), ONE)
    with pytest.raises(error):
        sink.prepare(epoch(1, position=position), rows(spark, [2]), ONE)


def test_a_fence_that_falls_while_tasks_write_is_a_named_error(spark: SparkSession, pg_database: str) -> None:
    sink, newer = ready(pg_database), support.sink(pg_database)
    with when_copying(pg_database, lambda: newer.fence(QUERY, TWO)), pytest.raises(Fenced):
        sink.prepare(epoch(), slow(spark), ONE)
    assert stored(pg_database) == []


def test_late_commits_of_one_decision_at_once_show_it_once(pg_database: str) -> None:
    ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches([1, 2]))], epoch())
    outcomes: list[CommitOutcome] = []

    def commit() -> None:
        sink = support.sink(pg_database)
        sink.look(QUERY)
        outcomes.append(sink.commit(vote, ONE))

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(outcome.name for outcome in outcomes) == ["ALREADY_COMMITTED"] * 3 + ["COMMITTED"]
    assert visible(pg_database) == [1, 2]


def test_a_publish_that_waits_behind_a_fence_is_fenced(pg_database: str) -> None:
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches([1]))], epoch())
    errors: list[Exception] = []

    def publish() -> None:
        try:
            sink.commit(vote, ONE)
        except Fenced as error:
            errors.append(error)

    with psycopg.connect(pg_database) as other:
        other.execute("UPDATE epochal.sinks SET generation = 2, token = 22")
        publishing = threading.Thread(target=publish)
        publishing.start()
        time.sleep(0.5)
        assert publishing.is_alive()
        other.commit()
    publishing.join(120)
    assert len(errors) == 1
    assert visible(pg_database) == []


def test_abort_deletes_unregistered_rows_too_and_keeps_what_is_shown(pg_database: str) -> None:
    sink = ready(pg_database)
    sink.commit(voted([write_partition(task(pg_database), batches([1]))], epoch()), ONE)
    write_partition(task(pg_database, position=2), batches([2]))
    observe(pg_database, "INSERT INTO flights__rows (id, attempt, _epoch, _attempt) VALUES (3, 'stray', 9, 0)")
    sink.abort(QUERY, ONE)
    assert (stored(pg_database), registered(pg_database)) == ([(1, 1)], [])


def test_abort_by_a_fenced_actor_drops_nothing_of_the_newer_one(pg_database: str) -> None:
    sink, newer = ready(pg_database), support.sink(pg_database)
    newer.look(QUERY)
    newer.fence(QUERY, TWO)
    write_partition(task(pg_database, TWO), batches([1]))
    with pytest.raises(Fenced):
        sink.abort(QUERY, ONE)
    assert (stored(pg_database), registered(pg_database)) == ([(1, 1)], [(1, 1)])


def test_two_fences_of_one_generation_at_once_leave_one_owner(pg_database: str) -> None:
    ready(pg_database)
    refused: list[Actor] = []

    def fence(actor: Actor) -> None:
        try:
            support.sink(pg_database).fence(QUERY, actor)
        except Fenced:
            refused.append(actor)

    actors = [Actor(2, token) for token in range(4)]
    threads = [threading.Thread(target=fence, args=(actor,)) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(refused) == 3
    owner = support.sink(pg_database).look(QUERY).fence
    assert owner not in refused


@pytest.mark.parametrize("name", [OLDER, "epochal out 1/77", "epochal out 2/22"])
def test_a_fence_ends_an_older_back_end_that_holds_the_row(pg_database: str, name: str) -> None:
    sink = ready(pg_database)
    with holding(pg_database, name) as zombie:
        sink.fence(QUERY, TWO)
        with pytest.raises(psycopg.OperationalError):
            zombie.execute("SELECT 1")
    assert sink.look(QUERY, by=TWO).fence == TWO


def test_a_back_end_of_ones_own_name_is_ended_too(pg_database: str) -> None:
    """Whatever application name the connection string gives."""
    sink = ready(f"{pg_database}?application_name={'j' * 60}")
    with sink._core.connector.session() as session, session.transaction(by=ONE):
        ours = "application_name LIKE 'j%' AND datname = current_database()"
        ((name,),) = observe(pg_database, f"SELECT application_name FROM pg_stat_activity WHERE {ours}")
    assert name == f"{'j' * 58} 1/11"
    with holding(pg_database, name) as zombie:
        sink.fence(QUERY, TWO)
        with pytest.raises(psycopg.OperationalError):
            zombie.execute("SELECT 1")
    sink.close()


HELD = {
    "the row, by a person": ("psql", ROW, "holds a row of epochal.sinks"),
    "the row, by a newer start": ("epochal out 3/33", ROW, "holds a row of epochal.sinks"),
    "the row, by another start": ("epochal out 2/33", ROW, "holds a row of epochal.sinks"),
    "the row, by another sink's": ("epochal outer 1/11", ROW, "holds a row of epochal.sinks"),
    "another row": (
        "epochal out 1/11",
        "SELECT * FROM flights__rows FOR UPDATE",
        "holds a row of flights__rows",
    ),
    "the table of the rows": (
        "epochal out 1/11",
        "LOCK TABLE flights__rows IN SHARE MODE",
        "holds ShareLock on flights__rows",
    ),
    "the table of the sinks": (
        "epochal out 1/11",
        "LOCK TABLE epochal.sinks",
        "holds AccessExclusiveLock on epochal.sinks",
    ),
}


@pytest.mark.remedy(
    "waited for what other back-ends hold: …",
    "wait until they are done, or end those that may be ended: SELECT pg_terminate_backend(pid)",
)
@pytest.mark.parametrize(("name", "statement", "told"), HELD.values(), ids=HELD)
def test_what_others_hold_is_waited_for_and_named_and_nobody_is_ended(
    pg_database: str, name: str, statement: str, told: str
) -> None:
    """P4: a start that has to delete, while somebody builds an index, or looks at the sink's row."""
    ready(pg_database)
    observe(pg_database, "INSERT INTO flights__rows (id, attempt, _epoch, _attempt) VALUES (3, 'stray', 9, 0)")
    sink = support.sink(pg_database, lock_timeout=3.0)
    sink.fence(QUERY, TWO)
    with holding(pg_database, name, statement) as other:
        with pytest.raises(SinkUnavailable) as waited:
            sink.abort(QUERY, TWO)
        other.execute("SELECT 1")
        pid = other.info.backend_pid
    assert waited.value.what == (
        f"waited for what other back-ends hold: pid {pid} ({name}, idle in transaction) {told}"
    )
    assert "pg_terminate_backend" in waited.value.help
    sink.abort(QUERY, TWO)
    sink.close()


def test_who_is_waited_for_by_a_publish_is_named(pg_database: str) -> None:
    """P4: also in mid-query."""
    sink = ready(pg_database, lock_timeout=3.0)
    vote = voted([write_partition(task(pg_database), batches([1]))], epoch())
    with (
        holding(pg_database, "psql", "LOCK TABLE epochal.epochs IN SHARE MODE"),
        pytest.raises(SinkUnavailable, match=r"\(psql, idle in transaction\) holds ShareLock on epochal\.epochs"),
    ):
        sink.commit(vote, ONE)
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED


def test_who_was_fenced_ends_nobody(pg_database: str) -> None:
    """What holds the row may be the newer actor's commit."""
    older = ready(pg_database, lock_timeout=2.0)
    support.sink(pg_database).fence(QUERY, TWO)
    with holding(pg_database) as newer:
        with pytest.raises(SinkUnavailable):
            older.abort(QUERY, ONE)
        newer.execute("SELECT 1")
    with pytest.raises(Fenced):
        older.abort(QUERY, ONE)


def test_a_fence_that_may_not_end_the_holder_names_it_within_the_limit(pg_database: str) -> None:
    ready(pg_database)
    observe(pg_database, "DROP ROLE IF EXISTS humble")
    observe(pg_database, "CREATE ROLE humble LOGIN IN ROLE pg_read_all_data, pg_write_all_data")
    with holding(pg_database) as zombie:
        humble = pg_database.replace("postgres@", "humble@")
        sink = PostgresSink(humble, table="flights", name="out", lock_timeout=4.0, answer_timeout=3600.0)
        with pytest.raises(SinkUnavailable, match=f"{zombie.info.backend_pid} .*") as error:
            sink.fence(QUERY, TWO)
        assert "pg_terminate_backend" in error.value.help
    sink.close()
    observe(pg_database, "DROP ROLE humble")
    assert support.sink(pg_database).look(QUERY).fence == ONE


def test_look_without_an_actor_waits_for_nobody(pg_database: str) -> None:
    sink = ready(pg_database, lock_timeout=2.0)
    with holding(pg_database):
        assert sink.look(QUERY).fence == ONE
        with pytest.raises(SinkUnavailable):
            sink.look(QUERY, by=ONE)


def test_look_by_an_actor_that_is_not_the_owner_is_fenced(pg_database: str) -> None:
    with pytest.raises(Fenced):
        ready(pg_database).look(QUERY, by=TWO)


def test_an_error_before_the_commit_request_changes_nothing(pg_database: str) -> None:
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches([1]))], epoch())
    with failpoints.armed("before-publish@out:0=raise"), pytest.raises(FailpointError):
        sink.commit(vote, ONE)
    assert visible(pg_database) == []
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED


def test_an_answer_dropped_after_the_commit_is_resolved_by_the_marker(pg_database: str) -> None:
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches([1]))], epoch())
    points: list[Point] = []

    def drop(point: Point, _sink: str, _epoch: int) -> None:
        points.append(point)
        if point is Point.AFTER_PUBLISH:
            raise AnswerDropped("dropped")

    with failpoints.handler(drop):
        assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert points == [Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH]
    assert visible(pg_database) == [1]


@pytest.mark.remedy(
    "the COMMIT was lost, nothing became visible: …",
    "restart the query if it has ended: the epoch is committed again",
)
def test_a_back_end_ended_before_its_commit_is_known_to_have_done_nothing(pg_database: str) -> None:
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches([1]))], epoch())

    def end(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.BEFORE_PUBLISH:
            observe(
                pg_database,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE state = 'idle in transaction' AND datname = current_database()",
            )

    with failpoints.handler(end), pytest.raises(SinkUnavailable, match="nothing became visible"):
        sink.commit(vote, ONE)
    assert visible(pg_database) == []
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED


def test_the_server_crashes_between_prepare_and_commit(
    spark: SparkSession, postgres_server: Postgres, pg_database: str
) -> None:
    sink = ready(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)
    postgres_server.crash()
    with pytest.raises(SinkUnavailable, match=r"cannot connect to Postgres at 127\.0\.0\.1"):
        sink.commit(vote, ONE)
    with pytest.raises(SinkUnavailable, match="cannot connect"):
        sink.prepare(epoch(1), rows(spark, [1]), ONE)
    postgres_server.start()
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == list(range(10))


def test_the_server_crashes_with_the_publish_open(
    spark: SparkSession, postgres_server: Postgres, pg_database: str
) -> None:
    sink = ready(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)

    def crash(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.BEFORE_PUBLISH:
            postgres_server.crash()
            postgres_server.start()

    with failpoints.handler(crash), pytest.raises(SinkUnavailable, match="nothing became visible"):
        sink.commit(vote, ONE)
    assert visible(pg_database) == []
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == list(range(10))


@pytest.mark.wide
def test_the_server_crashes_while_tasks_write(spark: SparkSession, postgres_server: Postgres, pg_database: str) -> None:
    sink = ready(pg_database)
    told = r"a task could not write: .*Postgres at 127\.0\.0\.1"
    with when_copying(pg_database, postgres_server.crash), pytest.raises(SinkUnavailable, match=told) as error:
        sink.prepare(epoch(), slow(spark), ONE)
    assert support.PASSWORD not in str(error.value)
    postgres_server.start()
    sink.abort(QUERY, ONE)
    sink.commit(sink.prepare(epoch(), rows(spark, [1]), ONE), ONE)
    assert stored(pg_database) == [(1, 1)]


def test_a_sink_is_pickled_without_its_connections(pg_database: str) -> None:
    sink = ready(pg_database)
    again = pickle.loads(pickle.dumps(sink))
    assert again.look(QUERY) == sink.look(QUERY)
    assert again.name == "out"


def test_rows_that_a_constraint_refuses_are_told_in_the_servers_words(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database)
    observe(pg_database, "ALTER TABLE flights__rows ADD CONSTRAINT small CHECK (id < 3)")
    with pytest.raises(PrepareRefused, match="small") as refused:
        sink.prepare(epoch(), rows(spark, [1, 2, 3]), ONE)
    assert "23514" in str(refused.value)
    sink.abort(QUERY, ONE)
    sink.commit(sink.prepare(epoch(), rows(spark, [1, 2]), ONE), ONE)
    assert stored(pg_database) == [(1, 1), (1, 2)]


def test_a_look_that_is_not_answered_wrote_nothing_and_is_merely_unavailable(
    pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ready(pg_database)

    def lost(*_: object) -> NoReturn:
        raise OutcomeUnknown("no answer to COMMIT", help="-")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_commit", lost)
        with pytest.raises(SinkUnavailable, match="no answer to COMMIT"):
            sink.look(QUERY, by=ONE)
    assert sink.look(QUERY, by=ONE).fence == ONE


def test_a_fence_that_fails_though_nobody_is_in_its_way_fails(
    pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ready(pg_database)

    def gone(*_: object, **__: object) -> NoReturn:
        raise SinkUnavailable("the server went away", help="-")

    with monkeypatch.context() as patch:
        patch.setattr(Core, "state", gone)
        with pytest.raises(SinkUnavailable) as failed:
            sink.fence(QUERY, TWO)
    assert failed.value.what == "the server went away"
    assert sink.look(QUERY).fence == ONE


def test_calls_in_a_row_use_one_connection(pg_database: str) -> None:
    sink = ready(pg_database)
    for _ in range(5):
        sink.look(QUERY)
    mine = "application_name = 'epochal out' AND datname = current_database()"
    assert observe(pg_database, f"SELECT count(*) FROM pg_stat_activity WHERE {mine}") == [(1,)]


def test_prepare_before_any_look_is_refused(spark: SparkSession, pg_database: str) -> None:
    with pytest.raises(Misconfigured, match="used before look"):
        support.sink(pg_database).prepare(epoch(), rows(spark, [1]), ONE)


def test_the_password_shows_nowhere(spark: SparkSession, pg_database: str, capfd: pytest.CaptureFixture[str]) -> None:
    sink = ready(pg_database)
    one = task(pg_database)
    vote = sink.prepare(epoch(), rows(spark, range(10)), ONE)
    plans: list[str] = []
    lines = rows(spark, [1]).selectExpr("'x' as line")

    from epochal.sinks.postgres.write import VOTE, writer

    frame = lines.mapInArrow(writer(one), VOTE)
    plans.append(frame._jdf.queryExecution().toString())
    frame.explain(True)
    broken = support.sink(pg_database.replace("127.0.0.1", "host.invalid"), connect_timeout=2.0)
    with pytest.raises(SinkUnavailable) as error:
        broken.look(QUERY)
    shown = [
        repr(sink),
        repr(one),
        str(vote.to_json()),
        sink.guarantee(),
        str(error.value),
        *plans,
        *capfd.readouterr(),
    ]
    assert not [text for text in shown if support.PASSWORD in text]


def test_a_failing_expression_of_the_users_own_is_passed_on(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database)
    broken = rows(spark, [1]).selectExpr("id", "raise_error('of my own making') attempt")
    with pytest.raises(Exception, match="of my own making"):
        sink.prepare(epoch(), broken.selectExpr("id", "cast(attempt as string) attempt"), ONE)


def test_commit_of_an_old_position_after_a_restart_of_the_count(pg_database: str) -> None:
    sink = ready(pg_database)
    vote = voted([write_partition(task(pg_database), batches([1]))], epoch())
    sink.commit(vote, ONE)
    sink.commit(voted([write_partition(task(pg_database, position=2), batches([2]))], epoch(1)), ONE)
    with pytest.raises(CheckpointMismatch):
        sink.commit(vote, ONE)
    with pytest.raises(MarkerLost):
        sink.commit(replace(vote, position=9, decision=epoch(8).decision), ONE)
    assert visible(pg_database) == [1, 2]
