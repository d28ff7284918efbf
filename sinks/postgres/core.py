"""What all methods of a Postgres sink share: its arguments, its connections, and its row in ``epochal.sinks``."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from epochal.coordinator.model.epoch import (
    UNKNOWN_DECISION,
    Actor,
    Committable,
    Decision,
    EpochNumber,
    Marker,
    Position,
)
from epochal.coordinator.model.errors import Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.sinks.conditions import Conditions, check_above_zero, check_name, looked
from epochal.sinks.epochs import Retention
from epochal.sinks.postgres import ddl, modes, registering
from epochal.sinks.postgres.address import Address, Dsn, Limits, ServerRefused
from epochal.sinks.postgres.blockers import Row, watching
from epochal.sinks.postgres.client import Connector
from epochal.sinks.postgres.evolution import Evolution
from epochal.sinks.postgres.modes import Append, Mode, Staging
from epochal.sinks.postgres.publish import Staged
from epochal.sinks.protocol import Schema, Sink
from epochal.sinks.rows import formats, rejects
from epochal.sinks.rows.projection import Projection
from epochal.sinks.spark.arrow import BatchBounds

if TYPE_CHECKING:
    from epochal.sinks.postgres.ddl import PgColumn
    from epochal.sinks.postgres.session import Session
    from epochal.sinks.postgres.ways import Way

PAYLOAD_VERSION = 1
"""Version of what a vote holds."""


@dataclass(frozen=True)
class State:
    """The sink's row."""

    identity: str
    fence: Actor | None
    published: Position
    decision: int | None
    may_forget: bool = False  # whether this role may delete from the audit
    table: int = 0  # the object id of the table that has the name now
    registered: int = 0  # the object id of the table that the row names

    @property
    def marker(self) -> Marker | None:
        """The marker at the position that readers see.  If its decision was deleted by hand, it is unknown."""
        if self.published == 0 and self.decision is None:
            return None
        return Marker(self.published, self.decision if self.decision is not None else UNKNOWN_DECISION)


class Core:
    """The arguments of a sink (``PostgresSink`` explains them), its connections, and what a start has seen."""

    def __init__(
        self,
        dsn: Dsn,
        *,
        table: str,
        mode: Mode,
        name: str | None,
        view: str | None,
        select: Sequence[str] | None,
        where: str | None,
        bad_rows: Sink | Literal["fail"],
        schema_evolution: bool,
        connections: int,
        connect_timeout: float,
        lock_timeout: float,
        answer_timeout: float,
        bulk_timeout: float,
        keep_epochs: int | None,
        keep_days: float | None,
    ) -> None:
        self.also: str | None = None  # the other name, of a sink that is renamed
        self.name = "postgres-" + re.sub(r"[^A-Za-z0-9._-]", "_", table) if name is None else name
        check_name("sink name", self.name)
        modes.check(mode, view, self.name)
        self.staging: Staging | None = None if isinstance(mode, Append) else mode
        self.target = ddl.Target.of(table, view, self.name, stages=self.staging is not None)
        self.projection = Projection.of(self.name, select, where)
        self.bad_rows = rejects.check_bad_rows(bad_rows, self.name)
        self.evolves = schema_evolution
        check_above_zero(
            self.name,
            connections=connections,
            connect_timeout=connect_timeout,
            lock_timeout=lock_timeout,
            answer_timeout=answer_timeout,
            bulk_timeout=bulk_timeout,
        )
        self.retention = Retention.of(keep_epochs, keep_days, self.name)
        self.connections = connections
        self.bounds = BatchBounds()
        self.limits = Limits(connect_timeout, lock_timeout, answer_timeout, bulk_timeout)
        self.connector = Connector(dsn, self.name, self.limits)
        self.conditions = Conditions(self.name, f"table {self.target.own}, history in epochal.epochs")
        self.app: str | None = None
        self.seen: str | None = None  # the identity that look has returned: what is written must be that table
        self.judged: tuple[Decision, tuple[Way, ...], Address] | None = None  # the epoch, and how its rows were judged
        self.counted_bad: tuple[int, int] | None = None  # decision of the epoch judged last, and its bad rows
        self.end: tuple[Position, int] | None = None  # a position, and the table's size in pages before its first row

    def checked(self, app: str) -> str:
        check_name("app", app, self.name)
        return app

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "judged": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, and give it its own connections."""
        self.__dict__.update(state, connector=copy.copy(state["connector"]), judged=None)

    def looked(self) -> str:
        return looked(self.app, self.name)

    def state(self, session: Session, app: str, lock: bool = False, share: bool = False) -> State:
        """Read the sink's row.

        ``lock``: lock the row until COMMIT.  A statement after this one then sees all that was committed before the
        lock.  ``share``: lock the row as a task does: whoever wants to write it has to wait, other tasks do not.
        """
        try:
            found = session.run(
                "SELECT (SELECT system_identifier FROM pg_control_system()), (SELECT oid FROM pg_database"
                " WHERE datname = current_database())::bigint, to_regclass($3)::oid::bigint,"
                " generation, token, published, decision, version, rows_table::bigint,"
                " has_table_privilege(to_regclass('epochal.epochs'), 'DELETE')"
                " FROM epochal.sinks WHERE app = $1 AND sink = $2"
                + (" FOR SHARE" if share else "")
                + (" FOR UPDATE" if lock else ""),
                app,
                self.kept_as(session, app),
                self.target.own,
            )
        except ServerRefused as error:
            if "42P01" in str(error.state) or "3F000" in str(error.state):
                found = []
            else:
                raise
        if not found and (other := ddl.renamed_to(session, app, self.target)) is not None:
            raise Misconfigured(
                f"the table {self.target.own} belongs to sink {other!r} of app {app!r}",
                sink=self.name,
                state=session.where,
                help=f"give the sink name={other!r}; if a renaming was under way, run it again: `epochal rename`",
            )
        if found and found[0][2] is None:
            raise registering.gone(session, app, self.kept_as(session, app), self.target)
        if not found:
            raise Misconfigured(
                f"there is no table {self.target.own} of app {app!r}",
                sink=self.name,
                state=session.where,
                help="call pipeline.create() once, or have the SQL run that PostgresSink.ddl(app, schema) returns",
            )
        system, database, table, generation, token, published, decision, version, row_of, may_forget = found[0]
        formats.check_marker(f"epochal.sinks, {session.where}", version, ddl.VERSION, self.name)
        fence = Actor(generation, token) if generation is not None else None
        identity = f"postgres:{system}/{database}/{table}"
        return State(identity, fence, published, decision, bool(may_forget), int(table), int(row_of))

    def same(
        self, session: Session, app: str, epoch: EpochNumber | None = None, *, lock: bool = False, share: bool = False
    ) -> State:
        """Read the sink's row as :meth:`state` does, and require that the table is still the one that look has seen."""
        state = self.state(session, app, lock=lock, share=share)
        if self.seen is not None and state.identity != self.seen:
            raise registering.swapped(self.name, epoch, self.target, self.seen, state.identity)
        return state

    def owned(self, session: Session, app: str, by: Actor) -> State:
        """Lock the sink's row and return it; raise ``Fenced`` unless its fence is that of ``by``."""
        state = self.same(session, app, lock=True)
        self.conditions.check_owner(state, by)
        return state

    def registered(self, session: Session, app: str, position: Position) -> dict[Actor, dict[int, int]]:
        """Return, by actor, how many rows each attempt at the position has.  Tasks record this when they write rows."""
        found = session.run(
            "SELECT generation, token, attempt, row_count FROM epochal.attempts"
            " WHERE app = $1 AND sink = $2 AND position = $3",
            app,
            self.name,
            position,
        )
        registered: dict[Actor, dict[int, int]] = {}
        for generation, token, attempt, count in found:
            registered.setdefault(Actor(generation, token), {})[int(attempt)] = int(count)
        return registered

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn a lost answer into ``SinkUnavailable``: the transaction in this scope writes nothing."""
        try:
            yield
        except OutcomeUnknown as lost:
            raise SinkUnavailable(lost.what, sink=self.name, state=lost.state, help=lost.help) from lost

    def ending_blockers(self, session: Session, app: str, by: Actor) -> contextlib.AbstractContextManager[None]:
        """End older back-ends of this sink that hold its row; name all others that the body has to wait for."""
        return watching(session, self.connector, self.name, Row(app, self.name, by))

    def naming_blockers(self, session: Session) -> contextlib.AbstractContextManager[None]:
        return watching(session, self.connector, self.name)

    def kept_as(self, session: Session, app: str) -> str:
        """Return the name under which the sink's row is stored; while the sink is renamed, it may be the other name."""
        if self.also is None or ddl.registered(session, app, self.name) is not None:
            return self.name
        return self.also if ddl.registered(session, app, self.also) is not None else self.name

    def columns(self, schema: Schema) -> list[PgColumn]:
        from epochal.sinks.postgres.rows import columns

        return columns(self.projection.check(schema), self.name)

    def evolution(self, app: str, columns: Sequence[PgColumn]) -> Evolution:
        return Evolution(app, self.name, self.target, self.staging, columns)

    def staged(self, session: Session, epoch: int, position: Position, attempts: Mapping[int, int]) -> Staged:
        return Staged(session, self.target, self.name, epoch, position, attempts, self.limits.bulk)

    def pages(self, session: Session) -> int:
        """Return the size of the rows table in pages; 0 if there is no table."""
        size = "SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint"
        [(pages,)] = session.run(size, self.target.rows)
        return int(pages or 0)

    def close(self) -> None:
        self.connector.close()


def attempts_of(c: Committable) -> Mapping[int, int]:
    return {int(attempt): int(count) for attempt, count in c.payload["attempts"]}


def tell_attempts(won: Mapping[int, int], found: Mapping[int, int]) -> str:
    return ", ".join(
        f"attempt {attempt} of {count} rows has {found.get(attempt, 0)}"
        for attempt, count in won.items()
        if found.get(attempt, 0) != count
    )
