"""The notes of what is prepared, in a folder that knows no upper and lower case.

No file system of Linux that tests could mount is such a one, so the folder is a dict.
"""

from __future__ import annotations

import pytest

from epochal.coordinator.model.epoch import Actor, Marker
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta.staged import Note, Staged

OURS, THEIRS = Actor(2, 22), Actor(1, 11)


class Folder:
    """Files by path.  ``fold``: names that differ in case alone are one, in the spelling of the first."""

    def __init__(self, *, fold: bool) -> None:
        self.files: dict[str, str] = {}
        self._fold = fold

    def _there(self, path: str) -> str:
        """The path, with each part in the spelling that exists."""
        if not self._fold:
            return path
        there = ""
        for part in path.split("/"):
            names = self._names(there)
            there += "/" * bool(there) + next((name for name in names if name.casefold() == part.casefold()), part)
        return there

    def _names(self, folder: str) -> list[str]:
        start = f"{folder}/" if folder else ""
        return sorted({path[len(start) :].partition("/")[0] for path in self.files if path.startswith(start)})

    def list(self, folder: str) -> list[str]:
        return self._names(self._there(folder))

    def read(self, path: str) -> str | None:
        return self.files.get(self._there(path))

    def write(self, path: str, text: str) -> None:
        self.files[self._there(path)] = text

    def delete(self, path: str) -> None:
        self.files.pop(self._there(path), None)


def filled(app: str, sink: str, *, fold: bool) -> Folder:
    """A folder in which this sink has prepared an epoch."""
    folder = Folder(fold=fold)
    folder.write("part-1.parquet", "rows")
    Staged(folder, app, sink).note(Note(3, THEIRS, 7), ["part-1.parquet"])
    return folder


@pytest.mark.remedy(
    "… writes to this table, too, and this file system takes … for the same name",
    "write … if you mean it; else take a name that differs in more than case",
)
@pytest.mark.parametrize(("app", "sink"), [("Flights", "lake"), ("flights", "Lake")])
def test_what_somebody_else_prepared_is_left_alone(app: str, sink: str) -> None:
    folder = filled(app, sink, fold=True)
    before = dict(folder.files)
    ours = Staged(folder, "flights", "lake")
    for verb in (ours.check_spelling, lambda: ours.drop_undecided(Marker(2, 6), OURS)):
        with pytest.raises(Misconfigured, match="writes to this table, too, and this file system takes") as raised:
            verb()
        assert repr(app if app != "flights" else sink) in raised.value.help
    for names in ((app, sink), ("flights-2", "lake") if sink == "lake" else ("flights", "lake-2")):
        Staged(folder, *names).check_spelling()
    assert folder.files == before


@pytest.mark.parametrize(("app", "sink"), [("Flights", "lake"), ("flights", "Lake"), ("other", "lake")])
def test_a_file_system_that_tells_the_names_apart_refuses_nothing(app: str, sink: str) -> None:
    folder = filled(app, sink, fold=False)
    before = dict(folder.files)
    ours = Staged(folder, "flights", "lake")
    ours.check_spelling()
    ours.drop_undecided(Marker(2, 6), OURS)
    assert folder.files == before


@pytest.mark.parametrize("fold", [False, True])
def test_ones_own_notes_are_dropped(*, fold: bool) -> None:
    folder = filled("flights", "lake", fold=fold)
    Staged(folder, "flights", "lake").drop_undecided(Marker(2, 6), OURS)
    assert not folder.files
