"""Random types and values of Spark, as plain Python: what a pipeline is given, whatever its sinks make of it.

A value is None, a bool, an int (also days since 1970, and microseconds since 1970), a float, a Decimal, bytes (texts
too: a text of Spark may hold bytes that are not UTF-8), a list, a tuple (a struct) or a list of pairs (a map).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

Value = Any
DAY = 86_400_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # the years 0001 to 9999

LEAVES: Sequence[Callable[[Random], t.DataType]] = (
    lambda _: t.StringType(),
    lambda _: t.StringType(),
    lambda _: t.LongType(),
    lambda _: t.IntegerType(),
    lambda _: t.ShortType(),
    lambda _: t.ByteType(),
    lambda _: t.BooleanType(),
    lambda _: t.DoubleType(),
    lambda _: t.FloatType(),
    lambda _: t.DateType(),
    lambda _: t.TimestampType(),
    lambda _: t.TimestampNTZType(),
    lambda _: t.BinaryType(),
    lambda choose: _decimal(choose),
)

_ARROW: dict[str, pa.DataType] = {
    "string": pa.binary(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_ODD_TEXTS = (
    b"",
    b" ",
    b"a b ",
    b"a\0b",
    b"\xff",
    b"\xed\xa0\x80",  # a surrogate
    b"\xf0\x9f\x98",  # cut
    b"\xf4\x90\x80\x80",  # above the last plane
    "\U0010fffd\u200b\ufeff".encode(),
    b"__HIVE_DEFAULT_PARTITION__",
    b"null",
    b"\\N",
    b'"\\\x1f\x7f',
    b"\r\n\t",
    b"x" * 70_000,
)
_ODD_DAYS = (
    FIRST_DAY,
    LAST_DAY,
    FIRST_DAY - 1,
    LAST_DAY + 1,
    -141_428,  # 1582-10-14, which the old calendar does not have
    -2_440_588,
    -2_440_589,
    2_145_042_905,
    2_145_042_906,
    -(2**31),
    2**31 - 1,
)
_ODD_TIMES = (
    FIRST_DAY * DAY,
    (LAST_DAY + 1) * DAY - 1,
    FIRST_DAY * DAY - 1,
    (LAST_DAY + 1) * DAY,
    1_699_162_200_000_001,  # 2023-11-05 05:30:00.000001Z: an hour that New York has twice
    -1,
    -2_440_588 * DAY,
    -2_440_588 * DAY - 1,
    -(2**63),
    2**63 - 1,
)
_ODD_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308)


def _decimal(choose: Random) -> t.DataType:
    precision = choose.choice((1, 5, 18, 19, 38))
    return t.DecimalType(precision, choose.choice((0, min(2, precision), precision)))


def kind(choose: Random, names: Callable[[], str], depth: int = 0) -> t.DataType:
    """A random type; fields of structs get names from ``names``."""
    if depth > 2 or choose.random() < (0.75, 0.6, 0.85)[min(depth, 2)]:
        return choose.choice(LEAVES)(choose)
    nested = choose.choice(("array", "map", "struct", "struct"))
    nullable = choose.random() < 0.8
    if nested == "array":
        return t.ArrayType(kind(choose, names, depth + 1), nullable)
    if nested == "map":
        key = t.StringType() if choose.random() < 0.85 else choose.choice(LEAVES)(choose)
        return t.MapType(key, kind(choose, names, depth + 1), nullable)
    return t.StructType(
        [
            t.StructField(names(), kind(choose, names, depth + 1), choose.random() < 0.7)
            for _ in range(choose.randint(1, 3))
        ]
    )


def value(choose: Random, of: t.DataType, odd: float, nullable: bool = True) -> Value:
    """A random value of the type; ``odd``: how often it is one that some sink may not hold."""
    if nullable and choose.random() < 0.12:
        return None
    if isinstance(of, t.ArrayType):
        return [value(choose, of.elementType, odd, of.containsNull) for _ in range(choose.choice((0, 1, 2, 3)))]
    if isinstance(of, t.MapType):
        keys = [value(choose, of.keyType, odd, nullable=False) for _ in range(choose.choice((0, 1, 2)))]
        different = {plain(key): key for key in keys}
        return as_map((key, value(choose, of.valueType, odd, of.valueContainsNull)) for key in different.values())
    if isinstance(of, t.StructType):
        return tuple(value(choose, field.dataType, odd, field.nullable) for field in of.fields)
    return _leaf(choose, of, choose.random() < odd)


def _leaf(choose: Random, of: t.DataType, odd: bool) -> Value:
    name = of.typeName()
    if name in ("string", "binary"):
        return choose.choice(_ODD_TEXTS) if odd else f"t{choose.randint(0, 99)}é".encode()
    if name == "boolean":
        return choose.random() < 0.5
    if name in _BITS:
        most = 2 ** (_BITS[name] - 1)
        return choose.choice((-most, most - 1)) if odd else choose.randint(-99, 99)
    if name in ("float", "double"):
        number = choose.choice(_ODD_FLOATS) if odd else choose.choice((0.1, -2.5, 1e10, 3.0))
        return single(number) if name == "float" else number
    if isinstance(of, t.DecimalType):
        digits = 10**of.precision - 1 if odd else choose.randint(0, 9)
        return Decimal((choose.randint(0, 1) if digits else 0, tuple(map(int, str(digits))), -of.scale))
    if name == "date":
        return choose.choice(_ODD_DAYS) if odd else choose.randint(-20_000, 40_000)
    return choose.choice(_ODD_TIMES) if odd else choose.randint(-10 * 365, 60 * 365) * DAY + choose.randint(0, DAY - 1)


def single(number: float) -> float:
    """The nearest float of 32 bits."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def as_map(pairs: Iterable[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """The pairs in one order, because those of a map have none."""
    return sorted(pairs, key=lambda pair: plain(pair[0]))


def plain(of: Value) -> str:
    """A text that is the same for values that are the same: NaN is NaN, and -0.0 is not 0.0."""
    return repr(of)


def days(text: str) -> int:
    """Days since 1970 of a date in any year, as ISO 8601 writes it."""
    year, month, day = map(int, text.lstrip("+").rsplit("-", 2))
    cycles, year = divmod(year - 2000, 400)  # the calendar repeats itself every 400 years, of 146,097 days
    return cycles * 146_097 + (date(2000 + year, month, day) - date(1970, 1, 1)).days


def microseconds(text: str) -> int:
    """Microseconds since 1970 of a time in any year, as ISO 8601 writes it; its zone is UTC, and is left out."""
    day, _, clock = text.partition("T")
    hour, minute, second = clock.split(":")
    return days(day) * DAY + (int(hour) * 60 + int(minute)) * 60_000_000 + int(Decimal(second) * 1_000_000)


def arrow(of: t.DataType) -> pa.DataType:
    """The Arrow type in whose arrays the values of a type are kept; fields of structs are called by their numbers."""
    if isinstance(of, t.ArrayType):
        return pa.list_(arrow(of.elementType))
    if isinstance(of, t.MapType):
        return pa.map_(arrow(of.keyType), arrow(of.valueType))
    if isinstance(of, t.StructType):
        return pa.struct([(f"f{n}", arrow(field.dataType)) for n, field in enumerate(of.fields)])
    if isinstance(of, t.DecimalType):
        return pa.decimal128(of.precision, of.scale)
    return _ARROW[of.typeName()]


def numbered(of: t.DataType) -> t.DataType:
    """The type with the fields of structs called by their numbers, and everything nullable."""
    if isinstance(of, t.ArrayType):
        return t.ArrayType(numbered(of.elementType))
    if isinstance(of, t.MapType):
        return t.MapType(numbered(of.keyType), numbered(of.valueType))
    if isinstance(of, t.StructType):
        return t.StructType([t.StructField(f"f{n}", numbered(f.dataType)) for n, f in enumerate(of.fields)])
    return of


def from_arrow(array: pa.Array, of: t.DataType) -> list[Value]:
    """The values of an array that a reader got, as they were given; days and times as numbers."""
    if isinstance(array, pa.ChunkedArray):
        return [item for chunk in array.chunks for item in from_arrow(chunk, of)]
    there = array.is_valid().to_pylist()
    if isinstance(of, t.StructType):
        parts = [from_arrow(array.field(n), field.dataType) for n, field in enumerate(of.fields)]
        return [tuple(part[at] for part in parts) if valid else None for at, valid in enumerate(there)]
    if isinstance(of, t.MapType):
        pairs = list(zip(from_arrow(array.keys, of.keyType), from_arrow(array.items, of.valueType), strict=True))
        return [as_map(found) if found is not None else None for found in _listed(array, pairs, there)]
    if isinstance(of, t.ArrayType):
        return _listed(array, from_arrow(array.values, of.elementType), there)
    return _leaves(array, of)


def _listed(array: pa.Array, items: Sequence[Value], there: Sequence[bool]) -> list[Value]:
    ends = array.offsets.to_pylist()
    return [list(items[ends[at] : ends[at + 1]]) if valid else None for at, valid in enumerate(there)]


def _leaves(array: pa.Array, of: t.DataType) -> list[Value]:
    name = of.typeName()
    if name == "date":
        array = array.cast(pa.int32())
    elif name.startswith("timestamp"):
        array = array.cast(pa.int64())
    elif name in ("string", "binary"):
        array = array.cast(pa.large_binary())
    found: list[Value] = array.to_pylist()
    return found
