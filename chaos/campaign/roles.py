"""The report role: shows people how a run went, on the terminal, as a page, or not at all.

The roles of a run do not depend on each other:

=========  ===============================================================================================
workload   what is fed, and what the output must then be: :mod:`epochal.chaos.job.workload`
reader     what an output holds now, seen from outside: :mod:`epochal.chaos.observe.roles`
nemesis    which fault strikes where, planned from a seed: :mod:`epochal.chaos.strike.strikes`
history    what happened, in order: :mod:`epochal.chaos.observe.history`
checker    verdicts about a history, and nothing else: :mod:`epochal.chaos.observe.checker`
report     this file
=========  ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from epochal.chaos.observe.checker import Finding
from epochal.chaos.observe.roles import RoleError
from epochal.chaos.observe.run import Run


class Report(Protocol):
    """Shows people how a run went."""

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Silent:
    """Shows nothing."""

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Reports:
    """Combines several reports, in this order.  All are called even if one raises; then the first error is raised."""

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
    """Raises RoleError for a run without verdicts that is not marked as proving nothing."""

    report: Report

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:
        if not findings and not run.proves_nothing:
            raise RoleError("there are no verdicts to report")
        self.report.tell(run, findings, about)
