"""Anyone's sinks under the real coordinator, through schedules of faults, judged by what a reader sees.

The coordinator, the epoch log and the judging are those of the project; Spark is a few lines
(:mod:`epochal.chaos.simulation`).  A *trial* is one fresh target, one schedule, and starts of the query until
one has finished; each start makes its sinks anew, as a process does.  Faults strike where the coordinator hits
a failpoint, where it calls a sink or the log, where a sink takes a row, and at Spark's own steps:

========================  ==============================================================================
``CRASH``                 the start ends there, its sinks are closed, the next start recovers
``PAUSE``                 the start stands still until a newer one is done, and then goes on: a zombie
``UNAVAILABLE``           a verb is not called: ``SinkUnavailable``
``REQUEST_LOST``          a verb is not called, and the coordinator cannot know: ``OutcomeUnknown``
``ANSWER_LOST``           a verb is called, and the coordinator cannot know: ``OutcomeUnknown``
``LATE``                  as lost; it is called when the faults are over, by who then is an older start
``DROP_ANSWER``           a decision is durable in the log, and the coordinator cannot know
========================  ==============================================================================

Every schedule ends with a start without faults over one more epoch.  It survived when every invariant of
:mod:`epochal.chaos.checker` holds that a simulation can judge.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import textwrap
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from epochal.chaos import failpoints
from epochal.chaos.history import Changed, Read, Row, TookOver
from epochal.chaos.schedule import NETWORK, Action, Happening, Schedule, Strike, follow_ups, representatives, strikes
from epochal.chaos.simulation import Checkpoint, Driver, Outcome, Pipeline, Simulation, str_of
from epochal.coordinator.epoch import Actor, Committable, Epoch, Query, SinkState
from epochal.coordinator.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.sinks.memory import Row as StoredRow
from epochal.sinks.protocol import CommitOutcome, RedoSink, Rows, Schema, Sink, Stage

T = TypeVar("T")

APP = "chaos"
FAULTS = ("singles", "pairs")
ACTIONS = (Action.CRASH, Action.PAUSE, *NETWORK, Action.DROP_ANSWER)
SECONDS = (Action.CRASH, Action.PAUSE, Action.ANSWER_LOST)
"""What strikes a second time: while recovering, while an older start is paused, in the run after a lost answer."""


@dataclass(frozen=True)
class Target:
    """Where one trial writes: its own name, to be part of a file's or a table's, and its durable copies."""

    name: str  # [a-z0-9_], never given twice
    stage: Stage  # what a redo sink reads its copies from
    app: str = APP

    def __str__(self) -> str:
        return self.name


MakeSinks = Callable[[Target], Sequence[Sink]]
"""New sink objects on that target, as a process makes them that has just started."""
Reader = Callable[[Target], Mapping[str, Iterable[Mapping[str, Any]]]]
"""Sink name -> the rows that an independent reader sees now: mappings with at least id, attempt and epoch."""


@dataclass(frozen=True)
class Subject:
    """What is on trial."""

    sinks: MakeSinks
    read: Reader
    rows: Callable[[Sequence[StoredRow]], Rows] | None = None  # the rows as the sinks take them; None: mappings
    schema: Schema = None  # what `create` gets


@dataclass(frozen=True)
class Plan:
    """Which schedules a subject goes through.

    ``singles``: one fault, everywhere.  ``pairs``: these, and a second fault wherever it makes a difference after
    the first.  ``at_most``: no more than so many of them, chosen by ``seed``.  ``schedules``: exactly these.
    """

    faults: str = "singles"
    actions: tuple[Action, ...] = ACTIONS
    at_most: int | None = None
    seed: int = 0
    epochs: int = 2
    schedules: tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        if self.faults not in FAULTS:
            raise ValueError(f"faults={self.faults!r}: known are {', '.join(FAULTS)}")
        unknown = [action for action in self.actions if action not in ACTIONS]
        if unknown or not self.actions:
            raise ValueError(f"actions={self.actions!r}: known are {', '.join(str(action) for action in ACTIONS)}")
        if self.epochs < 1 or (self.at_most is not None and self.at_most < 1):
            raise ValueError(f"epochs={self.epochs!r}, at_most={self.at_most!r}: count from 1")


@dataclass
class Survival:
    """What a subject went through; ``traces`` tells schedules apart that led to the same sequence of steps."""

    plan: Plan
    schedules: int = 0
    traces: set[int] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.traces.add(hash(outcome.trace))

    def __str__(self) -> str:
        return f"{self.schedules} schedules, {len(self.traces)} distinct traces"


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
    for outcome in _outcomes(lambda schedule: play(subject, schedule, epochs=plan.epochs), plan):
        if outcome.wrong:
            raise DidNotSurvive(outcome)
        survival.add(outcome)
    return survival


def play(subject: Subject, schedule: Schedule = (), *, epochs: int = 2) -> Outcome:
    """One trial: a fresh target, the schedule over ``epochs`` epochs, and one more start without faults."""
    trial = Trial(subject, schedule)
    with failpoints.handler(trial.hit), _quiet(logging.getLogger("epochal")):
        try:
            trial.play(epochs - 1)
            trial.converge(epochs)
        except AssertionError as error:  # the simulation's own: a sink's end is the end of a start
            what, _, _ = str(error).partition(":")
            trial.stuck = f"{what}; the last error was {trial.last_error!r}"
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


# --- which schedules --------------------------------------------------------------------------------


def _outcomes(play: Callable[[Schedule], Outcome], plan: Plan) -> Iterator[Outcome]:
    if plan.schedules:
        yield from map(play, plan.schedules)
        return
    smooth = play(())
    if smooth.wrong:
        raise NotExact(f"without any fault: {_verdict(smooth)}\n\n{_story(smooth)}")
    first = [
        s for action in plan.actions for s in _sensible(smooth.happenings, strikes(smooth.happenings, "d1", action))
    ]
    if plan.faults == "singles":
        choice = random.Random(plan.seed)
        few = plan.at_most is not None and plan.at_most < len(first)
        yield from (play((strike,)) for strike in (choice.sample(first, plan.at_most or 0) if few else first))
    elif plan.at_most is None:
        yield from _all_pairs(play, plan, smooth, first)
    else:
        yield from _some_pairs(play, plan, plan.at_most, first)


def _all_pairs(
    play: Callable[[Schedule], Outcome], plan: Plan, smooth: Outcome, first: Sequence[Strike]
) -> Iterator[Outcome]:
    different = [s for s in first if s.action in NETWORK]
    different += representatives(smooth.happenings, [s for s in first if s.action not in NETWORK])
    for strike in first:
        outcome = play((strike,))
        yield outcome
        if strike in different:
            yield from (play(pair) for pair in _pairs(outcome, plan))


def _some_pairs(
    play: Callable[[Schedule], Outcome], plan: Plan, at_most: int, first: Sequence[Strike]
) -> Iterator[Outcome]:
    """Each first fault is played too, as it tells where a second can strike."""
    choice = random.Random(plan.seed)
    for _ in range((at_most + 1) // 2):
        outcome = play((choice.choice(first),))
        yield outcome
        pairs = _pairs(outcome, plan)
        if pairs:
            yield play(choice.choice(pairs))


def _pairs(outcome: Outcome, plan: Plan) -> list[Schedule]:
    """The schedule of ``outcome`` with one more fault, wherever it makes a difference afterwards."""
    (before,) = outcome.schedule
    seconds = [action for action in SECONDS if action in plan.actions]
    if before.action is Action.LATE:
        seconds.append(Action.DELIVER_LATE)
    found = [strike for action in seconds for strike in follow_ups(outcome.happenings, before, action, ("d1", "d2"))]
    return [(before, strike) for strike in _sensible(outcome.happenings, found)]


def _sensible(events: Sequence[Happening], found: Sequence[Strike]) -> list[Strike]:
    """Not: to stand still while a sink takes a row, as it may then hold what everybody else waits for."""
    kinds = {(e.driver, e.number): e.kind for e in events}
    return [s for s in found if s.action is not Action.PAUSE or kinds[s.driver, s.number] != "row"]


def _story(outcome: Outcome) -> str:
    """What each start came to, step by step, and how it ended; the starts in the order in which they were on."""
    struck = {(s.driver, s.number): s.action.value for s in outcome.schedule}
    lines = []
    for driver, events in itertools.groupby(outcome.happenings, key=lambda event: event.driver):
        steps = [" ".join(filter(None, (e.step, e.sink))) + _blow(struck.get((driver, e.number))) for e in events]
        lines.append(
            textwrap.fill(f"{driver}: {', '.join(steps)}", 110, subsequent_indent="    ", break_on_hyphens=False)
        )
    ends = (f"{driver} ended: {how}" for driver, how in outcome.ends)
    return "\n".join(["What happened:", *lines, *ends])


def _blow(action: str | None) -> str:
    return f" <== {action.upper()}" if action else ""


def _verdict(outcome: Outcome) -> str:
    struck = "; ".join(str(strike) for strike in outcome.schedule) or "no fault"
    wrong = "\n".join(f"  {name}: {why}" for name, why in outcome.wrong.items())
    return f"{struck}\n{wrong}"


# --- one trial --------------------------------------------------------------------------------------

_RUN = uuid.uuid4().hex[:8]  # a server may still have the targets of an earlier run
_serial = itertools.count(1)


class Trial(Simulation):
    """A simulated world in which the sinks, and what they write to, are somebody else's."""

    def __init__(self, subject: Subject, schedule: Schedule = ()) -> None:
        super().__init__(Pipeline((), app=APP), schedule)
        self.subject = subject
        self.target = Target(f"chaos_{_RUN}_{next(_serial):05}", self.stage)
        self._under_way: list[Callable[[], object]] = []
        self._unread: Exception | None = None
        self.owners: dict[str, Actor] = {}  # of the sinks' fences
        self.unbarred: list[str] = []
        self.stuck = ""
        self.last_error: Exception | None = None
        self.pipeline = self._create()

    def _create(self) -> Pipeline:
        made = self.subject.sinks(self.target)
        if not made:
            raise Misconfigured("the factory of sinks made none", help="return a list with at least one sink")
        for sink in made:
            sink.create(Query(APP, "", "", ""), self.subject.schema)
            sink.close()
        redo = tuple(sink.name for sink in made if isinstance(sink, RedoSink))
        return Pipeline(tuple(sink.name for sink in made if sink.name not in redo), redo, app=APP)

    def driver(self, name: str, until: int, checkpoint: Checkpoint | None = None, **options: Any) -> Driver:
        return TrialDriver(self, checkpoint or self.checkpoint, name, until, **options)

    # --- what an outside reader sees ------------------------------------------------------------

    def read(self) -> None:
        """Also in the middle of a verb, so a reader that fails must not look like a sink that does."""
        try:
            seen = self.subject.read(self.target)
            content = {name: tuple(_row(row) for row in seen[name]) for name in self.pipeline.sinks}
        except Exception as error:
            self._unread = error
            return
        self.history.add(Read(content))

    def left(self, until: int) -> list[str]:
        return [f"copy of epoch {epoch}" for epoch, _ in self.stage.copies() if epoch != until]

    def _more(self, ends: Mapping[str, str], until: int) -> Iterator[tuple[str, str]]:
        yield from super()._more(ends, until)
        if self.stuck:
            yield "stuck", self.stuck
        if self.unbarred:
            yield "fence", "; ".join(self.unbarred)
        if self._unread is not None:
            yield "reader", f"the reader failed with {type(self._unread).__name__}: {self._unread}"

    # --- requests -------------------------------------------------------------------------------

    def took_over(self, sink: str, by: Actor) -> None:
        """``by`` owns the fence now."""
        owner = self.owners.get(sink)
        if owner is not None and owner != by and owner.generation >= by.generation:
            self.unbarred.append(f"{sink} took the fence of {by} over that of {owner}")
        self.owners[sink] = by
        self.history.add(TookOver(sink, str_of(by)))

    def answered(self, verb: str, sink: str, by: Actor, owner: Actor | None) -> None:
        """A verb returned that must raise ``Fenced`` unless ``by`` was the ``owner`` when it was called."""
        if owner != by:
            self.unbarred.append(f"{verb} in {sink} by {by} was answered, and the fence was {owner or 'nobody'}'s")

    def later(self, request: Callable[[], object]) -> None:
        """The request is under way."""
        self._under_way.append(request)

    def deliver_late(self) -> None:
        """Nobody hears the answers; whether they did harm the reader sees."""
        super().deliver_late()
        arriving, self._under_way = self._under_way, []
        self.arriving = True
        try:
            for request in arriving:
                try:
                    request()
                    answer = "arrived"
                except EpochalError as error:
                    answer = type(error).__name__
                self.note("late", "", answer)
        finally:
            self.arriving = False
        self.read()


def _row(row: Mapping[str, Any]) -> Row:
    """What the kit fed: id, attempt, epoch, n; a table that keeps no n has none to get wrong."""
    key = int(row["id"])
    return Row(int(row["epoch"]), key, int(row["attempt"]), int(row["n"]) if "n" in row else key + 1)


class TrialDriver(Driver):
    """A start whose sinks are the subject's, at the other end of a network; they are closed when it ends."""

    world: Trial
    _remotes: list[Remote]

    def sinks(self) -> Sequence[Sink]:
        made = self.world.subject.sinks(self.world.target)
        self._remotes = [(RemoteRedo if isinstance(sink, RedoSink) else Remote)(sink, self.world) for sink in made]
        return self._remotes

    def _outcome(self) -> tuple[str, bool, bool]:
        """In the thread of the start: some clients may only be closed where they were made."""
        try:
            return super()._outcome()
        finally:
            self.world.last_error = self.error or self.world.last_error
            for remote in self._remotes:
                remote.close()


class Remote:
    """A sink whose verbs are requests: each can be lost, answered to nobody, or arrive late."""

    def __init__(self, sink: Sink, world: Trial) -> None:
        self._sink = sink
        self._world = world
        self._query: Query | None = None

    @property
    def name(self) -> str:
        return self._sink.name

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        return self._sink.create(query, schema)

    def check(self, query: Query, schema: Schema) -> None:
        self._sink.check(query, schema)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """A look that is lost has no effect, so it is merely unavailable."""
        self._query = query
        try:
            return self._request("look", lambda sink: sink.look(query, by=by), repeatable=False)
        except OutcomeUnknown as lost:
            raise SinkUnavailable(lost.what, sink=self.name, help=lost.help) from lost

    def fence(self, query: Query, by: Actor) -> None:
        def fence(sink: Sink) -> None:
            sink.fence(query, by)
            self._world.took_over(self.name, by)

        self._request("fence", fence)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        convert = self._world.subject.rows
        handed = Told(rows, lambda: self._world.happen("row", "row", self.name, epoch.number))
        given = handed if convert is None else convert(list(rows))
        return self._request("prepare", lambda sink: sink.prepare(epoch, given, by))

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        def commit(sink: Sink) -> CommitOutcome:
            before = self._world.owners.get(self.name)
            outcome = sink.commit(committable, by)
            self._world.answered("commit", self.name, by, before)
            if outcome is CommitOutcome.COMMITTED:
                # Whoever fenced while the commit was under way came after it, else it had been refused.
                overtaken = before != self._world.owners.get(self.name)
                where = f"{self.name}, then fenced" if overtaken else self.name
                self._world.history.add(Changed(where, str_of(by), shown=1))
            return outcome

        return self._request("commit", commit)

    def abort(self, query: Query, by: Actor) -> None:
        def abort(sink: Sink) -> None:
            before = self._world.owners.get(self.name)
            sink.abort(query, by)
            self._world.answered("abort", self.name, by, before)

        self._request("abort", abort)

    def close(self) -> None:
        self._sink.close()

    def guarantee(self) -> str:
        return self._sink.guarantee()

    def _request(self, verb: str, call: Callable[[Sink], T], *, repeatable: bool = True) -> T:
        action = self._world.happen("request", verb, self.name)
        if action is Action.UNAVAILABLE:
            self._world.note(verb, self.name, action.value)
            raise SinkUnavailable(f"the request to {verb} did not arrive", sink=self.name, help="simulated")
        if action is Action.LATE and repeatable:
            self._world.later(lambda: self._arrive(call))
        if action in (Action.LATE, Action.REQUEST_LOST):
            raise self._unanswered(verb)
        answer = self._answer(verb, call)
        if action is Action.ANSWER_LOST:
            raise self._unanswered(verb)
        return answer

    def _answer(self, verb: str, call: Callable[[Sink], T]) -> T:
        try:
            answer = call(self._sink)
        except Exception as error:
            self._world.note(verb, self.name, type(error).__name__)
            raise
        finally:
            if verb != "look":
                self._world.read()
        self._world.note(verb, self.name, answer.name if isinstance(answer, CommitOutcome) else "")
        return answer

    def _arrive(self, call: Callable[[Sink], object]) -> None:
        """By then the start is over, and its client with it: another sends the same."""
        assert self._query is not None, "every verb comes after a look"
        (twin,) = (sink for sink in self._world.subject.sinks(self._world.target) if sink.name == self.name)
        try:
            twin.look(self._query)
            call(twin)
        finally:
            twin.close()

    def _unanswered(self, verb: str) -> OutcomeUnknown:
        self._world.note(verb, self.name, "unanswered")
        return OutcomeUnknown(f"the request to {verb} was sent and its answer lost", sink=self.name, help="simulated")


class RemoteRedo(Remote):
    """Of a sink that redoes its rows from the durable copy."""

    needs_copy = True


class Told:
    """Rows that say when each is taken; of the source's own, every iteration is one more evaluation."""

    def __init__(self, rows: Iterable[StoredRow], tell: Callable[[], object]) -> None:
        self._rows = rows
        self._tell = tell

    def __iter__(self) -> Iterator[StoredRow]:
        for row in self._rows:
            yield row
            self._tell()
