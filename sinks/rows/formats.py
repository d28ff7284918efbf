"""Versions of the formats that a sink stores.  A newer version than the known one is refused, never guessed.

The payload of a vote has a version.  Each part of the payload that has its own format has its own version.  The record
with fence and marker has a version too.  A format that older code cannot read gets the next number.  For each
version ``tests/real/sinks/formats`` keeps a file, which must stay readable.
"""

from __future__ import annotations

from epochal.coordinator.model.epoch import Committable, EpochNumber
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured


def check_vote(c: Committable, known: int) -> None:
    """Raise ``CommitInDoubt`` if a newer Epochal prepared the epoch.  A payload without a version has version 1."""
    check_part("committable", int(c.payload.get("version", 1)), known, c.sink, c.decision.epoch)


def check_part(what: str, found: int, known: int, sink: str, epoch: EpochNumber | None = None) -> None:
    """Raise ``CommitInDoubt`` if a newer Epochal wrote ``what``, a part of a vote."""
    if found > known:
        raise CommitInDoubt(
            f"the epoch was prepared by a newer Epochal: its {what} is of version {found}",
            sink=sink,
            epoch=epoch,
            state=f"this one reads up to version {known}; nothing was written",
            help="start the query with the newer Epochal: it will finish this epoch first",
        )


def check_marker(where: str, found: int, known: int, sink: str) -> None:
    """Raise ``Misconfigured`` if a newer Epochal wrote the fence and the marker at ``where``."""
    if found > known:
        raise Misconfigured(
            f"a newer Epochal has run this sink: its fence and marker are of version {found}",
            sink=sink,
            state=f"{where}; this one reads up to version {known}, and has written nothing",
            help="start the query with the newer Epochal, or give the sink another name= and another place to write to",
        )
