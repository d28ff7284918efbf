"""Records as Kafka's protocol has them, read by kafka-python and equal to those of an encoder that goes row by row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.sinks.kafka.batches.read import read
from epochal.sinks.kafka.batches.records import Rows, deltas, encode, encode_one
from epochal.sinks.kafka.batches.varints import read_varint, varint
from tests.pure.sinks.kafka.batches.support import BYTES, HEADERS, ROW, Row, batch_of, decoded

LENGTHS = (0, 1, 63, 64, 65, 127, 128, 8191, 8192, 20_000)
"""Where a length needs one more byte."""


def sections(rows: Sequence[Row], counts: Sequence[int], kind: pa.DataType, *also: str) -> list[bytes]:
    batch = batch_of(rows, *also, kind=kind)
    headers = batch.column("headers") if "headers" in also else None
    data, offsets = encode(batch.column("key"), batch.column("value"), headers, counts)
    assert len(offsets) == len(rows) + 1
    bounds = np.cumsum([0, *counts])
    return [data.to_pybytes()[offsets[a] : offsets[b]] for a, b in itertools.pairwise(bounds)]


@st.composite
def cuts(draw: st.DrawFn, rows: int) -> list[int]:
    bounds = sorted(draw(st.sets(st.integers(1, max(1, rows - 1)), max_size=3)) if rows > 1 else [])
    return [b - a for a, b in itertools.pairwise([0, *bounds, rows]) if b > a]


@given(st.data(), st.lists(ROW, max_size=30), st.sampled_from([pa.binary(), pa.large_binary(), pa.string()]))
def test_every_record_is_read_as_its_row(data: st.DataObject, rows: list[Row], kind: pa.DataType) -> None:
    if kind == pa.string():
        rows = [row._replace(key=row.key and row.key.hex().encode(), value=b"text") for row in rows]
    counts = data.draw(cuts(len(rows)))
    made = sections(rows, counts, kind, "headers")
    left = [row._replace(headers=row.headers or [], topic="a") for row in rows]
    for section, count in zip(made, counts, strict=True):
        assert decoded(section, count) == left[:count]
        assert [Row(*record) for record in read(section, 0, count)] == left[:count]
        left = left[count:]
    assert left == []


@given(st.lists(st.tuples(st.none() | BYTES, st.none() | BYTES), max_size=20))
def test_records_without_headers_are_those_of_the_encoder_of_single_rows(pairs: list[tuple[bytes, bytes]]) -> None:
    rows = [Row(*pair) for pair in pairs]
    assert sections(rows, [len(rows)], pa.binary()) == [encode_one(pairs)]
    assert decoded(encode_one(pairs), len(pairs)) == [row._replace(headers=[]) for row in rows]


@pytest.mark.parametrize("key", LENGTHS)
@pytest.mark.parametrize("also", [None, 70])
def test_lengths_at_which_a_number_grows(key: int, also: int | None) -> None:
    pairs: list[tuple[bytes | None, bytes | None]] = [(bytes(key), bytes(n)) for n in (key, also or key) * 80]
    assert sections([Row(*pair) for pair in pairs], [160], pa.binary()) == [encode_one(pairs)]


def test_places_at_which_a_number_grows() -> None:
    pairs: list[tuple[bytes | None, bytes | None]] = [(None, b"")] * 20_000
    for counts in ([20_000], [64, 65, 8192, 8193, 3486]):
        made = sections([Row(*pair) for pair in pairs], counts, pa.binary())
        assert made == [encode_one(pairs[:count]) for count in counts]


def test_a_column_of_keys_may_be_missing() -> None:
    values = pa.array([b"one", None], pa.binary())
    data, _ = encode(None, values, None, [2])
    assert data.to_pybytes() == encode_one([(None, b"one"), (None, None)])


def test_bytes_of_a_null_are_not_written() -> None:
    """Arrow leaves it open which bytes stand for NULL."""
    offsets, valid = pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(bytes([0b10]))
    column = pa.Array.from_buffers(pa.binary(), 2, [valid, offsets, pa.py_buffer(b"oldnew")])
    data, _ = encode(column, column, None, [2])
    assert data.to_pybytes() == encode_one([(None, None), (b"new", b"new")])


def test_a_header_without_a_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b""}]], HEADERS)
    with pytest.raises(ValueError, match="a header without a key"):
        encode(None, pa.array([b""]), headers, [1])


def test_headers_in_arrows_large_types() -> None:
    """Spark makes them where ``spark.sql.execution.arrow.useLargeVarTypes`` is set."""
    kind = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    batch = batch_of([Row(b"k", b"v", [("h", b"1"), ("i", None)]), Row(b"k", b"v")])
    key, value, headers = (batch.column(name) for name in ("key", "value", "headers"))
    plain, _ = encode(key, value, headers, [2])
    large, _ = encode(key.cast(pa.large_binary()), value.cast(pa.large_binary()), headers.cast(kind)[:2], [2])
    assert large == plain


def test_headers_of_a_list_that_is_null_are_not_written() -> None:
    kept = batch_of([Row(None, b"1", [("k", b"v")]), Row(None, b"2", [("l", None)])]).column("headers")
    valid, offsets = pa.py_buffer(bytes([0b10])), pa.py_buffer(np.array([0, 1, 2], np.int32))
    nulled = pa.Array.from_buffers(kept.type, 2, [valid, offsets], children=[kept.flatten()])
    data, _ = encode(None, pa.array([b"1", b"2"]), nulled, [2])
    assert decoded(data.to_pybytes(), 2) == [Row(None, b"1", []), Row(None, b"2", [("l", None)])]


@given(st.lists(ROW, min_size=1, max_size=30), st.integers(1, 3000))
def test_no_record_is_larger_than_was_said(rows: list[Row], limit: int) -> None:
    batch = batch_of(rows)
    some = Rows(batch.column("key"), batch.column("value"), batch.column("headers"))
    most = some.largest(limit)
    for count in range(1, len(rows) + 1):
        if count == 1 or most[:count].sum() <= limit:
            made = some.encoded(deltas([count, len(rows) - count], [0, 0]))
            assert all(len(each.as_py()) <= said for each, said in zip(made[:count], most, strict=False))


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_number_of_variable_length_is_read_again(number: int) -> None:
    assert read_varint(b"x" + varint(number), 1) == (number, 1 + len(varint(number)))


@pytest.mark.parametrize(
    ("section", "rows", "complaint"),
    [
        (encode_one([(b"k", b"v")]) + b"!", 1, "1 bytes follow the last of 1 records"),
        (encode_one([(b"k", b"v")]) * 2, 2, "record 1 says that it is 0"),
        (varint(9) + encode_one([(b"k", b"v")])[1:] + b"\0", 1, "record 0 has 9 bytes by its length and 8 by its"),
    ],
)
def test_records_that_are_not_as_they_say_are_refused(section: bytes, rows: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        list(read(section, 0, rows))
