"""Which schedules of faults the trials of a subject play.  They are found from events that really happen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from epochal.chaos.simulate.schedule import (
    NETWORK,
    Action,
    Happening,
    Schedule,
    Strike,
    follow_ups,
    representatives,
    strikes,
)
from epochal.chaos.simulate.simulation import Outcome

FAULTS = ("singles", "pairs")
ACTIONS = (Action.CRASH, Action.PAUSE, *NETWORK, Action.DROP_ANSWER)
SECONDS = (Action.CRASH, Action.PAUSE, Action.ANSWER_LOST)
"""Faults that may strike second: during recovery, while an older start is paused, or after a lost answer."""

LINES = ("line", "line called back")
"""Kinds of events inside a method of a sink.  A start must not pause at a line that other code called back."""
HALTS = ("fence", "commit", "abort")
"""A start may pause inside these methods.  They check a fence and act on it, and their changes can be seen."""

Play = Callable[[Schedule], Outcome]


@dataclass(frozen=True)
class Plan:
    """Which schedules a subject goes through.

    * ``faults``: ``singles`` plays one fault, at every event.  ``pairs`` adds a second fault after the first, wherever
      it makes a difference.
    * ``at_most``: play at most so many schedules, drawn by ``seed``, with the kinds of faults in turn.
    * ``lines``: also strike at each line of the sink's own code.  Use False for a sink whose steps depend on the time.
    * ``schedules``: play exactly these.

    Raises ValueError for unknown faults and actions, and for numbers below 1.
    """

    faults: str = "singles"
    actions: tuple[Action, ...] = ACTIONS
    at_most: int | None = None
    seed: int = 0
    epochs: int = 2
    lines: bool = True
    schedules: tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        if self.faults not in FAULTS:
            raise ValueError(f"faults={self.faults!r}: known are {', '.join(FAULTS)}")
        unknown = [action for action in self.actions if action not in ACTIONS]
        if unknown or not self.actions:
            raise ValueError(f"actions={self.actions!r}: known are {', '.join(str(action) for action in ACTIONS)}")
        if self.epochs < 1 or (self.at_most is not None and self.at_most < 1):
            raise ValueError(f"epochs={self.epochs!r}, at_most={self.at_most!r}: count from 1")


def outcomes(play: Play, smooth: Outcome, plan: Plan, found_more: Callable[[int], None]) -> Iterator[Outcome]:
    """Play the schedules of the plan, and call ``found_more`` with each number of further schedules that are found.

    ``smooth`` is the outcome without any fault.
    """
    found = (s for action in plan.actions for s in strikes(smooth.happenings, "d1", action))
    first = _sensible(smooth.happenings, found)
    found_more(len(first))
    if plan.faults == "singles":
        played = (
            outcome for strike in _drawn(plan, smooth, first) for outcome in _alone(play, smooth, strike, found_more)
        )
        yield from itertools.islice(played, plan.at_most)
    elif plan.at_most is None:
        yield from _all_pairs(play, plan, smooth, first, found_more)
    else:
        yield from itertools.islice(_some_pairs(play, plan, smooth, first, found_more), plan.at_most)


def _alone(play: Play, smooth: Outcome, strike: Strike, found_more: Callable[[int], None]) -> Iterator[Outcome]:
    """Play one fault.  If the start pauses inside ``abort``, play it once more with a second fault.

    In the second play, the next start pauses after its decision.  So the first start's abort continues while prepared
    work of another start exists, which it must not drop.
    """
    outcome = play((strike,))
    yield outcome
    aborts = _numbers([e for e in smooth.happenings if e.step.startswith("abort ")], ("line",))
    if strike.action is Action.PAUSE and (strike.driver, strike.number) in aborts:
        decided = [e.number for e in outcome.happenings if (e.driver, e.step) == ("d2", "after-decide")]
        if decided:
            found_more(1)
            yield play((strike, Strike("d2", decided[0], Action.PAUSE)))


def _all_pairs(
    play: Play, plan: Plan, smooth: Outcome, first: Sequence[Strike], found_more: Callable[[int], None]
) -> Iterator[Outcome]:
    """Play all single faults and all pairs.  A fault at a line is in no pair, as there are too many lines."""
    inside = _numbers(smooth.happenings, LINES)
    outside = [s for s in first if (s.driver, s.number) not in inside]
    different = [s for s in outside if s.action in NETWORK]
    different += representatives(smooth.happenings, [s for s in outside if s.action not in NETWORK])
    for strike in first:
        outcome, *more = _alone(play, smooth, strike, found_more)
        yield from (outcome, *more)
        if strike in different:
            lines = _numbers(outcome.happenings, LINES)
            seconds = [s for s in _seconds(outcome, plan) if (s.driver, s.number) not in lines]
            found_more(len(seconds))
            yield from (play((strike, s)) for s in seconds)


def _some_pairs(
    play: Play, plan: Plan, smooth: Outcome, first: Sequence[Strike], found_more: Callable[[int], None]
) -> Iterator[Outcome]:
    """Play random pairs.  Each first fault is also played alone, because this shows where a second can strike."""
    for turn in itertools.count():
        found = False
        for strike in _drawn(plan, smooth, first, turn):
            outcome = play((strike,))
            seconds = _seconds(outcome, plan)
            if turn == 0:
                found_more(len(seconds))
                yield outcome
            for second in itertools.islice(_drawn(plan, outcome, seconds, turn), 1):
                found = True
                yield play((strike, second))
        if not found:
            return


def _seconds(outcome: Outcome, plan: Plan) -> list[Strike]:
    """Strikes of one more fault after that of ``outcome``, wherever it makes a difference."""
    (before,) = outcome.schedule
    actions = [action for action in SECONDS if action in plan.actions]
    if before.action is Action.LATE:
        actions.append(Action.DELIVER_LATE)
    found = (s for action in actions for s in follow_ups(outcome.happenings, before, action, ("d1", "d2")))
    return _sensible(outcome.happenings, found)


def _drawn(plan: Plan, outcome: Outcome, found: Sequence[Strike], turn: int = 0) -> Iterator[Strike]:
    """Each strike once, in a random order from the seed.  Every kind of fault comes once before one comes again."""
    choice = random.Random(f"{plan.seed} {turn} {outcome.schedule}")
    lines = _numbers(outcome.happenings, LINES)
    kinds: dict[tuple[Action, bool], list[Strike]] = {}
    for strike in found:
        kinds.setdefault((strike.action, (strike.driver, strike.number) in lines), []).append(strike)
    for strikes_of_a_kind in kinds.values():
        choice.shuffle(strikes_of_a_kind)
    while kinds:
        for kind in choice.sample(list(kinds), len(kinds)):
            yield kinds[kind].pop()
            if not kinds[kind]:
                del kinds[kind]


def _sensible(events: Sequence[Happening], found: Iterable[Strike]) -> list[Strike]:
    """Only the strikes that make sense: inside a method a start can only crash, or pause at a line of ``HALTS``."""
    inside = _numbers(events, ("row", *LINES))
    halts = {(e.driver, e.number) for e in events if e.kind == "line" and e.step.startswith(HALTS)}
    barred: dict[Action, set[tuple[str, int]]] = {Action.CRASH: set(), Action.PAUSE: inside - halts}
    return [s for s in found if (s.driver, s.number) not in barred.get(s.action, inside)]


def _numbers(events: Sequence[Happening], kinds: Sequence[str]) -> set[tuple[str, int]]:
    return {(e.driver, e.number) for e in events if e.kind in kinds}
