"""Rows of one epoch are read only from files that are as the epoch wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.model.errors import SinkUnavailable
from epochal.sinks.delta import DeltaSink
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import Start, query


@pytest.mark.wide
@pytest.mark.remedy(
    "the rows of one epoch cannot be read: …",
    "compare a range of epochs that the table still shows as they were written",
)
def test_rows_whose_files_were_changed_are_not_guessed(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "lake"
    sink = DeltaSink(str(path), name="out")
    rows = spark.range(4).selectExpr("id", "'x' AS name").coalesce(1)
    sink.create(query("app"), rows.schema)
    support.sql(spark, path, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    start = Start(spark, path).fenced()
    start.show(rows)
    start.show(rows, 2)
    inspection = sink.inspection(query("app"))

    def read(position: int) -> list[object]:
        return [value for (value,) in inspection.rows(position, ["id"])]

    assert read(1) == read(2) == [0, 1, 2, 3]
    with pytest.raises(SinkUnavailable, match="no version of position 3 is in the table's log"):
        read(3)
    support.sql(spark, path, "DELETE FROM {t} WHERE id = 2")  # the files stay, and not all of their rows do
    with pytest.raises(SinkUnavailable, match=r"rows of version \d+ were deleted since"):
        read(1)
    start.show(rows, 3)
    support.sql(spark, path, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    support.sql(spark, path, "ALTER TABLE {t} RENAME COLUMN id TO number")
    with pytest.raises(SinkUnavailable, match=r"the files have other names for the columns \['number'\]"):
        list(inspection.rows(3, ["number"]))
    support.sql(spark, path, "OPTIMIZE {t}")
    with pytest.raises(SinkUnavailable, match=r"1 of 1 files of version .* were rewritten"):
        read(3)
    start.show(rows.withColumnRenamed("id", "number"), 4)
    assert list(inspection.rows(4, ["name"])) == [("x",)] * 4
