"""Two roles in a run: the reader of an output, and the listener that receives the events.

Each role is a short protocol with three implementations: one does nothing, one combines several, and one checks
another one's answers.  The idea comes from Jepsen's client, generator, nemesis and checker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from epochal.chaos.observe.history import Ended, Event, Started

Output = Mapping[str, Sequence[Mapping[str, Any]]]
"""Sink name -> the rows that a reader sees now.  A row has at least ``id``, and ``attempt`` if the output keeps it."""


class RoleError(Exception):
    """A role broke its contract, so the run proves nothing."""


class Reader(Protocol):
    """Reads one or more outputs from outside."""

    def read(self) -> Output: ...


@dataclass(frozen=True)
class NoReader:
    """Reads no output at all."""

    def read(self) -> Output:
        return {}


@dataclass(frozen=True)
class Readers:
    """Combines several readers, which read one after the other."""

    readers: Sequence[Reader]

    def read(self) -> Output:
        found: dict[str, Sequence[Mapping[str, Any]]] = {}
        for reader in self.readers:
            found.update(reader.read())
        return found


@dataclass(frozen=True)
class CheckedReader:
    """Raises RoleError for answers that cannot be judged.

    These are answers with other sinks than promised, or with rows whose ``id`` is not an integer.
    """

    reader: Reader
    sinks: frozenset[str]

    def read(self) -> Output:
        found = self.reader.read()
        if set(found) != self.sinks:
            raise RoleError(f"the reader returned outputs {sorted(found)}, but {sorted(self.sinks)} are expected")
        for sink, rows in found.items():
            for row in rows:
                if type(row.get("id")) is not int:
                    raise RoleError(f"the reader of {sink} returned {row!r}: a mapping with an integer as id is needed")
        return found


class Listener(Protocol):
    """Receives the events of a run; :class:`~epochal.chaos.observe.history.History` is one."""

    def add(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Deaf:
    """Ignores every event."""

    def add(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Listeners:
    """Passes each event to several listeners, in this order."""

    listeners: Sequence[Listener]

    def add(self, event: Event) -> None:
        for listener in self.listeners:
            listener.add(event)


@dataclass
class CheckedListener:
    """Passes events on.  Raises RoleError for the end of a driver that is not running."""

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
