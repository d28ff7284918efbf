"""The report role: tells people how a run went, on the terminal, as a page, or not at all.

The roles of a run know nothing of each other:

=========  ===============================================================================================
workload   what is fed, and what has to come out of it: :mod:`epochal.chaos.job.workload`
reader     what an output holds now, seen from outside: :mod:`epochal.chaos.observe.roles`
nemesis    which fault strikes where, from a seed: :mod:`epochal.chaos.strike.strikes`
history    what happened, in order: :mod:`epochal.chaos.observe.history`
checker    verdicts over a history, and nothing else: :mod:`epochal.chaos.observe.checker`
report     this file
=========  ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from epochal.chaos.observe.checker import Finding, Run
from epochal.chaos.observe.roles import RoleError


class Report(Protocol):
    """Tells people how a run went."""

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Silent:
    """Tells nobody."""

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Reports:
    """Several, in this order; one that fails does not keep the others from telling."""

    reports: Iterable[Report]

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:
        failed: list[Exception] = []
        for report in self.reports:
            try:
                report.tell(run, findings, about)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]


@dataclass(frozen=True)
class CheckedReport:
    """Refuses to tell of a pass without verdicts: nothing judged is nothing proven."""

    report: Report

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:
        if not findings and not run.proves_nothing:
            raise RoleError("there are no verdicts to report")
        self.report.tell(run, findings, about)
