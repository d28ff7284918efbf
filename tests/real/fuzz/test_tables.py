"""The fuzz reads every Delta table that Spark writes, also those that delta-rs cannot read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import types as t

from tests.fuzz import tables
from tests.fuzz.frames import Column
from tests.fuzz.plans import Plan, SinkPlan
from tests.fuzz.run import Bounded
from tests.fuzz.trial import Verdict
from tests.fuzz.values import DAY, FIRST_DAY, LAST_DAY

ID = Column("id", t.LongType(), False)
FAR = (-2_440_589, FIRST_DAY - 1, LAST_DAY + 1, 2**31 - 1)
TIMES = tuple(day * DAY + 1 for day in FAR[:3])
INNER = t.StructType().add("at", t.DateType())
WITHIN = (FIRST_DAY, 0, LAST_DAY)


def pipeline(kind: t.DataType, given: Sequence[Any], *partition_by: str) -> Plan:
    rows = tuple((number, value) for number, value in enumerate(given))
    options = {"partition_by": list(partition_by)} if partition_by else {}
    return Plan((ID, Column("value", kind)), (rows, ()), (SinkPlan("delta", options, "Append"),))


@pytest.mark.parametrize(
    "plan",
    [
        pipeline(t.DateType(), FAR),
        pipeline(t.DateType(), FAR, "value"),
        pipeline(t.DateType(), WITHIN, "value"),
        pipeline(t.TimestampType(), TIMES),
        pipeline(t.TimestampNTZType(), TIMES, "value"),
        pipeline(t.ArrayType(t.DateType()), [[day] for day in FAR]),
        pipeline(INNER, [(day,) for day in FAR]),
        pipeline(t.DecimalType(5, 2), [Decimal("-0.05"), Decimal("-1.05")], "value"),
        pipeline(t.DecimalType(38, 38), [Decimal("-3E-38"), Decimal("2E-38"), None], "value"),
    ],
    ids=lambda plan: f"{plan.columns[1].kind.simpleString()} {'partition' if plan.sinks[0].options else ''}",
)
def test_values_that_delta_rs_does_not_read_are_read(bounded: Bounded, plan: Plan) -> None:
    outcome = bounded.run(plan)
    assert outcome.verdict is Verdict.RIGHT, (outcome, outcome.trace)


PARTITIONS: Mapping[str, tuple[t.DataType, str, list[Any]]] = {
    "text": (t.StringType(), "concat('a b%/', id)", [b"a b%/0", b"a b%/1"]),
    "bytes": (t.BinaryType(), "CAST(concat('b', id) AS BINARY)", [b"b0", b"b1"]),
    "flag": (t.BooleanType(), "id = 1", [False, True]),
    "number": (t.ShortType(), "CAST(-id AS SMALLINT)", [0, -1]),
    "real": (t.DoubleType(), "IF(id = 0, double('-inf'), -0.5D)", [float("-inf"), -0.5]),
    "moment": (t.TimestampType(), "timestamp_micros(id)", [0, 1]),
    "moment here": (t.TimestampNTZType(), "CAST(timestamp_micros(id) AS TIMESTAMP_NTZ)", [0, 1]),
    "nothing": (t.LongType(), "IF(id = 0, NULL, id)", [None, 1]),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_are_read_by_hand_as_delta_rs_reads_them(bounded: Bounded, tmp_path: Path, name: str) -> None:
    kind, text, wanted = PARTITIONS[name]
    spark = bounded._servers.spark
    with_zone = spark.range(2).selectExpr("id", f"{text} AS value")
    with_zone.write.format("delta").partitionBy("value").save(str(tmp_path / "table"))
    columns = [ID, Column("value", kind)]
    found = tables.by_hand(tmp_path / "table", columns)
    assert sorted(found, key=lambda row: int(row["id"])) == [{"id": n, "value": v} for n, v in enumerate(wanted)]
    assert sorted(map(repr, tables.rows(tmp_path / "table", columns))) == sorted(map(repr, found))


def test_rows_that_are_gone_are_not_read_by_hand(bounded: Bounded, tmp_path: Path) -> None:
    path, spark = tmp_path / "table", bounded._servers.spark
    spark.range(3).write.format("delta").save(str(path))
    DeltaTable(str(path)).delete("id = 1")
    spark.range(5, 6).selectExpr("id", "1L AS new").write.format("delta").mode("append").option(
        "mergeSchema", "true"
    ).save(str(path))
    found = tables.by_hand(path, [ID, Column("new", t.LongType())])
    rows = sorted((row["id"], row["new"]) for row in found)
    assert rows == [(0, None), (2, None), (5, 1)]
