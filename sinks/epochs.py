"""The epochs that a sink shows, as data: what the sink's audit records of each epoch, and how long it keeps that.

The protocol does not depend on the audit: only fence and marker decide.  This file imports neither Spark nor any
client library.  ``arrow()`` imports ``pyarrow``; ``spark()`` uses the session that it is given.

The same data has three forms: ``rows`` (plain dataclasses, oldest first), ``arrow()`` (a ``pyarrow.Table`` with the
fixed schema below) and ``spark(session)`` (a DataFrame with the same columns)::

    epochs   app, sink: string · position, epoch: int64 · incarnation: string · decision: int64 · offsets: string
             rows, digest_rows, digest_sum, watermark: int64 · committed_at: timestamp[us, UTC]
    ranges   app, sink: string · position, epoch: int64 · incarnation: string · source: int64 · topic: string
             partition, first, last: int64 · text: string
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Digest, EpochNumber, Position
from epochal.coordinator.model.errors import Misconfigured

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

KEPT_ALWAYS = 10
"""How many of the newest epochs every retention keeps.

Recovery needs the newest one: in idempotent mode its row holds the digest.
"""
KEEP_EPOCHS = 10_000
"""How many epochs the audit keeps by default."""


@dataclass(frozen=True)
class ShownEpoch:
    """One epoch that a sink shows, as the sink's audit records it."""

    app: str
    sink: str
    position: Position
    epoch: EpochNumber
    incarnation: str  # Spark's query id, one per checkpoint
    decision: int  # Decision.id, 63 bits
    offsets: str  # the text of Spark's offsets/N; "" if it is not known
    rows: int  # how many rows the sink was given, without those that where= or bad_rows= left out
    digest: Digest | None  # in idempotent mode: the digest of all rows of the epoch
    watermark: int | None  # milliseconds since 1970
    committed_at: datetime  # UTC, by the clock of the process or server that wrote it

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The end offset of the epoch in each source of the query, in Spark's order, as JSON; None if not known."""
        return tuple(self.ends.values())

    @property
    def ends(self) -> Mapping[str, str | None]:
        """The end offset of the epoch in each source, as JSON, by Spark's name of the source; None if not known."""
        return ends_of(self.offsets)


def ends_of(offsets: str) -> Mapping[str, str | None]:
    """Return the end offset in each source, as JSON, by Spark's name of the source; None if not known.

    ``offsets``: the text of ``offsets/N``.  It has the version of its format in the first line, JSON about the epoch in
    the second line, then one line per source: in version 1 the offset, in version 2 the source's name, a colon and the
    offset.  The name is the number of the source, unless the query names its sources.
    """
    lines = offsets.splitlines()
    if lines[:1] == ["v2"]:
        named = [(name, text) for name, _, text in (line.partition(":") for line in lines[2:])]
    else:
        named = [(str(number), text) for number, text in enumerate(lines[2:])]
    if all(name.isdigit() for name, _ in named):
        named.sort(key=lambda pair: int(pair[0]))  # with many sources, Spark writes version 2 in any order
    return {name: None if text == "-" else text for name, text in named}


@dataclass(frozen=True)
class OffsetRange:
    """The offsets that one epoch read of one partition of a Kafka source.  For another source: its end offset."""

    app: str
    sink: str
    position: Position
    epoch: EpochNumber
    incarnation: str
    source: int  # the number of the source in the query, from 0; of a source with a name: its place in ``offsets/N``
    topic: str | None
    partition: int | None
    first: int | None  # offset, inclusive; None: the epoch before is not known, or did not have this partition yet
    last: int | None  # offset, inclusive
    text: str | None  # Spark's JSON of the end offset, for a source that is not Kafka; None for Kafka


@dataclass(frozen=True)
class Ranges:
    """The offsets of some epochs, oldest epoch first."""

    rows: tuple[OffsetRange, ...]

    def arrow(self) -> pyarrow.Table:
        return _arrow(_RANGES, map(vars, self.rows))

    def spark(self, session: SparkSession) -> DataFrame:
        return session.createDataFrame(self.arrow())


@dataclass(frozen=True)
class Epochs:
    """Some epochs of one sink, oldest first."""

    rows: tuple[ShownEpoch, ...] = ()

    @property
    def newest(self) -> ShownEpoch | None:
        return self.rows[-1] if self.rows else None

    def arrow(self) -> pyarrow.Table:
        return _arrow(_EPOCHS, map(_flat, self.rows))

    def spark(self, session: SparkSession) -> DataFrame:
        return session.createDataFrame(self.arrow())

    def ranges(self) -> Ranges:
        """Return the offsets that each epoch read.

        ``offsets/N`` holds only end offsets: an epoch begins where the epoch before it ended.  So the begin is known
        only if the epoch before it, in the same checkpoint, is among these epochs.  A partition from which an epoch
        read nothing has no row.
        """
        before: ShownEpoch | None = None
        found: list[OffsetRange] = []
        for row in self.rows:
            follows = before is not None and (before.incarnation, before.epoch + 1) == (row.incarnation, row.epoch)
            found += _ranges(row, before if follows else None)
            before = row
        return Ranges(tuple(found))

    def __iter__(self) -> Iterator[ShownEpoch]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _ranges(row: ShownEpoch, before: ShownEpoch | None) -> Iterator[OffsetRange]:
    starts = before.ends if before is not None else {}
    told = (row.app, row.sink, row.position, row.epoch, row.incarnation)
    for place, (name, text) in enumerate(row.ends.items()):
        if text is None:
            continue
        source = int(name) if name.isdigit() else place
        began = starts.get(name)
        ends = kafka_offsets(text)
        if ends is None:
            if text != began:
                yield OffsetRange(*told, source, None, None, None, None, text)
            continue
        known = (kafka_offsets(began) if began is not None else None) or {}
        for (topic, partition), end in sorted(ends.items()):
            first = known.get((topic, partition))
            if end > (first or 0):
                yield OffsetRange(*told, source, topic, partition, first, end - 1, None)


def kafka_offsets(text: str) -> Mapping[tuple[str, int], int] | None:
    """Parse the JSON of a Kafka source: (topic, partition) to the offset after the last one read.

    Return None if ``text`` is not the JSON of a Kafka source.  Its form is ``{"topic": {"0": 17, "1": 4}}``.
    """
    try:
        topics = json.loads(text)
        return {
            (name, int(n)): _whole(end) for name, ends in _object(topics).items() for n, end in _object(ends).items()
        }
    except (ValueError, TypeError):
        return None


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict) or not value:
        raise TypeError(value)
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value


def _flat(row: ShownEpoch) -> dict[str, object]:
    digest = row.digest
    held = {"digest_rows": None, "digest_sum": None}
    return {**vars(row), **({"digest_rows": digest.rows, "digest_sum": digest.sum} if digest is not None else held)}


_WHO = {"app": "string", "sink": "string", "position": "int64", "epoch": "int64", "incarnation": "string"}
_EPOCHS = {
    **_WHO,
    "decision": "int64",
    "offsets": "string",
    **dict.fromkeys(("rows", "digest_rows", "digest_sum", "watermark"), "int64"),
    "committed_at": "timestamp",
}
_RANGES = {
    **_WHO,
    "source": "int64",
    "topic": "string",
    **dict.fromkeys(("partition", "first", "last"), "int64"),
    "text": "string",
}


def _arrow(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> pyarrow.Table:
    try:
        import pyarrow as pa
    except ImportError as missing:
        raise Misconfigured(
            f"pyarrow is missing: {missing}", help="pip install pyarrow, or use .rows, which needs nothing"
        ) from None
    kinds = {"string": pa.string(), "int64": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    return pa.Table.from_pylist([{name: row[name] for name in columns} for row in rows], schema=schema)


@dataclass(frozen=True)
class Wanted:
    """The epochs that a caller asks for: positions ``first`` to ``last``, inclusive; of these the newest ``limit``."""

    first: Position = 1
    last: Position | None = None
    limit: int | None = None

    @classmethod
    def of(cls, sink: str, first: Position | None, last: Position | None, limit: int | None) -> Wanted:
        if limit is not None and limit < 1:
            raise Misconfigured(
                f"limit={limit!r} asks for no epoch", sink=sink, help="give limit= a number from 1, or leave it out"
            )
        return cls(first if first is not None else 1, last, limit)

    def takes(self, position: Position) -> bool:
        return self.first <= position and (self.last is None or position <= self.last)

    def is_met(self, positions: Iterable[Position]) -> bool:
        """Return whether ``positions`` suffice, so that older epochs need not be read.

        ``positions``: all epochs from some position up to the newest one.
        """
        found = list(positions)
        enough = self.limit is not None and sum(map(self.takes, found)) >= self.limit
        return enough or any(position <= self.first for position in found)

    def of_all(self, found: Iterable[ShownEpoch]) -> Epochs:
        """Return the epochs that were asked for.  Of several with the same position the first in ``found`` counts."""
        by_position: dict[Position, ShownEpoch] = {}
        for row in found:
            if self.takes(row.position):
                by_position.setdefault(row.position, row)
        rows = [by_position[position] for position in sorted(by_position)]
        return Epochs(tuple(rows[-self.limit :] if self.limit is not None else rows))


@dataclass(frozen=True)
class Retention:
    """How much of its audit a sink keeps: at most ``epochs`` epochs, and none that is older than ``days`` days.

    None means no limit.  The newest ``KEPT_ALWAYS`` epochs stay whatever their age.  Old rows are removed only when
    an epoch is committed: while a query commits nothing, its audit stays as it is.
    """

    epochs: int | None = KEEP_EPOCHS
    days: float | None = None

    @classmethod
    def of(cls, keep_epochs: int | None, keep_days: float | None, sink: str) -> Retention:
        if keep_epochs is not None and (_is_no_number(keep_epochs, int) or keep_epochs < KEPT_ALWAYS):
            raise Misconfigured(
                f"keep_epochs={keep_epochs!r} is not a number of epochs from {KEPT_ALWAYS}",
                sink=sink,
                help=f"give a whole number, {KEPT_ALWAYS} or more, or None to keep the audit of every epoch",
            )
        if keep_days is not None and (_is_no_number(keep_days, int | float) or not 0 < keep_days < math.inf):
            raise Misconfigured(
                f"keep_days={keep_days!r} is not a number of days above 0",
                sink=sink,
                help="give a number of days, or None to keep the audit of epochs of any age",
            )
        return cls(keep_epochs, keep_days)

    def keep_from(self, newest: Position) -> Position:
        """Return the lowest position that ``epochs`` keeps once ``newest`` is committed."""
        return max(1, newest - self.epochs + 1) if self.epochs is not None else 1

    def kept(self, rows: Sequence[ShownEpoch]) -> list[ShownEpoch]:
        """Return the rows of the audit that stay, oldest first.  The last of ``rows`` was just committed."""
        if not rows:
            return []
        newest, always = rows[-1], rows[-KEPT_ALWAYS].position if len(rows) >= KEPT_ALWAYS else 0
        since = newest.committed_at - timedelta(days=self.days) if self.days is not None else None
        lowest = self.keep_from(newest.position)
        return [
            row
            for row in rows
            if row.position >= always or (row.position >= lowest and (since is None or row.committed_at >= since))
        ]


def _is_no_number(value: object, kind: Any) -> bool:
    return isinstance(value, bool) or not isinstance(value, kind)
