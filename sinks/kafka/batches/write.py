"""Write rows as sections of records, by topic-partition."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from epochal.sinks.kafka.batches.columns import (
    binary,
    indices,
    integers_of,
    nulls,
    offsets_of,
    plain,
)
from epochal.sinks.kafka.batches.compress import Codec
from epochal.sinks.kafka.batches.cut import cut
from epochal.sinks.kafka.batches.frame import checksum
from epochal.sinks.kafka.batches.partitioner import Partitioner
from epochal.sinks.kafka.batches.read import read
from epochal.sinks.kafka.batches.records import Rows, deltas

if TYPE_CHECKING:
    import pyarrow

    from epochal.sinks.kafka.batches.columns import Numbers

__all__ = ["Layout", "Piece", "read", "write"]

BATCH_BYTES = 1_000_000
"""How large a batch gets where neither the user nor its topic says it: librdkafka's ``batch.size``."""
GROUP_BYTES = 32 << 20
_MOST_AT_ONCE = 1 << 30
"""Arrow's type for bytes holds twice as many, and records are larger than their rows."""


@dataclass(frozen=True)
class Layout:
    """Where rows go and how they are written.  It can be pickled."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]  # of each topic
    limits: tuple[int, ...]  # the largest batch in bytes that each topic takes
    partitioner: str
    codec: str | None
    level: int | None
    batch_bytes: int | None
    batch_rows: int | None

    @cached_property
    def _firsts(self) -> list[int]:
        """The code of the first partition of each topic, and one more than the last code."""
        return [0, *itertools.accumulate(self.partitions)]

    def code_of(self, topic: int, partition: int) -> int:
        """Return the number of a topic-partition, counted over all topics."""
        return self._firsts[topic] + partition

    def partition_of(self, code: int) -> tuple[str, int]:
        """Return the topic and the partition of a code."""
        topic = self.topic_of(code)
        return self.topics[topic], code - self._firsts[topic]

    def topic_of(self, code: int) -> int:
        """Return the number of the topic of a code."""
        return bisect.bisect_right(self._firsts, code) - 1

    def batch_bytes_of(self, topic: int) -> int:
        """Return how large a batch of a topic gets, with its header."""
        return min(self.batch_bytes or BATCH_BYTES, self.limits[topic])


class Piece(NamedTuple):
    """One section of records in what was written."""

    code: int  # the topic-partition
    offset: int
    length: int
    rows: int
    attributes: int
    crc: int  # CRC32C of these bytes


def write(
    batches: Iterable[pyarrow.RecordBatch], layout: Layout, out: Callable[[Any], None], group_bytes: int = GROUP_BYTES
) -> list[Piece]:
    """Write the rows of ``batches``; return where each section of records lies.

    The columns are ``key`` and ``value``, and ``topic``, ``partition`` and ``headers`` where they are needed.  ``out``
    gets some bytes after others; they may change once it returns.  About four times ``group_bytes`` are held at once.
    """
    writer = _Writer(layout, out)
    for group in _groups(batches, min(group_bytes, _MOST_AT_ONCE)):
        writer.write(group)
    return writer.pieces


class _Writer:
    def __init__(self, layout: Layout, out: Callable[[Any], None]) -> None:
        self._layout, self._out = layout, out
        self._codec = Codec(layout.codec, layout.level)
        self._limits = [layout.batch_bytes_of(topic) for topic in range(len(layout.topics))]
        self._partitioner = Partitioner(layout.partitioner, layout.partitions, self._limits)
        self._places = _Places(layout, self._partitioner)
        self._written = 0
        self.pieces: list[Piece] = []

    def write(self, group: Mapping[str, pyarrow.Array]) -> None:
        """Encode all rows in the order in which they came, then take them by topic-partition."""
        rows = Rows(group["key"], group["value"], group.get("headers"))
        sizes = rows.largest(max(self._limits))
        codes = self._places.of(group, sizes)
        order = _order(codes)
        plan = self._plan(codes[order], sizes[order])
        places = deltas([count for _, count in plan])
        if isinstance(order, slice):
            records = rows.encoded(places)
        else:
            scattered = places.copy()
            scattered[order] = places
            records = rows.encoded(scattered).take(indices(order))
        self._put(records, plan)

    def _plan(self, codes: Numbers, sizes: Numbers) -> list[tuple[int, int]]:
        """Return the code and the rows of every batch.  Rows with one code stand behind each other."""
        import numpy as np

        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        found = []
        for first, last in itertools.pairwise(bounds):
            code = int(codes[first])
            limit = self._limits[self._layout.topic_of(code)]
            found += [(code, rows) for rows in cut(sizes[first:last], limit, self._layout.batch_rows)]
        return found

    def _put(self, records: pyarrow.Array, plan: list[tuple[int, int]]) -> None:
        offsets, data = offsets_of(records), records.buffers()[2]
        row = 0
        for code, rows in plan:
            start, row = int(offsets[row]), row + rows
            section, attributes = self._codec.squeeze(data.slice(start, int(offsets[row]) - start))
            length = len(section)
            self._out(section)
            self.pieces.append(Piece(code, self._written, length, rows, attributes, checksum(section)))
            self._written += length


class _Places:
    """The topic-partition of each row, as a code."""

    def __init__(self, layout: Layout, partitioner: Partitioner) -> None:
        self._layout, self._partitioner = layout, partitioner

    def of(self, group: Mapping[str, pyarrow.Array], sizes: Numbers) -> Numbers:
        import numpy as np

        topics = self._topics(group["topic"]) if "topic" in group else 0
        named = group.get("partition")
        unnamed = np.ones(len(sizes), bool) if named is None else nulls(named)
        if unnamed is None:
            unnamed = np.zeros(len(sizes), bool)
        if unnamed.any():
            partitions = self._partitioner.choose(group["key"], topics, np.where(unnamed, sizes, 0))
        else:
            partitions = np.zeros(len(sizes), np.int64)
        if named is not None and not unnamed.all():
            partitions = np.where(unnamed, partitions, integers_of(named))
            self._check(topics, partitions)
        firsts = np.array([self._layout.code_of(topic, 0) for topic in range(len(self._layout.topics))], np.int64)
        codes: Numbers = firsts[topics] + partitions
        return codes

    def _topics(self, column: pyarrow.Array) -> Numbers | int:
        """Return the number of each row's topic; one number if all rows have the same."""
        import numpy as np
        import pyarrow.compute as pc

        declared = self._layout.topics
        lengths = np.array([len(topic.encode()) for topic in declared])
        known = binary(np.append(0, np.cumsum(lengths)).astype(np.int32), "".join(declared).encode())
        found = pc.index_in(plain(column), value_set=known)
        wrong = nulls(found) if found.null_count else nulls(column)
        if wrong is not None:
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(f"a row for topic {column[row].as_py()!r}; the topics are {', '.join(declared)}")
        numbers = np.frombuffer(found.buffers()[1], np.int32, len(found), found.offset * 4)
        first: int = numbers[0].item()
        return first if (numbers == first).all() else numbers

    def _check(self, topics: Numbers | int, partitions: Numbers) -> None:
        import numpy as np

        counts = np.array(self._layout.partitions)[topics]
        wrong = np.flatnonzero((partitions < 0) | (partitions >= counts))
        if len(wrong):
            row = int(wrong[0])
            topic = topics if isinstance(topics, int) else int(topics[row])
            raise ValueError(
                f"a row for partition {int(partitions[row])} of topic {self._layout.topics[topic]!r}; it has "
                f"{self._layout.partitions[topic]} partitions"
            )


def _order(codes: Numbers) -> Any:
    """Return how to sort rows by code, those of one code as they came."""
    import numpy as np

    first, last = int(codes.min()), int(codes.max())
    if first == last:
        return slice(None)
    small = np.uint8 if last < 1 << 8 else np.uint16 if last < 1 << 16 else np.int64
    return np.argsort(codes.astype(small), kind="stable")  # numpy counts small numbers instead of comparing them


def _groups(batches: Iterable[pyarrow.RecordBatch], limit: int) -> Iterator[dict[str, pyarrow.Array]]:
    """Yield rows of about ``limit`` bytes together; a row that is larger comes alone."""
    held: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in itertools.chain.from_iterable(_parts(batch, limit) for batch in batches):
        if held and size + batch.nbytes > limit:
            group, held, size = _together(held), [], 0
            yield group
        held.append(batch)
        size += batch.nbytes
    if held:
        yield _together(held)


def _parts(batch: pyarrow.RecordBatch, limit: int) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a batch, not copied, in parts of at most ``limit`` bytes, if it has several rows."""
    rows = batch.num_rows
    if rows > 1 and batch.nbytes > limit:
        yield from _parts(batch.slice(0, rows // 2), limit)
        yield from _parts(batch.slice(rows // 2), limit)
    elif rows:
        yield batch


def _together(held: list[pyarrow.RecordBatch]) -> dict[str, pyarrow.Array]:
    import pyarrow as pa

    names = held[0].schema.names
    return {name: pa.concat_arrays([batch.column(name) for batch in held]) for name in names}
