"""Make the header of a record batch (format 2), and the checksums of what follows it."""

from __future__ import annotations

import importlib
import struct
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

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
_SEQUENCES = 1 << 31


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
        sequence % _SEQUENCES,
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


def check_library() -> str | None:
    """Return in plain words which library is missing or slow here, or None."""
    try:
        for needed in ("numpy", "pyarrow"):
            importlib.import_module(needed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of what is returned below
            import google_crc32c
    except ImportError as error:
        return f"a Python package is missing: {error}"
    if google_crc32c.implementation != "c":
        return "google-crc32c runs without its C extension, which makes it too slow"
    return None
