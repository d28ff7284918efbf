"""The sink contract on real Delta tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.epoch import Actor, Copy, Json
from epochal.sinks.delta import DeltaSink
from epochal.sinks.protocol import RedoSink, Sink
from tests.contract.sink_contract import SinkContract
from tests.integration.delta import support

SCHEMA = StructType().add("id", "string").add("attempt", "string").add("n", "long")


class DeltaHarness:
    """One table in a folder of the test's own; the server is the file system, and Delta's memory of it."""

    app = "flights"
    schema = SCHEMA
    secrets: Sequence[str] = ()

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._path = folder / "flights"

    def sink(self) -> Sink:
        return self.named("out")

    def named(self, name: str) -> Sink:
        return DeltaSink(str(self._path), name=name)

    def neighbour(self) -> Sink:
        return self.sink()

    def rows(self, ids: Sequence[str], attempt: str) -> DataFrame:
        rows = [(key, attempt, n) for n, key in enumerate(ids)]
        return self._spark.createDataFrame(rows, SCHEMA)

    def no_partitions(self) -> DataFrame:
        return self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), SCHEMA)

    def copy(self, rows: DataFrame, epoch: int, by: Actor) -> Copy | None:  # noqa: ARG002
        return None

    def visible(self) -> list[tuple[str, str]]:
        rows: list[dict[str, Any]] = support.read(self._path).to_pylist()
        return [(row["id"], row["attempt"]) for row in rows]

    def restart_server(self) -> None:
        support.forget_snapshots(self._spark)

    def commit_in_another_process(self, committable: Json, by: Json) -> str:
        return support.commit_in_another_process(self._path, "out", self.app, committable, by)


class TestDeltaSink(SinkContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(spark, tmp_path)

    def test_it_votes(self, harness: DeltaHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)
