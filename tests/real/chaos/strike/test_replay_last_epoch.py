"""Scenario A1 (apache/paimon#9666): `commits/N` deleted, restarted.  A plain function writes twice, Epochal once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal import Misconfigured
from epochal.chaos import replay_last_epoch
from tests.real.coordinator.query.support import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Plain:
    """What most people write: the output is whatever the function has been called with."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.epochs: list[int] = []

    def __call__(self, df: DataFrame, epoch: int) -> None:
        self.rows += [row["id"] for row in df.collect()]
        self.epochs.append(epoch)


def test_a_plain_function_shows_the_replayed_epoch_twice(spark: SparkSession, tmp_path: Path) -> None:
    job, plain = Job(spark, tmp_path), Plain()
    for key in range(3):
        job.add(key, key + 10)
    job.run(plain)
    assert replay_last_epoch(job.checkpoint) == 2
    job.add(3, 13)
    job.run(plain)
    assert plain.epochs == [0, 1, 2, 2, 3]
    assert Counter(plain.rows) == {0: 1, 10: 1, 1: 1, 11: 1, 2: 2, 12: 2, 3: 1, 13: 1}


def test_epochal_shows_it_once(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    for key in range(3):
        job.add(key, key + 10)
    job.run(job.pipeline())
    assert replay_last_epoch(job.checkpoint.as_uri()) == 2
    assert replay_last_epoch(job.checkpoint) == 2, "it will be replayed anyway"
    job.add(3, 13)
    job.run(job.pipeline())
    assert job.ids() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert job.decided() == [0, 1, 2, 3]


def test_a_query_that_still_runs_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    job, plain = Job(spark, tmp_path), Plain()
    job.add(1)
    query = job.start(plain, trigger={"processingTime": "0 seconds"})
    try:
        query.processAllAvailable()
        with pytest.raises(Misconfigured, match="is still running") as refused:
            replay_last_epoch(job.checkpoint)
        assert str(query.id) in str(refused.value)
        assert (job.checkpoint / "commits" / "0").exists()
    finally:
        query.stop()
    assert replay_last_epoch(job.checkpoint) == 0


def test_a_checksum_that_is_left_behind_is_in_sparks_way(spark: SparkSession, tmp_path: Path) -> None:
    """Why the helper takes it away first, and cleans up after those who did the surgery by hand."""
    job, plain = Job(spark, tmp_path), Plain()
    job.add(1)
    job.run(plain)
    (job.checkpoint / "commits" / "0").unlink()
    assert (job.checkpoint / "commits" / ".0.crc").exists()
    with pytest.raises(Exception, match="Multiple streaming queries are concurrently using"):
        job.run(plain)
    (job.checkpoint / "commits" / "0").unlink()
    assert replay_last_epoch(job.checkpoint) == 0
    job.run(plain)
    assert plain.epochs == [0, 0, 0]
