"""Failpoints: named places in production code where a fault can be made to happen.

The points are a closed enum with a member per protocol step and per sink step, so a typo is an ``AttributeError``.
While nothing is armed, a hit costs only a look at module variables.

Failpoints are armed by environment variables, which a process reads at its first hit, or in the process itself by
:func:`armed` and :func:`handler`::

    EPOCHAL_FAILPOINTS="after-decide:7=kill; in-write@postgres#2=barrier"
    EPOCHAL_FAILPOINTS_DIR=/some/folder

One rule is ``point[@sink][:epoch][#nth]=action``; the actions are

    raise        an ordinary exception (``FailpointError``)
    drop-answer  the request was applied, but the client loses the answer (``AnswerDropped``)
    kill         SIGKILL to this process
    stop         SIGSTOP to this process
    barrier      write ``<n>.blocked`` (JSON: pid, point, sink, epoch) and block until ``<n>.go`` exists
    sleep(SEC)   sleep that many seconds

With a folder, a rule strikes only once in all processes that share the folder: in the process that creates
``<n>.claimed`` first.  That process also writes ``<n>.blocked``, so a harness can see what was hit, and by whom.
The idea comes from gofail and fail-rs; the closed enum is ours.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


class Point(enum.Enum):
    """Where a fault can strike, in the order of the protocol."""

    # start
    BEFORE_LOOK = "before-look"
    AFTER_LOOK = "after-look"
    BEFORE_FENCE = "before-fence"
    AFTER_FENCE_RECORD = "after-fence-record"
    BEFORE_SINK_FENCE = "before-sink-fence"
    AFTER_SINK_FENCE = "after-sink-fence"
    AFTER_FENCE = "after-fence"
    AFTER_LOOK_AGAIN = "after-look-again"
    BEFORE_SETTLE = "before-settle"
    AFTER_SETTLE = "after-settle"
    # epoch
    AFTER_IDENTIFY = "after-identify"
    BEFORE_PREPARE = "before-prepare"
    AFTER_COPY = "after-copy"
    BEFORE_SINK_PREPARE = "before-sink-prepare"
    AFTER_SINK_PREPARE = "after-sink-prepare"
    AFTER_PREPARE = "after-prepare"
    BEFORE_DECIDE = "before-decide"
    AFTER_DECIDE = "after-decide"
    BEFORE_SINK_COMMIT = "before-sink-commit"
    AFTER_SINK_COMMIT = "after-sink-commit"
    AFTER_COMMIT = "after-commit"
    BEFORE_APPLY = "before-apply"  # idempotent mode: instead of before-decide, and before any sink
    AFTER_APPLY = "after-apply"
    BEFORE_CLEAN = "before-clean"
    BEFORE_RETURN = "before-return"
    # only in some runs
    BEFORE_ABORT = "before-abort"
    AFTER_ABORT = "after-abort"
    BEFORE_REDO = "before-redo"
    AFTER_REDO_DECIDED = "after-redo-decided"
    BEFORE_MARK = "before-mark"  # an operator action writes a marker
    AFTER_MARK = "after-mark"
    BEFORE_OPERATOR = "before-operator"  # the record of an operator action
    AFTER_OPERATOR = "after-operator"
    BEFORE_COMPACT = "before-compact"
    AFTER_COMPACT = "after-compact"
    # inside a log
    LOG_BEFORE_APPEND = "log-before-append"
    LOG_AFTER_APPEND = "log-after-append"  # the record is applied, the caller has no answer yet
    LOG_AFTER_FLOOR = "log-after-floor"  # the floor is durable, nothing is deleted yet
    # inside a sink
    IN_WRITE = "in-write"  # in a task, between rows
    BEFORE_VOTE = "before-vote"  # rows are durable, the vote is not returned yet
    BEFORE_PUBLISH = "before-publish"  # inside the atomic write, before its commit request
    AFTER_PUBLISH = "after-publish"  # the write is applied, its answer is not seen yet
    # around a batch function that has no points of its own; only the chaos kit hits these
    BEFORE_CALL = "before-call"
    AT_ROW = "at-row"  # in a task, at a row of the source
    AFTER_JOB = "after-job"  # a job that the function started has ended
    AFTER_RETURN = "after-return"  # Spark has not written commits/N yet


class FailpointError(Exception):
    """What the action ``raise`` raises."""


class AnswerDropped(ConnectionError):
    """What the action ``drop-answer`` raises: the request was applied, its answer is lost."""


Handler = Callable[[Point, str, int], None]

_RULE = re.compile(
    r"(?P<point>[a-z-]+)(@(?P<sink>[A-Za-z0-9._-]+))?(:(?P<epoch>\d+))?(#(?P<nth>\d+))?"
    r"=(?P<action>raise|drop-answer|kill|stop|barrier|sleep\((?P<seconds>[0-9.]+)\))"
)
ENVIRONMENT = "EPOCHAL_FAILPOINTS"
FOLDER = "EPOCHAL_FAILPOINTS_DIR"


@dataclass
class _Rule:
    number: int
    point: Point
    sink: str | None
    epoch: int | None
    nth: int | None
    action: str
    seconds: float
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self, point: Point, sink: str, epoch: int) -> bool:
        if point is not self.point or self.sink not in (None, sink) or self.epoch not in (None, epoch):
            return False
        with self.lock:
            self.hits += 1
            return self.nth in (None, self.hits)


_rules: list[_Rule] | None = None  # None: the environment was not read yet
_handler: Handler | None = None


def parse(text: str) -> list[_Rule]:
    """Return the rules in ``text``.  Raise ``ValueError`` for an unknown point or action, or a malformed rule."""
    rules: list[_Rule] = []
    for number, part in enumerate(p.strip() for p in text.split(";") if p.strip()):
        match = _RULE.fullmatch(part)
        if match is None:
            raise ValueError(f"{ENVIRONMENT}: {part!r} is not point[@sink][:epoch][#nth]=action")
        epoch, nth = match["epoch"], match["nth"]
        rules.append(
            _Rule(
                number=number,
                point=Point(match["point"]),
                sink=match["sink"],
                epoch=int(epoch) if epoch else None,
                nth=int(nth) if nth else None,
                action=match["action"].partition("(")[0],
                seconds=float(match["seconds"] or 0),
            )
        )
    return rules


def hit(point: Point, sink: str = "", epoch: int = -1) -> None:
    """Say that production code is at ``point``, and run the armed action if there is one."""
    global _rules
    if _handler is not None:
        _handler(point, sink, epoch)
    if _rules is None:
        _rules = parse(os.environ.get(ENVIRONMENT, ""))
    for rule in _rules:
        if rule.strikes(point, sink, epoch) and _claim(rule):
            _act(rule, point, sink, epoch)


def is_armed(point: Point) -> bool:
    """Return whether a rule names ``point``: for code that must prepare something before the point can be hit."""
    global _rules
    if _rules is None:
        _rules = parse(os.environ.get(ENVIRONMENT, ""))
    return any(rule.point is point for rule in _rules)


@contextlib.contextmanager
def handler(handle: Handler) -> Iterator[None]:
    """Call ``handle(point, sink, epoch)`` at every hit in this process.  A hit raises what ``handle`` raises."""
    global _handler
    before, _handler = _handler, handle
    try:
        yield
    finally:
        _handler = before


@contextlib.contextmanager
def armed(text: str) -> Iterator[None]:
    """Arm the rules in ``text`` in this process while the ``with`` block runs."""
    global _rules
    before, _rules = _rules, parse(text)
    try:
        yield
    finally:
        _rules = before


def _claim(rule: _Rule) -> bool:
    folder = os.environ.get(FOLDER)
    if not folder:
        return True
    try:
        os.close(os.open(os.path.join(folder, f"{rule.number}.claimed"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _act(rule: _Rule, point: Point, sink: str, epoch: int) -> None:
    _tell(rule, point, sink, epoch)
    if rule.action == "raise":
        raise FailpointError(f"failpoint {point.value} (sink {sink!r}, epoch {epoch})")
    if rule.action == "drop-answer":
        raise AnswerDropped(f"failpoint {point.value} (sink {sink!r}, epoch {epoch}): answer dropped")
    if rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rule.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if rule.action == "sleep":
        time.sleep(rule.seconds)
    if rule.action == "barrier":
        _wait_for_go(rule)


def _tell(rule: _Rule, point: Point, sink: str, epoch: int) -> None:
    """Write ``<n>.blocked`` for the harness.  The rename makes the file appear complete or not at all."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    path = os.path.join(folder, f"{rule.number}.blocked")
    seen = {"pid": os.getpid(), "point": point.value, "sink": sink, "epoch": epoch, "action": rule.action}
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(seen, file)
    os.rename(f"{path}.tmp", path)


def _wait_for_go(rule: _Rule) -> None:
    folder = os.environ.get(FOLDER)
    if not folder:
        raise ValueError(f"the action barrier needs {FOLDER}")
    limit = time.monotonic() + 600
    while not os.path.exists(os.path.join(folder, f"{rule.number}.go")):
        if time.monotonic() > limit:
            raise FailpointError(f"failpoint {rule.point.value}: nobody said go within 600 s")
        time.sleep(0.01)
