"""The reference sinks, in memory: one that votes, and one that writes its rows from the durable copy.

:class:`MemoryServer` keeps what a real server would keep, and survives the death of a driver.  A sink is a
thin client of the server, and every process makes its own.  Each request of a client goes through the
server's ``network``.  A test may replace the network to lose requests, to lose answers, or to deliver late::

    sink ──request──> network ──> server: check the conditions and write, in one step
         <──answer───

The server checks a request when it *arrives*, never when it was sent.  Only for that reason a late request
does no harm.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import (
    Actor,
    Committable,
    Copy,
    CopyFile,
    Digest,
    Epoch,
    EpochNumber,
    Json,
    Marker,
    Position,
    Query,
    SinkState,
)
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    Fenced,
    MarkerLost,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import Conditions, check_frame, check_name, looked, marker_of, may_drop
from epochal.sinks.epochs import KEEP_EPOCHS, Epochs, Retention, ShownEpoch, Wanted
from epochal.sinks.protocol import Applied, CommitOutcome, Rows, Schema, Stage

Row = Mapping[str, Any]
T = TypeVar("T")

_REPLACEMENT = "\ufffd"


class Delivery(enum.Enum):
    """What the network does with one request."""

    DELIVERED = "delivered"
    UNAVAILABLE = "unavailable"  # the client knows that it did not arrive: SinkUnavailable
    REQUEST_LOST = "request lost"  # it never arrives, and the client cannot know: OutcomeUnknown
    ANSWER_LOST = "answer lost"  # it was applied, and the client cannot know: OutcomeUnknown
    LATE = "late"  # it is under way until `deliver_late`, and the client cannot know: OutcomeUnknown


Network = Callable[[str, str], Delivery]
"""(verb, sink name) -> what happens to this request."""


def deliver(verb: str, sink: str) -> Delivery:  # noqa: ARG001
    """A network without faults."""
    return Delivery.DELIVERED


@dataclass(frozen=True)
class Prepared:
    """The rows of one attempt: durable and invisible."""

    attempt: int
    position: Position
    actor: Actor
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Shown:
    """One epoch as readers see it."""

    position: Position
    decision: int  # Decision.id
    rows: tuple[Row, ...]


@dataclass
class Table:
    """All that the server keeps of one sink of one app."""

    identity: str
    fence: Actor | None = None
    marker: Marker | None = None
    prepared: dict[int, Prepared] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)
    audit: list[ShownEpoch] = field(default_factory=list)
    producer_epoch: int = 0  # only of a table with an open transaction: see ``memory_transaction.py``

    def copy(self) -> Table:
        """Return another table with the same content, like a backup."""
        return replace(self, prepared=dict(self.prepared), shown=list(self.shown), audit=list(self.audit))


class MemoryServer:
    """What survives the death of a driver: the tables of any number of apps and sinks, and the requests under way.

    ``keep_epochs``, ``keep_days``: how much of its audit a table keeps (``epochal.sinks.epochs.Retention``).
    ``now`` is the clock of the audit.  A test may set it; every epoch advances it by one second.
    """

    def __init__(
        self, name: str = "memory", *, keep_epochs: int | None = KEEP_EPOCHS, keep_days: float | None = None
    ) -> None:
        self.name = name
        self.now = datetime(1970, 1, 1, tzinfo=timezone.utc)
        self._retention = Retention.of(keep_epochs, keep_days, name)
        self.down = False
        self.network: Network = deliver
        self._tables: dict[tuple[str, str], Table] = {}
        self._under_way: list[Callable[[], object]] = []
        self._serial = itertools.count(1)
        self._lock = threading.RLock()

    # For readers and administrators.  These calls do not pass through the network, so they are never lost.

    def create(self, app: str, sink: str) -> bool:
        """Make the table; return False if there is one already."""
        with self._lock:
            if (app, sink) in self._tables:
                return False
            self._tables[app, sink] = Table(f"{self.name}#{next(self._serial)}")
            return True

    def recreate(self, app: str, sink: str) -> None:
        """Drop the table and make another with the same name: rows, marker and fence are gone."""
        with self._lock:
            del self._tables[app, sink]
            self.create(app, sink)

    def table(self, app: str, sink: str) -> Table:
        """Return the table itself, for tests that read or damage it."""
        try:
            return self._tables[app, sink]
        except KeyError:
            raise Misconfigured(
                f"no table for app {app!r} on {self.name}",
                sink=sink,
                state=f"tables {sorted(self._tables)}",
                help="call pipeline.create() once",
            ) from None

    def visible(self, app: str, sink: str) -> list[Row]:
        """Return all rows that a reader sees now, in the order in which they became visible."""
        with self._lock:
            return [row for epoch in self.table(app, sink).shown for row in epoch.rows]

    def lose_prepared(self, app: str, sink: str) -> int:
        """Forget all prepared rows; return how many attempts are lost.

        This is XA's heuristic abort: a participant loses prepared work on its own.
        """
        with self._lock:
            table = self.table(app, sink)
            lost, table.prepared = len(table.prepared), {}
            return lost

    def deliver_late(self) -> int:
        """Let the requests under way arrive, oldest first; return how many.  Nobody gets their answers."""
        with self._lock:
            arriving, self._under_way = self._under_way, []
        for request in arriving:
            try:
                request()
            except (Fenced, MarkerLost, CheckpointMismatch, PreparedLost):
                continue  # refused on arrival: that is what makes a late request harmless
        return len(arriving)

    def crash(self) -> None:
        """Stop the server.  The requests under way are lost; what is durable stays."""
        with self._lock:
            self.down = True
            self._under_way = []

    def restart(self) -> None:
        """Start the server again, with what was durable."""
        self.down = False

    # For clients.

    def request(self, verb: str, sink: str, apply: Callable[[], T]) -> T:
        """Send one request: ``apply`` runs on the server, in one step, when the request arrives.

        Raise ``SinkUnavailable`` if it did not arrive, ``OutcomeUnknown`` if the client gets no answer.
        """
        delivery = self.network(verb, sink)
        if self.down or delivery is Delivery.UNAVAILABLE:
            raise SinkUnavailable(
                f"{self.name} did not take the request to {verb}",
                sink=sink,
                state="the server is down" if self.down else delivery.value,
                help="see whether the server is up",
            )
        if delivery is Delivery.LATE:
            self._under_way.append(lambda: self._arrive(apply))
        if delivery in (Delivery.LATE, Delivery.REQUEST_LOST):
            raise _unanswered(verb, sink)
        answer = self._arrive(apply)
        if delivery is Delivery.ANSWER_LOST:
            raise _unanswered(verb, sink)
        return answer

    def _arrive(self, apply: Callable[[], T]) -> T:
        with self._lock:
            return apply()

    def fence(self, app: str, sink: str, by: Actor) -> None:
        """Make ``by`` the owner by compare-and-set.

        Raise ``Fenced`` if the owner is of a newer generation, or of the same one with another token.
        """
        table = self.table(app, sink)
        self.conditions(sink).check_fence(table, by)
        table.fence = by

    def prepare(self, app: str, sink: str, epoch: Epoch, rows: tuple[Row, ...], by: Actor) -> Prepared:
        """Keep the rows, invisible.  Refuse them if they could never be committed: see ``check_prepare``."""
        table = self.table(app, sink)
        self.conditions(sink).check_prepare(table, by, marker_of(epoch), epoch.number)
        attempt = Prepared(next(self._serial), epoch.position, by, rows)
        table.prepared[attempt.attempt] = attempt
        return attempt

    def already_committed(self, app: str, c: Committable, by: Actor) -> bool:
        """Check the three conditions now; return True if the epoch is already visible."""
        table = self.table(app, c.sink)
        return self.conditions(c.sink).already_committed(table, by, marker_of(c), c.decision.epoch)

    def publish(self, app: str, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:
        """Show the epoch and set its marker in one step.  With ``rows=None``: the rows that were prepared."""
        if self.already_committed(app, c, by):
            return CommitOutcome.ALREADY_COMMITTED
        table = self.table(app, c.sink)
        self.show(app, c, prepared_rows(table, c) if rows is None else rows)
        return CommitOutcome.COMMITTED

    def show(self, app: str, c: Committable, rows: tuple[Row, ...]) -> None:
        """Show the epoch and set its marker.  The conditions hold."""
        table = self.table(app, c.sink)
        table.shown.append(Shown(c.position, c.decision.id, rows))
        table.marker = marker_of(c)
        self.now += timedelta(seconds=1)
        table.audit = self._retention.kept([*table.audit, _audited(app, c, self.now)])
        table.prepared = {n: p for n, p in table.prepared.items() if p.position > c.position}

    def abort(self, app: str, sink: str, by: Actor) -> int:
        """Drop what ``by`` and older actors prepared; return how many attempts."""
        table = self.table(app, sink)
        self.conditions(sink).check_owner(table, by)
        before = len(table.prepared)
        table.prepared = {n: p for n, p in table.prepared.items() if not may_drop(p.actor, by)}
        return before - len(table.prepared)

    def kept_as(self, app: str, names: Sequence[str]) -> str:
        """Return the first of ``names`` that has a table; if none has one, the first name."""
        return next((name for name in names if (app, name) in self._tables), names[0])

    def mark(self, app: str, sink: str, marker: Marker | None, by: Actor, kept: str | None = None) -> None:
        """Set the marker; None leaves it as it is.  A table that is ``kept`` under another name gets this name."""
        table = self.table(app, kept or sink)
        self.conditions(sink).check_owner(table, by)
        table.marker = marker if marker is not None else table.marker
        self._tables[app, sink] = self._tables.pop((app, kept or sink))

    def conditions(self, sink: str) -> Conditions:
        """Return the conditions for writes of one sink's table."""
        return Conditions(sink, self.name)


def _audited(app: str, c: Committable, at: datetime) -> ShownEpoch:
    return ShownEpoch(
        app=app,
        sink=c.sink,
        position=c.position,
        epoch=c.decision.epoch,
        incarnation=c.decision.incarnation,
        decision=c.decision.id,
        offsets=str(c.payload.get("offsets", "")),
        rows=c.rows,
        digest=c.digest,
        watermark=c.payload.get("watermark"),
        committed_at=at,
    )


def prepared_rows(table: Table, c: Committable) -> tuple[Row, ...]:
    """Return exactly the rows that the committable voted for; raise ``PreparedLost`` if they are gone."""
    prepared = table.prepared.get(c.payload["attempt"])
    if prepared is None or len(prepared.rows) != c.rows:
        raise PreparedLost(
            f"attempt {c.payload['attempt']} of {c.rows} rows is gone, and none of them is visible",
            sink=c.sink,
            epoch=c.decision.epoch,
            state=f"prepared now: {[(p.attempt, p.position, len(p.rows)) for p in table.prepared.values()]}",
            help="start the query again: the rows are redone",
        )
    return prepared.rows


class _MemoryClient:
    """The common part of both sinks: names, and the methods that do not use rows."""

    def __init__(self, name: str, server: MemoryServer, *, frame: str | None = None) -> None:
        check_name("sink name", name)
        self._name = name
        self.frame = check_frame(frame, name)  # a FramedSink
        self._names: tuple[str, ...] = (name,)  # the names that the server's table may have; its own name first
        self._server = server
        self._app: str | None = None

    @property
    def name(self) -> str:
        return self._name

    def create(self, query: Query, schema: Schema) -> Sequence[str]:  # noqa: ARG002
        check_name("app", query.app, self._name)
        return [f"created table {self._name}"] if self._server.create(query.app, self._name) else []

    def check(self, query: Query, schema: Schema) -> None:  # noqa: ARG002
        check_name("app", query.app, self._name)
        self._server.table(query.app, self._name)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:  # noqa: ARG002
        check_name("app", query.app, self._name)
        self._app = query.app
        return self._read(lambda: self._state(query.app))

    def _kept_as(self, app: str) -> str:
        return self._server.kept_as(app, self._names)

    def _state(self, app: str) -> SinkState:
        table = self._server.table(app, self._kept_as(app))
        return SinkState(table.identity, table.fence, table.marker)

    def _read(self, apply: Callable[[], T]) -> T:
        return self._ask_again("look", apply)

    def _ask_again(self, verb: str, apply: Callable[[], T]) -> T:
        """Send a request that shows nothing.  It may be repeated, so if it is lost the error is ``SinkUnavailable``."""
        try:
            return self._request(verb, apply)
        except OutcomeUnknown as lost:
            raise SinkUnavailable(lost.what, sink=self._name, state=lost.state, help=lost.help) from lost

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        check_name("app", app, self._name)
        wanted = Wanted.of(self._name, first, last, limit)
        return wanted.of_all(self._read(lambda: list(self._server.table(app, self._name).audit)))

    def fence(self, query: Query, by: Actor) -> None:
        self._request("fence", lambda: self._server.fence(query.app, self._kept_as(query.app), by))

    def abort(self, query: Query, by: Actor) -> None:
        self._request("abort", lambda: self._server.abort(query.app, self._kept_as(query.app), by))

    def close(self) -> None:
        self._app = None

    def _request(self, verb: str, apply: Callable[[], T]) -> T:
        return self._server.request(verb, self._name, apply)

    def _looked(self) -> str:
        return looked(self._app, self._name)

    def _publish(self, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:
        app = self._looked()
        return self._ask_to_show("commit", c.decision.epoch, lambda: self._server.publish(app, c, by, rows))

    def _ask_to_show(self, verb: str, epoch: EpochNumber, apply: Callable[[], T]) -> T:
        failpoints.hit(Point.BEFORE_PUBLISH, self._name, epoch)
        try:
            answer = self._request(verb, apply)
            failpoints.hit(Point.AFTER_PUBLISH, self._name, epoch)
        except failpoints.AnswerDropped as dropped:
            raise _unanswered(verb, self._name) from dropped
        return answer

    def _already(self, c: Committable, by: Actor) -> bool:
        """Check the conditions now.  The server checks them again inside the write."""
        app = self._looked()
        return self._read(lambda: self._server.already_committed(app, c, by))


class MemorySink(_MemoryClient):
    """The sink that votes: it keeps prepared rows invisible, and shows them in one step with their marker."""

    def renamed(self, name: str) -> tuple[MemorySink, MemorySink]:
        here, there = (MemorySink(each, self._server, frame=self.frame) for each in (self._name, name))
        here._names, there._names = (self._name, name), (name, self._name)
        return here, there

    def check_mark(self, query: Query) -> None:
        """Nothing to refuse: every marker can be written."""

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        app = query.app
        self._request("mark", lambda: self._server.mark(app, self._name, marker, by, self._kept_as(app)))

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        app = self._looked()
        written = write_rows(rows, self._name, epoch.number)
        digest = digest_of(written) if epoch.digest else None
        prepared = self._request("prepare", lambda: self._server.prepare(app, self._name, epoch, written, by))
        failpoints.hit(Point.BEFORE_VOTE, self._name, epoch.number)
        payload = {"attempt": prepared.attempt, **_about(epoch)}
        return Committable(self._name, epoch.decision, epoch.position, len(written), payload, digest=digest)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        if self._already(committable, by):
            return CommitOutcome.ALREADY_COMMITTED
        return self._publish(committable, by, rows=None)

    def guarantee(self) -> str:
        return f"{self._name}: every epoch exactly once, all or nothing, in order, while the process lives"


class MemoryRedoSink(_MemoryClient):
    """A sink that, like Kafka, cannot hold rows invisible: its prepared work is the durable copy."""

    needs_copy = True

    def __init__(self, name: str, server: MemoryServer, stage: Stage, *, frame: str | None = None) -> None:
        super().__init__(name, server, frame=frame)
        self._stage = stage

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:  # noqa: ARG002
        committable, _ = self._copied(epoch)
        failpoints.hit(Point.BEFORE_VOTE, self._name, epoch.number)
        return committable

    def _copied(self, epoch: Epoch) -> tuple[Committable, tuple[Row, ...]]:
        """Read the copy; return a vote that names the copy, and its rows."""
        if epoch.copy is None:
            raise PrepareRefused(
                "there is no durable copy to apply",
                sink=self._name,
                epoch=epoch.number,
                help="give the coordinator a stage",
            )
        copied = as_rows(self._stage.read(epoch.copy), self._name, epoch.number)
        payload = {"copy": epoch.copy.to_json(), **_about(epoch)}
        return Committable(self._name, epoch.decision, epoch.position, len(copied), payload), copied

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        if self._already(committable, by):
            return CommitOutcome.ALREADY_COMMITTED
        rows = self._stage.read(Copy.from_json(committable.payload["copy"]))
        return self._publish(committable, by, write_rows(rows, self._name, committable.decision.epoch))

    def check_apply(self) -> None:
        """Nothing to refuse: every sink of this class can ``apply``."""

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:
        asked = Committable(self._name, epoch.decision, epoch.position, 0, _about(epoch))
        if self._already(asked, by):
            return Applied(CommitOutcome.ALREADY_COMMITTED, self._digest())
        written = write_rows(rows, self._name, epoch.number)
        digest = digest_of(written)
        self._server.conditions(self._name).check_digest(digest, agreed, epoch.number)
        return Applied(self._publish(replace(asked, rows=len(written), digest=digest), by, written), digest)

    def _digest(self) -> Digest:
        """Return the digest in the marker, which is that of the newest epoch."""
        app = self._looked()
        marker = self._read(lambda: self._state(app)).marker
        assert marker is not None, "it was there a moment ago"
        assert marker.digest is not None, "apply writes no marker without a digest"
        return marker.digest

    def guarantee(self) -> str:
        return f"{self._name}: every epoch exactly once, all or nothing, in order, redone from the copy"


def _about(epoch: Epoch) -> Json:
    """Return what the audit will record of the epoch."""
    return {"offsets": epoch.offsets, "watermark": epoch.watermark}


class MemoryStage:
    """The durable copies, in memory.  Like a server, they survive the death of a driver."""

    def __init__(self) -> None:
        self._copies: dict[str, tuple[EpochNumber, Actor, tuple[Row, ...]]] = {}
        self._serial = itertools.count(1)

    def write(self, epoch: EpochNumber, by: Actor, rows: Rows) -> Copy:
        written = as_rows(rows)
        root = f"memory:/{epoch}/{by.generation}-{by.token}/{next(self._serial)}"
        self._copies[root] = (epoch, by, written)
        files = (CopyFile("rows", len(written), len(written)),) if written else ()
        return Copy(root, files, schema="")

    def read(self, copy: Copy) -> Rows:
        kept = self._copies.get(copy.root)
        if kept is None or len(kept[2]) != copy.rows:
            raise PreparedLost(
                f"the durable copy {copy.root} of {copy.rows} rows is gone or has changed",
                state=f"{len(kept[2])} rows are there" if kept is not None else "it is not there",
                help="restore the checkpoint's folder from a backup",
            )
        return kept[2]

    def clean(self, by: Actor, keep: Sequence[Copy]) -> None:
        kept = {copy.root for copy in keep}
        for root, (_, owner, _) in list(self._copies.items()):
            if root not in kept and may_drop(owner, by):
                del self._copies[root]

    def copies(self) -> list[tuple[EpochNumber, Actor]]:
        """Return epoch and owner of each copy that is there now."""
        return [(epoch, owner) for epoch, owner, _ in self._copies.values()]


def as_rows(rows: Rows, sink: str | None = None, epoch: EpochNumber | None = None) -> tuple[Row, ...]:
    """Evaluate ``rows`` once: a DataFrame is collected, anything else is iterated."""
    if hasattr(rows, "collect"):
        return _collected(rows, sink, epoch)
    iterable: Iterable[Row] = rows
    return tuple(dict(row) for row in iterable)


def _collected(rows: Any, sink: str | None, epoch: EpochNumber | None) -> tuple[Row, ...]:
    try:
        found = tuple(row.asDict(recursive=True) for row in rows.collect())
        if _has_replacement(found):
            raise ValueError("a text has U+FFFD, which Spark also puts in the place of bytes that are not UTF-8")
        return found
    except (ValueError, OverflowError) as error:  # what pyspark raises for a value that Python does not have
        raise PrepareRefused(
            f"a row has a value that Python cannot hold: {error}",
            sink=sink,
            epoch=epoch,
            state="nothing of the epoch was decided",
            help="leave such rows out in the query: a sink in memory holds Python's own values (years 1 to 9999,"
            " texts in UTF-8)",
        ) from error


def _has_replacement(value: object) -> bool:
    """Return whether a text in the value has U+FFFD.  Python cannot tell whether Spark put it there."""
    if isinstance(value, str):
        return _REPLACEMENT in value
    if isinstance(value, Mapping):
        return _has_replacement([*value.keys(), *value.values()])
    return isinstance(value, (list, tuple)) and any(map(_has_replacement, value))


def digest_of(rows: Iterable[Row]) -> Digest:
    """Return the digest of rows by the printed form of their values.  The order of the columns does not count."""
    return Digest.of(_hash(json.dumps(row, sort_keys=True, default=repr)) for row in rows)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def write_rows(rows: Rows, sink: str, epoch: EpochNumber) -> tuple[Row, ...]:
    """Evaluate the rows and write them one after another, as a task of Spark does."""
    written = []
    for row in as_rows(rows, sink, epoch):
        written.append(row)
        failpoints.hit(Point.IN_WRITE, sink, epoch)
    return tuple(written)


def _unanswered(verb: str, sink: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the request to {verb} was sent and its answer lost", sink=sink, help="ask the marker what happened"
    )
