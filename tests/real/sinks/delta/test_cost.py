"""What it costs to ask for the marker, in tasks of Spark; that an epoch has no exception of Java to look into."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from epochal.coordinator.model.epoch import Marker
from epochal.sinks.delta.jvm import Table, Transaction
from epochal.sinks.delta.modes import Append, Merge, Mode, Overwrite
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import Start, query
from tests.real.sinks.plans import hear

pytestmark = pytest.mark.wide

PARTITIONS = "spark.databricks.delta.snapshotPartitions"
SHAPE = "id string, n bigint"


@pytest.fixture
def many(spark: SparkSession) -> Iterator[int]:
    """So many partitions has the state of a table."""
    before = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, "37")
    yield 37
    spark.conf.set(PARTITIONS, str(before))


def tasks(spark: SparkSession, do: Callable[[], object]) -> list[int]:
    """How many tasks each stage had that was run for it."""
    context, group = spark.sparkContext, f"cost-{uuid.uuid4().hex}"
    context.setJobGroup(group, "cost of one call")
    try:
        do()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    hear(spark)
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return [stage.numTasks for stage in stages if stage is not None and stage.numCompletedTasks]


def test_it_does_not_grow_with_the_partitions_of_the_tables_state(
    spark: SparkSession, tmp_path: Path, many: int
) -> None:
    path = tmp_path / "t"
    support.sql(spark, path, f"CREATE TABLE {{t}} ({SHAPE}) USING delta")
    start = Start(spark, path).fenced()
    rows = spark.createDataFrame([("a", 1)], SHAPE).coalesce(1)
    vote = start.show(rows)
    support.forget_snapshots(spark)
    assert tasks(spark, lambda: start.sink.look(query("app"))) == []
    again = start.prepare(rows, 2)
    assert many not in tasks(spark, lambda: start.commit(again))
    assert start.sink.look(query("app")).marker == Marker(2, again.decision.id) != Marker(1, vote.decision.id)


def test_after_a_writer_without_checksums_the_state_is_asked_once_per_version(
    spark: SparkSession, tmp_path: Path, many: int
) -> None:
    path = tmp_path / "t"
    support.sql(spark, path, f"CREATE TABLE {{t}} ({SHAPE}) USING delta")
    start = Start(spark, path).fenced()
    vote = start.show(spark.createDataFrame([("a", 1)], SHAPE).coalesce(1))
    support.foreign_append_by_delta_rs(path, [{"id": "x", "n": 0}])
    assert many in tasks(spark, lambda: start.sink.look(query("app")))
    assert many not in tasks(spark, lambda: start.sink.look(query("app")))
    assert start.sink.look(query("app")).marker == Marker(1, vote.decision.id)


@pytest.mark.parametrize(("mode", "lists"), [(Append(), 1), (Overwrite(), 1), (Merge(key="id"), 2)], ids=str)
def test_an_epoch_lists_the_log_once_and_a_merge_twice(
    spark: SparkSession, tmp_path: Path, mode: Mode, lists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    support.sql(spark, path, f"CREATE TABLE {{t}} ({SHAPE}) USING delta")
    start = Start(spark, path, mode=mode).fenced()
    listed: list[bool] = []
    begin = Table.begin

    def counted(self: Table, known: Transaction | None = None) -> Transaction:
        listed.append(known is None or not self._is_newest(known))
        return begin(self, known)

    monkeypatch.setattr(Table, "begin", counted)
    start.show(spark.createDataFrame([("a", 1)], SHAPE).coalesce(1))
    assert (len(listed), sum(listed)) == (3, lists)


@pytest.mark.parametrize("mode", [Append(), Overwrite(), Merge(key="id")], ids=str)
def test_an_epoch_has_no_exception_of_java(
    spark: SparkSession, tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark asks of each which of fourteen classes it is, 20 ms; in Python a Java iterator ends with one."""
    path = tmp_path / "t"
    support.sql(spark, path, f"CREATE TABLE {{t}} ({SHAPE}) USING delta")
    rows = spark.createDataFrame([("a", 1), ("b", 2)], SHAPE).coalesce(1)
    start = Start(spark, path, mode=mode).fenced()
    start.show(rows)
    seen: list[str] = []
    monkeypatch.setattr(Py4JJavaError, "__init__", lambda _self, *told: seen.append(str(told)))
    start.show(rows, 2)
    assert start.sink.look(query("app")).marker is not None
    assert not seen
