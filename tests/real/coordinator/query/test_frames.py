"""Several DataFrames of one micro-batch, each with sinks of its own, under one decision."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from epochal import Pipeline
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit
from epochal.coordinator.console import log
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.coordinator.query.frames import FrameFunction, Shapes
from epochal.sinks import PostgresSink
from epochal.sinks.memory import MemoryServer, MemorySink
from tests.real.coordinator.query.support import APP, FAST, Job


def odd_and_names(batch: DataFrame) -> Mapping[str, DataFrame]:
    return {
        "odd": batch.where("id % 2 = 1"),
        "names": batch.groupBy("name").agg(f.count("*").alias("n")),
    }


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path, ("all", "odd", "names"))


def framed(job: Job, frames: Any = odd_and_names, **options: Any) -> Pipeline:
    made = {"all": None, "odd": "odd", "names": "names"}
    sinks = [MemorySink(name, job.server, frame=made[name]) for name in job.sinks]
    return Pipeline(app=APP, sinks=sinks, retry=FAST, frames=frames, **options)


def test_each_sink_gets_its_frame(job: Job) -> None:
    job.add(1, 2, 3)
    job.add(2)
    pipeline = framed(job)
    job.run(pipeline)
    assert job.ids("all") == [1, 2, 2, 3]
    assert job.shown("odd")[1] == [], "an epoch without rows in the frame is an epoch"
    assert job.ids("odd") == [1, 3]
    assert job.shown("names") == [[("n1", "1"), ("n2", "1"), ("n3", "1")], [("n2", "1")]]
    assert pipeline.status().rows == 1, "rows of the micro-batch, not of its largest frame"


@f.udf(LongType())
def a_number(_):  # type: ignore[no-untyped-def]  # Spark takes a hint of a type for a function of pandas
    return random.randrange(2**62)


def test_sinks_of_one_frame_and_every_redo_see_one_evaluation(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, ("a", "b"))
    calls = []

    def numbers(batch: DataFrame) -> Mapping[str, DataFrame]:
        calls.append(batch)
        return {"x": batch.select(a_number.asNondeterministic()("id").alias("id"))}

    def pipeline() -> Pipeline:
        sinks = [MemorySink(name, job.server, frame="x") for name in job.sinks]
        return Pipeline(app=APP, sinks=sinks, retry=FAST, frames=numbers)

    job.add(1, 2)
    with failpoints.armed("before-sink-commit@b=raise"), pytest.raises(StreamingQueryException):
        job.run(pipeline())
    assert len(job.ids("a")) == 2
    assert len(calls) == 2, "once for the columns, once for the rows"
    assert job.server.lose_prepared(APP, "b") == 1
    assert job.ids("b") == []
    job.run(pipeline())
    assert job.ids("a") == job.ids("b")
    assert len(calls) == 3, "for the columns alone"


def test_a_frame_that_reads_the_rows_twice_reads_one_evaluation(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, ("twice",))
    drawn = job.df().select(a_number.asNondeterministic()("id").alias("id"), "at", "name")
    sinks = [MemorySink("twice", job.server, frame="twice")]
    job.add(1, 2)
    job.run(Pipeline(app=APP, sinks=sinks, retry=FAST, frames=lambda rows: {"twice": rows.unionAll(rows)}), drawn)
    found = job.ids("twice")
    assert len(found) == 4
    assert found[0::2] == found[1::2]


def test_a_frame_that_reads_no_row_lets_operator_state_advance(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, ("some",))
    counted = job.df().groupBy("name").agg(f.max("id").alias("id"), f.count("*").alias("n"))

    def run(rows: int) -> None:
        job.add(1)
        sinks = [MemorySink("some", job.server, frame="some")]
        frames = lambda batch: {"some": batch.limit(rows)}  # noqa: E731
        job.run(Pipeline(app=APP, sinks=sinks, retry=FAST, frames=frames), counted, mode="update")

    run(0)
    run(9)
    assert job.shown("some") == [[], [("n1", "1", "2")]]


BAD: Mapping[str, tuple[Callable[[DataFrame], Any], str]] = {
    "no dict": (lambda batch: batch, "returned DataFrame, not a dict"),
    "no frame": (lambda batch: {"odd": batch}, "returns no frame 'names'"),
    "no DataFrame": (lambda batch: {"odd": batch, "names": 5}, "frame 'names' is no DataFrame"),
    "no name": (lambda batch: {1: batch}, "a frame named 1"),
    "bad name": (lambda batch: {"a b": batch}, "frame 'a b' is not of the form"),
    "same name": (lambda batch: {"odd": batch, "names": batch, "Odd": batch}, "two frames of one name"),
    "raises": (lambda batch: {"odd": batch.nothing}, "frames= raised "),
    "count": (lambda batch: {"odd": batch.limit(batch.count()), "names": batch}, "runs an action"),
    "collect": (lambda batch: {"odd": batch, "names": batch.limit(len(batch.collect()))}, "runs an action"),
    "is empty": (lambda batch: {"odd": batch, "names": batch.limit(int(batch.isEmpty()))}, "runs an action"),
    "to pandas": (lambda batch: {"odd": batch, "names": batch.limit(len(batch.toPandas()))}, "runs an action"),
}


@pytest.mark.remedy(
    "frames= returned …, not a dict of DataFrames",
    'return a dict of DataFrames by their names: {"orders": batch.drop("items"), "items": items}',
)
@pytest.mark.remedy(
    "frames= returned a frame named …, which is no text",
    'return a dict of DataFrames by their names: {"orders": batch.drop("items"), "items": items}',
)
@pytest.mark.remedy(
    "frame … is no DataFrame",
    'return a dict of DataFrames by their names: {"orders": batch.drop("items"), "items": items}',
)
@pytest.mark.remedy(
    "frames= returns no frame …, which a sink gets",
    "return a DataFrame under this name, or correct the sink's frame=",
)
@pytest.mark.remedy(
    "frames= returned two frames of one name, … and …",
    "give them names that differ in more than upper and lower case",
)
@pytest.mark.remedy(
    "frames= raised …: …",
    "correct the function",
)
@pytest.mark.remedy(
    "frames= runs an action on the micro-batch (count, collect, toPandas, write, ...)",
    "return DataFrames and let the sinks evaluate them; what depends on rows belongs in a frame",
)
@pytest.mark.remedy(
    "frame … is a streaming DataFrame",
    "make the frames of the micro-batch that the function gets, not of the stream",
)
def test_a_function_that_does_not_fit_is_refused_before_the_start(job: Job) -> None:
    for frames, told in [*BAD.values(), (lambda _: {"odd": job.df()}, "frame 'odd' is a streaming DataFrame")]:
        with pytest.raises(Misconfigured, match=told):
            framed(job, frames).check(job.df())
    framed(job).check(job.df())


@pytest.mark.parametrize("what", ["raises", "count"])
def test_a_function_that_does_not_fit_is_refused_at_start(job: Job, what: str) -> None:
    job.add(1)
    frames, told = BAD[what]
    pipeline = framed(job, frames)
    with pytest.raises(StreamingQueryException):
        job.run(pipeline)
    assert told in str(pipeline.last_error)
    assert job.ids("all") == []
    job.run(framed(job))
    assert job.ids("all") == [1]


@pytest.mark.remedy(
    "the columns of frames= are found by calling it with a DataFrame, and no Spark session runs here",
    "make a session first, configured like the query's",
)
def test_tables_are_created_with_a_session_alone(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = job.df().schema
    with monkeypatch.context() as patch:
        patch.setattr("epochal.coordinator.query.pipeline.running_session", lambda: None)
        with pytest.raises(Misconfigured, match="no Spark session runs here"):
            framed(job).create(schema)
    assert framed(job).create(schema) == []


def test_a_frame_that_cannot_be_copied_is_refused(job: Job) -> None:
    def frames(batch: DataFrame) -> Mapping[str, DataFrame]:
        return {"odd": batch.withColumn("none", f.lit(None)), "names": batch}

    with pytest.raises(Misconfigured, match="column 'none' has the type void"):
        framed(job, frames).check(job.df())


def test_a_function_that_writes_destroys_nothing(job: Job, spark: SparkSession, tmp_path: Path) -> None:
    """A write that replaces a folder deletes it before it reads the first row."""
    kept = str(tmp_path / "kept")
    spark.range(3).write.parquet(kept)

    def frames(batch: DataFrame) -> Mapping[str, DataFrame]:
        batch.select("id").write.mode("overwrite").parquet(kept)
        return {"odd": batch, "names": batch}

    with pytest.raises(Misconfigured, match="runs an action"):
        framed(job, frames).check(job.df())
    assert spark.read.parquet(kept).count() == 3
    spark.range(4).write.mode("overwrite").parquet(kept)
    assert spark.read.parquet(kept).count() == 4, "outside the function all can write"


def test_two_starts_at_a_time_do_not_bar_later_writers(job: Job, spark: SparkSession, tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=5)

    def frames(batch: DataFrame) -> Mapping[str, DataFrame]:
        with contextlib.suppress(threading.BrokenBarrierError):  # it breaks if they take turns, as they shall
            both.wait()
        return odd_and_names(batch)

    def look(number: int) -> None:
        framed(job, frames).check(job.df())
        spark.range(3).write.parquet(str(tmp_path / f"after-{number}"))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(look, range(2))) == [None, None]


def test_values_that_each_frame_has_on_its_own_are_a_warning(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    def frames(batch: DataFrame) -> Mapping[str, DataFrame]:
        return {"odd": batch.withColumn("u", f.rand()), "names": batch}

    framed(job, frames).check(job.df())
    assert "frame odd: " in caplog.text
    assert "Each frame is evaluated once, on its own" in caplog.text
    assert "frame names: " not in caplog.text


def test_a_field_of_a_frame_is_no_column_of_a_table_of_that_name(job: Job, spark: SparkSession) -> None:
    shapes = Shapes(job.df().schema, FrameFunction(with_alias, [MemorySink("one", job.server, frame="c")]), spark)
    assert shapes.frames is not None
    made = shapes.frames(spark.createDataFrame([(1, None, "n")], job.df().schema))["c"]
    assert made.selectExpr("c.f").collect() == [(1,)]


def with_alias(batch: DataFrame) -> Mapping[str, DataFrame]:
    """A frame ``c`` with a column ``c`` that has the field ``f``, and a column ``f``."""
    return {"c": batch.select(f.struct(f.col("id").alias("f")).alias("c"), (f.col("id") + 1).alias("f")).alias("c")}


def test_the_log_names_the_frames(job: Job) -> None:
    job.add(1, 2)
    job.run(framed(job))
    kept = FilesLog(job.checkpoint / "epochal" / "log").read()
    [decided] = [entry.record for entry in kept if isinstance(entry.record, Commit)]
    told = "all position 1 (2 rows), names position 1 (2 rows of frame names), odd position 1 (1 rows of frame odd)"
    assert log._commit(decided) == f"decided: {told}"


def test_a_frame_that_nobody_gets_is_a_warning(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = framed(job, lambda batch: {**odd_and_names(batch), "more": batch})
    pipeline.check(job.df())
    assert "frame more is returned by frames=, and no sink gets it" in caplog.text


NEW, GONE = "new column x", "returns no frame 'odd' for these rows"
CHANGED: Mapping[str, Callable[[DataFrame], Mapping[str, DataFrame]]] = {
    NEW: lambda batch: {"odd": batch.withColumn("x", f.lit(1)), "names": batch},
    "no column at": lambda batch: {"odd": batch.drop("at"), "names": batch},
    "id is string, was bigint": lambda batch: {"odd": batch.withColumn("id", f.lit("a")), "names": batch},
    "columns in the order name, at, id": lambda batch: {"odd": batch.select("name", "at", "id"), "names": batch},
    GONE: lambda batch: {"names": batch},
}


def columns_changed(job: Job, told: str) -> None:
    at_start = iter([True])

    def frames(batch: DataFrame) -> Mapping[str, DataFrame]:
        return {"odd": batch, "names": batch} if next(at_start, False) else CHANGED[told](batch)

    job.add(1)
    pipeline = framed(job, frames)
    with pytest.raises(StreamingQueryException):
        job.run(pipeline)
    assert isinstance(pipeline.last_error, PrepareRefused)
    assert told in str(pipeline.last_error)
    assert job.decided() == []
    job.run(framed(job))
    assert job.ids("all") == [1]


@pytest.mark.remedy(
    "frame … has other columns than at the start of the query: …",
    "make the columns of a frame depend on the columns of the micro-batch alone, not on its rows",
)
def test_columns_that_depend_on_the_rows_are_refused(job: Job) -> None:
    columns_changed(job, NEW)


@pytest.mark.remedy(
    "frames= returns no frame … for these rows", "return the same frames for every micro-batch; a frame may be empty"
)
def test_a_frame_that_is_not_there_in_every_epoch_is_refused(job: Job) -> None:
    columns_changed(job, GONE)


@pytest.mark.parametrize("told", [told for told in CHANGED if told not in (NEW, GONE)])
def test_any_other_change_of_columns_is_told(job: Job, told: str) -> None:
    columns_changed(job, told)


@pytest.mark.remedy(
    "frame=…, and the pipeline makes no frames",
    "pass frames=, a function that returns DataFrames by their names, or leave frame= out",
)
@pytest.mark.remedy("frames=… cannot be called", "pass a function of one DataFrame")
@pytest.mark.remedy(
    "a frame is computed from the durable copy, and in idempotent mode there is none",
    'leave mode="idempotent" out, or leave frame= out',
)
def test_a_frame_that_the_pipeline_does_not_make_is_refused() -> None:
    sink = MemorySink("one", MemoryServer(), frame="odd")
    with pytest.raises(Misconfigured, match="frames=5 cannot be called"):
        Pipeline(app=APP, sinks=[sink], frames=5)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="frame='odd', and the pipeline makes no frames"):
        Pipeline(app=APP, sinks=[sink])
    with pytest.raises(Misconfigured, match="in idempotent mode there is none"):
        Pipeline(app=APP, sinks=[sink], frames=odd_and_names, mode="idempotent")
    with pytest.raises(Misconfigured, match="frame 'o d' is not of the form"):
        MemorySink("one", MemoryServer(), frame="o d")
    Pipeline(app=APP, sinks=[sink], frames=odd_and_names)
    Pipeline(app=APP, sinks=[MemorySink("one", MemoryServer())], mode="idempotent")


def test_the_promise_names_the_frames(job: Job) -> None:
    told = str(framed(job).guarantee())
    assert "each frame is computed from that copy, once and on its own, and copied (names: names; odd: odd)" in told


def test_bad_rows_are_those_of_the_frame(spark: SparkSession, tmp_path: Path, pg_database: str) -> None:
    job = Job(spark, tmp_path, ("all",))
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE small (id int, at timestamptz, name text)")
    bad = PostgresSink(pg_database, table="bad")
    sinks = (MemorySink("all", job.server), PostgresSink(pg_database, table="small", frame="big", bad_rows=bad))
    frames = lambda batch: {"big": batch.withColumn("id", f.col("id") + f.col("id") * 2**31)}  # noqa: E731
    pipeline = Pipeline(app=APP, sinks=sinks, retry=FAST, frames=frames)
    pipeline.create(job.df().schema)
    job.add(0, 1, 2)
    job.run(pipeline)
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("SELECT id FROM small").fetchall() == [(0,)]
        assert sorted(connection.execute("SELECT id FROM bad").fetchall()) == [(1 + 2**31,), (2 + 2**32,)]
    assert job.ids("all") == [0, 1, 2]


def test_a_sink_of_bad_rows_has_no_frame_of_its_own() -> None:
    framed_bad = PostgresSink("dbname=a", table="bad", frame="big")
    small = PostgresSink("dbname=a", table="small", bad_rows=framed_bad)
    with pytest.raises(Misconfigured, match="bad rows are those of the sink that has bad_rows="):
        Pipeline(app=APP, sinks=[small], frames=odd_and_names)
