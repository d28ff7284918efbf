"""The digest that Spark takes of a batch: of every value, of no order, in the pass that reads the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from epochal.coordinator.model.epoch import Digest
from epochal.coordinator.model.errors import PrepareRefused
from epochal.sinks.rows.digest import row_hash, watched
from epochal.sinks.spark import settings
from tests.real.coordinator.query.support import drop_observations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def digest(df: DataFrame) -> Digest:
    seen, answer = watched(df)
    seen.write.format("noop").mode("append").save()
    return answer()


def hashes(spark: SparkSession, values: Sequence[Any], kind: str) -> list[int]:
    """That of each value, in one job."""
    df = spark.createDataFrame([(n, value) for n, value in enumerate(values)], f"n int, x {kind}").repartition(1)
    return [row[1] for row in sorted(df.select("n", row_hash(df.select("x")).alias("h")).collect())]


def test_order_and_partitions_mean_nothing(spark: SparkSession) -> None:
    df = spark.range(1000).selectExpr("id", "string(id % 7) AS s", "IF(id % 3 = 0, NULL, id / 7) AS d")
    first = digest(df)
    assert first.rows == 1000
    assert digest(df.repartition(7, "s")) == digest(df.orderBy("s", "d").coalesce(1)) == first
    assert digest(df.where("id < 400")) + digest(df.where("id >= 400")) == first
    assert digest(df.where("id < 999")) != first
    assert digest(df.union(df.limit(1))) != first


def test_it_is_that_of_the_hashes_of_the_rows(spark: SparkSession) -> None:
    """A sink that reads hashes with its rows has the same digest as one that lets Spark add them up."""
    df = spark.range(50).selectExpr("id", "string(id) AS s")
    assert Digest.of(row[0] for row in df.select(row_hash(df)).collect()) == digest(df)


def test_no_rows_and_no_partitions(spark: SparkSession) -> None:
    df = spark.range(3).selectExpr("id", "string(id) AS s")
    empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), df.schema)
    assert digest(df.where("id > 9")) == digest(empty) == Digest(0, 0)


def test_rows_that_spark_does_not_run_as_none_is_kept_have_their_digest(spark: SparkSession) -> None:
    df = spark.range(3).selectExpr("id", "string(id) AS s").localCheckpoint()
    seen, answer = watched(df)
    seen.where("id IS NULL").where("false").write.format("noop").mode("append").save()
    assert answer() == digest(df)


def test_a_digest_that_never_arrives_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark itself would wait for ever."""
    df = spark.range(3).select("id")
    drop_observations(monkeypatch, df)
    seen, answer = watched(df)
    seen.write.format("noop").mode("append").save()
    with pytest.raises(
        PrepareRefused, match=r"Spark did not say the digest of the rows that it wrote: nothing came within 0\.2 s"
    ):
        answer()


KINDS: dict[str, list[Any]] = {
    "string": [None, "", "a", "A", "a ", "\0", "ab"],
    **({"string COLLATE UTF8_LCASE": ["a", "A", None]} if hasattr(f, "collate") else {}),
    "binary": [None, b"", b"\0", b"\0\0", b"a"],
    "int": [None, 0, 1, -1],
    "double": [None, 0.0, 1.0, float("inf"), float("nan"), 5e-324],
    "boolean": [None, False, True],
    "array<int>": [None, [], [None], [None, None], [1, None], [None, 1], [1], [1, 2], [2, 1]],
    "array<array<int>>": [[], [[]], [[], []], [[1], [2]], [[1, 2]], [[1, 2], []], [None], None],
    "struct<a:int,b:int>": [None, (None, None), (1, None), (None, 1), (1, 1)],
    "map<string,int>": [None, {}, {"a": None}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}],
    "struct<a:array<struct<b:string>>>": [(None,), ([],), ([None],), ([(None,)],), ([("",)],), ([("x",), ("y",)],)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_counts(spark: SparkSession, kind: str) -> None:
    found = hashes(spark, KINDS[kind], kind)
    assert len(set(found)) == len(KINDS[kind]), dict(zip(map(repr, KINDS[kind]), found, strict=True))


def test_which_column_a_value_stands_in_counts(spark: SparkSession) -> None:
    df = spark.sql("SELECT * FROM VALUES (1, NULL), (NULL, 1), (1, 1), (NULL, NULL) AS v(a, b)")
    assert len({row[0] for row in df.select(row_hash(df)).collect()}) == 4


def test_the_order_of_a_map_means_nothing(spark: SparkSession) -> None:
    df = spark.sql("SELECT explode(array(map('a', 1, 'b', 2), map('b', 2, 'a', 1))) AS m")
    assert len({row[0] for row in df.select(row_hash(df)).collect()}) == 1


def test_names_may_be_anything(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, (2, 3))], "`a.b` int, `c``d` struct<`e.f`:int,`g``h`:int>")
    assert digest(df).rows == 1


def test_a_sum_never_overflows(spark: SparkSession) -> None:
    """Of hashes of 64 bits, some thousands would in ANSI mode."""
    with settings.held(spark, {"spark.sql.ansi.enabled": "true"}):
        assert digest(spark.range(200_000).toDF("id")).rows == 200_000
