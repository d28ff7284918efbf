"""Tier 3 against ourselves: an error at every point of a start, of an epoch and of each real sink, per workload."""

from __future__ import annotations

import pytest

from epochal.chaos import own, rounds
from epochal.chaos.checker import Verdict
from epochal.chaos.failpoints import Point
from epochal.chaos.menus import our_errors
from epochal.chaos.plan import IN_ONE_PROCESS, Plan

pytestmark = pytest.mark.timeout(1800)
NOT_OF_THIS_TIER = {
    Point.AFTER_JOB,  # told from a thread of Spark's: only a halted process can be held there
}


def test_the_cells_name_every_point_and_every_sink() -> None:
    cells = our_errors(own.SINKS, own.LOSING)
    assert {cell.point for cell in cells} == set(Point) - NOT_OF_THIS_TIER
    assert {cell.sink for cell in cells} == {"", *own.SINKS}
    assert 2 * len(cells) >= 100


@pytest.mark.parametrize("workload", ["rows", "state"])
def test_an_error_in_every_cell(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan("", workload=workload, tier=IN_ONE_PROCESS, seed=1)
    with capsys.disabled():
        [result] = rounds.play(plan, print)
    assert result.verdict is Verdict.TRUE, (result.run.proves_nothing, result.findings)
    assert list(result.unreached) == []
    assert len(result.struck) == len(our_errors(own.SINKS, own.LOSING))
