"""A pipeline in which a Delta sink writes the durable copy that the other sinks read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.delta import DeltaSink
from epochal.sinks.memory import MemoryRedoSink
from epochal.sinks.protocol import Sink
from epochal.sinks.spark.stage import SparkStage
from tests.real.coordinator.query.support import APP, FAST, Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Both:
    """A query into a Delta table and a sink in memory that needs the copy; its rows differ per evaluation."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.job = Job(spark, folder, sinks=("memory",))
        self.table = folder / "table"
        self.links: dict[str, int] = {}
        spark.sql(f"CREATE TABLE delta.`{self.table}` (id bigint, r double) USING delta")

    def run(self, strike: Point | None = None) -> None:
        stage = SparkStage(f"file:{self.job.checkpoint}", lambda: self.spark)
        sinks: list[Sink] = [
            MemoryRedoSink("memory", self.job.server, stage),
            DeltaSink(str(self.table), name="delta"),
        ]
        rows = self.job.df().select("id", f.rand().alias("r"))

        def look(point: Point, _sink: str, _epoch: int) -> None:
            if point is Point.AFTER_COPY:
                self.links |= {file.name: os.stat(file).st_nlink for file in self.copies()}
            if point is strike:
                raise OSError("struck")

        with failpoints.handler(look):
            self.job.run(Pipeline(app=APP, sinks=sinks, retry=FAST), rows)

    def copies(self) -> list[Path]:
        return list((self.job.checkpoint / "epochal" / "copies").rglob("*.parquet"))

    def files(self) -> list[Path]:
        return [file for file in self.table.rglob("*.parquet") if "_delta_log" not in file.parts]

    def rows(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.table))


def test_rows_are_written_once_for_the_table_and_for_all_other_sinks(spark: SparkSession, tmp_path: Path) -> None:
    both = Both(spark, tmp_path)
    both.job.add(1, 2, 3)
    both.job.add(4)
    both.run()
    assert set(both.links.values()) == {2}
    shown = sorted((row["id"], row["r"]) for row in both.rows().collect())
    assert [number for number, _ in shown] == [1, 2, 3, 4]
    assert sorted((row["id"], row["r"]) for row in both.job.server.visible(APP, "memory")) == shown
    assert {file.name for file in both.files()} == both.links.keys()


@pytest.mark.parametrize("point", [Point.AFTER_COPY, Point.BEFORE_DECIDE, Point.AFTER_DECIDE])
def test_a_start_that_dies_after_the_copy(spark: SparkSession, tmp_path: Path, point: Point) -> None:
    both = Both(spark, tmp_path)
    both.job.add(1, 2)
    with pytest.raises(Exception, match="struck"):
        both.run(point)
    both.job.add(3)
    both.run()
    shown = sorted((row["id"], row["r"]) for row in both.rows().collect())
    assert [number for number, _ in shown] == [1, 2, 3]
    assert sorted((row["id"], row["r"]) for row in both.job.server.visible(APP, "memory")) == shown
    live = both.rows().inputFiles()
    assert len(both.files()) == len(live), "files of the epoch that was not decided are gone"
