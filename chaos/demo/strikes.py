"""Carries out the strikes of the demo, and says what recovery did with each struck epoch.

A plan (``plan.py``) lists the strikes in the order of their epochs.  A start of a job is armed with all strikes that
are still to come.  A strike on the driver ends that start, and the next start recovers.
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

    ``hold`` are more points of the epoch where the driver must wait meanwhile.  Before the victim is killed, readers
    check that the sink ``shown`` shows rows of the epoch, and that the sink ``hidden`` shows none.  This proves from
    outside that the strike falls into the middle of the epoch.
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
    """The progress of a query, read from the files of Spark's checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def epochs(self) -> int:
        """Return how many epochs are finished."""
        folder = self._path / "commits"
        numbers = (int(file.name) for file in folder.glob("[0-9]*")) if folder.exists() else ()
        return 1 + max(numbers, default=-1)

    def is_done(self, epoch: int) -> bool:
        """Return whether Spark wrote the epoch's ``commits`` file."""
        return (self._path / "commits" / str(epoch)).exists()

    def rows_through(self, epoch: int) -> int:
        """Return how many input rows the epochs up to this one have."""
        if epoch < 0:
            return 0
        last = (self._path / "offsets" / str(epoch)).read_text().splitlines()[-1]
        return sum(offset for topic in json.loads(last).values() for offset in topic.values())


Judge = Callable[[int], Callable[[], str]]
"""Called with the epoch when the victim is dead.  Returns a function that says the outcome when the epoch is done."""


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
    """Starts a job, strikes it and starts it again, until it has processed all input.

    Starting Spark takes longer than an epoch.  Therefore the next start stands by with its session, and begins its
    query only after the driver before it was seen to die.
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
        """Carry out every strike of the plan, in order.  Raises Failed, with the cause, if one does not count."""
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
        """End all drivers, so that :meth:`run` in another thread ends."""
        for driver in filter(None, (self._driver, self._standby)):
            driver.close()

    @property
    def _settings(self) -> Path:
        """The file in which a driver finds its settings when it may begin."""
        return self._folder / f"{self._name}.json"

    def _process(self) -> str:
        """Describe the current driver."""
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
        """Start the driver that follows the next strike on the driver, if there is such a strike."""
        next_kill = next((i for i, strike in enumerate(to_come) if strike.victim == "driver"), None)
        self._standby = self._start(to_come[next_kill + 1 :]) if next_kill is not None else None

    def _start_again(self, struck: Strike, to_come: Sequence[Strike], first: bool) -> Driver:
        """Begin the driver that stands by for this strike, or a new one if the last driver ended by itself."""
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
        """Wait until readers see what the strike demands; return the epoch's number of input rows, which is never 0."""
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
        """Start again until the struck epoch is done, at most ``STARTS_PER_STRIKE`` times."""
        epoch = struck.epoch
        for attempt in range(STARTS_PER_STRIKE):
            if self._driver.exit_status is not None:
                self._driver.close()
                self._driver = self._start_again(struck, to_come, first=attempt == 0)
            if poll(lambda: self._done_or_ended(epoch), RECOVERY_TIMEOUT_S, f"epoch {epoch}\n{self._driver.tail()}"):
                return
        raise NotCounted(f"epoch {epoch} not done after {STARTS_PER_STRIKE} starts:\n{self._driver.tail()}")

    def _done_or_ended(self, epoch: int) -> bool | None:
        """True if the epoch is done, False if the driver ended before that, None if neither is the case yet."""
        ended = self._driver.exit_status is not None
        if self._job.checkpoint.is_done(epoch):
            return True
        return False if ended else None
