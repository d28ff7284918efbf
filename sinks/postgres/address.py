"""Where the server is, and how long anything may take.  Free of psycopg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.coordinator.model.errors import Misconfigured

Dsn = str | Callable[[], str]
"""A libpq connection string or URI, or a function that returns one (for secrets)."""


@dataclass(frozen=True)
class Limits:
    """Seconds that anything may take; each is enforced by the server and, a little later, by the client."""

    connect: float = 10.0
    lock: float = 15.0  # waiting for the sink's row
    answer: float = 30.0  # any statement that touches a few rows, COMMIT included
    bulk: float = 300.0  # any statement whose time grows with the epoch: count, delete, the end of COPY
    copy: float = 3600.0  # one task's COPY as a whole, which waits for Spark


class ServerRefused(Misconfigured):
    """The server understood the statement and said no: rights, constraints, values, missing objects."""


@dataclass(frozen=True)
class Address:
    """A connection string that is never shown."""

    conninfo: str = field(repr=False)
