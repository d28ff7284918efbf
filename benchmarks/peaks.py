"""The peak memory of a driver, read from outside: of its Python process, its JVM, and its Python workers.

The kernel keeps the maximum resident memory of each process (``VmHWM``), so a look now and then is enough.  If a worker
ends, only its growth since the last look is missed.  A JVM uses all memory that it may before it collects garbage.
Therefore the heap in use after a collection is also read, from the JVM's own log.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from epochal.chaos.servers import guard
from epochal.chaos.strike.nemesis import parent_of

LOOK_S = 0.1
MB = 1024  # kB, the unit of the kernel
_COLLECTED = re.compile(r"GC\(\d+\) Pause .*?(\d+)M->(\d+)M\((\d+)M\)")


def gc_log(path: Path) -> str:
    """Return the option with which a JVM writes its garbage collection log to ``path``."""
    return f"-Xlog:gc:file={path}"


def heap_after_collection(log: str) -> int | None:
    """Return the largest heap in use after a garbage collection, in MB; None if there was no collection."""
    return max((int(found[2]) for found in _COLLECTED.finditer(log)), default=None)


class Peaks:
    """Watches ``root``, its JVM and all processes below while its context is entered."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._most: dict[int, int] = {}
        self._what: dict[int, str] = {}
        self._workers_together = 0
        self._over = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name="peaks")

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if self._failed is not None and error is None:
            raise self._failed

    def of(self) -> Mapping[str, float]:
        """Return peaks in MB: of the driver's Python, its JVM, the largest worker, and all workers at the same time."""
        found: dict[str, float] = {}
        for pid, most in list(self._most.items()):
            what = self._what[pid]
            found[what] = max(found.get(what, 0.0), most / MB)
        return {**found, "workers together": self._workers_together / MB} if "worker" in found else found

    def _watch(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                self._look()
        except Exception as error:
            self._failed = error

    def _look(self) -> None:
        together = 0
        for pid in (self._root, *guard.descendants(self._root)):
            what, status = self._kind(pid), memory(pid)
            if what is None or status is None:
                continue
            self._most[pid] = max(self._most.get(pid, 0), status[0])
            together += status[1] if what == "worker" else 0
        self._workers_together = max(self._workers_together, together)

    def _kind(self, pid: int) -> str | None:
        """driver, jvm or worker.

        None for other processes, such as a ``chmod`` of Hadoop, or the JVM while it is still a fork of the driver.
        """
        if pid not in self._what:
            name, parent = _name(pid), parent_of(pid)
            if pid == self._root:
                self._what[pid] = "driver"
            elif name == "java" and parent == self._root:
                self._what[pid] = "jvm"
            elif name.startswith("python") and parent != self._root:
                self._what[pid] = "worker"
        return self._what.get(pid)


def memory(pid: int) -> tuple[int, int] | None:
    """Return (maximum resident kB, anonymous resident kB now) of a process; None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = dict(re.findall(r"^(VmHWM|RssAnon):\s+(\d+) kB$", status, re.MULTILINE))
    return (int(found["VmHWM"]), int(found["RssAnon"])) if len(found) == 2 else None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
