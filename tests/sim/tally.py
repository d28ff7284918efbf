"""How many schedules were played, and how many of them are distinct."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from epochal.chaos.simulation import Outcome


@dataclass
class Tally:
    """Distinct traces: the sequence of (actor, step, sink, outcome) and nothing else."""

    schedules: int = 0
    seconds: float = 0.0  # of processor time
    traces: set[int] = field(default_factory=set)

    def check(self, outcomes: Iterable[Outcome], at_least: int) -> None:
        """Every schedule holds every invariant and struck as it said; there are enough of them."""
        played = 0
        for outcome in outcomes:
            played += 1
            self.traces.add(hash(outcome.trace))
            assert not outcome.wrong, f"{[str(s) for s in outcome.schedule]}\n{outcome}"
        self.schedules += played
        assert played >= at_least, f"only {played} schedules were found"

    def __str__(self) -> str:
        return f"{len(self.traces)} distinct traces of {self.schedules} schedules in {self.seconds:.0f} s"
