"""DataFrames with given rows: exactly these values, these types and these NOT NULLs, whatever the session says.

The rows go through a Parquet file that Spark did not write, and are then held by Spark as those of a micro-batch are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tests.fuzz import values
from tests.fuzz.values import Value

Row = tuple[Value, ...]
TIME = "spark.sql.timeType.enabled"

EXOTIC = {
    "void": "NULL",
    "interval": "make_interval(0, 0, 0, cast({c} AS int) % 100)",
    "day-time interval": "make_dt_interval(cast({c} AS int) % 100)",
    "year-month interval": "make_ym_interval(0, cast({c} AS int) % 100)",
    "variant": "parse_json(cast({c} AS string))",
    "collated": "collate(cast({c} AS string), 'UTF8_LCASE')",
    "struct<>": "named_struct()",
    "intervals": "array(make_dt_interval(cast({c} AS int) % 100))",
    "variants": "named_struct('v', parse_json(cast({c} AS string)))",
    "collated map": "map(collate(coalesce(cast({c} AS string), ''), 'UNICODE'), 1)",
    "time": "make_time(cast(abs({c} % 24) AS int), 1, 2)",
}
"""Types that no Parquet file gives, and the SQL that makes them of a number."""


@dataclass(frozen=True)
class Column:
    """A column of the query.  ``exotic``: its type is one of ``EXOTIC``, and ``kind`` is of what it is made."""

    name: str
    kind: t.DataType
    nullable: bool = True
    exotic: str | None = None

    def __repr__(self) -> str:
        null = "" if self.nullable else " NOT NULL"
        return f"{self.name!r} {self.exotic or self.kind.jsonValue()}{null}"


class Frames:
    """Makes the DataFrames of one session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._files = itertools.count()

    def frame(self, columns: Sequence[Column], rows: Sequence[Row], partitions: int = 1) -> DataFrame:
        """The rows, in so many partitions."""
        folder = self._folder / str(next(self._files))
        folder.mkdir(parents=True)
        for part in range(partitions):
            pq.write_table(_table(columns, rows[part::partitions]), folder / f"{part}.parquet")
        read = t.StructType([t.StructField(f"c{n}", values.numbered(c.kind)) for n, c in enumerate(columns)])
        reader = self._spark.read.schema(read).options(datetimeRebaseMode="CORRECTED", int96RebaseMode="CORRECTED")
        with self._with_time():
            given = reader.parquet(str(folder)).selectExpr(*(_made(n, c) for n, c in enumerate(columns)))
            return self._typed(given.localCheckpoint(), columns)

    @contextmanager
    def _with_time(self) -> Iterator[None]:
        """Spark's type of a time of day has to be asked for."""
        self._spark.conf.set(TIME, "true")
        try:
            yield
        finally:
            self._spark.conf.unset(TIME)

    def _typed(self, given: DataFrame, columns: Sequence[Column]) -> DataFrame:
        kinds = [c.kind if c.exotic is None else f.dataType for c, f in zip(columns, given.schema.fields, strict=True)]
        fields = [t.StructField(c.name, kind, c.nullable) for c, kind in zip(columns, kinds, strict=True)]
        java: Any = self._spark._jsparkSession
        schema = java.parseDataType(t.StructType(fields).json())
        rows = given._jdf.queryExecution().toRdd()
        return DataFrame(java.internalCreateDataFrame(rows, schema, False), self._spark)


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> pa.Table:
    arrays = [pa.array([row[n] for row in rows], values.arrow(column.kind)) for n, column in enumerate(columns)]
    return pa.table(arrays, [f"c{n}" for n in range(len(columns))])


def _made(number: int, column: Column) -> str:
    name = f"c{number}"
    return name if column.exotic is None else f"{EXOTIC[column.exotic].format(c=name)} AS {name}"
