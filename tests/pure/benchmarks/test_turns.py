"""Turns, ratios within a round, and their spread."""

from __future__ import annotations

import pytest

from benchmarks.goals import GOALS
from benchmarks.measuring import Measure, quartiles, ratio, spread, turns, words
from benchmarks.tables.small import Phases
from epochal.coordinator.model.epoch import Phase
from epochal.coordinator.model.events import PhaseEnded


def test_every_other_round_goes_backwards_and_warm_up_is_not_kept() -> None:
    said: list[str] = []
    clock = iter(range(100))

    def job(name: str) -> float:
        said.append(name)
        return next(clock)

    jobs = {name: (lambda name=name: job(name)) for name in "abc"}
    taken = turns(jobs, 2, {"rows": 5}, "s", after=lambda: said.append("."))
    assert "".join(said) == "c.b.a.a.b.c.c.b.a."
    assert {m.job: list(m.values) for m in taken} == {"a": [3, 8], "b": [4, 7], "c": [5, 6]}


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine was twice as slow in the second one."""
    taken = [Measure("ours", {}, "s", [1.0, 2.2]), Measure("peer", {}, "s", [2.0, 4.0])]
    assert ratio(taken, "ours", "peer", "s").values == [0.5, pytest.approx(0.55)]
    assert ratio(taken, "ours", "peer", "rows/s", inverse=True).values == [2, pytest.approx(4 / 2.2)]


def test_the_spread_of_few_values() -> None:
    assert quartiles([3]) == (3, 3, 3)
    assert quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)
    assert spread([2, 1]) == {"median": 1.5, "quartiles": [1.25, 1.75], "values": [2, 1]}


def test_a_goal_holds_at_its_bound() -> None:
    least, most = GOALS["postgres-jdbc"], GOALS["recovery"]
    assert (least.holds(2.2), least.holds(2.19), most.holds(1.0), most.holds(1.01)) == (True, False, True, False)


def test_a_case_in_words() -> None:
    assert words({"rows": 2_000_000, "query": "count(*)"}) == "2,000,000 rows, query count(*)"


@pytest.mark.parametrize(("counted", "of", "told"), [(1, 2, 7.0), (2, None, 6.0), (1, None, 7.0)])
def test_phases_are_those_of_every_epoch(counted: int, of: int | None, told: float) -> None:
    """Of a stream of two epochs, whose start has phases of its own."""
    phases = Phases(counted, of)
    for phase, seconds in ((Phase.FENCE, 9.0), (Phase.PREPARE, 5.0), (Phase.PREPARE, 7.0)):
        phases(PhaseEnded(app="a", query_id="q", run_id="r", epoch=0, phase=phase, seconds=seconds))
    start = {"fence": 9.0} if (counted, of) == (1, None) else {}
    assert phases.medians() == {**start, "prepare": told}
