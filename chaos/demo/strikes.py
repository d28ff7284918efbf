"""Carries the strikes of the demo out, and says what became of each epoch.

A plan (``plan.py``) lists the strikes in the order of their epochs.  A start of a job is armed with all strikes that
are still to come.  A strike on the driver ends that start; the next start recovers from what it left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epochal.chaos.demo.failure import Failed
from epochal.chaos.demo.jobs import BEGIN, Settings
from epochal.chaos.servers.process import Server
from epochal.chaos.strike.nemesis import Death, Driver, NotCounted, Sighting, crash, kill_seen, poll

BLOCKED_TIMEOUT_S = 300.0
VISIBLE_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 300.0
END_TIMEOUT_S = 600.0
OUTAGE_S = 1.0
STARTS_PER_STRIKE = 3


@dataclass(frozen=True)
class Strike:
    """One planned strike: see a process blocked at a point of an epoch, then kill the victim.

    ``hold`` are more points of the epoch where the driver must wait meanwhile.  ``shown`` is a sink that shows
    rows of the epoch by then and ``hidden`` one that does not: together they make "in the middle" a fact, read
    from outside before the victim dies.
    """

    when: str
    epoch: int
    point: str
    victim: str  # driver, worker, or the kind of a server
    hold: tuple[str, ...] = ()
    shown: str = ""
    hidden: str = ""

    @property
    def rule(self) -> str:
        """The failpoint where the strike falls."""
        return _rule(self.point, self.epoch)

    @property
    def rules(self) -> tuple[str, ...]:
        """All failpoints that the strike needs."""
        return (self.rule, *(_rule(point, self.epoch) for point in self.hold))


def _rule(point: str, epoch: int) -> str:
    return f"{point}:{epoch}=barrier"


@dataclass(frozen=True)
class Struck:
    """A strike that counted, and what recovery did."""

    strike: Strike
    sighting: Sighting
    deaths: Sequence[Death]
    rows: int
    outcome: str
    at: float = 0.0  # seconds of time.monotonic() when the victim was dead


class Checkpoint:
    """What Spark's checkpoint says, read from its files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def epochs(self) -> int:
        """How many epochs are finished."""
        folder = self._path / "commits"
        numbers = (int(file.name) for file in folder.glob("[0-9]*")) if folder.exists() else ()
        return 1 + max(numbers, default=-1)

    def is_done(self, epoch: int) -> bool:
        """Whether Spark wrote the epoch's `commits` file."""
        return (self._path / "commits" / str(epoch)).exists()

    def rows_through(self, epoch: int) -> int:
        """How many input rows the epochs up to this one have."""
        if epoch < 0:
            return 0
        last = (self._path / "offsets" / str(epoch)).read_text().splitlines()[-1]
        return sum(offset for topic in json.loads(last).values() for offset in topic.values())


Judge = Callable[[int], Callable[[], str]]
"""Called with the epoch when the victim is dead; the answer is called once the epoch is done: what became of it."""


@dataclass(frozen=True)
class Job:
    """A job under attack."""

    name: str
    settings: Settings
    judge: Judge
    counts: Mapping[str, Callable[[], int]]  # sink: how many rows its readers see now
    servers: Mapping[str, Server]

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(Path(self.settings.checkpoint))


class Campaign:
    """Starts a job, strikes, starts it again, until it has done all its input.

    Starting Spark takes longer than an epoch, so the next start stands by, its session up and its query not
    begun, until the driver before it was seen to die.
    """

    def __init__(self, name: str, plan: Sequence[Strike], folder: Path, tell: Callable[[Struck], None]) -> None:
        self._name = name
        self._plan = plan
        self._folder = folder
        self._tell = tell
        self._starts = 0
        self.doing = "is starting Spark"
        self._driver = self._start(plan)
        self._standby: Driver | None = None

    def run(self, job: Job) -> list[Struck]:
        """Every strike of the plan, in order, each counted; Failed, with what happened as its cause, otherwise."""
        self._job = job
        job.settings.write(self._settings)
        self._begin(self._driver)
        self._stand_by(self._plan)
        try:
            struck = [self._one(strike, self._plan[i + 1 :]) for i, strike in enumerate(self._plan)]
            self.doing = "writes the rest"
            if self._driver.wait(END_TIMEOUT_S) != 0:
                raise NotCounted(f"the last start of {self._name} failed:\n{self._driver.tail()}")
        except Exception as error:
            raise Failed(self._process()) from error
        finally:
            self._driver.close()
            if self._standby is not None:
                self._standby.close()
        return struck

    def end(self) -> None:
        """End what it has started, so that :meth:`run` in another thread comes to its end."""
        for driver in filter(None, (self._driver, self._standby)):
            driver.close()

    @property
    def _settings(self) -> Path:
        """Where a driver finds the settings once it may begin."""
        return self._folder / f"{self._name}.json"

    def _process(self) -> str:
        """The driver under fire."""
        status = self._driver.exit_status
        state = "runs" if status is None else f"ended with status {status}"
        return f"driver {self._driver.pid} of job {self._name!r} {state}, it printed {self._driver.output_file}"

    def _one(self, strike: Strike, to_come: Sequence[Strike]) -> Struck:
        sighting = self._driver.see_blocked(strike.rule, BLOCKED_TIMEOUT_S)
        rows = self._see_the_middle(strike)
        deaths = self._strike(strike, sighting)
        at = time.monotonic()
        judge = self._job.judge(strike.epoch)
        self.doing = f"recovers epoch {strike.epoch}"
        self._recover(strike, to_come)
        following = f", up to the strike in epoch {to_come[0].epoch}" if to_come else ""
        self.doing = f"writes{following}"
        struck = Struck(strike, sighting, deaths, rows, judge(), at)
        self._tell(struck)
        return struck

    def _start(self, armed: Sequence[Strike]) -> Driver:
        self._starts += 1
        return Driver(
            ["-m", "epochal.chaos.demo.jobs", self._name, str(self._settings)],
            self._folder / f"{self._name}-start-{self._starts}",
            failpoints_armed=[rule for strike in armed for rule in strike.rules],
        )

    def _stand_by(self, to_come: Sequence[Strike]) -> None:
        """Start the one that follows the next strike on the driver, if there is one."""
        next_kill = next((i for i, strike in enumerate(to_come) if strike.victim == "driver"), None)
        self._standby = self._start(to_come[next_kill + 1 :]) if next_kill is not None else None

    def _start_again(self, struck: Strike, to_come: Sequence[Strike], first: bool) -> Driver:
        """The one that stands by for this strike; where the driver ended on its own, a new one."""
        if struck.victim != "driver" or self._standby is None or not first:
            return self._begin(self._start(to_come))
        driver = self._begin(self._standby)
        self._stand_by(to_come)
        return driver

    @staticmethod
    def _begin(driver: Driver) -> Driver:
        (driver.folder / BEGIN).touch()
        return driver

    def _see_the_middle(self, strike: Strike) -> int:
        """The epoch's input rows, never 0, once the sinks look from outside as the strike says."""
        before = self._job.checkpoint.rows_through(strike.epoch - 1)
        rows = self._job.checkpoint.rows_through(strike.epoch) - before
        if rows <= 0:
            raise NotCounted(f"epoch {strike.epoch} has no rows")
        if strike.shown:
            count = self._job.counts[strike.shown]
            poll(lambda: count() > before or None, VISIBLE_TIMEOUT_S, f"rows in {strike.shown}: {strike}")
        if strike.hidden and (visible := self._job.counts[strike.hidden]()) != before:
            raise NotCounted(f"{strike.hidden} shows {visible} rows, {before} were expected: {strike}")
        return rows

    def _strike(self, strike: Strike, sighting: Sighting) -> list[Death]:
        if strike.victim == "driver":
            return self._driver.kill()
        if strike.victim == "worker":
            if sighting.pid == self._driver.pid:
                raise NotCounted(f"{sighting} is the driver, not a worker")
            return [kill_seen(sighting.pid)]
        server = self._job.servers[strike.victim]
        death = crash(server)
        for rule in strike.rules:
            self._driver.go(rule)
        time.sleep(OUTAGE_S)
        server.start()
        return [death]

    def _recover(self, struck: Strike, to_come: Sequence[Strike]) -> None:
        """Start again as often as it takes, bounded, until the struck epoch is done."""
        epoch = struck.epoch
        for attempt in range(STARTS_PER_STRIKE):
            if self._driver.exit_status is not None:
                self._driver.close()
                self._driver = self._start_again(struck, to_come, first=attempt == 0)
            if poll(lambda: self._done_or_ended(epoch), RECOVERY_TIMEOUT_S, f"epoch {epoch}\n{self._driver.tail()}"):
                return
        raise NotCounted(f"epoch {epoch} not done after {STARTS_PER_STRIKE} starts:\n{self._driver.tail()}")

    def _done_or_ended(self, epoch: int) -> bool | None:
        """True: done.  False: the driver ended before.  None: neither yet."""
        ended = self._driver.exit_status is not None
        if self._job.checkpoint.is_done(epoch):
            return True
        return False if ended else None
