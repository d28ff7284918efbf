"""What the console command reads from a Postgres sink: see ``epochal.sinks.inspection``.

Rows that are appended carry their position.  Rows that are written into the user's own table do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Json, Position
from epochal.sinks.conditions import Conditions, Held
from epochal.sinks.inspection import Counted, Leftover, Value
from epochal.sinks.postgres import ddl
from epochal.sinks.postgres.client import Connector
from epochal.sinks.postgres.ddl import Target, quoted

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

_KINDS = {
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "real": "real",
    "double precision": "double",
    "boolean": "boolean",
    "text": "text",
    "bytea": "binary",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
_SQL = {
    "date": "({0} - DATE '1970-01-01')",
    "timestamp": "(extract(epoch FROM {0}) * 1000000)::bigint",
    "timestamp_ntz": "(extract(epoch FROM {0}) * 1000000)::bigint",
    "decimal": "trim_scale({0})::text",
}
"""For each kind of column, the SQL of the value that is compared; other kinds are compared as they are."""


class PostgresInspection:
    """Implements :class:`~epochal.sinks.inspection.Inspection`; ``row`` reads the sink's own row and may lock it."""

    def __init__(
        self,
        connector: Connector,
        target: Target,
        conditions: Conditions,
        app: str,
        projection: Json,
        *,
        stages: bool,
        row: Callable[[Session, bool], Held],
    ) -> None:
        self._connector = connector
        self._target = target
        self._conditions = conditions
        self._app = app
        self._row = row
        self.projection = projection
        self.cautions: Sequence[str] = ()
        self.complete = True
        self.content = f"the rows of {target.rows}"
        self.unattributed = (
            f"rows are written into {target.plain} itself, which has no column for their epoch" if stages else ""
        )

    def counts(self, first: Position, last: Position) -> Iterator[Counted]:
        """Yield the number of rows of each position, which the server counts in one statement."""
        with self._connector.session() as session:
            found = session.run(
                f"SELECT _epoch, count(*) FROM {self._target.rows} WHERE _epoch BETWEEN $1 AND $2"
                " GROUP BY _epoch ORDER BY _epoch",
                first,
                last,
                limit=self._connector.limits.bulk,
            )
        yield from (Counted(int(position), int(rows)) for position, rows in found)

    def columns(self) -> Mapping[str, str]:
        with self._connector.session() as session:
            found = ddl.columns_of(session, self._target.rows)
        return {name: _kind(kind) for name, kind, _ in found if name not in ddl.ISOLATION}

    def rows(self, position: Position, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        kinds = self.columns()
        values = ", ".join(_SQL.get(kinds[name], "{0}").format(quoted(name)) for name in columns)
        statement = f"SELECT {values} FROM {self._target.rows} WHERE _epoch = $1"
        with self._connector.session() as session:
            yield from session.stream(statement, position)

    def leftovers(self) -> Sequence[Leftover]:
        """Return the attempts registered above ``published``, and the rows there that no attempt has registered."""
        with self._connector.session() as session:
            published = _published(self._row(session, False))
            return [*self._registered(session, published), *self._unregistered(session, published)]

    def remove(self, newest: Actor) -> Sequence[str]:
        """Lock the sink's row, and delete what actors of lower generations left above ``published``."""
        with self._connector.session() as session, session.transaction(bulk=True, by=newest):
            held = self._row(session, True)
            self._conditions.check_owner(held, newest)
            dead = (self._app, self._conditions.sink, _published(held), newest.generation)
            deleted = session.change(
                f"DELETE FROM {self._target.rows} WHERE _epoch > $3 AND _attempt IN (SELECT attempt FROM"
                f" epochal.attempts WHERE {_OF_LOWER_GENERATIONS})",
                *dead,
                limit=self._connector.limits.bulk,
            )
            attempts = session.change(f"DELETE FROM epochal.attempts WHERE {_OF_LOWER_GENERATIONS}", *dead)
        return [f"deleted {deleted} prepared rows of {attempts} attempts from {self._target.rows}"]

    def close(self) -> None:
        self._connector.close()

    def _registered(self, session: Session, published: Position) -> list[Leftover]:
        found = session.run(
            "SELECT position, generation, token, sum(row_count)::bigint FROM epochal.attempts"
            " WHERE app = $1 AND sink = $2 AND position > $3 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
            self._app,
            self._conditions.sink,
            published,
        )
        what = f"prepared rows in {self._target.rows}"
        return [Leftover(what, int(p), Actor(int(g), int(t)), int(rows)) for p, g, t, rows in found]

    def _unregistered(self, session: Session, published: Position) -> list[Leftover]:
        found = session.run(
            f"SELECT _epoch, count(*) FROM {self._target.rows} WHERE _epoch > $3 AND _attempt NOT IN (SELECT attempt"
            " FROM epochal.attempts WHERE app = $1 AND sink = $2) GROUP BY 1 ORDER BY 1",
            self._app,
            self._conditions.sink,
            published,
            limit=self._connector.limits.bulk,
        )
        what = f"rows in {self._target.rows} that no attempt has registered; the next start deletes them"
        return [Leftover(what, int(position), None, int(rows)) for position, rows in found]


_OF_LOWER_GENERATIONS = "app = $1 AND sink = $2 AND position > $3 AND generation < $4"


def _published(held: Held) -> Position:
    return held.marker.position if held.marker is not None else 0


def _kind(kind: str) -> str:
    """Return the console's name for a Postgres type."""
    if kind.startswith("character varying"):
        return "text"
    return "decimal" if kind.startswith("numeric") else _KINDS.get(kind, kind)
