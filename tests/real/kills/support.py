"""One job over three real sinks, whose driver can be started, struck and started again, and what readers see."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from epochal.chaos.demo.readers import committed_records
from epochal.chaos.demo.strikes import Checkpoint
from epochal.chaos.demo.verdict import LOG_FOLDER, in_log
from epochal.chaos.job import jvm
from epochal.chaos.strike.nemesis import NotCounted, poll
from epochal.chaos.strike.replay import epochs
from epochal.chaos.strike.standby import Standby, Start
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import EpochLog

ROWS = 20
SINKS = ("postgres", "kafka", "delta")
LOCAL = "local[2,4]"  # as on a cluster, a task may fail three times
SEEN_S = 300.0
END_S = 600.0

Row = tuple[int, str]


@contextmanager
def drivers(master: str, folder: Path, program: Sequence[str] = ("tests.real.kills.driver",)) -> Iterator[Standby]:
    """Processes of ``driver.py``, or of another program like it, none of which outlives the block."""
    jvm.short_lived()  # made, where it has to be, before a driver is waited for
    name, *more = program
    with contextlib.closing(Standby(["-m", name, master, *more], folder)) as them:
        yield them


class MakeJob(Protocol):
    """``make_job(epochs, master=..., format=..., sinks=...)``: a job that is not started yet."""

    def __call__(self, epochs: int, master: str = ..., format: str = ..., sinks: Sequence[str] = ...) -> Job: ...


@dataclass
class Job:
    """Where everything of one query is, and the processes for its starts."""

    drivers: Standby
    folder: Path
    dsn: str
    bootstrap: str
    topic: str
    epochs: int
    format: str = "json"  # of the source, or delta
    sinks: Sequence[str] = SINKS
    checkpoint: str = "checkpoint"
    starts: int = 0
    first: bool = True
    table: str = "kills"
    files: int = 0
    framed: bool = False  # whether the sinks get a frame whose rows are others whenever it is computed
    votes: bool = False  # whether the Kafka sink writes into an open transaction before the decision

    def __post_init__(self) -> None:
        for epoch in range(self.files, self.epochs):
            self._add(epoch)

    def _add(self, epoch: int) -> None:
        """One file, which is one epoch and appears whole."""
        self.files += 1
        ids = range(epoch * ROWS, (epoch + 1) * ROWS)
        if self.format == "delta":
            write_deltalake(self.source, pa.table({"id": pa.array(ids, pa.int32())}), mode="append")
            return
        self.source.mkdir(parents=True, exist_ok=True)
        hidden = self.source / f".{epoch:04}.json"
        hidden.write_text("\n".join(json.dumps({"id": i}) for i in ids))
        hidden.rename(self.source / f"{epoch:04}.json")

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def lake(self) -> str:
        return str(self.folder / "lake")

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / self.checkpoint

    @property
    def checkpoint_url(self) -> str:
        """As the driver is told it."""
        return str(self.checkpoint_path)

    @property
    def lake_url(self) -> str:
        return self.lake

    def log(self) -> EpochLog:
        return FilesLog(self.checkpoint_path / LOG_FOLDER)

    def feed(self) -> None:
        """One more file, while drivers run."""
        self._add(self.epochs)
        self.epochs += 1

    @contextmanager
    def start(self, *armed: str, waits: bool = False) -> Iterator[Start]:
        """Ended with the block whatever it does.  It ends with the input, or ``waits`` for more."""
        self.starts += 1
        settings = self.settings(waits=waits)
        self.first = False
        with self.drivers.begin(self.folder / f"{self.checkpoint}-start-{self.starts}", settings, armed) as driver:
            yield driver

    def settings(self, *, waits: bool = False) -> Mapping[str, Any]:
        """Of the next start; see ``driver.py``."""
        return {
            "job": "rows",
            "app": self.topic,  # the broker is shared, and keeps a marker per app
            "source": str(self.source),
            "format": self.format,
            "checkpoint": self.checkpoint_url,
            "dsn": self.dsn,
            "table": self.table,
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "votes": self.votes,
            "framed": self.framed,
            "lake": self.lake_url,
            "sinks": list(self.sinks),
            "create": self.first,
            "trigger": {"processingTime": "1 second"} if waits else {"availableNow": True},
        }

    def with_checkpoint(self, name: str, *, copied: bool) -> Job:
        """The same app and sinks from another checkpoint: a copy of this one as it is now, or a new one."""
        if copied:
            shutil.copytree(self.checkpoint_path, self.folder / name)
        return replace(self, checkpoint=name, starts=0)

    def done(self) -> int:
        return Checkpoint(self.checkpoint_path).epochs()

    def idle(self) -> bool:
        """No input is left, and no epoch under way: the newest that Spark planned is the last that it finished."""
        planned = epochs(self.checkpoint_path / "offsets")
        return self.done() == self.epochs == 1 + max(planned, default=-1)

    def wait_done(self, epoch: int, driver: Start) -> None:
        """Until Spark has finished the epoch; NotCounted if the driver ends before."""

        def look() -> bool | None:
            if self.done() > epoch:
                return True
            if driver.exit_status is not None:
                raise NotCounted(f"the driver ended with {driver.exit_status} before epoch {epoch}:\n{driver.tail()}")
            return None

        poll(look, SEEN_S, f"epoch {epoch} done:\n{driver.tail()}")

    # --- what outside readers see ---------------------------------------------------------------

    def seen(self) -> dict[str, Counter[Row]]:
        """Per sink, the rows that its readers get, with how often."""
        readers = {"postgres": self._postgres, "kafka": self._kafka, "delta": self._delta}
        return {sink: readers[sink]() for sink in self.sinks}

    def _postgres(self) -> Counter[Row]:
        with psycopg.connect(self.dsn, connect_timeout=60) as connection:
            found = connection.execute(f'SELECT id, attempt FROM "{self.table}"').fetchall()
        return Counter((int(i), str(a)) for i, a in found)

    def _kafka(self) -> Counter[Row]:
        values = [json.loads(message.value() or b"") for message in committed_records(self.bootstrap, self.topic)]
        return Counter((int(v["id"]), str(v["attempt"])) for v in values)

    def _delta(self) -> Counter[Row]:
        table = DeltaTable(self.lake).to_pyarrow_table()
        return Counter(zip(table["id"].to_pylist(), table["attempt"].to_pylist(), strict=True))

    def stored_in_postgres(self) -> int:
        """All rows that lie in the table, visible or not."""
        with psycopg.connect(self.dsn, connect_timeout=60) as connection:
            row = connection.execute(f'SELECT count(*) FROM "{self.table}__rows"').fetchone()
        assert row is not None
        return int(row[0])

    def check_exact(self) -> None:
        """Every id once in every sink, all sinks hold the same evaluation, and nothing is left behind."""
        assert self.done() == self.epochs
        seen = self.seen()
        expected = Counter(range(self.epochs * ROWS))
        for sink, rows in seen.items():
            assert Counter(i for i, _ in rows.elements()) == expected, sink
        assert all(rows == seen["postgres"] for rows in seen.values())
        assert self.stored_in_postgres() == self.epochs * ROWS


@dataclass(frozen=True)
class Kill:
    """A driver is killed at ``point``; of ``epoch``, or in the start phase where that is None.

    ``outcome`` is what recovery must do with the epoch's rows as this very driver prepared them; None where it
    prepared none.  ``hold`` are more points of the epoch where the driver waits meanwhile.
    """

    point: str
    epoch: int | None
    outcome: str | None
    hold: Sequence[str] = ()

    @property
    def rules(self) -> list[str]:
        at = "" if self.epoch is None else f":{self.epoch}"
        return [f"{point}{at}=barrier" for point in (self.point, *self.hold)]


def kill_in_turn(job: Job, kills: Sequence[Kill]) -> None:
    """Start, kill, start again, ...; the last start does the rest.  Judges what became of each struck epoch."""
    outcomes: list[Callable[[], str]] = []
    for kill in kills:
        with job.start(*kill.rules) as driver:
            driver.see_blocked(kill.rules[0], SEEN_S)
            assert {death.signal for death in driver.kill()} == {signal.SIGKILL}
        if kill.epoch is not None and kill.outcome is not None:
            outcomes.append(in_log(job.log(), kill.epoch))
    finish(job)
    assert [outcome() for outcome in outcomes] == [kill.outcome for kill in kills if kill.outcome is not None]


def finish(job: Job) -> None:
    """One more start, without any failpoint, to the end of the input."""
    with job.start() as driver:
        assert driver.wait(END_S) == 0, driver.tail()


def ends_named(driver: Start, *names: str) -> None:
    """The driver ends with an error, and one of these names is in what it printed last."""
    assert driver.wait(SEEN_S) == 1, driver.tail()
    assert any(name in driver.tail(60) for name in names), driver.tail(60)
