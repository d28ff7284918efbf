"""A sink of your own, for SQLite.  It votes: readers of the view do not see prepared rows.

Every write is one transaction, which checks the conditions first.  So a write that comes too late changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Marker, Query, SinkState
from epochal.coordinator.model.errors import Misconfigured, PreparedLost, SinkUnavailable
from epochal.sinks.conditions import Conditions, check_name, looked, marker_of
from epochal.sinks.protocol import CommitOutcome, Rows, Schema

TABLES = """
CREATE TABLE IF NOT EXISTS sinks (app, sink, identity, generation, token, position, decision, PRIMARY KEY (app, sink));
CREATE TABLE IF NOT EXISTS votes (vote INTEGER PRIMARY KEY, app, sink, position, generation, token, shown DEFAULT 0);
CREATE TABLE IF NOT EXISTS vote_rows (vote, row);
CREATE VIEW IF NOT EXISTS shown AS SELECT app, sink, position, row FROM votes JOIN vote_rows USING (vote) WHERE shown;
"""


class SqliteSink:
    """Store rows as JSON in a SQLite file.  Readers use the view ``shown``."""

    def __init__(self, path: Path, name: str, timeout: float = 5) -> None:
        self.path = path
        self._timeout = timeout  # seconds to wait until another transaction ends
        self._name = name
        self._app: str | None = None
        self._conditions = Conditions(name, f"sqlite:{path}")

    @property
    def name(self) -> str:
        return self._name

    def create(self, query: Query, schema: Schema) -> Sequence[str]:  # noqa: ARG002
        check_name("sink name", self.name)
        check_name("app", query.app, self.name)
        new = "INSERT OR IGNORE INTO sinks VALUES (?, ?, hex(randomblob(16)), NULL, NULL, NULL, NULL)"
        with contextlib.closing(sqlite3.connect(self.path, self._timeout)) as connection:
            connection.executescript(TABLES)
        with self._transaction() as connection:
            made = connection.execute(new, (query.app, self.name)).rowcount
        return [f"created sink {self.name} in {self.path}"] if made else []

    def check(self, query: Query, schema: Schema) -> None:  # noqa: ARG002
        check_name("sink name", self.name)
        check_name("app", query.app, self.name)
        with self._transaction() as connection:
            self._state(connection, query.app)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:  # noqa: ARG002
        check_name("app", query.app, self.name)
        self._app = query.app
        with self._transaction() as connection:
            return self._state(connection, query.app)

    def fence(self, query: Query, by: Actor) -> None:
        with self._transaction() as connection:
            self._conditions.check_fence(self._state(connection, query.app), by)
            self._set(connection, query.app, "generation = ?, token = ?", by.generation, by.token)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        app = looked(self._app, self.name)
        if hasattr(rows, "toLocalIterator"):  # a DataFrame
            rows = (row.asDict(recursive=True) for row in rows.toLocalIterator())
        with self._transaction() as connection:
            self._conditions.check_prepare(self._state(connection, app), by, marker_of(epoch), epoch.number)
            insert = "INSERT INTO votes (app, sink, position, generation, token) VALUES (?, ?, ?, ?, ?)"
            vote = connection.execute(insert, (app, self.name, epoch.position, by.generation, by.token)).lastrowid
            lines = ((vote, json.dumps(row, default=str)) for row in rows)
            connection.executemany("INSERT INTO vote_rows VALUES (?, ?)", lines)
            count = self._count(connection, vote)
        return Committable(self.name, epoch.decision, epoch.position, count, {"vote": vote})

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        app, wanted, vote = looked(self._app, self.name), marker_of(committable), committable.payload["vote"]
        with self._transaction() as connection:
            state = self._state(connection, app)
            if self._conditions.already_committed(state, by, wanted, committable.decision.epoch):
                return CommitOutcome.ALREADY_COMMITTED
            show = "UPDATE votes SET shown = 1 WHERE vote = ? AND app = ? AND sink = ?"
            found = connection.execute(show, (vote, app, self.name)).rowcount
            if not found or self._count(connection, vote) != committable.rows:
                raise PreparedLost("the prepared rows are gone", sink=self.name, help="restart the query")
            self._drop(connection, "app = ? AND sink = ? AND NOT shown", app, self.name)
            self._set(connection, app, "position = ?, decision = ?", wanted.position, wanted.decision)
        return CommitOutcome.COMMITTED

    def abort(self, query: Query, by: Actor) -> None:
        with self._transaction() as connection:
            self._conditions.check_owner(self._state(connection, query.app), by)
            self._drop(connection, "app = ? AND sink = ? AND NOT shown", query.app, self.name)

    def close(self) -> None:
        self._app = None

    def guarantee(self) -> str:
        return f"{self.name}: every epoch exactly once, all or nothing, in order, to readers of the view `shown`"

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that is the only writer.  Any exception rolls it back."""
        with contextlib.closing(sqlite3.connect(self.path, self._timeout, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                with connection:
                    yield connection
            except sqlite3.OperationalError as error:
                raise SinkUnavailable(f"{error}; nothing was written", sink=self.name, help="see the file") from error

    def _state(self, connection: sqlite3.Connection, app: str) -> SinkState:
        select = "SELECT identity, generation, token, position, decision FROM sinks WHERE app = ? AND sink = ?"
        row = connection.execute(select, (app, self.name)).fetchone()
        if row is None:
            raise Misconfigured(f"{self.path} has no such sink", sink=self.name, help="call pipeline.create() once")
        identity, generation, token, position, decision = row
        fence = Actor(generation, token) if token is not None else None
        return SinkState(identity, fence, Marker(position, decision) if position is not None else None)

    def _set(self, connection: sqlite3.Connection, app: str, columns: str, *values: int) -> None:
        connection.execute(f"UPDATE sinks SET {columns} WHERE app = ? AND sink = ?", (*values, app, self.name))

    def _drop(self, connection: sqlite3.Connection, which: str, *values: object) -> None:
        connection.execute(f"DELETE FROM vote_rows WHERE vote IN (SELECT vote FROM votes WHERE {which})", values)
        connection.execute(f"DELETE FROM votes WHERE {which}", values)

    def _count(self, connection: sqlite3.Connection, vote: int | None) -> int:
        (count,) = connection.execute("SELECT count(*) FROM vote_rows WHERE vote = ?", (vote,)).fetchone()
        return int(count)
