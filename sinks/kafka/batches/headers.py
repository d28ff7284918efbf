"""Encode the headers of records: array<struct<key, value>>, all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.sinks.kafka.batches.columns import binary, joined, lengths_of, offsets_of, plain, running
from epochal.sinks.kafka.batches.varints import encoded, row

if TYPE_CHECKING:
    import pyarrow

NONE = b"\0"
"""What a record without headers has in their place: their number."""


def encode_headers(headers: pyarrow.Array) -> pyarrow.Array:
    """Return for each row the number of its headers and the headers.  A row whose list is NULL has none."""
    counts = lengths_of(headers, of_null=0)
    numbers = row(len(counts), encoded(counts))
    each = headers.flatten()  # without those of lists that are NULL
    if not len(each):
        return numbers
    one = _one_by_one(each)
    starts = offsets_of(one)[running(counts)]
    return joined(numbers, binary(starts, one.buffers()[2]))


def _one_by_one(headers: pyarrow.Array) -> pyarrow.Array:
    """Return every header as Kafka writes it."""
    keys, values = headers.field("key"), headers.field("value")
    if headers.null_count or keys.null_count:
        raise ValueError("a header without a key: Kafka has no such header")
    size = len(headers)
    key_lengths, value_lengths = row(size, encoded(lengths_of(keys))), row(size, encoded(lengths_of(values)))
    return joined(key_lengths, plain(keys), value_lengths, plain(values))
