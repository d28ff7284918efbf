"""Rows of binary COPY, taken apart again by a reader that knows nothing of how they were made."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.sinks.postgres import binary


def fields(data: memoryview) -> Iterator[list[bytes | None]]:
    """As Postgres documents it: a count, then length and bytes of each field."""
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from(">h", data, at)
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if length < 0 else bytes(data[at : at + length]))
            at += max(length, 0)
        yield row
    assert at == len(data)


def numeric(data: bytes) -> Decimal:
    """As ``numeric_recv`` reads it."""
    count, weight, sign, scale = struct.unpack_from(">hhHh", data)
    digits = struct.unpack_from(f">{count}h", data, 8)
    assert len(data) == 8 + 2 * count
    assert all(0 <= digit < 10_000 for digit in digits)
    whole = sum(digit * 10_000 ** (count - 1 - place) for place, digit in enumerate(digits))
    power = 4 * (weight - count + 1) + scale
    unscaled = whole * 10**power if power >= 0 else whole // 10**-power
    assert power >= 0 or whole % 10**-power == 0, "digits beyond the scale"
    return exactly(-unscaled if sign == 0x4000 else unscaled, -scale)


def exactly(unscaled: int, exponent: int) -> Decimal:
    """Without rounding, which arithmetic would do."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), exponent))


def unpacked(form: str) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        return struct.unpack(form, data)[0]

    return read


def boolean(data: bytes) -> bool:
    return {b"\0": False, b"\1": True}[data]


def day(data: bytes) -> dt.date:
    return dt.date(2000, 1, 1) + dt.timedelta(days=struct.unpack(">i", data)[0])


def moment(data: bytes) -> dt.datetime:
    return dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=struct.unpack(">q", data)[0])


def instant(data: bytes) -> dt.datetime:
    return moment(data).replace(tzinfo=dt.timezone.utc)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
BYTES = st.binary(max_size=20)
DATES = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Callable[[bytes], Any]]] = {
    "bool": (pa.bool_(), st.booleans(), boolean),
    "int16": (pa.int16(), signed(16), unpacked(">h")),
    "int32": (pa.int32(), signed(32), unpacked(">i")),
    "int64": (pa.int64(), signed(64), unpacked(">q")),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False), unpacked(">f")),
    "float64": (pa.float64(), st.floats(allow_nan=False), unpacked(">d")),
    "string": (pa.string(), TEXT, bytes.decode),
    "large string": (pa.large_string(), TEXT, bytes.decode),
    "binary": (pa.binary(), BYTES, bytes),
    "large binary": (pa.large_binary(), BYTES, bytes),
    "date": (pa.date32(), DATES, day),
    "timestamp": (pa.timestamp("us"), TIMES, moment),
    "instant": (
        pa.timestamp("us", "America/New_York"),
        TIMES.map(lambda t: t.replace(tzinfo=dt.timezone.utc)),
        instant,
    ),
}


def read(columns: list[pa.Array], kinds: list[Callable[[bytes], Any]]) -> list[tuple[Any, ...]]:
    """The rows, without the two constants, which are the same in each."""
    found = []
    for *row, first, second in fields(binary.rows(columns, (7, -1))):
        assert (first, second) == (struct.pack(">q", 7), struct.pack(">q", -1))
        found.append(tuple(None if f is None else kind(f) for kind, f in zip(kinds, row, strict=True)))
    return found


@given(st.data())
def test_every_type_with_nulls_in_every_order_and_any_slice(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    count, skipped = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 2))
    columns, expected = [], []
    for name in names:
        kind, values, _ = KINDS[name]
        nullable = st.one_of(st.none(), values) if data.draw(st.booleans()) else values
        drawn = data.draw(st.lists(nullable, min_size=count + skipped, max_size=count + skipped))
        columns.append(pa.array(drawn, kind).slice(skipped))
        expected.append(drawn[skipped:])
    found = read(columns, [KINDS[name][2] for name in names])
    assert found == list(zip(*expected, strict=True))


@given(st.data())
def test_an_array_has_the_items_as_a_row_has_them(data: st.DataObject) -> None:
    kind, values, unpack = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    drawn = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=6))
    whole = binary.array(pa.array([None, *drawn], kind).slice(1), 25)
    assert struct.unpack_from(">iiIii", whole) == (1, int(None in drawn), 25, len(drawn), 1)
    at, found = 20, []
    for _ in drawn:
        (length,) = struct.unpack_from(">i", whole, at)
        at += 4 + max(length, 0)
        found.append(None if length < 0 else unpack(whole[at - length : at]))
    assert (found, at) == (drawn, len(whole))


def test_no_rows_and_buffers_as_arrow_allows_them() -> None:
    assert not binary.rows([pa.Array.from_buffers(pa.int64(), 0, [None, None])], (7,))
    longer = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(17))])
    assert read([longer], [unpacked(">q")]) == [(0,), (0,)]


def test_a_type_that_postgres_does_not_have_makes_no_rows() -> None:
    with pytest.raises(KeyError, match="int8"):
        binary.rows([pa.array([1], pa.int8())], (7,))


def test_an_instant_whose_local_year_python_does_not_have() -> None:
    first = dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc)
    assert read([pa.array([first], pa.timestamp("us", "America/New_York"))], [instant]) == [(first,)]


@given(st.data())
def test_decimals_of_every_precision_and_scale(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    unscaled = st.one_of(st.none(), st.integers(-(10**precision) + 1, 10**precision - 1))
    drawn = data.draw(st.lists(unscaled, min_size=1, max_size=6))
    values = [None if value is None else exactly(value, -scale) for value in drawn]
    column = pa.array([None, *values], pa.decimal128(precision, scale)).slice(1)
    found = read([column], [numeric])
    assert found == [(value,) for value in values]
    scales = {-int(value.as_tuple().exponent) for (value,) in found if value is not None}
    assert scales <= {scale}


def test_ends_of_decimals_and_numbers_that_are_none() -> None:
    ends = [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)]
    assert read([pa.array(ends, pa.decimal128(38, 0))], [numeric]) == [(end,) for end in ends]
    odd = [math.nan, math.inf, -math.inf, -0.0]
    found = [struct.pack(">d", value) for (value,) in read([pa.array(odd, pa.float64())], [unpacked(">d")])]
    assert found == [struct.pack(">d", value) for value in odd]


def test_all_null_and_nothing_but_empty() -> None:
    kinds = [pa.string(), pa.int64(), pa.decimal128(10, 2), pa.date32()]
    assert read([pa.array([None] * 3, kind) for kind in kinds], [bytes] * 4) == [(None,) * 4] * 3
    assert read([pa.array(["", ""])], [bytes]) == [(b"",), (b"",)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_that_is_none_is_counted_value_by_value(kind: pa.DataType) -> None:
    wide = pa.large_binary() if kind == pa.large_string() else pa.binary()

    def count(*values: bytes | None) -> int:
        return binary.count_invalid_text(pa.array([b"\0", *values], wide).view(kind).slice(1))

    assert count(b"fine", "é\U0001f600".encode(), None, b"") == 0
    assert count(b"a\0b", b"fine", None) == 1
    assert count(b"\xc3(", b"\xed\xa0\x80", b"\0") == 3
    assert count(b"\xc3", b"\xa9") == 2, "halves of a character are none, side by side either"
    assert binary.count_invalid_text(pa.array([1, 2])) == 0


@pytest.mark.parametrize("unscaled", [12345678, -1_000_000, 2**120], ids=["digits", "negative", "limbs"])
def test_a_decimal_beyond_its_precision_is_no_row(unscaled: int) -> None:
    """A NULL may hold anything."""
    kind, data = pa.decimal128(4, 2), pa.py_buffer(unscaled.to_bytes(16, "little", signed=True))
    with pytest.raises(OverflowError, match="more digits than its type"):
        binary.rows([pa.Array.from_buffers(kind, 1, [None, data])], ())
    assert read([pa.Array.from_buffers(kind, 1, [pa.py_buffer(b"\0"), data])], [numeric]) == [(None,)]
