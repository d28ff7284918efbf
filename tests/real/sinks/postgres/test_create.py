"""Making, adopting and refusing tables; rights of readers and writers."""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert
from epochal.sinks.postgres.modes import Mode
from epochal.sinks.postgres.write import write_partition
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, batches, epoch, observe, task, visible, voted

SCHEMA = StructType().add("id", LongType()).add("attempt", StringType())


def show(dsn: str, ids: list[int]) -> None:
    sink = support.sink(dsn)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    sink.commit(voted([write_partition(task(dsn), batches(ids))], epoch()), ONE)


def test_create_says_what_it_did_and_does_it_once(pg_database: str) -> None:
    sink = support.sink(pg_database)
    *done, needs = sink.create(QUERY, SCHEMA)
    assert done == [
        "made the schema epochal",
        'made the table "flights__rows"',
        "registered sink out of app flights",
        'made the reader view "flights"',
    ]
    assert needs.startswith("a role that only writes needs: GRANT ")
    assert list(sink.create(QUERY, SCHEMA)) == []
    sink.check(QUERY, SCHEMA)


@pytest.mark.parametrize("adopt", [False, True])
def test_the_printed_sql_makes_the_same(pg_database: str, adopt: bool) -> None:
    if adopt:
        observe(pg_database, "CREATE TABLE flights (id bigint, attempt text)")
        observe(pg_database, "INSERT INTO flights VALUES (7, 'old')")
    sink = support.sink(pg_database)
    observe(pg_database, sink.ddl("flights", SCHEMA, adopt=adopt))
    sink.check(QUERY, SCHEMA)
    assert list(sink.create(QUERY, SCHEMA)) == []
    assert visible(pg_database) == ([7] if adopt else [])


def test_an_existing_table_is_adopted_with_its_rows_and_readers(pg_database: str) -> None:
    observe(pg_database, "DROP ROLE IF EXISTS reader_of_adopted")
    observe(pg_database, "CREATE ROLE reader_of_adopted LOGIN")
    try:
        observe(pg_database, "CREATE TABLE flights (extra int DEFAULT 5, attempt varchar, id bigint NOT NULL)")
        observe(pg_database, "INSERT INTO flights (id, attempt) SELECT n, 'old' FROM generate_series(1, 3) n")
        observe(pg_database, "GRANT SELECT ON flights TO reader_of_adopted")
        done = support.sink(pg_database).create(QUERY, SCHEMA)
        assert 'adopted the table "flights" as "flights__rows"; its rows are position 0' in done
        assert visible(pg_database) == [1, 2, 3]
        show(pg_database, [4])
        assert observe(pg_database.replace("postgres@", "reader_of_adopted@"), "SELECT * FROM flights ORDER BY id") == [
            *((5, "old", n) for n in (1, 2, 3)),
            (5, "task", 4),
        ]
    finally:
        observe(pg_database, "DROP OWNED BY reader_of_adopted")
        observe(pg_database, "DROP ROLE reader_of_adopted")


def test_a_reader_needs_rights_on_the_view_alone(pg_database: str) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    show(pg_database, [1])
    observe(pg_database, "DROP ROLE IF EXISTS reader_of_view")
    observe(pg_database, "CREATE ROLE reader_of_view LOGIN")
    try:
        observe(pg_database, "GRANT SELECT ON flights TO reader_of_view")
        reader = pg_database.replace("postgres@", "reader_of_view@")
        assert observe(reader, "SELECT id FROM flights") == [(1,)]
        for hidden in ("flights__rows", "epochal.sinks"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                observe(reader, f"SELECT * FROM {hidden}")
    finally:
        observe(pg_database, "DROP OWNED BY reader_of_view")
        observe(pg_database, "DROP ROLE reader_of_view")


def test_a_writer_is_told_which_grant_it_lacks_until_it_has_them_all(pg_database: str) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    observe(pg_database, "DROP ROLE IF EXISTS writer")
    observe(pg_database, "CREATE ROLE writer LOGIN")
    try:
        observe(pg_database, "GRANT USAGE ON SCHEMA epochal TO writer")
        sink = PostgresSink(pg_database.replace("postgres@", "writer@"), table="flights", name="out")
        asked = []
        for _ in range(10):
            try:
                sink.check(QUERY, SCHEMA)
                break
            except Misconfigured as error:
                asked.append(error.help)
                grant = error.help if error.help.startswith("GRANT") else "GRANT SELECT ON epochal.sinks TO writer"
                observe(pg_database, grant)
        assert any("flights__rows" in help_line for help_line in asked)
        assert any("epochal.attempt " in help_line for help_line in asked)
        sink.look(QUERY)
        sink.fence(QUERY, ONE)
        writer = task(pg_database.replace("postgres@", "writer@"))
        sink.commit(voted([write_partition(writer, batches([1]))], epoch()), ONE)
        sink.abort(QUERY, ONE)
        sink.close()
        assert visible(pg_database) == [1]
    finally:
        observe(pg_database, "DROP OWNED BY writer")
        observe(pg_database, "DROP ROLE writer")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE TABLE flights (id bigint PRIMARY KEY, attempt text)", "unique or exclusion constraint flights_pkey"),
        ("CREATE TABLE flights (id bigint, attempt text, EXCLUDE (id WITH =))", "unique or exclusion constraint"),
        ("CREATE VIEW flights AS SELECT 1::bigint AS id, ''::text AS attempt", "is a view"),
        ("CREATE MATERIALIZED VIEW flights AS SELECT 1::bigint AS id, ''::text AS attempt", "is a materialized view"),
        ("CREATE TABLE flights (id bigint, attempt text) PARTITION BY HASH (id)", "is a partitioned table"),
        ("CREATE UNLOGGED TABLE flights (id bigint, attempt text)", "unlogged"),
        ("CREATE TABLE flights (id bigint, attempt text); ALTER TABLE flights ENABLE ROW LEVEL SECURITY", "row-level"),
        ("CREATE TABLE p (id bigint, attempt text); CREATE TABLE flights () INHERITS (p)", "inheritance"),
        (
            "CREATE TABLE flights (id bigint, attempt text); CREATE TRIGGER t BEFORE INSERT ON flights"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "trigger t",
        ),
        (
            "CREATE TABLE flights (id bigint, attempt text); CREATE VIEW v AS SELECT * FROM flights",
            "the view v is bound",
        ),
        ("CREATE TABLE flights (id bigint)", 'no column "attempt"'),
        ("CREATE TABLE flights (id boolean, attempt text)", 'column "id" of "flights" is boolean'),
        ("CREATE TABLE flights (id bigint, attempt interval(3))", r"interval\(3\), the rows need text"),
        ("CREATE TABLE flights (id bigint, attempt text, more int)", 'column "more" .* has no default'),
        ("CREATE TABLE flights__rows (id bigint, attempt text)", "lacks the columns _epoch and _attempt"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_changed(pg_database: str, statement: str, why: str) -> None:
    observe(pg_database, statement)
    with pytest.raises(Misconfigured, match=why):
        support.sink(pg_database).create(QUERY, SCHEMA)
    assert observe(pg_database, "SELECT to_regclass('epochal.sinks')") == [(None,)]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DROP SCHEMA epochal CASCADE", "the schema epochal and its tables does not exist"),
        ("DROP VIEW flights", 'the reader view "flights" does not exist'),
        ("DROP TABLE flights__rows CASCADE", 'the table "flights__rows" does not exist'),
        ("DELETE FROM epochal.sinks", "the row of app 'flights' in epochal.sinks does not exist"),
        ("DROP VIEW flights; CREATE VIEW flights AS SELECT * FROM flights__rows", "is not the reader view"),
        ("CREATE UNIQUE INDEX late ON flights__rows (id)", "unique or exclusion constraint late"),
        ("ALTER TABLE flights__rows ADD more int", 'column "more"'),
    ],
)
def test_check_finds_what_was_changed_since(pg_database: str, statement: str, why: str) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    observe(pg_database, statement)
    with pytest.raises(Misconfigured, match=why):
        support.sink(pg_database).check(QUERY, SCHEMA)


def test_two_sinks_into_one_table_are_refused(pg_database: str) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="belongs to sink 'out' of app 'flights'"):
        support.sink(pg_database, name="other").create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="belongs to sink 'out' of app 'flights'"):
        support.sink(pg_database).create(Query("other", "", "", ""), SCHEMA)


@pytest.mark.remedy(
    "the table … belongs to sink … of app …",
    "give the sink name=…; if a renaming was under way, run it again: `epochal rename`",
)
def test_a_table_of_another_sink_is_named_before_it_is_looked_for(pg_database: str) -> None:
    """As after a renaming that was under way."""
    support.sink(pg_database).create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="belongs to sink 'out' of app 'flights'") as refused:
        support.sink(pg_database, name="other").look(QUERY)
    assert "name='out'" in refused.value.help
    support.sink(pg_database, name="out").look(QUERY)


def test_a_sink_does_not_change_its_table(pg_database: str) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="with another table than"):
        support.sink(pg_database, table="others").create(QUERY, SCHEMA)


def test_a_table_that_was_made_anew_has_another_identity_and_is_refused(pg_database: str) -> None:
    sink = support.sink(pg_database)
    sink.create(QUERY, SCHEMA)
    before = sink.look(QUERY).identity
    observe(
        pg_database,
        "CREATE TABLE anew (LIKE flights__rows); DROP TABLE flights__rows CASCADE;"
        " ALTER TABLE anew RENAME TO flights__rows",
    )
    assert sink.look(QUERY).identity != before
    with pytest.raises(Misconfigured, match="that table was created again"):
        sink.check(QUERY, SCHEMA)


def test_look_before_create_says_what_to_call(pg_database: str) -> None:
    with pytest.raises(Misconfigured, match=r"pipeline\.create"):
        support.sink(pg_database).look(QUERY)


def test_sql_without_a_schema_needs_the_table(pg_database: str) -> None:
    with pytest.raises(Misconfigured, match='the table "flights__rows" does not exist') as refused:
        support.sink(pg_database).script("flights")
    assert "create" in refused.value.help


def test_names_of_schemas_and_views_and_odd_names(pg_database: str) -> None:
    observe(pg_database, 'CREATE SCHEMA "s 1"')
    sink = support.sink(pg_database, table='s 1.Fl"ights %', view="read er", name=None)
    assert sink.name == "postgres-s_1.Fl_ights__"
    sink.create(QUERY, SCHEMA)
    sink.check(QUERY, SCHEMA)
    assert observe(pg_database, 'SELECT count(*) FROM "read er"') == [(0,)]
    with pytest.raises(Misconfigured, match="63 bytes"):
        support.sink(pg_database, table="x" * 60)


def test_a_database_in_another_encoding_is_refused(pg_database: str) -> None:
    observe(pg_database, "DROP DATABASE IF EXISTS in_latin")
    observe(pg_database, "CREATE DATABASE in_latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    sink = support.sink(pg_database.rpartition("/")[0] + "/in_latin")
    try:
        with pytest.raises(Misconfigured, match="encoding is LATIN1"):
            sink.check(QUERY, SCHEMA)
    finally:
        sink.close()
        observe(pg_database, "DROP DATABASE in_latin WITH (FORCE)")


@pytest.mark.parametrize("dsn", ["postgresql://u:open-Sesame-42%zz@h/", "host=h passwd open-Sesame-42"])
def test_a_connection_string_that_cannot_be_read_is_not_shown(dsn: str) -> None:
    with pytest.raises(Misconfigured, match="cannot be read") as refused:
        PostgresSink(dsn, table="t").look(QUERY)
    assert "Sesame" not in str(refused.value)


def test_a_password_with_an_at_sign_does_not_end_up_as_a_host_in_the_error() -> None:
    with pytest.raises(Misconfigured, match="percent-encoded") as refused:
        PostgresSink("postgresql://u:open@Sesame-42@h/db", table="t").look(QUERY)
    assert "Sesame" not in str(refused.value)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(SinkUnavailable, match=r"cannot connect to Postgres at 127\.0\.0\.1:1, database x") as error:
        support.sink("postgresql://postgres@127.0.0.1:1/x").check(QUERY, SCHEMA)
    assert support.PASSWORD not in str(error.value)


def wide(columns: int) -> StructType:
    return StructType([SCHEMA["id"], *(StructField(f"c{n}", LongType()) for n in range(1, columns))])


@pytest.mark.remedy(
    "the rows have … columns, and a table of Postgres has at most …, of which Epochal adds …", "select fewer columns"
)
@pytest.mark.parametrize("mode", [Append(), Plain(), Upsert(key="id")], ids=str)
def test_a_table_takes_all_columns_that_postgres_allows_and_epochal_does_not_need(pg_database: str, mode: Mode) -> None:
    """P15: 1,599 columns were a raw error of the server, which did not say that Epochal adds two."""
    sink = support.sink(pg_database, mode=mode)
    for call in (sink.create, sink.check):
        with pytest.raises(Misconfigured, match=r"1599 columns, .* at most 1600, of which Epochal adds 2") as refused:
            call(QUERY, wide(1_599))
        assert "_epoch and _attempt" in str(refused.value)
    sink.create(QUERY, wide(1_598))
    sink.check(QUERY, wide(1_598))
