"""The watchdog: a step that stands still is told, and one that moves is not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from epochal.coordinator.model.events import Event, EventPublisher, Stalled, Step, StepBegan, StepEnded
from epochal.coordinator.telemetry import watchdog
from epochal.coordinator.telemetry.watchdog import TaskProgress, Watchdog
from tests.pure.coordinator.protocol.test_coordinator import QUERY

LIMIT = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "QUIET_S", 0.05)
    monkeypatch.setattr(watchdog, "EVERY_S", 0.01)


class Tasks:
    """Spark's tasks, which move when they are told to.  ``looks``: one entry per question."""

    def __init__(self) -> None:
        self.counts = 0
        self.moves = False
        self.looks: queue.Queue[int] = queue.Queue()

    def __call__(self) -> TaskProgress:
        self.counts += self.moves
        self.looks.put(self.counts)
        return TaskProgress(self.counts, f"{self.counts} tasks done")

    def asked(self, times: int) -> None:
        for _ in range(times):
            self.looks.get(timeout=LIMIT)


class Told:
    """A start's events.  ``stalled``: those of the watchdog."""

    def __init__(self, tasks: Callable[[], TaskProgress]) -> None:
        self.stalled: queue.Queue[Stalled] = queue.Queue()
        self.telling = EventPublisher(QUERY, [self._take])
        self.telling.add(Watchdog(tasks, self.telling.stalled))

    def _take(self, event: Event) -> None:
        if isinstance(event, Stalled):
            self.stalled.put(event)


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "epochal-watchdog"]


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    yield Tasks()
    for thread in watchers():
        thread.join(LIMIT)
    assert not watchers(), "a thread outlives the step that it watched"


def test_a_step_that_stands_still_is_told_again_when_the_pause_has_doubled(tasks: Tasks) -> None:
    """S4."""
    told = Told(tasks)
    with told.telling.step(Step.PREPARE, "pg", 7):
        first, second = told.stalled.get(timeout=LIMIT), told.stalled.get(timeout=LIMIT)
    assert (first.step, first.sink, first.seen) == (Step.PREPARE, "pg", "0 tasks done")
    assert first.seconds >= 0.05
    assert second.seconds >= 2 * first.seconds


def test_a_step_that_moves_is_not_told(tasks: Tasks) -> None:
    told = Told(tasks)
    tasks.moves = True
    with told.telling.step(Step.COPY):
        tasks.asked(20)
    assert told.stalled.empty()


def test_the_steps_of_other_sinks_are_movement_too(tasks: Tasks) -> None:
    """``prepare`` of one sink goes on while those of others begin and end: the epoch does not stand still."""

    def look() -> TaskProgress:
        with told.telling.step(Step.PREPARE, "quick"):
            return tasks()

    told = Told(look)
    with told.telling.step(Step.PREPARE, "slow"):
        tasks.asked(20)
    assert told.stalled.empty()


def test_nobody_watches_between_two_steps(tasks: Tasks) -> None:
    told = Told(tasks)
    for _ in range(3):
        with told.telling.step(Step.COPY):
            assert len([thread for thread in watchers() if thread.is_alive()]) >= 1
    for thread in watchers():
        thread.join(LIMIT)
    assert watchers() == []


def test_spark_that_does_not_answer_fails_no_step() -> None:
    asked = threading.Event()

    def broken() -> TaskProgress:
        asked.set()
        raise ValueError("the context was stopped")

    told = Told(broken)
    with told.telling.step(Step.COPY):
        assert asked.wait(LIMIT)
    assert told.stalled.empty()


def test_a_step_that_never_ended_is_forgotten_when_the_start_has_failed(tasks: Tasks) -> None:
    told = Told(tasks)
    told.telling._tell(StepBegan, step=Step.COPY, sink=None)
    assert watchers()
    told.telling.failed(ValueError("over"))
    for thread in watchers():
        thread.join(LIMIT)
    assert watchers() == []


def test_a_step_that_has_ended_is_not_told_because_a_consumer_was_slow(tasks: Tasks) -> None:
    """S4: the consumer is told of the end, and meanwhile the watchdog has found that nothing moves."""
    order: list[type[Event]] = []
    finds = threading.Event()

    def slow(event: Event) -> None:
        order.append(type(event))
        if isinstance(event, StepEnded):
            assert finds.wait(LIMIT)

    def tell(step: Step, sink: str | None, seconds: float, seen: str, runs: Callable[[], bool]) -> None:
        finds.set()
        telling.stalled(step, sink, seconds, seen, runs)

    telling = EventPublisher(QUERY, [slow])
    telling.add(Watchdog(tasks, tell))
    with telling.step(Step.PREPARE, "pg", 7):
        pass
    for thread in watchers():
        thread.join(LIMIT)
    assert order[-1] is StepEnded
