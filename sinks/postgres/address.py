"""Where the server is, how long each wait may take, and the error of a statement that the server refuses.

This file does not import psycopg.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.coordinator.model.errors import Misconfigured

Dsn = str | Callable[[], str]
"""A libpq connection string or URI, or a function that returns one (for secrets)."""


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds.  The server enforces each of them, and the client does so a little later."""

    connect: float = 10.0
    lock: float = 15.0  # a wait for the sink's row
    answer: float = 30.0  # a statement that touches a few rows, COMMIT included
    bulk: float = 300.0  # a statement whose time grows with the epoch: count, delete, the end of COPY
    copy: float = 3600.0  # the whole COPY of one task, which waits for Spark's rows


class ServerRefused(Misconfigured):
    """The server read the statement and refused it: a right, a constraint, a value or an object that does not exist."""

    constraint: str | None = None  # the name of the constraint, or of the unique index, that refused


class Encoded(bytes):
    """A value of a statement, in the server's binary form.  The statement says its type with a cast."""


@dataclass(frozen=True)
class Address:
    """A connection string.  ``repr`` never shows it, as it may hold a password."""

    conninfo: str = field(repr=False)
