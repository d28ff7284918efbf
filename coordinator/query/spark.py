"""What Spark knows about a micro-batch, read from inside foreachBatch.

Inside foreachBatch the DataFrame shows only a ``LogicalRDD`` and a clone of the session.  So query, checkpoint and plan
come from the JVM's list of active queries.  Offsets come from Spark's own ``offsets/N`` file, which is on disk before
we are called.  ``plan.py`` and ``lint.py`` read what a plan says.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from epochal.coordinator.environment import versions
from epochal.coordinator.model.epoch import EpochNumber, EpochRequest, Query
from epochal.coordinator.model.errors import CheckpointMismatch, EpochalError, Interrupted, Misconfigured
from epochal.sinks.protocol import ReplacingSink, Sink
from epochal.sinks.questions import Question
from epochal.sinks.spark import internals
from epochal.sinks.spark.executors import causes
from epochal.sinks.spark.names import free
from epochal.sinks.spark.stage import files_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TEMPORARY = re.compile(r"temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_EPOCHS = re.compile(r"Continuous|RealTime")

_STOPPED = re.compile(
    r"\b(Interrupted|ClosedByInterrupt|InterruptedIO)Exception\b"
    r"|Job \d+ cancelled|cancelled part of cancelled job group"
)
"""What Spark and Java say in a thread that was interrupted, and of a job that was cancelled."""

_ROWS = "__epochal_rows"
_DROP_IN = "use it as `df.writeStream.foreachBatch(pipeline)`, or call it in your own foreachBatch function"


# --- the query --------------------------------------------------------------------------------------


class StreamingQuery:
    """The query that is calling us, seen from inside foreachBatch."""

    def __init__(self, df: DataFrame) -> None:
        check_session(df)
        self.spark = df.sparkSession
        context = self.spark.sparkContext
        self.query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        self._batch = context.getLocalProperty("streaming.sql.batchId") or ""
        if df.isStreaming or not (self.query_id and self._batch) or self._query is None:
            raise Misconfigured(
                "the pipeline was called outside a micro-batch",
                state=f"df.isStreaming={df.isStreaming}, query id {self.query_id!r}, batch {self._batch!r}",
                help=f"{_DROP_IN}; in a thread of your own wrap the target in"
                " pyspark.inheritable_thread_target(df.sparkSession)",
            )

    @cached_property
    def run_id(self) -> str:
        """The run id, from the query itself: the job group starts as the run id, but the user may change it."""
        return str(self._query.runId().toString())

    @cached_property
    def _query(self) -> Any:
        jvm: Any = self.spark._jvm
        active = self.spark._jsparkSession.sharedState().activeStreamingQueries()
        return active.get(getattr(jvm, "java.util.UUID").fromString(self.query_id))

    @cached_property
    def checkpoint(self) -> str:
        """The resolved checkpoint location, as Hadoop writes the path."""
        return str(self._query.resolvedCheckpointRoot()).rstrip("/")

    @property
    def output_mode(self) -> str:
        return str(self._query.outputMode().toString()).lower()

    @property
    def trigger(self) -> str:
        return str(self._query.trigger().toString())

    def plan(self) -> Any:
        """Return the logical plan of the whole query, a JVM object."""
        return self._query.logicalPlan()

    def analyzed_plan(self) -> Any:
        """Return the plan as the user wrote it, a JVM object: its sources have the options that they were given."""
        return self._query.analyzedPlan()

    def explain(self, error: Exception) -> Exception:
        """Return ``Interrupted`` for an error that ``query.stop()`` has caused; return any other error as it is.

        Spark then interrupts the query's thread and cancels its jobs, and whatever waits for them fails.
        """
        if isinstance(error, Interrupted) or not _STOPPED.search(_with_causes(error)) or self._query.isActive():
            return error
        said = [error.what, error.state] if isinstance(error, EpochalError) else [str(error).partition("\n")[0]]
        return Interrupted(
            "the query was stopped while an epoch was in progress",
            epoch=int(self._batch),
            state=f"{type(error).__name__}: {'; '.join(filter(None, said))}",
            help="nothing, if it shall not run; else start it again: it finishes or drops what was in progress",
        )

    def identity(self, app: str) -> Query:
        return Query(app, self.query_id, self.run_id, self.checkpoint)

    def check_epoch(self, epoch: EpochNumber) -> None:
        """Refuse another epoch number than Spark's: the user's own function must pass on the number that it got."""
        if int(self._batch) != epoch:
            raise Misconfigured(
                f"the pipeline was called with epoch {epoch!r} inside batch {self._batch}",
                epoch=int(self._batch),
                state="nothing of the batch was written",
                help="pass on the epoch that Spark passed to your function: `pipeline(df, epoch)`",
            )

    def run_plan(self) -> None:
        """Evaluate the whole plan of the micro-batch and discard the rows, whatever the user's function did with them.

        Spark made the DataFrame of foreachBatch from this very RDD; running it feeds state and watermark.
        """
        self._query.lastExecution().toRdd().count()


def _with_causes(error: BaseException | None) -> str:
    """Return the texts of an error and of its causes."""
    return "\n".join(map(str, causes(error, contexts=True)))


def resolve(checkpoint: str, spark: SparkSession) -> str:
    """Return the checkpoint location as a started query will name it."""
    jvm: Any = spark._jvm
    path = getattr(jvm, "org.apache.hadoop.fs.Path")(checkpoint)
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return str(path.getFileSystem(conf).makeQualified(path).toString()).rstrip("/")


def check_session(df: DataFrame) -> None:
    """Raise ``Misconfigured`` unless this is a DataFrame of a session with a JVM, which the batch function needs."""
    from pyspark.sql import DataFrame as AnyDataFrame

    if not isinstance(df, AnyDataFrame):
        raise Misconfigured(f"the pipeline was called with {type(df).__name__}, not a DataFrame", help=_DROP_IN)
    if not hasattr(df.sparkSession, "_jsparkSession"):
        raise needs_jvm(f"session {type(df.sparkSession).__module__}")


def classic_session(df: object) -> SparkSession | None:
    """Return the session of a DataFrame if it has a JVM; else None: :func:`check_session` says why."""
    session = getattr(df, "sparkSession", None)
    return session if hasattr(session, "_jsparkSession") else None


def needs_jvm(state: str) -> Misconfigured:
    """Make the error for Spark Connect, which runs the batch function on the server in a Python without a JVM."""
    return Misconfigured(
        "under Spark Connect the batch function has no access to Spark's JVM: the checkpoint location, the"
        " offsets and the plan of a query are not available there",
        state=state,
        help="run the query in a classic session (no spark.remote, no SPARK_REMOTE, spark.api.mode=classic)",
    )


def check_runtime(spark: SparkSession) -> None:
    """Check the versions that the query runs on, and that Spark has the internal methods that are called.

    This asks the JVM, so it is done per start and not per epoch.
    """
    check_versions(spark.version, java_version(spark), platform.python_version())
    internals.self_test(spark)


def java_version(spark: SparkSession) -> str:
    jvm: Any = spark._jvm
    return str(getattr(jvm, "java.lang.System").getProperty("java.version"))


def check_versions(spark: str, java: str, python: str) -> None:
    """Refuse versions of Spark, Java and Python that are not supported."""
    its_java, its_python = (versions.on_spark(part, spark) for part in (versions.JAVA, versions.PYTHON))
    for question in questions_of_versions({versions.SPARK: spark, its_java: java, its_python: python}):
        question.ask()


def questions_of_versions(found: Mapping[versions.Part, str]) -> Iterator[Question]:
    """Ask whether these versions are supported."""
    for part, version in found.items():
        yield Question(part.name, partial(versions.check, part, version))


def check_query(query: StreamingQuery, sinks: Sequence[Sink]) -> None:
    """Refuse what can be seen only after the query has started: its checkpoint, output mode and trigger."""
    check_checkpoint(query.checkpoint)
    check_output_mode(query.output_mode, sinks)
    if _NO_EPOCHS.search(query.trigger):
        raise Misconfigured(
            f"the trigger {query.trigger} has no micro-batches to make epochs of",
            state=f"checkpoint {query.checkpoint}",
            help="use trigger(processingTime=...) or trigger(availableNow=True)",
        )


def check_checkpoint(checkpoint: str) -> None:
    """Refuse a temporary checkpoint: Spark deletes it, so a restart could not know where to go on."""
    if _TEMPORARY.fullmatch(checkpoint.rstrip("/").rpartition("/")[2]):
        raise Misconfigured(
            "the query has no checkpointLocation: Spark made a temporary one, which no restart will find",
            state=f"checkpoint {checkpoint}",
            help='give the query .option("checkpointLocation", "/a/durable/folder")',
        )


def check_output_mode(mode: str, sinks: Sequence[Sink]) -> None:
    """Refuse ``complete`` unless every sink replaces what it shows: each epoch then has the whole result again."""
    if mode.lower() in ("append", "update"):
        return
    if mode.lower() != "complete":
        raise Misconfigured(
            f"output mode {mode!r} is none of Spark's", help='use outputMode("append"), "update" or "complete"'
        )
    adding = [sink.name for sink in sinks if not isinstance(sink, ReplacingSink)]
    if adding:
        raise Misconfigured(
            f"output mode {mode!r} hands over the whole result in every epoch, and these sinks do not replace what"
            f" they show: {', '.join(adding)}",
            state=f"outputMode={mode}",
            help='use outputMode("append"), or "update" where a reader keeps the newest row per key; or'
            " DeltaSink(mode=Overwrite()), if every sink is of this kind",
        )


# --- the micro-batch --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SparkMicroBatch:
    """One call of foreachBatch.  Implements ``MicroBatch`` of ``sinks/protocol.py``."""

    ask: EpochRequest
    rows: DataFrame
    query: StreamingQuery

    def discard(self) -> None:
        self.query.run_plan()

    def confirm(self) -> None:
        """Read ``offsets/N`` again."""
        path = offsets_file(self.query.checkpoint, self.ask.epoch)
        found = files_at(self.query.checkpoint, lambda: self.query.spark).read(path)
        if found is None or fingerprint(found) != self.ask.fingerprint:
            raise CheckpointMismatch(
                f"the offsets of epoch {self.ask.epoch} were changed while the epoch was prepared",
                epoch=self.ask.epoch,
                state=f"{path} holds {found!r}, and it held {self.ask.offsets!r}; nothing of the epoch was decided",
                help="another driver runs on this checkpoint: stop all but one of them, and restart that one",
            )


def micro_batch(query: StreamingQuery, df: DataFrame, epoch: EpochNumber, app: str) -> SparkMicroBatch:
    """Return the rows of ``df`` together with what identifies them: Spark's own record of its offsets.

    Columns keep the name of a table, a view or an alias that they come from, and ``c.f`` is first the column ``f`` of a
    table ``c``, then the field ``f`` of a column ``c``.  A copy of the rows has no such name.  So all columns get one
    name in front, which is no column's name: ``c.f`` is a field wherever a sink or ``select=`` writes it.
    """
    rows = with_one_name(df)
    return SparkMicroBatch(read_ask(query.identity(app), epoch, lambda: query.spark), rows, query)


def with_one_name(df: DataFrame) -> DataFrame:
    """Return the same rows, whose columns come from one table, which has no column's name."""
    rows = df.alias(_ROWS)
    name = free(_ROWS, rows.columns)  # asked of these rows, which keep their schema for the sinks
    return rows if name == _ROWS else df.alias(name)


def read_ask(query: Query, epoch: EpochNumber, spark: Callable[[], SparkSession]) -> EpochRequest:
    """Read ``offsets/N`` and return what Spark asks for.  The fingerprint is the hash of that file.

    A kill leaves the file as it was.  On a local disk Spark does not sync the file.  Epochal does: otherwise a crash of
    the machine could lose the file and keep the decision.
    """
    path = offsets_file(query.checkpoint, epoch)
    files = files_at(query.checkpoint, spark)
    data = files.read(path)
    if data is None:
        raise _deleted(f"Spark runs epoch {epoch} and its offsets file does not exist", epoch, path)
    text = data.decode()
    ask = EpochRequest(query, epoch, fingerprint(data), text, _watermark(text, epoch, path))
    for file in (path, f"{query.checkpoint}/metadata"):
        try:
            files.sync_file(file)
        except OSError as error:
            raise _deleted(f"a file of Spark's checkpoint cannot be made durable: {error}", epoch, file) from error
    return ask


def offsets_file(checkpoint: str, epoch: EpochNumber) -> str:
    """Return the file in which Spark records which offsets the epoch reads, before it runs the epoch."""
    return f"{checkpoint}/offsets/{epoch}"


def fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _deleted(what: str, epoch: EpochNumber, file: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        what,
        epoch=epoch,
        state=f"looked for {file}",
        help="restore the checkpoint, and let nothing delete files in it while the query runs",
    )


def _watermark(text: str, epoch: EpochNumber, path: str) -> int | None:
    """Return the watermark in ``offsets/N``: the file has ``v1``, then one line of JSON, then one line per source."""
    try:
        metadata = json.loads(text.splitlines()[1])
        return int(metadata["batchWatermarkMs"])
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatch(
            "Spark's offsets file is not as this Spark writes it",
            epoch=epoch,
            state=f"{path} begins {text[:60]!r}",
            help="restore the checkpoint: a damaged file no longer says what the epoch has to read",
        ) from error
