"""Deletes prepared rows that are not decided, durable copies that no epoch needs, and obsolete records of the log."""

from __future__ import annotations

from epochal.coordinator.model.events import Step
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol.history import History
from epochal.coordinator.protocol.start import Start


def abort_all(start: Start) -> None:
    """Delete all prepared rows in every sink.  Call this only while none of them is decided."""
    hit(Point.BEFORE_ABORT)
    start.each(lambda sink: start.patiently(lambda: sink.abort(start.query, start.me)))
    hit(Point.AFTER_ABORT)


def abort_quietly(start: Start) -> None:
    """Abort, but only report an error of the abort, because the caller already raises another one.

    The next start aborts what is left (presumed abort).
    """
    try:
        abort_all(start)
    except Exception as error:
        start.publisher.postponed("could not drop prepared rows, the next start will", error)


def clean(start: Start) -> None:
    """Delete the durable copies that no epoch needs, also those that dead starts left, and compact the log."""
    hit(Point.BEFORE_CLEAN)
    try:
        if start.stage is not None and (start.copies or start.copies_left):
            needed = start.history.needed_copies()
            start.stage.clean(start.me, needed)
            start.copies_left = bool(needed)
        compact(start)
    except Exception as error:  # nothing that readers see depends on the clean-up, and the next epoch tries again
        start.publisher.postponed("could not clean up after epoch, will try again", error)


def compact(start: Start) -> None:
    """Delete the obsolete records of the log if there are at least ``compact_every`` of them."""
    floor, kept = start.history.compaction()
    if sum(1 for e in start.history.entries if e.position < floor) - len(kept) < start.compact_every:
        return
    hit(Point.BEFORE_COMPACT)
    with start.publisher.step(Step.COMPACT):
        start.log.compact(floor, kept)
    start.history = History((*kept, *(e for e in start.history.entries if e.position >= floor)))
    hit(Point.AFTER_COMPACT)
