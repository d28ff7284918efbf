"""Kafka's slots under many interleavings: the real sink over a broker in memory, step by step as chance has it.

Starts with other numbers of slots follow each other; they die somewhere, and their tasks, one per slot, go on whenever
it suits the schedule: before, between and after all steps of later starts.  The broker does what the real one does: an
init ends what its transactional id has open, a commit is certain before it can be read, an answer may be lost.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision, Epoch, Json, Marker, Query
from epochal.coordinator.model.errors import Fenced, OutcomeUnknown, SinkUnavailable
from epochal.sinks.kafka import (
    KafkaSink,
    committing,
    fencing,
    marker,
    preparing,
    produce,
    starting,
    topics,
    transaction,
)
from epochal.sinks.kafka.client import Link, Options
from epochal.sinks.kafka.core import Core
from epochal.sinks.kafka.marker import MarkerTopic, State
from epochal.sinks.kafka.topics import Topic, Topics

QUERY = Query("flights", "q1", "r1", "memory:/checkpoint")
PLACE = MarkerTopic("flights", "out")
SCHEDULES = 1_000
MOST_SLOTS = 3
STARTS = 3  # of which some die, and one more in the end that does not
EPOCHS = 2  # of each start


class Died(BaseException):
    """A process ended here, as by SIGKILL."""


class Schedule:
    """Threads of which one runs at a time, from one step to the next; chance says which."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.failed: list[Exception] = []
        self.steps = 0
        self._turns: dict[threading.Thread, threading.Semaphore] = {}
        self._weights: dict[threading.Thread, float] = {}  # how soon a thread goes on; some hardly ever
        self._left: dict[threading.Thread, int] = {}  # steps that a thread lives
        self._back = threading.Semaphore(0)

    def spawn(self, work: Callable[[], object], steps: int | None = None) -> threading.Thread:
        """``work`` in a thread of its own, which dies after so many steps."""

        def run() -> None:
            turn.acquire()
            try:
                work()
            except Died:
                pass
            except Exception as error:
                self.failed.append(error)
            del self._turns[thread]
            self._back.release()

        turn, thread = threading.Semaphore(0), threading.Thread(target=run, daemon=True)
        self._turns[thread], self._weights[thread] = turn, self.chance.choice((0.01, 0.2, 1.0))
        if steps is not None:
            self._left[thread] = steps
        thread.start()
        return thread

    def has_turns(self) -> bool:
        """Whether the current thread is one of ours; others of this process sleep too."""
        return threading.current_thread() in self._turns

    def step(self) -> None:
        """Somebody else may go on here."""
        thread = threading.current_thread()
        self._back.release()
        self._turns[thread].acquire()
        if thread in self._left:
            self._left[thread] -= 1
            if self._left[thread] < 0:
                raise Died

    def run(self, until: threading.Thread | None = None) -> None:
        """Until every thread has ended, or this one."""
        while self._turns if until is None else until in self._turns:
            threads = list(self._turns)
            [chosen] = self.chance.choices(threads, [self._weights[thread] for thread in threads])
            self._turns[chosen].release()
            self._back.acquire()
            self.steps += 1


@dataclass(eq=False)
class Txn:
    """``open``, then ``certain`` and ``committed``, or ``aborted``."""

    state: str = "open"
    rows: list[str] = field(default_factory=list)
    by: Actor | None = None


@dataclass
class Broker:
    """Producers' epochs, the partitions of the marker topic, the rows; and what must never happen, if it did."""

    schedule: Schedule
    fenced: int = 0  # the newest generation whose fence has returned
    epochs: dict[str, int] = field(default_factory=dict)
    newest_of: dict[str, Txn] = field(default_factory=dict)
    markers: dict[int, list[tuple[bytes, Txn]]] = field(default_factory=dict)
    txns: list[Txn] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def init(self, transactional_id: str) -> int:
        """Ends what is open; what is certain can be read when it answers."""
        txn = self.newest_of.get(transactional_id)
        if txn is not None:
            txn.state = {"open": "aborted", "certain": "committed"}.get(txn.state, txn.state)
        self.epochs[transactional_id] = self.epochs.get(transactional_id, 0) + 1
        return self.epochs[transactional_id]

    def commit(self, txn: Txn) -> None:
        txn.state = "certain"
        if txn.rows and txn.by is not None and txn.by.generation < self.fenced:
            self.violations.append(f"{txn.rows} of {txn.by} became visible after generation {self.fenced} had fenced")

    def read(self, slot: int) -> bytes | None:
        """The newest record that can be read: below the first that is neither committed nor aborted."""
        value = None
        for record, txn in self.markers.get(slot, ()):
            if txn.state in ("open", "certain"):
                break
            value = record if txn.state == "committed" else value
        return value

    def is_stable(self, slot: int) -> bool:
        return all(txn.state in ("committed", "aborted") for _, txn in self.markers.get(slot, ()))

    def visible(self) -> list[str]:
        return sorted(row for txn in self.txns if txn.state in ("certain", "committed") for row in txn.rows)

    def step(self) -> None:
        """Others go on; some of what is certain can be read by then."""
        self.schedule.step()
        for txn in self.txns:
            if txn.state == "certain" and self.schedule.chance.random() < 0.3:
                txn.state = "committed"


class Transaction:
    """As ``transaction.Transaction``, on ``broker``."""

    broker: Broker
    is_overdue = False

    def __init__(self, link: Link, marker_topic: MarkerTopic, timeout: float, more: Options) -> None:  # noqa: ARG002
        self._marker_topic, self._epoch, self._txn = marker_topic, 0, Txn()

    def bar(self) -> None:
        self.broker.step()
        self._epoch = self.broker.init(self._marker_topic.transactional_id)
        self.broker.step()

    def begin(self) -> None:
        self._txn = Txn()

    def send(self, topic: str, rows: Iterable[Any]) -> int:  # noqa: ARG002
        self._arrive()
        sent = [value.decode() for _, value, *_ in rows]
        self._txn.rows += sent
        return len(sent)

    def send_state(self, key: bytes, state: State, about: Json | None = None) -> None:  # noqa: ARG002
        self._arrive()
        self._txn.by = state.fence
        value = marker.record(self._marker_topic, state, about)
        self.broker.markers.setdefault(self._marker_topic.slot, []).append((value, self._txn))

    def flush(self) -> None:
        self.broker.step()

    def commit(self) -> None:
        """May not arrive, and may arrive and not be answered."""
        luck = self.broker.schedule.chance.random()
        if luck > 0.1:
            self._arrive()
            self.broker.commit(self._txn)
            self.broker.step()
        if luck < 0.2:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def abort(self) -> None:
        if self._txn.state == "open":
            self._txn.state = "aborted"

    def drop(self) -> None:
        pass

    def _arrive(self) -> None:
        self.broker.step()
        if self.broker.epochs[self._marker_topic.transactional_id] != self._epoch or self._txn.state == "aborted":
            raise KafkaException(KafkaError(KafkaError._FENCED))
        if self._txn not in self.broker.txns:
            self.broker.txns.append(self._txn)
        self.broker.newest_of[self._marker_topic.transactional_id] = self._txn


def rows_of(committable: Committable, slot: int) -> list[transaction.Row]:
    """An epoch has two rows in each slot that gets any."""
    return [(None, f"{committable.decision.epoch}.{slot}.{n}".encode()) for n in range(2)]


def slots_of(committable: Committable) -> int:
    """Of those that get rows."""
    return len(committable.payload.get("staged", [None]))


@contextmanager
def on(broker: Broker, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The real sink on ``broker``: what reaches a network or Spark is replaced, and nothing else."""
    topic = Topic("out", "t", 4, 1, None, {})

    def describe(*_: object) -> Topics:
        return Topics("c", {"out": topic}, replace(topic, name="m", id="m", partitions=MOST_SLOTS))

    def read_slot(link: Link, marker_topic: MarkerTopic, *, final: bool) -> State:  # noqa: ARG001
        for _ in range(50):
            broker.step()
            if not final or broker.is_stable(marker_topic.slot):
                value = broker.read(marker_topic.slot)
                return marker.parse(marker_topic, value) if value is not None else State()
        raise SinkUnavailable("the partition is held by another producer", sink=marker_topic.sink, help="look again")

    def attempt(_: KafkaSink, plan: produce.Plan, committable: Committable) -> produce.AttemptResult:
        return produce.attempt(plan, [rows_of(committable, plan.marker_topic.slot)] if plan.rows else ())

    def one_after_another(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        results: dict[int, Any] = {}
        for number in broker.schedule.chance.sample(range(len(tasks)), len(tasks)):
            try:
                results[number] = tasks[number]()
            except Exception as error:
                results[number] = error
        return [results[number] for number in range(len(tasks))]

    slept = time.sleep
    with patch.context() as m:
        m.setattr(Transaction, "broker", broker, raising=False)
        for module in (transaction, fencing, starting):
            m.setattr(module, "Transaction", Transaction)
        m.setattr(marker, "read_slot", read_slot)
        m.setattr(topics, "describe", describe)
        m.setattr(Core, "timeout", lambda *_: 60.0)
        m.setattr(committing, "attempt_once", attempt)
        m.setattr(Core, "own_session", lambda *_: None)
        m.setattr(committing, "Threads", lambda _: one_after_another)
        m.setattr(time, "sleep", lambda seconds: broker.step() if broker.schedule.has_turns() else slept(seconds))
        yield


@dataclass
class Job:
    """The starts of one query, and its log: who is fenced there last, and what is decided."""

    broker: Broker
    decided: list[Committable] = field(default_factory=list)
    owner: Actor | None = None

    def start(self, by: Actor, slots: int) -> None:
        """Look, fence, look again, finish what is decided, then epochs of its own."""
        sink = KafkaSink("none", topic="out", name="out", slots=slots)
        try:
            self._patiently(lambda: sink.look(QUERY))
            self.owner = by
            self._patiently(lambda: sink.fence(QUERY, by))
            self.broker.fenced = max(self.broker.fenced, by.generation)
            self._judge(self._patiently(lambda: sink.look(QUERY, by=by)), by)
            if self.decided:
                self._patiently(lambda: sink.commit(self.decided[-1], by))
            self._patiently(lambda: sink.abort(QUERY, by))
            for _ in range(EPOCHS):
                self._epoch(sink, by, slots)
        except Fenced:
            return

    def _judge(self, shown: Any, by: Actor) -> None:
        """As the coordinator does: the marker is that of the last epoch, or of the one before."""
        last = [Marker(c.position, c.decision.id) for c in self.decided[-2:]]
        if shown.fence == by and shown.marker not in (last if len(last) == 2 else [*last, None]):
            self.broker.violations.append(f"the sink shows {shown.marker}, and the log has {last}")

    def _epoch(self, sink: KafkaSink, by: Actor, slots: int) -> None:
        number = len(self.decided)
        epoch = Epoch(Decision("q1", number, by, f"f{number}"), number + 1)
        cut = self._patiently(lambda: preparing.cut_of(sink._core, PLACE, epoch, by))
        payload: Json = {
            "identity": "kafka:c:t:m",
            "topic": "out",
            "about": {},
            "encoding": sink._core.encoding.to_json(),
        }
        if cut is not None:
            payload |= {"slots": cut, "staged": [Copy("memory", (CopyFile("part", 1, 2),), "").to_json()] * slots}
        committable = Committable("out", epoch.decision, epoch.position, 2 * slots, json.loads(json.dumps(payload)))
        self.broker.step()
        if self.owner != by or len(self.decided) != number:
            raise Fenced("the log is another's", help="none")
        self.decided.append(committable)
        core = sink._core
        for plan in committing.plans_of(core, core.link(), PLACE, committable, by):  # nobody waits for these tasks
            if self.broker.schedule.chance.random() < 0.5:
                self.broker.schedule.spawn(lambda plan=plan: committing.attempt_once(core, plan, committable))  # type: ignore[misc]
        self._patiently(lambda: sink.commit(committable, by))

    def _patiently(self, verb: Callable[[], Any]) -> Any:
        """As the coordinator does, for what may be asked again."""
        for _ in range(200):
            try:
                return verb()
            except (SinkUnavailable, OutcomeUnknown) as error:
                last = error
        raise last


def play(seed: int, patch: pytest.MonkeyPatch) -> Job:
    """One schedule, to its end; what went wrong is in ``broker.violations``."""
    schedule, chance = Schedule(seed), random.Random(-seed)
    job = Job(Broker(schedule))
    with on(job.broker, patch):
        for generation in range(1, STARTS + 1):
            steps = chance.randrange(150) if chance.random() < 0.8 else None
            by, slots = Actor(generation, generation), chance.randint(1, MOST_SLOTS)
            started = schedule.spawn(lambda by=by, slots=slots: job.start(by, slots), steps)  # type: ignore[misc]
            if chance.random() < 0.7:  # else the next one starts beside it
                schedule.run(until=started)
        last = schedule.spawn(lambda: job.start(Actor(STARTS + 1, 99), chance.randint(1, MOST_SLOTS)))
        schedule.run(until=last)
        schedule.run()
    job.broker.violations += [f"{type(error).__name__}: {error}" for error in schedule.failed]
    expected = [row[1] or b"" for c in job.decided for slot in range(slots_of(c)) for row in rows_of(c, slot)]
    if job.broker.visible() != sorted(row.decode() for row in expected):
        job.broker.violations.append(f"visible {job.broker.visible()}, decided {sorted(expected)}")
    return job


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_every_epoch_is_there_once_and_nothing_after_a_fence(monkeypatch: pytest.MonkeyPatch, tenth: int) -> None:
    grew = shrank = 0
    for seed in range(tenth * SCHEDULES // 10, (tenth + 1) * SCHEDULES // 10):
        job = play(seed, monkeypatch)
        assert job.broker.violations == [], f"schedule {seed}, of {job.broker.schedule.steps} steps"
        slots = [slots_of(c) for c in job.decided]
        grew += any(a < b for a, b in pairwise(slots))
        shrank += any(a > b for a, b in pairwise(slots))
    assert grew > 3
    assert shrank > 3
