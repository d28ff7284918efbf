"""Versions of what a sink writes down: of a newer one nothing is guessed.

A vote's payload, and each part of it that has a form of its own, says its version; so does what holds fence and
marker.  A form that older ones cannot read gets the next number, and ``tests/real/sinks/formats`` a file that is
read from then on.
"""

from __future__ import annotations

from epochal.coordinator.model.epoch import Committable, EpochNumber
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured


def check_vote(c: Committable, known: int) -> None:
    """``CommitInDoubt`` where a newer Epochal has prepared the epoch; a payload without a version is of the first."""
    check_part("committable", int(c.payload.get("version", 1)), known, c.sink, c.decision.epoch)


def check_part(what: str, found: int, known: int, sink: str, epoch: EpochNumber | None = None) -> None:
    """``CommitInDoubt`` for a part of a vote, ``what``, that a newer Epochal wrote."""
    if found > known:
        raise CommitInDoubt(
            f"the epoch was prepared by a newer Epochal: its {what} is of version {found}",
            sink=sink,
            epoch=epoch,
            state=f"this one reads up to version {known}; nothing was written",
            help="start the query with the newer Epochal: it will finish this epoch first",
        )


def check_marker(where: str, found: int, known: int, sink: str) -> None:
    """``Misconfigured`` where a newer Epochal has kept fence and marker ``where``."""
    if found > known:
        raise Misconfigured(
            f"a newer Epochal has run this sink: its fence and marker are of version {found}",
            sink=sink,
            state=f"{where}; this one reads up to version {known}, and has written nothing",
            help="start the query with the newer Epochal, or give the sink another name= and another place to write to",
        )
