"""Fence and marker: how they are read, beside whom they are written, and what is foreign."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Actor, Marker
from epochal.coordinator.model.errors import Fenced, Misconfigured, SinkUnavailable
from epochal.sinks.kafka import marker
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic, State
from epochal.sinks.kafka.produce import Outcome
from epochal.sinks.kafka.transaction import Transaction
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO, Target, rows
from tests.real.sinks.kafka.support import await_markers, hanging, read_topic


@pytest.fixture
def target(kafka_server: servers.Kafka, topic: str) -> Target:
    return Target(kafka_server.bootstrap, topic)


def stranger(target: Target, timeout_ms: int = 60_000) -> Producer:
    """A producer of another transactional id, with one state for position 9 open in the marker topic."""
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "transactional.id": f"stranger-{target.topic}",
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(
        target.marker_topic.topic, marker.record(target.marker_topic, State(ONE, Marker(9, 99))), b"marker"
    )
    producer.flush(20)
    return producer


def test_a_look_does_not_wait_for_what_is_open(target: Target) -> None:
    open_one = stranger(target)
    assert target.sink.look(QUERY).fence == ONE
    assert target.sink.look(QUERY).marker is None
    open_one.abort_transaction(20)


def test_a_final_read_waits_for_what_is_open(target: Target) -> None:
    open_one = stranger(target)
    timer = threading.Timer(2, lambda: open_one.commit_transaction(20))
    timer.start()
    assert marker.read(target.link, target.marker_topic, final=True) == State(ONE, Marker(9, 99))
    timer.join()


def test_a_final_read_is_bounded(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    open_one = stranger(target)
    monkeypatch.setattr(Link, "deadline", lambda _link: time.monotonic() + 2)  # each request has longer
    with pytest.raises(SinkUnavailable) as stuck:
        marker.read(target.link, target.marker_topic, final=True)
    assert "a transaction of another transactional id is open" in str(stuck.value)
    open_one.abort_transaction(20)


@pytest.mark.wide
@pytest.mark.remedy(
    "a transaction of another transactional id is open in …[…]",
    "only … may write to this partition: end the other producer, and restart the query once the broker has aborted its"
    " transaction (after its transaction.timeout.ms)",
)
def test_a_start_after_a_stranger_has_ended(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    open_one = stranger(target, timeout_ms=1_000)
    with monkeypatch.context() as patch:
        patch.setattr(Link, "deadline", lambda _link: time.monotonic() + 0.5)
        with pytest.raises(SinkUnavailable, match="a transaction of another transactional id is open"):
            target.sink.look(QUERY, by=ONE)
    del open_one
    await_markers(target.bootstrap, target.marker_topic.topic)
    target.sink.fence(QUERY, TWO)
    state = target.sink.look(QUERY, by=TWO)
    assert (state.fence, state.marker) == (TWO, None)


def test_a_look_ends_nobodys_transaction(target: Target) -> None:
    running = Transaction(target.link, target.marker_topic, 60, {})
    running.init()
    running.begin()
    running.send(target.topic, rows("a"))
    running.flush()
    target.sink.look(QUERY)
    target.sink.look(QUERY, by=TWO)  # not the owner: it may not disturb either
    running.commit()
    running.drop()
    assert [r.value for r in read_topic(target.bootstrap, target.topic)] == [b"a"]


def test_the_owners_final_look_ends_what_its_dead_task_left(target: Target) -> None:
    dead = Transaction(target.link, target.marker_topic, 60, {})
    dead.init()
    dead.begin()
    dead.send(target.topic, rows("a"))
    dead.flush()
    dead.drop()
    assert hanging(target.bootstrap, target.topic) != []
    assert target.sink.look(QUERY, by=ONE).fence == ONE
    assert hanging(target.bootstrap, target.topic) == []
    assert read_topic(target.bootstrap, target.topic) == []


def test_aborted_records_at_the_end_hide_nothing(target: Target) -> None:
    assert target.commit(0, rows("a")).outcome is Outcome.COMMITTED
    before = target.state()
    transaction = Transaction(target.link, target.marker_topic, 60, {})
    transaction.init()
    transaction.begin()
    foreign = marker.record(target.marker_topic, State(TWO, Marker(8, 88)))
    transaction.send(target.marker_topic.topic, [(b"marker", foreign)] * (3 * marker.TAIL))
    transaction.flush()
    transaction.abort()
    assert target.state() == before == marker.read(target.link, target.marker_topic, final=True)


def test_fence_and_marker_are_found_however_far_apart(target: Target) -> None:
    plain = Producer({"bootstrap.servers": target.bootstrap, "acks": "all"})
    for position in range(1, 3 * marker.TAIL):
        state = State(ONE, Marker(position, position))
        plain.produce(target.marker_topic.topic, marker.record(target.marker_topic, state), b"marker")
    assert plain.flush(20) == 0
    assert target.state() == State(ONE, Marker(3 * marker.TAIL - 1, 3 * marker.TAIL - 1))
    target.sink.fence(QUERY, TWO)
    assert target.state() == State(TWO, Marker(3 * marker.TAIL - 1, 3 * marker.TAIL - 1))


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"version": 99, "app": "flights"}'])
def test_a_foreign_record_is_refused_and_shown(target: Target, value: bytes) -> None:
    plain = Producer({"bootstrap.servers": target.bootstrap})
    plain.produce(target.marker_topic.topic, value, b"marker")
    plain.flush(20)
    with pytest.raises(Misconfigured, match="holds a record that is not this sink's") as refused:
        target.state()
    assert repr(value) in str(refused.value)


def test_names_that_make_the_same_topic_are_told_apart() -> None:
    value = marker.record(MarkerTopic("a.b", "c"), State(ONE))
    assert MarkerTopic("a", "b.c").topic == MarkerTopic("a.b", "c").topic
    with pytest.raises(Misconfigured):
        marker.parse(MarkerTopic("a", "b.c"), value)


def test_a_record_says_everything_in_json(target: Target) -> None:
    target.commit(0, rows("a"))
    records = read_topic(target.bootstrap, target.marker_topic.topic)
    assert [r.key for r in records] == [b"fence", b"marker-1"]
    last = json.loads(records[-1].value or b"")
    assert last["fence"] == ONE.to_json()
    assert last["marker"]["position"] == 1
    assert last["epoch"]["decision"]["epoch"] == 0


@pytest.mark.parametrize("round_", range(3))
def test_of_two_that_fence_at_once_one_owns(kafka_server: servers.Kafka, topic: str, round_: int) -> None:
    target = Target(kafka_server.bootstrap, topic)
    rivals = [Actor(5, 51 + round_), Actor(5, 61 + round_)]
    start = threading.Barrier(2)

    def fence(actor: Actor) -> bool:
        start.wait(120)
        try:
            target.sink.fence(QUERY, actor)
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(fence, rivals))
    owner = target.state().fence
    assert owner in rivals
    assert won == [actor == owner for actor in rivals]


@pytest.mark.parametrize("step", ["init", "begin"])
def test_a_rival_that_fences_in_between_is_seen(target: Target, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The slower one has looked (or has read after init), the faster one fences whole, the slower one goes on."""
    original, rival = getattr(Transaction, step), Actor(5, 51)

    def late(transaction: Transaction) -> None:
        monkeypatch.setattr(Transaction, step, original)
        target.sink.fence(QUERY, rival)
        original(transaction)

    monkeypatch.setattr(Transaction, step, late)
    with pytest.raises(Fenced):
        target.sink.fence(QUERY, Actor(5, 61))
    assert target.state().fence == rival


def test_a_fence_keeps_the_marker(target: Target) -> None:
    target.commit(0, rows("a"))
    before = target.state().marker
    target.sink.fence(QUERY, TWO)
    assert target.state() == State(TWO, before, kept=1)


def test_records_that_are_not_read_to_the_end_are_an_error(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "deadline", lambda _link: time.monotonic() + 2)
    with target.link.consumer() as consumer, pytest.raises(TimeoutError, match="was not read up to offset 1000"):
        list(marker.records(target.link, target.marker_topic, consumer, 0, 1000))
