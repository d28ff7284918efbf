"""The input of the storm: groups of files, each of which is one epoch, and the ids of their rows."""

from __future__ import annotations

import json
import os
import random
import shutil
from array import array
from pathlib import Path

FILES = 4
"""Files of a group.  Spark reads each in order, in two tasks."""
GROUP, FILE = 1_000_000, 100_000
"""An id is group * GROUP + file * FILE + row."""
FEW, MANY = (1, 100), (2_000, 8_000)
"""How many rows a file has.  The driver delivers a group with few, tasks deliver one with many."""
KEPT = 20
"""How many groups that are done stay: a start may ask for the last ones again."""
BEGAN = 1_700_000_000


class Feed:
    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.source = folder / "source"
        self._making = folder / "making"
        self._dice = dice
        self._deleted = 0
        self.sizes: list[list[int]] = []  # of each group, rows per file
        for each in (self.source, self._making):
            each.mkdir(parents=True)

    @property
    def groups(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        return sum(map(sum, self.sizes))

    def keep_ahead(self, done: int, ahead: int = 3) -> None:
        """Add groups until ``ahead`` are not done."""
        while self.groups < done + ahead:
            self._add()

    def prune(self, done: int) -> None:
        """Delete what nobody reads any more, while no query runs: one that lists the files would miss them."""
        for group in range(self._deleted, max(self._deleted, done - KEPT)):
            shutil.rmtree(self.source / f"{group:06}")
            self._deleted = group + 1

    def ids(self) -> array[int]:
        """Return the ids of all rows, in order."""
        spans = (
            range(group * GROUP + file * FILE, group * GROUP + file * FILE + rows)
            for group, sizes in enumerate(self.sizes)
            for file, rows in enumerate(sizes)
        )
        return array("q", (i for span in spans for i in span))

    def _add(self) -> None:
        """Add a group, which appears whole.  Spark takes files by their times, so groups become epochs in order."""
        group, limits = self.groups, MANY if self._dice.random() < 0.4 else FEW
        sizes = [self._dice.randint(*limits) for _ in range(FILES)]
        hidden = self._making / f"{group:06}"
        hidden.mkdir()
        for file, rows in enumerate(sizes):
            first = group * GROUP + file * FILE
            path = hidden / f"{file}.json"
            path.write_text("\n".join(json.dumps({"id": str(i), "pad": _pad(i)}) for i in range(first, first + rows)))
            os.utime(path, (BEGAN + group, BEGAN + group))
        hidden.rename(self.source / hidden.name)
        self.sizes.append(sizes)


def _pad(i: int) -> str:
    """Some text that belongs to the id, as the readers check it."""
    return f"{i:x}" * 12


def is_pad(i: int, value: bytes | None) -> bool:
    return value == _pad(i).encode()
