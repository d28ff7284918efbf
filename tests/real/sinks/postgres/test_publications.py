"""Publications of others: what a sink needs so that the server lets it update and delete, and when it is told."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, LongType, StringType, StructType

from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, SCHEMA, TWO, epoch, observe, ready, rows, visible

EVERYTHING = "CREATE PUBLICATION everything FOR ALL TABLES"
UNKEYED = "CREATE TABLE flights (id bigint UNIQUE, attempt text)"
MODES = [Append(), Plain(), Upsert(key="id"), Upsert(key="id", trial=False)]
FEED = StructType().add("id", LongType()).add("attempt", StringType()).add("gone", BooleanType())


def of_rows(mode: Any) -> str:
    return "flights__rows" if mode == Append() else "flights__staged"


def show(sink: PostgresSink, spark: SparkSession, number: int, *ids: int) -> None:
    assert sink.commit(sink.prepare(epoch(number), rows(spark, ids), ONE), ONE) is CommitOutcome.COMMITTED


@pytest.mark.parametrize("mode", MODES, ids=map(repr, MODES))
def test_a_publication_of_all_tables_bars_nothing(spark: SparkSession, pg_database: str, mode: Any) -> None:
    """P1: made while the query runs; the next start checks and aborts as ever."""
    sink = ready(pg_database, mode=mode)
    show(sink, spark, 0, 1)
    observe(pg_database, EVERYTHING)
    show(sink, spark, 1, 2)
    sink.prepare(epoch(2), rows(spark, [3]), ONE)
    again = support.sink(pg_database, mode=mode)
    again.check(QUERY, SCHEMA)
    again.look(QUERY)
    again.fence(QUERY, TWO)
    again.abort(QUERY, TWO)
    assert visible(pg_database) == [1, 2]
    assert observe(pg_database, f"SELECT count(*) FROM {of_rows(mode)} WHERE _epoch > 2") == [(0,)]


PUBLICATIONS = [
    "FOR ALL TABLES",
    "FOR TABLE {}",
    "FOR TABLES IN SCHEMA public",
    "FOR TABLE {} WITH (publish = 'delete')",
]


def forget_identity(dsn: str, mode: Any) -> PostgresSink:
    """A sink whose tables an older Epochal made."""
    sink = ready(dsn, mode=mode)
    observe(dsn, f"ALTER TABLE {of_rows(mode)} REPLICA IDENTITY DEFAULT")
    return sink


@pytest.mark.parametrize("publication", PUBLICATIONS)
@pytest.mark.parametrize("mode", [Append(), Plain()], ids=["append", "plain"])
@pytest.mark.remedy(
    "… has no replica identity, so its publication … makes the server refuse …", "ALTER TABLE … REPLICA IDENTITY FULL…"
)
def test_check_refuses_a_table_from_before_with_the_alter(pg_database: str, mode: Any, publication: str) -> None:
    """P1: nothing is asked of it until a publication makes the server refuse its deletes."""
    sink = forget_identity(pg_database, mode)
    sink.check(QUERY, SCHEMA)
    observe(pg_database, f"CREATE PUBLICATION p {publication.format(of_rows(mode))}")
    with pytest.raises(Misconfigured) as refused:
        sink.check(QUERY, SCHEMA)
    assert refused.value.what == (
        f"{of_rows(mode)} has no replica identity, so its publication p makes the server refuse deletes"
    )
    observe(pg_database, refused.value.help)
    sink.check(QUERY, SCHEMA)


@pytest.mark.parametrize("mode", MODES, ids=map(repr, MODES))
def test_create_mends_a_table_from_before(pg_database: str, mode: Any) -> None:
    """P1: if a publication asks for it, and never before: that would need a lock that readers feel."""
    sink = forget_identity(pg_database, mode)
    assert list(sink.create(QUERY, SCHEMA)) == []
    observe(pg_database, EVERYTHING)
    assert next(iter(sink.create(QUERY, SCHEMA))) == f'gave "{of_rows(mode)}" a replica identity'
    sink.check(QUERY, SCHEMA)


@pytest.mark.parametrize("mode", MODES, ids=map(repr, MODES))
def test_prepare_refuses_what_a_new_publication_would_refuse_after_the_decision(
    spark: SparkSession, pg_database: str, mode: Any
) -> None:
    """P1: with the statement that mends it."""
    sink = forget_identity(pg_database, mode)
    show(sink, spark, 0, 1)
    observe(pg_database, EVERYTHING)
    with pytest.raises(PrepareRefused, match="publication everything makes the server refuse deletes") as refused:
        sink.prepare(epoch(1), rows(spark, [2]), ONE)
    assert refused.value.help == f"ALTER TABLE {of_rows(mode)} REPLICA IDENTITY FULL"
    observe(pg_database, refused.value.help)
    sink.abort(QUERY, ONE)
    show(sink, spark, 1, 2)
    assert visible(pg_database) == [1, 2]


KEYED = Upsert(key="id")
TARGETS = {
    "updates": (KEYED, UNKEYED, "FOR TABLE flights", "flights", "updates"),
    "updates of none": (Upsert(key="id", update=()), UNKEYED, "FOR TABLE flights", None, None),
    "inserts alone": (KEYED, UNKEYED, "FOR TABLE flights WITH (publish = 'insert')", None, None),
    "a key that serves": (KEYED, UNKEYED.replace("UNIQUE", "PRIMARY KEY"), "FOR TABLE flights", None, None),
    "a key that is named": (
        KEYED,
        "CREATE TABLE flights (id bigint NOT NULL UNIQUE, attempt text);"
        " ALTER TABLE flights REPLICA IDENTITY USING INDEX flights_id_key",
        "FOR TABLE flights",
        None,
        None,
    ),
    "deletes": (
        Upsert(key="id", delete_when="gone", update=()),
        UNKEYED,
        "FOR TABLE flights WITH (publish = 'insert, delete')",
        "flights",
        "deletes",
    ),
    "of a partition": (
        KEYED,
        "CREATE TABLE flights (id bigint UNIQUE, attempt text) PARTITION BY RANGE (id);"
        " CREATE TABLE low PARTITION OF flights FOR VALUES FROM (0) TO (10)",
        "FOR TABLE low",
        "low",
        "updates",
    ),
    "through the partitioned table": (
        KEYED,
        "CREATE TABLE flights (id bigint UNIQUE, attempt text) PARTITION BY RANGE (id);"
        " CREATE TABLE low PARTITION OF flights FOR VALUES FROM (0) TO (10);"
        " ALTER TABLE flights REPLICA IDENTITY FULL",
        "FOR TABLE flights",
        "low",
        "updates",
    ),
}


@pytest.mark.parametrize(("mode", "table", "publication", "which", "what"), TARGETS.values(), ids=TARGETS)
def test_a_target_needs_an_identity_for_what_the_mode_does_and_is_published(
    pg_database: str, mode: Any, table: str, publication: str, which: str | None, what: str | None
) -> None:
    """P1: of somebody else's table; `create` changes nothing of it, and says the same."""
    observe(pg_database, f"{table}; CREATE PUBLICATION p {publication}")
    schema = FEED if mode.delete_when else SCHEMA
    sink = support.sink(pg_database, mode=mode)
    sink.create(QUERY, schema)
    if which is None:
        sink.check(QUERY, schema)
        return
    with pytest.raises(Misconfigured) as refused:
        sink.check(QUERY, schema)
    assert refused.value.what == f"{which} has no replica identity, so its publication p makes the server refuse {what}"
    observe(pg_database, refused.value.help)
    sink.check(QUERY, schema)


@pytest.mark.parametrize(
    ("mode", "published"),
    [
        (Append(), "flights__rows (id)"),
        (Plain(), "flights__staged (id)"),
        (Upsert(key="id", delete_when="gone", trial=False), "flights WHERE (attempt > 'a')"),
    ],
    ids=["append", "plain", "upsert"],
)
def test_a_filter_or_a_list_of_columns_is_judged_by_the_server(
    spark: SparkSession, pg_database: str, mode: Any, published: str
) -> None:
    """P1: whatever it is that a publication does not let through, before the vote."""
    sink = support.sink(pg_database, mode=mode)
    sink.create(QUERY, FEED)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    observe(pg_database, f"CREATE PUBLICATION p FOR TABLE {published}")
    frame = rows(spark, [1]).selectExpr("id", "attempt", "false gone")
    with pytest.raises(PrepareRefused, match=r"cannot (update|delete from) table"):
        sink.prepare(epoch(), frame, ONE)
    with pytest.raises(Misconfigured, match=r"cannot (update|delete from) table"):
        sink.check(QUERY, FEED)
    observe(pg_database, "DROP PUBLICATION p")
    assert sink.commit(sink.prepare(epoch(), frame, ONE), ONE) is CommitOutcome.COMMITTED


@pytest.mark.parametrize("mode", MODES, ids=map(repr, MODES))
def test_a_right_that_is_taken_away_while_the_query_runs_is_missed_before_the_vote(
    spark: SparkSession, pg_database: str, mode: Any
) -> None:
    """P1: rights are of the same kind: every statement of the publish is asked about in prepare."""
    ready(pg_database, mode=mode)
    role = f"writer_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {role} LOGIN IN ROLE pg_read_all_data; GRANT INSERT ON epochal.epochs TO {role}")
    observe(pg_database, f"GRANT ALL ON SCHEMA epochal TO {role}; GRANT ALL ON SEQUENCE epochal.attempt TO {role}")
    tables = f"epochal.sinks, epochal.attempts, {of_rows(mode)}, flights"
    observe(pg_database, f"GRANT ALL ON {tables} TO {role}")
    sink = PostgresSink(pg_database.replace("postgres@", f"{role}@"), table="flights", name="out", mode=mode)
    try:
        sink.look(QUERY)
        show(sink, spark, 0, 1)
        observe(pg_database, f"REVOKE INSERT ON epochal.epochs FROM {role}")
        with pytest.raises(PrepareRefused, match="permission denied for table epochs"):
            sink.prepare(epoch(1), rows(spark, [2]), ONE)
    finally:
        sink.close()
        observe(pg_database, f"DROP OWNED BY {role}; DROP ROLE {role}")
