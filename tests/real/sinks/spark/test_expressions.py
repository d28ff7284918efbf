"""Expressions that are made as one text: every name in them is the column or the field that it names."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from epochal.sinks.kafka import judging
from epochal.sinks.kafka.rows import BAD, Encoding
from epochal.sinks.postgres import rows as postgres
from epochal.sinks.postgres.ways import Way
from epochal.sinks.rows.digest import row_hash
from epochal.sinks.rows.projection import Projection
from epochal.sinks.spark.expressions import PATTERNS, selected
from epochal.sinks.spark.names import column_of, quoted
from epochal.sinks.spark.series import session_class
from tests.real.sinks.hostile import NAMES
from tests.real.sinks.settings import under

SETTING = "${spark.app.name}"
"""Spark replaces it in its SQL by the value of the setting, also inside a quoted name."""
ODD = ("x0", *NAMES, "x.", SETTING)
SETTINGS = {
    PATTERNS: "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
}


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.wide), True], ids=["as it is", "with other settings"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Any:
    """A session whose settings give SQL texts another meaning."""
    before = {name: str(spark.conf.get(name)) for name in SETTINGS}
    for name, value in SETTINGS.items() if request.param else ():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.parametrize("inside", [False, True], ids=["columns", "fields"])
def test_every_name_is_the_one_that_is_meant(session: SparkSession, inside: bool) -> None:
    """K3, P3: one value that neither JSON nor Postgres can hold is found under its own name, and under no other."""
    wrong = len(ODD) - 1  # the last one, whose name Spark would replace
    values = [F.lit(float("nan") if n == wrong else 1.0).alias(name) for n, name in enumerate(ODD)]
    arrays = [F.array(value).alias(name) for value, name in zip(values, ODD, strict=True)]
    given = [F.struct(*values).alias(SETTING)] if inside else arrays
    rows = session.range(1).select(*given)
    names = [SETTING] if inside else list(ODD)

    refusals = Encoding(None, None, "murmur2_random").refusals(rows.schema)
    assert [*refusals] == names
    assert rows.select(*judging.bad_column(refusals)).collect() == [Row(**{BAD: len(names)})]

    ways = [Way.made(column) for column in postgres.columns(rows.schema, "sink")]
    held, flagged = postgres.holdable(rows, ways)
    assert list(flagged) == names
    assert [*held.collect()[0]][len(names) :] == [*([False] * (len(names) - 1)), True]
    reason = (
        Projection("sink")
        .beside(rows, "_reason", lambda schema: postgres.reason(schema, ways))
        .select("_reason")
        .collect()[0][0]
    )
    assert reason == f"Postgres cannot hold the value of column {SETTING!r}"

    wanted = [name for name in names if name.strip()]  # select= takes no blank item
    assert Projection.of("sink", wanted, None).apply(rows).columns == wanted
    changed = rows.select(*(column_of(name) for name in names[:-1]), F.lit(None).alias(SETTING))
    assert rows.select(row_hash(rows)).collect() != changed.select(row_hash(changed)).collect()


def test_many_columns_go_into_the_jvm_as_one_text(spark: SparkSession) -> None:
    names = ODD[:-1]
    rows = spark.range(1).select(*(F.lit(n).alias(name) for n, name in enumerate(names)))
    renamed = selected(rows, [f"{quoted(name)} AS c{n}" for n, name in enumerate(names)])
    assert [*renamed.collect()[0]] == [*range(len(names))]


@pytest.mark.parametrize("of_rows", ["true", "false"])
def test_the_session_of_the_rows_counts_and_not_the_one_that_is_active(spark: SparkSession, of_rows: str) -> None:
    """P3: one of the rows' session and the thread's takes a name in quotes for a pattern, and the other does not."""
    jvm: Any = spark._jvm
    sessions = session_class(jvm)
    rows = spark.range(1).select(F.struct(F.lit(float("nan")).alias("f")).alias("c*"))
    with under(spark, {PATTERNS: of_rows}):
        other: Any = spark.newSession()
        other.conf.set(PATTERNS, "false" if of_rows == "true" else "true")
        sessions.setActiveSession(other._jsparkSession)
        try:
            held, _ = postgres.holdable(rows, [Way.made(column) for column in postgres.columns(rows.schema, "sink")])
        finally:
            sessions.setActiveSession(spark._jsparkSession)
    assert held.collect() == [Row(c0='{"f":"NaN"}', flag0=True)]
