"""``Pipeline``: what the user hands to ``foreachBatch``.

It checks, builds one coordinator per start, and hands each micro-batch on; the protocol itself is in
``coordinator.py``.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import posixpath
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.hadoop import Hadoop, HadoopLog, of_session
from epochal.checkpoints.log import EpochLog
from epochal.coordinator.model.epoch import IDEMPOTENT, MODES, TWO_PHASE, EpochNumber, EpochRequest, Phase, Query
from epochal.coordinator.model.errors import CalledTwice, Misconfigured
from epochal.coordinator.model.events import Consumer, EventPublisher
from epochal.coordinator.model.log_keys import extra
from epochal.coordinator.protocol.coordinator import COMPACT_EVERY, Coordinator, check_appliable, wants_copy
from epochal.coordinator.protocol.report import EpochReport, Status
from epochal.coordinator.protocol.retry import Retry
from epochal.coordinator.query import lint
from epochal.coordinator.query import spark as inside
from epochal.coordinator.query.answers import Guarantee, PipelineStatus
from epochal.coordinator.query.plan import PlanFacts, analyzed, read_plan
from epochal.coordinator.telemetry.otel import telemetry
from epochal.coordinator.telemetry.progress import progress
from epochal.coordinator.telemetry.records import record
from epochal.sinks.conditions import check_name
from epochal.sinks.protocol import ApplySink, RedoSink, Sink
from epochal.sinks.rows.rejects import Rejects, with_rejects
from epochal.sinks.spark.stage import SparkStage, check_schema, files_at, local_path
from epochal.sinks.spark.threads import Threads, as_exception

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger("epochal")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class _Returned:
    """The newest epoch that any pipeline of this process has returned from, by app and start of a query.

    A second pipeline of the same app would take the epoch for one that Spark replays, and its rows for those that are
    visible.
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
    """One start of one query: its coordinator and its sinks' connections."""

    query_id: str
    run_id: str
    telling: EventPublisher
    coordinator: Coordinator | None = None
    sinks: Sequence[Sink] = ()
    epoch: EpochNumber | None = None  # the newest that we were called for
    failed: Exception | None = None
    rejected: Counter[str] = field(default_factory=Counter)  # by the sink that has them

    def enter(self, epoch: EpochNumber) -> None:
        """At most one call per batch, and none after a failure: the rows of either would be lost unseen."""
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
        help="union what belongs to one epoch and call `pipeline(df, epoch)` once per batch; the rows of the"
        " second call are not made up for by a restart, as the epoch is decided",
    )


class Pipeline:
    """A ``foreachBatch`` function that writes every epoch exactly once to all its sinks.

    ``app``: with the sinks' names it is how a restart finds its markers: keep them stable.
    ``sinks``: one or several, each with a name of its own.
    ``mode``: ``"two-phase"``, or ``"idempotent"`` for a query that gives the same rows whenever an epoch is run: no
    durable copy and no decision; what can be seen in the plan to give others is refused at start, and what cannot be
    seen is found, with several sinks, by digests of the rows.  A pipeline may be started in the other mode at any
    time: an epoch in doubt is finished in the mode that began it.
    ``deterministic``: in idempotent mode the names of functions of your own that depend on their arguments alone,
    and are not refused.
    ``log``: where decisions are kept; by default files under ``<checkpointLocation>/epochal/log``.
    ``retry``: how patiently a server is asked again, an ``epochal.Retry``.
    ``compact_every``: how many records that nobody needs any more are left in the log.
    ``on_event``: called with each event of ``epochal.events``, one at a time, also from the threads of the sinks;
    when it raises, that is logged and this start does not call it again.

    Errors are :class:`~epochal.coordinator.model.errors.EpochalError`; Spark shows only their text, so the object
    stays in ``last_error``.
    """

    def __init__(
        self,
        *,
        app: str,
        sinks: Sequence[Sink],
        mode: str = TWO_PHASE,
        deterministic: Sequence[str] = (),
        log: EpochLog | None = None,
        retry: Retry | None = None,
        compact_every: int = COMPACT_EVERY,
        on_event: Consumer | None = None,
    ) -> None:
        check_name("app", app)
        given, sinks = tuple(sinks), with_rejects(sinks)
        _check_sinks(sinks)
        _check_mode(mode, deterministic)
        if mode == IDEMPOTENT:
            check_appliable(sinks)
        if compact_every < 1:
            raise Misconfigured(f"compact_every={compact_every}", help="pass a number of records, 1 or more")
        if on_event is not None and not callable(on_event):
            raise Misconfigured(f"on_event={on_event!r} cannot be called", help="pass a function of one argument")
        self._app = app
        self._given = given
        self._sinks = sinks  # those for bad rows, too
        self._mode = mode
        self._deterministic = tuple(deterministic)
        self._log = log
        self._retry = retry
        self._compact_every = compact_every
        self._on_event = on_event
        self._runs: dict[tuple[str, str], _Run] = {}
        self._newest: _Run | None = None
        self._plan: PlanFacts | None = None
        self._lock = threading.Lock()
        self.last_error: Exception | None = None

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Only ``foreachBatch`` of Spark Connect pickles it: refused there, and the error shows why."""
        self.last_error = inside.needs_jvm("a pipeline does not leave its process")
        raise self.last_error

    def __repr__(self) -> str:
        return f"Pipeline(app={self._app!r}, sinks={[sink.name for sink in self._sinks]})"

    @property
    def app(self) -> str:
        return self._app

    @property
    def mode(self) -> str:
        """That of the epochs which it begins."""
        return self._mode

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return self._sinks

    @property
    def log(self) -> EpochLog | None:
        """The log that was passed; None for the one below the checkpoint."""
        return self._log

    # --- called by Spark ------------------------------------------------------------------------

    def __call__(self, df: DataFrame, epoch: EpochNumber) -> None:
        """One micro-batch; returns when every sink shows it."""
        try:
            query = inside.StreamingQuery(df)
            run = self._run(query)
            try:
                self._epoch(run, query, df, epoch)
            except BaseException as error:
                run.failed = as_exception(error)
                run.telling.failed(run.failed)
                run.close()
                raise
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
        """The state of this start; that of an earlier start of the same query is let go."""
        key = (query.query_id, query.run_id)
        with self._lock:
            if key not in self._runs:
                for old in [k for k in self._runs if k[0] == query.query_id]:
                    self._runs.pop(old).close()
                self._runs[key] = _Run(*key, EventPublisher(Query(self._app, *key, checkpoint=""), self.consumers()))
            self._newest = self._runs[key]
            return self._newest

    def _start(self, run: _Run, query: inside.StreamingQuery, df: DataFrame) -> None:
        """Every check that needs no decision, then the coordinator of this start."""
        inside.check_runtime(query.spark)
        inside.check_query(query, self._sinks)
        self._check_plan(query.plan())
        if self._mode == IDEMPOTENT:
            lint.check(analyzed(df), deterministic=self._deterministic, batch=True)
        run.sinks = self.new_sinks()
        identity = query.identity(self._app)
        self._check_schema(run.sinks, identity, df)
        run.coordinator = self.coordinator(identity, run.sinks, lambda: query.spark, run.telling)

    def consumers(self) -> list[Consumer]:
        """Who is told what a start does; the user's own function last."""
        return [record, *(told for told in (telemetry(), progress(), self._on_event) if told is not None)]

    def coordinator(
        self,
        query: Query,
        sinks: Sequence[Sink],
        spark: Callable[[], SparkSession | None],
        telling: EventPublisher | None = None,
    ) -> Coordinator:
        """Of one start, of a query or of a person's act; where ``spark`` has none, what needs it is refused."""
        needed = needing(spark)
        return Coordinator(
            query=query,
            sinks=sinks,
            log=self.log_at(query.checkpoint, needed),
            mode=self._mode,
            stage=SparkStage(query.checkpoint, needed),
            runner=Threads(spark),
            retry=self._retry,
            compact_every=self._compact_every,
            telling=telling,
        )

    # --- called by the user ---------------------------------------------------------------------

    def create(self, schema: StructType) -> list[str]:
        """Make what the sinks need and do not have (tables, views, topics); prints and returns what was done."""
        done: list[str] = []
        query = Query(self._app, "", "", "")
        for sink in self.new_sinks():
            try:
                done += [f"{sink.name}: {line}" for line in sink.create(query, schema)]
            finally:
                sink.close()
        for line in done or ["nothing to do: everything is there"]:
            print(line)
        return done

    def check(self, df: DataFrame, checkpoint: str | None = None, output_mode: str = "append") -> None:
        """The checks of a start that need no running query, on a DataFrame that is not started yet; writes nothing.

        With ``checkpoint`` (the checkpointLocation to be) its epoch log is held against the sinks, too.  Left to the
        start: the trigger, a temporary checkpoint, what a function of the user's own makes of the first batch.
        """
        inside.check_session(df)
        inside.check_runtime(df.sparkSession)
        _check_streaming(df)
        inside.check_output_mode(output_mode, self._sinks)
        self._check_plan(analyzed(df))
        sinks = self.new_sinks()
        try:
            self._check_schema(sinks, Query(self._app, "", "", ""), df)
            if checkpoint is not None:
                self._check_checkpoint(sinks, df, checkpoint)
        finally:
            for sink in sinks:
                sink.close()

    def observed(self, df: DataFrame) -> DataFrame:
        """The same rows, counted: ``observedMetrics`` of the query's progress has them as ``epochal.<app>``, ``rows``.

        Hand it to ``writeStream``: what is observed inside the batch function belongs to other queries of Spark's and
        never reaches the progress.  An evaluation counts its rows each time: in idempotent mode one per sink.
        """
        from pyspark.sql import functions as f

        _check_streaming(df)
        return df.observe(f"epochal.{self._app}", f.count(f.lit(1)).alias("rows"))

    def guarantee(self) -> Guarantee:
        """What is promised per sink, to which reader, under which conditions; with the plan once it was seen."""
        return Guarantee(
            self._app,
            self._mode,
            {s.name: f"{s.guarantee().removeprefix(f'{s.name}: ')} {_in_mode(s, self._mode)}" for s in self._sinks},
            tuple(self._notes()),
        )

    def status(self) -> PipelineStatus:
        """Of the newest start in this process; asks nobody."""
        run = self._newest
        if run is None:
            return PipelineStatus(self._app, error=self.last_error)
        if run.coordinator is None:
            return PipelineStatus(self._app, run.query_id, run.run_id, error=run.failed)
        return self._status(run, run.coordinator.status())

    def close(self) -> None:
        """Let go of all connections, once no query uses the pipeline any more."""
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
        """Each start has connections of its own: two queries or a restart must not share them."""
        return with_rejects([copy.copy(sink) for sink in self._given])

    def _check_plan(self, logical: Any) -> None:
        """What the whole query says about replays, in this mode."""
        plan = read_plan(logical)
        plan.check()
        if self._mode == IDEMPOTENT:
            lint.check(logical, deterministic=self._deterministic)
        self._plan = plan

    def _check_schema(self, sinks: Sequence[Sink], identity: Query, df: DataFrame) -> None:
        if self._mode == TWO_PHASE and wants_copy(self._sinks):
            check_schema(df.schema, case_sensitive=df.sparkSession.conf.get("spark.sql.caseSensitive") == "true")
        for sink in sinks:
            sink.check(identity, df.schema)

    def _check_checkpoint(self, sinks: Sequence[Sink], df: DataFrame, checkpoint: str) -> None:
        session = df.sparkSession
        ask = next_ask(self._app, checkpoint, df)
        self.coordinator(ask.query, sinks, lambda: session).check(ask)

    def log_at(self, checkpoint: str, spark: Callable[[], SparkSession]) -> EpochLog:
        """The log that was passed, else one below the checkpoint; Misconfigured where none can be there."""
        return self._log if self._log is not None else default_log(checkpoint, lambda: of_session(spark()))

    def _notes(self) -> list[str]:
        notes = []
        if self._mode == IDEMPOTENT:
            notes += _given_again(self._sinks, self._deterministic)
        elif wants_copy(self._sinks):
            notes.append("every micro-batch is evaluated once, into a durable copy that all sinks read")
        else:
            notes.append("one sink that votes: its own prepared rows are the durable copy")
        if len(self._sinks) > 1:
            notes.append("no isolation across sinks: during a commit they differ by at most one epoch")
        notes += _conditions(self._plan) if self._plan is not None else []
        return notes


def _in_mode(sink: Sink, mode: str) -> str:
    """What the mode of the pipeline makes of a sink's promise."""
    if mode == IDEMPOTENT:
        return (
            "In idempotent mode it is given an epoch by itself, without a decision that holds it to other sinks:"
            " exactly once if the query gives the same rows whenever the epoch is run."
        )
    written = " Its rows are written after that, from the durable copy." if isinstance(sink, RedoSink) else ""
    return (
        "In two-phase mode it shows an epoch once that is decided for all sinks, and the rows of one evaluation,"
        f" whatever the query is.{written}"
    )


def _given_again(sinks: Sequence[Sink], deterministic: Sequence[str]) -> list[str]:
    """What idempotent mode promises in the place of a decision."""
    notes = [
        "every sink shows each epoch exactly once, whole and in order, provided that the query gives the same rows"
        " whenever an epoch is run; the micro-batch is evaluated once per sink, and again on replay",
    ]
    if len(sinks) > 1:
        notes.append(
            "the rows of all evaluations are compared by a digest before a sink shows any: other rows end the query"
            " with NonDeterministicReplay"
        )
        notes += [
            f"{sink.name} cannot hold rows back: it is held against the sinks given the epoch before it, and may show"
            " rows that a sink given the epoch after it refuses"
            for sink in sorted(sinks, key=lambda sink: sink.name)
            if isinstance(sink, ApplySink)
        ]
    else:
        notes.append("with one sink there is nothing to compare its rows with")
    if deterministic:
        notes.append(f"condition: these functions depend on their arguments alone: {', '.join(deterministic)}")
    return notes


def _conditions(plan: PlanFacts) -> list[str]:
    """What must hold for operator state to be the same when Spark replays an epoch."""
    notes = []
    if plan.python_functions:
        names = ", ".join(plan.python_functions)
        notes.append(f"condition: these Python functions feed operator state and must be deterministic: {names}")
    if plan.order_dependent:
        names = ", ".join(plan.order_dependent)
        notes.append(f"condition: operator state holds values that depend on the order of rows: {names}")
    if plan.static_sides:
        notes.append(
            "condition: operator state is fed from tables that do not stream; they must not change between an"
            " epoch and its replay"
        )
    return notes


def located(checkpoint: str) -> str:
    """The checkpoint as a query that runs on it names it: a URI."""
    if not _SCHEME.match(checkpoint):
        return f"file:{os.path.abspath(checkpoint)}"
    local = local_path(checkpoint)
    return checkpoint.rstrip("/") if local is None else f"file:{os.path.abspath(local)}"


def needing(spark: Callable[[], SparkSession | None]) -> Callable[[], SparkSession]:
    """The session, or a refusal that says what is missing."""

    def session() -> SparkSession:
        found = spark()
        if found is None:
            raise Misconfigured(
                "this needs Spark, and no session runs in this process",
                help="make the session first, with what the query's has (Delta's extension and catalog, file systems)",
            )
        return found

    return session


def default_log(checkpoint: str, hadoop: Callable[[], Hadoop]) -> EpochLog:
    """The log of a resolved checkpoint, where none was passed; ``hadoop``: how it is reached elsewhere."""
    local = local_path(checkpoint)
    if local is None:
        return HadoopLog(f"{checkpoint}/epochal/log", hadoop)
    return FilesLog(posixpath.join(local, "epochal", "log"))


def next_ask(app: str, checkpoint: str, df: DataFrame) -> EpochRequest:
    """What Spark will ask for first when it starts on ``checkpoint``; reads only."""
    session = df.sparkSession
    return ask_at(app, inside.resolve(checkpoint, session), lambda: session)


def ask_at(app: str, where: str, spark: Callable[[], SparkSession]) -> EpochRequest:
    """The same of a resolved checkpoint; ``spark`` is called where that is not on this disk."""
    files = files_at(where, spark)
    metadata = files.read(f"{where}/metadata")
    query = Query(app, str(json.loads(metadata)["id"]) if metadata else "", "", where)
    planned, committed = progress_at(where, spark)
    if planned > committed:
        return inside.read_ask(query, planned, spark)
    return EpochRequest(query, committed + 1, fingerprint="")


def progress_at(where: str, spark: Callable[[], SparkSession]) -> tuple[EpochNumber, EpochNumber]:
    """The newest epochs that Spark has planned and committed, by its files; -1: none."""
    files = files_at(where, spark)
    return _newest(files.listing(f"{where}/offsets")), _newest(files.listing(f"{where}/commits"))


def _newest(names: Mapping[str, int] | None) -> EpochNumber:
    return max((int(name) for name in names or () if name.isdigit()), default=-1)


def _check_streaming(df: DataFrame) -> None:
    if not df.isStreaming:
        raise Misconfigured(
            "the DataFrame is not streaming",
            state="df.isStreaming=False",
            help="read it with spark.readStream, and write it with writeStream.foreachBatch(pipeline)",
        )


def _check_mode(mode: str, deterministic: Sequence[str]) -> None:
    if mode not in MODES:
        raise Misconfigured(f"mode {mode!r} is not known", help=f"leave mode out, or pass one of {', '.join(MODES)}")
    if isinstance(deterministic, str) or not all(isinstance(name, str) for name in deterministic):
        raise Misconfigured(
            f"deterministic={deterministic!r} is no list of names",
            help='pass the names of functions: deterministic=["parse"]',
        )
    if deterministic and mode != IDEMPOTENT:
        raise Misconfigured(
            f"deterministic={list(deterministic)!r} says nothing in mode {mode!r}, which evaluates an epoch once",
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
