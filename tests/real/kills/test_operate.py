"""A person's command dies of SIGKILL at every step, on real servers, and is said again by another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal import Pipeline
from epochal.chaos import servers
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Operator
from epochal.coordinator.model.failpoints import Point
from epochal.sinks import KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.postgres.support import observe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.wide

JOB = """
import epochal
from epochal.sinks import KafkaSink, PostgresSink

table = PostgresSink({dsn!r}, table="rows", name={name!r})
topic = KafkaSink({bootstrap!r}, topic={topic!r}, name="topic")
pipeline = epochal.Pipeline(app={topic!r}, sinks=[table, topic])
"""
STEPS = (
    Point.BEFORE_LOOK,
    Point.AFTER_LOOK,
    Point.BEFORE_FENCE,
    Point.LOG_BEFORE_APPEND,
    Point.LOG_AFTER_APPEND,
    Point.AFTER_FENCE_RECORD,
    Point.BEFORE_SINK_FENCE,
    Point.AFTER_SINK_FENCE,
    Point.AFTER_FENCE,
    Point.AFTER_LOOK_AGAIN,
    Point.BEFORE_SETTLE,
    Point.BEFORE_MARK,
    Point.AFTER_MARK,
    Point.BEFORE_OPERATOR,
    Point.AFTER_OPERATOR,
    Point.BEFORE_ABORT,
    Point.AFTER_ABORT,
    Point.BEFORE_CLEAN,
)
TIMEOUT_S = 180


class Renamed(Job):
    """A query with a table and a topic; the table's sink changes its name again and again."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str, bootstrap: str, topic: str) -> None:
        super().__init__(spark, folder, sinks=())
        self.dsn, self.bootstrap, self.topic = dsn, bootstrap, topic

    def made(self, name: str) -> Pipeline:
        sinks: list[Sink] = [
            PostgresSink(self.dsn, table="rows", name=name),
            KafkaSink(self.bootstrap, topic=self.topic, name="topic"),
        ]
        return Pipeline(app=self.topic, sinks=sinks, retry=FAST)

    def rename(self, old: str, new: str, dies_at: str = "") -> int:
        job = self.folder / "job.py"
        job.write_text(JOB.format(dsn=self.dsn, name=old, bootstrap=self.bootstrap, topic=self.topic))
        words = ["rename", str(self.checkpoint), old, new, "--pipeline", f"{job}:pipeline", "--why", "a test", "--yes"]
        environment = {**os.environ, "EPOCHAL_FAILPOINTS": f"{dies_at}=kill" if dies_at else ""}
        return subprocess.run(
            [sys.executable, "-m", "epochal.coordinator.console.cli", *words],
            env=environment,
            timeout=TIMEOUT_S,
            check=False,
            capture_output=True,
        ).returncode

    @property
    def records(self) -> list[Operator]:
        entries = FilesLog(self.checkpoint / "epochal" / "log").read()
        return [entry.record for entry in entries if isinstance(entry.record, Operator)]


@pytest.fixture
def job(
    spark: SparkSession, postgres_server: servers.Postgres, kafka_server: servers.Kafka, tmp_path: Path
) -> Iterator[Renamed]:
    name = f"operate_{uuid.uuid4().hex[:12]}"
    yield Renamed(spark, tmp_path, postgres_server.create_database(name), kafka_server.bootstrap, name)
    postgres_server.drop_database(name)


def test_a_renaming_killed_at_every_step_is_said_again(job: Renamed) -> None:
    old, new = "one", "two"
    job.made(old).create(job.df().schema)
    job.add(1)
    job.run(job.made(old))
    for number, step in enumerate(STEPS, start=1):
        assert job.rename(old, new, step.value) == -signal.SIGKILL, step
        if len(job.records) < number:
            assert job.rename(old, new) == 0, step
        assert len(job.records) == number
        old, new = new, old
    job.add(2, 3)
    job.run(job.made(old))
    assert observe(job.dsn, "SELECT id FROM rows ORDER BY id") == [(1,), (2,), (3,)]
    assert observe(job.dsn, "SELECT sink, published FROM epochal.sinks") == [(old, 2)]
