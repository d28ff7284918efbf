"""Driver programs that take one start after another, so that Spark itself, which takes longest, is started seldom.

A process that was killed is gone, and the next start is another one's.  One whose query has ended by itself, in an
error or not, still has its session: it stands by, and takes the next start with failpoints of that start's own.

The program calls :func:`serve`; :class:`Standby` keeps its processes.  Both meet in the process's folder, where
``order-N.json`` says what start N is about, and in the start's folder, where ``ended`` holds its exit status and
whether the session is still up.
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
IDLE_S = 1800.0
MOST_ARMED = 8
"""Spark keeps the daemon of Python workers of every environment that there was, and each armed start has its own."""
POLL_S = 0.05

Run = Callable[[Any, Path], int]
"""One start of the program: its settings and its folder; the exit status."""


# --- in the program ---------------------------------------------------------------------------------


def serve(spark: SparkSession, run: Run) -> None:
    """Take orders, for as long as they come and the session lives; a start that raises ends with status 1, as a
    process would."""
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
    """Whoever sees the file sees all of it."""
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(text)
    partial.rename(path)


def _await_order(path: Path) -> Mapping[str, Any]:
    limit = time.monotonic() + IDLE_S
    while not path.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"nobody wanted a start within {IDLE_S:.0f} s")
        time.sleep(POLL_S)
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


@contextlib.contextmanager
def _armed(spark: SparkSession, rules: str, folder: Path) -> Iterator[None]:
    """Here, and in the Python workers: Spark has others for tasks of another environment."""
    environment: dict[str, Any] = spark.sparkContext.environment
    told = {failpoints.ENVIRONMENT: rules, failpoints.FOLDER: str(folder) if rules else ""}
    os.environ.update(told)
    environment.update(told)
    with failpoints.armed(rules):
        yield


def _is_up(spark: SparkSession) -> bool:
    """Whether the next start could use the session: what runs in it may have stopped it, and its JVM may be gone."""
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
    """Processes of one program (``argv``), in folders below ``folder``; nobody outlives :meth:`close`."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        self._argv = argv
        self._folder = folder
        self._booted = 0
        self._ready: list[_Process] = []
        self._busy: list[Start] = []

    def stand_by(self) -> None:
        """Have a process ready, or on its way."""
        for process in [process for process in self._ready if process.exit_status is not None]:
            process.close()
            self._ready.remove(process)
        if not self._ready:
            self._booted += 1
            self._ready.append(_Process(self._argv, self._folder / f"process-{self._booted}"))

    def begin(self, folder: Path, settings: Any, rules: Sequence[str] = ()) -> Start:
        """A start, in the process that has waited longest."""
        failpoints.parse("; ".join(rules))  # refuses a rule that could never strike
        folder.mkdir(parents=True, exist_ok=False)
        self.stand_by()
        start = Start(self, self._ready.pop(0), folder, settings, rules)
        self._busy.append(start)
        return start

    def over(self, start: Start) -> None:
        """Keep the process of a start that has ended by itself; end any other."""
        if start in self._busy:
            self._busy.remove(start)
            process = start.process
            if start.left_its_session and process.exit_status is None and process.armed < MOST_ARMED:
                self._ready.append(process)
            else:
                process.close()

    def close(self) -> None:
        """End all that still runs."""
        for process in [*self._ready, *(start.process for start in self._busy)]:
            with contextlib.suppress(NotCounted, subprocess.TimeoutExpired):
                process.close()
        self._ready, self._busy = [], []


class _Process(Driver):
    """Has had ``starts`` of them, ``armed`` with failpoints."""

    starts = 0
    armed = 0


class Start(Victim):
    """One start; the process may have had others before it, and have more after it."""

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
        """Whether it has ended by itself, and another start could have its session."""
        return bool(self._told.get("up"))

    @property
    def exit_status(self) -> int | None:
        """As of a process of its own."""
        told = self._told.get("status")
        return int(told) if told is not None else super().exit_status

    @property
    def _told(self) -> Mapping[str, Any]:
        """What the program said as it ended."""
        try:
            told: Mapping[str, Any] = json.loads((self.folder / ENDED).read_text())
        except FileNotFoundError:
            return {}
        return told

    def close(self) -> None:
        """The process stands by again if the start has ended by itself."""
        self._standby.over(self)
