"""Driver programs that run one start after another, because starting Spark takes longer than anything else.

After a kill, the next start gets another process.  If a query ended by itself, with or without an error, its process
still has its Spark session.  It stands by and runs the next start, with the failpoints of that start.

The program calls :func:`serve`; :class:`Standby` keeps its processes.  They communicate through files.  In the folder
of the process, ``order-N.json`` describes its Nth start.  In the folder of the start, ``ended`` holds its exit status
and whether the session is still up.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochal.chaos.strike.nemesis import Driver, NotCounted, Victim
from epochal.coordinator.model import failpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDED = "ended"
IDLE_S = 1800.0  # after so long without an order, a process ends
MOST_ARMED = 8
"""How many armed starts one process runs.  Each has its own environment, and for each environment Spark keeps a daemon
of Python workers."""
POLL_S = 0.05

Run = Callable[[Any, Path], int]
"""Runs one start of the program with its settings and its folder; returns the exit status."""


# --- in the program ---------------------------------------------------------------------------------


def serve(spark: SparkSession, run: Run) -> None:
    """Run the ordered starts one after another while the session lives.

    A start that raises gets status 1, as a process would.  Raises TimeoutError after ``IDLE_S`` without an order.
    """
    process = Path(os.environ[failpoints.FOLDER])
    for number in itertools.count(1):
        order = _await_order(process / f"order-{number}.json")
        folder = Path(order["folder"])
        with _armed(spark, order["rules"], folder):
            status = _status(run, order["settings"], folder)
        up = _is_up(spark)
        write_whole(folder / ENDED, json.dumps({"status": status, "up": up}))
        if not up:
            return


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that a reader never sees a part of it."""
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(text)
    partial.rename(path)


def _await_order(path: Path) -> Mapping[str, Any]:
    limit = time.monotonic() + IDLE_S
    while not path.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"nobody ordered a start within {IDLE_S:.0f} s")
        time.sleep(POLL_S)
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


@contextlib.contextmanager
def _armed(spark: SparkSession, rules: str, folder: Path) -> Iterator[None]:
    """Arm the rules here and in the Python workers.  Spark uses new workers when the environment is another one."""
    environment: dict[str, Any] = spark.sparkContext.environment
    told = {failpoints.ENVIRONMENT: rules, failpoints.FOLDER: str(folder) if rules else ""}
    os.environ.update(told)
    environment.update(told)
    with failpoints.armed(rules):
        yield


def _is_up(spark: SparkSession) -> bool:
    """Whether the next start can use the session.  The start may have stopped it, or its JVM may be gone."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _status(run: Run, settings: Any, folder: Path) -> int:
    try:
        return run(settings, folder)
    except Exception:
        traceback.print_exc()
        return 1


# --- where it is started and struck -----------------------------------------------------------------


class Standby:
    """Keeps processes of one program (``argv``), with folders below ``folder``.  :meth:`close` ends them all."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        self._argv = argv
        self._folder = folder
        self._booted = 0
        self._ready: list[_Process] = []
        self._busy: list[Start] = []

    def stand_by(self) -> None:
        """Start a process for the next start unless one is ready or starting already."""
        for process in [process for process in self._ready if process.exit_status is not None]:
            process.close()
            self._ready.remove(process)
        if not self._ready:
            self._booted += 1
            self._ready.append(_Process(self._argv, self._folder / f"process-{self._booted}"))

    def begin(self, folder: Path, settings: Any, rules: Sequence[str] = ()) -> Start:
        """Begin a start in the process that has waited longest."""
        failpoints.parse("; ".join(rules))  # raises for a rule that could never strike
        folder.mkdir(parents=True, exist_ok=False)
        self.stand_by()
        start = Start(self, self._ready.pop(0), folder, settings, rules)
        self._busy.append(start)
        return start

    def over(self, start: Start) -> None:
        """Keep the process if the start ended by itself and left its session; otherwise end the process."""
        if start in self._busy:
            self._busy.remove(start)
            process = start.process
            if start.left_its_session and process.exit_status is None and process.armed < MOST_ARMED:
                self._ready.append(process)
            else:
                process.close()

    def close(self) -> None:
        """End all processes that still run."""
        for process in [*self._ready, *(start.process for start in self._busy)]:
            with contextlib.suppress(NotCounted, subprocess.TimeoutExpired):
                process.close()
        self._ready, self._busy = [], []


class _Process(Driver):
    """A process that has run ``starts`` starts, ``armed`` of them with failpoints."""

    starts = 0
    armed = 0


class Start(Victim):
    """One start in a process that may run other starts before and after it."""

    def __init__(self, standby: Standby, process: _Process, folder: Path, settings: Any, rules: Sequence[str]) -> None:
        printed = process.output_file.stat().st_size if process.starts else 0
        super().__init__(process.popen, folder, process.output_file, rules, printed)
        self.process = process
        self._standby = standby
        process.starts += 1
        process.armed += bool(rules)
        order = {"folder": str(folder), "rules": "; ".join(rules), "settings": settings}
        write_whole(process.folder / f"order-{process.starts}.json", json.dumps(order, indent=1))

    @property
    def left_its_session(self) -> bool:
        """Whether the start ended by itself and another start can use its session."""
        return bool(self._told.get("up"))

    @property
    def exit_status(self) -> int | None:
        """The exit status as if the start had its own process."""
        told = self._told.get("status")
        return int(told) if told is not None else super().exit_status

    @property
    def _told(self) -> Mapping[str, Any]:
        """What the program wrote when the start ended; empty before."""
        try:
            told: Mapping[str, Any] = json.loads((self.folder / ENDED).read_text())
        except FileNotFoundError:
            return {}
        return told

    def close(self) -> None:
        """Give the process back, which then stands by again if it can; see :meth:`Standby.over`."""
        self._standby.over(self)
