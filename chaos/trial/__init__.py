"""Does somebody else's sink hold in every schedule?

An author's sinks run with the real coordinator through schedules of faults, and are judged by what a reader sees.

The coordinator, the epoch log and the checker are those of the project.  Spark is a small model
(:mod:`epochal.chaos.simulate.simulation`).  A *trial* has one fresh target, one schedule, and starts of the query until
one has finished.  Each start makes new sink objects, as a process does.  Faults strike where the coordinator hits a
failpoint, where it calls a sink or the log, where a sink takes a row, and at Spark's own steps:

========================  ==============================================================================
``CRASH``                 The start ends there, its sinks are closed, and the next start recovers.  It also
                          strikes at every line of the sink's own code; none of that code runs after it
``PAUSE``                 The start pauses until a newer start has ended, and then goes on: it is a zombie.
                          It also strikes at every line inside ``fence``, ``commit`` and ``abort``
``UNAVAILABLE``           A method is not called, and raises ``SinkUnavailable``
``REQUEST_LOST``          A method is not called, and raises ``OutcomeUnknown``
``ANSWER_LOST``           A method is called, and raises ``OutcomeUnknown``
``LATE``                  Like ``REQUEST_LOST``, but the method is called after the faults, when its start is
                          an older one
``DROP_ANSWER``           A decision is durable in the log, but the coordinator gets no answer
========================  ==============================================================================

Every schedule ends with a start without faults over one more epoch.  A simulation can judge some of the invariants of
:mod:`epochal.chaos.observe.invariants`.  The sinks survive a schedule if all of these hold.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from epochal.chaos.simulate.schedule import Schedule
from epochal.chaos.simulate.simulation import Outcome
from epochal.chaos.trial.plan import ACTIONS, LINES, Plan, outcomes
from epochal.chaos.trial.world import MakeSinks, Reader, Subject, Target, Trial
from epochal.coordinator.model import failpoints

__all__ = [
    "ACTIONS",
    "DidNotSurvive",
    "MakeSinks",
    "NotExact",
    "Plan",
    "Reader",
    "Subject",
    "Survival",
    "Target",
    "play",
    "survives",
]


@dataclass
class Survival:
    """The schedules that a subject survived.  ``traces`` counts those with different sequences of steps."""

    plan: Plan
    schedules: int = 0
    found: int = 0  # schedules that the plan would play without ``at_most``, as far as they are known
    traces: set[int] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.traces.add(hash(outcome.trace))

    def find(self, schedules: int) -> None:
        self.found += schedules

    def __str__(self) -> str:
        more = self.plan.faults == "pairs" and self.found > self.schedules
        of = f" of {'at least ' * more}{self.found}" if self.found else ""
        return f"{self.schedules}{of} schedules, {len(self.traces)} distinct traces"


class NotExact(AssertionError):
    """The output is wrong even without any fault, so faults would show nothing."""


class DidNotSurvive(AssertionError):
    """A schedule after which an invariant does not hold."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(f"{_verdict(outcome)}\n\n{_story(outcome)}")


def survives(subject: Subject, plan: Plan | None = None) -> Survival:
    """Play every schedule of ``plan``, by default every single fault.

    Raises :class:`DidNotSurvive` at the first schedule that breaks an invariant, and :class:`NotExact` if the output is
    wrong without any fault.
    """
    plan = plan or Plan()
    survival = Survival(plan)
    for outcome in _outcomes(subject, plan, survival.find):
        if outcome.wrong:
            raise DidNotSurvive(outcome)
        survival.add(outcome)
    return survival


def _outcomes(subject: Subject, plan: Plan, found_more: Callable[[int], None]) -> Iterator[Outcome]:
    def play_one(schedule: Schedule) -> Outcome:
        return play(subject, schedule, epochs=plan.epochs, lines=plan.lines)

    if plan.schedules:
        yield from map(play_one, plan.schedules)
        return
    smooth = play_one(())
    if smooth.wrong:
        raise NotExact(f"without any fault: {_verdict(smooth)}\n\n{_story(smooth)}")
    yield from outcomes(play_one, smooth, plan, found_more)


def play(subject: Subject, schedule: Schedule = (), *, epochs: int = 2, lines: bool = True) -> Outcome:
    """Play one trial: a fresh target, the schedule over ``epochs`` epochs, and one more start without faults."""
    trial = Trial(subject, schedule, lines=lines)
    with failpoints.handler(trial.hit), _quiet(logging.getLogger("epochal")):
        trial.play(epochs - 1)
        trial.converge(epochs)
    return trial.outcome(epochs)


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Switch off the coordinator's warnings, which would be about the faults of thousands of schedules."""
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _story(outcome: Outcome) -> str:
    """The steps of each start in the order in which they happened, and how each start ended."""
    struck = {(s.driver, s.number): f"<== {s.action.value.upper()}" for s in outcome.schedule}
    lines = []
    for driver, events in itertools.groupby(outcome.happenings, key=lambda event: event.driver):
        told = [e for e in events if e.kind not in LINES or (driver, e.number) in struck]
        steps = (" ".join(filter(None, (e.step, e.sink, struck.get((driver, e.number))))) for e in told)
        lines.append(_paragraph(f"{driver}: ", steps))
    ends = (f"{driver} ended: {how}" for driver, how in outcome.ends)
    return "\n".join(["What happened:", *lines, *ends])


def _paragraph(head: str, steps: Iterable[str]) -> str:
    """Wrap the steps into lines without breaking a step."""
    text = head + ", ".join(step.replace(" ", "\0") for step in steps)
    return textwrap.fill(text, 110, subsequent_indent="    ", break_on_hyphens=False).replace("\0", " ")


def _verdict(outcome: Outcome) -> str:
    struck = "; ".join(str(strike) for strike in outcome.schedule) or "no fault"
    wrong = "\n".join(f"  {name}: {why}" for name, why in outcome.wrong.items())
    return f"{struck}\n{wrong}"
