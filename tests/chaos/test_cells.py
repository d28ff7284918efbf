"""Tier 3 against ourselves: an error at every point of a start, of an epoch and of each real sink, per workload."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from epochal.chaos import own, rounds
from epochal.chaos.checker import Verdict
from epochal.chaos.failpoints import Point
from epochal.chaos.menus import our_errors
from epochal.chaos.plan import IN_ONE_PROCESS, Plan
from epochal.chaos.roles import Menu, Strike
from tests.chaos import fewer

pytestmark = pytest.mark.timeout(1800)
SOME = 40
NOT_OF_THIS_TIER = {
    Point.AFTER_JOB,  # told from a thread of Spark's: only a halted process can be held there
    Point.BEFORE_APPLY,  # of idempotent mode, which these jobs are not in: tests/kills/test_idempotent_kills.py
    Point.AFTER_APPLY,
}


def test_the_cells_name_every_point_and_every_sink() -> None:
    cells = our_errors(own.SINKS, own.LOSING)
    assert {cell.point for cell in cells} == set(Point) - NOT_OF_THIS_TIER
    assert {cell.sink for cell in cells} == {"", *own.SINKS}
    assert len(cells) + SOME >= 100


def test_an_error_in_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    every_cell_strikes_and_harms_nobody(Plan("", workload="rows"), our_errors(own.SINKS, own.LOSING), [], capsys)


def test_an_error_in_most_cells_of_a_job_with_state(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of three, drawn by the seed, and two sinks; `make chaos` has all of them."""
    cells = random.Random(2).sample(our_errors(fewer.SINKS), SOME)
    plan = Plan(fewer.TARGET, workload="state")
    every_cell_strikes_and_harms_nobody(plan, cells, fewer.SINKS, capsys)


def every_cell_strikes_and_harms_nobody(
    plan: Plan, cells: Sequence[Strike], servers: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    all_of_them = replace(plan, tier=IN_ONE_PROCESS, seed=1, strikes=len(cells), all_must_strike=True)
    with capsys.disabled():
        [result] = rounds.play(all_of_them, print, menu=Menu(cells), servers=servers)
    assert result.verdict is Verdict.TRUE, (result.run.proves_nothing, result.findings)
    assert list(result.unreached) == []
    assert len(result.struck) == len(cells)
