"""Opens sessions, and keeps the idle ones.

This file does not import psycopg, so that a sink can be declared and pickled, and refused with a clear error, where
psycopg is not installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.postgres.address import Address, Dsn, Limits

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


def open_session(address: Address, sink: str, limits: Limits) -> Session:
    """Open a new session.  If psycopg is not installed, the error says so, and where to install it."""
    try:
        from epochal.sinks.postgres.session import Session
    except ImportError as error:
        raise Misconfigured(
            f"the Postgres client is missing here: {error}",
            sink=sink,
            help="pip install 'epochal[postgres]' on the driver and on every executor",
        ) from error
    return Session.open(address, sink, limits)


class Connector:
    """Opens sessions for one sink and keeps the idle ones.  A pickled connector has no sessions."""

    def __init__(self, dsn: Dsn, sink: str, limits: Limits) -> None:
        self._dsn = dsn
        self._sink = sink
        self.limits = limits
        self._idle: list[Session] = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_idle": []}

    def address(self) -> Address:
        """Return the address of the server.  A DSN that is a function is called each time, as its secret may change."""
        return Address(self._called(self._dsn) if callable(self._dsn) else self._dsn)

    def _called(self, dsn: Callable[[], str]) -> str:
        """Return what the user's function returns.  What it raises may hold a secret, so no error shows its text."""
        try:
            given: object = dsn()
        except Exception as error:
            said = f"raised {type(error).__name__}"
        else:
            if isinstance(given, str):
                return given
            said = f"returned {type(given).__name__}, not a text"
        raise Misconfigured(
            f"the function of dsn= {said}",
            sink=self._sink,
            help="it is called in the driver whenever Postgres is reached, and returns a connection string: see that"
            " what it reads (the environment, a file, a vault) is there",
        )

    def open(self) -> Session:
        """Open a new session, which the caller closes."""
        return open_session(self.address(), self._sink, self.limits)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Yield an idle session that still answers, or a new one.  After an error, close it and do not use it again."""
        session = self._idle_that_answers() or self.open()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self._idle.append(session)

    def anew(self) -> contextlib.AbstractContextManager[Session]:
        """Close the idle sessions and open a new one, which uses the secret that is valid now."""
        self.close()
        return self.session()

    def _idle_that_answers(self) -> Session | None:
        """Return an idle session that still answers, or None."""
        while self._idle:
            session = self._idle.pop()
            try:
                session.run("SELECT 1", limit=self.limits.connect)
                return session
            except SinkUnavailable:
                session.close()
        return None

    def close(self) -> None:
        """Close the idle sessions."""
        while self._idle:
            self._idle.pop().close()
