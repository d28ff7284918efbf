"""How a query is called and started wrongly, or is ended: each help is followed, and the query goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkImportError, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from epochal import Pipeline
from epochal.checkpoints.files import FilesLog
from epochal.coordinator.console import standing
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import Interrupted, Misconfigured
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.coordinator.query import lint, operate
from epochal.coordinator.query.checkpoint import query_id_at
from epochal.coordinator.query.plan import analyzed
from epochal.sinks import DeltaSink
from epochal.sinks.memory import MemorySink
from epochal.sinks.spark.threads import Threads
from tests.real.coordinator.query.support import APP, Job
from tests.real.sinks.delta import support

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.wide


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    made = Job(spark, tmp_path, sinks=("one", "two"))
    made.add(1, 2)
    return made


# --- what is called ------------------------------------------------------------------------------


@pytest.mark.remedy(
    "the pipeline was called with …, not a DataFrame",
    "use it as `df.writeStream.foreachBatch(pipeline)`, or call it in your own foreachBatch function",
)
@pytest.mark.parametrize("own", [True, False])
def test_what_is_no_dataframe(job: Job, own: bool) -> None:
    pipeline = job.pipeline()
    with pytest.raises(Misconfigured, match="called with list, not a DataFrame"):
        pipeline([1, 2], 0)  # type: ignore[arg-type]
    again = job.pipeline()
    job.run((lambda df, epoch: again(df, epoch)) if own else again)
    assert job.ids("one") == job.ids("two") == [1, 2]


@pytest.fixture
def connected() -> Iterator[Any]:
    """A DataFrame of Spark Connect, made without a server.  If grpcio is missing, a stand-in without a JVM."""
    try:
        from pyspark.sql.connect.session import SparkSession
    except PySparkImportError:
        session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
        yield object.__new__(type("DataFrame", (DataFrame,), {"sparkSession": session}))
        return
    made = SparkSession("sc://127.0.0.1:1")
    made.client.set_retry_policies([])
    yield made.range(1)
    made.client.close()


@pytest.mark.remedy(
    "under Spark Connect the batch function has no access to Spark's JVM: the checkpoint location, the offsets and the"
    " plan of a query are not available there",
    "run the query in a classic session (no spark.remote, no SPARK_REMOTE, spark.api.mode=classic)",
)
def test_a_session_without_a_jvm(job: Job, connected: Any) -> None:
    pipeline = job.pipeline()
    with pytest.raises(Misconfigured, match="no access to Spark's JVM"):
        pipeline.check(connected)
    assert job.spark.conf.get("spark.remote", None) is None
    assert job.spark.conf.get("spark.api.mode", "classic") == "classic"
    pipeline.check(job.df())
    job.run(pipeline)
    assert job.ids("one") == job.ids("two") == [1, 2]


@pytest.mark.remedy(
    "…, so idempotent mode cannot give every sink the same rows, nor the same again on replay",
    'or leave mode="idempotent" out: an epoch is then evaluated once',
)
def test_a_plan_that_does_not_repeat_itself(job: Job) -> None:
    rows = job.df().select("id", f.rand().alias("x"))
    with pytest.raises(Misconfigured, match="idempotent mode cannot give every sink the same rows"):
        lint.check(analyzed(rows))
    with pytest.raises(Misconfigured, match="idempotent mode cannot give every sink the same rows"):
        job.pipeline(mode="idempotent").check(rows)
    job.pipeline().check(rows)
    job.run(job.pipeline(), rows)
    assert job.shown("one") == job.shown("two")
    assert job.ids() == [1, 2]


@pytest.mark.remedy(
    "these sinks need a durable copy, and there is no stage", "run them in an epochal.Pipeline, which has one"
)
def test_sinks_without_a_stage(job: Job) -> None:
    query, log = Query(APP, "q1", "run", f"file:{job.checkpoint}"), FilesLog(str(job.folder / "log"))
    with pytest.raises(Misconfigured, match="there is no stage"):
        Coordinator(query=query, sinks=[MemorySink(name, job.server) for name in job.sinks], log=log)
    job.run(job.pipeline())
    assert job.ids("one") == job.ids("two") == [1, 2]


# --- where no session runs -----------------------------------------------------------------------


@pytest.mark.remedy("no Spark session runs in this process", "ask from a process with a SparkSession")
def test_a_checkpoint_that_spark_alone_can_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this session's settings name its file system."""
    job.run(job.pipeline())
    hadoop: Any = job.spark.sparkContext._jsc
    hadoop.hadoopConfiguration().set("fs.viewfs.mounttable.elsewhere.link./checkpoint", f"file:{job.checkpoint}")
    there, here = "viewfs://elsewhere/checkpoint", f"file:{job.checkpoint}"
    with monkeypatch.context() as patch:
        patch.setattr(standing, "running_session", lambda: None)
        with pytest.raises(Misconfigured, match="no Spark session runs in this process"):
            query_id_at(there, standing.spark)
    assert query_id_at(there, standing.spark) == query_id_at(here, standing.spark) != ""


@pytest.mark.remedy(
    "this needs Spark, and no session runs in this process",
    "make a session first, configured like the query's (Delta's extension and catalog, file systems)",
)
def test_a_command_about_a_delta_table(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(app=APP, sinks=[DeltaSink(str(job.folder / "t"), name="lake")])
    pipeline.create(job.df().schema)
    job.run(pipeline)
    with monkeypatch.context() as patch:
        patch.setattr(operate, "running_session", lambda: None)
        with pytest.raises(Misconfigured, match="this needs Spark, and no session runs"):
            operate.accept(pipeline, str(job.checkpoint), "lake", why="as it is")
    operate.accept(pipeline, str(job.checkpoint), "lake", why="as it is")
    job.add(3)
    job.run(pipeline)
    assert support.column(job.folder / "t", "id") == [1, 2, 3]


# --- an epoch that is interrupted ----------------------------------------------------------------


@pytest.mark.remedy("…(…) was raised inside the batch function", "restart the query: it settles what was under way")
@pytest.mark.parametrize("point", [Point.AFTER_DECIDE, Point.BEFORE_DECIDE])
def test_an_exit_inside_the_batch_function(job: Job, point: Point) -> None:
    def leave(at: Point, sink: str, epoch: int) -> None:  # noqa: ARG001
        if at is point:
            raise SystemExit("enough")

    pipeline = job.pipeline()
    with failpoints.handler(leave), pytest.raises(StreamingQueryException, match="raised inside the batch function"):
        job.run(pipeline)
    assert isinstance(pipeline.last_error, Interrupted)
    assert job.decided() == ([0] if point is Point.AFTER_DECIDE else [])
    job.run(job.pipeline())
    assert job.ids("one") == job.ids("two") == [1, 2]


@pytest.mark.remedy("a thread ended without an answer", "restart the query: it settles what was under way")
def test_threads_that_give_no_answer(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the decision on, each thread ends before it has done anything."""

    def idle(*_: object) -> threading.Thread:
        return threading.Thread(target=lambda: None)

    def strike(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.AFTER_DECIDE:
            patch.setattr(Threads, "_thread", idle)

    pipeline = job.pipeline()
    with (
        monkeypatch.context() as patch,
        failpoints.handler(strike),
        pytest.raises(StreamingQueryException, match="a thread ended without an answer"),
    ):
        job.run(pipeline)
    assert job.decided() == [0]
    assert job.ids("one") == job.ids("two") == []
    job.run(job.pipeline())
    assert job.ids("one") == job.ids("two") == [1, 2]
