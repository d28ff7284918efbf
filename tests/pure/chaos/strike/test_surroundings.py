"""What is struck beside the driver: files of a checkpoint, and the disk below it."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from epochal.chaos.campaign import striker
from epochal.chaos.campaign.striker import Surroundings
from epochal.chaos.observe.readers import reader_of
from epochal.chaos.strike import disk, surgery
from epochal.chaos.strike.disk import Disk
from epochal.chaos.strike.nemesis import NotCounted
from epochal.chaos.strike.strikes import ON, Strike
from epochal.coordinator.model.failpoints import Point
from epochal.sinks import DeltaSink


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Epochs 0 to 3 planned, 0 to 2 done, a log of ours beside them."""
    root = tmp_path / "checkpoint"
    for folder, newest in (("offsets", 3), ("commits", 2), ("sources/0", 3)):
        (root / folder).mkdir(parents=True)
        for epoch in range(newest + 1):
            (root / folder / str(epoch)).write_text(f"v1 {epoch}")
            (root / folder / f".{epoch}.crc").write_text("sum")
    (root / "metadata").write_text('{"id": "q"}')
    (root / "epochal" / "log").mkdir(parents=True)
    (root / "epochal" / "log" / "0.json").write_text("fence")
    return root


def files(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.glob("**/*") if file.is_file()}


def test_rolled_back_spark_has_forgotten_two_epochs_and_epochal_none(checkpoint: Path) -> None:
    before = files(checkpoint)
    surgery.roll_back(checkpoint)
    gone = {"offsets/2", "offsets/.2.crc", "offsets/3", "offsets/.3.crc", "commits/2", "commits/.2.crc"}
    assert before - files(checkpoint) == gone


def test_a_young_checkpoint_cannot_be_rolled_back(checkpoint: Path) -> None:
    surgery.roll_back(checkpoint)
    with pytest.raises(NotCounted, match="nothing to roll back to"):
        surgery.roll_back(checkpoint)


def test_the_newest_epoch_is_run_again(checkpoint: Path) -> None:
    (checkpoint / "offsets" / "3").unlink()
    (checkpoint / "offsets" / ".3.crc").unlink()
    before = files(checkpoint)
    surgery.OPERATIONS["replay"](checkpoint)
    assert before - files(checkpoint) == {"commits/2", "commits/.2.crc"}


def test_only_the_log_is_forgotten(checkpoint: Path) -> None:
    before = files(checkpoint)
    surgery.forget_log(checkpoint)
    assert before - files(checkpoint) == {"epochal/log/0.json"}
    assert surgery.records(checkpoint) == []
    with pytest.raises(NotCounted, match="no epoch log"):
        surgery.forget_log(checkpoint)


def test_what_was_kept_is_put_back_whole(checkpoint: Path, tmp_path: Path) -> None:
    before = files(checkpoint)
    for _ in range(2):  # the second copy replaces the first
        surgery.keep(checkpoint, tmp_path / "kept")
    (checkpoint / "stray").write_text("")
    surgery.OPERATIONS["delete"](checkpoint)
    surgery.put_back(checkpoint, tmp_path / "kept")
    assert files(checkpoint) == before
    assert surgery.records(checkpoint) == ["0.json"]


# the disk


def test_a_disk_is_filled_to_the_last_byte_and_made_read_only(tmp_path: Path) -> None:
    """Where nobody may mount, the kit says so, and no strike on a disk counts."""
    if disk.why_not():
        assert "root" in disk.why_not() or "Linux" in disk.why_not()
        return
    with Disk(tmp_path / "disk", megabytes=4) as small:
        file = small.folder / "file"
        file.write_bytes(b"x")
        small.fill()
        with pytest.raises(OSError) as full:  # noqa: PT011
            file.write_bytes(b"x" * 5000)  # more than what is left of its own block
        assert full.value.errno == errno.ENOSPC
        small.drain()
        file.write_bytes(b"xyz")
        small.read_only()
        with pytest.raises(OSError) as refused:  # noqa: PT011
            file.write_bytes(b"")
        assert refused.value.errno == errno.EROFS
        small.writable()
        file.write_bytes(b"again")
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_disk_is_read_only_as_soon_as_nobody_writes_a_file(tmp_path: Path) -> None:
    if disk.why_not():
        return
    with Disk(tmp_path / "disk", megabytes=4) as small:
        file = (small.folder / "file").open("wb")
        closing = threading.Timer(0.3, file.close)
        closing.start()
        small.read_only()
        closing.join()
        small.writable()


def test_a_busy_disk_names_its_open_files_and_who_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if disk.why_not():
        return
    monkeypatch.setattr(disk, "BUSY_S", 0.1)
    with (
        Disk(tmp_path / "disk", megabytes=4) as small,
        (small.folder / "file").open("wb"),
        pytest.raises(NotCounted, match=rf"busy.*{os.getpid()} \S+ .*/file"),
    ):
        small.read_only()


def test_who_may_not_mount_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in disk.why_not()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux only" in disk.why_not()


# what is prepared


def test_only_files_that_no_version_names_are_lost_and_none_of_the_log(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1]}))
    DeltaTable(table).create_checkpoint()
    (table / "part-prepared.parquet").write_bytes(b"rows")
    reader = reader_of(DeltaSink(str(table), name="delta"))
    assert reader.lose_prepared().startswith("1 files")
    assert reader.lose_prepared() == ""
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))
    assert [row["id"] for row in DeltaTable(table).to_pyarrow_table().to_pylist()] == [1]


# what can be struck at all


@pytest.mark.parametrize(
    ("strike", "why"),
    [
        (Strike("fill", "disk", Point.BEFORE_DECIDE, 1), "disk"),
        (Strike("crash", "kafka", Point.BEFORE_DECIDE, 1), "no server 'kafka'"),
        (Strike("pause", "postgres", Point.BEFORE_DECIDE, 1), "no server 'postgres'"),
        (Strike("half-open", "postgres", Point.BEFORE_DECIDE, 1), "nothing stands between"),
        (Strike("lose", "prepared", Point.BEFORE_SINK_COMMIT, 1, "delta"), "no sink of ours"),
    ],
)
def test_what_is_not_there_cannot_be_struck(strike: Strike, why: str, tmp_path: Path) -> None:
    import re

    around = Surroundings(tmp_path / "checkpoint", tmp_path / "source", tmp_path / "spare")
    assert re.search(why, around.why_not(strike))
    assert around.why_not(Strike("kill", "driver", Point.BEFORE_DECIDE, 1)) == ""


def test_every_action_is_carried_out_by_somebody() -> None:
    """A new action in the table of the roles needs somebody who does it."""
    known = striker.INSIDE | striker.SURGERY | {"kill", "pause", "copy", "crash"}
    assert set(ON) == known | set(striker.NETWORK) | set(striker.DISK)
