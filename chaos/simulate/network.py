"""The network between a driver and the servers, log and durable copies: each request may be lost or arrive late.

For each request, the schedule says what happens to it, and the history gets the effects.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from epochal.chaos.observe.history import Changed, History, TookOver, actor_name
from epochal.chaos.simulate.schedule import Action
from epochal.checkpoints.log import Entry, LogPosition, Record
from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model.epoch import Actor, Committable, Copy, EpochNumber
from epochal.coordinator.model.errors import OutcomeUnknown, SinkUnavailable
from epochal.sinks.memory import Delivery, MemoryServer, MemoryStage, Table
from epochal.sinks.memory import Row as StoredRow
from epochal.sinks.memory_transaction import Producer, TransactionServer
from epochal.sinks.protocol import CommitOutcome, Rows

T = TypeVar("T")


class World(Protocol):
    """The simulation, to which the simulated servers, log and copies report."""

    history: History
    arriving: bool  # late requests arrive now; their steps belong to no driver

    def touch(self) -> None: ...
    def read(self) -> None: ...
    def happen(self, kind: str, step: str, sink: str = "", epoch: int = -1) -> Action | None: ...
    def note(self, step: str, sink: str, outcome: str) -> None: ...


class WatchedServer(TransactionServer):
    """A server that records the effects of requests, and asks the schedule what happens to each request."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._fate = Delivery.DELIVERED
        self.network = lambda verb, sink: self._fate  # noqa: ARG005

    def request(self, verb: str, sink: str, apply: Callable[[], T]) -> T:
        self._fate = _delivery(self._world.happen("request", verb, sink))
        try:
            answer = super().request(verb, sink, apply)
        except Exception as error:
            self._world.note(verb, sink, type(error).__name__)
            raise
        self._world.note(verb, sink, answer.name if isinstance(answer, CommitOutcome) else "")
        return answer

    @property
    def late(self) -> bool:
        """Whether a late request has not arrived yet."""
        return bool(self._under_way)

    def become(self, other: MemoryServer) -> None:
        """Replace the content by a copy of another server's content."""
        self._tables = {name: table.copy() for name, table in other._tables.items()}
        self._serial = itertools.count(next(other._serial))

    def restore(self, app: str, sink: str, table: Table) -> None:
        """Replace a table by a backup, as an administrator might."""
        self._tables[app, sink] = table

    def deliver_late(self) -> int:
        self._world.arriving = True
        try:
            return super().deliver_late()
        finally:
            self._world.arriving = False

    def fence(self, app: str, sink: str, by: Actor) -> None:
        super().fence(app, sink, by)
        self._world.history.add(TookOver(f"{app}/{sink}", actor_name(by)))

    def publish(self, app: str, c: Committable, by: Actor, rows: tuple[StoredRow, ...] | None) -> CommitOutcome:
        table = self.table(app, c.sink)
        return self._watch(table, f"{app}/{c.sink}", by, lambda: MemoryServer.publish(self, app, c, by, rows))

    def abort(self, app: str, sink: str, by: Actor) -> int:
        table = self.table(app, sink)
        return self._watch(table, f"{app}/{sink}", by, lambda: MemoryServer.abort(self, app, sink, by))

    def end(self, app: str, sink: str, producer: Producer) -> CommitOutcome | None:
        table = self.table(app, sink)
        wrote = next((prepared.actor for prepared in table.prepared.values()), None)
        if wrote is None:  # nothing is open
            return super().end(app, sink, producer)
        return self._watch(table, f"{app}/{sink}", wrote, lambda: TransactionServer.end(self, app, sink, producer))

    def _watch(self, table: Table, where: str, by: Actor, act: Callable[[], T]) -> T:
        """Call ``act`` and record what became visible in the table, and whose prepared work is gone."""
        shown, prepared = len(table.shown), dict(table.prepared)
        answer = act()
        gone = tuple(actor_name(p.actor) for n, p in prepared.items() if n not in table.prepared)
        if len(table.shown) != shown or gone:
            self._world.history.add(Changed(where, actor_name(by), len(table.shown) - shown, gone))
            self._world.read()
        return answer


class WatchedStage(MemoryStage):
    """A stage that records whose copies are removed, and by whom."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def become(self, other: MemoryStage) -> None:
        """Replace the content by a copy of another stage's content."""
        self._copies = dict(other._copies)
        self._serial = itertools.count(next(other._serial))

    def write(self, epoch: EpochNumber, by: Actor, rows: Rows) -> Copy:
        self._world.touch()
        return super().write(epoch, by, rows)

    def read(self, copy: Copy) -> Rows:
        self._world.touch()
        return super().read(copy)

    def clean(self, by: Actor, keep: Sequence[Copy]) -> None:
        self._world.touch()
        before = self.copies()
        super().clean(by, keep)
        after = self.copies()
        gone = tuple(actor_name(owner) for epoch, owner in before if (epoch, owner) not in after)
        if gone:
            self._world.history.add(Changed("stage", actor_name(by), dropped=gone))


class LogNetwork:
    """Carries requests to the log.  A late request arrives at ``deliver_late``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: list[Callable[[], object]] = []

    @property
    def late(self) -> bool:
        """Whether a late request has not arrived yet."""
        return bool(self._under_way)

    def request(self, verb: str, apply: Callable[[], T]) -> T:
        delivery = _delivery(self._world.happen("request", verb, "log"))
        if delivery is Delivery.UNAVAILABLE:
            self._world.note(verb, "log", delivery.value)
            raise SinkUnavailable("the log did not take the request", help="simulated")
        if delivery is Delivery.LATE:
            self._under_way.append(apply)
        if delivery in (Delivery.LATE, Delivery.REQUEST_LOST):
            raise self._unanswered(verb)
        answer = apply()
        if delivery is Delivery.ANSWER_LOST:
            raise self._unanswered(verb)
        self._world.note(verb, "log", str(answer))
        return answer

    def _unanswered(self, verb: str) -> OutcomeUnknown:
        self._world.note(verb, "log", "unanswered")
        return OutcomeUnknown("the request was sent and its answer lost", help="simulated")

    def deliver_late(self) -> None:
        arriving, self._under_way = self._under_way, []
        self._world.arriving = True
        try:
            for apply in arriving:
                apply()
        finally:
            self._world.arriving = False


class LogWorld(World, Protocol):
    """A world with a network in front of its log."""

    log_network: LogNetwork


class RemoteLog:
    """An epoch log behind a network."""

    def __init__(self, log: MemoryLog, world: LogWorld) -> None:
        self._log = log
        self._world = world

    def read(self) -> Sequence[Entry]:
        self._world.touch()
        return self._log.read()

    def append(self, position: LogPosition, record: Record) -> bool:
        return self._world.log_network.request(f"append-{record.kind}", lambda: self._log.append(position, record))

    def compact(self, floor: LogPosition, kept: Sequence[Entry]) -> None:
        self._world.log_network.request("compact", lambda: self._log.compact(floor, kept))

    def describe(self) -> str:
        return self._log.describe()


def _delivery(action: Action | None) -> Delivery:
    return Delivery(action.value) if action is not None else Delivery.DELIVERED
