"""Reads the sinks' own audit of the epochs that they show, page by page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from epochal.coordinator.model.epoch import Position
from epochal.sinks.epochs import ShownEpoch
from epochal.sinks.protocol import AuditedSink

PAGE = 2_000
"""Number of epochs in memory at once: each of them carries the text of its offsets."""


def pages(sink: AuditedSink, app: str, last: Position | None = None) -> Iterator[Sequence[ShownEpoch]]:
    """Yield all epochs up to position ``last``: the newest page first, and the oldest epoch of each page first."""
    while last is None or last > 0:
        page = sink.epochs(app, last=last, limit=PAGE).rows
        if not page:
            return
        yield page
        last = page[0].position - 1


def age(epoch: ShownEpoch) -> float:
    """Return the seconds since the epoch was committed.  It compares two clocks, so it is only for people to read."""
    return max(0.0, time.time() - epoch.committed_at.timestamp())
