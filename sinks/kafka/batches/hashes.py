"""The hashes that Kafka's clients take of keys, for all keys of a column at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.sinks.kafka.batches.columns import lengths_of, offsets_of

if TYPE_CHECKING:
    import pyarrow

    from epochal.sinks.kafka.batches.columns import Numbers

_AT_ONCE = 1 << 16
"""How many keys are hashed at once: what is computed of them stays in the processor's cache."""
_FEW = 16
"""When so few keys go on, numpy's calls cost more than Python's arithmetic."""

_MURMUR = 0x5BD1E995
_MURMUR_START = 0x9747B28C
_FNV = 0x01000193
_FNV_START = 0x811C9DC5
_WORD = 0xFFFFFFFF


def murmur2(keys: pyarrow.Array) -> Numbers:
    """Return what Java's client computes of each key: ``Utils.toPositive(Utils.murmur2(key))``.  NULL is empty."""
    import numpy as np

    found: Numbers = _hashed(keys, 4, _murmur2, _murmur2_of) & np.uint32(0x7FFFFFFF)
    return found


def crc32(keys: pyarrow.Array) -> Numbers:
    """Return the CRC32 of each key; NULL is empty."""
    return _hashed(keys, 1, _crc32, zlib.crc32)


def fnv1a(keys: pyarrow.Array) -> Numbers:
    """Return what librdkafka calls the FNV-1a of each key: the absolute value of the signed hash.  NULL is empty."""
    import numpy as np

    return np.abs(_hashed(keys, 1, _fnv1a, _fnv1a_of).view(np.int32)).view(np.uint32)


@dataclass(frozen=True)
class _Keys:
    """Some keys of a column, the longest first."""

    data: Numbers  # the bytes of all keys of the column, and a few more
    starts: Numbers
    lengths: Numbers
    steps: int  # how many steps are made for all keys that are long enough

    def each_step(self, units: Numbers, size: int) -> Iterator[tuple[int, Numbers]]:
        """Yield how many keys have all ``size`` bytes of a step, and what these bytes are.

        ``units``: what begins at each byte of ``data``.
        """
        import numpy as np

        longest, keys, first = int(self.lengths[0]), len(self.lengths), int(self.starts[0])
        if longest == self.lengths[-1]:  # then they lie behind each other
            for at in range(first, first + self.steps * size, size):
                yield keys, units[at : at + (keys - 1) * longest + 1 : longest]
            return
        shortest_first = self.lengths[::-1] // size
        for step in range(self.steps):
            rows = keys - int(np.searchsorted(shortest_first, step, side="right"))
            yield rows, units[self.starts[:rows] + step * size]


def _hashed(keys: pyarrow.Array, size: int, many: Callable[[_Keys], Numbers], one: Callable[[bytes], int]) -> Numbers:
    """Return the hash of each key by ``many``, in steps of ``size`` bytes; of the few longest ones by ``one``."""
    import numpy as np

    starts, lengths = offsets_of(keys)[:-1].astype(np.int64), lengths_of(keys, of_null=0)
    data, found = _padded(keys.buffers()[2]), np.empty(len(keys), np.uint32)
    for first in range(0, len(keys), _AT_ONCE):
        rows = first + _longest_first(lengths[first : first + _AT_ONCE])
        longest = lengths[rows]
        steps = int(longest[min(_FEW, len(rows) - 1)]) // size
        found[rows] = many(_Keys(data, starts[rows], longest, steps))
        for row in rows[: int((longest[:_FEW] // size > steps).sum())]:
            found[row] = one(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return found


def _padded(data: Any) -> Numbers:
    """Return the bytes of a column.  There are four of them at least, so that they hold a word."""
    import numpy as np

    found = np.frombuffer(data or b"", np.uint8)
    return found if len(found) >= 4 else np.concatenate([found, np.zeros(4, np.uint8)])


def _longest_first(lengths: Numbers) -> Numbers:
    import numpy as np

    least, most = int(lengths.min()), int(lengths.max())
    if least == most:
        return np.arange(len(lengths))
    shorter_by = most - lengths
    return np.argsort(shorter_by.astype(np.uint16) if most - least < 1 << 16 else shorter_by, kind="stable")


# --- Arithmetic of numbers of 32 bits without a sign, which numpy does modulo 2**32 --------------------------


def _murmur2(keys: _Keys) -> Numbers:
    import numpy as np

    m, lengths = np.uint32(_MURMUR), keys.lengths
    found: Numbers = np.uint32(_MURMUR_START) ^ lengths.astype(np.uint32)
    words = np.ndarray((len(keys.data) - 3,), "<u4", keys.data, strides=(1,))  # one begins at every byte
    for rows, taken in keys.each_step(words, 4):
        word = taken * m
        word ^= word >> np.uint32(24)
        word *= m
        found[:rows] *= m
        found[:rows] ^= word
    _murmur2_rest(keys, found)
    found ^= found >> np.uint32(13)
    found *= m
    found ^= found >> np.uint32(15)
    return found


def _murmur2_rest(keys: _Keys, found: Numbers) -> None:
    """Take the last one to three bytes of keys whose length is no multiple of four."""
    import numpy as np

    rest, ends = keys.lengths & 3, keys.starts + (keys.lengths & ~3)
    for n in (2, 1, 0):
        rows = np.flatnonzero(rest > n)
        found[rows] ^= keys.data[ends[rows] + n].astype(np.uint32) << np.uint32(8 * n)
    found[rows] *= np.uint32(_MURMUR)


def _murmur2_of(key: bytes) -> int:
    found, whole = _MURMUR_START ^ len(key), len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MURMUR & _WORD
        found = (found * _MURMUR ^ (word ^ word >> 24) * _MURMUR) & _WORD
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * _MURMUR & _WORD
    found = (found ^ found >> 13) * _MURMUR & _WORD
    return found ^ found >> 15


def _crc32(keys: _Keys) -> Numbers:
    import numpy as np

    table = _crc32_of_bytes()
    found = np.full(len(keys.starts), _WORD, np.uint32)
    for rows, taken in keys.each_step(keys.data, 1):
        now = found[:rows]
        found[:rows] = table[(now ^ taken) & np.uint32(0xFF)] ^ (now >> np.uint32(8))
    return ~found


def _crc32_of_bytes() -> Numbers:
    """Return the table of the algorithm."""
    import numpy as np

    found = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        found = np.where(found & 1, (found >> 1) ^ np.uint32(0xEDB88320), found >> 1)
    return found


def _fnv1a(keys: _Keys) -> Numbers:
    import numpy as np

    found = np.full(len(keys.starts), _FNV_START, np.uint32)
    for rows, taken in keys.each_step(keys.data, 1):
        found[:rows] ^= taken
        found[:rows] *= np.uint32(_FNV)
    return found


def _fnv1a_of(key: bytes) -> int:
    found = _FNV_START
    for byte in key:
        found = (found ^ byte) * _FNV & _WORD
    return found
