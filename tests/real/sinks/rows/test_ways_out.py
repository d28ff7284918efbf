"""Rows whose key or order tells nothing: each help is followed, and the rows are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.functions import expr

from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.postgres import Upsert
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, epoch, observe

pytestmark = pytest.mark.wide

KEYED = Upsert(key="id")
ORDERED = Upsert(key="id", order_by="seq")
SHAPE = "id long, a string, seq long, more long"
Way = tuple[Upsert, Callable[[DataFrame], DataFrame]]


def as_it_is(df: DataFrame) -> DataFrame:
    return df


def aggregated(df: DataFrame) -> DataFrame:
    return df.groupBy("id").agg(*(f.max(name).alias(name) for name in ("a", "seq", "more")))


def shown(dsn: str, frame: DataFrame, mode: Upsert) -> None:
    """Show the frame as a start shows its first epoch."""
    sink = support.sink(dsn, mode=mode)
    try:
        sink.create(QUERY, frame.schema)
        sink.check(QUERY, frame.schema)
        sink.look(QUERY)
        sink.fence(QUERY, ONE)
        assert sink.commit(sink.prepare(epoch(), frame, ONE), ONE) is CommitOutcome.COMMITTED
    finally:
        sink.close()


@pytest.mark.parametrize(
    ("mode", "rows", "ways", "becomes"),
    [
        pytest.param(
            KEYED,
            [(1, "x", 1, 1), (1, "y", 2, 1)],
            [(ORDERED, as_it_is), (KEYED, aggregated)],
            [(1, "y")],
            marks=pytest.mark.remedy(
                "key (…) = ……", "give …(order_by=...) columns by which the last row wins, or aggregate"
            ),
            id="a key twice",
        ),
        pytest.param(
            ORDERED,
            [(1, "x", 1, 1), (1, "y", 1, 2)],
            [(Upsert(key="id", order_by=["seq", "more"]), as_it_is)],
            [(1, "y")],
            marks=pytest.mark.remedy("key (…) = ……", "add a column to order_by= that tells these rows apart"),
            id="a tie",
        ),
        pytest.param(
            ORDERED,
            [(None, "x", 1, 1), (1, "y", None, 1), (2, "z", 1, 1)],
            [
                (ORDERED, lambda df: df.where("id IS NOT NULL AND seq IS NOT NULL")),
                (ORDERED, lambda df: df.withColumns({c: f.coalesce(c, f.lit(0)) for c in ("id", "seq")})),
            ],
            None,
            marks=pytest.mark.remedy(
                "rows with NULL in a column of key= or order_by=: …",
                "drop these rows in the query, or give them a value with coalesce()",
            ),
            id="no key",
        ),
    ],
)
def test_what_the_help_says_is_shown(
    spark: SparkSession,
    pg_database: str,
    mode: Upsert,
    rows: Sequence[tuple[object, ...]],
    ways: Sequence[Way],
    becomes: Sequence[tuple[object, ...]] | None,
) -> None:
    """Each way is tried by itself, and begins with the same table."""
    given = spark.createDataFrame(rows, SHAPE)
    for changed, query in ways:
        observe(pg_database, "DROP SCHEMA IF EXISTS epochal CASCADE; DROP TABLE IF EXISTS flights, flights__staged")
        observe(pg_database, "CREATE TABLE flights (id bigint UNIQUE, a text, seq bigint, more bigint)")
        with pytest.raises(PrepareRefused):
            shown(pg_database, given, mode)
        shown(pg_database, query(given), changed)
        told = observe(pg_database, "SELECT id, a FROM flights ORDER BY id")
        assert told == (becomes if becomes is not None else sorted((r.id, r.a) for r in query(given).collect()))


@pytest.mark.remedy(
    "delete_when= names the column …, which is …",
    "name a boolean column, for instance withColumn('deleted', expr(\"op = 'd'\"))",
)
def test_a_column_that_says_what_is_deleted(spark: SparkSession, pg_database: str) -> None:
    observe(pg_database, "CREATE TABLE flights (id bigint UNIQUE, op text); INSERT INTO flights VALUES (1, 'i')")
    given = spark.createDataFrame([(1, "d"), (2, "i")], "id long, op string")
    deleting = replace(KEYED, delete_when="op")
    with pytest.raises(Misconfigured, match="delete_when= names the column 'op', which is text") as refused:
        shown(pg_database, given, deleting)
    assert "withColumn('deleted', expr(\"op = 'd'\"))" in refused.value.help
    shown(pg_database, given.withColumn("deleted", expr("op = 'd'")), replace(KEYED, delete_when="deleted"))
    assert observe(pg_database, "SELECT * FROM flights") == [(2, "i")]
