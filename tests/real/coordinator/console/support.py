"""One real job with three sinks, and the console command run beside it in a process that has no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from epochal import Pipeline
from epochal.checkpoints.files import FilesLog
from epochal.coordinator.console.app import add_to
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Json
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.protocol.history import History
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.postgres.support import observe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINKS = ("table", "topic", "lake")
TIMEOUT_S = 180
DOCUMENTED = (Path(__file__).parents[4] / "docs" / "console.md").read_text()
JOB = """
import epochal
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink

def pipeline():
    sinks = [
        PostgresSink({dsn!r}, table="rows", name="table"),
        KafkaSink({bootstrap!r}, topic={topic!r}, name="topic", key="name", select=["id", "name"]),
        DeltaSink({lake!r}, name="lake"),
    ]
    return epochal.Pipeline(app={app!r}, sinks=sinks)
"""


class Console(Job):
    """Three epochs in three sinks; ``job`` is the file that ``--pipeline`` names."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str, bootstrap: str, topic: str) -> None:
        super().__init__(spark, folder, sinks=())
        self.dsn, self.bootstrap, self.topic = dsn, bootstrap, topic
        self.app = topic  # of its own, as the marker topic is named after it
        self.lake = folder / "lake"
        self.file = folder / "job.py"
        self.file.write_text(JOB.format(dsn=dsn, bootstrap=bootstrap, topic=topic, lake=str(self.lake), app=self.app))

    def made(self) -> Pipeline:
        sinks: list[Sink] = [
            PostgresSink(self.dsn, table="rows", name="table"),
            KafkaSink(self.bootstrap, topic=self.topic, name="topic", key="name", select=["id", "name"]),
            DeltaSink(str(self.lake), name="lake"),
        ]
        return Pipeline(app=self.app, sinks=sinks, retry=FAST)

    def rows(self) -> DataFrame:
        """A column of every kind that is compared, with NULL, NaN and times with microseconds."""
        return self.df().selectExpr(
            "id",
            "name",
            "at + INTERVAL 1 microsecond AS at",
            "CAST(at AS date) AS day",
            "CAST(id AS decimal(12,2)) / 4 AS amount",
            "IF(id = 2, double('NaN'), id / 3) AS ratio",
            "CAST(id AS float) / 3 AS small",
            "id % 2 = 0 AS even",
            "IF(id = 3, NULL, CAST(name AS binary)) AS raw",
            "CAST(at AS timestamp_ntz) AS local",
            "array(id) AS many",
        )

    def go(self) -> None:
        pipeline = self.made()
        self.run(pipeline, self.rows())
        pipeline.close()

    def crash(self, point: Point = Point.AFTER_DECIDE, sink: str = "") -> None:
        """One more epoch, whose start dies there; nothing is cleaned up, as nobody is left to."""

        def die(at: Point, where: str, epoch: int) -> None:  # noqa: ARG001
            if at is point and where == sink:
                raise SystemExit("struck")

        with failpoints.handler(die), pytest.raises(StreamingQueryException):
            self.go()

    def epochal(self, *words: object, code: int) -> Json:
        """What the command says as JSON, after it has ended with that code."""
        done = self.process(*words, "--json")
        assert done.returncode == code, (done.stdout, done.stderr)
        found: Json = json.loads(done.stdout)
        assert (found["version"], found["command"], found["exit"]) == (1, words[0], code)
        assert [name for name in found if f"`{name}`" not in DOCUMENTED] == []
        return found

    def told(self, *words: object, code: int) -> str:
        """What it says to people."""
        done = self.process(*words)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def process(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "epochal.coordinator.console.cli", *map(str, words)]
        environment = {**os.environ, "EPOCHAL_PIPELINE": f"{self.file}:pipeline"}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False, cwd=self.folder
        )

    def command(self, words: list[str], code: int = 0) -> str:
        """The console command in this process, so that it finds the Spark session that a job would make."""
        app = typer.Typer(pretty_exceptions_enable=False)
        add_to(app)
        done = CliRunner().invoke(app, words, env={"EPOCHAL_PIPELINE": f"{self.file}:pipeline"})
        assert done.exit_code == code, (words, done.output, done.exception)
        return done.output

    @property
    def newest(self) -> Actor:
        """The newest start, by the log."""
        return History.of(FilesLog(self.checkpoint / "epochal" / "log").read()).fences[-1].actor

    @contextmanager
    def changed(self, statement: str, back: str) -> Iterator[None]:
        """Somebody edits Epochal's tables, for a scope."""
        observe(self.dsn, statement)
        try:
            yield
        finally:
            observe(self.dsn, back)


def by_name(rows: list[Json]) -> dict[str, Any]:
    return {row["name"]: row for row in rows}
