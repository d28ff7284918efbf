"""Independent readers of the storm's topic: two that follow it all the time, and one that reads it at the end."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.storm.feed import FILE, GROUP, is_pad

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
PATIENCE_S = 120.0


@dataclass
class Seen:
    """The rows of one partition as a reader was given them."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    ids: array[int] = field(default_factory=lambda: array("q"))

    @property
    def next_offset(self) -> int:
        return self.offsets[-1] + 1 if self.offsets else 0


class Reader:
    """Reads all partitions from the beginning.  It never begins anew where it has been."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, isolation: str) -> None:
        self._topic = topic
        self.seen = {number: Seen() for number in range(partitions)}
        self.reached = dict.fromkeys(range(partitions), 0)  # offsets, also beyond markers and rows that are not shown
        self.wrong: list[str] = []
        self.isolation = isolation
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"storm-{isolation}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in self.seen])

    def read(self, timeout: float) -> int:
        """Take what comes next; return how many rows that is."""
        rows = 0
        for message in self._consumer.consume(5_000, timeout):
            error = message.error()
            if error is None:
                rows += self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._reach(message)
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                self._go_back(message.partition())  # a leader that was just elected does not know its end yet
        return rows

    def close(self) -> None:
        self._consumer.close()

    def _reach(self, message: Any) -> None:
        self.reached[message.partition()] = max(self.reached[message.partition()], message.offset())

    def _take(self, message: Any) -> int:
        its, offset, i = self.seen[message.partition()], message.offset(), int(message.key())
        if offset < its.next_offset:
            return 0
        if not is_pad(i, message.value()):
            self.wrong.append(f"{self.isolation}: row {i} has another value, {self._topic}[{message.partition()}]")
        its.offsets.append(offset)
        its.ids.append(i)
        return 1

    def _go_back(self, number: int | None) -> None:
        for each in self.seen if number is None or number < 0 else [number]:
            self._consumer.seek(TopicPartition(self._topic, each, self.seen[each].next_offset))


class Follower(threading.Thread):
    """A reader in a thread of its own."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(daemon=True, name=f"follower-{reader.isolation}")
        self.reader = reader
        self.failure: BaseException | None = None
        self._ends: Mapping[int, int] | None = None

    def run(self) -> None:
        try:
            while self._ends is None or any(self.reader.reached[n] < end for n, end in self._ends.items()):
                self.reader.read(0.5)
        except BaseException as error:
            self.failure = error

    def read_to(self, ends: Mapping[int, int]) -> Mapping[int, Seen]:
        """Let it read to these offsets; return all that it has seen since it was started."""
        self._ends = ends
        self.join(PATIENCE_S)
        if self.is_alive():
            raise TimeoutError(f"{self.name} does not come to {ends}")
        if self.failure is not None:
            raise self.failure
        self.reader.close()
        return self.reader.seen


def ends_of(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the high watermark of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "storm-ends", "log_level": 0})
    try:
        return {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=60)[1] for n in range(partitions)}
    finally:
        consumer.close()


def faults(expected: array[int], seen: Mapping[int, Seen], ends: Sequence[int]) -> list[str]:
    """Return what is wrong with committed rows: each id once; epochs, and rows of a file, in order per partition.

    ``ends``: for each epoch, how many groups are done with it.
    """
    found = sorted(i for its in seen.values() for i in its.ids)
    wrong = []
    if array("q", found) != expected:
        surplus, wanted = set(found), set(expected)
        twice = [a for a, b in pairwise(found) if a == b]
        told = {"lost": sorted(wanted - surplus), "foreign": sorted(surplus - wanted), "twice": twice}
        wrong += [f"{len(ids)} rows {what}: {ids[:10]}" for what, ids in told.items() if ids]
    for number, its in seen.items():
        last: dict[int, int] = {}
        newest = 0
        for i in its.ids:
            epoch = bisect_right(ends, i // GROUP)
            if epoch < newest:
                wrong.append(f"partition {number}: row {i} of epoch {epoch} after epoch {newest}")
            if i < last.get(i // FILE, -1):
                wrong.append(f"partition {number}: row {i} after {last[i // FILE]}")
            newest, last[i // FILE] = epoch, i
    return wrong[:20]


def strangers(expected: array[int], seen: Mapping[int, Seen]) -> list[str]:
    """Return which rows a reader of aborted transactions was given that the input does not have."""
    wanted = set(expected)
    foreign = sorted({i for its in seen.values() for i in its.ids} - wanted)
    return [f"{len(foreign)} rows are not of the input: {foreign[:10]}"] if foreign else []


def audited(sizes: Sequence[Sequence[int]], ends: Sequence[int], shown: Sequence[tuple[int, int, int]]) -> list[str]:
    """Return where the records of the marker topic, (position, epoch, rows), are not those of the epochs.

    ``sizes``: of each group of the input, rows per file.  ``ends``: for each epoch, how many groups are done with it.
    """
    firsts = [0, *ends[:-1]]
    wanted = [
        (epoch + 1, epoch, sum(sum(its) for its in sizes[first:end]))
        for epoch, (first, end) in enumerate(zip(firsts, ends, strict=True))
    ]
    if not 0 < len(shown) <= len(wanted):
        return [f"the audit has {len(shown)} epochs, and {len(wanted)} are done"]
    pairs = zip(shown, wanted[-len(shown) :], strict=True)
    return [f"the audit has {told}, wanted {want}" for told, want in pairs if told != want][:5]


def differences(committed: Mapping[int, Seen], other: Mapping[int, Seen], what: str) -> list[str]:
    """Return where another reader saw other rows than the committed ones at their offsets."""
    wrong = []
    for number, its in committed.items():
        theirs = dict(zip(other[number].offsets, other[number].ids, strict=True))
        pairs = zip(its.offsets, its.ids, strict=True)
        differ = [(offset, i, theirs.get(offset)) for offset, i in pairs if theirs.get(offset) != i]
        if differ:
            wrong.append(f"partition {number}, {what}: {len(differ)} rows differ (offset, row, theirs): {differ[:5]}")
    return wrong
