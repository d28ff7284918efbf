"""Make a failing schedule as small as possible, and print it as a program that runs.

First come attempts with fewer faults, then with fewer epochs, then with earlier faults.  Every attempt is played.  It
is kept if it breaks one of the promises that were broken at first, and if all of its faults strike.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from epochal.chaos.simulate.pipelines import Pipeline
from epochal.chaos.simulate.schedule import NETWORK, Schedule, Strike, representatives, strikes
from epochal.chaos.simulate.simulation import Outcome, simulate

NOT_STRUCK = "struck"
"""The name of an error in the schedule and not in the coordinator: one of its faults never happened."""
ATTEMPTS = 3000  # how many schedules are played to shrink one; this takes some seconds


@dataclass(frozen=True)
class Failure:
    """A schedule that breaks a promise.  ``wrong`` maps an invariant, or another demand, to why it does not hold."""

    pipeline: Pipeline
    schedule: Schedule
    epochs: int
    wrong: Mapping[str, str]

    def outcome(self) -> Outcome:
        """Play the schedule again."""
        return simulate(self.pipeline, self.schedule, epochs=self.epochs)

    @property
    def broken(self) -> frozenset[str]:
        """The promises that do not hold."""
        return frozenset(self.wrong) - {NOT_STRUCK}

    def program(self) -> str:
        """Return Python code that plays exactly this schedule, prints what happened, and exits with 1 if it fails."""
        with undisturbed():
            steps = {(e.driver, e.number): f"{e.step} {e.sink}".strip() for e in self.outcome().happenings}
        faults = "".join(
            f'        Strike("{s.driver}", {s.number}, {s.action}),  # {steps.get((s.driver, s.number), "never")}\n'
            for s in self.schedule
        )
        why = "".join(f"# {name}: {_one_line(text)}\n" for name, text in self.wrong.items())
        return _PROGRAM.format(why=why, pipeline=self.pipeline, faults=faults, epochs=self.epochs)

    def __str__(self) -> str:
        return self.program()


_PROGRAM = """\
{why}from epochal.chaos.simulate.schedule import Action, Strike
from epochal.chaos.simulate.simulation import Pipeline, simulate

outcome = simulate(
    {pipeline},
    (
{faults}    ),
    epochs={epochs},
)
print(outcome)
raise SystemExit(1 if outcome.wrong else 0)
"""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Switch off warnings, as there are millions of faults, and let Python collect garbage less often."""
    logger, thresholds = logging.getLogger("epochal"), gc.get_threshold()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    gc.set_threshold(50_000, *thresholds[1:])
    try:
        yield
    finally:
        logger.setLevel(level)
        gc.set_threshold(*thresholds)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}..."


def shrink(failure: Failure) -> Failure:
    """Return a smaller schedule that also fails.  If none is found, return the same one."""
    with undisturbed():
        return _Shrinking(failure).result()


class _Shrinking:
    def __init__(self, failure: Failure) -> None:
        self._smallest = failure
        self._broken = failure.broken
        self._left = ATTEMPTS

    def result(self) -> Failure:
        for attempts in (self._alone, self._fewer_faults, self._fewer_epochs, self._earlier):
            while self._takes_one_of(attempts()):
                pass
        return self._smallest

    def _takes_one_of(self, attempts: Iterator[Failure]) -> bool:
        """Keep the first of these attempts that also fails; return whether there is one."""
        return any(self._fails(attempt) for attempt in attempts)

    def _fails(self, attempt: Failure) -> bool:
        self._left -= 1
        if self._left < 0:
            return False
        wrong = attempt.outcome().wrong
        if NOT_STRUCK in wrong or not self._broken & set(wrong):
            return False
        self._smallest = replace(attempt, wrong=dict(wrong))
        return True

    def _alone(self) -> Iterator[Failure]:
        """Attempts without any fault; then, of several faults, each kind of fault alone, at any event."""
        smallest = self._smallest
        if not smallest.schedule:
            return
        yield replace(smallest, schedule=())
        if len(smallest.schedule) > 1:
            events = simulate(smallest.pipeline, epochs=smallest.epochs).happenings
            for action in dict.fromkeys(s.action for s in smallest.schedule):
                found = strikes(events, "d1", action)
                for strike in found if action in NETWORK else representatives(events, found):
                    yield replace(smallest, schedule=(strike,))

    def _fewer_faults(self) -> Iterator[Failure]:
        """Attempts with one fault less.

        The others stay, or move to the driver before, or the last of them moves to any event.
        """
        for left_out, strike in enumerate(self._smallest.schedule):
            others = (*self._smallest.schedule[:left_out], *self._smallest.schedule[left_out + 1 :])
            yield replace(self._smallest, schedule=others)
            yield replace(self._smallest, schedule=tuple(_one_driver_less(s, strike) for s in others))
            yield from self._elsewhere(others)

    def _elsewhere(self, schedule: Schedule) -> Iterator[Failure]:
        if not schedule:
            return
        *before, last = schedule
        events = simulate(self._smallest.pipeline, tuple(before), epochs=self._smallest.epochs).happenings
        for driver in sorted({event.driver for event in events} - {"last"}):
            for strike in representatives(events, strikes(events, driver, last.action)):
                yield replace(self._smallest, schedule=(*before, strike))

    def _fewer_epochs(self) -> Iterator[Failure]:
        return (replace(self._smallest, epochs=epochs) for epochs in range(1, self._smallest.epochs))

    def _earlier(self) -> Iterator[Failure]:
        schedule, events = self._smallest.schedule, self._smallest.outcome().happenings
        for at, strike in enumerate(schedule):
            for sooner in strikes(events, strike.driver, strike.action):
                if sooner.number < strike.number:
                    yield replace(self._smallest, schedule=(*schedule[:at], sooner, *schedule[at + 1 :]))


def _one_driver_less(strike: Strike, than: Strike) -> Strike:
    """The strike as it must be if the driver of ``than`` had not ended: later drivers count one less."""
    number, ended = int(strike.driver[1:]), int(than.driver[1:])
    return strike._replace(driver=f"d{number - 1}") if number > ended else strike
