"""One connection to Postgres whose every wait is bounded, and which knows when an outcome is unknown.

The only file that imports psycopg.  psycopg's errors end here: what leaves is ``SinkUnavailable`` (no
effect), ``ServerRefused`` (the server said no) or, for COMMIT alone, ``OutcomeUnknown``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, TransactionStatus

from epochal.coordinator.model.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.sinks.postgres.address import Address, Limits, ServerRefused

T = TypeVar("T")
Row = tuple[Any, ...]

GRACE_S = 5.0
"""How much later than the server the client gives up, so that the server's own words are heard."""

_SAID_NO = ("0A", "22", "23", "28", "3D", "3F", "42", "44", "54", "XX")
"""SQLSTATE classes that a repetition does not cure."""

_KEEPALIVE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}


_FILES = ("service", "servicefile", "passfile")
"""Options whose files have been read by then."""

_ELSEWHERE = ("hostaddr", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir", "requirepeer")
"""Options that are not given by default, and that another environment may give (``PGHOSTADDR``): empty is not given."""

_UTF8 = ("UTF8", "UNICODE")


class _Silence(psycopg.OperationalError):
    """The server did not answer within the limit."""


class _Connection(psycopg.Connection[Row]):
    """Gives up waiting after ``limit`` seconds: a half-open connection would be waited for without end."""

    limit: float = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = os.getpid()

    def __del__(self, *_: object) -> None:
        """Idle connections of a sink that nobody holds are closed without psycopg's warning."""
        if os.getpid() == self._process:  # a forked child must not say goodbye on its parent's connection
            self.close()

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(_bounded(gen, self.limit), *args, **kwargs)


def _bounded(gen: Generator[Any, Any, T], limit: float) -> Generator[Any, Any, T]:
    """``gen``, which psycopg resumes with 0 while nothing happens, until ``limit`` seconds are over."""
    deadline = time.monotonic() + limit
    try:
        want = next(gen)
        while True:
            ready = yield want
            if not ready and time.monotonic() > deadline:
                raise _Silence(f"no answer within {limit:g} s")
            want = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class Session:
    """A connection in autocommit mode; :meth:`transaction` makes the exceptions."""

    def __init__(self, connection: _Connection, sink: str, where: str, limits: Limits) -> None:
        self._connection = connection
        self._sink = sink
        self.where = where  # server and database, to people
        self._limits = limits

    @classmethod
    def open(cls, place: Address, sink: str, limits: Limits) -> Session:
        """Connect within ``limits.connect`` seconds; ``SinkUnavailable`` names the server, never the password."""
        options = _options(place, sink, limits)
        where = _where(options)
        try:
            connection = _Connection.connect(
                make_conninfo(**options), autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor
            )
        except psycopg.Error as error:
            raise SinkUnavailable(
                f"cannot connect to {where}: {_text(error, options)}",
                sink=sink,
                help=_remedy(error),
            ) from None
        connection.limit = limits.answer + GRACE_S
        info = connection.info
        where = f"Postgres at {info.host}:{info.port}, database {info.dbname}"
        _refuse_encoding(connection, sink, where)
        return cls(connection, sink, where, limits)

    def run(self, statement: str, *values: object, limit: float | None = None) -> list[Row]:
        """The statement's rows; ``$1`` is the first value.  Without values it may be several statements."""
        try:
            cursor = self._executed(statement, values, limit)
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            raise self._translated(error) from error

    def stream(self, statement: str, *values: object) -> Iterator[Row]:
        """The statement's rows one after another, never all at once; no other statement before they are read."""
        self._connection.limit = self._limits.bulk + GRACE_S
        try:
            with self._connection.cursor() as cursor:
                yield from cursor.stream(statement.encode(), values or None)
        except psycopg.Error as error:
            raise self._translated(error) from error

    def change(self, statement: str, *values: object, limit: float | None = None) -> int:
        """How many rows the statement wrote or deleted, by the server's own count."""
        try:
            return self._executed(statement, values, limit).rowcount
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _executed(self, statement: str, values: tuple[object, ...], limit: float | None) -> psycopg.Cursor[Row]:
        self._connection.limit = (limit or self._limits.answer) + GRACE_S
        return self._connection.execute(statement.encode(), values or None)

    def place(self) -> Address:
        """How this session was had, for another process: nothing is left to its environment and its files to fill in.

        All that libpq found here is in it: environment, service file, password file, the name of the user.
        """
        used = {o.keyword.decode(): o.val.decode() for o in self._connection.pgconn.info if o.val is not None}
        password = (self._connection.pgconn.password or b"").decode()  # also one out of a password file
        named = {name: value for name, value in used.items() if name not in _FILES}
        return Address(make_conninfo(**{**dict.fromkeys(_ELSEWHERE, ""), **named, "password": password}))

    def backend(self) -> int:
        """The server's process id of this transaction's back-end: a pooler may give the next one another."""
        assert self._connection.info.transaction_status is not TransactionStatus.IDLE, "asked within a transaction"
        return int(self.run("SELECT pg_backend_pid()")[0][0])

    @contextlib.contextmanager
    def transaction(self, answered: Callable[[], None] = lambda: None, bulk: bool = False) -> Iterator[None]:
        """READ COMMITTED, bounded by ``SET LOCAL`` alone (poolers in transaction mode).

        Only COMMIT can end in ``OutcomeUnknown``; ``answered`` is called once its answer is there, and may
        lose it.  After an error the session must be closed, which rolls back.
        """
        self._begin(bulk)
        yield
        self._commit(answered)

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Like :meth:`transaction`, for many rows, and rolled back: of what the body did nothing stays."""
        self._begin(bulk=True)
        yield
        self.run("ROLLBACK")

    def _begin(self, bulk: bool) -> None:
        limits = self._limits
        self.run(
            _BEGIN.format(
                lock=_ms(limits.lock), statement=_ms(limits.bulk if bulk else limits.answer), idle=_ms(limits.answer)
            )
        )

    def _commit(self, answered: Callable[[], None]) -> None:
        self._connection.limit = self._limits.answer + GRACE_S
        try:
            said = self._connection.execute("COMMIT").statusmessage
            answered()
        except (psycopg.Error, ConnectionError) as error:
            raise OutcomeUnknown(
                f"{self.where} did not answer COMMIT: {_line(error)}",
                sink=self._sink,
                help="nothing to do: the marker is asked",
            ) from error
        if said != "COMMIT":  # a failed transaction answers COMMIT with ROLLBACK, and calls it success
            raise SinkUnavailable(f"{self.where} answered COMMIT with {said}", sink=self._sink, help="try again")

    def copy_in(self, statement: str, chunks: Iterable[bytes | memoryview]) -> None:
        """COPY FROM STDIN; an exception out of ``chunks`` leaves the COPY unfinished."""
        self._connection.limit = self._limits.bulk + GRACE_S
        try:
            with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                for chunk in chunks:
                    copy.write(chunk)
        except psycopg.Error as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Roll back what is open; idempotent."""
        self._connection.close()

    def _translated(self, error: psycopg.Error) -> EpochalError:
        state = error.sqlstate or ""
        ours = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError)
        if state[:2] in _SAID_NO or not ours:
            return ServerRefused(
                f"{self.where} refused: {_line(error)}",
                sink=self._sink,
                state=f"SQLSTATE {state or 'none'}",
                help="grant the right, or change the rows or the table, as the server's message says",
            )
        return SinkUnavailable(
            f"{self.where} did not do what was asked: {_line(error)}",
            sink=self._sink,
            state=f"SQLSTATE {state or 'none'}",
            help="see whether the server is up and what its log says",
        )


_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
    " SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = {lock};"
    " SET LOCAL statement_timeout = {statement}; SET LOCAL idle_in_transaction_session_timeout = {idle};"
    " SET LOCAL enable_seqscan = off"  # the rows of one epoch are few: without statistics, too, use the index
)


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _options(place: Address, sink: str, limits: Limits) -> dict[str, Any]:
    """What the user gave, and our defaults for what was not given."""
    try:
        given = conninfo_to_dict(place.conninfo)
    except psycopg.Error:
        given = None  # libpq's message quotes the string, in which a password may be
    if given is None or "@" in str(given.get("host", "")):
        raise Misconfigured(
            "the connection string cannot be read (it is not shown, as it may hold a password)",
            sink=sink,
            help="give a libpq conninfo or postgresql:// URI, with special characters of the password percent-encoded",
        )
    ours = {
        "connect_timeout": max(2, int(limits.connect)),
        "tcp_user_timeout": _ms(limits.answer),
        "client_encoding": "utf8",
        "application_name": f"epochal {sink}"[:63],
        **_KEEPALIVE,
    }
    return {**ours, **given}


def _where(options: dict[str, Any]) -> str:
    """Where we are about to connect to, as far as it is known before libpq has read its files."""
    if options.get("service"):
        return f"Postgres, service {options['service']!r}"
    environment = {o.keyword.decode(): o.val.decode() for o in Conninfo.get_defaults() if o.val is not None}
    known = {**environment, **options}
    host = known.get("host") or known.get("hostaddr") or "the local socket"
    return f"Postgres at {host}:{known.get('port') or 5432}, database {known.get('dbname') or '(default)'}"


def _refuse_encoding(connection: _Connection, sink: str, where: str) -> None:
    """Rows are sent as UTF-8: under another encoding the server would keep other characters, without an error."""
    encoding = connection.info.parameter_status("client_encoding") or "unknown"
    if encoding.upper().replace("-", "") not in _UTF8:  # a pooler repeats what it was asked for, in our letters
        connection.close()
        raise Misconfigured(
            f"the connection's client_encoding is {encoding}",
            sink=sink,
            state=where,
            help="leave client_encoding out of the connection string and of its options=",
        )


def _remedy(error: psycopg.Error) -> str:
    said = str(error)
    if "certificate" in said or "SSL" in said:
        return (
            "sslrootcert= names the certificate of the authority that signed the server's, or is `system`; host= is a"
            " name in the server's certificate; the server has ssl=on"
        )
    if "service" in said:
        return "PGSERVICEFILE, or ~/.pg_service.conf, of the driver's user defines the service"
    return "see whether the server is up and whether the connection string is right"


def _text(error: BaseException, options: dict[str, Any]) -> str:
    text, password = _line(error), options.get("password")
    return text.replace(str(password), "***") if password else text


def _line(error: BaseException) -> str:
    return "; ".join(part.strip() for part in str(error).splitlines() if part.strip()) or type(error).__name__
