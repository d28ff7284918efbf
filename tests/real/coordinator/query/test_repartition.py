"""Spark repartitions the operator state of a stopped query: it writes an epoch without a call of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from epochal.coordinator.model.errors import CheckpointMismatch
from epochal.coordinator.query import operate
from tests.real.coordinator.query.support import Job

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE = {"spark.sql.streaming.stateStore.providerClass": ROCKS, "spark.sql.shuffle.partitions": "2"}

EXPECTED = [[("n1", "1", "1"), ("n2", "2", "1")], [("n1", "1", "2"), ("n2", "2", "2")], [("n1", "1", "3")]]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    """Its state lies in RocksDB, because Spark repartitions no other."""
    if not hasattr(spark, "_streamingCheckpointManager"):
        pytest.skip("this Spark cannot repartition operator state")
    before = {key: spark.conf.get(key) for key in STATE}
    for key, value in STATE.items():
        spark.conf.set(key, value)
    yield Job(spark, tmp_path)
    for key, found in before.items():
        spark.conf.set(key, found or "")


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
    assert "repartitioned the operator state" in pipeline.last_error.help
    operate.skip(job.pipeline(), str(job.checkpoint), 2, 2, why="a repartition")
    run(job)
    assert job.shown() == EXPECTED


@pytest.mark.remedy(
    "after epoch … Spark would read the rows of epoch … again, and epoch … is logged",
    "Stop the query, delete commits/… and above, and offsets/… and above, each with its hidden .N.crc if there is one,"
    " and restart: epoch … is finished; then stop the query and repartition once more",
)
def test_a_repartition_that_leaves_out_an_epoch_in_doubt_cannot_be_skipped(job: Job) -> None:
    for _ in range(2):
        job.add(1, 2)
    run(job)
    job.forget_last_commit()
    with pytest.raises(Py4JJavaError, match="LAST_BATCH_FAILED"):
        repartition(job, 3)
    repartition(job, 3, enforce=False)
    for _ in range(2):
        with pytest.raises(CheckpointMismatch, match="Spark would read the rows of epoch 1 again") as refused:
            operate.skip(job.pipeline(), str(job.checkpoint), 2, 2, why="a repartition")
    assert "delete commits/1 and above, and offsets/2 and above" in refused.value.help
    for name in ("commits/1", "commits/.1.crc", "commits/2", "commits/.2.crc", "offsets/2", "offsets/.2.crc"):
        (job.checkpoint / name).unlink()
    run(job)
    repartition(job, 3)
    operate.skip(job.pipeline(), str(job.checkpoint), 2, 2, why="a repartition")
    job.add(1)
    run(job)
    assert job.shown() == EXPECTED
