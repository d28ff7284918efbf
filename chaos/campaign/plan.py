"""What a run is asked to do, and what has come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from epochal.chaos.campaign import menus
from epochal.chaos.job.targets import Target
from epochal.chaos.observe import checker
from epochal.chaos.observe.checker import CHECKS, Finding, Run, Verdict
from epochal.chaos.observe.history import Fault, History
from epochal.chaos.strike.strikes import Menu, Strike
from epochal.coordinator.model.failpoints import Point

IN_ONE_PROCESS = 3  # the tier
STRIKES = 12
MASTER = "local[2,4]"
"""As on a cluster, a task may fail three times."""

FOREIGN = ("I1", "I2", "I3", "I4", "I5", "I6", "I11", "I14", "I15")
"""What a function can be judged by that keeps no decisions and no fences."""
OURS = tuple(name for name in CHECKS if name != "I9")
AT_ONCE = ("I2", "I3", "I4", "I5")
"""What cannot become true again once it is false: enough to end a run early, and all to judge a torn one by."""

FOREIGN_POINTS = frozenset({Point.BEFORE_CALL, Point.AT_ROW, Point.AFTER_JOB, Point.AFTER_RETURN})
"""The points of a batch function that has none of its own."""


@dataclass(frozen=True)
class Plan:
    """What is run.

    ``workload``: a name of :data:`workloads.NAMES`.  ``source``: a function of the user's between the kit's rows
    and the target.  ``seconds``: strike on until they are over.  ``all_must_strike``: these very strikes were asked
    for, so one that cannot be carried out is wrong usage, and one that never struck leaves the verdict unknown.
    """

    target: str
    readers: Sequence[str] = ()
    source: str = ""
    workload: str = "rows"
    tier: int = 4
    seed: int = 0
    strikes: int = STRIKES
    seconds: float = 0.0
    stop_at_first: bool = False
    all_must_strike: bool = False
    master: str = MASTER
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The run, what it was judged by, and how it was struck."""

    plan: Plan
    run: Run
    findings: Mapping[str, Finding]
    struck: Sequence[Strike]
    unreached: Sequence[Strike]  # their points were never hit, or they cannot be carried out here

    @property
    def verdict(self) -> Verdict:
        return checker.verdict(self.run, self.findings)

    def blamed(self) -> Sequence[Strike]:
        """The strike after which something was first seen to be wrong; all, where that is seen only at the end."""
        names = [name for name in AT_ONCE if name in self.findings]
        events = self.run.history.events
        begins = [at for at, fault in self.run.history.of(Fault) if not fault.healed]
        for strike, end in zip(self.struck, [*begins[1:], len(events)], strict=False):
            so_far = replace(self.run, history=History(events[:end]))
            if checker.overall(checker.judge_all(so_far, names)) is Verdict.FALSE:
                return (strike,)
        return tuple(self.struck)


def default_menu(target: Target, tier: int) -> Menu:
    """What strikes a target when nobody says otherwise."""
    if tier == IN_ONE_PROCESS:
        return Menu(menus.our_errors(target.moments) if target.ours else menus.FOREIGN_ERRORS)
    return Menu(menus.our_menu(target.moments) if target.ours else menus.FOREIGN_MENU)
