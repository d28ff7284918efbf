"""Make the header of a record batch (format 2), and the checksums of what follows it."""

from __future__ import annotations

import importlib
import struct
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

LIBRARIES = ("numpy", "pyarrow", "google_crc32c")
"""What encodes and frames records."""
_COMPILED = "c"
"""What google_crc32c says of its ``implementation`` if it has its C extension."""

TRANSACTIONAL = 0x10
"""The attribute of a batch that belongs to a transaction."""

_HEAD = struct.Struct(">qiibI")
"""Base offset, length of all that follows this field, leader epoch, format, checksum."""
_TAIL = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, first and largest timestamp, producer id and epoch, sequence, number of records.

The checksum covers these fields and the records."""
HEADER_BYTES = _HEAD.size + _TAIL.size

_FORMAT = 2
_NOT_COUNTED = struct.calcsize(">qi")
"""The bytes in front of those that the length field counts: base offset, and the length itself."""
SEQUENCES = 1 << 31
"""Sequence numbers are counted modulo this."""


def header(
    records: bytes,
    count: int,
    *,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    timestamp_ms: int,
) -> bytes:
    """Return the bytes in front of ``records``, a section of ``count`` records that is encoded and compressed.

    The broker sets the base offset and the leader epoch; it leaves them out of the checksum for that.
    """
    tail = _TAIL.pack(
        attributes,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        sequence % SEQUENCES,
        count,
    )
    length = HEADER_BYTES - _NOT_COUNTED + len(records)
    return _HEAD.pack(0, length, -1, _FORMAT, checksum(records, checksum(tail))) + tail


def checksum(records: bytes | memoryview | pyarrow.Buffer, begun: int = 0) -> int:
    """Return the CRC32C of ``records``; with ``begun``, of the bytes that have this one and ``records`` behind them."""
    import google_crc32c

    if isinstance(records, (bytearray, memoryview)):
        records = _buffer(records)
    found: int = google_crc32c.extend(begun, records)
    return found


def _buffer(records: bytearray | memoryview) -> pyarrow.Buffer:
    """Return the same bytes, not copied, as an object that google_crc32c takes; it refuses memoryviews."""
    import pyarrow as pa

    return pa.py_buffer(records)


def lacking() -> str:
    """Return which library this Python cannot load as a vote needs it, and why; "": it has all of them.

    Driver and executors are asked the same.
    """
    for library in LIBRARIES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # google_crc32c warns of what is returned below
                loaded = importlib.import_module(library)
        except ImportError as error:
            return f"{library}: {error}"
        if getattr(loaded, "implementation", _COMPILED) != _COMPILED:
            return f"{library} with its C extension, which its wheels have: checksums take a hundred times as long"
    return ""
