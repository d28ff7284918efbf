"""The conditions of a sink's writes, as pure functions of what the sink holds and what is asked of it.

``protocol.py`` lists the three conditions of every atomic write.  Each sink reads its fence and marker in a
way of its own, under a guard of its own; what they then mean, and what is said of it, stands here alone.
So does what an abort may drop, and what an app or a sink may be called.
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
    Fenced,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
    PrepareRefused,
)

T = TypeVar("T")


class Held(Protocol):
    """What a sink holds: its newest fence and its newest marker."""

    @property
    def fence(self) -> Actor | None: ...

    @property
    def marker(self) -> Marker | None: ...


@dataclass(frozen=True)
class Conditions:
    """Those of one sink; ``where`` tells people where its fence and marker are kept."""

    sink: str
    where: str

    def check_fence(self, held: Held, by: Actor) -> bool:
        """Compare-and-set of a fence: ``Fenced`` unless ``by`` may take it; True: it is ``by``'s already."""
        fence = held.fence
        if fence is not None and fence != by and fence.generation >= by.generation:
            raise self._fenced(held, by)
        return fence == by

    def check_owner(self, held: Held, by: Actor, epoch: EpochNumber | None = None) -> None:
        """The first condition."""
        if held.fence != by:
            raise self._fenced(held, by, epoch)

    def check_prepare(self, held: Held, by: Actor, wanted: Marker, epoch: EpochNumber) -> None:
        """The first and the third: what is visible already is not prepared again."""
        self.check_owner(held, by, epoch)
        self._check_one_before(held, by, wanted, epoch)

    def already_committed(
        self, held: Held, by: Actor, wanted: Marker, epoch: EpochNumber, before: Position | None = None
    ) -> bool:
        """All three, in their order: False, write, with ``wanted`` as the marker.

        A marker of this decision at another position is no proof, and a write would repeat its rows.  ``before``: where
        the marker must stand if it is not one position before.
        """
        self.check_owner(held, by, epoch)
        if held.marker == wanted:
            return True
        self._check_one_before(held, by, wanted, epoch, before)
        return False

    def check_digest(self, found: Digest, agreed: Digest | None, epoch: EpochNumber) -> None:
        """``NonDeterministicReplay`` unless this evaluation gave the rows that every other one did."""
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
                f"the marker stands at position {found.position}, position {wanted.position} was to follow",
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
    """The marker that stands once ``work`` is visible."""
    return Marker(work.position, work.decision.id, work.digest if isinstance(work, Committable) else None)


def may_drop(owner: Actor, by: Actor) -> bool:
    """Whether ``by`` may drop what ``owner`` prepared: its own, and that of lower generations."""
    return owner == by or owner.generation < by.generation


@contextmanager
def refusing(sink: str, epoch: EpochNumber) -> Iterator[None]:
    """Set-up that has gone wrong since the start refuses the epoch: nothing was written yet."""
    try:
        yield
    except Misconfigured as error:
        raise PrepareRefused(error.what, sink=sink, epoch=epoch, state=error.state, help=error.help) from error


def check_above_zero(sink: str, **given: float | None) -> None:
    """``Misconfigured`` names an argument that has to be above 0; None: it was left out."""
    for name, value in given.items():
        if value is not None and not value > 0:
            raise Misconfigured(
                f"{name}={value!r} is not above 0", sink=sink, help=f"give {name}= a number above 0, or leave it out"
            )


def check_name(what: str, name: str, sink: str | None = None) -> None:
    """``Misconfigured`` unless an app or a sink can be called ``name``; ``what``: what the user knows it as."""
    if NAME.fullmatch(name) is None:
        raise Misconfigured(
            f"{what} {name!r} is not of the form {NAME.pattern}",
            sink=sink,
            help="choose a plain name that stays the same over restarts; a sink's is its name=",
        )


def looked(found: T | None, sink: str) -> T:
    """What ``look`` found, for the verbs that come after it."""
    if found is None:
        raise Misconfigured("used before look", sink=sink, help="call look(query) first")
    return found
