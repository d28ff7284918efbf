"""The sink contract on real Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos.contract import IdempotentContract, MarkedContract, ModeContract, SinkContract
from epochal.chaos.contract.spark import SparkHarness
from epochal.chaos.job import jvm
from epochal.coordinator.model.epoch import Actor, Copy, Epoch
from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite
from epochal.sinks.delta.modes import Mode
from epochal.sinks.protocol import RedoSink, Sink
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.delta import support
from tests.real.sinks.projected import ProjectedRows


class DeltaHarness(SparkHarness):
    """One table in a folder of the test's own; the server is the file system, and Delta's memory of it."""

    def __init__(self, spark: SparkSession, folder: Path, mode: Mode) -> None:
        super().__init__(spark)
        self._path = folder / "flights"
        self._mode = mode
        self._stage = SparkStage(f"file:{folder}/checkpoint", lambda: spark)
        self.prepare_is_fenced = isinstance(mode, Merge)
        self.replaces = isinstance(mode, Overwrite)

    def named(self, name: str) -> Sink:
        return DeltaSink(str(self._path), name=name, mode=self._mode, **self.options)

    def copy(self, rows: DataFrame, epoch: int, by: Actor) -> Copy | None:
        return self._stage.write(epoch, by, rows) if isinstance(self._mode, Merge) else None

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
            "from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite\n"
            f"spark_session('local[1]', conf={jvm.short_lived()!r})\n"
            f"sink = DeltaSink({str(self._path)!r}, name='out', mode={self._mode!r}, **{self.options!r})"
        )


@pytest.mark.wide
class TestDeltaSink(SinkContract):
    mode: Mode = Append()

    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(spark, tmp_path, self.mode)

    def test_it_votes(self, harness: DeltaHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)


class CopyingDeltaHarness(DeltaHarness):
    """The files that the table gets are the durable copy, as where other sinks need one."""

    def staged(self, sink: Sink, rows: DataFrame, epoch: Epoch, by: Actor) -> Copy | None:
        assert isinstance(sink, DeltaSink)
        copy = sink.write_copy(epoch, rows, self._stage.reserve(epoch.number, by), by)
        assert copy is not None
        self._stage.keep(epoch.number, copy)
        return copy

    def read(self, copy: Copy) -> DataFrame:
        return self._stage.read(copy)


@pytest.mark.wide
class TestCopyingDeltaSink(TestDeltaSink):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return CopyingDeltaHarness(spark, tmp_path, self.mode)


@pytest.mark.wide
class TestMarkedDeltaSink(MarkedContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(spark, tmp_path, Append())


class ProjectedDeltaHarness(ProjectedRows, DeltaHarness):
    """The same table, of some columns and rows."""


@pytest.mark.wide
class TestReplacingDeltaSinkWithSelectAndWhere(ModeContract):
    mode: Mode = Overwrite()

    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return ProjectedDeltaHarness(spark, tmp_path, self.mode)

    def test_it_votes(self, harness: DeltaHarness) -> None:
        assert not isinstance(harness.sink(), RedoSink)


@pytest.mark.wide
class TestMergingDeltaSinkWithSelectAndWhere(TestReplacingDeltaSinkWithSelectAndWhere):
    """An id that stands twice is told apart by a number, so no row of the contract replaces another."""

    mode = Merge(key=["id", "twice"])

    def test_it_votes(self, harness: DeltaHarness) -> None:
        """For the durable copy: it merges that."""
        assert isinstance(harness.sink(), RedoSink)


@pytest.mark.wide
class TestDeltaSinkInIdempotentMode(IdempotentContract):
    mode: Mode = Append()

    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(spark, tmp_path, self.mode)


@pytest.mark.wide
class TestReplacingDeltaSinkInIdempotentMode(TestDeltaSinkInIdempotentMode):
    mode = Overwrite()
