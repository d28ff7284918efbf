"""Columns that are new in the query, and the rights that a role needs that only writes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from epochal.coordinator.model.errors import Fenced, Misconfigured
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert
from epochal.sinks.postgres.evolution import Evolution
from epochal.sinks.postgres.modes import Mode
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, SCHEMA, TWO, epoch, observe, rows

MODES = [Append(), Plain(), Upsert(key="id")]
WIDER = StructType().add("more", LongType()).add("id", LongType()).add("attempt", StringType())


def wider(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(key * 10, key, "b") for key in ids], WIDER)


def began(dsn: str, **options: Any) -> PostgresSink:
    sink = support.sink(dsn, **{"schema_evolution": True, **options})
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    return sink


def commit(sink: PostgresSink, frame: DataFrame, number: int = 0) -> None:
    assert sink.commit(sink.prepare(epoch(number), frame, ONE), ONE) is CommitOutcome.COMMITTED


def shown(dsn: str) -> list[tuple[Any, ...]]:
    return observe(dsn, "SELECT id, attempt, more FROM flights ORDER BY id")


def columns(dsn: str, table: str) -> list[str]:
    found = observe(dsn, "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0", table)
    return [name for (name,) in found]


@pytest.mark.remedy("… has … columns, and a table of Postgres has at most …: … more do not fit", "select fewer columns")
def test_a_full_table_gets_no_new_column(pg_database: str) -> None:
    """P15: it was a raw error of the server; columns that were dropped count, too."""
    sink = support.sink(pg_database, schema_evolution=True)
    sink.create(QUERY, SCHEMA)
    dropped = ", ".join(f"ADD COLUMN d{n} int" for n in range(1_596))
    observe(pg_database, f"ALTER TABLE flights__rows {dropped}")
    observe(pg_database, f"ALTER TABLE flights__rows {dropped.replace('ADD', 'DROP').replace(' int', '')}")
    for call in (sink.check, sink.create):
        with pytest.raises(Misconfigured, match=r'"flights__rows" has 1600 columns, .* 1 more do not fit'):
            call(QUERY, WIDER)
        call(QUERY, SCHEMA)


@pytest.mark.parametrize(
    ("mode", "tables"),
    [(Append(), ["flights__rows"]), *((mode, ["flights", "flights__staged"]) for mode in MODES[1:])],
)
def test_a_new_column_is_refused_with_what_to_run(pg_database: str, mode: Mode, tables: list[str]) -> None:
    sink = support.sink(pg_database, mode=mode)
    sink.create(QUERY, SCHEMA)
    for table in tables:
        for call in (sink.check, sink.create):
            with pytest.raises(Misconfigured, match=f'"{table}" has no column "more"') as refused:
                call(QUERY, WIDER)
        alter, comma, more = refused.value.help.partition(",")
        assert (alter, comma) == (f'ALTER TABLE "{table}" ADD COLUMN "more" bigint', ",")
        assert more.endswith("or give schema_evolution=True")
        observe(pg_database, alter)
    if mode == Append():
        with pytest.raises(Misconfigured, match='it lacks the column "more"'):
            sink.check(QUERY, WIDER)
    else:
        sink.check(QUERY, WIDER)


@pytest.mark.parametrize("mode", MODES)
def test_the_first_epoch_that_has_it_adds_it(spark: SparkSession, pg_database: str, mode: Mode) -> None:
    support.sink(pg_database, mode=mode).create(QUERY, SCHEMA)
    sink = began(pg_database, mode=mode)
    sink.check(QUERY, SCHEMA)
    commit(sink, rows(spark, [1]))
    sink.check(QUERY, WIDER)
    assert "more" not in columns(pg_database, "flights")
    commit(sink, wider(spark, 2, 3), 1)
    assert shown(pg_database) == [(1, "a", None), (2, "b", 20), (3, "b", 30)]
    commit(sink, rows(spark, [4]), 2)
    assert shown(pg_database)[-1] == (4, "a", None)
    support.sink(pg_database, mode=mode).check(QUERY, WIDER)


@pytest.mark.parametrize("mode", MODES)
def test_create_adds_it_and_says_so_and_a_vote_from_before_still_counts(
    spark: SparkSession, pg_database: str, mode: Mode
) -> None:
    support.sink(pg_database, mode=mode).create(QUERY, SCHEMA)
    sink = began(pg_database, mode=mode)
    vote = sink.prepare(epoch(), rows(spark, [1]), ONE)
    done = list(sink.create(QUERY, WIDER))
    own, *rest = [f'"flights{suffix}"' for suffix in (["__rows"] if mode == Append() else ["__staged", ""])]
    expected = [f'added the column "more" to {table}' for table in (own, *rest)]
    assert done == [*expected, *(['added them to the view "flights"'] if mode == Append() else [])]
    assert list(sink.create(QUERY, WIDER)) == []
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert shown(pg_database) == [(1, "a", None)]


def test_what_delete_when_names_is_staged_and_goes_into_no_table(spark: SparkSession, pg_database: str) -> None:
    support.sink(pg_database, mode=Upsert(key="id")).create(QUERY, SCHEMA)
    sink = began(pg_database, mode=Upsert(key="id", delete_when="gone"))
    commit(sink, spark.createDataFrame([(1, "a", False), (2, "a", True)], "id long, attempt string, gone boolean"))
    assert columns(pg_database, "flights") == ["id", "attempt"]
    assert columns(pg_database, "flights__staged") == ["id", "attempt", "_epoch", "_attempt", "gone"]
    assert support.visible(pg_database) == [1]


def test_who_was_fenced_meanwhile_adds_nothing(
    spark: SparkSession, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    sink = began(pg_database)
    newer = support.sink(pg_database)
    newer.look(QUERY)
    lacking = Evolution.lacking

    def overtaken(*given: Any) -> Any:
        newer.fence(QUERY, TWO)
        monkeypatch.setattr(Evolution, "lacking", lacking)
        return lacking(*given)

    monkeypatch.setattr(Evolution, "lacking", overtaken)
    with pytest.raises(Fenced):
        sink.prepare(epoch(), wider(spark, 1), ONE)
    assert "more" not in columns(pg_database, "flights__rows")


def test_nobody_fences_while_columns_are_added(
    spark: SparkSession, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    sink, run, held = began(pg_database), Evolution.run, []

    def watched(*given: Any) -> Any:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            observe(pg_database, "SELECT FROM epochal.sinks FOR UPDATE NOWAIT")
        held.append(True)
        return run(*given)

    monkeypatch.setattr(Evolution, "run", watched)
    sink.prepare(epoch(), wider(spark, 1), ONE)
    assert held == [True]


def test_a_view_that_somebody_wrote_anew_is_left_alone(spark: SparkSession, pg_database: str) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    observe(
        pg_database,
        "CREATE OR REPLACE VIEW flights AS SELECT id, left(attempt, 1) AS attempt FROM flights__rows"
        " WHERE _epoch <= (SELECT published FROM epochal.sinks WHERE app = 'flights' AND sink = 'out')",
    )
    with pytest.raises(Misconfigured, match=r'is not the one that create\(\) made, and lacks "more"'):
        began(pg_database).prepare(epoch(), wider(spark, 1), ONE)
    assert "more" not in columns(pg_database, "flights__rows")


def test_a_view_that_names_some_columns_gets_the_new_one_at_its_end(spark: SparkSession, pg_database: str) -> None:
    support.sink(pg_database).create(QUERY, SCHEMA)
    observe(pg_database, "ALTER TABLE flights__rows ADD COLUMN unseen int DEFAULT 3")
    observe(pg_database, "ALTER VIEW flights SET (security_invoker = true, security_barrier = true)")
    commit(began(pg_database), wider(spark, 1))
    assert observe(pg_database, "SELECT * FROM flights") == [(1, "b", 10)]
    options = "SELECT reloptions FROM pg_class WHERE oid = 'flights'::regclass"
    assert observe(pg_database, options) == [(["security_invoker=true", "security_barrier=true"],)]


@pytest.mark.parametrize("mode", MODES)
def test_the_printed_rights_are_those_that_a_writer_needs(spark: SparkSession, pg_database: str, mode: Mode) -> None:
    needs = list(support.sink(pg_database, mode=mode).create(QUERY, SCHEMA))[-1]
    assert needs.startswith("a role that only writes needs: GRANT USAGE ON SCHEMA epochal TO <role>; ")
    name = f"only_writes_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {name} LOGIN")
    try:
        observe(pg_database, needs.partition(": ")[2].replace("<role>", name))
        writer = PostgresSink(pg_database.replace("postgres@", f"{name}@"), table="flights", name="out", mode=mode)
        writer.check(QUERY, SCHEMA)
        writer.look(QUERY)
        writer.fence(QUERY, ONE)
        commit(writer, rows(spark, [1]))
        writer.close()
        assert support.visible(pg_database) == [1]
        _refused_to_who_does_not_own(pg_database, name, mode)
    finally:
        observe(pg_database, f"DROP OWNED BY {name}; DROP ROLE {name}")


def _refused_to_who_does_not_own(dsn: str, name: str, mode: Mode) -> None:
    """A table that another role owns cannot be altered: told at start."""
    writer = PostgresSink(
        dsn.replace("postgres@", f"{name}@"), table="flights", name="out", mode=mode, schema_evolution=True
    )
    writer.check(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match=f'the role {name} does not own .*lacks "more"') as refused:
        writer.check(QUERY, WIDER)
    writer.close()
    assert refused.value.help.startswith(f"GRANT postgres TO {name}, or")


@pytest.mark.remedy("schema_evolution=True, and the role … does not own …, which lacks …", "GRANT … TO …")
def test_who_owns_the_table_alone_cannot_show_the_new_column(pg_database: str) -> None:
    needs = list(support.sink(pg_database).create(QUERY, SCHEMA))[-1]
    name = f"owns_rows_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {name} LOGIN")
    try:
        observe(pg_database, needs.partition(": ")[2].replace("<role>", name))
        observe(pg_database, f"ALTER TABLE flights__rows OWNER TO {name}")
        writer = PostgresSink(
            pg_database.replace("postgres@", f"{name}@"), table="flights", name="out", schema_evolution=True
        )
        with pytest.raises(Misconfigured, match=f'the role {name} does not own "flights", which lacks "more"'):
            writer.check(QUERY, WIDER)
        observe(pg_database, f"GRANT postgres TO {name}")  # as the help line says
        writer.check(QUERY, WIDER)
        writer.close()
    finally:
        observe(pg_database, f"REASSIGN OWNED BY {name} TO postgres; DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_table_in_a_schema_needs_a_right_on_that_too(pg_database: str) -> None:
    observe(pg_database, 'CREATE SCHEMA "s 1"')
    needs = list(support.sink(pg_database, table="s 1.flights").create(QUERY, SCHEMA))[-1]
    assert 'GRANT USAGE ON SCHEMA "s 1" TO <role>; ' in needs
    name = f"in_schema_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {name} LOGIN")
    try:
        writer = PostgresSink(pg_database.replace("postgres@", f"{name}@"), table="s 1.flights", name="out")
        observe(pg_database, needs.partition(": ")[2].replace("<role>", name))
        writer.check(QUERY, SCHEMA)
        observe(pg_database, f'REVOKE USAGE ON SCHEMA "s 1" FROM {name}')
        with pytest.raises((Misconfigured, psycopg.Error), match="permission denied for schema s 1"):
            writer.check(QUERY, SCHEMA)
        writer.close()
    finally:
        observe(pg_database, f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_there_is_made_as_ever(pg_database: str, mode: Mode) -> None:
    sink = support.sink(pg_database, mode=mode, schema_evolution=True)
    assert next(iter(sink.create(QUERY, SCHEMA))) == "made the schema epochal"
    sink.check(QUERY, WIDER)


@pytest.mark.parametrize("table", ["flights", "flights__staged"])
def test_a_column_that_one_of_the_tables_has_is_added_to_the_other(pg_database: str, table: str) -> None:
    sink = support.sink(pg_database, mode=Plain(), schema_evolution=True)
    sink.create(QUERY, SCHEMA)
    observe(pg_database, f"ALTER TABLE {table} ADD COLUMN more bigint")
    (other,) = {"flights", "flights__staged"} - {table}
    assert list(sink.create(QUERY, WIDER)) == [f'added the column "more" to "{other}"']
    sink.check(QUERY, WIDER)


def test_a_view_that_is_gone_is_made_with_the_new_column(pg_database: str) -> None:
    sink = support.sink(pg_database, schema_evolution=True)
    sink.create(QUERY, SCHEMA)
    observe(pg_database, "DROP VIEW flights")
    with pytest.raises(Misconfigured, match='the reader view "flights"'):
        sink.check(QUERY, WIDER)
    added, made, _ = sink.create(QUERY, WIDER)
    assert (added, made) == ('added the column "more" to "flights__rows"', 'made the reader view "flights"')
    assert shown(pg_database) == []
