"""How many schedules were played, and how many of them are distinct."""

from __future__ import annotations

from dataclasses import dataclass, field

from epochal.chaos.observe.checker import Verdict
from epochal.chaos.simulate.explore import Explored
from epochal.chaos.simulate.explore import Tally as Explorations

WANTED = 100_000
"""Distinct traces that ``make test`` plays at least, where it leaves no wide test out."""


@dataclass
class Tally:
    """Distinct traces of all tests together: the sequence of (actor, step, sink, outcome) and nothing else."""

    all: Explorations = field(default_factory=Explorations)

    def check(self, explored: Explored, at_least: int) -> None:
        """Every schedule holds every invariant and struck as it said; there are enough of them."""
        self.all.schedules += explored.tally.schedules
        self.all.seconds += explored.tally.seconds
        self.all.traces |= explored.tally.traces
        assert explored.verdict is Verdict.TRUE, f"{explored}"
        assert explored.tally.schedules >= at_least, f"only {explored.tally.schedules} schedules were found"

    def too_few(self, left_out: int | None) -> bool:
        """Whether fewer distinct traces than WANTED were played in a run that owes them; False if none was played.

        ``left_out``: wide tests for which there was no time, None if not every test was asked for; only 0 owes them.
        """
        return left_out == 0 and 0 < len(self.all.traces) < WANTED

    def __str__(self) -> str:
        return str(self.all)
