"""Every crash, every pair of crashes, zombies, lost answers, late requests, lost work: all enumerated.

Single faults strike at every event.  Of several faults, a crash or a pause strikes once in every group of
events between which the driver touches nothing that is shared or durable; nobody could tell them apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from epochal.chaos.schedule import NETWORK, Action, Schedule, follow_ups, representatives, strikes
from epochal.chaos.simulation import Outcome, Pipeline, simulate
from tests.sim.tally import Tally

ONE = Pipeline(("pg",))
TWO = Pipeline(("pg",), ("kafka",))
THREE = Pipeline(("delta", "pg"), ("kafka",))
THREE_BACKWARDS = Pipeline(("delta", "pg"), ("kafka",), backwards=True)
ALL = {"one": ONE, "two": TWO, "three": THREE, "three-backwards": THREE_BACKWARDS}

every_pipeline = pytest.mark.parametrize("name", ["one", "two", "three"])

FIRST = ("d1",)
SECOND = ("d2",)
BOTH = ("d1", "d2")


def singles(pipeline: Pipeline, action: Action) -> Iterator[Outcome]:
    """``action`` at every event of the first driver."""
    for strike in strikes(simulate(pipeline).happenings, "d1", action):
        yield simulate(pipeline, (strike,))


def first_of_many(pipeline: Pipeline, action: Action) -> Iterator[Outcome]:
    """``action`` at those events of the first driver that differ for others."""
    events = simulate(pipeline).happenings
    found = strikes(events, "d1", action)
    for strike in found if action in NETWORK else representatives(events, found):
        yield simulate(pipeline, (strike,))


def then(pipeline: Pipeline, before: Iterator[Outcome], action: Action, drivers: Sequence[str]) -> Iterator[Outcome]:
    """After each of the schedules ``before``: one more fault, wherever it makes a difference."""
    for outcome in before:
        for strike in follow_ups(outcome.happenings, outcome.schedule[-1], action, drivers):
            yield simulate(pipeline, (*outcome.schedule, strike))


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("name", list(ALL))
def test_one_fault_anywhere(tally: Tally, name: str, action: Action) -> None:
    tally.check(singles(ALL[name], action), at_least=5)


@every_pipeline
def test_a_second_crash_while_recovering_from_the_first(tally: Tally, name: str) -> None:
    crashes = first_of_many(ALL[name], Action.CRASH)
    tally.check(then(ALL[name], crashes, Action.CRASH, SECOND), at_least=300)


@every_pipeline
def test_a_paused_driver_goes_on_after_the_newer_one_was_killed(tally: Tally, name: str) -> None:
    pauses = first_of_many(ALL[name], Action.PAUSE)
    tally.check(then(ALL[name], pauses, Action.CRASH, SECOND), at_least=300)


@every_pipeline
def test_two_drivers_take_turns(tally: Tally, name: str) -> None:
    pauses = first_of_many(ALL[name], Action.PAUSE)
    tally.check(then(ALL[name], pauses, Action.PAUSE, SECOND), at_least=300)


@every_pipeline
def test_a_paused_driver_goes_on_and_is_killed(tally: Tally, name: str) -> None:
    pauses = first_of_many(ALL[name], Action.PAUSE)
    tally.check(then(ALL[name], pauses, Action.CRASH, FIRST), at_least=30)


@pytest.mark.parametrize("action", NETWORK)
@pytest.mark.parametrize("name", ["one", "two"])
def test_a_request_fails_and_later_the_driver_is_killed(tally: Tally, name: str, action: Action) -> None:
    faults = first_of_many(ALL[name], action)
    tally.check(then(ALL[name], faults, Action.CRASH, BOTH), at_least=100)


@pytest.mark.parametrize(
    ("name", "action"),
    [*[(name, Action.ANSWER_LOST) for name in ("one", "two", "three")], ("one", Action.LATE), ("two", Action.LATE)],
)
def test_recovery_loses_an_answer(tally: Tally, name: str, action: Action) -> None:
    crashes = first_of_many(ALL[name], Action.CRASH)
    tally.check(then(ALL[name], crashes, action, SECOND), at_least=150)


@every_pipeline
def test_an_answer_is_lost_while_an_older_driver_is_paused(tally: Tally, name: str) -> None:
    pauses = first_of_many(ALL[name], Action.PAUSE)
    tally.check(then(ALL[name], pauses, Action.ANSWER_LOST, BOTH), at_least=150)


@every_pipeline
def test_a_late_request_arrives_at_any_later_moment(tally: Tally, name: str) -> None:
    late = first_of_many(ALL[name], Action.LATE)
    tally.check(then(ALL[name], late, Action.DELIVER_LATE, BOTH), at_least=100)


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_late_request_of_a_dead_driver_arrives_during_recovery(tally: Tally, name: str) -> None:
    """The driver dies as soon as its request is under way."""

    def dying() -> Iterator[Outcome]:
        for outcome in first_of_many(ALL[name], Action.LATE):
            (next_one, *_) = follow_ups(outcome.happenings, outcome.schedule[-1], Action.CRASH, FIRST)
            yield simulate(ALL[name], (*outcome.schedule, next_one))

    tally.check(then(ALL[name], dying(), Action.DELIVER_LATE, SECOND), at_least=100)


@every_pipeline
def test_prepared_rows_are_lost_and_the_driver_is_killed(tally: Tally, name: str) -> None:
    losses = first_of_many(ALL[name], Action.LOSE_PREPARED)
    tally.check(then(ALL[name], losses, Action.CRASH, BOTH), at_least=200)


@every_pipeline
def test_prepared_rows_are_lost_while_recovering_from_a_crash(tally: Tally, name: str) -> None:
    crashes = first_of_many(ALL[name], Action.CRASH)
    tally.check(then(ALL[name], crashes, Action.LOSE_PREPARED, SECOND), at_least=300)


@pytest.mark.parametrize("name", list(ALL))
def test_three_faults_at_random(tally: Tally, name: str) -> None:
    tally.check(_sample(ALL[name], random.Random(f"three faults, {name}"), 150), at_least=150)


def _sample(pipeline: Pipeline, choice: random.Random, size: int) -> Iterator[Outcome]:
    start = simulate(pipeline)
    for _ in range(size):
        outcome = start
        for _ in range(3):
            strike = _any_strike(outcome, choice)
            if strike is None:
                break
            outcome = simulate(pipeline, (*outcome.schedule, *strike))
        yield outcome


def _any_strike(outcome: Outcome, choice: random.Random) -> Schedule | None:
    """A fault after those that the schedule has, if there is an event left for one."""
    struck = [(s.driver, s.number) for s in outcome.schedule]
    places = [i for i, e in enumerate(outcome.happenings) if (e.driver, e.number) in struck]
    after = outcome.happenings[max(places, default=-1) + 1 :]
    driver = choice.choice(sorted({e.driver for e in after} - {"last"}) or ["nobody"])
    found = strikes(after, driver, choice.choice(list(Action)))
    return (choice.choice(found),) if found else None
