"""Jobs take turns, and what counts is the ratio of two jobs in the same round.

On shared cores the pace of the machine changes within minutes; two jobs side by side see nearly the same pace.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

Case = Mapping[str, object]
"""What a figure is of: rows, bytes of a row, epoch number, ..."""
Job = Callable[[], float]
"""Does it once; the answer counts in the unit of its table."""


@dataclass(frozen=True)
class Measure:
    """One job in one case, a value per round."""

    job: str
    case: Case
    unit: str
    values: Sequence[float]

    def to_json(self) -> dict[str, object]:
        return {"job": self.job, "case": dict(self.case), "unit": self.unit, **spread(self.values)}


@dataclass(frozen=True)
class Ratio:
    """One job over another in one case, a value per round; ``goal``: the id of the goal it answers."""

    job: str
    peer: str
    case: Case
    what: str
    values: Sequence[float]
    goal: str | None = None

    def to_json(self) -> dict[str, object]:
        named = {"job": self.job, "peer": self.peer, "case": dict(self.case), "what": self.what, "goal": self.goal}
        return {**named, **spread(self.values)}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first, the median, the third."""
    first, median, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return first, median, third


def spread(values: Sequence[float]) -> dict[str, object]:
    """As JSON: all values, their median and quartiles, to five digits."""
    first, median, third = map(_short, quartiles(values))
    return {"median": median, "quartiles": [first, third], "values": [_short(value) for value in values]}


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def turns(
    jobs: Mapping[str, Job],
    rounds: int,
    case: Case,
    unit: str,
    *,
    warm_up: int = 1,
    after: Callable[[], None] = lambda: None,
) -> list[Measure]:
    """Every job once per round, and ``after`` each of them; rounds of warm-up are not kept."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(-warm_up, rounds):
        for name in in_turn(jobs, turn):
            os.sync()  # what the one before has left to the disk
            value = jobs[name]()
            after()
            if turn >= 0:
                taken[name].append(value)
            which = "warm-up" if turn < 0 else f"round {turn + 1}/{rounds}"
            say(f"  {words(case)}  {which}  {name:36} {value:,.5g} {unit}")
    return [Measure(name, case, unit, values) for name, values in taken.items()]


def in_turn(jobs: Iterable[T], turn: int) -> list[T]:
    """Every other round goes backwards, so that nobody always comes after the same one."""
    order = list(jobs)
    return order if turn % 2 == 0 else order[::-1]


def speeds(taken: Sequence[Measure], rows: int) -> list[Measure]:
    """Of seconds that each job took for ``rows``."""
    return [Measure(m.job, m.case, "rows/s", [rows / seconds for seconds in m.values]) for m in taken]


def ratio(
    measures: Sequence[Measure], job: str, peer: str, what: str, goal: str | None = None, *, inverse: bool = False
) -> Ratio:
    """Of the two jobs, round by round; ``inverse``: of seconds, where the ratio of speeds is meant."""
    mine, theirs = (_of(measures, name) for name in (job, peer))
    pairs = zip(mine.values, theirs.values, strict=True)
    values = [b / a if inverse else a / b for a, b in pairs]
    return Ratio(job, peer, mine.case, what, values, goal)


def _of(measures: Sequence[Measure], job: str) -> Measure:
    return next(measure for measure in measures if measure.job == job)


def words(case: Case) -> str:
    """For people: ``2,000,000 rows, 100 value bytes``, ``epoch 10,000``."""
    return ", ".join(_word(key, value) for key, value in case.items())


def _word(key: str, value: object) -> str:
    if not isinstance(value, int):
        return f"{key} {value}"
    return f"{value:,} {key}" if any(word.endswith("s") for word in key.split()) else f"{key} {value:,}"


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)
