"""Deliveries into open transactions of a real broker, whatever fails: after the commit every row is there once."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from epochal.chaos import servers
from epochal.sinks.kafka.batches import frame, records
from epochal.sinks.kafka.delivery import deliver as module
from epochal.sinks.kafka.delivery.deliver import (
    Batch,
    Delivered,
    RecordsDamaged,
    Stream,
    Transaction,
    deliver,
)
from epochal.sinks.kafka.wire import messages
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, BrokerError, is_fenced
from epochal.sinks.kafka.wire.messages import Partition, Piece
from epochal.sinks.kafka.wire.reach import Reach, reach_of
from tests.real.sinks.kafka.support import await_markers, read_topic

if TYPE_CHECKING:
    from epochal.chaos.servers.toxiproxy import Proxy

TIMEOUT_MS = 120_000
DELIVERER = """
import pickle, sys, time
from epochal.sinks.kafka.delivery.deliver import Stream, deliver
from epochal.sinks.kafka.wire.cluster import Cluster
reach, transaction, batches = pickle.load(sys.stdin.buffer)
streams = {where: Stream(its) for where, its in batches.items()}
with Cluster(reach) as cluster:
    deliver(cluster, transaction, streams, in_flight=5, deadline=time.monotonic() + 60,
            between=lambda: print(".", flush=True))
"""
"""What an owner's process does; it prints a line after each answer."""


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


class Epoch:
    """An open transaction, and the batches that belong into it.

    ``rows`` in each partition, with a row's number as its key, cut into batches of ``size`` rows.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, rows: int, size: int, value: int = 10) -> None:
        self.bootstrap, self.topic, self.rows = bootstrap, topic, rows
        self.reach = reach_of(bootstrap, {"socket.timeout.ms": 2000}, 60)
        self.batches = {
            Partition(topic, number): [_batch(first, min(first + size, rows), value) for first in range(0, rows, size)]
            for number in range(partitions)
        }
        with Cluster(self.reach) as cluster:
            producer = cluster.init_producer(topic, TIMEOUT_MS, soon())
            cluster.add_partitions(topic, producer, self.batches, soon())
        self.transaction = Transaction(topic, producer, int(time.time() * 1000))

    def deliver(
        self,
        *,
        is_repeated: bool = False,
        between: Callable[[Cluster], None] = lambda _: None,
        reach: Reach | None = None,
        seconds: float = 100,
    ) -> Mapping[Partition, Delivered]:
        streams = {where: Stream(its) for where, its in self.batches.items()}
        with Cluster(reach or self.reach) as cluster:
            return deliver(
                cluster,
                self.transaction,
                streams,
                in_flight=5,
                deadline=soon(seconds),
                is_repeated=is_repeated,
                between=lambda: between(cluster),
            )

    def process(self) -> subprocess.Popen[bytes]:
        """An owner in a process of its own."""
        started = subprocess.Popen([sys.executable, "-c", DELIVERER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert started.stdin is not None
        pickle.dump((self.reach, self.transaction, self.batches), started.stdin)
        started.stdin.close()
        return started

    def commit(self) -> None:
        with Cluster(self.reach) as cluster:
            for _ in range(2):  # the second answer comes when every partition knows
                assert cluster.end_transaction(self.topic, self.transaction.producer, soon()) == 0

    def check_whole(self, *delivered: Mapping[Partition, Delivered]) -> None:
        """Commit; then readers of both kinds see each row once and in order, at the offsets that were told."""
        self.commit()
        for isolation in ("read_committed", "read_uncommitted"):
            seen = read_topic(self.bootstrap, self.topic, isolation)
            for where in self.batches:
                found = [int(record.key or b"-1") for record in seen if record.partition == where.partition]
                assert found == list(range(self.rows)), f"{isolation}, {where}"
        for each in delivered:
            assert each == dict.fromkeys(self.batches, Delivered(self.rows, 0))


def _batch(first: int, last: int, value: int) -> Batch:
    data = records.encode_one([(b"%d" % number, b"x" * value) for number in range(first, last)])
    return Batch(data, 0, len(data), last - first, 0, frame.checksum(data))


@pytest.fixture
def make(kafka_server: servers.Kafka, topic_name: str) -> Callable[..., Epoch]:
    """An epoch of some partitions, rows in each, and rows in a batch."""

    def epoch(partitions: int, rows: int, size: int, **options: int) -> Epoch:
        kafka_server.create_topic(topic_name, partitions)
        return Epoch(kafka_server.bootstrap, topic_name, partitions, rows, size, **options)

    return epoch


# nothing fails


@pytest.mark.parametrize(
    ("partitions", "rows", "size"), [(3, 40, 1), (60, 2, 1), pytest.param(1, 50_000, 1_000, marks=pytest.mark.wide)]
)
def test_batches_of_one_row_and_many_partitions(
    make: Callable[..., Epoch], partitions: int, rows: int, size: int
) -> None:
    epoch = make(partitions, rows, size)
    epoch.check_whole(epoch.deliver())


def test_more_than_a_request_may_hold_is_sent_in_several(
    make: Callable[..., Epoch], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, sizes = make(10, 2, 1, value=900_000), []
    produce = messages.produce

    def noting(transactional_id: str, batches: Mapping[Partition, Sequence[Piece]], timeout_ms: int) -> list[Piece]:
        sizes.append(sum(messages.size(piece) for pieces in batches.values() for piece in pieces))
        return produce(transactional_id, batches, timeout_ms)

    monkeypatch.setattr(messages, "produce", noting)
    epoch.check_whole(epoch.deliver())
    assert len(sizes) >= 4
    assert 2 * 900_000 < max(sizes) < module.REQUEST_BYTES + 10_000


# connections and processes that fail


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(2, 12))])
def test_connections_that_are_closed_at_random(make: Callable[..., Epoch], seed: int) -> None:
    epoch, chosen = make(4, 120, 3), random.Random(seed)

    def closing(cluster: Cluster) -> None:
        if chosen.random() < 0.15:
            cluster.close()

    epoch.check_whole(epoch.deliver(between=closing, is_repeated=seed % 2 == 0))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(2, 12))])
def test_three_deliverers_of_the_same_partitions_at_once(make: Callable[..., Epoch], seed: int) -> None:
    epoch = make(5, 120, 2)

    def one(number: int) -> Mapping[Partition, Delivered]:
        chosen = random.Random(10 * seed + number)

        def closing(cluster: Cluster) -> None:
            if chosen.random() < 0.05:
                cluster.close()

        return epoch.deliver(between=closing, is_repeated=number == 2)

    with ThreadPoolExecutor(3) as threads:
        epoch.check_whole(*threads.map(one, range(3)))


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.wide)])
def test_deliverers_that_are_killed_and_one_that_takes_over(make: Callable[..., Epoch], kills: int) -> None:
    """The last one goes on while a killed one's requests may still be on their way."""
    epoch, chosen = make(4, 200, 2), random.Random(kills)
    for _ in range(kills):
        with epoch.process() as owner:
            assert owner.stdout is not None
            for _ in range(chosen.randint(1, 40)):
                owner.stdout.readline()
            owner.kill()
    epoch.check_whole(epoch.deliver(is_repeated=True))


@pytest.mark.wide
def test_a_broker_that_is_killed_in_mid_delivery(make: Callable[..., Epoch], kafka_server: servers.Kafka) -> None:
    epoch = make(4, 200, 2)
    answered: list[int] = []
    threads: list[threading.Thread] = []

    def crashing(_: Cluster) -> None:
        answered.append(1)
        if len(answered) == 50:
            kafka_server.crash()
            threads.append(threading.Thread(target=kafka_server.start))
            threads[0].start()

    delivered = epoch.deliver(between=crashing)
    for thread in threads:
        thread.join()
    assert threads
    epoch.commit()
    await_markers(epoch.bootstrap, epoch.topic)
    epoch.check_whole(delivered)


@pytest.fixture
def behind(kafka_proxy: Proxy) -> Reach:
    return reach_of(kafka_proxy.address, {"socket.timeout.ms": 1000}, 60)


@pytest.mark.parametrize(
    "fault", ["half_open", *(pytest.param(fault, marks=pytest.mark.wide) for fault in ("cut", "lose_answer", "slow"))]
)
def test_a_link_that_fails_in_mid_delivery(
    make: Callable[..., Epoch], kafka_proxy: Proxy, behind: Reach, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A link that is open and carries nothing costs a part of the time that the transaction lasts, not all of it."""
    monkeypatch.setattr(Cluster, "answer_s", 0.5)
    monkeypatch.setattr(module, "DRAIN_S", 0.2)
    epoch, answered = make(3, 60, 3), list[int]()
    timers: list[threading.Timer] = []

    def failing(_: Cluster) -> None:
        answered.append(1)
        if len(answered) in (4, 9):
            for timer in timers:
                timer.join()
            kafka_proxy.latency(300, 200) if fault == "slow" else getattr(kafka_proxy, fault)()
            timers.append(threading.Timer(0.6, kafka_proxy.clear))
            timers[-1].start()

    delivered = epoch.deliver(between=failing, reach=behind, seconds=100)
    for timer in timers:
        timer.join()
    assert len(timers) == 2
    epoch.check_whole(delivered)


# what ends a delivery


def test_a_fence_in_mid_delivery_ends_it_and_nothing_is_seen(make: Callable[..., Epoch]) -> None:
    epoch, answered = make(2, 60, 2), list[int]()

    def fencing(_: Cluster) -> None:
        answered.append(1)
        if len(answered) == 5:
            with Cluster(epoch.reach) as other:
                other.init_producer(epoch.topic, TIMEOUT_MS, soon())

    with pytest.raises(BrokerError) as refused:
        epoch.deliver(between=fencing)
    assert is_fenced(refused.value.code)
    with pytest.raises(BrokerError, match="newer epoch") as refused:
        epoch.deliver(is_repeated=True)
    assert refused.value.code == INVALID_PRODUCER_EPOCH
    with pytest.raises(BrokerError) as refused:
        epoch.deliver()
    assert is_fenced(refused.value.code)
    assert read_topic(epoch.bootstrap, epoch.topic) == []


def test_an_attempt_that_comes_after_the_commit_adds_nothing(make: Callable[..., Epoch]) -> None:
    epoch = make(2, 60, 2)
    delivered = epoch.deliver()
    epoch.check_whole(delivered)
    for is_repeated in (True, False):
        with pytest.raises(BrokerError) as refused:
            epoch.deliver(is_repeated=is_repeated)
        assert refused.value.code == INVALID_TXN_STATE
    epoch.check_whole(delivered)


def test_records_that_were_changed_are_not_sent(make: Callable[..., Epoch]) -> None:
    epoch = make(1, 6, 2)
    where = Partition(epoch.topic, 0)
    last = epoch.batches[where][2]
    assert isinstance(last.source, bytes)
    epoch.batches[where][2] = last._replace(source=last.source.replace(b"x", b"y", 1))
    with pytest.raises(RecordsDamaged):
        epoch.deliver()
    epoch.batches[where][2] = last
    epoch.check_whole(epoch.deliver(is_repeated=True))
