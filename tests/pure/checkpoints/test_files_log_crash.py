"""Every state that a crash can leave of the log in a folder, built and read.

An append or a compaction runs once, on the real disk, while a :class:`Recorder` writes its file
operations down.  Then for every prefix of them the states are made that are possible after

- a killed process: all of the prefix;
- a lost power: what was synced, with *any* choice of the names given and taken since then, and any
  part of the bytes written since then (cut short every few bytes, or that part read as zeros).

In each state the log is read, appended to, and compacted by new handles.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from epochal.chaos.contract.logs import commit, fence, filled
from epochal.checkpoints.disk import Disk
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Entry, Record

TEAR_EVERY = 23
FOLDER = "checkpoint/epochal/log"
STRANGER = commit(50, token=99)

T = TypeVar("T")
State = frozenset[tuple[str, bytes]]
"""The files that are there, by path; folders follow from them."""


Change = tuple[str, int | None]
"""A path and the number of the file it now names; None: it names no file any more."""


# --- a disk that loses what was not synced ------------------------------------------------------


@dataclass
class File:
    """What is safe of a file, and what was written since."""

    safe: bytes = b""
    late: bytes = b""

    def all(self) -> bytes:
        return self.safe + self.late

    def possible(self) -> Iterator[bytes]:
        """What a lost power may leave of it."""
        yield self.safe
        if self.late:
            for length in range(0, len(self.late), TEAR_EVERY):
                yield self.safe + self.late[:length]
                yield self.safe + self.late[:length] + bytes(len(self.late) - length)
            yield self.all()


@dataclass
class Volume:
    """Files by number, names by path; ``late`` are the names given (a number) and taken (None) since a sync."""

    files: dict[int, File] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    late: list[Change] = field(default_factory=list)
    late_folders: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path) -> Volume:
        """What lies on the real disk under ``root``, all of it safe."""
        paths = [p for p in sorted(root.rglob("*")) if p.is_file()]
        names = {str(p.relative_to(root)): number for number, p in enumerate(paths)}
        files = {number: File(p.read_bytes()) for number, p in enumerate(paths)}
        return cls(files, names, {str(p.relative_to(root)) for p in root.rglob("*") if p.is_dir()})

    def number(self, path: str) -> int:
        return self._after(self.late)[path]

    def sync_folder(self, path: str) -> None:
        mine = [(p, n) for p, n in self.late if os.path.dirname(p) == path]
        self.names = _applied(self.names, mine)
        self.late = [change for change in self.late if change not in mine]
        self.folders |= {f for f in self.late_folders if os.path.dirname(f) == path}
        self.late_folders = [f for f in self.late_folders if f not in self.folders]

    def killed(self) -> State:
        """The process is gone, the machine is not."""
        return frozenset((path, self.files[number].all()) for path, number in self._after(self.late).items())

    def powerless(self) -> Iterator[State]:
        """The machine was off."""
        for chosen in _subsets(self.late):
            for folders in _subsets(self.late_folders):
                there = self.folders | set(folders)
                names = {p: n for p, n in self._after(chosen).items() if _reachable(p, there)}
                paths = sorted(names)
                for contents in itertools.product(*(set(self.files[names[p]].possible()) for p in paths)):
                    yield frozenset(zip(paths, contents, strict=True))

    def _after(self, changes: Sequence[Change]) -> dict[str, int]:
        return _applied(self.names, changes)


def _applied(names: dict[str, int], changes: Sequence[Change]) -> dict[str, int]:
    result: dict[str, int | None] = {**names}
    result.update(changes)
    return {path: number for path, number in result.items() if number is not None}


def _subsets(items: Sequence[T]) -> Iterator[list[T]]:
    for size in range(len(items) + 1):
        yield from map(list, itertools.combinations(items, size))


def _reachable(path: str, folders: set[str]) -> bool:
    parts = path.split("/")[:-1]
    return all("/".join(parts[: n + 1]) in folders for n in range(len(parts)))


Operation = Callable[[Volume], None]


class Recorder(Disk):
    """The real disk; every operation under ``root`` that changes something is written down."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self._numbers = itertools.count(1000)
        self._open: dict[int, int] = {}

    def make_folder(self, path: str) -> None:
        super().make_folder(path)
        name = self._name(path)
        self.operations.append(lambda volume: volume.late_folders.append(name))

    def create(self, path: str) -> int:
        handle = super().create(path)
        name, number = self._name(path), next(self._numbers)
        self._open[handle] = number

        def operation(volume: Volume) -> None:
            volume.files[number] = File()
            volume.late.append((name, number))

        self.operations.append(operation)
        return handle

    def write(self, handle: int, data: bytes) -> int:
        written = super().write(handle, data)
        number = self._open[handle]

        def operation(volume: Volume) -> None:
            volume.files[number].late += data[:written]

        self.operations.append(operation)
        return written

    def sync(self, handle: int) -> None:
        super().sync(handle)
        number = self._open[handle]

        def operation(volume: Volume) -> None:
            volume.files[number] = File(volume.files[number].all())

        self.operations.append(operation)

    def link(self, path: str, name: str) -> None:
        super().link(path, name)
        old, new = self._name(path), self._name(name)
        self.operations.append(lambda volume: volume.late.append((new, volume.number(old))))

    def unlink(self, path: str) -> None:
        super().unlink(path)
        name = self._name(path)
        self.operations.append(lambda volume: volume.late.append((name, None)))

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        if Path(path).is_relative_to(self.root):
            name = self._name(path)
            self.operations.append(lambda volume: volume.sync_folder(name))

    def _name(self, path: str) -> str:
        relative = str(Path(path).relative_to(self.root))
        return "" if relative == "." else relative


@dataclass
class Crash:
    """A state that a crash leaves after the first ``after`` of ``of`` operations."""

    after: int
    of: int
    state: State

    @property
    def answered(self) -> bool:
        """The caller has had its answer."""
        return self.after == self.of


def crashes(start: Volume, operations: Sequence[Operation]) -> Iterator[Crash]:
    """Every state that a crash can leave, each once per prefix."""
    volume = deepcopy(start)
    for after in range(len(operations) + 1):
        if after:
            operations[after - 1](volume)
        for state in {volume.killed(), *volume.powerless()}:
            yield Crash(after, len(operations), state)


class Machine:
    """Starts again in any state, always in the same folder (removing folders is what takes long)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def start(self, state: State) -> Path:
        for old in self._root.rglob("*.*"):
            old.unlink()
        for path, content in state:
            (self._root / path).parent.mkdir(parents=True, exist_ok=True)
            (self._root / path).write_bytes(content)
        return self._root


class Careless(Disk):
    """Syncs nothing: after the crash that is looked at there is no other."""

    def sync(self, handle: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


def restarted(root: Path) -> FilesLog:
    """A new handle, as a new process has."""
    return FilesLog(root / FOLDER, disk=Careless())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "crashed")


# --- logs to start from -------------------------------------------------------------------------


def nothing(_root: Path) -> list[Entry]:
    """No folder yet."""
    return []


def grown(root: Path) -> list[Entry]:
    """Some records, no floor."""
    return filled(FilesLog(root / FOLDER), 6)


def compacted(root: Path) -> list[Entry]:
    """A floor, and what a compaction that died left below it."""
    log = FilesLog(root / FOLDER)
    entries = filled(log, 6)
    log.compact(1, entries[:1])
    left = {p: p.read_bytes() for p in (root / FOLDER).iterdir() if int(p.stem) <= 1}
    log.compact(2, entries[:1])
    for path, content in left.items():
        path.write_bytes(content)
    (root / FOLDER / f".{2:020}.floor.0123456789abcdef.tmp").write_bytes(b"torn")
    return [entries[0], *entries[2:]]


Start = Callable[[Path], list[Entry]]


# --- the crashes --------------------------------------------------------------------------------


def appended(root: Path, position: int, record: Record) -> list[Operation]:
    """The file operations of one append."""
    disk = Recorder(root)
    assert FilesLog(root / FOLDER, disk=disk).append(position, record)
    return disk.operations


@pytest.mark.slow
@pytest.mark.parametrize("start", [nothing, grown, compacted])
def test_a_crash_in_an_append_leaves_the_record_whole_or_not_at_all(
    tmp_path: Path, machine: Machine, start: Start
) -> None:
    root = tmp_path / "before"
    root.mkdir()
    before = start(root)
    volume = Volume.of(root)
    mine = Entry(before[-1].position + 1 if before else 0, commit(40))
    found = {False: 0, True: 0}
    for crash in crashes(volume, appended(root, mine.position, mine.record)):
        there = _append_again(machine, crash.state, before, mine)
        assert there or not crash.answered, "an answered append is lost"
        found[there] += 1
        if not there:
            _append_another(machine, crash.state, before, mine)
    assert min(found.values()) > 1, found


def _append_again(machine: Machine, state: State, before: list[Entry], mine: Entry) -> bool:
    """Whether the record is there; the repeated append succeeds or finds it; the log can be used."""
    root = machine.start(state)
    log = restarted(root)
    read = list(log.read())
    assert read in (before, [*before, mine])
    there = read != before
    assert log.append(mine.position, mine.record) is not there
    assert not restarted(root).append(mine.position, STRANGER)
    assert list(log.read()) == [*before, mine]
    assert log.append(mine.position + 1, STRANGER)
    log.compact(mine.position + 1, [*before[:1], mine])
    assert list(log.read()) == [*before[:1], mine, Entry(mine.position + 1, STRANGER)]
    assert not list((root / FOLDER).glob(".*"))
    return there


def _append_another(machine: Machine, state: State, before: list[Entry], mine: Entry) -> None:
    """Where it is not, another start takes the position, and the repeat comes too late."""
    root = machine.start(state)
    log = restarted(root)
    assert log.append(mine.position, STRANGER)
    assert not log.append(mine.position, mine.record)
    assert list(log.read()) == [*before, Entry(mine.position, STRANGER)]


def test_what_was_read_once_survives_a_lost_power(tmp_path: Path, machine: Machine) -> None:
    """A killed process left its record unsynced, another read and acted on it, then the power went."""
    root = tmp_path / "before"
    root.mkdir()
    before = grown(root)
    start, seen = Volume.of(root), 0
    operations = appended(root, 6, fence(2))
    for after in range(len(operations) + 1):
        volume = deepcopy(start)
        for operation in operations[:after]:
            operation(volume)
        killed = machine.start(volume.killed())
        reader = Recorder(killed)
        read = list(FilesLog(killed / FOLDER, disk=reader).read())
        for operation in reader.operations:
            operation(volume)
        for state in set(volume.powerless()) if len(read) > len(before) else ():
            assert list(restarted(machine.start(state)).read()) == read
            seen += 1
    assert seen > 1


@pytest.mark.slow
@pytest.mark.parametrize("start", [grown, compacted])
def test_a_crash_in_a_compaction_leaves_the_old_log_or_the_new_one(
    tmp_path: Path, machine: Machine, start: Start
) -> None:
    root = tmp_path / "before"
    root.mkdir()
    old = start(root)
    volume, disk = Volume.of(root), Recorder(root)
    kept = [old[0], old[-3]]
    new = [*kept, *old[-2:]]
    floor = new[-2].position
    FilesLog(root / FOLDER, disk=disk).compact(floor, kept)
    reads = []
    for crash in crashes(volume, disk.operations):
        reads.append(_go_on(machine, crash.state, floor, kept))
        assert reads[-1] in ([new] if crash.answered else [old, new])
    assert old in reads
    assert new in reads


def _go_on(machine: Machine, state: State, floor: int, kept: list[Entry]) -> list[Entry]:
    """What is read; no position can be had a second time; the compaction can be repeated."""
    root = machine.start(state)
    log = restarted(root)
    read = list(log.read())
    end = read[-1].position + 1
    for position in range(end):
        assert not restarted(root).append(position, STRANGER)
    assert list(log.read()) == read
    assert log.append(end, STRANGER)
    log.compact(floor, kept)
    after = list(restarted(root).read())
    assert after == [*kept, *(e for e in read if e.position >= floor), Entry(end, STRANGER)]
    return read
