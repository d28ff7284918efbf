"""The menus: default lists of strikes.  The nemesis replaces their epochs."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.chaos.job import workloads
from epochal.chaos.job.moments import Moments
from epochal.chaos.strike.strikes import Strike
from epochal.coordinator.model.failpoints import Point

ROWS_SEEN_TWICE = workloads.ROWS // 2 + 4
"""A row number that a task reaches only while it evaluates its half of an epoch a second time."""

FOREIGN_MENU = (
    Strike("kill", "driver", Point.AFTER_RETURN, 0),
    Strike("kill", "driver", Point.AT_ROW, 0, nth=5),
    Strike("kill", "worker", Point.AT_ROW, 0, nth=7),
    Strike("kill", "driver", Point.AFTER_JOB, 0),
    Strike("kill", "driver", Point.AFTER_JOB, 0, nth=2),
    Strike("kill", "driver", Point.AFTER_JOB, 0, nth=3),
    Strike("kill", "driver", Point.AT_ROW, 0, nth=ROWS_SEEN_TWICE),
    Strike("kill", "driver", Point.BEFORE_CALL, 0),
    Strike("raise", "driver", Point.AFTER_RETURN, 0),
    Strike("raise", "worker", Point.AT_ROW, 0, nth=3),
    Strike("pause", "driver", Point.AFTER_JOB, 0),
    Strike("pause", "driver", Point.AT_ROW, 0, nth=4),
)
"""For any batch function: before its call, at rows inside tasks, after its jobs, and before ``commits/N``."""


def our_menu(of: Moments) -> tuple[Strike, ...]:
    """Return strikes for a pipeline: at every kind of moment in an epoch, in each of its sinks."""
    before, after = APPLYING_POINTS if of.idempotent else DECIDING_POINTS
    one = (
        Strike("kill", "driver", Point.AFTER_PREPARE, 0),
        Strike("kill", "driver", before, 0),
        Strike("kill", "driver", after, 0),
        Strike("kill", "driver", Point.BEFORE_RETURN, 0),
        Strike("pause", "driver", before, 0),
        Strike("raise", "driver", after, 0),
        Strike("kill", "worker", Point.AT_ROW, 0, nth=3),
    )
    each = (
        ("kill", Point.BEFORE_VOTE),
        ("kill", Point.BEFORE_PUBLISH),
        ("kill", Point.AFTER_PUBLISH),
        ("kill", Point.AFTER_SINK_COMMIT),
        ("pause", Point.BEFORE_PUBLISH),
    )
    return one + tuple(
        Strike(action, "driver", point, 0, sink)
        for sink in of.sinks
        for action, point in each
        if of.reaches(point, sink)
    )


DECIDING_POINTS = Point.BEFORE_DECIDE, Point.AFTER_DECIDE
APPLYING_POINTS = Point.BEFORE_APPLY, Point.AFTER_APPLY
"""The points before and after the record of an epoch is appended to the log."""

ANSWERED = frozenset({Point.AFTER_PUBLISH, Point.LOG_AFTER_APPEND})
"""Points where a request was applied, so that its answer can be lost."""

FOREIGN_ERRORS = (
    Strike("raise", "driver", Point.BEFORE_CALL, 0),
    Strike("raise", "worker", Point.AT_ROW, 0, nth=3),
    Strike("raise", "worker", Point.AT_ROW, 0, nth=ROWS_SEEN_TWICE),
    Strike("raise", "driver", Point.AFTER_RETURN, 0),
)
"""Faults in a batch function that need no second process."""


def our_errors(of: Moments) -> tuple[Strike, ...]:
    """Return the strikes of tier 3: an error at every point of a start, of an epoch and of each sink.

    Where an answer can be lost, the error is a lost answer.  Lost prepared rows are added.
    """
    one = (
        Point.BEFORE_LOOK,
        Point.AFTER_LOOK,
        Point.BEFORE_FENCE,
        Point.AFTER_FENCE_RECORD,
        Point.AFTER_FENCE,
        Point.AFTER_LOOK_AGAIN,
        Point.BEFORE_SETTLE,
        Point.AFTER_SETTLE,
        Point.BEFORE_ABORT,
        Point.AFTER_ABORT,
        Point.BEFORE_REDO,
        Point.AFTER_REDO_DECIDED,
        Point.BEFORE_COMPACT,
        Point.AFTER_COMPACT,
        Point.LOG_AFTER_FLOOR,
        Point.LOG_BEFORE_APPEND,
        Point.LOG_AFTER_APPEND,
        Point.AFTER_IDENTIFY,
        Point.BEFORE_PREPARE,
        Point.AFTER_COPY,
        Point.AFTER_PREPARE,
        Point.BEFORE_DECIDE,
        Point.AFTER_DECIDE,
        Point.BEFORE_APPLY,
        Point.AFTER_APPLY,
        Point.AFTER_COMMIT,
        Point.BEFORE_CLEAN,
        Point.BEFORE_RETURN,
        Point.BEFORE_CALL,
        Point.AFTER_RETURN,
        Point.AT_ROW,
    )
    each = (
        Point.BEFORE_SINK_FENCE,
        Point.AFTER_SINK_FENCE,
        Point.BEFORE_SINK_PREPARE,
        Point.IN_WRITE,
        Point.BEFORE_VOTE,
        Point.AFTER_SINK_PREPARE,
        Point.BEFORE_SINK_COMMIT,
        Point.BEFORE_PUBLISH,
        Point.AFTER_PUBLISH,
        Point.AFTER_SINK_COMMIT,
    )
    cells = [(point, "") for point in one] + [(point, sink) for sink in of.sinks for point in each]
    errors = [
        Strike("drop-answer" if point in ANSWERED else "raise", "driver", point, 0, sink)
        for point, sink in cells
        if of.reaches(point, sink)
    ]
    return (*errors, *losses(of.losing))


def losses(sinks: Sequence[str]) -> tuple[Strike, ...]:
    """Return strikes that delete what each sink prepared, after the decision, so that it must redo the rows."""
    return tuple(Strike("lose", "prepared", Point.BEFORE_SINK_COMMIT, 0, sink) for sink in sinks)


def checkpoint_menu(losing: Sequence[str]) -> tuple[Strike, ...]:
    """Return strikes around a driver of ours: on its checkpoint's files, on the disk below, on its prepared rows."""
    return (
        Strike("replay", "checkpoint", Point.BEFORE_CALL, 0),
        Strike("roll-back", "checkpoint", Point.AFTER_RETURN, 0),
        Strike("restore", "checkpoint", Point.AFTER_DECIDE, 0),
        Strike("forget-log", "checkpoint", Point.AFTER_COMMIT, 0),
        Strike("delete", "checkpoint", Point.AFTER_RETURN, 0),
        Strike("copy", "checkpoint", Point.BEFORE_DECIDE, 0),
        Strike("fill", "disk", Point.BEFORE_PREPARE, 0),
        Strike("fill", "disk", Point.BEFORE_DECIDE, 0),
        Strike("read-only", "disk", Point.BEFORE_DECIDE, 0),
        Strike("read-only", "disk", Point.AFTER_DECIDE, 0),
        *losses(losing),
    )


SERVER_MENU = (
    Strike("crash", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("crash", "kafka", Point.BEFORE_PUBLISH, 0, "kafka"),
    Strike("crash", "postgres", Point.AFTER_DECIDE, 0),
    Strike("crash", "kafka", Point.AFTER_DECIDE, 0),
    Strike("cut", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("cut", "kafka", Point.BEFORE_PUBLISH, 0, "kafka"),
    Strike("lose-answer", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("latency", "postgres", Point.BEFORE_DECIDE, 0),
    Strike("latency", "kafka", Point.AFTER_DECIDE, 0),
    Strike("half-open", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("slow-close", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("slow-close", "kafka", Point.BEFORE_PUBLISH, 0, "kafka"),
    Strike("pause", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("pause", "kafka", Point.BEFORE_PUBLISH, 0, "kafka"),
)
"""Crashes and pauses of the servers, and faults of the network in front of them."""

EXECUTOR_MENU = (
    Strike("kill", "executor", Point.IN_WRITE, 0, "postgres"),
    Strike("kill", "executor", Point.IN_WRITE, 0, "kafka"),
    Strike("kill", "worker", Point.IN_WRITE, 0, "postgres"),
    Strike("kill", "worker", Point.IN_WRITE, 0, "kafka"),
    Strike("pause", "executor", Point.IN_WRITE, 0, "postgres"),
    Strike("pause", "worker", Point.IN_WRITE, 0, "kafka"),
)
