"""What a start asks about everything but its sinks: this process, the session, the query, the checkpoint and its log.

``Pipeline.check``, the start itself and the doctor ask these same questions.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import epochal
from epochal.checkpoints import place
from epochal.checkpoints.bucket import is_on_objects
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import EpochLog
from epochal.checkpoints.objects import ObjectLog
from epochal.checkpoints.place import Place
from epochal.coordinator.environment import packages, versions
from epochal.coordinator.environment.versions import AT_OWN_RISK
from epochal.coordinator.model.epoch import IDEMPOTENT, Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.protocol.coordinator import wants_copy
from epochal.coordinator.protocol.history import History
from epochal.coordinator.query import lint
from epochal.coordinator.query.checkpoint import reachable_log
from epochal.coordinator.query.frames import Shapes
from epochal.coordinator.query.plan import PlanFacts, analyzed, check_streaming, read_plan
from epochal.coordinator.query.sources import cautions, sources
from epochal.coordinator.query.spark import (
    check_checkpoint,
    check_output_mode,
    check_session,
    java_version,
    questions_of_versions,
)
from epochal.sinks.inspection import written
from epochal.sinks.protocol import NeighbourSink, SessionSink, Sink
from epochal.sinks.questions import NO_COLUMNS, Answer, NotAsked, Question, known, questions_of
from epochal.sinks.rows.digest import check_digestible
from epochal.sinks.spark import internals
from epochal.sinks.spark.executors import NO_SESSION, running_session
from epochal.sinks.spark.names import check_names
from epochal.sinks.spark.settings import TOLD, check_functions, is_case_sensitive
from epochal.sinks.spark.stage import check_schema, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_QUERY = "the query is not known here: call pipeline.doctor(df) in the job"
CONDITION = "conditional put"
LOG = "epoch log"
"""The question that the comparison of log and sinks needs."""


def of_process() -> Iterator[Question]:
    """Ask what runs here.  None of these questions needs Spark or a server."""
    yield Question("Epochal", lambda: epochal.__version__)
    yield from questions_of_versions({versions.PYTHON: platform.python_version()})
    yield Question("machine", lambda: f"{platform.platform()}, {os.cpu_count()} cores")
    yield Question("packages", packages.installed)
    yield Question("versions at own risk", _at_own_risk)


def _at_own_risk() -> Answer:
    named = os.environ.get(AT_OWN_RISK)
    return Answer("none") if not named else Answer(cautions=[f"{AT_OWN_RISK}={named}: nothing is promised with these"])


def of_session(spark: SparkSession | None) -> Iterator[Question]:
    """Ask what Spark and its JVM are, and how the session is set."""
    if spark is None:
        yield Question("Spark", partial(_not_asked, NO_SESSION))
        return
    java, python = (versions.on_spark(part, spark.version) for part in (versions.JAVA, versions.PYTHON))
    yield from questions_of_versions({versions.SPARK: spark.version, java: java_version(spark)})
    yield Question("Python on this Spark", partial(versions.check, python, platform.python_version()))
    yield Question("internal methods of Spark", partial(internals.self_test, spark))
    yield Question("settings of the session", lambda: _settings(spark))


def _settings(spark: SparkSession) -> str:
    conf: Any = spark._jsparkSession.conf()  # Python's own `get` gives no default values
    found = {name: conf.getOption(name) for name in TOLD}
    values = [f"{name.removeprefix('spark.')}={value.get()}" for name, value in found.items() if value.isDefined()]
    return ", ".join([f"master={spark.sparkContext.master}", *values])


class OfQuery:
    """Asks about the query of a pipeline, and keeps what ``Pipeline.guarantee`` tells of it.

    ``sinks``: all sinks of the pipeline.  ``deterministic``: see ``Pipeline``.
    """

    def __init__(self, mode: str, sinks: Sequence[Sink], deterministic: Sequence[str]) -> None:
        self._mode, self._sinks, self._deterministic = mode, sinks, deterministic
        self.plan: PlanFacts | None = None
        self.cautions: Sequence[str] = ()

    def of_plan(
        self, logical: Callable[[], Any], written: Callable[[], Any], spark: SparkSession
    ) -> Iterator[Question]:
        """Ask what the query's plan says of replays, and about its sources.

        ``logical``: the plan of the whole query; ``written``: the plan as the user wrote it, with his sources.
        """
        yield Question("operator state on replay", lambda: self._check_plan(logical()))
        if self._mode == IDEMPOTENT:
            repeats = partial(lint.check, deterministic=self._deterministic)
            yield Question("rows are the same on replay", lambda: repeats(logical()))
        yield Question("sources", lambda: self._warn_of_sources(written(), spark))

    def _check_plan(self, logical: Any) -> None:
        plan = read_plan(logical)
        plan.check()
        self.plan = plan

    def _warn_of_sources(self, plan: Any, spark: SparkSession) -> Answer:
        """Return a caution for each option by which a source of the query gives other rows than it has."""
        self.cautions = cautions(plan, lambda key: spark.conf.get(key, None))
        return Answer(", ".join(map(str, sources(plan))), self.cautions)

    def of_df(
        self, df: DataFrame | None, schema: StructType | None, spark: SparkSession | None, output_mode: str
    ) -> Iterator[Question]:
        """Ask all about a query that is not started yet."""
        if df is None:
            yield Question("plan", partial(_not_asked, NO_QUERY))
        else:
            yield Question("session", lambda: check_session(df))
        if df is not None and spark is not None:
            yield Question("streaming", lambda: check_streaming(df))
            yield Question("output mode", lambda: check_output_mode(output_mode, self._sinks))
            yield from self.of_plan(lambda: analyzed(df), lambda: analyzed(df), spark)
        yield from self.of_rows(schema, spark)

    def of_rows(self, schema: StructType | None, spark: SparkSession | None) -> Iterator[Question]:
        """Ask whether the columns of the rows have names and types with which the mode works."""
        if schema is None or spark is None:
            yield Question("columns", partial(_not_asked, NO_COLUMNS if schema is None else NO_SESSION))
            return
        yield Question("order of functions", partial(check_functions, spark))
        case_sensitive = is_case_sensitive(spark)
        yield Question("names of the columns", lambda: check_names(schema, case_sensitive=case_sensitive))
        if self._mode == IDEMPOTENT:
            yield Question("columns can be digested", lambda: check_digestible(schema))
        elif wants_copy(self._sinks):
            copied = partial(check_schema, schema, case_sensitive=case_sensitive)
            yield Question("columns can be copied", copied)


def of_sink(new: Callable[[], Sequence[Sink]], number: int, app: str, shapes: Shapes) -> Iterator[Question]:
    """Ask a sink of the pipeline.  ``new``: makes new sinks, with connections of their own."""
    sink = new()[number]
    try:
        if isinstance(written(sink), SessionSink) and running_session() is None:
            yield Question("table", partial(_not_asked, f"it is asked through Spark, and {NO_SESSION}"))
        else:
            yield from questions_of(sink, Query(app, "", "", ""), shapes.known(sink))
    finally:
        sink.close()


def neighbours(sinks: Sequence[Sink]) -> Sequence[NeighbourSink]:
    """Return the sinks that may depend on one another; none if there is only one of them."""
    found = [sink for sink in sinks if isinstance(sink, NeighbourSink)]
    return found if len(found) > 1 else []


def of_neighbours(sinks: Sequence[Sink], shapes: Shapes) -> Iterator[Question]:
    """Ask each sink that may depend on the other sinks whether it can take an epoch together with them."""
    for sink in neighbours(sinks):
        others = [other for other in sinks if other is not sink]
        yield Question(f"{sink.name} beside the others", partial(_beside, sink, shapes, others))


def _beside(sink: NeighbourSink, shapes: Shapes, others: Sequence[Sink]) -> None:
    sink.check_beside(known(shapes.known(sink)), others)


def of_new_neighbours(new: Callable[[], Sequence[Sink]], shapes: Shapes) -> Iterator[Question]:
    """Ask as :func:`of_neighbours` does, with connections of their own."""
    sinks = new()
    try:
        yield from of_neighbours(sinks, shapes)
    finally:
        for sink in sinks:
            sink.close()


def unless_spark_is_needed(look: Callable[[], None], where: str, sinks: Sequence[Sink]) -> None:
    """Look at log and sinks.  Raise ``NotAsked`` if that can be done only through Spark, and none runs."""
    if running_session() is not None:
        return look()
    if local_path(where) is None and not is_on_objects(where):
        raise NotAsked(f"Spark's own files in {where} are read through Spark's JVM, and {NO_SESSION}")
    try:
        return look()
    except Misconfigured as error:
        if error.sink in {sink.name for sink in sinks if isinstance(written(sink), SessionSink)}:
            raise NotAsked(f"sink {error.sink}: {error.what}") from error
        raise


def of_checkpoint(where: str, spark: SparkSession | None, log: EpochLog | None) -> Iterator[Question]:
    """Ask about a resolved checkpoint: its name, its file system and its log; ``log``: one that lies elsewhere."""
    yield Question("name of the checkpoint", lambda: check_checkpoint(where))
    yield Question("file system of the checkpoint", lambda: _file_system(where, spark))
    if log is not None:
        yield from of_log(log)
        return
    yield Question(LOG, lambda: _read(_default_log(where, spark)))
    if is_on_objects(where):
        yield Question(CONDITION, lambda: _try_out(_default_log(where, spark)), (LOG,))


def of_log(log: EpochLog) -> Iterator[Question]:
    """Ask about a log that lies elsewhere than in the checkpoint."""
    if isinstance(log, FilesLog):
        yield Question("file system of the log", lambda: _told(place.of(log.folder)))
    yield Question(LOG, lambda: _read(log))
    if isinstance(log, ObjectLog):
        yield Question(CONDITION, lambda: _try_out(log), (LOG,))


def _try_out(log: EpochLog) -> str:
    assert isinstance(log, ObjectLog)
    log.check_store()
    return "the store refuses to overwrite an object: one was created and deleted"


def _default_log(where: str, spark: SparkSession | None) -> EpochLog:
    log = reachable_log(where, spark)
    if log is None:
        raise NotAsked(f"the log below {where} is reached through Spark's JVM, and {NO_SESSION}")
    return log


def _file_system(where: str, spark: SparkSession | None) -> Answer:
    path = local_path(where)
    if path is not None:
        return _told(place.of(path))
    if spark is None:
        raise NotAsked(f"{where} is reached through Spark's JVM, and {NO_SESSION}")
    return Answer(f"{where}: {_hadoop_file_system(where, spark)}")


def _told(found: Place) -> Answer:
    return Answer(str(found), found.cautions())


_NO_LIMIT = 2**60
"""So many free bytes or more are told by stores that have no limit."""


def _hadoop_file_system(where: str, spark: SparkSession) -> str:
    jvm: Any = spark._jvm
    path = getattr(jvm, "org.apache.hadoop.fs.Path")(where)
    system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    try:
        remaining = int(system.getStatus(path).getRemaining())
    except Exception:  # not every file system tells it, and no start needs it
        remaining = _NO_LIMIT
    free = f"{place.gib(remaining)} free" if remaining < _NO_LIMIT else "free space not told"
    return f"{system.getClass().getName()}, {free}"


def _read(log: EpochLog) -> str:
    history = History.of(log.read())
    last = history.last
    newest = f"last epoch {last.number}" if last is not None else "no epoch yet"
    return f"{log.describe()}: {len(history.entries)} records, {len(history.fences)} starts, {newest}"


def _not_asked(why: str) -> None:
    raise NotAsked(why)
