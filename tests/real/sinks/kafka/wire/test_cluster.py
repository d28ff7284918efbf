"""Every request by hand, answered by a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from epochal.chaos import servers
from epochal.sinks.kafka.wire import messages
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import TRANSACTIONAL_ID_NOT_FOUND, BrokerError, is_fenced
from epochal.sinks.kafka.wire.messages import Partition, Producer, ProducerState
from epochal.sinks.kafka.wire.reach import reach_of
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.kafka.wire.batches import batch, produce

if TYPE_CHECKING:
    from epochal.chaos.servers.toxiproxy import Proxy

FENCED = 90
UNKNOWN_TOPIC = 3


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def topic(kafka_server: servers.Kafka, topic_name: str) -> str:
    kafka_server.create_topic(topic_name, partitions=2)
    return topic_name


@pytest.fixture
def cluster(kafka_server: servers.Kafka) -> Iterator[Cluster]:
    with Cluster(reach_of(kafka_server.bootstrap, {}, 60)) as made:
        yield made


def begun(cluster: Cluster, topic: str) -> tuple[Producer, list[Partition]]:
    """A producer whose transaction has both partitions of the topic; its transactional id is the topic's name."""
    partitions = [Partition(topic, 0), Partition(topic, 1)]
    producer = cluster.init_producer(topic, 60_000, soon())
    cluster.add_partitions(topic, producer, partitions, soon())
    return producer, partitions


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(bootstrap, topic)]


def test_a_broker_takes_our_requests_at_our_versions(cluster: Cluster) -> None:
    assert cluster.lacking(soon()) == []


def test_every_transactional_id_is_listed_with_its_state(cluster: Cluster, topic: str) -> None:
    assert topic not in cluster.transactional_ids(soon())
    producer, _ = begun(cluster, topic)
    assert cluster.transactional_ids(soon())[topic] == "Ongoing"
    assert cluster.end_transaction(topic, producer, soon()) == 0
    assert cluster.transactional_ids(soon())[topic] in ("PrepareCommit", "CompleteCommit")


def test_rows_are_read_once_the_transaction_has_ended(
    kafka_server: servers.Kafka, cluster: Cluster, topic: str
) -> None:
    producer, partitions = begun(cluster, topic)
    first, second = partitions
    answers = produce(
        cluster,
        topic,
        {first: [batch(producer, [b"a", b"b"])], second: [batch(producer, [b"c"])[:61], batch(producer, [b"c"])[61:]]},
        soon(),
    )
    assert sorted(answer[:3] for answer in answers) == [(first, 0, 0), (second, 0, 0)]
    [again] = produce(cluster, topic, {first: [batch(producer, [b"a", b"b"])]}, soon())
    assert again == (first, 0, 0, None), "a batch that was repeated is acknowledged where it is"
    [more] = produce(cluster, topic, {first: [batch(producer, [b"d"], 2)]}, soon())
    assert (more.error, more.offset) == (0, 2)

    told = cluster.producers(partitions, soon())
    assert told[first][producer.id] == ProducerState(producer.epoch, 2, 0)
    assert told[second][producer.id] == ProducerState(producer.epoch, 0, 0)
    state = cluster.describe_transaction(topic, soon())
    assert (state.error, state.state, state.producer, state.timeout_ms) == (0, "Ongoing", producer, 60_000)
    assert set(state.partitions) == set(partitions)
    assert state.began_ms > 0
    assert values(kafka_server.bootstrap, topic) == []

    assert cluster.end_transaction(topic, producer, soon()) == 0
    assert cluster.end_transaction(topic, producer, soon()) == 0, "the end can be asked for again"
    assert values(kafka_server.bootstrap, topic) == [b"a", b"b", b"d", b"c"]
    assert cluster.producers([first], soon())[first][producer.id].first_offset == -1
    assert cluster.describe_transaction(topic, soon()).state == "CompleteCommit"


def test_a_new_producer_bars_the_one_before(kafka_server: servers.Kafka, cluster: Cluster, topic: str) -> None:
    old, partitions = begun(cluster, topic)
    [answer] = produce(cluster, topic, {partitions[0]: [batch(old, [b"lost"])]}, soon())
    assert answer.error == 0
    new = cluster.init_producer(topic, 60_000, soon())
    assert new == Producer(old.id, old.epoch + 1) or new.epoch > old.epoch
    assert cluster.end_transaction(topic, old, soon()) == FENCED
    with pytest.raises(BrokerError) as refused:
        cluster.add_partitions(topic, old, partitions, soon())
    assert is_fenced(refused.value.code)
    assert topic in refused.value.what
    [late] = produce(cluster, topic, {partitions[0]: [batch(old, [b"late"], 1)]}, soon())
    assert is_fenced(late.error), late
    assert values(kafka_server.bootstrap, topic) == []


def test_an_abort_shows_nothing(kafka_server: servers.Kafka, cluster: Cluster, topic: str) -> None:
    producer, partitions = begun(cluster, topic)
    produce(cluster, topic, {partitions[0]: [batch(producer, [b"a"])]}, soon())
    assert cluster.end_transaction(topic, producer, soon(), commit=False) == 0
    assert cluster.describe_transaction(topic, soon()).state in ("PrepareAbort", "CompleteAbort")
    assert values(kafka_server.bootstrap, topic) == []


def test_what_is_not_there_is_named_and_not_made(cluster: Cluster, topic: str, kafka_server: servers.Kafka) -> None:
    cluster.leaders([Partition(topic, 0)], soon())
    for missing in (Partition(f"{topic}-no", 0), Partition(topic, 7)):
        with pytest.raises(BrokerError) as refused:
            cluster.leaders([missing], soon(1))
        assert refused.value.code == UNKNOWN_TOPIC
        assert refused.value.what == f"{missing.topic}[{missing.partition}] has no leader"
        producer = cluster.init_producer(topic, 60_000, soon())
        with pytest.raises(BrokerError) as refused:
            cluster.add_partitions(topic, producer, [Partition(topic, 0), missing], soon(1))
        assert refused.value.code == UNKNOWN_TOPIC
        assert f"{missing.topic}[{missing.partition}]" in refused.value.what
    with pytest.raises(BrokerError) as refused:
        cluster.leaders([Partition("not a name", 0)], soon())
    assert refused.value.name == "INVALID_TOPIC_EXCEPTION"
    assert cluster.describe_transaction(f"{topic}-no", soon()).error == TRANSACTIONAL_ID_NOT_FOUND
    with pytest.raises(BrokerError, match="INVALID_TRANSACTION_TIMEOUT"):
        cluster.init_producer(topic, 2**31 - 1, soon())
    with AdminClient({"bootstrap.servers": kafka_server.bootstrap}) as admin:
        assert f"{topic}-no" not in admin.list_topics(timeout=60).topics
    with pytest.raises(ConnectionError, match="no broker has the id 77"):
        cluster.connection(77, soon())


def test_requests_wait_for_each_other_on_one_connection(cluster: Cluster, topic: str) -> None:
    """Answers come in order; nothing else is asked while they are due, except on another connection."""
    producer, [partition, _] = begun(cluster, topic)
    # The first batch goes alone: a leader that refuses it for a moment would take a later one as the first.
    produce(cluster, topic, {partition: [batch(producer, [b"x"])]}, soon())
    [node] = cluster.leaders([partition], soon()).values()
    connection, request = cluster.connection(node, soon()), messages.PRODUCE
    for sequence in range(1, 6):
        body = messages.produce(topic, {partition: [batch(producer, [b"x"], sequence)]}, 30_000)
        connection.send(request.api, request.version, *body)
    assert connection.in_flight == 5
    with pytest.raises(RuntimeError, match="5 answers of"):
        cluster.producers([partition], soon())
    cluster.forget_leaders()
    assert cluster.leaders([partition], soon()) == {partition: node}
    offsets = [messages.read_produce(connection.receive(soon()))[0].offset for _ in range(5)]
    assert offsets == [1, 2, 3, 4, 5]
    assert connection.in_flight == 0
    assert cluster.producers([partition], soon())[partition][producer.id].last_sequence == 5
    with pytest.raises(RuntimeError, match=r"no answer of .* is due"):
        connection.receive(soon())
    assert cluster.end_transaction(topic, producer, soon()) == 0


# --- a link that fails -------------------------------------------------------------------------------------


@pytest.fixture
def behind(kafka_proxy: Proxy) -> Iterator[Cluster]:
    with Cluster(reach_of(kafka_proxy.address, {"socket.timeout.ms": 1000}, 60)) as made:
        yield made


def test_an_end_without_an_answer_is_not_known_and_can_be_asked_for_again(
    behind: Cluster, cluster: Cluster, kafka_proxy: Proxy, topic: str, kafka_server: servers.Kafka
) -> None:
    producer, [partition, _] = begun(behind, topic)
    produce(behind, topic, {partition: [batch(producer, [b"a"])]}, soon())
    kafka_proxy.half_open()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        behind.end_transaction(topic, producer, soon(1.5))
    assert time.monotonic() - started < 10
    assert cluster.end_transaction(topic, producer, soon()) == 0, "it arrived, and nobody could know"
    kafka_proxy.clear()
    assert behind.end_transaction(topic, producer, soon()) == 0
    assert values(kafka_server.bootstrap, topic) == [b"a"]


@pytest.mark.parametrize(
    "fault", ["cut", *(pytest.param(fault, marks=pytest.mark.wide) for fault in ("lose_answer", "half_open"))]
)
def test_a_broker_that_is_away_for_a_moment_is_waited_for(
    behind: Cluster, kafka_proxy: Proxy, topic: str, fault: str
) -> None:
    producer, partitions = begun(behind, topic)
    produce(behind, topic, {partitions[0]: [batch(producer, [b"a"])]}, soon())
    getattr(kafka_proxy, fault)()
    back = threading.Timer(0.5, kafka_proxy.clear)
    back.start()
    try:
        assert behind.producers(partitions[:1], soon())[partitions[0]][producer.id].last_sequence == 0
        back.join()
        getattr(kafka_proxy, fault)()
        back = threading.Timer(0.5, kafka_proxy.clear)
        back.start()
        new = behind.init_producer(topic, 60_000, soon())
    finally:
        back.join()
    assert new.epoch > producer.epoch
    assert behind.end_transaction(topic, producer, soon()) == FENCED


def test_a_broker_that_stays_away_is_an_error_of_the_connection(
    behind: Cluster, kafka_proxy: Proxy, topic: str
) -> None:
    behind.leaders([Partition(topic, 0)], soon())
    kafka_proxy.cut()
    started = time.monotonic()
    for ask in (
        lambda: behind.lacking(soon(0.3)),
        lambda: behind.init_producer(topic, 60_000, soon(0.3)),
        lambda: behind.producers([Partition(topic, 0)], soon(0.3)),
        lambda: behind.end_transaction(topic, Producer(1, 1), soon(0.3)),
    ):
        with pytest.raises(OSError, match=kafka_proxy.address.replace(".", r"\.")):
            ask()
    assert time.monotonic() - started < 20


@pytest.mark.wide
def test_a_broker_that_starts_again_goes_on_with_the_transaction(
    kafka_server: servers.Kafka, cluster: Cluster, topic: str
) -> None:
    producer, partitions = begun(cluster, topic)
    produce(cluster, topic, {partitions[0]: [batch(producer, [b"a"])]}, soon())
    kafka_server.crash()
    again = threading.Thread(target=kafka_server.start)
    again.start()
    try:
        assert cluster.producers(partitions[:1], soon(300))[partitions[0]][producer.id].last_sequence == 0
    finally:
        again.join()
    assert cluster.end_transaction(topic, producer, soon(120)) == 0
    assert values(kafka_server.bootstrap, topic) == [b"a"]
