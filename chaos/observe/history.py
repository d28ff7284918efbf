"""What happened, as plain data: the only thing that checkers and reports read.

A history is the ordered list of what could be seen from outside while faults struck: starts and ends
of drivers, decisions, fences, effects, and what a reader saw.  It knows neither the coordinator nor the
sinks, so a history of a real run and one of a simulated run are judged by the same functions.  It can be
kept as a file and judged again later: :mod:`epochal.chaos.observe.recording`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from epochal.coordinator.model.epoch import Actor


def actor_name(actor: Actor) -> str:
    """The name of an actor in a history: the whole token, so that two actors never look alike."""
    return f"g{actor.generation}/{actor.token}"


class Row(NamedTuple):
    """One visible row: of which epoch, which input, from which evaluation, with which value."""

    epoch: int
    key: int
    attempt: int
    value: int = 0


Content = Mapping[str, tuple[Row, ...]]
"""Sink name -> all rows that a reader sees; a multiset, the order means nothing."""


@dataclass(frozen=True)
class Started:
    """A driver began."""

    driver: str


@dataclass(frozen=True)
class Accepted:
    """A start was not refused: from here ``by`` settles, and may change what readers see."""

    by: str


@dataclass(frozen=True)
class Ended:
    """A driver is gone.  ``outcome``: finished, killed, or the name of its error."""

    driver: str
    outcome: str
    named: bool = True  # the error is one that the product documents
    definite: bool = True  # the error says that nothing became visible through it


@dataclass(frozen=True)
class Evaluated:
    """A micro-batch was evaluated once more."""

    epoch: int
    attempt: int


@dataclass(frozen=True)
class Prepared:
    """All sinks hold the epoch; nothing is decided yet."""

    epoch: int


@dataclass(frozen=True)
class Decided:
    """A decision became durable.  ``supersedes``: the decision of the same epoch that it replaces."""

    epoch: int
    decision: int
    by: str
    supersedes: int | None = None


@dataclass(frozen=True)
class TookOver:
    """``by`` now owns the fence of a sink, or of the log."""

    where: str
    by: str


@dataclass(frozen=True)
class Changed:
    """A request took effect: epochs became visible, or prepared work of ``dropped`` actors vanished."""

    where: str
    by: str
    shown: int = 0
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Read:
    """An outside reader looked: at all sinks at once, or at those alone that ``content`` names."""

    content: Content


@dataclass(frozen=True)
class Fed:
    """The source offers these inputs from now on."""

    keys: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """The nemesis struck, and it was seen to strike; or what it did was undone."""

    kind: str  # kill, pause, crash, raise, cut, ...
    victim: str  # driver, executor, worker, or a server's kind
    point: str = ""  # where the victim was seen blocked
    sink: str = ""
    epoch: int = -1
    driver: str = ""
    healed: bool = False  # this is the end of a fault that lasts: resumed, started again, reconnected


@dataclass(frozen=True)
class Placed:
    """Where an epoch's input is said to end: by Spark's ``offsets/N``, by the log, by a sink's marker.

    The identity of the input is ``fingerprint``, that of the decision about it ``decision``; 0 and "" where
    ``where`` does not hold it.
    """

    epoch: int
    where: str  # "offsets", "log", or a sink
    fingerprint: str = ""
    decision: int = 0


@dataclass(frozen=True)
class State:
    """The operator state after an epoch, one text per entry; of this run, or of one that never failed."""

    epoch: int
    entries: tuple[str, ...]
    reference: bool = False


@dataclass(frozen=True)
class AtRest:
    """What a server, or the stage, still holds when everything has ended: nothing, or these leftovers.

    ``asked`` is false for what keeps leftovers on purpose, so that none of them is wrong.
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
    """One element of a trace: what makes two schedules distinct, and nothing else."""

    actor: str
    step: str
    sink: str
    outcome: str


@dataclass
class History:
    """The events in their order, when each was told, and the trace of steps beside them.

    ``clock`` gives the times, in seconds; a simulation has none, and its times count the events.
    """

    events: list[Event] = field(default_factory=list)
    trace: list[Step] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    clock: Callable[[], float] | None = None
    _of: dict[type, list[tuple[int, Any]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _sorted: int = field(default=0, init=False, repr=False, compare=False)  # so many events are in ``_of``

    def add(self, event: Event) -> None:
        self.events.append(event)
        if self.clock is not None:
            self.times.append(self.clock())

    def of(self, kind: type[E]) -> Iterator[tuple[int, E]]:
        """(place in the history, event) for every event of one kind; events are added, never changed."""
        for at in range(self._sorted, len(self.events)):
            self._of.setdefault(type(self.events[at]), []).append((at, self.events[at]))
        self._sorted = len(self.events)
        return iter(self._of.get(kind, ()))

    @property
    def content(self) -> Content:
        """What the newest read of each sink saw."""
        newest: dict[str, tuple[Row, ...]] = {}
        for _, read in self.of(Read):
            newest.update(read.content)
        return newest
