"""The nemesis role: it plans from a seed which fault strikes where.

It depends neither on rows nor on verdicts.  :mod:`epochal.chaos.campaign.striker` carries the strikes out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from epochal.chaos.observe.roles import RoleError
from epochal.coordinator.model.failpoints import Point

WITHOUT_EPOCH = frozenset(
    {
        Point.BEFORE_LOOK,
        Point.AFTER_LOOK,
        Point.BEFORE_FENCE,
        Point.AFTER_FENCE_RECORD,
        Point.BEFORE_SINK_FENCE,
        Point.AFTER_SINK_FENCE,
        Point.AFTER_FENCE,
        Point.AFTER_LOOK_AGAIN,
        Point.BEFORE_SETTLE,
        Point.AFTER_SETTLE,
        Point.BEFORE_ABORT,
        Point.AFTER_ABORT,
        Point.BEFORE_CLEAN,
        Point.BEFORE_COMPACT,
        Point.AFTER_COMPACT,
        Point.LOG_AFTER_FLOOR,
        Point.BEFORE_REDO,
        Point.AFTER_REDO_DECIDED,
    }
)
"""Points that belong to a start, or to no particular epoch.  Their rules name no epoch; the next hit counts."""


@dataclass(frozen=True)
class Strike:
    """One planned fault: what is struck, how, and at which point.

    * ``action``: a key of :data:`ON`; :mod:`epochal.chaos.campaign.striker` says how each action is carried out.
    * ``victim``: driver, executor, worker, the kind of a server, or another thing that the action is done to.
    * ``nth``: at which hit of the point, 1 for the first.
    """

    action: str
    victim: str
    point: Point
    epoch: int
    sink: str = ""
    nth: int = 1

    @property
    def rule(self) -> str:
        """The failpoint rule.  It holds a process at the point; for ``raise`` and ``drop-answer`` it is the fault."""
        where = f"@{self.sink}" if self.sink else ""
        epoch = "" if self.point in WITHOUT_EPOCH else f":{self.epoch}"
        nth = f"#{self.nth}" if self.nth > 1 else ""
        return f"{self.point.value}{where}{epoch}{nth}={self._hold}"

    @property
    def _hold(self) -> str:
        if self.action in AT_THE_POINT:
            return self.action
        # Another thread than the batch function's hits this point, so a barrier would not hold the function.
        return "stop" if self.point is Point.AFTER_JOB else "barrier"

    def __str__(self) -> str:
        where = f" of {self.sink}" if self.sink else ""
        return f"{self.action} {self.victim} at {self.point.value}{where}, epoch {self.epoch}"


AT_THE_POINT = frozenset({"raise", "drop-answer"})
"""Faults that happen at the point itself, inside the process.  The nemesis does not have to do anything."""

SERVERS = ("postgres", "kafka")
"""The kinds of servers that the kit can start and strike."""
ON: Mapping[str, frozenset[str]] = {
    "kill": frozenset({"driver", "executor", "worker"}),
    "raise": frozenset({"driver", "worker"}),
    "drop-answer": frozenset({"driver"}),
    "pause": frozenset({"driver", "executor", "worker", *SERVERS}),
    **dict.fromkeys(("crash", "cut", "lose-answer", "half-open", "latency", "slow-close"), frozenset(SERVERS)),
    **dict.fromkeys(("fill", "read-only"), frozenset({"disk"})),
    **dict.fromkeys(("replay", "roll-back", "restore", "forget-log", "delete", "copy"), frozenset({"checkpoint"})),
    "lose": frozenset({"prepared"}),
}
"""Action -> the victims to which it can be done."""


class Nemesis(Protocol):
    """Plans at most one strike per epoch, in the order of the epochs."""

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]: ...


@dataclass(frozen=True)
class Nobody:
    """Plans no strike."""

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class Menu:
    """Plans one strike per epoch, in random order.  Each strike comes once before any comes again."""

    strikes: Sequence[Strike]  # their epochs are ignored

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:
        drawn: list[Strike] = []
        while len(drawn) < len(epochs) and self.strikes:
            drawn += chance.sample(list(self.strikes), len(self.strikes))
        return [replace(strike, epoch=epoch) for strike, epoch in zip(drawn, epochs, strict=False)]


@dataclass(frozen=True)
class InTurn:
    """Combines several nemeses.  Each plans its own part of the epochs."""

    nemeses: Sequence[Nemesis]

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:
        planned: list[Strike] = []
        share = -(-len(epochs) // max(1, len(self.nemeses)))
        for number, nemesis in enumerate(self.nemeses):
            planned += nemesis.plan(epochs[number * share : (number + 1) * share], chance)
        return planned


@dataclass(frozen=True)
class CheckedNemesis:
    """Raises RoleError for a plan with an impossible strike, or that breaks the order of one strike per epoch."""

    nemesis: Nemesis

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:
        planned = self.nemesis.plan(epochs, chance)
        for strike in planned:
            if strike.victim not in ON.get(strike.action, ()) or strike.epoch not in epochs:
                raise RoleError(f"{strike} is no strike within epochs {epochs.start} to {epochs.stop - 1}")
        numbers = [strike.epoch for strike in planned]
        if numbers != sorted(set(numbers)):
            raise RoleError(f"strikes have to be in the order of their epochs, one in each: {numbers}")
        return planned
