"""Each file operation of the ``files`` log does what its name says, and leaves no handle open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epochal.checkpoints.disk import Disk


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The i-nodes that were synced."""
    found: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: found.append(os.fstat(handle).st_ino))
    return found


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_file_is_synced_itself_and_then_let_go(tmp_path: Path, synced: list[int]) -> None:
    disk, path = Disk(), str(tmp_path / "a")
    before = handles()
    handle = disk.create(path)
    assert disk.write(handle, b"text") == 4
    disk.sync(handle)
    assert synced == [os.stat(path).st_ino]
    disk.close(handle)
    assert handles() == before
    assert disk.read(path) == b"text"
    assert handles() == before


def test_a_folder_is_synced_itself_and_then_let_go(tmp_path: Path, synced: list[int]) -> None:
    before = handles()
    Disk().sync_folder(str(tmp_path))
    assert synced == [tmp_path.stat().st_ino]
    assert handles() == before


def test_a_claim_is_held_until_it_is_closed(tmp_path: Path) -> None:
    disk, path = Disk(), str(tmp_path / "a")
    first = disk.create(path)
    disk.claim(first)
    second = disk.open(path)
    with pytest.raises(BlockingIOError):
        disk.claim(second)
    disk.close(first)
    disk.claim(second)
    disk.close(second)


def test_names_are_given_at_once_counted_and_taken_away(tmp_path: Path) -> None:
    disk, path, name = Disk(), str(tmp_path / "a"), str(tmp_path / "b")
    handle = disk.create(path)
    disk.link(path, name)
    assert (disk.names_of(handle), sorted(disk.list(str(tmp_path)))) == (2, ["a", "b"])
    with pytest.raises(FileExistsError):
        disk.link(path, name)
    with pytest.raises(FileExistsError):
        disk.create(path)
    disk.unlink(path)
    disk.unlink(name)
    assert (disk.names_of(handle), disk.list(str(tmp_path))) == (0, [])
    disk.close(handle)
