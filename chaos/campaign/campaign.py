"""A campaign strikes a query in its own process again and again, and judges what outside readers saw (tiers 3 and 4).

First come some epochs without any fault.  If their output is not exact, the run proves nothing and the verdict is
unknown.  Then comes one epoch per planned strike.  Its input is fed, and a start is armed for the strike.  When the
start is seen blocked at the point, readers look, and the victim is struck.  The next start must recover.  At the end,
one more epoch is fed, and one more start without faults must finish.  In tier 3 one process takes all strikes.

Starting Spark takes longer than an epoch.  Therefore a process with a Spark session always stands by for the next
start, and a process whose query ended by itself is used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from epochal.chaos.campaign import starts, striker
from epochal.chaos.campaign.plan import (
    AT_ONCE,
    FOREIGN,
    FOREIGN_POINTS,
    IN_ONE_PROCESS,
    OURS,
    Plan,
    Result,
    default_menu,
)
from epochal.chaos.campaign.starts import CannotTell, Starts
from epochal.chaos.campaign.striker import Striker, Surroundings
from epochal.chaos.job import program, targets, workloads
from epochal.chaos.job.targets import Usage
from epochal.chaos.job.workload import Input
from epochal.chaos.observe import checker, watch
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.history import AtRest, Content, Fed, Placed, Prepared, Row, State
from epochal.chaos.observe.roles import CheckedListener, CheckedReader
from epochal.chaos.observe.run import Run
from epochal.chaos.observe.watch import Keys, LockedHistory, Watcher
from epochal.chaos.servers.process import Server
from epochal.chaos.servers.toxiproxy import Proxy
from epochal.chaos.strike import disk, surgery
from epochal.chaos.strike.disk import Disk
from epochal.chaos.strike.nemesis import NotCounted
from epochal.chaos.strike.standby import Start
from epochal.chaos.strike.strikes import AT_THE_POINT, CheckedNemesis, Nemesis, Strike
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Apply, EpochLog
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.protocol.history import History as Records

CLEAN_EPOCHS = 3  # epochs without faults at the beginning
HITS_S = 0.5  # seconds between two checks of which strikes were hit
EPOCH_S = 30.0  # at most for an epoch and a restart in one process
LAST_TRIES = 3  # how many starts without faults may be needed at the end
BEYOND = 10**9  # how many ids one run has

IN_THE_CALL = frozenset(
    {Point.AT_ROW, Point.AFTER_JOB, Point.AFTER_PREPARE, Point.BEFORE_DECIDE, Point.BEFORE_APPLY, Point.AFTER_APPLY}
)
"""Points at which an epoch is under way and must not be visible yet.  A reader must see nothing of it."""

Tell = Callable[[str], None]


class Campaign:
    """One run against one target, in its own folder."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        tell: Tell,
        *,
        menu: Nemesis | None = None,
        servers: Mapping[str, Server] | None = None,
        links: Mapping[str, Proxy] | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._tell = tell
        self._base = int(time.time()) * 10**9
        self._target = targets.target(plan.target)
        reader, self._sinks, self._own = targets.readers(self._target, plan.readers)
        self._workload = workloads.make_workload(plan.workload, self._base)
        chosen = CheckedNemesis(menu if menu is not None else default_menu(self._target, plan.tier))
        number = plan.strikes if not plan.seconds else max(plan.strikes, int(plan.seconds))
        self._planned = chosen.plan(range(CLEAN_EPOCHS, CLEAN_EPOCHS + number), random.Random(plan.seed))
        targets.source(plan.source)
        self._fed: dict[int, Sequence[Input]] = {}
        self._expected: Mapping[int, tuple[Row, ...]] = {}
        self._after: Mapping[int, tuple[Row, ...]] = {}
        self._clean_was_exact = False
        self._ended = False
        self.history = LockedHistory()
        self._listener = CheckedListener.of(self.history)
        self._keys = Keys(self._base, self._base + BEYOND)
        checked = CheckedReader(reader, frozenset(self._sinks))
        self._watcher = Watcher(self.history, checked, self._keys, self._log)
        self._around = self._surroundings(servers or {}, links or {})
        self._starts = self._make_starts()
        self._striker = Striker(self._starts, self._around, self._listener, self._look, tell)
        for strike in self._planned:
            self._check(strike)
        self._around.source.mkdir(parents=True)

    def _check(self, strike: Strike) -> None:
        """Raise Usage if the strike cannot strike this target.

        If it only cannot be done on this machine, raise only if exactly this strike was requested.
        """
        inside = self._plan.tier == IN_ONE_PROCESS
        if inside and strike.action not in striker.INSIDE:
            raise Usage(f"{strike}: tier 3 is one process, which only {', '.join(sorted(striker.INSIDE))} can strike")
        if not self._target.ours and strike.point not in FOREIGN_POINTS:
            points = ", ".join(sorted(point.value for point in FOREIGN_POINTS))
            raise Usage(f"{strike}: a batch function has no such point, only {points}")
        if strike.sink and strike.sink not in self._sinks:
            raise Usage(f"{strike}: the target has the sinks {', '.join(self._sinks)}")
        if self._plan.all_must_strike and (why := self._around.why_not(strike)):
            raise Usage(f"{strike}: {why}")

    def _surroundings(self, servers: Mapping[str, Server], links: Mapping[str, Proxy]) -> Surroundings:
        """What the plan may strike besides the drivers.  A separate disk is made only if a strike needs it."""
        actions = {strike.action for strike in self._planned}
        own_disk = Disk(self._folder / "disk") if actions & set(striker.DISK) and not disk.why_not() else None
        return Surroundings(
            checkpoint=(own_disk.folder if own_disk is not None else self._folder) / "checkpoint",
            source=self._folder / "source",
            spare=self._folder / "spare",
            servers=servers,
            links=links,
            sinks={reader.sink: reader for reader in self._own},
            disk=own_disk,
        )

    def _make_starts(self) -> Starts:
        settings = program.Settings(
            target=self._plan.target,
            workload=self._plan.workload,
            base=self._base,
            source=str(self._around.source),
            checkpoint=str(self._around.checkpoint),
            rows=self._plan.source,
            master=self._plan.master,
            conf=self._plan.conf,
            repeats=self._target.idempotent,
        )
        return Starts(
            self._folder,
            settings,
            self._listener,
            stateful=self._plan.workload in workloads.STATEFUL,
            ours=self._target.ours,
        )

    def _log(self) -> EpochLog | None:
        if self._target.pipeline is None:
            return None
        if (own := self._target.pipeline.log) is not None:
            return own
        folder = surgery.log_of(self._around.checkpoint)
        return FilesLog(folder) if folder.exists() else None

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run the campaign.  Errors do not raise: a run that cannot be finished gives a result that proves nothing."""
        struck: list[Strike] = []
        unreached: list[Strike] = []
        why = ""
        try:
            with self._around.disk or contextlib.nullcontext():
                try:
                    self._clean()
                    self._fire(struck, unreached)
                    self._at_rest()
                    self._ended = True
                finally:
                    self._starts.close()
            why = self._too_little(struck, unreached)
        except (CannotTell, NotCounted) as error:
            why = str(error)
        except Exception as error:  # an error in the kit, or a server that did not come back
            why = f"the run could not be ended: {type(error).__name__}: {error}"
        run = self._judged(why)
        return Result(self._plan, run, self._findings(run), struck, unreached)

    def _clean(self) -> None:
        """Run epochs without faults.  Raises CannotTell unless the output is exact."""
        self._tell(f"a run of {CLEAN_EPOCHS} epochs without faults")
        for epoch in range(CLEAN_EPOCHS):
            self._feed(epoch)
        driver = self._starts.begin(create=True)
        end = self._starts.wait_end(driver)
        if not end.finished:
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
        if any(strike.action == "restore" for strike in self._planned):
            surgery.keep(self._around.checkpoint, self._around.backup)

    def _fire(self, struck: list[Strike], unreached: list[Strike]) -> None:
        """Carry out all strikes and a last start while the readers watch."""
        with self._watcher:
            if self._plan.tier == IN_ONE_PROCESS:
                self._all_in_one_process(struck, unreached)
            else:
                self._one_by_one(struck, unreached)
            self._last()
            self._look()

    def _one_by_one(self, struck: list[Strike], unreached: list[Strike]) -> None:
        """Tier 4: one start per strike."""
        until = time.monotonic() + self._plan.seconds
        for strike in self._planned:
            if self._plan.seconds and time.monotonic() > until:
                return
            (struck if self._one(strike) else unreached).append(strike)
            if self._plan.stop_at_first and self._is_wrong_already():
                self._tell("a violation was seen: the run ends here")
                return

    def _all_in_one_process(self, struck: list[Strike], unreached: list[Strike]) -> None:
        """Tier 3: one process is armed with all strikes, and starts the query again whenever it fails."""
        for epoch in sorted({strike.epoch for strike in self._planned}):
            self._feed(epoch)
        driver = self._starts.begin(*self._planned, restarts=len(self._planned) + 1)
        unreached += self._planned
        deadline = time.monotonic() + starts.END_S + EPOCH_S * len(self._planned)
        while driver.exit_status is None and time.monotonic() < deadline:
            time.sleep(HITS_S)
            self._tell_hits(driver, struck, unreached)
        end = self._starts.wait_end(driver, HITS_S)
        self._tell_hits(driver, struck, unreached)
        self._tell(f"{len(struck)} of {len(self._planned)} errors struck; the process ended: {end.outcome}")

    def _tell_hits(self, driver: Start, struck: list[Strike], unreached: list[Strike]) -> None:
        """Move strikes that were hit since the last look from ``unreached`` to ``struck``."""
        for strike in [strike for strike in unreached if driver.was_hit(strike.rule)]:
            unreached.remove(strike)
            struck.append(strike)
            self._tell(f"{strike} ({len(struck)} of {len(self._planned)})")
            self._struck_inside(driver, strike)

    def _struck_inside(self, driver: Start, strike: Strike) -> None:
        """Record a hit in tier 3.  An error has struck already; ``lose`` is done now, while the driver is held."""
        self._listener.add(striker.fault_of(strike, driver))
        if strike.action not in AT_THE_POINT:
            self._striker.lose(strike)
            driver.go(strike.rule)

    def _one(self, strike: Strike) -> bool:
        """Feed one epoch, begin a start, see it blocked, and strike.  Return whether the strike counted."""
        self._feed(strike.epoch)
        if why := self._around.why_not(strike):
            self._tell(f"{strike}: not possible here: {why}")
            return False
        driver = self._starts.begin(strike)
        self._starts.stand_by()
        try:
            sighting = striker.see(driver, strike)
        except NotCounted as error:
            self._tell(f"{strike}: never reached ({str(error).splitlines()[0]})")
            if driver.exit_status is None:
                raise CannotTell(f"{strike}: the query hangs\n{driver.tail()}") from error
            self._starts.ended(driver)
            return False
        if strike.point in IN_THE_CALL:
            # This look records an Apply.  Behind Prepared, the Apply would be taken for the decision.
            self._look()
            self._listener.add(Prepared(strike.epoch))
        self._look()
        self._tell(f"{strike}: process {sighting.pid}")
        try:
            self._striker.strike(driver, strike, sighting)
        except NotCounted as error:
            self._tell(f"{strike}: does not count: {error}")
            if self._starts.is_live(driver):
                raise
            return False
        return True

    def _look(self) -> Content:
        """Return what readers see after two more successful passes.  Raises CannotTell if they cannot read."""
        if not self._watcher.wait_passes(2, watch.STALE_S):
            raise CannotTell(f"nobody could read the output: {self._watcher.troubles[-3:]}")
        return dict(self.history.content)

    def _last(self) -> None:
        """Feed one more epoch, and start without faults until a start finishes, at most ``LAST_TRIES`` times."""
        epoch = max(self._fed) + 1
        self._feed(epoch)
        for attempt in range(LAST_TRIES):
            driver = self._starts.begin()
            end = self._starts.wait_end(driver)
            if end.finished:
                self._read_state(driver)
                self._tell(f"the last start finished, {epoch + 1} epochs in all")
                return
            self._tell(f"a start without faults ended with {end.outcome} ({attempt + 1} of {LAST_TRIES})")
        self._tell(driver.tail())

    # --- feeding --------------------------------------------------------------------------------

    def _feed(self, epoch: int) -> None:
        """Feed the input of an epoch, and compute what is expected now."""
        inputs = self._workload.inputs(epoch, self._base + epoch * workloads.STRIDE)
        self._fed[epoch] = inputs
        self._expected = self._keys.rows(self._workload.expected(self._fed))
        self._after = self._keys.named(self._workload.after(self._fed))
        self._listener.add(Fed(tuple(map(self._keys.key, self._workload.accounts(inputs)))))
        workloads.feed(self._around.source, epoch, inputs)

    # --- judging --------------------------------------------------------------------------------

    def _judged(self, proves_nothing: str = "") -> Run:
        return Run(
            self.history,
            self._sinks,
            self._expected,
            counted=self._workload.counted,
            pending=self._workload.pending(self._fed),
            rewrites=not self._target.ours,
            proves_nothing=proves_nothing,
            after=self._after,
            in_parts=tuple(reader.sink for reader in self._own if reader.in_parts),
        )

    def _findings(self, run: Run) -> dict[str, Finding]:
        """Judge the run.

        Judge nothing if the output was not exact without faults.  If the run did not reach its end, judge only the
        invariants that stay false for ever.
        """
        if not self._clean_was_exact:
            return {}
        names = self._invariants()
        return checker.judge_all(run, names if self._ended else [name for name in names if name in AT_ONCE])

    def _invariants(self) -> Sequence[str]:
        names = list(OURS if self._target.ours else FOREIGN)
        if self._plan.workload in workloads.STATEFUL:
            names.append("I9")
        if len(self._sinks) == 1:
            names.remove("I6")
        held = self._plan.tier != IN_ONE_PROCESS and any(strike.point in IN_THE_CALL for strike in self._planned)
        if not held:
            names.remove("I3")  # no strike holds an epoch while it is prepared and undecided
        if not self._has_attempts():
            names.remove("I4")
        if self._target.ours and not any((s.action, s.victim) == ("pause", "driver") for s in self._planned):
            names.remove("I12")  # no driver was overtaken while it could still do something
        if self._target.ours and len(self._own) != len(self._sinks):
            names = [name for name in names if name not in ("I10", "I13")]
        return sorted(names, key=lambda name: int(name[1:]))

    def _has_attempts(self) -> bool:
        return any(row.attempt for rows in self.history.content.values() for row in rows)

    def _is_wrong_already(self) -> bool:
        names = [name for name in AT_ONCE if name in self._invariants()]
        return checker.overall(checker.judge_all(self._judged(), names)) is Verdict.FALSE

    def _too_little(self, struck: Sequence[Strike], unreached: Sequence[Strike]) -> str:
        planned = len(struck) + len(unreached)
        needed = planned if self._plan.all_must_strike else max(1, (planned + 1) // 2)
        if len(struck) >= needed:
            return ""
        names = "; ".join(map(str, unreached))
        return f"of {planned} planned strikes only {len(struck)} were seen to strike, not {names or 'one'}"

    def _read_state(self, driver: Start) -> None:
        path = driver.folder / program.STATE
        if path.exists():
            told: dict[str, Any] = json.loads(path.read_text())
            self._listener.add(State(told["epoch"], tuple(told["state"])))
            self._listener.add(State(told["epoch"], tuple(told["reference"]), reference=True))

    def _at_rest(self) -> None:
        """Ask servers and checkpoint after everything ended for leftovers (I13) and the end of the input (I10)."""
        for reader in self._own:
            left = reader.left()
            self._listener.add(AtRest(reader.sink, left or (), asked=left is not None))
        if self._target.ours:
            self._listener.add(AtRest("copies", self._needless_copies()))
        if self._target.pipeline is not None and self._own:
            self._tell_positions(self._target.pipeline.app)

    def _needless_copies(self) -> tuple[str, ...]:
        """Durable copies of epochs that no record of the log needs."""
        log = self._log()
        needed = Records(tuple(log.read())).needed_copies() if log is not None else ()
        kept = {PurePath(copy.root).name for copy in needed}
        copies = self._around.checkpoint / "epochal" / "copies"
        return tuple(f"{c.parent.name}/{c.name}" for c in sorted(copies.glob("*/*")) if c.name not in kept)

    def _tell_positions(self, app: str) -> None:
        log = self._log()
        last = Records(tuple(log.read())).last if log is not None else None
        if last is None:
            return
        newest = last.current
        offsets = (self._around.checkpoint / "offsets" / str(newest.epoch)).read_bytes()
        self._listener.add(Placed(newest.epoch, "offsets", hashlib.sha256(offsets).hexdigest()))
        self._listener.add(Placed(newest.epoch, "log", newest.decision.fingerprint, newest.decision.id))
        for reader in self._own:
            held = reader.decision(app, newest.decision.incarnation)
            proof = last.records if isinstance(newest, Apply) else (newest,)  # each start writes its own Apply record
            due = {record.decision_of(reader.sink).id for record in proof if reader.sink in record.participants}
            decision = newest.decision.id if held in due else held  # after a redo it may be an older one
            self._listener.add(Placed(newest.epoch, reader.sink, decision=decision))
