"""One connection to Postgres.  It bounds every wait, and knows when the outcome of a COMMIT is unknown.

This is the only file that imports psycopg, and no error of psycopg leaves it.  An error of psycopg becomes
``SinkUnavailable`` (no effect), ``ServerRefused`` (the server refused the statement) or, for COMMIT alone,
``OutcomeUnknown``.  A connection string or an encoding that cannot work is ``Misconfigured``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, Format, TransactionStatus

from epochal.coordinator.model.epoch import Actor
from epochal.coordinator.model.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.sinks.postgres.address import Address, Encoded, Limits, ServerRefused

T = TypeVar("T")
Row = tuple[Any, ...]

GRACE_S = 5.0
"""The client gives up this many seconds after the server, so that normally the server's own error arrives first."""

_REFUSALS = ("0A", "22", "23", "28", "3D", "3F", "42", "44", "54", "55000", "XX")
"""How the SQLSTATEs begin of errors that a repetition does not cure.  55000: a publication refuses the statement."""

TRANSACTION_TIMEOUT_FROM = 170000
"""The first server version that has ``transaction_timeout``."""

_NAME_BYTES = 63
"""How long the server lets an application name be."""

_KEEPALIVE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}


_FILE_OPTIONS = ("service", "servicefile", "passfile")
"""Options that name files.  libpq has already read these files when the options are sent to another process."""

_EMPTY_UNLESS_SET = ("hostaddr", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir", "requirepeer")
"""Options without a default, which another environment may set (``PGHOSTADDR``).  An empty value means unset."""

_UTF8 = ("UTF8", "UNICODE")  # two names of one encoding


class _AsItIs(Dumper):
    """Sends a value as it is."""

    format = Format.BINARY

    def dump(self, obj: Encoded) -> bytes:
        return obj


class _Silence(psycopg.OperationalError):
    """The server did not answer within the limit."""


class _Connection(psycopg.Connection[Row]):
    """A connection that gives up a wait after ``limit`` seconds; psycopg would wait for ever if it is half-open."""

    limit: float = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = os.getpid()

    def __del__(self, *_: object) -> None:
        """Close the idle connections of a sink that is no longer referenced, without psycopg's warning."""
        if os.getpid() == self._process:  # a forked child must not close its parent's connection
            self.close()

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(_bounded(gen, self.limit), *args, **kwargs)


def _bounded(gen: Generator[Any, Any, T], limit: float) -> Generator[Any, Any, T]:
    """Run ``gen`` for at most ``limit`` seconds; psycopg resumes it with 0 while nothing happens."""
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
    """A connection in autocommit mode, except within :meth:`transaction` and :meth:`rehearsal`."""

    def __init__(self, connection: _Connection, sink: str, where: str, limits: Limits) -> None:
        self._connection = connection
        self._sink = sink
        self.where = where  # server and database, for errors
        self._limits = limits
        self.version = connection.info.server_version
        self.name = connection.info.parameter_status("application_name") or default_name(sink)
        self._warnings: list[str] = []
        connection.add_notice_handler(partial(_keep_warning, self._warnings))

    @classmethod
    def open(cls, address: Address, sink: str, limits: Limits) -> Session:
        """Connect within ``limits.connect`` seconds.  ``SinkUnavailable`` names the server, never the password."""
        options = _options(address, sink, limits)
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
        connection.adapters.register_dumper(Encoded, _AsItIs)
        info = connection.info
        where = f"Postgres at {info.host}:{info.port}, database {info.dbname}"
        _refuse_encoding(connection, sink, where)
        return cls(connection, sink, where, limits)

    def run(self, statement: str, *values: object, limit: float | None = None) -> list[Row]:
        """Run a statement, return its rows; ``$1`` is the first value.  Without values it may be several statements."""
        try:
            cursor = self._executed(statement, values, limit)
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            raise self._translated(error) from error

    def stream(self, statement: str, *values: object) -> Iterator[Row]:
        """Yield the statement's rows one by one, never all at once.  Run no other statement until all are read."""
        self._connection.limit = self._limits.bulk + GRACE_S
        try:
            with self._connection.cursor() as cursor:
                yield from cursor.stream(statement.encode(), values or None)
        except psycopg.Error as error:
            raise self._translated(error) from error

    def change(self, statement: str, *values: object, limit: float | None = None) -> int:
        """Run a statement and return how many rows it wrote or deleted, by the server's own count."""
        try:
            return self._executed(statement, values, limit).rowcount
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _executed(self, statement: str, values: tuple[object, ...], limit: float | None) -> psycopg.Cursor[Row]:
        self._connection.limit = (limit or self._limits.answer) + GRACE_S
        return self._connection.execute(statement.encode(), values or None)

    def about(self) -> str:
        """Return server, user, encryption and client library of this connection, for people and without a secret."""
        info, library = self._connection.info, psycopg.pq
        secured = "TLS" if self._connection.pgconn.ssl_in_use else "no TLS"
        libpq = f"{library.version() // 10000}.{library.version() % 10000}"
        client = f"psycopg {psycopg.__version__} ({library.__impl__}, libpq {libpq})"
        return f"{self.where}, user {info.user}, {secured}, {client}"

    def address(self) -> Address:
        """Return the address of this session's server, complete for another process.

        It contains all that libpq found here: environment, service file, password file and user name.  So the other
        process takes nothing from its own environment and files.
        """
        used = {o.keyword.decode(): o.val.decode() for o in self._connection.pgconn.info if o.val is not None}
        password = (self._connection.pgconn.password or b"").decode()  # also a password from a password file
        named = {name: value for name, value in used.items() if name not in _FILE_OPTIONS}
        return Address(make_conninfo(**{**dict.fromkeys(_EMPTY_UNLESS_SET, ""), **named, "password": password}))

    def backend(self) -> int:
        """Return the process id of the back-end that runs this transaction.

        Call it inside the transaction, because a pooler may run the next transaction in another back-end.
        """
        assert self._connection.info.transaction_status is not TransactionStatus.IDLE, "asked within a transaction"
        return int(self.run("SELECT pg_backend_pid()")[0][0])

    @contextlib.contextmanager
    def transaction(
        self, answered: Callable[[], None] = lambda: None, bulk: bool = False, by: Actor | None = None
    ) -> Iterator[None]:
        """Run the body in a READ COMMITTED transaction.

        ``SET LOCAL`` alone sets its time limits, which also works with poolers in transaction mode.  Only COMMIT can
        end in ``OutcomeUnknown``.  ``answered`` is called when COMMIT was answered; a failpoint in it may drop that
        answer.  ``by``: whose transaction it is; give it wherever the sink's row is locked (:func:`named`).  After an
        error the caller must close the session, which rolls back.
        """
        self._begin(bulk, by)
        yield
        self._commit(answered)

    @contextlib.contextmanager
    def rehearsal(self, by: Actor | None = None) -> Iterator[None]:
        """Run the body as :meth:`transaction` with ``bulk`` does, and roll back: nothing that the body did stays."""
        self._begin(bulk=True, by=by)
        yield
        self.run("ROLLBACK")

    def refuse_standby(self) -> None:
        """Raise ``SinkUnavailable`` if the server is a standby now: what it says may be old, and it takes no writes."""
        if self.run("SELECT pg_is_in_recovery()")[0][0]:
            raise self._standby()

    def _begin(self, bulk: bool, by: Actor | None) -> None:
        limits = self._limits
        begin = _BEGIN.format(
            lock=_ms(limits.lock), statement=_ms(limits.bulk if bulk else limits.answer), idle=_ms(limits.answer)
        )
        if self.version >= TRANSACTION_TIMEOUT_FROM:
            begin += "; SET LOCAL transaction_timeout = 0"  # each statement and each pause has its own limit
        if by is not None:
            begin += f"; SET LOCAL application_name = {_literal(named(self.name, by))}"
        try:
            self._executed(begin, (), None)
        except psycopg.errors.FeatureNotSupported as error:  # all that BEGIN ... READ WRITE can lack
            raise self._standby() from error
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _standby(self) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self.where} is a standby, which takes no writes",
            sink=self._sink,
            help="nothing to do if a fail-over is under way; else connect to the primary"
            " (target_session_attrs=read-write)",
        )

    def _commit(self, answered: Callable[[], None]) -> None:
        self._connection.limit = self._limits.answer + GRACE_S
        self._warnings.clear()
        try:
            status = self._connection.execute("COMMIT").statusmessage
            answered()
        except (psycopg.Error, ConnectionError) as error:
            raise OutcomeUnknown(
                f"{self.where} did not answer COMMIT: {_line(error)}",
                sink=self._sink,
                help="restart the query if it has ended: Epochal reads the marker to learn the outcome",
            ) from error
        if self._warnings:  # so the server answers where the wait for a synchronous standby was cancelled
            raise OutcomeUnknown(
                f"{self.where} answered COMMIT with a warning: {'; '.join(self._warnings)}",
                sink=self._sink,
                help="restart the query if it has ended: Epochal reads the marker, and waits for the standby again",
            )
        if status != "COMMIT":  # in a failed transaction the server answers ROLLBACK, without an error
            raise SinkUnavailable(
                f"{self.where} answered COMMIT with {status}",
                sink=self._sink,
                help="restart the query if it has ended: nothing became visible, and the request is made again",
            )

    def copy_in(self, statement: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Run COPY FROM STDIN; an exception out of ``chunks`` leaves the COPY unfinished."""
        self._connection.limit = self._limits.bulk + GRACE_S
        try:
            with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                for chunk in chunks:
                    copy.write(chunk)
        except psycopg.Error as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction; may be called again."""
        self._connection.close()

    def _translated(self, error: psycopg.Error) -> EpochalError:
        """Return Epochal's error for psycopg's error."""
        state = error.sqlstate or ""
        ours = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError)
        if state.startswith(_REFUSALS) or not ours:
            refused = ServerRefused(
                f"{self.where} refused: {_line(error)}",
                sink=self._sink,
                state=f"SQLSTATE {state or 'none'}",
                help="grant the right, or change the rows or the table, as the server's message says",
            )
            refused.constraint = error.diag.constraint_name
            return refused
        return SinkUnavailable(
            f"{self.where} did not complete the statement: {_line(error)}",
            sink=self._sink,
            state=f"SQLSTATE {state or 'none'}",
            help=_way_on(state),
        )


def _keep_warning(kept: list[str], notice: psycopg.errors.Diagnostic) -> None:
    """Keep the text of a warning.  No method, because a connection that refers to its session would not be closed."""
    if notice.severity_nonlocalized == "WARNING":
        kept.append(str(notice.message_primary))


def _way_on(state: str) -> str:
    """What lets a statement complete that the server did not complete, by its SQLSTATE."""
    if state == "57014":
        return "end what slows the statement down or cancels it, or raise answer_timeout= or bulk_timeout= of the sink"
    if state.startswith("53"):
        return "give the server what it lacks (disk space, memory, connections), and restart the query"
    return "start the server or make it reachable (its log says why it broke off), and restart the query"


_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
    " SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = {lock};"
    " SET LOCAL statement_timeout = {statement}; SET LOCAL idle_in_transaction_session_timeout = {idle};"
    " SET LOCAL enable_seqscan = off"  # an epoch has few of the rows: use the index also where statistics are missing
)


def default_name(sink: str) -> str:
    """Return the application name of a sink's connections, unless the connection string has another."""
    return f"epochal {sink}"[:_NAME_BYTES]


def named(name: str, by: Actor) -> str:
    """Return the application name of a transaction of this actor, on connections of this name.

    It proves to others whose back-end holds the sink's row.
    """
    mark = f" {by.generation}/{by.token}"
    return name.encode()[: _NAME_BYTES - len(mark)].decode(errors="ignore") + mark


def _literal(text: str) -> str:
    return sql.quote(text)


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _options(address: Address, sink: str, limits: Limits) -> dict[str, Any]:
    """Return the options that the user gave, and Epochal's defaults for the others."""
    try:
        given = conninfo_to_dict(address.conninfo)
    except psycopg.Error:
        given = None  # libpq's message quotes the string, which may hold a password
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
        "application_name": default_name(sink),
        **_KEEPALIVE,
    }
    return {**ours, **given}


def _where(options: dict[str, Any]) -> str:
    """Describe the server to connect to, for errors, as far as it is known before libpq has read its files."""
    if options.get("service"):
        return f"Postgres, service {options['service']!r}"
    environment = {o.keyword.decode(): o.val.decode() for o in Conninfo.get_defaults() if o.val is not None}
    known = {**environment, **options}
    host = known.get("host") or known.get("hostaddr") or "the local socket"
    return f"Postgres at {host}:{known.get('port') or 5432}, database {known.get('dbname') or '(default)'}"


def _refuse_encoding(connection: _Connection, sink: str, where: str) -> None:
    """Refuse a connection whose encoding is not UTF-8: the server would store other characters, without an error."""
    encoding = connection.info.parameter_status("client_encoding") or "unknown"
    if encoding.upper().replace("-", "") not in _UTF8:  # a pooler returns the name as the client spelled it
        connection.close()
        raise Misconfigured(
            f"the connection's client_encoding is {encoding}",
            sink=sink,
            state=where,
            help="leave client_encoding out of the connection string and of its options=",
        )


def _remedy(error: psycopg.Error) -> str:
    text = str(error)
    if "certificate" in text or "SSL" in text:
        return (
            "check that sslrootcert= is `system` or names the certificate of the authority that signed the server's,"
            " that host= is a name in the server's certificate, and that postgresql.conf has ssl = on"
        )
    if "service" in text:
        return "define the service in the driver's PGSERVICEFILE, or in ~/.pg_service.conf of its user"
    if "authentication failed" in text or "pg_hba.conf" in text or "no password supplied" in text:
        return "correct user and password in the connection string, or admit them in the server's pg_hba.conf"
    if "does not exist" in text:
        return "name a database and a role that exist, or create what is missing (CREATE DATABASE, CREATE ROLE)"
    if "connection slots" in text or "too many" in text:
        return "end connections that nobody needs, or raise max_connections of the server, then restart the query"
    return "start the server, or correct host and port in the connection string"


def _text(error: BaseException, options: dict[str, Any]) -> str:
    """Return the error's text without the password."""
    text, password = _line(error), options.get("password")
    return text.replace(str(password), "***") if password else text


def _line(error: BaseException) -> str:
    """Return the error's text on one line."""
    return "; ".join(part.strip() for part in str(error).splitlines() if part.strip()) or type(error).__name__
