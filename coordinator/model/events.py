"""What happens in an epoch, as typed events, and the one object that publishes them.

The coordinator calls a method of :class:`EventPublisher` after something has happened.  Log records, metrics and
spans, the line on a terminal and the user's ``on_event`` are consumers of the same events.  The protocol does not
depend on a consumer: if one raises, this is logged once, the consumer is not called again in this start, and the epoch
goes on.

Events come one at a time, in the order in which they happened.  The events of several sinks come from the threads that
work for these sinks.  What happens while a process dies is not published.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

from epochal.coordinator.model.epoch import Actor, EpochNumber, Phase, Query
from epochal.coordinator.model.errors import CommitInDoubt, EpochalError
from epochal.coordinator.model.log_keys import extra

_log = logging.getLogger("epochal")


class Step(enum.Enum):
    """A part of a phase that can take long.  Some steps are done by a sink."""

    COPY = "copy"  # the micro-batch is evaluated once, into the durable copy
    PREPARE = "prepare"
    COMMIT = "commit"
    APPLY = "apply"
    REDO = "redo"  # lost rows are prepared again from the copy
    COMPACT = "compact"  # the epoch log is compacted


OF_A_SINK = (Step.PREPARE, Step.COMMIT, Step.APPLY)
SHOWS = (Step.COMMIT, Step.APPLY)
"""The steps after which a sink shows the epoch."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events.  ``epoch``: the epoch that the event is about; while a start settles, the settled epoch.

    None if no epoch has been asked for yet.
    """

    app: str
    query_id: str
    run_id: str
    epoch: EpochNumber | None


@dataclass(frozen=True, kw_only=True)
class EpochBegan(Event):
    """Spark has called the pipeline with a micro-batch.  In a start's first call, look, fence and settle follow."""


@dataclass(frozen=True, kw_only=True)
class LogBegan(Event):
    """The epoch log is empty, but Spark asks for a later epoch than 0: the epochs before it are not in the log."""


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """This start has fenced the log and every sink: nothing that an older start does becomes visible any more."""

    generation: int
    mode: str
    sinks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PhaseBegan(Event):
    """The next phase of the protocol begins."""

    phase: Phase


@dataclass(frozen=True, kw_only=True)
class PhaseEnded(Event):
    """The phase has ended without an error.  A phase that fails ends with ``Failed`` instead."""

    phase: Phase
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepBegan(Event):
    """A step that can take long begins within a phase.  ``sink``: None for a step that is done once for all sinks."""

    step: Step
    sink: str | None


@dataclass(frozen=True, kw_only=True)
class StepEnded(Event):
    """The step has ended.  ``error``: why it failed, else None.

    ``rows``: how many rows the sink voted for, or made visible.  For a sink that cannot hold rows back, in idempotent
    mode: the rows of the evaluation.
    """

    step: Step
    sink: str | None
    seconds: float
    rows: int | None
    error: BaseException | None


@dataclass(frozen=True, kw_only=True)
class Stalled(Event):
    """The step still runs, and for ``seconds`` no task of the query has ended and no row was counted.

    ``seen``: what Spark says of the query's tasks, as a text.
    """

    step: Step
    sink: str | None
    seconds: float
    seen: str


@dataclass(frozen=True, kw_only=True)
class Decided(Event):
    """The epoch is decided (in idempotent mode: begun).  ``pending``: the sinks that do not show it yet."""

    pending: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class EpochCommitted(Event):
    """Every sink shows the epoch.  ``replayed``: it was visible already, and nothing was written again."""

    rows: int
    replayed: bool
    seconds: Mapping[Phase, float]


@dataclass(frozen=True, kw_only=True)
class Retrying(Event):
    """A call failed with an error that allows another attempt.  ``sink``: None for a call to the epoch log."""

    sink: str | None
    error: Exception


@dataclass(frozen=True, kw_only=True)
class Postponed(Event):
    """Something that no epoch waits for has failed and will be tried again, such as dropping rows or cleaning up."""

    what: str
    error: Exception


@dataclass(frozen=True, kw_only=True)
class InDoubt(Event):
    """The start ends, and an epoch that is or may be decided is not visible in ``pending``.  ``Failed`` follows."""

    pending: tuple[str, ...]
    error: CommitInDoubt


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """This start is over; Spark ends the query with ``error``.  ``phase``: None if the error came from no phase."""

    phase: Phase | None
    error: Exception


@dataclass(frozen=True, kw_only=True)
class Closed(Event):
    """The pipeline was closed: this process will not finish what is still open."""


EVENTS: tuple[type[Event], ...] = (
    EpochBegan,
    LogBegan,
    Started,
    PhaseBegan,
    PhaseEnded,
    StepBegan,
    StepEnded,
    Stalled,
    Decided,
    EpochCommitted,
    Retrying,
    Postponed,
    InDoubt,
    Failed,
    Closed,
)

Consumer = Callable[[Event], None]


@dataclass
class Told:
    """What a step reports about itself before it ends."""

    rows: int | None = None


class EventPublisher:
    """Publishes the events of one start to its consumers.  No method raises an ``Exception`` that a consumer raised.

    ``SystemExit`` and ``KeyboardInterrupt`` of a consumer do pass, because they are meant to end the process.
    """

    def __init__(self, query: Query, consumers: Sequence[Consumer] = ()) -> None:
        self._query = query
        self._consumers = list(consumers)
        self._epoch: EpochNumber | None = None
        self._over = False
        self._lock = threading.RLock()  # a consumer may call pipeline.close(), which publishes an event, too

    def add(self, consumer: Consumer) -> None:
        """Publish all later events to this consumer too."""
        with self._lock:
            self._consumers.append(consumer)

    # --- methods in the order of the protocol -----------------------------------------------------

    def epoch_began(self, epoch: EpochNumber) -> None:
        self._epoch = epoch
        self._tell(EpochBegan)

    def log_began(self) -> None:
        self._tell(LogBegan)

    def started(self, actor: Actor, mode: str, sinks: Sequence[str]) -> None:
        self._tell(Started, generation=actor.generation, mode=mode, sinks=tuple(sinks))

    def phase_began(self, phase: Phase) -> None:
        self._tell(PhaseBegan, phase=phase)

    def phase_ended(self, phase: Phase, seconds: float) -> None:
        self._tell(PhaseEnded, phase=phase, seconds=seconds)

    @contextmanager
    def step(self, step: Step, sink: str | None = None, epoch: EpochNumber | None = None) -> Iterator[Told]:
        """Publish the begin and the end of one step, with its duration and its error."""
        told, failed, began = Told(), None, time.monotonic()
        self._tell(StepBegan, epoch, step=step, sink=sink)
        try:
            yield told
        except BaseException as error:
            failed = error
            raise
        finally:
            spent = time.monotonic() - began
            self._tell(StepEnded, epoch, step=step, sink=sink, seconds=spent, rows=told.rows, error=failed)

    def stalled(self, step: Step, sink: str | None, seconds: float, seen: str, runs: Callable[[], bool]) -> None:
        """Publish ``Stalled`` if the step still ``runs``: it may end while a slow consumer is told something else."""
        with self._lock:
            if runs():
                self._tell(Stalled, step=step, sink=sink, seconds=seconds, seen=seen)

    def decided(self, pending: Sequence[str]) -> None:
        self._tell(Decided, pending=tuple(pending))

    def committed(self, rows: int, replayed: bool, seconds: Mapping[Phase, float]) -> None:
        self._tell(EpochCommitted, rows=rows, replayed=replayed, seconds=seconds)

    def retrying(self, error: Exception) -> None:
        sink, epoch = (error.sink, error.epoch) if isinstance(error, EpochalError) else (None, None)
        self._tell(Retrying, epoch, sink=sink, error=error)

    def postponed(self, what: str, error: Exception) -> None:
        self._tell(Postponed, what=what, error=error)

    def failed(self, error: Exception, phase: Phase | None = None, pending: Sequence[str] = ()) -> None:
        """Publish ``Failed``, once per start: later calls raise the same error, and that is no new failure."""
        if self._over:
            return
        self._over = True
        epoch = error.epoch if isinstance(error, EpochalError) else None
        if isinstance(error, CommitInDoubt):
            self._tell(InDoubt, epoch, pending=tuple(pending), error=error)
        self._tell(Failed, epoch, phase=phase, error=error)

    def closed(self) -> None:
        self._tell(Closed)

    # --- to all consumers -------------------------------------------------------------------------

    def _tell(self, kind: type[Event], epoch: EpochNumber | None = None, **what: object) -> None:
        if not self._consumers:
            return
        query = self._query
        about = self._epoch if epoch is None else epoch
        event = kind(app=query.app, query_id=query.query_id, run_id=query.run_id, epoch=about, **what)
        with self._lock:
            for consumer in tuple(self._consumers):
                try:
                    consumer(event)
                except Exception as error:
                    self._let_go(consumer, event, error)

    def _let_go(self, consumer: Consumer, event: Event, error: Exception) -> None:
        self._consumers.remove(consumer)
        _log.error(
            "%s: %r raised at %s and is told nothing more by this start; the epoch goes on",
            where(event),
            consumer,
            type(event).__name__,
            exc_info=error,
            extra=extra(**keys(event), error=type(error).__name__),
        )


def where(event: Event) -> str:
    return f"app {event.app}" if event.epoch is None else f"app {event.app}, epoch {event.epoch}"


_IN_RECORDS = ("app", "query_id", "run_id", "epoch", "sink", "phase", "step", "generation", "rows")


def keys(event: Event) -> dict[str, object]:
    """Return what the event itself gives to a log record: key without the prefix -> value."""
    names = {field.name for field in fields(event)}
    found = {name: getattr(event, name) for name in _IN_RECORDS if name in names}
    plain = {name: value.value if isinstance(value, enum.Enum) else value for name, value in found.items()}
    return {"event": type(event).__name__, **plain}
