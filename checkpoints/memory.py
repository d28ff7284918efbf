"""The reference implementation of an epoch log.  It is thread safe, and exists only in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from epochal.checkpoints.log import Entry, LogPosition, Record, decode, encode
from epochal.checkpoints.rules import check_compaction, epoch_of, is_free
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import OutcomeUnknown
from epochal.coordinator.model.failpoints import AnswerDropped, Point


class MemoryLog:
    """Implements :class:`~epochal.checkpoints.log.EpochLog`.  Each record is encoded to JSON and decoded again."""

    def __init__(self, name: str = "log") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._floor: LogPosition = 0
        self._entries: tuple[Entry, ...] = ()

    def read(self) -> Sequence[Entry]:
        """See :meth:`EpochLog.read`."""
        return self._entries

    def append(self, position: LogPosition, record: Record) -> bool:
        """See :meth:`EpochLog.append`."""
        entry = Entry(position, decode(encode(record), self.describe()))
        failpoints.hit(Point.LOG_BEFORE_APPEND, epoch=epoch_of(record))
        with self._lock:
            end = self._entries[-1].position + 1 if self._entries else 0
            if not is_free(position, floor=self._floor, end=end, where=self.describe()):
                return False
            self._entries = (*self._entries, entry)
        try:
            failpoints.hit(Point.LOG_AFTER_APPEND, epoch=epoch_of(record))
        except AnswerDropped as lost:
            raise OutcomeUnknown(
                f"{self.describe()}: the answer to the append at position {position} was lost",
                help="repeat the same append at the same position",
            ) from lost
        return True

    def compact(self, floor: LogPosition, kept: Sequence[Entry]) -> None:
        """See :meth:`EpochLog.compact`."""
        with self._lock:
            if floor <= self._floor:
                return
            check_compaction(self._entries, floor, kept)
            self._floor = floor
            self._entries = (*kept, *(e for e in self._entries if e.position >= floor))
        failpoints.hit(Point.LOG_AFTER_FLOOR)

    def copy(self) -> MemoryLog:
        """Return a separate log with the same content, like the log of a copied checkpoint."""
        twin = MemoryLog(self._name)
        with self._lock:
            twin._floor, twin._entries = self._floor, self._entries
        return twin

    def describe(self) -> str:
        """See :meth:`EpochLog.describe`."""
        return f"memory:{self._name}"
