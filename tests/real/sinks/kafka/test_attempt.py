"""One attempt at one epoch, and what others do meanwhile: zombies, lost answers, crashes, time running out."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import pytest

from epochal.chaos import servers
from epochal.chaos.servers.process import wait_until
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    Fenced,
    MarkerLost,
    Misconfigured,
    OutcomeUnknown,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import AnswerDropped, FailpointError, Point
from epochal.sinks.kafka import produce
from epochal.sinks.kafka.committing import ATTEMPTS, attempt_until_shown
from epochal.sinks.kafka.produce import AttemptResult, Outcome, Plan
from epochal.sinks.kafka.transaction import Transaction
from tests.real.sinks.kafka.attempts import ONE, PATIENT_S, QUERY, TWO, Target, rows
from tests.real.sinks.kafka.support import SECRET, await_markers, hanging, read_topic, set_max_message_bytes

if TYPE_CHECKING:
    from epochal.chaos.servers.toxiproxy import Proxy


@pytest.fixture
def target(kafka_server: servers.Kafka, topic: str) -> Target:
    return Target(kafka_server.bootstrap, topic)


def seen(target: Target) -> list[str]:
    """The values that a read_committed consumer sees, in order (one partition)."""
    return [(r.value or b"").decode() for r in read_topic(target.bootstrap, target.topic)]


@contextlib.contextmanager
def once(point: Point, act: Callable[[], None]) -> Iterator[list[Point]]:
    """``act`` at the first hit of ``point``; what is yielded tells whether it was hit."""
    struck: list[Point] = []

    def handle(at: Point, _sink: str, _epoch: int) -> None:
        if at is point and not struck:
            struck.append(at)
            act()

    with failpoints.handler(handle):
        yield struck


class Pause:
    """Holds the first attempt that comes to ``point`` until it is let go."""

    def __init__(self, target: Target, point: Point, epoch: int) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._target, self._point, self._epoch = target, point, epoch

    @contextlib.contextmanager
    def holding(self, attempt: Callable[[], AttemptResult]) -> Iterator[Future[AttemptResult]]:
        with once(self._point, self._hold), ThreadPoolExecutor(1) as pool:
            try:
                running = pool.submit(attempt)
                assert self.reached.wait(120)
                yield running
            finally:
                self.go.set()

    def _hold(self) -> None:
        self.reached.set()
        assert self.go.wait(60)


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


# zombies and twins


def test_rows_are_seen_only_with_their_marker(target: Target) -> None:
    assert target.commit(0, rows("a", "b")) == AttemptResult(Outcome.COMMITTED)
    assert (seen(target), target.position()) == (["a", "b"], 1)


def test_a_late_task_of_an_earlier_epoch_writes_nothing(target: Target) -> None:
    target.commit(0, rows("a"))
    target.commit(1, rows("b"))
    answer = target.commit(0, rows("a"))
    assert answer.outcome is Outcome.STOPPED
    assert isinstance(answer.error, CheckpointMismatch)
    assert seen(target) == ["a", "b"]


def test_a_late_twin_finds_its_epoch_committed(target: Target) -> None:
    target.commit(0, rows("a"))
    assert target.commit(0, rows("a")) == AttemptResult(Outcome.ALREADY_COMMITTED)
    assert seen(target) == ["a"]


def test_a_task_that_is_one_epoch_early_writes_nothing(target: Target) -> None:
    answer = target.commit(1, rows("b"))
    assert isinstance(answer.error, MarkerLost)
    assert seen(target) == []


def test_a_task_of_a_fenced_driver_writes_nothing(target: Target) -> None:
    target.sink.fence(QUERY, TWO)
    answer = target.commit(0, rows("a"))
    assert isinstance(answer.error, Fenced)
    assert seen(target) == []


def test_a_fence_ends_the_transaction_of_an_older_task(target: Target) -> None:
    pause = Pause(target, Point.BEFORE_PUBLISH, 0)
    with pause.holding(lambda: target.commit(0, rows("a"))) as old:
        target.sink.fence(QUERY, TWO)
        assert hanging(target.bootstrap, target.topic) == []
    assert isinstance(old.result().error, Fenced)
    assert isinstance(target.commit(0, rows("a")).error, Fenced)
    assert seen(target) == []
    assert produce.attempt(target.plan(0, rows("a"), by=TWO), [rows("a")]) == AttemptResult(Outcome.COMMITTED)


def test_of_two_tasks_at_once_one_writes(target: Target) -> None:
    pause = Pause(target, Point.IN_WRITE, 0)
    with pause.holding(lambda: target.commit(0, rows("a", "b"))) as first:
        assert target.commit(0, rows("a", "b")).outcome is Outcome.COMMITTED
    assert first.result().outcome is Outcome.INTERRUPTED
    assert target.commit(0, rows("a", "b")).outcome is Outcome.ALREADY_COMMITTED
    assert seen(target) == ["a", "b"]


def test_what_lands_just_before_init_is_seen_after_it(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    init = Transaction.init

    def late_init(transaction: Transaction) -> None:
        monkeypatch.setattr(Transaction, "init", init)
        assert target.commit(0, rows("a")).outcome is Outcome.COMMITTED
        init(transaction)

    monkeypatch.setattr(Transaction, "init", late_init)
    assert target.commit(0, rows("a")).outcome is Outcome.ALREADY_COMMITTED
    assert seen(target) == ["a"]


@pytest.mark.parametrize("point", [Point.IN_WRITE, Point.BEFORE_PUBLISH])
def test_an_interrupted_epoch_is_attempted_again(target: Target, point: Point) -> None:
    def intrude() -> None:
        intruder = Transaction(target.link, target.marker_topic, 60, {})
        intruder.init()
        intruder.drop()

    with once(point, intrude) as struck:
        plan = target.plan(0, rows("a", "b"))
        answer = attempt_until_shown(plan, lambda: produce.attempt(plan, [rows("a", "b")]))
    assert struck
    assert answer.outcome is Outcome.COMMITTED
    assert seen(target) == ["a", "b"]


def test_endless_interruption_is_given_back(target: Target) -> None:
    with pytest.raises(SinkUnavailable, match="ended by other producers of epochal-flights-"):
        attempt_until_shown(target.plan(0, rows("a")), lambda: AttemptResult(Outcome.INTERRUPTED))


@pytest.mark.wide
@pytest.mark.remedy(
    "… transactions were ended by other producers of …",
    "end what else uses this transactional id, and restart the query",
)
def test_an_epoch_is_shown_once_nobody_else_uses_the_transactional_id(target: Target) -> None:
    """Another producer of the same id is initialised whenever the epoch is about to be committed."""
    plan, others = target.plan(0, rows("a")), list[Transaction]()

    def intrude(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.BEFORE_PUBLISH:
            others.append(Transaction(target.link, target.marker_topic, 60, {}))
            others[-1].init()

    with failpoints.handler(intrude), pytest.raises(SinkUnavailable, match="ended by other producers of epochal-"):
        attempt_until_shown(plan, lambda: produce.attempt(plan, [rows("a")]))
    assert len(others) == ATTEMPTS
    for other in others:
        other.drop()
    assert target.commit(0, rows("a")).outcome is Outcome.COMMITTED
    assert seen(target) == ["a"]


@pytest.mark.wide
@pytest.mark.remedy(
    "Kafka at … did not take …: …",
    "start the brokers, or make them reachable from the executors under the addresses that they advertise"
    " (advertised.listeners), and restart the query",
)
def test_an_epoch_is_shown_once_the_brokers_are_reached_again(
    kafka_server: servers.Kafka, topic: str, kafka_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request to commit gets lost, and the marker says so."""
    Target(kafka_server.bootstrap, topic)
    target, resolve = Target(kafka_proxy.address, topic), produce._resolve

    def heal_and_resolve(plan: Plan, error: Exception | None = None, late: bool = False) -> AttemptResult:
        kafka_proxy.clear()
        target.set_timeout(PATIENT_S)
        return resolve(plan, error, late)

    with monkeypatch.context() as patch, once(Point.BEFORE_PUBLISH, hasty(target, kafka_proxy.cut)) as struck:
        patch.setattr(produce, "_resolve", heal_and_resolve)
        answer = target.commit(0, rows("a", "b"))
    assert struck
    assert isinstance(answer.error, SinkUnavailable)
    assert seen(target) == []
    assert target.commit(0, rows("a", "b")).outcome is Outcome.COMMITTED
    assert seen(target) == ["a", "b"]


@pytest.mark.wide
@pytest.mark.remedy("a dropped producer was used", "restart the query")
@pytest.mark.remedy("a Kafka producer of process … was used in process …, after a fork", "restart the query")
def test_a_producer_that_may_not_be_used_is_in_nobodys_way(target: Target) -> None:
    """First as if another process had made the producer, then after it was dropped."""
    transaction = Transaction(target.link, target.marker_topic, 60, {})
    transaction.init()
    mine = transaction._pid
    transaction._pid = -1
    with pytest.raises(Misconfigured, match="after a fork"):
        transaction.begin()
    transaction._pid = mine
    transaction.drop()
    with pytest.raises(Misconfigured, match="a dropped producer was used"):
        transaction.begin()
    assert Target(target.bootstrap, target.topic).commit(0, rows("a")).outcome is Outcome.COMMITTED
    assert seen(target) == ["a"]


def test_a_task_that_dies_again_and_again_leaves_the_outcome_unknown(target: Target) -> None:
    dead = AttemptResult(Outcome.LOST, OutcomeUnknown("the job failed", help="commit again"))
    with pytest.raises(OutcomeUnknown, match="the job failed"):
        attempt_until_shown(target.plan(0, rows("a")), lambda: dead)
    answers = iter([dead, dead, AttemptResult(Outcome.ALREADY_COMMITTED)])
    assert attempt_until_shown(target.plan(0, rows("a")), lambda: next(answers)).outcome is Outcome.ALREADY_COMMITTED


# what is decided is all written, or nothing is


@pytest.mark.remedy(
    "the durable copy gave … rows, and … were voted for",
    "bring the copy back as it was (from a backup of the checkpoint), then restart the query",
)
@pytest.mark.parametrize("more", [-1, 1])
def test_another_number_of_rows_than_voted_for_is_not_committed(target: Target, more: int) -> None:
    plan = replace(target.plan(0, rows("a", "b")), rows=2 + more)
    answer = produce.attempt(plan, [rows("a", "b")])
    assert isinstance(answer.error, CommitInDoubt)
    assert f"gave 2 rows, and {2 + more} were voted for" in str(answer.error)
    assert (seen(target), target.position()) == ([], 0)
    assert hanging(target.bootstrap, target.topic) == []
    assert produce.attempt(plan, [rows(*"abc"[: 2 + more])]).outcome is Outcome.COMMITTED


@pytest.mark.remedy(
    "… rows that were voted for cannot be produced into …: …",
    "remove what the broker objects to (rights, settings of the topic), then restart the query",
)
def test_a_failed_delivery_fails_the_epoch(target: Target) -> None:
    set_max_message_bytes(target.bootstrap, target.topic, 3_000)
    big = "x" * 10_000
    answer = target.commit(0, rows("a", big, "b"))
    assert isinstance(answer.error, CommitInDoubt)
    assert "MSG_SIZE_TOO_LARGE" in str(answer.error)
    assert (seen(target), target.position()) == ([], 0)
    assert hanging(target.bootstrap, target.topic) == []
    set_max_message_bytes(target.bootstrap, target.topic, 1_000_000)
    assert target.commit(0, rows("a", big, "b")).outcome is Outcome.COMMITTED
    assert seen(target) == ["a", big, "b"]


@pytest.mark.parametrize("point", [Point.IN_WRITE, Point.BEFORE_PUBLISH])
@pytest.mark.parametrize(
    ("error", "kind"), [(FailpointError("boom"), CommitInDoubt), (AnswerDropped("gone"), SinkUnavailable)]
)
def test_what_fails_before_the_commit_leaves_nothing(
    target: Target, point: Point, error: Exception, kind: type[Exception]
) -> None:
    with once(point, raising(error)) as struck:
        answer = target.commit(0, rows("a", "b"))
    assert struck
    assert isinstance(answer.error, kind)
    assert (seen(target), target.position()) == ([], 0)
    assert hanging(target.bootstrap, target.topic) == []
    assert target.commit(0, rows("a", "b")).outcome is Outcome.COMMITTED


# lost answers


@pytest.mark.parametrize("error", [AnswerDropped("gone"), FailpointError("boom")])
def test_the_marker_tells_what_a_lost_answer_was(target: Target, error: Exception) -> None:
    with once(Point.AFTER_PUBLISH, raising(error)) as struck:
        assert target.commit(0, rows("a")) == AttemptResult(Outcome.COMMITTED)
    assert struck
    assert target.commit(0, rows("a")) == AttemptResult(Outcome.ALREADY_COMMITTED)
    assert seen(target) == ["a"]


def hasty(target: Target, fault: Callable[[], None]) -> Callable[[], None]:
    """The fault; from then on requests are given up soon."""

    def strike() -> None:
        fault()
        target.set_timeout(4)

    return strike


@pytest.mark.remedy(
    "the commit of … was asked for and not answered: …",
    "restart the query: the marker is asked before anything is written",
)
def test_a_lost_answer_without_a_reachable_marker_is_unknown(
    kafka_server: servers.Kafka, topic: str, kafka_proxy: Proxy
) -> None:
    Target(kafka_server.bootstrap, topic)
    target = Target(kafka_proxy.address, topic)
    with once(Point.BEFORE_PUBLISH, hasty(target, kafka_proxy.lose_answer)) as struck:
        answer = target.commit(0, rows("a", "b"))
    assert struck
    assert isinstance(answer.error, OutcomeUnknown)
    assert "2 rows was asked for and not answered" in str(answer.error)
    kafka_proxy.clear()
    target.set_timeout(PATIENT_S)
    assert target.commit(0, rows("a", "b")).outcome is Outcome.ALREADY_COMMITTED
    assert [r.value for r in read_topic(kafka_server.bootstrap, topic)] == [b"a", b"b"]


@pytest.mark.wide
def test_a_commit_request_that_never_arrives_is_made_again(
    kafka_server: servers.Kafka, topic: str, kafka_proxy: Proxy
) -> None:
    target = Target(kafka_proxy.address, topic)
    with once(Point.BEFORE_PUBLISH, hasty(target, kafka_proxy.cut)) as struck:
        answer = target.commit(0, rows("a", "b"))
    assert struck
    assert isinstance(answer.error, OutcomeUnknown)
    assert [r.value for r in read_topic(kafka_server.bootstrap, topic)] == []
    kafka_proxy.clear()
    target.set_timeout(PATIENT_S)
    assert target.commit(0, rows("a", "b")).outcome is Outcome.COMMITTED
    assert [r.value for r in read_topic(kafka_server.bootstrap, topic)] == [b"a", b"b"]


def test_a_commit_request_that_arrives_late_ends_no_other_transaction(
    kafka_server: servers.Kafka, topic: str, kafka_proxy: Proxy
) -> None:
    """Its client has given it up, and the next attempt is in mid-write when it arrives."""
    target = Target(kafka_server.bootstrap, topic)
    slow = Target(kafka_proxy.address, topic)
    with once(Point.BEFORE_PUBLISH, hasty(slow, kafka_proxy.hold_requests)) as struck:
        answer = slow.commit(0, rows("a", "b"))
    assert struck
    assert isinstance(answer.error, OutcomeUnknown)

    def deliver() -> None:
        kafka_proxy.clear()
        time.sleep(1)

    with once(Point.IN_WRITE, deliver) as struck:
        assert target.commit(0, rows("a", "b")) == AttemptResult(Outcome.COMMITTED)
    assert struck
    assert (seen(target), target.position()) == (["a", "b"], 1)


def test_rows_that_arrive_after_their_transaction_was_aborted_hold_up_no_reader(
    kafka_server: servers.Kafka, topic: str, kafka_proxy: Proxy
) -> None:
    target = Target(kafka_server.bootstrap, topic)
    transaction = left_open(Target(kafka_proxy.address, topic), 60)
    kafka_proxy.hold_requests()
    transaction.send(topic, rows("b"))
    time.sleep(0.5)  # the client has sent it
    transaction.drop()
    assert hanging(target.bootstrap, topic) != []
    target.sink.abort(QUERY, ONE)
    assert hanging(target.bootstrap, topic) == []
    kafka_proxy.clear()
    time.sleep(1)
    assert hanging(target.bootstrap, topic) == []
    assert target.commit(0, rows("a", "b")) == AttemptResult(Outcome.COMMITTED)
    assert seen(target) == ["a", "b"]


def left_open(target: Target, seconds: float) -> Transaction:
    """A transaction that may last so long, with one row that the broker has."""
    transaction = Transaction(target.link, target.marker_topic, seconds, {})
    transaction.init()
    transaction.begin()
    transaction.send(target.topic, rows("a"))
    transaction.flush()
    return transaction


def test_a_dropped_producer_aborts_nothing(target: Target) -> None:
    left_open(target, 60).drop()
    time.sleep(1)
    assert hanging(target.bootstrap, target.topic) != []
    target.sink.abort(QUERY, target.plan(0, []).by)
    assert hanging(target.bootstrap, target.topic) == []


# crash, time


def test_a_broker_crash_in_mid_write_loses_and_doubles_nothing(kafka_server: servers.Kafka, target: Target) -> None:
    many = rows(*(f"row-{n}" for n in range(5_000)))

    def crash() -> None:
        kafka_server.crash()
        kafka_server.start()

    with once(Point.IN_WRITE, crash) as struck:
        plan = target.plan(0, many)
        batches = [many[n : n + 1_000] for n in range(0, 5_000, 1_000)]
        answer = attempt_until_shown(plan, lambda: produce.attempt(plan, batches))
    assert struck
    assert answer.outcome is Outcome.COMMITTED
    assert seen(target) == [f"row-{n}" for n in range(5_000)]


def until_expired(target: Target) -> None:
    """Wait until the broker has ended the transaction that is open: its time is over."""
    wait_until(lambda: hanging(target.bootstrap, target.topic) or None, 120)
    await_markers(target.bootstrap, target.topic)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", [Point.IN_WRITE, Point.BEFORE_PUBLISH])
def test_an_epoch_whose_transaction_has_expired_is_produced_again(target: Target, point: Point) -> None:
    plan = replace(target.plan(0, rows("a", "b")), transaction_timeout=4.0)
    with once(point, lambda: until_expired(target)) as struck:
        answer = attempt_until_shown(plan, lambda: produce.attempt(plan, [rows("a", "b")]))
    assert struck
    assert answer.outcome is Outcome.COMMITTED
    assert (seen(target), target.position()) == (["a", "b"], 1)


@pytest.mark.timeout(300)
def test_a_decided_epoch_is_produced_by_the_next_start_when_its_transaction_has_expired(target: Target) -> None:
    left_open(target, 1).drop()
    until_expired(target)
    target.sink.fence(QUERY, TWO)
    plan = target.plan(0, rows("a", "b"), by=TWO)
    assert attempt_until_shown(plan, lambda: produce.attempt(plan, [rows("a", "b")])).outcome is Outcome.COMMITTED
    assert (seen(target), target.position()) == (["a", "b"], 1)


@pytest.mark.timeout(300)
def test_an_abort_that_is_refused_as_the_time_was_over_ends_nothing(target: Target) -> None:
    transaction = left_open(target, 1)
    until_expired(target)
    transaction.abort()
    assert target.commit(0, rows("a", "b")) == AttemptResult(Outcome.COMMITTED)
    assert seen(target) == ["a", "b"]


def test_rows_that_no_broker_takes_in_time_fail_the_epoch(
    kafka_server: servers.Kafka, topic: str, kafka_proxy: Proxy
) -> None:
    target = Target(kafka_proxy.address, topic)
    plan = replace(target.plan(0, rows("a", "b")), transaction_timeout=2.0)
    with once(Point.IN_WRITE, hasty(target, kafka_proxy.cut)) as struck:
        assert produce.attempt(plan, [rows("a", "b")]) == AttemptResult(Outcome.EXPIRED)
    assert struck
    assert read_topic(kafka_server.bootstrap, topic) == []
    kafka_proxy.clear()
    target.set_timeout(PATIENT_S)
    assert target.commit(0, rows("a", "b")).outcome is Outcome.COMMITTED
    assert seen(target) == ["a", "b"]


@pytest.mark.timeout(300)
def test_a_transaction_that_takes_too_long_twice_is_in_doubt(target: Target) -> None:
    plan = replace(target.plan(0, rows("a", "b")), transaction_timeout=1.0)

    def wait_for_the_broker(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.IN_WRITE:
            until_expired(target)

    with failpoints.handler(wait_for_the_broker), pytest.raises(CommitInDoubt) as stopped:
        attempt_until_shown(plan, lambda: produce.attempt(plan, [rows("a", "b")]))
    text = str(stopped.value)
    assert "2 rows could not be produced within the transaction timeout of 1 s, 2 times" in text
    assert "raise transaction_timeout=" in text
    assert (seen(target), target.position()) == ([], 0)
    assert produce.attempt(plan, [rows("a", "b")]).outcome is Outcome.COMMITTED


@pytest.mark.wide
@pytest.mark.remedy(
    "Kafka at … did not answer the request … within … s: …",
    "start the brokers, or make them reachable from here under the addresses that they advertise"
    " (advertised.listeners)",
)
def test_a_broker_that_is_down_is_named_in_bounded_time(kafka_server: servers.Kafka, topic: str) -> None:
    target = Target(kafka_server.bootstrap, topic)
    kafka_server.crash()
    target.set_timeout(3)
    answer = target.commit(0, rows("a"))
    assert isinstance(answer.error, SinkUnavailable)
    for call in (
        lambda: target.sink.look(QUERY),
        lambda: target.sink.fence(QUERY, TWO),
        lambda: target.sink.create(QUERY, None),
        lambda: target.sink.abort(QUERY, TWO),
    ):
        with pytest.raises(SinkUnavailable) as down:
            call()
        assert kafka_server.bootstrap in str(down.value)
        assert SECRET not in str(down.value)
    kafka_server.start()
    target.set_timeout(PATIENT_S)
    assert target.sink.look(QUERY).fence == ONE
    assert target.commit(0, rows("a")).outcome is Outcome.COMMITTED


# processes


def _use(transaction: Transaction, answer: Connection) -> None:
    try:
        transaction.begin()
        answer.send("used")
    except Misconfigured as error:
        answer.send(str(error))


def test_a_producer_is_refused_after_a_fork(target: Target) -> None:
    transaction = Transaction(target.link, target.marker_topic, 60, {})
    transaction.init()
    fork = multiprocessing.get_context("fork")
    answer, childs_end = fork.Pipe()
    child = fork.Process(target=_use, args=(transaction, childs_end), daemon=True)
    child.start()
    childs_end.close()
    try:
        assert answer.poll(120), "the forked process uses the producer, and hangs in it"
        assert "after a fork" in answer.recv()
    finally:
        child.kill()
        child.join(120)
        transaction.drop()
