"""What happened, as plain data: the only thing that checkers read.

A history is the ordered list of what could be seen from outside while faults struck: starts and ends
of drivers, decisions, fences, effects, and what a reader saw.  It knows neither the coordinator nor the
sinks, so a history of a real run and one of a simulated run are judged by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar


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
    """An outside reader looked at all sinks at once."""

    content: Content


Event = Started | Accepted | Ended | Evaluated | Prepared | Decided | TookOver | Changed | Read
E = TypeVar("E", Started, Accepted, Ended, Evaluated, Prepared, Decided, TookOver, Changed, Read)


class Step(NamedTuple):
    """One element of a trace: what makes two schedules distinct, and nothing else."""

    actor: str
    step: str
    sink: str
    outcome: str


@dataclass
class History:
    """The events in their order, and the trace of steps beside them."""

    events: list[Event] = field(default_factory=list)
    trace: list[Step] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> Iterator[tuple[int, E]]:
        """(place in the history, event) for every event of one kind."""
        return ((at, event) for at, event in enumerate(self.events) if isinstance(event, kind))

    @property
    def content(self) -> Content:
        """What the newest read saw."""
        return next((e.content for e in reversed(self.events) if isinstance(e, Read)), {})
