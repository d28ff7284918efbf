"""The Postgres sink: rows are prepared where no reader sees them, and one short transaction publishes them.

This file has the arguments and the methods.  Other files of this folder implement the methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Json, Marker, Position, Query, SinkState
from epochal.sinks.conditions import check_frame
from epochal.sinks.epochs import KEEP_EPOCHS, Epochs, Wanted
from epochal.sinks.pickles import take_state
from epochal.sinks.postgres import audit, committing, ddl, fencing, judging, neighbours, preparing, staging, starting
from epochal.sinks.postgres.address import Dsn
from epochal.sinks.postgres.advice import Script
from epochal.sinks.postgres.core import Core
from epochal.sinks.postgres.inspection import PostgresInspection
from epochal.sinks.postgres.modes import Append, Mode
from epochal.sinks.protocol import CommitOutcome, Rows, Schema, Sink
from epochal.sinks.questions import Question
from epochal.sinks.rows import rejects


class PostgresSink:
    """Writes every epoch to a table, exactly once.

    ``dsn``: a libpq connection string or URI, or a function that returns one (it runs on the driver).  The driver's
    environment, service file and password file give the parts that are missing; tasks receive what was found there.
    ``table``: ``[schema.]name``.
    ``mode``: ``Append()``, ``Plain()`` or ``Upsert(key=...)`` of ``epochal.sinks.postgres``: how an epoch becomes
    visible, and to whom.
    ``view``: with ``Append()``, the name of the view that readers use; by default the name of ``table``.  The rows
    themselves lie in ``<table>__rows``.
    ``name``: the sink's stable name, by default ``postgres-<table>``.
    ``select`` and ``where``: the columns and rows that the sink gets (``epochal.sinks.rows.projection``); the key and
    other columns that ``mode`` names must be among them.
    ``bad_rows``: the sink that gets rows with values that Postgres cannot hold; without it such rows refuse the epoch
    (``epochal.sinks.rows.rejects``).
    ``frame``: the name of one of the DataFrames that ``Pipeline(frames=)`` returns; by default the sink gets the
    micro-batch.
    ``schema_evolution``: columns that are new in the query are added to the table, by ``create`` or by the first epoch
    that has them; without it such columns are refused.
    ``connections``: how many tasks write at once, each on its own connection.
    ``connect_timeout``: seconds for opening a connection.
    ``lock_timeout``: seconds to wait for the sink's row while another transaction holds it.
    ``answer_timeout``: seconds for a statement that touches a few rows, COMMIT included.
    ``bulk_timeout``: seconds for a statement whose time grows with the epoch (writing, counting, publishing, deleting).
    ``keep_epochs``: how many epochs the audit in ``epochal.epochs`` keeps; rows of the table itself are never touched.
    ``keep_days``: how many days the audit keeps an epoch; by default its age does not matter
    (``epochal.sinks.epochs.Retention``).
    """

    def __init__(
        self,
        dsn: Dsn,
        *,
        table: str,
        mode: Mode = Append(),  # noqa: B008  # frozen
        name: str | None = None,
        view: str | None = None,
        select: Sequence[str] | None = None,
        where: str | None = None,
        bad_rows: Sink | Literal["fail"] = "fail",
        frame: str | None = None,
        schema_evolution: bool = False,
        connections: int = 4,
        connect_timeout: float = 10.0,
        lock_timeout: float = 15.0,
        answer_timeout: float = 30.0,
        bulk_timeout: float = 300.0,
        keep_epochs: int | None = KEEP_EPOCHS,
        keep_days: float | None = None,
    ) -> None:
        self._made_with = {what: value for what, value in locals().items() if what != "self"}
        check_types(PostgresSink.__init__.__annotations__, self._made_with)
        self._core = Core(**{what: value for what, value in self._made_with.items() if what != "frame"})
        self.frame = check_frame(frame, self._core.name)  # a FramedSink
        self.bad_rows = self._core.bad_rows
        self.leaves_rows_out = where is not None or self.bad_rows is not None  # a FilteringSink
        self.reads_all_rows = True  # a ThoroughSink

    @property
    def name(self) -> str:
        return self._core.name

    def __repr__(self) -> str:
        return f"PostgresSink(table={self._core.target.table!r}, name={self._core.name!r})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        take_state(self, state)

    def ddl(self, app: str, schema: Schema, *, adopt: bool = False) -> str:
        """Return the SQL that ``create`` runs in an empty database; with ``adopt``, only the plain table exists."""
        return starting.all_sql(self._core, app, schema, adopt=adopt)

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        """Make what is missing, in one transaction.

        ``Append()`` adopts a plain table: it becomes ``<table>__rows``, and a view with its rows takes its name.
        """
        return starting.create(self._core, query, schema)

    def check(self, query: Query, schema: Schema) -> None:
        """Refuse what can never work: server, table, types, constraints, key, view, rights, executors."""
        starting.check(self._core, query, schema)

    def questions(self, query: Query, schema: Schema | None) -> Iterator[Question]:
        """See ``epochal.sinks.questions.Questioned``."""
        return starting.questions(self._core, query, schema)

    def check_beside(self, schema: Schema, others: Sequence[Sink]) -> None:
        """See :class:`~epochal.sinks.protocol.NeighbourSink`: refuse a foreign key to the table of another sink."""
        cores = [other._core for other in others if isinstance(other, PostgresSink)]
        neighbours.refuse_foreign_keys(self._core, schema, cores)

    def script(self, app: str, schema: Schema | None = None, filters: Sequence[str] = ()) -> Script:
        """Return SQL for a DBA.  Without ``schema`` the columns are read from the existing table."""
        return starting.script(self._core, app, schema, filters)

    def inspection(self, query: Query) -> PostgresInspection:
        """See ``epochal.sinks.inspection``."""
        return starting.inspection(self._core, query)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """Read identity, fence and marker.

        Without ``by`` this is one plain SELECT.  With ``by`` the row is locked, so no older transaction is still under
        way.
        """
        return fencing.look(self._core, query, by=by)

    def fence(self, query: Query, by: Actor) -> None:
        """Set the fence by compare-and-set on the sink's row, and end older back-ends of ours that hold it too long."""
        fencing.fence(self._core, query, by)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """Copy the rows under the next position in one Spark job, read back what its tasks registered, and vote."""
        return preparing.prepare(self._core, epoch, rows, by)

    def reasons(self, epoch: Epoch, rows: Rows) -> Rows:
        """See ``epochal.sinks.rows.rejects``."""
        return judging.reasons(self._core, epoch, rows)

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:
        """See ``epochal.sinks.rows.rejects``."""
        return judging.judgement(self._core, epoch, rows)

    def bad_found(self, epoch: Epoch) -> int | None:
        """See ``epochal.sinks.rows.rejects``."""
        return rejects.found(self._core.counted_bad, epoch)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Publish the epoch in one short transaction.  If its answer is lost, read the marker on a new connection."""
        return committing.commit(self._core, committable, by)

    def renamed(self, name: str) -> tuple[PostgresSink, PostgresSink]:
        """See ``epochal.sinks.protocol``.  The server stores one row for the sink, under one of the two names."""
        here, there = self._named(self._core.name), self._named(name)
        here._core.also, there._core.also = name, self._core.name
        return here, there

    def _named(self, name: str) -> PostgresSink:
        return PostgresSink(**{**self._made_with, "name": name})

    def check_mark(self, query: Query) -> None:
        """See ``epochal.sinks.protocol.MarkedSink``."""
        fencing.check_mark(self._core, query)

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """See ``epochal.sinks.protocol.MarkedSink``."""
        fencing.mark(self._core, query, marker, by)

    def abort(self, query: Query, by: Actor) -> None:
        """Delete all rows above ``published``, registered or not."""
        fencing.abort(self._core, query, by)

    def close(self) -> None:
        """Close idle connections."""
        self._core.close()

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """See :class:`~epochal.sinks.protocol.AuditedSink`.  One statement reads ``epochal.epochs``."""
        self._core.checked(app)
        wanted = Wanted.of(self._core.name, first, last, limit)
        with self._core.connector.session() as session:
            self._core.state(session, app)
            return audit.read(session, app, self._core.name, wanted)

    def guarantee(self) -> str:
        mode = self._core.staging
        how = ddl.guarantee(self._core.target) if mode is None else staging.guarantee(self._core.target, mode)
        return (
            f"Postgres sink {self._core.name}: exactly once, whole epochs, in order, {how}"
            " NULL, NaN, infinities, dates and microseconds are kept exactly; arrays, maps and structs are JSON text"
            " (binary in it is base64), unless the column is jsonb or an array; a text in a column of another type is"
            f" what the type's input function makes of it; what cannot be held {self._fate_of_bad_rows}, never changed."
            f"{self._core.projection.promise}"
        )

    @property
    def _fate_of_bad_rows(self) -> str:
        return "is refused" if self.bad_rows is None else f"goes to sink {self.bad_rows.name!r}"
