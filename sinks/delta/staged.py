"""What is prepared and not visible: one small file beside the table for each vote, naming its data files.

Delta gives data files random names at the table's root, so a start that finds leftovers of a dead one could
not tell them from anybody else's.  The note says whose they are::

    <table>/epochal-stage/<app>/<sink>/<position>-<generation>-<token>-<decision>.json

VACUUM reclaims notes and files that nobody came back for (the folder's name has no leading underscore).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from epochal.coordinator.model.epoch import Actor, Marker, Position
from epochal.sinks.conditions import may_drop

_NOTE = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Note:
    """One prepared epoch: where, by whom, as which decision."""

    position: Position
    actor: Actor
    decision: int

    @property
    def file(self) -> str:
        return f"{self.position}-{self.actor.generation}-{self.actor.token}-{self.decision}.json"

    def can_still_be_shown(self, marker: Marker | None) -> bool:
        """False: the marker has passed it, so no commit of it can succeed any more."""
        return self.position > (marker.position if marker is not None else 0)

    def is_loser(self, marker: Marker | None) -> bool:
        """True: another decision stands at its position."""
        return marker is not None and self.position == marker.position and self.decision != marker.decision


class Files(Protocol):
    """The files in a table's folder, through Spark or without it; the verbs are those of ``jvm.Table``."""

    def list(self, folder: str) -> Sequence[str]: ...

    def read(self, path: str) -> str | None: ...

    def write(self, path: str, text: str) -> None: ...

    def delete(self, path: str) -> None: ...


class Staged:
    """All notes of one (app, sink)."""

    def __init__(self, table: Files, app: str, sink: str) -> None:
        self._table = table
        self._folder = f"epochal-stage/{app}/{sink}"

    def note(self, note: Note, files: Sequence[str]) -> None:
        """Remember whose these files are."""
        self._table.write(f"{self._folder}/{note.file}", json.dumps(list(files)))

    def drop_undecided(self, marker: Marker | None, by: Actor) -> None:
        """Delete what ``by`` and lower generations prepared beyond the marker; nothing of it is decided."""
        self._drop(marker, lambda n: n.can_still_be_shown(marker) and may_drop(n.actor, by))

    def drop_done(self, marker: Marker) -> None:
        """Forget what the marker has passed; delete the files of those that lost to it.

        Files of a position before the marker's stay for VACUUM: their note does not tell whether it won.
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
        except ValueError:  # torn: its writer died and never voted, and VACUUM knows its files
            return []

    def notes(self) -> list[Note]:
        """Whatever they are about."""
        matches = [_NOTE.fullmatch(name) for name in self._table.list(self._folder)]
        numbers = [tuple(map(int, match.groups())) for match in matches if match is not None]
        return [Note(p, Actor(generation, token), decision) for p, generation, token, decision in numbers]
