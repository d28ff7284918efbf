"""An epoch log in Postgres, for checkpoints on object stores that have no create-if-absent.

Each call is one short transaction on a connection of its own.  An append locks the floor's row ``FOR SHARE`` and a
compaction locks it ``FOR UPDATE``, so no record can appear below the floor.  The primary key lets only one of several
writers take a position.  Records that compaction keeps stay in the table.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epochal.checkpoints.log import Entry, LogPosition, Record, decode, encode
from epochal.checkpoints.rules import check_compaction, check_order, epoch_of, is_free
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import AnswerDropped, Point

if TYPE_CHECKING:
    import psycopg

CREATE = (
    "CREATE SCHEMA IF NOT EXISTS epochal",
    """CREATE TABLE IF NOT EXISTS epochal.log (
    log_name text NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    record bytea NOT NULL,
    PRIMARY KEY (log_name, position))""",
    """CREATE TABLE IF NOT EXISTS epochal.log_floor (
    log_name text PRIMARY KEY,
    floor bigint NOT NULL CHECK (floor >= 0))""",
)
"""The statements that :meth:`PostgresLog.create` runs, for a DBA who runs them by hand."""

_EXISTS = "SELECT to_regclass('epochal.log') IS NOT NULL AND to_regclass('epochal.log_floor') IS NOT NULL"
_NAME = "INSERT INTO epochal.log_floor (log_name, floor) VALUES (%s, 0) ON CONFLICT DO NOTHING"
_BOUNDS = """SELECT f.floor, (SELECT coalesce(max(l.position) + 1, 0) FROM epochal.log l WHERE l.log_name = f.log_name)
FROM epochal.log_floor f WHERE f.log_name = %s FOR SHARE OF f"""
_APPEND = "INSERT INTO epochal.log (log_name, position, record) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_FLOOR_TO_RAISE = "SELECT floor FROM epochal.log_floor WHERE log_name = %s FOR UPDATE"
_RAISE = "UPDATE epochal.log_floor SET floor = %s WHERE log_name = %s"
_DELETE = "DELETE FROM epochal.log WHERE log_name = %s AND position < %s AND position <> ALL (%s)"
# One statement, so floor and records are of one snapshot.
_READ = """SELECT f.floor, l.position, l.record FROM epochal.log_floor f
LEFT JOIN epochal.log l USING (log_name) WHERE f.log_name = %s ORDER BY l.position"""
_SETTINGS = """SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', %s, true),
set_config('statement_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true)"""
_WAITS_FOR_STANDBY = "SELECT current_setting('synchronous_standby_names') <> ''"
_WRITE_TO_WAL = "SELECT pg_logical_emit_message(true, 'epochal', '')"
_FROM_17 = ", set_config('transaction_timeout', '0', true)"  # each statement and each pause has its own limit


class PostgresLog:
    """Implements :class:`~epochal.checkpoints.log.EpochLog`.  :meth:`create` creates its tables; call it once.

    ``dsn``: a libpq connection string or URI, or a function that returns one; it is called for each connection.  libpq
    takes parts that are left out from its environment variables, its service file and its password file.
    ``name``: tells the logs of one database apart.
    ``timeout``: seconds; no call takes much longer.
    """

    def __init__(self, dsn: str | Callable[[], str], name: str, *, timeout: float = 30.0) -> None:
        check_types(PostgresLog.__init__.__annotations__, {"dsn": dsn, "name": name, "timeout": timeout})
        self._dsn = dsn
        self._name = name
        self._timeout = timeout
        self._server = "postgres"
        self._secret = ""

    def describe(self) -> str:
        """See :meth:`EpochLog.describe`."""
        with contextlib.suppress(EpochalError):
            if isinstance(self._dsn, str):
                self._parameters()
        return f"{self._server}, log {self._name!r}"

    def create(self) -> None:
        """Create schema, tables and this log's row if they are missing; several processes may do so at once."""
        for _ in range(10):
            with contextlib.suppress(*self._made_meanwhile()), self._transaction("create") as connection:
                if not _one(connection.execute(_EXISTS))[0]:
                    for statement in CREATE:
                        connection.execute(statement)
                connection.execute(_NAME, [self._name])
                self._commit(connection, "create")
                return
        raise self._unavailable("create", "others create the same tables over and over")

    def read(self) -> Sequence[Entry]:
        """See :meth:`EpochLog.read`."""
        with self._transaction("read") as connection:
            entries = self._read(connection)[1]
            self._confirm(connection, what="read")
            return entries

    def append(self, position: LogPosition, record: Record) -> bool:
        """See :meth:`EpochLog.append`."""
        what = f"append at position {position}"
        epoch = epoch_of(record)
        failpoints.hit(Point.LOG_BEFORE_APPEND, epoch=epoch)
        with self._transaction(what) as connection:
            row = connection.execute(_BOUNDS, [self._name]).fetchone()
            if row is None:
                raise self._not_created()
            if not is_free(position, floor=row[0], end=row[1], where=self.describe()):
                self._confirm(connection, what)
                return False
            inserted = connection.execute(_APPEND, [self._name, position, encode(record)]).rowcount == 1
            # FOR SHARE has written to the WAL.  So this COMMIT waits for the standby, also if nothing was inserted.
            self._commit(connection, what, Point.LOG_AFTER_APPEND if inserted else None, epoch)
            return inserted

    def compact(self, floor: LogPosition, kept: Sequence[Entry]) -> None:
        """See :meth:`EpochLog.compact`.  One transaction raises the floor and deletes the records."""
        what = f"compaction to floor {floor}"
        with self._transaction(what) as connection:
            row = connection.execute(_FLOOR_TO_RAISE, [self._name]).fetchone()
            if row is None:
                raise self._not_created()
            if floor <= row[0]:
                return
            check_compaction(self._read(connection)[1], floor, kept)
            connection.execute(_RAISE, [floor, self._name])
            connection.execute(_DELETE, [self._name, floor, [entry.position for entry in kept]])
            self._commit(connection, what, Point.LOG_AFTER_FLOOR)

    def _read(self, connection: psycopg.Connection[Any]) -> tuple[LogPosition, list[Entry]]:
        rows = connection.execute(_READ, [self._name]).fetchall()
        if not rows:
            raise self._not_created()
        floor = rows[0][0]
        where = self.describe()
        entries = [Entry(p, decode(bytes(r), f"{where}, position {p}")) for _, p, r in rows if p is not None]
        check_order([entry.position for entry in entries], floor, where)
        return floor, entries

    # --- transactions ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self, what: str) -> Iterator[psycopg.Connection[Any]]:
        """Give a transaction that has no effect without :meth:`_commit`.  Name its errors and bound its waits."""
        psycopg = _driver()
        try:
            with contextlib.closing(self._connect()) as connection, self._deadline(connection):
                more = _FROM_17 if connection.info.server_version >= 170000 else ""
                connection.execute(_SETTINGS + more, self._timeouts())
                yield connection
        except self._made_meanwhile():
            raise
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise self._not_created() from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._without_right(what, error) from None
        except psycopg.Error as error:
            raise self._unavailable(what, self._text(error)) from None

    def _connect(self) -> psycopg.Connection[Any]:
        driver = _driver()
        parameters = {"connect_timeout": max(2, round(self._timeout)), **self._parameters()}
        connection: psycopg.Connection[Any] = driver.connect(**parameters, prepare_threshold=None)
        connection.isolation_level = driver.IsolationLevel.READ_COMMITTED
        connection.read_only = False  # whatever the role says; a standby refuses it, and what it says may be old
        return connection

    def _commit(
        self, connection: psycopg.Connection[Any], what: str, after: Point | None = None, epoch: int = -1
    ) -> None:
        """Commit.  From the request until its answer the outcome is unknown."""
        try:
            warned = _committed(connection)
            if after is not None:
                failpoints.hit(after, epoch=epoch)
        except (_driver().Error, AnswerDropped) as error:
            raise OutcomeUnknown(
                f"the answer to the COMMIT of the {what} was lost: {self._text(error)}",
                state=self.describe(),
                help="repeat the same request: it finds what it did before",
            ) from None
        if warned:
            raise OutcomeUnknown(
                f"the COMMIT of the {what} was answered with a warning: {warned}",
                state=self.describe(),
                help="repeat the same request: it waits again for the synchronous standby",
            )

    def _confirm(self, connection: psycopg.Connection[Any], what: str) -> None:
        """Wait until the synchronous standby, if one is set, has everything that this transaction has read.

        After a crash, a primary shows a COMMIT that was still waiting for its standby.  A fail-over would lose it.  The
        COMMIT of any later transaction that writes waits for everything before it.  After ``timeout`` the wait is
        cancelled, because a back-end that waits does not notice that its client is gone.
        """
        if not _one(connection.execute(_WAITS_FOR_STANDBY))[0]:
            return
        connection.execute(_WRITE_TO_WAL)
        timer = threading.Timer(self._timeout, _cancel, [connection])
        timer.daemon = True
        timer.start()
        try:
            warned = _committed(connection)
        finally:
            timer.cancel()
        if warned:
            raise SinkUnavailable(
                f"no synchronous standby has what the {what} of the epoch log has read: {warned}",
                state=f"{self.describe()}, waited for {self._timeout:g} s; it had no effect",
                help="start the standby, or take it out of synchronous_standby_names, then repeat the request",
            )

    @contextlib.contextmanager
    def _deadline(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Shut the connection down if the server stays silent, since the server's own timeouts do not help then."""
        line = socket.socket(fileno=socket.dup(connection.fileno()))
        timer = threading.Timer(self._timeout + 5, _cut, [line])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            line.close()

    def _timeouts(self) -> list[str]:
        return [f"{max(1, round(self._timeout * 1000))}ms"] * 3

    # --- names and errors -----------------------------------------------------------------------

    def _parameters(self) -> dict[str, Any]:
        """The parts of the DSN.  A malformed DSN is not shown, as it may hold a password."""
        psycopg = _driver()
        dsn = self._dsn if isinstance(self._dsn, str) else self._dsn()
        try:
            parameters: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            raise Misconfigured(
                f"the connection string of the epoch log {self._name!r} is malformed",
                help="write it as postgresql://user@host:port/database, or as key=value pairs",
            ) from None
        self._server = _server(parameters)
        self._secret = str(parameters.get("password") or "")
        return parameters

    def _text(self, error: Exception) -> str:
        """The error's text without the password."""
        text = str(error).strip() or type(error).__name__
        return text.replace(self._secret, "***") if self._secret else text

    def _made_meanwhile(self) -> tuple[type[Exception], ...]:
        errors = _driver().errors
        return (errors.UniqueViolation, errors.DuplicateObject, errors.DuplicateTable, errors.DuplicateSchema)

    def _unavailable(self, what: str, why: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"the {what} of the epoch log failed: {why}",
            state=f"{self.describe()}; it had no effect",
            help="start the server or make it reachable, then restart the query or repeat the command",
        )

    def _not_created(self) -> Misconfigured:
        return Misconfigured(
            f"the epoch log {self.describe()} does not exist",
            help="call create() once before the query starts, or give the name of the log that exists",
        )

    def _without_right(self, what: str, error: Exception) -> Misconfigured:
        return Misconfigured(
            f"the epoch log {self.describe()} may not be used ({what}): {self._text(error)}",
            help="grant USAGE on schema epochal, and SELECT, INSERT, UPDATE, DELETE on its tables log and log_floor;"
            " with a synchronous standby also EXECUTE on pg_logical_emit_message",
        )


def _server(given: Mapping[str, Any]) -> str:
    """The server that the connection string names; libpq takes other parts from the environment or a service file."""
    if given.get("service"):
        return f"postgres service {given['service']!r}"
    defaults = {o.keyword.decode(): o.val.decode() for o in _driver().pq.Conninfo.get_defaults() if o.val is not None}
    known = {**defaults, **given}
    return f"postgres:{known.get('host', 'localhost')}:{known.get('port', 5432)}/{known.get('dbname', '')}"


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise Misconfigured(
            f"an epoch log in Postgres needs the package psycopg: {error}",
            help="pip install 'epochal[postgres]'",
        ) from error
    return psycopg


def _committed(connection: psycopg.Connection[Any]) -> str:
    """Commit.  Return the server's warnings, "" without any.

    With a warning the server answers a COMMIT whose wait for the standby was cancelled.
    """
    warnings: list[str] = []

    def notice(told: Any) -> None:
        if told.severity_nonlocalized == "WARNING":
            warnings.append(str(told.message_primary))

    connection.add_notice_handler(notice)
    connection.commit()
    connection.remove_notice_handler(notice)
    return "; ".join(warnings)


def _cancel(connection: psycopg.Connection[Any]) -> None:
    with contextlib.suppress(Exception):  # the connection is cut some seconds later
        connection.cancel_safe(timeout=5)


def _one(cursor: psycopg.Cursor[Any]) -> Any:
    row = cursor.fetchone()
    assert row is not None, "the statement always gives a row"
    return row


def _cut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
