"""The driver program that is struck: one query from the kit's source into the target.

    python -m epochal.chaos.job.program settings.json

It starts a Spark session and waits for orders (:mod:`epochal.chaos.strike.standby`).  Each ordered start runs until all
present input is processed, and writes ``end.json``, which says how it ended if it could still write.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from epochal.chaos.job import jvm, targets, workloads
from epochal.chaos.servers.spark import spark_session
from epochal.chaos.strike import standby
from epochal.chaos.strike.nemesis import end_with_parent
from epochal.chaos.strike.replay import epochs
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import EpochalError
from epochal.coordinator.model.failpoints import Point

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

END = "end.json"
STATE = "state.json"
SPARKS_OWN = {
    "CONCURRENT_STREAM_LOG_UPDATE": "ConcurrentUpdate",
    "Concurrent update to the log": "ConcurrentUpdate",
    "No space left on device": "DiskFull",
    "Read-only file system": "ReadOnlyDisk",
}
"""Texts in Spark's own errors about its checkpoint, which come from outside the batch function -> our outcome."""


@dataclass(frozen=True)
class Settings:
    """Everything that a start needs to know, written as JSON for the program."""

    target: str
    workload: str
    base: int  # the ids of this run begin here
    source: str  # folder of the kit's files
    checkpoint: str
    create: bool = False  # create the tables and topics of the target's sinks
    rows: str = ""  # a function of the user's between the kit's rows and the target
    master: str = "local[2,4]"  # a task may be tried four times, as on a cluster
    restarts: int = 0  # how often the query is started again in this process when it fails
    state: bool = False  # compare the operator state with that of a run without failure
    conf: Mapping[str, str] = field(default_factory=dict)
    repeats: bool = False  # every evaluation must give the same rows, so they get no attempt

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Settings:
        return cls(**json.loads(path.read_text()))


def session(settings: Settings) -> SparkSession:
    """Return a Spark session with what our sinks and the usual writers need."""
    return spark_session(
        settings.master,
        app="chaos",
        conf={
            **(jvm.with_other_jars() if "spark.jars" in settings.conf else jvm.short_lived()),
            "spark.executor.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
            # One file must be one epoch.  With a watermark Spark would also run epochs without input.
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            **settings.conf,
        },
    )


# --- the source -------------------------------------------------------------------------------------


def stream(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the kit's rows through the workload's query.  Each row has the attempt of its evaluation."""
    from pyspark.sql import functions as f

    another = f.udf(lambda _: uuid.uuid4().hex, "string", useArrow=False).asNondeterministic()("id")
    reader = spark.readStream.schema(workloads.SCHEMA).option("maxFilesPerTrigger", 1)
    fed = _held(reader.json(settings.source).repartition(2))
    work = workloads.make_workload(settings.workload, settings.base)
    attempt = f.lit(None).cast("string") if settings.repeats else another
    rows = work.query(fed).withColumn("attempt", attempt)
    if (between := targets.source(settings.rows)) is not None:
        rows = between(spark, rows)
    return rows


def _held(rows: DataFrame) -> DataFrame:
    """The same rows.  If a strike at a row is planned, they pass through Python workers, which can be held."""
    if not failpoints.is_armed(Point.AT_ROW):
        return rows

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for epoch in batch.column("epoch").to_pylist():
                failpoints.hit(Point.AT_ROW, "", epoch)
            yield batch

    return rows.mapInArrow(through, rows.schema)


# --- the points around a function that has none ---------------------------------------------------------


class Points:
    """Hits the points around a batch function, and after each Spark job that it started."""

    def __init__(self, spark: SparkSession, function: targets.BatchFunction) -> None:
        self._function = function
        self._jobs = jobs_of(spark) if failpoints.is_armed(Point.AFTER_JOB) else None

    def __call__(self, df: DataFrame, epoch: int) -> None:
        failpoints.hit(Point.BEFORE_CALL, "", epoch)
        with self._jobs.of(epoch) if self._jobs is not None else contextlib.nullcontext():
            self._function(df, epoch)
        failpoints.hit(Point.AFTER_RETURN, "", epoch)


class Jobs:
    """Hits AFTER_JOB once for every Spark job of a call of the batch function.

    Two threads look for ended jobs, and the first one that sees a job hits the point.  Spark's listener bus also
    reports a job that ends in the middle of one long call into the JVM, but it reports late.  Therefore the function's
    thread asks the scheduler before each call into the JVM returns.  So the function never gets further than the call
    whose job has ended.
    """

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._scheduler = context._jsc.sc().dagScheduler()
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._first = 0  # the first job of this call
        self._told: set[int] = set()
        self._thread = 0
        self._asking = False
        listen(spark, self._ended)
        self._wrap(context._gateway._gateway_client)

    @contextlib.contextmanager
    def of(self, epoch: int) -> Iterator[None]:
        """Hit the point for all jobs of ``epoch`` while the function runs in this context."""
        self._first, self._told, self._thread = self._submitted(), set(), threading.get_ident()
        self._epoch = epoch
        try:
            yield
        finally:
            self._epoch = None

    def _submitted(self) -> int:
        return int(self._scheduler.numTotalJobs())

    def _wrap(self, client: Any) -> None:
        """Look for ended jobs after every call into the JVM, as every call goes through ``send_command``."""
        send = client.send_command

        def send_and_look(*args: Any, **kwargs: Any) -> Any:
            answer = send(*args, **kwargs)
            if self._epoch is not None and threading.get_ident() == self._thread and not self._asking:
                self._asking = True
                try:
                    newest = self._submitted()
                finally:
                    self._asking = False
                for job in range(self._first, newest):
                    self._ended(job)
            return answer

        client.send_command = send_and_look

    def _ended(self, job: int) -> None:
        epoch = self._epoch
        with self._lock:
            if epoch is None or job < self._first or job in self._told:
                return
            self._told.add(job)
        failpoints.hit(Point.AFTER_JOB, "", epoch)


@functools.cache
def jobs_of(spark: SparkSession) -> Jobs:
    """Return the one Jobs object for all starts in a session.  It is active only while a function runs."""
    return Jobs(spark)


def listen(spark: SparkSession, job_ended: Callable[[int], None]) -> None:
    """Let Spark's listener bus call ``job_ended`` with the number of each job that ends."""
    from pyspark.java_gateway import ensure_callback_server_started

    class Listener:
        def onJobEnd(self, end: Any) -> None:  # noqa: N802
            job_ended(int(end.jobId()))

        def __getattr__(self, name: str) -> Callable[..., None]:
            if not name.startswith("on"):
                raise AttributeError(name)
            return lambda *_: None

        class Java:
            implements = ("org.apache.spark.scheduler.SparkListenerInterface",)

    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    context._jsc.sc().addSparkListener(Listener())


# --- how it ended -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """How a start ended; the fields are those of the history's ``Ended``.  ``text`` is for people."""

    outcome: str
    named: bool = True
    definite: bool = True
    text: str = ""

    @property
    def finished(self) -> bool:
        return self.outcome == "finished"


def end_of(error: BaseException | None, target: targets.Target, before: BaseException | None = None) -> End:
    """Return how a query ended.  The errors of a user's function count as named ones.

    ``before`` is the error of an earlier start in the same process, which the pipeline may still have.
    """
    if error is None:
        return End("finished")
    text = str(error)
    own = target.pipeline.last_error if target.pipeline is not None else None
    if own is before:
        own = None
    if isinstance(own, EpochalError):
        return End(type(own).__name__, definite=own.definite, text=str(own))
    if own is None and (said := [name for words, name in SPARKS_OWN.items() if words in text]):
        return End(said[0], text=text)
    cause = own if own is not None else error
    injected = failpoints.FailpointError.__name__ in text
    return End(type(cause).__name__, named=injected or not target.ours, definite=False, text=text)


def run(spark: SparkSession, settings: Settings, folder: Path) -> End:
    """Run one start of the query, with its restarts."""
    target = targets.target(settings.target)
    before = target.pipeline.last_error if target.pipeline is not None else None
    function = Points(spark, target.function)
    error: Exception | None = None
    for _ in range(settings.restarts + 1):
        error = run_query(stream(spark, settings), target, function, settings)
        if error is None:
            break
        print(f"ended: {error}", flush=True)
        close_abandoned_files(spark)
    if error is None and settings.state:
        (folder / STATE).write_text(json.dumps(compare_state(spark, settings)))
    return end_of(error, target, before)


def close_abandoned_files(spark: SparkSession) -> None:
    """Ask the JVM to collect garbage, which closes the files that failed tasks left open.

    A disk with such files cannot be made read-only (:meth:`epochal.chaos.strike.disk.Disk.read_only`).
    """
    with contextlib.suppress(Py4JError, OSError):  # if the JVM is gone, its files are closed
        java: Any = spark._jvm
        java.System.gc()


def run_query(rows: DataFrame, target: targets.Target, function: Points, settings: Settings) -> Exception | None:
    """Run the query to the end of the input.  Return the error with which it ended, if any."""
    try:
        if settings.create and target.pipeline is not None:
            target.pipeline.create(rows.schema)
        start(rows, function, settings.checkpoint, settings.workload).awaitTermination()
    except Exception as error:
        return error
    return None


def start(rows: DataFrame, function: targets.BatchFunction, checkpoint: str, workload: str) -> Any:
    """Start the query for all present input; return it."""
    writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
    return writer.outputMode(workloads.output_mode(workload)).trigger(availableNow=True).start()


def evaluate(df: DataFrame, epoch: int) -> None:  # noqa: ARG001
    """Run the plan only for its state."""
    df.count()


def compare_state(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Return the operator state of this checkpoint, and that of the same query over the same files without failure."""
    reference = f"{settings.checkpoint}-reference"
    start(stream(spark, settings), evaluate, reference, settings.workload).awaitTermination()
    newest = epochs(Path(settings.checkpoint, "commits"))[-1]
    return {
        "epoch": newest,
        "state": entries(spark, settings.checkpoint, newest),
        "reference": entries(spark, reference, newest),
    }


def entries(spark: SparkSession, checkpoint: str, epoch: int) -> list[str]:
    """Return every entry of every state store of a checkpoint after ``epoch``, as text."""
    stores = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "stateStoreName").collect()
    found = []
    for operator, store in sorted((row[0], row[1]) for row in stores):
        reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", epoch)
        rows = reader.option("storeName", store).load(checkpoint)
        found += [f"{operator}/{store}: {row.asDict(recursive=True)}" for row in rows.collect()]
    return sorted(found)


def main() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the nemesis, which then ends this process
    first = Settings.read(Path(sys.argv[1]))
    spark = session(first)
    spark.range(1).count()
    targets.target(first.target)

    def one(settings: Mapping[str, Any], folder: Path) -> int:
        end = run(spark, Settings(**settings), folder)
        print(f"{end.outcome}: {end.text}" if end.text else end.outcome, flush=True)
        standby.write_whole(folder / END, json.dumps(asdict(end)))
        return 0 if end.finished else 1

    standby.serve(spark, one)


if __name__ == "__main__":
    main()
