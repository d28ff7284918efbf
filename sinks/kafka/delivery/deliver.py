"""Send the record batches of some topic-partitions into an open transaction, in order and exactly once.

One process sends all batches of a partition.  Sequence numbers count the rows of the partition from 0.  The broker
takes a batch only if its sequence follows the one before, and answers a repeated batch without appending it.

- The first batch that is sent to a partition, at first and after each failure, is acknowledged alone.  Later ones
  follow without waiting for each answer, ``in_flight`` at most.
- After any failure nothing is assumed.  The answers that are still on their way are read, or the connection is closed.
  The leaders are asked anew, and each leader tells the last sequence that it has.  The batch that ends there is sent
  again, because its answer waits for the replicas, and what the leader told does not.
- A vanished broker costs a part of the transaction's time, and not all of it: the wait for each answer has a limit.
- A second process may send the same batches at the same time (a speculative task, a task that was thought dead).  Its
  bytes are the same, so the broker drops what it has.
"""

from __future__ import annotations

import os
import random
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from epochal.sinks.kafka.batches import frame
from epochal.sinks.kafka.wire import errors, messages
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.connection import Connection
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood, BrokerError, PartitionGone
from epochal.sinks.kafka.wire.messages import Partition, ProduceAnswer, Producer, ProducerState

PRODUCE, PRODUCE_VERSION = 0, 8
_OTHERS_TURN = (errors.OUT_OF_ORDER_SEQUENCE_NUMBER, errors.DUPLICATE_SEQUENCE_NUMBER)
"""What a leader answers if another process has sent the same batches meanwhile."""
REQUEST_BYTES = 8 << 20
"""How many bytes a request holds at most, unless one batch alone is larger."""
OPEN_FILES = 128
"""How many files of records a process holds open at most: each task of Spark may have written one."""
DRAIN_S = 5.0
"""How many seconds to wait for answers that are still on their way when a delivery has failed."""


class RecordsDamaged(Exception):
    """A file of records does not hold what its writer put there."""


class RowsGone(Exception):
    """A broker no longer has rows that it acknowledged."""


class Batch(NamedTuple):
    """The records of one batch.  ``source``: the file that holds them, or these bytes themselves."""

    source: str | bytes
    offset: int
    length: int
    rows: int
    attributes: int
    crc: int


class Delivered(NamedTuple):
    """What a leader acknowledged of one partition: how many rows, and the offset of the first one."""

    rows: int
    first_offset: int


@dataclass(frozen=True)
class Transaction:
    """An open transaction, as whoever sends into it needs it.  ``timestamp_ms`` is that of every record."""

    transactional_id: str
    producer: Producer
    timestamp_ms: int


class Stream:
    """The batches of one topic-partition, and how many of their rows the leader has acknowledged."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.ends = list(accumulate(batch.rows for batch in batches))  # rows up to and including each batch
        self.following = 0  # number of the batch to send next
        self.acknowledged = 0  # rows
        self.first_offset = -1
        self.is_open = False  # whether a batch was acknowledged since the start, or since the last failure
        self.in_flight = 0

    @property
    def rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def may_send(self) -> bool:
        return self.following < len(self.batches) and (self.is_open or not self.in_flight)

    def sequence_of(self, number: int) -> int:
        return self.ends[number] - self.batches[number].rows

    def sent(self) -> int:
        """Return the number of the batch that is sent now."""
        number, self.following, self.in_flight = self.following, self.following + 1, self.in_flight + 1
        return number

    def answered(self, number: int, answer: ProduceAnswer) -> None:
        self.in_flight -= 1
        if answer.error:
            return
        self.is_open = True
        self.acknowledged = max(self.acknowledged, self.ends[number])
        if number == 0 and self.first_offset < 0:
            self.first_offset = answer.offset

    def resume(self, partition: Partition, state: ProducerState | None) -> None:
        """Go on where the leader stands.  ``state``: what it has of this producer epoch; None: nothing."""
        self.is_open, self.in_flight = False, 0
        if state is not None and state.last_sequence < 0:  # a fence left its epoch there, and no row
            state = None
        has = self._ended_at(partition, state.last_sequence + 1) if state is not None else 0
        if has < self.acknowledged:
            raise RowsGone(f"{partition.topic}[{partition.partition}] has {has} rows of {self.acknowledged}")
        number = bisect_left(self.ends, has)  # the batch that ends at `has`, if has > 0
        self.following = number
        if state is not None:
            if state.first_offset < 0:
                raise BrokerError(
                    errors.INVALID_TXN_STATE, f"{partition.topic}[{partition.partition}]: the transaction was ended"
                )
            self.first_offset = state.first_offset

    def _ended_at(self, partition: Partition, sequence: int) -> int:
        """Return after how many rows, not fewer than acknowledged, a batch ends whose last sequence is one before."""
        possible = self.ends[bisect_left(self.ends, max(self.acknowledged, 1)) :]
        ends = [end for end in possible if end % frame.SEQUENCES == sequence % frame.SEQUENCES]
        if len(ends) == 1:
            return ends[0]
        fault = "two batches end" if ends else "no batch ends"  # two: the sequence numbers began anew in between
        raise RowsGone(f"{partition.topic}[{partition.partition}] has sequence {sequence - 1}, at which {fault}")


def deliver(
    cluster: Cluster,
    transaction: Transaction,
    streams: Mapping[Partition, Stream],
    *,
    in_flight: int,
    deadline: float,
    is_repeated: bool = False,
    between: Callable[[], None] = lambda: None,
) -> Mapping[Partition, Delivered]:
    """Send all batches; return what each leader acknowledged.

    ``deadline``: a value of ``time.monotonic``; then the last error is raised.  ``is_repeated``: another attempt may
    have sent some of them.  ``between`` is called after each answer.  Raises ``BrokerError`` (also one that no repeat
    can change), ``OSError``, ``AnswerNotUnderstood``, ``RecordsDamaged``, ``RowsGone``.
    """
    with _Sources() as sources:
        sender = _Sender(cluster, transaction, streams, sources, in_flight, deadline, between)
        must_ask = is_repeated
        while True:
            try:
                if must_ask:
                    sender.resume()
                sender.send_all()
                return {where: Delivered(stream.rows, stream.first_offset) for where, stream in streams.items()}
            except (OSError, BrokerError) as error:
                if not _may_go_on(error) or time.monotonic() > deadline:
                    raise
                must_ask = True
                time.sleep(random.uniform(0.005, 0.03))
                cluster.forget_leaders()


def _may_go_on(error: Exception) -> bool:
    if isinstance(error, BrokerError):
        if isinstance(error, PartitionGone):
            return False
        return error.code in _OTHERS_TURN or errors.is_moved(error.code)
    return True


class _Sources:
    """The files that batches lie in; those that were read last are open."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def __enter__(self) -> _Sources:
        return self

    def __exit__(self, *error: object) -> None:
        while self._open:
            self._close_oldest()

    def records(self, batch: Batch) -> bytes:
        """Return the records of a batch; ``RecordsDamaged`` if they are not those that were written."""
        found = self._read(batch)
        if len(found) != batch.length or frame.checksum(found) != batch.crc:
            where = batch.source if isinstance(batch.source, str) else "the task's answer"
            raise RecordsDamaged(f"{where} has other bytes at {batch.offset} than {batch.length} that were written")
        return found

    def _read(self, batch: Batch) -> bytes:
        if isinstance(batch.source, bytes):
            return batch.source[batch.offset : batch.offset + batch.length]
        try:
            return os.pread(self._handle(batch.source), batch.length, batch.offset)
        except OSError as error:
            raise RecordsDamaged(f"{batch.source} cannot be read: {error}") from None

    def _handle(self, path: str) -> int:
        handle = self._open.pop(path, None)
        if handle is None:
            if len(self._open) >= OPEN_FILES:
                self._close_oldest()
            handle = os.open(path, os.O_RDONLY)
        self._open[path] = handle
        return handle

    def _close_oldest(self) -> None:
        os.close(self._open.pop(next(iter(self._open))))


@dataclass
class _Lane:
    """The connection to one leader, with its partitions and the requests that it has not answered."""

    node: int
    connection: Connection
    waiting: deque[Partition]
    asked: deque[Mapping[Partition, int]] = field(default_factory=deque)  # of each request: partition, batch number


class _Sender:
    def __init__(
        self,
        cluster: Cluster,
        transaction: Transaction,
        streams: Mapping[Partition, Stream],
        sources: _Sources,
        in_flight: int,
        deadline: float,
        between: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._streams = streams
        self._sources = sources
        self._most = in_flight
        self._deadline = deadline
        self._between = between

    def resume(self) -> None:
        """Ask the leaders how far they are, and go on there."""
        mine = self._transaction.producer
        states = self._cluster.producers(list(self._streams), self._deadline)
        for where, stream in self._streams.items():
            state = states[where].get(mine.id)
            if state is not None and state.epoch > mine.epoch:
                raise BrokerError(errors.INVALID_PRODUCER_EPOCH, f"{where.topic}[{where.partition}] has a newer epoch")
            stream.resume(where, state if state is not None and state.epoch == mine.epoch else None)

    def send_all(self) -> None:
        """Send every batch that is not sent yet, and wait for all answers."""
        left = [where for where, stream in self._streams.items() if stream.following < len(stream.batches)]
        lanes = self._lanes(left)
        try:
            while busy := [lane for lane in lanes if lane.asked or self._fill(lane)]:
                for lane in busy:
                    self._fill(lane)
                    self._take_answer(lane)
                    self._between()
        except BaseException:
            self._drain(lanes)
            raise

    def _lanes(self, partitions: Sequence[Partition]) -> list[_Lane]:
        leaders = self._cluster.leaders(partitions, self._deadline)
        by_node: dict[int, deque[Partition]] = {}
        for where in partitions:
            by_node.setdefault(leaders[where], deque()).append(where)
        return [_Lane(node, self._cluster.connection(node, self._deadline), its) for node, its in by_node.items()]

    def _fill(self, lane: _Lane) -> bool:
        """Send requests until ``most`` are in flight or nothing may be sent; return whether one was sent."""
        was_sent = False
        while len(lane.asked) < self._most and (numbers := self._chosen(lane)):
            batches = {where: self._framed(where, number) for where, number in numbers.items()}
            wait_ms = max(1, int((self._deadline - time.monotonic()) * 1000))
            parts = messages.produce(
                self._transaction.transactional_id, batches, min(wait_ms, self._cluster.replicas_ms)
            )
            lane.asked.append(numbers)
            lane.connection.send(PRODUCE, PRODUCE_VERSION, *parts)
            was_sent = True
        return was_sent

    def _chosen(self, lane: _Lane) -> dict[Partition, int]:
        """Return the batches of the next request: one of each partition that may send, as many as fit."""
        chosen: dict[Partition, int] = {}
        size = 0
        for _ in range(len(lane.waiting)):
            where = lane.waiting[0]
            stream = self._streams[where]
            if stream.may_send:
                size += stream.batches[stream.following].length
                if chosen and size > REQUEST_BYTES:
                    break
                chosen[where] = stream.sent()
            lane.waiting.rotate(-1)
        return chosen

    def _framed(self, where: Partition, number: int) -> Sequence[bytes]:
        stream, transaction = self._streams[where], self._transaction
        batch = stream.batches[number]
        records = self._sources.records(batch)
        header = frame.header(
            records,
            batch.rows,
            attributes=batch.attributes | frame.TRANSACTIONAL,
            producer_id=transaction.producer.id,
            producer_epoch=transaction.producer.epoch,
            sequence=stream.sequence_of(number),
            timestamp_ms=transaction.timestamp_ms,
        )
        return header, records

    def _take_answer(self, lane: _Lane, deadline: float | None = None) -> None:
        """Read the oldest answer; raise the first error in it, after all of it was noted."""
        if not lane.asked:
            return
        until = min(self._deadline, time.monotonic() + self._cluster.answer_s) if deadline is None else deadline
        answers = messages.read_produce(lane.connection.receive(until))
        numbers = lane.asked.popleft()
        if {answer.partition for answer in answers} != set(numbers) or len(answers) != len(numbers):
            raise AnswerNotUnderstood(f"broker {lane.node} answered for other partitions than {sorted(numbers)}")
        failed = None
        for answer in answers:
            self._streams[answer.partition].answered(numbers[answer.partition], answer)
            if answer.error and failed is None:
                where = f"{answer.partition.topic}[{answer.partition.partition}]"
                failed = BrokerError(answer.error, f"{where}: {answer.message or 'produce'}")
        if failed is not None:
            raise failed

    def _drain(self, lanes: Sequence[_Lane]) -> None:
        """Read what is still on its way, so that nothing of ours is when the leaders are asked; else close."""
        deadline = time.monotonic() + DRAIN_S
        for lane in lanes:
            while lane.asked:
                try:
                    self._take_answer(lane, deadline)
                except BrokerError:
                    continue
                except Exception:
                    self._cluster.drop(lane.node)
                    break


def dealt(sizes: Mapping[Partition, int], owners: int) -> list[list[Partition]]:
    """Deal partitions to at most ``owners`` processes, the largest first, each to the one with the fewest bytes."""
    shares: list[tuple[int, list[Partition]]] = [(0, []) for _ in range(max(1, min(owners, len(sizes))))]
    for where in sorted(sizes, key=lambda where: (-sizes[where], where)):
        least = min(range(len(shares)), key=lambda n: shares[n][0])
        shares[least] = shares[least][0] + sizes[where], [*shares[least][1], where]
    return [its for _, its in shares if its]
