"""Drops what is not decided, copies that nobody needs, and records that are obsolete."""

from __future__ import annotations

from epochal.coordinator.model.events import Step
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol.history import History
from epochal.coordinator.protocol.start import Start


def abort_all(start: Start) -> None:
    """Nothing of it is decided: drop all that is prepared."""
    hit(Point.BEFORE_ABORT)
    start.each(lambda sink: start.patiently(lambda: sink.abort(start.query, start.me)))
    hit(Point.AFTER_ABORT)


def abort_quietly(start: Start) -> None:
    """On the way out with another error; what is left the next start aborts (presumed abort)."""
    try:
        abort_all(start)
    except Exception as error:
        start.publisher.postponed("could not drop prepared rows, the next start will", error)


def clean(start: Start) -> None:
    """Drop copies that a durable record calls done, and what dead starts left; compact the log."""
    hit(Point.BEFORE_CLEAN)
    try:
        if start.stage is not None and (start.copies or start.copies_left):
            needed = start.history.needed_copies()
            start.stage.clean(start.me, needed)
            start.copies_left = bool(needed)
        compact(start)
    except Exception as error:  # nothing visible depends on it, and the next epoch tries again
        start.publisher.postponed("could not clean up after epoch, will try again", error)


def compact(start: Start) -> None:
    floor, kept = start.history.compaction()
    if sum(1 for e in start.history.entries if e.position < floor) - len(kept) < start.compact_every:
        return
    hit(Point.BEFORE_COMPACT)
    with start.publisher.step(Step.COMPACT):
        start.log.compact(floor, kept)
    start.history = History((*kept, *(e for e in start.history.entries if e.position >= floor)))
    hit(Point.AFTER_COMPACT)
