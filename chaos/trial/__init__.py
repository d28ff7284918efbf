"""Does somebody else's sink hold in every schedule?

Anyone's sinks under the real coordinator, through schedules of faults, judged by what a reader sees.

The coordinator, the epoch log and the judging are those of the project; Spark is a few lines
(:mod:`epochal.chaos.simulate.simulation`).  A *trial* is one fresh target, one schedule, and starts of the query until
one has finished; each start makes its sinks anew, as a process does.  Faults strike where the coordinator hits
a failpoint, where it calls a sink or the log, where a sink takes a row, and at Spark's own steps:

========================  ==============================================================================
``CRASH``                 the start ends there, its sinks are closed, the next start recovers; it strikes
                          at every line of the sink's own code, too, and none of that code runs any more
``PAUSE``                 the start stands still until a newer one is done, and then goes on: a zombie; also
                          at every line inside ``fence``, ``commit`` and ``abort``
``UNAVAILABLE``           a verb is not called: ``SinkUnavailable``
``REQUEST_LOST``          a verb is not called, and the coordinator cannot know: ``OutcomeUnknown``
``ANSWER_LOST``           a verb is called, and the coordinator cannot know: ``OutcomeUnknown``
``LATE``                  as lost; it is called when the faults are over, by who then is an older start
``DROP_ANSWER``           a decision is durable in the log, and the coordinator cannot know
========================  ==============================================================================

Every schedule ends with a start without faults over one more epoch.  It survived when every invariant of
:mod:`epochal.chaos.observe.checker` holds that a simulation can judge.
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
    """What a subject went through; ``traces`` tells schedules apart that led to the same sequence of steps."""

    plan: Plan
    schedules: int = 0
    found: int = 0  # schedules that the plan would play without ``at_most``, as far as it came to know them
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
    """Without any fault already the output is not what was fed: there is nothing to be learnt from faults."""


class DidNotSurvive(AssertionError):
    """A schedule after which an invariant does not hold."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(f"{_verdict(outcome)}\n\n{_story(outcome)}")


def survives(subject: Subject, plan: Plan | None = None) -> Survival:
    """Play every schedule of ``plan``; :class:`DidNotSurvive` at the first that breaks an invariant."""
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
    """One trial: a fresh target, the schedule over ``epochs`` epochs, and one more start without faults."""
    trial = Trial(subject, schedule, lines=lines)
    with failpoints.handler(trial.hit), _quiet(logging.getLogger("epochal")):
        trial.play(epochs - 1)
        trial.converge(epochs)
    return trial.outcome(epochs)


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """What the coordinator warns of is what the schedules do, a thousand times over."""
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _story(outcome: Outcome) -> str:
    """What each start came to, step by step, and how it ended; the starts in the order in which they were on."""
    struck = {(s.driver, s.number): f"<== {s.action.value.upper()}" for s in outcome.schedule}
    lines = []
    for driver, events in itertools.groupby(outcome.happenings, key=lambda event: event.driver):
        told = [e for e in events if e.kind not in LINES or (driver, e.number) in struck]
        steps = (" ".join(filter(None, (e.step, e.sink, struck.get((driver, e.number))))) for e in told)
        lines.append(_paragraph(f"{driver}: ", steps))
    ends = (f"{driver} ended: {how}" for driver, how in outcome.ends)
    return "\n".join(["What happened:", *lines, *ends])


def _paragraph(head: str, steps: Iterable[str]) -> str:
    """No line ends within a step."""
    text = head + ", ".join(step.replace(" ", "\0") for step in steps)
    return textwrap.fill(text, 110, subsequent_indent="    ", break_on_hyphens=False).replace("\0", " ")


def _verdict(outcome: Outcome) -> str:
    struck = "; ".join(str(strike) for strike in outcome.schedule) or "no fault"
    wrong = "\n".join(f"  {name}: {why}" for name, why in outcome.wrong.items())
    return f"{struck}\n{wrong}"
