"""Schedules that are known to break idempotent sinks, each on its own and by its name.

No copy, no decision: an ``Apply`` record, then each sink is given the epoch until it shows it.  What must hold
then, beside all that ``test_known_schedules.py`` asks, is told here line by line.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from epochal.chaos.simulate.pipelines import Checkpoint, Pipeline
from epochal.chaos.simulate.schedule import Action
from epochal.checkpoints.log import Apply, Commit
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Fenced,
    MarkerLost,
    NonDeterministicReplay,
    OutcomeUnknown,
)
from tests.pure.chaos.simulate.scenes import APP, MakeScene, Scene, refused

ONE = Pipeline(("pg",), modes=(IDEMPOTENT,))
TWO = Pipeline(("pg",), ("kafka",), modes=(IDEMPOTENT,))
THREE = Pipeline(("delta", "pg"), ("kafka",), modes=(IDEMPOTENT,))
VOTES = Pipeline(("delta", "pg"), modes=(IDEMPOTENT,))
REDO = Pipeline((), ("hub", "kafka"), modes=(IDEMPOTENT,))
ALL = [ONE, TWO, THREE, VOTES, REDO]


def applies(world: Scene, epoch: int | None = None) -> list[Apply]:
    records = (entry.record for entry in world.checkpoint.log.read())
    return [r for r in records if isinstance(r, Apply) and epoch in (None, r.epoch)]


def commits(world: Scene) -> list[Commit]:
    return [entry.record for entry in world.checkpoint.log.read() if isinstance(entry.record, Commit)]


def restore(world: Scene, sink: str, backup: Any) -> None:
    """An administrator puts the rows and the marker of a backup back; the fence is the newest."""
    table = world.server.table(APP, sink)
    table.marker, table.shown, table.prepared = backup.marker, list(backup.shown), dict(backup.prepared)


# no copy, no decision


@pytest.mark.parametrize("pipeline", ALL)
def test_nothing_is_copied_and_nothing_is_decided(scene: MakeScene, pipeline: Pipeline) -> None:
    world = scene(pipeline)
    assert world.start("d1", until=2).finished
    assert world.stage.copies() == []
    assert commits(world) == []
    for sink in pipeline.sinks:
        assert world.ids(sink) == [0, 1, 2, 3, 4, 5]
    world.holds(until=3)


def test_every_marker_holds_the_digest_of_its_rows(scene: MakeScene) -> None:
    world = scene(THREE)
    world.start("d1", until=1)
    digests = {world.server.table(APP, sink).marker.digest for sink in THREE.sinks}  # type: ignore[union-attr]
    assert len(digests) == 1
    [digest] = digests
    assert digest is not None
    assert digest.rows == 2
    world.holds(until=2)


def test_nobody_shows_an_epoch_before_its_record(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "before-apply", Action.CRASH)
    world.start("d1", until=0)
    assert (applies(world), world.markers()) == ([], [None, None, None])
    assert not world.server.table(APP, "pg").prepared
    world.start("d2", until=0)
    world.holds(until=1)


# line k: no Commit, every marker unknown -> no restart


@pytest.mark.parametrize("pipeline", ALL)
def test_a_second_start_knows_every_marker(scene: MakeScene, pipeline: Pipeline) -> None:
    world = scene(pipeline)
    for number, epoch in enumerate([0, 1, 4, 5]):
        assert world.start(f"d{number}", until=epoch).finished
    world.holds(until=6)


@pytest.mark.parametrize("sink", THREE.sinks)
def test_a_sink_that_is_behind_is_brought_up_by_the_replay(scene: MakeScene, sink: str) -> None:
    world = scene(THREE)
    world.order("d1", "after-sink-commit", Action.CRASH, sink=sink, epoch=1)
    world.start("d1", until=1)
    shown = {name: len(world.ids(name)) for name in THREE.sinks}
    assert set(shown.values()) <= {2, 4}
    assert shown[sink] == 4
    driver = world.start("d2", until=1)
    assert driver.finished
    assert set(driver.reports[0].sinks) == {name for name, rows in shown.items() if rows == 2}
    world.holds(until=2)


@pytest.mark.parametrize("pipeline", ALL)
def test_who_goes_on_with_an_epoch_leaves_a_record_of_its_own_and_all_of_them_are_proof(
    scene: MakeScene, pipeline: Pipeline
) -> None:
    world = scene(pipeline)
    for number, point in enumerate(["after-apply", "before-publish", "after-sink-commit"]):
        world.order(f"d{number}", point, Action.CRASH)
        world.start(f"d{number}", until=0)
    assert world.start("d3", until=0).finished
    records = applies(world, 0)
    assert [r.actor.generation for r in records] == ([1, 2, 3, 4] if len(pipeline.sinks) > 1 else [1, 2, 3])
    assert [r.supersedes for r in records] == [None, *(r.decision.id for r in records[:-1])]
    assert len({marker.decision for marker in world.markers() if marker}) == min(len(pipeline.sinks), 2)  # type: ignore[attr-defined]
    world.holds(until=1)


# line l: rolled back, and another epoch passes for the one that is covered


def test_an_epoch_is_covered_only_by_its_own_fingerprint(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    del world.checkpoint.offsets[1]
    world.checkpoint.commits.remove(1)
    before = world.everything()
    error = refused(world.start("d2", 1, batch=1), CheckpointMismatch)
    assert "was begun for offsets 2-4, Spark now plans it as 2-3" in str(error)
    assert world.everything() == before


def test_a_rolled_back_checkpoint_is_refused(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    backup = world.checkpoint.copy(world.checkpoint.path)
    world.start("d2", until=3)
    before = world.everything()
    refused(world.start("d3", 1, backup, batch=1), CheckpointMismatch)
    assert world.everything() == before


def test_rolled_back_offsets_under_a_newer_log_are_refused(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=2)
    for epoch in (1, 2):
        world.checkpoint.commits.remove(epoch)
        del world.checkpoint.offsets[epoch]
    before = world.everything()
    refused(world.start("d2", 1, batch=1), CheckpointMismatch)
    assert world.everything() == before


@pytest.mark.parametrize("query_id", ["query-1", "query-2"])
def test_a_deleted_checkpoint_is_refused(scene: MakeScene, query_id: str) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    before = world.everything()
    refused(world.start("d2", 1, Checkpoint(query_id=query_id)), CheckpointMismatch)
    assert world.everything() == before
    world.holds(until=2)


def test_a_copied_checkpoint_is_refused_and_disturbs_nobody(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    world.order("d2", "after-commit", Action.PAUSE, epoch=1)
    healthy = world.start("d2", until=2)
    before = world.everything()
    refused(world.start("thief", 3, world.checkpoint.copy("/elsewhere")), CheckpointMismatch)
    assert world.everything() == before
    assert healthy.go().finished
    world.holds(until=3)


# line m: two sinks, two evaluations, other rows


class Unrepeatable(Scene):
    """The job gives other rows in every evaluation from number ``changes`` on, whatever was declared."""

    changes = 1

    def evaluation(self, epoch: int) -> int:
        super().evaluation(epoch)
        return self._attempts if self._attempts >= self.changes else 0


class LaterUnrepeatable(Unrepeatable):
    """What the job reads changes once each of two sinks was given the first epoch."""

    changes = 3


@pytest.fixture
def unrepeatable(scene: MakeScene) -> MakeScene:
    return lambda pipeline, kind=Unrepeatable: scene(pipeline, kind)


@pytest.mark.parametrize("pipeline", [TWO, THREE, VOTES])
def test_other_rows_for_the_second_sink_reach_none(unrepeatable: MakeScene, pipeline: Pipeline) -> None:
    world = unrepeatable(pipeline)
    error = refused(world.start("d1", until=0), NonDeterministicReplay)
    assert world.markers() == [None] * len(pipeline.sinks)
    assert all(not world.server.table(APP, sink).prepared for sink in pipeline.sinks)
    assert error.epoch == 0
    assert error.what.count("2 rows, ") == 2


def test_where_digests_are_known_only_after_writing_the_second_is_held_against_the_first(
    unrepeatable: MakeScene,
) -> None:
    world = unrepeatable(REDO)
    error = refused(world.start("d1", until=0), NonDeterministicReplay)
    assert (world.ids("hub"), world.ids("kafka")) == ([0, 1], [])
    assert error.sink == "kafka"


@pytest.mark.parametrize(("pipeline", "first"), [(TWO, "kafka"), (VOTES, "delta"), (REDO, "hub")])
def test_other_rows_on_replay_reach_nobody(unrepeatable: MakeScene, pipeline: Pipeline, first: str) -> None:
    """The first evaluations agree, and what they read changes only after the kill."""
    world = unrepeatable(pipeline, LaterUnrepeatable)
    world.order("d1", "after-sink-commit", Action.CRASH, sink=first)
    world.start("d1", until=0)
    world._attempts = max(world._attempts, 2)
    [behind] = set(pipeline.sinks) - {first}
    for name in ("d2", "d3"):  # at every restart, and nothing is written at any
        error = refused(world.start(name, until=1), NonDeterministicReplay)
        assert error.what.count("2 rows, ") == 2
        assert (world.ids(first), world.ids(behind)) == ([0, 1], [])
        assert not world.server.table(APP, behind).prepared


# line n: the mode is the epoch's


@pytest.mark.parametrize(
    "point", ["after-apply", "after-prepare", "after-sink-commit", "after-commit", "before-return"]
)
@pytest.mark.parametrize("pipeline", ALL)
def test_an_epoch_that_was_begun_is_finished_as_it_was_begun(scene: MakeScene, pipeline: Pipeline, point: str) -> None:
    world = scene(pipeline)
    world.order("d1", point, Action.CRASH, epoch=1)
    world.start("d1", until=1)
    shown = any(len(world.ids(sink)) == 4 for sink in pipeline.sinks)
    driver = world.start("d2", until=2, mode=TWO_PHASE)
    assert driver.finished, driver.error
    assert [c.epoch for c in commits(world)] == ([2] if shown else [1, 2])
    assert world.start("d3", until=3).finished
    world.holds(until=4)


@pytest.mark.parametrize("point", ["after-decide", "after-sink-commit", "after-commit", "before-return"])
@pytest.mark.parametrize("pipeline", ALL)
def test_an_epoch_that_was_decided_is_finished_as_it_was_decided(
    scene: MakeScene, pipeline: Pipeline, point: str
) -> None:
    world = scene(pipeline)
    world.order("d1", point, Action.CRASH, epoch=1)
    world.start("d1", until=1, mode=TWO_PHASE)
    driver = world.start("d2", until=2)
    assert driver.finished, driver.error
    assert [c.epoch for c in commits(world)] == [1]
    assert [a.epoch for a in applies(world)] == [2]
    world.holds(until=3)


def test_the_copy_of_a_decided_epoch_goes_once_a_record_calls_it_done(scene: MakeScene) -> None:
    """Its own start could not say so; the next one settles it after its fence, and says so in its first record."""
    world = scene(TWO)
    world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0, mode=TWO_PHASE)
    assert [epoch for epoch, _ in world.stage.copies()] == [0]
    assert world.start("d2", until=1).finished
    assert world.stage.copies() == []
    world.holds(until=2)


def test_rows_that_a_single_sink_lost_are_decided_again_in_the_mode_of_their_epoch(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-decide", Action.LOSE_PREPARED)
    refused(world.start("d1", until=0, mode=TWO_PHASE), CommitInDoubt)
    assert world.start("d2", until=1).finished
    assert [(c.epoch, c.decision.redo) for c in commits(world)] == [(0, 0), (0, 1)]
    assert [a.epoch for a in applies(world)] == [1]
    world.holds(until=2)


def test_what_no_sink_shows_and_is_decided_now_says_what_it_supersedes(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "after-apply", Action.CRASH)
    world.start("d1", until=0)
    world.start("d2", until=0, mode=TWO_PHASE)
    [begun], [decided] = applies(world), commits(world)
    assert decided.supersedes == begun.decision.id
    world.holds(until=1)


# line s: one behind only for the epoch that is replayed


def test_a_sink_that_was_restored_is_not_passed_by(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    backup = copy.deepcopy(world.server.table(APP, "pg"))
    world.start("d2", until=1)
    restore(world, "pg", backup)
    before = world.everything()
    error = refused(world.start("d3", until=2), MarkerLost)
    assert "does not show epoch 1, which was applied, and Spark asks for epoch 2" in str(error)
    assert "delete commits/1 and offsets/2" in error.help
    assert world.everything() == before


def test_the_remedy_for_a_restored_sink_is_sparks_replay(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    backup = copy.deepcopy(world.server.table(APP, "pg"))
    world.start("d2", until=1)
    restore(world, "pg", backup)
    refused(world.start("d3", until=2), MarkerLost)
    world.checkpoint.commits.remove(1)
    del world.checkpoint.offsets[2], world.checkpoint.state[2]
    assert world.start("d4", until=2).finished
    assert world.ids("kafka") == world.ids("pg") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", [IDEMPOTENT, TWO_PHASE])
def test_a_sink_restored_to_before_what_a_record_calls_done_is_not_written_again(scene: MakeScene, mode: str) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    backup = copy.deepcopy(world.server.table(APP, "pg"))
    world.start("d2", until=1)
    world.order("d3", "after-fence-record", Action.CRASH)  # its fence records that epoch 1 is done
    world.start("d3", until=2)
    restore(world, "pg", backup)
    world.checkpoint.commits.remove(1)
    del world.checkpoint.offsets[2]
    refused(world.start("d4", until=1, mode=mode), MarkerLost)


# line t: a participant that is missing


@pytest.mark.parametrize("point", ["after-apply", "after-commit", "committed"])
@pytest.mark.parametrize("mode", [IDEMPOTENT, TWO_PHASE])
def test_a_sink_that_is_missing_refuses_every_start(scene: MakeScene, point: str, mode: str) -> None:
    world = scene(THREE)
    world.order("d1", point, Action.CRASH)
    world.start("d1", until=0)
    before = world.everything()
    fewer = Pipeline(("pg",), ("kafka",))
    error = refused(world.start("d2", 1, pipeline=fewer, mode=mode), CheckpointMismatch)
    assert "'delta'" in str(error)
    assert world.everything() == before
    world.start("d3", until=1)
    world.holds(until=2)


@pytest.mark.parametrize("point", ["after-apply", "committed"])
def test_a_recreated_table_is_not_the_participant_that_it_was(scene: MakeScene, point: str) -> None:
    world = scene(TWO)
    world.order("d1", point, Action.CRASH, epoch=1)
    world.start("d1", until=1)
    world.server.recreate(APP, "pg")
    before = world.everything()
    refused(world.start("d2", until=2), CheckpointMismatch)
    assert world.everything() == before


@pytest.mark.parametrize(("point", "first"), [("after-apply", 0), ("after-sink-commit", 0), ("after-commit", 2)])
def test_a_new_sink_joins_with_the_next_record(scene: MakeScene, point: str, first: int) -> None:
    """That of an epoch that somebody does not show yet, or of the next one."""
    world = scene(THREE)
    world.order("d1", point, Action.CRASH)
    world.start("d1", 0, pipeline=TWO)
    assert world.start("d2", until=1).finished
    assert (world.ids("delta"), world.ids("pg")) == ([0, 1, 2, 3][first:], [0, 1, 2, 3])
    assert world.start("d3", until=2).finished


# line u: an old request arrives late


@pytest.mark.parametrize("sink", ["kafka", "pg"])
def test_a_late_write_finds_a_newer_marker_and_writes_nothing(scene: MakeScene, sink: str) -> None:
    world = scene(TWO)
    world.order("d1", "commit", Action.LATE, sink=sink)
    world.order("d1", "committed", Action.DELIVER_LATE, epoch=1)
    assert world.start("d1", until=1).finished
    assert world.ids(sink) == [0, 1, 2, 3]
    world.holds(until=2)


@pytest.mark.parametrize("sink", ["kafka", "pg"])
def test_a_write_without_an_answer_is_asked_for_and_found(scene: MakeScene, sink: str) -> None:
    world = scene(TWO)
    world.order("d1", "commit", Action.ANSWER_LOST, sink=sink)
    driver = world.start("d1", until=0)
    assert driver.finished
    assert driver.reports[0].sinks[sink].name == "ALREADY_COMMITTED"
    assert driver.reports[0].rows == 2
    world.holds(until=1)


@pytest.mark.parametrize("pipeline", ALL)
@pytest.mark.parametrize("point", ["after-apply", "in-write", "before-publish", "after-prepare", "before-sink-commit"])
def test_a_driver_that_wakes_late_writes_nothing(scene: MakeScene, pipeline: Pipeline, point: str) -> None:
    world = scene(pipeline)
    world.order("d1", point, Action.PAUSE)
    old = world.start("d1", until=0)
    assert world.start("d2", until=1).finished
    before = world.everything()
    refused(old.go(), Fenced)
    assert world.everything() == before
    world.holds(until=2)


@pytest.mark.parametrize("point", ["after-look", "after-fence", "before-apply", "after-apply", "after-prepare"])
def test_of_two_drivers_of_either_mode_one_goes_on(scene: MakeScene, point: str) -> None:
    for first, second in ((IDEMPOTENT, TWO_PHASE), (TWO_PHASE, IDEMPOTENT)):
        if first == TWO_PHASE and "apply" in point:
            continue
        world = scene(TWO)
        world.order("d1", point, Action.PAUSE)
        old = world.start("d1", until=1, mode=first)
        assert world.start("d2", until=1, mode=second).finished
        before = world.everything()
        refused(old.go(), Fenced)
        assert world.everything() == before
        world.holds(until=2)


# line v: an epoch is passed by


def test_an_epoch_that_was_begun_cannot_be_passed_by(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-apply", Action.CRASH)
    world.start("d1", until=0)
    refused(world.start("d2", 1, calls=lambda epoch: epoch > 0), MarkerLost)
    assert world.ids() == []


# line w: the record without an answer


def test_no_sink_is_touched_before_the_record_is_answered(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "append-apply", Action.LATE, times=4)
    error = refused(world.start("d1", until=0), OutcomeUnknown)
    assert "whether the apply record at position 1 was written is not known" in str(error)
    assert world.markers() == [None, None, None]
    assert not world.server.table(APP, "pg").prepared
    world.log_network.deliver_late()
    world.start("d2", until=0)
    world.holds(until=1)


@pytest.mark.parametrize("lost", [Action.LATE, Action.ANSWER_LOST, Action.REQUEST_LOST])
def test_the_record_is_repeated_until_it_is_answered(scene: MakeScene, lost: Action) -> None:
    world = scene(TWO)
    world.order("d1", "append-apply", lost, times=3)
    assert world.start("d1", until=0).finished
    world.deliver_late()
    assert len(applies(world, 0)) == 1
    world.holds(until=1)


def test_a_record_that_slept_over_a_newer_start_is_not_taken(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "log-before-append", Action.PAUSE, epoch=0)
    old = world.start("d1", until=0)
    assert world.start("d2", until=0).finished
    refused(old.go(), Fenced)
    assert [r.actor.generation for r in applies(world, 0)] == [2]
    world.holds(until=1)


# line y: not repeatable, at every restart


@pytest.mark.parametrize("pipeline", [TWO, THREE, VOTES])
def test_an_epoch_that_nobody_shows_counts_as_not_begun(unrepeatable: MakeScene, pipeline: Pipeline) -> None:
    """So a job that turns out not to repeat itself goes on in the other mode, from the same epoch."""
    world = unrepeatable(pipeline)
    for name in ("d1", "d2"):
        refused(world.start(name, until=0), NonDeterministicReplay)
    assert world.start("d3", until=1, mode=TWO_PHASE).finished
    assert [c.epoch for c in commits(world)] == [0, 1]
    assert len({row["attempt"] for row in world.server.visible(APP, "pg") if row["epoch"] == 0}) == 1
    assert world.ids("pg") == [0, 1, 2, 3]


# what else can go wrong


@pytest.mark.parametrize("pipeline", [ONE, TWO, THREE])
def test_rows_that_are_lost_before_they_are_shown_come_back_with_the_replay(
    scene: MakeScene, pipeline: Pipeline
) -> None:
    world = scene(pipeline)
    world.order("d1", "after-prepare", Action.LOSE_PREPARED)
    error = refused(world.start("d1", until=0), CommitInDoubt)
    assert "begun, and not yet visible in" in str(error)
    assert world.start("d2", until=0).finished
    world.holds(until=1)


def test_a_sink_that_is_down_leaves_the_epoch_to_the_next_start(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "commit", Action.UNAVAILABLE, sink="kafka", times=4)
    error = refused(world.start("d1", until=1), CommitInDoubt)
    assert "begun, and not yet visible in kafka, pg" in str(error)
    assert 0 not in world.checkpoint.commits
    assert world.start("d2", until=1).finished
    world.holds(until=2)


def test_a_sink_that_cannot_prepare_leaves_nothing_anywhere(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "prepare", Action.UNAVAILABLE, sink="pg", times=4)
    refused(world.start("d1", until=0), EpochalError)
    assert world.markers() == [None, None, None]
    assert not world.server.table(APP, "delta").prepared
    world.start("d2", until=0)
    world.holds(until=1)


def test_a_short_outage_while_preparing_is_waited_for(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "prepare", Action.UNAVAILABLE, sink="pg", times=3)
    assert world.start("d1", until=0).finished
    world.holds(until=1)


def test_a_replay_of_what_every_sink_shows_runs_the_plan_and_writes_nothing(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    world.checkpoint.commits.remove(1)
    del world.checkpoint.state[2]
    before = world.ids()
    driver = world.start("d2", until=1)
    assert [report.replayed for report in driver.reports] == [True]
    assert world.ids() == before
    world.holds(until=2)


@pytest.mark.parametrize("point", ["after-apply", "after-sink-commit", "before-return"])
def test_a_start_after_compaction_still_knows_every_marker(scene: MakeScene, point: str) -> None:
    world = scene(THREE)
    world.order("d1", point, Action.CRASH, epoch=5)
    world.start("d1", until=5)
    assert len(world.checkpoint.log.read()) < 12
    assert world.start("d2", until=5).finished
    world.holds(until=6)
