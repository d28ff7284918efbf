"""What is prepared and not yet visible: for each vote a note, a small file in the table's folder with its data files.

Delta gives data files random names in the table's folder.  So without a note a start could not tell the leftovers of
a dead start from the files of other writers.  The note says whose they are::

    <table>/epochal-stage/<app>/<sink>/<position>-<generation>-<token>-<decision>.json

If no later start deletes notes and files, VACUUM removes them.  (VACUUM would skip the folder of the notes if its name
began with an underscore.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from epochal.coordinator.model.epoch import Actor, Marker, Position
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.conditions import may_drop

_NOTE = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Note:
    """One prepared epoch: its position, the actor that prepared it, and its decision."""

    position: Position
    actor: Actor
    decision: int

    @property
    def file(self) -> str:
        return f"{self.position}-{self.actor.generation}-{self.actor.token}-{self.decision}.json"

    def can_still_be_shown(self, marker: Marker | None) -> bool:
        """Return False if the marker is at this position or beyond: then no commit of this note can succeed."""
        return self.position > (marker.position if marker is not None else 0)

    def is_loser(self, marker: Marker | None) -> bool:
        """Return True if the marker has this position with another decision."""
        return marker is not None and self.position == marker.position and self.decision != marker.decision


class Files(Protocol):
    """The files in a table's folder, through Spark or without it.  The methods are those of ``jvm.Table``."""

    def list(self, folder: str) -> Sequence[str]: ...

    def read(self, path: str) -> str | None: ...

    def write(self, path: str, text: str) -> None: ...

    def delete(self, path: str) -> None: ...


class Staged:
    """All notes of one sink of one app."""

    def __init__(self, table: Files, app: str, sink: str) -> None:
        self._table, self._sink = table, sink
        self._folder = f"epochal-stage/{app}/{sink}"

    def note(self, note: Note, files: Sequence[str]) -> None:
        """Write the note that says whose these files are."""
        self._table.write(f"{self._folder}/{note.file}", json.dumps(list(files)))

    def check_spelling(self) -> None:
        """Raise ``Misconfigured`` if our folder is that of an app or sink whose name differs from ours in case alone.

        On a file system that does not tell them apart, the notes in it are not ours, and the files that they name are
        prepared by somebody else.
        """
        parent, *rest = self._folder.split("/")
        for name in rest:
            spelled = self._table.list(parent)
            twins = [other for other in spelled if other != name and other.casefold() == name.casefold()]
            if twins and name not in spelled and self._table.list(f"{parent}/{name}"):
                raise Misconfigured(
                    f"{twins[0]!r} writes to this table, too, and this file system takes {name!r} for the same name",
                    sink=self._sink,
                    state=f"folder {parent} of the table",
                    help=f"write {twins[0]!r} if you mean it; else take a name that differs in more than case",
                )
            parent += f"/{name}"

    def drop_undecided(self, marker: Marker | None, by: Actor) -> None:
        """Delete what ``by`` and lower generations prepared beyond the marker.  None of it may be decided."""
        self.check_spelling()
        self._drop(marker, lambda n: n.can_still_be_shown(marker) and may_drop(n.actor, by))

    def drop_done(self, marker: Marker) -> None:
        """Delete the notes up to the marker's position, and the files of notes that lost to the marker's decision.

        Files of an earlier position are left to VACUUM: their note does not tell whether they were committed.
        """
        self._drop(marker, lambda _: False)

    def _drop(self, marker: Marker | None, is_dropped: Callable[[Note], bool]) -> None:
        for note in self.notes():
            if is_dropped(note) or note.is_loser(marker):
                for file in self._files(note):
                    self._table.delete(file)
            elif note.can_still_be_shown(marker):
                continue
            self._table.delete(f"{self._folder}/{note.file}")

    def _files(self, note: Note) -> list[str]:
        try:
            return [str(file) for file in json.loads(self._table.read(f"{self._folder}/{note.file}") or "[]")]
        except ValueError:  # half written: its writer died before its vote, and VACUUM removes its files
            return []

    def notes(self) -> list[Note]:
        """Return all notes, whatever their position and actor."""
        matches = [_NOTE.fullmatch(name) for name in self._table.list(self._folder)]
        numbers = [tuple(map(int, match.groups())) for match in matches if match is not None]
        return [Note(p, Actor(generation, token), decision) for p, generation, token, decision in numbers]
