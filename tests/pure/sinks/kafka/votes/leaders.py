"""Leaders of partitions as Kafka's are, in memory, with faults that a seed chooses.

What a real broker does rarely and at random, these do often and again with the same seed: they cannot verify the
transaction of a first batch, they append and do not replicate, they lose what was not replicated when another leader
takes over, they close connections, and they append a request whose sender has given it up long ago.
"""

from __future__ import annotations

import random
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from epochal.sinks.kafka.batches.frame import HEADER_BYTES, SEQUENCES
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.messages import Partition, Producer, ProducerState
from epochal.sinks.kafka.wire.primitives import Reader, array, int16, int32, int64, string

PRODUCER = 7
BEGIN = 100
"""The offset of a transaction's first row."""
NOT_LEADER, NOT_ENOUGH, NOT_ENOUGH_AFTER_APPEND, OUT_OF_ORDER, OLD_EPOCH = 6, 19, 20, 45, 47
REMEMBERED = 5
"""So many batches of a producer are known to a leader when they come again."""
_FIELDS = struct.Struct(">hiqqqhii")


@dataclass(frozen=True)
class Sent:
    """One batch of a request."""

    where: Partition
    producer: Producer
    sequence: int
    rows: int
    records: bytes
    head: bytes  # of the batch


@dataclass
class Log:
    """One partition: the batches that were appended, and how many of them all replicas have."""

    batches: list[Sent] = field(default_factory=list)
    replicated: int = 0
    barred: int = -1  # the newest producer epoch that a fence left there
    before: ProducerState | None = None  # what an earlier transaction of the producer left there

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def last_sequence(self) -> int:
        return (self.batches[-1].sequence + self.batches[-1].rows - 1) % SEQUENCES

    def offset_of(self, number: int) -> int:
        return BEGIN + sum(batch.rows for batch in self.batches[:number])

    def repeated(self, batch: Sent) -> int | None:
        """The number of the batch if the leader has it already, and still knows so."""
        for number in range(max(0, len(self.batches) - REMEMBERED), len(self.batches)):
            if self.batches[number].sequence == batch.sequence:
                assert self.batches[number] == batch, "a broker drops what has the same sequence and other bytes"
                return number
        return None

    def lose(self) -> None:
        """Another replica leads now: what was not replicated is gone."""
        del self.batches[self.replicated :]


class Leaders:
    """A cluster in which every partition has one leader.  ``faults``: how likely each fault is, 0 for none."""

    def __init__(self, seed: int, faults: float) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.logs: dict[Partition, Log] = {}
        self.late: list[list[Sent]] = []  # requests that their senders have given up, and that are still on their way
        self.most_at_once = 0  # of one partition whose first row no leader has
        self.lies = 0  # so many answers are for another partition
        self.longest_wait = 0.0
        self.waits_ms: set[int] = set()  # for replicas, as the requests say
        self.largest_request = 0

    def client(self) -> Cluster:
        return cast("Cluster", Client(self))

    def fence(self, epoch: int) -> None:
        """A new producer epoch: the transaction is aborted in every partition."""
        for log in self.logs.values():
            log.barred, log.batches = epoch, []

    def unlikely(self) -> bool:
        return self.random.random() < self.faults

    def log(self, where: Partition) -> Log:
        return self.logs.setdefault(where, Log())

    def arrive_late(self) -> None:
        while self.late and self.random.random() < 0.5:
            for batch in self.late.pop(self.random.randrange(len(self.late))):
                self.append(batch)

    def append(self, batch: Sent) -> tuple[int, int]:
        """Return the error and the offset that the leader answers."""
        log = self.log(batch.where)
        if self.unlikely():
            log.lose()
            return NOT_LEADER, -1
        if batch.producer.epoch <= log.barred:
            return OLD_EPOCH, -1
        if not log.batches and self.unlikely():
            return NOT_ENOUGH, -1  # the coordinator could not be asked whether the transaction is open
        if (number := log.repeated(batch)) is None:
            if log.batches and batch.sequence != (log.last_sequence + 1) % SEQUENCES:
                return OUT_OF_ORDER, -1
            number = len(log.batches)  # without any state of the producer, a leader takes what comes
            log.batches.append(batch)
            if self.unlikely():
                return NOT_ENOUGH_AFTER_APPEND, -1
        log.replicated = len(log.batches)
        return 0, log.offset_of(number)


class Client:
    """What ``deliver`` uses of a ``Cluster``."""

    replicas_ms = 2000
    answer_s = 12.0

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._open: dict[int, Line] = {}

    def leaders(self, partitions: Iterable[Partition], deadline: float) -> Mapping[Partition, int]:  # noqa: ARG002
        return {where: where.partition % 2 for where in partitions}

    def forget_leaders(self) -> None:
        self._leaders.arrive_late()

    def connection(self, node: int, deadline: float) -> Line:  # noqa: ARG002
        line = self._open.get(node)
        if line is None or line.closed:
            line = self._open[node] = Line(self._leaders)
        return line

    def drop(self, node: int) -> None:
        line = self._open.pop(node, None)
        if line is not None:
            line.close()

    def producers(
        self,
        partitions: Sequence[Partition],
        deadline: float,  # noqa: ARG002
    ) -> Mapping[Partition, Mapping[int, ProducerState]]:
        assert not any(line.waiting for line in self._open.values() if not line.closed), "answers are still due"
        return {where: self._told(self._leaders.log(where)) for where in partitions}

    def _told(self, log: Log) -> Mapping[int, ProducerState]:
        if log.batches:
            producer = log.batches[-1].producer
            return {producer.id: ProducerState(producer.epoch, log.last_sequence, BEGIN)}
        if log.barred >= 0:
            return {PRODUCER: ProducerState(log.barred, -1, -1)}
        return {PRODUCER: log.before} if log.before is not None else {}


class Line:
    """A connection to a leader, which answers requests in their order."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self.waiting: deque[list[Sent]] = deque()
        self.closed = False

    def send(self, api: int, version: int, *parts: bytes) -> None:  # noqa: ARG002
        if self.closed:
            raise ConnectionError("the connection was closed")
        request = sent_in(b"".join(parts))
        self._leaders.waits_ms.add(wait_in(b"".join(parts)))
        size = sum(len(batch.records) for batch in request)
        self._leaders.largest_request = max(self._leaders.largest_request, size)
        self.waiting.append(request)
        for batch in request:
            if not self._leaders.log(batch.where).batches:
                under_way = sum(batch.where == other.where for each in self.waiting for other in each)
                self._leaders.most_at_once = max(self._leaders.most_at_once, under_way)

    def receive(self, deadline: float) -> Reader:
        self._leaders.longest_wait = max(self._leaders.longest_wait, deadline - time.monotonic())
        if self.closed:
            raise ConnectionError("the connection was closed")
        if self._leaders.unlikely():
            self.close()
            raise ConnectionError("reset by peer")
        answers = []
        for batch in self.waiting.popleft():
            error, offset = self._leaders.append(batch)
            self._leaders.lies -= (lie := self._leaders.lies > 0)
            told = int32(batch.where.partition + 9 * lie) + int16(error) + int64(offset) + int64(-1) + int64(0)
            answers.append(string(batch.where.topic) + array([told + array([]) + string(None)]))
        return Reader(array(answers) + int32(0))

    def close(self) -> None:
        """Requests that were sent may arrive for long; the first of them may have arrived."""
        self.closed = True
        while self.waiting and self._leaders.random.random() < 0.5:
            for batch in self.waiting.popleft():
                self._leaders.append(batch)
        self._leaders.late += self.waiting
        self.waiting.clear()


def sent_in(body: bytes) -> list[Sent]:
    """Read a request as a broker does."""
    reader = Reader(body)
    for skip in (reader.string, reader.int16, reader.int32):  # the transaction, how many replicas, how long
        skip()

    def topic() -> list[Sent]:
        name = reader.string()
        return reader.array(lambda: _sent(name, reader.int32(), reader.octets()))

    return [batch for found in reader.array(topic) for batch in found]


def wait_in(body: bytes) -> int:
    """Return how many milliseconds a request lets the leader wait for its replicas."""
    reader = Reader(body)
    for skip in (reader.string, reader.int16):
        skip()
    return reader.int32()


def _sent(topic: str, partition: int, batch: bytes) -> Sent:
    tail = _FIELDS.unpack_from(batch, HEADER_BYTES - _FIELDS.size)
    _, _, _, _, producer, epoch, sequence, rows = tail
    head, records = batch[:HEADER_BYTES], batch[HEADER_BYTES:]
    return Sent(Partition(topic, partition), Producer(producer, epoch), sequence, rows, records, head)
