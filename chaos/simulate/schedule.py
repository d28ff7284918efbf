"""Schedules: which fault strikes which driver at which of its steps, and how all schedules are found.

Every step of a driver that can be struck is an *event*: a failpoint, a request on the network, or a step of Spark.  A
run without faults gives the list of events of the first driver.  A run with a fault at the k-th of them gives the
events of the second driver.  So schedules are found from events that really happen, and each fault is known to strike.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple


class Action(enum.Enum):
    """What happens at an event."""

    CRASH = "crash"  # the driver dies
    PAUSE = "pause"  # the driver stops until newer drivers have ended: it is a zombie
    DROP_ANSWER = "drop answer"  # at a failpoint right after an applied request: the answer is lost
    LOSE_PREPARED = "lose prepared"  # every voting sink loses what is prepared, and open transactions expire
    DELIVER_LATE = "deliver late"  # the late requests arrive now
    # at a request:
    UNAVAILABLE = "unavailable"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    LATE = "late"


NETWORK = (Action.UNAVAILABLE, Action.REQUEST_LOST, Action.ANSWER_LOST, Action.LATE)


class Happening(NamedTuple):
    """One event of a driver, at which a fault can strike."""

    driver: str
    number: int  # counts up per driver, from 0
    kind: str  # "hit", "request" or "spark"
    step: str
    sink: str = ""
    epoch: int = -1
    touches: int = 0  # how often drivers read or wrote anything shared or durable before this event


class Strike(NamedTuple):
    """Do ``action`` at event ``number`` of ``driver``."""

    driver: str
    number: int
    action: Action

    def __str__(self) -> str:
        return f"{self.action.value} at event {self.number} of {self.driver}"


Schedule = tuple[Strike, ...]


def strikes(events: Sequence[Happening], driver: str, action: Action) -> list[Strike]:
    """Return strikes of ``action`` at every event of ``driver`` where it can happen."""
    return [Strike(driver, e.number, action) for e in events if e.driver == driver and fits_action(e, action)]


def representatives(events: Sequence[Happening], found: Sequence[Strike]) -> list[Strike]:
    """Return one strike of each group of equal events.

    Between the events of a group nothing shared or durable was read or written.  So nobody else can see at which event
    of the group the driver crashed or paused.
    """
    touches = {(e.driver, e.number): e.touches for e in events}
    groups: dict[tuple[Action, int], Strike] = {}
    for strike in found:
        groups.setdefault((strike.action, touches[strike.driver, strike.number]), strike)
    return list(groups.values())


def fits_action(event: Happening, action: Action) -> bool:
    """Return whether the action can happen at this event."""
    if action in NETWORK:
        return event.kind == "request"
    if action is Action.DROP_ANSWER:
        return event.step in ("after-publish", "log-after-append")
    return True


def follow_ups(events: Sequence[Happening], first: Strike, action: Action, drivers: Sequence[str]) -> list[Strike]:
    """Return strikes of ``action`` after ``first`` in ``drivers``, one for each difference that others can see.

    ``events`` are the events of a run with ``first``.
    """
    began = next(i for i, e in enumerate(events) if (e.driver, e.number) == (first.driver, first.number))
    after = [e for e in events[began + 1 :] if e.driver in drivers]
    found = [s for driver in drivers for s in strikes(after, driver, action)]
    return found if action in NETWORK else representatives(events, found)
