"""Leaders and coordinators that move: two brokers on loopback that say what a test has them say."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from epochal.sinks.kafka.wire import cluster as module
from epochal.sinks.kafka.wire import messages as m
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood, BrokerError, PartitionGone
from epochal.sinks.kafka.wire.messages import Address, Partition, Producer, ProducerState
from epochal.sinks.kafka.wire.pauses import Backoff, Pauses
from epochal.sinks.kafka.wire.primitives import (
    NO_TAGS,
    array,
    compact_array,
    compact_string,
    int16,
    int32,
    int64,
    string,
)
from epochal.sinks.kafka.wire.reach import Reach, reach_of
from tests.pure.sinks.kafka.wire.peer import answer, closed, request

ZERO, ONE = 0, 1
PARTITION = Partition("t", 0)
PRODUCER = Producer(7, 3)
HANG_UP, SILENCE = None, b"silence"

Say = Callable[[], bytes | None]


class Brokers:
    """Two brokers.  ``says`` has, for each request, what each of them answers; the last answer is repeated."""

    def __init__(self) -> None:
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in (ZERO, ONE)]
        self.addresses = [Address(*listener.getsockname()) for listener in self.listeners]
        self.says: dict[tuple[int, m.Request], list[bytes | None]] = {}
        self.asked: list[tuple[int, str]] = []
        self._names = {request.api: request for request in m.REQUESTS}
        for node, listener in enumerate(self.listeners):
            threading.Thread(target=self._accept, args=(node, listener), daemon=True).start()

    def close(self) -> None:
        for listener in self.listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def say(self, request: m.Request, *answers: bytes | None, node: int | None = None) -> None:
        """Have one broker answer so, or both, one answer after another whoever is asked."""
        told = list(answers)
        for each in (ZERO, ONE) if node is None else (node,):
            self.says[each, request] = told

    def lead(self, *leaders: tuple[int, int]) -> None:
        """Answer metadata with these (error, leader) of the one partition, one after another."""
        self.say(m.METADATA, *(self.metadata(error, leader) for error, leader in leaders))

    def metadata(self, error: int = 0, leader: int = ZERO) -> bytes:
        brokers = [
            int32(node) + string(at.host) + int32(at.port) + string(None) for node, at in enumerate(self.addresses)
        ]
        partition = int16(error) + int32(0) + int32(leader) + int32(0) + array([]) * 3
        topics = [int16(0) + string("t") + b"\0" + array([partition])]
        return int32(0) + array(brokers) + string(None) + int32(0) + array(topics)

    def coordinate(self, *nodes: int) -> None:
        """Answer with these coordinators, one after another."""
        self.say(m.FIND_COORDINATOR, *(coordinator(0, node, self.addresses[node]) for node in nodes))

    def asked_for(self, request: m.Request) -> list[int]:
        """Which brokers were sent this request, in order."""
        return [node for node, name in self.asked if name == request.name]

    def _accept(self, node: int, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(node, accepted), daemon=True).start()

    def _serve(self, node: int, accepted: socket.socket) -> None:
        with accepted:
            while True:
                try:
                    framed = request(accepted)
                except (AssertionError, OSError):  # the client closed
                    return
                asked = self._names[int.from_bytes(framed[4:6], "big")]
                self.asked.append((node, asked.name))
                told = self._next(node, asked)
                if told is HANG_UP:
                    return
                if told == SILENCE:
                    closed(accepted)
                    return
                answer(accepted, framed, (NO_TAGS if asked.flexible else b"") + told)

    def _next(self, node: int, asked: m.Request) -> bytes | None:
        answers = self.says[node, asked]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def coordinator(error: int, node: int, address: Address) -> bytes:
    return int32(0) + int16(error) + string("told") + int32(node) + string(address.host) + int32(address.port)


def ended(error: int) -> bytes:
    return int32(0) + int16(error)


def begun(error: int, producer: Producer = PRODUCER) -> bytes:
    return int32(0) + int16(error) + int64(producer.id) + int16(producer.epoch)


def described(error: int, producers: Mapping[int, ProducerState]) -> bytes:
    active = [
        int64(each) + int32(s.epoch) + int32(s.last_sequence) + int64(0) + int32(0) + int64(s.first_offset) + NO_TAGS
        for each, s in producers.items()
    ]
    partition = int32(0) + int16(error) + b"\0" + compact_array(active) + NO_TAGS
    return int32(0) + compact_array([compact_string("t") + compact_array([partition]) + NO_TAGS]) + NO_TAGS


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    made.lead((0, ZERO))
    made.coordinate(ZERO)
    yield made
    made.close()


@pytest.fixture
def cluster(brokers: Brokers) -> Iterator[Cluster]:
    quick = Backoff(0.005, 0.05)
    with Cluster(Reach(tuple(brokers.addresses), 30, attempt_s=1.0, retry=quick, reconnect=quick)) as made:
        yield made


def soon(seconds: float = 30) -> float:
    return time.monotonic() + seconds


def end(cluster: Cluster, seconds: float = 30) -> int:
    return cluster.end_transaction("x", PRODUCER, soon(seconds))


# --- coordinators ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [ended(14), ended(15), ended(16), HANG_UP, SILENCE])
def test_a_coordinator_that_moved_is_looked_for_again(brokers: Brokers, cluster: Cluster, moved: bytes | None) -> None:
    brokers.coordinate(ZERO, ONE)
    brokers.say(m.END_TXN, moved, node=ZERO)
    brokers.say(m.END_TXN, ended(0), node=ONE)
    assert end(cluster) == 0
    assert brokers.asked_for(m.END_TXN) == [ZERO, ONE]
    assert end(cluster) == 0
    assert len(brokers.asked_for(m.FIND_COORDINATOR)) == 2, "who it is now is remembered"


def test_an_end_that_was_begun_before_is_asked_for_until_it_is_done(brokers: Brokers, cluster: Cluster) -> None:
    brokers.say(m.END_TXN, ended(51), ended(51), ended(51), ended(0))
    assert end(cluster) == 0
    assert brokers.asked_for(m.END_TXN) == [ZERO] * 4
    assert len(brokers.asked_for(m.FIND_COORDINATOR)) == 1


@pytest.mark.parametrize("code", [90, 49, 48, 53, -1])
def test_an_end_that_was_refused_is_a_code(brokers: Brokers, cluster: Cluster, code: int) -> None:
    brokers.say(m.END_TXN, ended(code))
    assert end(cluster) == code
    assert brokers.asked_for(m.END_TXN) == [ZERO]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (ended(51), "CONCURRENT_TRANSACTIONS"),
        (ended(16), "NOT_COORDINATOR"),
        (SILENCE, "in time"),
        (HANG_UP, "closed|in time"),
    ],
)
def test_an_end_without_a_final_answer_is_not_known(
    brokers: Brokers, cluster: Cluster, told: bytes | None, why: str
) -> None:
    brokers.say(m.END_TXN, told)
    with pytest.raises(OSError, match=why):
        end(cluster, 0.5)


@pytest.mark.parametrize("code", [15, 53])
def test_an_end_whose_coordinator_is_not_found_is_not_known(brokers: Brokers, cluster: Cluster, code: int) -> None:
    brokers.say(m.FIND_COORDINATOR, coordinator(code, -1, Address("", -1)))
    with pytest.raises(ConnectionError, match=r"EndTxn of 'x': .*: FindCoordinator of 'x': told"):
        end(cluster, 1)
    with pytest.raises(BrokerError) as refused:
        cluster.init_producer("x", 1000, soon(1))
    assert refused.value.code == code


def test_what_a_broker_said_is_told_although_the_last_attempt_had_no_answer(brokers: Brokers, cluster: Cluster) -> None:
    brokers.say(m.FIND_COORDINATOR, coordinator(15, -1, Address("", -1)), SILENCE)
    with pytest.raises(BrokerError) as refused:
        cluster.init_producer("x", 1000, soon(2))
    assert refused.value.code == 15


def test_an_answer_that_makes_no_sense_is_not_asked_for_again(brokers: Brokers, cluster: Cluster) -> None:
    brokers.say(m.END_TXN, ended(0) + b"more")
    with pytest.raises(AnswerNotUnderstood, match="4 bytes follow"):
        end(cluster)
    assert brokers.asked_for(m.END_TXN) == [ZERO]


def test_a_producer_is_made_once_others_have_ended(brokers: Brokers, cluster: Cluster) -> None:
    brokers.say(m.INIT_PRODUCER_ID, begun(51), begun(14), HANG_UP, begun(0))
    assert cluster.init_producer("x", 1000, soon()) == PRODUCER
    brokers.say(m.INIT_PRODUCER_ID, begun(50))
    with pytest.raises(BrokerError, match="INVALID_TRANSACTION_TIMEOUT: InitProducerId of 'x'"):
        cluster.init_producer("x", 1000, soon())


def added(*codes: int) -> bytes:
    results = array([int32(number) + int16(code) for number, code in enumerate(codes)])
    return int32(0) + array([string("t") + results])


def test_partitions_are_added_once_the_broker_knows_them(brokers: Brokers, cluster: Cluster) -> None:
    both = [PARTITION, Partition("t", 1)]
    brokers.say(m.ADD_PARTITIONS_TO_TXN, added(55, 3), added(51, 51), added(0, 0))
    cluster.add_partitions("x", PRODUCER, both, soon())
    assert len(brokers.asked_for(m.ADD_PARTITIONS_TO_TXN)) == 3
    brokers.say(m.ADD_PARTITIONS_TO_TXN, added(55, 29))
    with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED: AddPartitionsToTxn of 'x', t\[1\]"):
        cluster.add_partitions("x", PRODUCER, both, soon())
    brokers.say(m.ADD_PARTITIONS_TO_TXN, added(55, 3), HANG_UP)
    with pytest.raises(BrokerError, match=r"UNKNOWN_TOPIC_OR_PARTITION: .* t\[1\]"):
        cluster.add_partitions("x", PRODUCER, both, soon(1))


def test_a_transaction_that_the_answer_does_not_have_is_an_error(brokers: Brokers, cluster: Cluster) -> None:
    brokers.say(m.DESCRIBE_TRANSACTIONS, int32(0) + compact_array([]) + NO_TAGS)
    with pytest.raises(BrokerError, match="the answer does not have 'x'"):
        cluster.describe_transaction("x", soon())
    state = int16(16) + compact_string("x") + compact_string("") + int32(0) + int64(0) * 2 + int16(0)
    brokers.say(m.DESCRIBE_TRANSACTIONS, int32(0) + compact_array([state + compact_array([]) + NO_TAGS]) + NO_TAGS)
    with pytest.raises(BrokerError, match="NOT_COORDINATOR: DescribeTransactions of 'x'"):
        cluster.describe_transaction("x", soon(1))


# --- leaders -----------------------------------------------------------------------------------------------

STATE = {7: ProducerState(3, 99, 5)}


@pytest.mark.parametrize("moved", [described(6, {}), described(3, {}), HANG_UP, SILENCE])
def test_a_leader_that_moved_is_looked_for_again(brokers: Brokers, cluster: Cluster, moved: bytes | None) -> None:
    brokers.lead((0, ZERO), (0, ZERO), (0, ONE))
    brokers.say(m.DESCRIBE_PRODUCERS, moved, node=ZERO)
    brokers.say(m.DESCRIBE_PRODUCERS, described(0, STATE), node=ONE)
    assert cluster.producers([PARTITION], soon()) == {PARTITION: STATE}
    assert brokers.asked_for(m.DESCRIBE_PRODUCERS) == [ZERO, ZERO, ONE]
    assert cluster.leaders([PARTITION], soon()) == {PARTITION: ONE}


@pytest.mark.parametrize("first", [ZERO, ONE])
def test_a_broker_that_has_lost_touch_is_not_the_only_one_that_is_asked(
    brokers: Brokers, cluster: Cluster, first: int
) -> None:
    """It goes on saying that it leads and coordinates itself."""
    old, new = first, 1 - first
    for node in (old, new):
        brokers.say(m.METADATA, brokers.metadata(0, node), node=node)
        brokers.say(m.FIND_COORDINATOR, coordinator(0, node, brokers.addresses[node]), node=node)
    brokers.say(m.DESCRIBE_PRODUCERS, described(6, {}), node=old)
    brokers.say(m.END_TXN, ended(16), node=old)
    brokers.say(m.DESCRIBE_PRODUCERS, described(0, STATE), node=new)
    brokers.say(m.END_TXN, ended(0), node=new)
    cluster._spare[brokers.addresses[old]] = cluster._connect(brokers.addresses[old], soon())
    assert cluster.producers([PARTITION], soon()) == {PARTITION: STATE}
    assert end(cluster) == 0
    assert brokers.asked_for(m.DESCRIBE_PRODUCERS)[0] == old


def test_a_leader_that_is_not_there_yet_is_waited_for(brokers: Brokers, cluster: Cluster) -> None:
    brokers.lead((5, -1), (72, -1), (0, -1), (9, ONE))
    assert cluster.leaders([PARTITION], soon()) == {PARTITION: ONE}
    assert cluster.leaders([PARTITION], soon()) == {PARTITION: ONE}
    assert len(brokers.asked_for(m.METADATA)) == 4
    cluster.forget_leaders()
    cluster.leaders([PARTITION], soon())
    assert len(brokers.asked_for(m.METADATA)) == 5


@pytest.mark.parametrize(("code", "name"), [(5, "LEADER_NOT_AVAILABLE"), (29, "TOPIC_AUTHORIZATION_FAILED")])
def test_a_partition_that_has_no_leader_is_named(brokers: Brokers, cluster: Cluster, code: int, name: str) -> None:
    brokers.lead((code, -1))
    with pytest.raises(BrokerError, match=rf"{name}: t\[0\] has no leader"):
        cluster.leaders([PARTITION], soon(1))
    if code == 29:
        assert len(brokers.asked_for(m.METADATA)) == 1


def test_a_partition_that_nobody_knows_for_long_is_gone(
    brokers: Brokers, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that a broker has not heard of yet, or that loses its leader meanwhile."""
    monkeypatch.setattr(module, "GONE_S", 0.5)
    brokers.lead((3, -1), (0, ZERO))
    assert cluster.leaders([PARTITION], soon()) == {PARTITION: ZERO}
    cluster.forget_leaders()
    brokers.lead((3, -1))
    started = time.monotonic()
    with pytest.raises(PartitionGone, match=r"t\[0\] has no leader"):
        cluster.leaders([PARTITION], soon())
    assert 0.5 <= time.monotonic() - started < 10
    cluster.forget_leaders()
    brokers.lead((5, -1))
    with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
        cluster.leaders([PARTITION], soon(2))


def test_how_long_answers_are_waited_for_follows_from_the_options() -> None:
    def limits(**options: int) -> tuple[int, float]:
        given = {name.replace("_", "."): value for name, value in options.items()}
        with Cluster(reach_of("h:1", given, 30)) as made:
            return made.replicas_ms, made.answer_s

    assert limits() == (30_000, 60.0)
    assert limits(request_timeout_ms=5_000) == (5_000, 15.0)
    assert limits(request_timeout_ms=90_000) == (90_000, 180.0)
    assert limits(request_timeout_ms=1, socket_timeout_ms=500) == (1, 0.501)


def test_producers_that_may_not_be_seen_are_an_error(brokers: Brokers, cluster: Cluster) -> None:
    brokers.say(m.DESCRIBE_PRODUCERS, described(29, {}))
    with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED: DescribeProducers of t\[0\]"):
        cluster.producers([PARTITION], soon())
    brokers.say(m.DESCRIBE_PRODUCERS, int32(0) + compact_array([]) + NO_TAGS)
    with pytest.raises(BrokerError, match=r"DescribeProducers of t\[0\]"):
        cluster.producers([PARTITION], soon(1))


def test_a_broker_that_moves_to_another_address_is_followed(brokers: Brokers, cluster: Cluster) -> None:
    first = cluster.connection(ZERO, soon())
    assert first.address == brokers.addresses[ZERO]
    assert cluster.connection(ZERO, soon()) is first
    brokers.addresses.reverse()
    brokers.lead((0, ZERO))
    cluster.leaders([PARTITION], soon())
    moved = cluster.connection(ZERO, soon())
    assert moved.address == brokers.addresses[ZERO]
    assert not first.is_open
    cluster.drop(ZERO)
    cluster.drop(ZERO)
    assert not moved.is_open
    assert cluster.connection(ZERO, soon()).is_open


# --- what a broker can do ----------------------------------------------------------------------------------


def versions(known: Mapping[int, tuple[int, int]], error: int = 0) -> bytes:
    return int16(error) + array([int16(api) + int16(low) + int16(high) for api, (low, high) in known.items()])


ALL = {request.api: (request.version, request.version) for request in m.OF_A_VOTE} | {0: (3, 10)}


@pytest.mark.parametrize("old", [ZERO, ONE])
def test_what_one_of_the_brokers_lacks_is_told_in_words(brokers: Brokers, cluster: Cluster, old: int) -> None:
    brokers.lead((0, ZERO))
    brokers.say(m.API_VERSIONS, versions(ALL))
    assert cluster.lacking(soon()) == []
    known = {api: its for api, its in ALL.items() if api != 61}
    brokers.say(m.API_VERSIONS, versions(known | {0: (0, 9), 26: (3, 5)}), node=old)
    assert cluster.lacking(soon()) == [
        f"broker {old} takes EndTxn in versions 3 to 5, and 2 is needed",
        f"broker {old} does not know the request DescribeProducers",
        f"broker {old} is older than Kafka 3.7: it may take rows of a transaction that has ended"
        " (Produce 10 is not among its versions)",
    ]
    brokers.say(m.API_VERSIONS, versions({}, 35))
    with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
        cluster.lacking(soon())


def test_a_broker_that_is_away_is_not_asked_what_it_lacks(brokers: Brokers, cluster: Cluster) -> None:
    brokers.lead((0, ZERO))
    brokers.say(m.API_VERSIONS, versions(ALL), node=ZERO)
    brokers.say(m.API_VERSIONS, HANG_UP, node=ONE)
    assert cluster.lacking(soon()) == []
    brokers.say(m.API_VERSIONS, HANG_UP, node=ZERO)
    with pytest.raises(OSError, match=r"\d"):
        cluster.lacking(soon(1))


def listed(error: int, *names: str) -> bytes:
    each = [compact_string(name) + int64(7) + compact_string("Ongoing") + NO_TAGS for name in names]
    return int32(0) + int16(error) + compact_array([]) + compact_array(each) + NO_TAGS


def test_each_coordinator_tells_its_transactional_ids(brokers: Brokers, cluster: Cluster) -> None:
    """None is left out: a broker that is loading them, or that does not answer, is asked again."""
    brokers.lead((0, ZERO))
    brokers.say(m.LIST_TRANSACTIONS, listed(0, "a"), node=ZERO)
    brokers.say(m.LIST_TRANSACTIONS, listed(14), HANG_UP, listed(0, "b", "c"), node=ONE)
    assert cluster.transactional_ids(soon()) == dict.fromkeys(("a", "b", "c"), "Ongoing")
    brokers.say(m.LIST_TRANSACTIONS, HANG_UP, node=ONE)
    with pytest.raises(OSError, match=r"\d"):
        cluster.transactional_ids(soon(1))
    brokers.say(m.LIST_TRANSACTIONS, listed(31), node=ONE)
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED: ListTransactions of broker 1"):
        cluster.transactional_ids(soon())
    assert len(brokers.asked_for(m.LIST_TRANSACTIONS)) < 200


@pytest.mark.slow
def test_a_broker_that_is_silent_costs_one_attempt(brokers: Brokers, cluster: Cluster) -> None:
    brokers.say(m.METADATA, SILENCE, node=ZERO)
    brokers.say(m.METADATA, brokers.metadata(), node=ONE)
    started = time.monotonic()
    for _ in range(3):
        cluster.close()
        cluster.forget_leaders()
        assert cluster.leaders([PARTITION], soon()) == {PARTITION: ZERO}
    assert time.monotonic() - started < 20


def test_nothing_is_sent_before_it_is_asked_for(brokers: Brokers, cluster: Cluster) -> None:
    assert repr(cluster)
    assert brokers.asked == []


# --- pauses ------------------------------------------------------------------------------------------------


def test_pauses_grow_to_a_bound_and_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    pauses: Any = Pauses(101.0)
    while pauses.pause(Backoff(0.01, 0.1)):
        assert now[0] < 101
    assert now[0] == 101
    for seconds, middle in zip(slept[:-1], [0.01, 0.02, 0.04, 0.08, *[0.1] * 100], strict=False):
        assert middle / 2 <= seconds <= middle * 1.5
    assert len(set(slept)) > 5
    assert not pauses.pause(Backoff(0.01, 0.1))
