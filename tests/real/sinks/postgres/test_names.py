"""Names of users that meet ours, or words of SQL: columns in every role, tables, views and schemas."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.hostile import NAMES, Feed, days, numbers
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, SCHEMA, epoch, observe, rows, visible


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def ready(dsn: str, schema: StructType, **options: Any) -> PostgresSink:
    sink = support.sink(dsn, **options)
    sink.create(QUERY, schema)
    sink.check(QUERY, schema)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    return sink


def show(sink: PostgresSink, frame: Any, number: int = 0) -> None:
    assert sink.commit(sink.prepare(epoch(number), frame, ONE), ONE) is CommitOutcome.COMMITTED


def shown(dsn: str, names: list[str], table: str = "flights") -> list[tuple[Any, ...]]:
    columns = ", ".join(map(quoted, names))
    return sorted(observe(dsn, f"SELECT {columns} FROM {quoted(table)}"))


def of_the_database(dsn: str, setting: str) -> None:
    """Set something for all new sessions of this database."""
    made = f"ALTER DATABASE %I SET {setting}".replace("'", "''")
    observe(dsn, f"DO $$BEGIN EXECUTE format('{made}', current_database()); END$$")


def refused(sink: PostgresSink, schema: StructType = SCHEMA) -> Misconfigured:
    """``check`` says the same as ``create``."""
    found = []
    for ask in (sink.create, sink.check):
        with pytest.raises(Misconfigured) as error:
            ask(QUERY, schema)
        found.append(error.value)
    assert str(found[0]) == str(found[1])
    return found[0]


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Append(), Plain()])
def test_columns_of_every_name_are_inserted(spark: SparkSession, pg_database: str, mode: Any) -> None:
    """P2, P3: also where a name is no name in SQL, or means something else there."""
    frame = days(spark, NAMES, 1, 2)
    show(ready(pg_database, frame.schema, mode=mode), frame)
    assert shown(pg_database, list(NAMES)) == sorted(map(tuple, frame.collect()))


@pytest.mark.parametrize("mode", [Append(), Plain()])
def test_columns_that_need_no_conversion_may_have_every_name(spark: SparkSession, pg_database: str, mode: Any) -> None:
    """P3: the rows go to the tasks as they are, and pyspark takes ``a.b`` for a field."""
    frame = numbers(spark, NAMES)
    show(ready(pg_database, frame.schema, mode=mode), frame)
    assert shown(pg_database, list(NAMES)) == [tuple(range(len(NAMES)))]


def upserted(spark: SparkSession, dsn: str, feed: Feed) -> None:
    first = feed.first(spark)
    sink = ready(dsn, first.schema, mode=Upsert(**feed.options))
    show(sink, first)
    show(sink, feed.second(spark), 1)
    assert shown(dsn, feed.written) == sorted(feed.left)


@pytest.mark.parametrize("turn", [0, NAMES.index("place") - 1])
def test_columns_of_every_name_have_every_role_of_an_upsert(spark: SparkSession, pg_database: str, turn: int) -> None:
    """P2, P3."""
    upserted(spark, pg_database, Feed(NAMES, turn))


@pytest.mark.wide
@pytest.mark.parametrize("turn", range(1, len(NAMES)))
def test_columns_of_every_name_have_each_role_of_an_upsert(spark: SparkSession, pg_database: str, turn: int) -> None:
    """P2: few columns, each of which is the only key, the only order, the flag of deletions and a value in turn."""
    upserted(spark, pg_database, Feed((*NAMES, *NAMES)[turn : turn + 4]))


@pytest.mark.parametrize(
    ("key", "order"), [("place", "seq"), ("count", ()), (("left", "a"), ()), ("new", "shown"), ("excluded", "staged")]
)
def test_a_key_is_called_like_a_part_of_our_sql(
    spark: SparkSession, pg_database: str, key: str | tuple[str, ...], order: str | tuple[str, ...]
) -> None:
    """P2: keys and order that stood beside a name of ours in one statement."""
    mode = Upsert(key=key, order_by=order)
    names = [*mode.keys, *mode.order]
    schema = StructType()
    for name in (*names, "v"):
        schema = schema.add(name, LongType())
    frame = spark.createDataFrame([(1,) * len(schema), (2,) * len(schema)], schema)
    sink = ready(pg_database, schema, mode=mode)
    show(sink, frame)
    assert shown(pg_database, [*names, "v"]) == [(1,) * len(schema), (2,) * len(schema)]


def test_columns_that_differ_only_in_case(spark: SparkSession, pg_database: str) -> None:
    """P2: where the session tells them apart."""
    names = ["id", "Id", "iD", "ID", "Excluded", "EXCLUDED", "PLACE", "Place", "v"]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        upserted(spark, pg_database, Feed(names))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("name", ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", "a\0b"])
def test_a_column_that_postgres_has_itself_is_refused_by_name(pg_database: str, name: str) -> None:
    """P15."""
    for mode in (Append(), Plain()):
        error = refused(support.sink(pg_database, mode=mode), StructType().add(name, "long"))
        assert error.what.startswith(f"the column name {name!r} ")
        assert error.help == "rename the column in the query"


# --- tables and views -----------------------------------------------------------------------------

TABLES = [name for name in NAMES if "." not in name and len(name.encode()) <= 55]


@pytest.mark.parametrize("table", ["excluded", "new", "a\\b"])
def test_a_table_is_called_like_a_part_of_our_sql(spark: SparkSession, pg_database: str, table: str) -> None:
    """P2: a backslash means itself, whatever the role sets."""
    of_the_database(pg_database, "standard_conforming_strings = off")
    for mode in (Upsert(key="id", order_by="attempt"), Append()):
        name = table if isinstance(mode, Upsert) else f"{table}s"
        sink = ready(pg_database, SCHEMA, table=name, mode=mode, name=type(mode).__name__)
        show(sink, rows(spark, [1, 2]))
        show(sink, rows(spark, [3]), 1)
        assert [key for key, _ in shown(pg_database, ["id", "attempt"], name)] == [1, 2, 3]


@pytest.mark.wide
@pytest.mark.parametrize("table", TABLES)
def test_tables_of_every_name(spark: SparkSession, pg_database: str, table: str) -> None:
    for mode in (Upsert(key="id", order_by="attempt", delete_when="gone"), Append()):
        name = table if isinstance(mode, Upsert) else f"{table}s"
        frame = rows(spark, [1, 2]).selectExpr("*", "id = 2 AS gone")
        sink = ready(pg_database, frame.schema, table=name, mode=mode, name=type(mode).__name__)
        show(sink, frame)
        assert [key for (key,) in shown(pg_database, ["id"], name)] == ([1] if isinstance(mode, Upsert) else [1, 2])


@pytest.mark.parametrize("mode", [Append(), Plain()])
@pytest.mark.parametrize(
    ("there", "given", "meant"),
    [
        ("CREATE TABLE flights (id bigint, attempt text)", "Flights", "flights"),
        ("CREATE TABLE flights (id bigint, attempt text)", '"flights"', "flights"),
        ('CREATE TABLE "Flights" (id bigint, attempt text)', "flights", "Flights"),
        ("CREATE TABLE flights (id bigint, attempt text)", "public.FLIGHTS", "public.flights"),
        ("CREATE TABLE flights (id bigint, attempt text)", '"public"."flights"', "public.flights"),
        ("CREATE TABLE flights (id bigint, attempt text)", "Public.flights", "public.flights"),
    ],
)
def test_a_table_that_is_spelt_otherwise_is_not_made_a_second_time(
    spark: SparkSession, pg_database: str, mode: Any, there: str, given: str, meant: str
) -> None:
    """P12: the error says the spelling that works."""
    observe(pg_database, there)
    error = refused(support.sink(pg_database, table=given, mode=mode))
    assert f"give table={meant!r}" in error.help
    assert len(observe(pg_database, "SELECT FROM pg_tables WHERE schemaname IN ('public', 'epochal')")) == 1
    sink = ready(pg_database, SCHEMA, table=meant, mode=mode)
    show(sink, rows(spark, [1]))


def test_a_table_of_ours_that_is_spelt_otherwise_is_not_made_a_second_time(pg_database: str) -> None:
    """P12: a table that a sink has made, also without its view; and a view= of its own."""
    ready(pg_database, SCHEMA)
    assert refused(support.sink(pg_database, table="FLIGHTS")).help.startswith("give table='flights'")
    observe(pg_database, "DROP VIEW flights")
    assert refused(support.sink(pg_database, table="FLIGHTS")).help.startswith("give table='flights'")
    observe(pg_database, "CREATE VIEW shown AS SELECT 1 AS id")
    error = refused(support.sink(pg_database, view="Shown"))
    assert error.what == "view='Shown' differs only in case or quotes from \"shown\", which exists"


def test_two_tables_whose_names_differ_in_case_are_two_tables(spark: SparkSession, pg_database: str) -> None:
    """P12: whoever has both may use both."""
    observe(
        pg_database, 'CREATE TABLE flights (id bigint, attempt text); CREATE TABLE "Flights" (id bigint, attempt text)'
    )
    for table in ("flights", "Flights"):
        show(ready(pg_database, SCHEMA, table=table, name=f"out-{table}"), rows(spark, [1]))
    assert visible(pg_database) == [1]


@pytest.mark.parametrize("mode", [Append(), Plain()])
def test_a_schema_that_does_not_exist_is_refused_by_name(pg_database: str, mode: Any) -> None:
    """P15: and the help leads out."""
    sink = support.sink(pg_database, table="nosuch.t", mode=mode)
    error = refused(sink)
    assert error.what == "table='nosuch.t' names the schema \"nosuch\", which does not exist"
    observe(pg_database, error.help.partition(", or")[0])
    ready(pg_database, SCHEMA, table="nosuch.t", mode=mode)
    if isinstance(mode, Append):
        assert "view='gone.v'" in refused(support.sink(pg_database, view="gone.v")).what


def test_a_role_without_a_schema_on_its_search_path_is_refused_by_name(pg_database: str) -> None:
    """P15: a sibling, which the server refuses with as few words."""
    of_the_database(pg_database, "search_path = ''")
    error = refused(support.sink(pg_database))
    assert error.what.startswith("table='flights' names no schema")
    assert error.help == "give table='schema.flights'"


# --- columns of a table that is there -------------------------------------------------------------


@pytest.mark.parametrize("evolves", [False, True])
@pytest.mark.parametrize("mode", [Append(), Plain(), Upsert(key="Id")])
def test_a_column_that_the_table_spells_otherwise_is_not_added(
    spark: SparkSession, pg_database: str, mode: Any, *, evolves: bool
) -> None:
    """P12: the help renames the column, and does not add a second one."""
    observe(
        pg_database,
        "CREATE TABLE flights (id bigint UNIQUE, attempt text)"
        if isinstance(mode, Upsert)
        else "CREATE TABLE flights (id bigint, attempt text)",
    )
    frame = rows(spark, [1]).withColumnRenamed("id", "Id")
    sink = support.sink(pg_database, mode=mode, schema_evolution=evolves)
    with pytest.raises(Misconfigured) as error:
        sink.create(QUERY, frame.schema)
    assert error.value.what == '"flights" has no column "Id", only "id"'
    assert "withColumnRenamed('Id', 'id')" in error.value.help
    assert [name for (name,) in observe(pg_database, COLUMNS)] == ["id", "attempt"]
    again = frame.withColumnRenamed("Id", "id")
    mode = Upsert(key="id") if isinstance(mode, Upsert) else mode
    show(ready(pg_database, again.schema, mode=mode, schema_evolution=evolves), again)
    assert visible(pg_database) == [1]


COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = 'flights'::regclass AND attnum > 0 ORDER BY attnum"


def test_a_column_beside_its_twin_may_be_added(spark: SparkSession, pg_database: str) -> None:
    """P12: rows that have both names mean both."""
    sink = support.sink(pg_database, schema_evolution=True)
    sink.create(QUERY, SCHEMA)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = rows(spark, [1]).selectExpr("id", "attempt", "id AS Id")
        show(ready(pg_database, frame.schema, schema_evolution=True), frame)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert shown(pg_database, ["id", "Id"]) == [(1, 1)]


def test_a_view_that_is_called_like_ours_for_a_moment_is_compared_nonetheless(pg_database: str) -> None:
    """P2: the name of the temporary view with which evolution compares the reader view."""
    options = {"table": "epochal_same", "schema_evolution": True}
    ready(pg_database, SCHEMA, **options)
    observe(
        pg_database,
        "DROP VIEW epochal_same; CREATE VIEW epochal_same AS SELECT id, attempt FROM epochal_same__rows"
        " WHERE (_epoch > (SELECT published FROM epochal.sinks)) IS FALSE AND id < 5",
    )
    with pytest.raises(Misconfigured, match="is not the one that create"):
        support.sink(pg_database, **options).create(QUERY, StructType([*SCHEMA.fields]).add("more", LongType()))
