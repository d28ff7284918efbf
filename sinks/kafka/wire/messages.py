"""The requests that Epochal sends by hand, and what brokers answer, as plain values.

For each request one function makes the body and one reads the answer.  The versions are fixed.  They are the highest
that need no tagged fields where there is one, and none belongs to the second version of the transaction protocol:
AddPartitionsToTxn stays below 4, Produce below 12 and EndTxn below 5.  Mixed versions would let a late request reopen a
transaction that has ended (KIP-890).

Source: https://kafka.apache.org/protocol (The Messages).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epochal.sinks.kafka.wire.primitives import (
    NO_TAGS,
    Reader,
    array,
    boolean,
    compact_array,
    compact_string,
    int8,
    int16,
    int32,
    int64,
    octets,
    string,
)

Piece = bytes | bytearray | memoryview
"""A contiguous part of what is sent."""

ALL_REPLICAS = -1
TRANSACTION = 1


class Request(NamedTuple):
    """A kind of request at our version."""

    name: str
    api: int
    version: int
    flexible: bool = False


PRODUCE = Request("Produce", 0, 8)
METADATA = Request("Metadata", 3, 7)
FIND_COORDINATOR = Request("FindCoordinator", 10, 2)
SASL_HANDSHAKE = Request("SaslHandshake", 17, 1)
API_VERSIONS = Request("ApiVersions", 18, 0)
INIT_PRODUCER_ID = Request("InitProducerId", 22, 1)
ADD_PARTITIONS_TO_TXN = Request("AddPartitionsToTxn", 24, 2)
END_TXN = Request("EndTxn", 26, 2)
SASL_AUTHENTICATE = Request("SaslAuthenticate", 36, 1)
DESCRIBE_PRODUCERS = Request("DescribeProducers", 61, 0, flexible=True)
DESCRIBE_TRANSACTIONS = Request("DescribeTransactions", 65, 0, flexible=True)
LIST_TRANSACTIONS = Request("ListTransactions", 66, 0, flexible=True)

OF_A_VOTE = (
    PRODUCE,
    METADATA,
    FIND_COORDINATOR,
    SASL_HANDSHAKE,
    API_VERSIONS,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    SASL_AUTHENTICATE,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
)
"""The requests that brokers must take so that an epoch can be written as a vote."""
REQUESTS = (*OF_A_VOTE, LIST_TRANSACTIONS)


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Producer(NamedTuple):
    """What a producer writes under: its id, and its epoch, which bars all older ones."""

    id: int
    epoch: int


class Address(NamedTuple):
    """Where a broker is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ProducerState(NamedTuple):
    """What a leader knows of a producer: ``first_offset`` is where its open transaction begins, -1 if none is open."""

    epoch: int
    last_sequence: int
    first_offset: int


class ProduceAnswer(NamedTuple):
    """What became of one batch: ``offset`` is that of its first row."""

    partition: Partition
    error: int
    offset: int
    message: str | None


class LeaderAnswer(NamedTuple):
    """Which broker leads a partition; -1 if none does."""

    error: int
    leader: int


class TopicAnswer(NamedTuple):
    """What a broker knows of a topic."""

    error: int
    topic: str
    partitions: Mapping[int, LeaderAnswer]


class MetadataAnswer(NamedTuple):
    """The brokers of the cluster, by their ids, and the topics that were asked for."""

    brokers: Mapping[int, Address]
    topics: Sequence[TopicAnswer]


class CoordinatorAnswer(NamedTuple):
    """Which broker coordinates a transactional id."""

    error: int
    message: str | None
    node: int
    address: Address


class InitAnswer(NamedTuple):
    """The producer that was made, or an error."""

    error: int
    producer: Producer


class ProducersAnswer(NamedTuple):
    """The producers of one partition, by their ids."""

    partition: Partition
    error: int
    message: str | None
    producers: Mapping[int, ProducerState]


class HandshakeAnswer(NamedTuple):
    """Whether the mechanism is spoken, and which ones are."""

    error: int
    mechanisms: Sequence[str]


class AuthenticateAnswer(NamedTuple):
    """The next message of the exchange, or why the broker refuses us."""

    error: int
    message: str | None
    data: bytes


@dataclass(frozen=True)
class TransactionState:
    """A transaction as its coordinator describes it.

    ``error`` is 105 (TRANSACTIONAL_ID_NOT_FOUND) where the coordinator knows no such id.  ``began_ms`` is -1 where no
    transaction is open.
    """

    error: int
    state: str
    producer: Producer
    timeout_ms: int
    began_ms: int
    partitions: tuple[Partition, ...]


class Listed(NamedTuple):
    """The transactional ids of one coordinator, each with the state of its newest transaction."""

    error: int
    states: Mapping[str, str]


def size(piece: Piece) -> int:
    """Return how many bytes a piece has, also if it is a view of larger items."""
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the numbers of the partitions of each topic, in their order."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


# --- the cluster -------------------------------------------------------------------------------------------


def api_versions() -> bytes:
    return b""


class VersionsAnswer(NamedTuple):
    """The lowest and the highest version of each request that the broker takes."""

    error: int
    versions: Mapping[int, tuple[int, int]]


def read_api_versions(reader: Reader) -> VersionsAnswer:
    error = reader.int16()
    versions = reader.array(lambda: (reader.int16(), (reader.int16(), reader.int16())))
    reader.end()
    return VersionsAnswer(error, dict(versions))


def metadata(topics: Iterable[str]) -> bytes:
    """Ask who leads these topics, and never let one be made by asking.  Without topics: ask for the brokers alone."""
    return array(map(string, topics)) + boolean(False)


def read_metadata(reader: Reader) -> MetadataAnswer:
    def broker() -> tuple[int, Address]:
        node, address = reader.int32(), Address(reader.string(), reader.int32())
        reader.nullable_string()  # the rack
        return node, address

    def partition() -> tuple[int, LeaderAnswer]:
        error, number, leader = reader.int16(), reader.int32(), reader.int32()
        reader.int32()  # the leader's epoch
        for _ in ("replicas", "in sync", "offline"):
            reader.array(reader.int32)
        return number, LeaderAnswer(error, leader)

    def topic() -> TopicAnswer:
        error, name = reader.int16(), reader.string()
        reader.int8()  # whether it is one of Kafka's own
        return TopicAnswer(error, name, dict(reader.array(partition)))

    reader.throttle()
    brokers = dict(reader.array(broker))
    reader.nullable_string()  # the cluster's id
    reader.int32()  # the controller
    topics = reader.array(topic)
    reader.end()
    return MetadataAnswer(brokers, topics)


# --- who we are --------------------------------------------------------------------------------------------


def sasl_handshake(mechanism: str) -> bytes:
    return string(mechanism)


def read_sasl_handshake(reader: Reader) -> HandshakeAnswer:
    answer = HandshakeAnswer(reader.int16(), reader.array(reader.string))
    reader.end()
    return answer


def sasl_authenticate(data: bytes) -> bytes:
    return octets(data)


def read_sasl_authenticate(reader: Reader) -> AuthenticateAnswer:
    answer = AuthenticateAnswer(reader.int16(), reader.nullable_string(), reader.octets())
    reader.int64()  # how long the broker believes it; our connections are shorter
    reader.end()
    return answer


# --- the coordinator of a transaction ----------------------------------------------------------------------


def find_coordinator(transactional_id: str) -> bytes:
    return string(transactional_id) + int8(TRANSACTION)


def read_find_coordinator(reader: Reader) -> CoordinatorAnswer:
    reader.throttle()
    error, message, node = reader.int16(), reader.nullable_string(), reader.int32()
    answer = CoordinatorAnswer(error, message, node, Address(reader.string(), reader.int32()))
    reader.end()
    return answer


def init_producer_id(transactional_id: str, timeout_ms: int) -> bytes:
    return string(transactional_id) + int32(timeout_ms)


def read_init_producer_id(reader: Reader) -> InitAnswer:
    reader.throttle()
    answer = InitAnswer(reader.int16(), Producer(reader.int64(), reader.int16()))
    reader.end()
    return answer


def _begin(transactional_id: str, producer: Producer) -> bytes:
    return string(transactional_id) + int64(producer.id) + int16(producer.epoch)


def add_partitions_to_txn(transactional_id: str, producer: Producer, partitions: Iterable[Partition]) -> bytes:
    topics = (string(topic) + array(map(int32, numbers)) for topic, numbers in by_topic(partitions).items())
    return _begin(transactional_id, producer) + array(topics)


def read_add_partitions_to_txn(reader: Reader) -> dict[Partition, int]:
    """Return the error code of each partition."""

    def topic() -> list[tuple[Partition, int]]:
        name = reader.string()
        return reader.array(lambda: (Partition(name, reader.int32()), reader.int16()))

    reader.throttle()
    errors = {partition: error for found in reader.array(topic) for partition, error in found}
    reader.end()
    return errors


def end_txn(transactional_id: str, producer: Producer, *, commit: bool) -> bytes:
    return _begin(transactional_id, producer) + boolean(commit)


def read_end_txn(reader: Reader) -> int:
    """Return the error code."""
    reader.throttle()
    error = reader.int16()
    reader.end()
    return error


def describe_transactions(transactional_ids: Iterable[str]) -> bytes:
    return compact_array(map(compact_string, transactional_ids)) + NO_TAGS


def read_describe_transactions(reader: Reader) -> dict[str, TransactionState]:
    def topic() -> list[Partition]:
        name, numbers = reader.compact_string(), reader.compact_array(reader.int32)
        reader.skip_tags()
        return [Partition(name, number) for number in numbers]

    def transaction() -> tuple[str, TransactionState]:
        error, name, state = reader.int16(), reader.compact_string(), reader.compact_string()
        timeout_ms, began_ms = reader.int32(), reader.int64()
        producer = Producer(reader.int64(), reader.int16())
        partitions = tuple(each for found in reader.compact_array(topic) for each in found)
        reader.skip_tags()
        return name, TransactionState(error, state, producer, timeout_ms, began_ms, partitions)

    reader.throttle()
    found = dict(reader.compact_array(transaction))
    reader.skip_tags()
    reader.end()
    return found


def list_transactions() -> bytes:
    """Ask for all transactions, whatever their state and their producer."""
    return compact_array([]) + compact_array([]) + NO_TAGS


def read_list_transactions(reader: Reader) -> Listed:
    def transaction() -> tuple[str, str]:
        name = reader.compact_string()
        reader.int64()  # the producer
        state = reader.compact_string()
        reader.skip_tags()
        return name, state

    reader.throttle()
    error = reader.int16()
    reader.compact_array(reader.compact_string)  # states that we asked for and the broker does not know
    states = dict(reader.compact_array(transaction))
    reader.skip_tags()
    reader.end()
    return Listed(error, states)


# --- the leaders of partitions -----------------------------------------------------------------------------


def produce(transactional_id: str, batches: Mapping[Partition, Sequence[Piece]], timeout_ms: int) -> list[Piece]:
    """Return the body of a request that hands over one record batch for each partition.

    ``batches`` has the pieces of each batch, in order.  They are not copied.  A batch counts as written only when all
    replicas in sync have it; the broker waits ``timeout_ms`` for them.
    """
    topics = by_topic(batches)
    body: list[Piece] = []
    head = [string(transactional_id), int16(ALL_REPLICAS), int32(timeout_ms), int32(len(topics))]
    for topic, numbers in topics.items():
        head += [string(topic), int32(len(numbers))]
        for number in numbers:
            pieces = batches[Partition(topic, number)]
            body += [b"".join([*head, int32(number), int32(sum(map(size, pieces)))]), *pieces]
            head = []
    return body or [b"".join(head)]


def read_produce(reader: Reader) -> list[ProduceAnswer]:
    def bad_record() -> str | None:
        reader.int32()  # its place in the batch
        return reader.nullable_string()

    def topic() -> list[ProduceAnswer]:
        name = reader.string()

        def partition() -> ProduceAnswer:
            number, error, offset = reader.int32(), reader.int16(), reader.int64()
            reader.int64()  # when the log appended it, if that is the row's timestamp
            reader.int64()  # where the log starts
            records = reader.array(bad_record)
            message = reader.nullable_string() or next(filter(None, records), None)
            return ProduceAnswer(Partition(name, number), error, offset, message)

        return reader.array(partition)

    answers = [answer for found in reader.array(topic) for answer in found]
    reader.throttle()
    reader.end()
    return answers


def describe_producers(partitions: Iterable[Partition]) -> bytes:
    topics = (
        compact_string(topic) + compact_array(map(int32, numbers)) + NO_TAGS
        for topic, numbers in by_topic(partitions).items()
    )
    return compact_array(topics) + NO_TAGS


def read_describe_producers(reader: Reader) -> list[ProducersAnswer]:
    def producer() -> tuple[int, ProducerState]:
        found, epoch, last_sequence = reader.int64(), reader.int32(), reader.int32()
        reader.int64()  # when it last wrote
        reader.int32()  # the epoch of the coordinator that last ended a transaction of it
        first_offset = reader.int64()
        reader.skip_tags()
        return found, ProducerState(epoch, last_sequence, first_offset)

    def topic() -> list[ProducersAnswer]:
        name = reader.compact_string()

        def partition() -> ProducersAnswer:
            number, error, message = reader.int32(), reader.int16(), reader.nullable_compact_string()
            producers = dict(reader.compact_array(producer))
            reader.skip_tags()
            return ProducersAnswer(Partition(name, number), error, message, producers)

        found = reader.compact_array(partition)
        reader.skip_tags()
        return found

    reader.throttle()
    answers = [answer for found in reader.compact_array(topic) for answer in found]
    reader.skip_tags()
    reader.end()
    return answers
