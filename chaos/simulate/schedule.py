"""Schedules: which fault strikes which driver at which of its steps, and how all of them are found.

Every step of a driver that can be struck is an *event*: a failpoint, a request on the network, a step of
Spark's own.  A run without faults gives the list of events of the first driver; a fault at its k-th event
gives that of the second; so schedules are enumerated from what really happens, never guessed, and each
fault is known to have struck.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple


class Action(enum.Enum):
    """What happens at an event."""

    CRASH = "crash"  # the driver dies
    PAUSE = "pause"  # the driver stands still until all newer ones are done: a zombie
    DROP_ANSWER = "drop answer"  # a failpoint right after an applied request: the answer is lost
    LOSE_PREPARED = "lose prepared"  # every voting sink forgets what is prepared
    DELIVER_LATE = "deliver late"  # the requests under way arrive now
    # at a request:
    UNAVAILABLE = "unavailable"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    LATE = "late"


NETWORK = (Action.UNAVAILABLE, Action.REQUEST_LOST, Action.ANSWER_LOST, Action.LATE)


class Happening(NamedTuple):
    """One event of a driver, as it can be struck."""

    driver: str
    number: int  # counts up per driver, from 0
    kind: str  # "hit", "request" or "spark"
    step: str
    sink: str = ""
    epoch: int = -1
    touches: int = 0  # how often drivers had touched anything shared or durable before


class Strike(NamedTuple):
    """Do ``action`` at event ``number`` of ``driver``."""

    driver: str
    number: int
    action: Action

    def __str__(self) -> str:
        return f"{self.action.value} at event {self.number} of {self.driver}"


Schedule = tuple[Strike, ...]


def strikes(events: Sequence[Happening], driver: str, action: Action, start: int = 0) -> list[Strike]:
    """``action`` at every event of ``driver`` where it means something, from event ``start`` on."""
    return [
        Strike(driver, e.number, action)
        for e in events
        if e.driver == driver and e.number >= start and fits_action(e, action)
    ]


def representatives(events: Sequence[Happening], found: Sequence[Strike]) -> list[Strike]:
    """One strike of each group between which the driver touched nothing that is shared or durable.

    To crash or to pause at one event of such a group or at another makes no difference to anybody else.
    """
    touches = {(e.driver, e.number): e.touches for e in events}
    groups: dict[tuple[Action, int], Strike] = {}
    for strike in found:
        groups.setdefault((strike.action, touches[strike.driver, strike.number]), strike)
    return list(groups.values())


def fits_action(event: Happening, action: Action) -> bool:
    """Whether the action means something at this event."""
    if action in NETWORK:
        return event.kind == "request"
    if action is Action.DROP_ANSWER:
        return event.step in ("after-publish", "log-after-append")
    return True


def follow_ups(events: Sequence[Happening], first: Strike, action: Action, drivers: Sequence[str]) -> list[Strike]:
    """``action`` wherever it makes a difference after ``first``, in those drivers; events are of its run."""
    began = next(i for i, e in enumerate(events) if (e.driver, e.number) == (first.driver, first.number))
    after = [e for e in events[began + 1 :] if e.driver in drivers]
    found = [s for driver in drivers for s in strikes(after, driver, action)]
    return found if action in NETWORK else representatives(events, found)
