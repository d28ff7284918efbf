"""What faults do to Flink's job into Kafka, with the chaos kit's servers, strikes and verdicts.

Each start of the job has its own process.

Here an epoch is the input of one strike, which comes as small files one after the other.  Flink has no such epochs: it
makes a checkpoint each second, at any place in them.  Therefore it is not checked whether a reader saw a part of an
epoch, or in which order rows came.  Each row must be there exactly once after everything has settled.

A job is struck in the middle of an epoch: some of its rows are in the topic, and others have not come yet.  When the
job has ended, it is started again from its newest checkpoint, and nothing else is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import topics
from benchmarks.cells import Cell, Judged, together
from benchmarks.measuring import say
from benchmarks.peers.flink.job import PRODUCER, SETTINGS
from benchmarks.peers.flink.starts import Starts
from benchmarks.results import Result
from epochal.chaos.campaign.bench import KAFKA, Bench, bench
from epochal.chaos.campaign.starts import CannotTell
from epochal.chaos.campaign.striker import NETWORK, OUTAGE_S
from epochal.chaos.job.targets import RUN
from epochal.chaos.observe.checker import judge_all, overall
from epochal.chaos.observe.history import History, Read, Row
from epochal.chaos.observe.run import Run
from epochal.chaos.servers.kafka import KafkaServer
from epochal.chaos.strike import nemesis
from epochal.chaos.strike.nemesis import NotCounted, poll
from epochal.coordinator.environment.versions import FLINK, FLINK_JARS

if TYPE_CHECKING:
    from benchmarks.tables import Options

JOBS = {"flink exactly-once": "exactly-once", "flink at-least-once": "at-least-once"}
SEEDS = (1, 2)
QUICK_SEEDS, QUICK_JOBS, QUICK_KINDS = (1,), ("flink exactly-once",), ("killed writing",)
CLEAN_EPOCHS = 1
FILES, ROWS = 20, 10  # files per epoch, rows per file
IDS = 1_000  # ids reserved per epoch
PACE_S = 0.1  # between two files
MOMENTS = (3, 7, 11, 15)
"""A fault strikes when the rows of so many files of its epoch are in the topic."""
SETTLED = 3
"""After so many completed checkpoints in a row, a job has finished all its work."""
SETTLED_S, SEEN_S = 240.0, 120.0
AWAKE_S = 5.0  # how long a zombie runs before it is ended
OUTPUT = "kafka"


def run(options: Options) -> Result:
    seeds: Sequence[int] = QUICK_SEEDS if options.quick else SEEDS
    jobs: Sequence[str] = QUICK_JOBS if options.quick else tuple(JOBS)
    kinds: Sequence[str] = QUICK_KINDS if options.quick else tuple(KINDS)
    result = Result("consistency-flink", len(seeds), options.quick)
    told: list[dict[str, object]] = []
    with bench(["kafka"], proxied=True) as where:
        result.cells = together(_cells(where, seeds, jobs, kinds, told))
    result.facts = {
        "seeds": list(seeds),
        "faults": {kind: KINDS[kind].about for kind in kinds},
        "runs": told,
        "flink": {
            "version": FLINK,
            "jars": [jar.partition(":")[2] for jar in FLINK_JARS.coordinates],
            "settings": {**SETTINGS, **PRODUCER},
        },
    }
    return result


def _cells(
    where: Bench, seeds: Sequence[int], jobs: Sequence[str], kinds: Sequence[str], told: list[dict[str, object]]
) -> Iterator[Cell]:
    for seed in seeds:
        for job in jobs:
            for planned in plans(seed, kinds):
                say(f"{job}, seed {seed}")
                with where.round() as folder:
                    campaign = Campaign(where, folder, JOBS[job], planned)
                    campaign.run()
                cells = campaign.cells(job)
                told.append({"job": job, "seed": seed, **campaign.about()})
                unclean = [f"{cell.fault}: {cell.verdict}" for cell in cells if cell.verdict != "clean"]
                say(f"  not clean: {'; '.join(unclean) or 'nothing'}{campaign.why and f' ({campaign.why})'}")
                yield from cells


@dataclass(frozen=True)
class Planned:
    """One strike in its own epoch.  It strikes when the rows of so many ``files`` are in the topic."""

    kind: str
    files: int


def plans(seed: int, kinds: Sequence[str]) -> list[dict[int, Planned]]:
    """Return the runs of one seed, each as epoch -> strike.

    Kinds that can follow each other share one run; each other kind has its own run, for the first seed only.  The seed
    decides which kind comes first, and after how many files each strikes.
    """
    following = [kind for kind in kinds if not KINDS[kind].alone]
    turn = seed % len(following) if following else 0
    alone = [[kind] for kind in kinds if KINDS[kind].alone and seed == SEEDS[0]]
    runs = [each for each in ([*following[turn:], *following[:turn]], *alone) if each]
    return [
        {CLEAN_EPOCHS + place: Planned(kind, MOMENTS[(seed + place) % len(MOMENTS)]) for place, kind in enumerate(each)}
        for each in runs
    ]


class Campaign:
    """One run of one job: epochs without a fault, an epoch for each strike, and one more."""

    def __init__(self, where: Bench, folder: Path, guarantee: str, planned: Mapping[int, Planned]) -> None:
        server = where.servers["kafka"]
        assert isinstance(server, KafkaServer), "it was asked for"
        self._server, self._link = server, where.links["kafka"]
        self._topic = os.environ[RUN]
        self._starts = Starts(folder, os.environ[KAFKA], self._topic, guarantee)
        self._starts.source.mkdir()
        self._planned = planned
        self._history = History()
        self._expected: dict[int, tuple[Row, ...]] = {}
        self._struck: list[int] = []
        self._shown = 0  # stable end offsets when the epoch began
        self.why = ""

    def run(self) -> None:
        """Run the campaign.  It does not raise if it cannot be finished; then its cells are unknown."""
        try:
            self._clean()
            for epoch, planned in self._planned.items():
                self._one(epoch, planned)
            self._whole(max(self._planned) + 1)
        except (CannotTell, NotCounted) as error:
            self.why = str(error)
        finally:
            self._starts.close()

    def cells(self, job: str) -> list[Cell]:
        return cells_of(job, self._run(), self._planned, self._struck)

    def about(self) -> dict[str, object]:
        strikes = [
            {"fault": each.kind, "strike": f"{each.files} files of epoch {epoch}", "struck": epoch in self._struck}
            for epoch, each in self._planned.items()
        ]
        return {"starts": len(self._starts.victims), "proves nothing": self.why, "strikes": strikes}

    def _run(self) -> Run:
        return Run(self._history, (OUTPUT,), self._expected, proves_nothing=self.why)

    # --- epochs -------------------------------------------------------------------------------------

    def _clean(self) -> None:
        self._starts.begin()
        for epoch in range(CLEAN_EPOCHS):
            self._whole(epoch)
        found = judge_all(self._run(), ("I1", "I2"))
        if not all(found.values()):
            raise CannotTell(f"without any fault the output is not exact: {overall(found)}: {found}")

    def _whole(self, epoch: int) -> None:
        for _ in self._feed(epoch):
            pass
        self._settle()

    def _one(self, epoch: int, planned: Planned) -> None:
        self._shown = sum(topics.stable_ends(self._server.bootstrap, self._topic).values())
        before = self._written()
        files = self._feed(epoch)
        for _ in range(planned.files):
            next(files)
        poll(
            lambda: self._written() >= before + planned.files * ROWS or None,
            SEEN_S,
            f"rows of epoch {epoch} in the topic\n{self._starts.newest.tail()}",
        )
        say(f"  {planned.kind}: {planned.files} of {FILES} files of epoch {epoch} are in the topic")
        with KINDS[planned.kind].strike(self):
            self._struck.append(epoch)
            for _ in files:
                pass
        self._settle()

    def _written(self) -> int:
        """End offsets of the topic, including open transactions."""
        return sum(topics.ends(self._server.bootstrap, self._topic).values())

    def _feed(self, epoch: int) -> Iterator[None]:
        """Write one file after the other; each appears whole.  All their rows are expected from now on."""
        ids = range(epoch * IDS, epoch * IDS + FILES * ROWS)
        self._expected[epoch] = tuple(Row(epoch, identity, 0, 1) for identity in ids)
        for first in ids[::ROWS]:
            hidden = self._starts.source / f".{first:06}.txt"
            hidden.write_text("".join(json.dumps({"id": first + n}) + "\n" for n in range(ROWS)))
            hidden.rename(hidden.with_name(hidden.name.removeprefix(".")))
            time.sleep(PACE_S)
            yield

    def _settle(self) -> None:
        """Wait until the job has finished its work, and restart it whenever it has ended; then read the topic.

        Raises CannotTell after ``SETTLED_S`` seconds.
        """
        deadline = time.monotonic() + SETTLED_S
        first: dict[int, int] = {}  # start -> the first checkpoint that was seen here
        while time.monotonic() < deadline:
            if (status := self._starts.newest.exit_status) is not None:
                say(f"  it ended with {status}, and is started again")
                self._starts.begin()
            number, completed = len(self._starts.victims), self._starts.completed
            if completed and completed >= first.setdefault(number, completed) + SETTLED:
                self._look()
                return
            time.sleep(PACE_S)
        raise CannotTell(f"Flink has not settled within {SETTLED_S:g} s\n{self._starts.newest.tail()}")

    def _look(self) -> None:
        ids = [int(json.loads(m.value() or b"")["id"]) for m in topics.messages(self._server.bootstrap, self._topic)]
        self._history.add(Read({OUTPUT: tuple(sorted(Row(i // IDS, i, 0, 1) for i in ids))}))

    # --- strikes: they have struck when the context begins, and are over when it ends ------------------

    @contextlib.contextmanager
    def kill(self) -> Iterator[None]:
        self._starts.newest.kill()
        self._starts.begin()
        yield

    @contextlib.contextmanager
    def kill_when_shown(self) -> Iterator[None]:
        """Kill the job as soon as readers can see rows of the epoch."""
        poll(
            lambda: sum(topics.stable_ends(self._server.bootstrap, self._topic).values()) > self._shown or None,
            SEEN_S,
            "a commit",
        )
        with self.kill():
            yield

    @contextlib.contextmanager
    def overtake(self) -> Iterator[None]:
        """Make a zombie: pause the job, let another start overtake it, and resume it.  It is not started again."""
        older = self._starts.newest
        older.pause()
        try:
            self._starts.begin()
            yield
            self._settle()
        finally:
            older.resume()
        time.sleep(AWAKE_S)
        say(f"  the zombie {'lives' if older.exit_status is None else 'has ended'}")
        older.close()

    @contextlib.contextmanager
    def crash(self) -> Iterator[None]:
        nemesis.crash(self._server)
        try:
            yield
            time.sleep(OUTAGE_S)
        finally:
            self._server.start()

    def disturb(self, action: str) -> AbstractContextManager[None]:
        @contextlib.contextmanager
        def disturbed() -> Iterator[None]:
            NETWORK[action](self._link)
            try:
                yield
                time.sleep(OUTAGE_S)
            finally:
                self._link.clear()

        return disturbed()

    @contextlib.contextmanager
    def forget(self) -> Iterator[None]:
        """Delete the checkpoints, and all inputs of the source but the newest."""
        yield
        self._settle()
        self._starts.newest.kill()
        self._starts.forget()
        newest = max(self._expected) * IDS
        for file in self._starts.source.iterdir():
            if int(file.stem) < newest:
                file.unlink()
        self._starts.begin()


def cells_of(job: str, run: Run, planned: Mapping[int, Planned], struck: Sequence[int]) -> list[Cell]:
    """Return the cells of a run.

    If the run stopped early, only duplicates are judged: they stay, but missing rows might still have come.
    """
    findings = judge_all(run, ("I2",) if run.proves_nothing else ("I1", "I2")) if struck else {}
    kinds = {epoch: each.kind for epoch, each in planned.items()}
    judged = Judged(run, findings, kinds, struck).cells({OUTPUT: job})
    return [replace(cell, torn=0, out_of_order=0) for cell in judged]  # these are not checked


@dataclass(frozen=True)
class Kind:
    """A kind of fault.  ``alone``: its effects disturb later epochs, so nothing else strikes in its run."""

    about: str
    strike: Callable[[Campaign], AbstractContextManager[None]]
    alone: bool = False


KINDS: Mapping[str, Kind] = {
    "killed writing": Kind("killed in mid-epoch", Campaign.kill),
    "killed after a commit": Kind("killed as soon as readers see rows of the epoch", Campaign.kill_when_shown),
    "zombie": Kind("halted, overtaken by another start, and woken up", Campaign.overtake),
    "server crashed": Kind("broker killed and started again a second later", Campaign.crash),
    "connection cut": Kind("no way to the broker for a second", lambda campaign: campaign.disturb("cut")),
    "answer lost": Kind(
        "the broker does what it is told, its answers are lost for a second",
        lambda campaign: campaign.disturb("lose-answer"),
    ),
    "checkpoint lost": Kind(
        "checkpoints deleted, and the source keeps its newest input alone", Campaign.forget, alone=True
    ),
}
