"""A result as text: each figure with its quartiles, each ratio with its goal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import cells
from benchmarks.goals import GOALS
from benchmarks.measuring import Measure, Ratio, quartiles, words
from benchmarks.results import Result


def show(result: Result) -> None:
    for measure in result.measures:
        print(_line(measure))
    print()
    for ratio in result.ratios:
        print(_answer(ratio))
    if result.cells:
        print(*cells.lines(result.cells, _costs(result.ratios)), "", sep="\n")
    for what, told in result.facts.items():
        print(f"{what}: {_told(told)}")


def _told(fact: object) -> object:
    """Records, of which there may be hundreds, are for programs."""
    records = isinstance(fact, list) and any(isinstance(one, dict) for one in fact)
    return f"{len(fact)} records in the file" if isinstance(fact, list) and records else fact


def _costs(ratios: Sequence[Ratio]) -> dict[str, str]:
    """Of each job, as times of its peer."""
    return {ratio.job: f"{statistics.median(ratio.values):.2g} x" for ratio in ratios}


def _line(measure: Measure) -> str:
    return f"{words(measure.case):34} {measure.job:40} {_spread(measure.values)} {measure.unit}"


def _answer(ratio: Ratio) -> str:
    said = f"{words(ratio.case):34} {ratio.job} / {ratio.peer}, {ratio.what}: {_spread(ratio.values)}"
    if ratio.goal is None:
        return said
    goal = GOALS[ratio.goal]
    verdict = "holds" if goal.holds(statistics.median(ratio.values)) else "NOT MET"
    return f"{said}  goal {goal.bound}: {verdict}"


def _spread(values: Sequence[float]) -> str:
    first, median, third = quartiles(values)
    return f"{median:>10,.5g} ({first:,.4g} to {third:,.4g})"
