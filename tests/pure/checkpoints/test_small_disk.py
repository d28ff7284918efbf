"""The log on a disk of its own that is full, or read-only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from epochal.chaos.contract.logs import commit, fence, filled
from epochal.chaos.strike import disk
from epochal.chaos.strike.disk import Disk
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Entry
from epochal.coordinator.model.errors import OutcomeUnknown

FULL, READ_ONLY = os.strerror(errno.ENOSPC), os.strerror(errno.EROFS)


def test_a_full_disk(tmp_path: Path) -> None:
    """L1: nothing of the record is there, what was written can be read, and the repeat settles it."""
    if disk.why_not():
        assert "root" in disk.why_not() or "Linux" in disk.why_not()
        return
    with Disk(tmp_path / "disk", megabytes=1) as small:
        log = FilesLog(small.folder / "log")
        entries = filled(log, 3)
        names = sorted(path.name for path in (small.folder / "log").iterdir())
        small.fill()
        for _ in range(2):
            with pytest.raises(OutcomeUnknown, match=FULL):
                log.append(3, commit(1))
            with pytest.raises(OutcomeUnknown, match=FULL):
                log.compact(2, entries[:1])
            assert sorted(path.name for path in (small.folder / "log").iterdir()) == names
            assert list(log.read()) == list(FilesLog(small.folder / "log").read()) == entries
        small.drain()
        assert log.append(3, commit(1))
        log.compact(3, entries[:1])
        assert [entry.position for entry in log.read()] == [0, 3]


def test_a_read_only_disk(tmp_path: Path) -> None:
    """L1: the console reads a log that nobody can write, also the folder that does not exist yet."""
    if disk.why_not():
        assert "root" in disk.why_not() or "Linux" in disk.why_not()
        return
    with Disk(tmp_path / "disk", megabytes=1) as small:
        log = FilesLog(small.folder / "log")
        entries = filled(log, 3)
        small.read_only()
        reader = FilesLog(small.folder / "log")
        assert list(reader.read()) == list(log.read()) == entries
        with pytest.raises(OutcomeUnknown, match=READ_ONLY):
            log.append(3, commit(1))
        other = FilesLog(small.folder / "other")
        assert list(other.read()) == []
        with pytest.raises(OutcomeUnknown, match=READ_ONLY):
            other.append(0, fence())
        small.writable()
        assert log.append(3, commit(1))
        assert other.append(0, fence())
        assert list(other.read()) == [Entry(0, fence())]
