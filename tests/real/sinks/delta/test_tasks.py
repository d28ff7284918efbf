"""A task that ends between rows: nothing of it is visible, and the next start writes the epoch exactly once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos.strike.nemesis import kill_seen, poll
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch
from epochal.sinks.delta import DeltaSink
from epochal.sinks.delta.jvm import JavaFailure
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, TWO, query

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
SEEN_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    """Wide rows in small batches: Spark has begun a file long before a task has handed over all of them."""
    spark.conf.set(BATCH, "10")
    yield spark.range(400, numPartitions=2).selectExpr("id", "repeat('x', 10000) wide")
    spark.conf.unset(BATCH)


@contextmanager
def armed(spark: SparkSession, faults: Path, rule: str) -> Iterator[None]:
    """In this process, and in Python workers of their own; the rule strikes once over all of them."""
    faults.mkdir()
    with pytest.MonkeyPatch.context() as patch, failpoints.armed(rule):
        patch.setitem(spark.sparkContext.environment, failpoints.ENVIRONMENT, rule)
        patch.setitem(spark.sparkContext.environment, failpoints.FOLDER, str(faults))
        yield


def struck(faults: Path) -> int:
    """The process that was struck between rows of the epoch."""
    seen = json.loads((faults / "0.blocked").read_text())
    assert (seen["point"], seen["sink"], seen["epoch"]) == ("in-write", "out", 0)
    assert seen["pid"] != os.getpid()
    return int(seen["pid"])


def start(path: Path, rows: DataFrame, by: Actor) -> DeltaSink:
    """What a start does with the sink before its first epoch."""
    sink = DeltaSink(str(path), name="out")
    sink.create(query("app"), rows.schema)
    sink.look(query("app"))
    sink.fence(query("app"), by)
    sink.abort(query("app"), by)
    return sink


def prepare(sink: DeltaSink, rows: DataFrame, by: Actor) -> Committable:
    return sink.prepare(Epoch(Decision("q1", 0, by, "fingerprint"), 1), rows, by)


def assert_the_next_start_writes_it_once(path: Path, rows: DataFrame) -> None:
    assert support.column(path, "id") == []
    sink = start(path, rows, TWO)
    committable = prepare(sink, rows, TWO)
    assert support.column(path, "id") == []
    assert sink.commit(committable, TWO) is CommitOutcome.COMMITTED
    assert support.column(path, "id") == list(range(400))


def test_a_task_that_fails_between_rows(spark: SparkSession, tmp_path: Path, path: Path, rows: DataFrame) -> None:
    sink = start(path, rows, ONE)
    with armed(spark, tmp_path / "faults", "in-write@out:0#5=raise"):
        with pytest.raises(JavaFailure, match="Task failed while writing rows"):
            prepare(sink, rows, ONE)
        struck(tmp_path / "faults")
        assert_the_next_start_writes_it_once(path, rows)


def test_a_task_that_is_killed_between_rows(spark: SparkSession, tmp_path: Path, path: Path, rows: DataFrame) -> None:
    sink, faults = start(path, rows, ONE), tmp_path / "faults"
    with armed(spark, faults, "in-write@out:0#5=barrier"):
        with ThreadPoolExecutor(1) as pool:
            vote = pool.submit(prepare, sink, rows, ONE)
            try:
                poll(lambda: (faults / "0.blocked").exists() or None, SEEN_S, "a worker blocked between rows")
                poll(lambda: support.data_files(path) or None, SEEN_S, "a file that Spark has begun")
                assert kill_seen(struck(faults)).signal == signal.SIGKILL
            finally:
                (faults / "0.go").touch()
            with pytest.raises(JavaFailure, match="Task failed while writing rows"):
                vote.result(SEEN_S)
        assert_the_next_start_writes_it_once(path, rows)
