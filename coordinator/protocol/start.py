"""What one start knows, and the small steps that every phase shares.

A start is one (query id, run id) and one actor.  The phases are functions that take a :class:`Start`.  This file holds
the state of a start; ``coordinator.py`` holds the order of the phases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn, TypeVar

from epochal.checkpoints.log import Commit, EpochLog, EpochRecord, LogPosition
from epochal.coordinator.model.epoch import NEXT, Actor, Digest, Epoch, Marker, Phase, Position, Query
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.events import EventPublisher
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.actions import OperatorAction
from epochal.coordinator.protocol.doubt import NOT_CURED_BY_RESTART, gravest, remedy_of, what_of
from epochal.coordinator.protocol.frames import Frames, frame_of
from epochal.coordinator.protocol.history import History
from epochal.coordinator.protocol.report import EpochReport
from epochal.coordinator.protocol.retry import Retry, Runner
from epochal.sinks.protocol import Sink, Stage

T = TypeVar("T")


class Start:
    """The state of one start over its sinks.  ``mode``: the mode of the epochs that this start begins."""

    def __init__(
        self,
        *,
        query: Query,
        sinks: Sequence[Sink],
        log: EpochLog,
        mode: str,
        stage: Stage | None,
        copies: bool,
        runner: Runner[object],
        retry: Retry,
        compact_every: int,
        publisher: EventPublisher,
        frames: Frames | None = None,
    ) -> None:
        if len({sink.name for sink in sinks}) != len(sinks):
            raise Misconfigured(
                f"two sinks share a name: {sorted(s.name for s in sinks)}", help="give each sink its own name="
            )
        if stage is None and copies:
            raise Misconfigured(
                "these sinks need a durable copy, and there is no stage",
                help="run them in an epochal.Pipeline, which has one",
            )
        self.query = query
        self.frames = frames  # makes the frames of a micro-batch
        self.reads = {sink.name: frame_of(sink) for sink in sinks}
        self.sinks: dict[str, Sink] = {sink.name: sink for sink in sorted(sinks, key=lambda s: s.name)}
        self.log = log
        self.mode = mode
        self.stage = stage
        self.copies = copies  # whether this start copies the rows of an epoch before the sinks prepare (two-phase mode)
        self.copies_left = True  # whether an earlier start may have left a copy
        self.run_all = runner
        self.retry = retry
        self.compact_every = compact_every
        self.publisher = publisher
        # What was read from the log and the sinks, and what this start has changed since:
        self.history = History(())
        self.identities: dict[str, str] = {}
        self.markers: dict[str, Marker | None] = {}
        self.states: judge.States = {}
        self.shown: dict[str, bool] = {}  # per sink, whether it shows the last epoch
        self.lost = False  # whether a decided epoch must be evaluated again: prepared rows are lost, and no copy exists
        # This start:
        self.actor: Actor | None = None
        self.own_position: LogPosition = -1  # log position of the newest record that this start wrote
        self.action: OperatorAction | None = None  # the operator action that this start carries out, if it does one
        # The current call:
        self.written: dict[str, int] = {}  # number of rows that each sink voted for
        self.phase: Phase | None = None
        self.phase_began = 0.0
        self.seconds: dict[Phase, float] = {}
        self.last_report: EpochReport | None = None

    @property
    def me(self) -> Actor:
        assert self.actor is not None, "nothing acts before it has fenced"
        return self.actor

    @property
    def current(self) -> EpochRecord:
        assert self.history.last is not None, "no epoch was decided or begun"
        return self.history.last.current

    @property
    def decided(self) -> Commit:
        assert isinstance(self.current, Commit), "an epoch that was begun is not decided"
        return self.current

    @property
    def pending(self) -> list[str]:
        """The sinks that do not show the last epoch."""
        return [name for name, shown in self.shown.items() if not shown]

    def place_in(self, sink: str, shown: bool = False) -> Position:
        """Return the position of the sink's newest epoch if ``shown``, else the position of its next epoch."""
        marker = self.markers[sink]
        newest = marker.position if marker is not None else 0
        return newest if shown else newest + 1

    @property
    def settling(self) -> bool:
        return self.phase is Phase.SETTLE

    def each(
        self,
        verb: Callable[[Sink], T],
        meanwhile: Sequence[Callable[[], object]] = (),
        groups: Sequence[Sequence[Sink]] | None = None,
    ) -> dict[str, T]:
        """Call ``verb`` on every sink and wait for all of them.  If some fail, raise the gravest error.

        ``meanwhile``: what else to call, and to wait for.
        ``groups``: the sinks of a group are called one after another, up to the first that fails.  By default each sink
        is a group.
        """
        found: dict[str, T] = {}

        def call(group: Sequence[Sink]) -> None:
            for sink in group:
                found[sink.name] = verb(sink)

        groups = groups if groups is not None else [[sink] for sink in self.sinks.values()]
        results = self.run_all([*(partial(call, group) for group in groups), *meanwhile])
        errors = [r for r in results if isinstance(r, Exception)]
        if errors:
            raise gravest(errors)
        return {name: found[name] for name in self.sinks}

    def patiently(
        self, call: Callable[[], T], also: tuple[type[Exception], ...] = (), attempts: int | None = None
    ) -> T:
        """Make the call, and repeat it a bounded number of times.

        A call is repeated after a transient error, after ``OutcomeUnknown`` (the sink can then be asked what happened),
        and after the errors in ``also``.
        """
        transient: tuple[type[Exception], ...] = (SinkUnavailable, OutcomeUnknown, *also)
        for attempt in range((attempts or self.retry.attempts) - 1):
            try:
                return call()
            except transient as error:
                self.publisher.retrying(error)
                self.retry.pause(attempt)
        return call()

    def in_doubt(self, errors: Sequence[Exception]) -> NoReturn:
        """Raise ``CommitInDoubt`` for an epoch that is decided or begun; it says which sinks show the epoch.

        An error that no restart can cure is raised as it is.
        """
        error = gravest(errors)
        if isinstance(error, NOT_CURED_BY_RESTART):
            raise error
        done = sorted(name for name, shown in self.shown.items() if shown)
        pending = sorted(self.pending)
        stands = "decided" if isinstance(self.current, Commit) else "begun"
        raise CommitInDoubt(
            f"{stands}, and not yet visible in {', '.join(pending)}: {what_of(error)}",
            epoch=self.current.epoch,
            state=f"visible in {done}, pending in {pending}, {stands} by {self.current.actor}",
            help=f"{remedy_of(error)}; then restart the query: it will finish this epoch first (if a sink can never"
            " show it: docs/runbook.md)",
        ) from error

    def enter(self, phase: Phase) -> None:
        assert self.phase is None or phase in NEXT[self.phase], f"{phase} does not follow {self.phase}"
        self.close_phase()
        self.phase, self.phase_began = phase, time.monotonic()
        self.publisher.phase_began(phase)

    def close_phase(self) -> None:
        if self.phase is not None and self.phase_began:
            self.seconds[self.phase] = time.monotonic() - self.phase_began
            self.publisher.phase_ended(self.phase, self.seconds[self.phase])
        self.phase_began = 0.0

    def mark_shown(self, name: str, digest: Digest | None) -> None:
        record = self.current
        self.shown[name] = True
        self.markers[name] = Marker(record.position_of(name), record.decision_of(name).id, digest)

    def digest_in(self, sink: str) -> Digest | None:
        marker = self.markers[sink]
        return marker.digest if marker is not None else None

    def rows_of(self, record: EpochRecord) -> int:
        if isinstance(record, Commit) and record.frames and record.copy is not None:
            return record.copy.rows
        if isinstance(record, Commit):
            votes = [participant.committable for participant in record.participants.values()]
            return max(vote.rows + vote.left_out for vote in votes)
        held = [self.digest_in(name) for name in record.participants if name in self.markers]
        return max((digest.rows for digest in held if digest), default=0)

    @property
    def epoch_to_apply(self) -> Epoch:
        record = self.current
        return Epoch(record.decision, 0, record.offsets, record.watermark, digest=True)
