"""What happens to the files of a checkpoint outside of Spark: restored, rolled back, copied, lost in part.

Each operation works on a checkpoint on a local disk that no query uses.  What a backup, a script or a person has
done is not always something a query can go on from: it may refuse by name, and then the old files are put back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from epochal.chaos.strike.nemesis import NotCounted
from epochal.chaos.strike.replay import epochs, replay_last_epoch

ROLLED_BACK = 2
"""Epochs that Spark has forgotten after :func:`roll_back`, more than a crash can take away."""


def log_of(checkpoint: Path) -> Path:
    """Where the default epoch log lies; it need not be there."""
    return checkpoint / "epochal" / "log"


def forget(folder: Path, epoch: int) -> None:
    """One file of a log of Spark's, and the checksum beside it, without which Spark would trip over the rest."""
    (folder / str(epoch)).unlink()
    (folder / f".{epoch}.crc").unlink(missing_ok=True)


def roll_back(checkpoint: Path) -> None:
    """Spark's own files are older than all the rest by two epochs; what Epochal keeps beside them stays."""
    offsets, commits = checkpoint / "offsets", checkpoint / "commits"
    planned = epochs(offsets)
    if len(planned) <= ROLLED_BACK:
        raise NotCounted(f"only epochs {planned} were planned: nothing to roll back to")
    for epoch in planned[-ROLLED_BACK:]:
        forget(offsets, epoch)
    for epoch in [epoch for epoch in epochs(commits) if epoch >= planned[-ROLLED_BACK]]:
        forget(commits, epoch)


def forget_log(checkpoint: Path) -> None:
    """Somebody deleted the decisions and kept the rest."""
    log = log_of(checkpoint)
    if not log.exists():
        raise NotCounted(f"there is no epoch log below {checkpoint}")
    shutil.rmtree(log)


OPERATIONS: Mapping[str, Callable[[Path], object]] = {
    "replay": replay_last_epoch,
    "roll-back": roll_back,
    "forget-log": forget_log,
    "delete": shutil.rmtree,
}
"""By the action's name.  ``restore`` and ``copy`` need another checkpoint: see the functions below."""


def records(checkpoint: Path) -> list[str]:
    """The names of the files of the epoch log; none where there is no log."""
    log = log_of(checkpoint)
    return sorted(str(file.relative_to(log)) for file in log.glob("**/*") if file.is_file())


def keep(checkpoint: Path, at: Path) -> None:
    """A whole copy, taken file by file as a backup takes it; an older one there is replaced."""
    shutil.rmtree(at, ignore_errors=True)
    shutil.copytree(checkpoint, at)


def put_back(checkpoint: Path, kept: Path) -> None:
    """The copy takes the checkpoint's place."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    shutil.copytree(kept, checkpoint)
