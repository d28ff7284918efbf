"""What is told, in which order, and that nobody who is told can disturb an epoch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from epochal.checkpoints.log import Commit
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE, Actor, Copy, Phase, Query
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured, PreparedLost, PrepareRefused, SinkUnavailable
from epochal.coordinator.model.events import (
    EVENTS,
    Closed,
    Consumer,
    Decided,
    EpochBegan,
    EpochCommitted,
    Event,
    EventPublisher,
    Failed,
    InDoubt,
    LogBegan,
    PhaseBegan,
    PhaseEnded,
    Postponed,
    Retrying,
    Started,
    Step,
    StepBegan,
    StepEnded,
)
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.sinks.memory import MemorySink, MemoryStage
from epochal.sinks.protocol import CommitOutcome, Sink
from epochal.sinks.spark.threads import Threads
from tests.pure.coordinator.protocol.test_coordinator import (
    QUERY,
    Batch,
    BrokenLog,
    Failing,
    Forgetful,
    Refusing,
    World,
)


class Told(list[Event]):
    """Every event, as it came."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self if isinstance(event, kind)]

    def story(self) -> list[str]:
        return [_word(event) for event in self]


def _word(event: Event) -> str:
    match event:
        case PhaseBegan() | PhaseEnded():
            return f"{event.phase.value}{'.' if isinstance(event, PhaseEnded) else ''}"
        case StepBegan() | StepEnded():
            sink = f" {event.sink}" if event.sink is not None else ""
            return f"  {event.step.value}{sink}{'.' if isinstance(event, StepEnded) else ''}"
    return type(event).__name__


def start(world: World, told: Any, *sinks: Sink, **options: Any) -> Coordinator:
    return world.start(*sinks, telling=EventPublisher(QUERY, [told]), **options)


def test_the_first_epoch_of_two_sinks() -> None:
    world, told = World(), Told()
    start(world, told, world.sink("a"), world.redo("b")).run(Batch(0))
    assert told.story() == [
        "EpochBegan",
        *("look", "look.", "fence", "Started", "fence.", "look-again", "look-again.", "settle", "settle."),
        *("identify", "identify."),
        *("prepare", "  copy", "  copy.", "  prepare a", "  prepare a.", "  prepare b", "  prepare b.", "prepare."),
        *("decide", "Decided", "decide."),
        *("commit", "  commit a", "  commit a.", "  commit b", "  commit b.", "commit."),
        *("return", "return.", "EpochCommitted"),
    ]
    assert all((e.app, e.query_id, e.run_id, e.epoch) == ("app", "query", "run", 0) for e in told)
    assert told.of(Started) == [
        Started(app="app", query_id="query", run_id="run", epoch=0, generation=1, mode=TWO_PHASE, sinks=("a", "b"))
    ]
    assert [e.pending for e in told.of(Decided)] == [("a", "b")]
    assert [(e.step, e.sink, e.rows, e.error) for e in told.of(StepEnded) if e.sink is not None] == [
        (Step.PREPARE, "a", 1, None),
        (Step.PREPARE, "b", 1, None),
        (Step.COMMIT, "a", 1, None),
        (Step.COMMIT, "b", 1, None),
    ]
    [committed] = told.of(EpochCommitted)
    assert (committed.rows, committed.replayed) == (1, False)
    assert Phase.LOOK in committed.seconds
    assert all(e.seconds >= 0 for e in told.of(PhaseEnded) + told.of(StepEnded))


def test_a_replay_writes_nothing_and_says_so() -> None:
    world, told = World(), Told()
    world.start(world.sink("a")).run(Batch(0))
    start(world, told, world.sink("a")).run(Batch(0))
    assert not told.of(StepEnded)
    assert [e.replayed for e in told.of(EpochCommitted)] == [True]
    assert [e.generation for e in told.of(Started)] == [2]


def test_idempotent_mode() -> None:
    world, told = World(), Told()
    start(world, told, world.sink("a"), world.redo("b"), mode=IDEMPOTENT).run(Batch(0))
    story = told.story()
    assert story[story.index("apply") :] == [
        *("apply", "Decided", "  prepare a", "  prepare a.", "  apply b", "  apply b.", "  commit a", "  commit a."),
        *("apply.", "return", "return.", "EpochCommitted"),
    ]
    assert [(e.sink, e.rows) for e in told.of(StepEnded)] == [("a", 1), ("b", 1), ("a", 1)]


def failing(world: World, error: Exception) -> Failing:
    world.sink("b")
    sink = Failing("b", world.server)
    sink.error = error
    return sink


def test_an_epoch_in_doubt_and_the_start_that_settles_it() -> None:
    world, told = World(), Told()
    down = SinkUnavailable("no answer", sink="b", epoch=0, help="start it")
    with pytest.raises(CommitInDoubt) as raised:
        start(world, told, world.sink("a"), failing(world, down)).run(Batch(0))
    assert [(e.sink, e.error) for e in told.of(Retrying)] == [("b", down)] * 2
    assert [(e.step, e.sink) for e in told.of(StepEnded) if e.error is down] == [(Step.COMMIT, "b")]
    assert [(e.pending, e.error) for e in told.of(InDoubt)] == [(("b",), raised.value)]
    assert [(e.phase, e.error) for e in told.of(Failed)] == [(Phase.COMMIT, raised.value)]
    assert isinstance(told[-1], Failed)
    told.clear()
    start(world, told, world.sink("a"), world.sink("b")).run(Batch(1))
    settle = told.story()[told.story().index("settle") :]
    assert settle[:4] == ["settle", "  commit b", "  commit b.", "settle."]
    assert next((e.sink, e.epoch, e.rows) for e in told.of(StepEnded)) == ("b", 0, 1)


def test_a_commit_that_another_start_has_made_counts_no_rows() -> None:
    class Late(MemorySink):
        def commit(self, committable: Any, by: Any) -> CommitOutcome:
            super().commit(committable, by)
            return super().commit(committable, by)

    world, told = World(), Told()
    world.sink("a")
    start(world, told, Late("a", world.server)).run(Batch(0))
    assert [e.rows for e in told.of(StepEnded)] == [1, 0]


def test_a_no_is_a_failure_and_nothing_in_doubt() -> None:
    world, told = World(), Told()
    world.sink("a")
    coordinator = start(world, told, Refusing("a", world.server))
    for _ in range(2):
        with pytest.raises(PrepareRefused):
            coordinator.run(Batch(0))
    assert [e.phase for e in told.of(Failed)] == [Phase.PREPARE]
    assert not told.of(InDoubt)


def test_lost_rows_are_redone_within_a_step() -> None:
    class Once(Forgetful):
        lost = False

        def commit(self, committable: Any, by: Any) -> CommitOutcome:
            if self.lost:
                return MemorySink.commit(self, committable, by)
            self.lost = True
            return super().commit(committable, by)

    world, told = World(), Told()
    world.sink("a")
    start(world, told, Once("a", world.server), world.redo("b")).run(Batch(0))
    story = told.story()
    assert story[story.index("  redo") :][:6] == [
        *("  redo", "  prepare a", "  prepare a.", "  redo.", "  commit a", "  commit a."),
    ]
    assert [type(e.error) for e in told.of(StepEnded) if e.error is not None] == [PreparedLost]


def test_compaction_is_a_step() -> None:
    world, told = World(), Told()
    coordinator = start(world, told, world.sink("a"), compact_every=1)
    for epoch in range(4):
        coordinator.run(Batch(epoch))
    assert [e.epoch for e in told.of(StepEnded) if e.step is Step.COMPACT] == [2, 3]


def test_an_append_that_is_made_again() -> None:
    world, told = World(), Told()
    world.log = BrokenLog()
    world.log.error, world.log.kind = OSError("the disk is full"), Commit
    with pytest.raises(CommitInDoubt):
        start(world, told, world.sink("a")).run(Batch(0))
    assert [(e.sink, type(e.error)) for e in told.of(Retrying)] == [(None, OSError)] * 3
    assert [e.pending for e in told.of(InDoubt)] == [()]


def test_what_is_put_off() -> None:
    world, told = World(), Told()
    world.stage = Full()
    start(world, told, world.sink("a"), world.sink("b")).run(Batch(0))
    assert {(e.what, str(e.error)) for e in told.of(Postponed)} == {
        ("could not clean up after epoch, will try again", "read-only")
    }


def test_a_new_log_on_an_old_checkpoint() -> None:
    world, told = World(), Told()
    start(world, told, world.sink("a")).run(Batch(17))
    assert [e.epoch for e in told.of(LogBegan)] == [17]


def test_failed_once_and_closed() -> None:
    told = Told()
    telling = EventPublisher(QUERY, [told])
    for _ in range(2):
        telling.failed(Misconfigured("no", help="none"))
    telling.closed()
    assert [(type(e), e.epoch) for e in told] == [(Failed, None), (Closed, None)]


class Full(MemoryStage):
    """Cannot be cleaned, until it is not ``full`` any more."""

    full = True

    def clean(self, by: Actor, keep: Sequence[Copy]) -> None:
        if self.full:
            raise OSError("read-only")
        super().clean(by, keep)


def every_event(world: World, *consumers: Consumer) -> None:
    """A history of two starts in which each kind of event happens, but for ``Closed``."""

    def begin(*sinks: Sink) -> Coordinator:
        telling = EventPublisher(QUERY, consumers)
        telling.stalled(Step.COPY, None, 60.0, "nothing moves", lambda: True)  # as the watchdog, which needs Spark
        return world.start(*sinks, telling=telling)

    world.stage = stage = Full()
    down = SinkUnavailable("no answer", sink="b", epoch=17, help="start it")
    with pytest.raises(CommitInDoubt):
        begin(world.sink("a"), failing(world, down)).run(Batch(17))
    stage.full = False
    coordinator = begin(world.sink("a"), MemorySink("b", world.server))
    for epoch in range(17, 21):
        coordinator.run(Batch(epoch))
    for sink in "ab":
        assert world.server.visible("app", sink) == [{"id": f"row-{epoch}"} for epoch in range(17, 21)]


def test_every_kind_of_event_is_told() -> None:
    told = Told()
    every_event(World(), told)
    assert {type(event) for event in told} | {Closed} == set(EVENTS)


@pytest.mark.parametrize("kind", [kind for kind in EVENTS if kind is not Closed])
def test_a_hook_that_raises_changes_nothing_and_is_called_no_more(
    kind: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises at, the epochs go on, all others are told everything, and the log says so once per start."""
    calls, others = Told(), Told()

    def hook(event: Event) -> None:
        calls(event)
        if isinstance(event, kind):
            raise ValueError(f"of my own, at {kind.__name__}")

    with caplog.at_level(logging.ERROR, "epochal"):
        every_event(World(), hook, others)
    assert {type(event) for event in others} | {Closed} == set(EVENTS)
    raised = [record for record in caplog.records if "is told nothing more by this start" in record.getMessage()]
    assert 1 <= len(raised) == len(calls.of(kind)) <= 2
    assert all(kind.__name__ in record.getMessage() and record.exc_info for record in raised)


def test_a_hook_that_ends_the_process_is_a_kill_like_any_other() -> None:
    world = World()

    def exits(event: Event) -> None:
        if isinstance(event, Decided):
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        start(world, exits, world.sink("a")).run(Batch(0))
    assert world.server.visible("app", "a") == []
    world.start(world.sink("a")).run(Batch(0))
    assert world.server.visible("app", "a") == [{"id": "row-0"}]


def test_events_of_several_threads_come_one_at_a_time() -> None:
    world, inside, threads, overlaps = World(), threading.Lock(), set[str](), list[Event]()

    def hook(event: Event) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(event)
            return
        threads.add(threading.current_thread().name)
        time.sleep(0.002)
        inside.release()

    sinks = [world.sink(name) for name in "abcd"]
    world.start(*sinks, telling=EventPublisher(QUERY, [hook]), runner=Threads(lambda: None)).run(Batch(0))
    assert len(threads) > 1
    assert overlaps == []


def test_a_hook_may_call_back() -> None:
    told = Told()
    telling = EventPublisher(Query("app", "query", "run", ""), [])
    telling._consumers += [lambda event: telling.closed() if isinstance(event, EpochBegan) else None, told]
    telling.epoch_began(3)
    assert {type(event) for event in told} == {EpochBegan, Closed}
