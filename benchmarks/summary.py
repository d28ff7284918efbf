"""Show a result as text: each figure with its quartiles, and each ratio with its goal."""

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
    """The fact as it is printed.  Of a list of records, which may be hundreds, only the number is printed."""
    records = isinstance(fact, list) and any(isinstance(one, dict) for one in fact)
    return f"{len(fact)} records in the file" if isinstance(fact, list) and records else fact


def _costs(ratios: Sequence[Ratio]) -> dict[str, str]:
    """Job -> its cost, as a multiple of its peer's."""
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
    return f"{amount(statistics.median(values)):>10} {between(values)}"


def amount(value: float) -> str:
    """Return the value with three digits, as a person writes it: ``1.42``, ``412,000``, ``1.5 M``."""
    short = float(f"{value:.3g}")
    if abs(short) >= 1e6:
        return f"{short / 1e6:,g} M"
    return f"{short:,.0f}" if abs(short) >= 100 else f"{short:g}"


def between(values: Sequence[float]) -> str:
    """Return the quartiles as ``(1.38 to 1.5)``."""
    first, _, third = quartiles(values)
    return f"({amount(first)} to {amount(third)})"


def with_spread(values: Sequence[float]) -> str:
    """Return median and quartiles as ``1.42 (1.38 to 1.5)``."""
    return f"{amount(statistics.median(values))} {between(values)}"
