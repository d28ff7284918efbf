"""The log in a folder keeps the contract, and everything that is special about a folder."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.chaos.contract.logs import ProcessContract, commit, fence, filled
from epochal.checkpoints.disk import Disk
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Entry, EpochLog, Record
from epochal.checkpoints.names import LISTINGS, Names, encode_floor, settled
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import LogCorrupt, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import FailpointError, Point

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the log of a checkpoint lies; not there yet."""
    return tmp_path / "checkpoint" / "epochal" / "log"


class TestFilesLog(ProcessContract):
    @pytest.fixture
    def open_log(self, folder: Path) -> Callable[[], EpochLog]:
        return lambda: FilesLog(folder)

    @pytest.fixture
    def source(self, folder: Path) -> str:
        return f"from epochal.checkpoints.files import FilesLog; log = FilesLog({str(folder)!r})"


def test_nothing_is_left_open(folder: Path) -> None:
    log = FilesLog(folder)
    before = len(os.listdir("/proc/self/fd"))
    filled(log, 3)
    log.compact(2, [])
    assert not log.append(1, commit(0))
    assert len(list(log.read())) == 1
    assert len(os.listdir("/proc/self/fd")) == before


class Contested(Disk):
    """The first claim ends with the error that it was given."""

    def __init__(self, error: OSError) -> None:
        self.errors = [error]
        self.created = 0

    def create(self, path: str) -> int:
        self.created += 1
        return super().create(path)

    def claim(self, handle: int) -> None:
        if self.errors:
            raise self.errors.pop()
        super().claim(handle)


def test_a_file_that_a_compaction_claims_is_left_to_it(folder: Path) -> None:
    disk, before = Contested(BlockingIOError()), len(os.listdir("/proc/self/fd"))
    assert FilesLog(folder, disk=disk).append(0, commit(0))
    assert disk.created == 3, "two to try out the file system, of which the first was claimed, and the record's"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_cannot_be_claimed_is_let_go(folder: Path) -> None:
    disk, before = Contested(OSError(errno.ENOLCK, "no locks")), len(os.listdir("/proc/self/fd"))
    with pytest.raises(OutcomeUnknown, match="no locks"):
        FilesLog(folder, disk=disk).append(0, commit(0))
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_dead_process_left_is_removed_and_let_go(folder: Path) -> None:
    log = FilesLog(folder)
    filled(log, 3)
    dead = folder / f".{9:020}.record.{'0' * 16}.tmp"
    dead.touch()
    before = len(os.listdir("/proc/self/fd"))
    log.compact(2, [])
    assert not dead.exists()
    assert len(os.listdir("/proc/self/fd")) == before


# --- what lies in the folder --------------------------------------------------------------------


def test_reading_makes_no_folder(folder: Path) -> None:
    assert list(FilesLog(folder).read()) == []
    assert not folder.exists()
    assert FilesLog(folder).describe() == f"files:{folder}"


def test_the_names_are_positions_and_nothing_else_is_left(folder: Path) -> None:
    log = FilesLog(folder)
    entries = filled(log, 5)
    log.compact(2, entries[:1])
    log.compact(3, entries[:1])
    names = [f"{n:020}.{kind}" for n, kind in [(3, "floor"), (3, "record"), (4, "record")]]
    assert sorted(os.listdir(folder)) == sorted(names)


class Remembering(Disk):
    """Remembers what it took away, in order."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if not path.endswith(".tmp"):
            self.gone.append(os.path.basename(path))


def test_records_go_lowest_first_and_older_floors_after_them(folder: Path) -> None:
    """Else a creator or reader whose listing misses a floor could miss every trace of it."""
    entries = filled(FilesLog(folder), 6)
    FilesLog(folder).compact(2, entries[:1])
    disk = Remembering()
    FilesLog(folder, disk=disk).compact(5, entries[:1])
    assert disk.gone == [f"{n:020}.record" for n in (2, 3, 4)] + [f"{2:020}.floor"]


class Syncing(Disk):
    """Remembers which folders were synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.synced.append(path)


@pytest.mark.parametrize("floor", [0, 2, 3])
def test_what_is_read_is_durable_first_be_it_records_a_floor_or_both(folder: Path, floor: int) -> None:
    entries = filled(FilesLog(folder), 3)
    FilesLog(folder).compact(floor, entries[:1] if floor else [])
    disk = Syncing()
    assert FilesLog(folder, disk=disk).read()
    assert disk.synced == [str(folder)]


def test_a_lower_floor_touches_no_file(folder: Path) -> None:
    log = FilesLog(folder)
    entries = filled(log, 6)
    log.compact(4, entries[:1])
    before = {path: path.stat().st_ino for path in folder.iterdir()}
    for floor in (3, 4):
        log.compact(floor, entries[:1])
        assert {path: path.stat().st_ino for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["part-0.parquet", "0.record", "00000000000000000001.record.crc", "notes"])
@pytest.mark.remedy("the epoch log … holds a foreign file: …", "move that file elsewhere")
def test_a_foreign_file_is_named(folder: Path, name: str) -> None:
    log = FilesLog(folder)
    filled(log, 2)
    (folder / name).touch()
    for verb in (log.read, lambda: log.append(2, commit(1)), lambda: log.compact(1, [])):
        with pytest.raises(LogCorrupt, match=f"holds a foreign file: '{name}'"):
            verb()
    (folder / name).rename(folder.with_name(name))
    assert log.append(2, commit(1))


@pytest.mark.parametrize(
    "name",
    [".DS_Store", "lost+found", "Thumbs.db", "desktop.ini", "@eaDir", ".00000000000000000001.record.Ab12Cd", ".x\ny"],
)
def test_what_file_managers_and_backups_leave_is_ignored(folder: Path, name: str) -> None:
    """L1: nobody can keep these names out of a folder."""
    log = FilesLog(folder)
    entries = filled(log, 3)
    (folder / name).touch()
    assert list(log.read()) == entries
    assert log.append(3, commit(1))
    log.compact(3, [])
    assert [entry.position for entry in log.read()] == [3]
    assert (folder / name).exists()


@pytest.mark.remedy(
    "… has no record at position …, but one at …", "restore the epoch log from a backup of the checkpoint"
)
def test_a_lost_record_is_a_gap(folder: Path) -> None:
    log = FilesLog(folder)
    entries = filled(log, 4)
    backup = shutil.copytree(folder, folder.with_name("backup"))
    (folder / f"{2:020}.record").unlink()
    with pytest.raises(LogCorrupt, match="has no record at position 2, but one at 3"):
        log.read()
    shutil.rmtree(folder)
    backup.rename(folder)
    assert list(log.read()) == entries


@pytest.mark.remedy(
    "… ends before position …, so … cannot be appended", "restore the epoch log from a backup of the checkpoint"
)
def test_an_append_behind_records_that_are_gone_waits_for_the_backup(folder: Path) -> None:
    log = FilesLog(folder)
    entries = filled(log, 4)
    backup = shutil.copytree(folder, folder.with_name("backup"))
    for position in (2, 3):
        (folder / f"{position:020}.record").unlink()
    with pytest.raises(LogCorrupt, match="ends before position 2, so 4 cannot be appended"):
        log.append(4, commit(3))
    shutil.rmtree(folder)
    backup.rename(folder)
    assert log.append(4, commit(3))
    assert list(log.read()) == [*entries, Entry(4, commit(3))]


def test_lost_records_below_an_absent_floor_are_a_gap(folder: Path) -> None:
    log = FilesLog(folder)
    entries = filled(log, 4)
    log.compact(2, entries[:1])
    (folder / f"{2:020}.floor").unlink()
    with pytest.raises(LogCorrupt, match="has no record at position 0, but one at 2"):
        log.read()


@pytest.mark.parametrize("length", [0, 1, 40, -1])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "record",
            marks=pytest.mark.remedy(
                "… is not a whole record of the epoch log: …", "restore the file from a backup of the checkpoint"
            ),
        ),
        pytest.param(
            "floor",
            marks=pytest.mark.remedy(
                "… is not a whole floor of the epoch log: …", "restore the file from a backup of the checkpoint"
            ),
        ),
    ],
)
def test_a_torn_file_is_named(folder: Path, kind: str, length: int) -> None:
    log = FilesLog(folder)
    entries = filled(log, 4)
    log.compact(2, entries[:1])
    path = folder / f"{2:020}.{kind}"
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    with pytest.raises(LogCorrupt, match=f"{path} is not a whole {kind} of the epoch log"):
        log.read()
    path.write_bytes(whole)
    assert [entry.position for entry in log.read()] == [0, 2, 3]


def test_a_floor_under_another_name_is_refused(folder: Path) -> None:
    log = FilesLog(folder)
    entries = filled(log, 4)
    log.compact(2, entries[:1])
    (folder / f"{2:020}.floor").rename(folder / f"{3:020}.floor")
    with pytest.raises(LogCorrupt, match="not floor 3 and 1 entries"):
        log.read()


def test_a_floor_of_a_newer_version_says_so(folder: Path) -> None:
    log = FilesLog(folder)
    filled(log, 2)
    newer = encode_floor(1, []).replace(b"epochal-floor 1", b"epochal-floor 2")
    (folder / f"{1:020}.floor").write_bytes(newer)
    with pytest.raises(LogCorrupt, match="floor of version 2; this Epochal reads 1"):
        log.read()


@pytest.mark.remedy("the folder of the epoch log … is gone", "restore the checkpoint from a backup, with its epoch log")
def test_a_folder_that_vanished_is_not_an_empty_log(folder: Path) -> None:
    log = FilesLog(folder)
    filled(log, 2)
    folder.rename(folder.with_name("moved"))
    for verb in (log.read, lambda: log.append(2, commit(1))):
        with pytest.raises(LogCorrupt, match="is gone"):
            verb()
    assert not folder.exists()
    folder.with_name("moved").rename(folder)
    assert log.append(2, commit(1))


@pytest.mark.remedy("the epoch log … cannot be read: …", "make the folder readable; nothing was written")
@pytest.mark.remedy(
    "… of the epoch log … has no answer: …",
    "make the folder writable (disk full? read-only?); the same request may be repeated",
)
def test_a_file_in_the_folders_place_cannot_be_read(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()
    with pytest.raises(SinkUnavailable, match="cannot be read"):
        FilesLog(folder).read()
    with pytest.raises(OutcomeUnknown, match="append at position 0"):
        FilesLog(folder).append(0, fence())
    folder.unlink()
    assert list(FilesLog(folder).read()) == []
    assert FilesLog(folder).append(0, fence())


# --- temporary files ----------------------------------------------------------------------------


def test_what_dead_processes_left_goes_at_compaction_and_the_living_stay(folder: Path) -> None:
    log = FilesLog(folder)
    entries = filled(log, 4)
    _leave_a_draft_and_die(folder)
    dead = set(folder.glob(".*.tmp"))
    assert len(dead) == 1

    def compact(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND:
            assert len(set(folder.glob(".*.tmp")) - dead) == 1
            FilesLog(folder).compact(3, entries[:1])

    with failpoints.handler(compact):
        assert log.append(4, commit(3)), "what a living append writes was taken away"
    assert not list(folder.glob(".*.tmp"))
    assert [e.position for e in log.read()] == [0, 3, 4]


def _leave_a_draft_and_die(folder: Path) -> None:
    source = (
        "from epochal.checkpoints.files import FilesLog\n"
        "from epochal.chaos.contract.logs import commit\n"
        f"FilesLog({str(folder)!r}).append(4, commit(3))"
    )
    died = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, failpoints.ENVIRONMENT: "log-before-append=kill"},
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL


class Overtaken(Disk):
    """Another process compacts between each ``create`` and its claim, a few times."""

    def __init__(self, folder: Path, kept: list[Entry]) -> None:
        self.compactions = iter([2, 3])
        self.log = FilesLog(folder)
        self.kept = kept

    def create(self, path: str) -> int:
        handle = super().create(path)
        for floor in itertools.islice(self.compactions, 1):
            self.log.compact(floor, self.kept)
            assert not os.path.exists(path), "the compaction should have taken it for a dead one's"
        return handle


def test_a_draft_that_was_not_claimed_in_time_is_made_anew(folder: Path) -> None:
    entries = filled(FilesLog(folder), 4)
    assert FilesLog(folder, disk=Overtaken(folder, entries[:1])).append(4, commit(3))
    assert FilesLog(folder).read()[-1] == Entry(4, commit(3))
    assert not list(folder.glob(".*"))


def test_a_failed_append_leaves_no_draft(folder: Path) -> None:
    log = FilesLog(folder)
    with failpoints.armed("log-before-append=raise"), pytest.raises(FailpointError):
        log.append(0, fence())
    assert list(folder.iterdir()) == []


# --- trouble with the disk ----------------------------------------------------------------------


class Failing(Disk):
    """Fails with ``number`` in every call of ``verb``, after doing it if ``late``."""

    def __init__(self, verb: str, number: int, *, late: bool = False) -> None:
        self.broken = True
        real: Callable[..., object] = getattr(self, verb)

        def fail(*arguments: object) -> object:
            result = real(*arguments) if late or not self.broken else None
            if self.broken:
                raise OSError(number, os.strerror(number))
            return result

        setattr(self, verb, fail)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("verb", "number"),
    [
        ("make_folder", errno.EROFS),
        ("create", errno.EROFS),
        ("claim", errno.ENOLCK),
        ("write", errno.ENOSPC),
        ("sync", errno.EIO),
        ("link", errno.ENOSPC),
        ("sync_folder", errno.EIO),
    ],
)
def test_an_error_of_the_disk_is_unknown_and_the_repeat_settles_it(
    folder: Path, verb: str, number: int, late: bool
) -> None:
    disk = Failing(verb, number, late=late)
    log = FilesLog(folder, disk=disk)
    with pytest.raises(OutcomeUnknown, match=os.strerror(number)) as raised:
        log.append(0, fence())
    assert not raised.value.definite
    disk.broken = False
    log.append(0, fence())
    assert list(log.read()) == [Entry(0, fence())]
    assert not log.append(0, commit(9))


@pytest.mark.remedy(
    "the file system of the epoch log … has no hard links: …",
    "put the checkpoint on a local disk (ext4, xfs, btrfs, apfs) or on HDFS",
)
def test_a_file_system_without_hard_links_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="has no hard links"):
        FilesLog(folder, disk=Failing("link", errno.EPERM)).append(0, fence())
    assert FilesLog(folder.with_name("on a local disk")).append(0, fence())


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
@pytest.mark.remedy(
    "the file system of the epoch log … cannot make the names in a folder durable: …",
    "put the checkpoint on a local disk (ext4, xfs, btrfs, apfs) or on HDFS",
)
def test_a_file_system_that_cannot_sync_a_folder_is_refused_by_name(folder: Path, number: int) -> None:
    with pytest.raises(Misconfigured, match="cannot make the names in a folder durable"):
        FilesLog(folder, disk=Failing("sync_folder", number)).append(0, fence())
    assert FilesLog(folder.with_name("on a local disk")).append(0, fence())


class Keeping(Disk):
    """As NFS (or FUSE): a file that is deleted while it is open gets another name, until it is closed."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._open = prefix, dict[int, list[str]]()

    def create(self, path: str) -> int:
        handle = super().create(path)
        self._open[handle] = []
        return handle

    def unlink(self, path: str) -> None:
        for handle, kept in self._open.items():
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                kept.append(f"{os.path.dirname(path)}/{self._prefix}{handle:08x}{len(kept):08x}")
                os.rename(path, kept[-1])
                return
        super().unlink(path)

    def close(self, handle: int) -> None:
        super().close(handle)
        for path in self._open.pop(handle, []):
            os.unlink(path)


@pytest.mark.parametrize("prefix", [".nfs", ".fuse_hidden"])
@pytest.mark.remedy(
    "the file system of the epoch log … keeps names of deleted open files, as NFS and most of FUSE do",
    "put the checkpoint on a local disk (ext4, xfs, btrfs, apfs) or on HDFS",
)
def test_a_file_system_that_keeps_deleted_files_is_refused_before_anything_is_written(
    folder: Path, prefix: str
) -> None:
    """L1: an append could not see there that its record was deleted."""
    for _ in range(2):
        with pytest.raises(Misconfigured, match="keeps names of deleted open files"):
            FilesLog(folder, disk=Keeping(prefix)).append(0, fence())
        assert list(folder.iterdir()) == []
    assert FilesLog(folder.with_name("on a local disk")).append(0, fence())


@pytest.mark.parametrize("name", [".nfs00000000012d687f00000001", ".fuse_hidden0000001a00000001"])
def test_the_name_of_a_deleted_file_is_no_foreign_file(folder: Path, name: str) -> None:
    """L1: nobody can move it elsewhere."""
    log = FilesLog(folder)
    log.append(0, fence())
    (folder / name).touch()
    with pytest.raises(Misconfigured, match="keeps names of deleted open files"):
        log.read()


def test_an_unreadable_folder_is_a_named_error(folder: Path) -> None:
    filled(FilesLog(folder), 1)
    with pytest.raises(SinkUnavailable, match=os.strerror(errno.EIO)):
        FilesLog(folder, disk=Failing("list", errno.EIO)).read()


class Stingy(Disk):
    """Takes seven bytes at a time."""

    def write(self, handle: int, data: bytes) -> int:
        return super().write(handle, data[:7])


def test_a_disk_that_takes_few_bytes_at_a_time_gets_all_of_them(folder: Path) -> None:
    assert FilesLog(folder, disk=Stingy()).append(0, commit(0))
    assert list(FilesLog(folder).read()) == [Entry(0, commit(0))]


# --- a listing is not a snapshot ----------------------------------------------------------------


class Slow(Disk):
    """Calls ``meanwhile`` in the middle of each listing, or between listing and reading."""

    def __init__(self, meanwhile: Callable[[], object], *, verb: str = "list") -> None:
        self.meanwhile = meanwhile
        self.verb = verb

    def list(self, path: str) -> list[str]:
        if self.verb != "list":
            return super().list(path)
        # Of the names that were there before, those that are taken away meanwhile are missed, and so
        # is what comes meanwhile: POSIX allows both in one listing.
        before = super().list(path)
        self.meanwhile()
        return sorted(set(before) & set(super().list(path)))

    def read(self, path: str) -> bytes:
        if self.verb == "read":
            self.meanwhile()
        return super().read(path)


class Turnover:
    """Each call makes the log go on and compacts all that was there before; ``times`` calls do."""

    def __init__(self, folder: Path, times: int = 1) -> None:
        self.log = FilesLog(folder)
        self.times = times

    def __call__(self) -> None:
        if self.times == 0:
            return
        self.times -= 1
        entries = self.log.read()
        end = entries[-1].position + 1
        for position in range(end, end + 3):
            assert self.log.append(position, commit(position))
        self.log.compact(end + 1, entries[:1])


@pytest.mark.parametrize(("verb", "times"), [("list", 1), ("read", 1), ("read", 5)])
def test_a_reader_that_a_compaction_overtakes_looks_again(folder: Path, verb: str, times: int) -> None:
    entries = filled(FilesLog(folder), 4)
    reader = FilesLog(folder, disk=Slow(Turnover(folder, times), verb=verb))
    last = 3 + 3 * times
    assert list(reader.read()) == [entries[0], *(Entry(p, commit(p)) for p in (last - 1, last))]


def test_an_append_that_a_compaction_overtakes_does_not_see_a_gap(folder: Path) -> None:
    filled(FilesLog(folder), 4)
    late = FilesLog(folder, disk=Slow(Turnover(folder)))
    assert not late.append(4, commit(99))


def test_an_append_that_others_have_gone_past_is_told_taken_and_finds_its_own(folder: Path) -> None:
    entries = filled(FilesLog(folder), 2)

    def go_past(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_AFTER_APPEND and epoch == 99:
            assert FilesLog(folder).append(3, fence(2))

    with failpoints.handler(go_past):
        assert not FilesLog(folder).append(2, commit(99))
    assert list(FilesLog(folder).read()) == [*entries, Entry(2, commit(99)), Entry(3, fence(2))]


@pytest.mark.remedy(
    "the epoch log … changed during each of … readings",
    "find out which processes append to it or compact it; only one query may do so",
)
def test_a_log_that_never_rests_is_a_named_error(folder: Path) -> None:
    log = FilesLog(folder)
    filled(log, 1)
    grow = (log.append(position, commit(0)) for position in itertools.count(1))
    with pytest.raises(SinkUnavailable, match=f"during each of {LISTINGS} readings"):
        FilesLog(folder, disk=Slow(lambda: next(grow))).read()
    assert len(list(FilesLog(folder).read())) > LISTINGS, "read once nobody else appends"


def test_a_draft_that_is_taken_away_again_and_again_is_a_named_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FilesLog, "_claim", lambda *_: False)
    with pytest.raises(SinkUnavailable, match=f"during each of {LISTINGS} readings"):
        FilesLog(folder).append(0, commit(0))


def test_names_that_never_rest_are_a_named_error() -> None:
    listings = (Names((position,), ()) for position in itertools.count())
    with pytest.raises(SinkUnavailable, match=f"the epoch log here changed during each of {LISTINGS} readings"):
        settled(lambda: next(listings), "here")


def test_a_creator_whose_listing_misses_every_floor_is_told_taken(folder: Path) -> None:
    """Its position was compacted away while it slept; each floor is deleted before its listing sees it."""
    log = FilesLog(folder)
    filled(log, 3)
    late: Record = commit(99, token=99)
    asleep = Turnover(folder)
    disk = Slow(lambda: None)

    def wake(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND and epoch == 99:
            asleep()
        if at is Point.LOG_AFTER_APPEND and epoch == 99:
            disk.meanwhile = Turnover(folder)

    with failpoints.handler(wake):
        answer = FilesLog(folder, disk=disk).append(3, late)
    assert not answer
    assert late not in [e.record for e in log.read()]
