"""Spark replays an epoch that is decided already: rows, watermark and state are those of a run without failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from tests.real.coordinator.query.support import BatchFunction, Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORES = {
    "default": {},
    "rocksdb-format-2": {
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    },
}


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    for key, value in STORES[request.param].items():
        spark.conf.set(key, value)
    yield request.param
    for key in STORES[request.param]:
        spark.conf.unset(key)
    spark.conf.set("spark.sql.shuffle.partitions", partitions or "2")


def windows(job: Job) -> DataFrame:
    """A second per window, one second of patience: each epoch closes what the one before it opened."""
    grouped = job.df().withWatermark("at", "1 second").groupBy(f.window("at", "1 second"))
    counted = grouped.agg(f.count("*").alias("n"), f.sum("id").alias("sum"))
    return counted.select(f.col("window.start").cast("string").alias("start"), "n", "sum")


def feed(job: Job, seconds: range) -> None:
    for second in seconds:
        job.add(second, second + 100, at=f"2024-01-01 00:00:{second:02}")


def begin(job: Job) -> None:
    feed(job, range(0, 4, 2))
    job.run(job.pipeline(), windows(job))


def go_on(job: Job, function: BatchFunction) -> None:
    feed(job, range(4, 10, 2))
    job.run(function, windows(job))


def replay(job: Job) -> None:
    """Spark forgets that the newest epoch was done; the log does not."""
    newest = job.decided()[-1]
    assert job.forget_last_commit() == newest


def state(job: Job) -> list[tuple[object, ...]]:
    rows = job.spark.read.format("statestore").load(str(job.checkpoint)).selectExpr("to_json(key)", "to_json(value)")
    return sorted(tuple(row) for row in rows.collect())


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_a_decided_epoch_feeds_state_and_watermark(spark: SparkSession, tmp_path: Path, store: str) -> None:
    """Also where the user's function hands over a frame that would not read the batch at all."""
    smooth, plain, partial = (Job(spark, tmp_path / name) for name in ("smooth", "plain", "partial"))
    for job in (smooth, plain, partial):
        begin(job)
    for job in (plain, partial):
        replay(job)
    go_on(smooth, smooth.pipeline())
    go_on(plain, plain.pipeline())
    pipeline, called = partial.pipeline(), []

    def reads_nothing_at_first(df: DataFrame, epoch: int) -> None:
        called.append(epoch)
        pipeline(df if called[1:] else df.limit(0), epoch)

    go_on(partial, reads_nothing_at_first)
    assert len([rows for rows in smooth.shown() if rows]) >= 3, "windows close over several epochs"
    for job in (plain, partial):
        assert job.shown() == smooth.shown(), store
        assert job.watermarks() == smooth.watermarks()
        assert state(job) == state(smooth) != []


def test_a_replayed_epoch_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, sinks=("one", "two"))
    random = job.df().withColumn("r", f.rand())
    job.add(1)
    job.add(2)
    job.run(job.pipeline(), random)
    before = job.shown()
    job.forget_last_commit()
    job.add(3)
    pipeline = job.pipeline()
    job.run(pipeline, random)
    assert job.ids() == [1, 2, 3]
    assert job.shown()[:2] == before
    assert job.shown("one") == job.shown("two")
    assert job.decided() == [0, 1, 2]
