"""Change the files of a checkpoint as a backup, a script or a person might: restore, roll back, copy, delete parts.

Each operation works on a checkpoint on a local disk that no query uses.  A query cannot always continue from the
result.  It may refuse to start with a named error, and then the campaign puts the old files back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from epochal.chaos.strike.nemesis import NotCounted
from epochal.chaos.strike.replay import epochs, replay_last_epoch

ROLLED_BACK = 2
"""How many epochs :func:`roll_back` takes from Spark; more than a crash can take away."""


def log_of(checkpoint: Path) -> Path:
    """Return the folder of the default epoch log, which may not exist."""
    return checkpoint / "epochal" / "log"


def forget(folder: Path, epoch: int) -> None:
    """Delete one entry of Spark's log in ``folder``, and its checksum, which would disturb Spark without the entry."""
    (folder / str(epoch)).unlink()
    (folder / f".{epoch}.crc").unlink(missing_ok=True)


def roll_back(checkpoint: Path) -> None:
    """Delete Spark's newest two epochs and keep Epochal's files.  Raises NotCounted if there are no older epochs."""
    offsets, commits = checkpoint / "offsets", checkpoint / "commits"
    planned = epochs(offsets)
    if len(planned) <= ROLLED_BACK:
        raise NotCounted(f"only epochs {planned} were planned: nothing to roll back to")
    for epoch in planned[-ROLLED_BACK:]:
        forget(offsets, epoch)
    for epoch in [epoch for epoch in epochs(commits) if epoch >= planned[-ROLLED_BACK]]:
        forget(commits, epoch)


def forget_log(checkpoint: Path) -> None:
    """Delete the epoch log and keep the rest.  Raises NotCounted if there is no log."""
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
"""Action -> its operation.  ``restore`` and ``copy`` need a second checkpoint and use the functions below."""


def records(checkpoint: Path) -> list[str]:
    """Return the names of the files of the epoch log; none if there is no log."""
    log = log_of(checkpoint)
    return sorted(str(file.relative_to(log)) for file in log.glob("**/*") if file.is_file())


def keep(checkpoint: Path, at: Path) -> None:
    """Copy the whole checkpoint to ``at``, file by file as a backup does.  An older copy there is replaced."""
    shutil.rmtree(at, ignore_errors=True)
    shutil.copytree(checkpoint, at)


def put_back(checkpoint: Path, kept: Path) -> None:
    """Replace the checkpoint by the copy."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    shutil.copytree(kept, checkpoint)
