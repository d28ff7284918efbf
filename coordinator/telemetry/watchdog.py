"""Warns of a step that stands still: for a minute, no task of the query has ended and no row was counted.

Some epochs never end and raise no error, because Spark waits for a worker process or for a server.  Then the only sign
is that nothing moves.  The watchdog says so once, and again each time the pause has doubled.  It ends no step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from epochal.coordinator.model.events import EpochCommitted, Event, Failed, Step, StepBegan, StepEnded
from epochal.coordinator.model.log_keys import extra

QUIET_S = 60.0
"""How many seconds nothing may move before the watchdog says so."""
EVERY_S = 10.0
"""Seconds between two questions to Spark.  Executors send it the counts of running tasks as often (heartbeats)."""

_log = logging.getLogger("epochal")


@dataclass(frozen=True)
class TaskProgress:
    """How far the query's tasks are.  ``counts`` stay equal as long as nothing moves; ``text`` is for people."""

    counts: Hashable
    text: str


class Tell(Protocol):
    """Publishes what was found (``EventPublisher.stalled``)."""

    def __call__(self, step: Step, sink: str | None, seconds: float, seen: str, runs: Callable[[], bool]) -> None: ...


class Watchdog:
    """A consumer of events that knows which steps run.  While one runs, a thread asks how far the tasks are."""

    def __init__(self, look: Callable[[], TaskProgress], tell: Tell) -> None:
        self._look, self._tell = look, tell
        self._steps: list[tuple[Step, str | None]] = []  # the oldest first
        self._changes = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __call__(self, event: Event) -> None:
        with self._lock:
            idle = not self._steps
            match event:
                case StepBegan():
                    self._steps.append((event.step, event.sink))
                case StepEnded() if (event.step, event.sink) in self._steps:
                    self._steps.remove((event.step, event.sink))
                case Failed() | EpochCommitted():
                    self._steps.clear()
                case _:
                    return
            self._changes += 1
            if idle and self._steps:
                self._over = threading.Event()
                # Nobody joins the thread when the step ends: it may publish at that moment, and so wait for this call.
                threading.Thread(target=self._watch, args=[self._over], name="epochal-watchdog", daemon=True).start()
            elif not self._steps:
                self._over.set()

    def _watch(self, over: threading.Event) -> None:
        """Ask how far the tasks are until ``over`` is set, and tell when the answer stays the same for too long."""
        seen: Hashable = None
        since, patience = time.monotonic(), QUIET_S
        while not over.wait(EVERY_S):
            try:
                progress = self._look()
            except Exception as error:  # for example because Spark stops: then the step itself fails and says why
                _log.debug(
                    "the watchdog cannot see how far the tasks are: %s", error, extra=extra(error=type(error).__name__)
                )
                return
            with self._lock:
                now = (self._changes, progress.counts)
                step, sink = self._steps[0] if self._steps else (None, None)
            if now != seen or step is None:
                seen, since, patience = now, time.monotonic(), QUIET_S
                continue
            quiet = time.monotonic() - since
            if quiet >= patience:
                self._tell(step, sink, quiet, progress.text, partial(self._runs, step, sink, over))
                patience = 2 * quiet

    def _runs(self, step: Step, sink: str | None, over: threading.Event) -> bool:
        with self._lock:
            return not over.is_set() and (step, sink) in self._steps
