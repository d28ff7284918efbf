"""NOT NULL inside a column: a field of a struct, the elements of an array, the values of a map."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.delta import Append, DeltaSink, Merge
from epochal.sinks.delta.modes import Mode
from tests.fuzz.frames import Column, Frames
from tests.real.sinks.delta.support import Start, query, read, sql

INNER = t.StructType([t.StructField("a.b", t.IntegerType(), False), t.StructField("c", t.StringType())])
COLUMNS = (
    Column("id", t.LongType(), False),
    Column("one", INNER),
    Column("many", t.ArrayType(t.LongType(), False)),
    Column("named", t.MapType(t.StringType(), INNER, False)),
)
ROWS = ((1, (1, b"x"), [1], [(b"k", (2, None))]), (2, None, None, None))


@pytest.mark.parametrize("mode", [Append(), Merge(key="id")])
def test_a_table_of_ours_takes_null_for_what_holds_fields_that_are_not_null(
    spark: SparkSession, tmp_path: Path, mode: Mode
) -> None:
    """Append refused the rows, though NULL is right there; a MERGE ended in a raw error, whatever the rows were."""
    rows = Frames(spark, tmp_path / "rows").frame(COLUMNS, ROWS)
    DeltaSink(str(tmp_path / "t"), name="out", mode=mode).create(query("app"), rows.schema)
    start = Start(spark, tmp_path / "t", mode=mode).fenced()
    start.sink.check(query("app"), rows.schema)
    start.show(rows)
    shown: list[dict[str, Any]] = sorted(read(tmp_path / "t").to_pylist(), key=lambda row: int(row["id"]))
    assert shown == [
        {"id": 1, "one": {"a.b": 1, "c": "x"}, "many": [1], "named": [("k", {"a.b": 2, "c": None})]},
        {"id": 2, "one": None, "many": None, "named": None},
    ]


@pytest.mark.remedy("the Delta table … cannot hold the rows exactly: …", "ALTER TABLE … ALTER COLUMN … DROP NOT NULL")
def test_a_merge_into_a_table_of_others_names_what_must_be_nullable(spark: SparkSession, tmp_path: Path) -> None:
    """The statements of the help lead out: afterwards the same rows are merged."""
    rows = Frames(spark, tmp_path / "rows").frame(COLUMNS[:2], [row[:2] for row in ROWS])
    sql(spark, tmp_path / "t", "CREATE TABLE {t} (id BIGINT, one STRUCT<`a.b`: INT NOT NULL, c: STRING>) USING delta")
    start = Start(spark, tmp_path / "t", mode=Merge(key="id")).fenced()
    with pytest.raises(Misconfigured, match=re.escape("column `one`.`a.b`: it is NOT NULL inside")) as refused:
        start.sink.check(query("app"), rows.schema)
    with pytest.raises(PrepareRefused, match=re.escape("column `one`.`a.b`: it is NOT NULL inside")):
        start.prepare(rows)
    spark.sql(refused.value.help)
    start.sink.check(query("app"), rows.schema)
    start.show(rows)
    assert sorted(read(tmp_path / "t").column("id").to_pylist()) == [1, 2]
