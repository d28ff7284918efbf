"""The peak memory of a driver for one epoch, by the number of its rows.  It should not grow with them.

Each value comes from a separate driver (:mod:`benchmarks.driver`) with one epoch, whose rows Spark makes itself.  The
number of partitions is always the same, so anything that grows with the rows of a task is seen.  The peers are Spark
alone with a ``noop`` writer, and Delta's own append, whose Parquet writer holds a group of rows for each task.  The
kernel and the JVM's log of its collections report the peaks: see :mod:`benchmarks.peaks`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import names, ours
from benchmarks.driver import BATCHES, Settings, read_notes
from benchmarks.measuring import Case, Measure, Ratio, say
from benchmarks.peaks import Peaks, gc_log, heap_after_collection
from benchmarks.results import Result
from benchmarks.world import World, new_name
from epochal.chaos.strike.nemesis import Driver

if TYPE_CHECKING:
    from benchmarks.tables import Options

SIZES, QUICK = (1_000_000, 10_000_000, 50_000_000), (100_000, 500_000)
PARTS = 4
COLUMNS = ["id", "lpad(string(id), 16, '0') AS k", "lpad(string(id), 16, '0') AS v", "cast(id AS double) / 7 AS x"]
HEAP = "1g"
BARE = "spark alone"
APPEND = names.DELTA_APPEND
JOBS: Mapping[str, Sequence[str]] = {
    BARE: (),
    APPEND: ("delta",),
    **{names.of(kind): (kind,) for kind in names.KINDS},
    names.THREE: names.KINDS,
}
FEWER = (BARE, names.of("postgres"))
DISK = {"postgres": 250, "kafka": 80, "delta": 60, "copy": 60}
"""At most so many bytes of disk per row, with the server's log."""
SPARE = 5 * 10**9  # bytes of disk that must stay free
START_S, PER_ROW_S = 240.0, 40e-6
"""The limit for a driver: seconds for its start, and seconds per row and sink."""


def run(options: Options) -> Result:
    sizes = QUICK if options.quick else SIZES
    jobs = {name: JOBS[name] for name in FEWER} if options.quick else JOBS
    rounds = 1 if options.quick else options.rounds
    result = Result("memory", rounds, options.quick)
    with World() as world:
        taken: dict[tuple[str, str, int], list[float]] = {}
        for turn in range(1, rounds + 1):
            for job, rows in ((job, rows) for rows in sizes for job in jobs):
                if missing := _disk_missing(world.folder, jobs[job], rows):
                    result.partial = f"not measured: {job}, {rows:,} rows: {missing}"
                    say(f"  {rows:>11,} rows  {job}: not measured, {missing}")
                    continue
                for what, peak in _measured(world, job, jobs[job], rows, f"{rows:>11,} rows  round {turn}").items():
                    taken.setdefault((job, what, rows), []).append(peak)
    _add(result, taken, sizes)
    return result


def _disk_missing(folder: Path, kinds: Sequence[str], rows: int) -> str:
    """Why the disk has not enough room; empty if it has."""
    needed = rows * sum(DISK[kind] for kind in kinds) + (rows * DISK["copy"] if kinds else 0) + SPARE
    free = shutil.disk_usage(folder).free
    return "" if free > needed else f"{needed / 1e9:.0f} GB of disk are needed, {free / 1e9:.0f} GB are free"


def _measured(world: World, job: str, kinds: Sequence[str], rows: int, when: str) -> Mapping[str, float]:
    """Run one epoch in a separate driver; return process -> MB.  Everything is removed afterwards."""
    name, said = new_name("memory"), f"{when}  {job}"
    targets = {kind: ours.address(world, kind, name) for kind in kinds}
    folder = world.new_folder(f"{name}-driver")
    settings = Settings(
        app=name,
        source=BATCHES,
        checkpoint=str(folder / "checkpoint"),
        notes=str(folder / "notes"),
        sinks={} if job == APPEND else targets,
        append=targets["delta"] if job == APPEND else "",
        create=True,
        rows=rows,
        columns=COLUMNS,
        parts=PARTS,
        memory=HEAP,
        java=gc_log(folder / "gc.log"),
    )
    folder.mkdir()
    began = time.monotonic()
    try:
        with Driver(
            ["-m", "benchmarks.driver", str(settings.write(folder / "settings.json"))], folder / "run"
        ) as driver:
            with Peaks(driver.pid) as peaks:
                status = driver.wait(START_S + rows * PER_ROW_S * max(1, len(kinds)))
            epochs = [note.what for note in read_notes(folder / "notes")].count("epoch")
            if status != 0 or epochs != 1:
                raise RuntimeError(f"{said}: a driver ended with {status} after {epochs} epochs\n{driver.tail()}")
        heap = heap_after_collection((folder / "gc.log").read_text(encoding="utf-8"))
        found = {**peaks.of(), **({"heap after a collection": float(heap)} if heap is not None else {})}
        if not {"driver", "jvm"} <= found.keys():
            raise RuntimeError(f"{said}: of driver and JVM only {sorted(found)} were seen")
    finally:
        world.clear()
    told = "  ".join(f"{what} {peak:,.0f}" for what, peak in found.items())
    say(f"  {said}  {time.monotonic() - began:.0f} s  MB: {told}")
    return found


def _add(result: Result, taken: Mapping[tuple[str, str, int], Sequence[float]], sizes: Sequence[int]) -> None:
    for (job, what, rows), peaks in taken.items():
        case: Case = {"rows": rows, "of": what}
        result.add([Measure(job, case, "MB", peaks)])
        least = taken.get((job, what, sizes[0]))
        if rows != sizes[0] and least is not None and len(least) == len(peaks):
            values = [most / first for most, first in zip(peaks, least, strict=True)]
            result.add([], Ratio(job, f"the same at {sizes[0]:,} rows", case, "MB", values))
