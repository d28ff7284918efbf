"""Frames in single schedules: what they are computed from, and what a redo reads."""

from __future__ import annotations

import pytest

from epochal.chaos.simulate.explore import PIPELINES
from epochal.chaos.simulate.schedule import Action, Schedule, Strike
from epochal.chaos.simulate.simulation import Outcome, Played, Simulation

EPOCHS = 2
FRAMED = [name for name, pipeline in PIPELINES.items() if pipeline.frames]


def played(name: str, schedule: Schedule = ()) -> Outcome:
    return Played(Simulation(PIPELINES[name], schedule), EPOCHS).outcome


@pytest.mark.parametrize("name", FRAMED)
def test_all_sinks_see_one_evaluation(name: str) -> None:
    assert played(name).wrong == {}


@pytest.mark.parametrize("name", ["frame-of-two", "frame-of-all-kinds"])
def test_a_redo_reads_the_frame_that_was_decided(name: str) -> None:
    """The rows of the frame are others whenever it is computed; one sink loses what it has prepared."""
    [first] = [h for h in played(name).happenings if (h.step, h.epoch, h.driver) == ("after-decide", 1, "d1")]
    outcome = played(name, (Strike("d1", first.number, Action.LOSE_PREPARED),))
    assert outcome.wrong == {}
    assert any(step.step == "before-redo" for step in outcome.trace)
