"""What a person decides, in worlds that need it: killed at every step, with a start of the query in between.

Then it is said again, and all is as it was meant.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from epochal.chaos.simulate.driver import Driver
from epochal.chaos.simulate.pipelines import Checkpoint, Pipeline
from epochal.chaos.simulate.schedule import Action
from epochal.checkpoints.log import Operator
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import IDEMPOTENT, Marker
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Fenced,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
)
from epochal.coordinator.protocol.actions import (
    Accept,
    Adopt,
    Evaluate,
    OperatorAction,
    Rename,
    Retire,
    RewriteMarker,
    Skip,
)
from tests.pure.chaos.simulate.scenes import APP, MakeScene, Scene, refused

ONE = Pipeline(("pg",))
TWO = Pipeline(("pg",), ("kafka",))
THREE = Pipeline(("delta", "pg"), ("kafka",))
OPEN = Pipeline(("pg",), transactional=("kafka",))
REPEATED = Pipeline(("pg",), ("kafka",), modes=(IDEMPOTENT,))
SAID: dict[str, Any] = {"why": "a test says so", "at": "2026-11-23T12:00:00+00:00"}


@dataclass
class Story:
    """A world in a corner, what a person says there, and with what the query goes on."""

    act: OperatorAction
    goes_on: Pipeline
    person: dict[str, Any] = field(default_factory=dict)  # what the person starts with
    query: dict[str, Any] = field(default_factory=dict)  # and the query
    until: int = 3
    ids: dict[str, list[int]] = field(default_factory=dict)  # what each sink shows in the end
    without: dict[str, list[int]] | None = None  # what they show if it goes on by itself; None: it never does
    healed: bool = False  # it may, once the person was killed: by then all is as it should be


def _ids(*epochs: int) -> list[int]:
    return [key for epoch in epochs for key in (2 * epoch, 2 * epoch + 1)]


def retired(world: Scene) -> Story:
    """It is to leave; the last epoch is decided, and kafka does not show it yet."""
    world.order("d2", "before-sink-commit", Action.CRASH, sink="kafka", epoch=1)
    world.start("d1", until=0)
    world.start("d2", until=1)
    assert (world.ids("kafka"), world.ids("pg")) != (_ids(0, 1), _ids(0, 1))
    return Story(Retire(sink="kafka", **SAID), ONE, ids={"kafka": _ids(0, 1), "pg": _ids(0, 1, 2, 3)})


def unreachable(world: Scene) -> Story:
    """It is down for good, and does not show the last epoch, which is decided."""
    world.start("d1", until=0)
    world.order("d2", "before-sink-commit", Action.CRASH, sink="pg", epoch=1)
    world.start("d2", until=1)
    assert (world.ids("kafka"), world.ids("pg")) == (_ids(0, 1), _ids(0))
    only = Pipeline((), ("kafka",))
    act = Retire(sink="pg", unreachable=True, **SAID)
    return Story(act, only, {"pipeline": only}, ids={"kafka": _ids(0, 1, 2, 3), "pg": _ids(0)})


def renamed(world: Scene) -> Story:
    """A sink is to go on under another name; an epoch is decided and not visible in it."""
    world.start("d1", until=0)
    world.order("d2", "before-sink-commit", Action.CRASH, sink="pg", epoch=1)
    world.start("d2", until=1)
    world.renames["pg"] = "pg2"
    after = Pipeline(("pg2",), ("kafka",))
    ids = {"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 1, 2, 3)}
    return Story(Rename(old="pg", new="pg2", **SAID), after, ids=ids)


def renamed_open(world: Scene) -> Story:
    """A sink is to go on under another name; its transaction is decided and open."""
    world.start("d1", until=0)
    world.order("d2", "before-sink-commit", Action.CRASH, sink="kafka", epoch=1)
    world.start("d2", until=1)
    world.renames["kafka"] = "kafka2"
    after = Pipeline(("pg",), transactional=("kafka2",))
    ids = {"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 1, 2, 3)}
    return Story(Rename(old="kafka", new="kafka2", **SAID), after, ids=ids)


def moved(world: Scene) -> Story:
    """The checkpoint lies elsewhere, and an epoch is decided and not visible everywhere."""
    world.start("d1", until=0)
    world.order("d2", "after-sink-commit", Action.CRASH, epoch=1)
    world.start("d2", until=1)
    world.checkpoint.path = "/moved"
    return Story(Adopt(**SAID), world.pipeline, ids={"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 1, 2, 3)})


def restored(world: Scene) -> Story:
    """The checkpoint is a backup of one whose later start has fenced the sinks, and shown nothing."""
    world.start("d1", until=1)
    backup = world.checkpoint.copy(world.checkpoint.path)
    world.order("d2", "after-fence", Action.CRASH)
    world.start("d2", until=2)
    world.checkpoint = world.also(backup)
    return Story(Adopt(**SAID), world.pipeline, ids={"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 1, 2, 3)}, healed=True)


def new_checkpoint(world: Scene) -> Story:
    """The checkpoint is gone; a new one begins where the sinks end."""
    world.start("d1", until=1)
    world.checkpoint = world.also(Checkpoint("/new", "query-2", offsets={0: (4, 6)}, state={0: 4}))
    return Story(Adopt(**SAID), world.pipeline, until=1, ids={"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 1, 2, 3)})


def behind(world: Scene) -> Story:
    """A sink was restored to a backup; what it lacks stays out of it."""
    world.start("d1", until=0)
    backup = copy.deepcopy(world.server.table(APP, "pg"))
    world.start("d2", until=2)
    world.server.restore(APP, "pg", backup)
    return Story(Accept(sink="pg", **SAID), world.pipeline, ids={"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 3)})


def made_anew(world: Scene) -> Story:
    """A target was dropped and made anew, with an epoch in doubt."""
    world.start("d1", until=0)
    world.order("d2", "after-decide", Action.CRASH, epoch=1)
    world.start("d2", until=1)
    world.server.recreate(APP, "pg")
    return Story(Accept(sink="pg", **SAID), world.pipeline, ids={"kafka": _ids(0, 1, 2, 3), "pg": _ids(2, 3)})


def given_up(world: Scene) -> Story:
    """A sink never takes the rows that were decided."""
    world.order("d1", "commit", Action.UNAVAILABLE, sink="pg", times=4)
    refused(world.start("d1", until=0), CommitInDoubt)
    everything = {"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 1, 2, 3)}
    return Story(Accept(sink="pg", **SAID), world.pipeline, ids=everything | {"pg": _ids(1, 2, 3)}, without=everything)


def marker_gone(world: Scene) -> Story:
    """The rows are there, and the marker is gone."""
    world.start("d1", until=1)
    world.server.table(APP, "pg").marker = None
    ids = {"kafka": _ids(0, 1, 2, 3), "pg": _ids(0, 1, 2, 3)}
    return Story(RewriteMarker(sink="pg", **SAID), world.pipeline, ids=ids, healed=True)


def skipped(world: Scene) -> Story:
    """The user's function passed an epoch by, and nobody misses it."""
    refused(world.start("d1", 2, calls=lambda epoch: epoch != 1), CheckpointMismatch)
    return Story(Skip(first=1, last=1, **SAID), world.pipeline, ids={"kafka": _ids(0, 2, 3), "pg": _ids(0, 2, 3)})


STORIES: tuple[tuple[Pipeline, Callable[[Scene], Story]], ...] = (
    (TWO, retired),
    (TWO, unreachable),
    (TWO, renamed),
    (OPEN, renamed_open),
    (TWO, moved),
    (TWO, restored),
    (TWO, new_checkpoint),
    (TWO, behind),
    (TWO, made_anew),
    (TWO, given_up),
    (TWO, marker_gone),
    (TWO, skipped),
    *((REPEATED, tell) for tell in (moved, restored, new_checkpoint, behind, marker_gone, skipped)),
)
each_story = pytest.mark.parametrize(
    ("pipeline", "tell"), [pytest.param(*s, id=f"{s[1].__name__}-{s[0].modes[0]}") for s in STORIES]
)


def _is_said(world: Scene) -> bool:
    return any(isinstance(entry.record, Operator) for entry in world.checkpoint.log.read())


def _query(world: Scene, story: Story, name: str) -> Driver:
    return world.start(name, story.until, pipeline=story.goes_on, **story.query)


def _shown(world: Scene, story: Story) -> dict[str, list[int]]:
    return {sink: world.ids(sink) for sink in story.ids}


@each_story
def test_a_person_gets_a_query_out_of_the_corner(
    scene: MakeScene, pipeline: Pipeline, tell: Callable[[Scene], Story]
) -> None:
    world = scene(pipeline)
    story = tell(world)
    if story.without is None:
        refused(_query(world, story, "before"), EpochalError)
    person = world.says("person", story.act, **story.person)
    assert person.finished, person.error
    world.order("next", "before-sink-commit", Action.CRASH)
    assert _query(world, story, "next").outcome == "killed"
    query = _query(world, story, "after")
    assert query.finished, query.error
    assert _shown(world, story) == story.ids
    if story.healed or tell is moved:
        world.holds(story.until + 1)
    else:
        assert _query(world, story, "again").finished


@pytest.mark.slow
@each_story
@pytest.mark.parametrize("impatient", [False, True])
def test_a_person_killed_at_any_step_says_it_again(
    pipeline: Pipeline, tell: Callable[[Scene], Story], impatient: bool
) -> None:
    step = 0
    while _killed(pipeline, tell, step, impatient):
        step += 1
    assert step > 8


def _killed(pipeline: Pipeline, tell: Callable[[Scene], Story], step: int, impatient: bool) -> bool:
    """Whether there was such a step; the person is killed there, and all is well in the end."""
    world = Scene(pipeline, zombies=True)
    with failpoints.handler(world.hit):
        story = tell(world)
        world.order("person", "", Action.CRASH, after=step)
        person = world.says("person", story.act, **story.person)
        if person.outcome != "killed":
            assert person.finished, person.error
            return False
        if impatient and not _is_said(world):
            early = _query(world, story, "early")
            if early.finished and (story.healed or story.without is not None):
                assert _shown(world, story) == (story.without or story.ids)
                return True
            refused(early, EpochalError)
        if not _is_said(world):
            again = world.says("again", story.act, **story.person)
            assert again.finished, (step, again.error)
        query = _query(world, story, "after")
        assert query.finished, (step, query.error)
        assert _shown(world, story) == story.ids, step
    return True


# what an act refuses


@pytest.mark.parametrize("why", ["", "  "])
def test_a_reason_is_asked_for(scene: MakeScene, why: str) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    before = world.everything()
    error = refused(world.says("person", Retire(sink="kafka", why=why, at="now")), Misconfigured)
    assert "no reason was given" in str(error)
    assert world.everything() == before


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (Retire(sink="delta", **SAID), "knows no sink 'delta'"),
        (Accept(sink="delta", **SAID), "the pipeline has no sink 'delta'"),
        (RewriteMarker(sink="pg", **SAID), "the sink has a marker"),
        (Skip(first=2, last=2, **SAID), "epochs 2..2 are not the skipped epochs; skipped: none"),
        (Evaluate(sinks=("pg",), **SAID), "not begun in idempotent mode"),
    ],
)
def test_a_wish_that_does_not_fit_is_refused_and_disturbs_nobody(
    scene: MakeScene, act: OperatorAction, told: str
) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    world.start("d2", until=1)
    if isinstance(act, RewriteMarker):
        world.server.table(APP, "pg").marker = Marker(2, 7)
    before, entries = world.everything(), world.checkpoint.log.read()
    assert told in str(refused(world.says("person", act), Misconfigured))
    assert (world.everything(), world.checkpoint.log.read()) == (before, entries)


def test_only_what_was_skipped_may_be_skipped(scene: MakeScene) -> None:
    world = scene(ONE)
    refused(world.start("d1", 4, calls=lambda epoch: epoch not in (1, 2)), CheckpointMismatch)
    for first, last in ((1, 1), (2, 2), (1, 3), (0, 2)):
        error = refused(world.says("person", Skip(first=first, last=last, **SAID)), Misconfigured)
        assert "skipped: 1..2" in str(error)
    assert world.says("person", Skip(first=1, last=2, **SAID)).finished
    assert world.start("d2", until=4).finished
    assert world.ids() == _ids(0, 3, 4)


def test_a_marker_of_no_known_epoch_is_never_adopted(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    backup = world.checkpoint.copy(world.checkpoint.path)
    world.start("d2", until=2)
    before = world.everything()
    refused(world.says("person", Adopt(**SAID), backup), CheckpointMismatch)
    assert world.everything() == before
    world.holds(until=3)


def test_a_new_sink_with_somebodys_marker_does_not_come_in_by_adoption(scene: MakeScene) -> None:
    world = scene(THREE)
    world.start("d1", until=0, pipeline=TWO)
    world.server.table(APP, "delta").marker = Marker(5, 5)
    refused(world.says("person", Adopt(**SAID)), CheckpointMismatch)


def test_a_sink_that_is_ahead_of_the_log_is_not_accepted(scene: MakeScene) -> None:
    world = scene(ONE)
    world.start("d1", until=0)
    backup = world.checkpoint.copy(world.checkpoint.path)
    world.start("d2", until=2)
    before = world.everything()
    error = refused(world.says("person", Accept(sink="pg", **SAID), backup), CheckpointMismatch)
    assert "rows of later epochs are visible in it" in str(error)
    assert world.everything() == before
    world.holds(until=3)


def test_an_epoch_that_only_an_evaluation_brings_back_is_not_closed_by_a_person(scene: MakeScene) -> None:
    world = scene(ONE)
    world.order("d1", "after-decide", Action.LOSE_PREPARED)
    refused(world.start("d1", until=0), CommitInDoubt)
    refused(world.says("person", Retire(sink="pg", **SAID)), CommitInDoubt)
    world.start("d2", until=0)
    world.holds(until=1)


def test_what_nobody_decided_is_not_left_behind_in_a_sink_that_leaves(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    world.order("d2", "before-decide", Action.CRASH)
    world.start("d2", until=1)
    assert world.server.table(APP, "pg").prepared
    world.says("person", Retire(sink="pg", **SAID))
    assert not world.server.table(APP, "pg").prepared


def test_the_copy_of_an_epoch_that_is_given_up_is_let_go(scene: MakeScene) -> None:
    world = scene(TWO)
    story = given_up(world)
    assert world.stage.copies()
    world.says("person", story.act)
    assert not world.stage.copies()


def test_a_name_that_is_taken_is_not_given(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    world.server.create(APP, "pg2")
    world.server.table(APP, "pg2").marker = Marker(7, 7)
    error = refused(world.says("person", Rename(old="pg", new="pg2", **SAID)), Misconfigured)
    assert "the name 'pg2' is taken" in str(error)
    world.holds(until=2)


# a sink that leaves, and returns


def test_a_retired_sink_returns_after_compaction_as_it_was(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    assert world.says("person", Retire(sink="pg", **SAID)).finished
    alone = Pipeline((), ("kafka",))
    assert world.start("d2", until=5, pipeline=alone).finished
    assert world.start("d3", until=7).finished
    assert world.ids("kafka") == _ids(0, 1, 2, 3, 4, 5, 6, 7)
    assert world.ids("pg") == _ids(0, 1, 6, 7)
    assert world.start("d4", until=8).finished


def test_a_retired_sink_that_returns_with_another_marker_is_refused(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    world.says("person", Retire(sink="pg", **SAID))
    world.start("d2", until=3, pipeline=Pipeline((), ("kafka",)))
    table = world.server.table(APP, "pg")
    for marker in (Marker(2, 7), Marker(3, 7)):
        table.marker = marker
        refused(world.start("d3", until=4), CheckpointMismatch)
    table.marker = None
    refused(world.start("d3", until=4), MarkerLost)
    world.server.recreate(APP, "pg")
    refused(world.start("d3", until=4), CheckpointMismatch)


@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_sink_given_up_while_unreachable_returns_with_or_without_its_last_epoch(
    scene: MakeScene, epoch: int, shows: bool
) -> None:
    world = scene(TWO)
    world.order("d1", "before-sink-commit", Action.CRASH, sink="pg", epoch=epoch)
    world.start("d1", until=epoch)
    only = Pipeline((), ("kafka",))
    world.says("person", Retire(sink="pg", unreachable=True, **SAID), pipeline=only)
    if shows:  # of the start that died, late: nobody has fenced it
        (last,) = (e.record for e in world.checkpoint.log.read() if e.record.epoch == epoch)
        world.server.table(APP, "pg").marker = Marker(epoch + 1, last.decision.id)
    world.start("d3", until=3, pipeline=only)
    assert world.start("d4", until=5).finished
    assert world.ids("pg") == _ids(*range(epoch), 4, 5)


def test_a_sink_that_joins_after_a_person_spoke_begins_with_its_first_epoch(scene: MakeScene) -> None:
    world = scene(THREE)
    two = Pipeline(("pg",), ("kafka",))
    world.start("d1", until=0, pipeline=two)
    world.says("person", Adopt(**SAID), pipeline=two)
    assert world.start("d2", until=1).finished
    assert world.start("d3", until=2).finished
    assert (world.ids("delta"), world.ids("pg")) == (_ids(1, 2), _ids(0, 1, 2))


def test_a_sink_that_lost_its_fence_after_a_person_spoke_is_refused(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    world.says("person", Accept(sink="pg", **SAID))
    world.server.table(APP, "pg").fence = None
    refused(world.start("d2", until=2), MarkerLost)


# others, at the same time


def test_a_person_who_wakes_late_is_told_before_anything_is_settled(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    world.order("person", "after-fence", Action.PAUSE)
    person = world.says("person", Retire(sink="pg", **SAID))
    world.start("d2", until=1)
    assert "the newest record of the log is" in str(refused(person.go(), Fenced))
    world.holds(until=2)


def test_a_marker_is_written_by_whom_the_sink_belongs_to(scene: MakeScene) -> None:
    world = scene(TWO)
    story = marker_gone(world)
    world.order("person", "before-mark", Action.PAUSE)
    person = world.says("person", story.act)
    world.order("two", "after-fence", Action.CRASH)
    world.says("two", story.act)
    refused(person.go(), Fenced)
    assert world.server.table(APP, "pg").marker is None


def test_a_driver_that_lives_ends_when_a_person_speaks(scene: MakeScene) -> None:
    world = scene(TWO)
    for point in ("before-decide", "after-decide"):
        name = f"d-{point}"
        world.order(name, point, Action.PAUSE)
        healthy = world.start(name, until=3)
        assert world.says("person", Adopt(**SAID)).finished
        refused(healthy.go(), Fenced)
    world.holds(until=3)


def test_of_two_persons_one_is_heard(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    world.order("one", "before-operator", Action.PAUSE)
    one = world.says("one", Retire(sink="pg", **SAID))
    assert world.says("two", Retire(sink="kafka", **SAID)).finished
    refused(one.go(), Fenced)
    assert world.start("d2", until=1, pipeline=ONE).finished


def test_a_copy_adopted_while_the_original_shows_the_next_epoch_leaves_the_original_the_way_out(
    scene: MakeScene,
) -> None:
    world = scene(TWO)
    world.start("d1", until=0)
    twin = world.also(world.checkpoint.copy("/elsewhere"))
    world.order("d2", "after-sink-commit", Action.PAUSE, epoch=1)
    original = world.start("d2", until=1)
    refused(world.says("thief", Adopt(**SAID), twin), CheckpointMismatch)  # the marker of epoch 1
    original.go()
    world.order("thief", "after-look", Action.PAUSE)
    late = world.also(world.checkpoint.copy("/elsewhere"))
    thief = world.says("thief", Adopt(**SAID), late)
    world.start("d3", until=2)
    refused(thief.go(), CheckpointMismatch, Fenced)
    if not world.start("d4", until=2).finished:  # its fence is in a sink that the original does not know
        assert world.says("person", Adopt(**SAID)).finished
    world.holds(until=3)


def test_a_copy_whose_adoption_died_half_way_leaves_the_original_the_way_out(scene: MakeScene) -> None:
    world = scene(TWO)
    world.start("d1", until=1)
    twin = world.also(world.checkpoint.copy("/elsewhere"))
    world.order("thief", "after-sink-fence", Action.CRASH)
    world.says("thief", Adopt(**SAID), twin)
    refused(world.start("d2", until=2), CheckpointMismatch)
    refused(world.start("stolen", 2, twin), CheckpointMismatch)
    assert world.says("person", Adopt(**SAID)).finished
    world.holds(until=2)


# idempotent mode


def _idempotent(world: Scene) -> None:
    """Epoch 1 is visible in kafka alone."""
    world.start("d1", until=0)
    world.order("d2", "after-sink-commit", Action.CRASH, sink="kafka", epoch=1)
    world.start("d2", until=1)


def test_a_second_evaluation_that_a_person_accepts_ends_the_halt(scene: MakeScene) -> None:
    world = scene(REPEATED)
    _idempotent(world)
    world.pipeline = TWO  # from now on the rows differ with every evaluation
    refused(world.start("d3", until=1, mode=IDEMPOTENT), NonDeterministicReplay)
    act = Evaluate(sinks=("kafka",), **SAID)
    assert world.says("person", act, mode=IDEMPOTENT).finished
    assert world.start("d4", until=1, mode=IDEMPOTENT).finished
    assert world.ids("kafka") == world.ids("pg") == _ids(0, 1)
    attempts = [{row["attempt"] for row in world.server.visible(APP, sink) if row["epoch"] == 1} for sink in TWO.sinks]
    assert attempts[0] != attempts[1]


def test_what_is_shown_is_compared_whatever_a_person_says_of_its_sink(scene: MakeScene) -> None:
    world = scene(REPEATED)
    _idempotent(world)
    world.pipeline = TWO  # from now on the rows differ with every evaluation
    assert world.says("person", Accept(sink="kafka", **SAID), mode=IDEMPOTENT).finished
    refused(world.start("d3", until=1, mode=IDEMPOTENT), NonDeterministicReplay)


def test_the_rows_of_a_sink_that_does_not_show_the_epoch_cannot_be_kept(scene: MakeScene) -> None:
    world = scene(REPEATED)
    _idempotent(world)
    error = refused(world.says("person", Evaluate(sinks=("pg",), **SAID)), Misconfigured)
    assert "does not show epoch 1" in str(error)


@pytest.mark.parametrize("act", [Retire(sink="pg", **SAID), Rename(old="pg", new="pg2", **SAID)])
def test_a_sink_that_only_a_replay_can_bring_up_neither_leaves_nor_changes_its_name(
    scene: MakeScene, act: OperatorAction
) -> None:
    world = scene(REPEATED)
    _idempotent(world)
    person = world.says("person", act, mode=IDEMPOTENT)
    assert "restart the query" in str(refused(person, CheckpointMismatch))
    world.holds(until=2)


def test_a_sink_down_for_good_may_be_given_up_while_another_waits_for_the_replay(scene: MakeScene) -> None:
    world = scene(Pipeline(("delta", "pg"), ("kafka",), modes=(IDEMPOTENT,)))
    world.start("d1", until=0)
    world.order("d2", "after-sink-commit", Action.CRASH, sink="kafka", epoch=1)
    world.start("d2", until=1)
    rest = Pipeline(("delta",), ("kafka",), modes=(IDEMPOTENT,))
    assert world.says("person", Retire(sink="pg", unreachable=True, **SAID), pipeline=rest).finished
    assert world.start("d3", until=2, pipeline=rest).finished
    assert world.ids("kafka") == world.ids("delta") == _ids(0, 1, 2)
    assert world.ids("pg") == _ids(0)


def test_a_sink_given_up_in_an_epoch_that_was_begun_is_not_asked_for_it_again(scene: MakeScene) -> None:
    world = scene(Pipeline(("delta", "pg"), ("kafka",), modes=(IDEMPOTENT,)))
    world.start("d1", until=0)
    world.order("d2", "after-sink-commit", Action.CRASH, sink="kafka", epoch=1)
    world.start("d2", until=1)
    assert world.says("person", Accept(sink="pg", **SAID)).finished
    assert world.start("d3", until=1).finished
    assert world.start("d4", until=2).finished
    assert world.ids("kafka") == world.ids("delta") == _ids(0, 1, 2)
    assert world.ids("pg") == _ids(0, 2)
