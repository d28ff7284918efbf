"""A Spark that lacks an internal method which is called is refused at start, by the name of the method."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.query.spark import check_runtime
from epochal.sinks.spark import internals

STATE = "org.apache.spark.sql.internal.SharedState"


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_tested", set())


def test_this_spark_has_all_and_is_asked_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    told = internals.self_test(spark)
    assert told.endswith("classes have the methods that are called")
    monkeypatch.setattr(internals, "_missing", pytest.fail)
    assert internals.self_test(spark) == told


@pytest.mark.remedy(
    "Spark … lacks internal methods that this Epochal calls",
    "use a version of Spark that is in the table of docs/operations.md",
)
def test_what_is_missing_is_named_until_spark_has_it(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        wanted = {STATE: ["activeStreamingQueries/0", "activeStreamingQueries/2", "streams/0"]}
        patch.setattr(internals, "CALLED", [*internals.CALLED, wanted, {"org.apache.spark.Gone": ["all/0"]}])
        with pytest.raises(Misconfigured, match=f"Spark {spark.version} lacks internal methods") as refused:
            check_runtime(spark)
    assert refused.value.state == (
        f"missing: {STATE}: activeStreamingQueries/2, streams/0; org.apache.spark.Gone: all/0"
    )
    check_runtime(spark)


def test_of_several_names_the_first_that_is_there_counts(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"org.apache.spark.Gone": ["all/0"], STATE: ["activeStreamingQueries/0"], "java.lang.Object": ["no/0"]}
    monkeypatch.setattr(internals, "CALLED", [named])
    assert internals.self_test(spark)
    monkeypatch.setattr(internals, "CALLED", [dict(reversed(named.items()))])
    monkeypatch.setattr(internals, "_tested", set())
    with pytest.raises(Misconfigured) as refused:
        internals.self_test(spark)
    assert refused.value.state == "missing: java.lang.Object: no/0"
