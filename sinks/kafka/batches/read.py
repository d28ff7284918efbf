"""Decode the records of a batch again, one by one: slow, for a look at what was written."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.sinks.kafka.batches.compress import expand
from epochal.sinks.kafka.batches.varints import read_varint

_FIXED = 1
"""The bytes of a record's attributes."""


def read(
    records: bytes, attributes: int, rows: int
) -> Iterator[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Yield key, value and headers of each of the ``rows`` records of a section."""
    data, at = expand(records, attributes), 0
    for place in range(rows):
        length, start = read_varint(data, at)
        at = start + length
        timestamp, next_ = read_varint(data, start + _FIXED)
        delta, next_ = read_varint(data, next_)
        if timestamp or delta != place:
            raise ValueError(f"record {place} says that it is {delta}, and {timestamp} ms later than its batch")
        key, next_ = _sized(data, next_)
        value, next_ = _sized(data, next_)
        headers, next_ = _headers(data, next_)
        if next_ != at:
            raise ValueError(f"record {place} has {length} bytes by its length and {next_ - start} by its content")
        yield key, value, headers
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the last of {rows} records")


def _headers(data: bytes, at: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, at = read_varint(data, at)
    found = []
    for _ in range(count):
        key, at = _sized(data, at)
        value, at = _sized(data, at)
        found.append(((key or b"").decode(), value))
    return found, at


def _sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)
