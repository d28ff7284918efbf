"""The sink contract on real Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.chaos import jvm
from epochal.chaos.contract import IdempotentContract, SinkContract
from epochal.chaos.contract.spark import SparkHarness
from epochal.sinks.delta import DeltaSink
from epochal.sinks.protocol import RedoSink, Sink
from tests.integration.delta import support


class DeltaHarness(SparkHarness):
    """One table in a folder of the test's own; the server is the file system, and Delta's memory of it."""

    prepare_is_fenced = False

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark)
        self._path = folder / "flights"

    def named(self, name: str) -> Sink:
        return DeltaSink(str(self._path), name=name)

    def neighbour(self) -> Sink:
        return self.sink()

    def visible(self) -> list[tuple[str, str]]:
        rows: list[dict[str, Any]] = support.read(self._path).to_pylist()
        return [(row["id"], row["attempt"]) for row in rows]

    def restart_server(self) -> None:
        support.forget_snapshots(self.spark)

    def source(self) -> str:
        return (
            "from epochal.chaos.servers.spark import spark_session\n"
            "from epochal.sinks.delta import DeltaSink\n"
            f"spark_session('local[1]', conf={jvm.short_lived()!r})\n"
            f"sink = DeltaSink({str(self._path)!r}, name='out')"
        )


class TestDeltaSink(SinkContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(spark, tmp_path)

    def test_it_votes(self, harness: DeltaHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)


class TestDeltaSinkInIdempotentMode(IdempotentContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(spark, tmp_path)
