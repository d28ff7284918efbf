"""A small streaming job over files: one file is one epoch, sinks in memory, decisions in files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from epochal import Pipeline
from epochal.chaos import replay_last_epoch
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit
from epochal.coordinator.protocol.retry import Retry
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.spark import observing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

APP = "app"
WAIT = 330  # seconds, below the limit of a test
FIRST_FILE = 1_704_067_200
SCHEMA = "id long, at timestamp, name string"
FAST = Retry(attempts=3, first=0.01, most=0.02)

BatchFunction = Callable[["DataFrame", int], None]


class Job:
    """Source, checkpoint and sinks of one query below ``folder``."""

    def __init__(self, spark: SparkSession, folder: Path, sinks: Sequence[str] = ("one",)) -> None:
        self.spark = spark
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir(parents=True)
        self.checkpoint = folder / "checkpoint"
        self.server = MemoryServer()
        self.sinks = tuple(sinks)
        for name in sinks:
            self.server.create(APP, name)
        self._files = 0

    def pipeline(self, **options: Any) -> Pipeline:
        """A new one, as a new process would make it."""
        sinks = [MemorySink(name, self.server) for name in self.sinks]
        return Pipeline(app=APP, sinks=sinks, retry=FAST, **options)

    def add(self, *ids: int, at: str = "2024-01-01 00:00:00") -> None:
        """One more file, which is one more epoch."""
        lines = [json.dumps({"id": i, "at": at, "name": f"n{i}"}) for i in ids]
        file = self.source / f"{self._files:04}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (FIRST_FILE + self._files,) * 2)  # Spark reads the oldest first
        self._files += 1

    def df(self) -> DataFrame:
        """The stream, one file per epoch."""
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.source))

    def start(
        self,
        function: BatchFunction,
        df: DataFrame | None = None,
        *,
        mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        writer = (self.df() if df is None else df).writeStream.foreachBatch(function).outputMode(mode)
        return (
            writer.option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def run(self, function: BatchFunction, df: DataFrame | None = None, *, mode: str = "append") -> None:
        """Until all that is there has been processed."""
        query = self.start(function, df, mode=mode)
        try:
            assert query.awaitTermination(WAIT), "the query did not end"
        finally:
            query.stop()

    def ids(self, sink: str = "one") -> list[int]:
        return sorted(row["id"] for row in self.server.visible(APP, sink))

    def shown(self, sink: str = "one") -> list[list[tuple[str, ...]]]:
        """Per position the rows a reader sees, sorted."""
        epochs = self.server.table(APP, sink).shown
        return [sorted(tuple(map(str, row.values())) for row in epoch.rows) for epoch in epochs]

    def forget_last_commit(self) -> int:
        """Spark will replay the newest epoch; its number."""
        return replay_last_epoch(self.checkpoint)

    def watermarks(self) -> dict[int, int]:
        """Per epoch what Spark's offsets file says."""
        files = [f for f in (self.checkpoint / "offsets").iterdir() if f.name.isdigit()]
        return {int(f.name): json.loads(f.read_text().splitlines()[1])["batchWatermarkMs"] for f in files}

    def decided(self) -> list[int]:
        """The epochs of the log's commit records."""
        entries = FilesLog(self.checkpoint / "epochal" / "log").read()
        return [e.record.epoch for e in entries if isinstance(e.record, Commit)]


def drop_observations(patch: pytest.MonkeyPatch, rows: DataFrame) -> None:
    """As when Spark's listener bus drops the event that tells what was observed; soon given up.

    As on a Spark that completes each observation: 4.0 does not, and counts dropped events, of which there are none.
    """

    def deaf(self: DataFrame, observation: Any, *_: object) -> DataFrame:
        observation._jo = SimpleNamespace(future=lambda: SimpleNamespace(isCompleted=lambda: False))
        return self

    patch.setattr(type(rows), "observe", deaf)
    patch.setattr(observing, "_completes_without_rows", lambda _: True)
    patch.setattr(observing, "METRIC_WAIT", 0.2)
