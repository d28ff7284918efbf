"""No plan is deeper because a row is wider, and its size grows with the columns, not with their square."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from epochal.sinks.delta import gates
from epochal.sinks.kafka import judging, objections
from epochal.sinks.kafka.rows import KEPT, Encoding
from epochal.sinks.postgres import rows as postgres
from epochal.sinks.postgres.ways import Way
from epochal.sinks.rows.digest import row_hash
from epochal.sinks.rows.projection import Projection
from epochal.sinks.spark.observing import sifted_once

WIDTHS = (20, 40, 80)
TYPES = (
    "CAST(id AS STRING)",
    "CAST(id AS DOUBLE)",
    "timestamp_seconds(id)",
    "date_from_unix_date(id)",
    "array(named_struct('a', map('k', CAST(id AS DOUBLE)), 'b', CAST(id AS STRING)))",
)
ENCODING = Encoding(None, None, "murmur2_random")


def columns(spark: SparkSession, width: int) -> DataFrame:
    return spark.range(1).selectExpr(*(f"{TYPES[n % len(TYPES)]} AS c{n:03}" for n in range(width)))


def fields(spark: SparkSession, width: int) -> DataFrame:
    given = ", ".join(f"'f{n:03}', {TYPES[n % len(TYPES)]}" for n in range(width))
    return spark.range(1).selectExpr(f"named_struct({given}) AS s")


def alike(spark: SparkSession, width: int) -> DataFrame:
    """A struct with fields of one type, and as many columns of one type."""
    given = ", ".join(f"'f{n:03}', CAST(id AS DOUBLE)" for n in range(width))
    return spark.range(1).selectExpr(f"named_struct({given}) AS s", *(f"id AS c{n:03}" for n in range(width)))


def records(rows: DataFrame) -> DataFrame:
    """What the Kafka sink judges while it copies, and what it produces."""
    refusals = ENCODING.refusals(rows.schema)
    found = [objections.of_json([*refusals])]
    made = ENCODING.apply(rows, *judging.bad_column(refusals))
    told: list[Column] = [objections.reason_of_each(found).alias("reason"), objections.of_each(found).alias("met")]
    return made.select("*", *told).agg(*objections.figures(found), F.max("reason"), F.max("met"), F.max("value"))


def ways(schema: StructType) -> list[Way]:
    return [Way.made(column) for column in postgres.columns(schema, "sink")]


def reason(schema: StructType) -> Column:
    return postgres.reason(schema, ways(schema))


def renamed(rows: DataFrame) -> Projection:
    names = [f"{name} AS x{n}" if n % 2 else name for n, name in enumerate(rows.columns)]
    return Projection.of("sink", names, f"{rows.columns[0]} IS NOT NULL")


PLANS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "kafka": records,
    "postgres": lambda rows: postgres.holdable(rows, ways(rows.schema))[0],
    "postgres, bad rows": lambda rows: Projection("sink").beside(rows, "_reason", reason),
    "digest": lambda rows: rows.select(row_hash(rows)),
    "select and where": lambda rows: renamed(rows).apply(rows),
    "select, where and bad rows": lambda rows: renamed(rows).beside(rows, "_reason", reason),
    "select, where in idempotent mode": lambda rows: renamed(rows).marked(rows, KEPT, row_hash(rows).alias("hash")),
    "delta": lambda rows: rows.to(gates.projection(rows.schema, rows.schema, case_sensitive=False)),
}


def measured(rows: DataFrame) -> tuple[int, int]:
    """Return depth and number of nodes of the plan of ``rows``, with all its expressions."""
    plan: Any = rows._jdf.queryExecution().analyzed()
    return of_tree(json.loads(plan.toJSON()))


def of_tree(nodes: list[Any]) -> tuple[int, int]:
    """Return depth and size of a tree in Spark's JSON: its nodes in the order of a walk, each before its children."""
    depth, size = 0, 0
    open_levels: list[int] = []  # how many children are to come, on each level
    for node in nodes:
        while open_levels and open_levels[-1] == 0:
            open_levels.pop()
        if open_levels:
            open_levels[-1] -= 1
        found = [of_tree(tree) for tree in trees(list(node.values()))]
        depth = max(depth, len(open_levels) + 1 + max((deep for deep, _ in found), default=0))
        size += 1 + sum(many for _, many in found)
        open_levels.append(node["num-children"])
    return depth, size


def trees(value: Any) -> list[list[Any]]:
    """Return the trees that a field of a node holds."""
    if not isinstance(value, list) or not value:
        return []
    if isinstance(value[0], dict):
        return [value] if "num-children" in value[0] else []
    return [tree for part in value for tree in trees(part)]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("wide", [columns, fields])
def test_no_plan_is_deeper_or_grows_faster_than_its_row(
    spark: SparkSession, wide: Callable[[SparkSession, int], DataFrame], plan: str
) -> None:
    """K3: 1,500 columns took 26 s, because the plan was as deep as the row is wide."""
    (deep, small), (same, middle), (depth, large) = (measured(PLANS[plan](wide(spark, width))) for width in WIDTHS)
    assert deep == same == depth
    assert large - middle <= 2 * (middle - small)


@pytest.mark.parametrize("plan", ["kafka", "postgres", "postgres, bad rows", "digest"])
def test_all_fields_of_a_type_have_one_expression(spark: SparkSession, plan: str) -> None:
    """A struct of 1,500 fields took 10 s, because each field had a condition of its own."""
    (deep, small), (depth, large) = (measured(PLANS[plan](alike(spark, width))) for width in (150, 250))
    assert deep == depth
    source = sum(measured(alike(spark, width))[1] * sign for width, sign in ((250, 1), (150, -1)))
    assert large - small - source <= 7 * 100


def test_a_filter_computes_no_column_anew(spark: SparkSession) -> None:
    """Spark computed the JSON of a row three times, because the conditions name it twice."""
    rows = spark.range(9).selectExpr("id", "to_json(struct(id)) AS value")
    wanted = F.coalesce(F.length("value"), F.lit(0)).between(0, 100) & F.isnotnull("value")

    def plan_of(kept: DataFrame) -> str:
        plan: Any = kept._jdf.queryExecution().optimizedPlan()
        return str(plan.toString())

    assert plan_of(rows.where(wanted)).count("StructsToJson") > 1
    kept, left_out = sifted_once(rows, wanted, "are not wanted")
    assert plan_of(kept).count("StructsToJson") == 1
    assert kept.columns == rows.columns
    assert kept.collect() == rows.collect()
    assert left_out() == 0


def test_the_measure_sees_a_chain(spark: SparkSession) -> None:
    def chain(width: int) -> DataFrame:
        return spark.range(1).selectExpr(" + ".join(["id"] * width))

    assert measured(chain(40)) > measured(chain(20))
    assert measured(chain(40))[0] == measured(chain(20))[0] + 20
