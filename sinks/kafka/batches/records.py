"""Encode rows as the records of batches, all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.sinks.kafka.batches.columns import constant, joined, lengths_of, offsets_of, plain
from epochal.sinks.kafka.batches.headers import NONE, encode_headers
from epochal.sinks.kafka.batches.varints import encoded, row, varint, widths, zigzag

if TYPE_CHECKING:
    import pyarrow

    from epochal.sinks.kafka.batches.columns import Numbers

_ATTRIBUTES, _TIMESTAMP_DELTA = b"\0", b"\0"
"""A record has no attributes yet, and all records of a batch have its timestamp."""


def encode(
    key: pyarrow.Array | None, value: pyarrow.Array, headers: pyarrow.Array | None, counts: Sequence[int]
) -> tuple[pyarrow.Buffer, Numbers]:
    """Return the records of consecutive batches of ``counts`` rows, and the offset of every row and of the end."""
    found = Rows(key, value, headers).encoded(deltas(counts, [0] * len(counts)))
    return found.buffers()[2], offsets_of(found)


def deltas(counts: Sequence[int], firsts: Sequence[int]) -> Numbers:
    """Return the place of each row in its batch.

    There are ``counts`` rows of one batch behind each other, and then rows of the next one; the first of them have the
    places ``firsts``.
    """
    import numpy as np

    sizes = np.array(counts, np.int64)
    before = np.cumsum(sizes) - sizes - np.array(firsts, np.int64)
    return (np.arange(sizes.sum()) - np.repeat(before, sizes)).astype(np.int32)


class Rows:
    """Some rows that become records."""

    def __init__(self, key: pyarrow.Array | None, value: pyarrow.Array, headers: pyarrow.Array | None) -> None:
        if key is not None and key.null_count == len(key):
            key = None
        self._key, self._value = key, value
        self._headers = None if headers is None else encode_headers(headers)
        self._value_lengths = lengths_of(value)
        self._key_lengths = None if key is None else lengths_of(key)
        self._bodies = self._measured()

    def __len__(self) -> int:
        return len(self._value_lengths)

    def _measured(self) -> Numbers:
        """Return the bytes of each record without the two numbers that its batch decides: its length and its place."""
        found = _with_length(self._value_lengths) + len(_ATTRIBUTES + _TIMESTAMP_DELTA)
        found += len(varint(-1)) if self._key_lengths is None else _with_length(self._key_lengths)
        found += len(NONE) if self._headers is None else lengths_of(self._headers)
        return found

    def largest(self, limit: int, begun: int = 0) -> Numbers:
        """Return the bytes that each record has at most, wherever it stands in a batch of ``limit`` bytes.

        ``begun``: how many other rows a batch has at most.
        """
        import numpy as np

        rows = max(1, limit // max(1, int(self._bodies.min(initial=limit))))
        place = len(varint(begun + min(rows, len(self))))
        bodies: Numbers = self._bodies + np.int32(place)
        bodies += widths(zigzag(bodies))
        return bodies

    def encoded(self, places: Numbers) -> pyarrow.Array:
        """Return the records; ``places`` are those of the rows in their batches."""
        place = zigzag(places)
        parts: list[Numbers | bytes] = [zigzag(self._bodies + widths(place)), _ATTRIBUTES + _TIMESTAMP_DELTA, place]
        value_length = encoded(self._value_lengths)
        columns = []
        if self._key is None:
            columns.append(row(len(self), *parts, varint(-1), value_length))
        else:
            assert self._key_lengths is not None, "a key has lengths"
            columns.append(row(len(self), *parts, encoded(self._key_lengths)))
            columns.append(plain(self._key))
            same = constant(value_length) if isinstance(value_length, bytes) else None
            columns.append(row(len(self), value_length) if same is None else same)
        columns.append(plain(self._value))
        columns.append(constant(NONE) if self._headers is None else self._headers)
        return joined(*columns)


def _with_length(lengths: Numbers) -> Numbers:
    """Return the bytes of values together with their lengths in front."""
    import numpy as np

    return np.maximum(lengths, 0) + widths(zigzag(lengths))


def encode_one(rows: Sequence[tuple[bytes | None, bytes | None]]) -> bytes:
    """Return the records of one small batch of keys and values; it needs neither numpy nor Arrow."""
    return b"".join(_record(place, key, value) for place, (key, value) in enumerate(rows))


def _record(place: int, key: bytes | None, value: bytes | None) -> bytes:
    body = _ATTRIBUTES + _TIMESTAMP_DELTA + varint(place) + _sized(key) + _sized(value) + NONE
    return varint(len(body)) + body


def _sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value
