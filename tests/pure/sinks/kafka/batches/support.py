"""What the tests of batches share: rows, columns of rows, and a reader of batches that is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from epochal.sinks.kafka.batches import frame
from epochal.sinks.kafka.batches.compress import CODEC_BITS, expand
from epochal.sinks.kafka.batches.write import Layout, Piece

BINARY = pa.binary()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PRODUCER = {"producer_id": 77, "producer_epoch": 5, "sequence": 123, "timestamp_ms": 1_700_000_000_000}

Headers = list[tuple[str, "bytes | None"]]


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    topic: str = "a"
    partition: int | None = None


BYTES = st.binary(max_size=6) | st.integers(0, 700).map(lambda n: bytes(n % 256 for n in range(n)))
HEADER = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=80))
ROW = st.tuples(
    st.none() | BYTES, st.none() | BYTES, st.none() | st.lists(HEADER, max_size=3), st.sampled_from("abc")
).map(lambda parts: Row(*parts))


def headers_of(rows: Sequence[Row]) -> pa.Array:
    made = [None if row.headers is None else [{"key": k, "value": v} for k, v in row.headers] for row in rows]
    return pa.array(made, HEADERS)


def inside(column: pa.Array) -> pa.Array:
    """The same values, as a slice of a longer column."""
    first = column[:3]
    return pa.concat_arrays([first, column, first])[len(first) : len(first) + len(column)]


def batch_of(rows: Sequence[Row], *also: str, kind: pa.DataType = BINARY) -> pa.RecordBatch:
    """All columns; with ``also``, key and value and these."""
    columns = {
        "key": pa.array([row.key for row in rows], kind),
        "value": pa.array([row.value for row in rows], kind),
        "headers": headers_of(rows),
        "topic": pa.array([row.topic for row in rows], pa.string()),
        "partition": pa.array([row.partition for row in rows], pa.int64()),
    }
    wanted = {"key", "value", *also} if also else set(columns)
    return pa.RecordBatch.from_pydict({name: inside(column) for name, column in columns.items() if name in wanted})


def decoded(section: bytes, rows: int, attributes: int = 0) -> list[Row]:
    """What kafka-python reads of a section with our header in front.  It has no codecs, so that they are ours."""
    plain, attributes = expand(section, attributes), attributes & ~CODEC_BITS
    batch = DefaultRecordBatch(frame.header(plain, rows, attributes=attributes, **PRODUCER) + plain)
    assert batch.validate_crc()
    assert (batch.records_count, batch.last_offset_delta) == (rows, rows - 1)
    found = []
    for place, record in enumerate(batch):
        assert (record.offset, record.timestamp) == (place, PRODUCER["timestamp_ms"])
        found.append(Row(record.key, record.value, list(record.headers)))
    return found


@dataclass
class Written:
    """What ``write`` gave out."""

    layout: Layout
    data: bytes
    pieces: list[Piece]

    def section(self, piece: Piece) -> bytes:
        return self.data[piece.offset : piece.offset + piece.length]

    def by_place(self) -> dict[tuple[str, int], list[Row]]:
        found: dict[tuple[str, int], list[Row]] = {}
        for piece in self.pieces:
            rows = decoded(self.section(piece), piece.rows, piece.attributes)
            found.setdefault(self.layout.partition_of(piece.code), []).extend(rows)
        return found


def layout(**given: Any) -> Layout:
    usual: dict[str, Any] = {
        "topics": ("a",),
        "partitions": (3,),
        "limits": (1_000_000,),
        "partitioner": "murmur2_random",
        "codec": None,
        "level": None,
        "batch_bytes": None,
        "batch_rows": None,
    }
    return Layout(**usual | given)
