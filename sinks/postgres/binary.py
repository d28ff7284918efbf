"""Converts Arrow columns to rows of Postgres's binary COPY, one batch at a time and without a loop over rows.

A row begins with the number of its fields.  Then follow, for each field, its length (-1: NULL) and its bytes.  All
numbers are big-endian.  Neighbouring fields of fixed length, and the lengths of the other fields, go into one array of
records.  Arrow then joins these records with the texts, row by row.  (Postgres's documentation, "COPY", "Binary
Format"; for ``numeric`` the server's source, ``numeric_recv``.)

The Arrow type decides the Postgres type.  ``rows.py`` makes sure that the two fit, and the server accepts a field only
if it has the length of its column's type.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.sinks.spark.workers import large_binary, of_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The bytes before the first row: signature, no flags, no extension."""
TRAILER = b"\xff\xff"
"""The bytes after the last row."""

_BYTES = pa.large_binary()  # a batch may have more than 2 GiB
_NULL = large_binary(b"\xff\xff\xff\xff")
_EMPTY = large_binary(b"")
_DAYS = 10957  # from 1970-01-01 to 2000-01-01, Postgres's epoch
_MICROSECONDS = _DAYS * 86_400_000_000
_NUMBERS = {
    pa.bool_(): ">i1",
    pa.int16(): ">i2",
    pa.int32(): ">i4",
    pa.int64(): ">i8",
    pa.float32(): ">f4",
    pa.float64(): ">f8",
}


def rows(columns: Sequence[pa.Array], constants: Sequence[int]) -> memoryview:
    """Return all rows of a batch, encoded.  ``constants``: values of ``bigint`` fields at the end of every row."""
    made = _Rows(len(columns[0]))
    made.fixed(">i2", len(columns) + len(constants))
    for column in columns:
        _add(made, column)
    for constant in constants:
        made.fixed(">i4", 8)
        made.fixed(">i8", constant)
    return made.joined()


def array(column: pa.Array, item: int) -> bytes:
    """Return the column as one array, in the form in which it is a value of a statement.

    ``item``: the object id of the items' type.  (The server's source, ``array_recv``: dimensions, whether there are
    NULLs, type; size and lower bound of the dimension; length and bytes of each item.)
    """
    made = _Rows(len(column))
    _add(made, column)
    return struct.pack(">iiIii", 1, int(column.null_count > 0), item, len(column), 1) + made.joined()


class _Rows:
    """Rows that are built field by field; each call adds one field to all of them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[pa.Array] = []
        self._open: list[tuple[Any, Any]] = []  # fields of fixed length since the last part

    def fixed(self, kind: Any, values: Any) -> None:
        """Add a field of fixed length: an array with one value per row, or one value for all rows."""
        self._open.append((kind, values))

    def variable(self, values: pa.Array) -> None:
        """Add a part whose length varies; ``values`` are ``large_binary`` without NULL."""
        self._close()
        self._parts.append(values)

    def joined(self) -> memoryview:
        """Return the bytes of all rows, one row after another."""
        self._close()
        whole = self._parts[0]
        if len(self._parts) > 1:
            whole = pc.binary_join_element_wise(*self._parts, _EMPTY)
        _, offsets, data = whole.buffers()
        return memoryview(data)[: np.frombuffer(offsets, np.int64)[self._count]]

    def _close(self) -> None:
        if self._open:
            self._parts.append(_records(self._count, self._open))
            self._open = []


def _records(count: int, fields: Sequence[tuple[Any, Any]]) -> pa.Array:
    """Return one value per row, which holds the bytes of these fields one after another."""
    made = np.empty(count, [(str(number), kind) for number, (kind, _) in enumerate(fields)])
    for number, (_, values) in enumerate(fields):
        made[str(number)] = values
    offsets = np.arange(count + 1, dtype=np.int64) * made.itemsize
    return pa.Array.from_buffers(_BYTES, count, [None, pa.py_buffer(offsets), pa.py_buffer(made)])


def _add(made: _Rows, column: pa.Array) -> None:
    """Add one column as a field."""
    if _is_text(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        lengths = pc.binary_length(column)
        made.fixed(">i4", _plain(lengths.fill_null(of_bytes(lengths.type, b"\xff" * 8))))  # -1
        made.variable(column.cast(_BYTES).fill_null(_EMPTY))
        return
    kind, values = _decimals(column) if pa.types.is_decimal128(column.type) else _numbers(column)
    size = np.dtype(kind).itemsize
    if not column.null_count:
        made.fixed(">i4", size)
        made.fixed(kind, values)
    else:
        whole = _records(len(column), [(">i4", size), (kind, values)])
        made.variable(pc.if_else(column.is_valid(), whole, _NULL))


def _numbers(column: pa.Array) -> tuple[Any, NDArray[Any]]:
    """Return the column's number format and its values.  Where the column is NULL, the value is arbitrary."""
    if pa.types.is_date32(column.type):
        return ">i4", _plain(column.view(pa.int32())) - np.int32(_DAYS)
    if pa.types.is_timestamp(column.type):  # values out of Postgres's range may wrap, but they have a flag
        return ">i8", _plain(column.view(pa.int64())) - np.int64(_MICROSECONDS)
    return _NUMBERS[column.type], _plain(column)


def _plain(column: pa.Array) -> NDArray[Any]:
    """Return the values as a numpy array.  Where the column is NULL, the value is arbitrary."""
    if column.null_count:
        column = column.fill_null(of_bytes(column.type, bytes(8)))
    if pa.types.is_boolean(column.type):  # Arrow stores one bit per value
        return _stored(column.cast(pa.int8()), "i1").view(np.bool_)
    return _stored(column, _NUMBERS[column.type].replace(">", "="))


def _stored(column: pa.Array, form: str) -> NDArray[Any]:
    """Return the numbers as they are in memory, without a copy."""
    kind = np.dtype(form)
    return np.frombuffer(column.buffers()[1] or b"", kind, len(column), column.offset * kind.itemsize)


# --- numeric: a sign and digits to the base of 10,000 -------------------------------------------

_BASE = np.uint64(10_000)
_LIMB = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


def _decimals(column: pa.Array) -> tuple[Any, NDArray[Any]]:
    """Encode the column as ``numeric``.  All rows get the same number of digits; the server drops outer zeros."""
    precision, scale = column.type.precision, column.type.scale
    before, after = -(-(precision - scale) // 4), -(-scale // 4)
    padding = 4 * after - scale
    negative, limbs = _unscaled(column)
    limbs = _times(limbs, 10**padding)
    count = before + after
    kind = [("digits", ">i2"), ("weight", ">i2"), ("sign", ">u2"), ("scale", ">i2"), ("each", ">i2", (count,))]
    made = np.empty(len(column), kind)
    made["digits"], made["weight"], made["scale"] = count, before - 1, scale
    made["sign"] = np.where(negative, 0x4000, 0)
    for position in range(count - 1, -1, -1):
        made["each"][:, position] = _take_digit(limbs)
    rest = reduce(np.bitwise_or, limbs)
    if rest[_plain(column.is_valid())].any():
        raise OverflowError(f"a value has more digits than its type, {column.type}")
    return made.dtype, made


def _unscaled(column: pa.Array) -> tuple[NDArray[np.bool_], list[NDArray[np.uint64]]]:
    """Return the signs, and the absolute values in 32-bit limbs, the lowest first.  A NULL gives an arbitrary value."""
    words = np.frombuffer(column.buffers()[1], "<u4").reshape(-1, 4)[column.offset : column.offset + len(column)]
    negative = (words[:, 3] >> 31).astype(bool)
    flip = np.where(negative, _LOW, np.uint64(0))
    carry = negative.astype(np.uint64)
    limbs = []
    for position in range(4):
        total = (words[:, position].astype(np.uint64) ^ flip) + carry
        limbs.append(total & _LOW)
        carry = total >> _LIMB
    return negative, limbs


def _times(limbs: Sequence[NDArray[np.uint64]], factor: int) -> list[NDArray[np.uint64]]:
    """Return the limbs multiplied by ``factor``, without the highest limbs that are zero in every row."""
    carry = np.zeros(len(limbs[0]), np.uint64)
    made = []
    for limb in limbs:
        total = carry + limb * np.uint64(factor)
        made.append(total & _LOW)
        carry = total >> _LIMB
    made.append(carry)
    while len(made) > 1 and not made[-1].any():
        made.pop()
    return made


def _take_digit(limbs: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Divide ``limbs`` by the base in place, and return the remainder: the lowest digit."""
    rest = np.zeros(len(limbs[0]), np.uint64)
    for position in range(len(limbs) - 1, -1, -1):
        value = (rest << _LIMB) | limbs[position]
        limbs[position] = value // _BASE
        rest = value - limbs[position] * _BASE
    return rest


# --- text ---------------------------------------------------------------------------------------


def count_invalid_text(column: pa.Array) -> int:
    """Count the values that Postgres does not accept as text.  Text must be UTF-8 without NUL."""
    if not _is_text(column.type):
        return 0
    try:
        column.validate(full=True)
        if b"\0" not in _data(column):
            return 0
    except pa.ArrowInvalid:
        pass
    return sum(not _is_valid_text(value) for value in column.cast(_BYTES).to_pylist() if value is not None)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _data(column: pa.Array) -> bytes:
    """Return the bytes of all values, one after another."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return b""
    bounds = np.frombuffer(offsets, np.int64 if pa.types.is_large_string(column.type) else np.int32)
    return bytes(memoryview(data)[bounds[column.offset] : bounds[column.offset + len(column)]])


def _is_valid_text(value: bytes) -> bool:
    try:
        return b"\0" not in value and value.decode() is not None
    except UnicodeDecodeError:
        return False
