"""The content of a topic after a job has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Message

MARKERS = 1_000
"""How many offsets the markers of a job's transactions may take."""
BATCH = 10_000
QUIET_S = 60.0  # how long a topic may give no message before its end
REQUEST_S = 30


class NotAllWritten(Exception):
    """A target does not hold what its job had to write, so there is no figure."""


def check(bootstrap: str, topic: str, rows: int, *, transactions: bool) -> None:
    """Check the number of rows by the stable ends of the partitions.  Without ``transactions`` this is exact.

    Raises NotAllWritten.
    """
    ends = sum(stable_ends(bootstrap, topic).values())
    if not rows <= ends <= rows + (MARKERS if transactions else 0):
        raise NotAllWritten(f"{topic} ends at {ends:,} in all, and {rows:,} rows were to be written")


def check_count(bootstrap: str, topic: str, rows: int) -> None:
    """Check the number of rows by reading all committed messages, some seconds for a million.  Raises NotAllWritten."""
    count = committed(bootstrap, topic)
    if count != rows:
        raise NotAllWritten(f"{topic} has {count:,} committed messages, and {rows:,} rows were to be written")


def stable_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Return partition -> the offset up to which a reader of committed messages can read."""
    return _ends(bootstrap, topic, "READ_COMMITTED")


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Return partition -> the offset after the last message, including open transactions."""
    return _ends(bootstrap, topic, "READ_UNCOMMITTED")


def _ends(bootstrap: str, topic: str, isolation: str) -> dict[int, int]:
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        partitions = admin.list_topics(topic, timeout=REQUEST_S).topics[topic].partitions
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
        told = admin.list_offsets(asked, isolation_level=IsolationLevel[isolation], request_timeout=REQUEST_S)
        return {each.partition: future.result(REQUEST_S).offset for each, future in told.items()}


def committed(bootstrap: str, topic: str) -> int:
    """Return how many messages a reader of committed messages gets."""
    return sum(1 for _ in messages(bootstrap, topic))


def messages(bootstrap: str, topic: str) -> Iterator[Message]:
    """Yield the committed messages.  Raises NotAllWritten after ``QUIET_S`` seconds without a message."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    options = {"bootstrap.servers": bootstrap, "group.id": "count", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**options, "isolation.level": "read_committed", "enable.partition.eof": True})
    reading = set(stable_ends(bootstrap, topic))
    count, heard = 0, time.monotonic()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in reading])
        while reading:
            got = consumer.consume(BATCH, timeout=0.1)
            if got:
                heard = time.monotonic()
            elif time.monotonic() - heard > QUIET_S:
                raise NotAllWritten(f"{topic} gave nothing for {QUIET_S} s after {count:,} messages, before its end")
            for message in got:
                error = message.error()
                if error is None:
                    count += 1
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
