"""What the sinks' own audit says of the epochs that they show, read in pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from epochal.coordinator.model.epoch import Position
from epochal.sinks.epochs import ShownEpoch
from epochal.sinks.protocol import AuditedSink

PAGE = 2_000
"""Epochs that are held at once: each carries the text of its offsets."""


def pages(sink: AuditedSink, app: str, last: Position | None = None) -> Iterator[Sequence[ShownEpoch]]:
    """All epochs up to position ``last``, the newest page first, each page oldest first."""
    while last is None or last > 0:
        page = sink.epochs(app, last=last, limit=PAGE).rows
        if not page:
            return
        yield page
        last = page[0].position - 1


def age(epoch: ShownEpoch) -> float:
    """Seconds since it was committed, by two clocks; for people alone."""
    return max(0.0, time.time() - epoch.committed_at.timestamp())
