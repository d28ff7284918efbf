"""The rules that all epoch logs share: which position may be appended, and which compactions are valid."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.checkpoints.log import Entry, LogPosition, Record
from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import LogCorrupt


def is_free(position: LogPosition, *, floor: LogPosition, end: LogPosition, where: str) -> bool:
    """Return True if ``position`` is the next one, False if it is taken or below the floor.

    ``LogCorrupt``: the append would leave a gap, so records were lost.
    """
    if position < 0:
        raise ValueError(f"a log position counts from 0, not {position}")
    if position > max(floor, end):
        raise LogCorrupt(
            f"{where} ends before position {max(floor, end)}, so {position} cannot be appended",
            state="records that this process has read or written are no longer there; nothing was appended",
            help="restore the epoch log from a backup of the checkpoint",
        )
    return position == max(floor, end)


def check_compaction(entries: Sequence[Entry], floor: LogPosition, kept: Sequence[Entry]) -> None:
    """Raise ``ValueError`` if ``kept`` has an entry that the log does not hold, or the floor lies above its end."""
    end = entries[-1].position + 1 if entries else 0
    if floor > end:
        raise ValueError(f"floor {floor} lies above the end of the log, {end}")
    held = {entry.position: entry.record for entry in entries if entry.position < floor}
    positions = [entry.position for entry in kept]
    if positions != sorted(set(positions)):
        raise ValueError(f"kept entries must ascend, not {positions}")
    for entry in kept:
        if held.get(entry.position) != entry.record:
            raise ValueError(f"the log holds no such record below floor {floor} at position {entry.position}")


def check_order(positions: Sequence[LogPosition], floor: LogPosition, where: str) -> None:
    """Raise ``LogCorrupt`` if a position from the floor on is missing: a gap is a record that was lost."""
    for expected, found in enumerate((p for p in positions if p >= floor), start=floor):
        if found != expected:
            raise LogCorrupt(
                f"{where} has no record at position {expected}, but one at {found}",
                state=f"floor {floor}, last position {positions[-1]}",
                help="restore the epoch log from a backup of the checkpoint",
            )


def epoch_of(record: Record) -> EpochNumber:
    """Return the epoch of a record, for a failpoint; -1 if the record belongs to no epoch."""
    return record.epoch if record.epoch is not None else -1
