"""A whole query on a table that each epoch replaces, or is merged into: through the coordinator, over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.coordinator.model import failpoints
from epochal.sinks.delta import DeltaSink, Merge, Overwrite
from tests.real.coordinator.query.support import APP, FAST, Job
from tests.real.sinks.delta import support


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    job = Job(spark, tmp_path, sinks=())
    job.add(1, 2, 1)
    job.add(2, 3)
    return job


def counts(job: Job) -> DataFrame:
    return job.df().groupBy("id").count()


def pipeline(job: Job, *modes: Any) -> Pipeline:
    tables = [DeltaSink(str(job.folder / f"t{n}"), mode=mode) for n, mode in enumerate(modes)]
    made = Pipeline(app=APP, sinks=tables, retry=FAST)
    made.create(counts(job).schema)
    return made


def seen(job: Job, number: int = 0) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in support.read(job.folder / f"t{number}").to_pylist())


@pytest.mark.wide
def test_complete_mode_over_a_crash(job: Job) -> None:
    """It dies decided and not committed; the next start shows the epoch, and the one after it replaces that."""
    pipeline(job, Overwrite()).check(counts(job), output_mode="complete")
    with failpoints.armed("after-decide:1=raise"), pytest.raises(StreamingQueryException):
        job.run(pipeline(job, Overwrite()), counts(job), mode="complete")
    assert seen(job) == [(1, 2), (2, 1)]
    job.run(pipeline(job, Overwrite()), counts(job), mode="complete")
    assert seen(job) == [(1, 2), (2, 2), (3, 1)]


@pytest.mark.wide
def test_update_mode_merged_over_a_crash(job: Job) -> None:
    """A counter per key, its newest value in the table; nobody who died has tried the merge that is committed."""
    mode = Merge(key="id")
    with failpoints.armed("after-decide:1=raise"), pytest.raises(StreamingQueryException):
        job.run(pipeline(job, mode), counts(job), mode="update")
    assert seen(job) == [(1, 2), (2, 1)]
    job.run(pipeline(job, mode), counts(job), mode="update")
    assert seen(job) == [(1, 2), (2, 2), (3, 1)]
