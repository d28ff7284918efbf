"""Spark repartitions the operator state of a stopped query: it writes an epoch without a call of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured
from epochal.coordinator.query import operate
from tests.real.coordinator.query.support import WAIT, Job

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORE = "spark.sql.streaming.stateStore"
STATE = {
    f"{STORE}.providerClass": ROCKS,
    f"{STORE}.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.shuffle.partitions": "2",
}

EXPECTED = [[("n1", "1", "1"), ("n2", "2", "1")], [("n1", "1", "2"), ("n2", "2", "2")], [("n1", "1", "3")]]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    """Its state lies in RocksDB, because Spark repartitions no other."""
    before = {key: spark.conf.get(key, None) for key in STATE}
    for key, value in STATE.items():
        spark.conf.set(key, value)
    yield Job(spark, tmp_path)
    for key, found in before.items():
        spark.conf.unset(key) if found is None else spark.conf.set(key, found)


def counts(job: Job) -> DataFrame:
    return job.df().groupBy("name").agg(f.max("id").alias("id"), f.count("*").alias("n"))


def run(job: Job) -> None:
    job.run(job.pipeline(), counts(job), mode="update")


def repartition(job: Job, partitions: int, *, enforce: bool = True) -> None:
    manager = job.spark._streamingCheckpointManager
    manager.repartition(str(job.checkpoint), partitions, enforce)


def test_the_epoch_of_a_repartition_is_named_and_can_be_skipped(job: Job) -> None:
    for _ in range(2):
        job.add(1, 2)
    run(job)
    repartition(job, 3)
    job.add(1)
    pipeline = job.pipeline()
    with pytest.raises(StreamingQueryException, match="epoch 2 never reached the pipeline"):
        job.run(pipeline, counts(job), mode="update")
    assert isinstance(pipeline.last_error, CheckpointMismatch)
    assert "`epochal resolve --skipped 2..2`" in pipeline.last_error.help
    assert "if you have had Spark repartition the operator state" in pipeline.last_error.help
    operate.skip(job.pipeline(), str(job.checkpoint), 2, 2, why="a repartition")
    run(job)
    assert job.shown() == EXPECTED


@pytest.mark.remedy(
    "after epoch …, Spark would run epoch … once more, and give it another number",
    "undo the repartition: stop the query, delete commits/… and above, offsets/… and above, each with its hidden"
    " .N.crc, and below state all files of version … and above (the names begin with it); restart, so that epoch … is"
    " finished; then stop the query and repartition once more",
)
@pytest.mark.parametrize("changelog", ["true", "false"])
def test_a_repartition_that_leaves_out_an_epoch_in_doubt_cannot_be_skipped(job: Job, changelog: str) -> None:
    job.spark.conf.set(f"{STORE}.rocksdb.changelogCheckpointing.enabled", changelog)
    for _ in range(2):
        job.add(1, 2)
    run(job)
    job.forget_last_commit()
    with pytest.raises(Py4JJavaError, match="LAST_BATCH_FAILED"):
        repartition(job, 3)
    repartition(job, 3, enforce=False)
    refused = refusal(job, 2)
    assert "delete commits/1 and above, offsets/2 and above" in refused.help
    assert "all files of version 3 and above" in refused.help
    for file in [*(job.checkpoint / "commits").iterdir(), *(job.checkpoint / "offsets").iterdir()]:
        number = int(file.name.removeprefix(".").partition(".")[0])
        if number >= (1 if file.parent.name == "commits" else 2):
            file.unlink()
    for file in (job.checkpoint / "state").rglob("*"):
        version = file.name.removeprefix(".").partition(".")[0]
        if file.is_file() and version.isdigit() and int(version) >= 3 and "_metadata" not in file.parts:
            file.unlink()
    job.add(1)  # it waits when the query starts, so its epoch has the number of the one that is undone
    run(job)
    stores(job).stop()  # what a new process does not have
    repartition(job, 3)
    operate.skip(job.pipeline(), str(job.checkpoint), 3, 3, why="a repartition")
    job.add(2)
    run(job)
    assert job.shown() == [*EXPECTED, [("n2", "2", "3")]]


def test_an_epoch_without_input_that_was_left_out_is_found(job: Job) -> None:
    """It ends where the epoch before it ended, and yet it gives the rows of windows that the watermark has closed."""
    windows = job.df().withWatermark("at", "1 minute").groupBy(f.window("at", "1 minute"), "name")
    closed = windows.agg(f.max("id").alias("id")).select("id", "name")
    job.add(1, 2, at="2024-01-01 00:00:00")
    job.add(3, at="2024-01-01 01:00:00")
    job.run(job.pipeline(), closed)
    assert job.shown()[-1] == [("1", "n1"), ("2", "n2")]
    newest = job.forget_last_commit()
    repartition(job, 3, enforce=False)
    refusal(job, newest + 1)


@pytest.mark.parametrize(("retain", "lost"), [("2", 1), ("100", 2)], ids=["offsets deleted by Spark", "two lost"])
def test_epochs_that_were_left_out_are_found(job: Job, retain: str, lost: int) -> None:
    job.spark.conf.set("spark.sql.streaming.minBatchesToRetain", retain)
    for _ in range(4):
        once(job)
    for number in range(3, 3 - lost, -1):
        for name in (f"{number}", f".{number}.crc"):
            (job.checkpoint / "commits" / name).unlink()
    repartition(job, 3, enforce=False)
    with pytest.raises(StreamingQueryException, match="epoch 4 never reached the pipeline"):
        once(job)
    refusal(job, 4)


def test_a_span_that_is_not_the_skipped_one_is_named(job: Job) -> None:
    for _ in range(2):
        once(job)
    with pytest.raises(Misconfigured, match=r"epochs 2\.\.1 are not the skipped epochs; skipped: none"):
        operate.skip(job.pipeline(), str(job.checkpoint), 2, 1, why="a slip")


def once(job: Job) -> None:
    """One epoch of four rows, from a source that gives it whatever was read before."""
    rows = job.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).option("startTimestamp", 0).load()
    counted = rows.groupBy((f.col("value") % 2).alias("name")).agg(f.max("value").alias("id"), f.count("*").alias("n"))
    query = job.start(job.pipeline(), counted, mode="update", trigger={"once": True})
    try:
        assert query.awaitTermination(WAIT), "the query did not end"
    finally:
        query.stop()


def refusal(job: Job, epoch: int) -> CheckpointMismatch:
    with pytest.raises(CheckpointMismatch, match=r"Spark would run epoch \d+ once more") as refused:
        operate.skip(job.pipeline(), str(job.checkpoint), epoch, epoch, why="a repartition")
    return refused.value


def stores(job: Job) -> Any:
    """Spark's loaded state stores of this process."""
    jvm: Any = job.spark._jvm
    return getattr(jvm, "org.apache.spark.sql.execution.streaming.state.StateStore")
