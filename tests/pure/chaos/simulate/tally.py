"""How many schedules were played, and how many of them are distinct."""

from __future__ import annotations

from dataclasses import dataclass, field

from epochal.chaos.observe.checker import Verdict
from epochal.chaos.simulate.explore import Explored
from epochal.chaos.simulate.explore import Tally as Explorations

WANTED = 100_000
"""Distinct traces that one run of the whole folder plays at least: ``pytest tests/pure/chaos/simulate``."""


@dataclass
class Tally:
    """Distinct traces of all tests together: the sequence of (actor, step, sink, outcome) and nothing else."""

    all: Explorations = field(default_factory=Explorations)
    is_owed: bool = False  # whether the run had every test of the folder

    def check(self, explored: Explored, at_least: int) -> None:
        """Every schedule holds every invariant and struck as it said; there are enough of them."""
        self.all.schedules += explored.tally.schedules
        self.all.seconds += explored.tally.seconds
        self.all.traces |= explored.tally.traces
        assert explored.verdict is Verdict.TRUE, f"{explored}"
        assert explored.tally.schedules >= at_least, f"only {explored.tally.schedules} schedules were found"

    @property
    def too_few(self) -> bool:
        """Whether fewer distinct traces than WANTED were played in a run that owes them; False if none was played."""
        return self.is_owed and 0 < len(self.all.traces) < WANTED

    def __str__(self) -> str:
        return str(self.all)
