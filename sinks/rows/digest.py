"""The digest of a micro-batch.  Spark computes it in the same pass that writes the rows.

The hash of a row is xxhash64 over all its columns, in their order.  Spark's own hash ignores NULL and the lengths of
arrays; this hash includes both.  It ignores the order of a map's entries.  Text is hashed as its bytes, whatever its
collation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Digest
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.spark.expressions import MOST_ALONE, array_of, of_text
from epochal.sinks.spark.names import parts, quoted
from epochal.sinks.spark.observing import observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_NO_HASH = ("variant", "geometry", "geography")
_HALF = 32  # bits; the two halves are summed separately, so that no int64 sum overflows (an error in ANSI mode)


def check_digestible(schema: StructType) -> None:
    """Raise ``Misconfigured``, with the column's name, for a type that Spark cannot hash."""
    for path, kind in _unhashable("", schema):
        raise Misconfigured(
            f"column {path!r} has the type {kind.simpleString()}, which has no digest",
            state="in idempotent mode the rows of all evaluations are compared by a digest",
            help='make text of the column in the query (to_json), or leave mode="idempotent" out',
        )


def _unhashable(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    if kind.typeName() in _NO_HASH:
        yield path, kind
    for name, part in parts(kind):
        yield from _unhashable(f"{path}.{name}" if path else name, part)


def row_hash(rows: DataFrame) -> Column:
    """Return a column with the 64-bit hash of each row, of type bigint."""
    columns = [(quoted(field.name), field.dataType) for field in rows.schema.fields]
    return of_text(f"xxhash64({', '.join([str(len(columns)), *_hashes(columns)])})")


def watched(rows: DataFrame) -> tuple[DataFrame, Callable[[], Digest]]:
    """Return the same rows, and a function that returns their digest after an action has read them.

    If Spark has ended the action without these rows, they are evaluated once more, for the digest alone.
    """
    from pyspark.sql import functions as f

    hashed = row_hash(rows)
    sums = (
        f.count(f.lit(1)).alias("rows"),
        f.sum(hashed.bitwiseAND(f.lit((1 << _HALF) - 1))).alias("low"),
        f.sum(f.shiftrightunsigned(hashed, _HALF)).alias("high"),
    )
    seen, figures = observed(rows, *sums)

    def answer() -> Digest:
        found = figures("the digest of the rows that it wrote", "nothing of them is visible")
        return _digest(found if found is not None else rows.agg(*sums).collect()[0].asDict())

    return seen, answer


def _digest(found: Mapping[str, Any]) -> Digest:
    """Make a digest of the observed sums.  Spark's sums over no rows are NULL."""
    whole = Digest.of([(found["low"] or 0) + ((found["high"] or 0) << _HALF)])
    return Digest(int(found["rows"]), whole.sum)


def _hash(value: str, kind: DataType, depth: int = 0) -> str:
    """Return the hash of a value; both are texts.  ``depth``: in how many arrays or maps the value lies."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    hashed: Iterable[str] = [value]
    if isinstance(kind, StructType):
        hashed = _hashes([(f"{value}.{quoted(field.name)}", field.dataType) for field in kind.fields], depth)
    elif isinstance(kind, ArrayType):
        hashed = [_size(value), _transformed(value, kind.elementType, depth)]
    elif isinstance(kind, MapType):
        item = f"x{depth}"
        entries = f"transform(map_entries({value}), {item} -> {_entry(item, kind, depth + 1)})"
        hashed = [_size(value), f"array_sort({entries})"]
    elif isinstance(kind, StringType):
        hashed = [f"CAST({value} AS BINARY)"]
    return f"xxhash64({', '.join([f'isnull({value})', *hashed])})"


def _hashes(values: Iterable[tuple[str, DataType]], depth: int = 0) -> Iterator[str]:
    """Yield what Spark hashes for values that stand side by side: the hash of each.

    Many neighbours of one type give an array of their hashes.  Spark hashes an array like its elements side by side.
    """
    for kind, group in itertools.groupby(values, key=lambda value: value[1]):
        run = [value for value, _ in group]
        if len(run) > MOST_ALONE:
            yield _transformed(array_of(run), kind, depth)
        else:
            yield from (_hash(value, kind, depth) for value in run)


def _transformed(array: str, kind: DataType, depth: int) -> str:
    """Return the text of an array: the hash of each element, in their order."""
    item = f"x{depth}"
    return f"transform({array}, {item} -> {_hash(item, kind, depth + 1)})"


def _size(value: str) -> str:
    """Return the number of elements, NULL for NULL.  For Spark's own ``size`` the session says whether that is -1."""
    return f"CASE WHEN isnotnull({value}) THEN size({value}) END"


def _entry(entry: str, kind: Any, depth: int) -> str:
    hashed = [_hash(f"{entry}.key", kind.keyType, depth), _hash(f"{entry}.value", kind.valueType, depth)]
    return f"xxhash64({', '.join(hashed)})"
