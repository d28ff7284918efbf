"""The time from the start of a driver to the commit of the struck epoch, compared with Spark's own restart.

A driver (:mod:`benchmarks.driver`) is a separate process.  It is seen blocked at a named point in the middle of an
epoch, or it is idle.  Then its Python process and JVM are killed with SIGKILL, and it is started again at once.  The
struck epoch is committed when Spark's ``commits/N`` exists.  Epochal returns to Spark only when every sink shows the
epoch, so this rule fits Epochal and the peer.  The peer is the same stream into Spark's ``noop`` writer, struck in the
middle of an epoch and idle.

If a server is the victim, the driver waits inside its commit while the server dies, gives up with a named error, and
ends.  The time begins with the start of the next driver, after the server answers again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import names, ours
from benchmarks.driver import Settings, read_notes
from benchmarks.measuring import Case, Measure, Ratio, say, words
from benchmarks.results import Result
from benchmarks.rows import SMALL, write_file
from benchmarks.world import World, new_name
from epochal.chaos.strike.nemesis import Driver, NotCounted, poll

if TYPE_CHECKING:
    from benchmarks.tables import Options

LIMIT_S = 180.0
ATTEMPTS = 3  # of a driver whose server is down, so that it gives up soon
BARE = "spark's own restart"


@dataclass(frozen=True, eq=False)
class Fault:
    """A fault.  The driver is blocked at ``point``, and other threads at ``held``; without a point it is idle.

    ``server`` is killed instead of the driver, if given.  Then the driver must end with one of these ``errors``.
    """

    name: str
    point: str = ""
    held: Sequence[str] = ()
    server: str = ""
    errors: Sequence[str] = ("CommitInDoubt", "SinkUnavailable")

    def rules(self, epoch: int) -> list[str]:
        return [f"{point}:{epoch}=barrier" for point in (self.point, *self.held) if point]


IDLE = Fault("idle")
STRUCK = Fault("killed in mid-epoch", "before-call")
UNDECIDED = Fault("killed before the decision", "before-decide")
DECIDED = Fault("killed after the decision", "after-decide")
BETWEEN = Fault("killed between two sinks' commits", "after-sink-commit@delta", ["before-sink-commit@postgres"])
PUBLISHING = Fault("killed inside Postgres's publish", "before-publish@postgres")
PRODUCING = Fault("killed with the Kafka transaction open", "in-write@kafka")
POSTGRES = Fault("Postgres crashed", "before-sink-commit@postgres", server="postgres")
KAFKA = Fault("Kafka crashed", "before-sink-commit@kafka", server="kafka")

FAULTS: Mapping[Sequence[str], Sequence[Fault]] = {
    ("postgres",): [UNDECIDED, DECIDED, PUBLISHING, POSTGRES, IDLE],
    ("kafka",): [UNDECIDED, DECIDED, PRODUCING, KAFKA, IDLE],
    ("delta",): [UNDECIDED, DECIDED, IDLE],
    names.KINDS: [UNDECIDED, DECIDED, BETWEEN, PRODUCING, POSTGRES, KAFKA, IDLE],
}
QUICK: Mapping[Sequence[str], Sequence[Fault]] = {("postgres",): [DECIDED]}


@dataclass(frozen=True)
class Times:
    """The times of one restart in seconds.

    * ``first``: from the start of the process to the commit of the struck epoch.
    * ``next``: to the commit of the epoch after it.
    * ``from_kill``: from the kill to the commit of the struck epoch; None if the driver was not the victim.
    * ``phases``: of the struck epoch.
    """

    first: float
    next: float
    from_kill: float | None
    phases: Mapping[str, float]


class Query:
    """One stream and its drivers.  Only one driver lives at a time."""

    def __init__(self, world: World, kinds: Sequence[str]) -> None:
        self._world = world
        self.name = new_name("recovery")
        self._folder = world.folder / f"{self.name}-query"
        self._sinks = {kind: ours.address(world, kind, self.name) for kind in kinds}
        self._starts = self._fed = 0

    @property
    def _commits(self) -> Path:
        return self._folder / "checkpoint" / "commits"

    def _feed(self) -> None:
        first = self._fed * SMALL
        write_file(self._folder / "source" / f"{self._fed:06}.parquet", range(first, first + SMALL))
        self._fed += 1

    def _start(self, rules: Sequence[str], attempts: int = 9) -> Driver:
        self._starts += 1
        folder = self._folder / f"start-{self._starts}"
        settings = Settings(
            app=self.name,
            source=str(self._folder / "source"),
            checkpoint=str(self._folder / "checkpoint"),
            notes=str(self._folder / f"notes-{self._starts}"),
            sinks=self._sinks,
            create=self._starts == 1,
            waits=True,
            attempts=attempts,
        )
        path = settings.write(self._folder / f"settings-{self._starts}.json")
        return Driver(["-m", "benchmarks.driver", str(path)], folder, failpoints_armed=rules)

    def struck(self, faults: Sequence[Fault]) -> Iterator[Times]:
        """Strike with each fault and restart; yield the times of each restart.

        Each driver runs two epochs before it is struck.
        """
        self._feed()
        self._feed()
        driver = self._start_for(faults[0])
        try:
            self._await_commit(driver, self._fed - 1)
            for fault, following in zip(faults, [*faults[1:], None], strict=True):
                killed = self._strike(driver, fault)
                driver.close()
                self._feed()  # the epoch after the struck one
                began, driver = time.time(), self._start_for(following)
                yield self._times(driver, began, killed)
        finally:
            driver.close()

    def _start_for(self, fault: Fault | None) -> Driver:
        """Start a driver armed for ``fault``, which strikes the third epoch of the driver."""
        if fault is None:
            return self._start([])
        return self._start(fault.rules(self._fed), ATTEMPTS if fault.server else 9)

    def _strike(self, driver: Driver, fault: Fault) -> float | None:
        """Strike epoch ``_fed``.  Return when the driver was killed; None if a server was the victim."""
        rules = fault.rules(self._fed)
        if rules:
            self._feed()
        for rule in rules:
            driver.see_blocked(rule, LIMIT_S)
        if fault.server:
            self._crash(driver, fault, rules[0])
            return None
        killed = time.time()
        driver.kill()
        if not rules:
            self._feed()
        return killed

    def _crash(self, driver: Driver, fault: Fault, rule: str) -> None:
        """Kill the server, wait until the driver ends with a named error, and start the server again."""
        server = getattr(self._world, fault.server)
        server.crash()
        try:
            driver.go(rule)
            driver.wait(LIMIT_S)
        finally:
            server.start()
        ended = read_notes(self._folder / f"notes-{self._starts}")[-1]
        if ended.what != "ended" or ended.error not in fault.errors:
            raise NotCounted(f"{fault.name}: the driver ended with {ended}\n{driver.tail()}")

    def _times(self, driver: Driver, began: float, killed: float | None) -> Times:
        first = self._await_commit(driver, self._fed - 2)
        following = self._await_commit(driver, self._fed - 1)
        notes = [note for note in read_notes(self._folder / f"notes-{self._starts}") if note.what == "epoch"]
        from_kill = None if killed is None else first - killed
        return Times(first - began, following - began, from_kill, notes[0].seconds)

    def _await_commit(self, driver: Driver, epoch: int) -> float:
        """Wait until Spark has written ``commits/N``; return the time of that file."""
        file = self._commits / str(epoch)

        def look() -> bool | None:
            if file.exists():
                return True
            if driver.exit_status is not None:
                raise NotCounted(f"the driver ended with {driver.exit_status} before epoch {epoch}\n{driver.tail()}")
            return None

        poll(look, LIMIT_S, f"epoch {epoch} of {self.name}\n{driver.tail()}")
        return file.stat().st_mtime


def run(options: Options) -> Result:
    """Measure the table.  There is no warm-up round, because each round begins with a start that does not count."""
    cases = QUICK if options.quick else FAULTS
    rounds = 1 if options.quick else options.rounds
    result = Result("recovery", rounds, options.quick)
    with World() as world:
        for kinds, faults in cases.items():
            _add(result, " ".join(kinds), faults, _taken(world, kinds, faults, rounds))
    return result


Taken = Mapping[tuple[str, Fault], Sequence[Times]]


def _taken(world: World, kinds: Sequence[str], faults: Sequence[Fault], rounds: int) -> Taken:
    """(job, fault) -> times of each round, for our job and for the peer."""
    jobs = {BARE: ((), [*dict.fromkeys(map(_peer, faults))]), names.OURS: (kinds, faults)}
    taken: dict[tuple[str, Fault], list[Times]] = {}
    for turn in range(1, rounds + 1):
        for job, (sinks, asked) in jobs.items():
            for fault, times in zip(asked, Query(world, sinks).struck(asked), strict=True):
                taken.setdefault((job, fault), []).append(times)
                say(f"  {' '.join(kinds)}  round {turn}/{rounds}  {job}, {fault.name}: {times.first:.2f} s")
    return taken


def _peer(fault: Fault) -> Fault:
    return IDLE if fault is IDLE else STRUCK


def _add(result: Result, sinks: str, faults: Sequence[Fault], taken: Taken) -> None:
    for fault in faults:
        case: Case = {"sinks": sinks, "fault": fault.name}
        mine, theirs = taken[names.OURS, fault], taken[BARE, _peer(fault)]
        for job, times in ((names.OURS, mine), (BARE, theirs)):
            result.add(_measures(job, case, times))
        for what, goal in (("first", "recovery"), ("next", None)):
            more = [getattr(a, what) - getattr(b, what) for a, b in zip(mine, theirs, strict=True)]
            said = "s more" if what == "first" else "s more, with the epoch after it"
            result.add([], Ratio(names.OURS, BARE, case, said, more, goal))
        result.facts[f"median ms of the struck epoch, by phase, {words(case)}"] = _phases(mine)


def _measures(job: str, case: Case, times: Sequence[Times]) -> list[Measure]:
    found = [Measure(job, case, "s", [each.first for each in times])]
    found.append(Measure(f"{job}, with the epoch after it", case, "s", [each.next for each in times]))
    killed = [each.from_kill for each in times if each.from_kill is not None]
    return [*found, Measure(f"{job}, from the kill", case, "s", killed)] if killed else found


def _phases(times: Sequence[Times]) -> Mapping[str, int]:
    """Phase -> median milliseconds of the first epoch after a restart.

    The protocol's part of the start is included.  Its checks before that are not a phase.
    """
    return {phase: round(1000 * median(each.phases.get(phase, 0) for each in times)) for phase in times[0].phases}
