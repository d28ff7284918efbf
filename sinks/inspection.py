"""What the console command asks of a sink beyond the protocol: the rows of each epoch, and leftovers of dead starts.

A sink that can answer these questions has the method :meth:`Inspected.inspection`.  Where the
rows of a sink do not tell which epoch they belong to, ``Inspection.unattributed`` says why; nothing is guessed.
This file does not import Spark.

Values are compared across systems, so ``rows`` gives only int, float, str, bool, bytes and None.  A date is a number
of days since 1970, a time is microseconds since 1970, a decimal is its text without trailing zeros.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

from epochal.coordinator.model.epoch import Actor, Committable, EpochNumber, Json, Position, Query
from epochal.sinks.epochs import ShownEpoch
from epochal.sinks.protocol import AuditedSink, ForwardingSink, Sink

Value = int | float | str | bool | bytes | None
KINDS = ("integer", "real", "double", "decimal", "text", "boolean", "date", "timestamp", "timestamp_ntz", "binary")
"""The kinds of columns whose values can be compared with those of another system."""


@dataclass(frozen=True)
class Counted:
    """How many rows of one position a sink holds.  None: the position is there, and its rows were not counted."""

    position: Position
    rows: int | None


@dataclass(frozen=True)
class Leftover:
    """Prepared work that is not visible.  ``owner``: the start that prepared it; None: not known."""

    what: str
    position: Position
    owner: Actor | None
    rows: int | None = None


class Inspection(Protocol):
    """Answers the console's questions about one sink of one app.

    All methods except :meth:`remove` only read.  They raise the same errors as ``look``.
    """

    unattributed: str
    """Why the sink's rows do not tell their epoch, as a sentence; empty where they do tell it."""

    content: str
    """What :meth:`counts` and :meth:`rows` read, in a few words."""

    complete: bool
    """True: a position that :meth:`counts` leaves out has no rows.  False: nothing is known of such a position."""

    projection: Json
    """Which part of an epoch the sink is given: ``select=``, ``where=`` and ``bad_rows=``.

    Two sinks with the same JSON get the same rows.
    """

    cautions: Sequence[str]
    """What :meth:`leftovers` cannot find, as sentences for people."""

    def counts(self, first: Position, last: Position) -> Iterator[Counted]:
        """Count the rows of the positions ``first`` to ``last``, in ascending order."""

    def columns(self) -> Mapping[str, str]:
        """Return name to kind.  A column whose values are not compared has the server's type, not one of ``KINDS``."""

    def rows(self, position: Position, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        """Stream the rows of one position."""

    def leftovers(self) -> Sequence[Leftover]:
        """Return what is prepared above the marker."""

    def remove(self, newest: Actor) -> Sequence[str]:
        """Remove the leftovers of generations below ``newest``; return what was done, as lines.

        ``newest`` must own the sink: else ``Fenced``.  Called only when no epoch of this sink is in doubt, so no work
        of an older generation is decided and not yet visible.
        """

    def close(self) -> None:
        """Close the connections."""


@runtime_checkable
class Inspected(Protocol):
    """A sink that has an :class:`Inspection`."""

    def inspection(self, query: Query) -> Inspection: ...


@dataclass(frozen=True)
class Open:
    """A partition with an open transaction.  ``transactional_id``: empty where its owner cannot be seen."""

    topic: str
    partition: int
    stable: int  # the last stable offset: where the oldest open transaction begins
    high: int
    began: float | None  # seconds since 1970, of the record at ``stable``; None: it was not read
    transactional_id: str = ""


@dataclass(frozen=True)
class Described:
    """The newest transaction of a transactional id, as its coordinator describes it."""

    transactional_id: str
    state: str  # Kafka's word; empty: the coordinator knows no such id
    is_open: bool
    can_commit: bool  # whether a commit that is asked for now, by its own producer, would be done
    producer: tuple[int, int]  # id and epoch
    began: float | None  # seconds since 1970; None: no transaction is open
    timeout: float  # seconds from then until the broker aborts it
    partitions: Sequence[str]  # as topic[partition]

    def __str__(self) -> str:
        state = self.state or "not known to its coordinator"
        return f"{self.transactional_id}: {state}, producer {self.producer[0]}, epoch {self.producer[1]}"


@runtime_checkable
class Transactional(Protocol):
    """An inspection of a sink whose transactions a server keeps open (Kafka)."""

    @property
    def ids(self) -> Sequence[str]:
        """The transactional ids under which the sink writes."""

    def transactions(self) -> Sequence[Open]:
        """Return the partitions in which a transaction is open now."""

    def described(self) -> Sequence[Described] | None:
        """Return the newest transaction of each id.  None: coordinators cannot be asked with the sink's options."""

    def is_prepared(self, found: Described, committable: Committable) -> bool:
        """Whether ``found`` is the transaction that holds this vote."""

    def epoch_inside(self) -> EpochNumber | None:
        """Return the epoch whose marker lies in the open transaction; None: no marker was written into it yet."""

    def abort(self) -> Sequence[str]:
        """Abort the open transactions under these ids.  This also fences a producer that is still alive.

        Called only when no epoch is in doubt.
        """


def transactional_of(sink: Sink, query: Query) -> Transactional | None:
    """Return the sink's inspection if its server keeps transactions open, else None."""
    asked: object = inspection_of(sink, query)
    return asked if isinstance(asked, Transactional) else None


def written(sink: Sink) -> Sink:
    """Return the sink that writes: for the sink of bad rows, the user's sink that it forwards them to."""
    return sink.into if isinstance(sink, ForwardingSink) else sink


def audited(sink: Sink) -> AuditedSink | None:
    """Return the sink that writes if it has an audit of its epochs, else None."""
    asked = written(sink)
    return asked if isinstance(asked, AuditedSink) else None


def newest(sink: Sink, app: str) -> ShownEpoch | None:
    """Return the newest epoch in the sink's audit; None if there is none, or if the sink has no audit."""
    asked = audited(sink)
    return asked.epochs(app, limit=1).newest if asked is not None else None


def inspection_of(sink: Sink, query: Query) -> Inspection | None:
    """Return the sink's inspection; None if the sink has none."""
    asked = written(sink)
    return asked.inspection(query) if isinstance(asked, Inspected) else None


def strictly_below(newest: Actor) -> Actor:
    """Return an actor that may drop the work of generations below ``newest``, and nothing of ``newest`` itself.

    No real actor has its token.
    """
    return Actor(newest.generation, -1)


def row_hash(row: Sequence[Value], kinds: Sequence[str]) -> int:
    """Return a 63-bit hash of the values; equal values have equal hashes in every process and from every system."""
    whole = hashlib.blake2b(digest_size=8)
    for value, kind in zip(row, kinds, strict=True):
        text = _bytes(value, kind)
        whole.update(b"%d:" % (-1 if text is None else len(text)) + (text or b""))
    return int.from_bytes(whole.digest(), "big") >> 1


def decimal_text(value: Decimal) -> str:
    """Return the text of a decimal, the same for every scale that it is stored with."""
    return format(value.normalize(), "f")


def _bytes(value: Any, kind: str) -> bytes | None:
    if value is None:
        return None
    if kind in ("real", "double"):
        return _float_bytes(float(value), "f" if kind == "real" else "d")
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def _float_bytes(value: float, size: str) -> bytes:
    """Return the bytes of a float.  All NaN are equal.  0.0 and -0.0 differ: Postgres and Delta store them apart."""
    return b"nan" if math.isnan(value) else struct.pack(f">{size}", value)
