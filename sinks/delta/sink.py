"""The Delta sink: it votes by writing data files that the table's log does not name yet.

Four *transaction ids* of the table hold marker and fence, each a 63-bit number::

    epochal:<app>:<sink>              position  }  marker: written in the same version of the table
    epochal:<app>:<sink>:decision     decision  }  as the rows
    epochal:<app>:<sink>:generation   fence     }  written by fence
    epochal:<app>:<sink>:token        fence     }

A fifth id, ``:version``, holds the version of this format and is written with the fence.  A sixth id, ``:seen``, holds
the table version on which fence or marker was written: no RESTORE up to that version has taken rows away
(``lineage.py``).  Every commit first reads all these ids, in its own transaction.  Delta refuses the commit if another
writer has written one of them since.  So the conditions that were checked still hold when the rows become visible: an
older start cannot commit, and no commit can succeed twice.

Delta creates a version of the log only if there is none.  But a slow write can create a version below the oldest one
of a log that was cleaned up meanwhile: the write succeeds, and nobody reads it.  So a write counts only after a new
snapshot shows it.

A new snapshot lists the log, which takes longer the more versions the log holds.  On local disks and HDFS, prepare and
the first attempt of commit do not list it: they use the snapshot of the last look if the log has no file of the next
version.  If a clean-up removed that file and left newer ones, the commit lands below them and does not count; the next
attempt takes a new snapshot.  Prepare of a MERGE always takes a new snapshot, because it reads the table's files.  If
commit makes the MERGE again and finds a file gone, it makes the MERGE once more on a new snapshot.

The mode (``modes.py``) decides what a commit holds besides the marker::

    append      the files that prepare wrote
    overwrite   the same, and the removal of every file in the snapshot
    merge       what Delta's MERGE makes of the snapshot and the durable copy: the MERGE that prepare made, in its
                transaction, or a new one if the table has another version now
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.epoch import Actor, Committable, Copy, Epoch, Marker, Position, Query, SinkState
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.conditions import check_frame, check_name
from epochal.sinks.delta import committing, copying, fencing, history, jvm, modes, preparing, starting
from epochal.sinks.delta.core import Core
from epochal.sinks.delta.inspection import DeltaInspection
from epochal.sinks.delta.log_store import NOT_KNOWN_YET
from epochal.sinks.delta.modes import Append, Merge, Mode, Overwrite
from epochal.sinks.epochs import Epochs, Wanted
from epochal.sinks.pickles import take_state
from epochal.sinks.protocol import CommitOutcome, SessionSink
from epochal.sinks.questions import Question
from epochal.sinks.spark.executors import running_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class DeltaSink(SessionSink):
    """Writes every epoch to a Delta table, as one version of the table.

    ``path``: the path of the table.
    ``table``: instead of ``path``, the table's name in Spark's session catalog, ``schema.name``.
    ``mode``: what an epoch does to the table: ``Append()``, ``Overwrite()`` or ``Merge(key=...)`` of
    ``epochal.sinks.delta``.
    ``name``: the sink's stable name; by default ``delta-`` and the last part of the path, or the table's name.
    ``partition_by``: the columns by which :meth:`create` partitions a new table; not used for anything else.
    ``merge_schema``: if True, columns of the query that the table does not have are added to the table, nullable, when
    the first epoch with them is prepared; if False, such columns are refused.
    ``select`` and ``where``: the columns and rows that the sink gets (``epochal.sinks.rows.projection``); the key and
    the other columns of ``mode`` must be among these columns.
    ``frame``: the name of one of the DataFrames that ``Pipeline(frames=)`` returns; by default the sink gets the
    micro-batch.

    The sink can be pickled at any time; the pickled sink has no Spark session and no snapshot.
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
        frame: str | None = None,
    ) -> None:
        self._made_with = {what: value for what, value in locals().items() if what != "self"}
        check_types(DeltaSink.__init__.__annotations__, self._made_with)
        self._core = Core(**{what: value for what, value in self._made_with.items() if what != "frame"})
        self.frame = check_frame(frame, self._core.name)  # a FramedSink
        self.leaves_rows_out = where is not None  # a FilteringSink
        self.reads_all_rows = True  # a ThoroughSink
        if isinstance(mode, Merge):
            self.needs_copy = True  # makes it a RedoSink: it merges the rows of the durable copy
        if isinstance(mode, Overwrite):
            self.replaces = True  # makes it a ReplacingSink

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def location(self) -> str:
        """The path of the table, for readers without a catalog; ``Misconfigured`` if the catalog has no such table."""
        path = self._core.target.path or self._core.target.location(jvm.session(self._core.name), self._core.name)
        if path is None:
            raise self._core.say.missing()
        return path

    def __repr__(self) -> str:
        table = "" if self._core.target.table is None else "table="
        return f"DeltaSink({table}{str(self._core.target)!r}, name={self._core.name!r})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        take_state(self, state)

    def create(self, query: Query, schema: StructType) -> Sequence[str]:
        """Create the table if there is none; ``Misconfigured`` for types that no Delta table can hold."""
        return starting.create(self._core, query, schema)

    def check(self, query: Query, schema: StructType) -> None:
        """Raise ``Misconfigured`` for what can never work: no table, other columns, types that it cannot hold."""
        starting.check(self._core, query, schema)

    def questions(self, query: Query, schema: StructType | None) -> Iterator[Question]:
        """See ``epochal.sinks.questions.Questioned``."""
        return starting.questions(self._core, query, schema)

    def inspection(self, query: Query) -> DeltaInspection:
        """See ``epochal.sinks.inspection``."""
        check_name("app", query.app, self._core.name)
        given = {**self._core.projection.to_json(), "bad_rows": False}
        return DeltaInspection(self, self._core.target, self._core.mode, self._core.conditions, query.app, given)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """Read fence and marker from a new snapshot; in a process without Spark, read them with delta-rs."""
        return fencing.look(self._core, query, by=by)

    def fence(self, query: Query, by: Actor) -> None:
        """Write the fence if the table has no newer one, and check that a new snapshot shows it."""
        fencing.fence(self._core, query, by)

    def prepare(self, epoch: Epoch, rows: DataFrame, by: Actor) -> Committable:
        """Write the data files and a note that says whose they are; the table's log names none of them yet."""
        return preparing.prepare(self._core, epoch, rows, by)

    def write_copy(self, epoch: Epoch, rows: DataFrame, folder: str, by: Actor) -> Copy | None:
        """See ``epochal.sinks.protocol.CopyingSink``.  The copy consists of the files that the table will get."""
        return copying.write_copy(self._core, epoch, rows, folder, by)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Write files and marker to the table's log as one version; return when a new snapshot shows the marker."""
        return committing.commit(self._core, committable, by)

    def abort(self, query: Query, by: Actor) -> None:
        """Delete the files that ``by`` and lower generations prepared beyond the marker, if a note names them."""
        fencing.abort(self._core, query, by)

    def renamed(self, name: str) -> tuple[DeltaSink, DeltaSink]:
        """See ``epochal.sinks.protocol``.  The table keeps a fence and a marker for each of the two names."""
        here, there = (DeltaSink(**{**self._made_with, "name": each}) for each in (self._core.name, name))
        here._core.also, there._core.also = there._core, here._core
        return here, there

    def check_mark(self, query: Query) -> None:
        """Nothing to refuse: every marker can be written."""

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """Write the marker in a version of its own, and check that a new snapshot shows it."""
        fencing.mark(self._core, query, marker, by)

    def close(self) -> None:
        """Forget what ``look`` found.  There is nothing to close: the Spark session belongs to the user."""
        self._core.close()

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """See :class:`~epochal.sinks.protocol.AuditedSink`.  Reads the table's history, as far back as Delta keeps it.

        Where no Spark runs, the package ``deltalake`` reads the table; the sink must then have the table's path.
        """
        check_name("app", app, self._core.name)
        wanted = Wanted.of(self._core.name, first, last, limit)
        session = running_session()
        if session is not None:
            self._core.existing(self._core.begin(self._core.table()))
            with self._core.say.unavailable("the table's history"):
                return history.read(partial(history.by_spark, session, self._core.target), app, self._core.name, wanted)
        if self._core.target.path is None:
            raise Misconfigured(
                f"{self._core.target} is a name in Spark's session catalog, and no Spark runs in this process",
                sink=self._core.name,
                help=f"start a SparkSession, or give the path of the table: DeltaSink(path, name={self._core.name!r})",
            )
        return history.read(history.by_delta_rs(self._core.target.path, self._core.name), app, self._core.name, wanted)

    def guarantee(self) -> str:
        log_store = self._core.log_store()
        return (
            f"{self._core.name}: every epoch is one version of the Delta table {self._core.target}, so each snapshot "
            f"shows it whole or not at all, exactly once and in order. {modes.way(self._core.mode)} "
            f"{log_store.promise() if log_store is not None else NOT_KNOWN_YET} Written files must survive (on a local "
            "disk Delta does not fsync, so a power loss may lose them). Files of an "
            "epoch that was not decided are deleted at the next start; those of a start that died while "
            "writing, and of failed task attempts, stay unread in the table's folder until VACUUM."
            f"{self._core.projection.promise}"
        )
