"""Tables, names and columns that a sink refuses: each help, followed to the letter, makes a table that it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.types import (
    BinaryType,
    CalendarIntervalType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.postgres import Plain, PostgresSink, Upsert
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import QUERY, SCHEMA, observe

pytestmark = pytest.mark.wide

Way = Callable[[str], "tuple[str, dict[str, Any], StructType]"]
"""What somebody does who reads the help: SQL, other arguments, other columns."""

PLAIN: dict[str, Any] = {"mode": Plain()}
KEYED: dict[str, Any] = {"mode": Upsert(key="id")}
TABLE = "CREATE TABLE flights (id bigint, attempt text)"
ID = StructType().add("id", LongType())
NESTED = StructType().add("id", LongType()).add("attempt", MapType(StringType(), StringType()))


def sql(given: dict[str, Any], columns: StructType = SCHEMA) -> Way:
    """Run the statements with which the help begins."""
    return lambda told: (re.split(r", (?:or|and) |; or ", told)[0], given, columns)


def do(statement: str = "SELECT", columns: StructType = SCHEMA, **given: Any) -> Way:
    return lambda _: (statement, given, columns)


def value_of(name: str, **given: Any) -> Way:
    """Give the argument that the help spells out."""

    def way(told: str) -> tuple[str, dict[str, Any], StructType]:
        found = re.search(rf"{name}='([^']*)'", told)
        assert found is not None
        return "SELECT", {**given, name: found[1]}, SCHEMA

    return way


ELSEWHERE = do(table="others")


@pytest.mark.parametrize(
    ("made", "given", "columns", "ways"),
    [
        pytest.param(
            TABLE,
            KEYED,
            SCHEMA,
            [sql(KEYED), do("ALTER TABLE flights ADD UNIQUE (attempt)", mode=Upsert(key="attempt"))],
            marks=pytest.mark.remedy(
                "… has no unique constraint on just the key (…)",
                "ALTER TABLE … ADD UNIQUE (…), or name the columns of one that is there",
            ),
            id="no unique constraint",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint)",
            PLAIN,
            SCHEMA,
            [sql(PLAIN), do(mode=Plain(), schema_evolution=True)],
            marks=pytest.mark.remedy(
                "… has no column …",
                "ALTER TABLE … ADD COLUMN … …, and add it to the reader view if there is one; or give"
                " schema_evolution=True",
            ),
            id="no column",
        ),
        pytest.param(
            'CREATE TABLE flights (id bigint, "Attempt" text)',
            PLAIN,
            SCHEMA,
            [do(columns=StructType().add("id", LongType()).add("Attempt", StringType()), mode=Plain())],
            marks=pytest.mark.remedy(
                "… has no column …, only …",
                "Postgres tells names apart by case and quotes: spell the column in the query as the table does",
            ),
            id="another spelling",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint, attempt date)",
            PLAIN,
            NESTED,
            [
                lambda told: (told.split("; or ")[0], PLAIN, NESTED),
                do(columns=ID, mode=Plain()),
            ],
            marks=pytest.mark.remedy(
                "column … of … is …, the rows need …",
                "ALTER TABLE … ALTER COLUMN … TYPE … USING …; or keep the column out of the rows with select=, if the"
                " table can fill it",
            ),
            id="a type that rows cannot have",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint, attempt bytea)",
            PLAIN,
            SCHEMA,
            [do(columns=StructType().add("id", LongType()).add("attempt", BinaryType()), mode=Plain())],
            marks=pytest.mark.remedy("column … of … is …, the rows need …", "convert it in the query: … AS …"),
            id="another type",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint, attempt text NOT NULL)",
            PLAIN,
            ID,
            [do(mode=Plain()), do("ALTER TABLE flights ALTER COLUMN attempt SET DEFAULT ''", ID, mode=Plain())],
            marks=pytest.mark.remedy(
                "column … of … is not written, is NOT NULL and has no default",
                "select it in the query, or give it a default",
            ),
            id="not null",
        ),
        pytest.param(
            TABLE,
            {},
            ID,
            [do(), do("ALTER TABLE flights ALTER COLUMN attempt SET DEFAULT ''", ID)],
            marks=pytest.mark.remedy(
                "column … of … is not in the rows and has no default", "select it in the query, or give it a default"
            ),
            id="no default",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint GENERATED ALWAYS AS IDENTITY, attempt text)",
            PLAIN,
            SCHEMA,
            [
                do(columns=StructType().add("attempt", StringType()), mode=Plain()),
                do("ALTER TABLE flights ALTER COLUMN id SET GENERATED BY DEFAULT", mode=Plain()),
            ],
            marks=pytest.mark.remedy(
                "column … of … is …: the table alone writes it",
                "leave it out of the query, or have it generated by default",
            ),
            id="generated",
        ),
        pytest.param(
            "CREATE VIEW flights AS SELECT 1::bigint AS id, ''::text AS attempt",
            {},
            SCHEMA,
            [ELSEWHERE],
            marks=pytest.mark.remedy("… is …", "name another table=, which pipeline.create() can make"),
            id="a view",
        ),
        pytest.param(
            "CREATE UNLOGGED TABLE flights (id bigint, attempt text)",
            {},
            SCHEMA,
            [ELSEWHERE],
            marks=pytest.mark.remedy(
                "… is unlogged or temporary: a crash of the server would empty it",
                "name another table=, which pipeline.create() can make",
            ),
            id="unlogged",
        ),
        pytest.param(
            f"{TABLE}; ALTER TABLE flights ENABLE ROW LEVEL SECURITY",
            {},
            SCHEMA,
            [ELSEWHERE],
            marks=pytest.mark.remedy(
                "… has row-level security, under which COPY does not work",
                "name another table=, which pipeline.create() can make",
            ),
            id="row security",
        ),
        pytest.param(
            "CREATE TABLE p (id bigint, attempt text); CREATE TABLE flights () INHERITS (p)",
            {},
            SCHEMA,
            [ELSEWHERE],
            marks=pytest.mark.remedy(
                "… is part of an inheritance tree", "name another table=, which pipeline.create() can make"
            ),
            id="inheritance",
        ),
        pytest.param(
            "CREATE TABLE p (id bigint, attempt text); CREATE TABLE flights () INHERITS (p)",
            PLAIN,
            SCHEMA,
            [do(table="others", mode=Plain())],
            marks=pytest.mark.remedy("… is part of an inheritance tree", "name another table="),
            id="inheritance without a view",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint, attempt text) PARTITION BY HASH (id); CREATE UNLOGGED TABLE part"
            " PARTITION OF flights FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            PLAIN,
            SCHEMA,
            [do(table="others", mode=Plain())],
            marks=pytest.mark.remedy(
                "…: its partition … is unlogged or temporary: a crash of the server would empty it",
                "name another table=",
            ),
            id="an unlogged partition",
        ),
        pytest.param(
            "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER away FOREIGN DATA WRAPPER nothing; CREATE TABLE flights"
            " (id bigint, attempt text) PARTITION BY HASH (id); CREATE FOREIGN TABLE abroad PARTITION OF flights"
            " FOR VALUES WITH (MODULUS 1, REMAINDER 0) SERVER away",
            PLAIN,
            SCHEMA,
            [do(table="others", mode=Plain())],
            marks=pytest.mark.remedy("…: its partition … is …", "name another table="),
            id="a foreign partition",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint UNIQUE, attempt text, n bigint)",
            {"mode": Upsert(key="id", order_by="N")},
            StructType([*SCHEMA.fields]).add("N", LongType()),
            [
                do(columns=StructType([*SCHEMA.fields]).add("n", LongType()), mode=Upsert(key="id", order_by="n")),
                do(columns=StructType([*SCHEMA.fields]).add("o", LongType()), mode=Upsert(key="id", order_by="o")),
            ],
            marks=pytest.mark.remedy(
                "order_by= names the column …, and … has …",
                "to have it written, name it as the table does (… AS …); else give it another name",
            ),
            id="an order of another spelling",
        ),
        pytest.param(
            "CREATE TABLE flights (id bigint UNIQUE, attempt text)",
            {},
            SCHEMA,
            [
                do("ALTER TABLE flights DROP CONSTRAINT flights_id_key"),
                ELSEWHERE,
                do(mode=Plain()),
                do(mode=Upsert(key="id")),
            ],
            marks=pytest.mark.remedy(
                "… has the …, which would see rows that are prepared and not yet committed",
                "drop it, name another table=, or give mode=Plain() or mode=Upsert(key=...), which stage the rows",
            ),
            id="a constraint",
        ),
        pytest.param(
            "CREATE TABLE flights__rows (id bigint, attempt text)",
            {},
            SCHEMA,
            [do("ALTER TABLE flights__rows RENAME TO others")],
            marks=pytest.mark.remedy(
                "the table … lacks the columns _epoch and _attempt (bigint)",
                "rename that table; the name is needed for the rows of this sink",
            ),
            id="a table in the way",
        ),
        pytest.param(
            f"{TABLE}; CREATE VIEW shown AS SELECT 1 AS id",
            {"view": "shown"},
            SCHEMA,
            [do("DROP VIEW shown", view="shown"), do("ALTER VIEW shown RENAME TO theirs", view="shown"), do(view="v")],
            marks=pytest.mark.remedy(
                "… is not the reader view of ……", "drop or rename it and call pipeline.create(), or name another view="
            ),
            id="another view",
        ),
        pytest.param(
            'CREATE TABLE "Flights" (id bigint, attempt text)',
            PLAIN,
            SCHEMA,
            [value_of("table", mode=Plain()), do(table="others", mode=Plain())],
            marks=pytest.mark.remedy(
                "…=… differs only in case or quotes from …, which exists",
                "give …=…, as the database spells it, or a name that differs in letters",
            ),
            id="case",
        ),
        pytest.param(
            "SELECT",
            {"table": "nosuch.flights"},
            SCHEMA,
            [sql({"table": "nosuch.flights"}), do(table="public.flights")],
            marks=pytest.mark.remedy(
                "…=… names the schema …, which does not exist", "CREATE SCHEMA …, or name another"
            ),
            id="no schema",
        ),
        pytest.param(
            'CREATE SCHEMA "Sales"',
            {"table": "sales.flights"},
            SCHEMA,
            [value_of("table")],
            marks=pytest.mark.remedy("…=… names the schema …, which does not exist", "give …=…"),
            id="a schema of another spelling",
        ),
        pytest.param(
            "SELECT",
            {},
            StructType().add("id", LongType()).add("gap", CalendarIntervalType()),
            [do(columns=StructType().add("id", LongType()).add("gap", StringType()))],
            marks=pytest.mark.remedy(
                "column … has the type …, which Postgres cannot hold exactly",
                "cast it in the query, for instance to string",
            ),
            id="a type",
        ),
        pytest.param(
            "SELECT",
            {},
            StructType().add("id", LongType()).add("m", MapType(LongType(), StringType())),
            [do(columns=StructType().add("id", LongType()).add("m", MapType(StringType(), StringType())))],
            marks=pytest.mark.remedy(
                "column … is a map with keys of type …: keys of JSON are strings", "turn the keys into strings"
            ),
            id="a map",
        ),
        pytest.param(
            "SELECT",
            {},
            StructType().add("s", StructType().add("a\0b", LongType())),
            [do(columns=StructType().add("s", StructType().add("ab", LongType())))],
            marks=pytest.mark.remedy(
                "the field name … in column … has a NUL, which no key of Postgres's JSON has",
                "give the field another name where its struct is made",
            ),
            id="a field",
        ),
        pytest.param(
            "SELECT",
            {},
            StructType().add("_epoch", LongType()),
            [do(columns=StructType().add("epoch", LongType()))],
            marks=pytest.mark.remedy("the column name … …", "rename the column in the query"),
            id="a name of ours",
        ),
        pytest.param(
            "SELECT",
            {},
            StructType(),
            [do()],
            marks=pytest.mark.remedy("the rows have no columns", "select at least one column"),
            id="no columns",
        ),
    ],
)
def test_what_the_help_says_is_taken(
    pg_database: str, made: str, given: dict[str, Any], columns: StructType, ways: Sequence[Way]
) -> None:
    """Each way by itself, from the same state."""
    for way in ways:
        observe(
            pg_database,
            'DROP SCHEMA IF EXISTS epochal, "Sales", nosuch CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public;'
            + made,
        )
        with pytest.raises(Misconfigured) as refused:
            accepted(pg_database, given, columns)
        statement, arguments, others = way(refused.value.help)
        observe(pg_database, statement)
        accepted(pg_database, arguments, others)


def accepted(dsn: str, given: dict[str, Any], columns: StructType) -> None:
    sink = support.sink(dsn, **given)
    try:
        sink.create(QUERY, columns)
        sink.check(QUERY, columns)
        sink.look(QUERY)
    finally:
        sink.close()


@pytest.mark.remedy("…=… names no schema, and no schema on the search_path of this role exists", "give …='schema.…'")
def test_a_role_without_a_search_path_names_the_schema(pg_database: str) -> None:
    without = f"{pg_database}?options=-csearch_path%3D"
    with pytest.raises(Misconfigured) as refused:
        accepted(without, {}, SCHEMA)
    named = re.search(r"give table='schema\.(\w+)'", refused.value.help)
    assert named is not None
    accepted(without, {"table": f"public.{named[1]}"}, SCHEMA)


@pytest.mark.remedy(
    "there is no table … of app …",
    "call pipeline.create() once, or have the SQL run that PostgresSink.ddl(app, schema) returns",
)
@pytest.mark.parametrize("by_sql", [True, False])
def test_a_table_that_is_not_there_is_made(pg_database: str, by_sql: bool) -> None:
    sink = support.sink(pg_database)
    with pytest.raises(Misconfigured):
        sink.look(QUERY)
    if by_sql:
        observe(pg_database, sink.ddl(QUERY.app, SCHEMA))
    else:
        sink.create(QUERY, SCHEMA)
    sink.look(QUERY)


@pytest.mark.remedy(
    "the table … belongs to sink … of app …",
    "give each sink a table of its own",
)
def test_each_sink_has_a_table_of_its_own(pg_database: str) -> None:
    accepted(pg_database, {}, SCHEMA)
    with pytest.raises(Misconfigured):
        accepted(pg_database, {"name": "second"}, SCHEMA)
    accepted(pg_database, {"name": "second", "table": "others"}, SCHEMA)


@pytest.mark.remedy(
    "the reader view … is not the one that create() made, and lacks …",
    "…; then add them at the end of the view: CREATE OR REPLACE VIEW … AS SELECT ...",
)
def test_a_view_of_ones_own_is_given_the_columns(pg_database: str) -> None:
    accepted(pg_database, {"schema_evolution": True}, SCHEMA)
    ((made,),) = observe(pg_database, "SELECT pg_get_viewdef('flights'::regclass)")
    mine = made.replace("attempt", "upper(attempt) AS attempt", 1)
    observe(pg_database, f"CREATE OR REPLACE VIEW flights AS {mine}")
    more = StructType([*SCHEMA.fields]).add("more", LongType())
    with pytest.raises(Misconfigured) as refused:
        accepted(pg_database, {"schema_evolution": True}, more)
    statements, _, view = refused.value.help.partition("; then add them at the end of the view: ")
    observe(pg_database, statements)
    observe(pg_database, view.replace("SELECT ...", mine.replace("AS attempt", "AS attempt, more", 1)))
    accepted(pg_database, {"schema_evolution": True}, more)
    assert observe(pg_database, "SELECT more FROM flights") == []


# --- connections ---------------------------------------------------------------------------------


@pytest.mark.remedy(
    "the connection string cannot be read (it is not shown, as it may hold a password)",
    "give a libpq conninfo or postgresql:// URI, with special characters of the password percent-encoded",
)
def test_a_password_with_special_characters(pg_database: str) -> None:
    at = pg_database.partition("@")[2]
    with pytest.raises(Misconfigured):
        accepted_as(f"postgresql://postgres:open@Sesame@{at}")
    accepted_as(f"postgresql://postgres:open%40Sesame@{at}")


@pytest.mark.remedy(
    "the connection's client_encoding is …",
    "leave client_encoding out of the connection string and of its options=",
)
def test_an_encoding_of_ones_own(pg_database: str) -> None:
    with pytest.raises(Misconfigured):
        accepted_as(f"{pg_database}?client_encoding=latin1")
    accepted_as(pg_database)


@pytest.mark.remedy(
    "the database's encoding is …, which cannot hold all strings",
    "name a database of encoding UTF8 (CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0)",
)
def test_a_database_of_another_encoding(pg_database: str) -> None:
    place = pg_database.rpartition("/")[0]
    observe(pg_database, "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    try:
        with pytest.raises(Misconfigured) as refused:
            accepted_as(f"{place}/latin")
        statement = re.search(r"\((CREATE DATABASE .*)\)", refused.value.help)
        assert statement is not None
        observe(pg_database, statement[1].replace(" name ", " in_unicode "))
        accepted_as(f"{place}/in_unicode")
    finally:
        for name in ("latin", "in_unicode"):
            observe(pg_database, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.mark.remedy("cannot connect to …: …", "start the server, or correct host and port in the connection string")
@pytest.mark.remedy(
    "cannot connect to …: …",
    "name a database and a role that exist, or create what is missing (CREATE DATABASE, CREATE ROLE)",
)
def test_a_server_and_a_database_that_are_not_there(pg_database: str) -> None:
    place = pg_database.rpartition("/")[0]
    with pytest.raises(SinkUnavailable) as unreached:
        accepted_as("postgresql://postgres@127.0.0.1:1/x")
    assert unreached.value.help.startswith("start the server")
    missing = pg_database.rpartition("/")[2] + "_missing"
    with pytest.raises(SinkUnavailable) as unknown:
        accepted_as(f"{place}/{missing}")
    assert unknown.value.help.startswith("name a database")
    observe(pg_database, f"CREATE DATABASE {missing}")
    try:
        accepted_as(f"{place}/{missing}")
        accepted_as(pg_database)
    finally:
        observe(pg_database, f"DROP DATABASE {missing} WITH (FORCE)")


@pytest.mark.remedy(
    "cannot connect to …: …",
    "define the service in the driver's PGSERVICEFILE, or in ~/.pg_service.conf of its user",
)
def test_a_service_that_is_not_defined(pg_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "services.conf"
    file.write_text("")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    with pytest.raises(SinkUnavailable):
        accepted_as("service=flights")
    known = conninfo_to_dict(pg_database)
    file.write_text("[flights]\n" + "".join(f"{name}={value}\n" for name, value in known.items()))
    accepted_as("service=flights")


@pytest.mark.remedy(
    "cannot connect to …: …",
    "end connections that nobody needs, or raise max_connections of the server, then restart the query",
)
def test_a_database_that_takes_no_more_connections(pg_database: str) -> None:
    limited = f"limited_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {limited} LOGIN CONNECTION LIMIT 1")
    dsn = pg_database.replace("postgres@", f"{limited}@")
    try:
        with psycopg.connect(dsn), pytest.raises(SinkUnavailable) as full:
            PostgresSink(dsn, table="flights", name="out").look(QUERY)
        assert full.value.help.startswith("end connections that nobody needs")
        with pytest.raises(Misconfigured, match="there is no table"):
            PostgresSink(dsn, table="flights", name="out").look(QUERY)
    finally:
        observe(pg_database, f"DROP ROLE {limited}")


@pytest.mark.remedy(
    "… has row-level security for this role, which leaves out rows without an error", "name another table="
)
def test_a_table_of_which_this_role_may_see_a_part(pg_database: str) -> None:
    database = pg_database.rpartition("/")[2]
    role = f"secured_{database}"
    observe(
        pg_database,
        f"{TABLE}; ALTER TABLE flights ENABLE ROW LEVEL SECURITY; CREATE ROLE {role} LOGIN; GRANT ALL ON flights TO"
        f" {role}; GRANT ALL ON SCHEMA public TO {role}; GRANT CREATE ON DATABASE {database} TO {role}",
    )
    dsn = pg_database.replace("postgres@", f"{role}@")
    try:
        with pytest.raises(Misconfigured):
            accepted(dsn, PLAIN, SCHEMA)
        accepted(dsn, {**PLAIN, "table": "others"}, SCHEMA)
    finally:
        observe(pg_database, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.mark.remedy(
    "app … registered this sink with another table than …: that table was created again",
    "if the query has never run, pipeline.create() is enough",
)
def test_a_table_that_was_made_again_before_the_query_ran(pg_database: str) -> None:
    accepted(pg_database, PLAIN, SCHEMA)
    observe(pg_database, "DROP TABLE flights; CREATE TABLE flights (id bigint, attempt text)")
    sink = support.sink(pg_database, **PLAIN)
    with pytest.raises(Misconfigured):
        sink.check(QUERY, SCHEMA)
    accepted(pg_database, PLAIN, SCHEMA)


def accepted_as(dsn: str) -> None:
    sink = PostgresSink(dsn, table="flights", name="out")
    try:
        sink.create(QUERY, SCHEMA)
        sink.check(QUERY, SCHEMA)
    finally:
        sink.close()
