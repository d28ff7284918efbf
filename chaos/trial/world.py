"""The simulated world of one trial: somebody else's sinks at the other end of a network that loses things."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

from epochal.chaos.history import Changed, Read, Row, Step, TookOver
from epochal.chaos.schedule import Action, Happening, Schedule
from epochal.chaos.simulation import Checkpoint, Driver, Pipeline, SimulatedCrash, Simulation, str_of
from epochal.coordinator.epoch import Actor, Committable, Epoch, Query, SinkState
from epochal.coordinator.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.sinks.memory import Row as StoredRow
from epochal.sinks.protocol import CommitOutcome, RedoSink, Rows, Schema, Sink, Stage

T = TypeVar("T")

FIRST_LINE = 1_000_000
"""Lines have numbers of their own, so that an edit of the sink leaves those of the other events as they are."""


@dataclass(frozen=True)
class Target:
    """Where one trial writes: its own name, to be part of a file's or a table's, and its durable copies."""

    name: str  # [a-z0-9_], never given twice
    stage: Stage  # what a redo sink reads its copies from

    @property
    def app(self) -> str:
        """The app of the trial's query: a server may keep what it knows of a sink by app and name."""
        return self.name

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


_RUN = uuid.uuid4().hex[:8]  # a server may still have the targets of an earlier run
_serial = itertools.count(1)


class Trial(Simulation):
    """A simulated world in which the sinks, and what they write to, are somebody else's."""

    def __init__(self, subject: Subject, schedule: Schedule = (), *, lines: bool = True) -> None:
        name = f"chaos_{_RUN}_{next(_serial):05}"
        super().__init__(Pipeline((), app=name), schedule)
        self.subject = subject
        self.lines = lines
        self._lines: Counter[str] = Counter()
        self._reading = False
        self.target = Target(name, self.stage)
        self._under_way: list[Callable[[], object]] = []
        self._unread: Exception | None = None
        self.owners: dict[str, Actor] = {}  # of the sinks' fences
        self.unbarred: list[str] = []
        self.last_error: Exception | None = None
        self.pipeline = self._create()

    def _create(self) -> Pipeline:
        made = self.subject.sinks(self.target)
        if not made:
            raise Misconfigured("the factory of sinks made none", help="return a list with at least one sink")
        for sink in made:
            sink.create(Query(self.target.app, "", "", ""), self.subject.schema)
            sink.close()
        redo = tuple(sink.name for sink in made if isinstance(sink, RedoSink))
        voting = tuple(sink.name for sink in made if sink.name not in redo)
        return Pipeline(voting, redo, app=self.target.app)

    def driver(self, name: str, until: int, checkpoint: Checkpoint | None = None, **options: Any) -> Driver:
        return TrialDriver(self, checkpoint or self.checkpoint, name, until, **options)

    # --- what an outside reader sees ------------------------------------------------------------

    def read(self) -> None:
        """Also in the middle of a verb, so a reader that fails must not look like a sink that does."""
        self._reading = True
        try:
            seen = self.subject.read(self.target)
            content = {name: tuple(_row(row) for row in seen[name]) for name in self.pipeline.sinks}
        except Exception as error:
            self._unread = error
            return
        finally:
            self._reading = False
        self.history.add(Read(content))

    def left(self, until: int) -> list[str]:
        return [f"copy of epoch {epoch}" for epoch, _ in self.stage.copies() if epoch != until]

    def _more(self, ends: Mapping[str, str], until: int) -> Iterator[tuple[str, str]]:
        yield from super()._more(ends, until)
        if self.stuck:
            yield "stuck", f"no driver finished; the last error was {self.last_error!r}"
        if self.unbarred:
            yield "fence", "; ".join(self.unbarred)
        if self._unread is not None:
            yield "reader", f"the reader failed with {type(self._unread).__name__}: {self._unread}"

    # --- lines ----------------------------------------------------------------------------------

    def line(self, place: str, sink: str) -> None:
        """The current start is at a line of the sink's code, and may have done something lasting in the one before."""
        driver = self.current
        if driver is None or self.arriving or self._reading:
            return
        number = FIRST_LINE + self._lines[driver.name]
        self._lines[driver.name] += 1
        self.touch()
        self.happenings.append(Happening(driver.name, number, "line", place, sink, -1, self._touches))
        index = self._strikes.get((driver.name, number))
        if index is not None:
            self.fired.add(index)
            self.history.trace.append(Step(driver.name, place, sink, Action.CRASH.value))
            raise SimulatedCrash

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
            with self._told_lines():
                answer = call(self._sink)
        except Exception as error:
            self._world.note(verb, self.name, type(error).__name__)
            raise
        finally:
            if verb != "look":
                self._world.read()
        self._world.note(verb, self.name, answer.name if isinstance(answer, CommitOutcome) else "")
        return answer

    @contextlib.contextmanager
    def _told_lines(self) -> Iterator[None]:
        """Python says at which line of the sink's methods it is; a debugger or coverage gets its turn back after."""
        if not self._world.lines:
            yield
            return
        codes = _codes(type(self._sink))

        def enter(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001
            return step if frame.f_code in codes else None

        def step(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001
            if event == "line":
                self._world.line(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}", self.name)
            return step

        before = sys.gettrace()
        sys.settrace(enter)
        try:
            yield
        finally:
            sys.settrace(before)

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


@functools.cache
def _codes(kind: type) -> frozenset[CodeType]:
    """What the methods of a class are made of, inherited ones and functions inside them too; Python's own aside."""
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in sys.stdlib_module_names]
    found = [getattr(inspect.unwrap(_function(member)), "__code__", None) for b in bases for member in vars(b).values()]
    return frozenset(code for outer in found if outer is not None for code in _nested(outer))


def _function(member: Any) -> Any:
    """The function behind what stands in a class body."""
    return getattr(member, "fget", None) or getattr(member, "__func__", None) or member


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


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
