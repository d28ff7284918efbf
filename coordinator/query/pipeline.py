"""``Pipeline``: what the user passes to ``foreachBatch``.

It makes the checks of a start, makes one coordinator per start, and passes each micro-batch to it.  The protocol itself
is in ``coordinator.py``.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.checkpoints.hadoop import of_session as hadoop_of
from epochal.checkpoints.log import EpochLog
from epochal.coordinator.model.arguments import are_texts, check_types
from epochal.coordinator.model.epoch import IDEMPOTENT, MODES, TWO_PHASE, EpochNumber, Phase, Query
from epochal.coordinator.model.errors import CalledTwice, Misconfigured
from epochal.coordinator.model.events import Consumer, EventPublisher
from epochal.coordinator.model.log_keys import extra
from epochal.coordinator.protocol.coordinator import COMPACT_EVERY, Coordinator, check_appliable
from epochal.coordinator.protocol.frames import Frames, frame_of
from epochal.coordinator.protocol.report import EpochReport, Status
from epochal.coordinator.protocol.retry import Retry
from epochal.coordinator.query import lint, promise
from epochal.coordinator.query import spark as inside
from epochal.coordinator.query.answers import Guarantee, PipelineStatus
from epochal.coordinator.query.asking import (
    LOG,
    OfQuery,
    neighbours,
    of_checkpoint,
    of_log,
    of_neighbours,
    of_new_neighbours,
    of_process,
    of_session,
    of_sink,
    unless_spark_is_needed,
)
from epochal.coordinator.query.checkpoint import ask_at, default_log, located, needing, reachable_log
from epochal.coordinator.query.diagnosis import Diagnosis
from epochal.coordinator.query.doctor import SECONDS, Part, diagnose, require_all
from epochal.coordinator.query.frames import FrameFunction, MakeFrames, Shapes
from epochal.coordinator.query.plan import analyzed, check_streaming
from epochal.coordinator.query.tasks import task_progress
from epochal.coordinator.telemetry.otel import telemetry
from epochal.coordinator.telemetry.progress import progress
from epochal.coordinator.telemetry.records import record
from epochal.coordinator.telemetry.watchdog import Watchdog
from epochal.sinks.conditions import check_name
from epochal.sinks.protocol import Sink
from epochal.sinks.questions import Question, require
from epochal.sinks.rows.rejects import Rejects, with_rejects
from epochal.sinks.spark.executors import running_session
from epochal.sinks.spark.stage import SparkStage
from epochal.sinks.spark.threads import Threads, as_exception

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger("epochal")


class _Returned:
    """The newest epoch that any pipeline of this process has finished, per app and query, with the start's run id.

    Without this, a second pipeline of the same app in one batch would look like a replay by Spark: the rows of its call
    would be taken for the rows that are visible, and be lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[tuple[str, str], tuple[str, EpochNumber]] = {}

    def add(self, app: str, run: _Run, epoch: EpochNumber) -> None:
        with self._lock:
            self._epochs[app, run.query_id] = run.run_id, epoch

    def has(self, app: str, run: _Run, epoch: EpochNumber) -> bool:
        with self._lock:
            return self._epochs.get((app, run.query_id)) == (run.run_id, epoch)


_RETURNED = _Returned()


@dataclass
class _Run:
    """One start of one query: its coordinator, and its sinks with their connections."""

    query_id: str
    run_id: str
    telling: EventPublisher
    coordinator: Coordinator | None = None
    sinks: Sequence[Sink] = ()
    epoch: EpochNumber | None = None  # the newest epoch that the pipeline was called for
    failed: Exception | None = None
    rejected: Counter[str] = field(default_factory=Counter)  # number of bad rows, by the sink that gets them

    def enter(self, epoch: EpochNumber) -> None:
        """Refuse a second call for one batch, and any call after a failure: its rows would be lost without notice."""
        if self.failed is not None:
            raise self.failed
        if epoch == self.epoch:
            raise _called_twice(epoch)
        self.epoch = epoch

    def close(self) -> None:
        for sink in self.sinks:
            try:
                sink.close()
            except Exception as error:  # a broken connection is closed already
                said = "sink %s did not close: %s", sink.name, type(error).__name__
                _log.debug(*said, extra=extra(sink=sink.name, run_id=self.run_id, error=type(error).__name__))


def _called_twice(epoch: EpochNumber) -> CalledTwice:
    return CalledTwice(
        "the pipeline was called a second time in one batch",
        epoch=epoch,
        state="the rows of the first call are committed, those of this call are not",
        help="union what belongs to one epoch and call `pipeline(df, epoch)` once per batch; a restart does not write"
        " the rows of the second call, because the epoch is decided",
    )


class Pipeline:
    """A ``foreachBatch`` function that writes every epoch exactly once to all its sinks.

    ``app``: the application's name.  A restart finds its markers by this name and the sinks' names: keep them stable.
    ``sinks``: one or several sinks, each with a unique name.
    ``mode``: ``"two-phase"``, or ``"idempotent"`` for a query that gives the same rows whenever an epoch is run.
    Idempotent mode makes no durable copy and no decision.  At start it refuses a query whose plan shows that a second
    run may give other rows; with several sinks, digests of the rows find the rest.  A pipeline may be started in the
    other mode at any time: an epoch in doubt is finished in the mode that began it.
    ``deterministic``: for idempotent mode, the names of your own functions that depend only on their arguments; these
    functions are not refused.
    ``frames``: a function that gets a micro-batch, already evaluated once, and returns DataFrames by their names.  A
    sink with ``frame=`` gets the DataFrame of that name, any other sink the micro-batch itself.
    ``log``: where decisions are kept; by default files under ``<checkpointLocation>/epochal/log``.
    ``retry``: an ``epochal.Retry``, which says how often and after which pauses a server is asked again.
    ``compact_every``: how many obsolete records the log may hold before it is compacted.
    ``on_event``: a function that is called with each event of ``epochal.events``, one at a time, also from the threads
    of the sinks.  If it raises, the error is logged and this start does not call it again.

    Errors are of class :class:`~epochal.coordinator.model.errors.EpochalError`.  Spark shows only their text, so the
    error object is kept in ``last_error``.
    """

    def __init__(
        self,
        *,
        app: str,
        sinks: Sequence[Sink],
        mode: str = TWO_PHASE,
        deterministic: Sequence[str] = (),
        frames: MakeFrames | None = None,
        log: EpochLog | None = None,
        retry: Retry | None = None,
        compact_every: int = COMPACT_EVERY,
        on_event: Consumer | None = None,
    ) -> None:
        check_types(Pipeline.__init__.__annotations__, {k: v for k, v in locals().items() if k != "self"})
        check_name("app", app)
        given = tuple(sinks)
        sinks = with_rejects(given)
        _check_sinks(sinks)
        _check_mode(mode, deterministic)
        if mode == IDEMPOTENT:
            check_appliable(sinks)
        if frames is not None and not callable(frames):
            raise Misconfigured(f"frames={frames!r} cannot be called", help="pass a function of one DataFrame")
        if frames is None and (framed := [sink for sink in sinks if frame_of(sink)]):
            raise Misconfigured(
                f"frame={frame_of(framed[0])!r}, and the pipeline makes no frames",
                sink=framed[0].name,
                help="pass frames=, a function that returns DataFrames by their names, or leave frame= out",
            )
        if compact_every < 1:
            raise Misconfigured(f"compact_every={compact_every}", help="pass a number of records, 1 or more")
        if retry is not None and not isinstance(retry, Retry):
            raise Misconfigured(f"retry={retry!r} is no Retry", help="pass an epochal.Retry, or leave it out")
        if log is not None and not callable(getattr(log, "read", None)):
            raise Misconfigured(
                f"log={log!r} is no epoch log",
                help="pass a PostgresLog, ObjectLog, FilesLog or HadoopLog, or leave it out",
            )
        if on_event is not None and not callable(on_event):
            raise Misconfigured(f"on_event={on_event!r} cannot be called", help="pass a function of one argument")
        self._app = app
        self._given = given
        self._sinks = sinks  # all sinks, also those for bad rows
        self._mode = mode
        self._deterministic = tuple(deterministic)
        self._frames = FrameFunction(frames, sinks) if frames is not None else None
        self._log = log
        self._retry = retry
        self._compact_every = compact_every
        self._on_event = on_event
        self._runs: dict[tuple[str, str], _Run] = {}
        self._newest: _Run | None = None
        self._asking = OfQuery(mode, sinks, deterministic)
        self._lock = threading.Lock()
        self.last_error: Exception | None = None

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Refuse to be pickled.  Only Spark Connect's ``foreachBatch`` pickles a pipeline, and it cannot work there."""
        self.last_error = inside.needs_jvm("a pipeline does not leave its process")
        raise self.last_error

    def __repr__(self) -> str:
        return f"Pipeline(app={self._app!r}, sinks={[sink.name for sink in self._sinks]})"

    @property
    def app(self) -> str:
        return self._app

    @property
    def mode(self) -> str:
        """The mode of the epochs that this pipeline begins."""
        return self._mode

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return self._sinks

    @property
    def log(self) -> EpochLog | None:
        """The log that was passed as ``log=``; None if the log is the one below the checkpoint."""
        return self._log

    # --- called by Spark ------------------------------------------------------------------------

    def __call__(self, df: DataFrame, epoch: EpochNumber) -> None:
        """Write one micro-batch as an epoch.  Return when every sink shows the epoch."""
        try:
            query = inside.StreamingQuery(df)
            run = self._run(query)
            try:
                self._epoch(run, query, df, epoch)
            except BaseException as error:
                run.failed = query.explain(as_exception(error))
                run.telling.failed(run.failed)
                run.close()
                if run.failed is error:
                    raise
                raise run.failed from error
        except Exception as error:
            self.last_error = error
            raise
        except BaseException as error:
            self.last_error = as_exception(error)
            raise self.last_error from error

    def _epoch(self, run: _Run, query: inside.StreamingQuery, df: DataFrame, epoch: EpochNumber) -> EpochReport:
        run.enter(epoch)
        if _RETURNED.has(self._app, run, epoch):
            raise _called_twice(epoch)
        query.check_epoch(epoch)
        if run.coordinator is None:
            self._start(run, query, df)
        assert run.coordinator is not None
        report = run.coordinator.run(inside.micro_batch(query, df, epoch, self._app))
        _RETURNED.add(self._app, run, epoch)
        run.rejected.update(self._rejected_in(report))
        return report

    def _rejected_in(self, report: EpochReport) -> Mapping[str, int]:
        names = [sink.name for sink in self._sinks if isinstance(sink, Rejects)]
        return {name: report.written.get(name, 0) for name in names} if not report.replayed else {}

    def _run(self, query: inside.StreamingQuery) -> _Run:
        """Return the state of this start.  Close the connections of earlier starts of the same query."""
        key = (query.query_id, query.run_id)
        with self._lock:
            if key not in self._runs:
                for old in [k for k in self._runs if k[0] == query.query_id]:
                    self._runs.pop(old).close()
                telling = EventPublisher(Query(self._app, *key, checkpoint=""), self.consumers())
                telling.add(Watchdog(partial(task_progress, query.spark, query.run_id), telling.stalled))
                self._runs[key] = _Run(*key, telling)
            self._newest = self._runs[key]
            return self._newest

    def _start(self, run: _Run, query: inside.StreamingQuery, df: DataFrame) -> None:
        """Make every check that does not need the epoch log, then make the coordinator of this start."""
        inside.check_runtime(query.spark)
        inside.check_query(query, self._sinks)
        require(self._asking.of_plan(query.plan, query.analyzed_plan, query.spark), self._warn)
        if self._mode == IDEMPOTENT:
            lint.check(analyzed(df), deterministic=self._deterministic, batch=True)
        run.sinks = self.new_sinks()
        identity = query.identity(self._app)
        require(self._asking.of_rows(df.schema, df.sparkSession), self._warn)
        shapes = Shapes(df.schema, self._frames, query.spark)
        require(shapes.questions(), self._warn)
        for sink in run.sinks:
            sink.check(identity, shapes.of(sink))
        require(of_neighbours(run.sinks, shapes), self._warn)
        run.coordinator = self.coordinator(
            identity, run.sinks, lambda: query.spark, run.telling, query.explain, frames=shapes.frames
        )

    def consumers(self) -> list[Consumer]:
        """Return the consumers of a start's events; the user's own function is the last."""
        return [record, *(told for told in (telemetry(), progress(), self._on_event) if told is not None)]

    def coordinator(
        self,
        query: Query,
        sinks: Sequence[Sink],
        spark: Callable[[], SparkSession | None],
        telling: EventPublisher | None = None,
        explain: Callable[[Exception], Exception] = lambda error: error,
        *,
        frames: Frames | None = None,
    ) -> Coordinator:
        """Make the coordinator of one start, for a query or for an operator action.

        ``spark`` returns the session or None.  Without a session, whatever needs one raises ``Misconfigured``.
        ``frames``: makes the frames of an epoch; an operator action begins no epoch, and needs none.
        """
        needed = needing(spark)
        return Coordinator(
            query=query,
            sinks=sinks,
            log=self.log_at(query.checkpoint, spark),
            mode=self._mode,
            stage=SparkStage(query.checkpoint, needed),
            runner=Threads(spark),
            retry=self._retry,
            compact_every=self._compact_every,
            telling=telling,
            explain=explain,
            frames=frames,
        )

    # --- called by the user ---------------------------------------------------------------------

    def create(self, schema: StructType) -> list[str]:
        """Create what the sinks need and do not have (tables, views, topics).  Print what was done, and return it."""
        done: list[str] = []
        query = Query(self._app, "", "", "")
        shapes, sinks = Shapes(schema, self._frames, running_session()), self.new_sinks()
        columns = {sink.name: shapes.of(sink) for sink in sinks}
        for sink in sinks:
            try:
                done += [f"{sink.name}: {line}" for line in sink.create(query, columns[sink.name])]
            finally:
                sink.close()
        for line in done or ["nothing to do: everything is there"]:
            print(line)
        return done

    def check(self, df: DataFrame, checkpoint: str | None = None, output_mode: str = "append") -> Diagnosis:
        """Make the checks of a start that need no running query, on a DataFrame whose query is not started yet.

        This writes nothing that stays: on an object store one hidden object is created and deleted.  With
        ``checkpoint`` (the future checkpointLocation), its epoch log and the sinks are compared, too.  Three things are
        checked only by the start: the trigger, a temporary checkpoint, and what your own function makes of the first
        batch.  The first error is raised.  Without one, return what was found: print it.
        """
        inside.check_session(df)
        return require_all(self._parts(df, df.schema, df.sparkSession, checkpoint, output_mode), self._warn)

    def doctor(
        self,
        df: DataFrame | None = None,
        checkpoint: str | None = None,
        output_mode: str = "append",
        *,
        schema: StructType | None = None,
        seconds: float = SECONDS,
    ) -> Diagnosis:
        """Ask all that :meth:`check` asks, go on after errors, and return all answers: print it.

        This writes nothing that stays, as ``check``, and what it returns holds no secret.  All arguments may be left
        out; what then is not asked is named.  ``schema``: the columns of the rows, where there is no DataFrame.
        ``seconds``: after this time a question without an answer counts as unanswered.
        """
        spark = running_session() if df is None else inside.classic_session(df)
        columns = df.schema if df is not None and spark is not None else schema
        return diagnose(self._parts(df, columns, spark, checkpoint, output_mode), seconds, spark)

    def _parts(
        self,
        df: DataFrame | None,
        schema: StructType | None,
        spark: SparkSession | None,
        checkpoint: str | None,
        output_mode: str,
    ) -> list[Part]:
        """Return what a start asks, by what it is about."""
        new, asking, where = self.new_sinks, self._asking, checkpoint
        shapes = Shapes(schema, self._frames, spark)
        return [
            Part("this process", of_process),
            Part("Spark", partial(of_session, spark)),
            Part("query", partial(asking.of_df, df, schema, spark, output_mode)),
            *([Part("frames", shapes.questions)] if self._frames is not None else []),
            *(
                Part(f"sink {sink.name}", partial(of_sink, new, number, self._app, shapes), named=True)
                for number, sink in enumerate(self._sinks)
            ),
            *([Part("sinks together", partial(of_new_neighbours, new, shapes))] if neighbours(self._sinks) else []),
            *([Part("checkpoint", partial(self._of_checkpoint, where, spark))] if where is not None else []),
            *([Part("epoch log", partial(of_log, self._log))] if where is None and self._log is not None else []),
        ]

    def _of_checkpoint(self, checkpoint: str, spark: SparkSession | None) -> Iterator[Question]:
        """Ask about the checkpoint and its log, and compare the log with the sinks."""
        where = inside.resolve(checkpoint, spark) if spark is not None else located(checkpoint)
        session = needing(lambda: spark)
        yield from of_checkpoint(where, spark, self._log)
        sinks = self.new_sinks()

        def look() -> None:
            ask = ask_at(self._app, where, session)
            self.coordinator(ask.query, sinks, lambda: spark).check(ask)

        try:
            yield Question("log and sinks agree", partial(unless_spark_is_needed, look, where, sinks), (LOG,))
        finally:
            for sink in sinks:
                sink.close()

    def observed(self, df: DataFrame) -> DataFrame:
        """Return ``df`` with a row count that ``observedMetrics`` of the query's progress shows.

        The metric is ``rows`` of ``epochal.<app>``.  Call ``writeStream`` on the result: what is observed inside the
        batch function belongs to other queries of Spark and never reaches the progress.  Each evaluation counts its
        rows, and in idempotent mode there is one evaluation per sink.
        """
        from pyspark.sql import functions as f

        check_streaming(df)
        return df.observe(f"epochal.{self._app}", f.count(f.lit(1)).alias("rows"))

    def guarantee(self) -> Guarantee:
        """Return what is promised per sink, to which readers, under which conditions.

        After a start or a ``check`` it has the conditions that come from the query's plan, too.
        """
        return Guarantee(
            self._app,
            self._mode,
            {
                s.name: f"{s.guarantee().removeprefix(f'{s.name}: ')} {promise.in_mode(s, self._mode)}"
                for s in self._sinks
            },
            tuple(promise.notes(self._sinks, self._mode, self._deterministic, self._asking)),
        )

    def status(self) -> PipelineStatus:
        """Return the status of the newest start in this process.  This asks no server."""
        run = self._newest
        if run is None:
            return PipelineStatus(self._app, error=self.last_error)
        if run.coordinator is None:
            return PipelineStatus(self._app, run.query_id, run.run_id, error=run.failed)
        return self._status(run, run.coordinator.status())

    def close(self) -> None:
        """Close all connections.  Call this when no query uses the pipeline any more."""
        with self._lock:
            runs = list(self._runs.values())
            self._runs.clear()
        for run in runs:
            run.close()
            run.telling.closed()

    # --- small helpers --------------------------------------------------------------------------

    def _status(self, run: _Run, status: Status) -> PipelineStatus:
        report = status.last_report
        seconds: Mapping[Phase, float] = report.seconds if report is not None else {}
        return PipelineStatus(
            app=self._app,
            query_id=run.query_id,
            run_id=run.run_id,
            last_epoch=status.last_epoch,
            rows=report.rows if report is not None else 0,
            shown=dict(status.shown),
            in_doubt=tuple(status.in_doubt),
            seconds={phase.value: spent for phase, spent in seconds.items()},
            error=run.failed,
            rejected=dict(run.rejected),
        )

    def new_sinks(self) -> tuple[Sink, ...]:
        """Return new sink objects for one start, because two queries or two starts must not share connections."""
        return with_rejects([copy.copy(sink) for sink in self._given])

    def _warn(self, caution: str) -> None:
        _log.warning("%s", caution, extra=extra(app=self._app))

    def log_at(self, checkpoint: str, spark: Callable[[], SparkSession | None]) -> EpochLog:
        """Return the log that was passed, else the one below the checkpoint.

        Raise ``Misconfigured`` if the checkpoint's file system cannot hold a log.
        """
        if self._log is not None:
            return self._log
        needed = needing(spark)
        return reachable_log(checkpoint, spark()) or default_log(checkpoint, lambda: hadoop_of(needed()))


def _check_mode(mode: str, deterministic: Sequence[str]) -> None:
    if mode not in MODES:
        raise Misconfigured(f"mode {mode!r} is not known", help=f"leave mode out, or pass one of {', '.join(MODES)}")
    if not are_texts(deterministic):
        raise Misconfigured(
            f"deterministic={deterministic!r} is no list of names",
            help='pass the names of functions: deterministic=["parse"]',
        )
    if deterministic and mode != IDEMPOTENT:
        raise Misconfigured(
            f"deterministic={list(deterministic)!r} has no effect in mode {mode!r}, which evaluates an epoch once",
            help='leave it out, or pass mode="idempotent"',
        )


def _check_sinks(sinks: Sequence[Sink]) -> None:
    if not sinks:
        raise Misconfigured("the pipeline has no sink", state="sinks=[]", help="pass at least one sink")
    seen: set[str] = set()
    for sink in sinks:
        if not isinstance(sink, Sink):
            raise Misconfigured(
                f"{sink!r} is not a sink", state=type(sink).__name__, help="pass objects from epochal.sinks"
            )
        check_name("sink name", sink.name)
        if sink.name in seen:
            raise Misconfigured(f"two sinks are named {sink.name!r}", help="give each a name= of its own")
        seen.add(sink.name)
