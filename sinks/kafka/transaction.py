"""The one transaction of one Kafka producer: what an attempt at an epoch and a write of the fence have in common.

A producer first bars every older one of its transactional id.  It reads the marker only then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.kafka import marker
from epochal.sinks.kafka.client import Link, Options, kafka
from epochal.sinks.kafka.marker import MarkerTopic, State

if TYPE_CHECKING:
    from confluent_kafka import Producer

Row: TypeAlias = "tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Route]"
"""Key and value of a record, and its route if the row names one."""
Route: TypeAlias = "tuple[str | None, int | None, Sequence[Mapping[str, Any]] | None]"
"""Topic, partition and headers.  None stands for the plan's only topic, the partitioner's choice, no headers."""


class Transaction:
    """The one transaction of one producer, in one process.  Every call is bounded in time."""

    def __init__(self, link: Link, marker_topic: MarkerTopic, timeout: float, more: Options) -> None:
        self._link = link
        self._marker_topic = marker_topic
        self._timeout = timeout
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._made: Producer | None = link.producer(marker_topic.transactional_id, timeout, more)

    @property
    def _producer(self) -> Producer:
        """The producer; ``Misconfigured`` in another process than the one that made it, or after it was dropped."""
        if os.getpid() != self._pid:
            raise Misconfigured(
                f"a Kafka producer of process {self._pid} was used in process {os.getpid()}, after a fork",
                sink=self._marker_topic.sink,
                help="restart the query, and report this as a bug of Epochal: each process makes producers of its own",
            )
        if self._made is None:
            raise Misconfigured(
                "a dropped producer was used",
                sink=self._marker_topic.sink,
                help="restart the query, and report this as a bug of Epochal",
            )
        return self._made

    def init(self) -> None:
        """Bar every older producer of this transactional id; Kafka aborts its open transaction."""
        producer, timeout = self._producer, self._link.timeout
        for _ in range(2):  # otherwise the first look-up of the coordinator waits for a timer of 500 ms
            producer.list_topics(self._marker_topic.topic, timeout)
        producer.init_transactions(timeout)

    def bar(self) -> None:
        """Call ``init``; an error names this request."""
        with self._link.asking(f"to init_transactions of {self._marker_topic.transactional_id}"):
            self.init()

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._began = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the broker may have ended the transaction by now."""
        return time.monotonic() - self._began >= self._timeout

    def send(self, topic: str, rows: Sequence[Row]) -> int:
        """Hand rows to the client, in order, and return their number.  A failed delivery shows at ``commit``, not here.

        ``topic`` gets the rows that name none.
        """
        producer, given = self._producer, cast("Sequence[Any]", rows)
        produce: Any = producer.produce
        if rows and len(rows[0]) == 2:  # all rows of a batch have one form; this loop must be fast
            for key, value in given:
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._wait_for_room(producer, (topic, value, key))
        else:
            for key, value, route in given:
                call = _routed(topic, value, key, *route)
                try:
                    produce(*call)
                except BufferError:
                    self._wait_for_room(producer, call)
        producer.poll(0)
        return len(rows)

    def _wait_for_room(self, producer: Producer, call: tuple[Any, ...]) -> None:
        """Hand one row to the client once its queue has room.  A short flush also sends what still lingers there."""
        produce: Any = producer.produce
        while True:
            waiting = producer.flush(0.1)
            try:
                produce(*call)
                return
            except BufferError:
                if not waiting:
                    raise self._larger_than_queue(call) from None
                if self.is_overdue:
                    raise TimeoutError(f"the brokers took no row for {self._timeout:g} s") from None

    def _larger_than_queue(self, call: tuple[Any, ...]) -> Misconfigured:
        topic, value = call[:2]
        return Misconfigured(
            f"a record of {len(value or b'')} bytes for topic {topic!r} does not fit into the client's queue",
            sink=self._marker_topic.sink,
            state=f"the queue is empty, and holds {self._link.queue_bytes} bytes",
            help="raise queue.buffering.max.kbytes in options=",
        )

    def send_state(self, key: bytes, state: State, about: Json | None = None) -> None:
        """Hand one record of the marker topic to the client: the whole state, for the slot's own partition."""
        value = marker.record(self._marker_topic, state, about)
        self.send(self._marker_topic.topic, [(key, value, (None, self._marker_topic.slot, None))])

    def flush(self) -> None:
        """Wait until the brokers have answered for every row, for as long as the transaction may last."""
        producer = self._producer
        while producer.flush(0.5):
            if self.is_overdue:
                raise TimeoutError(f"the brokers had not taken all rows after {self._timeout:g} s")

    def commit(self) -> None:
        """Request the commit.  An exception from here says nothing about the outcome."""
        self._producer.commit_transaction(self._link.timeout)

    def abort(self) -> None:
        """Try to abort, then drop the producer.  If the abort fails, the next ``init`` aborts the transaction."""
        producer = self._producer
        try:
            producer.abort_transaction(min(self._link.timeout, 10.0))
        except kafka().KafkaException:
            pass
        self.drop()

    def drop(self) -> None:
        """Let go of the producer without an abort; its transaction stays as it is."""
        self._made = None


def _routed(
    default: str,
    value: bytes | None,
    key: bytes | None,
    topic: str | None,
    partition: int | None,
    headers: Sequence[Mapping[str, Any]] | None,
) -> tuple[Any, ...]:
    """The arguments of ``Producer.produce`` for a row that names its route."""
    now, nobody = 0, None  # timestamp 0: the current time; no callback for the delivery
    pairs = [(header["key"], header["value"]) for header in headers] if headers else None
    return (topic or default, value, key, -1 if partition is None else partition, nobody, nobody, now, pairs)


def guarded(
    link: Link, marker_topic: MarkerTopic, timeout: float, judge: Callable[[State], bool], more: Options
) -> tuple[Transaction, State, bool]:
    """Return a producer that has barred all others, the final state that was read then, and ``judge(state)``.

    After an error no producer is left, and nothing was written.
    """
    transaction = Transaction(link, marker_topic, timeout, more)
    try:
        transaction.bar()
        state = marker.read(link, marker_topic, final=True)
        return transaction, state, judge(state)
    except BaseException:
        transaction.drop()
        raise
