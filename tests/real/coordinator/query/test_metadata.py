"""Spark's file ``metadata`` is gone or damaged: what a check and a start say, and that following it helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from epochal.coordinator.model.errors import CheckpointMismatch
from tests.real.coordinator.query.support import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    made = Job(spark, tmp_path)
    made.add(1)
    made.run(made.pipeline())
    made.add(2)
    return made


@pytest.fixture
def may_lack(spark: SparkSession) -> Iterator[str]:
    """The setting by which Spark insists on the file."""
    name = "spark.sql.streaming.checkpoint.verifyMetadataExists.enabled"
    yield name
    spark.conf.unset(name)


def refusal(job: Job) -> str:
    with pytest.raises(CheckpointMismatch) as refused:
        job.pipeline().check(job.df(), checkpoint=str(job.checkpoint))
    return str(refused.value)


def follow(job: Job, told: str) -> None:
    """Write the text that the message gives."""
    (text,) = re.findall(r"\{\"id\":\"[0-9a-f-]{36}\"\}", told)
    (job.checkpoint / "metadata").write_text(text)
    (job.checkpoint / ".metadata.crc").unlink(missing_ok=True)
    job.run(job.pipeline())
    assert job.ids() == [1, 2]


def test_a_file_that_is_missing_is_named_and_made_anew(job: Job) -> None:
    """S3."""
    (job.checkpoint / "metadata").unlink()
    told = refusal(job)
    assert "Spark's file metadata is missing in the checkpoint" in told
    follow(job, told)


def test_a_file_that_spark_made_anew_is_put_right(job: Job, may_lack: str) -> None:
    """S3: the query was started without the file, which Spark by default refuses itself."""
    job.spark.conf.set(may_lack, "false")
    (job.checkpoint / "metadata").unlink()
    (job.checkpoint / ".metadata.crc").unlink(missing_ok=True)
    with pytest.raises(
        StreamingQueryException, match="if metadata was deleted and Spark has made a new one"
    ) as refused:
        job.run(job.pipeline())
    assert job.ids() == [1]
    follow(job, str(refused.value))


def test_a_file_that_is_damaged_is_named(job: Job) -> None:
    """S3."""
    (job.checkpoint / "metadata").write_text("")
    assert "Spark's file metadata is not as Spark writes it" in refusal(job)
