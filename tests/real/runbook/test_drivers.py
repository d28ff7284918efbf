"""Corners in which another driver, or another version, was there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epochal.checkpoints import log
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.query import spark as inside
from epochal.sinks.postgres import committing, ddl
from tests.real.runbook.conftest import MakeCorner
from tests.real.runbook.support import Corner
from tests.real.runbook.test_checkpoint import everywhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.wide


def newer_start(job: Corner, df: DataFrame, epoch: int) -> None:
    """The same epoch by a coordinator of another run, whole.

    Spark refuses a second query of one checkpoint in one JVM; ``tests/real/kills/test_two_drivers.py`` has two
    processes.
    """
    pipeline = job.made()
    query = inside.StreamingQuery(df)
    batch = inside.micro_batch(query, df, epoch, job.app)
    other = replace(batch.ask, query=replace(batch.ask.query, run_id="another run"))
    sinks = pipeline.new_sinks()
    pipeline.coordinator(other.query, sinks, lambda: df.sparkSession).run(replace(batch, ask=other))
    for one in sinks:
        one.close()


def overtaken(job: Corner) -> Callable[[DataFrame, int], None]:
    """The job's function; as it is about to decide, a newer start comes and goes."""
    pipeline = job.made()

    def run(df: DataFrame, epoch: int) -> None:
        came: list[Point] = []

        def another(point: Point, _: str, __: int) -> None:
            if point is Point.BEFORE_DECIDE and not came:
                came.append(point)
                newer_start(job, df, epoch)

        with failpoints.handler(another):
            pipeline(df, epoch)

    return run


def meets_another_at_its_end(job: Corner) -> Callable[[DataFrame, int], None]:
    """The job's function; when it returns, the driver that took over has told Spark already that the epoch is done."""
    pipeline = job.made()

    def run(df: DataFrame, epoch: int) -> None:
        pipeline(df, epoch)
        shutil.copy(job.checkpoint / "commits" / f"{epoch - 1}", job.checkpoint / "commits" / f"{epoch}")

    return run


def test_two_drivers(corner: MakeCorner) -> None:
    job = corner("Two drivers")
    for number, make in enumerate((overtaken, meets_another_at_its_end)):
        job.add(4 + number)
        job.fails(number, function=make(job))
        job.follow()
    job.add(6)
    job.converges(**everywhere(1, 2, 3, 4, 5, 6))


def test_upgrade_with_an_epoch_in_doubt(corner: MakeCorner, monkeypatch: pytest.MonkeyPatch) -> None:
    job = corner("Upgrade with an epoch in doubt")
    job.add(4)
    job.crash(Point.AFTER_DECIDE)
    records = [file.read_text() for file in (job.checkpoint / "epochal" / "log").glob("*.record")]
    assert records
    assert all('"version": 1}' in text for text in records), "of before there were records of persons"
    job.converges(**everywhere(1, 2, 3, 4))

    job.command(["adopt", str(job.checkpoint), "--why", "a record of version 2", "--yes"])
    job.add(5)
    job.crash(Point.AFTER_DECIDE)
    older = ((log, "RECORD_VERSION", 1), (committing, "PAYLOAD_VERSION", 0), (ddl, "VERSION", 0))
    for number, (module, name, value) in enumerate(older):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            job.fails(number)
    job.follow()
    job.converges(**everywhere(1, 2, 3, 4, 5))
