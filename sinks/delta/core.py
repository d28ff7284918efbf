"""What all methods of a Delta sink share: its arguments, its table, and its fence and marker in the table's log."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Digest, Json, Marker, Position, SinkState
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.conditions import Conditions, check_name, looked
from epochal.sinks.delta import ddl, gates, jvm, modes, self_test
from epochal.sinks.delta.jvm import JavaFailure, Table, Transaction, Written
from epochal.sinks.delta.lineage import Lineage
from epochal.sinks.delta.log_store import LogStore
from epochal.sinks.delta.merge import MergePlan
from epochal.sinks.delta.modes import Append, Merge, Mode
from epochal.sinks.delta.refusals import Refusals
from epochal.sinks.delta.target import Target
from epochal.sinks.delta.without_spark import Snapshot
from epochal.sinks.rows import formats, keyed
from epochal.sinks.rows.projection import Projection
from epochal.sinks.spark.executors import running_session
from epochal.sinks.spark.names import quoted
from epochal.sinks.spark.settings import is_case_sensitive

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ATTEMPTS = 10
"""How many times one call tries to commit if each try conflicts with another writer of the table."""

PAYLOAD_VERSION = 2
"""The version of a vote's payload.  Version 2 has a mode.  An append is written as version 1 for older readers."""
CAST = "cast or rename in the query"
"""The way out of what no Delta table can hold."""
NO_CAST = "column {}: it is NOT NULL inside a column, and Delta's MERGE takes no rows for it"
"""Why a sink that merges refuses a table; ``{}``: the path of a field or element."""
MARKER_VERSION = 1
"""The version of the transaction ids."""


class CommitStatus(enum.Enum):
    """How a commit request ended, as far as its caller can see."""

    DONE = "done"
    CONFLICT = "conflict"  # not applied, unless the conflict is with this very commit
    UNKNOWN = "unknown"  # no answer: it may be applied


@dataclass(frozen=True)
class CommitResult:
    """The result of a commit request.  Only a new snapshot shows whether the commit is visible."""

    kind: CommitStatus
    why: str = ""


@dataclass(frozen=True)
class UncommittedMerge:
    """A MERGE that prepare made and did not commit, with its decision and its transaction."""

    decision: int
    txn: Transaction
    written: Written


@dataclass(frozen=True)
class Filed:
    """Data files that were written before prepare, with the decision they are for."""

    decision: int
    adds: Sequence[Json]
    table: Json
    """What the files depend on, as :func:`gates.fingerprint` gives it."""


class Core:
    """The arguments of a sink (``DeltaSink`` explains them), its table, and what this start has read of the table."""

    def __init__(
        self,
        path: str | None,
        *,
        table: str | None,
        mode: Mode,
        name: str | None,
        partition_by: Sequence[str],
        merge_schema: bool,
        select: Sequence[str] | None,
        where: str | None,
    ) -> None:
        self.target = Target.of(path, table)
        self.name = self.target.default_name if name is None else name
        check_name("sink name", self.name)
        modes.check(mode, self.name)
        self.mode = mode
        self.partition_by = tuple(partition_by)
        self.merge_schema = merge_schema
        self.projection = Projection.of(self.name, select, where)
        self.say = Refusals(self.name, self.target)
        self.conditions = Conditions(self.name, f"Delta table {self.target}")
        self.app: str | None = None
        self.tried: UncommittedMerge | None = None
        self.filed: Filed | None = None
        self.seen: int | None = None
        self.renames: tuple[str, Mapping[str, str]] | None = None  # a schema of the table, and old names of its columns
        self.known: Transaction | None = None  # the newest one: prepare and commit may use its snapshot
        self.also: Core | None = None  # while a sink is renamed: the same sink under its other name

    def case_sensitive(self) -> bool:
        return is_case_sensitive(jvm.session(self.name))

    def looked(self) -> str:
        return looked(self.app, self.name)

    @property
    def adds_only(self) -> bool:
        return isinstance(self.mode, Append)

    @property
    def key(self) -> Sequence[str]:
        """The columns by which rows are merged."""
        return self.mode.keys if isinstance(self.mode, Merge) else ()

    @property
    def unwritten(self) -> Sequence[str]:
        """The columns of the rows that no table has."""
        return self.mode.deletes if isinstance(self.mode, Merge) else ()

    def planned(self, mode: object, rows: Sequence[str], table: Sequence[str]) -> MergePlan:
        there = gates.in_both(rows, table, case_sensitive=self.case_sensitive())
        return MergePlan.of(mode, rows, there)

    def projected(self, schema: StructType) -> StructType:
        """Return the schema after ``select=``; ``Misconfigured`` if the mode names a column that it does not have."""
        rows = self.projection.check(schema)
        if isinstance(self.mode, Merge):
            kinds = {field.name: field.dataType.simpleString() for field in rows.fields}
            keyed.check_columns(self.mode, kinds, self.name)
            self.say.refuse_set_up(gates.names_of_merge(kinds), "give it another name in the query or with select=")
        return rows

    def written(self, rows: StructType, table: Sequence[str]) -> StructType:
        """Return the part of the schema that is written to a table with the columns ``table``."""
        return self.planned(self.mode, rows.names, table).written(rows)

    def row_problems(self, rows: StructType, metadata: Json) -> list[str]:
        """Return why such rows do not fit the table, a sentence each.  A column that prepare will add is no problem."""
        case_sensitive, table = self.case_sensitive(), jvm.schema_of(metadata)
        added = self.added(rows, metadata)
        if unnamed := self._unnamed(added, metadata):
            return unnamed
        if self.merge_schema:
            table = gates.with_columns(table, added)
        return gates.row_problems(rows, table, case_sensitive=case_sensitive)

    def _unnamed(self, added: StructType, metadata: Json) -> list[str]:
        return [] if gates.is_mapped(metadata) else gates.unnamed(added)

    def added(self, rows: StructType, metadata: Json) -> StructType:
        return gates.added(rows, jvm.schema_of(metadata))

    def remedy(self, rows: StructType, metadata: Json) -> str:
        """Return the way out of :meth:`row_problems`; a statement is one that Delta takes."""
        added, table = self.added(rows, metadata), jvm.schema_of(metadata)
        if self._unnamed(added, metadata):
            return f"give them other names with select=, or let the table have them: {self.mapping()}"
        if gates.unholdable(rows):
            return CAST
        if added.fields and not self.merge_schema:
            adding = self.add_columns(added)
            return f"{adding}, or give the sink merge_schema=True, or leave the columns out with select="
        if lacked := gates.lacked(rows, table, case_sensitive=self.case_sensitive()):
            return f"{self.without_not_null([quoted(name) for name in lacked])}, or give the rows {', '.join(lacked)}"
        return f"cast or rename in the query, or give the column of {self.target} that type or name"

    def refuse_unsupported(self, rows: StructType, metadata: Json, protocol: Json) -> None:
        """Raise ``Misconfigured`` if rows have columns that the table lacks, and lacks a feature for."""
        statement = f"ALTER TABLE {self.target.sql} SET TBLPROPERTIES ('{gates.NTZ_PROPERTY}' = 'supported')"
        self.say.refuse_set_up(
            gates.unsupported(self.added(rows, metadata), protocol),
            f"{statement}, which some readers do not know, or cast it in the query to timestamp or string",
        )

    def mapping(self, mode: str = "name") -> str:
        """Return the statement after which names of columns are only names."""
        return f"ALTER TABLE {self.target.sql} SET TBLPROPERTIES ('{gates.MAPPING}' = '{mode}')"

    def as_text(self, names: Sequence[str]) -> str:
        """Return the statements that make these columns of the table STRING, which Delta does without rewriting."""
        return "; ".join(f"ALTER TABLE {self.target.sql} ALTER COLUMN {quoted(name)} TYPE STRING" for name in names)

    def inner_not_null(self, metadata: Json, names: Sequence[str]) -> list[str]:
        """Return what is NOT NULL inside columns that a MERGE writes; nothing in another mode."""
        return gates.inner_not_null(jvm.schema_of(metadata), names) if isinstance(self.mode, Merge) else []

    def without_not_null(self, paths: Sequence[str]) -> str:
        """Return the statements that let these parts of columns be NULL."""
        return "; ".join(f"ALTER TABLE {self.target.sql} ALTER COLUMN {path} DROP NOT NULL" for path in paths)

    def add_columns(self, added: StructType) -> str:
        return f"ALTER TABLE {self.target.sql} ADD COLUMNS ({ddl.columns(added)})"

    def find(self) -> Table | None:
        """Return the table at the target; None if the catalog has no table with that name."""
        spark = jvm.session(self.name)
        self_test.check(spark, self.name)
        path = self.target.location(spark, self.name)
        with self.say.unavailable("the table"):
            return Table(spark, path) if path is not None else None

    def log_store(self) -> LogStore | None:
        """Return the log store that Delta takes for the table; None if nobody here can tell it.  Raise nothing."""
        try:
            with jvm.java_errors():
                spark = running_session()
                if spark is None:
                    return None
                self_test.check(spark, self.name)
                path = self.target.location(spark, self.name)
                return jvm.log_store(spark, path) if path is not None else None
        except (Misconfigured, JavaFailure):  # a start tells it
            return None

    def table(self) -> Table:
        table = self.find()
        if table is None:
            raise self.say.missing()
        return table

    def begin(
        self, table: Table, *, known: Transaction | None = None, answered: CommitResult | None = None
    ) -> Transaction:
        """Begin a transaction on the newest snapshot.  If that of ``known`` is still the newest, the log is not listed.

        ``answered``: the result of an earlier commit request in this call.  If the snapshot then cannot be read, the
        error is ``OutcomeUnknown``, because that request may have been applied.
        """
        try:
            self.known = table.begin(known)
        except JavaFailure as failure:
            if answered is not None:
                raise self.say.unknown(state=failure.message) from failure
            raise self.say.not_read("the table's log", failure) from failure
        return self.known

    def existing(self, txn: Transaction) -> Transaction:
        if not txn.exists:
            raise self.say.missing()
        return txn

    def state(self, txn: Transaction | Snapshot) -> SinkState:
        """Return identity, fence and marker in the snapshot.

        While a sink is renamed, its marker may be kept under its other name.
        """
        state = self.own_state(txn)
        if self.also is not None and is_moved(state):
            self.also.app = self.app
            return replace(state, marker=self.also.own_state(txn).marker)
        return state

    def own_state(self, txn: Transaction | Snapshot) -> SinkState:
        """Return what is kept under this name.  Read all ids, so that a commit of ``txn`` depends on all of them."""
        with self.say.unavailable("the table's log"):
            version = txn.version_of(self.version_id())
            position, decision, generation, token = [txn.version_of(identity) for identity in self.ids()]
            seen = txn.version_of(self.seen_id())
            identity = identity_of(str(txn.metadata()["id"]))
        formats.check_marker(f"Delta table {self.target}", version or 1, MARKER_VERSION, self.name)
        fence = Actor(generation, token) if generation is not None and token is not None else None
        marker = None
        if position is not None and decision is not None and position > 0:
            marker = Marker(position, decision, self.digest_at(txn, position))
        return SinkState(identity, fence, self.still_shown(txn, marker, seen))

    def still_shown(self, txn: Transaction | Snapshot, marker: Marker | None, seen: int | None) -> Marker | None:
        """Return the marker whose rows the table shows.  After a RESTORE this may be an older marker.

        Versions that this start has already checked are not read again.  ``seen`` is None in a table in which no start
        has written this id yet: then RESTOREs are not looked for.
        """
        if seen is None:
            return marker
        position, decision, _, _ = self.ids()
        lineage = Lineage(txn.read, (position, decision), self.name)
        with self.say.unavailable("the table's log"):
            shown = lineage.marker(txn.version, max(seen, self.seen or seen), marker)
        if shown == marker:
            self.seen = txn.version
        return shown

    def ids(self) -> tuple[str, str, str, str]:
        marker = f"epochal:{self.looked()}:{self.name}"
        return marker, f"{marker}:decision", f"{marker}:generation", f"{marker}:token"

    def seen_id(self) -> str:
        return f"epochal:{self.looked()}:{self.name}:seen"

    def version_id(self) -> str:
        return f"epochal:{self.looked()}:{self.name}:version"

    def digest_ids(self) -> tuple[str, str, str]:
        marker = f"epochal:{self.looked()}:{self.name}"
        return f"{marker}:digested", f"{marker}:rows", f"{marker}:digest"

    def digest_at(self, txn: Transaction | Snapshot, position: Position) -> Digest | None:
        """Return the digest of the newest epoch; None if it has none.

        The ids of the digest also hold its position, because the digest of an older epoch stays in the log.
        """
        with self.say.unavailable("the table's log"):
            digested, rows, total = [txn.version_of(identity) for identity in self.digest_ids()]
        return Digest(rows, total) if digested == position and rows is not None and total is not None else None

    def put(
        self, txn: Transaction, actions: Iterable[Json], query: str, epoch: int, note: str, mode: str = "Append"
    ) -> CommitResult:
        try:
            txn.commit(actions, query_id=query, epoch=epoch, user_metadata=note, output_mode=mode)
        except JavaFailure as failure:
            conflict = failure.is_a("DeltaConcurrentModificationException")
            return CommitResult(CommitStatus.CONFLICT if conflict else CommitStatus.UNKNOWN, failure.message)
        return CommitResult(CommitStatus.DONE)

    def close(self) -> None:
        """Forget what this start has read.  There is nothing to close: the Spark session belongs to the user."""
        self.app = self.tried = self.filed = self.known = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state without transactions, which are objects in the JVM of this process."""
        return {**self.__dict__, "tried": None, "known": None}


def is_moved(state: SinkState) -> bool:
    return state.marker is not None and state.marker.is_moved


def identity_of(table_id: str) -> str:
    return f"delta:{table_id}"


def txn_action(identity: str, version: int) -> Json:
    return {"txn": {"appId": identity, "version": version, "lastUpdated": int(time.time() * 1000)}}
