"""Decide which consecutive rows share a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.sinks.kafka.batches.frame import HEADER_BYTES

if TYPE_CHECKING:
    from epochal.sinks.kafka.batches.columns import Numbers


def cut(sizes: Numbers, limit: int, most_rows: int | None) -> list[int]:
    """Return the number of rows of each batch: as many as fit into ``limit`` bytes with the header.

    ``sizes``: the bytes of each row.  A row that does not fit into any batch gets one of its own; it may be smaller
    when it is compressed, and the broker judges that.
    """
    import numpy as np

    ends = np.cumsum(sizes, dtype=np.int64)
    rows, counts, done, bytes_done = len(ends), [], 0, 0
    while done < rows:
        end = int(np.searchsorted(ends, bytes_done + limit - HEADER_BYTES, side="right"))
        end = max(end, done + 1)
        if most_rows is not None:
            end = min(end, done + most_rows)
        counts.append(end - done)
        done, bytes_done = end, int(ends[end - 1])
    return counts
