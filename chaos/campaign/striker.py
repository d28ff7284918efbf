"""How each kind of strike is carried out against a driver that was seen at its point, and how it is undone.

=========================================  ====================================================================
kill, raise, drop-answer                   kill a process, or raise an error in it
pause of the driver                        stop the driver, let another start overtake it, and continue it: it
                                           is then a zombie
pause of an executor, worker or server     stop it for some seconds
crash, cut, lose-answer, half-open,        disturb a server, or the network to it, for a second
latency, slow-close
fill, read-only                            disturb the disk under the checkpoint until the driver has ended
lose                                       delete what one sink has prepared
replay, roll-back, forget-log, restore,    kill the driver and change the files of the checkpoint.  If the next
delete                                     start refuses them, put the old files back
copy                                       start a second driver on a copy of the checkpoint
=========================================  ====================================================================
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from epochal.chaos.campaign.starts import CannotTell, Starts
from epochal.chaos.job import program, workloads
from epochal.chaos.observe.history import Changed, Content, Fault, TookOver
from epochal.chaos.observe.readers import SinkReader
from epochal.chaos.observe.roles import Listener
from epochal.chaos.servers import guard
from epochal.chaos.servers.process import Server
from epochal.chaos.servers.toxiproxy import Proxy
from epochal.chaos.strike import disk, nemesis, surgery
from epochal.chaos.strike.disk import Disk
from epochal.chaos.strike.nemesis import Death, NotCounted, Sighting
from epochal.chaos.strike.standby import Start
from epochal.chaos.strike.strikes import AT_THE_POINT, SERVERS, Strike

SEEN_S = 180.0  # how long to wait until a process is at the point
OUTAGE_S = 1.0  # how long a server or its network is disturbed
HALT_S = 5.0  # how long an executor, a worker or a server is paused
LATENCY_MS = 300

NETWORK: Mapping[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "lose-answer": Proxy.lose_answer,
    "half-open": Proxy.half_open,
    "latency": lambda link: link.latency(LATENCY_MS),
    "slow-close": lambda link: link.slow_close(LATENCY_MS),
}
DISK: Mapping[str, tuple[Callable[[Disk], None], Callable[[Disk], None]]] = {
    "fill": (Disk.fill, Disk.drain),
    "read-only": (Disk.read_only, Disk.writable),
}
INSIDE = AT_THE_POINT | {"lose"}
"""Actions that can strike several times in one process, which goes on afterwards."""
SURGERY = frozenset(surgery.OPERATIONS) | {"restore"}


@dataclass
class Surroundings:
    """Everything that can be struck except the driver itself."""

    checkpoint: Path
    source: Path
    spare: Path  # a folder for copies of the checkpoint
    servers: Mapping[str, Server] = field(default_factory=dict)
    links: Mapping[str, Proxy] = field(default_factory=dict)
    sinks: Mapping[str, SinkReader] = field(default_factory=dict)
    disk: Disk | None = None

    @property
    def backup(self) -> Path:
        """An old copy of the checkpoint, for ``restore``."""
        return self.spare / "backup"

    def why_not(self, strike: Strike) -> str:
        """Return why this strike cannot be carried out here; empty if it can be."""
        if strike.action in DISK and self.disk is None:
            return disk.why_not() or "the checkpoint has no disk of its own in this run"
        if strike.action in ("crash", "pause") and strike.victim in SERVERS and strike.victim not in self.servers:
            return f"no server {strike.victim!r} of the kit's runs: --server {strike.victim} starts one"
        if strike.action in NETWORK and strike.victim not in self.links:
            return f"nothing stands between the driver and {strike.victim!r} that could be disturbed"
        if strike.action == "lose" and strike.sink not in self.sinks:
            return f"{strike.sink or 'no sink'!r} is no sink of ours whose prepared rows could be lost"
        return ""


def fault_of(strike: Strike, driver: Start) -> Fault:
    """Return the strike as an event of a history."""
    return Fault(strike.action, strike.victim, strike.point.value, strike.sink, strike.epoch, driver.folder.name)


def see(driver: Start, strike: Strike) -> Sighting:
    """Wait until a process is at the strike's point.  Raises NotCounted if none comes in time."""
    if strike.action in AT_THE_POINT:
        return driver.see_hit(strike.rule, SEEN_S)
    return driver.see_blocked(strike.rule, SEEN_S)


class Striker:
    """Carries out strikes.  The history gets one event before each strike, and another one after it."""

    def __init__(
        self,
        starts: Starts,
        around: Surroundings,
        history: Listener,
        look: Callable[[], Content],
        tell: Callable[[str], None],
    ) -> None:
        self._starts = starts
        self._around = around
        self._history = history
        self._look = look
        self._tell = tell

    def strike(self, driver: Start, strike: Strike, sighting: Sighting) -> None:
        """Carry out one strike.  Return when the start and the fault have ended.  Raises NotCounted if it failed."""
        fault = fault_of(strike, driver)
        self._history.add(fault)
        if strike.action in AT_THE_POINT:
            self._starts.wait_end(driver)
        elif strike.action == "kill" and strike.victim == "driver":
            self._kill(driver)
        elif strike.action == "kill":
            self._kill_below(driver, strike, sighting)
        elif strike.action == "pause" and strike.victim == "driver":
            self._overtake(driver, strike)
        elif strike.action == "pause":
            self._halt(driver, strike, sighting)
        elif strike.action == "copy":
            self._copy(driver, strike)
        elif strike.action in SURGERY:
            self._operate(driver, strike)
        else:
            self._disturb(driver, strike)
        self._history.add(replace(fault, healed=True))

    # --- the driver and the processes below it ----------------------------------------------------

    def _kill(self, driver: Start) -> None:
        deaths = driver.kill()
        self._tell(f"  killed: {_pids(deaths)}")
        self._starts.tell_end(driver, program.End("killed"))

    def _kill_below(self, driver: Start, strike: Strike, sighting: Sighting) -> None:
        victim = _below(driver, strike, sighting)
        self._tell(f"  killed: {_pids([nemesis.kill_seen(victim)])}")
        self._starts.wait_end(driver)

    def _halt(self, driver: Start, strike: Strike, sighting: Sighting) -> None:
        """Stop the victim, wait until all its threads are stopped, and continue it some seconds later."""
        if strike.victim in SERVERS:
            halted = _processes(self._around.servers[strike.victim])
        else:
            halted = [_below(driver, strike, sighting)]
        for pid in halted:
            nemesis.pause(pid)
        try:
            driver.go(strike.rule)
            time.sleep(HALT_S)
        finally:
            for pid in reversed(halted):
                nemesis.resume(pid)
        self._tell(f"  halted for {HALT_S:g} s: {halted}; ended: {self._starts.wait_end(driver).outcome}")

    def _overtake(self, driver: Start, strike: Strike) -> None:
        """Make the driver a zombie.  After the newer start has ended, nothing that readers see may change (I12)."""
        driver.pause()
        driver.go(strike.rule)
        newer = self._starts.begin()
        overtaken = self._starts.wait_end(newer)
        self._tell(f"  overtaken: {overtaken.outcome}")
        before = self._look()
        for sink in before:
            self._history.add(TookOver(sink, newer.folder.name))
        driver.resume()
        self._tell(f"  woken up: {self._starts.wait_end(driver).outcome}")
        for sink, rows in self._look().items():
            if rows != before.get(sink):
                self._history.add(Changed(sink, driver.folder.name, shown=1))
        if not overtaken.finished:
            raise NotCounted(f"the newer start ended with {overtaken.outcome}: nobody was overtaken")

    # --- servers, network, disk, prepared rows ------------------------------------------------------

    def _disturb(self, driver: Start, strike: Strike) -> None:
        """Let the driver go on while something around it is wrong."""
        with self._wrong(strike):
            driver.go(strike.rule)
            if strike.action in DISK:  # the disk stays wrong until the driver has ended
                self._tell(f"  ended: {self._starts.wait_end(driver).outcome}")
                return
            time.sleep(OUTAGE_S)
        self._tell(f"  ended: {self._starts.wait_end(driver).outcome}")

    def _wrong(self, strike: Strike) -> AbstractContextManager[None]:
        if strike.action == "crash":
            return self._crashed(self._around.servers[strike.victim])
        if strike.action in NETWORK:
            return self._cut_off(strike.action, self._around.links[strike.victim])
        if strike.action in DISK and self._around.disk is not None:
            return _disk(strike.action, self._around.disk)
        if strike.action == "lose":
            self.lose(strike)
            return contextlib.nullcontext()
        raise NotCounted(f"{strike}: this cannot be done here")

    @contextlib.contextmanager
    def _crashed(self, server: Server) -> Iterator[None]:
        self._tell(f"  killed: {_pids([nemesis.crash(server)])}")
        try:
            yield
        finally:
            server.start()

    @contextlib.contextmanager
    def _cut_off(self, action: str, link: Proxy) -> Iterator[None]:
        NETWORK[action](link)
        try:
            yield
        finally:
            link.clear()

    def lose(self, strike: Strike) -> None:
        """Delete what the sink has prepared, as a clean-up by hand might.  Raises NotCounted if there was nothing."""
        what = self._around.sinks[strike.sink].lose_prepared()
        if not what:
            raise NotCounted(f"{strike}: nothing was prepared")
        self._tell(f"  lost: {what}")

    # --- its checkpoint -----------------------------------------------------------------------------

    def _operate(self, driver: Start, strike: Strike) -> None:
        """Kill the driver, change the files, and start again.

        If this start fails before it wrote to the epoch log, put the old files back.  Raises CannotTell if it fails
        later.
        """
        self._kill(driver)
        checkpoint, before = self._around.checkpoint, self._around.spare / "before"
        surgery.keep(checkpoint, before)
        inputs = self._change(strike)
        decided = surgery.records(checkpoint)
        end = self._another()
        self._tell(f"  a start on it: {end.outcome}")
        if not end.finished:
            if surgery.records(checkpoint) != decided:  # it fenced the sinks, so the old files no longer fit
                raise CannotTell(
                    f"a start on changed files wrote to the log, so the old files do not fit: {end.outcome}: {end.text}"
                )
            surgery.put_back(checkpoint, before)
            for file, aside in inputs.items():
                aside.rename(file)
        shutil.rmtree(before)

    def _another(self, checkpoint: Path | None = None) -> program.End:
        """Run one more start.  Readers look before it, so that it is not blamed for changes of the start before."""
        self._look()
        return self._starts.wait_end(self._starts.begin(checkpoint=checkpoint))

    def _change(self, strike: Strike) -> Mapping[Path, Path]:
        """Change the files.  Return the input files that were moved away, and where each one is now."""
        if strike.action == "restore":
            surgery.put_back(self._around.checkpoint, self._around.backup)
            return {}
        surgery.OPERATIONS[strike.action](self._around.checkpoint)
        return self._forget_inputs(strike.epoch) if strike.action == "delete" else {}

    def _forget_inputs(self, epoch: int) -> Mapping[Path, Path]:
        """Move away all inputs but the newest.  Without its record of what it read, the source would read all again."""
        spare = self._around.spare / "inputs"
        spare.mkdir(exist_ok=True)
        old = [workloads.file_of(self._around.source, read) for read in range(epoch)]
        return {file: file.rename(spare / file.name) for file in old if file.exists()}

    def _copy(self, driver: Start, strike: Strike) -> None:
        """Copy the checkpoint while the driver is paused, let the driver go on, and then start on the copy."""
        copied = self._around.spare / "copy"
        driver.pause()
        surgery.keep(self._around.checkpoint, copied)
        driver.resume()
        driver.go(strike.rule)
        self._tell(f"  the first one: {self._starts.wait_end(driver).outcome}")
        end = self._another(copied)
        self._tell(f"  the one on the copy: {end.outcome}")
        shutil.rmtree(copied)


def _below(driver: Start, strike: Strike, sighting: Sighting) -> int:
    """The process id of the blocked worker, or of the executor above it.  Raises NotCounted if it is neither."""
    victim: int | None = sighting.pid
    if strike.victim == "executor":
        daemon = nemesis.parent_of(sighting.pid)
        victim = nemesis.parent_of(daemon) if daemon is not None else None
        if victim not in driver.executors():
            raise NotCounted(f"process {victim} is no executor of driver {driver.pid}")
    if victim is None or victim == driver.pid:
        raise NotCounted(f"{sighting} is no worker of driver {driver.pid}")
    return victim


def _processes(server: Server) -> list[int]:
    if server.pid is None:
        raise NotCounted(f"{server.kind} is not running")
    return [server.pid, *guard.descendants(server.pid)]


@contextlib.contextmanager
def _disk(action: str, of: Disk) -> Iterator[None]:
    do, undo = DISK[action]
    try:
        do(of)
        yield
    finally:
        undo(of)


def _pids(deaths: Sequence[Death]) -> str:
    return ", ".join(f"{death.pid} (signal {death.signal})" for death in deaths)
