"""The Delta sink: votes by writing data files that the table's log does not name yet.

Four *transaction ids* of the table hold what Epochal knows, each a 63-bit number::

    epochal:<app>:<sink>              position  }  marker: written in the same version of the table
    epochal:<app>:<sink>:decision     decision  }  as the rows
    epochal:<app>:<sink>:generation   fence     }  written by fence
    epochal:<app>:<sink>:token        fence     }

A fifth, ``:version``, is that of this form, and is written with the fence.  A sixth, ``:seen``, is the version of the
table upon which fence or marker was written: no RESTORE up to there has taken rows away (``lineage.py``).  Every commit
first reads all of them, in its own transaction.  Delta then refuses the commit if another has written one of them
since, so the conditions that were judged still hold when the rows become visible: an older start, or the same commit
twice, cannot get through.

A version of the log is created only where there is none.  But a put that was slow can land below a log
that was cleaned up meanwhile: it succeeds, and nobody reads it.  So what was written counts only after a
new snapshot shows it.

This look lists the log, which takes longer the more versions it holds.  On local disks and HDFS prepare and the first
attempt of commit do not list it: they go on from the snapshot of the last look if the log has no file of the next
version.  Where a clean-up has removed that file and left newer ones, the put lands below them and does not count, and
the next attempt is on a new snapshot.  Prepare of a MERGE takes a new one always, as it reads the table's files; a
MERGE that commit makes anew, and that finds one gone, is made again on a new one.

What such a commit holds besides the marker is the mode's (``modes.py``)::

    append      the files that prepare wrote
    overwrite   the same, and the removal of every file that the snapshot has
    merge       what Delta's MERGE makes of the snapshot and the durable copy: prepare's own try, in the transaction
                that it was tried in, or a new one if the table has another version by now
"""

from __future__ import annotations

import contextlib
import enum
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import (
    MOVED,
    Actor,
    Committable,
    Digest,
    Epoch,
    EpochNumber,
    Json,
    Marker,
    Position,
    Query,
    SinkState,
)
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    Misconfigured,
)
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import Conditions, check_name, looked, marker_of
from epochal.sinks.delta import gates, history, jvm, modes
from epochal.sinks.delta.inspection import DeltaInspection
from epochal.sinks.delta.jvm import JavaFailure, Table, Transaction, Written
from epochal.sinks.delta.lineage import Lineage
from epochal.sinks.delta.merge import SOURCE, MergePlan, Work
from epochal.sinks.delta.modes import Append, Merge, Mode, Overwrite
from epochal.sinks.delta.refusals import Refusals
from epochal.sinks.delta.staged import Note, Staged
from epochal.sinks.delta.target import SESSION_CATALOG, Target, quoted
from epochal.sinks.delta.without_spark import Snapshot
from epochal.sinks.epochs import Epochs, Wanted
from epochal.sinks.protocol import CommitOutcome, SessionSink
from epochal.sinks.rows import formats, keyed
from epochal.sinks.rows.digest import watched
from epochal.sinks.rows.projection import Projection
from epochal.sinks.spark.executors import clone, running_session
from epochal.sinks.spark.stage import read_copy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ATTEMPTS = 10
"""How often one call writes again after a conflict with another writer of the table."""

PAYLOAD_VERSION = 2
"""Since 2 with a mode; an epoch that is appended is written as version 1, which older ones read."""
MARKER_VERSION = 1
"""Of the transaction ids."""


class _Kind(enum.Enum):
    """How a commit request ended, as far as its caller can see."""

    DONE = "done"
    CONFLICT = "conflict"  # not applied, or it conflicts with itself
    NONE = "none"  # may be applied


@dataclass(frozen=True)
class _Answer:
    """What came back from a commit request; only a new snapshot tells whether it is visible."""

    kind: _Kind
    why: str = ""


@dataclass(frozen=True)
class _Tried:
    """A MERGE that was made and not committed: of which decision, in which transaction."""

    decision: int
    txn: Transaction
    written: Written


class DeltaSink(SessionSink):
    """Writes every epoch to a Delta table, as one version of it.

    ``path``: where it lies.
    ``table``: instead of ``path`` its name in Spark's session catalog, ``schema.name``.
    ``mode``: ``Append()``, ``Overwrite()`` or ``Merge(key=...)`` of ``epochal.sinks.delta``: what an epoch does to the
    table.
    ``name``: the sink's stable name, by default ``delta-`` and the last part of the path, or the table's.
    ``partition_by``: columns by which :meth:`create` partitions a table that it makes; nothing else reads it.
    ``merge_schema``: columns of the query that the table has not are added to it, nullable, when the first epoch that
    has them is prepared; else they are refused.
    ``select`` and ``where``: the columns and rows that it gets (``epochal.sinks.rows.projection``); key and other
    columns of ``mode`` are among them.

    It can be pickled at any time; the copy has no Spark session and no snapshot.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        table: str | None = None,
        mode: Mode = Append(),  # noqa: B008  # frozen
        name: str | None = None,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        self._made_with = {what: value for what, value in locals().items() if what != "self"}
        self._target = Target.of(path, table)
        self._name = self._target.default_name if name is None else name
        check_name("sink name", self._name)
        modes.check(mode, self._name)
        self._mode = mode
        if isinstance(mode, Merge):
            self.needs_copy = True  # a RedoSink then: what it merges lies in the durable copy
        if isinstance(mode, Overwrite):
            self.replaces = True  # a ReplacingSink then
        self._partition_by = tuple(partition_by)
        self._merge_schema = merge_schema
        self._projection = Projection.of(self._name, select, where)
        self.leaves_rows_out = where is not None  # a FilteringSink
        self._say = Refusals(self._name, self._target)
        self._conditions = Conditions(self._name, f"Delta table {self._target}")
        self._app: str | None = None
        self._tried: _Tried | None = None
        self._seen: int | None = None
        self._known: Transaction | None = None  # of the last look; prepare and commit go on from it
        self._also: DeltaSink | None = None  # the same under its other name, of a sink that is renamed

    def __getstate__(self) -> dict[str, object]:
        """Without transactions, which are objects of this process's JVM."""
        return {**self.__dict__, "_tried": None, "_known": None}

    @property
    def name(self) -> str:
        return self._name

    @property
    def location(self) -> str:
        """The path of the table, for readers that know no catalog; ``Misconfigured`` if the catalog has none."""
        path = self._target.path or self._target.location(jvm.session(self._name), self._name)
        if path is None:
            raise self._say.missing()
        return path

    def __repr__(self) -> str:
        table = "" if self._target.table is None else "table="
        return f"DeltaSink({table}{str(self._target)!r}, name={self._name!r})"

    # set-up

    def create(self, query: Query, schema: StructType) -> Sequence[str]:
        """Make the table if there is none; ``Misconfigured`` for types that no Delta table holds."""
        from pyspark.errors import PySparkException

        check_name("app", query.app, self._name)
        rows = self._projected(schema)
        schema = self._written(rows, rows.names)
        self._say.refuse_set_up(gates.unholdable(schema), "change the query's types with a cast")
        table = self._find()
        if table is not None and self._begin(table).exists:
            return []
        try:
            self._create(schema)
        except (JavaFailure, PySparkException) as error:
            raise self._say.misconfigured(f"Delta does not make the table {self._target}", str(error)) from error
        return [f"created Delta table {self._target}"]

    def _create(self, schema: StructType) -> None:
        try:
            from delta.tables import DeltaTable
        except ImportError as error:
            raise Misconfigured(
                "the Python package delta-spark is missing", sink=self._name, help="pip install 'epochal[delta]'"
            ) from error
        session = clone(jvm.session(self._name))
        session.catalog.setCurrentCatalog(SESSION_CATALOG)
        session.conf.unset(gates.RETENTION_DEFAULT)  # else the table would be made as one that is refused
        table = DeltaTable.createIfNotExists(session).addColumns(schema)
        table = self._target.named(table)
        if self._partition_by:
            table = table.partitionedBy(*self._partition_by)
        with jvm.java_errors():
            table.execute()

    def _projected(self, schema: StructType) -> StructType:
        """What the sink gets of such rows; ``Misconfigured`` where the mode names columns that are not in it."""
        rows = self._projection.check(schema)
        if isinstance(self._mode, Merge):
            kinds = {field.name: field.dataType.simpleString() for field in rows.fields}
            keyed.check_columns(self._mode, kinds, self._name)
        return rows

    def _written(self, rows: StructType, table: Sequence[str]) -> StructType:
        """What of it goes into a table that has these columns."""
        return self._planned(self._mode, rows.names, table).written(rows)

    def _planned(self, mode: object, rows: Sequence[str], table: Sequence[str]) -> MergePlan:
        there = gates.in_both(rows, table, case_sensitive=self._case_sensitive())
        return MergePlan.of(mode, rows, there)

    def check(self, query: Query, schema: StructType) -> None:
        """Refuse what can never work: no table, other columns, types that it cannot hold exactly."""
        check_name("app", query.app, self._name)
        table = self._table()
        txn = self._existing(self._begin(table))
        metadata = txn.metadata()
        self._refuse_forgetful(metadata)
        self._say.refuse_set_up(gates.table_problems(metadata, self._adds_only), "write to a table without it")
        rows = self._written(self._projected(schema), jvm.schema_of(metadata).names)
        problems, added = self._row_problems(rows, metadata), self._added(rows, metadata)
        self._say.refuse_set_up(problems, self._remedy(added))
        try:
            txn.check_writable()
        except JavaFailure as failure:
            raise self._say.misconfigured("Delta refuses to write to the table", failure.message) from failure
        with self._say.unavailable("the table"):
            closed = [folder for folder in (".", "_delta_log") if not table.may_write(folder)]
        if closed:
            raise Misconfigured(
                f"this process may not write to the Delta table {self._target}",
                sink=self._name,
                state=f"folders without write permission: {closed}",
                help="give its user the right to make files there",
            )

    def inspection(self, query: Query) -> DeltaInspection:
        """See ``epochal.sinks.inspection``."""
        check_name("app", query.app, self._name)
        given = {**self._projection.to_json(), "bad_rows": False}
        return DeltaInspection(self, self._target, self._mode, self._conditions, query.app, given)

    # the protocol

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """Read one new snapshot.  After a fence it is final: the fence took a version of the log, so
        what an older actor still has under way conflicts with it.

        In a process without Spark, where nothing can be fenced, delta-rs reads it."""
        check_name("app", query.app, self._name)
        self._app = query.app
        if by is None and running_session() is None:
            return self._state(Snapshot(self._target, self._name))
        return self._state(self._existing(self._begin(self._table())))

    def fence(self, query: Query, by: Actor) -> None:
        """Write the fence if no newer one stands, and see it in a new snapshot before answering."""
        self._app = query.app
        self._take(self._table(), by)

    def prepare(self, epoch: Epoch, rows: DataFrame, by: Actor) -> Committable:
        """Write the data files and the note that says whose they are; the log names none of them.

        A sink that merges writes them from the durable copy, on the table as it is now.
        """
        app = self._looked()
        table = self._table()
        known = None if isinstance(self._mode, Merge) else self._known
        txn = self._existing(self._begin(table, known=known))
        metadata = txn.metadata()
        self._check_table(txn, metadata, epoch.number)
        written = self._written(self._projected(rows.schema), jvm.schema_of(metadata).names)
        if self._merge_schema and self._added(written, metadata):
            txn = self._with_columns(table, txn, self._added(written, metadata), epoch, by)
            metadata = txn.metadata()
        if isinstance(self._mode, Merge):
            return self._prepare_merge(self._mode, table, txn, epoch, rows, by)
        rows, digest = watched(rows) if epoch.digest else (rows, None)
        fitting = self._fitting(self._projection.apply(rows), metadata, epoch.number)
        with self._projection.evaluating(epoch.number):
            adds = self._write_files(txn, fitting, epoch.number)
            left_out = self._projection.left_out(rows) if epoch.copy is not None else 0
        files = [str(add["path"]) for add in adds]
        with self._say.unavailable("the prepared files", epoch.number):
            Staged(table, app, self._name).note(Note(epoch.position, by, epoch.decision.id), files)
            self._read_back(table, adds, epoch.number)
            count = _rows(table, adds)
        payload = {"adds": adds, "table": gates.fingerprint(metadata, txn.protocol())}
        return self._vote(epoch, count, payload, left_out, digest() if digest is not None else None)

    def _prepare_merge(
        self, mode: Merge, table: Table, txn: Transaction, epoch: Epoch, rows: DataFrame, by: Actor
    ) -> Committable:
        """Merge on this snapshot, up to the commit; the transaction is kept, as its commit may be just this."""
        if epoch.copy is None:
            raise self._say.refused("a sink that merges has no durable copy to merge", epoch.number)
        self._conditions.check_prepare(self._state(txn), by, marker_of(epoch), epoch.number)
        metadata = txn.metadata()
        table_names = jvm.schema_of(metadata).names
        plan = self._planned(mode, self._projection.check(rows.schema).names, table_names)
        work = Work.of(epoch.copy, self._projection, plan, rows.sparkSession)
        session = work.session(rows.sparkSession)
        with self._projection.evaluating(epoch.number):
            given = work.rows(session)
            self._refuse_rows(plan.written(given.schema), metadata, epoch.number)
            count = plan.check(given, self._name, epoch.number)
            left_out = self._projection.left_out(read_copy(session, epoch.copy))
            with self._refusing_violations(epoch.number):
                written = self._merged(txn, work, session, count, epoch.number)
        with self._say.unavailable("the prepared files", epoch.number):
            note = Note(epoch.position, by, epoch.decision.id)
            Staged(table, self._looked(), self._name).note(note, written.files)
        self._tried = _Tried(epoch.decision.id, txn, written)
        return self._vote(epoch, count, {"work": work.to_json(), "table": {"id": metadata["id"]}}, left_out)

    def _vote(
        self, epoch: Epoch, count: int, payload: Json, left_out: int, digest: Digest | None = None
    ) -> Committable:
        failpoints.hit(Point.BEFORE_VOTE, self._name, epoch.number)
        mode = modes.name_of(self._mode)
        versioned = {"version": 1} if mode == "append" else {"version": PAYLOAD_VERSION, "mode": mode}
        about = {"offsets": epoch.offsets, "watermark": epoch.watermark}
        payload = {**versioned, **payload, **about}
        return Committable(self._name, epoch.decision, epoch.position, count, payload, left_out=left_out, digest=digest)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Put files and marker into the log as one version; done when a new snapshot shows the marker."""
        formats.check_vote(committable, PAYLOAD_VERSION)
        self._looked()
        table = self._table()
        answer: _Answer | None = None
        log_taken = False
        for attempt in range(ATTEMPTS):
            txn = self._begin(table, known=None if attempt else self._known, answered=answer)
            if self._already_committed(txn, committable, by):
                if answer is None:
                    return CommitOutcome.ALREADY_COMMITTED
                self._tidy(table, committable)
                return CommitOutcome.COMMITTED
            if answer is not None and answer.kind is _Kind.NONE:
                raise self._say.unknown(committable.decision.epoch, answer.why)
            lost = self._lost(table, txn, committable)
            if lost and log_taken:
                raise self._say.prepared_lost(lost, committable)
            if lost:  # an earlier put may be under way: take the version it wants, then look again
                self._take(table, by)
                log_taken = True
                continue
            failpoints.hit(Point.BEFORE_PUBLISH, self._name, committable.decision.epoch)
            answer = self._publish(table, txn, committable)
        raise self._say.contended(ATTEMPTS, answer.why if answer is not None else None, committable.decision.epoch)

    def abort(self, query: Query, by: Actor) -> None:
        """Delete what ``by`` and lower generations prepared beyond the marker, as far as a note names it."""
        self._app, self._tried = query.app, None
        table = self._table()
        state = self._state(self._existing(self._begin(table)))
        self._conditions.check_owner(state, by)
        with self._say.unavailable("what is prepared"):
            Staged(table, query.app, self._name).drop_undecided(state.marker, by)

    def renamed(self, name: str) -> tuple[DeltaSink, DeltaSink]:
        """See ``epochal.sinks.protocol``; the table keeps fence and marker of each name."""
        here, there = (DeltaSink(**{**self._made_with, "name": each}) for each in (self._name, name))
        here._also, there._also = there, here
        return here, there

    def check_mark(self, query: Query) -> None:
        """Any can be written."""

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """Write it in a version of its own, and see it in a new snapshot before answering."""
        self._app = query.app
        if self._also is not None:
            self._also._app = query.app
        table, answer = self._table(), None
        for _ in range(ATTEMPTS):
            txn = self._existing(self._begin(table, answered=answer))
            states = [sink._own_state(txn) for sink in (self, self._also) if sink is not None]
            for state in states:
                self._conditions.check_owner(state, by)
            if marker in (None, states[0].marker) and (self._also is None or _is_moved(states[1])):
                return
            if answer is not None and answer.kind is _Kind.NONE:
                raise self._say.unknown(state=answer.why)
            answer = self._put(txn, self._marks(txn, marker), "mark", -1, str(by))
        raise self._say.contended(ATTEMPTS, answer.why if answer is not None else None)

    def _marks(self, txn: Transaction, marker: Marker | None) -> list[Json]:
        """The marker, and in the place of that under the other name one that is of no epoch."""
        held = {self._seen_id(): txn.version}
        if marker is not None:
            position, decision, _, _ = self._ids()
            held |= {position: marker.position, decision: marker.decision}
        if self._also is not None:
            position, decision, _, _ = self._also._ids()
            held |= {position: marker.position if marker is not None else 1, decision: MOVED}
        return [_txn(identity, value) for identity, value in held.items()]

    def close(self) -> None:
        """Nothing is held open: the Spark session is the user's."""
        self._app = self._tried = self._known = None

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """See :class:`~epochal.sinks.protocol.AuditedSink`; out of the table's history, as far back as Delta keeps it.

        Where no Spark runs, a table named by its path is read by the package ``deltalake``.
        """
        check_name("app", app, self._name)
        wanted = Wanted.of(self._name, first, last, limit)
        session = running_session()
        if session is not None:
            self._existing(self._begin(self._table()))
            with self._say.unavailable("the table's history"):
                return history.read(partial(history.by_spark, session, self._target), app, self._name, wanted)
        if self._target.path is None:
            raise Misconfigured(
                f"{self._target} is a name in Spark's session catalog, and no Spark runs in this process",
                sink=self._name,
                help=f"start a SparkSession, or give the path of the table: DeltaSink(path, name={self._name!r})",
            )
        return history.read(history.by_delta_rs(self._target.path, self._name), app, self._name, wanted)

    def guarantee(self) -> str:
        return (
            f"{self._name}: every epoch is one version of the Delta table {self._target}, so each snapshot "
            f"shows it whole or not at all, exactly once and in order. {modes.way(self._mode)} "
            "It holds where Delta's log store creates a version only if there is none "
            "(all of Delta's own do, on S3 the multi-cluster one if there are several clusters), and where what it "
            "wrote survives (on a local disk Delta does not fsync, so a power loss may take it). Files of an "
            "epoch that was not decided are deleted at the next start; those of a start that died while "
            "writing, and of failed task attempts, stay unread in the table's folder until VACUUM."
            f"{self._projection.promise}"
        )

    # judging

    def _already_committed(self, txn: Transaction, c: Committable, by: Actor) -> bool:
        """The three conditions of the write, in their order, on the table that was prepared for."""
        state, expected = self._state(self._existing(txn)), _identity(str(c.payload["table"]["id"]))
        if state.identity != expected:
            raise CheckpointMismatch(
                f"the table was prepared as {expected} and is {state.identity}",
                sink=self._name,
                epoch=c.decision.epoch,
                state=f"Delta table {self._target}",
                help="the table was dropped and made again; the decided rows belong to the old one: restore it",
            )
        return self._conditions.already_committed(state, by, marker_of(c), c.decision.epoch)

    def _lost(self, table: Table, txn: Transaction, c: Committable) -> list[str]:
        """Why what was prepared cannot be shown in this snapshot of the table; a copy can be merged again."""
        if "work" in c.payload:
            return []
        changed = gates.changes(c.payload["table"], gates.fingerprint(txn.metadata(), txn.protocol()))
        if changed:
            return [f"the table has changed since: {', '.join(sorted(changed))}"]
        with self._say.unavailable("the prepared files", c.decision.epoch):
            gone = [str(add["path"]) for add in c.payload["adds"] if table.size(str(add["path"])) != add["size"]]
        return [f"{len(gone)} of {len(c.payload['adds'])} files are gone, such as {gone[0]}"] if gone else []

    # reading and writing the log

    def _ids(self) -> tuple[str, str, str, str]:
        marker = f"epochal:{self._looked()}:{self._name}"
        return marker, f"{marker}:decision", f"{marker}:generation", f"{marker}:token"

    def _state(self, txn: Transaction | Snapshot) -> SinkState:
        """What the snapshot holds; of a sink that is renamed the marker is under one of its names."""
        state = self._own_state(txn)
        if self._also is not None and _is_moved(state):
            self._also._app = self._app
            return replace(state, marker=self._also._own_state(txn).marker)
        return state

    def _own_state(self, txn: Transaction | Snapshot) -> SinkState:
        """What is kept under this name.  All ids are read, so that a commit of ``txn`` depends on all of them."""
        with self._say.unavailable("the table's log"):
            version = txn.version_of(self._version_id())
            position, decision, generation, token = [txn.version_of(identity) for identity in self._ids()]
            seen = txn.version_of(self._seen_id())
            identity = _identity(str(txn.metadata()["id"]))
        formats.check_marker(f"Delta table {self._target}", version or 1, MARKER_VERSION, self._name)
        fence = Actor(generation, token) if generation is not None and token is not None else None
        marker = None
        if position is not None and decision is not None and position > 0:
            marker = Marker(position, decision, self._digest_at(txn, position))
        return SinkState(identity, fence, self._still_shown(txn, marker, seen))

    def _still_shown(self, txn: Transaction | Snapshot, marker: Marker | None, seen: int | None) -> Marker | None:
        """The marker whose rows the table has, after a RESTORE an older one; each version is read once by a start.

        None ``seen``: no start has looked for one yet, so what was before is not asked.
        """
        if seen is None:
            return marker
        position, decision, _, _ = self._ids()
        lineage = Lineage(txn.read, (position, decision), self._name)
        with self._say.unavailable("the table's log"):
            shown = lineage.marker(txn.version, max(seen, self._seen or seen), marker)
        if shown == marker:
            self._seen = txn.version
        return shown

    def _seen_id(self) -> str:
        return f"epochal:{self._looked()}:{self._name}:seen"

    def _version_id(self) -> str:
        return f"epochal:{self._looked()}:{self._name}:version"

    def _digest_ids(self) -> tuple[str, str, str]:
        marker = f"epochal:{self._looked()}:{self._name}"
        return f"{marker}:digested", f"{marker}:rows", f"{marker}:digest"

    def _digest_at(self, txn: Transaction | Snapshot, position: Position) -> Digest | None:
        """That of the newest epoch, where it was applied; an older one's stays in the log, under its position."""
        with self._say.unavailable("the table's log"):
            digested, rows, total = [txn.version_of(identity) for identity in self._digest_ids()]
        return Digest(rows, total) if digested == position and rows is not None and total is not None else None

    def _take(self, table: Table, by: Actor) -> None:
        """Write the fence in a version of its own; any put that was under way now conflicts with it."""
        answer: _Answer | None = None
        was_mine = False
        for _ in range(ATTEMPTS):
            txn = self._existing(self._begin(table, answered=answer))
            state = self._state(txn)
            is_mine = self._conditions.check_fence(state, by)
            if answer is not None and is_mine and (answer.kind is _Kind.DONE or not was_mine):
                return
            if answer is not None and answer.kind is _Kind.NONE:
                raise self._say.unknown(state=answer.why)
            was_mine = is_mine
            position, decision, generation, token = self._ids()
            held = {self._version_id(): MARKER_VERSION, generation: by.generation, token: by.token}
            held[self._seen_id()] = txn.version
            shown = state.marker or Marker(0, 0)
            if (txn.version_of(position) or 0) > shown.position:  # a RESTORE took rows away, and left the ids
                held |= {position: shown.position, decision: shown.decision}
            answer = self._put(txn, [_txn(identity, value) for identity, value in held.items()], "fence", -1, str(by))
        raise self._say.contended(ATTEMPTS, answer.why if answer is not None else None)

    def _publish(self, table: Table, txn: Transaction, c: Committable) -> _Answer:
        """Rows and marker, in the transaction that read what they depend on."""
        position, decision, _, _ = self._ids()
        markers = [_txn(position, c.position), _txn(decision, c.decision.id), _txn(self._seen_id(), txn.version)]
        if c.digest is not None:
            held = (c.position, c.digest.rows, c.digest.sum)
            markers += [_txn(identity, value) for identity, value in zip(self._digest_ids(), held, strict=True)]
        try:
            txn, actions = self._actions(table, txn, c)
        except JavaFailure as failure:
            if failure.is_a(*_CHANGED_MEANWHILE):
                return _Answer(_Kind.CONFLICT, failure.message)
            raise self._say.not_read("the table", failure, c.decision.epoch) from failure
        facts = history.facts(self._looked(), c)
        mode = modes.OUTPUT_MODES[c.payload.get("mode", "append")]
        answer = self._put(txn, [*markers, *actions], c.decision.incarnation, c.decision.epoch, facts, mode)
        try:
            if answer.kind is _Kind.DONE:
                failpoints.hit(Point.AFTER_PUBLISH, self._name, c.decision.epoch)
        except failpoints.AnswerDropped as dropped:
            return _Answer(_Kind.NONE, str(dropped))
        return answer

    def _actions(self, table: Table, txn: Transaction, c: Committable) -> tuple[Transaction, Sequence[Json]]:
        """What makes the epoch visible, and the transaction that it is for."""
        if "work" in c.payload:
            return self._merge_again(table, txn, c)
        adds = [{"add": add} for add in c.payload["adds"]]
        return txn, [*adds, *(txn.removals() if c.payload.get("mode") == "overwrite" else [])]

    def _merge_again(self, table: Table, txn: Transaction, c: Committable) -> tuple[Transaction, Sequence[Json]]:
        """Prepare's own MERGE, once, if nobody has touched the table since; else a new one on this snapshot."""
        tried, self._tried = self._tried, None
        if tried is not None and tried.decision == c.decision.id and tried.txn.version == txn.version:
            with self._say.unavailable("the prepared files", c.decision.epoch):
                if all(table.size(path) is not None for path in tried.written.files):
                    return tried.txn, tried.written.actions
        work = Work.from_json(self._name, c.payload["work"])
        session = work.session(jvm.session(self._name))
        problems = self._row_problems(work.plan.written(work.rows(session).schema), txn.metadata())
        if problems:
            raise self._say.in_doubt("; ".join(problems), c)
        try:
            return txn, self._merged(txn, work, session, c.rows, c.decision.epoch).actions
        except JavaFailure as failure:
            if failure.is_a(*_VIOLATIONS, "AnalysisException"):
                raise self._say.in_doubt("Delta does not merge the rows", c, failure.message) from failure
            raise

    def _merged(self, txn: Transaction, work: Work, session: SparkSession, count: int, epoch: EpochNumber) -> Written:
        """What Delta's MERGE makes of the snapshot and the epoch's rows."""
        if count == 0:
            return Written([], [])
        table = jvm.schema_of(txn.metadata())
        rows = work.plan.fitting(work.rows(session), table, case_sensitive=self._case_sensitive())
        rows = self._kept_in_partitions(rows, txn.metadata())
        self._struck(work.plan.source(rows), epoch).createOrReplaceTempView(SOURCE)
        return txn.merge(session, work.plan.statement(self._target.sql))

    def _put(
        self, txn: Transaction, actions: Iterable[Json], query: str, epoch: int, note: str, mode: str = "Append"
    ) -> _Answer:
        try:
            txn.commit(actions, query_id=query, epoch=epoch, user_metadata=note, output_mode=mode)
        except JavaFailure as failure:
            conflict = failure.is_a("DeltaConcurrentModificationException")
            return _Answer(_Kind.CONFLICT if conflict else _Kind.NONE, failure.message)
        return _Answer(_Kind.DONE)

    def _tidy(self, table: Table, c: Committable) -> None:
        with contextlib.suppress(JavaFailure):  # the epoch is visible; the next one tidies again
            Staged(table, self._looked(), self._name).drop_done(marker_of(c))

    # writing files

    @property
    def _adds_only(self) -> bool:
        return isinstance(self._mode, Append)

    def _check_table(self, txn: Transaction, metadata: Json, epoch: EpochNumber) -> None:
        """What ``check`` has refused at the start may have come since."""
        forgets = gates.forgets(metadata)
        problems = [*([forgets] if forgets else []), *gates.table_problems(metadata, self._adds_only)]
        if problems:
            raise self._say.refused("; ".join(problems), epoch)
        try:
            txn.check_writable()
        except JavaFailure as failure:
            raise self._say.refused("Delta refuses to write to the table", epoch, failure.message) from failure

    def _row_problems(self, rows: StructType, metadata: Json) -> list[str]:
        """Why such rows do not fit the table, or would not with the columns that prepare adds to it."""
        case_sensitive, table = self._case_sensitive(), jvm.schema_of(metadata)
        if self._merge_schema:
            table = gates.with_columns(table, self._added(rows, metadata))
        return gates.row_problems(rows, table, case_sensitive=case_sensitive)

    def _added(self, rows: StructType, metadata: Json) -> StructType:
        return gates.added(rows, jvm.schema_of(metadata), case_sensitive=self._case_sensitive())

    def _remedy(self, added: StructType) -> str:
        if not added.fields:
            return f"cast or rename in the query, or alter the table {self._target}"
        return f"{self._add_columns(added)}, or give the sink merge_schema=True, or leave the columns out with select="

    def _add_columns(self, added: StructType) -> str:
        return f"ALTER TABLE {self._target.sql} ADD COLUMNS ({jvm.ddl(jvm.session(self._name), added)})"

    def _with_columns(self, table: Table, txn: Transaction, added: StructType, epoch: Epoch, by: Actor) -> Transaction:
        """The table with these columns, all NULL as yet, whatever becomes of the epoch; a snapshot that has them."""
        from pyspark.errors import PySparkException

        self._conditions.check_owner(self._state(txn), by, epoch.number)
        failed: PySparkException | None = None
        try:
            jvm.session(self._name).sql(self._add_columns(added))
        except PySparkException as error:  # perhaps somebody else has added them meanwhile
            failed = error
        txn = self._existing(self._begin(table))
        if self._added(added, txn.metadata()).fields:
            what = f"Delta does not add the columns {added.names}"
            state = str(failed) if failed is not None else "it said that it did, and the table has not got them"
            raise self._say.refused(what, epoch.number, state) from failed
        return txn

    def _fitting(self, rows: DataFrame, metadata: Json, epoch: EpochNumber) -> DataFrame:
        """The rows as files of the table hold them; ``PrepareRefused`` where they do not."""
        self._refuse_rows(rows.schema, metadata, epoch)
        table, case_sensitive = jvm.schema_of(metadata), self._case_sensitive()
        fitting = self._struck(rows, epoch).to(gates.projection(rows.schema, table, case_sensitive=case_sensitive))
        return self._kept_in_partitions(fitting, metadata)

    def _kept_in_partitions(self, rows: DataFrame, metadata: Json) -> DataFrame:
        """The rows, of which one whose partition would not keep its values ends the job."""
        from pyspark.sql import functions as f

        for field in gates.partitions(metadata):
            for name in gates.in_both(rows.columns, [field.name], case_sensitive=self._case_sensitive()):
                column = f.col(quoted(name))
                if (unkept := gates.is_unkept(column, field.dataType)) is not None:
                    rows = rows.withColumn(name, f.when(unkept, f.raise_error(f.lit(_UNKEPT))).otherwise(column))
        return rows

    def _refuse_rows(self, rows: StructType, metadata: Json, epoch: EpochNumber) -> None:
        problems = self._row_problems(rows, metadata)
        if problems:
            raise self._say.refused("; ".join(problems), epoch, help=self._remedy(self._added(rows, metadata)))

    def _struck(self, rows: DataFrame, epoch: EpochNumber) -> DataFrame:
        if failpoints.is_armed(Point.IN_WRITE):
            return rows.mapInArrow(_hit_between_rows(self._name, epoch), rows.schema)
        return rows

    def _write_files(self, txn: Transaction, rows: DataFrame, epoch: EpochNumber) -> list[Json]:
        with self._refusing_violations(epoch):
            return [_without_row_ids(action["add"]) for action in txn.write_files(rows)]

    @contextlib.contextmanager
    def _refusing_violations(self, epoch: EpochNumber) -> Iterator[None]:
        try:
            yield
        except JavaFailure as failure:
            if _UNKEPT in failure.message:
                help_line = (
                    "give such rows another value, keep them out with where=, or partition by another column; for"
                    " times set spark.sql.session.timeZone to UTC"
                )
                raise self._say.refused(_UNKEPT, epoch, help=help_line) from failure
            if failure.is_a(*_VIOLATIONS):
                raise self._say.refused("rows violate a constraint of the table", epoch, failure.message) from failure
            raise

    def _read_back(self, table: Table, adds: Sequence[Json], epoch: EpochNumber) -> None:
        for add in adds:
            size = table.size(str(add["path"]))
            if size != add["size"]:
                raise self._say.refused(
                    f"a file that was written is not there: {add['path']}", epoch, f"{size} bytes, not {add['size']}"
                )

    # small things

    def _find(self) -> Table | None:
        """None: the catalog has no table of that name."""
        spark = jvm.session(self._name)
        jvm.self_test(spark, self._name)
        path = self._target.location(spark, self._name)
        with self._say.unavailable("the table"):
            return Table(spark, path) if path is not None else None

    def _table(self) -> Table:
        table = self._find()
        if table is None:
            raise self._say.missing()
        return table

    def _begin(self, table: Table, *, known: Transaction | None = None, answered: _Answer | None = None) -> Transaction:
        """A transaction on the newest snapshot, which is not listed where it still is that of ``known``.

        After a request that may be applied its failure is no answer.
        """
        try:
            self._known = table.begin(known)
        except JavaFailure as failure:
            if answered is not None:
                raise self._say.unknown(state=failure.message) from failure
            raise self._say.not_read("the table's log", failure) from failure
        return self._known

    def _existing(self, txn: Transaction) -> Transaction:
        if not txn.exists:
            raise self._say.missing()
        return txn

    def _case_sensitive(self) -> bool:
        return jvm.session(self._name).conf.get("spark.sql.caseSensitive", "false") == "true"

    def _looked(self) -> str:
        return looked(self._app, self._name)

    def _refuse_forgetful(self, metadata: Json) -> None:
        """A marker that Delta may forget proves nothing."""
        forgets = gates.forgets(metadata)
        if forgets is not None:
            statement = f"ALTER TABLE {self._target.sql} UNSET TBLPROPERTIES ('{gates.RETENTION}')"
            self._say.refuse_set_up([forgets], f"{statement}; markers that are gone by then are refused as lost")


_UNKEPT = (
    "a column that partitions the table has a value that Delta gives back as another one: an empty text, bytes that are"
    " no text, Hive's word for NULL, or a time in the hour that clocks repeat in the session's time zone"
)
_VIOLATIONS = ("InvariantViolationException", "DeltaInvariantViolationException")
_CHANGED_MEANWHILE = ("DeltaConcurrentModificationException", "FileNotFoundException", "SparkFileNotFoundException")
"""What a MERGE meets when another changes the table under it; it is made again, on a new snapshot."""


def _is_moved(state: SinkState) -> bool:
    return state.marker is not None and state.marker.is_moved


def _identity(table_id: str) -> str:
    return f"delta:{table_id}"


def _txn(identity: str, version: int) -> Json:
    return {"txn": {"appId": identity, "version": version, "lastUpdated": int(time.time() * 1000)}}


def _without_row_ids(add: Json) -> Json:
    """Row ids are given by the commit that shows the file, so that two appends cannot get the same."""
    return {key: value for key, value in add.items() if key not in ("baseRowId", "defaultRowCommitVersion")}


def _rows(table: Table, adds: Sequence[Json]) -> int:
    counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in adds]
    if None in counts:
        return table.count_rows([str(add["path"]) for add in adds])
    return sum(counts)


def _hit_between_rows(sink: str, epoch: EpochNumber) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A pass over the rows that is there only while the failpoint in a task is armed."""

    def strike(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            failpoints.hit(Point.IN_WRITE, sink, epoch)
            yield batch.slice(1)

    return strike
