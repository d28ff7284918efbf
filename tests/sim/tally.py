"""How many schedules were played, and how many of them are distinct."""

from __future__ import annotations

from dataclasses import dataclass, field

from epochal.chaos.checker import Verdict
from epochal.chaos.explore import Explored
from epochal.chaos.explore import Tally as Explorations

WANTED = 100_000
"""Distinct traces of a whole ``make test``."""


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
        """Whether a run of every test (None: it was none) that left out so many wide ones played less than is promised.

        With any left out it is not promised; where nothing was played, the run was of other tests.
        """
        return left_out == 0 and 0 < len(self.all.traces) < WANTED

    def __str__(self) -> str:
        return str(self.all)
