"""Tier 3 against ourselves: an error at every point of a start, of an epoch and of each real sink, per workload."""

from __future__ import annotations

import random

import pytest

from epochal.chaos import own, rounds
from epochal.chaos.checker import Verdict
from epochal.chaos.failpoints import Point
from epochal.chaos.menus import our_errors
from epochal.chaos.plan import IN_ONE_PROCESS, Plan
from epochal.chaos.roles import Menu

pytestmark = pytest.mark.timeout(1800)
EVERY = 0
SOME = 40
NOT_OF_THIS_TIER = {
    Point.AFTER_JOB,  # told from a thread of Spark's: only a halted process can be held there
}


def test_the_cells_name_every_point_and_every_sink() -> None:
    cells = our_errors(own.SINKS, own.LOSING)
    assert {cell.point for cell in cells} == set(Point) - NOT_OF_THIS_TIER
    assert {cell.sink for cell in cells} == {"", *own.SINKS}
    assert len(cells) + SOME >= 100


@pytest.mark.parametrize(("workload", "share"), [("rows", EVERY), ("state", SOME)])
def test_an_error_in_every_cell(workload: str, share: int, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them with the plain workload; with the state of a user's function two of three, drawn by the seed."""
    cells = our_errors(own.SINKS, own.LOSING) if share == EVERY else our_errors(own.SINKS)
    menu = Menu(random.Random(2).sample(cells, share or len(cells)))
    plan = Plan("", workload=workload, tier=IN_ONE_PROCESS, seed=1, strikes=len(menu.strikes), all_must_strike=True)
    with capsys.disabled():
        [result] = rounds.play(plan, print, menu=menu)
    assert result.verdict is Verdict.TRUE, (result.run.proves_nothing, result.findings)
    assert list(result.unreached) == []
    assert len(result.struck) == len(menu.strikes)
