"""The explorer of schedules: what it plays, how it counts, and what it does with a schedule that fails."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import islice

import pytest

from epochal.chaos.observe.checker import Verdict
from epochal.chaos.observe.history import Step
from epochal.chaos.simulate import explore as exploring
from epochal.chaos.simulate.explore import (
    BOTH,
    KINDS,
    PAIRS,
    PIPELINES,
    SECOND,
    SINGLES,
    Explored,
    Kind,
    Player,
    Tally,
    Unit,
    explore,
    fingerprint,
)
from epochal.chaos.simulate.schedule import Action, Schedule, Strike, follow_ups, representatives, strikes
from epochal.chaos.simulate.shrink import Failure, shrink
from epochal.chaos.simulate.simulation import STARTS, Outcome, Played, Simulation, simulate
from epochal.coordinator.model.errors import PrepareRefused
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.sinks.conditions import Conditions

ONE, TWO = PIPELINES["one"], PIPELINES["two"]


def first(action: Action, *, of: Outcome, driver: str = "d1", step: str) -> Strike:
    """``action`` at the first time that ``driver`` comes to ``step``."""
    return next(Strike(driver, e.number, action) for e in of.happenings if (e.driver, e.step) == (driver, step))


# copies of a world


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in PAIRS if kind.then is not None], ids=str)
@pytest.mark.parametrize("name", ["one", "three"])
def test_a_schedule_that_goes_on_from_a_copy_is_as_if_played_from_the_start(name: str, kind: Kind) -> None:
    root = Player().root(PIPELINES[name], 2)
    for strike in kind.firsts(root)[::13]:
        for outcome in islice(kind.grow(root, strike), 0, None, 11):
            assert outcome == simulate(PIPELINES[name], outcome.schedule)


def test_four_faults_that_go_on_from_copies_are_as_if_played_from_the_start() -> None:
    root = Player().root(TWO, 3)
    for part in range(2):
        for outcome in islice(exploring.sample(root, random.Random(part)), 0, None, 3):
            assert outcome == simulate(TWO, outcome.schedule, epochs=3)


@pytest.mark.parametrize("then", [Action.CRASH, Action.LOSE_PREPARED, Action.ANSWER_LOST])
def test_a_driver_that_pauses_on_the_stack_does_as_one_that_has_a_thread(then: Action) -> None:
    root = simulate(TWO)
    for pause in representatives(root.happenings, strikes(root.happenings, "d1", Action.PAUSE))[::12]:
        paused = simulate(TWO, (pause,))
        for strike in follow_ups(paused.happenings, pause, then, BOTH)[::5]:
            schedule = (pause, strike)
            assert Played(Simulation(TWO, schedule), 2).outcome == with_threads(schedule)


def with_threads(schedule: Schedule) -> Outcome:
    return Played(Simulation(TWO, schedule, zombies=True), 2).outcome


def test_there_is_a_copy_for_every_crash_that_makes_a_difference() -> None:
    root = Played(Simulation(TWO), 2, grows=True)
    events = root.outcome.happenings
    assert root.crashes == representatives(events, strikes(events, "d1", Action.CRASH))
    crashed = root.then(root.crashes[7], grows=True)
    assert crashed.crashes == follow_ups(crashed.outcome.happenings, root.crashes[7], Action.CRASH, SECOND)


def test_nothing_is_copied_while_a_zombie_lives_or_a_request_is_under_way() -> None:
    root = Played(Simulation(ONE), 1, grows=True)
    paused = root.then(first(Action.PAUSE, of=root.outcome, step="before-decide"), grows=True)
    assert {strike.driver for strike in paused.crashes} == {"d1"}  # once d2 is done and it goes on alone
    late = root.then(first(Action.LATE, of=root.outcome, step="prepare"), grows=True)
    assert late.crashes == []


# what is counted


def test_every_fault_and_every_ordered_pair_is_a_kind() -> None:
    assert {kind.first for kind in SINGLES} == set(Action)
    assert {(kind.first, kind.then) for kind in KINDS if kind.then} == {(a, b) for a in Action for b in Action}


def test_a_trace_has_the_same_number_in_every_process() -> None:
    assert fingerprint([Step("d1", "look", "pg", ""), Step("d1", "end", "", "killed")]) == 0x8E6464D5A1C7B6A0
    assert fingerprint([Step("d1", "look", "pg", ""), Step("d1", "end", "", "finished")]) != 0x8E6464D5A1C7B6A0


def test_a_fault_that_never_strikes_is_a_failure() -> None:
    assert set(simulate(ONE, (Strike("d1", 9999, Action.CRASH),)).wrong) == {"struck"}


@pytest.mark.slow
def test_an_exploration_plays_every_kind_over_every_pipeline() -> None:
    explored = explore(pipelines=[ONE, TWO], kinds=SINGLES, epochs=[1])
    roots = [simulate(pipeline, epochs=1).happenings for pipeline in (ONE, TWO)]
    assert explored.tally.schedules == sum(len(strikes(r, "d1", a)) for r in roots for a in Action)
    assert (explored.verdict, explored.tally.whole) == (Verdict.TRUE, True)


@pytest.mark.wide
@pytest.mark.slow
def test_an_exploration_ends_with_the_traces_or_the_seconds_that_it_was_given() -> None:
    enough = explore(pipelines=[ONE], traces=300)
    assert 300 <= len(enough.tally.traces) < 600
    assert not enough.tally.whole
    brief = explore(pipelines=[ONE], seconds=0.2)
    assert 0 < brief.tally.elapsed < 5


@pytest.mark.wide
@pytest.mark.slow
def test_an_exploration_goes_on_with_samples_when_all_is_listed() -> None:
    listed = explore(pipelines=[ONE], kinds=SINGLES[:1], epochs=[1])
    more = explore(pipelines=[ONE], kinds=SINGLES[:1], epochs=[1], traces=12 * len(listed.tally.traces))
    assert more.tally.traces > listed.tally.traces


@pytest.mark.wide
@pytest.mark.slow
def test_a_seed_says_which_samples_are_played_and_processes_do_not() -> None:
    def traces(seed: int, jobs: int = 1) -> set[int]:
        return explore(pipelines=[ONE], kinds=(), epochs=[1], samples=6, seed=seed, jobs=jobs).tally.traces

    assert traces(1) == traces(1, jobs=2) != traces(2)


def test_progress_is_told_after_each_unit() -> None:
    told: list[int] = []
    explore(pipelines=[ONE], kinds=SINGLES[:1], epochs=[1], progress=lambda tally: told.append(tally.schedules))
    assert told == sorted(set(told))
    assert len(told) > 5


def test_of_nothing_the_verdict_is_unknown() -> None:
    assert explore(pipelines=[], kinds=()).verdict is Verdict.UNKNOWN
    assert explore(pipelines=[], seconds=60).verdict is Verdict.UNKNOWN


def test_a_unit_that_cannot_be_played_makes_the_verdict_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(unit: Unit, root: Played) -> None:
        raise ZeroDivisionError(f"{unit} after {root}")

    monkeypatch.setattr(Unit, "outcomes", broken)
    explored = explore(pipelines=[ONE], kinds=SINGLES)
    assert explored.verdict is Verdict.UNKNOWN
    assert "ZeroDivisionError" in str(explored)


def test_a_process_that_dies_makes_the_verdict_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "_play", _die)
    explored = explore(pipelines=[ONE], kinds=SINGLES, jobs=2)
    assert explored.verdict is Verdict.UNKNOWN
    assert "died" in str(explored)


def _die(unit: Unit) -> None:
    os._exit(unit.epochs)


def test_a_failure_outweighs_what_could_not_be_played() -> None:
    assert Tally(failures=[Failure(ONE, (), 1, {"I1": "false"})], errors=["x"], schedules=1).verdict is Verdict.FALSE


# what fails


def no_owner(*_: object, **__: object) -> None:
    """In the place of the guard that bars older actors."""


PLANT = """
from epochal.sinks.conditions import Conditions
Conditions.check_owner = lambda *_, **__: None
"""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Explored:
    """What an exploration finds when no sink asks who is calling."""
    monkeypatch.setattr(Conditions, "check_owner", no_owner)
    return explore(pipelines=[TWO], stop_early=True, seconds=60)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_planted_bug_is_found_and_its_schedule_is_a_small_program(planted: Explored) -> None:
    assert planted.verdict is Verdict.FALSE
    failure, *_ = planted.failures
    assert 1 <= len(failure.schedule) <= 2
    assert "I12" in failure.wrong
    with_the_bug, without = run(PLANT + failure.program()), run(failure.program())
    assert with_the_bug.returncode == 1, with_the_bug.stderr
    assert "fenced" in with_the_bug.stdout
    assert without.returncode == 0, without.stdout


@pytest.mark.slow
def test_a_shrunk_schedule_can_lose_none_of_its_faults_and_none_can_be_sooner(
    planted: Explored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conditions, "check_owner", no_owner)
    failure, *_ = planted.failures
    smaller: list[Schedule] = [failure.schedule[:i] + failure.schedule[i + 1 :] for i in range(len(failure.schedule))]
    *before, last = failure.schedule
    smaller += [(*before, last._replace(number=number)) for number in range(last.number)]
    for schedule in smaller:
        wrong = simulate(failure.pipeline, schedule, epochs=failure.epochs).wrong
        assert "struck" in wrong or not failure.broken & set(wrong)


def test_faults_that_do_not_matter_are_left_out_and_epochs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conditions, "already_committed", lambda *_: False)  # commits again what is visible
    start = simulate(TWO, epochs=3)
    crash = first(Action.CRASH, of=start, step="planned")
    late = simulate(TWO, (crash,), epochs=3)
    lost = first(Action.ANSWER_LOST, of=late, driver="d2", step="commit")
    outcome = simulate(TWO, (crash, lost), epochs=3)
    small = shrink(Failure(TWO, outcome.schedule, 3, dict(outcome.wrong)))
    assert [strike.action for strike in small.schedule] == [Action.ANSWER_LOST]
    assert small.epochs == 1


@pytest.mark.slow
def test_a_fault_more_before_or_after_is_left_out(planted: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conditions, "check_owner", no_owner)
    failure, *_ = planted.failures
    assert len(failure.schedule) == 2
    later = tuple(strike._replace(driver=f"d{int(strike.driver[1:]) + 1}") for strike in failure.schedule)
    for schedule in ((Strike("d1", 0, Action.CRASH), *later), (*failure.schedule, Strike("d3", 0, Action.CRASH))):
        outcome = simulate(failure.pipeline, schedule, epochs=2)
        assert failure.broken <= set(outcome.wrong)
        assert len(shrink(Failure(failure.pipeline, schedule, 2, outcome.wrong)).schedule) == 2


def test_what_does_not_fail_again_is_left_as_it_is() -> None:
    failure = Failure(ONE, (Strike("d1", 3, Action.CRASH),), 2, {"I1": "false: once"})
    assert shrink(failure) == failure


@pytest.mark.slow
def test_each_set_of_broken_promises_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conditions, "check_owner", no_owner)
    explored = explore(pipelines=[ONE], kinds=[Kind(Action.PAUSE, Action.CRASH, SECOND)], epochs=[1])
    assert len(explored.tally.failures) > len(explored.failures)
    assert len(explored.failures) <= 3


def test_a_world_in_which_no_driver_finishes_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(coordinator: Coordinator, batch: object) -> None:
        raise PrepareRefused(f"{coordinator} does not like {batch}", help="nothing helps")

    monkeypatch.setattr(Coordinator, "run", refuse)
    outcome = simulate(ONE)
    assert f"of {STARTS} drivers none did" in outcome.wrong["finishes"]
    assert "converges" in outcome.wrong


def test_a_failing_schedule_prints_every_event_and_what_struck() -> None:
    outcome = simulate(ONE, (Strike("d1", 5, Action.CRASH),))
    assert "crash" in str(outcome)
    assert "d2 ended: finished" in str(outcome)
