"""Decide which consecutive rows share a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from epochal.sinks.kafka.batches.frame import HEADER_BYTES

if TYPE_CHECKING:
    from epochal.sinks.kafka.batches.columns import Numbers


class Begun(NamedTuple):
    """A batch that has rows already."""

    size: int = 0  # the bytes of its rows
    rows: int = 0


NOTHING = Begun()


def cut(sizes: Numbers, limit: int, most_rows: int | None, begun: Begun = NOTHING) -> list[int]:
    """Return the number of rows of each batch: as many as fit into ``limit`` bytes with the header.

    ``sizes``: the bytes of each row.  A row that does not fit into any batch gets one of its own; it may be smaller
    when it is compressed, and the broker judges that.  ``begun``: the batch that the first rows are added to; the
    first number is 0 if none of them fits into it.
    """
    import numpy as np

    ends = np.cumsum(sizes, dtype=np.int64)
    counts: list[int] = []
    done, room, rows = 0, limit - HEADER_BYTES - begun.size, begun.rows
    while done < len(ends):
        end = max(done, int(np.searchsorted(ends, room, side="right")))
        if most_rows is not None:
            end = min(end, done + most_rows - rows)
        if not rows:
            end = max(end, done + 1)
        counts.append(end - done)
        done, rows = end, 0
        room = limit - HEADER_BYTES + (int(ends[done - 1]) if done else 0)
    return counts
