"""What cannot keep the promise is refused at start, by name, and leaves nothing behind."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.errors.exceptions.captured import IllegalArgumentException
from pyspark.sql import functions as f

from epochal.coordinator.environment import versions
from epochal.coordinator.model.errors import CheckpointMismatch, EpochalError, Misconfigured
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.memory import MemorySink
from tests.real.coordinator.query.support import APP, FAST, BatchFunction, Job
from tests.real.sinks.settings import under

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    made = Job(spark, tmp_path)
    made.add(1, 2)
    return made


def refused(job: Job, pipeline: Pipeline, df: DataFrame | None = None, **start: Any) -> EpochalError:
    """What the pipeline raised; Spark shows its name and text."""
    with pytest.raises(StreamingQueryException) as error:
        job.run(pipeline, df, **start)
    assert isinstance(pipeline.last_error, EpochalError)
    assert type(pipeline.last_error).__name__ in str(error.value)
    assert "Help: " in str(error.value)
    assert pipeline.status().error is pipeline.last_error
    assert job.server.table(APP, "one").fence is None
    return pipeline.last_error


def test_a_text_that_is_not_utf_8_is_refused_by_a_sink_in_memory(job: Job) -> None:
    """Spark gave another character in its place, and the sink kept that."""
    broken = f.when(f.col("id") == 2, f.lit(b"\xff")).otherwise(f.lit(b"x")).cast("string")
    rows = job.df().select("id", f.array(f.struct(broken.alias("a.b"))).alias("texts"))
    with pytest.raises(StreamingQueryException, match="a value that Python cannot hold: a text has U"):
        job.run(job.pipeline(), rows)
    job.run(job.pipeline(), rows.where("id = 1"))
    assert job.server.visible(APP, "one") == [{"id": 1, "texts": [{"a.b": "x"}]}]


@pytest.mark.remedy(
    "with …=…, functions of the session take the place of Spark's own",
    'set it to "second", which is the default, before the query starts',
)
def test_functions_of_the_session_that_come_before_those_of_spark(job: Job) -> None:
    """A function of the user's that is called to_json made the values of Kafka's records."""
    with under(job.spark, {"spark.sql.functionResolution.sessionOrder": "first"}):
        with pytest.raises(Misconfigured, match="sessionOrder=first, functions of the session"):
            job.pipeline().check(job.df())
        assert "sessionOrder=first" in str(refused(job, job.pipeline()))
        job.spark.conf.set("spark.sql.functionResolution.sessionOrder", "second")
        job.run(job.pipeline())
    assert job.ids() == [1, 2]


RANDOM: dict[str, Callable[[DataFrame], DataFrame]] = {
    "rand(": lambda df: df.withColumn("x", f.rand()).groupBy("x").count(),
    "uuid(": lambda df: df.withColumn("x", f.expr("uuid()")).dropDuplicates(["x"]),
    "aes_encrypt(": lambda df: df.selectExpr("aes_encrypt('a', '0123456789abcdef') AS x").dropDuplicates(["x"]),
    "monotonically_increasing_id(": lambda df: df.groupBy(f.monotonically_increasing_id().alias("x")).count(),
    "guess(": lambda df: df.withColumn(
        "x", f.udf(guess, "string", useArrow=False).asNondeterministic()("name")
    ).distinct(),
}


def guess(name: str) -> str:
    return name


@pytest.mark.parametrize("name", RANDOM)
def test_random_values_upstream_of_state(job: Job, name: str) -> None:
    with pytest.raises(Misconfigured, match="feeds the stateful operator") as error:
        job.pipeline().check(RANDOM[name](job.df()), output_mode="update")
    assert name in str(error.value)


@pytest.mark.remedy(
    "… feeds the stateful operator … and has another value when Spark replays an epoch, so operator state would not"
    " match what the sinks show",
    "compute it after the stateful operator, or inside your foreachBatch function before `pipeline(df, epoch)`, or take"
    " it from the source's columns",
)
def test_random_values_upstream_of_state_are_refused_inside_too(job: Job) -> None:
    error = refused(job, job.pipeline(), RANDOM["rand("](job.df()), mode="update")
    assert "feeds the stateful operator Aggregate" in str(error)
    pipeline = job.pipeline()
    pipeline.check(job.df().groupBy("id").count().withColumn("x", f.rand()), output_mode="update")
    pipeline.check(job.df().withColumn("x", f.col("name")).groupBy("x").count(), output_mode="update")
    shutil.rmtree(job.checkpoint)
    job.run(lambda df, epoch: pipeline(df.withColumn("x", f.rand()), epoch), job.df().dropDuplicates(["id"]))
    assert job.ids() == [1, 2]


def test_what_may_stand_upstream_of_state(job: Job) -> None:
    """Pinned per batch, after the state, or without state: none of these makes state another."""
    check = job.pipeline().check
    check(job.df().withColumn("x", f.current_timestamp()).groupBy("x").count(), output_mode="update")
    check(job.df().groupBy("id").count().withColumn("x", f.rand()), output_mode="update")
    check(job.df().withColumn("x", f.rand()))
    check(job.df().join(job.spark.range(3), "id").withColumn("x", f.rand()))


def test_stateful_operators_are_seen(job: Job) -> None:
    from epochal.coordinator.query.plan import analyzed, class_of, is_stateful, nodes

    def stateful(df: DataFrame) -> list[str]:
        return [class_of(node) for node in nodes(analyzed(df)) if is_stateful(node)]

    df = job.df()
    late = df.withWatermark("at", "1 minute")
    assert stateful(df) == []
    assert stateful(late) == []
    assert stateful(late.groupBy(f.window("at", "1 minute")).count()) == ["Aggregate"]
    assert stateful(df.distinct()) == ["Deduplicate"]
    assert stateful(late.dropDuplicatesWithinWatermark(["id"])) == ["DeduplicateWithinWatermark"]
    assert stateful(df.limit(3)) == ["GlobalLimit"]
    assert stateful(late.join(late.withColumnRenamed("at", "at2"), "id")) == ["Join"]
    assert stateful(df.join(job.spark.range(3), "id")) == []
    grouped = df.groupBy("id").applyInPandasWithState(
        lambda _key, frames, _state: frames, "id long", "id long", "append", "NoTimeout"
    )
    assert stateful(grouped) == ["FlatMapGroupsInPandasWithState"]


def test_python_functions_upstream_of_state_are_named(job: Job) -> None:
    pipeline = job.pipeline()
    pipeline.check(job.df().groupBy(f.udf(guess, "string", useArrow=False)("name")).count(), output_mode="update")
    assert "must be deterministic: guess" in str(pipeline.guarantee())
    pipeline.check(job.df().withColumn("x", f.udf(guess, "string", useArrow=False)("name")))
    assert "must be deterministic" not in str(pipeline.guarantee())


def test_what_operator_state_depends_on_is_named(job: Job) -> None:
    pipeline = job.pipeline()
    pipeline.check(job.df().groupBy("id").agg(f.first("name"), f.collect_list("name")), output_mode="update")
    assert "depend on the order of rows: first, collect_list" in str(pipeline.guarantee())
    pipeline.check(job.df().join(job.spark.range(3), "id").groupBy("id").count(), output_mode="update")
    assert "fed from tables that do not stream" in str(pipeline.guarantee())
    pipeline.check(job.df().groupBy("id").count(), output_mode="update")
    assert "condition" not in str(pipeline.guarantee()).partition("*")[2]


def test_complete_mode(job: Job) -> None:
    counts = job.df().groupBy("id").count()
    assert "'complete' hands over the whole result" in str(refused(job, job.pipeline(), counts, mode="complete"))
    with pytest.raises(Misconfigured, match="'complete' hands over the whole result"):
        job.pipeline().check(counts, output_mode="complete")


@pytest.mark.remedy(
    "the query has no checkpointLocation: Spark made a temporary one, which no restart will find",
    'give the query .option("checkpointLocation", "/a/durable/folder")',
)
def test_no_checkpoint_location(job: Job) -> None:
    pipeline = job.pipeline()
    query = job.df().writeStream.foreachBatch(pipeline).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="has no checkpointLocation"):
        query.awaitTermination(60)
    assert isinstance(pipeline.last_error, Misconfigured)
    job.run(job.pipeline())


def test_a_table_that_is_not_there(job: Job) -> None:
    pipeline = Pipeline(app=APP, sinks=[MemorySink("other", job.server)], retry=FAST)
    assert "no table for app" in str(refused(job, pipeline))
    with pytest.raises(Misconfigured, match=r"Help: call pipeline.create\(\) once"):
        pipeline.check(job.df())


def test_columns_that_no_copy_can_hold(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1)
    twice = job.df().select("id", f.col("name").alias("ID"))
    with pytest.raises(Misconfigured, match="two columns are named 'id' and 'ID'"):
        job.pipeline().check(twice)
    assert "two columns are named" in str(refused(job, job.pipeline(), twice))


TWINS = {
    "named_struct('a', 1, 'a', 2)": "'s.a' and 's.a'",
    "array(named_struct('a', 1, 'A', 2))": "'s.element.a' and 's.element.A'",
    "map('k', named_struct('x', named_struct('b', 'b', 'B', 'c')))": "'s.value.x.b' and 's.value.x.B'",
}


@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
@pytest.mark.parametrize(("made", "named"), TWINS.items(), ids=["struct", "array", "map"])
def test_two_fields_of_one_name_in_a_struct(job: Job, made: str, named: str, mode: str) -> None:
    """P9: of the two a reader of JSON gets the last, and Spark itself can read neither."""
    twice = job.df().select("id", f.expr(made).alias("s"))
    with pytest.raises(Misconfigured, match=f"two fields are named {named}") as error:
        job.pipeline(mode=mode).check(twice)
    assert "a field where its struct is made" in error.value.help
    assert named in str(refused(job, job.pipeline(mode=mode), twice))


@pytest.mark.parametrize("made", ["parse_json(name)", "array(named_struct('v', parse_json(name)))"])
@pytest.mark.remedy(
    "column … has the type …, which has no digest",
    'make text of the column in the query (to_json), or leave mode="idempotent" out',
)
def test_a_type_without_a_digest_in_idempotent_mode(job: Job, made: str) -> None:
    """D3: Spark hashes no VARIANT; what the help says works."""
    variant = job.df().select("id", f.expr(made).alias("v"))
    job.pipeline().check(variant)
    with pytest.raises(Misconfigured, match="has the type variant, which has no digest") as error:
        job.pipeline(mode="idempotent").check(variant)
    assert "to_json" in error.value.help
    job.pipeline(mode="idempotent").check(variant.select("id", f.to_json("v").alias("v")))


@pytest.mark.remedy(
    "the DataFrame is not streaming",
    "read it with spark.readStream, and write it with writeStream.foreachBatch(pipeline)",
)
def test_a_dataframe_that_does_not_stream(job: Job) -> None:
    with pytest.raises(Misconfigured, match="is not streaming"):
        job.pipeline().check(job.spark.range(1))
    job.pipeline().check(job.df())
    job.run(job.pipeline())
    assert job.ids() == [1, 2]


def test_called_outside_a_micro_batch(job: Job) -> None:
    with pytest.raises(Misconfigured, match="called outside a micro-batch"):
        job.pipeline()(job.spark.range(1), 0)


def test_the_stream_itself_instead_of_the_batch(job: Job) -> None:
    pipeline, stream = job.pipeline(), job.df()
    assert "df.isStreaming=True" in str(refused_call(job, pipeline, lambda _, epoch: pipeline(stream, epoch)))


@pytest.mark.remedy(
    "the pipeline was called with epoch … inside batch …",
    "pass on the epoch that Spark passed to your function: `pipeline(df, epoch)`",
)
def test_an_epoch_number_of_ones_own(job: Job) -> None:
    pipeline = job.pipeline()
    error = refused_call(job, pipeline, lambda df, epoch: pipeline(df, epoch + 7))
    assert "called with epoch 7 inside batch 0" in str(error)
    again = job.pipeline()
    job.run(lambda df, epoch: again(df, epoch))
    assert job.ids() == [1, 2]


@pytest.mark.remedy(
    "the pipeline was called outside a micro-batch",
    "in a thread of your own wrap the target in pyspark.inheritable_thread_target(df.sparkSession)",
)
@pytest.mark.remedy(
    "the pipeline was called a second time in one batch",
    "union what belongs to one epoch and call `pipeline(df, epoch)` once per batch",
)
def test_a_thread_of_ones_own_and_a_batch_in_parts(job: Job) -> None:
    pipeline, errors = job.pipeline(), list[EpochalError]()

    def write(df: DataFrame, epoch: int) -> None:
        try:
            pipeline(df, epoch)
        except EpochalError as error:
            errors.append(error)

    def in_a_thread(df: DataFrame, epoch: int) -> None:
        wrapped = inheritable_thread_target(df.sparkSession)(write)
        for target in (write, wrapped):
            thread = threading.Thread(target=target, args=(df, epoch))
            thread.start()
            thread.join(120)

    job.run(in_a_thread)
    assert [error.what for error in errors] == ["the pipeline was called outside a micro-batch"]
    assert job.ids() == [1, 2]
    job.add(3, 4)

    def in_parts(df: DataFrame, epoch: int) -> None:
        for part in (0, 1):
            pipeline(df.where(f"id % 2 = {part}"), epoch)

    with pytest.raises(StreamingQueryException, match="called a second time in one batch"):
        job.run(in_parts)
    job.add(5, 6)
    again = job.pipeline()
    job.run(lambda df, epoch: again(df.where("id % 2 = 0").union(df.where("id % 2 = 1")), epoch))
    assert job.ids()[-2:] == [5, 6]


def refused_call(job: Job, pipeline: Pipeline, function: BatchFunction) -> EpochalError:
    with pytest.raises(StreamingQueryException):
        job.run(function)
    assert isinstance(pipeline.last_error, Misconfigured)
    assert job.server.table(APP, "one").fence is None
    return pipeline.last_error


@pytest.mark.parametrize(
    ("option", "trigger", "error", "says"),
    [
        ("asyncProgressTrackingEnabled", {"processingTime": "1 second"}, IllegalArgumentException, "async progress"),
        (None, {"continuous": "1 second"}, AnalysisException, "not supported with continuous trigger"),
        (None, {"realTime": "5 minutes"}, IllegalArgumentException, "not in the sink allowlist for Real-Time"),
    ],
)
def test_spark_itself_refuses(
    spark: SparkSession, tmp_path: Path, option: str | None, trigger: Any, error: type[Exception], says: str
) -> None:
    """None of these reaches the pipeline with this Spark; should one ever, it must be refused there."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    called: list[int] = []
    writer = source.writeStream.foreachBatch(lambda _, epoch: called.append(epoch)).trigger(**trigger)
    writer = writer.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    if option is not None:
        writer = writer.option(option, "true")
    with pytest.raises(error, match=says):
        writer.start().awaitTermination(30)
    assert called == []


@pytest.mark.remedy(
    "the trigger … has no micro-batches to make epochs of",
    "use trigger(processingTime=...) or trigger(availableNow=True)",
)
def test_a_trigger_without_micro_batches_is_refused_by_us_too() -> None:
    from types import SimpleNamespace

    from epochal.coordinator.query.spark import StreamingQuery, check_query

    for trigger in ("ContinuousTrigger(1000)", "RealTimeTrigger(300000)"):
        query: Any = SimpleNamespace(checkpoint="file:/c", output_mode="append", trigger=trigger)
        with pytest.raises(Misconfigured, match="has no micro-batches"):
            check_query(query, [])
    assert hasattr(StreamingQuery, "trigger")
    for trigger in ("ProcessingTimeTrigger(1000)", "AvailableNowTrigger"):
        query = SimpleNamespace(checkpoint="file:/c", output_mode="append", trigger=trigger)
        check_query(query, [])


def test_check_writes_nothing(job: Job) -> None:
    job.pipeline().check(job.df(), checkpoint=str(job.checkpoint))
    assert not job.checkpoint.exists()
    assert job.server.table(APP, "one").fence is None


def test_check_holds_log_against_sinks(job: Job, tmp_path: Path) -> None:
    job.run(job.pipeline())
    before = sorted((tmp_path / "checkpoint").rglob("*"))
    fence = job.server.table(APP, "one").fence
    job.pipeline().check(job.df(), checkpoint=str(job.checkpoint))
    job.forget_last_commit()
    job.pipeline().check(job.df(), checkpoint=str(job.checkpoint))
    with pytest.raises(CheckpointMismatch, match="empty epoch log"):
        job.pipeline().check(job.df(), checkpoint=str(tmp_path / "another"))
    offsets = job.checkpoint / "offsets" / "0"
    offsets.write_text(offsets.read_text() + "\n")
    with pytest.raises(CheckpointMismatch, match="was decided for offsets"):
        job.pipeline().check(job.df(), checkpoint=str(job.checkpoint))
    assert not (tmp_path / "another").exists()
    assert sorted((tmp_path / "checkpoint").rglob("*")) == [p for p in before if "commits" not in p.parts or p.is_dir()]
    assert job.server.table(APP, "one").fence == fence


@pytest.mark.remedy(
    "Spark runs epoch … and its offsets file does not exist",
    "restore the checkpoint, and let nothing delete files in it while the query runs",
)
@pytest.mark.remedy(
    "Spark's offsets file is not as this Spark writes it",
    "restore the checkpoint: a damaged file no longer says what the epoch has to read",
)
@pytest.mark.remedy(
    "a file of Spark's checkpoint cannot be made durable: …",
    "restore the checkpoint, and let nothing delete files in it while the query runs",
)
def test_a_missing_or_strange_offsets_file(spark: SparkSession, tmp_path: Path) -> None:
    from epochal.coordinator.model.epoch import Query
    from epochal.coordinator.query.spark import read_ask

    query = Query(APP, "id", "run", f"file:{tmp_path}")
    with pytest.raises(CheckpointMismatch, match="its offsets file does not exist"):
        read_ask(query, 3, lambda: spark)
    (tmp_path / "offsets").mkdir()
    for text in ("", "v1\n", "v1\n{}\n{}", "v1\nnot json\n{}"):
        (tmp_path / "offsets" / "3").write_text(text)
        with pytest.raises(CheckpointMismatch, match="not as this Spark writes it"):
            read_ask(query, 3, lambda: spark)
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchWatermarkMs":5}\n{}')
    with pytest.raises(CheckpointMismatch, match=r"cannot be made durable.*metadata"):
        read_ask(query, 3, lambda: spark)
    (tmp_path / "metadata").write_text('{"id":"id"}')
    ask = read_ask(query, 3, lambda: spark)
    assert (ask.watermark, ask.offsets.splitlines()[0]) == (5, "v1")


def test_a_spark_that_is_not_in_the_table(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "SPARK", replace(versions.SPARK, tested=("9.0",), expected=("9.0", "9.1")))
    with pytest.raises(Misconfigured, match=r"outside what Epochal supports: 9\.0 to below 9\.1"):
        job.pipeline().check(job.df())
    assert "outside what Epochal supports" in refused(job, job.pipeline()).what
