"""The drop-in function in real queries: several at once, restarted, triggered, and inside the user's own function."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from epochal.chaos.servers.process import wait_until
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Epoch
from epochal.coordinator.model.errors import CalledTwice, CheckpointMismatch, CommitInDoubt, Interrupted
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.kafka import judging
from epochal.sinks.kafka.rows import Encoding
from epochal.sinks.memory import MemoryRedoSink, MemorySink
from epochal.sinks.postgres import rows as postgres
from epochal.sinks.postgres.ways import Way
from epochal.sinks.protocol import Sink
from epochal.sinks.spark.stage import SparkStage
from tests.real.coordinator.query.support import APP, FAST, WAIT, Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.timeout(400)
def test_one_evaluation_for_three_sinks(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that differ per evaluation are the same in every sink, and each row was computed once."""
    job = Job(spark, tmp_path, sinks=("one", "two", "three"))
    evaluated = tmp_path / "evaluated"
    evaluated.mkdir()

    def noted(number: int) -> int:
        with open(evaluated / str(number), "a") as file:
            file.write("x")
        return number

    random = job.df().select(
        f.udf(noted, "long", useArrow=False)("id").alias("id"), f.rand().alias("r"), f.expr("uuid()").alias("u")
    )
    sinks: list[Sink] = [
        MemorySink("one", job.server),
        MemorySink("two", job.server),
        MemoryRedoSink("three", job.server, SparkStage(f"file:{job.checkpoint}", lambda: spark)),
    ]
    job.add(1, 2, 3)
    job.add(4)
    job.run(Pipeline(app=APP, sinks=sinks, retry=FAST), random)
    assert job.ids() == [1, 2, 3, 4]
    assert job.shown("one") == job.shown("two") == job.shown("three")
    assert {file.name: file.read_text() for file in evaluated.iterdir()} == {str(i): "x" for i in (1, 2, 3, 4)}


def test_two_queries_in_one_session(spark: SparkSession, tmp_path: Path) -> None:
    """At the same time and under the same names, on servers of their own: neither sees anything of the other."""
    first, second = Job(spark, tmp_path / "a"), Job(spark, tmp_path / "b")
    for job in (first, second):
        job.add(1, 2)
        job.add(3)
    pipelines = [job.pipeline() for job in (first, second)]
    queries = [job.start(pipeline) for job, pipeline in zip((first, second), pipelines, strict=True)]
    for query in queries:
        assert query.awaitTermination(WAIT)
    assert first.ids() == second.ids() == [1, 2, 3]
    assert pipelines[0].status().query_id != pipelines[1].status().query_id


def test_a_second_query_under_the_same_names_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    pipeline = job.pipeline()
    job.add(1)
    job.run(pipeline)
    job.checkpoint = tmp_path / "another"
    with pytest.raises(StreamingQueryException, match="empty epoch log"):
        job.run(pipeline)
    assert isinstance(pipeline.last_error, CheckpointMismatch)
    job.checkpoint = tmp_path / "checkpoint"
    job.add(2)
    job.run(pipeline)
    assert job.ids() == [1, 2]


def test_restart_in_the_same_process(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    pipeline = job.pipeline()
    for n in range(3):
        job.add(n)
        job.run(pipeline)
    assert job.ids() == [0, 1, 2]
    assert pipeline.status().last_epoch == 2
    assert len(pipeline._runs) == 1
    job.add(3)
    job.run(job.pipeline())
    assert job.decided() == [0, 1, 2, 3]
    pipeline.close()


def test_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    job.add(1)
    query = job.start(job.pipeline(), trigger={"processingTime": "100 milliseconds"})
    try:
        until(lambda: job.ids() == [1])
        job.add(2)
        until(lambda: job.ids() == [1, 2])
    finally:
        query.stop()


def until(true: Any) -> None:
    limit = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.05)


def test_status_and_one_log_line_per_epoch(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1, 2)
    job.add(3)
    pipeline = job.pipeline()
    with caplog.at_level(logging.INFO, logger="epochal"):
        job.run(pipeline)
    status = pipeline.status()
    assert (status.last_epoch, status.rows, status.shown, status.in_doubt) == (1, 1, {"one": 1, "two": 1}, ())
    assert set(status.seconds) == {"identify", "prepare", "decide", "commit", "return"}
    assert "- one: epoch 1" in str(status)
    lines = [r.getMessage() for r in caplog.records if r.name == "epochal" and r.levelno == logging.INFO]
    assert [line.split(" (")[0] for line in lines] == [f"app {APP}, epoch 0: 2 rows", f"app {APP}, epoch 1: 1 rows"]
    assert "prepare" in lines[0]


def test_status_in_doubt(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1)
    pipeline = job.pipeline()
    with failpoints.armed("before-sink-commit@two=raise"), pytest.raises(StreamingQueryException):
        job.run(pipeline)
    assert isinstance(pipeline.last_error, CommitInDoubt)
    status = pipeline.status()
    assert (status.last_epoch, status.in_doubt, status.error) == (0, ("two",), pipeline.last_error)
    assert "- two: nothing yet, in doubt" in str(status)
    assert (job.ids("one"), job.ids("two")) == ([1], [])
    job.run(pipeline)
    assert (job.ids("one"), job.ids("two")) == ([1], [1])
    assert pipeline.status().in_doubt == ()


# --- inside the user's own function -----------------------------------------------------------------


@pytest.mark.wide
def test_enrichment_and_aggregation_in_the_users_function(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1, 1, 2)
    job.add(2, 3)
    names = spark.createDataFrame([(1, "a"), (2, "b")], "id long, label string")
    pipeline = job.pipeline()

    def enrich(df: DataFrame, epoch: int) -> None:
        pipeline(df.join(names, "id", "left").groupBy("id", "label").count(), epoch)

    job.run(enrich)
    assert job.shown("one") == [[("1", "a", "2"), ("2", "b", "1")], [("2", "b", "1"), ("3", "None", "1")]]
    assert job.shown("one") == job.shown("two")


def test_a_second_call_in_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    job.add(1, 2)
    pipeline = job.pipeline()

    def twice(df: DataFrame, epoch: int) -> None:
        pipeline(df.where("id = 1"), epoch)
        pipeline(df.where("id = 2"), epoch)

    with pytest.raises(StreamingQueryException, match="a second time in one batch"):
        job.run(twice)
    assert isinstance(pipeline.last_error, CalledTwice)
    assert "union what belongs to one epoch" in str(pipeline.last_error)
    assert job.ids() == [1]


def test_a_second_call_in_a_job_group_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """A job group begins as the id of the run, and is the user's to set."""
    job = Job(spark, tmp_path)
    job.add(1, 2)
    pipeline = job.pipeline()

    def twice(df: DataFrame, epoch: int) -> None:
        for number in (1, 2):
            spark.sparkContext.setJobGroup(f"write {number}", "for the page of jobs")
            pipeline(df.where(f"id = {number}"), epoch)

    with pytest.raises(StreamingQueryException, match="a second time in one batch"):
        job.run(twice)
    assert job.ids() == [1]


def test_a_second_pipeline_of_the_same_app_in_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    """It would take the epoch for one that Spark replays, and its rows for those that are visible."""
    job = Job(spark, tmp_path)
    job.add(1, 2)

    def twice(df: DataFrame, epoch: int) -> None:
        for number in (1, 2):
            job.pipeline()(df.where(f"id = {number}"), epoch)

    with pytest.raises(StreamingQueryException, match="a second time in one batch"):
        job.run(twice)
    assert job.ids() == [1]


def test_a_pipeline_that_is_made_in_every_batch(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    for n in range(3):
        job.add(n)
    job.run(lambda df, epoch: job.pipeline()(df, epoch))
    assert job.ids() == [0, 1, 2]


def test_a_run_that_failed_does_not_fail_the_next_one_in_the_same_job_group(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path)
    job.add(1)
    pipeline = job.pipeline()

    def grouped(df: DataFrame, epoch: int) -> None:
        spark.sparkContext.setJobGroup("etl", "always the same")
        pipeline(df, epoch)

    job.server.down = True
    with pytest.raises(StreamingQueryException):
        job.run(grouped)
    job.server.down = False
    job.run(grouped)
    assert job.ids() == [1]


@pytest.mark.remedy(
    "the offsets of epoch … were changed while the epoch was prepared",
    "another driver runs on this checkpoint: stop all but one of them, and restart that one",
)
@pytest.mark.parametrize("found", ["other offsets", "no offsets"])
def test_an_epoch_whose_offsets_another_driver_has_changed(spark: SparkSession, tmp_path: Path, found: str) -> None:
    """On an object store Spark does not keep two drivers of one checkpoint apart."""
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1)
    job.run(job.pipeline())
    job.add(2)
    file, kept = job.checkpoint / "offsets" / "1", []

    def other_driver(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.BEFORE_DECIDE:
            kept.append(file.read_text())
            file.unlink() if found == "no offsets" else file.write_text(
                kept[0].replace('"logOffset":1', '"logOffset":0')
            )

    with failpoints.handler(other_driver), pytest.raises(StreamingQueryException, match="were changed while the epoch"):
        job.run(job.pipeline())
    assert job.ids() == [1]
    file.write_text(kept[0])
    job.run(job.pipeline())
    assert job.ids() == [1, 2]


def test_a_call_that_was_left_out(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    for n in range(3):
        job.add(n)
    pipeline = job.pipeline()

    def careless(df: DataFrame, epoch: int) -> None:
        if epoch != 1:
            pipeline(df, epoch)

    with pytest.raises(StreamingQueryException, match="epoch 1 never reached the pipeline"):
        job.run(careless)
    assert isinstance(pipeline.last_error, CheckpointMismatch)
    assert "also for empty ones" in str(pipeline.last_error)
    assert job.ids() == [0]


def test_an_error_that_the_users_function_swallows_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Spark goes on to the next batch; the pipeline does not."""
    job = Job(spark, tmp_path)
    for n in range(3):
        job.add(n)
    job.server.down = True
    pipeline, seen = job.pipeline(), []

    def swallow(df: DataFrame, epoch: int) -> None:
        try:
            pipeline(df, epoch)
        except Exception as error:
            seen.append(error)
            job.server.down = False

    job.run(swallow)
    assert len(seen) == 3
    assert seen[0] is seen[1] is seen[2]
    assert job.ids() == []


def test_an_empty_batch(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1)
    job.add(2)
    pipeline = job.pipeline()
    job.run(lambda df, epoch: pipeline(df.where("id > 1"), epoch))
    assert job.shown() == [[], job.shown()[1]]
    assert job.ids() == [2]


# --- stopping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_would_hang_the_query_ends_it(spark: SparkSession, tmp_path: Path, error: type[BaseException]) -> None:
    job = Job(spark, tmp_path)
    job.add(1)
    pipeline = job.pipeline()

    def strike(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.AFTER_DECIDE:
            raise error("now")

    with failpoints.handler(strike), pytest.raises(StreamingQueryException, match=error.__name__):
        job.run(pipeline)
    assert isinstance(pipeline.last_error, Interrupted)
    assert job.ids() == []
    job.run(pipeline)
    assert job.ids() == [1]


@pytest.mark.parametrize("point", [Point.BEFORE_PREPARE, Point.AFTER_COPY, Point.AFTER_DECIDE])
def test_stop_in_the_middle_of_an_epoch(spark: SparkSession, tmp_path: Path, point: Point) -> None:
    """Whatever stop() interrupts, Spark writes no commit for an epoch that is not visible; a restart settles it."""
    import threading

    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1)
    reached, stopping = threading.Event(), threading.Event()

    def hold(at: Point, _sink: str, _epoch: int) -> None:
        if at is point and not reached.is_set():
            reached.set()
            stopping.wait(WAIT)
            time.sleep(0.5)

    with failpoints.handler(hold):
        query = job.start(job.pipeline())
        assert reached.wait(WAIT)
        stopper = threading.Thread(target=query.stop)
        stopper.start()
        stopping.set()
        stopper.join(WAIT)
        assert not stopper.is_alive()
    assert not query.isActive
    committed = (job.checkpoint / "commits" / "0").exists()
    assert committed <= (job.ids("one") == job.ids("two") == [1])
    job.add(2)
    job.run(job.pipeline())
    assert job.ids("one") == job.ids("two") == [1, 2]
    assert job.decided() == [0, 1]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
@pytest.mark.remedy(
    "the query was stopped while an epoch was in progress",
    "nothing, if it shall not run; else start it again: it finishes or drops what was in progress",
)
def test_a_query_that_is_stopped_in_the_evaluation_says_so(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """S2: it is no error of the query, and the next start runs the epoch."""
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1)
    begun, going_on = tmp_path / "begun", tmp_path / "going-on"

    def waits(number: int) -> int:
        begun.touch()
        until = time.monotonic() + WAIT
        while not going_on.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return number

    pipeline = job.pipeline(mode=mode, **({"deterministic": ["waits"]} if mode == "idempotent" else {}))
    query = job.start(pipeline, job.df().select(f.udf(waits, "long", useArrow=False)("id").alias("id")))
    assert wait_until(lambda: begun.exists() or None, WAIT)
    query.stop()
    going_on.touch()
    assert isinstance(pipeline.last_error, Interrupted)
    assert pipeline.last_error.what == "the query was stopped while an epoch was in progress"
    assert pipeline.last_error.epoch == 0
    assert pipeline.status().error is pipeline.last_error
    told = query.exception()
    assert told is None or "the query was stopped" in str(told)
    assert job.ids() == []
    job.run(job.pipeline(mode=mode))
    assert job.ids("one") == job.ids("two") == [1]


class Judged(MemorySink):
    """Looks at the rows as the sinks of servers do, before it keeps them."""

    found: list[tuple[Any, ...]]

    def prepare(self, epoch: Epoch, rows: Any, by: Actor) -> Committable:
        ways = [Way.made(column) for column in postgres.columns(rows.schema, self.name)]
        held, _ = postgres.holdable(rows, ways)
        bad = rows.select(*judging.bad_column(Encoding(None, None, "murmur2_random").refusals(rows.schema)))
        self.found.append(
            (held.collect()[0]["flag0"], bad.collect()[0][0], rows.selectExpr(f"{rows.columns[0]}.f").collect()[0][0])
        )
        return super().prepare(epoch, rows, by)


@pytest.mark.parametrize("name", ["c", "__epochal_rows"])
def test_a_field_is_a_field_also_where_the_rows_come_from_a_table_of_that_name(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """K3: `c.f` was the column `f` of the alias `c`: nobody saw the NaN in the column `c`, and it was kept."""
    job = Job(spark, tmp_path)
    job.add(1)
    fields = f.struct(f.lit(float("nan")).alias("f"))
    sink = Judged("one", job.server)
    sink.found = []
    rows = job.df().select(fields.alias(name), f.lit(1.0).alias("f")).alias(name)
    job.run(Pipeline(app=APP, sinks=[sink], retry=FAST), rows)
    assert [(flag, bad, str(value)) for flag, bad, value in sink.found] == [(True, 1, "nan")]
