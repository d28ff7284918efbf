"""The real coordinator in a simulated world: sinks, log and durable copy in memory, Spark as a few lines.

Nothing of the coordinator is replaced.  What is simulated is the rest of the world: a source, Spark's
offsets and commits logs, a stateful operator, the network, the death of drivers.  Rows carry the number
of their evaluation, so a second evaluation of one epoch can never pass for the first.

Drivers run one at a time.  A paused driver (a zombie) goes on once the newer ones are done, so every run of one
schedule is the same run.  One that pauses alone waits on the stack; several need a thread each.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochal.chaos.observe.checker import SIMULATED, Finding, Run, judge_all
from epochal.chaos.observe.history import (
    Accepted,
    Decided,
    Ended,
    Evaluated,
    History,
    Prepared,
    Read,
    Row,
    Step,
    TookOver,
    actor_name,
)
from epochal.chaos.simulate.driver import Driver
from epochal.chaos.simulate.network import LogNetwork, WatchedServer, WatchedStage
from epochal.chaos.simulate.pipelines import Checkpoint, Pipeline, SimulatedCrash
from epochal.chaos.simulate.schedule import NETWORK, Action, Happening, Schedule, Strike, fits_action
from epochal.checkpoints.log import Fence, LogPosition, Operator, Record
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import (
    EpochNumber,
)
from epochal.coordinator.model.failpoints import AnswerDropped, Point
from epochal.sinks.memory import Shown

STARTS = 12  # of drivers, until one has to finish: more than a schedule has faults


class Simulation:
    """One world: what survives drivers, and the history of what happened in it."""

    def __init__(self, pipeline: Pipeline, schedule: Schedule = (), *, batch: int = 2, zombies: bool = False) -> None:
        self.pipeline = pipeline
        self.batch = batch  # inputs per epoch
        self.history = History()
        self.happenings: list[Happening] = []
        self.fired: set[int] = set()
        self.server = WatchedServer(self)
        self.stage = WatchedStage(self)
        self.log_network = LogNetwork(self)
        self.checkpoint = Checkpoint()
        self.logs = [self.checkpoint.log]  # those whose decisions the history tells
        self._told: set[tuple[int, LogPosition]] = set()
        self.started = 0  # drivers that `play` has started
        self.stuck = False  # no driver finished
        self._paused: list[Driver] = []
        self.branches: Branches | None = None  # set: keep copies to go on from
        self._touches = 0
        self.compact_every = 1
        self.renames: dict[str, str] = {}  # under which name a sink may be found, too
        self.current: Driver | None = None
        self._zombies = zombies
        self._pausing = [s.driver for s in schedule if s.action is Action.PAUSE]
        self._until = -1
        self._contents: dict[str, tuple[list[Shown], tuple[Row, ...]]] = {}
        self._orders: list[_Order] = []
        self.arriving = False  # late requests arrive: their steps are nobody's
        self._schedule = schedule
        self._strikes = {(s.driver, s.number): i for i, s in enumerate(schedule)}
        self._attempts = 0
        self._counts: dict[str, int] = {}
        self._drivers = 0
        for name in pipeline.sinks:
            self.server.create(pipeline.app, name)

    # --- running --------------------------------------------------------------------------------

    def play(self, until: int) -> None:
        """Drivers start, are struck, and start again until one has finished; zombies go on in between."""
        self._until = until
        while self.started < STARTS:
            if self.branches is not None and self.nobody_lives:
                self.branches.starts[f"d{self.started + 1}"] = self.copy(self._schedule)
            self.started += 1
            driver = self.driver(f"d{self.started}", until)
            driver.go()
            while driver.paused or self._paused:
                if driver.paused:
                    self._paused.append(driver)
                    if len(self._paused) < 2:
                        break
                driver = self._paused.pop(0)
                driver.go()
            if not driver.paused and driver.finished:
                return
        self.stuck = True

    def converge(self, until: int) -> None:
        """One more start without faults, over one more epoch; it must finish."""
        self.deliver_late()
        last = self.driver("last", until)
        last.go()

    def driver(self, name: str, until: int, checkpoint: Checkpoint | None = None, **options: Any) -> Driver:
        """A new start over this world; nothing happens before ``go``."""
        modes = (options.get("pipeline") or self.pipeline).modes
        options.setdefault("mode", modes[self._drivers % len(modes)])
        self._drivers += 1
        return Driver(self, checkpoint or self.checkpoint, name, until, **options)

    def close(self) -> None:
        """Nothing happens in it any more; what points back at it lets go, so a collector has little to do."""
        for part in (self.server, self.stage, self.log_network):
            vars(part).clear()

    # --- copies ---------------------------------------------------------------------------------

    @property
    def nobody_lives(self) -> bool:
        """Beside the current driver nobody does, and no request is under way: all that there is can be copied."""
        return not (self._paused or self.server.late or self.log_network.late)

    def copy(self, schedule: Schedule) -> Simulation:
        """The world as it is now, under a schedule that begins with its own; of drivers it holds nothing."""
        twin = Simulation(self.pipeline, schedule, batch=self.batch, zombies=self._zombies)
        twin.history.events[:], twin.history.trace[:] = self.history.events, self.history.trace
        twin.happenings[:] = self.happenings
        twin.fired |= self.fired
        twin.server.become(self.server)
        twin.stage.become(self.stage)
        twin.checkpoint = self.checkpoint.copy(self.checkpoint.path)
        twin.logs = [twin.checkpoint.log]
        twin.started, twin._drivers, twin.compact_every = self.started, self._drivers, self.compact_every
        twin._told |= self._told
        twin._touches, twin._attempts = self._touches, self._attempts
        twin._counts.update(self._counts)
        twin._contents.update(self._contents)
        return twin

    def killed(self, event: Happening) -> Simulation:
        """What there would be if the current driver were killed at this event, its newest."""
        twin = self.copy((*self._schedule, Strike(event.driver, event.number, Action.CRASH)))
        twin.fired.add(len(self._schedule))
        twin.history.trace.append(Step(event.driver, event.step, event.sink, Action.CRASH.value))
        twin.ended(event.driver, "killed", named=True, definite=True)
        return twin

    # --- what the world tells -------------------------------------------------------------------

    def run_of(self, until: int, checkpoint: Checkpoint | None = None) -> Run:
        """The history with what a run that never failed would have shown."""
        planned = (checkpoint or self.checkpoint).offsets
        expected = {
            epoch: tuple(Row(epoch, key, 0, key + 1) for key in range(*planned.get(epoch, (0, 0))))
            for epoch in range(until + 1)
        }
        return Run(self.history, self.pipeline.sinks, expected)

    def verdicts(self, until: int) -> dict[str, Finding]:
        return judge_all(self.run_of(until), SIMULATED)

    def outcome(self, until: int) -> Outcome:
        """All that is demanded of a world in which the last start was free of faults."""
        ends = tuple((end.driver, end.outcome) for _, end in self.history.of(Ended))
        wrong = {name: f"{f.verdict.value}: {f.why}" for name, f in self.verdicts(until).items() if not f}
        wrong.update(self._more(dict(ends), until))
        return Outcome(self._schedule, tuple(self.happenings), tuple(self.history.trace), ends, wrong)

    def _more(self, ends: Mapping[str, str], until: int) -> Iterator[tuple[str, str]]:
        if self.stuck:
            yield "finishes", f"of {self.started} drivers none did"
        if ends.get("last") != "finished":
            yield "converges", f"the start without faults ended with {ends.get('last')}"
        for index, strike in enumerate(self._schedule):
            if index not in self.fired:
                yield "struck", f"{strike} never happened"
            elif strike.action is Action.CRASH and ends.get(strike.driver) != "killed":
                yield "killed", f"{strike.driver} survived its crash: {ends.get(strike.driver)}"
        if left := self.left(until):
            yield "leftovers", f"{left}"

    def left(self, until: int) -> list[str]:
        """What is still held for epochs that are over."""
        tables = {name: self.server.table(self.pipeline.app, self.kept_as(name)) for name in self.pipeline.sinks}
        left = [name for name, table in tables.items() if table.prepared]
        return left + [f"copy of epoch {epoch}" for epoch, _ in self.stage.copies() if epoch != until]

    def kept_as(self, sink: str) -> str:
        """Its name, or the other one, by where the server has it."""
        return self.server.kept_as(self.pipeline.app, [sink, self.renames.get(sink, sink)])

    def read(self) -> None:
        """An outside reader looks at all sinks."""
        self.history.add(Read({name: self._content(name) for name in self.pipeline.sinks}))

    def _content(self, name: str) -> tuple[Row, ...]:
        """What is visible; the same object as before where nothing has changed."""
        kept = self.kept_as(name)
        shown = self.server.table(self.pipeline.app, kept).shown
        before, rows = self._contents.get(name, (None, ()))
        if shown != before:
            visible = self.server.visible(self.pipeline.app, kept)
            rows = tuple(Row(r["epoch"], r["id"], r["attempt"], r["n"]) for r in visible)
            self._contents[name] = list(shown), rows
        return rows

    def needs_thread(self, driver: str) -> bool:
        """Whether this one may stand still while an older one goes on: one pause alone is a call within a call."""
        return self._zombies or (driver in self._pausing and len(self._pausing) > 1)

    def _pause(self, driver: Driver) -> None:
        """It stands still while the next driver lives and ends."""
        if self.needs_thread(driver.name):
            driver.pause()
            return
        self._paused.append(driver)
        self.started += 1
        self.driver(f"d{self.started}", self._until).go()
        self._paused.remove(driver)

    def evaluation(self, epoch: EpochNumber) -> int:
        """The number that the rows of one more evaluation carry; 0 in those of a job that repeats itself."""
        self.touch()
        self._attempts += 1
        self.history.add(Evaluated(epoch, self._attempts))
        return 0 if self.pipeline.repeats else self._attempts

    def ended(self, driver: str, outcome: str, named: bool, definite: bool) -> None:
        """A driver is gone."""
        self.read()
        self.history.add(Ended(driver, outcome, named, definite))
        self.history.trace.append(Step(driver, "end", "", outcome))

    # --- events ---------------------------------------------------------------------------------

    def touch(self) -> None:
        """The driver reads or writes something that others share, or that outlives it."""
        self._touches += 1

    def hit(self, point: Point, sink: str, epoch: int) -> None:
        if point is Point.LOG_AFTER_APPEND:
            self._tell_decisions()
        if point is Point.BEFORE_SETTLE:
            self.history.add(Accepted(self._actor()))
        if point is Point.AFTER_PREPARE:
            self.history.add(Prepared(epoch))
            self.read()
        self.happen("hit", point._value_, sink, epoch)  # what `value` looks up, without looking

    def _actor(self) -> str:
        """As whom the current driver acts."""
        assert self.current is not None, "nothing acts but a driver"
        actor = self.current.coordinator.status().actor
        assert actor is not None, "nothing acts before it has fenced"
        return actor_name(actor)

    def _tell_decisions(self) -> None:
        """What became durable in the logs, told at once: whoever appended it may stop here."""
        for number, log in enumerate(self.logs):
            for entry in log.read():
                if (number, entry.position) not in self._told:
                    self._told.add((number, entry.position))
                    self._tell(entry.record)

    def _tell(self, record: Record) -> None:
        if isinstance(record, Fence):
            self.history.add(TookOver("log", actor_name(record.actor)))
        elif not isinstance(record, Operator):
            decided = Decided(record.epoch, record.decision.id, actor_name(record.actor), record.supersedes)
            self.history.add(decided)

    def happen(self, kind: str, step: str, sink: str = "", epoch: int = -1) -> Action | None:
        """One event of the current driver; what its strike, if any, leaves for the caller to do."""
        driver = self.current
        if driver is None or self.arriving:
            return None
        number = self._counts.get(driver.name, 0)
        self._counts[driver.name] = number + 1
        event = _happening((driver.name, number, kind, step, sink, epoch, self._touches))
        self.happenings.append(event)
        if kind == "request":
            self._touches += 1
        if self.branches is not None:
            self.branches.keep(self, event)
        index = self._strikes.get((driver.name, number)) if self._strikes else None
        for order in self._orders:
            if order.matches(event):
                return self._strike(driver, order.action)
        if index is None:
            if kind != "request":
                self.history.trace.append(_step((driver.name, step, sink, "")))
            return None
        action = self._schedule[index].action
        self.fired.add(index)
        self.history.trace.append(Step(driver.name, step, sink, action.value))
        return self._strike(driver, action)

    def order(
        self,
        driver: str,
        step: str,
        action: Action,
        *,
        sink: str = "",
        epoch: int | None = None,
        times: int = 1,
        after: int = 0,
    ) -> None:
        """Strike ``driver`` the next ``times`` that it comes to ``step``, once it has come there ``after`` times.

        For schedules written by hand.  The step "" is any at which the action means something.
        """
        self._orders.append(_Order(driver, step, action, sink, epoch, times, after))

    @property
    def all_struck(self) -> bool:
        return len(self.fired) == len(self._schedule)

    def unstruck(self) -> list[str]:
        """The orders that never struck: a schedule that did not happen."""
        return [f"{o.action.value} at {o.step} of {o.driver}" for o in self._orders if not o.struck]

    def _strike(self, driver: Driver, action: Action) -> Action | None:
        if action is Action.CRASH:
            raise SimulatedCrash
        if action is Action.PAUSE:
            self._pause(driver)
        elif action is Action.DROP_ANSWER:
            raise AnswerDropped("simulated")
        elif action is Action.LOSE_PREPARED:
            for name in self.pipeline.voting:
                self.server.lose_prepared(self.pipeline.app, name)
        elif action is Action.DELIVER_LATE:
            self.deliver_late()
        return action if action in NETWORK else None

    def deliver_late(self) -> None:
        """What is under way arrives, wherever it was sent to."""
        self.server.deliver_late()
        self.log_network.deliver_late()

    def note(self, step: str, sink: str, outcome: str) -> None:
        """An element of the trace that cannot be struck: how a request was answered."""
        who = self.current.name if self.current is not None and not self.arriving else "network"
        self.history.trace.append(_step((who, step, sink, outcome)))


# Named tuples from plain ones, twice as fast as by their names; there are hundreds of them in a schedule.
_happening = functools.partial(tuple.__new__, Happening)
_step = functools.partial(tuple.__new__, Step)


@dataclass
class Branches:
    """Copies of a world from which its schedule can go on to one more fault, without being played again.

    A copy holds nothing of a driver that lives, so there is one at each start of a driver, and one for each
    crash: it leaves nothing of the driver that died.
    """

    starts: dict[str, Simulation] = field(default_factory=dict)  # driver -> just before it starts
    crashes: dict[tuple[str, int], Simulation] = field(default_factory=dict)  # (driver, event) -> killed there
    _touches: int = -1

    def keep(self, world: Simulation, event: Happening) -> None:
        """A copy of each group of events that `representatives` tells apart, once all strikes have struck."""
        if event.touches != self._touches and world.all_struck and world.nobody_lives and event.driver != "last":
            self._touches = event.touches
            self.crashes[event.driver, event.number] = world.killed(event)


@dataclass
class _Order:
    driver: str
    step: str
    action: Action
    sink: str
    epoch: int | None
    times: int
    after: int
    struck: int = 0

    def matches(self, event: Happening) -> bool:
        """Whether this order strikes here; it is used up by that."""
        fits = self.driver == event.driver and self.sink in ("", event.sink) and self.epoch in (None, event.epoch)
        here = self.step == event.step or (not self.step and fits_action(event, self.action))
        if not (fits and here) or self.struck == self.times:
            return False
        self.after -= 1
        if self.after >= 0:
            return False
        self.struck += 1
        return True


@dataclass(frozen=True)
class Outcome:
    """What one schedule led to."""

    schedule: Schedule
    happenings: tuple[Happening, ...]
    trace: tuple[Step, ...]
    ends: tuple[tuple[str, str], ...]  # (driver, how it ended)
    wrong: Mapping[str, str]  # invariant or demand -> why it does not hold

    def __str__(self) -> str:
        struck = {(s.driver, s.number): s.action.value for s in self.schedule}
        lines = [
            f"{e.driver} {e.number}: {e.step} {e.sink} {struck.get((e.driver, e.number), '')}" for e in self.happenings
        ]
        return "\n".join([*lines, *(f"{d} ended: {how}" for d, how in self.ends), *map(str, self.wrong.items())])


def simulate(pipeline: Pipeline, schedule: Schedule = (), *, epochs: int = 2) -> Outcome:
    """Play one schedule over ``epochs`` epochs, then one more start and one more epoch without faults."""
    return Played(Simulation(pipeline, schedule), epochs).outcome


class Played:
    """A schedule, played, and if ``grows`` what is needed to play it again with one more fault, from late on."""

    def __init__(self, world: Simulation, epochs: int, *, grows: bool = False) -> None:
        self._pipeline = world.pipeline
        self._epochs = epochs
        self._branches = Branches() if grows else None
        world.branches = self._branches
        with failpoints.handler(world.hit):
            world.play(epochs - 1)
            world.branches = None
            world.converge(epochs)
        self.outcome = world.outcome(epochs)
        world.close()

    @property
    def crashes(self) -> list[Strike]:
        """The crashes from which this goes on without being played again."""
        crashes = self._branches.crashes if self._branches is not None else ()
        return [Strike(driver, number, Action.CRASH) for driver, number in crashes]

    def then(self, strike: Strike, *, grows: bool = False) -> Played:
        """The same schedule with one more fault, which strikes after all that it has."""
        return Played(self._world(strike), self._epochs, grows=grows)

    def _world(self, strike: Strike) -> Simulation:
        schedule = (*self.outcome.schedule, strike)
        if self._branches is not None:
            killed = self._branches.crashes.get((strike.driver, strike.number))
            if killed is not None and strike.action is Action.CRASH:
                return killed.copy(schedule)
            for number in range(int(strike.driver[1:]), 0, -1):
                if f"d{number}" in self._branches.starts:
                    return self._branches.starts[f"d{number}"].copy(schedule)
        return Simulation(self._pipeline, schedule)
