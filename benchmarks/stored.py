"""Read stored runs, and find what they say about each goal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.goals import GOALS, Goal
from benchmarks.measuring import Measure, Ratio
from benchmarks.results import FOLDER, Result

Cell = Mapping[str, Any]
"""What one kind of fault did to one job, as JSON: job, fault, struck, lost, duplicated, ..., unknown, verdict."""


@dataclass(frozen=True)
class Run:
    """One stored run: its result, its file, and where and when it was measured."""

    file: str
    environment: Mapping[str, Any]
    result: Result
    cells: Sequence[Cell] = ()

    @property
    def when(self) -> str:
        """The time in UTC, like ``2026-11-23 15:30``."""
        return str(self.environment.get("when", ""))[:16].replace("T", " ")

    @property
    def commit(self) -> str:
        return str(self.environment.get("commit", ""))

    @property
    def command(self) -> str:
        """The command that measured it."""
        quick = " --quick" if self.result.quick else ""
        return f"{command(self.result.table)}{quick} --rounds {self.result.rounds}"


def command(table: str) -> str:
    """Return the command for a table, as it is typed in a checkout after ``make venv``."""
    return f".venv/bin/python -m benchmarks {table}"


def stored(table: str, *, quick: bool = False, folder: Path = FOLDER) -> list[Run]:
    """Return the runs of a table, the newest first."""
    return [_run(told) for told in results.runs(table, quick=quick, folder=folder)]


def all_stored(tables: Iterable[str], *, quick: bool = False, folder: Path = FOLDER) -> dict[str, list[Run]]:
    """Return the runs of each named table, in this order."""
    return {table: stored(table, quick=quick, folder=folder) for table in tables}


def _run(told: Mapping[str, Any]) -> Run:
    measures = [Measure(m["job"], m["case"], m["unit"], m["values"]) for m in told["measures"]]
    ratios = [Ratio(r["job"], r["peer"], r["case"], r["what"], r["values"], r["goal"]) for r in told["ratios"]]
    result = Result(
        told["table"],
        told["rounds"],
        told["quick"],
        measures,
        ratios,
        facts=told["facts"],
        environment=told["environment"],
    )
    return Run(told["file"], told["environment"], result, told.get("cells", ()))


@dataclass(frozen=True)
class Answer:
    """A ratio with a goal, from the newest run that has it, and the same ratio from the run before."""

    goal: Goal
    run: Run
    ratio: Ratio
    before: Ratio | None

    @property
    def holds(self) -> bool:
        return self.goal.holds(statistics.median(self.ratio.values))


def answers(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Answer]]:
    """Return goal id -> answers of the newest run that measured it; empty if no run did."""
    return {name: list(_answers(name, goal, runs)) for name, goal in GOALS.items()}


def _answers(name: str, goal: Goal, runs: Mapping[str, Sequence[Run]]) -> Iterator[Answer]:
    for of_table in runs.values():
        asked = [run for run in of_table if any(ratio.goal == name for ratio in run.result.ratios)]
        for run in asked[:1]:
            for ratio in run.result.ratios:
                if ratio.goal == name:
                    yield Answer(goal, run, ratio, same(ratio, asked[1].result.ratios) if len(asked) > 1 else None)


def worst(ratios: Sequence[Ratio]) -> Ratio:
    """Return the worst of several ratios with the same goal."""
    goal = GOALS[str(ratios[0].goal)]
    sign = 1 if goal.least is not None else -1
    return min(ratios, key=lambda ratio: sign * statistics.median(ratio.values))


def same(ratio: Ratio, among: Iterable[Ratio]) -> Ratio | None:
    """Return the ratio of the same two jobs in the same case, if there is one."""
    wanted = ratio.job, ratio.peer, ratio.what, ratio.case
    return next((other for other in among if (other.job, other.peer, other.what, other.case) == wanted), None)


def same_measure(measure: Measure, among: Iterable[Measure]) -> Measure | None:
    """Return the measure of the same job in the same case, if there is one."""
    wanted = measure.job, measure.unit, measure.case
    return next((other for other in among if (other.job, other.unit, other.case) == wanted), None)
