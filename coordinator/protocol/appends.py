"""Appends to the epoch log.  An append is repeated, with the same record and position, until the log answers."""

from __future__ import annotations

from epochal.checkpoints.log import Commit, Entry, Fence, LogPosition, Record, encode
from epochal.coordinator.model.errors import (
    CommitInDoubt,
    EpochalError,
    Fenced,
    LogCorrupt,
    Misconfigured,
    OutcomeUnknown,
)
from epochal.coordinator.protocol.start import Start


def append(start: Start, position: LogPosition, record: Record) -> None:
    """Append the record at this position.  Raise ``Fenced`` if another start's record has taken the position.

    If the record may be in the log, raise ``CommitInDoubt`` for a ``Commit``, else ``OutcomeUnknown``.  This happens
    if the log does not answer, or if the position is taken and the log cannot be read to see by whom.
    """
    if not is_answered(start, position, record) and not is_mine(start, position, record):
        raise Fenced(
            f"position {position} of the epoch log holds another start's record",
            epoch=record.epoch,
            state=f"log {start.log.describe()}, own last position {start.own_position}",
            help="nothing to do if the other start is wanted; else stop it and restart this query",
        )
    start.own_position = position
    start.history = start.history.with_entry(Entry(position, record))


def is_answered(start: Start, position: LogPosition, record: Record) -> bool:
    for attempt in range(start.retry.attempts):
        try:
            return start.log.append(position, record)
        except Exception as error:
            if names_the_cause(record, error):
                raise
            start.publisher.retrying(error)
            last_error = error
            start.retry.pause(attempt)
    raise unanswered(start, position, record, last_error)


def names_the_cause(record: Record, error: Exception) -> bool:
    """Return whether to raise the log's own error.

    This is safe only for a ``Fence`` record: the start may end without knowing whether the record was written.
    """
    return isinstance(record, Fence) and isinstance(error, (Misconfigured, LogCorrupt))


def is_mine(start: Start, position: LogPosition, record: Record) -> bool:
    """Return whether the record at a taken position is exactly the one that this start wanted to append.

    If compaction has removed the record at that position, or the log cannot be read, the answer is unknown, and the
    error says so.
    """
    try:
        entries = start.patiently(start.log.read, also=(OSError,))
    except Exception as error:
        if names_the_cause(record, error):
            raise
        raise unanswered(start, position, record, error) from error
    for entry in entries:
        if entry.position == position:
            return encode(entry.record) == encode(record)
    raise unanswered(start, position, record, None)


def unanswered(start: Start, position: LogPosition, record: Record, error: Exception | None) -> EpochalError:
    what = f"whether the {record.kind} record at position {position} was written is not known"
    state = f"log {start.log.describe()}; last error: {error!r}"
    remedy = "make the log reachable again and restart: the next start reads what was decided and settles it"
    if isinstance(record, Commit):
        return CommitInDoubt(what, epoch=record.epoch, state=state, help=remedy)
    return OutcomeUnknown(what, epoch=record.epoch, state=state, help=remedy)
