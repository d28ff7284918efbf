"""An epoch log in a folder of a local disk; ``names.py`` says which files lie in it.

Rules, on which "a position is never created twice, and an answer is never taken back" rests:

1. A name comes into being whole: written as a draft, synced, linked (taken: EEXIST).  A draft is claimed
   while its writer lives.
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
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from epochal.checkpoints.disk import Disk
from epochal.checkpoints.log import Entry, LogPosition, Record, encode
from epochal.checkpoints.names import (
    LISTINGS,
    Names,
    draft_name,
    encode_floor,
    floor_name,
    gone,
    read_settled,
    record_name,
    restless,
    settled,
    sort_names,
)
from epochal.checkpoints.rules import check_compaction, check_order, epoch_of, is_free
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK)


class FilesLog:
    """Satisfies :class:`~epochal.checkpoints.log.EpochLog`; a folder that does not exist is an empty log.

    ``folder``: a local path.
    ``disk``: what its files are made with; for tests.
    """

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
            names = settled(self._list, self.describe())
            if not is_free(position, floor=names.floor, end=names.end, where=self.describe()):
                return False
            self._make_folder()
            epoch = epoch_of(record)
            before = partial(failpoints.hit, Point.LOG_BEFORE_APPEND, epoch=epoch)
            with self._created(record_name(position), encode(record), before) as created:
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
            with self._created(floor_name(floor), encode_floor(floor, kept)):
                failpoints.hit(Point.LOG_AFTER_FLOOR)
            self._delete_below(floor)

    # --- reading --------------------------------------------------------------------------------

    def _read(self) -> tuple[LogPosition, list[Entry]]:
        where = self.describe()
        names, entries = read_settled(self._list, lambda name: self._disk.read(self._path(name)), self._path, where)
        check_order(names.records, names.floor, where)
        if names.floors or names.records:
            self._disk.sync_folder(self._folder)
        return names.floor, entries

    def _list(self) -> Names:
        try:
            found = self._disk.list(self._folder)
        except FileNotFoundError:
            if self._made:
                raise gone(self.describe()) from None
            return Names()
        return sort_names(found, self.describe())

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
            path = self._path(draft_name(name))
            handle = self._disk.create(path)
            try:
                if self._claim(handle):
                    return path, handle
            except OSError:
                self._disk.close(handle)
                raise
            self._disk.close(handle)
        raise restless(self.describe())

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
        return self._list().ends_with(position)

    def _delete_below(self, floor: LogPosition) -> None:
        names = self._list()
        for record in (p for p in names.records if p < floor):
            self._unlink(record_name(record))
        for older in (p for p in names.floors if p < floor):
            self._unlink(floor_name(older))
        for temporary in names.drafts:
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

    def _without_links(self, error: OSError) -> Misconfigured:
        return Misconfigured(
            f"the file system of the epoch log {self.describe()} has no hard links: {error}",
            help="put the checkpoint on a local disk with hard links (ext4, xfs, btrfs, apfs)",
        )
