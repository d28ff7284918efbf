"""What the epoch log says, as pure functions of its records: epochs, fences, sinks, and what may be deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from epochal.checkpoints.log import Apply, Commit, Entry, EpochRecord, Fence, LogPosition, Operator, SinkStanding
from epochal.coordinator.model.epoch import Actor, Copy, EpochNumber, Marker, Position


@dataclass(frozen=True)
class LoggedEpoch:
    """One epoch with all its ``Commit`` or ``Apply`` records.

    The last record is the valid one.  A marker with the decision of an earlier record still proves that the sink shows
    the epoch.
    """

    records: tuple[EpochRecord, ...]

    @property
    def current(self) -> EpochRecord:
        return self.records[-1]

    @property
    def number(self) -> EpochNumber:
        return self.current.epoch

    @property
    def copies(self) -> tuple[Copy, ...]:
        return tuple(copy for record in self.records if isinstance(record, Commit) for copy in record.copies)

    def position_of(self, sink: str) -> Position:
        return self.current.position_of(sink)

    def is_shown_by(self, sink: str, marker: Marker | None) -> bool:
        """Return whether ``marker`` is at this epoch's position and names any decision of this epoch."""
        if marker is None or marker.position != self.position_of(sink):
            return False
        return any(
            marker.decision == record.decision_of(sink).id for record in self.records if sink in record.participants
        )


@dataclass(frozen=True)
class History:
    """The entries of the epoch log as they were read once, and what follows from them."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> History:
        return cls(tuple(entries))

    def with_entry(self, entry: Entry) -> History:
        return History((*self.entries, entry))

    @property
    def empty(self) -> bool:
        """Whether the log has no record at all; a log that holds only a ``Fence`` is not empty."""
        return not self.entries

    @property
    def next_position(self) -> LogPosition:
        return self.entries[-1].position + 1 if self.entries else 0

    @cached_property
    def fences(self) -> tuple[Fence, ...]:
        return tuple(e.record for e in self.entries if isinstance(e.record, Fence))

    @cached_property
    def actors(self) -> frozenset[Actor]:
        """Actors whose fence a sink may hold: every start in this log, and every fence that an operator accepted."""
        return frozenset(fence.actor for fence in self.fences).union(*(r.fences for r in self.operators))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The records of operators, oldest first."""
        return tuple(e.record for e in self.entries if isinstance(e.record, Operator))

    @cached_property
    def stands(self) -> Mapping[str, SinkStanding]:
        """For each sink that an operator record names, what the newest such record says of the sink."""
        return {name: stand for record in self.operators for name, stand in record.stands.items()}

    @cached_property
    def place(self) -> str | None:
        """The checkpoint's location: the newest one that a start or an operator recorded."""
        places = [_place_in(entry.record) for entry in self.entries]
        return next((place for place in reversed(places) if place is not None), None)

    @cached_property
    def members(self) -> Mapping[str, str]:
        """The sinks that the pipeline must have, each with its identity (which table or topic it physically is)."""
        members = {name: stand.identity for name, stand in self.stands.items() if not stand.away}
        if self.last is not None:
            taking_part = self.last.current.participants.items()
            members |= {n: p.identity for n, p in taking_part if not self.is_over(n, self.last.number)}
        return members

    def is_over(self, sink: str, epoch: EpochNumber) -> bool:
        """Return whether an operator has closed this epoch for this sink.  Then no start requires it to be visible."""
        return sink in self.stands and epoch <= self.stands[sink].through

    def is_compared(self, sink: str, marker: Marker | None) -> bool:
        """Return whether this sink's rows of the last epoch must equal those of the other evaluations."""
        assert self.last is not None, "without an epoch there are no rows to compare"
        accepted = [r.evaluations for r in self.operators if r.evaluations is not None]
        kept = any(self.last.number == e.epoch and sink in e.sinks for e in accepted)
        shows = sink in self.last.current.participants and self.last.is_shown_by(sink, marker)
        return not kept and (shows or not self.is_over(sink, self.last.number))

    @cached_property
    def epochs(self) -> tuple[LoggedEpoch, ...]:
        """The last two epochs that were decided or begun, oldest first; fewer if the log has fewer."""
        records: dict[EpochNumber, list[EpochRecord]] = {}
        for entry in self.entries:
            if isinstance(entry.record, (Commit, Apply)):
                records.setdefault(entry.record.epoch, []).append(entry.record)
        return tuple(LoggedEpoch(tuple(records[n])) for n in sorted(records)[-2:])

    @property
    def last(self) -> LoggedEpoch | None:
        return self.epochs[-1] if self.epochs else None

    @property
    def expected(self) -> EpochNumber | None:
        """The next epoch: the one after the last epoch and after those that an operator skipped.

        If there is neither, it is the epoch that Spark asked the first start for.  None: any epoch may be first.
        """
        named = [record.expected for record in self.operators if record.expected is not None]
        if self.last is not None:
            named.append(self.last.number + 1)
        if named:
            return max(named)
        return self.fences[0].base if self.fences else None

    @cached_property
    def done_through(self) -> Mapping[str, EpochNumber]:
        """Per sink, the newest epoch that a durable record says is visible."""
        done: dict[str, EpochNumber] = {}
        for entry in self.entries:
            for sink, epoch in entry.record.done_through.items():
                done[sink] = max(epoch, done.get(sink, epoch))
        return done

    def took_part(self, sink: str) -> tuple[LoggedEpoch, ...]:
        """Return, newest first, those of the last two epochs in which ``sink`` took part.

        An epoch that an operator has closed for the sink is left out.
        """
        epochs = reversed(self.epochs)
        return tuple(e for e in epochs if sink in e.current.participants and not self.is_over(sink, e.number))

    def needed_copies(self) -> tuple[Copy, ...]:
        """Return the copies that may still be read.

        A copy is needed until its epoch is done in every sink: a durable record says that the sink shows the epoch, or
        an operator has closed it for the sink.
        """
        return tuple(
            copy
            for epoch in self.epochs
            if not all(self._is_through(s, epoch.number) for s in epoch.current.participants)
            for copy in epoch.copies
        )

    def _is_through(self, sink: str, epoch: EpochNumber) -> bool:
        return self.done_through.get(sink, -1) >= epoch or self.is_over(sink, epoch)

    def compaction(self) -> tuple[LogPosition, tuple[Entry, ...]]:
        """Return (floor, entries to keep below the floor).  No record of the last two epochs lies below the floor.

        Every fence is kept, because a sink may hold any of them.  Operator records are kept for ever.  The entries to
        keep depend only on the records below the floor, so two compactions to one floor give the same log.
        """
        if len(self.epochs) < 2:
            return 0, ()
        older = self.epochs[0].records[0]
        floor = next(e.position for e in self.entries if e.record is older)
        return floor, tuple(e for e in self.entries if e.position < floor and isinstance(e.record, (Fence, Operator)))


def _place_in(record: Fence | Commit | Apply | Operator) -> str | None:
    if isinstance(record, Fence):
        return record.query.checkpoint
    return record.place if isinstance(record, Operator) else None
