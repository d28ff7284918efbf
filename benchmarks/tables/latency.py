"""The time from making a row until a reader of the sink sees it, at triggers of one second.

Files with rows come ten times a second, and the id of a row is the microsecond in which it was made.  A stream with a
trigger of one second processes them.  A reader in its own process (:mod:`benchmarks.reader`) notes when it first saw
each row.  On average, half a second is the wait for the trigger, which is the same for all jobs.  A writer and its peer
take turns.  Each turn has a new source, target and checkpoint, and its first seconds do not count.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import names, ours
from benchmarks.measuring import Case, Measure, Ratio, in_turn, say
from benchmarks.natives import named
from benchmarks.reader import Reader
from benchmarks.results import Result
from benchmarks.rows import SCHEMA, write_file
from benchmarks.world import World, new_name

if TYPE_CHECKING:
    from benchmarks.tables import Options
    from benchmarks.world import Write

TRIGGER = "1 second"
FILE_S = 0.1  # between two files
ROWS = 20  # per file
LATE_S = 120.0
"""A row that is not seen after so many seconds is an error."""
QUANTILES = {"p50": 50, "p95": 95, "p99": 99}


@dataclass(frozen=True)
class Turn:
    """The times of a turn in seconds: ``warm`` until rows count, and ``counted`` while rows count."""

    warm: float
    counted: float


COLD, QUICK, FULL = Turn(1, 1), Turn(1.5, 6), Turn(6, 30)


@dataclass(frozen=True)
class Written:
    """A writer whose target exists, and the readers: sink -> arguments of its reader."""

    write: Write
    readers: Mapping[str, tuple[str, str, str]]
    close: Callable[[], None] = lambda: None


class Feeder(threading.Thread):
    """A thread that writes a file every tenth of a second until it is stopped."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True, name="feeder")
        self.made: list[int] = []
        self._failed: Exception | None = None
        self._folder = folder
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            self._feed()
        except Exception as error:
            self._failed = error

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _feed(self) -> None:
        while not self._stopped.wait(FILE_S):
            now = time.time_ns() // 1000
            ids = range(now, now + ROWS)
            write_file(self._folder / f"{now}.parquet", ids)
            self.made += ids

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class Latency:
    """The jobs.  Each returns sink -> the seconds of every row that counts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._schema = world.spark.createDataFrame([], SCHEMA).schema

    def jobs(self, kinds: Sequence[str]) -> Mapping[str, Callable[[Turn], Mapping[str, list[float]]]]:
        """Return our job, and for a single sink also its peer."""
        mine = {names.OURS: lambda turn: self._measured(self._ours(kinds), turn)}
        if len(kinds) > 1:
            return mine
        return {**mine, names.NATIVES[kinds[0]]: lambda turn: self._measured(self._peer(kinds[0]), turn)}

    def _measured(self, written: Written, turn: Turn) -> Mapping[str, list[float]]:
        source = self._world.new_folder(new_name("made"))
        source.mkdir()
        with ExitStack() as stack:
            stack.callback(self._world.clear)
            stack.callback(written.close)
            readers = {sink: stack.enter_context(Reader(*given)) for sink, given in written.readers.items()}
            query = self._start(source, written.write)
            stack.callback(query.stop)
            feeder = Feeder(source)
            feeder.start()
            stack.callback(feeder.stop)
            since = self._await_first(query, readers) + turn.warm
            _sleep(since + turn.counted - time.time(), query)
            feeder.stop()
            feeder.check()
            counted = [number for number in feeder.made if number >= since * 1e6]
            for sink, reader in readers.items():
                _await_all(sink, reader, counted, query)
        return {sink: [reader.seen[n] - n / 1e6 for n in counted] for sink, reader in readers.items()}

    def _start(self, source: Path, write: Write) -> Any:
        stream = self._world.spark.readStream.schema(self._schema).parquet(str(source))
        checkpoint = str(self._world.new_folder(new_name("checkpoint")))
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        return writer.trigger(processingTime=TRIGGER).start()

    def _await_first(self, query: Any, readers: Mapping[str, Reader]) -> float:
        """Wait until every reader has seen something, so that the query has started; return the time."""
        began = time.time()
        while not all(reader.seen for reader in readers.values()):
            for reader in readers.values():
                reader.check()
            if time.time() - began > LATE_S:
                raise TimeoutError(f"nothing was seen within {LATE_S:.0f} s in one of {list(readers)}")
            _sleep(0.05, query)
        return time.time()

    # --- what writes ----------------------------------------------------------------------------

    def _ours(self, kinds: Sequence[str]) -> Written:
        world = self._world
        pipeline = ours.pipeline(world, self._schema, *kinds)
        name = pipeline.app
        readers = {kind: self._reader(kind, name) for kind in kinds}
        return Written(pipeline, readers, pipeline.close)

    def _peer(self, kind: str) -> Written:
        write, name = named(self._world, kind)
        return Written(write, {kind: self._reader(kind, name)})

    def _reader(self, kind: str, name: str) -> tuple[str, str, str]:
        world = self._world
        if kind == "delta":
            return kind, str(world.folder / name), ""
        return kind, world.dsn if kind == "postgres" else world.kafka.bootstrap, name


def _sleep(seconds: float, query: Any) -> None:
    """Sleep.  Raises the query's error if the query ends meanwhile."""
    if seconds > 0 and query.awaitTermination(seconds):
        raise RuntimeError("the stream ended by itself")


def _await_all(sink: str, reader: Reader, ids: Sequence[int], query: Any) -> None:
    limit = time.time() + LATE_S
    while missing := sum(number not in reader.seen for number in ids):
        reader.check()
        if time.time() > limit:
            raise TimeoutError(f"{sink}: {missing} of {len(ids)} rows were not seen within {LATE_S:.0f} s")
        _sleep(0.1, query)


def run(options: Options) -> Result:
    """Measure the table.  The warm-up is one short turn of each job; in a quick run, one of all sinks together."""
    rounds = 1 if options.quick else options.rounds
    asked = [(kind,) for kind in names.KINDS] + ([] if options.quick else [names.KINDS])
    result = Result("latency", rounds, options.quick)
    with World() as world:
        latency = Latency(world)
        for kinds in [names.KINDS] if options.quick else asked:
            for measure in latency.jobs(kinds).values():
                measure(COLD)
        for kinds in asked:
            _add(result, kinds, _taken(latency.jobs(kinds), kinds, rounds, QUICK if options.quick else FULL))
    return result


Taken = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]


def _taken(
    jobs: Mapping[str, Callable[[Turn], Mapping[str, list[float]]]], kinds: Sequence[str], rounds: int, turn: Turn
) -> Taken:
    """(job, sink) -> the quantiles of each round."""
    taken: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for number in range(rounds):
        for job in in_turn(jobs, number):
            for sink, seconds in jobs[job](turn).items():
                taken.setdefault((job, sink), []).append(found := quantiles(seconds))
                say(f"  {' '.join(kinds)}  round {number + 1}/{rounds}  {job}, {sink}  {_words(found)}")
    return taken


def quantiles(seconds: Sequence[float]) -> Mapping[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {name: cuts[percent - 1] for name, percent in QUANTILES.items()}


def _add(result: Result, kinds: Sequence[str], taken: Taken) -> None:
    for quantile in QUANTILES:
        for (job, sink), found in taken.items():
            case: Case = {"sinks": " ".join(kinds), "reader of": sink, "of": quantile}
            values = [each[quantile] for each in found]
            result.add([Measure(job, case, "s", values)])
            if job == names.OURS and (theirs := taken.get((names.NATIVES[sink], sink))) is not None:
                ratios = [mine / each[quantile] for mine, each in zip(values, theirs, strict=True)]
                result.add([], Ratio(job, names.NATIVES[sink], case, "s", ratios))


def _words(found: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items())
