"""Known schedules of a sink that votes with one open transaction, as Kafka does.

A driver dies, a transaction expires, or a request arrives late, around each step of prepare, decision and end.
"""

from __future__ import annotations

import pytest

from epochal.chaos.simulate.driver import Driver
from epochal.chaos.simulate.pipelines import Pipeline
from epochal.chaos.simulate.schedule import Action
from epochal.coordinator.model.errors import Fenced, OutcomeUnknown, PreparedLost, SinkUnavailable
from tests.pure.chaos.simulate.scenes import APP, MakeScene, Scene, refused

ALONE = Pipeline((), transactional=("kafka",))
BESIDE = Pipeline(("pg",), transactional=("kafka",))
AMONG = Pipeline(("pg",), ("log",), transactional=("kafka",))
PIPELINES = [pytest.param(ALONE, id="alone"), pytest.param(BESIDE, id="beside"), pytest.param(AMONG, id="among")]
over_each = pytest.mark.parametrize("pipeline", PIPELINES)


def asked(world: Scene, driver: str, step: str) -> list[str]:
    """The answers that a driver got to its requests of one kind to the sink."""
    return [s.outcome for s in world.history.trace if (s.actor, s.step, s.sink) == (driver, step, "kafka")]


def redone(world: Scene, driver: str) -> int:
    """How often a driver wrote rows from the copy."""
    return asked(world, driver, "commit").count("COMMITTED")


def outcome(driver: Driver) -> str:
    return driver.reports[0].sinks["kafka"].name


# without faults


@over_each
def test_without_faults_each_epoch_is_one_transaction_and_none_is_redone(scene: MakeScene, pipeline: Pipeline) -> None:
    world = scene(pipeline)
    driver = world.start("d1", until=2)
    assert asked(world, "d1", "end") == ["COMMITTED"] * 3
    assert [len(asked(world, "d1", step)) for step in ("begin", "write", "commit")] == [3, 3, 0]
    assert outcome(driver) == "COMMITTED"
    world.holds(until=3)


def test_a_steady_run_looks_at_fence_and_marker_only_once(scene: MakeScene) -> None:
    world = scene(ALONE)
    world.start("d1", until=4)
    assert len(asked(world, "d1", "look")) == 3  # twice in the start, once before the first epoch
    world.holds(until=5)


def test_who_does_not_know_that_nobody_began_looks(scene: MakeScene) -> None:
    world = scene(ALONE)
    world.order("d1", "before-prepare", Action.LOSE_PREPARED, epoch=1)  # an administrator ends what there is
    world.order("d1", "begin", Action.ANSWER_LOST, epoch=None, after=2)  # it begins twice
    world.start("d1", until=3)
    assert len(asked(world, "d1", "look")) == 5
    world.holds(until=4)


# the driver dies


@over_each
@pytest.mark.parametrize("point", ["begin", "in-write", "write", "before-vote", "after-prepare", "append-commit"])
def test_who_dies_before_the_decision_leaves_nothing(scene: MakeScene, pipeline: Pipeline, point: str) -> None:
    world = scene(pipeline)
    world.order("d1", point, Action.CRASH)
    world.start("d1", until=0)
    assert world.start("d2", until=0).finished
    assert (len(world.decisions(0)), redone(world, "d2")) == (1, 0)
    assert world.ids("kafka") == [0, 1]
    world.holds(until=1)


@over_each
@pytest.mark.parametrize("point", ["after-decide", "before-publish", "end"])
def test_who_dies_after_the_decision_leaves_one_request_to_the_next_start(
    scene: MakeScene, pipeline: Pipeline, point: str
) -> None:
    world = scene(pipeline)
    world.order("d1", point, Action.CRASH)
    world.start("d1", until=0)
    assert world.ids("kafka") == []
    world.order("d2", "before-sink-fence", Action.CRASH, sink="kafka")
    world.start("d2", until=0)
    assert asked(world, "d2", "end") == ["COMMITTED"]
    assert world.start("d3", until=0).finished
    assert redone(world, "d3") == 0
    assert world.ids("kafka") == [0, 1]
    world.holds(until=1)


@over_each
def test_who_dies_after_the_end_and_before_its_answer_has_shown_the_epoch(scene: MakeScene, pipeline: Pipeline) -> None:
    world = scene(pipeline)
    world.order("d1", "after-publish", Action.CRASH, sink="kafka")
    world.start("d1", until=0)
    assert world.ids("kafka") == [0, 1]
    assert world.start("d2", until=0).finished
    assert redone(world, "d2") == 0
    assert world.ids("kafka") == [0, 1]
    world.holds(until=1)


@pytest.mark.parametrize("action", [Action.ANSWER_LOST, Action.REQUEST_LOST, Action.LATE, Action.UNAVAILABLE])
@over_each
def test_an_end_without_an_answer_is_asked_again(scene: MakeScene, pipeline: Pipeline, action: Action) -> None:
    world = scene(pipeline)
    world.order("d1", "end", action)
    driver = world.start("d1", until=0)
    assert outcome(driver) == ("ALREADY_COMMITTED" if action is Action.ANSWER_LOST else "COMMITTED")
    assert redone(world, "d1") == 0
    assert world.ids("kafka") == [0, 1]
    world.holds(until=1)


def test_an_answer_that_is_dropped_leaves_the_end_unknown(scene: MakeScene) -> None:
    world = scene(ALONE)
    world.order("d1", "after-publish", Action.DROP_ANSWER)
    assert outcome(world.start("d1", until=0)) == "ALREADY_COMMITTED"
    world.holds(until=1)


# late requests


def test_a_late_end_never_ends_a_later_transaction(scene: MakeScene) -> None:
    world = scene(ALONE)
    world.order("d1", "end", Action.LATE)
    world.order("d1", "before-decide", Action.DELIVER_LATE, epoch=1)
    world.order("d1", "after-prepare", Action.CRASH, epoch=2)
    world.start("d1", until=2)
    assert world.ids("kafka") == [0, 1, 2, 3]
    world.holds(until=2)


def test_a_zombies_late_end_finds_its_transaction_ended(scene: MakeScene) -> None:
    world = scene(BESIDE)
    world.order("d1", "end", Action.LATE)
    world.order("d1", "end", Action.CRASH)
    world.start("d1", until=0)
    world.order("d2", "end", Action.REQUEST_LOST, times=4)  # it cannot finish
    world.order("d3", "before-decide", Action.DELIVER_LATE, epoch=1)
    refused(world.start("d2", until=0), OutcomeUnknown)
    assert world.start("d3", until=1).finished
    assert world.ids("kafka") == [0, 1, 2, 3]
    world.holds(until=2)


def test_a_late_finish_after_the_fence_shows_nothing(scene: MakeScene) -> None:
    world = scene(ALONE)
    world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0)
    world.order("d2", "end", Action.LATE, times=4)
    refused(world.start("d2", until=0), OutcomeUnknown)
    world.order("d3", "end", Action.CRASH)
    world.start("d3", until=0)
    world.order("d4", "after-prepare", Action.DELIVER_LATE, epoch=1)
    assert world.start("d4", until=1).finished
    assert world.ids("kafka") == [0, 1, 2, 3]
    world.holds(until=2)


@pytest.mark.parametrize("when", ["before-decide", "after-decide", "before-publish"])
def test_a_zombies_begin_ends_a_newer_starts_transaction_which_is_redone(scene: MakeScene, when: str) -> None:
    world = scene(BESIDE)
    world.order("d1", "begin", Action.LATE, times=4)
    refused(world.start("d1", until=0), SinkUnavailable)
    world.order("d2", when, Action.DELIVER_LATE, sink="kafka" if when == "before-publish" else "")
    assert world.start("d2", until=0).finished
    assert (len(world.decisions(0)), redone(world, "d2")) == (1, 1)
    assert world.ids("kafka") == world.ids("pg") == [0, 1]
    world.holds(until=1)


@pytest.mark.parametrize("when", ["in-write", "before-decide", "before-publish", "committed"])
def test_a_zombies_late_write_is_never_visible(scene: MakeScene, when: str) -> None:
    world = scene(ALONE)
    world.order("d1", "write", Action.LATE, times=4)
    refused(world.start("d1", until=0), SinkUnavailable)
    world.order("d2", when, Action.DELIVER_LATE)
    assert world.start("d2", until=0).finished
    assert redone(world, "d2") == 0
    world.holds(until=1)


@pytest.mark.parametrize("step", ["fence", "abort"])
def test_a_zombies_late_fence_or_abort_costs_one_redo(scene: MakeScene, step: str) -> None:
    world = scene(ALONE)
    world.order("d1", step, Action.LATE, times=4)
    world.start("d1", until=0)
    world.order("d2", "after-decide", Action.DELIVER_LATE)
    assert world.start("d2", until=0).finished
    assert redone(world, "d2") == 1
    world.holds(until=1)


@over_each
@pytest.mark.parametrize("point", ["begin", "in-write", "write", "after-prepare", "before-publish", "end"])
def test_a_zombie_that_wakes_after_a_newer_start_changes_nothing(
    scene: MakeScene, pipeline: Pipeline, point: str
) -> None:
    world = scene(pipeline)
    world.order("d1", point, Action.PAUSE)
    old = world.start("d1", until=0)
    assert world.start("d2", until=1).finished
    before = world.everything()
    refused(old.go(), Fenced, PreparedLost)  # lost: it prepares again, and its copy was removed
    assert world.everything() == before
    world.holds(until=2)


@pytest.mark.parametrize("point", ["begin", "write", "end"])
def test_a_zombie_that_wakes_while_a_newer_start_has_prepared_shows_nothing(scene: MakeScene, point: str) -> None:
    world = scene(BESIDE)
    world.order("d1", point, Action.PAUSE)
    world.order("d2", "before-decide", Action.PAUSE, epoch=1)
    old, new = world.start("d1", until=0), world.start("d2", until=1)
    refused(old.go(), Fenced, PreparedLost)
    assert world.ids("kafka") == world.ids("pg") == [0, 1]
    assert new.go().finished
    assert redone(world, "d2") == (point != "end")  # who is not let write begins again
    world.holds(until=2)


# expiry


@over_each
@pytest.mark.parametrize("point", ["before-decide", "after-decide", "before-publish"])
def test_a_transaction_that_expires_is_redone_from_the_copy(scene: MakeScene, pipeline: Pipeline, point: str) -> None:
    world = scene(pipeline)
    world.order("d1", point, Action.LOSE_PREPARED, sink="kafka" if point == "before-publish" else "")
    assert world.start("d1", until=0).finished
    assert asked(world, "d1", "end")[0] == ""
    assert redone(world, "d1") == 1
    world.holds(until=1)


def test_a_transaction_that_expires_while_it_is_written_begins_again(scene: MakeScene) -> None:
    world = scene(ALONE)
    world.order("d1", "in-write", Action.LOSE_PREPARED)
    assert world.start("d1", until=0).finished
    assert [len(asked(world, "d1", step)) for step in ("begin", "write", "commit")] == [2, 2, 0]
    world.holds(until=1)


def test_a_transaction_that_expires_when_nobody_lives_is_redone(scene: MakeScene) -> None:
    world = scene(BESIDE)
    world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0)
    world.server.lose_prepared(APP, "kafka")
    world.order("d2", "before-publish", Action.CRASH, sink="kafka", after=1)  # the first is that of finish
    world.start("d2", until=0)
    assert world.ids("kafka") == []
    assert world.start("d3", until=0).finished
    assert redone(world, "d3") == 1
    world.holds(until=1)


# two starts


@pytest.mark.parametrize("point", ["after-fence-record", "before-publish", "end", "after-publish", "before-sink-fence"])
def test_two_starts_finish_the_same_epoch(scene: MakeScene, point: str) -> None:
    world = scene(BESIDE)
    world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0)
    world.order("d2", point, Action.PAUSE)
    slow = world.start("d2", until=1)
    assert world.start("d3", until=1).finished
    refused(slow.go(), Fenced)
    assert redone(world, "d3") == 0
    assert world.ids("kafka") == world.ids("pg") == [0, 1, 2, 3]
    world.holds(until=2)


def test_of_two_starts_that_finish_only_one_has_the_decision(scene: MakeScene) -> None:
    world = scene(ALONE)
    world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0)
    world.order("d2", "end", Action.PAUSE)
    world.order("d3", "before-decide", Action.PAUSE, epoch=1)
    slow, quick = world.start("d2", until=1), world.start("d3", until=1)
    refused(slow.go(), Fenced)  # its request finds the transaction of another epoch
    assert world.ids("kafka") == [0, 1]
    assert quick.go().finished
    world.holds(until=2)
