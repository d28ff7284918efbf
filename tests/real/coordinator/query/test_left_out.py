"""``where=`` of a sink that is alone: there is no Parquet copy, and Spark still reads every row of the micro-batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.chaos import servers
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit
from epochal.coordinator.model.epoch import Copy
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.kafka.delivery import index
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.delta.support import read
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.postgres.support import observe

NONE = {"a constant": "false", "a condition that Spark finds to be false": "id > 3 AND id < 2"}


class Counted(Job):
    """Counts the rows of each id; the sink gets the counts that have changed."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str, server: Any, topic: str) -> None:
        super().__init__(spark, folder, sinks=())
        self.kind, self.server_, self.topic = kind, server, topic

    def made(self, where: str | None) -> Pipeline:
        if self.kind == "delta":
            sink: Any = DeltaSink(str(self.folder / "lake"), name="it", where=where)
        elif self.kind == "postgres":
            sink = PostgresSink(self.server_, table="counts", name="it", where=where)
        else:
            sink = KafkaSink(self.server_, topic=self.topic, name=self.topic, where=where)
        return Pipeline(app="left-out", sinks=[sink], retry=FAST)

    def rows(self) -> DataFrame:
        return self.df().groupBy("id").count()

    def go(self, where: str | None) -> Pipeline:
        pipeline = self.made(where)
        pipeline.create(self.rows().schema)
        self.run(pipeline, self.rows(), mode="update")
        return pipeline

    def shown_rows(self) -> list[tuple[int, int]]:
        if self.kind == "delta":
            return sorted((row["id"], row["count"]) for row in read(self.folder / "lake").to_pylist())
        if self.kind == "postgres":
            return sorted(observe(self.server_, "SELECT id, count FROM counts"))
        told = [json.loads(record.value or b"") for record in read_topic(self.server_, self.topic)]
        return sorted((row["id"], row["count"]) for row in told)

    def commits(self) -> list[Commit]:
        entries = FilesLog(self.checkpoint / "epochal" / "log").read()
        return [entry.record for entry in entries if isinstance(entry.record, Commit)]


@pytest.fixture(params=["delta", "postgres", "kafka"])
def job(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    pg_database: str,
    kafka_server: servers.Kafka,
    topic_name: str,
) -> Counted:
    server = {"postgres": pg_database, "kafka": kafka_server.bootstrap}.get(request.param)
    return Counted(spark, tmp_path, request.param, server, topic_name)


@pytest.mark.parametrize("where", NONE.values(), ids=NONE)
def test_the_operator_state_knows_rows_that_no_sink_gets(job: Counted, where: str) -> None:
    job.add(1, 2)
    job.go(where)
    assert job.shown_rows() == []
    job.add(1)
    job.go(None)
    assert job.shown_rows() == [(1, 2)]


def test_what_is_left_out_is_counted(job: Counted) -> None:
    job.add(1, 2, 2, 3)
    pipeline = job.go("count > 1")
    assert job.shown_rows() == [(2, 2)]
    (commit,) = job.commits()
    (vote,) = (participant.committable for participant in commit.participants.values())
    assert (vote.rows, vote.left_out) == (1, 2)
    assert pipeline.status().rows == 3
    if job.kind != "kafka":
        assert commit.copy is None
    else:
        assert isinstance(commit.copy, Copy)
        assert (commit.copy.form, commit.copy.rows) == (index.FORM, 1)
