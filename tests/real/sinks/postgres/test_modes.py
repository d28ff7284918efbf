"""Rows that are staged and then written into the table: what readers see, what is refused, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, EpochRequest
from epochal.coordinator.model.errors import (
    CommitInDoubt,
    Fenced,
    Misconfigured,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import FailpointError, Point
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.coordinator.protocol.retry import Retry
from epochal.sinks.postgres import Plain, PostgresSink, Upsert
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.publish import Publish
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, TWO, batches, epoch, observe, registered, rows, task, visible

KEYED = Upsert(key="id")
SHAPE = "id long, a string, seq long, gone boolean"
"""Rows of a change feed."""


def staged(dsn: str) -> list[tuple[Any, ...]]:
    return observe(dsn, "SELECT _epoch, id FROM flights__staged ORDER BY _epoch, id")


def ready(dsn: str, frame: DataFrame, made: str | None = None, by: Actor = ONE, **options: Any) -> PostgresSink:
    """A sink whose table is there (``made``: by this statement), created, checked, looked at and fenced."""
    if made is not None:
        observe(dsn, made)
    sink = support.sink(dsn, **{"mode": Plain(), **options})
    sink.create(QUERY, frame.schema)
    sink.check(QUERY, frame.schema)
    sink.look(QUERY)
    sink.fence(QUERY, by)
    return sink


def show(sink: PostgresSink, frame: DataFrame, number: int = 0) -> None:
    assert sink.commit(sink.prepare(epoch(number), frame, ONE), ONE) is CommitOutcome.COMMITTED


def refused(sink: PostgresSink, frame: DataFrame, number: int = 0) -> PrepareRefused:
    with pytest.raises(PrepareRefused) as error:
        sink.prepare(epoch(number), frame, ONE)
    return error.value


def changes(spark: SparkSession, *given: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(given), SHAPE)


# --- what readers see -----------------------------------------------------------------------------


def test_plain_rows_stand_in_the_users_own_table_whatever_its_constraints(
    spark: SparkSession, pg_database: str
) -> None:
    table = (
        "CREATE TABLE flights (n int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id bigint UNIQUE CHECK (id < 100),"
        " attempt varchar NOT NULL, twice bigint GENERATED ALWAYS AS (id * 2) STORED, made text DEFAULT 'by default',"
        " spare int, EXCLUDE (id WITH =)); INSERT INTO flights (id, attempt) VALUES (50, 'old')"
    )
    sink = ready(pg_database, rows(spark, []), table)
    vote = sink.prepare(epoch(), rows(spark, [1, 2]), ONE)
    assert (visible(pg_database), len(staged(pg_database))) == ([50], 2)
    sink.commit(vote, ONE)
    found = observe(pg_database, "SELECT id, attempt, twice, made, spare FROM flights ORDER BY id")
    assert found == [(n, name, 2 * n, "by default", None) for n, name in ((1, "a"), (2, "a"), (50, "old"))]
    assert (staged(pg_database), registered(pg_database)) == ([], [])
    assert observe(pg_database, "SELECT position, row_count FROM epochal.epochs") == [(1, 2)]


def test_upsert_inserts_updates_and_deletes(spark: SparkSession, pg_database: str) -> None:
    mode = Upsert(key="id", delete_when="gone")
    frame = changes(spark, (1, "one", 1, None), (2, "two", 1, False), (3, "three", 1, True))
    sink = ready(pg_database, frame, mode=mode)
    show(sink, frame)
    assert observe(pg_database, "SELECT * FROM flights ORDER BY id") == [(1, "one", 1), (2, "two", 1)]
    show(sink, changes(spark, (1, "uno", 2, False), (2, None, 2, True), (9, None, 2, True)), 1)
    assert observe(pg_database, "SELECT * FROM flights") == [(1, "uno", 2)]
    assert staged(pg_database) == []


def test_an_upsert_that_is_redone_deletes_as_well(spark: SparkSession, pg_database: str) -> None:
    frame = changes(spark, (1, "one", 1, None), (2, "two", 1, None))
    sink = ready(pg_database, frame, mode=Upsert(key="id", delete_when="gone"))
    show(sink, frame)
    frame = changes(spark, (1, "uno", 2, False), (2, None, 2, True))
    lost = sink.prepare(epoch(1), frame, ONE)
    observe(pg_database, "DELETE FROM flights__staged")
    with pytest.raises(PreparedLost):
        sink.commit(lost, ONE)
    redone = sink.prepare(epoch(1, redo=1), frame, ONE)
    assert sink.commit(redone, ONE) is CommitOutcome.COMMITTED
    assert observe(pg_database, "SELECT * FROM flights") == [(1, "uno", 2)]


def test_upsert_changes_the_columns_that_it_may_and_no_others(spark: SparkSession, pg_database: str) -> None:
    table = "CREATE TABLE flights (id bigint UNIQUE, a text, seq bigint, gone boolean, more text DEFAULT 'mine')"
    sink = ready(pg_database, changes(spark), table, mode=Upsert(key="id", update=["a"]))
    show(sink, changes(spark, (1, "one", 1, None)))
    observe(pg_database, "UPDATE flights SET more = 'yours'")
    show(sink, changes(spark, (1, "uno", 2, True)), 1)
    assert observe(pg_database, "SELECT * FROM flights") == [(1, "uno", 1, None, "yours")]


SUPPRESSING = """CREATE TABLE flights (id bigint PRIMARY KEY, a varchar, seq bigint, gone boolean, more text);
CREATE TRIGGER suppress BEFORE UPDATE ON flights FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"""


@pytest.mark.parametrize("trial", [True, False])
def test_an_update_that_would_change_nothing_may_be_left_out(
    spark: SparkSession, pg_database: str, trial: bool
) -> None:
    """P11: the row that is there is the one that is wished."""
    sink = ready(pg_database, changes(spark), SUPPRESSING, mode=Upsert(key="id", order_by="seq", trial=trial))
    show(sink, changes(spark, (1, "one", 1, None), (2, None, 1, None), (3, "three", 1, True)))
    show(sink, changes(spark, (1, "one", 1, None), (2, None, 1, None), (3, "drei", 1, True), (4, "vier", 1, None)), 1)
    found = observe(pg_database, "SELECT id, a, seq, gone FROM flights ORDER BY id")
    assert found == [(1, "one", 1, None), (2, None, 1, None), (3, "drei", 1, True), (4, "vier", 1, None)]


def test_an_update_that_a_trigger_leaves_out_is_refused_where_it_would_change_the_row(
    spark: SparkSession, pg_database: str
) -> None:
    """P11: only a row that is already as wished may stay."""
    table = (
        "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text);"
        " CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        " CREATE TRIGGER no BEFORE UPDATE ON flights FOR EACH ROW EXECUTE FUNCTION no();"
        " INSERT INTO flights VALUES (1, 'a'), (2, 'b'), (3, NULL)"
    )
    sink = ready(pg_database, rows(spark, []), table, mode=Upsert(key="id"))
    show(sink, rows(spark, [1, 4]))
    error = refused(sink, rows(spark, [1, 2, 3, 5]), 1)
    assert error.what.endswith('"flights" lacks the epoch\'s row for 2 of 4 keys')


def test_an_update_of_nothing_keeps_the_row_that_is_there(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database, rows(spark, []), mode=Upsert(key="id", update=()))
    show(sink, rows(spark, [1, 2], "first"))
    show(sink, rows(spark, [2, 3], "second"), 1)
    assert observe(pg_database, "SELECT * FROM flights ORDER BY id") == [(1, "first"), (2, "first"), (3, "second")]


def test_the_last_row_by_the_declared_order_wins(spark: SparkSession, pg_database: str) -> None:
    """Through every partition, with deletes; seq is not in the table, and a column of the order that is, is written."""
    table = "CREATE TABLE flights (id bigint PRIMARY KEY, a text)"
    mode = Upsert(key="id", order_by=["seq", "a"], delete_when="gone")
    frame = changes(spark, *[(n % 7, f"{n:03}", n // 7, n % 7 == 3 and n > 50) for n in range(63)]).repartition(5)
    sink = ready(pg_database, frame, table, mode=mode)
    observe(pg_database, "INSERT INTO flights VALUES (3, 'old'), (6, 'old'), (8, 'old')")
    show(sink, frame)
    assert observe(pg_database, "SELECT * FROM flights ORDER BY id") == [
        *((n, f"{56 + n:03}") for n in (0, 1, 2, 4, 5, 6)),
        (8, "old"),
    ]
    show(sink, changes(spark, (0, "x", 1, False), (0, "y", 1, False), (0, "z", 0, True)), 1)
    assert observe(pg_database, "SELECT a FROM flights WHERE id = 0") == [("y",)]


def test_a_column_of_the_order_that_the_table_spells_otherwise_is_refused(
    spark: SparkSession, pg_database: str
) -> None:
    frame = spark.createDataFrame([(1, "x", 1)], "id long, a string, updatedAt long")
    table = "CREATE TABLE flights (id bigint PRIMARY KEY, a text, updatedAt bigint)"
    with pytest.raises(
        Misconfigured, match=r'names the column "updatedAt", and .*flights.* has "updatedat"'
    ) as refused:
        ready(pg_database, frame, table, mode=Upsert(key="id", order_by="updatedAt"))
    assert "updatedAt AS updatedat" in refused.value.help


def test_composite_keys_in_a_schema_of_its_own_under_odd_names(spark: SparkSession, pg_database: str) -> None:
    observe(pg_database, 'CREATE SCHEMA "s 1"')
    mode = Upsert(key=['K"1', "ключ %s"], delete_when="weg?", order_by="о")
    schema = '`K"1` string, `ключ %s` int, `Wert` double, `о` int, `weg?` boolean'
    frame = spark.createDataFrame([("a", 1, 0.5, 1, False), ("a", 2, 1.5, 1, False), ("b", 1, 2.5, 1, False)], schema)
    sink = ready(pg_database, frame, table='s 1.Fl"üge $1', mode=mode)
    show(sink, frame)
    show(
        sink,
        spark.createDataFrame([("a", 1, 9.5, 2, False), ("a", 2, 0.0, 2, True), ("a", 2, 0.0, 1, False)], schema),
        1,
    )
    assert observe(pg_database, 'SELECT * FROM "s 1"."Fl""üge $1" ORDER BY 1, 2') == [
        ("a", 1, 9.5, 2),
        ("b", 1, 2.5, 1),
    ]
    assert observe(pg_database, 'SELECT count(*) FROM "s 1"."Fl""üge $1__staged"') == [(0,)]


@pytest.mark.parametrize("mode", [Plain(), Upsert(key=["id", "attempt"]), Upsert(key=["attempt", "id"], update=())])
def test_a_partitioned_table(spark: SparkSession, pg_database: str, mode: Any) -> None:
    table = (
        "CREATE TABLE flights (id bigint, attempt text, n int DEFAULT 1, PRIMARY KEY (id, attempt))"
        " PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF flights FOR VALUES FROM (0) TO (10);"
        " CREATE TABLE high PARTITION OF flights FOR VALUES FROM (10) TO (20)"
    )
    sink = ready(pg_database, rows(spark, []), table, mode=mode)
    show(sink, rows(spark, [1, 11]))
    show(sink, rows(spark, [2]), 1)
    assert observe(pg_database, "SELECT tableoid::regclass::text, id FROM flights ORDER BY id") == [
        *(("low", 1), ("low", 2)),
        ("high", 11),
    ]
    assert "no partition of relation" in refused(sink, rows(spark, [3, 20]), 2).what
    assert visible(pg_database) == [1, 2, 11]


@pytest.mark.remedy(
    "column … of … compares by another collation than that of …", "ALTER TABLE … ALTER COLUMN … TYPE ……"
)
def test_keys_compare_by_the_tables_collation(spark: SparkSession, pg_database: str) -> None:
    """Two columns of different collations cannot be compared at all."""
    table = 'CREATE TABLE flights (id text COLLATE "POSIX" UNIQUE, n int)'
    mode = Upsert(key="id", delete_when="gone")
    schema = "id string, n int, gone boolean"
    frame = spark.createDataFrame([("a", 1, False), ("b", 1, False)], schema)
    sink = ready(pg_database, frame, table, mode=mode)
    show(sink, frame)
    show(sink, spark.createDataFrame([("a", 2, False), ("b", 2, True)], schema), 1)
    assert observe(pg_database, "SELECT * FROM flights") == [("a", 2)]
    observe(pg_database, 'ALTER TABLE flights__staged ALTER COLUMN id TYPE text COLLATE "C"')
    with pytest.raises(Misconfigured, match="compares by another collation") as error:
        sink.check(QUERY, frame.schema)
    assert error.value.state == '"flights": COLLATE pg_catalog."POSIX"; "flights__staged": COLLATE pg_catalog."C"'
    observe(pg_database, error.value.help)
    sink.check(QUERY, frame.schema)


# --- what prepare refuses -------------------------------------------------------------------------


def test_a_key_that_stands_twice_is_refused_by_name_and_count(spark: SparkSession, pg_database: str) -> None:
    mode = Upsert(key=["id", "attempt"])
    sink = ready(pg_database, rows(spark, []), mode=mode)
    error = refused(sink, rows(spark, [1, 2, 2, 2, 3, 3]).repartition(3))
    assert error.what == "key (id, attempt) = (2, a): 3 rows of one epoch"
    assert error.state == "2 such keys: (2, a): 3 rows, (3, a): 2 rows"
    assert "order_by" in error.help
    assert (error.sink, error.epoch) == ("out", 0)
    sink.abort(QUERY, ONE)
    assert (staged(pg_database), registered(pg_database), visible(pg_database)) == ([], [], [])


def test_a_tie_in_the_declared_order_is_refused(spark: SparkSession, pg_database: str) -> None:
    frame = changes(
        spark, (1, "x", 5, None), (1, "y", 5, None), (2, "x", 4, None), (2, "y", 4, None), (2, "z", 6, None)
    )
    sink = ready(pg_database, frame, mode=Upsert(key="id", order_by="seq"))
    error = refused(sink, frame)
    assert error.what == "key (id) = (1): 2 rows that are all last by order_by="
    assert error.state == "1 such keys: (1): 2 rows"
    assert "tells these rows apart" in error.help


def test_null_in_the_key_or_in_the_order_is_refused_by_count(spark: SparkSession, pg_database: str) -> None:
    table = "CREATE TABLE flights (id bigint, a text, seq bigint, gone boolean, UNIQUE NULLS NOT DISTINCT (id, a))"
    frame = changes(spark, (None, "x", 1, None), (None, None, 1, None), (1, "x", None, None), (2, "x", 1, None))
    sink = ready(pg_database, frame, table.replace("NULLS NOT DISTINCT ", ""), mode=Upsert(["id", "a"], order_by="seq"))
    error = refused(sink, frame)
    assert error.what == (
        "rows with NULL in a column of key= or order_by=: column 'id': 2, column 'a': 1, column 'seq': 1"
    )
    assert "coalesce" in error.help


REFUSING = {
    "CREATE TABLE flights (id bigint CONSTRAINT small CHECK (id < 3), attempt text)": "small",
    "CREATE TABLE flights (id bigint UNIQUE, attempt text)": "flights_id_key",
    "CREATE TABLE flights (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, attempt text)": "flights_id_key",
    "CREATE TABLE flights (id bigint, attempt text, n int DEFAULT 1 / (random() * 0)::int)": "division by zero",
    "CREATE TABLE flights (id bigint, attempt text, EXCLUDE (id WITH =))": "exclusion constraint",
    "CREATE TABLE parents (id bigint PRIMARY KEY); CREATE TABLE flights (id bigint REFERENCES parents"
    " DEFERRABLE INITIALLY DEFERRED, attempt text); INSERT INTO parents VALUES (1), (2)": "flights_id_fkey",
    "CREATE TABLE flights (id bigint, attempt text); CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN RAISE ''not today''; END'; CREATE TRIGGER no AFTER INSERT ON flights EXECUTE FUNCTION no()": "not today",
    "CREATE TABLE flights (id bigint, attempt text); CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN RETURN NULL; END'; CREATE TRIGGER no BEFORE INSERT ON flights FOR EACH ROW WHEN (NEW.id = 3)"
    " EXECUTE FUNCTION no()": "took 2 of 4 rows",
}


@pytest.mark.parametrize(("table", "why"), REFUSING.items(), ids=REFUSING.values())
def test_what_the_table_does_not_take_is_refused_before_the_decision(
    spark: SparkSession, pg_database: str, table: str, why: str
) -> None:
    sink = ready(pg_database, rows(spark, []), table)
    error = refused(sink, rows(spark, [1, 2, 3, 3]))
    assert error.what.startswith("the table does not take the rows: ")
    assert why in error.what
    assert (error.sink, error.epoch) == ("out", 0)
    assert visible(pg_database) == []
    sink.abort(QUERY, ONE)
    assert staged(pg_database) == []


UNIQUE = {
    "a constraint": "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text, UNIQUE (attempt))",
    "an index": "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text);"
    " CREATE UNIQUE INDEX one ON flights (attempt)",
    "an exclusion": "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text, EXCLUDE (attempt WITH =))",
}


@pytest.mark.remedy("the table does not take the rows: …", "…")
@pytest.mark.parametrize("table", UNIQUE.values(), ids=UNIQUE)
def test_values_that_rows_exchange_are_refused_with_the_cure(spark: SparkSession, pg_database: str, table: str) -> None:
    """P6: between two rows of the statement a value is there twice."""
    sink = ready(pg_database, rows(spark, []), table, mode=Upsert(key="id"))
    show(sink, spark.createDataFrame([(1, "x"), (2, "y")], support.SCHEMA))
    exchanged = spark.createDataFrame([(1, "y"), (2, "x")], support.SCHEMA)
    cure = refused(sink, exchanged, 1).help
    assert cure.startswith("if rows of one epoch only exchange these values: ")
    observe(pg_database, cure.partition(": ")[2].partition("; else ")[0])
    sink.abort(QUERY, ONE)
    show(sink, exchanged, 1)
    assert observe(pg_database, "SELECT * FROM flights ORDER BY id") == [(1, "y"), (2, "x")]
    sink.check(QUERY, support.SCHEMA)
    twice = refused(sink, spark.createDataFrame([(1, "z"), (2, "z")], support.SCHEMA), 2)
    assert "DEFERRABLE" not in twice.help


def test_without_a_trial_the_publish_tells_the_cure(spark: SparkSession, pg_database: str) -> None:
    """P6: and where no cure is possible, the server's words stand alone."""
    made = f"{UNIQUE['a constraint']}; CREATE UNIQUE INDEX half ON flights (attempt) WHERE attempt < 'm'"
    sink = ready(pg_database, rows(spark, []), made, mode=Upsert(key="id", trial=False))
    show(sink, spark.createDataFrame([(1, "x"), (2, "y")], support.SCHEMA))
    vote = sink.prepare(epoch(1), spark.createDataFrame([(1, "y"), (2, "x")], support.SCHEMA), ONE)
    with pytest.raises(ServerRefused, match="flights_attempt_key") as error:
        sink.commit(vote, ONE)
    assert "ADD CONSTRAINT flights_attempt_key UNIQUE (attempt) DEFERRABLE" in error.value.help
    observe(
        pg_database, "ALTER TABLE flights DROP CONSTRAINT flights_attempt_key; UPDATE flights SET attempt = 'c' || id"
    )
    sink.abort(QUERY, ONE)
    vote = sink.prepare(epoch(1), spark.createDataFrame([(1, "c2"), (2, "c1")], support.SCHEMA), ONE)
    with pytest.raises(ServerRefused, match="half") as error:
        sink.commit(vote, ONE)
    assert "DEFERRABLE" not in error.value.help


def test_a_trial_leaves_nothing_but_gaps_in_sequences(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database, rows(spark, []), "CREATE TABLE flights (n serial, id bigint, attempt text)")
    vote = sink.prepare(epoch(), rows(spark, [1]), ONE)
    assert visible(pg_database) == []
    assert observe(pg_database, "SELECT count(*) FROM pg_locks WHERE relation = 'flights'::regclass") == [(0,)]
    sink.commit(vote, ONE)
    assert observe(pg_database, "SELECT n, id FROM flights") == [(2, 1)]


@pytest.mark.remedy(
    "… kept … of the rows to be deleted", "find the trigger or the rule that leaves rows out (psql: \\d …); drop it"
)
def test_a_delete_that_a_trigger_prevents_is_refused(spark: SparkSession, pg_database: str) -> None:
    table = (
        "CREATE TABLE flights (id bigint PRIMARY KEY, a text, seq bigint); INSERT INTO flights VALUES (1, 'x', 0);"
        " CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        " CREATE TRIGGER no BEFORE DELETE ON flights FOR EACH ROW EXECUTE FUNCTION no()"
    )
    frame = changes(spark, (1, "x", 1, True), (2, "x", 1, False))
    sink = ready(pg_database, frame, table, mode=Upsert(key="id", delete_when="gone"))
    error = refused(sink, frame)
    assert error.what.endswith('"flights" kept 1 of the rows to be deleted')
    assert "trigger" in str(error.state)
    observe(pg_database, "DROP TRIGGER no ON flights")
    sink.abort(QUERY, ONE)
    show(sink, frame)
    assert observe(pg_database, "SELECT id FROM flights") == [(2,)]


@pytest.mark.remedy("… took … of … rows", "find the trigger or the rule that leaves rows out (psql: \\d …); drop it")
def test_rows_that_a_trigger_leaves_out_are_taken_without_it(spark: SparkSession, pg_database: str) -> None:
    (table,) = (table for table, why in REFUSING.items() if why == "took 2 of 4 rows")
    sink = ready(pg_database, rows(spark, []), table)
    refused(sink, rows(spark, [1, 2, 3, 3]))
    observe(pg_database, "DROP TRIGGER no ON flights")
    sink.abort(QUERY, ONE)
    show(sink, rows(spark, [1, 2, 3, 3]))


@pytest.mark.remedy("… … for … of … keys", "find the trigger or the rule that leaves rows out (psql: \\d …); drop it")
def test_an_insert_that_a_trigger_prevents_is_refused_also_where_rows_may_be_there(
    spark: SparkSession, pg_database: str
) -> None:
    table = (
        "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text); INSERT INTO flights VALUES (1, 'old');"
        " CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        " CREATE TRIGGER no BEFORE INSERT ON flights FOR EACH ROW WHEN (NEW.id = 3) EXECUTE FUNCTION no()"
    )
    sink = ready(pg_database, rows(spark, []), table, mode=Upsert(key="id", update=()))
    error = refused(sink, rows(spark, [1, 2, 3]))
    assert error.what.endswith('"flights" has no row for 1 of 3 keys')
    show(sink, rows(spark, [1, 2]))
    observe(pg_database, "DROP TRIGGER no ON flights")
    show(sink, rows(spark, [3]), 1)


def test_an_epoch_without_rows_is_tried_too(spark: SparkSession, pg_database: str) -> None:
    """P1: its publish runs the same statements, and triggers of statements."""
    made = (
        "CREATE TABLE flights (id bigint, attempt text); CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE ''not today''; END'; CREATE TRIGGER no AFTER INSERT ON flights EXECUTE FUNCTION no()"
    )
    sink = ready(pg_database, rows(spark, []), made)
    assert "not today" in refused(sink, rows(spark, [])).what


def test_a_trial_of_a_fenced_actor_does_not_begin(spark: SparkSession, pg_database: str) -> None:
    """The fence falls when its tasks have voted: it must not wait for keys that the newer one is writing."""
    sink, newer = ready(pg_database, rows(spark, [])), support.sink(pg_database, mode=Plain())
    fenced: list[Point] = []

    def fence(session: Any, app: str, position: int) -> dict[Actor, dict[int, int]]:
        newer.fence(QUERY, TWO)
        fenced.append(Point.BEFORE_VOTE)
        return registered_before(session, app, position)

    registered_before: Callable[..., dict[Actor, dict[int, int]]] = sink._core.registered
    sink._core.registered = fence  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        sink.prepare(epoch(), rows(spark, [1]), ONE)
    assert fenced
    newer.close()


def test_a_fence_ends_a_trial_that_is_under_way(spark: SparkSession, pg_database: str) -> None:
    """What it wrote and holds would be waited for by the newer one's own trial and publish."""
    made = (
        "CREATE TABLE flights (id bigint UNIQUE, attempt text); CREATE FUNCTION linger() RETURNS trigger"
        " LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';"
        " CREATE TRIGGER linger AFTER INSERT ON flights EXECUTE FUNCTION linger()"
    )
    sink, newer = (
        ready(pg_database, rows(spark, []), made, answer_timeout=90.0),
        support.sink(pg_database, mode=Plain()),
    )
    lingering = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    errors: list[Exception] = []

    def prepare() -> None:
        try:
            sink.prepare(epoch(), rows(spark, [1]), ONE)
        except SinkUnavailable as error:
            errors.append(error)

    trial = threading.Thread(target=prepare)
    trial.start()
    deadline = time.monotonic() + 120
    while not observe(pg_database, lingering):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    newer.fence(QUERY, TWO)
    assert observe(pg_database, lingering) == []
    trial.join(60)
    assert len(errors) == 1
    newer.close()


# --- what only the publish can see ----------------------------------------------------------------


def test_what_another_writer_did_after_the_trial_ends_the_commit_and_is_never_skipped(
    spark: SparkSession, pg_database: str
) -> None:
    sink = ready(pg_database, rows(spark, []), "CREATE TABLE flights (id bigint UNIQUE, attempt text)")
    vote = sink.prepare(epoch(), rows(spark, [1, 2]), ONE)
    observe(pg_database, "INSERT INTO flights VALUES (2, 'theirs')")
    for _ in range(2):
        with pytest.raises(ServerRefused, match="flights_id_key") as error:
            sink.commit(vote, ONE)
        assert "SQLSTATE 23505" in str(error.value.state)
    assert (visible(pg_database), len(staged(pg_database))) == ([2], 2)
    assert sink.look(QUERY).marker is None
    observe(pg_database, "DELETE FROM flights")
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1, 2]


def test_without_a_trial_the_commit_finds_it(spark: SparkSession, pg_database: str) -> None:
    table = "CREATE TABLE flights (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, attempt text)"
    sink = ready(pg_database, rows(spark, []), table, mode=Plain(trial=False))
    vote = sink.prepare(epoch(), rows(spark, [1, 1]), ONE)
    with pytest.raises(ServerRefused, match="flights_id_key"):
        sink.commit(vote, ONE)
    assert sink.look(QUERY).marker is None


def test_keys_are_looked_at_without_a_trial_too(spark: SparkSession, pg_database: str) -> None:
    sink = ready(pg_database, rows(spark, []), mode=Upsert(key="id", trial=False))
    assert "key (id) = (1): 2 rows" in refused(sink, rows(spark, [1, 1])).what


# --- the same conditions, in the same write -------------------------------------------------------


@pytest.fixture(params=[Plain(), KEYED], ids=["plain", "upsert"])
def sink(request: pytest.FixtureRequest, pg_database: str) -> PostgresSink:
    made = support.sink(pg_database, mode=request.param)
    made.create(QUERY, support.SCHEMA)
    made.look(QUERY)
    made.fence(QUERY, ONE)
    return made


def staged_task(dsn: str, **changed: Any) -> Any:
    copy = "COPY flights__staged (id, attempt, _epoch, _attempt) FROM STDIN (FORMAT binary)"
    return task(dsn, copy=copy, table="flights__staged", **changed)


def voted(sink: PostgresSink, votes: list[dict[str, Any]]) -> Committable:
    vote = support.voted(votes, epoch())
    plan = Publish(("id", "attempt"), *((("id",), ("attempt",)) if sink._core.staging == KEYED else ()))
    vote.payload["publish"] = plan.to_json()
    return vote


def test_rows_of_losing_attempts_are_removed_and_never_shown(sink: PostgresSink, pg_database: str) -> None:
    write_partition(staged_task(pg_database), batches([1, 7]))
    winner = write_partition(staged_task(pg_database), batches([1, 2]))
    assert sink.commit(voted(sink, [winner]), ONE) is CommitOutcome.COMMITTED
    assert (visible(pg_database), staged(pg_database), registered(pg_database)) == ([1, 2], [], [])


def test_a_late_twin_and_a_zombie_leave_nothing(sink: PostgresSink, pg_database: str) -> None:
    winner = write_partition(staged_task(pg_database), batches([1]))
    sink.commit(voted(sink, [winner]), ONE)
    assert write_partition(staged_task(pg_database), batches([1])) == {
        "stale": {"fence": ONE.to_json(), "published": 1}
    }
    sink.fence(QUERY, TWO)
    late = write_partition(staged_task(pg_database, position=2), batches([2]))
    assert late == {"stale": {"fence": TWO.to_json(), "published": 1}}
    assert (visible(pg_database), staged(pg_database)) == ([1], [])


def test_a_lost_row_is_noticed_and_redone(sink: PostgresSink, pg_database: str) -> None:
    vote = voted(sink, [write_partition(staged_task(pg_database), batches(range(5)))])
    observe(pg_database, "DELETE FROM flights__staged WHERE id = 3")
    with pytest.raises(PreparedLost, match="attempt 1 of 5 rows has 4"):
        sink.commit(vote, ONE)
    assert visible(pg_database) == []
    again = voted(sink, [write_partition(staged_task(pg_database), batches(range(5)))])
    assert sink.commit(again, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == list(range(5))


def test_rows_marker_and_the_end_of_staging_are_seen_at_once(sink: PostgresSink, pg_database: str) -> None:
    vote = voted(sink, [write_partition(staged_task(pg_database), batches([1, 2]))])
    reads: list[tuple[object, ...]] = []

    def read(_point: Point, _sink: str, _epoch: int) -> None:
        [markers] = observe(pg_database, "SELECT (SELECT count(*) FROM epochal.epochs), published FROM epochal.sinks")
        reads.append((*markers, visible(pg_database), len(staged(pg_database))))

    with failpoints.handler(read):
        sink.commit(vote, ONE)
    assert reads == [(0, 0, [], 2), (1, 1, [1, 2], 0)]


def test_an_error_or_a_crash_inside_the_publish_shows_nothing(sink: PostgresSink, pg_database: str) -> None:
    vote = voted(sink, [write_partition(staged_task(pg_database), batches([1]))])
    with failpoints.armed("before-publish@out:0=raise"), pytest.raises(FailpointError):
        sink.commit(vote, ONE)

    def end(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.BEFORE_PUBLISH:
            open_ones = "WHERE state = 'idle in transaction' AND datname = current_database()"
            observe(pg_database, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity {open_ones}")

    with failpoints.handler(end), pytest.raises(SinkUnavailable, match="nothing became visible"):
        sink.commit(vote, ONE)
    assert (visible(pg_database), len(staged(pg_database))) == ([], 1)
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1]


def test_a_publish_waits_for_a_row_of_another_writer_within_its_limit(pg_database: str) -> None:
    sink = support.sink(pg_database, mode=KEYED, lock_timeout=1.0)
    sink.create(QUERY, support.SCHEMA)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    vote = voted(sink, [write_partition(staged_task(pg_database), batches([1]))])
    observe(pg_database, "INSERT INTO flights VALUES (1, 'old')")
    with psycopg.connect(pg_database) as other:
        other.execute("UPDATE flights SET attempt = 'theirs'")
        with pytest.raises(SinkUnavailable, match="lock timeout"):
            sink.commit(vote, ONE)
        other.commit()
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert observe(pg_database, "SELECT * FROM flights") == [(1, "task")]


# --- with the coordinator -------------------------------------------------------------------------


@dataclass
class Batch:
    """What Spark hands over in epoch 0."""

    rows: DataFrame
    run: str = "r1"
    discarded: int = 0

    @property
    def ask(self) -> EpochRequest:
        return EpochRequest(replace(QUERY, run_id=self.run), 0, "print-0")

    def discard(self) -> None:
        self.discarded += 1

    def confirm(self) -> None:
        """Nothing else writes here."""


def started(sink: PostgresSink, log: MemoryLog, run: str = "r1") -> Coordinator:
    """A start of its own over the same log."""
    retry = Retry(attempts=2, sleep=lambda _: None)
    return Coordinator(query=replace(QUERY, run_id=run), sinks=[sink], log=log, retry=retry)


def test_decided_rows_that_the_table_refuses_end_in_doubt_and_are_finished_later(
    spark: SparkSession, pg_database: str
) -> None:
    made = "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text CONSTRAINT ours CHECK (attempt <> 'a'))"
    mode = Upsert(key="id", trial=False)
    observe(pg_database, made)
    support.sink(pg_database, mode=mode).create(QUERY, support.SCHEMA)
    log, frame = MemoryLog(), rows(spark, [1, 2])
    with pytest.raises(CommitInDoubt) as doubt:
        started(support.sink(pg_database, mode=mode), log).run(Batch(frame))
    assert doubt.value.what.startswith("decided, and not yet visible in out: ")
    assert 'violates check constraint "ours"' in doubt.value.what
    assert "then restart the query: it will finish this epoch first" in doubt.value.help
    assert (visible(pg_database), len(staged(pg_database))) == ([], 2)
    with pytest.raises(CommitInDoubt, match='violates check constraint "ours"'):
        started(support.sink(pg_database, mode=mode), log, "r2").run(Batch(frame, "r2"))
    observe(pg_database, "ALTER TABLE flights DROP CONSTRAINT ours")
    batch = Batch(frame, "r3")
    assert started(support.sink(pg_database, mode=mode), log, "r3").run(batch).replayed
    assert (visible(pg_database), staged(pg_database), batch.discarded) == ([1, 2], [], 1)


def test_staged_rows_that_were_lost_are_evaluated_and_decided_again(spark: SparkSession, pg_database: str) -> None:
    support.sink(pg_database, mode=KEYED).create(QUERY, support.SCHEMA)
    log = MemoryLog()
    with failpoints.armed("after-decide=raise"), pytest.raises(FailpointError):
        started(support.sink(pg_database, mode=KEYED), log).run(Batch(rows(spark, [1, 2])))
    assert len(staged(pg_database)) == 2
    observe(pg_database, "TRUNCATE flights__staged")
    again = Batch(rows(spark, [1, 2], "again"), "r2")
    started(support.sink(pg_database, mode=KEYED), log, "r2").run(again)
    assert observe(pg_database, "SELECT * FROM flights ORDER BY id") == [(1, "again"), (2, "again")]
    assert staged(pg_database) == []
