"""An epoch whose tasks stand still is told, with what Spark says of them."""

from __future__ import annotations

import queue
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from epochal.coordinator.model.events import Event, Stalled, Step
from epochal.coordinator.telemetry import watchdog
from tests.real.coordinator.query.support import WAIT, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(400)
def test_an_epoch_whose_tasks_stand_still_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S4: a worker that never answers.  Once it answers, the epoch ends as if nothing had been."""
    monkeypatch.setattr(watchdog, "QUIET_S", 0.5)
    monkeypatch.setattr(watchdog, "EVERY_S", 0.1)
    told: queue.Queue[Event] = queue.Queue()
    go = tmp_path / "go"

    def waits(number: int) -> int:
        limit = time.monotonic() + WAIT
        while not go.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        return number

    job = Job(spark, tmp_path)
    job.add(1, 2)
    rows = job.df().select(f.udf(waits, "long", useArrow=False)("id").alias("id"))
    query = job.start(job.pipeline(on_event=told.put), rows)
    try:
        while not isinstance(event := told.get(timeout=WAIT), Stalled):
            pass
        go.touch()
        assert query.awaitTermination(WAIT)
    finally:
        go.touch()
        query.stop()
    assert (event.step, event.sink, event.epoch) == (Step.PREPARE, "one", 0)
    assert re.search(r"stage \d+ \(.+\): 0 of \d+ tasks done, \d+ run, \d+ rows read", event.seen)
    assert "prepare of one still runs; no task has ended and no row was counted for" in caplog.text
    assert job.ids() == [1, 2]
