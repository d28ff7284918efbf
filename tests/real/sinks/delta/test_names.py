"""Columns whose names meet ours, or words of SQL, in every role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite
from epochal.sinks.spark.names import quoted
from tests.real.sinks.delta.support import Start, query
from tests.real.sinks.hostile import NAMES, SOME, Feed, days

MAPPED = "delta.columnMapping.mode"
PLAIN = tuple(name for name in NAMES if not set(name) & set(" ,;{}()\n\t="))
"""The names that Delta takes without column mapping."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def ready(spark: SparkSession, path: Path, schema: StructType, **options: Any) -> Start:
    sink = DeltaSink(str(path), name="out", **options)
    sink.create(query("app"), schema)
    sink.check(query("app"), schema)
    return Start(spark, path, sink=sink).fenced()


def mapped(spark: SparkSession, path: Path, schema: StructType) -> None:
    """A table of the user's own that takes every name."""
    DeltaTable.create(spark).location(str(path)).addColumns(schema).property(MAPPED, "name").execute()


def shown(spark: SparkSession, path: Path, names: list[str]) -> list[tuple[Any, ...]]:
    found = spark.read.format("delta").load(str(path)).select(*map(quoted, names)).collect()
    return sorted(map(tuple, found))


@pytest.mark.parametrize(
    ("mode", "names"),
    [(Append(), PLAIN), (Overwrite(), NAMES), pytest.param(Append(), NAMES, marks=pytest.mark.wide)],
    ids=["plain", "mapped", "mapped-append"],
)
def test_columns_of_every_name_are_inserted(spark: SparkSession, path: Path, mode: Any, names: tuple[str, ...]) -> None:
    """P2, P3: also where a name is no name in SQL, or means something else there."""
    frame = days(spark, names, 1, 2)
    if names == NAMES:
        mapped(spark, path, frame.schema)
    ready(spark, path, frame.schema, mode=mode).show(frame)
    assert shown(spark, path, list(names)) == sorted(map(tuple, frame.collect()))


def merged(spark: SparkSession, path: Path, feed: Feed) -> None:
    first = feed.first(spark)
    if set(feed.names) - set(PLAIN):
        mapped(spark, path, StructType([field for field in first.schema.fields if field.name != feed.gone]))
    start = ready(spark, path, first.schema, mode=Merge(**feed.options))
    start.show(first)
    start.show(feed.second(spark), 2)
    assert shown(spark, path, feed.written) == sorted(feed.left)


@pytest.mark.wide
def test_columns_of_many_names_have_a_role_of_a_merge(spark: SparkSession, path: Path) -> None:
    """P2, P3."""
    merged(spark, path, Feed([name for name in SOME if name in PLAIN]))


@pytest.mark.wide
@pytest.mark.parametrize("turn", [1, 40, 80, NAMES.index("shown"), NAMES.index("new")])
def test_columns_of_every_name_have_every_role_of_a_merge(spark: SparkSession, path: Path, turn: int) -> None:
    """P2, P3: in a table with column mapping."""
    merged(spark, path, Feed(NAMES, turn))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("place", "seq", "v"), marks=pytest.mark.wide),
        ("new", "shown", "epochal place", "epochal times"),
    ],
)
def test_a_key_is_called_like_a_part_of_our_sql(spark: SparkSession, path: Path, names: tuple[str, ...]) -> None:
    """P2: the table has more columns, of structs that the names of our statement could mean."""
    schema = StructType()
    for name in names:
        schema = schema.add(name, "long")
    more = StructType([*schema.fields])
    for name in ("epochal_source", "epochal_new", "epochal_shown"):
        more = more.add(name, schema)
    mapped(spark, path, more)
    start = ready(spark, path, schema, mode=Merge(key=names[0], order_by=names[1]))
    start.show(spark.createDataFrame([(1,) * len(names), (2,) * len(names)], schema))
    start.show(spark.createDataFrame([(1, *(5,) * (len(names) - 1))], schema), 2)
    assert shown(spark, path, list(names)) == [(1, *(5,) * (len(names) - 1)), (2,) * len(names)]


def test_columns_of_every_name_partition_the_table(spark: SparkSession, path: Path) -> None:
    """P3."""
    names = ["v", "a.b", "a`b", "`", "*", "%s", "select", "shown", "ключ", "#", "/", "1"]
    frame = days(spark, names, 1, 2)
    ready(spark, path, frame.schema, partition_by=names[1:]).show(frame)
    assert shown(spark, path, names) == sorted(map(tuple, frame.collect()))


def test_a_name_that_delta_does_not_take_is_refused_by_name(spark: SparkSession, path: Path) -> None:
    """P3: at create, and where a column would be added."""
    schema = StructType().add("id", "long").add("a b", "long")
    sink = DeltaSink(str(path), name="out")
    with pytest.raises(Misconfigured, match="column 'a b': Delta takes no name with one of") as error:
        sink.create(query("app"), schema)
    assert f"'{MAPPED}' = 'name'" in error.value.help
    ready(spark, path, StructType().add("id", "long"))
    for adds in (True, False):
        with pytest.raises(Misconfigured, match="column 'a b': Delta takes no name with one of"):
            DeltaSink(str(path), name="out", merge_schema=adds).check(query("app"), schema)


def test_a_column_that_the_table_spells_otherwise_is_not_added(spark: SparkSession, path: Path) -> None:
    """P12: no Delta table has both."""
    ready(spark, path, StructType().add("id", "long"))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for sink in (DeltaSink(str(path), name="out"), DeltaSink(str(path), name="out", merge_schema=True)):
            with pytest.raises(Misconfigured, match="column Id: the table has no such column, only id") as error:
                sink.check(query("app"), StructType().add("Id", "long"))
            assert error.value.help.startswith("cast or rename in the query")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_name_that_delta_itself_needs_in_a_merge_is_refused_by_name(spark: SparkSession, path: Path) -> None:
    """P2: a sibling, in Delta's own plan: in the rows and in the table."""
    rows = StructType().add("id", "long")
    more = StructType().add("id", "long").add("_Row_Id_", "long")
    said = "column _Row_Id_: Delta's MERGE adds one of that name"
    merging = DeltaSink(str(path), name="out", mode=Merge(key="id"))
    with pytest.raises(Misconfigured, match=said):
        merging.create(query("app"), more)
    ready(spark, path, more)
    with pytest.raises(Misconfigured, match=said) as error:
        merging.check(query("app"), rows)
    assert "RENAME COLUMN `_Row_Id_` TO _Row_Id__" in error.value.help
