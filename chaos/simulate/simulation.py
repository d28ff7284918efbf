"""The real coordinator in a simulated world: sinks, log and durable copy in memory, and a small model of Spark.

No part of the coordinator is replaced.  The rest of the world is simulated: a source, Spark's offsets and commits
logs, a stateful operator, the network, and the death of drivers.  Rows have the number of their evaluation, so a second
evaluation of an epoch is never mistaken for the first.

Only one driver runs at a time.  A paused driver (a zombie) continues after the newer drivers have ended.  So one
schedule always gives the same run.  If only one driver pauses, the newer driver is called inside its call; if several
pause, each has its own thread.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.chaos.observe.checker import Finding, judge_all
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
from epochal.chaos.observe.invariants import SIMULATED
from epochal.chaos.observe.run import Run
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

STARTS = 12  # one of so many drivers must finish; a schedule has fewer faults


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
        self.logs = [self.checkpoint.log]  # the logs whose decisions go into the history
        self._told: set[tuple[int, LogPosition]] = set()
        self.started = 0  # drivers that `play` has started
        self.stuck = False  # no driver finished
        self.unshown: list[str] = []  # what drivers that finished have not shown
        self._paused: list[Driver] = []
        self.branches: Branches | None = None  # if set, it keeps copies of this world
        self._touches = 0
        self.compact_every = 1
        self.renames: dict[str, str] = {}  # sink name -> another name under which the sink may be found
        self.current: Driver | None = None
        self._zombies = zombies
        self._pausing = [s.driver for s in schedule if s.action is Action.PAUSE]
        self._until = -1
        self._contents: dict[str, tuple[list[Shown], tuple[Row, ...]]] = {}
        self._orders: list[_Order] = []
        self.arriving = False  # late requests arrive now; their steps belong to no driver
        self._schedule = schedule
        self._strikes = {(s.driver, s.number): i for i, s in enumerate(schedule)}
        self._attempts = 0
        self._counts: dict[str, int] = {}
        self._drivers = 0
        for name in pipeline.sinks:
            self.server.create(pipeline.app, name)

    # --- running --------------------------------------------------------------------------------

    def play(self, until: int) -> None:
        """Start drivers, which are struck, until one has finished.  Zombies continue in between."""
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
        """Make one more start without faults, up to the epoch ``until``.  It must finish."""
        self.deliver_late()
        last = self.driver("last", until)
        last.go()

    def driver(self, name: str, until: int, checkpoint: Checkpoint | None = None, **options: Any) -> Driver:
        """Return a new start in this world.  It begins at ``go``."""
        modes = (options.get("pipeline") or self.pipeline).modes
        options.setdefault("mode", modes[self._drivers % len(modes)])
        self._drivers += 1
        return Driver(self, checkpoint or self.checkpoint, name, until, **options)

    def close(self) -> None:
        """End the use of this world.  References back to it are removed, so that the collector has less to do."""
        for part in (self.server, self.stage, self.log_network):
            vars(part).clear()

    # --- copies ---------------------------------------------------------------------------------

    @property
    def nobody_lives(self) -> bool:
        """Whether no driver but the current one lives and no late request is left, so that the world can be copied."""
        return not (self._paused or self.server.late or self.log_network.late)

    def copy(self, schedule: Schedule) -> Simulation:
        """Return a copy of the world as it is now, without any driver.  ``schedule`` must begin with its schedule."""
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
        twin.unshown[:] = self.unshown
        twin._touches, twin._attempts = self._touches, self._attempts
        twin._counts.update(self._counts)
        twin._contents.update(self._contents)
        return twin

    def killed(self, event: Happening) -> Simulation:
        """Return the world as it would be if the current driver were killed at ``event``, its newest event."""
        twin = self.copy((*self._schedule, Strike(event.driver, event.number, Action.CRASH)))
        twin.fired.add(len(self._schedule))
        twin.history.trace.append(Step(event.driver, event.step, event.sink, Action.CRASH.value))
        twin.ended(event.driver, "killed", named=True, definite=True)
        return twin

    # --- what the world reports -----------------------------------------------------------------

    def run_of(self, until: int) -> Run:
        """Return the history together with the rows that a run without failure would have shown."""
        planned = self.checkpoint.offsets
        expected = {
            epoch: tuple(Row(epoch, key, 0, key + 1) for key in range(*planned.get(epoch, (0, 0))))
            for epoch in range(until + 1)
        }
        return Run(self.history, self.pipeline.sinks, expected)

    def verdicts(self, until: int) -> dict[str, Finding]:
        return judge_all(self.run_of(until), SIMULATED)

    def outcome(self, until: int) -> Outcome:
        """Return what happened, and everything that is wrong in a world whose last start had no faults."""
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
        if self.unshown:
            yield "shown", f"{self.unshown}"
        if left := self.left(until):
            yield "leftovers", f"{left}"

    def left(self, until: int) -> list[str]:
        """Return what is still held for epochs that are over."""
        tables = {name: self.server.table(self.pipeline.app, self.kept_as(name)) for name in self.pipeline.sinks}
        left = [name for name, table in tables.items() if table.prepared]
        return left + [f"copy of epoch {epoch}" for epoch, _ in self.stage.copies() if epoch != until]

    def kept_as(self, sink: str) -> str:
        """Return the name under which the server has the sink: its own, or the other one of ``renames``."""
        return self.server.kept_as(self.pipeline.app, [sink, self.renames.get(sink, sink)])

    def read(self) -> None:
        """Record what an outside reader sees in all sinks."""
        self.history.add(Read({name: self._content(name) for name in self.pipeline.sinks}))

    def _content(self, name: str) -> tuple[Row, ...]:
        """The visible rows; the same object as before if nothing has changed."""
        kept = self.kept_as(name)
        shown = self.server.table(self.pipeline.app, kept).shown
        before, rows = self._contents.get(name, (None, ()))
        if shown != before:
            visible = self.server.visible(self.pipeline.app, kept)
            rows = tuple(Row(r["epoch"], r["id"], r["attempt"], r["n"]) for r in visible)
            self._contents[name] = list(shown), rows
        return rows

    def needs_thread(self, driver: str) -> bool:
        """Return whether the driver needs its own thread, because more than one driver may pause."""
        return self._zombies or (driver in self._pausing and len(self._pausing) > 1)

    def _pause(self, driver: Driver) -> None:
        """Pause the driver while the next driver runs and ends."""
        if self.needs_thread(driver.name):
            driver.pause()
            return
        self._paused.append(driver)
        self.started += 1
        self.driver(f"d{self.started}", self._until).go()
        self._paused.remove(driver)

    def evaluation(self, epoch: EpochNumber) -> int:
        """Record one more evaluation; return the number for its rows, which is 0 if evaluations are all the same."""
        self.touch()
        self._attempts += 1
        self.history.add(Evaluated(epoch, self._attempts))
        return 0 if self.pipeline.repeats else self._attempts

    def another(self) -> int:
        """Return a number for rows that no evaluation of a micro-batch and no other frame has."""
        self._attempts += 1
        return self._attempts

    def ended(self, driver: str, outcome: str, named: bool, definite: bool) -> None:
        """Record that a driver ended."""
        self.read()
        if outcome == "finished" and self.current is not None:
            self.unshown += self.unshown_by(self.current)
        self.history.add(Ended(driver, outcome, named, definite))
        self.history.trace.append(Step(driver, "end", "", outcome))

    def unshown_by(self, driver: Driver) -> Sequence[str]:
        """Return the sinks that do not show the newest epoch that a driver has finished."""
        keys = set(range(*driver.checkpoint.offsets.get(driver.until, (0, 0))))
        seen = {sink: {row.key for row in self._content(sink)} for sink in driver.pipeline.sinks}
        return [f"{driver.name} finished, and {sink} lacks rows" for sink, shown in seen.items() if not keys <= shown]

    # --- events ---------------------------------------------------------------------------------

    def touch(self) -> None:
        """Count that the driver reads or writes something shared or durable."""
        self._touches += 1

    def hit(self, point: Point, sink: str, epoch: int) -> None:
        if point is Point.LOG_AFTER_APPEND:
            self._tell_decisions()
        if point is Point.BEFORE_SETTLE:
            self.history.add(Accepted(self._actor()))
        if point is Point.AFTER_PREPARE:
            self.history.add(Prepared(epoch))
            self.read()
        self.happen("hit", point._value_, sink, epoch)  # `_value_` is faster than `value`

    def _actor(self) -> str:
        """The name of the actor that the current driver is."""
        assert self.current is not None, "nothing acts but a driver"
        actor = self.current.coordinator.status().actor
        assert actor is not None, "nothing acts before it has fenced"
        return actor_name(actor)

    def _tell_decisions(self) -> None:
        """Record what became durable in the logs.  This must happen at once, as the driver may stop here."""
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
        """Record an event of the current driver and carry out its strike, if there is one.

        Return a network fault, which the caller must carry out, else None.
        """
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
        """Strike ``driver`` at its next ``times`` visits to ``step``; the first ``after`` visits are not counted.

        For schedules written by hand.  The step "" stands for every event at which the action can happen.
        """
        self._orders.append(_Order(driver, step, action, sink, epoch, times, after))

    @property
    def all_struck(self) -> bool:
        return len(self.fired) == len(self._schedule)

    def unstruck(self) -> list[str]:
        """Return the orders that never struck; if there are any, the schedule did not happen as written."""
        return [f"{o.action.value} at {o.step} of {o.driver}" for o in self._orders if not o.struck]

    def _strike(self, driver: Driver, action: Action) -> Action | None:
        if action is Action.CRASH:
            raise SimulatedCrash
        if action is Action.PAUSE:
            self._pause(driver)
        elif action is Action.DROP_ANSWER:
            raise AnswerDropped("simulated")
        elif action is Action.LOSE_PREPARED:
            for name in self.pipeline.losing:
                self.server.lose_prepared(self.pipeline.app, name)
        elif action is Action.DELIVER_LATE:
            self.deliver_late()
        return action if action in NETWORK else None

    def deliver_late(self) -> None:
        """Let all late requests arrive at the server and at the log."""
        self.server.deliver_late()
        self.log_network.deliver_late()

    def note(self, step: str, sink: str, outcome: str) -> None:
        """Add to the trace how a request was answered.  This is not an event, so it cannot be struck."""
        who = self.current.name if self.current is not None and not self.arriving else "network"
        self.history.trace.append(_step((who, step, sink, outcome)))


# Named tuples made from plain tuples: twice as fast as the usual call, and a schedule has hundreds of them.
_happening = functools.partial(tuple.__new__, Happening)
_step = functools.partial(tuple.__new__, Step)


@dataclass
class Branches:
    """Copies of a world, from which the schedule can continue with one more fault without being played again.

    A copy cannot hold a living driver.  So copies are made where no driver lives: before each start of a driver, and
    after each possible crash.
    """

    starts: dict[str, Simulation] = field(default_factory=dict)  # driver -> just before it starts
    crashes: dict[tuple[str, int], Simulation] = field(default_factory=dict)  # (driver, event) -> killed there
    _touches: int = -1

    def keep(self, world: Simulation, event: Happening) -> None:
        """Keep a copy for each group of events that ``representatives`` tells apart, after all strikes have struck."""
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
        """Return whether this order strikes here, and count it."""
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
    """The result of one schedule."""

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
    """Play one schedule over ``epochs`` epochs, then one more start and one more epoch without faults.

    Return what happened and what is wrong.
    """
    return Played(Simulation(pipeline, schedule), epochs).outcome


class Played:
    """A schedule that was played.  With ``grows``, it keeps copies from which it can be played with one more fault."""

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
        """The crashes for which a copy of the world is kept."""
        crashes = self._branches.crashes if self._branches is not None else ()
        return [Strike(driver, number, Action.CRASH) for driver, number in crashes]

    def then(self, strike: Strike, *, grows: bool = False) -> Played:
        """Play the same schedule with one more fault, which strikes after all others."""
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
