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

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Marker, Position, Query, SinkState
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.conditions import check_name
from epochal.sinks.delta import committing, fencing, history, jvm, modes, preparing, starting
from epochal.sinks.delta.core import Core
from epochal.sinks.delta.inspection import DeltaInspection
from epochal.sinks.delta.modes import Append, Merge, Mode, Overwrite
from epochal.sinks.epochs import Epochs, Wanted
from epochal.sinks.pickles import take_state
from epochal.sinks.protocol import CommitOutcome, SessionSink
from epochal.sinks.spark.executors import running_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


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
        self._core = Core(**self._made_with)
        self.leaves_rows_out = where is not None  # a FilteringSink
        if isinstance(mode, Merge):
            self.needs_copy = True  # a RedoSink then: what it merges lies in the durable copy
        if isinstance(mode, Overwrite):
            self.replaces = True  # a ReplacingSink then

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def location(self) -> str:
        """The path of the table, for readers that know no catalog; ``Misconfigured`` if the catalog has none."""
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
        """Make the table if there is none; ``Misconfigured`` for types that no Delta table holds."""
        return starting.create(self._core, query, schema)

    def check(self, query: Query, schema: StructType) -> None:
        """Refuse what can never work: no table, other columns, types that it cannot hold exactly."""
        starting.check(self._core, query, schema)

    def inspection(self, query: Query) -> DeltaInspection:
        """See ``epochal.sinks.inspection``."""
        check_name("app", query.app, self._core.name)
        given = {**self._core.projection.to_json(), "bad_rows": False}
        return DeltaInspection(self, self._core.target, self._core.mode, self._core.conditions, query.app, given)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """Read one new snapshot; in a process without Spark, delta-rs reads it."""
        return fencing.look(self._core, query, by=by)

    def fence(self, query: Query, by: Actor) -> None:
        """Write the fence if no newer one stands, and see it in a new snapshot before answering."""
        fencing.fence(self._core, query, by)

    def prepare(self, epoch: Epoch, rows: DataFrame, by: Actor) -> Committable:
        """Write the data files and the note that says whose they are; the log names none of them."""
        return preparing.prepare(self._core, epoch, rows, by)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Put files and marker into the log as one version; done when a new snapshot shows the marker."""
        return committing.commit(self._core, committable, by)

    def abort(self, query: Query, by: Actor) -> None:
        """Delete what ``by`` and lower generations prepared beyond the marker, as far as a note names it."""
        fencing.abort(self._core, query, by)

    def renamed(self, name: str) -> tuple[DeltaSink, DeltaSink]:
        """See ``epochal.sinks.protocol``; the table keeps fence and marker of each name."""
        here, there = (DeltaSink(**{**self._made_with, "name": each}) for each in (self._core.name, name))
        here._core.also, there._core.also = there._core, here._core
        return here, there

    def check_mark(self, query: Query) -> None:
        """Any can be written."""

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """Write it in a version of its own, and see it in a new snapshot before answering."""
        fencing.mark(self._core, query, marker, by)

    def close(self) -> None:
        """Forget what was seen.  Nothing is held open: the Spark session is the user's."""
        self._core.close()

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """See :class:`~epochal.sinks.protocol.AuditedSink`; out of the table's history, as far back as Delta keeps it.

        Where no Spark runs, a table named by its path is read by the package ``deltalake``.
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
        return (
            f"{self._core.name}: every epoch is one version of the Delta table {self._core.target}, so each snapshot "
            f"shows it whole or not at all, exactly once and in order. {modes.way(self._core.mode)} "
            "It holds where Delta's log store creates a version only if there is none "
            "(all of Delta's own do, on S3 the multi-cluster one if there are several clusters), and where what it "
            "wrote survives (on a local disk Delta does not fsync, so a power loss may take it). Files of an "
            "epoch that was not decided are deleted at the next start; those of a start that died while "
            "writing, and of failed task attempts, stay unread in the table's folder until VACUUM."
            f"{self._core.projection.promise}"
        )
