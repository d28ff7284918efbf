"""Which steps of the protocol a pipeline goes through, so that a strike can wait there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochal.coordinator.model.failpoints import Point

DECIDING = frozenset(
    {Point.AFTER_COPY, Point.BEFORE_DECIDE, Point.AFTER_DECIDE, Point.BEFORE_REDO, Point.AFTER_REDO_DECIDED}
)
APPLYING = frozenset({Point.BEFORE_APPLY, Point.AFTER_APPLY})
VOTING = frozenset({Point.BEFORE_SINK_PREPARE, Point.BEFORE_VOTE, Point.AFTER_SINK_PREPARE})
IN_A_REDO = frozenset({Point.BEFORE_REDO, Point.AFTER_REDO_DECIDED})


@dataclass(frozen=True)
class Moments:
    """What a pipeline of ours goes through.

    ``losing``: sinks whose prepared rows can be lost, as often as it takes to reach the points of a redo.
    ``idempotent``: nothing is copied, decided or redone; ``applied`` are sinks that are given the rows without a vote.
    """

    sinks: Sequence[str]
    losing: Sequence[str] = ()
    idempotent: bool = False
    applied: Sequence[str] = ()

    def reaches(self, point: Point, sink: str = "") -> bool:
        """Whether there is such a moment."""
        if point in DECIDING:
            return not self.idempotent and (bool(self.losing) or point not in IN_A_REDO)
        if point in APPLYING:
            return self.idempotent
        return not (point in VOTING and sink in self.applied)
