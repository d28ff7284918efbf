"""``bad_rows=``: one sink writes the rows that another sink cannot hold, in the same epoch and with the same decision.

A sink with ``bad_rows=other`` leaves out the rows that it cannot hold.  ``other`` takes part in the pipeline as the
sink of exactly these rows: the columns of the epoch, then ``_sink`` (the sink that cannot hold the row) and
``_reason`` (which columns, and why).  Both sinks read the same rows and evaluate the same condition.  So every row of
the epoch that ``where=`` does not keep out is in exactly one of the two.  Where the first sink has found no bad row in
the durable copy, ``other`` need not read it (``CountingSink``).  The idea is that of Flink's side outputs and
Kafka Connect's dead letter queue.  Those are written separately; here the bad rows are part of the epoch.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Json, Marker, Query, SinkState
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.protocol import (
    CommitOutcome,
    ForwardingSink,
    FramedSink,
    MarkedSink,
    RedoSink,
    ReplacingSink,
    Rows,
    Schema,
    Sink,
)
from epochal.sinks.questions import Question, questions_of
from epochal.sinks.rows.digest import watched
from epochal.sinks.spark.executors import telling
from epochal.sinks.spark.names import free
from epochal.sinks.spark.observing import observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SINK, REASON = "_sink", "_reason"
"""The columns that are added to those of the epoch."""


@runtime_checkable
class SortingSink(Sink, Protocol):
    """A sink that can tell which rows it cannot hold, and leave them out."""

    bad_rows: Sink | None
    """The sink for the rows that this sink cannot hold.  None: such a row makes the sink refuse the epoch."""

    def reasons(self, epoch: Epoch, rows: Rows) -> Rows:
        """Return ``rows`` with the column ``_reason``: why the sink cannot hold the row.

        It is NULL where the sink can hold the row, or does not get it.  The answer for one epoch is always the same,
        also while another thread prepares the epoch.
        """

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:
        """Return all that ``reasons`` depends on beside the row itself.

        If one of the two sinks shows an epoch already, this must be the same in a later start.  Else a row could be in
        both sinks, or in neither.
        """


@runtime_checkable
class CountingSink(SortingSink, Protocol):
    """A sorting sink that says how many bad rows it has found, so that rows without a bad one are judged once.

    If it says 0, its bad rows are not looked for again.  So it must say the number that is part of its vote's
    ``left_out``, which the coordinator has compared with the copy, and None if it is not sure.
    """

    def bad_found(self, epoch: Epoch) -> int | None:
        """Return how many rows of the epoch's durable copy this object has left out as bad.

        None: it has not judged the rows of this decision.
        """


class Rejects(ForwardingSink):
    """The sink of the rows that ``of`` cannot hold.  ``into`` writes them.

    ``of`` is not a copy: it is the object that writes the other rows in this pipeline.
    """

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
        """The name of the sink that cannot hold the rows."""
        return self._of.name

    @property
    def into(self) -> Sink:
        """The sink that was passed as ``bad_rows=``."""
        return self._into

    @property
    def frame(self) -> str | None:
        """The frame of the sink that cannot hold the rows."""
        return self._of.frame if isinstance(self._of, FramedSink) else None

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        return self._into.create(query, self._schema(schema))

    def check(self, query: Query, schema: Schema) -> None:
        self._into.check(query, self._schema(schema))

    def questions(self, query: Query, schema: Schema | None) -> Iterator[Question]:
        """See ``epochal.sinks.questions.Questioned``."""
        return questions_of(self._into, query, None if schema is None else self._schema(schema))

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        return self._into.look(query, by=by)

    def fence(self, query: Query, by: Actor) -> None:
        self._into.fence(query, by)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """Prepare the bad rows in ``into``.  Count the other rows separately, so that the vote can be checked.

        The coordinator compares written and left-out rows with the copy.  If the other sink has found no bad row, that
        comparison was made of its own vote, and nothing is read here.
        """
        if epoch.copy is not None and not epoch.digest and _found_none(self._of, epoch):
            return replace(self._into.prepare(epoch, self._none_of(rows), by), left_out=epoch.copy.rows)
        rows, digest = watched(rows) if epoch.digest else (rows, None)
        reasoned, counted = _counted(self._of.reasons(epoch, rows))
        with telling(epoch.number):
            vote = self._into.prepare(replace(epoch, digest=False), self._rejected(reasoned), by)
            left_out = epoch.copy.rows - counted(vote.rows + vote.left_out) if epoch.copy is not None else 0
        return replace(vote, left_out=vote.left_out + left_out, digest=digest() if digest is not None else None)

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:
        """Return the judgement of the other sink, in the form in which the log keeps it."""
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

    def _rejected(self, reasoned: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        moved = free(REASON, reasoned.columns)  # Spark 3.5 has no "* EXCEPT", with which the reason could come last
        rejected = reasoned.where(f.isnotnull(REASON)).withColumnRenamed(REASON, moved)
        return rejected.select("*", f.lit(self._of.name).alias(SINK), f.col(moved).alias(REASON)).drop(moved)

    def _none_of(self, rows: DataFrame) -> DataFrame:
        """Return no rows, with the columns of bad ones.  Spark reads nothing of ``rows`` for them."""
        from pyspark.sql import functions as f

        reasoned = rows.select("*", f.lit(None).cast("string").alias(REASON))
        return self._rejected(reasoned).where(f.lit(False))

    def _schema(self, schema: Schema) -> Schema:
        """Return the schema of the epoch with the two added columns."""
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
    """Return the sinks; after each sink with ``bad_rows=`` comes a sink of its own for its bad rows."""
    found: list[Sink] = []
    for sink in sinks:
        found.append(sink)
        if isinstance(sink, SortingSink) and sink.bad_rows is not None:
            found.append(Rejects(sink, copy.copy(sink.bad_rows)))
    return tuple(found)


def check_bad_rows(bad_rows: object, sink: str) -> Sink | None:
    """Return the sink that a user passed as ``bad_rows=``, or None for ``"fail"``.

    Raise ``Misconfigured`` for anything else.
    """
    if bad_rows == "fail":
        return None
    if not isinstance(bad_rows, Sink):
        raise Misconfigured(
            f"bad_rows={bad_rows!r} is no sink",
            sink=sink,
            help='pass the sink that gets these rows, as bad_rows=DeltaSink("..."), or "fail", which is the default',
        )
    return bad_rows


def _counted(reasoned: DataFrame) -> tuple[DataFrame, Callable[[int], int]]:
    """Return the same rows, and a function that counts the bad ones, after a sink has written them.

    The function takes how many the sink has written.  Spark counts while the sink reads them.  If that gives another
    number, one more job counts: a sink may begin with an action that reads only some of the rows.
    """
    from pyspark.sql import functions as f

    seen, figures = observed(reasoned, f.count_if(f.isnotnull(REASON)).alias("bad"))

    def count(written: int) -> int:
        found = figures("how many bad rows there are", "nothing of the epoch was decided")
        return written if found is not None and found["bad"] == written else how_many(reasoned)

    return seen, count


def found(kept: tuple[int, int] | None, epoch: Epoch) -> int | None:
    """Return how many bad rows a sink has found, if that was in this decision.

    ``kept``: the decision that the sink has judged last, and how many it found.
    """
    return kept[1] if kept is not None and kept[0] == epoch.decision.id else None


def _found_none(of: SortingSink, epoch: Epoch) -> bool:
    """Return whether the other sink has judged these rows and can hold all of them."""
    return isinstance(of, CountingSink) and of.bad_found(epoch) == 0


def how_many(reasons: DataFrame) -> int:
    """Count the rows that have a reason why the sink cannot hold them.  One Spark job."""
    from pyspark.sql import functions as f

    return int(reasons.where(f.isnotnull(REASON)).count())


def _check_into(of: Sink, into: Sink) -> None:
    if isinstance(into, RedoSink):
        raise _unfit(of, into, "writes from the durable copy, which has every row")
    if isinstance(into, FramedSink) and into.frame is not None:
        raise _unfit(of, into, f"gets frame {into.frame!r}, but bad rows are those of the sink that has bad_rows=")
    if isinstance(into, ReplacingSink):
        raise _unfit(of, into, "shows the newest epoch alone: the bad rows of earlier epochs would be gone")
    if isinstance(into, SortingSink) and into.bad_rows is not None:
        raise _unfit(of, into, "has bad_rows= of its own, but the sink of bad rows must hold every row that it gets")


def _unfit(of: Sink, into: Sink, why: str) -> Misconfigured:
    return Misconfigured(
        f"bad_rows={into!r} {why}",
        sink=of.name,
        help="take a PostgresSink without bad_rows=, or a DeltaSink that appends",
    )
