"""``bad_rows=``: the rows that one sink cannot hold, written by another in the same epoch and decision.

A sink that was given ``bad_rows=other`` leaves out what it cannot hold, and ``other`` takes part in the pipeline as
the sink of exactly these rows: the columns of the epoch, then ``_sink`` (who could not) and ``_reason`` (which columns
and why).  Both read the same rows and ask the same condition, so that every row of the epoch that ``where=`` does not
keep out is in one of the two.  Flink's side outputs and Kafka Connect's dead letter queue are the idea; theirs are
written by themselves, this one is part of the epoch.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Json, Marker, Query, SinkState
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.protocol import (
    CommitOutcome,
    ForwardingSink,
    MarkedSink,
    RedoSink,
    ReplacingSink,
    Rows,
    Schema,
    Sink,
)
from epochal.sinks.rows.digest import watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SINK, REASON = "_sink", "_reason"
"""The columns beside those of the epoch."""


@runtime_checkable
class SortingSink(Sink, Protocol):
    """A sink that can say of a row that it cannot hold it, and leave it out."""

    bad_rows: Sink | None
    """Who gets the rows that this sink cannot hold; None: they refuse the epoch."""

    def reasons(self, epoch: Epoch, rows: Rows) -> Rows:
        """``rows`` with the column ``_reason``: why the sink cannot hold the row; NULL where it can, or need not.

        The same whenever it is asked of one epoch, also while it is prepared in another thread.
        """

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:
        """All that ``reasons`` rests on beside the rows: a later start has to find the same of an epoch that one of
        the two sinks shows, else a row could come into both, or into neither."""


class Rejects(ForwardingSink):
    """``into``, as the sink of the rows that ``of`` cannot hold: the very object that writes the others."""

    def __init__(self, of: SortingSink, into: Sink) -> None:
        _check_into(of, into)
        self._of = of
        self._into = into

    def __repr__(self) -> str:
        return f"Rejects(of={self._of!r}, into={self._into!r})"

    @property
    def name(self) -> str:
        return self._into.name

    @property
    def of(self) -> str:
        """The sink that could not hold the rows."""
        return self._of.name

    @property
    def into(self) -> Sink:
        """The sink that was passed as ``bad_rows=``."""
        return self._into

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        return self._into.create(query, self._schema(schema))

    def check(self, query: Query, schema: Schema) -> None:
        self._into.check(query, self._schema(schema))

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        return self._into.look(query, by=by)

    def fence(self, query: Query, by: Actor) -> None:
        self._into.fence(query, by)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """Counts what it leaves out by itself, so that the vote can be held against the copy."""
        rows, digest = watched(rows) if epoch.digest else (rows, None)
        rejected = self._rejected(epoch, rows)
        vote = self._into.prepare(replace(epoch, digest=False), rejected, by)
        left_out = epoch.copy.rows - int(rejected.count()) if epoch.copy is not None else 0
        return replace(vote, left_out=vote.left_out + left_out, digest=digest() if digest is not None else None)

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:
        """What tells the rows of the two apart, as the log keeps it."""
        told: Json = json.loads(json.dumps(self._of.judgement(epoch, rows)))
        return told

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        return self._into.commit(committable, by)

    def abort(self, query: Query, by: Actor) -> None:
        self._into.abort(query, by)

    def renamed(self, name: str) -> tuple[Sink, Sink]:
        here, there = self._marked().renamed(name)
        return Rejects(self._of, here), Rejects(self._of, there)

    def check_mark(self, query: Query) -> None:
        self._marked().check_mark(query)

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        self._marked().mark(query, marker, by)

    def _marked(self) -> MarkedSink:
        if isinstance(self._into, MarkedSink):
            return self._into
        raise Misconfigured(
            "the sink's marker cannot be written by hand",
            sink=self.name,
            state=f"{type(self._into).__name__} has no method mark",
            help="restore the sink, or give it that method (epochal.sinks.protocol.MarkedSink)",
        )

    def close(self) -> None:
        self._into.close()

    def guarantee(self) -> str:
        return f"{self._into.guarantee()} Of every epoch: the rows that sink {self._of.name!r} cannot hold, and why."

    def _rejected(self, epoch: Epoch, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        reasoned: DataFrame = self._of.reasons(epoch, rows).where(f.isnotnull(REASON))
        return reasoned.select(*map(_column, rows.columns), f.lit(self._of.name).alias(SINK), REASON)

    def _schema(self, schema: Schema) -> Schema:
        """That of the epoch, and the two columns beside it."""
        from pyspark.sql.types import StructType

        taken = [name for name in schema.names if name.lower() in (SINK, REASON)]
        if taken:
            raise Misconfigured(
                f"the rows have columns {taken}, which bad_rows= adds",
                sink=self.name,
                help="rename them in the query",
            )
        return StructType([*schema.fields]).add(SINK, "string").add(REASON, "string")


def with_rejects(sinks: Sequence[Sink]) -> tuple[Sink, ...]:
    """The sinks, and after each that has ``bad_rows=`` one of its own that gets them."""
    found: list[Sink] = []
    for sink in sinks:
        found.append(sink)
        if isinstance(sink, SortingSink) and sink.bad_rows is not None:
            found.append(Rejects(sink, copy.copy(sink.bad_rows)))
    return tuple(found)


def check_bad_rows(bad_rows: object, sink: str) -> Sink | None:
    """What a user passed as ``bad_rows=``: ``"fail"`` (None here), or a sink."""
    if bad_rows == "fail":
        return None
    if not isinstance(bad_rows, Sink):
        raise Misconfigured(
            f"bad_rows={bad_rows!r} is no sink",
            sink=sink,
            help='pass the sink that is to have them, as bad_rows=DeltaSink("..."), or "fail", which is the default',
        )
    return bad_rows


def left_out(sink: SortingSink, epoch: Epoch, rows: DataFrame) -> int:
    """How many of ``rows``, of which a copy is kept, go to the sink of bad rows: one job."""
    return how_many(sink.reasons(epoch, rows)) if sink.bad_rows is not None else 0


def how_many(reasons: DataFrame) -> int:
    """How many rows have a reason for which a sink cannot hold them: one job."""
    from pyspark.sql import functions as f

    return int(reasons.where(f.isnotnull(REASON)).count())


def _check_into(of: Sink, into: Sink) -> None:
    if isinstance(into, RedoSink):
        raise _unfit(of, into, "writes from the durable copy, which has every row")
    if isinstance(into, ReplacingSink):
        raise _unfit(of, into, "shows the newest epoch alone: bad rows of the one before would be gone")
    if isinstance(into, SortingSink) and into.bad_rows is not None:
        raise _unfit(of, into, "has bad_rows= of its own, and one sink has to hold them all")


def _unfit(of: Sink, into: Sink, why: str) -> Misconfigured:
    return Misconfigured(
        f"bad_rows={into!r} {why}", sink=of.name, help="take a PostgresSink, or a DeltaSink that appends"
    )


def _column(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
