"""Figures that Spark computes in the job that reads the rows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from epochal.coordinator.model.errors import PrepareRefused
from epochal.sinks.spark import observing
from epochal.sinks.spark.observing import observed, sifted, sifted_once

Sift = Callable[[DataFrame, Column, str], tuple[DataFrame, Callable[[], int]]]
WAYS = pytest.mark.parametrize("sift", [sifted, sifted_once])


@WAYS
def test_rows_pass_or_are_counted(spark: SparkSession, sift: Sift) -> None:
    """NULL is not true, and the rows keep their columns."""
    rows = spark.range(6).selectExpr("id", "nullif(id, 5) AS __epochal_kept")
    passed, others = sift(rows, f.col("__epochal_kept") > 3, "are small")
    assert passed.columns == rows.columns
    assert [row.id for row in passed.collect()] == [4]
    assert others() == 5


@WAYS
def test_rows_that_spark_did_not_read_are_counted_apart(spark: SparkSession, sift: Sift) -> None:
    passed, others = sift(spark.range(6), f.col("id") > 3, "are small")
    assert passed.where("false").collect() == []
    assert others() == 4


def test_no_figures_of_rows_that_spark_did_not_read(spark: SparkSession) -> None:
    seen, figures = observed(spark.range(6), f.count(f.lit(1)).alias("rows"))
    assert seen.where("false").collect() == []
    assert figures("how many", "nothing was written") is None
    seen, figures = observed(spark.range(6), f.count(f.lit(1)).alias("rows"))
    assert len(seen.where("id > 2").collect()) == 3
    assert figures("how many", "nothing was written") == {"rows": 6}


def test_where_spark_tells_nothing_without_rows_its_listeners_are_heard_first(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Spark 4.0: the figures may come a moment after the action has ended."""
    monkeypatch.setattr(observing, "_completes_without_rows", lambda _: False)
    for _ in range(5):
        seen, figures = observed(spark.range(6), f.count(f.lit(1)).alias("rows"))
        assert len(seen.collect()) == 6
        assert figures("how many", "nothing was written") == {"rows": 6}


def test_figures_that_are_still_on_their_way_are_waited_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Spark 4.0: the observation completes only once Spark's listeners have heard everything."""
    heard: list[SparkSession] = []

    def is_drained(spark: SparkSession) -> bool:
        heard.append(spark)
        return False

    monkeypatch.setattr(observing, "_completes_without_rows", lambda _: False)
    monkeypatch.setattr(observing, "_has_future", lambda _: True)
    monkeypatch.setattr(observing, "_is_drained", is_drained)
    late = SimpleNamespace(future=lambda: SimpleNamespace(isCompleted=lambda: len(heard) == 3))
    assert observing._was_observed(spark, late, 0)
    assert heard == [spark] * 3


def test_figures_that_were_dropped_are_not_taken_for_none(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Spark 4.0, where an observation of no rows never completes, and one that was dropped does not, either."""
    monkeypatch.setattr(observing, "_completes_without_rows", lambda _: False)
    monkeypatch.setattr(observing, "_has_arrived", lambda *_: False)
    _, figures = observed(spark.range(6), f.count(f.lit(1)).alias("rows"))
    assert figures("how many", "nothing was written") is None
    counters = spark.sparkContext._jsc.sc().listenerBus().metrics().metricRegistry().getCounters()
    counters.get(f"queue.appStatus{observing.DROPPED}").inc()
    with pytest.raises(PrepareRefused, match="Spark did not say how many: its listener bus has dropped events"):
        figures("how many", "nothing was written")


def test_an_observation_without_a_future_tells_by_its_field_whether_it_is_complete(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Spark 3.5.0 to 3.5.7.  Here the field belongs to another class, with an Option in it."""
    monkeypatch.setattr(observing, "_has_future", lambda _: False)
    option = getattr(spark._jvm, "scala.Option")
    for value, arrived in ((option.empty(), False), (option.apply("figures"), True)):
        field = SimpleNamespace(setAccessible=bool, get=MagicMock(return_value=value))
        older = SimpleNamespace(
            getClass=MagicMock(return_value=SimpleNamespace(getDeclaredField={"metrics": field}.get))
        )
        assert observing._has_arrived(spark, older) is arrived
