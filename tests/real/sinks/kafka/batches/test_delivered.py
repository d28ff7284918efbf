"""Sections with our header, taken by a broker and read by librdkafka, which checks every checksum."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from epochal.chaos import servers
from epochal.chaos.servers.process import wait_until
from epochal.sinks.kafka.batches import frame, write
from epochal.sinks.kafka.batches.compress import CODECS
from epochal.sinks.kafka.batches.partitioner import VECTORISED
from epochal.sinks.kafka.batches.write import Layout, Piece
from epochal.sinks.kafka.encode import murmur2

NOW = int(time.time() * 1000)
NOT_LEADER = 6
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGE = 9_000_000
"""A batch that lz4 needs three blocks for.  Compressed it is smaller than the broker's ``max.message.bytes``."""


class Read(NamedTuple):
    """A record as a consumer gets it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int


class Connection:
    """Asks a broker to append batches, as kafka-python writes these requests."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._topic = topic

    def produce(self, partition: int, batch: bytes) -> None:
        """Append a batch; a broker that has just made the partition leads it a moment later."""
        answer = wait_until(lambda: _but(NOT_LEADER, self._ask(partition, batch)), 30)
        assert answer is not None
        assert answer.error_code == 0, answer

    def _ask(self, partition: int, batch: bytes) -> Any:
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=batch)
        data = ProduceRequest.TopicProduceData(name=self._topic, partition_data=[part])
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[data], version=8)
        request.with_header(correlation_id=1, client_id="test")
        self._socket.sendall(request.encode(framed=True, header=True))
        response = ProduceResponse.decode(self._answer(), version=8, header=True)
        [answer] = response.responses[0].partition_responses
        return answer

    def _answer(self) -> bytes:
        (length,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        return self._socket.recv(length, socket.MSG_WAITALL)

    def close(self) -> None:
        self._socket.close()


def _but(code: int, answer: Any) -> Any:
    return None if answer.error_code == code else answer


@pytest.fixture
def connection(kafka_server: servers.Kafka, topic_name: str) -> Iterator[Connection]:
    kafka_server.create_topic(topic_name, 3)
    made = Connection(kafka_server.bootstrap, topic_name)
    yield made
    made.close()


def deliver(connection: Connection, batch: pa.RecordBatch, layout: Layout) -> list[Piece]:
    data = bytearray()
    pieces = write.write([batch], layout, lambda some: data.extend(memoryview(some)))
    for piece in pieces:
        section = bytes(data[piece.offset : piece.offset + piece.length])
        header = frame.header(
            section,
            piece.rows,
            attributes=piece.attributes,
            producer_id=-1,
            producer_epoch=-1,
            sequence=0,
            timestamp_ms=NOW,
        )
        connection.produce(layout.partition_of(piece.code)[1], header + section)
    return pieces


def read(bootstrap: str, topic: str) -> Mapping[int, list[Read]]:
    """What a consumer reads of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-of-batches",
            "check.crcs": True,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    found: dict[int, list[Read]] = {partition: [] for partition in range(3)}
    ended: set[int | None] = set()
    while len(ended) < 3:
        message = consumer.poll(30)
        assert message is not None, "no record and no end within 30 s"
        error, partition = message.error(), message.partition()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(partition)
        else:
            assert partition is not None
            headers = message.headers()
            found[partition].append(Read(message.key(), message.value(), headers, message.timestamp()[1]))  # type: ignore[arg-type]
    consumer.close()
    return found


def layout(topic: str, codec: str | None, level: int | None, batch_bytes: int | None) -> Layout:
    return Layout((topic,), (3,), (LARGE,), "murmur2", codec, level, batch_bytes, None)


@pytest.mark.parametrize(
    ("codec", "level", "batch_bytes"),
    [(codec, None, 20_000) for codec in CODECS]
    + [(codec, None, LARGE) for codec in CODECS if codec != "none"]
    + [("lz4", 9, LARGE), ("zstd", 9, 20_000), ("gzip", 1, 20_000)],
)
def test_a_consumer_reads_what_was_written(
    connection: Connection,
    kafka_server: servers.Kafka,
    topic_name: str,
    codec: str,
    level: int | None,
    batch_bytes: int,
) -> None:
    size = 500 if batch_bytes == LARGE else 100_000
    rows = [row(n, size) for n in range(3000)] + [(None, b"easy" * 250, None)] * (27_000 if batch_bytes == LARGE else 0)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _, _ in rows], pa.binary()),
            "value": pa.array([value for _, value, _ in rows], pa.binary()),
            "headers": pa.array(
                [None if h is None else [{"key": k, "value": v} for k, v in h] for _, _, h in rows], HEADERS
            ),
        }
    )
    plan = layout(topic_name, codec, level, batch_bytes)
    pieces = deliver(connection, batch, plan)
    assert {piece.attributes for piece in pieces} >= {CODECS[codec]}
    found = read(kafka_server.bootstrap, topic_name)
    wanted = expected(rows)
    for partition in range(3):
        assert found[partition] == wanted[partition], f"partition {partition}"


Rows = list[tuple["bytes | None", "bytes | None", "list[tuple[str, bytes | None]] | None"]]


def as_structs(headers: list[tuple[str, bytes | None]] | None) -> list[dict[str, str | bytes | None]] | None:
    return None if headers is None else [{"key": key, "value": value} for key, value in headers]


def row(n: int, large: int) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]:
    key = None if n % 7 == 0 else b"" if n % 11 == 0 else b"key-%d" % n
    value = None if n % 13 == 0 else bytes(large) if n % 997 == 0 else b"value-%d" % n * (n % 30)
    headers: list[tuple[str, bytes | None]] | None = [("a", b"%d" % n), ("é", None)] if n % 3 == 0 else None
    return key, value, headers


def expected(rows: Rows) -> dict[int, list[Read]]:
    found: dict[int, list[Read]] = {partition: [] for partition in range(3)}
    for (key, value, headers), hashed in zip(rows, murmur2([key or b"" for key, _, _ in rows]), strict=True):
        found[hashed % 3].append(Read(key, value, headers, NOW))
    return found


@pytest.mark.parametrize("partitioner", [name for name in VECTORISED if name != "random"])
def test_partitions_are_those_that_librdkafka_chooses(
    connection: Connection, kafka_server: servers.Kafka, topic_name: str, partitioner: str
) -> None:
    """Where librdkafka takes a missing or an empty key for none, chance decides; such rows are left out."""
    keys: list[bytes | None] = [bytes(range(256)) * 20, b"\xff", *[b"%d" % n * (n % 9 + 1) for n in range(1000)]]
    keys += [b""] if partitioner != "consistent_random" else []
    keys += [None] if not partitioner.endswith("_random") else []
    producer = Producer(
        {"bootstrap.servers": kafka_server.bootstrap, "partitioner": partitioner, "linger.ms": 1, "log_level": 0}
    )
    for n, key in enumerate(keys):
        producer.produce(topic_name, b"%d" % n, key)
    assert producer.flush(30) == 0
    by_librdkafka = partitions(kafka_server, topic_name)
    values = pa.array([b"%d" % n for n in range(len(keys))])
    batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": values})
    deliver(connection, batch, Layout((topic_name,), (3,), (100_000,), partitioner, None, None, None, None))
    twice = read(kafka_server.bootstrap, topic_name)
    for partition, some in by_librdkafka.items():
        assert [row.value for row in twice[partition]] == some * 2


def partitions(kafka_server: servers.Kafka, topic: str) -> dict[int, list[bytes | None]]:
    return {partition: [row.value for row in some] for partition, some in read(kafka_server.bootstrap, topic).items()}
