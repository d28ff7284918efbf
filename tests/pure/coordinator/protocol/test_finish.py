"""A start lets sinks show what is decided before its fence would destroy it, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from epochal.checkpoints.log import Apply, Commit, Fence
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE, Actor, Committable, EpochNumber, Query
from epochal.coordinator.model.errors import CommitInDoubt, Fenced, OutcomeUnknown, PreparedLost, SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.protocol.actions import Accept
from epochal.sinks.memory import MemorySink
from epochal.sinks.protocol import CommitOutcome, VotingSink
from tests.pure.coordinator.protocol.test_coordinator import QUERY, Batch, World

ACCEPT = Accept(sink="b", why="its table is gone", at="2026-01-01T00:00:00Z")


class Killed(BaseException):
    """The process dies."""


class Voting(MemorySink):
    """A sink whose fence destroys what it has prepared, as Kafka's does.  ``told``: what it was asked to do."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world.server)
        self.create(QUERY, None)
        self.told: list[str] = []
        self.silent = 0

    def finish(self, committable: Committable) -> None:
        self.told.append(f"finish {committable.decision.epoch}")
        if self.silent:
            self.silent -= 1
            raise OutcomeUnknown("no answer", sink=self.name, help="start it")
        with contextlib.suppress(Fenced, PreparedLost):  # it cannot be shown any more
            super().commit(committable, committable.decision.actor)

    def fence(self, query: Query, by: Actor) -> None:
        self.told.append("fence")
        self._server.lose_prepared(query.app, self.name)
        super().fence(query, by)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        self.told.append(f"commit {committable.decision.epoch}")
        return super().commit(committable, by)


def killed_at(
    point: Point,
    world: World,
    *sinks: MemorySink,
    at: str | None = None,
    epoch: EpochNumber = 0,
    mode: str = TWO_PHASE,
) -> None:
    """Run an epoch until the process dies there."""

    def handle(reached: Point, sink: str | None, _epoch: EpochNumber | None) -> None:
        if reached is point and at in (None, sink):
            raise Killed

    with failpoints.handler(handle), pytest.raises(Killed):
        world.start(*sinks, mode=mode).run(Batch(epoch))


def shown(world: World, sink: str) -> int:
    return len(world.server.table("app", sink).shown)


def decisions(world: World) -> int:
    return sum(isinstance(entry.record, Commit) for entry in world.log.read())


def test_it_is_a_voting_sink() -> None:
    assert isinstance(Voting("a", World()), VotingSink)
    assert not isinstance(World().sink("a"), VotingSink)


def test_what_is_decided_is_finished_before_the_fence_and_is_not_prepared_again() -> None:
    world = World()
    killed_at(Point.AFTER_DECIDE, world, Voting("a", world))
    newer = Voting("a", world)
    report = world.start(newer).run(Batch(0))
    assert newer.told == ["finish 0", "fence"]
    assert (report.replayed, shown(world, "a"), decisions(world)) == (True, 1, 1)


def test_the_fence_of_this_start_is_in_the_log_by_then() -> None:
    """Until then an older start might decide something else."""
    world = World()
    killed_at(Point.AFTER_DECIDE, world, Voting("a", world))
    fences: list[int] = []

    class Noting(Voting):
        def finish(self, committable: Committable) -> None:
            fences.append(sum(isinstance(entry.record, Fence) for entry in world.log.read()))
            super().finish(committable)

    world.start(Noting("a", world)).run(Batch(0))
    assert fences == [2]


@pytest.mark.parametrize(
    ("point", "told"),
    [
        (Point.AFTER_PREPARE, ["fence", "commit 0"]),
        (Point.BEFORE_DECIDE, ["fence", "commit 0"]),
        (Point.AFTER_SINK_COMMIT, ["fence"]),
        (Point.BEFORE_RETURN, ["fence"]),
    ],
)
def test_what_is_not_decided_or_is_shown_is_not_finished(point: Point, told: list[str]) -> None:
    world = World()
    killed_at(point, world, Voting("a", world))
    newer = Voting("a", world)
    world.start(newer).run(Batch(0))
    assert newer.told == told
    assert shown(world, "a") == 1


def test_only_sinks_that_do_not_show_the_epoch_are_asked() -> None:
    world = World()
    killed_at(Point.AFTER_SINK_COMMIT, world, *(Voting(name, world) for name in "ab"), world.sink("c"), at="a")
    a, b = (Voting(name, world) for name in "ab")
    world.start(a, b, world.sink("c")).run(Batch(0))
    assert (a.told, b.told) == (["fence"], ["finish 0", "fence"])
    assert [shown(world, name) for name in "abc"] == [1, 1, 1]


def test_the_epoch_before_is_not_finished_again() -> None:
    world = World()
    world.start(Voting("a", world)).run(Batch(0))
    killed_at(Point.BEFORE_DECIDE, world, Voting("a", world), epoch=1)
    newer = Voting("a", world)
    world.start(newer).run(Batch(1))
    assert newer.told == ["fence", "commit 1"]
    assert shown(world, "a") == 2


# who does not answer


def test_a_sink_that_does_not_answer_is_asked_again() -> None:
    world = World()
    killed_at(Point.AFTER_DECIDE, world, Voting("a", world))
    newer = Voting("a", world)
    newer.silent = 2
    world.start(newer).run(Batch(0))
    assert newer.told == ["finish 0"] * 3 + ["fence"]


@pytest.mark.parametrize("again", [True, False])
def test_a_sink_that_never_answers_is_not_fenced(again: bool) -> None:
    """The start ends, and the next one can still finish."""
    world = World()
    killed_at(Point.AFTER_DECIDE, world, Voting("a", world))
    newer = Voting("a", world)
    newer.silent = 9
    with pytest.raises((CommitInDoubt, OutcomeUnknown, SinkUnavailable)):
        world.start(newer).run(Batch(0))
    assert newer.told == ["finish 0"] * 3
    if again:
        world.start(Voting("a", world)).run(Batch(0))
        assert (shown(world, "a"), decisions(world)) == (1, 1)


# operators, and the other mode


def test_what_an_operator_gives_up_is_not_shown(act: Callable[..., None]) -> None:
    world = World()
    killed_at(Point.AFTER_DECIDE, world, *(Voting(name, world) for name in "ab"))
    a, b = (Voting(name, world) for name in "ab")
    act(world, a, b)
    assert (a.told, b.told) == (["finish 0", "fence"], ["fence"])
    assert [shown(world, name) for name in "ab"] == [1, 0]
    a, b = (Voting(name, world) for name in "ab")
    world.start(a, b).run(Batch(0))
    assert (a.told, b.told) == (["fence"], ["fence"])
    assert [shown(world, name) for name in "ab"] == [1, 0]


def test_an_operator_who_dies_has_given_up_nothing(act: Callable[..., None]) -> None:
    """Its fence is in the log and its record is not: the epoch is still due, from the copy where its rows are lost."""
    world = World()
    killed_at(Point.AFTER_DECIDE, world, *(Voting(name, world) for name in "ab"))

    def dies() -> None:
        raise Killed

    with pytest.raises(Killed):
        act(world, Voting("a", world), Voting("b", world), dies)
    a, b = (Voting(name, world) for name in "ab")
    world.start(a, b).run(Batch(0))
    assert [shown(world, name) for name in "ab"] == [1, 1]


@pytest.fixture
def act() -> Callable[..., None]:
    """An operator accepts sink b as it is."""

    def acting(world: World, a: Voting, b: Voting, before_record: Callable[[], None] = lambda: None) -> None:
        world.start(a, b).act(Batch(1).ask, ACCEPT, before_record)

    return acting


def test_an_epoch_that_was_begun_in_idempotent_mode_has_nothing_to_finish() -> None:
    world = World()
    killed_at(Point.BEFORE_SINK_COMMIT, world, Voting("a", world), mode=IDEMPOTENT)
    assert isinstance(world.log.read()[-1].record, Apply)
    newer = Voting("a", world)
    world.start(newer, mode=IDEMPOTENT).run(Batch(0))
    assert newer.told[0] == "fence"
    assert shown(world, "a") == 1
