"""The simulation notices a bug in a sink with one open transaction, and one that only costs time is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from epochal.chaos.simulate.explore import PAIRS, PIPELINES, Kind, Player, explore
from epochal.chaos.simulate.pipelines import Pipeline
from epochal.chaos.simulate.schedule import Action
from epochal.chaos.simulate.shrink import undisturbed
from epochal.coordinator.model.epoch import Actor, Committable, EpochRequest, Query
from epochal.coordinator.model.errors import OutcomeUnknown
from epochal.coordinator.protocol import coordinator
from epochal.coordinator.protocol.start import Start
from epochal.sinks.memory import Prepared
from epochal.sinks.memory_transaction import MemoryTransactionSink, Open, Producer, TransactionServer
from epochal.sinks.protocol import CommitOutcome
from tests.pure.chaos.simulate.scenes import MakeScene
from tests.pure.chaos.simulate.tally import Tally
from tests.pure.chaos.simulate.test_known_transactions import asked, redone

Patch = pytest.MonkeyPatch
ALONE, BESIDE = PIPELINES["transaction"], Pipeline(("pg",), transactional=("kafka",))


def one_epoch_for_all(patch: Patch) -> None:
    """A transaction is ended as it must be, and the next one has the same producer and the same epoch."""
    begin = TransactionServer.begin

    def begin_again(server: TransactionServer, app: str, sink: str) -> Producer:
        begin(server, app, sink)
        server.table(app, sink).producer_epoch = 1
        return Producer.newest(server.table(app, sink))

    patch.setattr(TransactionServer, "begin", begin_again)


def whichever_is_open(patch: Patch) -> None:
    """A request to end a transaction ends the one that is open, not the one that it names."""
    end = TransactionServer.end

    def end_newest(server: TransactionServer, app: str, sink: str, _: Producer) -> CommitOutcome | None:
        return end(server, app, sink, Producer.newest(server.table(app, sink)))

    patch.setattr(TransactionServer, "end", end_newest)


def unknown_is_committed(patch: Patch) -> None:
    """A commit without an answer is believed to have been done."""
    end = MemoryTransactionSink._end

    def trust(sink: MemoryTransactionSink, committable: Committable) -> CommitOutcome | None:
        try:
            return end(sink, committable)
        except OutcomeUnknown:
            return CommitOutcome.COMMITTED

    patch.setattr(MemoryTransactionSink, "_end", trust)


def ended_is_committed(patch: Patch) -> None:
    """That a transaction was ended is believed to mean that it was committed; nobody looks at the marker."""
    end = TransactionServer.end

    def told(server: TransactionServer, app: str, sink: str, producer: Producer) -> CommitOutcome:
        return end(server, app, sink, producer) or CommitOutcome.ALREADY_COMMITTED

    patch.setattr(TransactionServer, "end", told)


def finishes_all(patch: Patch) -> None:
    """A start ends what is open before it fences, also where nothing was decided."""
    fence = MemoryTransactionSink.fence

    def finish_and_fence(sink: MemoryTransactionSink, query: Query, by: Actor) -> None:
        for held in list(_open(sink, query)):
            sink._end(held.committable)
        fence(sink, query, by)

    patch.setattr(MemoryTransactionSink, "fence", finish_and_fence)


def _open(sink: MemoryTransactionSink, query: Query) -> Iterator[Open]:
    held: Sequence[Prepared] = list(sink._server.table(query.app, sink.name).prepared.values())
    return (each for each in held if isinstance(each, Open))


def is_noticed(pipeline: Pipeline, kind: Kind, says: str) -> bool:
    """Whether a schedule of this kind fails with such a text."""
    root = Player().root(pipeline, 2)
    with undisturbed():
        outcomes = (outcome for strike in kind.firsts(root) for outcome in kind.grow(root, strike))
        return any(re.search(says, why) for outcome in outcomes for why in outcome.wrong.values())


LATE_END = Kind(Action.LATE, Action.DELIVER_LATE)


@pytest.mark.parametrize(
    ("plant", "kind", "says"),
    [
        pytest.param(one_epoch_for_all, LATE_END, "shows epoch 1, which was not decided", id="no epoch of its own"),
        pytest.param(whichever_is_open, LATE_END, "shows epoch 1, which was not decided", id="whichever is open"),
        pytest.param(unknown_is_committed, Kind(Action.REQUEST_LOST), "kafka lacks rows", id="unknown is committed"),
        pytest.param(ended_is_committed, Kind(Action.LOSE_PREPARED), "kafka lacks rows", id="ended is committed"),
        pytest.param(finishes_all, Kind(Action.CRASH), "epoch 0, which was not decided", id="finishes the undecided"),
    ],
)
def test_a_planted_bug_is_noticed(monkeypatch: Patch, plant: Callable[[Patch], None], kind: Kind, says: str) -> None:
    plant(monkeypatch)
    assert is_noticed(ALONE, kind, says)


# what is right, and only slower


def finishes_after_the_fence(patch: Patch) -> None:
    """A start fences the sinks, and asks for the end of what is decided afterwards."""
    finish, look_again = coordinator.finish_decided, coordinator.look_again

    def finish_and_look(start: Start, ask: EpochRequest) -> None:
        finish(start)
        look_again(start, ask)

    patch.setattr(coordinator, "finish_decided", lambda _: None)
    patch.setattr(coordinator, "look_again", finish_and_look)


def test_who_finishes_after_the_fence_redoes_the_epoch(monkeypatch: Patch, scene: MakeScene) -> None:
    finishes_after_the_fence(monkeypatch)
    world = scene(BESIDE)
    world.order("d1", "after-decide", Action.CRASH)
    world.start("d1", until=0)
    assert world.start("d2", until=0).finished
    assert asked(world, "d2", "end") == [""]
    assert redone(world, "d2") == 1
    world.holds(until=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transaction", pytest.param("all-kinds", marks=pytest.mark.wide)])
def test_who_finishes_after_the_fence_is_right_wherever_a_fault_strikes(
    monkeypatch: Patch, tally: Tally, name: str
) -> None:
    finishes_after_the_fence(monkeypatch)
    kinds = [Kind(action) for action in (Action.CRASH, Action.PAUSE, Action.LATE, Action.LOSE_PREPARED)]
    tally.check(explore(pipelines=[PIPELINES[name]], kinds=kinds), at_least=150)


@pytest.mark.wide
@pytest.mark.parametrize("kind", PAIRS, ids=str)
def test_who_finishes_after_the_fence_is_right_under_pairs_of_faults(
    monkeypatch: Patch, tally: Tally, kind: Kind
) -> None:
    finishes_after_the_fence(monkeypatch)
    tally.check(explore(pipelines=[ALONE], kinds=[kind]), at_least=20)
