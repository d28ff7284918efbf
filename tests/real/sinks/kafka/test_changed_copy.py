"""A durable copy of rows that is changed before the vote: nothing is in doubt then, and the error says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from epochal.chaos import servers
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import PrepareRefused
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.kafka import KafkaSink
from tests.real.coordinator.query.support import APP, FAST, Job
from tests.real.sinks.kafka.support import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.remedy(
    "the durable copy was changed before the vote: …", "restart the query: the epoch is evaluated again"
)
def test_a_file_of_rows_that_vanishes_before_the_vote(
    spark: SparkSession, kafka_server: servers.Kafka, topic_name: str, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path / "job")
    job.add(1, 2)
    pipeline = Pipeline(app=APP, sinks=[KafkaSink(kafka_server.bootstrap, topic=topic_name, votes=False)], retry=FAST)
    pipeline.create(job.df().schema)

    def vanishing(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.BEFORE_SINK_PREPARE:
            for file in (job.checkpoint / "epochal" / "copies").rglob("*.parquet"):
                file.unlink()

    with failpoints.handler(vanishing), pytest.raises(StreamingQueryException):
        job.run(pipeline)
    refused = pipeline.last_error
    assert isinstance(refused, PrepareRefused)
    assert "are missing or changed" in refused.what
    assert refused.state is not None
    assert "nothing of the epoch was decided" in refused.state
    assert job.decided() == []
    job.run(pipeline)
    values = [json.loads(r.value or b"") for r in read_topic(kafka_server.bootstrap, topic_name)]
    assert sorted(value["id"] for value in values) == [1, 2]
