"""A query into one sink that runs for some epochs at a time and is then stopped.  Each epoch is timed.

Its source is ``rate-micro-batch``: every epoch has the same number of rows, and its offsets do not get longer.  A
stream ends with our own error at the first epoch too many, before the pipeline is called.  The next stream begins with
that epoch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import epochal
from benchmarks import ours
from benchmarks.history import Rows
from benchmarks.rows import columns
from benchmarks.world import World, new_name
from epochal.coordinator.console.verify import examine
from epochal.coordinator.model.epoch import Phase, Position
from epochal.coordinator.model.events import Event, PhaseEnded, Step, StepEnded
from epochal.coordinator.query.checkpoint import located
from epochal.sinks import PostgresSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    Write = Callable[[DataFrame, int], None]

START = (Phase.LOOK, Phase.FENCE, Phase.LOOK_AGAIN, Phase.SETTLE)
LIMIT_S = 600, 5  # limits of a stream: for its start, and for each epoch


class _Enough(Exception):
    """Ends a stream."""


@dataclass(frozen=True)
class Stream:
    """The times of one stream in seconds: of each call of the pipeline, and of each part of it by name."""

    calls: Sequence[float]
    parts: Mapping[str, Sequence[float]]

    def epoch(self, counted: int) -> float:
        """Return the median of the last ``counted`` epochs."""
        return statistics.median(self.calls[-counted:])

    def mean(self, counted: int) -> float:
        """Return the mean of the last ``counted`` epochs.

        It includes work that is done only every so many epochs: compaction of the log, a checkpoint of a Delta table.
        """
        return statistics.fmean(self.calls[-counted:])

    def first(self, counted: int) -> float:  # noqa: ARG002
        """Return the time of the first call: the checks of a start, the start itself, and an epoch with cold caches."""
        return self.calls[0]

    def start(self, counted: int) -> float:  # noqa: ARG002
        """Return the time of a start, from look to settle."""
        return sum(self.parts[phase.value][0] for phase in START)

    def medians(self, counted: int) -> dict[str, float]:
        """Return the median of each part in the last ``counted`` epochs.  A part of the start has only one value."""
        return {name: round(statistics.median(taken[-counted:]), 5) for name, taken in self.parts.items()}


class Grown:
    """One app with its own sink.  ``peer``, if given, makes the batch function instead, from the folder of a table."""

    def __init__(self, world: World, kind: str, rows: Rows, peer: Callable[[str], Write] | None = None) -> None:
        self._world, self.kind, self.rows = world, kind, rows
        self.name = new_name(f"grown_{kind.replace(' ', '_')}")
        self.folder = world.folder / self.name  # the folder of a Delta table
        self.checkpoint: Path = world.folder / f"checkpoint-{self.name}"
        self._parts: dict[str, list[float]] = {}
        self._source = self._read()
        self.schema = self._source.schema
        self.dsn = world.postgres.create_database(self.name) if kind == "postgres" else ""
        self._pipeline = self._made(kind) if peer is None else None
        self._write: Write = peer(str(self.folder)) if peer is not None else self.pipeline
        self._running: tuple[StreamingQuery, list[float], int] | None = None

    @property
    def pipeline(self) -> epochal.Pipeline:
        assert self._pipeline is not None, "a peer has none"
        return self._pipeline

    def _made(self, kind: str) -> epochal.Pipeline:
        sink = PostgresSink(self.dsn, table=self.name) if self.dsn else ours.sink(self._world, kind, self.name)
        made = epochal.Pipeline(app=self.name, sinks=[sink], on_event=self._heard)
        made.create(self.schema)
        return made

    def _read(self) -> DataFrame:
        stream = self._world.spark.readStream.format("rate-micro-batch")
        stream = stream.option("rowsPerBatch", self.rows.count).option("numPartitions", 1)
        return stream.load().selectExpr("value AS id").selectExpr(*columns(self.rows.value, wide=True))

    def _heard(self, event: Event) -> None:
        if isinstance(event, PhaseEnded):
            self._parts.setdefault(event.phase.value, []).append(event.seconds)
        elif isinstance(event, StepEnded) and event.step in (Step.COPY, Step.COMPACT):
            self._parts.setdefault(f"of it {event.step.value}", []).append(event.seconds)

    # --- streams --------------------------------------------------------------------------------

    def run(self, epochs: int) -> Stream:
        """Run so many more epochs in one stream."""
        self.begin(epochs)
        return self.end()

    def begin(self, epochs: int) -> None:
        calls: list[float] = []
        self._parts.clear()

        def write(df: DataFrame, epoch: int) -> None:
            if len(calls) == epochs:
                raise _Enough(f"{epochs} epochs are done")
            began = time.perf_counter()
            self._write(df, epoch)
            calls.append(time.perf_counter() - began)

        writer = self._source.writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(self.checkpoint)).queryName(new_name(self.name)).start()
        self._running = query, calls, epochs

    def end(self) -> Stream:
        """Wait for the stream that was begun.  Raises TimeoutError if it takes too long."""
        from pyspark.errors import StreamingQueryException

        assert self._running is not None, "begin() comes before"
        (query, calls, epochs), self._running = self._running, None
        limit = LIMIT_S[0] + LIMIT_S[1] * epochs
        try:
            if not query.awaitTermination(limit):
                query.stop()
                raise TimeoutError(f"{self.name}: {len(calls)} of {epochs} epochs in {limit} s")
        except StreamingQueryException as error:
            if len(calls) != epochs or _Enough.__name__ not in str(error):
                raise
        return Stream(calls, {name: list(taken) for name, taken in self._parts.items()})

    # --- the state afterwards -------------------------------------------------------------------

    def log_bytes(self) -> int:
        """Return the bytes in the epoch log's folder."""
        return folder_bytes(self.checkpoint / "epochal" / "log")

    def check(self, *, linked: Position = 0) -> None:
        """Check the query like ``epochal verify``.  Raises AssertionError for a finding above position ``linked``."""
        _, account = examine(self.pipeline, located(str(self.checkpoint)))
        found = [finding for finding in account.findings if finding.position is None or finding.position > linked]
        assert not found, f"{self.name}: {found[:3]}"

    def close(self) -> None:
        """Close the pipeline and drop the database.  Also stop a stream that is still running after an error."""
        if self._running is not None:
            self._running[0].stop()
        if self._pipeline is not None:
            self._pipeline.close()
        if self.dsn:
            self._world.postgres.drop_database(self.name)


def folder_bytes(folder: Path, pattern: str = "*") -> int:
    return sum(file.stat().st_size for file in folder.rglob(pattern) if file.is_file())
