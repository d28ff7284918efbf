"""Spark replays an epoch that is decided already: rows, watermark and state are those of a run without failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from tests.integration.spark.support import Job

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
    for key, value in STORES[request.param].items():
        spark.conf.set(key, value)
    yield request.param
    for key in STORES[request.param]:
        spark.conf.unset(key)


def windows(job: Job) -> DataFrame:
    """A second per window, one second of patience: each epoch closes what the one before it opened."""
    grouped = job.df().withWatermark("at", "1 second").groupBy(f.window("at", "1 second"))
    counted = grouped.agg(f.count("*").alias("n"), f.sum("id").alias("sum"))
    return counted.select(f.col("window.start").cast("string").alias("start"), "n", "sum")


def feed(job: Job, seconds: range) -> None:
    for second in seconds:
        job.add(second, second + 100, at=f"2024-01-01 00:00:{second:02}")


def run(job: Job, *, replay: bool) -> None:
    feed(job, range(0, 6, 2))
    job.run(job.pipeline(), windows(job))
    if replay:
        decided = job.decided()
        newest = job.forget_last_commit()
        assert newest == decided[-1]
    feed(job, range(6, 14, 2))
    job.run(job.pipeline(), windows(job))


def state(job: Job) -> list[tuple[object, ...]]:
    rows = job.spark.read.format("statestore").load(str(job.checkpoint)).selectExpr("to_json(key)", "to_json(value)")
    return sorted(tuple(row) for row in rows.collect())


def test_a_decided_epoch_feeds_state_and_watermark(spark: SparkSession, tmp_path: Path, store: str) -> None:
    smooth, replayed = Job(spark, tmp_path / "smooth"), Job(spark, tmp_path / "replayed")
    run(smooth, replay=False)
    run(replayed, replay=True)
    assert len([rows for rows in smooth.shown() if rows]) >= 5, "windows close over several epochs"
    assert replayed.shown() == smooth.shown()
    assert replayed.watermarks() == smooth.watermarks()
    assert state(replayed) == state(smooth) != []
    assert store in STORES


def test_the_whole_plan_runs_whatever_the_users_function_made_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """On a replay the user's function may hand over a frame that would not read the batch at all."""
    job, smooth = Job(spark, tmp_path / "a"), Job(spark, tmp_path / "b")
    run(smooth, replay=False)
    feed(job, range(0, 6, 2))
    job.run(job.pipeline(), windows(job))
    job.forget_last_commit()
    feed(job, range(6, 14, 2))
    pipeline = job.pipeline()
    first: list[int] = []

    def partial(df: DataFrame, epoch: int) -> None:
        first.append(epoch)
        pipeline(df.limit(0) if epoch == first[0] else df, epoch)

    job.run(partial, windows(job))
    assert job.shown() == smooth.shown()
    assert state(job) == state(smooth)


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
