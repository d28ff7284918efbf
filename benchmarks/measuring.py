"""Jobs take turns, and the results are ratios of two jobs in the same round.

On shared cores the speed of the machine changes within minutes.  Two jobs that run shortly after each other see nearly
the same speed.
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
"""The parameters of a figure: rows, bytes of a row, epoch number, ..."""
Job = Callable[[], float]
"""Does the work once; returns the value in the unit of its table."""


@dataclass(frozen=True)
class Measure:
    """One job in one case, with one value per round."""

    job: str
    case: Case
    unit: str
    values: Sequence[float]

    def to_json(self) -> dict[str, object]:
        return {"job": self.job, "case": dict(self.case), "unit": self.unit, **spread(self.values)}


@dataclass(frozen=True)
class Ratio:
    """One job compared with another in one case, with one value per round.  ``goal``: the id of its goal."""

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
    """Return the first quartile, the median and the third quartile."""
    first, median, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return first, median, third


def spread(values: Sequence[float]) -> dict[str, object]:
    """Return all values, their median and quartiles as JSON, with five digits."""
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
    """Run every job once per round, and call ``after`` after each of them.  Values of warm-up rounds are dropped."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(-warm_up, rounds):
        for name in in_turn(jobs, turn):
            os.sync()  # write what the job before has left, so that it does not slow down this one
            value = jobs[name]()
            after()
            if turn >= 0:
                taken[name].append(value)
            which = "warm-up" if turn < 0 else f"round {turn + 1}/{rounds}"
            say(f"  {words(case)}  {which}  {name:36} {value:,.5g} {unit}")
    return [Measure(name, case, unit, values) for name, values in taken.items()]


def in_turn(jobs: Iterable[T], turn: int) -> list[T]:
    """Return the jobs in the order for this round.  It is reversed in every other round, so neighbours change."""
    order = list(jobs)
    return order if turn % 2 == 0 else order[::-1]


def speeds(taken: Sequence[Measure], rows: int) -> list[Measure]:
    """Turn the seconds that each job took for ``rows`` into rows per second."""
    return [Measure(m.job, m.case, "rows/s", [rows / seconds for seconds in m.values]) for m in taken]


def ratio(
    measures: Sequence[Measure], job: str, peer: str, what: str, goal: str | None = None, *, inverse: bool = False
) -> Ratio:
    """Return the ratio of two jobs, round by round.  ``inverse`` divides the other way, to get speeds from seconds."""
    mine, theirs = (_of(measures, name) for name in (job, peer))
    pairs = zip(mine.values, theirs.values, strict=True)
    values = [b / a if inverse else a / b for a, b in pairs]
    return Ratio(job, peer, mine.case, what, values, goal)


def _of(measures: Sequence[Measure], job: str) -> Measure:
    return next(measure for measure in measures if measure.job == job)


def words(case: Case) -> str:
    """Return the case as text for people: ``2,000,000 rows, 100 value bytes``, ``epoch 10,000``."""
    return ", ".join(_word(key, value) for key, value in case.items())


def _word(key: str, value: object) -> str:
    if not isinstance(value, int):
        return f"{key} {value}"
    return f"{value:,} {key}" if any(word.endswith("s") for word in key.split()) else f"{key} {value:,}"


def say(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)
