"""An epoch log in a folder of a local disk; ``names.py`` says which files lie in it.

The promise "a position is never created twice, and an answer is never taken back" depends on these rules:

1. A name appears with its whole content: the writer writes a draft, syncs it, and links it to the name (``EEXIST`` if
   the name is taken).  While the writer lives it holds a lock on its draft.
2. No answer is given before the folder is synced, neither for a write nor for a read.
3. A floor is durable before anything below it is deleted.  Then the records are deleted, lowest first, and after them
   the older floors.  So if a listing misses a name, other names in it still show that the log was not empty.
4. After its link an append lists the folder.  If the listing has something higher, or if the appended name is gone
   again, then a compaction or another start was faster, and the answer is "taken".

Why rule 4 suffices: suppose that the position was below a floor at the time of the link.  Then the listing has that
floor, unless a later compaction deleted it meanwhile.  But that compaction deletes the new record first, so the
appended name is gone.  A listing need not be a snapshot.  So a reader lists again after it has read, until two
listings agree.  Two listings that agree can be wrong in one case only: during each of them, compactions removed
everything that the reader could have seen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from epochal.checkpoints import filesystem
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
    settled,
    sort_names,
    still_changing,
)
from epochal.checkpoints.rules import check_compaction, check_order, epoch_of, is_free
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.errors import OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point


class FilesLog:
    """Implements :class:`~epochal.checkpoints.log.EpochLog`.  A folder that does not exist is an empty log.

    ``folder``: a local path.
    ``disk``: the file operations; only tests pass another object.
    """

    def __init__(self, folder: str | os.PathLike[str], *, disk: Disk | None = None) -> None:
        check_types(FilesLog.__init__.__annotations__, {"folder": folder})
        self._folder = os.path.abspath(folder)
        self._disk = disk if disk is not None else Disk()
        self._made = False

    @property
    def folder(self) -> str:
        return self._folder

    def describe(self) -> str:
        """See :meth:`EpochLog.describe`."""
        return f"files:{self._folder}"

    def read(self) -> Sequence[Entry]:
        """See :meth:`EpochLog.read`.  The returned entries are durable, also those of other writers."""
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
            self._sync_folder(self._folder)
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
        """Create the file ``name``, whole and durable, and give a handle on it; None if the name is taken."""
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
            self._sync_folder(self._folder)
            yield handle if linked else None
        finally:
            self._disk.close(handle)

    def _draft(self, name: str) -> tuple[str, int]:
        """Make a new temporary file; return its path and a handle that holds its lock."""
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
        raise still_changing(self.describe())

    def _claim(self, handle: int) -> bool:
        """Lock a new draft; return False if a compaction locked or deleted it first.

        In the moment before the lock a compaction takes the draft for that of a dead process.
        """
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
            filesystem.link(self._disk, temporary, path, self.describe())
        except FileExistsError:
            return False
        return True

    def _sync_folder(self, path: str) -> None:
        filesystem.sync_folder(self._disk, path, self.describe())

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
        self._sync_folder(self._folder)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another compaction was faster
            self._disk.unlink(self._path(name))

    def _unlink_if_dead(self, temporary: str) -> None:
        """Delete a draft if its writer is dead.

        A living process, even a stopped one, holds a lock on its draft; the lock ends when the process dies.
        """
        with contextlib.suppress(OSError):
            handle = self._disk.open(self._path(temporary))
            try:
                self._disk.claim(handle)
                self._disk.unlink(self._path(temporary))
            finally:
                self._disk.close(handle)

    def _make_folder(self) -> None:
        """Make the folder, and make its name durable, even if another process made the folder a moment ago.

        Then try out its file system.
        """
        if self._made:
            return
        self._make(self._folder)
        path = self._folder
        while not os.path.ismount(path):
            path = os.path.dirname(path)
            with contextlib.suppress(PermissionError):  # a folder that we may not read is not a new one
                self._sync_folder(path)
        filesystem.try_out(self._disk, *self._draft(record_name(0)), self.describe())
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
