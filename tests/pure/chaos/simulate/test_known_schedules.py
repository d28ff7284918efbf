"""Schedules that are known to break two-phase commit protocols, each on its own and by its name.

Enumeration covers most of them as well; here each can be read, and stays when the enumeration changes.
"""

from __future__ import annotations

import copy

import pytest

from epochal.chaos.observe.history import Ended
from epochal.chaos.simulate.driver import SimulatedBatch
from epochal.chaos.simulate.pipelines import Checkpoint, Pipeline
from epochal.chaos.simulate.schedule import Action
from epochal.checkpoints.log import Commit
from epochal.coordinator.model.epoch import EpochRequest
from epochal.coordinator.model.errors import CheckpointMismatch, CommitInDoubt, EpochalError, Fenced, MarkerLost
from tests.pure.chaos.simulate.scenes import APP, MakeScene, Scene, refused

ONE = Pipeline(("pg",))
TWO = Pipeline(("pg",), ("kafka",))
THREE = Pipeline(("delta", "pg"), ("kafka",))

# a request that arrives late, a twin that wakes late


@pytest.mark.parametrize("sink", ["kafka", "pg"])
def test_a_late_twin_of_a_commit_finds_a_newer_marker_and_writes_nothing(scene: MakeScene, sink: str) -> None:
    world = scene(TWO)
    world.order("d1", "commit", Action.LATE, sink=sink)
    world.order("d1", "committed", Action.DELIVER_LATE, epoch=1)
    world.start("d1", until=1)
    assert world.ids(sink) == [0, 1, 2, 3]
    world.holds(until=2)


def test_an_unanswered_commit_is_repeated_and_found_committed(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "commit", Action.ANSWER_LOST, sink="pg")
    driver = world.start("d1", until=0)
    assert driver.reports[0].sinks["pg"].name == "ALREADY_COMMITTED"
    world.holds(until=1)


def test_a_driver_that_dies_without_the_answer_leaves_one_copy_of_the_rows(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-publish", Action.CRASH)
    world.start("d1", until=0)
    world.start("d2", until=0)
    assert world.ids() == [0, 1]
    world.holds(until=1)


def test_a_late_prepare_of_a_zombie_is_never_visible_and_leaves_nothing(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "prepare", Action.LATE, sink="pg", times=4)
    world.order("d2", "after-settle", Action.DELIVER_LATE)
    world.start("d1", until=0)
    world.start("d2", until=0)
    world.holds(until=1)


@pytest.mark.parametrize("pipeline", [ONE, TWO, THREE])
def test_a_driver_that_wakes_in_mid_write_is_refused(scene: MakeScene, pipeline: Pipeline) -> None:
    world = scene(pipeline)
    world.order("d1", "in-write", Action.PAUSE)
    old = world.start("d1", until=0)
    world.start("d2", until=1)
    before = world.ids()
    assert not old.go().finished
    assert world.ids() == before
    world.holds(until=2)


# the decision


def test_an_append_without_an_answer_is_repeated_until_it_has_one(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "append-commit", Action.LATE, times=3)
    world.order("d1", "after-decide", Action.DELIVER_LATE)
    assert world.start("d1", until=1).finished
    assert len(world.decisions(0)) == 1
    world.holds(until=2)


@pytest.mark.parametrize("append", ["append-fence", "append-commit"])
def test_an_append_that_landed_without_an_answer_is_recognised_as_ones_own(scene: MakeScene, append: str) -> None:
    world = scene(TWO)
    world.order("d1", append, Action.ANSWER_LOST)
    assert world.start("d1", until=0).finished
    world.holds(until=1)


def test_a_decision_that_may_still_arrive_is_not_aborted(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "append-commit", Action.LATE, times=4)
    refused(world.start("d1", until=0), CommitInDoubt)
    assert world.server.table(APP, "pg").prepared
    world.log_network.deliver_late()
    world.start("d2", until=0)
    assert len(world.decisions(0)) == 1
    world.holds(until=1)


def test_the_position_of_an_append_is_never_read_anew(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "before-decide", Action.PAUSE)
    world.order("d2", "after-settle", Action.PAUSE)
    old, new = world.start("d1", until=0), world.start("d2", until=0)
    refused(old.go(), Fenced)
    assert world.decisions(0) == []
    assert new.go().finished
    world.holds(until=1)


def test_a_fence_record_without_an_answer_leaves_the_sinks_alone(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "append-fence", Action.LATE, times=4)
    refused(world.start("d1", until=0), EpochalError)
    assert world.fences() == [None, None]
    world.log_network.deliver_late()
    world.start("d2", until=0)
    world.holds(until=1)


def test_a_no_in_one_sink_means_no_in_all(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "prepare", Action.UNAVAILABLE, sink="pg", times=4)
    refused(world.start("d1", until=0), EpochalError)
    assert world.decisions(0) == []
    assert world.markers() == [None, None, None]
    world.start("d2", until=0)
    world.holds(until=1)


@pytest.mark.parametrize(
    "point",
    ["after-fence-record", "before-sink-fence", "after-fence", "after-settle", "after-prepare", "before-decide"],
)
def test_a_log_that_holds_only_a_fence_is_not_empty(scene: MakeScene, point: str) -> None:
    world = scene(THREE)
    world.order("d1", point, Action.CRASH)
    world.order("d2", point, Action.CRASH)
    world.start("d1", until=0)
    world.start("d2", until=0)
    world.start("d3", until=0)
    world.holds(until=1)


# commit, settle, redo


def test_a_commit_error_ends_the_query_before_spark_can_pass_the_epoch(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "commit", Action.UNAVAILABLE, sink="pg", times=4)
    driver = world.start("d1", until=1)
    refused(driver, CommitInDoubt)
    assert 0 not in world.checkpoint.commits
    assert (world.ids("kafka"), world.ids("pg")) == ([0, 1], [])
    world.start("d2", until=1)
    world.holds(until=2)


def test_a_redone_epoch_is_not_committed_again_where_it_is_visible(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "after-sink-commit", Action.LOSE_PREPARED, sink="kafka")
    world.order("d1", "before-redo", Action.CRASH)
    world.order("d2", "after-redo-decided", Action.CRASH)
    for name in ("d1", "d2", "d3"):
        world.start(name, until=0)
    assert [d.supersedes is None for d in world.decisions(0)] == [True, False]
    newest = world.checkpoint.log.read()[-2].record  # before the fence of d3
    assert isinstance(newest, Commit)
    redone = {sink: p.committable.decision.redo for sink, p in newest.participants.items()}
    assert redone == {"kafka": 0, "pg": 1}
    assert world.ids("kafka") == world.ids("pg") == [0, 1]
    world.holds(until=1)


def test_rows_that_are_lost_again_and_again_are_redone_again(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "after-decide", Action.LOSE_PREPARED)
    world.order("d1", "after-redo-decided", Action.LOSE_PREPARED, times=2)
    assert world.start("d1", until=0).finished
    assert len(world.decisions(0)) == 4
    world.holds(until=1)


def test_a_single_sink_that_lost_its_rows_gets_those_of_sparks_replay(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-decide", Action.LOSE_PREPARED)
    refused(world.start("d1", until=0), CommitInDoubt)
    assert world.start("d2", until=0).finished
    first, second = world.decisions(0)
    assert second.supersedes == first.decision
    world.holds(until=1)


def test_a_single_sink_that_lost_its_rows_halts_when_spark_is_past_the_epoch(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-decide", Action.LOSE_PREPARED)
    refused(world.start("d1", until=0), CommitInDoubt)
    world.checkpoint.commits.add(0)
    world.checkpoint.state[1] = 2
    error = refused(world.start("d2", until=1), CommitInDoubt)
    assert "commits/0 and offsets/1" in error.help
    assert world.ids() == []
    world.checkpoint.commits.remove(0)
    world.checkpoint.offsets.pop(1)
    world.start("d3", until=0)
    world.holds(until=1)


def test_a_paused_abort_does_not_drop_what_a_newer_driver_prepared(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "before-abort", Action.PAUSE)
    world.order("d2", "after-decide", Action.PAUSE)
    old, new = world.start("d1", until=0), world.start("d2", until=0)
    refused(old.go(), Fenced)
    assert new.go().finished
    assert len(world.decisions(0)) == 1
    world.holds(until=1)


def test_a_paused_clean_up_does_not_remove_a_newer_drivers_copy(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "before-clean", Action.PAUSE)
    world.order("d2", "after-decide", Action.PAUSE)
    old, new = world.start("d1", until=0), world.start("d2", until=0)
    old.go()
    assert new.go().finished
    world.holds(until=1)


def test_a_copy_stays_until_a_later_record_calls_its_epoch_done(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    assert [epoch for epoch, _ in world.stage.copies()] == [1]
    world.start("d2", until=2)
    assert [epoch for epoch, _ in world.stage.copies()] == [2]
    world.holds(until=3)


def test_copies_and_prepared_rows_of_dead_starts_are_removed(scene: MakeScene) -> None:
    world = scene(THREE)
    for name in ("d1", "d2", "d3"):
        world.order(name, "before-decide", Action.CRASH)
        world.start(name, until=0)
    assert len(world.stage.copies()) == 1
    world.order("d4", "after-settle", Action.CRASH)
    world.start("d4", until=0)
    assert world.stage.copies() == []
    assert not world.server.table(APP, "pg").prepared
    world.holds(until=0)


@pytest.mark.parametrize("pipeline", [ONE, TWO, THREE])
def test_an_epoch_whose_commits_entry_was_deleted_is_replayed_and_not_written_again(
    scene: MakeScene, pipeline: Pipeline
) -> None:
    world = scene(pipeline)
    world.start("d1", until=1)
    world.checkpoint.commits.remove(1)
    del world.checkpoint.state[2]
    before = world.ids()
    driver = world.start("d2", until=1)
    assert [report.replayed for report in driver.reports] == [True]
    assert world.ids() == before
    world.holds(until=2)


def test_a_rollback_that_fails_too_leaves_its_rows_to_the_next_start(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "before-prepare", Action.PAUSE)
    driver = world.start("d1", until=0)
    world.order("d1", "prepare", Action.UNAVAILABLE, sink="pg", times=4)
    world.order("d1", "abort", Action.UNAVAILABLE, sink="delta", times=4)
    world.order("d2", "after-settle", Action.CRASH)
    refused(driver.go(), EpochalError)
    assert world.server.table(APP, "delta").prepared
    world.start("d2", until=0)
    assert not world.server.table(APP, "delta").prepared
    world.start("d3", until=0)
    world.holds(until=1)


def test_twenty_kills_over_thirty_thousand_rows(scene: MakeScene) -> None:
    world = scene(ONE)
    points = ["after-prepare", "after-decide", "before-sink-commit", "after-sink-commit", "before-return"]
    for number in range(20):
        world.order(f"d{number}", points[number % 5], Action.CRASH, epoch=number * 3 // 2)
        assert world.start(f"d{number}", until=29, batch=1_000).outcome == "killed"
    assert world.start("d20", until=29, batch=1_000).finished
    assert world.ids() == list(range(30_000))
    world.holds(until=30)


def test_many_restarts_never_mix_up_copies(scene: MakeScene) -> None:
    world = scene(TWO)
    for number in range(6):
        point = ["after-copy", "after-decide", "before-return"][number % 3]
        world.order(f"d{number}", point, Action.CRASH)
        world.start(f"d{number}", until=3)
    world.holds(until=4)


# starts that meet


def test_a_start_that_finds_the_log_grown_meanwhile_looks_again(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    world.order("d2", "look", Action.PAUSE)
    world.order("d3", "after-fence", Action.PAUSE)
    slow, quick = world.start("d2", until=1), world.start("d3", until=1)
    assert slow.go().finished, slow.error
    refused(quick.go(), Fenced)
    world.holds(until=2)


@pytest.mark.parametrize(
    "point", ["after-look", "after-fence-record", "after-sink-fence", "after-fence", "after-look-again"]
)
def test_of_two_starts_the_slower_is_fenced(scene: MakeScene, point: str) -> None:
    world = scene(THREE)
    world.order("d1", point, Action.PAUSE)
    old = world.start("d1", until=0)
    assert world.start("d2", until=1).finished
    refused(old.go(), Fenced)
    world.holds(until=2)


def test_nothing_is_settled_before_all_sinks_are_fenced(scene: MakeScene) -> None:
    world = scene(THREE)
    world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0)
    world.order("d2", "before-sink-fence", Action.CRASH, sink="pg")
    world.start("d2", until=0)
    assert world.markers() == [None, None, None]
    world.start("d3", until=0)
    world.holds(until=1)


def settled(world: Scene, driver: str) -> bool:
    return any((step.actor, step.step) == (driver, "before-settle") for step in world.history.trace)


def test_a_start_that_was_overtaken_in_the_log_settles_nothing(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "after-fence-record", Action.PAUSE)
    world.order("d2", "after-fence-record", Action.PAUSE)
    old, new = world.start("d1", until=0), world.start("d2", until=0)
    refused(old.go(), Fenced)
    assert not settled(world, "d1")
    assert new.go().finished
    world.holds(until=1)


def test_a_start_whose_fence_a_sink_has_lost_settles_nothing(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    older = world.server.table(APP, "pg").fence
    world.order("d2", "after-fence", Action.PAUSE)
    driver = world.start("d2", until=1)
    world.server.table(APP, "pg").fence = older
    refused(driver.go(), Fenced)
    assert not settled(world, "d2")
    world.holds(until=2)


# copies, moves, other checkpoints


def untouched(world: Scene, before: tuple[list[object], list[object], list[int]]) -> None:
    assert (world.fences(), world.markers(), world.ids()) == before


def as_it_is(world: Scene) -> tuple[list[object], list[object], list[int]]:
    return world.fences(), world.markers(), world.ids()


def test_a_copied_checkpoint_is_refused_and_disturbs_nobody(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    world.order("d2", "after-commit", Action.PAUSE, epoch=1)
    healthy = world.start("d2", until=2)
    before = as_it_is(world)
    refused(world.start("thief", 3, world.checkpoint.copy("/elsewhere")), CheckpointMismatch)
    untouched(world, before)
    assert healthy.go().finished
    world.holds(until=3)


def test_a_copy_of_a_stopped_checkpoint_is_refused_although_its_log_is_complete(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=1)
    before = as_it_is(world)
    error = refused(world.start("thief", 2, world.checkpoint.copy("/elsewhere")), CheckpointMismatch)
    assert "/elsewhere" in str(error)
    untouched(world, before)
    world.holds(until=2)


def test_a_copy_that_does_not_know_a_sinks_fence_is_refused(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=0)
    twin = world.checkpoint.copy(world.checkpoint.path)
    world.order("d2", "after-look-again", Action.PAUSE)
    healthy = world.start("d2", until=1)
    before = as_it_is(world)
    refused(world.start("thief", 1, twin), CheckpointMismatch)
    untouched(world, before)
    assert healthy.go().finished
    world.holds(until=2)


def test_a_copy_that_looked_in_time_still_finds_the_unknown_marker_before_it_settles(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "before-prepare", Action.PAUSE)
    original = world.start("d1", until=0)
    twin = world.checkpoint.copy(world.checkpoint.path)
    world.order("thief", "after-look", Action.PAUSE)
    thief = world.start("thief", 0, twin)
    world.order("d1", "after-sink-commit", Action.PAUSE, sink="kafka")
    original.go()
    assert (world.ids("kafka"), world.ids("pg")) == ([0, 1], [])
    refused(thief.go(), CheckpointMismatch)
    assert (world.ids("kafka"), world.ids("pg")) == ([0, 1], [])
    refused(original.go(), Fenced)
    assert (world.ids("kafka"), world.ids("pg")) == ([0, 1], [])


def test_a_rolled_back_checkpoint_is_refused(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    backup = world.checkpoint.copy(world.checkpoint.path)
    world.start("d1b", until=3)
    before = as_it_is(world)
    refused(world.start("d2", 1, backup, batch=1), CheckpointMismatch)
    untouched(world, before)


def test_rolled_back_offsets_under_a_newer_log_are_refused(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=2)
    for epoch in (1, 2):
        world.checkpoint.commits.remove(epoch)
        del world.checkpoint.offsets[epoch]
    before = as_it_is(world)
    refused(world.start("d2", 1, batch=1), CheckpointMismatch)
    untouched(world, before)


def test_an_epoch_that_spark_plans_otherwise_than_it_was_decided_is_refused(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=1)
    world.checkpoint.commits.remove(1)
    del world.checkpoint.offsets[1]
    before = as_it_is(world)
    refused(world.start("d2", 1, batch=1), CheckpointMismatch)
    untouched(world, before)


@pytest.mark.parametrize("query_id", ["query-1", "query-2"])
def test_a_deleted_checkpoint_is_refused(scene: MakeScene, query_id: str) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    before = as_it_is(world)
    refused(world.start("d2", 1, Checkpoint(query_id=query_id)), CheckpointMismatch)
    untouched(world, before)
    world.holds(until=2)


def test_a_second_checkpoint_of_one_app_is_refused_while_the_first_has_only_fenced(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-fence", Action.PAUSE)
    healthy = world.start("d1", until=0)
    before = as_it_is(world)
    refused(world.start("other", 0, Checkpoint("/other", "query-2")), CheckpointMismatch)
    untouched(world, before)
    assert healthy.go().finished
    world.holds(until=1)


def test_a_log_of_another_query_id_is_refused(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=0)
    world.checkpoint.query_id = "query-2"
    refused(world.start("d2", until=1), CheckpointMismatch)
    assert world.ids() == [0, 1]


def test_a_checkpoint_of_another_app_is_refused(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=0)
    world.server.create("trains", "pg")
    driver = world.start("d2", until=1, pipeline=Pipeline(("pg",), app="trains"))
    assert "'flights'" in str(refused(driver, CheckpointMismatch))
    assert world.server.visible("trains", "pg") == []
    world.holds(until=1)


# sinks that change


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_sink_that_is_missing_refuses_every_start(scene: MakeScene, in_doubt: bool) -> None:
    world = scene(THREE)
    if in_doubt:
        world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0)
    before = as_it_is(world)
    error = refused(world.start("d2", 1, pipeline=Pipeline(("pg",), ("kafka",))), CheckpointMismatch)
    assert "'delta'" in str(error)
    untouched(world, before)
    world.start("d3", until=1)
    world.holds(until=2)


def test_a_new_sink_joins_with_the_next_epoch(scene: MakeScene) -> None:
    world = scene(THREE)
    world.start("d1", 0, pipeline=TWO)
    assert world.start("d2", until=1).finished
    assert world.start("d3", until=2).finished
    assert (world.ids("delta"), world.ids("pg")) == ([2, 3, 4, 5], [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_recreated_table_is_not_the_participant_that_it_was(scene: MakeScene, in_doubt: bool) -> None:
    world = scene(TWO)
    if in_doubt:
        world.order("d1", "after-decide", Action.CRASH, epoch=1)
    world.start("d1", until=1)
    world.server.recreate(APP, "pg")
    before = as_it_is(world)
    refused(world.start("d2", until=2), CheckpointMismatch)
    untouched(world, before)


def test_a_recreated_table_with_its_old_bookkeeping_is_still_another(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    old = world.server.table(APP, "pg")
    world.server.recreate(APP, "pg")
    new = world.server.table(APP, "pg")
    new.fence, new.marker = old.fence, old.marker
    refused(world.start("d2", until=2), CheckpointMismatch)
    assert world.ids("pg") == []


def test_a_table_recreated_while_the_query_runs_stops_it(scene: MakeScene) -> None:
    world = scene(TWO)
    world.order("d1", "after-decide", Action.PAUSE, epoch=1)
    driver = world.start("d1", until=2)
    world.server.recreate(APP, "pg")
    refused(driver.go(), Fenced, MarkerLost, CheckpointMismatch)
    assert world.ids("pg") == []


def test_a_sink_restored_to_before_what_the_log_calls_done_has_lost_its_marker(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    backup = copy.deepcopy(world.server.table(APP, "pg"))
    world.start("d2", until=2)
    table = world.server.table(APP, "pg")
    table.marker, table.shown, table.prepared = backup.marker, backup.shown, backup.prepared
    refused(world.start("d3", until=3), MarkerLost)
    assert world.ids("pg") == [0, 1]


def test_a_sink_one_epoch_back_is_not_written_again_once_a_record_calls_it_done(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=0)
    backup = copy.deepcopy(world.server.table(APP, "pg"))
    world.start("d2", until=1)
    world.order("d3", "after-fence-record", Action.CRASH)  # its fence records that epoch 1 is done
    world.start("d3", until=2)
    table = world.server.table(APP, "pg")
    table.marker, table.shown, table.prepared = backup.marker, backup.shown, backup.prepared
    refused(world.start("d4", until=2), MarkerLost)


def test_a_sink_that_lost_its_fence_is_refused(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=0)
    world.server.table(APP, "pg").fence = None
    refused(world.start("d2", until=1), MarkerLost)


# epochs that are passed by


def test_an_epoch_that_the_users_function_passed_by_is_missed_by_the_next(scene: MakeScene) -> None:
    world = scene(ONE)
    error = refused(world.start("d1", 2, calls=lambda epoch: epoch != 1), CheckpointMismatch)
    assert "epoch 1 never reached the pipeline" in str(error)
    assert world.ids() == [0, 1]


def test_the_first_epoch_cannot_be_passed_by_after_a_start_fenced_for_it(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-fence", Action.CRASH)
    world.start("d1", until=0)
    refused(world.start("d2", 1, calls=lambda epoch: epoch > 0), CheckpointMismatch)
    assert world.ids() == []


def test_an_error_that_the_users_function_swallows_comes_back(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "prepare", Action.REQUEST_LOST)
    driver = world.start("d1", until=0)
    first = driver.error
    with pytest.raises(EpochalError) as again:
        driver.coordinator.run(SimulatedBatch(driver, EpochRequest(driver.query, 1, "2-4"), 2, 4))
    assert again.value is first
    world.start("d2", until=0)
    world.holds(until=1)


# compaction


def test_a_log_is_compacted_and_stays_short(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=20)
    for number in range(5):
        world.order(f"e{number}", "after-fence", Action.CRASH)
        world.start(f"e{number}", until=21)
    assert len(world.checkpoint.log.read()) < 12
    world.holds(until=21)


@pytest.mark.parametrize("point", ["after-decide", "before-sink-commit", "after-sink-commit", "before-return"])
def test_a_start_after_compaction_still_knows_every_marker(scene: MakeScene, point: str) -> None:
    world = scene(THREE)
    world.order("d1", point, Action.CRASH, epoch=5)
    world.start("d1", until=5)
    assert world.start("d2", until=5).finished
    world.holds(until=6)


def test_fences_since_the_older_epochs_actor_survive_compaction(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=4)
    world.order("d2", "after-sink-fence", Action.CRASH, sink="kafka")  # pg keeps the older fence
    world.start("d2", until=5)
    world.order("d3", "after-look-again", Action.CRASH)
    assert not world.start("d3", until=5).error
    world.holds(until=5)


@pytest.mark.parametrize("point", ["before-compact", "log-after-floor", "after-compact", "before-clean"])
def test_a_compaction_may_race_with_a_newer_starts(scene: MakeScene, point: str) -> None:
    world = scene(TWO)
    world.order("d1", point, Action.PAUSE)
    old = world.start("d1", until=4)
    assert old.paused
    assert world.start("d2", until=7).finished
    assert not old.go().finished
    world.holds(until=8)


def test_a_decision_that_slept_over_a_compaction_is_not_taken(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "log-before-append", Action.PAUSE, epoch=1)
    old = world.start("d1", until=1)
    assert world.start("d2", until=6).finished
    before = world.ids()
    refused(old.go(), Fenced, CommitInDoubt)
    assert world.ids() == before
    positions = [entry.position for entry in world.checkpoint.log.read()]
    assert positions == sorted(set(positions))
    world.holds(until=7)


def test_every_driver_ends_with_a_name(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "before-publish", Action.PAUSE)
    old = world.start("d1", until=0)
    world.start("d2", until=0)
    old.go()
    ends = [(end.driver, end.outcome) for _, end in world.history.of(Ended)]
    assert ends == [("d2", "finished"), ("d1", "Fenced")]
