"""Which points of the protocol a pipeline reaches, so that a strike can wait there."""

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
    """The points that a pipeline of ours reaches.

    ``losing``: sinks whose prepared rows the kit can delete, so that the points of a redo are reached.
    ``idempotent``: nothing is copied, decided or redone.  Then ``applied`` are the sinks that get rows without a vote.
    """

    sinks: Sequence[str]
    losing: Sequence[str] = ()
    idempotent: bool = False
    applied: Sequence[str] = ()

    def reaches(self, point: Point, sink: str = "") -> bool:
        """Return whether the pipeline reaches the point, in that sink if one is named."""
        if point in DECIDING:
            return not self.idempotent and (bool(self.losing) or point not in IN_A_REDO)
        if point in APPLYING:
            return self.idempotent
        return not (point in VOTING and sink in self.applied)
