"""The checker: it judges a run by the invariants (:mod:`epochal.chaos.observe.invariants`).

A verdict is true, false or unknown, and has the number of observations behind it.  Unknown is not a pass.  A verdict
is unknown if the checker crashed, if the history lacks what the checker needs, or if there was nothing to look at.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from epochal.chaos.observe.invariants import CHECKS, Check
from epochal.chaos.observe.run import Run


class Verdict(enum.Enum):
    """The result of a checker."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """A verdict, the reason unless it is true, and the number of observations behind it."""

    verdict: Verdict
    why: str = ""
    observations: int = 0

    def __bool__(self) -> bool:
        return self.verdict is Verdict.TRUE


def judge(check: Check, run: Run) -> Finding:
    """Return the verdict of one checker.  It is unknown if the checker crashes or observed nothing."""
    return _judge(check, replace(run))


def _judge(check: Check, run: Run) -> Finding:
    wrong: list[str] = []
    observations = 0
    try:
        for said in check(run):
            if isinstance(said, str):
                wrong.append(said)
            else:
                observations += said
    except Exception as error:
        return Finding(Verdict.UNKNOWN, f"{type(error).__name__}: {error}", observations)
    if wrong:
        return Finding(Verdict.FALSE, "; ".join(wrong), observations)
    if not observations:
        return Finding(Verdict.UNKNOWN, "there was nothing to look at")
    return Finding(Verdict.TRUE, "", observations)


def judge_all(run: Run, invariants: Iterable[str] = CHECKS) -> dict[str, Finding]:
    """Return the finding of each of these invariants."""
    once = replace(run)  # a new Run, whose caches are empty
    return {name: _judge(CHECKS[name], once) for name in invariants}


def verdict(run: Run, findings: Mapping[str, Finding]) -> Verdict:
    """Return the worst of the findings.  For a run that proves nothing it is at best unknown."""
    found = overall(findings)
    return Verdict.UNKNOWN if run.proves_nothing and found is not Verdict.FALSE else found


def overall(findings: Mapping[str, Finding]) -> Verdict:
    """Return false if any finding is false, else unknown if any is unknown, else true.  No finding is unknown."""
    return worst([finding.verdict for finding in findings.values()])


def worst(verdicts: Collection[Verdict]) -> Verdict:
    """Return false if any verdict is false, else unknown if any is unknown, else true.  No verdict is unknown."""
    severest = next((v for v in (Verdict.FALSE, Verdict.UNKNOWN) if v in verdicts), Verdict.TRUE)
    return severest if verdicts else Verdict.UNKNOWN
