"""Idempotent mode on real Spark: replays, state, time, hidden dependencies, and switching modes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Fence
from epochal.coordinator.model.errors import CommitInDoubt, EpochalError, Misconfigured, NonDeterministicReplay
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.memory import Delivery, deliver
from tests.real.coordinator.query.support import APP, BatchFunction, Job

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

IDEMPOTENT = {"mode": "idempotent"}


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    made = Job(spark, tmp_path, sinks=("one", "two"))
    made.add(1, 2)
    return made


def fails(job: Job, pipeline: Pipeline, df: DataFrame | None = None, function: BatchFunction | None = None) -> Any:
    with pytest.raises(StreamingQueryException):
        job.run(function or pipeline, df)
    assert isinstance(pipeline.last_error, EpochalError)
    return pipeline.last_error


def without_the_second(job: Job, pipeline: Pipeline, df: DataFrame | None = None) -> None:
    """The newest epoch reaches the first sink and not the second, and the query ends."""
    job.server.network = lambda verb, sink: (
        Delivery.UNAVAILABLE if (verb, sink) == ("commit", "two") else Delivery.DELIVERED
    )
    assert isinstance(fails(job, pipeline, df), CommitInDoubt)
    job.server.network = deliver
    assert len(job.shown("one")) == len(job.shown("two")) + 1


def records(job: Job) -> list[str]:
    """The kinds of the log's records about epochs, with their epoch."""
    entries = FilesLog(job.checkpoint / "epochal" / "log").read()
    return [f"{e.record.kind} {e.record.epoch}" for e in entries if not isinstance(e.record, Fence)]


def test_epochs_reach_every_sink_without_a_copy(job: Job) -> None:
    job.add(3)
    pipeline = job.pipeline(**IDEMPOTENT)
    job.run(pipeline)
    assert job.ids("one") == job.ids("two") == [1, 2, 3]
    assert records(job) == ["apply 0", "apply 1"]
    assert not (job.checkpoint / "epochal" / "copies").exists()
    assert pipeline.status().rows == 1
    assert "apply" in pipeline.status().seconds


def test_a_replay_gives_the_epoch_to_those_that_are_behind(job: Job) -> None:
    without_the_second(job, job.pipeline(**IDEMPOTENT))
    before = job.shown("one")
    job.add(3)
    job.run(job.pipeline(**IDEMPOTENT))
    assert job.ids("one") == job.ids("two") == [1, 2, 3]
    assert job.shown("one")[:1] == before
    assert records(job) == ["apply 0", "apply 0", "apply 1"]


PINNED = ("current_timestamp()", "current_date()", "localtimestamp()", "unix_timestamp()")


def test_the_time_of_a_batch_is_the_same_on_replay(job: Job) -> None:
    """It is written down with the batch's offsets."""

    def timed() -> DataFrame:
        return job.df().selectExpr("id", *(f"string({text}) AS t{n}" for n, text in enumerate(PINNED)))

    without_the_second(job, job.pipeline(**IDEMPOTENT), timed())
    time.sleep(1.1)
    job.run(job.pipeline(**IDEMPOTENT), timed())
    assert job.shown("one") == job.shown("two")


def test_now_is_not_the_time_of_the_batch(job: Job) -> None:
    """Spark pins `current_timestamp` and not `now`; so `now` is refused, also upstream of state."""
    seen = []

    def looks_and_fails(df: DataFrame, _: int) -> None:
        seen.append({row["t"] for row in df.collect()})
        raise ValueError("so Spark runs the batch again")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="so Spark runs the batch again"):
            job.run(looks_and_fails, job.df().selectExpr("string(now()) AS t"))
        time.sleep(0.01)
    assert seen[0] != seen[1]
    with pytest.raises(Misconfigured, match=r"now\(\) is the time of the evaluation"):
        job.pipeline(**IDEMPOTENT).check(job.df().withColumn("t", f.now()))
    with pytest.raises(Misconfigured, match="feeds the stateful operator"):
        job.pipeline().check(job.df().withColumn("t", f.now()).groupBy("t").count(), output_mode="update")


def reading(file: Path) -> Column:
    """A function that reads a file, whatever its name says."""

    def looked_up(_: int) -> str:
        return file.read_text()

    return f.udf(looked_up, "string", useArrow=False)("id")


def test_a_hidden_dependency_that_changes_before_the_replay_is_found(job: Job) -> None:
    file = job.folder / "rate"
    file.write_text("1.1")
    options: Any = {**IDEMPOTENT, "deterministic": ["looked_up"]}
    without_the_second(job, job.pipeline(**options), job.df().withColumn("rate", reading(file)))
    file.write_text("1.2")
    for _ in range(2):
        error = fails(job, job.pipeline(**options), job.df().withColumn("rate", reading(file)))
        assert isinstance(error, NonDeterministicReplay)
        assert (error.epoch, error.what.count("2 rows, ")) == (0, 2)
        assert error.state == "visible in ['one']; nothing was written where it is not"
        assert job.shown("two") == []
    file.write_text("1.1")
    job.run(job.pipeline(**options), job.df().withColumn("rate", reading(file)))
    assert job.shown("one") == job.shown("two") != []


def test_a_hidden_dependency_that_changes_between_two_sinks_is_found_before_any_shows(job: Job) -> None:
    file = job.folder / "calls"
    file.write_text("")

    def counted(_: int) -> int:
        with file.open("a") as calls:
            calls.write(".")
        return file.stat().st_size

    options: Any = {**IDEMPOTENT, "deterministic": ["counted"]}
    column = f.udf(counted, "int", useArrow=False)("id")
    error = fails(job, job.pipeline(**options), job.df().withColumn("n", column))
    assert isinstance(error, NonDeterministicReplay)
    assert error.state == "visible in []; nothing was written where it is not"
    assert job.shown("one") == job.shown("two") == []
    job.run(job.pipeline(), job.df().withColumn("n", column))
    assert job.shown("one") == job.shown("two") != []
    assert records(job) == ["apply 0", "commit 0"]


@pytest.mark.wide
def test_operator_state_is_that_of_a_run_that_never_failed(spark: SparkSession, tmp_path: Path) -> None:
    """Every sink evaluates the batch, so the state of an epoch is written as often, with the same content."""

    def windows(job: Job) -> DataFrame:
        grouped = job.df().withWatermark("at", "1 second").groupBy(f.window("at", "1 second"))
        return grouped.agg(f.count("*").alias("n"), f.sum("id").alias("sum")).select(
            f.col("window.start").cast("string").alias("start"), "n", "sum"
        )

    def feed(job: Job, seconds: range) -> None:
        for second in seconds:
            job.add(second, second + 100, at=f"2024-01-01 00:00:{second:02}")

    smooth, failed = (Job(spark, tmp_path / name, sinks=("one", "two")) for name in ("smooth", "failed"))
    for job in (smooth, failed):
        feed(job, range(0, 4, 2))
    smooth.run(smooth.pipeline(), windows(smooth))
    without_the_second(failed, failed.pipeline(**IDEMPOTENT), windows(failed))
    for job in (smooth, failed):
        feed(job, range(4, 10, 2))
    smooth.run(smooth.pipeline(), windows(smooth))
    failed.run(failed.pipeline(**IDEMPOTENT), windows(failed))
    failed.forget_last_commit()
    failed.run(failed.pipeline(**IDEMPOTENT), windows(failed))
    assert failed.shown("one") == failed.shown("two")
    counted = [[row for epoch in job.shown("two") for row in epoch] for job in (smooth, failed)]
    assert counted[0] == counted[1], "in how many epochs is Spark's affair: it adds empty ones where a run ends"
    assert len(counted[0]) >= 3
    assert max(failed.watermarks().values()) == max(smooth.watermarks().values())


@pytest.mark.parametrize("first", ["idempotent", "two-phase"])
def test_modes_take_turns_on_a_live_checkpoint_with_an_epoch_in_doubt(job: Job, first: str) -> None:
    second = "two-phase" if first == "idempotent" else "idempotent"
    without_the_second(job, job.pipeline(mode=first))
    job.add(3)
    job.run(job.pipeline(mode=second))
    job.add(4)
    job.run(job.pipeline(mode=first))
    assert job.ids("one") == job.ids("two") == [1, 2, 3, 4]
    kinds = {"idempotent": "apply", "two-phase": "commit"}
    newest = [kinds[mode] for mode in (second, first)]
    assert records(job)[-2:] == [f"{newest[0]} 1", f"{newest[1]} 2"]


def test_what_is_handed_over_for_the_time_of_a_call_is_evaluated_once(job: Job) -> None:
    pipeline, seen = job.pipeline(**IDEMPOTENT), job.folder / "seen"

    def noted(_: int) -> int:
        with seen.open("a") as calls:
            calls.write(".")
        return 1

    def kept(df: DataFrame, epoch: int) -> None:
        df.persist()
        pipeline(df, epoch)
        df.unpersist()

    column = f.udf(noted, "int", useArrow=False)("id")
    pipeline = job.pipeline(**IDEMPOTENT, deterministic=["noted"])
    job.run(kept, job.df().withColumn("x", column))
    assert job.ids("one") == job.ids("two") == [1, 2]
    assert len(seen.read_text()) == 2
    assert job.server.table(APP, "two").marker is not None
