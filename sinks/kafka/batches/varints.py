"""Kafka's whole numbers of variable length: zigzag, then seven bits a byte, the lowest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.sinks.kafka.batches.columns import of_lengths

if TYPE_CHECKING:
    import pyarrow

    from epochal.sinks.kafka.batches.columns import Numbers

_LARGEST = (0x7F, 0x3FFF, 0x1FFFFF, 0xFFFFFFF)
"""The largest numbers of one, two, three and four bytes, after zigzag."""


def varint(number: int) -> bytes:
    """Return one number."""
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, and where it ends."""
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at


def zigzag(numbers: Numbers) -> Numbers:
    """Return what is written of the ``numbers`` (int32)."""
    import numpy as np

    return ((numbers << 1) ^ (numbers >> 31)).view(np.uint32)


def widths(written: Numbers) -> Numbers:
    """Return how many bytes each number needs, after zigzag."""
    import numpy as np

    found = np.ones(len(written), np.int32)
    most = written.max(initial=0)
    for largest in _LARGEST:
        if most <= largest:
            break
        found += written > largest
    return found


def encoded(numbers: Numbers) -> Numbers | bytes:
    """Return what stands for the ``numbers`` (int32) in a ``row``: bytes if all of them are equal."""
    if len(numbers) and numbers.min() == numbers.max():
        return varint(int(numbers[0]))
    return zigzag(numbers)


def row(rows: int, *parts: Numbers | bytes) -> pyarrow.Array:
    """Return for each row its parts behind each other: a number after zigzag, or bytes that all rows have.

    Every row gets as many cells as the longest one.  The cells that a shorter number leaves empty are left out then.
    """
    import numpy as np

    spans = [len(part) if isinstance(part, bytes) else int(widths(part).max(initial=1)) for part in parts]
    cells = np.empty((rows, sum(spans)), np.uint8)
    used = np.ones(cells.shape, bool) if any(span > 1 for span in _variable(spans, parts)) else None
    at, lengths = 0, np.zeros(rows, np.int32)
    for part, span in zip(parts, spans, strict=True):
        if isinstance(part, bytes):
            cells[:, at : at + span] = np.frombuffer(part, np.uint8)
            lengths += span
        else:
            lengths += _fill(cells, used, at, part, span)
        at += span
    return of_lengths(lengths, cells.ravel() if used is None else cells[used])


def _variable(spans: list[int], parts: tuple[Numbers | bytes, ...]) -> list[int]:
    return [span for span, part in zip(spans, parts, strict=True) if not isinstance(part, bytes)]


def _fill(cells: Numbers, used: Numbers | None, at: int, written: Numbers, span: int) -> Numbers:
    """Write numbers into ``span`` cells of each row from ``at`` on; return how many of them each number needs."""
    import numpy as np

    lengths = widths(written)
    for n in range(span):
        more = (lengths > n + 1).view(np.uint8) << np.uint8(7)
        cells[:, at + n] = (written >> np.uint32(7 * n)).astype(np.uint8) & np.uint8(0x7F) | more
        if n and used is not None:
            used[:, at + n] = lengths > n
    return lengths
