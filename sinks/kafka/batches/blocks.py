"""Gather rows until there are enough of them to be worth the calls, and few enough for the processor's cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow

    Block: TypeAlias = dict[str, pyarrow.Array]
    """Some rows: columns by their names."""


def blocks_of(batches: Iterable[pyarrow.RecordBatch], limit: int) -> Iterator[Block]:
    """Yield all rows in their order, about ``limit`` bytes at once; a row that is larger comes alone."""
    held: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in itertools.chain.from_iterable(_parts(batch, limit) for batch in batches):
        if held and size + batch.nbytes > limit:
            block, held, size = _together(held), [], 0
            yield block
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


def _together(held: list[pyarrow.RecordBatch]) -> Block:
    import pyarrow as pa

    columns = {name: [batch.column(name) for batch in held] for name in held[0].schema.names}
    return {name: pa.concat_arrays(parts) if len(parts) > 1 else parts[0] for name, parts in columns.items()}
