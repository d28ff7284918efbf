"""An epoch log in a folder of a local disk.

::

    00000000000000000007.floor      below 7 only the entries that this file holds exist
    00000000000000000007.record     the record at position 7
    .<name>.<random>.tmp            being written, or left by a dead process; claimed while alive

Rules, on which "a position is never created twice, and an answer is never taken back" rests:

1. A name comes into being whole: written under a temporary name, synced, linked (taken: EEXIST).
2. Nothing is answered before the folder is synced, neither what was written nor what was read.
3. A floor is durable before anything below it is deleted.  Then records go first, lowest first, and
   older floors after them, so a name that was missed by a listing always leaves a trace.
4. After its link an append lists the folder: something higher there, or its own name gone again,
   means that a compaction or another start was faster, and the answer is "taken".

Why 4 suffices: were the position below a floor at the time of the link, that floor would be listed, unless
a later compaction deleted it meanwhile; but that one deletes the new record first, and its name is gone.
A listing need not be a snapshot, so a reader lists again after it has read, until nothing has changed:
to be fooled all that it could have seen would have to be compacted away in each of two listings in a row.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from epochal.chaos import failpoints
from epochal.chaos.failpoints import Point
from epochal.checkpoints.disk import Disk
from epochal.checkpoints.log import Entry, LogPosition, Record, decode, encode
from epochal.checkpoints.rules import check_compaction, check_order, epoch_of, is_free
from epochal.coordinator.errors import LogCorrupt, Misconfigured, OutcomeUnknown, SinkUnavailable

FLOOR_VERSION = 1
LISTINGS = 40
"""How often a reader looks again at a folder that changes under it."""

_NAME = re.compile(r"(?P<position>\d{20})\.(?P<kind>record|floor)")
_TEMPORARY = re.compile(r"\.\d{20}\.(record|floor)\.[0-9a-f]{16}\.tmp")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK)


@dataclass(frozen=True)
class _Names:
    """What a folder holds, in ascending order."""

    floors: tuple[LogPosition, ...] = ()
    records: tuple[LogPosition, ...] = ()
    temporary: tuple[str, ...] = field(default=(), compare=False)

    @property
    def floor(self) -> LogPosition:
        return self.floors[-1] if self.floors else 0

    @property
    def end(self) -> LogPosition:
        return self.records[-1] + 1 if self.records else 0


class FilesLog:
    """Satisfies :class:`~epochal.checkpoints.log.EpochLog`; a folder that does not exist is an empty log."""

    def __init__(self, folder: str | os.PathLike[str], *, disk: Disk | None = None) -> None:
        self._folder = os.path.abspath(folder)
        self._disk = disk if disk is not None else Disk()
        self._made = False

    def describe(self) -> str:
        """See :meth:`EpochLog.describe`."""
        return f"files:{self._folder}"

    def read(self) -> Sequence[Entry]:
        """See :meth:`EpochLog.read`; what is returned is durable, whoever wrote it."""
        with self._unreadable():
            return self._read()[1]

    def append(self, position: LogPosition, record: Record) -> bool:
        """See :meth:`EpochLog.append`."""
        with self._outcome_unknown(f"the append at position {position}"):
            names = self._settled()
            if not is_free(position, floor=names.floor, end=names.end, where=self.describe()):
                return False
            self._make_folder()
            epoch = epoch_of(record)
            before = partial(failpoints.hit, Point.LOG_BEFORE_APPEND, epoch=epoch)
            with self._created(_record(position), encode(record), before) as created:
                if created is None:
                    return False
                failpoints.hit(Point.LOG_AFTER_APPEND, epoch=epoch)
                return self._is_last(position) and self._disk.names_of(created) > 0

    def compact(self, floor: LogPosition, kept: Sequence[Entry]) -> None:
        """See :meth:`EpochLog.compact`."""
        with self._outcome_unknown(f"the compaction to floor {floor}"):
            present, entries = self._read()
            if floor <= present:
                return
            check_compaction(entries, floor, kept)
            with self._created(_floor(floor), encode_floor(floor, kept)):
                failpoints.hit(Point.LOG_AFTER_FLOOR)
            self._delete_below(floor)

    # --- reading --------------------------------------------------------------------------------

    def _read(self) -> tuple[LogPosition, list[Entry]]:
        names = self._list()
        for _ in range(LISTINGS):
            # A file that a compaction took away between the listing and the reading: look again.
            with contextlib.suppress(FileNotFoundError):
                entries = self._entries(names)
                if self._list() == names:
                    return names.floor, self._checked(names, entries)
            names = self._list()
        raise self._restless()

    def _entries(self, names: _Names) -> list[Entry]:
        kept: list[Entry] = []
        if names.floors:
            path = self._path(_floor(names.floor))
            kept = decode_floor(self._disk.read(path), names.floor, path)
        return kept + [self._entry(p) for p in names.records if p >= names.floor]

    def _entry(self, position: LogPosition) -> Entry:
        path = self._path(_record(position))
        return Entry(position, decode(self._disk.read(path), path))

    def _checked(self, names: _Names, entries: list[Entry]) -> list[Entry]:
        check_order(names.records, names.floor, self.describe())
        if names.floors or names.records:
            self._disk.sync_folder(self._folder)
        return entries

    def _settled(self) -> _Names:
        """Two listings that agree."""
        names = self._list()
        for _ in range(LISTINGS):
            if (again := self._list()) == names:
                return names
            names = again
        raise self._restless()

    def _list(self) -> _Names:
        try:
            found = self._disk.list(self._folder)
        except FileNotFoundError:
            if self._made:
                raise self._gone() from None
            return _Names()
        positions: dict[str, list[LogPosition]] = {"floor": [], "record": []}
        for name in found:
            if match := _NAME.fullmatch(name):
                positions[match["kind"]].append(int(match["position"]))
            elif not _TEMPORARY.fullmatch(name):
                raise self._foreign(name)
        temporary = tuple(n for n in found if _TEMPORARY.fullmatch(n))
        return _Names(tuple(sorted(positions["floor"])), tuple(sorted(positions["record"])), temporary)

    # --- writing --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _created(self, name: str, data: bytes, before_link: Callable[[], None] | None = None) -> Iterator[int | None]:
        """A handle on the new file ``name``, whole and durable; None if the name is taken."""
        temporary, handle = self._draft(name)
        try:
            try:
                self._write(handle, data)
                self._disk.sync(handle)
                if before_link is not None:
                    before_link()
                linked = self._link(temporary, self._path(name))
            finally:
                with contextlib.suppress(OSError):
                    self._disk.unlink(temporary)
            self._disk.sync_folder(self._folder)
            yield handle if linked else None
        finally:
            self._disk.close(handle)

    def _draft(self, name: str) -> tuple[str, int]:
        """A new temporary file and a claimed handle on it."""
        for _ in range(LISTINGS):
            path = self._path(f".{name}.{secrets.token_hex(8)}.tmp")
            handle = self._disk.create(path)
            try:
                if self._claim(handle):
                    return path, handle
            except OSError:
                self._disk.close(handle)
                raise
            self._disk.close(handle)
        raise self._restless()

    def _claim(self, handle: int) -> bool:
        """False when a compaction took the file for a dead one's, in the moment before the claim."""
        try:
            self._disk.claim(handle)
        except BlockingIOError:
            return False
        return self._disk.names_of(handle) > 0

    def _write(self, handle: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._disk.write(handle, bytes(rest)) :]

    def _link(self, temporary: str, path: str) -> bool:
        try:
            self._disk.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise self._without_links(error) from error
            raise
        return True

    def _is_last(self, position: LogPosition) -> bool:
        names = self._list()
        return position >= names.floor and position + 1 >= names.end

    def _delete_below(self, floor: LogPosition) -> None:
        names = self._list()
        for record in (p for p in names.records if p < floor):
            self._unlink(_record(record))
        for older in (p for p in names.floors if p < floor):
            self._unlink(_floor(older))
        for temporary in names.temporary:
            self._unlink_if_dead(temporary)
        self._disk.sync_folder(self._folder)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another compaction was faster
            self._disk.unlink(self._path(name))

    def _unlink_if_dead(self, temporary: str) -> None:
        """A living process, also a stopped one, holds a claim on what it writes; death lets go of it."""
        with contextlib.suppress(OSError):
            handle = self._disk.open(self._path(temporary))
            try:
                self._disk.claim(handle)
                self._disk.unlink(self._path(temporary))
            finally:
                self._disk.close(handle)

    def _make_folder(self) -> None:
        """The folder and its name are durable, also when another process made it a moment ago."""
        if self._made:
            return
        self._make(self._folder)
        path = self._folder
        while not os.path.ismount(path):
            path = os.path.dirname(path)
            with contextlib.suppress(PermissionError):  # a folder that we may not list is not a new one
                self._disk.sync_folder(path)
        self._made = True

    def _make(self, path: str) -> None:
        try:
            self._disk.make_folder(path)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make(os.path.dirname(path))
            self._make(path)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    # --- errors ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _unreadable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkUnavailable(
                f"the epoch log {self.describe()} cannot be read: {error}",
                help="make the folder readable; nothing was written",
            ) from error

    @contextlib.contextmanager
    def _outcome_unknown(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutcomeUnknown(
                f"{what} of the epoch log {self.describe()} has no answer: {error}",
                help="make the folder writable (disk full? read-only?); the same request may be repeated",
            ) from error

    def _restless(self) -> SinkUnavailable:
        return SinkUnavailable(
            f"the epoch log {self.describe()} changed under each of {LISTINGS} looks at it",
            help="find out which processes append to it or compact it; only one query may",
        )

    def _gone(self) -> LogCorrupt:
        return LogCorrupt(
            f"the folder of the epoch log {self.describe()} is gone",
            state="this process has written to it before",
            help="restore the checkpoint from a backup, with its epoch log",
        )

    def _foreign(self, name: str) -> LogCorrupt:
        return LogCorrupt(
            f"the epoch log {self.describe()} holds a foreign file: {name!r}",
            state="only files of the epoch log may lie in its folder",
            help="move that file elsewhere, or upgrade Epochal if a newer version wrote it",
        )

    def _without_links(self, error: OSError) -> Misconfigured:
        return Misconfigured(
            f"the file system of the epoch log {self.describe()} has no hard links: {error}",
            help="put the checkpoint on a local disk with hard links (ext4, xfs, btrfs, apfs)",
        )


def encode_floor(floor: LogPosition, kept: Sequence[Entry]) -> bytes:
    """What a floor file holds: a line with version and checksum, one with floor and count, the entries."""
    lines = b"".join(b"%d %b" % (e.position, encode(e.record)) for e in kept)
    body = b"%d %d\n%b" % (floor, len(kept), lines)
    return b"epochal-floor %d %b\n%b" % (FLOOR_VERSION, _checksum(body), body)


def decode_floor(data: bytes, floor: LogPosition, where: str) -> list[Entry]:
    """The entries that :func:`encode_floor` was given; ``where`` names the file in the error."""
    try:
        first, _, body = data.partition(b"\n")
        word, version, checksum = first.split(b" ")
        if word != b"epochal-floor":
            raise ValueError("not a floor of an epoch log")
        if version != b"%d" % FLOOR_VERSION:
            raise ValueError(f"floor of version {version.decode(errors='replace')}; this Epochal reads {FLOOR_VERSION}")
        if checksum != _checksum(body):
            raise ValueError("checksum does not match: torn or foreign")
        second, *lines = body.split(b"\n")[:-1]
        if second != b"%d %d" % (floor, len(lines)):
            raise ValueError(f"says {second!r}, not floor {floor} and {len(lines)} entries")
        split = [line.partition(b" ") for line in lines]
        return [Entry(int(position), decode(record + b"\n", where)) for position, _, record in split]
    except ValueError as error:
        raise LogCorrupt(
            f"{where} is not a whole floor of the epoch log: {error}",
            state=f"{len(data)} bytes, beginning {data[:40]!r}",
            help="restore the file from a backup of the checkpoint, or upgrade Epochal if it is newer",
        ) from error


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _record(position: LogPosition) -> str:
    return f"{position:020}.record"


def _floor(position: LogPosition) -> str:
    return f"{position:020}.floor"
