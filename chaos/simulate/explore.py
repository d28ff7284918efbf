"""Tier 1: every fault, every pair of faults and samples of more, over the real coordinator in a simulated world.

An exploration is divided into *units*.  A unit is a part of the schedules of one :class:`Kind`, or a random sample.
Its schedules depend only on its fields.  So any number of processes can play the units, and the same seed always gives
the same samples.  Schedules are counted by their distinct *traces*.  A trace is a sequence of (actor, step, sink,
outcome).

A single fault strikes at every event.  In schedules of several faults, a crash or a pause strikes only once in every
group of events between which nothing shared or durable is read or written.  Nobody could see a difference.
"""

from __future__ import annotations

import array
import contextlib
import gc
import hashlib
import itertools
import multiprocessing
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from epochal.chaos.observe.checker import Verdict
from epochal.chaos.observe.history import Step
from epochal.chaos.simulate.pipelines import DRAWN, SAME, Pipeline
from epochal.chaos.simulate.schedule import NETWORK, Action, Strike, follow_ups, representatives, strikes
from epochal.chaos.simulate.shrink import Failure, shrink, undisturbed
from epochal.chaos.simulate.simulation import Outcome, Played, Simulation
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE

PIPELINES: Mapping[str, Pipeline] = {
    "one": Pipeline(("pg",)),
    "two": Pipeline(("pg",), ("kafka",)),
    "three": Pipeline(("delta", "pg"), ("kafka",)),
    "three-backwards": Pipeline(("delta", "pg"), ("kafka",), backwards=True),
    "redo": Pipeline((), ("kafka",)),
    "votes": Pipeline(("delta", "pg")),
    "transaction": Pipeline((), transactional=("kafka",)),
    "all-kinds": Pipeline(("pg",), ("log",), transactional=("kafka",)),
    "frame-beside-the-batch": Pipeline(("pg",), ("kafka",), frames=(("kafka", SAME),)),
    "frame-of-two": Pipeline(("delta", "pg"), frames=(("delta", DRAWN), ("pg", DRAWN))),
    "frame-of-all-kinds": Pipeline(
        ("pg",), ("log",), transactional=("kafka",), frames=tuple((name, DRAWN) for name in ("kafka", "log", "pg"))
    ),
    "idempotent-one": Pipeline(("pg",), modes=(IDEMPOTENT,)),
    "idempotent-redo": Pipeline((), ("kafka",), modes=(IDEMPOTENT,)),
    "idempotent-two": Pipeline(("pg",), ("kafka",), modes=(IDEMPOTENT,)),
    "idempotent-three": Pipeline(("delta", "pg"), ("kafka",), modes=(IDEMPOTENT,), backwards=True),
    "to-idempotent": Pipeline(("pg",), ("kafka",), modes=(TWO_PHASE, IDEMPOTENT)),
    "to-two-phase": Pipeline(("pg",), ("kafka",), modes=(IDEMPOTENT, TWO_PHASE)),
    "one-to-idempotent": Pipeline(("pg",), modes=(TWO_PHASE, IDEMPOTENT)),
    "one-to-two-phase": Pipeline(("pg",), modes=(IDEMPOTENT, TWO_PHASE)),
    "transaction-to-two-phase": Pipeline(("pg",), transactional=("kafka",), modes=(IDEMPOTENT, TWO_PHASE)),
}
"""The pipelines to try: several numbers and kinds of sinks, both orders of the sinks, and both modes."""

FIRST, SECOND, BOTH = ("d1",), ("d2",), ("d1", "d2")


@dataclass(frozen=True)
class Kind:
    """Schedules of one shape: ``first`` anywhere in the first driver, and after it ``then`` anywhere in ``drivers``.

    ``dies``: in between, the first driver is killed at the first event at which that makes a difference.
    """

    first: Action
    then: Action | None = None
    drivers: tuple[str, ...] = BOTH
    dies: bool = False

    def __str__(self) -> str:
        dies = ", killed" if self.dies else ""
        then = f", {self.then.value} in {'+'.join(self.drivers)}" if self.then is not None else ""
        return f"{self.first.value}{dies}{then}"

    def firsts(self, root: Played) -> list[Strike]:
        """Return all places for the first fault."""
        events = root.outcome.happenings
        found = strikes(events, "d1", self.first)
        return found if self.then is None or self.first in NETWORK else representatives(events, found)

    def grow(self, root: Played, first: Strike) -> Iterator[Outcome]:
        """Play all schedules of this kind that begin with ``first``."""
        played = root.then(first, grows=self.then is not None)
        if self.then is None:
            yield played.outcome
            return
        if self.dies:
            killed = follow_ups(played.outcome.happenings, first, Action.CRASH, FIRST)[0]
            played = played.then(killed, grows=True)
        last = played.outcome.schedule[-1]
        for strike in follow_ups(played.outcome.happenings, last, self.then, self.drivers):
            yield played.then(strike).outcome


SINGLES = tuple(Kind(action) for action in Action)

PAIRS = (
    Kind(Action.CRASH, Action.CRASH, SECOND),
    Kind(Action.PAUSE, Action.CRASH, SECOND),
    Kind(Action.PAUSE, Action.PAUSE, SECOND),
    Kind(Action.PAUSE, Action.CRASH, FIRST),
    *(Kind(action, Action.CRASH) for action in NETWORK),
    Kind(Action.CRASH, Action.ANSWER_LOST, SECOND),
    Kind(Action.CRASH, Action.LATE, SECOND),
    Kind(Action.PAUSE, Action.ANSWER_LOST),
    Kind(Action.LATE, Action.DELIVER_LATE),
    Kind(Action.LATE, Action.DELIVER_LATE, SECOND, dies=True),
    Kind(Action.LOSE_PREPARED, Action.CRASH),
    Kind(Action.CRASH, Action.LOSE_PREPARED, SECOND),
    Kind(Action.CRASH, Action.PAUSE, SECOND),
)
"""Pairs of faults that are known to break protocols."""

_OTHERS = tuple(
    Kind(first, then)
    for first in Action
    for then in Action
    if (first, then) not in {(kind.first, kind.then) for kind in PAIRS}
)

KINDS = (*SINGLES, *PAIRS, Kind(Action.PAUSE, Action.PAUSE, FIRST), *_OTHERS)
"""Every fault, and every ordered pair of faults."""


@dataclass(frozen=True)
class Unit:
    """A part of an exploration that one process plays in one piece.  ``kind=None``: a random sample with ``seed``."""

    pipeline: Pipeline
    epochs: int
    kind: Kind | None
    part: int
    seed: int = 0

    def outcomes(self, root: Played) -> Iterator[Outcome]:
        if self.kind is None:
            yield from sample(root, random.Random(f"{self.seed}, {self.pipeline}, {self.epochs}, {self.part}"))
        else:
            for first in self.kind.firsts(root)[self.part * _FIRSTS : (self.part + 1) * _FIRSTS]:
                yield from self.kind.grow(root, first)


_FIRSTS = 4  # how many first faults one unit has
_WIDTHS = (1, 1, 16, 16)  # how many different faults a sample tries as its first, second, third and fourth


def sample(root: Played, choice: random.Random) -> Iterator[Outcome]:
    """Play schedules of three and of four faults that begin with one random pair.

    The first fault alone and the pair alone are played, too.
    """
    played = root
    for width in _WIDTHS:
        found = _somewhere(played.outcome, choice, width)
        if not found:
            return
        first, *others = found
        before, played = played, played.then(first, grows=True)
        yield played.outcome
        yield from (before.then(strike).outcome for strike in others)


_DRAWN = (*Action, Action.CRASH, Action.CRASH, Action.CRASH)


def _somewhere(outcome: Outcome, choice: random.Random, width: int) -> list[Strike]:
    """At most ``width`` different faults after those of the schedule; none if there is no event left."""
    places: dict[Action, list[Strike]] = {}
    found: dict[Strike, None] = {}
    for _ in range(width + 10):
        action = choice.choice(_DRAWN)
        if action not in places:
            places[action] = _after(outcome, action)
        if places[action] and len(found) < width:
            found[choice.choice(places[action])] = None
    return list(found)


def _after(outcome: Outcome, action: Action) -> list[Strike]:
    """Strikes of ``action`` after the last fault, one for each difference that others can see."""
    drivers = sorted({event.driver for event in outcome.happenings} - {"last"})
    if outcome.schedule:
        return follow_ups(outcome.happenings, outcome.schedule[-1], action, drivers)
    return representatives(outcome.happenings, strikes(outcome.happenings, "d1", action))


@dataclass(frozen=True)
class Part:
    """The result of one unit.  ``error``: why it could not be played, which says nothing about the coordinator."""

    schedules: int = 0
    traces: bytes = b""  # 8 bytes per schedule
    seconds: float = 0.0  # processor time
    failures: tuple[Failure, ...] = ()
    error: str = ""


class Player:
    """Plays units.  It plays the run without faults, which many units need, only once."""

    def __init__(self) -> None:
        self._roots: dict[tuple[Pipeline, int], Played] = {}

    def root(self, pipeline: Pipeline, epochs: int) -> Played:
        """Return the run without faults."""
        if (pipeline, epochs) not in self._roots:
            self._roots[pipeline, epochs] = Played(Simulation(pipeline), epochs, grows=True)
        return self._roots[pipeline, epochs]

    def play(self, unit: Unit) -> Part:
        """Play all schedules of a unit."""
        traces, failures = array.array("Q"), []
        began = time.process_time()
        try:
            with undisturbed():
                for outcome in unit.outcomes(self.root(unit.pipeline, unit.epochs)):
                    traces.append(fingerprint(outcome.trace))
                    if outcome.wrong:
                        failures.append(Failure(unit.pipeline, outcome.schedule, unit.epochs, dict(outcome.wrong)))
        except Exception as error:
            return Part(error=f"{unit}: {type(error).__name__}: {error}")
        return Part(len(traces), traces.tobytes(), time.process_time() - began, tuple(failures[:_KEPT]))


_KEPT = 100  # how many failing schedules of one unit are kept


def fingerprint(trace: Sequence[Step]) -> int:
    """Return a hash of 64 bits of a trace; it is the same in every process."""
    text = "\n".join(map("\t".join, trace))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass
class Tally:
    """What was explored so far."""

    seed: int = 0
    schedules: int = 0
    seconds: float = 0.0  # processor time of all processes
    elapsed: float = 0.0  # seconds by the clock
    traces: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    whole: bool = False  # everything that was requested was played

    def add(self, part: Part) -> None:
        """Add the result of one unit."""
        self.schedules += part.schedules
        self.seconds += part.seconds
        self.traces.update(array.array("Q", part.traces))
        self.failures.extend(part.failures)
        if part.error:
            self.errors.append(part.error)

    @property
    def verdict(self) -> Verdict:
        """False if a schedule failed; unknown if a unit could not be played, or if none was played; else true."""
        if self.failures:
            return Verdict.FALSE
        return Verdict.TRUE if self.schedules and not self.errors else Verdict.UNKNOWN

    def __str__(self) -> str:
        speed = f", {len(self.traces) / self.seconds:.0f} a second" if self.seconds else ""
        return (
            f"{len(self.traces)} distinct traces of {self.schedules} schedules in {self.seconds:.0f} s of processor"
            f" time{speed}; seed {self.seed}"
        )


@dataclass(frozen=True)
class Explored:
    """The result: a verdict, its tally, and the first failing schedules, shrunk.  Each of them prints as a program."""

    verdict: Verdict
    tally: Tally
    failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.verdict.value}: {self.tally}", *self.tally.errors, *map(str, self.failures)]
        return "\n".join(lines)


def explore(
    *,
    pipelines: Iterable[Pipeline] = tuple(PIPELINES.values()),
    kinds: Sequence[Kind] = KINDS,
    epochs: Sequence[int] = (2,),
    samples: int = 0,
    traces: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    stop_early: bool = False,
    progress: Callable[[Tally], None] = lambda tally: None,  # noqa: ARG005
) -> Explored:
    """Play all schedules of ``kinds``, and samples of three and four faults.

    Without ``traces`` and ``seconds``, it ends after all schedules of ``kinds`` and ``samples`` units of samples.  With
    ``traces`` or ``seconds``, it goes on sampling, and ends after the first unit that reaches so many distinct traces,
    or so many seconds by the clock.

    * ``stop_early``: it also ends after the first unit with a failing schedule.
    * ``jobs``: number of processes.  With one, everything is played in this process.
    * ``progress``: called after each unit.

    With the same arguments and without ``seconds``, the schedules are the same, also with another number of ``jobs``.
    """
    player, tally, began = Player(), Tally(seed), time.monotonic()
    endless = traces is not None or seconds is not None
    work = _Work(player, tuple(pipelines), tuple(kinds), tuple(epochs), seed, None if endless else samples)
    with contextlib.closing(_played(work.units(), player, jobs)) as parts:
        for part in parts:
            tally.add(part)
            tally.elapsed = time.monotonic() - began
            progress(tally)
            reached = traces is not None and len(tally.traces) >= traces
            late = seconds is not None and tally.elapsed >= seconds
            if reached or late or tally.errors or (stop_early and tally.failures):
                break
        else:
            tally.whole = True
    return Explored(tally.verdict, tally, tuple(_shrunk(tally.failures)))


def _shrunk(failures: Sequence[Failure]) -> Iterator[Failure]:
    """Shrink the first failure of each set of broken invariants, and no more than three."""
    first: dict[frozenset[str], Failure] = {}
    for failure in failures:
        first.setdefault(frozenset(failure.wrong), failure)
    return map(shrink, itertools.islice(first.values(), 3))


@dataclass(frozen=True)
class _Work:
    """The units of an exploration.  Their order is mixed, so that any beginning has units of many kinds."""

    player: Player
    pipelines: tuple[Pipeline, ...]
    kinds: tuple[Kind, ...]
    epochs: tuple[int, ...]
    seed: int
    samples: int | None  # None: endless

    def units(self) -> Iterator[Unit]:
        if not self.pipelines:
            return
        listed = self._listed()
        sampled = itertools.islice(self._sampled(), self.samples)
        if self.samples is not None:
            yield from itertools.chain(listed, sampled)
            return
        for unit in sampled:  # listed and sampled units in turn, then only samples
            yield from itertools.islice(listed, 1)
            yield unit

    def _listed(self) -> Iterator[Unit]:
        """The units of all kinds: by number of epochs, single faults before pairs, then kinds and pipelines in turn."""
        for epochs, single in itertools.product(self.epochs, (True, False)):
            kinds = [kind for kind in self.kinds if (kind.then is None) is single]
            series = [self._parts(pipeline, epochs, kind) for kind in kinds for pipeline in self.pipelines]
            for units in itertools.zip_longest(*series):
                yield from (unit for unit in units if unit is not None)

    def _parts(self, pipeline: Pipeline, epochs: int, kind: Kind) -> list[Unit]:
        firsts = len(kind.firsts(self.player.root(pipeline, epochs)))
        return [Unit(pipeline, epochs, kind, part) for part in range(-(-firsts // _FIRSTS))]

    def _sampled(self) -> Iterator[Unit]:
        for part in itertools.count():
            for epochs, pipeline in itertools.product(self.epochs, self.pipelines):
                yield Unit(pipeline, epochs, None, part, self.seed)


def _played(units: Iterator[Unit], player: Player, jobs: int) -> Generator[Part, None, None]:
    """Play the units; yield their results in the same order."""
    if jobs == 1:
        yield from map(player.play, units)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as pool:
        waiting: deque[Future[Part]] = deque()
        try:
            for unit in units:
                waiting.append(pool.submit(_play, unit))
                if len(waiting) >= 8 * jobs:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _result(future: Future[Part]) -> Part:
    try:
        return future.result()
    except BrokenProcessPool as error:
        return Part(error=f"a process that played schedules died: {error}")


_player = Player()


def _begin() -> None:
    gc.collect()
    gc.freeze()


def _play(unit: Unit) -> Part:
    return _player.play(unit)
