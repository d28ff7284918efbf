"""The digest of a micro-batch, taken by Spark in the very pass that writes its rows.

A row's hash is xxhash64 over all its columns, in their order, made exact where Spark's own is not: a null is
something, wherever it stands; arrays know their length, maps no order, and text is its bytes in any collation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Digest
from epochal.sinks.spark.executors import await_observation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_HALF = 32  # bits; a sum of halves cannot overflow, as it would in ANSI mode


def row_hash(rows: DataFrame) -> Column:
    """64 bits of each row, a bigint."""
    from pyspark.sql import functions as f

    columns = [_hash(rows[_quoted(field.name)], field.dataType) for field in rows.schema.fields]
    return f.xxhash64(f.lit(len(columns)), *columns)


def watched(rows: DataFrame) -> tuple[DataFrame, Callable[[], Digest]]:
    """The same rows, and what they were once an action has read them all, to be asked after it has returned.

    Spark counts each partition of the action's last stage once, however often its tasks were tried.  Where it runs
    none of ``rows``, as a condition behind them keeps none by what it says, they are evaluated for the digest alone.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    hashed = row_hash(rows)
    observation: Any = Observation()
    sums = (
        f.count(f.lit(1)).alias("rows"),
        f.sum(hashed.bitwiseAND(f.lit((1 << _HALF) - 1))).alias("low"),
        f.sum(f.shiftrightunsigned(hashed, _HALF)).alias("high"),
    )
    seen = rows.observe(observation, *sums)

    def answer() -> Digest:
        """``get`` cannot say that nothing was observed, and would wait for ever."""
        await_observation(observation, "the digest of the rows that it wrote", "nothing of them is visible")
        ran = observation._jo.getRow().length() > 0
        return _digest(observation.get if ran else rows.agg(*sums).collect()[0].asDict())

    return seen, answer


def _digest(found: Mapping[str, Any]) -> Digest:
    """Of no rows the sums are null."""
    whole = Digest.of([(found["low"] or 0) + ((found["high"] or 0) << _HALF)])
    return Digest(int(found["rows"]), whole.sum)


def _hash(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    parts = [column]
    if isinstance(kind, StructType):
        parts = [_hash(column.getField(field.name), field.dataType) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [f.size(column), f.transform(column, lambda item: _hash(item, kind.elementType))]
    elif isinstance(kind, MapType):
        parts = [f.size(column), f.array_sort(f.transform(f.map_entries(column), lambda entry: _entry(entry, kind)))]
    elif isinstance(kind, StringType):
        parts = [column.cast("binary")]
    return f.xxhash64(f.isnull(column), *parts)


def _entry(entry: Column, kind: Any) -> Column:
    from pyspark.sql import functions as f

    return f.xxhash64(_hash(entry["key"], kind.keyType), _hash(entry["value"], kind.valueType))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
