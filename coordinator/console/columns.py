"""Parses columns in Spark's DDL without a JVM; Spark's own parser runs in the JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from epochal.coordinator.console.render import Usage

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`\s*:?|(\w+)(?:\s*:|\s))\s*(\S.*?)\s*", re.S)
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>", re.S)
_NOT_NULL = re.compile(r"\s+not\s+null$", re.I)
_NAMES = {
    "boolean": "BooleanType",
    "tinyint": "ByteType",
    "byte": "ByteType",
    "smallint": "ShortType",
    "short": "ShortType",
    "int": "IntegerType",
    "integer": "IntegerType",
    "bigint": "LongType",
    "long": "LongType",
    "float": "FloatType",
    "real": "FloatType",
    "double": "DoubleType",
    "string": "StringType",
    "binary": "BinaryType",
    "date": "DateType",
    "timestamp": "TimestampType",
    "timestamp_ltz": "TimestampType",
    "timestamp_ntz": "TimestampNTZType",
}


def parse(text: str) -> StructType:
    """Return the columns in ``text``.  Raise ``Usage`` that names the part that is not a column."""
    from pyspark.sql.types import StructField, StructType

    fields = [StructField(name, _type(kind)) for name, kind in _columns(text)]
    if not fields:
        raise Usage('--schema has no column; it is written as "id bigint, at timestamp"')
    return StructType(fields)


def _columns(text: str) -> Iterator[tuple[str, str]]:
    for part in _split(text):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise Usage(f"--schema: {part.strip()!r} is no column with its type, such as id bigint")
        yield match[2] or match[1].replace("``", "`"), _NOT_NULL.sub("", match[3])


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside brackets or a quoted name."""
    parts, depth, quoted, begin = [], 0, False, 0
    for at, letter in enumerate(text):
        quoted ^= letter == "`"
        if quoted:
            continue
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]] if text.strip() else []


def _type(text: str) -> DataType:
    from pyspark.sql import types

    lower = text.strip().lower()
    if lower in _NAMES:
        found: DataType = getattr(types, _NAMES[lower])()
        return found
    if match := _DECIMAL.fullmatch(lower):
        return types.DecimalType(int(match[1] or 10), int(match[2] or 0))
    if match := _NESTED.fullmatch(text.strip()):
        return _nested(match[1].lower(), match[2])
    raise Usage(
        f"--schema: {text.strip()!r} is no type that is read without Spark; known: {', '.join(_NAMES)},"
        " decimal(p,s), array<>, map<>, struct<>"
    )


def _nested(kind: str, inner: str) -> DataType:
    from pyspark.sql import types

    if kind == "array":
        return types.ArrayType(_type(inner))
    if kind == "map":
        key, *value = _split(inner)
        if len(value) != 1:
            raise Usage(f"--schema: map<{inner}> is not a map of one type to another")
        return types.MapType(_type(key), _type(value[0]))
    return parse(inner)
