"""Opens sessions, and keeps the idle ones.

Free of psycopg, so that a sink can be declared, pickled and refused by name where it is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.postgres.address import Address, Dsn, Limits

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


def open_session(place: Address, sink: str, limits: Limits) -> Session:
    """A new session; where psycopg is missing the error says so, and on which side."""
    try:
        from epochal.sinks.postgres.session import Session
    except ImportError as error:
        raise Misconfigured(
            f"the Postgres client is missing here: {error}",
            sink=sink,
            help="pip install 'epochal[postgres]' on the driver and on every executor",
        ) from error
    return Session.open(place, sink, limits)


class Connector:
    """Opens sessions for one sink and keeps the idle ones; pickled without them."""

    def __init__(self, dsn: Dsn, sink: str, limits: Limits) -> None:
        self._dsn = dsn
        self._sink = sink
        self.limits = limits
        self._idle: list[Session] = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_idle": []}

    def place(self) -> Address:
        """Where to connect to; a callable is asked each time, as its secret may change."""
        return Address(self._dsn() if callable(self._dsn) else self._dsn)

    def open(self) -> Session:
        """A new session that the caller closes."""
        return open_session(self.place(), self._sink, self.limits)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """An idle session that still answers, or a new one; after an error it is closed, never used again."""
        session = self._awake() or self.open()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self._idle.append(session)

    def anew(self) -> contextlib.AbstractContextManager[Session]:
        """A new session in the place of the idle ones: it knows the secret that holds now."""
        self.close()
        return self.session()

    def _awake(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            try:
                session.run("SELECT 1", limit=self.limits.connect)
                return session
            except SinkUnavailable:
                session.close()
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
