"""How the rows are counted that go to the sink of bad rows."""

from __future__ import annotations

from pyspark.sql import SparkSession

from epochal.sinks.rows import rejects


def test_bad_rows_are_counted_anew_where_a_sink_has_read_only_some(spark: SparkSession) -> None:
    """A sink of somebody else may begin with an action on a part of the rows."""
    reasoned = spark.range(5).selectExpr("id", "CASE WHEN id > 1 THEN 'no' END AS _reason")
    for written in (2, 3):
        seen, counted = rejects._counted(reasoned)
        assert len(seen.limit(1).collect()) == 1
        assert counted(written) == 3
