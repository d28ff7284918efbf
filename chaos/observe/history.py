"""The history of a run, as plain data.  Checkers and reports read nothing else.

A history is the ordered list of what was seen from outside while faults struck: starts and ends of drivers,
decisions, fences, effects, and what a reader saw.  It depends neither on the coordinator nor on the sinks, so the same
functions judge real and simulated runs.  :mod:`epochal.chaos.observe.recording` saves a history to a file, to be judged
again later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from epochal.coordinator.model.epoch import Actor


def actor_name(actor: Actor) -> str:
    """Return the name of an actor in a history.  It has the whole token, so no two actors have the same name."""
    return f"g{actor.generation}/{actor.token}"


class Row(NamedTuple):
    """One visible row: its epoch, its input, the evaluation that made it, and its value."""

    epoch: int
    key: int
    attempt: int
    value: int = 0


Content = Mapping[str, tuple[Row, ...]]
"""Sink name -> all rows that a reader sees.  The rows are a multiset; their order means nothing."""


@dataclass(frozen=True)
class Started:
    """A driver started."""

    driver: str


@dataclass(frozen=True)
class Accepted:
    """A start was not refused.  From here on the actor ``by`` settles, and may change what readers see."""

    by: str


@dataclass(frozen=True)
class Ended:
    """A driver ended.  ``outcome`` is finished, killed, or the name of its error."""

    driver: str
    outcome: str
    named: bool = True  # the error is one that the project documents
    definite: bool = True  # the error says that the refused step made nothing visible


@dataclass(frozen=True)
class Evaluated:
    """A micro-batch was evaluated; ``attempt`` names this evaluation."""

    epoch: int
    attempt: int


@dataclass(frozen=True)
class Prepared:
    """All sinks have prepared the epoch, and it is not decided yet."""

    epoch: int


@dataclass(frozen=True)
class Decided:
    """A decision became durable.  ``supersedes`` is the older decision about the same epoch that it replaces."""

    epoch: int
    decision: int
    by: str
    supersedes: int | None = None


@dataclass(frozen=True)
class TookOver:
    """The actor ``by`` now owns the fence of ``where``, a sink or the log."""

    where: str
    by: str


@dataclass(frozen=True)
class Changed:
    """A request of ``by`` took effect: epochs became visible, or prepared work of ``dropped`` actors was deleted."""

    where: str
    by: str
    shown: int = 0
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Read:
    """An outside reader read the sinks that ``content`` names, all at one time."""

    content: Content


@dataclass(frozen=True)
class Fed:
    """The source offers these inputs from now on."""

    keys: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """A fault that was seen to strike, or with ``healed`` the end of a fault."""

    kind: str  # kill, pause, crash, raise, cut, ...
    victim: str  # driver, executor, worker, or a kind of server
    point: str = ""  # the failpoint where the victim was seen blocked
    sink: str = ""
    epoch: int = -1
    driver: str = ""
    healed: bool = False  # true at the end of a fault that lasts: resumed, started again, reconnected


@dataclass(frozen=True)
class Placed:
    """What one place says about the input of an epoch: Spark's ``offsets/N``, the log, or a sink's marker.

    ``fingerprint`` identifies the input, and ``decision`` the decision about it.  They are "" and 0 if the place does
    not store them.
    """

    epoch: int
    where: str  # "offsets", "log", or a sink
    fingerprint: str = ""
    decision: int = 0


@dataclass(frozen=True)
class State:
    """The operator state after an epoch, one text per entry; with ``reference``, that of a run that never failed."""

    epoch: int
    entries: tuple[str, ...]
    reference: bool = False


@dataclass(frozen=True)
class AtRest:
    """What ``where`` still holds after everything has ended; ``left`` names the leftovers.

    ``asked`` is false if leftovers are kept there on purpose, so that they are not wrong.
    """

    where: str
    left: tuple[str, ...] = ()
    asked: bool = True


Event = (
    Started
    | Accepted
    | Ended
    | Evaluated
    | Prepared
    | Decided
    | TookOver
    | Changed
    | Read
    | Fed
    | Fault
    | Placed
    | State
    | AtRest
)
E = TypeVar("E", bound=Event)


class Step(NamedTuple):
    """One element of a trace.  Two schedules are distinct if and only if their traces differ."""

    actor: str
    step: str
    sink: str
    outcome: str


@dataclass
class History:
    """The events in order, the time of each, and the trace of steps.

    ``clock`` returns the time in seconds.  A simulation has no clock and no times; its file numbers the events instead.
    """

    events: list[Event] = field(default_factory=list)
    trace: list[Step] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    clock: Callable[[], float] | None = None
    _of: dict[type, list[tuple[int, Any]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _sorted: int = field(default=0, init=False, repr=False, compare=False)  # how many events are in ``_of``

    def add(self, event: Event) -> None:
        self.events.append(event)
        if self.clock is not None:
            self.times.append(self.clock())

    def of(self, kind: type[E]) -> Iterator[tuple[int, E]]:
        """Return (place in the history, event) for every event of one kind.  Events are added, never changed."""
        for at in range(self._sorted, len(self.events)):
            self._of.setdefault(type(self.events[at]), []).append((at, self.events[at]))
        self._sorted = len(self.events)
        return iter(self._of.get(kind, ()))

    @property
    def content(self) -> Content:
        """What the newest read of each sink saw, by sink."""
        newest: dict[str, tuple[Row, ...]] = {}
        for _, read in self.of(Read):
            newest.update(read.content)
        return newest
