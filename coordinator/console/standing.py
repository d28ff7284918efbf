"""The state of a query: its log, its sinks and Spark's own files, read together and judged as a start would judge them.

This file has no rules; ``judge.py`` has them.  A running query may write between two reads.  So if the log has grown
since a refusal was read and judged, everything is read and judged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.checkpoints.bucket import is_on_objects
from epochal.checkpoints.log import Commit, EpochLog
from epochal.coordinator.console.render import CannotTell, Usage
from epochal.coordinator.model.epoch import EpochNumber, EpochRequest, Query, SinkState
from epochal.coordinator.model.errors import EpochalError, Misconfigured, SinkUnavailable
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.history import History, LoggedEpoch
from epochal.coordinator.protocol.judge import Case
from epochal.coordinator.query.checkpoint import (
    ask_at,
    located,
    progress_at,
    query_id_at,
    reachable_log,
)
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.protocol import Sink
from epochal.sinks.spark.executors import running_session
from epochal.sinks.spark.stage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOKS = 5
"""How often log and sinks are read at most while a running query changes them."""


def resolve(checkpoint: str) -> str:
    """Return the checkpoint's location as a running query names it.  Raise ``Usage`` if there is none."""
    where = located(checkpoint)
    path = local_path(where)
    if path is not None and not any((Path(path) / name).exists() for name in ("metadata", "epochal")):
        raise Usage(f"{path} is no checkpoint of a query: it has neither Spark's file metadata nor the folder epochal")
    return where


def log_of(pipeline: Pipeline | None, where: str) -> EpochLog:
    """Return the log of that checkpoint.

    Raise ``CannotTell`` if the log can be read only through Spark's JVM and no Spark runs in this process.
    """
    if pipeline is not None and pipeline.log is not None:
        return pipeline.log
    log = reachable_log(where, running_session())
    if log is None:
        known = "" if pipeline is not None else ", or name the pipeline that has log=PostgresLog(...) with --pipeline"
        raise CannotTell(
            f"the epoch log below {where} is reached through Spark's JVM, and no Spark runs here: ask from a process"
            f" with a SparkSession{known}"
        )
    return log


@dataclass(frozen=True)
class Standing:
    """What one look found.  ``refusal``: the error that a start would end with, judged by the sinks that answered."""

    where: str
    log: str
    history: History
    states: Mapping[str, SinkState]
    unanswered: Mapping[str, Exception]
    ask: EpochRequest
    planned: EpochNumber | None  # from Spark's own files; None: they were not read
    committed: EpochNumber | None
    refusal: EpochalError | None
    unread: str | None = None  # why Spark's own files were not read

    @property
    def in_doubt(self) -> Mapping[str, LoggedEpoch]:
        """Sinks that answered and took part in the log's newest epoch, but do not show it."""
        last = self.history.last
        if last is None:
            return {}
        return {
            name: last
            for name, state in self.states.items()
            if name in last.current.participants
            and not self.history.is_over(name, last.number)
            and not last.is_shown_by(name, state.marker)
        }

    def epoch_of(self, sink: str) -> EpochNumber | None:
        """Return the epoch of the sink's marker, or None if the log does not tell it."""
        state = self.states.get(sink)
        took_part = self.history.took_part(sink) if state is not None else ()
        shown = (e.number for e in took_part if state is not None and e.is_shown_by(sink, state.marker))
        return next(shown, None)


def doubt(epoch: LoggedEpoch) -> str:
    """Return the word for an epoch that a sink does not show: decided or begun."""
    return "decided" if isinstance(epoch.current, Commit) else "begun"


def take(pipeline: Pipeline, where: str) -> Standing:
    """Read the log, then the sinks, then Spark's files, and judge them; repeat while a running query changes them."""
    log = log_of(pipeline, where)
    for _ in range(LOOKS):
        standing = _once(pipeline, log, where)
        if standing.refusal is None or tuple(log.read()[-1:]) == standing.history.entries[-1:]:
            break
    return standing


def _once(pipeline: Pipeline, log: EpochLog, where: str) -> Standing:
    history = History.of(log.read())
    states, unanswered = _look(pipeline.sinks, _query(pipeline.app, history, where))
    unread = unreadable(where)
    ask = _ask(pipeline.app, history, where, unread)
    planned, committed = progress_at(where, spark) if unread is None else (None, None)
    found = Standing(where, log.describe(), history, states, unanswered, ask, planned, committed, None, unread)
    rules = judge.OF_SOME if unanswered else judge.LOOK
    return replace(found, refusal=judge.judge(rules, Case(history, states, ask)).refusal)


def _look(sinks: Sequence[Sink], query: Query) -> tuple[Mapping[str, SinkState], Mapping[str, Exception]]:
    """Look at all sinks at the same time, because each waits for its own server."""
    with ThreadPoolExecutor(max_workers=len(sinks)) as pool:
        asked = {sink.name: pool.submit(sink.look, query) for sink in sinks}
    states, unanswered = {}, {}
    for name, future in sorted(asked.items()):
        error = future.exception()
        if error is None:
            states[name] = future.result()
        elif isinstance(error, Exception):
            unanswered[name] = error
        else:
            raise error
    return states, unanswered


def _query(app: str, history: History, where: str) -> Query:
    """Return the query, with the query id of the log's newest fence if there is one."""
    return Query(app, history.fences[-1].query.query_id if history.fences else "", "", where)


def spark_progress(where: str) -> tuple[EpochNumber | None, EpochNumber | None]:
    """Return the newest epoch that Spark has planned and the newest that it has committed; -1 means none.

    Both are None if Spark's files cannot be read in this process.
    """
    return progress_at(where, spark) if unreadable(where) is None else (None, None)


def lacks_metadata(where: str) -> bool:
    """Return whether Spark's file ``metadata`` is known to be missing in the checkpoint."""
    return unreadable(where) is None and not query_id_at(where, spark)


def _ask(app: str, history: History, where: str, unread: str | None) -> EpochRequest:
    """Return what Spark would ask for; if its files cannot be read here (``unread``), what the log expects."""
    if unread is None:
        return ask_at(app, where, spark)
    return EpochRequest(_query(app, history, where), history.expected or 0, fingerprint="")


def unreadable(where: str) -> str | None:
    """Return why the checkpoint's files cannot be read in this process; None if they can.

    On an object store that may be so although the log can be read, because a pipeline may have a log elsewhere.
    """
    if local_path(where) is not None or running_session() is not None:
        return None
    if not is_on_objects(where):
        return "they lie elsewhere than on this disk, and no Spark runs here"
    try:
        found = progress_at(where, spark) != (-1, -1) or query_id_at(where, spark)
    except (Misconfigured, SinkUnavailable) as error:
        return error.what
    return None if found else f"nothing lies at {where}, asked with the credentials and endpoint of the environment"


def spark() -> SparkSession:
    """Return the session that runs in this process.  Raise ``Misconfigured`` if there is none; never start one."""
    session = running_session()
    if session is None:
        raise Misconfigured("no Spark session runs in this process", help="ask from a process with a SparkSession")
    return session
