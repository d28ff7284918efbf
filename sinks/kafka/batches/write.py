"""Write rows as sections of records, by topic-partition."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from epochal.sinks.kafka.batches.blocks import blocks_of
from epochal.sinks.kafka.batches.columns import indices, offsets_of
from epochal.sinks.kafka.batches.compress import Codec
from epochal.sinks.kafka.batches.cut import NOTHING, Begun, cut
from epochal.sinks.kafka.batches.frame import checksum
from epochal.sinks.kafka.batches.layout import Layout
from epochal.sinks.kafka.batches.partitioner import Partitioner
from epochal.sinks.kafka.batches.places import Places, order_of
from epochal.sinks.kafka.batches.read import read
from epochal.sinks.kafka.batches.records import Rows, deltas

if TYPE_CHECKING:
    import pyarrow

    from epochal.sinks.kafka.batches.blocks import Block
    from epochal.sinks.kafka.batches.columns import Numbers
    from epochal.sinks.kafka.batches.compress import Data

__all__ = ["Layout", "Piece", "read", "write"]

GROUP_BYTES = 32 << 20
_BLOCK_BYTES = 4 << 20
"""How many bytes of rows are encoded at once: few enough for the cache, enough to be worth the calls."""
_BLOCK_BYTES_OF_PARTITION = 32 << 10
"""With many partitions a block is larger, as every partition costs some calls."""
_LARGEST_BLOCK = 1 << 30
"""Arrow's type for bytes holds twice as many, and records are larger than their rows."""


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
    gets bytes that follow each other.  A batch waits until it is full; when all that wait have more
    than ``group_bytes``, they are written as they are.  About four times as many bytes are held at most.
    """
    writer = _Writer(layout, out, group_bytes)
    block_bytes = max(_BLOCK_BYTES, _BLOCK_BYTES_OF_PARTITION * sum(layout.partitions))
    for rows in blocks_of(batches, min(block_bytes, group_bytes // 2, _LARGEST_BLOCK)):
        writer.write(rows)
    writer.close_all()
    return writer.pieces


class _Segment(NamedTuple):
    """Rows of one batch that stand behind each other in a block."""

    code: int
    rows: int
    first: int  # the place of the first row in its batch


@dataclass
class _Batch:
    """A batch that is not full yet."""

    begun: Begun = NOTHING  # by the sizes that its rows have at most
    parts: list[Data] = field(default_factory=list)
    rows: int = 0
    length: int = 0


class _Writer:
    def __init__(self, layout: Layout, out: Callable[[Any], None], most_held: int) -> None:
        self._layout, self._out, self._most_held = layout, out, most_held
        self._codec = Codec(layout.codec, layout.level)
        self._limits = [layout.batch_bytes_of(topic) for topic in range(len(layout.topics))]
        self._places = Places(layout, Partitioner(layout.partitioner, layout.partitions, self._limits))
        self._open: dict[int, _Batch] = {}
        self._held = self._written = 0
        self.pieces: list[Piece] = []

    def write(self, block: Block) -> None:
        """Encode all rows in the order in which they came, then take them by topic-partition."""
        rows = Rows(block["key"], block["value"], block.get("headers"))
        begun = max((batch.begun.rows for batch in self._open.values()), default=0)
        sizes = rows.largest(max(self._limits), begun)
        codes = self._places.of(block, sizes)
        order = order_of(codes)
        plan = self._plan(codes[order], sizes[order])
        self._add(_encoded(rows, plan, order), plan)
        if self._held > self._most_held:
            self.close_all()
        for code in {segment.code for segment in plan} & set(self._open):
            self._keep(self._open[code])

    def close_all(self) -> None:
        """Write the batches that are not full too."""
        for code in sorted(self._open):
            self._close(code)

    def _plan(self, codes: Numbers, sizes: Numbers) -> list[_Segment]:
        """Return which rows belong to which batch.  Rows with one code stand behind each other."""
        import numpy as np

        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        found = []
        for start, end in itertools.pairwise(bounds):
            found += self._cut(int(codes[start]), sizes[start:end])
        return found

    def _cut(self, code: int, sizes: Numbers) -> list[_Segment]:
        batch = self._open.setdefault(code, _Batch())
        begun, limit = batch.begun, self._limits[self._layout.topic_of(code)]
        counts = cut(sizes, limit, self._layout.batch_rows, begun)
        added = Begun(int(sizes[len(sizes) - counts[-1] :].sum()), counts[-1])
        batch.begun = added if len(counts) > 1 else Begun(begun.size + added.size, begun.rows + added.rows)
        firsts = [begun.rows] + [0] * (len(counts) - 1)
        return [_Segment(code, rows, first) for rows, first in zip(counts, firsts, strict=True) if rows]

    def _add(self, records: pyarrow.Array, plan: Sequence[_Segment]) -> None:
        offsets, data = offsets_of(records), records.buffers()[2]
        end = 0
        for code, rows, first in plan:
            start, end = end, end + rows
            batch = self._open[code]
            if not first and batch.rows:
                self._close(code)
                batch = self._open[code] = _Batch(batch.begun)
            part = data.slice(int(offsets[start]), int(offsets[end] - offsets[start]))
            batch.parts.append(part)
            batch.rows += rows
            batch.length += part.size
            self._held += part.size

    def _keep(self, batch: _Batch) -> None:
        """Copy the last part of a batch, so that it does not keep the records of a whole block in memory."""
        batch.parts[-1] = bytes(batch.parts[-1])

    def _close(self, code: int) -> None:
        batch = self._open.pop(code)
        self._held -= batch.length
        parts, attributes = self._codec.squeeze_parts(batch.parts)
        crc = 0
        for part in parts:
            self._out(part)
            crc = checksum(part, crc)
        length = sum(map(len, parts))
        self.pieces.append(Piece(code, self._written, length, batch.rows, attributes, crc))
        self._written += length


def _encoded(rows: Rows, plan: Sequence[_Segment], order: Any) -> pyarrow.Array:
    """Return the records in the ``order`` of the plan."""
    places = deltas([segment.rows for segment in plan], [segment.first for segment in plan])
    if isinstance(order, slice):
        return rows.encoded(places)
    scattered = places.copy()
    scattered[order] = places
    return rows.encoded(scattered).take(indices(order))
