"""Frames in the records of the log."""

from __future__ import annotations

import pytest

from epochal.checkpoints.log import Commit, Entry, Participant
from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision
from epochal.coordinator.model.errors import CommitInDoubt, SinkUnavailable
from epochal.coordinator.protocol.history import History
from epochal.sinks.memory import MemorySink
from epochal.sinks.protocol import CommitOutcome
from tests.pure.coordinator.protocol.test_coordinator import QUERY, Batch, Judging, World

DECISION = Decision("query", 0, Actor(1, 1), "fingerprint")
BATCH, ITEMS = (Copy(f"file:///copies/0/1-1-{n}", (CopyFile("part", 1, 1),), "{}") for n in range(2))


def test_the_copies_of_frames_are_needed_as_long_as_that_of_the_micro_batch() -> None:
    """`epochal clean` and an operator's action delete copies while an epoch is in doubt."""
    vote = Participant("table 1", Committable("items", DECISION, 1, 1), "items")
    decided = Commit(DECISION, Actor(1, 1), {"items": vote}, copy=BATCH, frames={"items": ITEMS})
    assert set(History.of([Entry(0, decided)]).needed_copies()) == {BATCH, ITEMS}
    over = Commit(
        Decision("query", 1, Actor(1, 1), "fingerprint"), Actor(1, 1), {"items": vote}, done_through={"items": 0}
    )
    assert set(History.of([Entry(0, decided), Entry(1, over)]).needed_copies()) == set()


class Failing(MemorySink):
    """Its server is away whenever an epoch is to be shown."""

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:  # noqa: ARG002
        raise SinkUnavailable("away", sink=self.name, help="wait")


def judging(world: World, frame: str | None = None) -> Judging:
    sink = Judging("b", world.server)
    sink.frame = frame
    sink.create(QUERY, None)
    return sink


def test_a_pair_that_joins_while_an_epoch_is_in_doubt_does_not_disturb_its_redo() -> None:
    world = World()
    a = world.sink("a")
    world.sink("c")
    with pytest.raises(CommitInDoubt):
        world.start(a, Failing("c", world.server)).run(Batch(0))
    assert world.server.lose_prepared("app", "c") == 1
    report = world.start(MemorySink("a", world.server), MemorySink("c", world.server), judging(world)).run(Batch(0))
    assert report.replayed


def test_a_pair_that_gets_a_frame_now_does_not_disturb_an_epoch_of_idempotent_mode() -> None:
    world = World()
    a = world.sink("a")
    world.sink("c")
    with pytest.raises(CommitInDoubt):
        world.apply(a, judging(world), Failing("c", world.server)).run(Batch(0))
    sinks = (MemorySink("a", world.server, frame="x"), judging(world, "x"), MemorySink("c", world.server))
    assert not world.start(*sinks, frames=lambda rows: {"x": rows}).run(Batch(0)).replayed
