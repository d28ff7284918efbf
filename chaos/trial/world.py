"""The simulated world of one trial: an author's sinks behind a network that loses requests and answers."""

from __future__ import annotations

import functools
import itertools
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from epochal.chaos.observe.history import Changed, Read, Row, Step, TookOver, actor_name
from epochal.chaos.simulate.driver import Driver
from epochal.chaos.simulate.pipelines import Checkpoint, Pipeline
from epochal.chaos.simulate.schedule import Action, Happening, Schedule
from epochal.chaos.simulate.simulation import Simulation
from epochal.chaos.trial.lines import Lines
from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Query, SinkState
from epochal.coordinator.model.errors import EpochalError, Misconfigured, OutcomeUnknown, PreparedLost, SinkUnavailable
from epochal.sinks.memory import Row as StoredRow
from epochal.sinks.protocol import CommitOutcome, RedoSink, Rows, Schema, Sink, Stage

T = TypeVar("T")

FIRST_LINE = 1_000_000
"""Lines are numbered from here, so that an edit of the sink does not change the numbers of other events."""


@dataclass(frozen=True)
class Target:
    """Where one trial writes: a unique name, for use in names of files or tables, and the stage of durable copies."""

    name: str  # of [a-z0-9_]; no other trial has it
    stage: Stage  # from which a redo sink reads its copies

    @property
    def app(self) -> str:
        """The app of the trial's query, as a server may keep data of a sink under its app and name."""
        return self.name

    def __str__(self) -> str:
        return self.name


MakeSinks = Callable[[Target], Sequence[Sink]]
"""Returns new sink objects on that target, as a process makes them that has just started."""
Reader = Callable[[Target], Mapping[str, Iterable[Mapping[str, Any]]]]
"""Returns sink name -> the rows that an independent reader sees now: mappings with at least id, attempt and epoch."""


@dataclass(frozen=True)
class Subject:
    """The sinks under test, with their reader."""

    sinks: MakeSinks
    read: Reader
    rows: Callable[[Sequence[StoredRow]], Rows] | None = None  # converts rows for the sinks; None: they take mappings
    schema: Schema = None  # the schema for `create`


_RUN = uuid.uuid4().hex[:8]  # makes names unique, as a server may still have the targets of an earlier run
_serial = itertools.count(1)


class Trial(Simulation):
    """A simulated world in which the sinks and their targets are real ones of an author."""

    def __init__(self, subject: Subject, schedule: Schedule = (), *, lines: bool = True) -> None:
        name = f"chaos_{_RUN}_{next(_serial):05}"
        super().__init__(Pipeline((), app=name), schedule)
        self.subject = subject
        self.lines = lines
        self._lines: Counter[str] = Counter()
        self._calls: dict[str, Call] = {}  # driver -> the method call that it is in
        self._at_lines = any(s.action is Action.PAUSE and s.number >= FIRST_LINE for s in schedule)
        self._reading = False
        self.target = Target(name, self.stage)
        self._under_way: list[Callable[[], object]] = []
        self._unread: Exception | None = None
        self.owners: dict[str, Actor] = {}  # sink -> the owner of its fence
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

    def unshown_by(self, driver: Driver) -> Sequence[str]:  # noqa: ARG002
        """Nothing: a sink of the user may leave rows out, so only the invariants say what it lacks."""
        return ()

    # --- what an outside reader sees ------------------------------------------------------------

    def read(self) -> None:
        """Record what the reader sees.

        This may happen in the middle of a method call, so an error of the reader must not look like one of the sink.
        """
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

    def line(self, verb: str, sink: str, where: str, called_back: bool) -> None:
        """Record that the current start is at a line of the sink's code, and strike there if the schedule says so.

        The line before may have changed something durable.
        """
        driver = self.current
        if driver is None or self.arriving or self._reading:
            return
        place, kind = f"{verb} {where}", "line called back" if called_back else "line"
        number = FIRST_LINE + self._lines[driver.name]
        self._lines[driver.name] += 1
        self.touch()
        self.happenings.append(Happening(driver.name, number, kind, place, sink, -1, self._touches))
        index = self._strikes.get((driver.name, number))
        if index is not None:
            action = self._schedule[index].action
            self.fired.add(index)
            self.history.trace.append(Step(driver.name, place, sink, action.value))
            self._strike(driver, action)

    def needs_thread(self, driver: str) -> bool:
        """A start that pauses at a line pauses inside a trace function; in that thread no other lines are traced."""
        return self._at_lines or super().needs_thread(driver)

    # --- starts that paused inside a method -----------------------------------------------------

    def called(self, call: Call) -> None:
        """Record the method call that the current start is in.  A late request belongs to no start."""
        if self.current is not None and not self.arriving:
            self._calls[self.current.name] = call

    def _pause(self, driver: Driver) -> None:
        tracing = sys.gettrace()
        sys.settrace(None)  # meanwhile other starts run on this stack; each must trace only its own method calls
        try:
            super()._pause(driver)
        finally:
            sys.settrace(tracing)
        call = self._calls.get(driver.name)
        if call is None:
            return
        owner = self.owners.get(call.sink)
        if owner not in (call.owner, call.by):
            call.overtaken, call.on_waking = owner, self._held(call)

    def returned(self, verb: str, call: Call) -> None:
        """End a method call.  If its actor was fenced during a pause, the sink must not have changed since then."""
        if self.current is not None and self._calls.get(self.current.name) is call:
            del self._calls[self.current.name]
        if call.on_waking is None:
            return
        now = self._held(call)
        call.changed = now is not None and now != call.on_waking
        if call.changed:
            self.unbarred.append(f"{verb} in {call.sink} by {call.by} changed it after {call.overtaken} had fenced it")

    def _held(self, call: Call) -> Held:
        """What a new sink object and the reader see in the sink; None if they cannot read it now."""
        self._reading, before = True, self._reading
        try:
            (stranger,) = (sink for sink in self.subject.sinks(self.target) if sink.name == call.sink)
            try:
                state = stranger.look(call.query)
            finally:
                stranger.close()
            return state, sorted(_row(row) for row in self.subject.read(self.target)[call.sink])
        except Exception:  # a paused start may block it; errors of the reader itself are reported elsewhere
            return None
        finally:
            self._reading = before

    # --- requests -------------------------------------------------------------------------------

    def took_over(self, sink: str, by: Actor) -> None:
        """Record that ``by`` owns the fence now.  It must be newer than the owner before."""
        owner = self.owners.get(sink)
        if owner is not None and owner != by and owner.generation >= by.generation:
            self.unbarred.append(f"{sink} accepted the fence of {by} after that of {owner}")
        self.owners[sink] = by
        self.history.add(TookOver(sink, actor_name(by)))

    def answered(self, verb: str, sink: str, by: Actor, owner: Actor | None) -> None:
        """Check a call that returned: it must have raised ``Fenced`` unless ``by`` was the ``owner`` when it began."""
        if owner != by:
            self.unbarred.append(f"{verb} in {sink} by {by} succeeded, but the fence belonged to {owner or 'nobody'}")

    def lost(self, sink: str, by: Actor) -> None:
        """Record that prepared rows were lost before the commit of the fence's owner.

        Only a late abort of that owner may have dropped them.
        """
        late = any(strike.action is Action.LATE for strike in self._schedule)
        if sink in self.pipeline.voting and self.owners.get(sink) == by and not late:
            self.unbarred.append(f"decided rows are gone from {sink} before {by} could commit them; who dropped them?")

    def later(self, request: Callable[[], object]) -> None:
        """Keep a request that arrives late."""
        self._under_way.append(request)

    def deliver_late(self) -> None:
        """Let late requests arrive.  Nobody gets the answers, and the reader shows whether they did harm."""
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
    """The row for the history, from id, attempt, epoch and n.  If the table has no n, the expected value is taken."""
    key = int(row["id"])
    return Row(int(row["epoch"]), key, int(row["attempt"]), int(row["n"]) if "n" in row else key + 1)


Held = Any  # what `Trial._held` returns


@dataclass
class Call:
    """One call of a method that checks the fence.  ``on_waking``: after a pause in it, what the sink held then."""

    sink: str
    query: Query
    by: Actor
    owner: Actor | None  # the owner of the fence when the call began
    answer: Any = None
    overtaken: Actor | None = None  # the newer start that took over while this one was paused
    on_waking: Held = None
    changed: bool = False  # whether the sink changed after the pause

    @property
    def before_the_newer(self) -> bool:
        """Whether a newer start took over during the call, and the call changed nothing after that."""
        return self.overtaken is not None and not self.changed


class TrialDriver(Driver):
    """A start with the subject's sinks behind a network.  They are closed when it ends."""

    world: Trial
    _remotes: list[Remote]

    def sinks(self) -> Sequence[Sink]:
        made = self.world.subject.sinks(self.world.target)
        self._remotes = [(RemoteRedo if isinstance(sink, RedoSink) else Remote)(sink, self.world) for sink in made]
        return self._remotes

    def _outcome(self) -> tuple[str, bool, bool]:
        """Run to the end and close the sinks in the same thread, because some clients demand that."""
        try:
            return super()._outcome()
        finally:
            self.world.last_error = self.error or self.world.last_error
            for remote in self._remotes:
                remote.close()


class Remote:
    """A sink whose method calls are requests: each can be lost, lose its answer, or arrive late."""

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
        """Look.  A lost look has no effect, so it raises SinkUnavailable and not OutcomeUnknown."""
        self._query = query

        def look(sink: Sink) -> SinkState:
            with self._lines("look").told():
                return sink.look(query, by=by)

        try:
            return self._request("look", look, repeatable=False)
        except OutcomeUnknown as lost:
            raise SinkUnavailable(lost.what, sink=self.name, help=lost.help) from lost

    def fence(self, query: Query, by: Actor) -> None:
        def fence(sink: Sink) -> None:
            call = self._call("fence", by, lambda: sink.fence(query, by))
            if not call.before_the_newer:
                self._world.took_over(self.name, by)

        self._request("fence", fence)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        convert = self._world.subject.rows
        handed = Told(rows, lambda: self._world.happen("row", "row", self.name, epoch.number))
        given = handed if convert is None else convert(list(rows))

        def prepare(sink: Sink) -> Committable:
            voted: Committable = self._call("prepare", by, lambda: sink.prepare(epoch, given, by)).answer
            return voted

        return self._request("prepare", prepare)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        def commit(sink: Sink) -> CommitOutcome:
            try:
                call = self._call("commit", by, lambda: sink.commit(committable, by))
            except PreparedLost:
                self._world.lost(self.name, by)
                raise
            self._world.answered("commit", self.name, by, call.owner)
            outcome: CommitOutcome = call.answer
            if outcome is CommitOutcome.COMMITTED:
                where = f"{self.name}, then fenced" if call.before_the_newer else self.name
                self._world.history.add(Changed(where, actor_name(by), shown=1))
            return outcome

        return self._request("commit", commit)

    def abort(self, query: Query, by: Actor) -> None:
        def abort(sink: Sink) -> None:
            call = self._call("abort", by, lambda: sink.abort(query, by))
            self._world.answered("abort", self.name, by, call.owner)

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

    def _call(self, verb: str, by: Actor, act: Callable[[], Any]) -> Call:
        """Make a call that checks the fence; return it.  Changes after a newer start took over are recorded."""
        assert self._query is not None, "every verb comes after a look"
        call = Call(self.name, self._query, by, self._world.owners.get(self.name))
        self._world.called(call)
        try:
            with self._lines(verb).told():
                call.answer = act()
        finally:
            self._world.returned(verb, call)
        return call

    def _lines(self, verb: str) -> Lines:
        tell = functools.partial(self._world.line, verb, self.name) if self._world.lines else None
        return Lines(type(self._sink), tell)

    def _arrive(self, call: Callable[[Sink], object]) -> None:
        """Send a late request with a new sink object, because its start and its client have ended by then."""
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
    """A remote sink that redoes its rows from the durable copy."""

    needs_copy = True


class Told:
    """Rows that call ``tell`` after each row.  If they are the source's own, every iteration evaluates them again."""

    def __init__(self, rows: Iterable[StoredRow], tell: Callable[[], object]) -> None:
        self._rows = rows
        self._tell = tell

    def __iter__(self) -> Iterator[StoredRow]:
        for row in self._rows:
            yield row
            self._tell()
