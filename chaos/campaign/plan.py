"""The plan of a run, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from epochal.chaos.campaign import menus
from epochal.chaos.job.targets import Target
from epochal.chaos.observe import checker
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.history import Fault, History
from epochal.chaos.observe.invariants import CHECKS
from epochal.chaos.observe.run import Run
from epochal.chaos.strike.strikes import Menu, Strike
from epochal.coordinator.model.failpoints import Point

IN_ONE_PROCESS = 3  # the tier
STRIKES = 12
MASTER = "local[2,4]"
"""Spark's master.  A task may be tried four times, as on a cluster."""

FOREIGN = ("I1", "I2", "I3", "I4", "I5", "I6", "I11", "I14", "I15")
"""The invariants for a batch function that keeps no decisions and no fences."""
OURS = tuple(name for name in CHECKS if name != "I9")
AT_ONCE = ("I2", "I3", "I4", "I5")
"""The invariants that stay false once they are false.  They may end a run early, and judge an incomplete run."""

FOREIGN_POINTS = frozenset({Point.BEFORE_CALL, Point.AT_ROW, Point.AFTER_JOB, Point.AFTER_RETURN})
"""The points around a batch function that has no failpoints itself."""


@dataclass(frozen=True)
class Plan:
    """What a campaign runs.

    * ``workload``: a name of :data:`workloads.NAMES`.
    * ``source``: a function of the user's between the kit's rows and the target.
    * ``seconds``: how long to strike.
    * ``all_must_strike``: exactly these strikes were requested.  A strike that cannot be carried out is then wrong
      usage, and with a strike that never struck the verdict is at best unknown.
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
    """The run, the findings, and the strikes."""

    plan: Plan
    run: Run
    findings: Mapping[str, Finding]
    struck: Sequence[Strike]
    unreached: Sequence[Strike]  # never hit at their points, impossible here, or not counted

    @property
    def verdict(self) -> Verdict:
        return checker.verdict(self.run, self.findings)

    def blamed(self) -> Sequence[Strike]:
        """Return the strike after which something was first seen to be wrong; all strikes if only the end shows it."""
        names = [name for name in AT_ONCE if name in self.findings]
        events = self.run.history.events
        begins = [at for at, fault in self.run.history.of(Fault) if not fault.healed]
        for strike, end in zip(self.struck, [*begins[1:], len(events)], strict=False):
            so_far = replace(self.run, history=History(events[:end]))
            if checker.overall(checker.judge_all(so_far, names)) is Verdict.FALSE:
                return (strike,)
        return tuple(self.struck)


def default_menu(target: Target, tier: int) -> Menu:
    """Return the strikes against a target for which no others are requested."""
    if tier == IN_ONE_PROCESS:
        return Menu(menus.our_errors(target.moments) if target.ours else menus.FOREIGN_ERRORS)
    return Menu(menus.our_menu(target.moments) if target.ours else menus.FOREIGN_MENU)
