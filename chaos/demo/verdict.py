"""What recovery did with a struck epoch, judged from the epoch log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit, EpochLog, Fence

COMMITTED = "committed"
ABORTED = "aborted"
REPLAYED = "written again"
LOG_FOLDER = "epochal/log"


def from_log(checkpoint: Path, epoch: int) -> Callable[[], str]:
    """Return a function that says, after the epoch is done, whose rows are shown.  Call this when the victim is dead.

    It returns *committed* if the rows are those that the struck start prepared.  It returns *aborted* if they are those
    of a later start, which dropped what it found.
    """
    return in_log(FilesLog(checkpoint / LOG_FOLDER), epoch)


def in_log(log: EpochLog, epoch: int) -> Callable[[], str]:
    """Return the same as :func:`from_log`, for a log that lies elsewhere."""
    struck = [entry.record.actor for entry in log.read() if isinstance(entry.record, Fence)][-1]

    def outcome() -> str:
        decisions = [e.record.decision for e in log.read() if isinstance(e.record, Commit) and e.record.epoch == epoch]
        return COMMITTED if decisions[-1].actor == struck else ABORTED

    return outcome


def replayed(epoch: int) -> Callable[[], str]:  # noqa: ARG001
    """Return a function that always says *written again*, as a job without decisions can do nothing else."""
    return lambda: REPLAYED
