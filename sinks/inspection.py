"""What the console command asks of a sink beyond the protocol: the rows of each epoch, and what dead starts left.

A capability is a type: a sink that can be asked has :meth:`Inspected.inspection`, and one whose rows do not say which
epoch they are of says why in ``Inspection.unattributed``; nothing is guessed.  Free of Spark.

Values are compared across systems, so ``rows`` gives them as one of few kinds: int, float, str, bool, bytes, None;
a date as days and a time as microseconds since 1970, a decimal as its text without trailing zeros.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

from epochal.coordinator.model.epoch import Actor, Json, Position, Query
from epochal.sinks.epochs import ShownEpoch
from epochal.sinks.protocol import AuditedSink, ForwardingSink, Sink

Value = int | float | str | bool | bytes | None
KINDS = ("integer", "real", "double", "decimal", "text", "boolean", "date", "timestamp", "timestamp_ntz", "binary")
"""What a column may be to be compared with one of another system."""


@dataclass(frozen=True)
class Counted:
    """How many rows of one position a sink holds; None: it is there and was not counted."""

    position: Position
    rows: int | None


@dataclass(frozen=True)
class Leftover:
    """What somebody prepared and nobody shows.  ``owner``: the start that did; None: nobody knows."""

    what: str
    position: Position
    owner: Actor | None
    rows: int | None = None


class Inspection(Protocol):
    """Of one sink of one app.  Reads only, but for :meth:`remove`; errors are those of a look."""

    unattributed: str
    """Why the sink's rows do not tell their epoch, a sentence; empty where they do."""

    content: str
    """What :meth:`counts` and :meth:`rows` read, in a few words."""

    complete: bool
    """Whether a position that :meth:`counts` leaves out has no row; else nothing is known of it."""

    projection: Json
    """What of an epoch the sink is given, ``select=``, ``where=`` and ``bad_rows=``: the same text, the same rows."""

    cautions: Sequence[str]
    """What :meth:`leftovers` does not tell of."""

    def counts(self, first: Position, last: Position) -> Iterator[Counted]:
        """In ascending order."""

    def columns(self) -> Mapping[str, str]:
        """Name to kind; one whose values are not compared has the server's own type instead of one of ``KINDS``."""

    def rows(self, position: Position, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        """The rows of one position, streamed."""

    def leftovers(self) -> Sequence[Leftover]:
        """What is prepared above the marker."""

    def remove(self, newest: Actor) -> Sequence[str]:
        """Remove leftovers of generations below ``newest``, which must own the sink, else ``Fenced``; what was done.

        Called only when no epoch of this sink is in doubt: nothing of an older generation is decided any more.
        """

    def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class Inspected(Protocol):
    """A sink that can be asked."""

    def inspection(self, query: Query) -> Inspection: ...


@dataclass(frozen=True)
class Open:
    """A partition in which a transaction is open.  ``transactional_id``: empty where nobody can see whose it is."""

    topic: str
    partition: int
    stable: int  # the last stable offset: where the oldest open transaction begins
    high: int
    began: float | None  # seconds since 1970, of the record at ``stable``; None: it was not read
    transactional_id: str = ""


@runtime_checkable
class Transactional(Protocol):
    """An inspection of a sink whose transactions a server keeps open (Kafka)."""

    @property
    def ids(self) -> Sequence[str]:
        """Under which it writes."""

    def transactions(self) -> Sequence[Open]:
        """Where one is open now."""

    def abort(self) -> Sequence[str]:
        """Abort what is open under its ids, which bars a producer that lives; called only when nothing is in doubt."""


def transactional_of(sink: Sink, query: Query) -> Transactional | None:
    """None: it has no such transactions."""
    asked: object = inspection_of(sink, query)
    return asked if isinstance(asked, Transactional) else None


def written(sink: Sink) -> Sink:
    """The sink that writes: that of bad rows is given them by another."""
    return sink.into if isinstance(sink, ForwardingSink) else sink


def audited(sink: Sink) -> AuditedSink | None:
    """The sink, if it can tell which epochs it shows."""
    asked = written(sink)
    return asked if isinstance(asked, AuditedSink) else None


def newest(sink: Sink, app: str) -> ShownEpoch | None:
    """None: there is none, or the sink has no audit."""
    asked = audited(sink)
    return asked.epochs(app, limit=1).newest if asked is not None else None


def inspection_of(sink: Sink, query: Query) -> Inspection | None:
    """None: it cannot be asked."""
    asked = written(sink)
    return asked.inspection(query) if isinstance(asked, Inspected) else None


def strictly_below(newest: Actor) -> Actor:
    """An actor that may drop what lower generations made, and nothing of its own: its token is nobody's."""
    return Actor(newest.generation, -1)


def row_hash(row: Sequence[Value], kinds: Sequence[str]) -> int:
    """63 bits of the values, the same in every process and from every system."""
    whole = hashlib.blake2b(digest_size=8)
    for value, kind in zip(row, kinds, strict=True):
        text = _bytes(value, kind)
        whole.update(b"%d:" % (-1 if text is None else len(text)) + (text or b""))
    return int.from_bytes(whole.digest(), "big") >> 1


def decimal_text(value: Decimal) -> str:
    """A decimal whatever the scale that it is kept with."""
    return format(value.normalize(), "f")


def _bytes(value: Any, kind: str) -> bytes | None:
    if value is None:
        return None
    if kind in ("real", "double"):
        return _float_bytes(float(value), "f" if kind == "real" else "d")
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def _float_bytes(value: float, size: str) -> bytes:
    """All NaN are one; 0.0 and -0.0 are two, as both systems keep them apart."""
    return b"nan" if math.isnan(value) else struct.pack(f">{size}", value)
