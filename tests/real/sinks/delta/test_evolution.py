"""A column of the query that the table has not: refused with the statement to run, or added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.coordinator.model.errors import Fenced, Misconfigured, PrepareRefused
from epochal.sinks.delta import Append, Merge, Overwrite
from epochal.sinks.delta.core import Core
from epochal.sinks.delta.modes import Mode
from epochal.sinks.spark import settings
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import TWO, Start, query

DOES_NOT_ADD = pytest.mark.remedy(
    "Delta does not add the columns …",
    "change the table, the session or the sink's arguments as Delta's message asks (State:); start again",
)
OLD, NEW = "id string", "id string, `a b` struct<`x y`: int, z: array<string>>, n bigint"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def grown(spark: SparkSession, path: Path) -> DataFrame:
    """Rows with two columns more than the table has."""
    support.sql(
        spark, path, f"CREATE TABLE {{t}} ({OLD}) USING delta TBLPROPERTIES ('delta.columnMapping.mode'='name')"
    )
    support.sql(spark, path, "INSERT INTO {t} VALUES ('old')")
    return spark.createDataFrame([("new", (1, ["t"]), 2)], NEW).coalesce(1)


def seen(spark: SparkSession, path: Path, columns: str = "id, `a b`.`x y`, n") -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.sql(f"SELECT {columns} FROM delta.`{path}`").collect()), key=str)


def test_it_is_refused_with_the_statement_that_adds_it(spark: SparkSession, path: Path, grown: DataFrame) -> None:
    start = Start(spark, path)
    with pytest.raises(Misconfigured, match="column a b: the table has no such column") as refused:
        start.sink.check(query("app"), grown.schema)
    statement = refused.value.help.partition(", or give")[0]
    assert statement.startswith(f"ALTER TABLE delta.`{path}` ADD COLUMNS (")
    with pytest.raises(PrepareRefused) as voted:
        start.fenced().prepare(grown)
    assert voted.value.help == refused.value.help
    spark.sql(statement)
    start.sink.check(query("app"), grown.schema)
    start.show(grown)
    assert seen(spark, path) == [("new", 1, 2), ("old", None, None)]


@pytest.mark.remedy(
    "the Delta table … cannot hold the rows exactly: …",
    "which some readers do not know, or cast it in the query to timestamp or string",
)
def test_a_column_that_needs_a_feature_of_the_table(spark: SparkSession, path: Path) -> None:
    """Delta's own error came out raw in prepare, and the statement that adds the column failed."""
    support.sql(spark, path, "CREATE TABLE {t} (id string) USING delta")
    grown = spark.sql("SELECT 'a' AS id, named_struct('at', timestamp_ntz'2024-01-01 00:00:00') AS n")
    start = Start(spark, path, merge_schema=True)
    for sink in (start.sink, Start(spark, path).sink):
        with pytest.raises(Misconfigured, match=r"column n\.at: timestamp_ntz needs the table feature") as refused:
            sink.check(query("app"), grown.schema)
    with pytest.raises(PrepareRefused, match="does not add the columns"):
        start.fenced().prepare(grown)
    spark.sql(refused.value.help.partition(", which")[0])
    start.sink.check(query("app"), grown.schema)
    start.show(grown)
    assert [row.n.at.year for row in spark.sql(f"SELECT n FROM delta.`{path}`").collect()] == [2024]


def test_it_is_added_when_the_first_epoch_that_has_it_is_prepared(
    spark: SparkSession, path: Path, grown: DataFrame
) -> None:
    start = Start(spark, path, merge_schema=True)
    start.sink.check(query("app"), grown.schema)
    assert seen(spark, path, "*") == [("old",)]
    vote = start.fenced().prepare(grown)
    assert seen(spark, path) == [("old", None, None)]
    start.commit(vote)
    start.show(grown.select("n", "id"), 2)
    assert seen(spark, path) == [("new", 1, 2), ("new", None, 2), ("old", None, None)]


def test_only_whole_new_columns_are_added(spark: SparkSession, path: Path, grown: DataFrame) -> None:
    start = Start(spark, path, merge_schema=True).fenced()
    start.show(grown)
    deeper = spark.createDataFrame([], "id string, `a b` struct<w: int>")
    with pytest.raises(Misconfigured, match=r"column a b\.w: the table has no such column"):
        start.sink.check(query("app"), deeper.schema)
    unholdable = spark.sql("SELECT 'a' AS id, INTERVAL '1' DAY AS day")
    with pytest.raises(Misconfigured, match="a Delta table cannot hold interval"):
        start.sink.check(query("app"), unholdable.schema)


@pytest.mark.parametrize("mode", [Append(), Overwrite()], ids=["append", "overwrite"])
def test_columns_that_were_added_and_are_not_there_refuse_the_epoch(
    spark: SparkSession, path: Path, grown: DataFrame, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the table was put back at that moment: without them the rows would be shown without these values."""
    start = Start(spark, path, merge_schema=True, mode=mode).fenced()
    monkeypatch.setattr(Core, "add_columns", lambda *_: "SELECT 1")
    with pytest.raises(PrepareRefused, match="does not add the columns") as refused:
        start.prepare(grown)
    assert "the table does not have them" in str(refused.value)
    assert seen(spark, path, "*") == [("old",)]


@pytest.mark.wide
def test_what_only_the_mode_looks_at_is_not_added(spark: SparkSession, path: Path, grown: DataFrame) -> None:
    mode = Merge(key="id", order_by="n", delete_when="gone")
    rows = grown.selectExpr("id", "n", "n > 5 AS gone", "'more' AS more")
    start = Start(spark, path, merge_schema=True, mode=mode)
    start.sink.check(query("app"), rows.schema)
    start.fenced().show(rows)
    assert seen(spark, path, "*") == [("new", "more"), ("old", None)]


def test_an_older_start_adds_nothing(spark: SparkSession, path: Path, grown: DataFrame) -> None:
    older = Start(spark, path, merge_schema=True, mode=Overwrite()).fenced()
    Start(spark, path, TWO).fenced()
    with pytest.raises(Fenced):
        older.prepare(grown)
    assert seen(spark, path, "*") == [("old",)]


@pytest.mark.parametrize(
    ("theirs", "fits"),
    [
        ("`a b` struct<`x y`: int, z: array<string>>, n bigint", True),
        pytest.param("n int", False, marks=[DOES_NOT_ADD, pytest.mark.wide]),
    ],
)
def test_another_adds_it_at_the_same_time(
    spark: SparkSession, path: Path, grown: DataFrame, theirs: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(spark, path, merge_schema=True).fenced()
    statement = Core.add_columns

    def overtaken(sink: Core, added: Any) -> str:
        monkeypatch.undo()
        support.sql(spark, path, f"ALTER TABLE {{t}} ADD COLUMNS ({theirs})")
        return statement(sink, added)

    monkeypatch.setattr(Core, "add_columns", overtaken)
    if fits:
        start.show(grown)
        assert seen(spark, path) == [("new", 1, 2), ("old", None, None)]
    else:
        with pytest.raises(PrepareRefused, match="Delta does not add the columns"):
            start.prepare(grown)
        support.sql(spark, path, "ALTER TABLE {t} DROP COLUMN n")  # Delta says that it is there already
        Start(spark, path, merge_schema=True).show(grown)
        assert seen(spark, path) == [("new", 1, 2), ("old", None, None)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("spark.sql.timestampType", "TIMESTAMP_NTZ"), ("spark.sql.ansi.enforceReservedKeywords", "true")],
)
def test_no_setting_gives_new_columns_another_meaning(
    spark: SparkSession, tmp_path: Path, setting: str, value: str
) -> None:
    path = tmp_path / "${spark.app.name}"
    with settings.held(spark, {setting: value}):
        spark.range(0).write.format("delta").save(str(path))
        start = Start(spark, path, merge_schema=True)
        at = "timestamp_ltz'2024-01-01 00:00:00'"
        grown = spark.sql(f"SELECT 1L AS id, {at} AS `order`, array(named_struct('user', {at})) AS `1d`")
        start.fenced().show(grown)
        added = spark.read.format("delta").load(str(path)).schema
    assert added.simpleString() == ("struct<id:bigint,order:timestamp,1d:array<struct<user:timestamp>>>")
