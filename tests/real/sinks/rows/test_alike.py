"""One expression for many values of one type says the same as an expression for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from epochal.sinks.delta.ddl import type_of
from epochal.sinks.kafka import judging
from epochal.sinks.kafka.rows import Encoding
from epochal.sinks.postgres import rows as postgres
from epochal.sinks.postgres.ways import Way
from epochal.sinks.rows import digest
from epochal.sinks.spark import expressions

VALUES = {
    "double": ("1.5D", "CAST('NaN' AS DOUBLE)", "CAST('-inf' AS DOUBLE)", "-0.0D"),
    "float": ("CAST(1.5 AS FLOAT)", "CAST('NaN' AS FLOAT)", "CAST('inf' AS FLOAT)"),
    "string": ("'a'", "''", "CAST(X'FF' AS STRING)", "CAST(X'61006200' AS STRING)"),
    "int": ("0", "-7"),
    "bigint": ("0L", "9223372036854775807L"),
    "date": ("DATE'2020-01-01'", "date_from_unix_date(2932897)"),
    "timestamp": ("timestamp_seconds(0)", "timestamp_micros(253402300800000000L)"),
    "timestamp_ntz": ("TIMESTAMP_NTZ'2020-01-01 00:00:00'", "CAST('10000-01-01 00:00:00' AS TIMESTAMP_NTZ)"),
    "decimal(9,2)": ("1.25BD", "-0.01BD"),
    "binary": ("X'00'", "X''"),
    "boolean": ("true", "false"),
}


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    # most fields have the type of their neighbour, so that there is something to join
    runs = st.lists(st.tuples(inner, st.integers(1, 4)), min_size=1, max_size=4)
    structs = runs.map(lambda runs: [kind for kind, many in runs for _ in range(many)])
    return st.one_of(
        structs.map(lambda kinds: f"struct<{','.join(f'`f {n}`:{kind}' for n, kind in enumerate(kinds))}>"),
        inner.map(lambda kind: f"array<{kind}>"),
        inner.map(lambda kind: f"map<string,{kind}>"),
    )


KINDS = st.recursive(st.sampled_from(sorted(VALUES)), nested, max_leaves=6)
COLUMNS = st.lists(st.tuples(KINDS, st.integers(1, 3)), min_size=1, max_size=3)


def value(draw: st.DrawFn, kind: DataType) -> str:
    """Draw the text of a value of this type."""
    if draw(st.integers(0, 5)) == 0:
        return f"CAST(NULL AS {type_of(kind)})"
    if isinstance(kind, StructType):  # the cast lets each field be NULL, in every row
        fields = ", ".join(f"'{field.name}', {value(draw, field.dataType)}" for field in kind.fields)
        return f"CAST(named_struct({fields}) AS {type_of(kind)})"
    if isinstance(kind, ArrayType):
        found = [value(draw, kind.elementType) for _ in range(draw(st.integers(0, 2)))]
        return f"CAST(array({', '.join(found)}) AS {type_of(kind)})"
    if isinstance(kind, MapType):
        pairs = [f"'{key}', {value(draw, kind.valueType)}" for key in "ab"[: draw(st.integers(0, 2))]]
        return f"CAST(map({', '.join(pairs)}) AS {type_of(kind)})"
    return draw(st.sampled_from(VALUES[kind.simpleString()]))


@st.composite
def frames(draw: st.DrawFn, spark: SparkSession) -> DataFrame:
    kinds = [kind for kind, many in draw(COLUMNS) for _ in range(many)]
    schema = spark.createDataFrame([], ", ".join(f"`c {n}` {kind}" for n, kind in enumerate(kinds))).schema
    rows = [f"({', '.join(value(draw, field.dataType) for field in schema.fields)})" for _ in range(6)]
    names = ", ".join(f"`{name}`" for name in schema.names)
    return spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t({names})")


@contextmanager
def alone(most: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (expressions, digest):
            patch.setattr(module, "MOST_ALONE", most)
        yield


def told(rows: DataFrame) -> list[tuple[object, ...]]:
    """Return what is told of each row: why Postgres and JSON cannot hold it, and its hash."""
    ways = [Way.made(column) for column in postgres.columns(rows.schema, "sink")]
    refusals = Encoding(None, None, "murmur2_random").refusals(rows.schema)
    held, flagged = postgres.holdable(rows, ways)
    flags = [tuple(flags) for flags in held.select(held.columns[len(rows.columns) :]).collect()] if flagged else []
    judged = [postgres.reason(rows.schema, ways).alias("reason"), *judging.bad_column(refusals)]
    return [*rows.select(*judged, digest.row_hash(rows).alias("hash")).collect(), flagged, *flags]


@settings(max_examples=25)
@given(data=st.data())
def test_values_side_by_side_are_judged_and_hashed_as_each_alone(spark: SparkSession, data: st.DataObject) -> None:
    rows = data.draw(frames(spark))
    with alone(10**9):
        wanted = told(rows)
    with alone(1):
        assert told(rows) == wanted


def test_the_hash_of_a_wide_row_is_that_of_every_version(spark: SparkSession) -> None:
    """The sums of these hashes are in the markers of sinks, and in logs."""
    fields = ", ".join(f"'f{n}', nullif(id + {n}, 7) / 7D" for n in range(150))
    columns = [f"string(nullif(id + {n}, 9)) AS c{n}" for n in range(150)]
    rows = spark.range(3, numPartitions=1).selectExpr(f"named_struct({fields}) AS s", *columns)
    found = [row[0] for row in rows.select(digest.row_hash(rows)).collect()]
    assert found == [-2153077727556721440, -7727055433461644916, 1689651621144036635]
