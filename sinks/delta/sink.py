"""The Delta sink: votes by writing data files that the table's log does not name yet.

Four *transaction ids* of the table hold what Epochal knows, each a 63-bit number::

    epochal:<app>:<sink>              position  }  marker: written in the same version of the table
    epochal:<app>:<sink>:decision     decision  }  as the rows
    epochal:<app>:<sink>:generation   fence     }  written by fence
    epochal:<app>:<sink>:token        fence     }

Every commit first reads all four, in its own transaction.  Delta then refuses the commit if another has
written one of them since, so the conditions that were judged still hold when the rows become visible: an
older start, or the same commit twice, cannot get through.

A version of the log is created only where there is none.  But a put that was slow can land below a log
that was cleaned up meanwhile: it succeeds, and nobody reads it.  So what was written counts only after a
new snapshot shows it.
"""

from __future__ import annotations

import contextlib
import enum
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from epochal.chaos import failpoints
from epochal.chaos.failpoints import Point
from epochal.coordinator.epoch import (
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
from epochal.coordinator.errors import (
    CheckpointMismatch,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.conditions import Conditions, check_name, looked, marker_of
from epochal.sinks.delta import gates, jvm
from epochal.sinks.delta.jvm import JavaFailure, Table, Transaction
from epochal.sinks.delta.staged import Note, Staged
from epochal.sinks.digest import watched
from epochal.sinks.protocol import CommitOutcome

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ATTEMPTS = 10
"""How often one call writes again after a conflict with another writer of the table."""

PAYLOAD_VERSION = 1


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


class DeltaSink:
    """Appends every epoch to the Delta table at ``path``, as one version of the table.

    ``name`` is the sink's stable name, by default ``delta-`` and the last part of the path; ``partition_by`` is for
    :meth:`create` alone.  Plain data: it can be pickled, and holds no session.
    """

    def __init__(self, path: str, *, name: str | None = None, partition_by: Sequence[str] = ()) -> None:
        self._path = path
        self._name = "delta-" + path.rstrip("/").rpartition("/")[2] if name is None else name
        check_name("sink name", self._name)
        self._partition_by = tuple(partition_by)
        self._conditions = Conditions(self._name, f"Delta table {path}")
        self._app: str | None = None

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"DeltaSink({self._path!r}, name={self._name!r})"

    # set-up

    def create(self, query: Query, schema: StructType) -> Sequence[str]:
        """Make the table if there is none; ``Misconfigured`` for types that no Delta table holds."""
        check_name("app", query.app, self._name)
        self._refuse_set_up(gates.unholdable(schema), "change the query's types with a cast")
        table = self._table()
        if self._begin(table).exists:
            return []
        try:
            self._create(schema)
        except (JavaFailure, PySparkException) as error:
            raise self._misconfigured(f"Delta does not make a table at {self._path}", str(error)) from error
        return [f"created Delta table {self._path}"]

    def _create(self, schema: StructType) -> None:
        try:
            from delta.tables import DeltaTable
        except ImportError as error:
            raise Misconfigured(
                "the Python package delta-spark is missing", sink=self._name, help="pip install 'epochal[delta]'"
            ) from error
        table = DeltaTable.createIfNotExists(jvm.session(self._name)).location(self._path).addColumns(schema)
        if self._partition_by:
            table = table.partitionedBy(*self._partition_by)
        with jvm.java_errors():
            table.execute()

    def check(self, query: Query, schema: StructType) -> None:
        """Refuse what can never work: no table, other columns, types that it cannot hold exactly."""
        check_name("app", query.app, self._name)
        table = self._table()
        txn = self._existing(self._begin(table))
        metadata = txn.metadata()
        self._refuse_set_up(gates.table_problems(metadata), "write to a table without it")
        case_sensitive = self._case_sensitive()
        table_schema = jvm.schema_of(metadata)
        problems = gates.row_problems(schema, table_schema, case_sensitive=case_sensitive)
        self._refuse_set_up(problems, f"cast or rename in the query, or alter the table {self._path}")
        try:
            txn.check_writable()
        except JavaFailure as failure:
            raise self._misconfigured("Delta refuses to write to the table", failure.message) from failure
        with self._unavailable("the table"):
            closed = [folder for folder in (".", "_delta_log") if not table.may_write(folder)]
        if closed:
            raise Misconfigured(
                f"this process may not write to the Delta table at {self._path}",
                sink=self._name,
                state=f"folders without write permission: {closed}",
                help="give its user the right to make files there",
            )

    # the protocol

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:  # noqa: ARG002
        """Read one new snapshot.  After a fence it is final: the fence took a version of the log, so
        what an older actor still has under way conflicts with it."""
        check_name("app", query.app, self._name)
        self._app = query.app
        return self._state(self._existing(self._begin(self._table())))

    def fence(self, query: Query, by: Actor) -> None:
        """Write the fence if no newer one stands, and see it in a new snapshot before answering."""
        self._app = query.app
        self._take(self._table(), by)

    def prepare(self, epoch: Epoch, rows: DataFrame, by: Actor) -> Committable:
        """Write the data files and the note that says whose they are; the log names none of them."""
        app = self._looked()
        table = self._table()
        txn = self._existing(self._begin(table))
        metadata = txn.metadata()
        rows, digest = watched(rows) if epoch.digest else (rows, None)
        fitting = self._fitting(rows, txn, metadata, epoch.number)
        adds = self._write_files(txn, fitting, epoch.number)
        files = [str(add["path"]) for add in adds]
        with self._unavailable("the prepared files", epoch.number):
            Staged(table, app, self._name).note(Note(epoch.position, by, epoch.decision.id), files)
            self._read_back(table, adds, epoch.number)
            count = _rows(table, adds)
        failpoints.hit(Point.BEFORE_VOTE, self._name, epoch.number)
        payload = {
            "version": PAYLOAD_VERSION,
            "adds": adds,
            "table": gates.fingerprint(metadata, txn.protocol()),
            "offsets": epoch.offsets,
            "watermark": epoch.watermark,
        }
        digested = digest() if digest is not None else None
        return Committable(self._name, epoch.decision, epoch.position, count, payload, digest=digested)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Put files and marker into the log as one version; done when a new snapshot shows the marker."""
        self._looked()
        table = self._table()
        answer: _Answer | None = None
        log_taken = False
        for _ in range(ATTEMPTS):
            txn = self._begin(table, answered=answer)
            if self._already_committed(txn, committable, by):
                if answer is None:
                    return CommitOutcome.ALREADY_COMMITTED
                self._tidy(table, committable)
                return CommitOutcome.COMMITTED
            if answer is not None and answer.kind is _Kind.NONE:
                raise self._unknown(committable.decision.epoch, answer.why)
            lost = self._lost(table, txn, committable)
            if lost and log_taken:
                raise self._prepared_lost(lost, committable)
            if lost:  # an earlier put may be under way: take the version it wants, then look again
                self._take(table, by)
                log_taken = True
                continue
            failpoints.hit(Point.BEFORE_PUBLISH, self._name, committable.decision.epoch)
            answer = self._publish(txn, committable)
        raise self._contended(answer, committable.decision.epoch)

    def abort(self, query: Query, by: Actor) -> None:
        """Delete what ``by`` and lower generations prepared beyond the marker, as far as a note names it."""
        self._app = query.app
        table = self._table()
        state = self._state(self._existing(self._begin(table)))
        self._conditions.check_owner(state, by)
        with self._unavailable("what is prepared"):
            Staged(table, query.app, self._name).drop_undecided(state.marker, by)

    def close(self) -> None:
        """Nothing is held open: the Spark session is the user's."""
        self._app = None

    def guarantee(self) -> str:
        return (
            f"{self._name}: every epoch is one version of the Delta table at {self._path}, so each snapshot "
            "shows it whole or not at all, exactly once and in order. Other writers may append, OPTIMIZE and "
            "VACUUM beside it. It holds where Delta's log store creates a version only if there is none "
            "(all of Delta's own do, on S3 the multi-cluster one if there are several clusters), and where what it "
            "wrote survives (on a local disk Delta does not fsync, so a power loss may take it). Files of an "
            "epoch that was not decided are deleted at the next start; those of a start that died while "
            "writing, and of failed task attempts, stay unread in the table's folder until VACUUM."
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
                state=f"Delta table {self._path}",
                help="the table was dropped and made again; the decided rows belong to the old one: restore it",
            )
        return self._conditions.already_committed(state, by, marker_of(c), c.decision.epoch)

    def _lost(self, table: Table, txn: Transaction, c: Committable) -> list[str]:
        """Why what was prepared cannot be shown in this snapshot of the table."""
        changed = gates.changes(c.payload["table"], gates.fingerprint(txn.metadata(), txn.protocol()))
        if changed:
            return [f"the table has changed since: {', '.join(sorted(changed))}"]
        with self._unavailable("the prepared files", c.decision.epoch):
            gone = [str(add["path"]) for add in c.payload["adds"] if table.size(str(add["path"])) != add["size"]]
        return [f"{len(gone)} of {len(c.payload['adds'])} files are gone, such as {gone[0]}"] if gone else []

    # reading and writing the log

    def _ids(self) -> tuple[str, str, str, str]:
        marker = f"epochal:{self._looked()}:{self._name}"
        return marker, f"{marker}:decision", f"{marker}:generation", f"{marker}:token"

    def _state(self, txn: Transaction) -> SinkState:
        """What the snapshot holds.  All four are read, so that a commit of ``txn`` depends on all four."""
        with self._unavailable("the table's log"):
            position, decision, generation, token = [txn.version_of(identity) for identity in self._ids()]
            identity = _identity(str(txn.metadata()["id"]))
        fence = Actor(generation, token) if generation is not None and token is not None else None
        marker = None
        if position is not None and decision is not None:
            marker = Marker(position, decision, self._digest_at(txn, position))
        return SinkState(identity, fence, marker)

    def _digest_ids(self) -> tuple[str, str, str]:
        marker = f"epochal:{self._looked()}:{self._name}"
        return f"{marker}:digested", f"{marker}:rows", f"{marker}:digest"

    def _digest_at(self, txn: Transaction, position: Position) -> Digest | None:
        """That of the newest epoch, where it was applied; an older one's stays in the log, under its position."""
        with self._unavailable("the table's log"):
            digested, rows, total = [txn.version_of(identity) for identity in self._digest_ids()]
        return Digest(rows, total) if digested == position and rows is not None and total is not None else None

    def _take(self, table: Table, by: Actor) -> None:
        """Write the fence in a version of its own; any put that was under way now conflicts with it."""
        answer: _Answer | None = None
        was_mine = False
        for _ in range(ATTEMPTS):
            txn = self._existing(self._begin(table, answered=answer))
            is_mine = self._conditions.check_fence(self._state(txn), by)
            if answer is not None and is_mine and (answer.kind is _Kind.DONE or not was_mine):
                return
            if answer is not None and answer.kind is _Kind.NONE:
                raise self._unknown(state=answer.why)
            was_mine = is_mine
            _, _, generation, token = self._ids()
            answer = self._put(txn, [_txn(generation, by.generation), _txn(token, by.token)], "fence", -1, str(by))
        raise self._contended(answer)

    def _publish(self, txn: Transaction, c: Committable) -> _Answer:
        position, decision, _, _ = self._ids()
        markers = [_txn(position, c.position), _txn(decision, c.decision.id)]
        if c.digest is not None:
            held = (c.position, c.digest.rows, c.digest.sum)
            markers += [_txn(identity, value) for identity, value in zip(self._digest_ids(), held, strict=True)]
        adds = [{"add": add} for add in c.payload["adds"]]
        facts = json.dumps(self._facts(c))
        answer = self._put(txn, [*markers, *adds], c.decision.incarnation, c.decision.epoch, facts)
        try:
            if answer.kind is _Kind.DONE:
                failpoints.hit(Point.AFTER_PUBLISH, self._name, c.decision.epoch)
        except failpoints.AnswerDropped as dropped:
            return _Answer(_Kind.NONE, str(dropped))
        return answer

    def _put(self, txn: Transaction, actions: Iterable[Json], query: str, epoch: int, note: str) -> _Answer:
        try:
            txn.commit(actions, query_id=query, epoch=epoch, user_metadata=note)
        except JavaFailure as failure:
            conflict = failure.is_a("DeltaConcurrentModificationException")
            return _Answer(_Kind.CONFLICT if conflict else _Kind.NONE, failure.message)
        return _Answer(_Kind.DONE)

    def _facts(self, c: Committable) -> Json:
        """What people read in the table's history; nothing depends on it, as it goes when the log is cleaned."""
        return {
            "app": self._app,
            "sink": self._name,
            "incarnation": c.decision.incarnation,
            "epoch": c.decision.epoch,
            "position": c.position,
            "decision": c.decision.id,
            "rows": c.rows,
            "offsets": c.payload["offsets"],
            "watermark": c.payload["watermark"],
        }

    def _tidy(self, table: Table, c: Committable) -> None:
        with contextlib.suppress(JavaFailure):  # the epoch is visible; the next one tidies again
            Staged(table, self._looked(), self._name).drop_done(marker_of(c))

    # writing files

    def _fitting(self, rows: DataFrame, txn: Transaction, metadata: Json, epoch: EpochNumber) -> DataFrame:
        table = jvm.schema_of(metadata)
        case_sensitive = self._case_sensitive()
        problems = gates.table_problems(metadata)
        problems += gates.row_problems(rows.schema, table, case_sensitive=case_sensitive)
        if problems:
            raise self._refused("; ".join(problems), epoch)
        try:
            txn.check_writable()
        except JavaFailure as failure:
            raise self._refused("Delta refuses to write to the table", epoch, failure.message) from failure
        if failpoints.is_armed(Point.IN_WRITE):
            rows = rows.mapInArrow(_hit_between_rows(self._name, epoch), rows.schema)
        return rows.to(gates.projection(rows.schema, table, case_sensitive=case_sensitive))

    def _write_files(self, txn: Transaction, rows: DataFrame, epoch: EpochNumber) -> list[Json]:
        try:
            actions = txn.write_files(rows)
        except JavaFailure as failure:
            if failure.is_a("InvariantViolationException", "DeltaInvariantViolationException"):
                raise self._refused("rows violate a constraint of the table", epoch, failure.message) from failure
            raise
        return [_without_row_ids(action["add"]) for action in actions]

    def _read_back(self, table: Table, adds: Sequence[Json], epoch: EpochNumber) -> None:
        for add in adds:
            size = table.size(str(add["path"]))
            if size != add["size"]:
                raise self._refused(
                    f"a file that was written is not there: {add['path']}", epoch, f"{size} bytes, not {add['size']}"
                )

    # small things

    def _table(self) -> Table:
        spark = jvm.session(self._name)
        jvm.self_test(spark, self._name)
        with self._unavailable("the table"):
            return Table(spark, self._path)

    def _begin(self, table: Table, *, answered: _Answer | None = None) -> Transaction:
        """A transaction on a new snapshot; after a request that may be applied its failure is no answer."""
        try:
            return table.begin()
        except JavaFailure as failure:
            if answered is not None:
                raise self._unknown(state=failure.message) from failure
            if any(name.startswith("Delta") for name in failure.classes) or failure.is_a("AnalysisException"):
                raise self._misconfigured("Delta refuses to read the table", failure.message) from failure
            raise self._unavailable_error("the table's log", failure) from failure

    def _existing(self, txn: Transaction) -> Transaction:
        if not txn.exists:
            raise Misconfigured(
                f"there is no Delta table at {self._path}", sink=self._name, help="call pipeline.create(schema) once"
            )
        return txn

    def _case_sensitive(self) -> bool:
        return jvm.session(self._name).conf.get("spark.sql.caseSensitive", "false") == "true"

    def _looked(self) -> str:
        return looked(self._app, self._name)

    def _refuse_set_up(self, problems: Sequence[str], remedy: str) -> None:
        if problems:
            raise Misconfigured(
                f"the Delta table {self._path} cannot hold the rows exactly: {'; '.join(problems)}",
                sink=self._name,
                help=remedy,
            )

    def _misconfigured(self, what: str, state: str) -> Misconfigured:
        return Misconfigured(what, sink=self._name, state=_first_line(state), help="see what Delta says")

    def _refused(self, what: str, epoch: EpochNumber, state: str | None = None) -> PrepareRefused:
        state = _first_line(state) if state is not None else None
        return PrepareRefused(
            what, sink=self._name, epoch=epoch, state=state, help="change the query or alter the table, and start again"
        )

    def _prepared_lost(self, lost: Sequence[str], c: Committable) -> PreparedLost:
        return PreparedLost(
            f"the prepared epoch cannot be shown any more, and nothing of it is visible: {'; '.join(lost)}",
            sink=self._name,
            epoch=c.decision.epoch,
            state=f"Delta table {self._path}: {c.rows} rows, prepared for position {c.position} by {c.decision.actor}",
            help="start the query again: the rows are redone",
        )

    def _unknown(self, epoch: EpochNumber | None = None, state: str | None = None) -> OutcomeUnknown:
        return OutcomeUnknown(
            "no answer to a commit, and a new snapshot does not show it (yet)",
            sink=self._name,
            epoch=epoch,
            state=_first_line(state) if state else None,
            help="commit again: it looks at the marker first",
        )

    def _contended(self, answer: _Answer | None, epoch: EpochNumber | None = None) -> SinkUnavailable:
        return SinkUnavailable(
            f"{ATTEMPTS} commits in a row met with a conflict",
            sink=self._name,
            epoch=epoch,
            state=_first_line(answer.why) if answer is not None else None,
            help="see who else writes this app's sink, or changes the table's schema all the time",
        )

    def _unavailable_error(self, what: str, failure: JavaFailure, epoch: EpochNumber | None = None) -> SinkUnavailable:
        return SinkUnavailable(
            f"{what} cannot be read or written",
            sink=self._name,
            epoch=epoch,
            state=_first_line(failure.message),
            help=f"see whether {self._path} can be reached",
        )

    @contextlib.contextmanager
    def _unavailable(self, what: str, epoch: EpochNumber | None = None) -> Iterator[None]:
        try:
            yield
        except JavaFailure as failure:
            raise self._unavailable_error(what, failure, epoch) from failure


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


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _hit_between_rows(sink: str, epoch: EpochNumber) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A pass over the rows that is there only while the failpoint in a task is armed."""

    def strike(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            failpoints.hit(Point.IN_WRITE, sink, epoch)
            yield batch.slice(1)

    return strike
