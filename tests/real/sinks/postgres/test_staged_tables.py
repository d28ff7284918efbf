"""Tables of the modes that stage: made, taken as they are, or refused; rights of writers."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructType

from epochal.chaos.observe.readers import PostgresReader
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import Misconfigured, PreparedLost, PrepareRefused
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert
from epochal.sinks.postgres.modes import Mode
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, SCHEMA, TWO, epoch, observe, ready, rows

FEED = StructType().add("id", LongType()).add("a", StringType()).add("seq", DoubleType()).add("gone", BooleanType())
KEYED = Upsert(key="id")
TABLE = "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text)"


def sink(dsn: str, mode: Mode = KEYED, **options: Any) -> PostgresSink:
    return support.sink(dsn, mode=mode, **options)


@pytest.mark.parametrize(
    ("mode", "made"),
    [
        (Plain(), ("id", "a", "seq", "gone")),
        (Upsert(key=["id", "a"], delete_when="gone", order_by="seq"), ("id", "a", "seq")),
    ],
)
def test_create_says_what_it_did_and_does_it_once(pg_database: str, mode: Mode, made: tuple[str, ...]) -> None:
    out = sink(pg_database, mode)
    *made_now, rights = out.create(QUERY, FEED)
    assert made_now == [
        "made the schema epochal",
        'made the table "flights"',
        'made the staging table "flights__staged"',
        "registered sink out of app flights",
    ]
    assert 'ON "flights__staged" TO <role>; GRANT ' in rights
    assert list(out.create(QUERY, FEED)) == []
    out.check(QUERY, FEED)
    columns = observe(
        pg_database, "SELECT attname FROM pg_attribute WHERE attrelid = 'flights'::regclass AND attnum > 0"
    )
    assert [name for (name,) in columns] == list(made)


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("mode", [Plain(), KEYED])
def test_the_printed_sql_makes_the_same(pg_database: str, mode: Mode, adopt: bool) -> None:
    out = sink(pg_database, mode)
    if adopt:
        observe(pg_database, f"{TABLE}; INSERT INTO flights VALUES (7, 'old')")
    observe(pg_database, out.ddl("flights", SCHEMA, adopt=adopt))
    out.check(QUERY, SCHEMA)
    assert list(out.create(QUERY, SCHEMA)) == []
    assert support.visible(pg_database) == ([7] if adopt else [])


def test_a_table_that_is_there_is_taken_as_it_is(pg_database: str) -> None:
    observe(pg_database, TABLE)
    before = observe(
        pg_database, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'flights'::regclass"
    )
    assert list(sink(pg_database).create(QUERY, SCHEMA))[1:-1] == [
        'made the staging table "flights__staged"',
        "registered sink out of app flights",
    ]
    after = observe(
        pg_database, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'flights'::regclass"
    )
    assert before == after


UNKEYED = "CREATE TABLE flights (id bigint, attempt text)"


@pytest.mark.parametrize(
    ("statement", "mode", "why"),
    [
        (UNKEYED, KEYED, r'no unique constraint on just the key \("id"\)'),
        (f"{UNKEYED}; CREATE UNIQUE INDEX ON flights (id, attempt)", KEYED, "no unique constraint"),
        (f"{UNKEYED}; CREATE UNIQUE INDEX ON flights (id)", Upsert(key=["id", "attempt"]), "no unique constraint"),
        (f"{UNKEYED}; CREATE UNIQUE INDEX ON flights (id) WHERE id > 0", KEYED, "no unique constraint"),
        (f"{UNKEYED}; CREATE UNIQUE INDEX ON flights ((id + 0))", KEYED, "no unique constraint"),
        (f"{UNKEYED}; ALTER TABLE flights ADD UNIQUE (id) DEFERRABLE", KEYED, "no unique constraint"),
        (f"{UNKEYED}; CREATE INDEX ON flights (id)", KEYED, "no unique constraint"),
        (
            f'{UNKEYED}; CREATE UNIQUE INDEX ON flights (attempt COLLATE "POSIX")',
            Upsert(key="attempt"),
            "no unique constraint",
        ),
        ("CREATE TABLE flights (id bigint UNIQUE)", KEYED, 'no column "attempt"'),
        ("CREATE TABLE flights (id text UNIQUE, attempt text)", KEYED, 'column "id" of "flights" is text'),
        (
            "CREATE TABLE flights (id bigint, attempt text, more int NOT NULL)",
            Plain(),
            'column "more" .* has no default',
        ),
        (
            "CREATE TABLE flights (id bigint GENERATED ALWAYS AS IDENTITY, attempt text)",
            Plain(),
            "generated always as identity: the table alone writes it",
        ),
        (
            "CREATE TABLE flights (more text, id bigint, attempt text GENERATED ALWAYS AS (more || '!') STORED)",
            Plain(),
            "is generated: the table alone writes it",
        ),
        ("CREATE VIEW flights AS SELECT 1::bigint AS id, ''::text AS attempt", Plain(), "is a view"),
        ("CREATE UNLOGGED TABLE flights (id bigint, attempt text)", Plain(), "unlogged"),
        ("CREATE TABLE p (id bigint, attempt text); CREATE TABLE flights () INHERITS (p)", Plain(), "inheritance"),
        (f"{UNKEYED}; CREATE TABLE child () INHERITS (flights)", Plain(), "inheritance"),
        (
            "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER away FOREIGN DATA WRAPPER nothing;"
            " CREATE TABLE flights (id bigint, attempt text) PARTITION BY HASH (id); CREATE FOREIGN TABLE abroad"
            " PARTITION OF flights FOR VALUES WITH (MODULUS 1, REMAINDER 0) SERVER away",
            Plain(),
            '"flights": its partition abroad is a foreign table',
        ),
        ("CREATE TABLE flights__staged (id bigint, attempt text)", Plain(), "lacks the columns _epoch and _attempt"),
        (
            "CREATE TABLE flights__staged (id bigint UNIQUE, attempt text, _epoch bigint, _attempt bigint)",
            Plain(),
            "unique or exclusion constraint flights__staged_id_key",
        ),
        (
            "CREATE TABLE flights__staged (id int, attempt text, _epoch bigint, _attempt bigint)",
            Plain(),
            'column "id" of "flights__staged" is integer',
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_changed(
    pg_database: str, statement: str, mode: Mode, why: str
) -> None:
    observe(pg_database, statement)
    with pytest.raises(Misconfigured, match=why):
        sink(pg_database, mode).create(QUERY, SCHEMA)
    assert observe(pg_database, "SELECT to_regclass('epochal.sinks')") == [(None,)]


@pytest.mark.parametrize("default", ["GENERATED BY DEFAULT AS IDENTITY", "DEFAULT 5", "DEFAULT random()"])
def test_a_column_that_has_a_default_may_be_written(pg_database: str, default: str) -> None:
    observe(pg_database, f"CREATE TABLE flights (id bigint {default}, attempt text)")
    out = sink(pg_database, Plain())
    out.create(QUERY, SCHEMA)
    out.check(QUERY, SCHEMA)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DROP SCHEMA epochal CASCADE", "the schema epochal and its tables does not exist"),
        ("DROP TABLE flights", 'the table "flights" does not exist'),
        ("DROP TABLE flights__staged", 'the table "flights__staged" does not exist'),
        ("DELETE FROM epochal.sinks", "the row of app 'flights' in epochal.sinks does not exist"),
        ("ALTER TABLE flights DROP CONSTRAINT flights_pkey", "no unique constraint on just the key"),
        ("CREATE UNIQUE INDEX late ON flights__staged (id)", "unique or exclusion constraint late"),
        ("ALTER TABLE flights ADD more int NOT NULL", 'column "more"'),
        ("ALTER TABLE flights__staged DROP attempt", 'no column "attempt"'),
        (
            "CREATE TABLE seen (n bigint); CREATE RULE r AS ON INSERT TO flights DO ALSO INSERT INTO seen SELECT 1",
            "INSERT with ON CONFLICT clause cannot be used",
        ),
        (f"DROP TABLE flights; {TABLE}", "that table was created again"),
    ],
)
def test_check_finds_what_was_changed_since(pg_database: str, statement: str, why: str) -> None:
    sink(pg_database).create(QUERY, SCHEMA)
    observe(pg_database, statement)
    with pytest.raises(Misconfigured, match=why):
        sink(pg_database).check(QUERY, SCHEMA)


def test_row_security_is_refused_for_whom_it_holds(pg_database: str) -> None:
    sink(pg_database).create(QUERY, SCHEMA)
    observe(pg_database, "ALTER TABLE flights ENABLE ROW LEVEL SECURITY")
    sink(pg_database).check(QUERY, SCHEMA)
    role = f"humble_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {role} LOGIN IN ROLE pg_read_all_data, pg_write_all_data")
    humble = PostgresSink(pg_database.replace("postgres@", f"{role}@"), table="flights", name="out", mode=KEYED)
    try:
        with pytest.raises(Misconfigured, match="leaves out rows without an error"):
            humble.check(QUERY, SCHEMA)
    finally:
        humble.close()
        observe(pg_database, f"DROP ROLE {role}")


def test_two_sinks_into_one_table_are_refused_and_another_mode_is_another_table(pg_database: str) -> None:
    sink(pg_database).create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="belongs to sink 'out' of app 'flights'"):
        sink(pg_database, name="other").create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="belongs to sink 'out' of app 'flights'"):
        sink(pg_database, Plain()).create(Query("other", "", "", ""), SCHEMA)
    sink(pg_database, Plain()).check(QUERY, SCHEMA)  # the same rows in the same table, by another statement
    with pytest.raises(Misconfigured, match="has the unique or exclusion constraint flights_pkey") as refused:
        sink(pg_database, Append()).create(QUERY, SCHEMA)
    assert "mode=Upsert(key=...)" in refused.value.help


RIGHTS = [
    (Plain(), ("INSERT",)),
    (Upsert(key="id", update=()), ("SELECT", "INSERT")),
    (Upsert(key="id"), ("SELECT", "INSERT", "UPDATE")),
    (Upsert(key="id", delete_when="gone"), ("SELECT", "INSERT", "UPDATE", "DELETE")),
]


@pytest.mark.parametrize(("mode", "rights"), RIGHTS)
def test_a_writer_needs_these_rights_and_no_more(pg_database: str, mode: Mode, rights: tuple[str, ...]) -> None:
    sink(pg_database, mode).create(QUERY, FEED)
    role = f"writer_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {role} LOGIN")
    grants = (
        "USAGE ON SCHEMA epochal",
        "SELECT, UPDATE ON epochal.sinks",
        "SELECT, INSERT ON epochal.epochs",
        "SELECT, INSERT, DELETE ON epochal.attempts, flights__staged",
        "USAGE ON SEQUENCE epochal.attempt",
    )
    observe(
        pg_database, "; ".join(f"GRANT {grant} TO {role}" for grant in (*grants, f"{', '.join(rights)} ON flights"))
    )
    writer = PostgresSink(pg_database.replace("postgres@", f"{role}@"), table="flights", name="out", mode=mode)
    try:
        for right in rights:
            observe(pg_database, f"REVOKE {right} ON flights FROM {role}")
            with pytest.raises(Misconfigured) as refused:
                writer.check(QUERY, FEED)
            assert refused.value.what == f'the role {role} lacks {right} on "flights"'
            observe(pg_database, refused.value.help)
        writer.check(QUERY, FEED)
        writer.look(QUERY)
        writer.fence(QUERY, ONE)
    finally:
        writer.close()
        observe(pg_database, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (Upsert(key="nr"), "key= names the column 'nr', which is not in the rows"),
        (Upsert(key="id", update="b"), "update= names the column 'b', which is not in the rows"),
        (Upsert(key="id", order_by=["seq", "ts"]), "order_by= names the column 'ts', which is not in the rows"),
        (Upsert(key="id", delete_when="op"), "delete_when= names the column 'op', which is not in the rows"),
        (Upsert(key="id", delete_when="a"), "delete_when= names the column 'a', which is text"),
    ],
)
def test_a_column_that_the_rows_do_not_have_or_that_is_not_true_or_false(
    pg_database: str, mode: Mode, why: str
) -> None:
    for verb in (sink(pg_database, mode).create, sink(pg_database, mode).check):
        with pytest.raises(Misconfigured) as refused:
            verb(QUERY, FEED)
        assert refused.value.what == why


@pytest.mark.parametrize("trial", [True, False])
def test_the_guarantee_tells_readers_and_cost(trial: bool) -> None:
    mode = Upsert(key=["id"], delete_when="gone", order_by="seq", trial=trial)
    told = PostgresSink("host=h", table="flights", name="out", mode=mode).guarantee()
    for part in (
        'whoever reads the table "flights", which needs no view',
        "If the table has a row with the same key (id), that row is updated; if not, the new row is inserted; where"
        " gone is true, the row with that key is deleted. If a key occurs twice in one epoch, the last row by seq"
        " counts. A row of a later epoch wins, even if it is older by these columns.",
        "takes longer the more rows it has",
        "CommitInDoubt",
        "triggers fire twice and sequences have gaps" if trial else "nothing is tried before (trial=False)",
    ):
        assert part in told
    plain = PostgresSink("host=h", table="flights", mode=Plain()).guarantee()
    assert "Rows are inserted." in plain


# what outside readers tell


def test_what_is_left_and_what_can_be_lost_of_staged_rows(pg_database: str) -> None:
    """Published rows lie in the table: whatever is staged when nothing runs is left over."""
    reader = PostgresReader(ready(pg_database, mode=Upsert(key="id")))
    assert (reader.left(), reader.lose_prepared()) == ((), "")
    observe(pg_database, "INSERT INTO flights__staged VALUES (1, 'a', 1, 7), (2, 'a', 0, 6)")
    observe(pg_database, "INSERT INTO flights VALUES (3, 'a')")
    assert [row["id"] for row in reader.read()["out"]] == [3]
    assert len(reader.left()) == 2
    assert reader.lose_prepared().startswith("1 rows of ")
    assert [text.partition(" of ")[2] for text in reader.left()] == ['position 0 in "flights__staged"']


def test_what_is_left_and_what_can_be_lost_behind_a_view(pg_database: str) -> None:
    reader = PostgresReader(ready(pg_database))
    observe(
        pg_database, "INSERT INTO flights__rows (id, attempt, _epoch, _attempt) VALUES (1, 'a', 1, 7), (2, 'a', 0, 6)"
    )
    assert [row["id"] for row in reader.read()["out"]] == [2]
    assert [text.partition(" of ")[2] for text in reader.left()] == ['position 1 in "flights__rows"']
    assert reader.lose_prepared().startswith("1 rows of ")
    assert (reader.left(), reader.lose_prepared()) == ((), "")


@pytest.mark.remedy(
    "the epoch was prepared under another mode than …, and none of its rows is visible",
    "start the query again: the rows are prepared again in the present mode",
)
def test_an_empty_epoch_that_was_decided_in_another_mode_is_redone_and_takes_no_row_away(
    spark: SparkSession, pg_database: str
) -> None:
    """`Append()` adopts the table, and what `Plain()` meant for its staging table would empty it."""
    plain = ready(pg_database, mode=Plain())
    plain.commit(plain.prepare(epoch(0), rows(spark, [1, 2]), ONE), ONE)
    decided = plain.prepare(epoch(1), rows(spark, []), ONE)
    view = ready(pg_database, TWO, mode=Append())
    with pytest.raises(PreparedLost, match=r"prepared under another mode than Append\(\)"):
        view.commit(decided, TWO)
    assert support.visible(pg_database) == [1, 2]
    redone = view.prepare(epoch(1, TWO, redo=1), rows(spark, []), TWO)
    assert view.commit(redone, TWO) is CommitOutcome.COMMITTED
    assert support.visible(pg_database) == [1, 2]


@pytest.mark.parametrize("mode", [Append(), Plain(), KEYED])
def test_a_table_that_changed_since_the_start_would_bend_values_and_is_refused(
    spark: SparkSession, pg_database: str, mode: Mode
) -> None:
    out = ready(pg_database, mode=mode)
    tables = ["flights__rows"] if mode == Append() else ["flights", "flights__staged"]
    for table in tables:
        if mode == Append():
            observe(pg_database, "DROP VIEW flights")
        observe(pg_database, f"ALTER TABLE {table} ALTER COLUMN attempt TYPE boolean USING true")
        with pytest.raises(PrepareRefused, match=f'column "attempt" of "{table}" is boolean'):
            out.prepare(epoch(0), rows(spark, [1], "long"), ONE)
        observe(pg_database, f"ALTER TABLE {table} ALTER COLUMN attempt TYPE text")


def test_tables_of_an_older_epochal_get_the_columns_that_came_since(pg_database: str) -> None:
    out = sink(pg_database, Plain())
    out.create(QUERY, SCHEMA)
    observe(
        pg_database,
        "ALTER TABLE epochal.sinks DROP COLUMN version;"
        " ALTER TABLE epochal.epochs DROP COLUMN digest_rows, DROP COLUMN digest_sum",
    )
    with pytest.raises(Misconfigured, match="the schema epochal and its tables"):
        out.check(QUERY, SCHEMA)
    done = [
        "added version to epochal.sinks",
        "added digest_rows to epochal.epochs",
        "added digest_sum to epochal.epochs",
        "made the schema epochal",
    ]
    assert list(out.create(QUERY, SCHEMA))[:-1] == done
    out.check(QUERY, SCHEMA)
    out.look(QUERY)
