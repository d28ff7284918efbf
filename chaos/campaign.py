"""Tier 4: a query in a process of its own, struck again and again, and judged by what outside readers saw.

First some epochs without any fault: an output that is not exact then proves nothing, and the verdict is
unknown.  Then one epoch per planned strike: its input is fed, a start that is armed for the strike is seen
blocked at the point, readers look, the victim is struck, and the next start has to cope with what is left.  At
the end one more epoch is fed and one more start, without faults, has to finish.

Starting Spark takes longer than an epoch, so the next start always stands by with its session up.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from epochal.chaos import checker, nemesis, program, targets, workloads
from epochal.chaos.checker import CHECKS, Finding, Run, Verdict
from epochal.chaos.failpoints import Point
from epochal.chaos.history import AtRest, Ended, Fault, Fed, History, Placed, Prepared, Row, Started, State
from epochal.chaos.nemesis import Death, Driver, NotCounted, Sighting
from epochal.chaos.roles import AT_THE_POINT, CheckedNemesis, CheckedReader, Input, Menu, Nemesis, Strike
from epochal.chaos.servers.process import Server
from epochal.chaos.servers.toxiproxy import Proxy
from epochal.chaos.watch import Keys, LockedHistory, Watcher
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit, EpochLog

IN_ONE_PROCESS = 3  # the tier
CLEAN_EPOCHS = 3
SEEN_S = 180.0
END_S = 300.0
HITS_S = 0.5  # between two looks at what was hit
EPOCH_S = 30.0  # for an epoch and a restart in one process, at most
OUTAGE_S = 1.0
LAST_TRIES = 3
BEYOND = 10**9  # ids of one run

ROWS_SEEN_TWICE = workloads.ROWS // 2 + 4
"""A row that one task sees only when it evaluates its half of an epoch for the second time."""

NETWORK: Mapping[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "lose-answer": Proxy.lose_answer,
    "half-open": Proxy.half_open,
    "latency": lambda link: link.latency(LATENCY_MS),
}
LATENCY_MS = 300

IN_THE_CALL = frozenset({Point.AT_ROW, Point.AFTER_JOB, Point.AFTER_PREPARE, Point.BEFORE_DECIDE})
"""Where an epoch is under way and undecided: a reader that looks now must see nothing of it."""

FOREIGN = ("I1", "I2", "I3", "I4", "I5", "I6", "I11", "I14", "I15")
"""What a function can be judged by that keeps no decisions and no fences."""
OURS = tuple(name for name in CHECKS if name != "I9")
FOREIGN_MENU = (
    Strike("kill", "driver", Point.AFTER_RETURN, 0),
    Strike("kill", "driver", Point.AT_ROW, 0, nth=5),
    Strike("kill", "worker", Point.AT_ROW, 0, nth=7),
    Strike("kill", "driver", Point.AFTER_JOB, 0),
    Strike("kill", "driver", Point.AFTER_JOB, 0, nth=2),
    Strike("kill", "driver", Point.AFTER_JOB, 0, nth=3),
    Strike("kill", "driver", Point.AT_ROW, 0, nth=ROWS_SEEN_TWICE),
    Strike("kill", "driver", Point.BEFORE_CALL, 0),
    Strike("raise", "driver", Point.AFTER_RETURN, 0),
    Strike("raise", "worker", Point.AT_ROW, 0, nth=3),
    Strike("pause", "driver", Point.AFTER_JOB, 0),
    Strike("pause", "driver", Point.AT_ROW, 0, nth=4),
)
"""For any batch function: before the call, at rows inside tasks, after its jobs, before ``commits/N``."""


def our_menu(sinks: Sequence[str]) -> tuple[Strike, ...]:
    """For a pipeline: every kind of moment in an epoch, in each of its sinks."""
    one = (
        Strike("kill", "driver", Point.AFTER_PREPARE, 0),
        Strike("kill", "driver", Point.BEFORE_DECIDE, 0),
        Strike("kill", "driver", Point.AFTER_DECIDE, 0),
        Strike("kill", "driver", Point.BEFORE_RETURN, 0),
        Strike("pause", "driver", Point.BEFORE_DECIDE, 0),
        Strike("raise", "driver", Point.AFTER_DECIDE, 0),
        Strike("kill", "worker", Point.AT_ROW, 0, nth=3),
    )
    each = (
        ("kill", Point.BEFORE_VOTE),
        ("kill", Point.BEFORE_PUBLISH),
        ("kill", Point.AFTER_PUBLISH),
        ("kill", Point.AFTER_SINK_COMMIT),
        ("pause", Point.BEFORE_PUBLISH),
    )
    return one + tuple(Strike(action, "driver", point, 0, sink) for sink in sinks for action, point in each)


ANSWERED = frozenset({Point.AFTER_PUBLISH, Point.LOG_AFTER_APPEND})
"""Where a request was applied and its answer can be lost."""

FOREIGN_ERRORS = (
    Strike("raise", "driver", Point.BEFORE_CALL, 0),
    Strike("raise", "worker", Point.AT_ROW, 0, nth=3),
    Strike("raise", "worker", Point.AT_ROW, 0, nth=ROWS_SEEN_TWICE),
    Strike("raise", "driver", Point.AFTER_RETURN, 0),
)
"""What can be done to a batch function without another process."""


def our_errors(sinks: Sequence[str]) -> tuple[Strike, ...]:
    """Tier 3: an error at every point of a start, of an epoch and of each sink; lost answers where one can be."""
    one = (
        Point.BEFORE_LOOK,
        Point.AFTER_LOOK,
        Point.BEFORE_FENCE,
        Point.AFTER_FENCE_RECORD,
        Point.AFTER_FENCE,
        Point.AFTER_LOOK_AGAIN,
        Point.BEFORE_SETTLE,
        Point.AFTER_SETTLE,
        Point.BEFORE_ABORT,
        Point.AFTER_ABORT,
        Point.LOG_BEFORE_APPEND,
        Point.LOG_AFTER_APPEND,
        Point.AFTER_IDENTIFY,
        Point.BEFORE_PREPARE,
        Point.AFTER_COPY,
        Point.AFTER_PREPARE,
        Point.BEFORE_DECIDE,
        Point.AFTER_DECIDE,
        Point.AFTER_COMMIT,
        Point.BEFORE_CLEAN,
        Point.BEFORE_RETURN,
        Point.BEFORE_CALL,
        Point.AFTER_RETURN,
        Point.AT_ROW,
    )
    each = (
        Point.BEFORE_SINK_FENCE,
        Point.AFTER_SINK_FENCE,
        Point.BEFORE_SINK_PREPARE,
        Point.IN_WRITE,
        Point.BEFORE_VOTE,
        Point.AFTER_SINK_PREPARE,
        Point.BEFORE_SINK_COMMIT,
        Point.BEFORE_PUBLISH,
        Point.AFTER_PUBLISH,
        Point.AFTER_SINK_COMMIT,
    )
    cells = [(point, "") for point in one] + [(point, sink) for sink in sinks for point in each]
    return tuple(
        Strike("drop-answer" if point in ANSWERED else "raise", "driver", point, 0, sink) for point, sink in cells
    )


def default_menu(target: targets.Target, tier: int) -> Nemesis:
    """What strikes a target when nobody says otherwise."""
    sinks = [sink.name for sink in target.sinks]
    if tier == IN_ONE_PROCESS:
        return Menu(our_errors(sinks) if target.ours else FOREIGN_ERRORS)
    return Menu(our_menu(sinks) if target.ours else FOREIGN_MENU)


AT_ONCE = ("I2", "I3", "I4", "I5")
"""What cannot become true again once it is false: enough to end a run early."""


class CannotTell(Exception):
    """The run proves nothing; the verdict is unknown."""


@dataclass(frozen=True)
class Plan:
    """What is run.  ``workload``: a name of :data:`workloads.NAMES`; ``seconds``: strike on until they are over."""

    target: str
    readers: Sequence[str] = ()
    rows: str = ""
    workload: str = "rows"
    tier: int = 4
    seed: int = 0
    strikes: int = 8
    seconds: float = 0.0
    stop_at_first: bool = False
    master: str = "local[2,4]"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The run, what it was judged by, and how it was struck."""

    run: Run
    findings: Mapping[str, Finding]
    struck: Sequence[Strike]
    unreached: Sequence[Strike]  # their points were never hit
    why_unknown: str = ""

    @property
    def verdict(self) -> Verdict:
        found = checker.overall(self.findings)
        return Verdict.UNKNOWN if self.why_unknown and found is not Verdict.FALSE else found

    def blamed(self) -> Sequence[Strike]:
        """The strike after which something was first seen to be wrong; all, where that is seen only at the end."""
        names = [name for name in AT_ONCE if name in self.findings]
        events = self.run.history.events
        begins = [at for at, fault in self.run.history.of(Fault) if not fault.healed]
        for strike, end in zip(self.struck, [*begins[1:], len(events)], strict=False):
            so_far = replace(self.run, history=History(events[:end]))
            if checker.overall(checker.judge_all(so_far, names)) is Verdict.FALSE:
                return (strike,)
        return tuple(self.struck)


Tell = Callable[[str], None]


class Campaign:
    """One run against one target, in a folder of its own."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        tell: Tell,
        *,
        menu: Nemesis | None = None,
        servers: Mapping[str, Server] | None = None,
        links: Mapping[str, Proxy] | None = None,
        base: int | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._tell = tell
        self._servers = servers or {}
        self._links = links or {}
        self._base = base if base is not None else int(time.time()) * 10**9
        self._target = targets.target(plan.target)
        reader, self._sinks, self._own = targets.readers(self._target, plan.readers)
        self._workload = workloads.make_workload(plan.workload, self._base)
        chosen = CheckedNemesis(menu if menu is not None else default_menu(self._target, plan.tier))
        number = plan.strikes if not plan.seconds else max(plan.strikes, int(plan.seconds))
        self._planned = chosen.plan(range(CLEAN_EPOCHS, CLEAN_EPOCHS + number), random.Random(plan.seed))
        self._fed: dict[int, Sequence[Input]] = {}
        self._expected: Mapping[int, tuple[Row, ...]] = {}
        self._starts = 0
        self._clean_was_exact = False
        self._standby: Driver | None = None
        self._standby_for: Strike | None = None
        self._live: list[Driver] = []
        self.history = LockedHistory()
        self._keys = Keys(self._base, self._base + BEYOND)
        checked = CheckedReader(reader, frozenset(self._sinks))
        self._watcher = Watcher(self.history, checked, self._keys, self._log)
        self._source.mkdir(parents=True)

    @property
    def _source(self) -> Path:
        return self._folder / "source"

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "checkpoint"

    def _log(self) -> EpochLog | None:
        if self._target.pipeline is None:
            return None
        if (own := self._target.pipeline._log) is not None:
            return own
        folder = self._checkpoint / "epochal" / "log"
        return FilesLog(folder) if folder.exists() else None

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> Result:
        """The verdict, whatever happens: what cannot be run to its end is unknown, not an error."""
        struck: list[Strike] = []
        unreached: list[Strike] = []
        why = ""
        try:
            self._clean()
            with self._watcher:
                if self._plan.tier == IN_ONE_PROCESS:
                    self._all_in_one_process(struck, unreached)
                else:
                    self._one_by_one(struck, unreached)
                self._last()
                self._watcher.wait_passes(2)
            self._at_rest()
            why = self._too_little(struck, unreached)
        except (CannotTell, NotCounted) as error:
            why = str(error)
        except Exception as error:  # of the kit itself, or of a server that did not come back
            why = f"the run could not be ended: {type(error).__name__}: {error}"
        finally:
            self._end_all()
        return Result(self._judged(), self._findings(), struck, unreached, why)

    def _clean(self) -> None:
        """Epochs without faults; CannotTell unless the output is exact."""
        self._tell(f"a run of {CLEAN_EPOCHS} epochs without faults")
        for epoch in range(CLEAN_EPOCHS):
            self._feed(epoch)
        driver = self._begin(self._start(create=True))
        if self._plan.tier != IN_ONE_PROCESS:
            self._stand_by(self._planned[0] if self._planned else None)
        end = self._wait_end(driver)
        if end.outcome != "finished":
            raise CannotTell(f"without any fault the query ended with {end.outcome}: {end.text}\n{driver.tail()}")
        try:
            self._watcher.look()
        except Exception as error:
            raise CannotTell(f"the output cannot be read: {type(error).__name__}: {error}") from error
        found = checker.judge_all(self._judged(), ("I1", "I2", "I11"))
        if checker.overall(found) is not Verdict.TRUE:
            wrong = "; ".join(f"{name}: {f.why}" for name, f in found.items() if not f)
            raise CannotTell(f"without any fault the output is not exact: {wrong}")
        self._clean_was_exact = True

    def _one_by_one(self, struck: list[Strike], unreached: list[Strike]) -> None:
        """Tier 4: a start per strike."""
        until = time.monotonic() + self._plan.seconds
        for number, strike in enumerate(self._planned):
            if self._plan.seconds and time.monotonic() > until:
                return
            after = self._planned[number + 1] if number + 1 < len(self._planned) else None
            (struck if self._one(strike, after) else unreached).append(strike)
            if self._plan.stop_at_first and self._is_wrong_already():
                self._tell("a violation was seen: the run ends here")
                return

    def _all_in_one_process(self, struck: list[Strike], unreached: list[Strike]) -> None:
        """Tier 3: one process, armed with all strikes, that starts the query again whenever it fails."""
        for epoch in sorted({strike.epoch for strike in self._planned}):
            self._feed(epoch)
        driver = self._begin(self._start(*self._planned, restarts=len(self._planned) + 1))
        unreached += self._planned
        deadline = time.monotonic() + END_S + EPOCH_S * len(self._planned)
        while driver.exit_status is None and time.monotonic() < deadline:
            time.sleep(HITS_S)
            self._tell_hits(driver, struck, unreached)
        end = self._wait_end(driver, HITS_S)
        self._tell_hits(driver, struck, unreached)
        self._tell(f"{len(struck)} of {len(self._planned)} errors struck; the process ended: {end.outcome}")

    def _tell_hits(self, driver: Driver, struck: list[Strike], unreached: list[Strike]) -> None:
        """Move what was hit since the last look."""
        for strike in [strike for strike in unreached if driver.was_hit(strike.rule)]:
            unreached.remove(strike)
            struck.append(strike)
            self._tell(f"{strike} ({len(struck)} of {len(self._planned)})")
            self.history.add(_fault(strike, driver))

    def _one(self, strike: Strike, after: Strike | None) -> bool:
        """Feed, begin, see blocked, strike; whether the strike counted.  ``after`` is the next one."""
        self._feed(strike.epoch)
        driver = self._begin(self._standing_by(strike))
        self._stand_by(after)
        try:
            sighting = self._see(driver, strike)
        except NotCounted as error:
            self._tell(f"{strike}: never reached ({str(error).splitlines()[0]})")
            if driver.exit_status is None:
                raise CannotTell(f"{strike}: the query hangs\n{driver.tail()}") from error
            self._ended(driver)
            return False
        if strike.point in IN_THE_CALL:
            self.history.add(Prepared(strike.epoch))
        if not self._watcher.wait_passes(2):
            raise CannotTell(f"nobody could read the output: {self._watcher.troubles[-3:]}")
        self._tell(f"{strike}: process {sighting.pid}")
        self._strike(driver, strike, sighting)
        return True

    def _last(self) -> None:
        """One more epoch and a start without faults, which has to finish."""
        epoch = max(self._fed) + 1
        self._feed(epoch)
        for attempt in range(LAST_TRIES):
            driver = self._begin(self._standing_by(None))
            end = self._wait_end(driver)
            if end.outcome == "finished":
                self._read_state(driver)
                self._tell(f"the last start finished, {epoch + 1} epochs in all")
                return
            self._tell(f"a start without faults ended with {end.outcome} ({attempt + 1} of {LAST_TRIES})")
        self._tell(driver.tail())

    # --- feeding --------------------------------------------------------------------------------

    def _feed(self, epoch: int) -> None:
        """More input, and what is expected now."""
        inputs = self._workload.inputs(epoch, self._base + epoch * workloads.STRIDE)
        self._fed[epoch] = inputs
        self._expected = self._keys.rows(self._workload.expected(self._fed))
        self.history.add(Fed(tuple(map(self._keys.key, self._workload.accounts(inputs)))))
        workloads.feed(self._source, epoch, inputs)

    # --- starts ---------------------------------------------------------------------------------

    def _start(self, *strikes: Strike, create: bool = False, restarts: int = 0) -> Driver:
        self._starts += 1
        settings = program.Settings(
            target=self._plan.target,
            workload=self._plan.workload,
            base=self._base,
            source=str(self._source),
            checkpoint=str(self._checkpoint),
            create=create,
            rows=self._plan.rows,
            master=self._plan.master,
            restarts=restarts,
            state=not strikes and not create and self._plan.workload in workloads.STATEFUL,
            conf=self._plan.conf,
        )
        path = self._folder / f"start-{self._starts}.json"
        settings.write(path)
        driver = Driver(
            ["-m", "epochal.chaos.program", str(path)],
            self._folder / f"start-{self._starts}",
            failpoints_armed=[strike.rule for strike in strikes],
        )
        self._live.append(driver)
        return driver

    def _stand_by(self, strike: Strike | None) -> None:
        self._standby, self._standby_for = self._new(strike), strike

    def _new(self, strike: Strike | None) -> Driver:
        return self._start(strike) if strike is not None else self._start()

    def _standing_by(self, strike: Strike | None) -> Driver:
        """The start that was made for this strike, or a new one."""
        if self._standby is not None and self._standby_for == strike and self._standby.exit_status is None:
            driver, self._standby = self._standby, None
            return driver
        return self._new(strike)

    def _begin(self, driver: Driver) -> Driver:
        self.history.add(Started(driver.folder.name))
        (driver.folder / program.BEGIN).touch()
        return driver

    def _wait_end(self, driver: Driver, timeout: float = END_S) -> program.End:
        try:
            driver.wait(timeout)
        except NotCounted as error:
            raise CannotTell(str(error)) from error
        return self._ended(driver)

    def _ended(self, driver: Driver) -> program.End:
        """Tell how a start ended that was not killed."""
        try:
            end = program.End(**json.loads((driver.folder / program.END).read_text()))
        except FileNotFoundError:
            end = program.End("unknown", named=not self._target.ours, definite=False, text=driver.tail(5))
        self._told_end(driver, end)
        return end

    def _told_end(self, driver: Driver, end: program.End) -> None:
        self.history.add(Ended(driver.folder.name, end.outcome, end.named, end.definite))
        driver.close()
        self._live.remove(driver)

    def _end_all(self) -> None:
        for driver in self._live:
            with contextlib.suppress(NotCounted):
                driver.close()

    # --- striking -------------------------------------------------------------------------------

    def _see(self, driver: Driver, strike: Strike) -> Sighting:
        if strike.action in AT_THE_POINT:
            return driver.see_hit(strike.rule, SEEN_S)
        return driver.see_blocked(strike.rule, SEEN_S)

    def _strike(self, driver: Driver, strike: Strike, sighting: Sighting) -> None:
        fault = _fault(strike, driver)
        self.history.add(fault)
        if strike.action == "pause":
            self._pause(driver, strike)
        elif strike.action == "crash":
            self._crash(driver, strike)
        elif strike.action in NETWORK:
            self._disturb(driver, strike)
        elif strike.action in AT_THE_POINT:
            self._wait_end(driver)
        elif strike.victim in ("driver", "checkpoint"):
            deaths = driver.kill()
            self._tell(f"  killed: {_pids(deaths)}")
            self._told_end(driver, program.End("killed"))
            if strike.action == "delete":
                self._lose_checkpoint(strike.epoch)
            return  # the next start is the end of it
        else:
            self._kill_below(driver, strike, sighting)
            self._wait_end(driver)
        self.history.add(replace(fault, healed=True))

    def _lose_checkpoint(self, epoch: int) -> None:
        """The checkpoint is gone, and the source keeps nothing that was read: only what is new is left."""
        shutil.rmtree(self._checkpoint)
        for read in range(epoch + 1):
            workloads.file_of(self._source, read).unlink(missing_ok=True)

    def _kill_below(self, driver: Driver, strike: Strike, sighting: Sighting) -> None:
        """SIGKILL to the worker that is blocked, or to the executor above it."""
        victim: int | None = sighting.pid
        if strike.victim == "executor":
            daemon = nemesis.parent_of(sighting.pid)
            victim = nemesis.parent_of(daemon) if daemon is not None else None
            if victim not in driver.executors():
                raise NotCounted(f"process {victim} is no executor of driver {driver.pid}")
        if victim is None or victim == driver.pid:
            raise NotCounted(f"{sighting} is no worker of driver {driver.pid}")
        self._tell(f"  killed: {_pids([nemesis.kill_seen(victim)])}")

    def _pause(self, driver: Driver, strike: Strike) -> None:
        """A zombie: halted, overtaken by a start that does all there is to do, and woken up again."""
        driver.pause()
        driver.go(strike.rule)
        newer = self._begin(self._start())
        self._tell(f"  overtaken: {self._wait_end(newer).outcome}")
        driver.resume()
        self._tell(f"  woken up: {self._wait_end(driver).outcome}")

    def _disturb(self, driver: Driver, strike: Strike) -> None:
        """The network between the driver and a server, for a while."""
        link = self._links[strike.victim]
        NETWORK[strike.action](link)
        driver.go(strike.rule)
        time.sleep(OUTAGE_S)
        link.clear()
        self._wait_end(driver)

    def _crash(self, driver: Driver, strike: Strike) -> None:
        server = self._servers[strike.victim]
        self._tell(f"  killed: {_pids([nemesis.crash(server)])}")
        driver.go(strike.rule)
        time.sleep(OUTAGE_S)
        server.start()
        self._wait_end(driver)

    # --- judging --------------------------------------------------------------------------------

    def _judged(self) -> Run:
        return Run(
            self.history,
            self._sinks,
            self._expected,
            counted=self._workload.counted,
            pending=self._workload.pending(self._fed),
            rewrites=not self._target.ours,
        )

    def _findings(self) -> dict[str, Finding]:
        """Nothing is judged where the output was not exact without faults."""
        return checker.judge_all(self._judged(), self._invariants()) if self._clean_was_exact else {}

    def _invariants(self) -> Sequence[str]:
        names = list(OURS if self._target.ours else FOREIGN)
        if self._plan.workload in workloads.STATEFUL:
            names.append("I9")
        if len(self._sinks) == 1:
            names.remove("I6")
        held = self._plan.tier != IN_ONE_PROCESS and any(strike.point in IN_THE_CALL for strike in self._planned)
        if not held:
            names.remove("I3")  # no reader was to look while an epoch is under way
        if not self._has_attempts():
            names.remove("I4")
        if self._target.ours and len(self._own) != len(self._sinks):
            names = [name for name in names if name not in ("I10", "I13")]
        return sorted(names, key=lambda name: int(name[1:]))

    def _has_attempts(self) -> bool:
        return any(row.attempt for rows in self.history.content.values() for row in rows)

    def _is_wrong_already(self) -> bool:
        names = [name for name in AT_ONCE if name in self._invariants()]
        return checker.overall(checker.judge_all(self._judged(), names)) is Verdict.FALSE

    def _too_little(self, struck: Sequence[Strike], unreached: Sequence[Strike]) -> str:
        if not struck:
            return f"no strike was seen to strike, {len(unreached)} were planned"
        if len(unreached) > len(struck):
            return f"of {len(struck) + len(unreached)} planned strikes only {len(struck)} were seen to strike"
        return ""

    def _read_state(self, driver: Driver) -> None:
        path = driver.folder / program.STATE
        if path.exists():
            told: dict[str, Any] = json.loads(path.read_text())
            self.history.add(State(told["epoch"], tuple(told["state"])))
            self.history.add(State(told["epoch"], tuple(told["reference"]), reference=True))

    def _at_rest(self) -> None:
        """Ask servers and checkpoint, now that nothing runs: leftovers (I13) and where the input ends (I10)."""
        for reader in self._own:
            self.history.add(AtRest(reader.sink, reader.left()))
        if self._target.pipeline is not None and self._own:
            self._tell_positions(self._target.pipeline._app)

    def _tell_positions(self, app: str) -> None:
        log = self._log()
        commits = [e.record for e in log.read() if isinstance(e.record, Commit)] if log is not None else []
        if not commits:
            return
        newest = commits[-1]
        offsets = (self._checkpoint / "offsets" / str(newest.epoch)).read_bytes()
        self.history.add(Placed(newest.epoch, "offsets", hashlib.sha256(offsets).hexdigest()))
        self.history.add(Placed(newest.epoch, "log", newest.decision.fingerprint, newest.decision.id))
        for reader in self._own:
            held = reader.decision(app, newest.decision.incarnation)
            due = newest.participants[reader.sink].committable.decision.id  # of a redone epoch it may be an older one
            self.history.add(Placed(newest.epoch, reader.sink, decision=newest.decision.id if held == due else held))


def _fault(strike: Strike, driver: Driver) -> Fault:
    return Fault(strike.action, strike.victim, strike.point.value, strike.sink, strike.epoch, driver.folder.name)


def _pids(deaths: Sequence[Death]) -> str:
    return ", ".join(f"{death.pid} (signal {death.signal})" for death in deaths)
