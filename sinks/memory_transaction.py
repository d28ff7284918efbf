"""A reference sink, in memory, that votes as Kafka does: the server holds one open transaction per app and sink.

``begin`` ends the open transaction for good.  It returns the producer of the next one, which has a higher epoch::

    prepare   begin; look at fence and marker; write rows and marker into the open transaction
    commit    end exactly this transaction
              if it was ended before: look at the marker; begin, and write the rows of the copy
    finish    end exactly this transaction
    fence, abort, mark   begin, then do the same as in every other sink

Whoever changes fence or marker begins first.  So if a transaction can still be ended, fence and marker are those
that ``prepare`` has seen: the request to end it needs no look at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Json, Marker, Query, SinkState
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import marker_of
from epochal.sinks.memory import MemoryRedoSink, MemoryServer, Prepared, Row, Table, write_rows
from epochal.sinks.protocol import CommitOutcome, Rows, Stage

T = TypeVar("T")


@dataclass(frozen=True)
class Producer:
    """Names one transaction.  No other transaction ever has the same name."""

    identity: str  # of the table
    epoch: int

    @classmethod
    def newest(cls, table: Table) -> Producer:
        return cls(table.identity, table.producer_epoch)


@dataclass(frozen=True)
class Open(Prepared):
    """What an open transaction holds: rows, and the marker of ``committable``.  ``attempt`` is the producer's epoch."""

    committable: Committable


@dataclass(frozen=True)
class Vote:
    """The open transaction that a committable names, and the marker in it."""

    producer: Producer
    marker: Marker

    def to_json(self) -> Json:
        return {
            "identity": self.producer.identity,
            "epoch": self.producer.epoch,
            "position": self.marker.position,
            "decision": self.marker.decision,
        }

    @classmethod
    def of(cls, committable: Committable) -> Vote | None:
        """Return the transaction that holds the marker of this decision at this position; else None."""
        told = committable.payload.get("transaction")
        if told is None:
            return None
        vote = cls(Producer(told["identity"], told["epoch"]), Marker(told["position"], told["decision"]))
        return vote if vote.marker == marker_of(committable) else None


class TransactionServer(MemoryServer):
    """A server whose tables have one open transaction each, beside what other tables have."""

    def begin(self, app: str, sink: str) -> Producer:
        """End the open transaction for good, and return the producer of the next one."""
        table = self.table(app, sink)
        table.prepared = {}
        table.producer_epoch += 1
        return Producer.newest(table)

    def barred(self, app: str, sink: str, apply: Callable[[], T]) -> T:
        """Begin, then ``apply``.  What is open ends even if ``apply`` is refused."""
        self.begin(app, sink)
        return apply()

    def write(self, app: str, producer: Producer, c: Committable, rows: tuple[Row, ...], by: Actor) -> bool:
        """Put rows and marker into the open transaction; False if ``producer`` is not the newest one."""
        table = self.table(app, c.sink)
        if Producer.newest(table) != producer:
            return False
        table.prepared[producer.epoch] = Open(producer.epoch, c.position, by, rows, c)
        return True

    def end(self, app: str, sink: str, producer: Producer) -> CommitOutcome | None:
        """Show what the producer wrote; None if somebody has begun since.  Then the marker says what happened."""
        table = self.table(app, sink)
        if Producer.newest(table) != producer:
            return None
        if not table.prepared:  # only this request ends a transaction and leaves its producer the newest one
            return CommitOutcome.ALREADY_COMMITTED
        written = table.prepared[producer.epoch]
        assert isinstance(written, Open), "only `write` writes here"
        self.show(app, written.committable, written.rows)
        return CommitOutcome.COMMITTED

    def lose_prepared(self, app: str, sink: str) -> int:
        """Do as every other server; an open transaction expires, and cannot be ended any more."""
        lost = super().lose_prepared(app, sink)
        self.begin(app, sink)
        return lost


@dataclass(frozen=True)
class Left:
    """What a transaction of this process leaves in the table."""

    producer: Producer
    state: SinkState


class MemoryTransactionSink(MemoryRedoSink):
    """A sink that, like Kafka, holds the prepared epoch in one open transaction, and redoes it if that was ended."""

    def __init__(self, name: str, server: TransactionServer, stage: Stage, *, frame: str | None = None) -> None:
        super().__init__(name, server, stage, frame=frame)
        self._server: TransactionServer = server
        self._held: Left | None = None  # once the transaction is ended
        self._shown: Left | None = None  # now, if nobody has begun since

    def renamed(self, name: str) -> tuple[MemoryTransactionSink, MemoryTransactionSink]:
        here, there = (
            MemoryTransactionSink(each, self._server, self._stage, frame=self.frame) for each in (self._name, name)
        )
        here._names, there._names = (self._name, name), (name, self._name)
        return here, there

    def check_mark(self, query: Query) -> None:
        """Nothing to refuse: every marker can be written."""

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        app = query.app
        self._barred("mark", app, lambda kept: self._server.mark(app, self._name, marker, by, kept))

    def fence(self, query: Query, by: Actor) -> None:
        self._barred("fence", query.app, lambda kept: self._server.fence(query.app, kept, by))

    def abort(self, query: Query, by: Actor) -> None:
        self._barred("abort", query.app, lambda kept: self._server.abort(query.app, kept, by))

    def _barred(self, verb: str, app: str, apply: Callable[[str], object]) -> None:
        """Send a request that first ends the open transaction.  ``apply`` gets the name that the table has then."""

        def arrive() -> None:
            kept = self._kept_as(app)
            self._server.barred(app, kept, lambda: apply(kept))

        self._request(verb, arrive)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:  # noqa: ARG002
        copied, read = self._copied(epoch)
        app = self._looked()
        producer = self._ask_again("begin", lambda: self._server.begin(app, self._name))
        state = self._state_before(app, producer)
        self._server.conditions(self._name).check_prepare(state, by, marker_of(epoch), epoch.number)
        written = write_rows(read, self._name, epoch.number)
        vote = Vote(producer, marker_of(epoch))
        committable = replace(copied, payload={**copied.payload, "transaction": vote.to_json()})
        if not self._ask_again("write", lambda: self._server.write(app, producer, committable, written, by)):
            raise self._ended_by_another(epoch)
        self._held = Left(producer, replace(state, marker=vote.marker))
        failpoints.hit(Point.BEFORE_VOTE, self._name, epoch.number)
        return committable

    def _state_before(self, app: str, producer: Producer) -> SinkState:
        """Return fence and marker.  They need no look if nobody has begun since this process has ended its own."""
        shown, self._shown = self._shown, None
        if shown is not None and shown.producer == replace(producer, epoch=producer.epoch - 1):
            return shown.state
        return self._read(lambda: self._state(app))

    def _ended_by_another(self, epoch: Epoch) -> SinkUnavailable:
        return SinkUnavailable(
            "another producer has ended the transaction while it was written",
            sink=self._name,
            epoch=epoch.number,
            state="nothing of the epoch is visible",
            help="run one query per app and sink, and write an epoch within the transaction's timeout",
        )

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        if by == committable.decision.actor:  # whose fence the transaction was begun under
            ended = self._end(committable)
            if ended is not None:
                return ended
        return super().commit(committable, by)

    def finish(self, committable: Committable) -> None:
        self._end(committable)

    def _end(self, committable: Committable) -> CommitOutcome | None:
        """End the transaction that the committable names; None: it names none, or it was ended before."""
        vote = Vote.of(committable)
        if vote is None:
            return None
        app, producer = self._looked(), vote.producer
        held, self._held = self._held, None
        ended = self._ask_to_show(
            "end", committable.decision.epoch, lambda: self._server.end(app, self._name, producer)
        )
        if ended is not None and held is not None and held.producer == producer:
            self._shown = held
        return ended

    def _publish(self, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:
        app = self._looked()
        return self._ask_to_show(
            "commit",
            c.decision.epoch,
            lambda: self._server.barred(app, self._name, lambda: self._server.publish(app, c, by, rows)),
        )

    def guarantee(self) -> str:
        return f"{self._name}: every epoch exactly once, all or nothing, in order, in one transaction or from the copy"
