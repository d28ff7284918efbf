"""Asks all questions of a start within a time limit.  Each part (a sink, the checkpoint, ...) has a thread of its own.

A server that does not answer keeps only its own thread busy.  When the time is over, the findings so far are told, and
the thread is left alone: it is a daemon, and every wait in it has a limit of its own.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.query.diagnosis import Diagnosis, Finding, Verdict, ask, ask_all
from epochal.sinks.questions import Question

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 60.0
"""How many seconds all questions together may take by default."""


@dataclass(frozen=True)
class Part:
    """Questions about one thing.  ``questions`` opens what it needs, and closes it when it is at its end.

    ``named``: whether a logged caution has to say what it is about.
    """

    of: str
    questions: Callable[[], Iterator[Question]]
    named: bool = False


def require_all(parts: Sequence[Part], warn: Callable[[str], None]) -> Diagnosis:
    """Ask all questions in order, in this thread; the first error is raised.  ``warn`` gets each caution."""
    findings = []
    for part in parts:
        for question in part.questions():
            finding = ask(part.of, question)
            for caution in finding.cautions:
                warn(f"{part.of}: {caution}" if part.named else caution)
            findings.append(finding)
    return Diagnosis(tuple(findings))


def diagnose(parts: Sequence[Part], seconds: float, spark: SparkSession | None) -> Diagnosis:
    """Ask all questions, all parts at the same time, and go on after errors.  Raise nothing."""
    tag = f"epochal-doctor-{uuid.uuid4().hex[:8]}"
    asking = [_Asking(part, spark, tag) for part in parts]
    for thread in asking:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in asking:
        thread.join(max(0.0, deadline - time.monotonic()))
    findings = [finding for thread in asking for finding in thread.findings(seconds)]
    if spark is not None and any(thread.is_alive() for thread in asking):
        spark.sparkContext.cancelJobsWithTag(tag)
    return Diagnosis(tuple(findings))


class _Asking(threading.Thread):
    """Asks the questions of one part."""

    def __init__(self, part: Part, spark: SparkSession | None, tag: str) -> None:
        super().__init__(name=f"epochal-doctor-{part.of}", daemon=True)
        self._part, self._spark, self._tag = part, spark, tag
        self._found: list[Finding] = []
        self._now = ""  # the question that has no answer yet

    def run(self) -> None:
        for finding in ask_all(self._part.of, self._questions()):
            self._found.append(finding)

    def _questions(self) -> Iterator[Question]:
        if self._spark is not None:
            self._spark.sparkContext.addJobTag(self._tag)
        for question in self._part.questions():
            self._now = question.what
            yield question

    def findings(self, seconds: float) -> list[Finding]:
        is_late = self.is_alive()
        found = list(self._found)
        if is_late:
            why = f"no answer within {seconds:g} s; the questions after it were not asked"
            found.append(Finding(self._part.of, self._now or "questions", Verdict.UNKNOWN, why))
        return found
