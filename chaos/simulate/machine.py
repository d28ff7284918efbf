"""Tier 2: Hypothesis drives the coordinator, its log and its sinks step by step, and prints a program if that fails.

:class:`CoordinatorMachine` uses the simulated world of tier 1.  Up to four drivers live at the same time; each runs for
some events and pauses again.  Faults happen in between.  A checkpoint is copied or edited, or a table is recreated.
:class:`FilesLogMachine` is a log in a folder that several processes use.

After each rule, the invariants that hold at any moment are checked.  All invariants are checked at the end, after every
paused driver has continued and one more start over one more epoch has converged.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from epochal.chaos.observe.checker import Verdict, judge_all
from epochal.chaos.observe.history import History
from epochal.chaos.simulate.driver import Driver
from epochal.chaos.simulate.explore import PIPELINES
from epochal.chaos.simulate.pipelines import Checkpoint, SimulatedCrash
from epochal.chaos.simulate.schedule import NETWORK, Action
from epochal.chaos.simulate.shrink import undisturbed
from epochal.chaos.simulate.simulation import Simulation
from epochal.checkpoints.disk import Disk
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Apply, Commit, Entry, Fence, LogPosition, Record
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Query
from epochal.coordinator.model.failpoints import Point

_ALL = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

DEFAULT = settings(
    max_examples=400,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=_ALL,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
"""Always the same runs.  They take some seconds."""

DEEP = settings(DEFAULT, max_examples=200, stateful_step_count=60, derandomize=False, print_blob=False)
"""Longer runs that depend on a seed.  :func:`fuzz` repeats them while there is time."""

ANYTIME = ("I2", "I3", "I4", "I5", "I7", "I12")
"""The invariants that are checked after each rule.  Some of the others hold only at the end."""

REFUSED = ("CheckpointMismatch", "MarkerLost")
EVENTS = st.integers(0, 70)
VERBS = ("prepare", "commit", "append-commit", "append-apply", "fence", "append-fence", "look", "abort", "commit")
"""The kinds of requests.  A commit is drawn twice as often as any other."""
OF_TRANSACTIONS = {"prepare": ("begin", "write"), "commit": ("end",)}
"""The requests by which a sink with an open transaction does the same."""
STEPS = (*sorted(set(VERBS)), *(point.value for point in Point), "planned", "returned", "committed")


class CoordinatorMachine(RuleBasedStateMachine):
    """Drivers, faults and an operator who changes things by hand, over one checkpoint."""

    drivers: Bundle[str] = Bundle("drivers")

    def __init__(self) -> None:
        super().__init__()
        self._world: Simulation | None = None
        self._living: dict[str, Driver] = {}
        self._started = 0
        self._failed = False
        self._scope = contextlib.ExitStack()

    @initialize(pipeline=st.sampled_from(sorted(PIPELINES)), compact_every=st.sampled_from([1, 3, 100]))
    def begin(self, pipeline: str, compact_every: int) -> None:
        """Make a world with this pipeline, whose log is compacted when ``compact_every`` records are obsolete."""
        self._world = Simulation(PIPELINES[pipeline], zombies=True)
        self._world.compact_every = compact_every
        self._scope.enter_context(undisturbed())
        self._scope.enter_context(failpoints.handler(self._world.hit))

    # --- drivers --------------------------------------------------------------------------------

    @precondition(lambda self: len(self._living) < 4)
    @rule(target=drivers, events=EVENTS, epochs=st.integers(1, 2))
    def start(self, events: int, epochs: int) -> MultipleResults[str] | str:
        """Start a driver for so many more epochs; it pauses after so many events."""
        self._started += 1
        name = f"d{self._started}"
        self._living[name] = self.world.driver(name, self._planned + epochs)
        return self._go(name, events=events)

    @rule(target=drivers, driver=consumes(drivers), events=EVENTS)
    def go_on(self, driver: str, events: int) -> MultipleResults[str] | str:
        """Continue a paused driver for so many events."""
        return self._go(driver, events=events)

    @rule(target=drivers, driver=consumes(drivers), step=st.sampled_from(STEPS))
    def go_to(self, driver: str, step: str) -> MultipleResults[str] | str:
        """Continue a paused driver until it comes to this step, or ends."""
        return self._go(driver, to=step)

    @rule(driver=consumes(drivers))
    def finish(self, driver: str) -> None:
        """Continue a paused driver to its end."""
        self._go_to_the_end(driver)

    @rule(driver=consumes(drivers))
    def crash(self, driver: str) -> None:
        """Kill a paused driver at its next event."""
        self.world.order(driver, "", Action.CRASH)
        self._go_to_the_end(driver)

    @rule(
        target=drivers,
        driver=consumes(drivers),
        action=st.sampled_from(NETWORK),
        verb=st.sampled_from(VERBS),
        events=EVENTS,
    )
    def fail(self, driver: str, action: Action, verb: str, events: int) -> MultipleResults[str] | str:
        """Let a network fault strike a paused driver's next ``verb`` request; continue it for so many events."""
        for each in (verb, *OF_TRANSACTIONS.get(verb, ())):
            self.world.order(driver, each, action)
        return self._go(driver, events=events)

    # --- the world ------------------------------------------------------------------------------

    @precondition(lambda self: self.world.server.late or self.world.log_network.late)
    @rule()
    def deliver_late(self) -> None:
        """Let all late requests arrive."""
        self.world.deliver_late()

    @precondition(lambda self: self._prepared)
    @rule()
    def lose_prepared(self) -> None:
        """Let every voting sink lose what is prepared, and let open transactions expire."""
        for name in self.world.pipeline.losing:
            self.world.server.lose_prepared(self.world.pipeline.app, name)

    # --- what an operator may do ----------------------------------------------------------------

    @precondition(lambda self: self._log)
    @rule()
    def run_a_copy(self) -> None:
        """Copy the checkpoint and start the copy.  It must be refused and must change nothing."""
        self._refused(self.world.checkpoint.copy("/copy"))

    @precondition(lambda self: self._fenced)
    @rule()
    def run_a_new_checkpoint(self) -> None:
        """Start the query with a new checkpoint.  After a sink was fenced, it must be refused and change nothing."""
        self._refused(Checkpoint(query_id="query-2"))

    @precondition(lambda self: any(isinstance(entry.record, (Commit, Apply)) for entry in self._log))
    @rule(data=st.data())
    def run_with_a_recreated_table(self, data: st.DataObject) -> None:
        """Drop a table and create it again.  A start must be refused.  Then restore the table."""
        newest = [entry.record for entry in self._log if isinstance(entry.record, (Commit, Apply))][-1]
        name = data.draw(st.sampled_from(sorted(newest.participants)), label="sink")
        app, server = self.world.pipeline.app, self.world.server
        table, history = server.table(app, name), self.world.history
        server.recreate(app, name)
        self.world.history = History()  # the coordinator must not be blamed for the missing rows
        try:
            self._refused(self.world.checkpoint)
        finally:
            server.restore(app, name, table)
            self.world.history = history

    @precondition(lambda self: not self._living and self._at_rest)
    @rule()
    def delete_the_newest_commit(self) -> None:
        """Delete ``commits/N`` while no driver lives.  Spark will run the epoch again."""
        checkpoint = self.world.checkpoint
        checkpoint.commits.remove(self._planned)
        del checkpoint.state[self._planned + 1]

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        """Check the invariants that hold at any moment."""
        if self._world is not None:
            found = judge_all(self._world.run_of(self._planned), ANYTIME)
            self._demand({name: f.why for name, f in found.items() if f.verdict is Verdict.FALSE})

    def teardown(self) -> None:
        """Continue all drivers to their ends; then one more start must converge, and all invariants must hold."""
        with self._scope:
            if self._world is not None and not self._failed:
                while self._living:
                    self._go_to_the_end(next(iter(self._living)))
                until = self._planned + 1
                self._world.converge(until)
                self._demand(self._world.outcome(until).wrong)
            for name in list(self._living):  # only after a failure; the threads must end
                self.world.order(name, "", Action.CRASH)
                self._go_to_the_end(name)

    # --- helpers --------------------------------------------------------------------------------

    @property
    def world(self) -> Simulation:
        assert self._world is not None, "begin comes first"
        return self._world

    @property
    def _planned(self) -> int:
        """The newest epoch that Spark has planned."""
        return max(self.world.checkpoint.offsets, default=-1)

    @property
    def _log(self) -> Sequence[Entry]:
        return self.world.checkpoint.log.read()

    @property
    def _prepared(self) -> bool:
        world = self.world
        return any(world.server.table(world.pipeline.app, name).prepared for name in world.pipeline.sinks)

    @property
    def _fenced(self) -> bool:
        return any(self.world.server.table(self.world.pipeline.app, name).fence for name in self.world.pipeline.sinks)

    @property
    def _at_rest(self) -> bool:
        return self._planned in self.world.checkpoint.commits

    def _go(self, name: str, *, to: str = "", events: int = 0) -> MultipleResults[str] | str:
        """Continue a driver until it ends, or until it comes to step ``to`` after it has passed it ``events`` times.

        The step "" stands for any event.  Return the driver's name if it still lives.
        """
        self.world.order(name, to, Action.PAUSE, after=events)
        self._go_to_the_end(name)
        return name if name in self._living else multiple()

    def _go_to_the_end(self, name: str) -> None:
        """Continue a driver until it ends, or to where it must pause."""
        if not self._living[name].go().paused:
            del self._living[name]

    def _refused(self, checkpoint: Checkpoint) -> None:
        """Make a start over this checkpoint.  It must be refused and must write nothing."""
        self._started += 1
        name, before = f"r{self._started}", self._content()
        driver = self.world.driver(name, max(checkpoint.offsets, default=-1) + 1, checkpoint).go()
        if driver.outcome not in REFUSED:
            self._demand({"refused": f"{name} ended with {driver.outcome}: {driver.error}"})
        if self._content() != before:
            self._demand({"refused": f"{name} was refused, and has written"})

    def _demand(self, wrong: Mapping[str, str]) -> None:
        """Fail with what is wrong, if anything is.  After that, nothing more is played."""
        self._failed = bool(wrong)
        assert not wrong, "; ".join(f"{name}: {why}" for name, why in wrong.items())

    def _content(self) -> object:
        """Everything that sinks and log hold."""
        app = self.world.pipeline.app
        return [self.world.server.table(app, name).copy() for name in self.world.pipeline.sinks], list(self._log)


class FilesLogMachine(RuleBasedStateMachine):
    """A log in a folder, with several simulated processes that append, read, compact, pause and die.

    The model has two promises.  A position never holds another record than the one that was read there, or whose append
    was confirmed.  A confirmed record stays until a compaction with a floor above it leaves it out.
    """

    calls: Bundle[str] = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="epochal-log-"))
        self._known: dict[LogPosition, Record] = {}
        self._answered: set[LogPosition] = set()
        self._floor = 0  # the highest floor that was requested
        self._begun = 0
        self._calls: dict[str, _Call] = {}  # the paused calls

    @precondition(lambda self: len(self._calls) < 3)
    @rule(target=calls, point=st.sampled_from([Point.LOG_BEFORE_APPEND, Point.LOG_AFTER_APPEND, None]))
    def append(self, point: Point | None) -> MultipleResults[str] | str:
        """Begin an append at the present end of the log.  It pauses at ``point``."""
        position = self._end()
        record = Fence(Actor(self._begun, 7), Query("flights", "query-1", "run", "/checkpoint"), 0)
        return self._begin(lambda: self._append(position, record), point)

    @precondition(lambda self: len(self._calls) < 3)
    @rule(target=calls, down=st.integers(0, 3), point=st.sampled_from([Point.LOG_AFTER_FLOOR, None]))
    def compact(self, down: int, point: Point | None) -> MultipleResults[str] | str:
        """Begin a compaction that drops every second record below a floor.  It pauses at ``point``."""
        floor = max(0, self._end() - down)
        kept = [entry for entry in self._read() if entry.position < floor and _stays(entry.position)]
        self._floor = max(self._floor, floor)
        return self._begin(lambda: self._open().compact(floor, kept), point)

    @rule(call=consumes(calls))
    def go_on(self, call: str) -> None:
        """Continue a paused call to its end."""
        self._calls.pop(call).go_on()

    @rule(call=consumes(calls))
    def crash(self, call: str) -> None:
        """Kill a paused call."""
        self._calls.pop(call).go_on(killed=True)

    @invariant()
    def holds(self) -> None:
        """Check that the log holds what was read before, and that no confirmed record is missing."""
        entries = self._read()
        for entry in entries:
            self._is_known(entry.position, entry.record)
        stay = {position for position in self._answered if position >= self._floor or _stays(position)}
        missing = stay - {entry.position for entry in entries}
        assert not missing, f"answered and gone: {sorted(missing)}"

    def teardown(self) -> None:
        """Continue all paused calls to their ends."""
        try:
            while self._calls:
                self._calls.popitem()[1].go_on()
            self.holds()
        finally:
            for call in self._calls.values():  # only after a failure; the threads must end
                call.go_on(killed=True)
            shutil.rmtree(self._folder)

    def _read(self) -> Sequence[Entry]:
        return self._open().read()

    def _open(self) -> FilesLog:
        return FilesLog(self._folder, disk=_Unsynced())

    def _end(self) -> LogPosition:
        return max([self._floor, *(entry.position + 1 for entry in self._read())])

    def _begin(self, work: Callable[[], None], point: Point | None) -> MultipleResults[str] | str:
        self._begun += 1
        name, call = f"call {self._begun}", _Call(work, point)
        call.begin()
        if call.ended:
            return multiple()
        self._calls[name] = call
        return name

    def _append(self, position: LogPosition, record: Record) -> None:
        if self._open().append(position, record):
            self._is_known(position, record)
            self._answered.add(position)

    def _is_known(self, position: LogPosition, record: Record) -> None:
        known = self._known.setdefault(position, record)
        assert known == record, f"position {position} holds {record}, and it held {known}"


def _stays(position: LogPosition) -> bool:
    """Whether compactions keep the record.  Only the position decides, so two compactions to the same floor agree."""
    return position % 2 == 0


class _Unsynced(Disk):
    """A disk that does not wait for writes to be durable.  Here processes die, but machines do not."""

    def sync(self, handle: int) -> None:
        """Do nothing."""

    def sync_folder(self, path: str) -> None:
        """Do nothing."""


class _Call:
    """A call in a simulated process.  It pauses when it first comes to ``point``."""

    def __init__(self, work: Callable[[], None], point: Point | None) -> None:
        self._work = work
        self._point = point
        self._killed = False
        self._error: BaseException | None = None
        self._wake, self._rest = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False

    def begin(self) -> None:
        """Run until the call ends or pauses."""
        self._run(threading.Thread(target=self._live, daemon=True).start)

    def go_on(self, *, killed: bool = False) -> None:
        """Continue to the end.  With ``killed``, die where the call paused."""
        self._killed = killed
        self._run(self._wake.release)

    def _run(self, wake: Callable[[], None]) -> None:
        with failpoints.handler(self._hit):
            wake()
            if not self._rest.acquire(timeout=300):
                raise AssertionError("a call neither ended nor paused")
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        try:
            self._work()
        except SimulatedCrash:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.ended = True
            self._rest.release()

    def _hit(self, point: Point, sink: str, epoch: int) -> None:  # noqa: ARG002
        if point is self._point:
            self._point = None
            self._rest.release()
            self._wake.acquire(timeout=300)
            if self._killed:
                raise SimulatedCrash


@dataclass(frozen=True)
class Fuzzed:
    """The result of fuzzing.  ``program``: that of the first failure, as Hypothesis prints it."""

    verdict: Verdict
    seed: int
    runs: int
    seconds: float  # by the clock
    program: str = ""

    def __str__(self) -> str:
        what = f"{self.verdict.value}: {self.runs} runs in {self.seconds:.0f} s; seed {self.seed}"
        return f"{what}\n{self.program}".strip()


def fuzz(
    *,
    seconds: float,
    seed: int = 0,
    machine: type[RuleBasedStateMachine] = CoordinatorMachine,
    profile: settings = DEEP,
) -> Fuzzed:
    """Run a machine until it fails or the time is over.  The same seed gives the same runs, as far as time allows."""
    began, runs = time.monotonic(), 0

    def make() -> RuleBasedStateMachine:
        nonlocal runs
        runs += 1
        return machine()

    for round_ in itertools.count():
        program = _failure(hypothesis.seed(f"{seed}, {round_}")(make), profile)
        elapsed = time.monotonic() - began
        if program or elapsed >= seconds:
            verdict = Verdict.FALSE if program else Verdict.TRUE
            return Fuzzed(verdict, seed, runs, elapsed, program)
    raise AssertionError("there is always another round")


def _failure(make: Callable[[], RuleBasedStateMachine], profile: settings) -> str:
    """The program of a run that fails, with the error; "" if no run fails."""
    try:
        run_state_machine_as_test(make, settings=profile)  # type: ignore[arg-type]
    except HypothesisException:
        raise
    except Exception as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    return ""
