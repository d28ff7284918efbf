"""Chooses the error that ends a start, and makes the errors of an epoch in doubt."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Fenced,
    MarkerLost,
    OutcomeUnknown,
)

NOT_CURED_BY_RESTART = (Fenced, MarkerLost, CheckpointMismatch)
"""Errors that a restart does not cure: another start owns the sink, or a sink is not what it was."""
_GRAVITY = (*NOT_CURED_BY_RESTART, CommitInDoubt)


def gravest(errors: Sequence[Exception]) -> Exception:
    """Return the error that matters most: first those that a restart does not cure, then doubt, then any other."""
    for kind in _GRAVITY:
        for error in errors:
            if isinstance(error, kind):
                return error
    return next((e for e in errors if isinstance(e, EpochalError)), errors[0])


def no_answer(sink: str, result: object) -> EpochalError:
    return OutcomeUnknown(
        f"commit answered {result!r}, which is no CommitOutcome",
        sink=sink,
        state="it is not known whether this sink shows the epoch",
        help="have the sink's commit return COMMITTED or ALREADY_COMMITTED",
    )


def lost_without_copy(epoch: EpochNumber) -> CommitInDoubt:
    return CommitInDoubt(
        f"epoch {epoch} is decided, its prepared rows are lost and there is no copy of them",
        epoch=epoch,
        state="nothing of it is visible, and nothing was recorded",
        help="restart the query, which evaluates the epoch again; then run the command again",
    )


def what_of(error: Exception) -> str:
    return error.what if isinstance(error, EpochalError) else f"{type(error).__name__}: {error}"


def remedy_of(error: Exception) -> str:
    return error.help if isinstance(error, EpochalError) else "cure the error that this message names"
