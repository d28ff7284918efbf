"""The sink contract with Spark DataFrames as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.chaos.contract.harness import SinkHarness

SCHEMA = StructType().add("id", "string").add("attempt", "string").add("n", "long")


class SparkHarness(SinkHarness):
    """A harness whose rows are DataFrames of ``spark``."""

    schema = SCHEMA
    options: Mapping[str, Any] = {}  # more arguments for the sink

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def rows(self, ids: Sequence[str], attempt: str) -> DataFrame:
        return self.spark.createDataFrame([(key, attempt, n) for n, key in enumerate(ids)], SCHEMA)

    def reordered(self, rows: DataFrame) -> DataFrame:
        return rows.repartition(3, "id").sortWithinPartitions("n", ascending=False)

    def no_partitions(self) -> DataFrame:
        return self.spark.createDataFrame(self.spark.sparkContext.emptyRDD(), SCHEMA)
