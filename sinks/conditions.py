"""The conditions of a sink's writes, as pure functions of what the sink holds and what the caller asks for.

``protocol.py`` lists the three conditions of every atomic write.  Each sink reads its fence and marker in its own
way, under its own lock.  Only this file decides what fence and marker mean, and words the errors about them.
This file also decides what an abort may drop, and which names an app or a sink may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from epochal.coordinator.model.epoch import (
    NAME,
    UNKNOWN_DECISION,
    Actor,
    Committable,
    Digest,
    Epoch,
    EpochNumber,
    Marker,
    Position,
)
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    Fenced,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
    PrepareRefused,
)

T = TypeVar("T")


class Held(Protocol):
    """The newest fence and the newest marker of a sink."""

    @property
    def fence(self) -> Actor | None: ...

    @property
    def marker(self) -> Marker | None: ...


@dataclass(frozen=True)
class Conditions:
    """The conditions of one sink.  ``where`` says in error messages where its fence and marker are stored."""

    sink: str
    where: str

    def check_fence(self, held: Held, by: Actor) -> bool:
        """Raise ``Fenced`` unless ``by`` may set its fence; return True if the fence is already that of ``by``.

        The caller sets the fence under the same lock: together this is a compare-and-set.
        """
        fence = held.fence
        if fence is not None and fence != by and fence.generation >= by.generation:
            raise self._fenced(held, by)
        return fence == by

    def check_owner(self, held: Held, by: Actor, epoch: EpochNumber | None = None) -> None:
        """Check the first condition: raise ``Fenced`` unless the fence is that of ``by``."""
        if held.fence != by:
            raise self._fenced(held, by, epoch)

    def check_prepare(self, held: Held, by: Actor, wanted: Marker, epoch: EpochNumber) -> None:
        """Check the first and the third condition.  An epoch that is already visible is never prepared again."""
        self.check_owner(held, by, epoch)
        self._check_one_before(held, by, wanted, epoch)

    def already_committed(
        self, held: Held, by: Actor, wanted: Marker, epoch: EpochNumber, before: Position | None = None
    ) -> bool:
        """Check all three conditions, in their order; return False if the sink must write, with ``wanted`` as marker.

        True means: the marker is already ``wanted``, and nothing may be written.  A marker with this decision at
        another position does not prove that, and a write would repeat the rows: ``CheckpointMismatch``.
        ``before``: the position that the marker must have; by default one less than the position of ``wanted``.
        """
        self.check_owner(held, by, epoch)
        if held.marker == wanted:
            return True
        self._check_one_before(held, by, wanted, epoch, before)
        return False

    def check_digest(self, found: Digest, agreed: Digest | None, epoch: EpochNumber) -> None:
        """Raise ``NonDeterministicReplay`` unless this evaluation gave the same rows as every other evaluation."""
        if agreed is not None and found != agreed:
            raise NonDeterministicReplay.between(
                {self.sink: found, "the evaluation before it": agreed},
                sink=self.sink,
                epoch=epoch,
                state=f"{self.where}: nothing of this evaluation was written",
            )

    def _check_one_before(
        self, held: Held, by: Actor, wanted: Marker, epoch: EpochNumber, before: Position | None = None
    ) -> None:
        found = held.marker if held.marker is not None else Marker(0, UNKNOWN_DECISION)
        before = before if before is not None else wanted.position - 1
        if found.position < before:
            raise MarkerLost(
                f"the marker stands at position {found.position}, but position {wanted.position} was to be written",
                sink=self.sink,
                epoch=epoch,
                state=self._state(held, by, wanted),
                help="restore the sink to what the epoch log says it showed; nothing was written",
            )
        if found.position > before or found.decision == wanted.decision:
            shown = "this decision at " if found.decision == wanted.decision else ""
            raise CheckpointMismatch(
                f"position {wanted.position} was to be written, and the sink shows {shown}position {found.position}",
                sink=self.sink,
                epoch=epoch,
                state=self._state(held, by, wanted),
                help="run one query per app and sink; nothing was written",
            )

    def _fenced(self, held: Held, by: Actor, epoch: EpochNumber | None = None) -> Fenced:
        taken_over = held.fence is not None and held.fence.generation >= by.generation
        return Fenced(
            f"the sink is owned by {held.fence or 'nobody'}, not by {by}",
            sink=self.sink,
            epoch=epoch,
            state=self._state(held, by),
            help="another start of this query has taken over: let this one end, or stop the other and restart this"
            if taken_over
            else "the sink's bookkeeping was deleted or restored from an older state: restore it",
        )

    def _state(self, held: Held, by: Actor, wanted: Marker | None = None) -> str:
        asked = f"{wanted}, by {by}" if wanted is not None else f"by {by}"
        return f"{self.where}: fence {held.fence or 'none'}, marker {held.marker or 'none'}; asked: {asked}"


def marker_of(work: Epoch | Committable) -> Marker:
    """Return the marker that the sink holds once ``work`` is visible."""
    return Marker(work.position, work.decision.id, work.digest if isinstance(work, Committable) else None)


def may_drop(owner: Actor, by: Actor) -> bool:
    """Return whether ``by`` may drop what ``owner`` prepared: its own work, and that of lower generations."""
    return owner == by or owner.generation < by.generation


@contextmanager
def refusing(sink: str, epoch: EpochNumber) -> Iterator[None]:
    """Turn ``Misconfigured`` inside this scope into ``PrepareRefused`` of the epoch.

    For checks that passed at the start and fail now, before anything was written.
    """
    try:
        yield
    except Misconfigured as error:
        raise PrepareRefused(error.what, sink=sink, epoch=epoch, state=error.state, help=error.help) from error


@contextmanager
def before_the_decision(sink: str, epoch: Epoch) -> Iterator[None]:
    """Turn ``CommitInDoubt`` about the durable copy into ``PrepareRefused``, unless the epoch is decided already.

    Whoever reads a copy cannot know whether its epoch is decided, and whoever prepares knows it.
    """
    try:
        yield
    except CommitInDoubt as unreadable:
        if epoch.decision.redo:
            raise
        raise PrepareRefused(
            f"the durable copy was changed before the vote: {unreadable.what}",
            sink=sink,
            epoch=epoch.number,
            state=f"{unreadable.state}; nothing of the epoch was decided",
            help="restart the query: the epoch is evaluated again; if it happens again, find out what changes files of"
            " the checkpoint",
        ) from unreadable


def check_above_zero(sink: str, **given: float | None) -> None:
    """Raise ``Misconfigured`` for the first argument that is not above 0.  None means: it was not given."""
    for name, value in given.items():
        if value is not None and not value > 0:
            raise Misconfigured(
                f"{name}={value!r} is not above 0", sink=sink, help=f"give {name}= a number above 0, or leave it out"
            )


def check_name(what: str, name: object, sink: str | None = None) -> None:
    """Raise ``Misconfigured`` unless ``name`` is a valid name of an app, a sink or a frame.

    ``what``: the user's word for it, for the message.
    """
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise Misconfigured(
            f"{what} {name!r} is not of the form {NAME.pattern}",
            sink=sink,
            help="choose a plain name that stays the same over restarts; name= sets the name of a sink",
        )


def check_frame(frame: str | None, sink: str) -> str | None:
    """Return the name that a user passed as ``frame=``; raise ``Misconfigured`` for one that no frame can have."""
    if frame is not None:
        check_name("frame", frame, sink)
    return frame


def looked(found: T | None, sink: str) -> T:
    """Return what ``look`` found; raise ``Misconfigured`` if ``look`` was not called before."""
    if found is None:
        raise Misconfigured("used before look", sink=sink, help="call look(query) first")
    return found
