"""Time of a small epoch compared with a bare ``foreachBatch``, and where it goes, phase by phase.

A stream has some epochs of the same size.  Its value is the median of Spark's ``addBatch`` of the epochs after the
warm-up.  The bare function evaluates its rows and writes nothing.  Phases are those of the coordinator.  Within a
phase, steps of several sinks run in parallel.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks import names, ours
from benchmarks.measuring import Case, Measure, Ratio, turns
from benchmarks.natives import native
from benchmarks.peers.bare import evaluated
from benchmarks.results import Result
from benchmarks.rows import source
from benchmarks.world import World
from epochal.coordinator.model.events import Event, PhaseEnded, StepEnded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.tables import Options

WARM_UP, COUNTED, FEWER = 5, 20, 5  # epochs of a stream: warm-up, counted, and counted in a quick run
DIFFERENCES = {  # (job, peer): the goal at GOAL_ROWS
    (names.of("postgres"), names.BARE): "small-one",
    (names.of("kafka"), names.BARE): "small-kafka",
    (names.of("delta"), names.BARE): None,
    (names.THREE, names.BARE): "small-three",
    (names.of("delta"), names.DELTA_APPEND): "delta-small",
    (names.of("postgres"), names.JDBC_REWRITTEN): None,
    (names.of("kafka"), names.SPARK_KAFKA): None,
}
GOAL_ROWS = 1_000


class Phases:
    """An ``on_event`` consumer that keeps the seconds of phases and of sinks' steps per epoch.

    The last ``counted`` epochs count.  A phase must have values in ``of`` epochs, by default in ``counted``.
    """

    def __init__(self, counted: int, of: int | None = None) -> None:
        self._counted, self._epochs = counted, of or counted
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, PhaseEnded):
            self._seconds[event.phase.value].append(event.seconds)
        elif isinstance(event, StepEnded):
            sink = f" {event.sink.partition('-')[0]}" if event.sink else ""
            self._seconds[f"{event.step.value}{sink}"].append(event.seconds)

    def medians(self) -> Mapping[str, float]:
        """Return the median of each phase that every epoch has, without the warm-up."""
        of_each = {name: values for name, values in self._seconds.items() if len(values) >= self._epochs}
        return {name: statistics.median(values[-self._counted :]) for name, values in of_each.items()}


class Small:
    """The jobs over streams of small epochs.  A job returns seconds."""

    def __init__(self, world: World, rows: int, counted: int) -> None:
        self._world, self._counted = world, counted
        self._source = source(world.spark, world.folder, [rows] * (WARM_UP + counted))
        self._schema = world.spark.read.parquet(str(self._source)).schema
        self.phases: dict[str, list[Mapping[str, float]]] = defaultdict(list)

    def jobs(self) -> Mapping[str, Callable[[], float]]:
        world = self._world
        return {
            names.BARE: lambda: self._median(evaluated),
            **{peer: lambda kind=kind: self._median(native(world, kind)) for kind, peer in names.NATIVES.items()},  # type: ignore[misc]
            **{names.of(kind): lambda kind=kind: self._ours(kind) for kind in names.KINDS},  # type: ignore[misc]
            names.THREE: lambda: self._ours(*names.KINDS),
        }

    def _ours(self, *kinds: str) -> float:
        phases = Phases(self._counted)
        taken = self._median(ours.pipeline(self._world, self._schema, *kinds, on_event=phases))
        self.phases[names.of(*kinds)].append(phases.medians())
        return taken

    def _median(self, write: Callable[[DataFrame, int], None]) -> float:
        return statistics.median(self._world.epochs(self._source, write)[-self._counted :])


def run(options: Options) -> Result:
    result = Result("small", options.rounds, options.quick)
    with World() as world:
        for rows in (GOAL_ROWS,) if options.quick else (1, GOAL_ROWS, 100_000):
            case = {"rows": rows}
            small = Small(world, rows, FEWER if options.quick else COUNTED)
            taken = turns(small.jobs(), options.rounds, case, "s", warm_up=options.warm_up, after=world.clear)
            result.add(
                [*taken, *of_phases(small.phases, case, options.rounds)], *_differences(taken, rows == GOAL_ROWS)
            )
    return result


def of_phases(found: Mapping[str, Sequence[Mapping[str, float]]], case: Case, rounds: int) -> list[Measure]:
    """Return measures of the phases in the counted rounds; only phases that each round has."""
    measures = []
    for job, told in found.items():
        kept = told[-rounds:]
        for phase in (name for name in kept[0] if all(name in each for each in kept)):
            measures.append(Measure(job, {**case, "phase": phase}, "s", [each[phase] for each in kept]))
    return measures


def _differences(taken: Sequence[Measure], goals: bool) -> list[Ratio]:
    by_name = {measure.job: measure for measure in taken}
    found = []
    for (job, over), goal in DIFFERENCES.items():
        pairs = zip(by_name[job].values, by_name[over].values, strict=True)
        values = [mine - theirs for mine, theirs in pairs]
        found.append(Ratio(job, over, by_name[job].case, "s more", values, goal if goals else None))
    return found
