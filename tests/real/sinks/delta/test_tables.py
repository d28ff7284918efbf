"""Every kind of table that an epoch may be shown in: made by whom, with which of Delta's features."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType, Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured, PrepareRefused
from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite, gates
from epochal.sinks.delta.modes import Mode
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import Start, query
from tests.real.sinks.settings import under

ROWS = "id string, n bigint"


def table(features: str = "", columns: str = ROWS, layout: str = "") -> str:
    properties = f" TBLPROPERTIES ({features})" if features else ""
    return f"({columns}) USING delta {layout}{properties}"


TABLES = {
    "plain": table(),
    "partitioned": table(layout="PARTITIONED BY (n)"),
    "clustered": table(layout="CLUSTER BY (id)"),
    "generated": table(columns=f"{ROWS}, twice bigint GENERATED ALWAYS AS (n * 2)"),
    "partitioned by a generated column": table(
        columns=f"{ROWS}, twice bigint GENERATED ALWAYS AS (n * 2)", layout="PARTITIONED BY (twice)"
    ),
    "check": table("'delta.constraints.small' = 'n < 100'"),
    "not null": table(columns="id string NOT NULL, n bigint NOT NULL"),
    "varchar": table(columns="id varchar(3), n bigint"),
    "char": table(columns="id char(1), n bigint"),
    "column mapping by name": table("'delta.columnMapping.mode' = 'name'", columns="`id` string, n bigint, `a b` int"),
    "column mapping by id": table("'delta.columnMapping.mode' = 'id'"),
    "deletion vectors": table("'delta.enableDeletionVectors' = 'true'"),
    "row tracking": table("'delta.enableRowTracking' = 'true'"),
    "in-commit timestamps": table("'delta.enableInCommitTimestamps' = 'true'"),
    "change data feed": table("'delta.enableChangeDataFeed' = 'true'"),
    "type widening": table("'delta.enableTypeWidening' = 'true'"),
    "v2 checkpoint": table("'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'"),
    "append only": table("'delta.appendOnly' = 'true'"),
    "everything at once": table(
        "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' ="
        " 'true', 'delta.enableInCommitTimestamps' = 'true', 'delta.constraints.small' = 'n < 100',"
        " 'delta.enableChangeDataFeed' = 'true', 'delta.checkpointInterval' = '2'",
        columns=f"{ROWS}, twice bigint GENERATED ALWAYS AS (n * 2)",
        layout="CLUSTER BY (id)",
    ),
}


def make(spark: SparkSession, path: Path, shape: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` {shape}")


def seen(spark: SparkSession, path: Path) -> list[tuple[str, int]]:
    """As Spark reads it: delta-rs does not know every feature."""
    return sorted((row.id, row.n) for row in spark.sql(f"SELECT id, n FROM delta.`{path}`").collect())


def rows(spark: SparkSession, *given: tuple[Any, ...], shape: str = ROWS) -> DataFrame:
    return spark.createDataFrame(list(given), shape).coalesce(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.mark.wide
@pytest.mark.parametrize("shape", TABLES.values(), ids=TABLES)
def test_append_to_a_table_that_sql_made(spark: SparkSession, path: Path, shape: str) -> None:
    make(spark, path, shape)
    start = Start(spark, path)
    start.sink.check(query("app"), rows(spark).schema)
    start.fenced()
    start.show(rows(spark, ("a", 1), ("b", 2)))
    if "DeletionVectors" in shape:
        support.sql(spark, path, "DELETE FROM {t} WHERE id = 'b'")
    last = start.show(rows(spark, ("c", 3)), 2)
    assert start.commit(last) is CommitOutcome.ALREADY_COMMITTED
    kept = [("b", 2)] if "DeletionVectors" not in shape else []
    assert seen(spark, path) == [("a", 1), *kept, ("c", 3)]
    if "twice" in shape:
        found = spark.sql(f"SELECT n, twice FROM delta.`{path}`").collect()
        assert all(row.twice == 2 * row.n for row in found)


KEPT = {Overwrite: [("b", 3), ("c", 4)], Merge: [("a", 1), ("b", 3), ("c", 4)]}


@pytest.mark.wide
@pytest.mark.parametrize("shape", ["partitioned by a generated column", "everything at once"])
@pytest.mark.parametrize("mode", [Overwrite(), Merge(key="id")], ids=["overwrite", "merge"])
def test_the_other_modes_on_a_table_that_sql_made(spark: SparkSession, path: Path, mode: Mode, shape: str) -> None:
    """A generated column of a row that is changed is made anew, and the row goes where its partition is then."""
    make(spark, path, TABLES[shape])
    start = Start(spark, path, mode=mode)
    start.sink.check(query("app"), rows(spark).schema)
    start.fenced()
    start.show(rows(spark, ("a", 1), ("b", 2)))
    last = start.show(rows(spark, ("b", 3), ("c", 4)), 2)
    assert start.commit(last) is CommitOutcome.ALREADY_COMMITTED
    assert seen(spark, path) == KEPT[type(mode)]
    found = spark.sql(f"SELECT n, twice FROM delta.`{path}` WHERE twice > 0").collect()
    assert sorted((row.n, row.twice) for row in found) == [(n, 2 * n) for _, n in KEPT[type(mode)]]


VIOLATIONS = {
    "check": ("check", ROWS, ("a", 100), "CHECK constraint small"),
    "not null": ("not null", ROWS, (None, 1), "NOT NULL constraint"),
    "varchar": ("varchar", ROWS, ("long", 1), "length limitation"),
    "char": ("char", ROWS, ("ab", 1), "length limitation"),
    "generated": ("generated", f"{ROWS}, twice bigint", ("a", 1, 3), "Generated Column"),
}


@pytest.mark.remedy(
    "rows violate a constraint of the table",
    "correct these rows in the query, keep them out with where=, or drop the constraint (ALTER TABLE …",
)
@pytest.mark.parametrize(("shape", "schema", "row", "named"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_what_the_table_does_not_take_is_refused_before_the_decision(
    spark: SparkSession, path: Path, shape: str, schema: str, row: tuple[Any, ...], named: str
) -> None:
    make(spark, path, TABLES[shape])
    start = Start(spark, path).fenced()
    with pytest.raises(PrepareRefused, match="violate a constraint") as refused:
        start.prepare(rows(spark, row, shape=schema))
    assert named in str(refused.value.state)
    assert seen(spark, path) == []
    start.show(rows(spark, ("a", 1)))
    if shape in ("check", "not null"):
        Start(spark, path, where="id IS NOT NULL AND n < 100").show(rows(spark, row, shape=schema), 2)
        by_name = re.search(
            r"\((ALTER TABLE .* DROP CONSTRAINT) name, or (ALTER COLUMN) name (.*)\)", refused.value.help
        )
        assert by_name is not None
        dropping, altering, null = by_name.groups()
        table = dropping.removesuffix("DROP CONSTRAINT")
        spark.sql(f"{dropping} small" if shape == "check" else f"{table} {altering} id {null}")
        start.show(rows(spark, row, shape=schema), 3)


@pytest.mark.parametrize(
    "mode", [Append(), pytest.param(Merge(key="id"), marks=pytest.mark.wide)], ids=["append", "merge"]
)
def test_a_column_that_is_left_out_gets_its_default(spark: SparkSession, path: Path, mode: Mode) -> None:
    columns = f"{ROWS}, made string DEFAULT 'by us', size bigint NOT NULL DEFAULT 7"
    make(spark, path, table("'delta.feature.allowColumnDefaults' = 'supported'", columns=columns))
    start = Start(spark, path, mode=mode)
    start.sink.check(query("app"), rows(spark).schema)
    start.fenced().show(rows(spark, ("a", 1)))
    start.show(rows(spark, ("b", 2, None), shape=f"{ROWS}, made string"), 2)
    found = spark.sql(f"SELECT id, made, size FROM delta.`{path}`").collect()
    assert sorted(map(tuple, found)) == [("a", "by us", 7), ("b", None, 7)]


def test_a_clustered_table_stays_clustered(spark: SparkSession, path: Path) -> None:
    make(spark, path, TABLES["clustered"])
    Start(spark, path).fenced().show(rows(spark, ("a", 1)))
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
    assert (detail.clusteringColumns, detail.numFiles) == (["id"], 1)


@pytest.mark.wide
def test_rows_keep_an_id_of_their_own_under_row_tracking(spark: SparkSession, path: Path) -> None:
    make(spark, path, TABLES["row tracking"])
    start = Start(spark, path).fenced()
    votes = [start.prepare(rows(spark, ("a", 1)), 1), start.prepare(rows(spark, ("b", 2)), 2)]
    for vote in votes:
        start.commit(vote)
    ids = [row.row for row in spark.sql(f"SELECT _metadata.row_id AS row FROM delta.`{path}`").collect()]
    assert len(set(ids)) == 2


@pytest.mark.wide
def test_a_table_that_delta_rs_made(spark: SparkSession, path: Path) -> None:
    fields = [Field("id", PrimitiveType("string")), Field("n", PrimitiveType("long"), nullable=False)]
    DeltaTable.create(str(path), Schema(fields), partition_by=["id"])
    start = Start(spark, path)
    start.sink.check(query("app"), rows(spark).schema)
    start.fenced().show(rows(spark, ("a", 1), ("b", 2)))
    support.foreign_append_by_delta_rs(path, [{"id": "x", "n": 0}])
    start.show(rows(spark, ("c", 3)), 2)
    assert support.read(path).sort_by("id").to_pylist() == [
        {"id": key, "n": n} for key, n in (("a", 1), ("b", 2), ("c", 3), ("x", 0))
    ]


def test_tables_that_epochal_makes_are_partitioned_as_asked(spark: SparkSession, path: Path) -> None:
    sink = DeltaSink(str(path), name="out", partition_by=["n"])
    sink.create(query("app"), rows(spark).schema)
    Start(spark, path).fenced().show(rows(spark, ("a", 1)))
    assert DeltaTable(str(path)).metadata().partition_columns == ["n"]
    assert support.column(path, "id") == ["a"]


# --- the marker must last -------------------------------------------------------------------------


@pytest.mark.remedy(
    "the Delta table … cannot hold the rows exactly: …",
    "…; a marker that is gone already is then refused as lost",
)
@pytest.mark.parametrize("kept", ["interval 1 day", "interval 36500 days"])
def test_a_table_that_forgets_transaction_ids_is_refused_with_the_statement_that_mends_it(
    spark: SparkSession, path: Path, kept: str
) -> None:
    schema = rows(spark).schema
    make(spark, path, table(f"'{gates.RETENTION}' = '{kept}'"))
    start = Start(spark, path)
    with pytest.raises(Misconfigured, match=f"{gates.RETENTION} = '{kept}' lets Delta forget the marker") as refused:
        start.sink.check(query("app"), schema)
    with pytest.raises(PrepareRefused, match="lets Delta forget the marker") as voted:
        start.fenced().prepare(rows(spark, ("a", 1)))
    assert voted.value.help == refused.value.help
    statement = f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{gates.RETENTION}')"
    assert statement in refused.value.help
    spark.sql(statement)
    start.sink.check(query("app"), schema)
    start.show(rows(spark, ("a", 1)))


def test_a_default_of_the_session_does_not_make_a_table_forgetful(spark: SparkSession, path: Path) -> None:
    spark.conf.set(gates.RETENTION_DEFAULT, "interval 1 day")
    try:
        DeltaSink(str(path), name="out").create(query("app"), StructType().add("id", "string"))
    finally:
        spark.conf.unset(gates.RETENTION_DEFAULT)
    configuration: Json = DeltaTable(str(path)).metadata().configuration
    assert gates.RETENTION not in configuration


@pytest.mark.wide
@pytest.mark.remedy("the Delta table … cannot hold the rows exactly: …", "ALTER TABLE … ALTER COLUMN … TYPE STRING")
def test_a_key_of_the_type_char_is_refused_with_the_statement_that_mends_it(spark: SparkSession, path: Path) -> None:
    """D2: the check passed, and Delta's MERGE failed in the first epoch with an error of its own."""
    make(spark, path, table(columns="id char(5), n char(3)"))
    given = rows(spark, ("ab", "x"), shape="id string, n string")
    start = Start(spark, path, mode=Merge(key="id")).fenced()
    told = "column id: Delta merges on no key of the type CHAR"
    with pytest.raises(Misconfigured, match=told) as refused:
        start.sink.check(query("app"), given.schema)
    with pytest.raises(PrepareRefused, match=told) as voted:
        start.prepare(given)
    assert voted.value.help == refused.value.help
    spark.sql(voted.value.help)
    start.sink.check(query("app"), given.schema)
    start.show(given)
    start.show(given, 2)
    assert support.read(path).to_pylist() == [{"id": "ab", "n": "x"}]


@pytest.mark.parametrize(
    "mode",
    [Append(), *(pytest.param(mode, marks=pytest.mark.wide) for mode in (Overwrite(), Merge(key="id")))],
    ids=["append", "overwrite", "merge"],
)
def test_a_table_that_knows_its_columns_by_id_gets_files_with_ids(spark: SparkSession, path: Path, mode: Mode) -> None:
    """Also if the session turns them off: Delta itself then fails, with an error of the JVM."""
    make(spark, path, TABLES["column mapping by id"])
    with under(spark, {"spark.sql.parquet.fieldId.write.enabled": "false"}):
        start = Start(spark, path, mode=mode).fenced()
        start.show(rows(spark, ("a", 1), ("b", 2)))
        start.show(rows(spark, ("c", 3)), 2)
    assert seen(spark, path) == ([("c", 3)] if isinstance(mode, Overwrite) else [("a", 1), ("b", 2), ("c", 3)])
    files = [pq.read_schema(path / file) for file in support.live_files(path)]
    assert all(b"PARQUET:field_id" in (column.metadata or {}) for file in files for column in file)


def mapped(spark: SparkSession, path: Path, *, at_once: bool) -> None:
    """A table of ``ROWS`` whose columns can be renamed: so when it was made, or since."""
    property_ = "'delta.columnMapping.mode' = 'name'"
    make(spark, path, table(property_ if at_once else ""))
    if not at_once:
        support.sql(spark, path, f"ALTER TABLE {{t}} SET TBLPROPERTIES ({property_})")


def rename(spark: SparkSession, path: Path, old: str, new: str) -> None:
    support.sql(spark, path, f"ALTER TABLE {{t}} RENAME COLUMN `{old}` TO `{new}`")


@pytest.mark.remedy(
    "the Delta table … cannot hold the rows exactly: …",
    "rename it in the query too: df…; if you mean another column, add it with ALTER TABLE ... ADD COLUMNS",
)
@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.wide)])
@pytest.mark.parametrize("adds", [True, pytest.param(False, marks=pytest.mark.wide)])
def test_a_column_that_the_table_has_renamed_is_told_with_its_new_name(
    spark: SparkSession, path: Path, at_once: bool, adds: bool
) -> None:
    """D5: to add a column of the old name, as the help said, would split the data.  What it says now works."""
    mapped(spark, path, at_once=at_once)
    start = Start(spark, path, merge_schema=adds).fenced()
    start.show(rows(spark, ("a", 1)))
    rename(spark, path, "n", "a b.c")
    rename(spark, path, "a b.c", "m")
    given = rows(spark, ("b", 2), shape="id string, N bigint")
    with pytest.raises(Misconfigured, match="column N: the table has renamed it, to m") as refused:
        start.sink.check(query("app"), given.schema)
    with pytest.raises(PrepareRefused, match="column N: the table has renamed it, to m"):
        start.prepare(given, 2)
    assert "df.withColumnRenamed('N', 'm')" in refused.value.help
    again = given.withColumnRenamed("N", "m")
    start.sink.check(query("app"), again.schema)
    start.show(again, 2)
    found = spark.sql(f"SELECT * FROM delta.`{path}`").collect()
    assert sorted(map(tuple, found)) == [("a", 1), ("b", 2)]
    support.sql(spark, path, "ALTER TABLE {t} ADD COLUMNS (n bigint)")  # the other way out that the help names
    start.sink.check(query("app"), given.schema)


@pytest.mark.wide
def test_a_renamed_column_is_told_by_its_files_if_the_history_is_gone(spark: SparkSession, path: Path) -> None:
    """D5: the table was mapped later, so the old name is still that in the files."""
    mapped(spark, path, at_once=False)
    rename(spark, path, "n", "m")
    support.foreign_append(spark, path, [("a", 1)], "id string, m bigint")
    support.checkpoint(spark, path)
    for version in range(3):
        support.forget_version(path, version)
    support.forget_snapshots(spark)
    with pytest.raises(Misconfigured, match="column n: the table has renamed it, to m"):
        Start(spark, path).sink.check(query("app"), rows(spark).schema)


@pytest.mark.wide
def test_a_renamed_column_that_only_the_mode_reads_is_told_too(spark: SparkSession, path: Path) -> None:
    """D5: a column of order_by= that the table lacks is not written, so its rows got NULL under the new name."""
    mapped(spark, path, at_once=True)
    start = Start(spark, path, mode=Merge(key="id", order_by="n")).fenced()
    start.show(rows(spark, ("a", 1)))
    rename(spark, path, "n", "m")
    with pytest.raises(Misconfigured, match="column n: the table has renamed it, to m"):
        start.sink.check(query("app"), rows(spark).schema)


@pytest.mark.wide
@pytest.mark.remedy(
    "the table does not take the decided rows: …",
    "undo what was changed in the table since the epoch was prepared (see its history)",
)
def test_a_column_that_is_renamed_before_the_commit_of_a_merge_is_told(spark: SparkSession, path: Path) -> None:
    """D5: the epoch is decided, and waits until the column has its name back."""
    mapped(spark, path, at_once=True)
    start = Start(spark, path, mode=Merge(key="id")).fenced()
    vote = start.prepare(rows(spark, ("a", 1)))
    rename(spark, path, "n", "m")
    with pytest.raises(CommitInDoubt, match="column n: the table has renamed it, to m"):
        start.commit(vote)
    rename(spark, path, "m", "n")
    assert start.commit(vote) is CommitOutcome.COMMITTED


@pytest.mark.wide
def test_a_column_that_was_never_there_is_added_as_before(spark: SparkSession, path: Path) -> None:
    mapped(spark, path, at_once=True)
    rename(spark, path, "n", "m")
    start = Start(spark, path, merge_schema=True).fenced()
    start.show(rows(spark, ("a", 1, 2), shape="id string, m bigint, k bigint"))
    assert spark.sql(f"SELECT * FROM delta.`{path}`").collect() == [("a", 1, 2)]
