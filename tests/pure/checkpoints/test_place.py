"""What is told of the folder in which a checkpoint lies."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.checkpoints import place
from epochal.checkpoints.place import NAMES, ROOM, Place
from epochal.coordinator.model.errors import Misconfigured

NOBODY = 65534
GOOD = Place("/data", "ext4", "/", 10 * ROOM, 20 * ROOM, 10 * NAMES)


def test_a_folder_that_does_not_exist_yet_is_told_by_the_one_above_it(tmp_path: Path) -> None:
    found = place.of(str(tmp_path / "not" / "yet"))
    assert found == replace(place.of(str(tmp_path)), free=found.free, names=found.names)
    assert (found.folder, found.kind != "unknown") == (str(tmp_path), True)
    assert 0 < found.free < found.size
    assert list(tmp_path.iterdir()) == []


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    found = place.of("/dev/shm")
    assert (found.kind, found.mount) == ("tmpfs", "/dev/shm")
    assert any("may be gone after a restart" in caution for caution in found.cautions())


@pytest.mark.remedy("… is a file, so no folder can be there", "name a folder")
def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match="is a file, so no folder can be there"):
        place.of(str(tmp_path / "file" / "checkpoint"))
    assert place.of(str(tmp_path / "folder" / "checkpoint")).free > 0


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Give this process the rights of a plain user inside the scope."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.remedy(
    "this process may not write in …", "give its user the right to write there, or put the checkpoint elsewhere"
)
def test_a_folder_without_the_right_to_write_is_refused() -> None:
    """The folders are not below ``tmp_path``, because no other user may enter that."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        there, elsewhere = Path(made) / "there", Path(made) / "elsewhere"
        for folder, rights in ((there, 0o555), (elsewhere, 0o777)):
            folder.mkdir()
            folder.chmod(rights)
        with nobody(), pytest.raises(Misconfigured, match=f"this process may not write in {there}"):
            place.of(str(there / "checkpoint"))
        with nobody():
            assert place.of(str(elsewhere / "checkpoint")).folder == str(elsewhere)
        there.chmod(0o777)
        with nobody():
            assert place.of(str(there / "checkpoint")).folder == str(there)


@pytest.mark.parametrize(
    ("found", "caution"),
    [
        (GOOD, None),
        (replace(GOOD, free=ROOM - 1), "/data has only 1.0 GiB of free space: a larger epoch would end the query"),
        (replace(GOOD, names=NAMES - 1), "/data has room for only 999 more files"),
        (replace(GOOD, names=None), None),
        (replace(GOOD, kind="nfs4"), "the first start tries out whether a log can lie there"),
        (replace(GOOD, kind="fuse.sshfs"), "the first start tries out whether a log can lie there"),
        (replace(GOOD, kind="overlay"), "may be gone after a restart of the machine or container"),
    ],
)
def test_what_may_go_wrong_is_said(found: Place, caution: str | None) -> None:
    said = found.cautions()
    assert len(said) == (caution is not None)
    assert caution is None or caution in said[0]
    assert str(GOOD) == "/data: ext4 at /, 10.0 GiB of 20.0 GiB free"


def test_names_of_mounts_are_read_as_the_kernel_writes_them() -> None:
    assert place._unescaped(r"/mnt/my\040disk\134x") == r"/mnt/my disk\x"
