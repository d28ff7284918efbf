"""Tier 3 against ourselves: an error at every point of a start, of an epoch and of each real sink, per workload."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from epochal.chaos.campaign import own, rounds
from epochal.chaos.campaign.menus import losses, our_errors
from epochal.chaos.campaign.plan import IN_ONE_PROCESS, Plan
from epochal.chaos.job.moments import APPLYING, DECIDING, Moments
from epochal.chaos.observe.checker import Verdict
from epochal.chaos.strike.strikes import Menu, Strike
from epochal.coordinator.model.failpoints import Point
from tests.real.chaos.campaign import fewer

pytestmark = pytest.mark.timeout(1800)
SOME = 30
FEW = 5
CELLS = our_errors(own.OWN["pipeline"].moments)
LOST = [*losses(own.OWN["upsert"].moments.losing), Strike("raise", "driver", Point.AFTER_DECIDE, 0)]
APPLIED = [
    Strike("raise", "driver", Point.BEFORE_APPLY, 0),
    Strike("raise", "driver", Point.AFTER_APPLY, 0),
    Strike("raise", "driver", Point.AFTER_SINK_COMMIT, 0, "kafka"),
]
NOT_OF_THIS_TIER = {
    Point.AFTER_JOB,  # told from a thread of Spark's: only a halted process can be held there
    *(
        Point.BEFORE_MARK,
        Point.AFTER_MARK,
        Point.BEFORE_OPERATOR,
        Point.AFTER_OPERATOR,
    ),  # of a person's act, of no query
}
OF_ONE_SINK = {Point.BEFORE_SINK_FENCE, Point.IN_WRITE, Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH}


def test_the_cells_name_every_point_and_every_sink() -> None:
    assert {cell.point for cell in CELLS} == set(Point) - NOT_OF_THIS_TIER - APPLYING
    assert {cell.sink for cell in CELLS} == {"", *own.SINKS}
    assert len(CELLS) + SOME + 2 * FEW >= 100


@pytest.mark.parametrize("name", own.OWN)
def test_the_cells_of_each_pipeline_are_those_of_its_mode(name: str) -> None:
    moments = own.OWN[name].moments
    cells = our_errors(moments)
    left_out = DECIDING if moments.idempotent else APPLYING
    assert {cell.point for cell in cells} == set(Point) - NOT_OF_THIS_TIER - left_out
    for sink in moments.sinks:
        assert {cell.point for cell in cells if cell.sink == sink} >= OF_ONE_SINK


@pytest.mark.wide
def test_an_error_in_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    every_cell_strikes_and_harms_nobody(Plan("", workload="rows"), CELLS, [], capsys)


@pytest.mark.wide
@pytest.mark.parametrize(("name", "always"), [("upsert", LOST), ("idempotent", APPLIED)], ids=["upsert", "idempotent"])
def test_an_error_in_some_cells_of_the_other_modes(
    name: str, always: Sequence[Strike], capsys: pytest.CaptureFixture[str]
) -> None:
    """A few, drawn by the seed beside those that the mode is about; `make chaos` has all, of all our pipelines."""
    one = own.OWN[name]
    others = [cell for cell in our_errors(one.moments) if cell not in always]
    cells = [*always, *random.Random(3).sample(others, FEW - len(always))]
    plan = Plan(own.target(name), workload=one.workload)
    every_cell_strikes_and_harms_nobody(plan, cells, [], capsys)


@pytest.mark.wide
def test_an_error_in_most_cells_of_a_job_with_state(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of three, drawn by the seed, and two sinks; `make chaos` has all of them."""
    cells = random.Random(2).sample(our_errors(Moments(fewer.SINKS)), SOME)
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
