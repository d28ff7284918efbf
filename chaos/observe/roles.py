"""Two of the roles of a run: the reader of an output, and the listener that is told what happens.

Each role is a protocol of a few lines.  Beside it stand one implementation that does nothing, one that combines
several, and one that checks what another one answers.  Idea: Jepsen's client, generator, nemesis and checker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from epochal.chaos.observe.history import Ended, Event, Started

Output = Mapping[str, Sequence[Mapping[str, Any]]]
"""Sink name -> the rows that a reader sees now: at least ``id``, and ``attempt`` where the output keeps it."""


class RoleError(Exception):
    """A role did not keep its contract, so the run proves nothing."""


class Reader(Protocol):
    """An outside reader of one or more outputs."""

    def read(self) -> Output: ...


@dataclass(frozen=True)
class NoReader:
    """Sees nothing, as there is nothing to be seen."""

    def read(self) -> Output:
        return {}


@dataclass(frozen=True)
class Readers:
    """Several, one after the other."""

    readers: Sequence[Reader]

    def read(self) -> Output:
        found: dict[str, Sequence[Mapping[str, Any]]] = {}
        for reader in self.readers:
            found.update(reader.read())
        return found


@dataclass(frozen=True)
class CheckedReader:
    """Refuses answers that cannot be judged: other sinks than promised, rows without a whole number as id."""

    reader: Reader
    sinks: frozenset[str]

    def read(self) -> Output:
        found = self.reader.read()
        if set(found) != self.sinks:
            raise RoleError(f"the reader told of {sorted(found)}, {sorted(self.sinks)} were promised")
        for sink, rows in found.items():
            for row in rows:
                if type(row.get("id")) is not int:
                    raise RoleError(
                        f"the reader of {sink} returned {row!r}: a mapping with a whole number as id is needed"
                    )
        return found


class Listener(Protocol):
    """Whoever is told what happens; :class:`~epochal.chaos.observe.history.History` is one."""

    def add(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Deaf:
    """Forgets at once."""

    def add(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Listeners:
    """Several, told in this order."""

    listeners: Sequence[Listener]

    def add(self, event: Event) -> None:
        for listener in self.listeners:
            listener.add(event)


@dataclass
class CheckedListener:
    """Refuses what cannot have happened: the end of a driver that never started."""

    listener: Listener
    _running: dict[str, int]

    @classmethod
    def of(cls, listener: Listener) -> CheckedListener:
        return cls(listener, {})

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self._running[event.driver] = self._running.get(event.driver, 0) + 1
        if isinstance(event, Ended):
            if not self._running.get(event.driver):
                raise RoleError(f"{event.driver} ended and had not started")
            self._running[event.driver] -= 1
        self.listener.add(event)
