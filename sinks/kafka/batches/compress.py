"""Compress the records of a batch in the forms that Kafka's brokers and clients read."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow

    Data: TypeAlias = bytes | memoryview | pyarrow.Buffer

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The codecs, and the attribute of a batch that each compressed."""
CODEC_BITS = 0x7
"""The bits of the attributes that hold the codec."""

_USUAL = {"gzip": 6}
"""The level where the user names none, if it is not pyarrow's.

pyarrow takes 9 for gzip, which is slow, and 1 for zstd.  Kafka's clients take 3 for zstd; measured on JSON and on
random letters, 1 took two thirds of the time and made batches of the same size.
"""

LZ4_HEAD = b"\x04\x22\x4d\x18\x60\x70\x73"
"""The head of a frame of independent blocks of at most 4 MiB, without checksums of the content."""
_LZ4_BLOCK = 4 << 20
_LZ4_END = bytes(4)
_LZ4_STORED = 1 << 31
"""The bit of a block's length that says that the block is not compressed."""

SNAPPY_HEAD = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
"""The head that snappy-java writes: its magic, its version, and the oldest version that can read this."""
_SNAPPY_BLOCK = 32 << 10


class Codec:
    """One of ``CODECS``, or None for none, at one level; None or a negative one is the usual level."""

    def __init__(self, name: str | None, level: int | None = None) -> None:
        name = name or "none"
        self._attributes = CODECS[name]
        self._compress = None if (name, level) == ("gzip", 0) else _compressor(name, level)

    def squeeze_parts(self, parts: list[Data]) -> tuple[list[Data], int]:
        """Do the same with records that lie in several places."""
        if self._compress is None:
            return parts, 0
        smaller, attributes = self.squeeze(parts[0] if len(parts) == 1 else b"".join(parts))
        return [smaller], attributes

    def squeeze(self, records: Data) -> tuple[Data, int]:
        """Return the compressed records and the attributes of their batch.

        Where that is no smaller, the records stay as they are, so that no batch grows beyond what it was cut to.
        """
        if self._compress is not None:
            smaller = self._compress(records)
            if len(smaller) < len(records):
                return smaller, self._attributes
        return records, 0


def _compressor(name: str, level: int | None) -> Callable[[Data], bytes] | None:
    import pyarrow as pa

    if name == "none":
        return None
    if name == "snappy":  # it has no levels
        return functools.partial(_snappy, pa.Codec("snappy"))
    codec = "lz4_raw" if name == "lz4" else name
    if level is None or level < 0:
        level = _USUAL.get(name)
    if level is not None:
        level = min(max(level, pa.Codec.minimum_compression_level(codec)), pa.Codec.maximum_compression_level(codec))
    made = pa.Codec(codec, compression_level=level)
    return functools.partial(_lz4 if name == "lz4" else _whole, made)


def _whole(codec: Any, records: Data) -> bytes:
    made: bytes = codec.compress(records, asbytes=True)
    return made


def _lz4(codec: Any, records: Data) -> bytes:
    """Return a frame of independent blocks.  pyarrow's own frame links its blocks, and brokers refuse that."""
    data = memoryview(records)
    made: list[Data] = [LZ4_HEAD]
    for at in range(0, len(data), _LZ4_BLOCK):
        block = data[at : at + _LZ4_BLOCK]
        smaller = codec.compress(block, asbytes=True)
        if len(smaller) < len(block):
            made += (struct.pack("<I", len(smaller)), smaller)
        else:
            made += (struct.pack("<I", len(block) | _LZ4_STORED), block)
    return b"".join([*made, _LZ4_END])


def _snappy(codec: Any, records: Data) -> bytes:
    data, made = memoryview(records), [SNAPPY_HEAD]
    for at in range(0, len(data), _SNAPPY_BLOCK):
        smaller = codec.compress(data[at : at + _SNAPPY_BLOCK], asbytes=True)
        made += (struct.pack(">i", len(smaller)), smaller)
    return b"".join(made)


def expand(records: bytes, attributes: int) -> bytes:
    """Return the records of a section, whatever codec compressed it."""
    import pyarrow as pa

    name = {bits: name for name, bits in CODECS.items()}[attributes & CODEC_BITS]
    if name == "none":
        return records
    if name == "snappy":
        return _expand_snappy(records)
    expanded: bytes = pa.input_stream(pa.py_buffer(records), compression=name).read()
    return expanded


def _expand_snappy(records: bytes) -> bytes:
    import pyarrow as pa

    codec, at, found = pa.Codec("snappy"), len(SNAPPY_HEAD), []
    if records[:at] != SNAPPY_HEAD:
        raise ValueError("these records do not begin as snappy-java writes them")
    while at < len(records):
        (length,) = struct.unpack_from(">i", records, at)
        at += 4
        block = records[at : at + length]
        found.append(codec.decompress(block, decompressed_size=_size_in_snappy(block), asbytes=True))
        at += length
    return b"".join(found)


def _size_in_snappy(block: bytes) -> int:
    """Return how large a block gets: it begins with that number, seven bits a byte, the lowest first."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    return size
