"""What became of a struck epoch, judged from the epoch log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit, Fence

COMMITTED = "committed"
ABORTED = "aborted"
REPLAYED = "written again"
LOG_FOLDER = "epochal/log"


def from_log(checkpoint: Path, epoch: int) -> Callable[[], str]:
    """Called when the victim is dead; the answer tells, once the epoch is done, whose rows are shown.

    Committed: those that the start prepared which was struck.  Aborted: those of a later start, which
    dropped what it found.
    """
    log = FilesLog(checkpoint / LOG_FOLDER)
    struck = [entry.record.actor for entry in log.read() if isinstance(entry.record, Fence)][-1]

    def outcome() -> str:
        decisions = [e.record.decision for e in log.read() if isinstance(e.record, Commit) and e.record.epoch == epoch]
        return COMMITTED if decisions[-1].actor == struck else ABORTED

    return outcome


def replayed(epoch: int) -> Callable[[], str]:  # noqa: ARG001
    """A job that keeps no decisions can only write the epoch again."""
    return lambda: REPLAYED
