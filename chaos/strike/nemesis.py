"""Strikes that count: a process is seen blocked at a named point, struck by a signal, and seen to die of it.

A driver program is started with failpoints armed (:mod:`epochal.coordinator.model.failpoints`).  At the armed point it
writes who it is and blocks; the nemesis reads that, checks that this very process belongs to that driver, and
strikes.  What was not seen is no strike: :class:`NotCounted`.

That a process died *of the signal* is seen in its wait status.  Our own child's is told by ``wait``; a
grandchild's is told to whoever traces it (``ptrace``), also where its parent ignores the deaths of its
children, as Spark's daemon of Python workers does.  Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from epochal.chaos.servers import guard
from epochal.chaos.servers.process import Server
from epochal.coordinator.model import failpoints

SEEN_TIMEOUT_S = 60.0
GONE_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.02
PTRACE_SEIZE = 0x4206
WALL = 0x40000000  # of waitpid: also those that are no children of ours

T = TypeVar("T")
V = TypeVar("V", bound="Victim")


class NotCounted(Exception):
    """What was asked for did not happen, or nobody saw it happen."""


@dataclass(frozen=True)
class Sighting:
    """A process that was seen blocked at a point."""

    pid: int
    point: str
    sink: str
    epoch: int


@dataclass(frozen=True)
class Death:
    """A process that was seen to die of a signal."""

    pid: int
    signal: int


def poll(look: Callable[[], T | None], timeout: float, what: str) -> T:
    """What ``look`` answers once it is not None; NotCounted if that takes longer than ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        got = look()
        if got is not None:
            return got
        if time.monotonic() > deadline:
            raise NotCounted(f"not seen within {timeout:.0f} s: {what}")
        time.sleep(POLL_S)


def kill_seen(pid: int) -> Death:
    """SIGKILL to somebody else's child, and see its wait status as its tracer."""
    _trace(pid)
    os.kill(pid, signal.SIGKILL)
    return death(pid, poll(lambda: _wait_status(pid), SEEN_TIMEOUT_S, f"the death of process {pid}"))


def death(pid: int, status: int) -> Death:
    """What a wait status says; NotCounted unless the process died of SIGKILL."""
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise NotCounted(f"process {pid} ended with wait status {status}, not of signal {signal.SIGKILL:d}")
    return Death(pid, os.WTERMSIG(status))


def _trace(pid: int) -> None:
    """Become the process's tracer, without halting it."""
    if not sys.platform.startswith("linux"):
        raise NotCounted(f"the deaths of other processes' children are seen on Linux only, this is {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotCounted(f"process {pid} cannot be watched ({reason}): it is gone, or ptrace is not allowed here")


def _wait_status(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG | WALL)
    return status if found == pid else None


def pause(pid: int) -> None:
    """SIGSTOP, and see all its threads halted."""
    os.kill(pid, signal.SIGSTOP)
    poll(lambda: _halted(pid) or None, SEEN_TIMEOUT_S, f"process {pid} halted")


def resume(pid: int) -> None:
    """SIGCONT."""
    os.kill(pid, signal.SIGCONT)


def crash(server: Server) -> Death:
    """SIGKILL to a server and all its children; it can be started again on the same data and port."""
    pid = server.pid
    if pid is None:
        raise NotCounted(f"{server.kind} is not running")
    children = guard.descendants(pid)
    seen = kill_seen(pid)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _wait_gone(children)
    server.stop()  # nothing is left to stop: it forgets the dead process
    return seen


def parent_of(pid: int) -> int | None:
    """The parent's process id, None when there is no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _halted(pid: int) -> bool:
    """Whether every thread of a process is stopped by a signal."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(_stat(pid, thread)[:1] == ["T"] for thread in threads)


def _stat(pid: int, thread: str = "") -> list[str]:
    """The fields of /proc/<pid>/stat from the state to the exit status; empty when there is no such process."""
    path = Path(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[:50]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _wait_gone(pids: Sequence[int]) -> None:
    poll(lambda: None if any(map(guard.alive, pids)) else True, GONE_TIMEOUT_S, f"the end of {list(pids)}")


class Victim:
    """A Spark driver program at one of its starts: a process with its JVM and everything below, which can be struck.

    ``folder`` is this start's own: its failpoint files lie there.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, output_file: Path, armed: Sequence[str], printed: int = 0
    ) -> None:
        self.folder = folder
        self.output_file = output_file
        self.popen = process
        self._armed = list(armed)
        self._printed = printed  # by earlier starts, in bytes

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def jvm(self) -> int:
        """The driver's JVM; NotCounted when there is none."""
        for pid in guard.descendants(self.pid):
            if _name(pid) == "java" and parent_of(pid) == self.pid:
                return pid
        raise NotCounted(f"driver {self.pid} has no JVM")

    @property
    def exit_status(self) -> int | None:
        """As ``subprocess`` tells it: None while it runs, negative for a signal."""
        return self.popen.poll()

    def output(self) -> str:
        """All it has printed so far."""
        return self.output_file.read_bytes()[self._printed :].decode(errors="replace")

    def see_blocked(self, rule: str, timeout: float) -> Sighting:
        """Wait until a process of this driver is blocked where the armed rule says; anything else is not counted."""
        sighting = poll(lambda: self._blocked_or_ended(rule), timeout, f"a process blocked by {rule}\n{self.tail()}")
        (armed,) = failpoints.parse(rule)
        where = (armed.point.value, armed.sink or sighting.sink, sighting.epoch if armed.epoch is None else armed.epoch)
        if where != (sighting.point, sighting.sink, sighting.epoch):
            raise NotCounted(f"{sighting} is not where the rule {rule} says")
        if sighting.pid != self.pid and sighting.pid not in guard.descendants(self.pid):
            raise NotCounted(f"{sighting} is no process of driver {self.pid}")
        return sighting

    def see_hit(self, rule: str, timeout: float) -> Sighting:
        """Wait until the armed rule has struck; whoever it struck may be gone."""
        return poll(lambda: self._blocked_or_ended(rule), timeout, f"a process struck by {rule}\n{self.tail()}")

    def was_hit(self, rule: str) -> bool:
        """Whether the armed rule has struck by now."""
        return self._file(rule, "blocked").exists()

    def _blocked_or_ended(self, rule: str) -> Sighting | None:
        try:
            seen = json.loads(self._file(rule, "blocked").read_text())
        except FileNotFoundError:
            if self.exit_status is None:
                return None
            raise NotCounted(f"driver {self.pid} ended with {self.exit_status} before {rule}\n{self.tail()}") from None
        return Sighting(int(seen["pid"]), str(seen["point"]), str(seen["sink"]), int(seen["epoch"]))

    def go(self, rule: str) -> None:
        """Let whoever is blocked by that rule go on."""
        self._file(rule, "go").touch()

    def _file(self, rule: str, kind: str) -> Path:
        return self.folder / f"{self._armed.index(rule)}.{kind}"

    def kill(self) -> list[Death]:
        """SIGKILL to the driver, its JVM and its Python process; returns when nothing of it is left.

        The Python process is halted first, so that neither half sees the other die.
        """
        jvm = self.jvm
        pause(self.pid)
        everybody = guard.descendants(self.pid)
        deaths = [kill_seen(jvm)]
        self.popen.kill()
        status = self.popen.wait(GONE_TIMEOUT_S)
        if status != -signal.SIGKILL:
            raise NotCounted(f"driver {self.pid} ended with status {status}, not of signal {signal.SIGKILL:d}")
        _wait_gone(everybody)
        return [Death(self.pid, -status), *deaths]

    def executors(self) -> list[int]:
        """The executor JVMs of a `local-cluster` driver."""
        return [pid for pid in guard.descendants(self.pid) if "CoarseGrainedExecutorBackend" in _arguments(pid)]

    def pause(self) -> None:
        """SIGSTOP to the Python process and its JVM."""
        for pid in (self.pid, self.jvm):
            pause(pid)

    def resume(self) -> None:
        """SIGCONT to both."""
        for pid in (self.jvm, self.pid):
            resume(pid)

    def wait(self, timeout: float) -> int:
        """Its exit status; NotCounted if it does not end in time."""
        try:
            return poll(lambda: self.exit_status, timeout, "its end")
        except NotCounted:
            raise NotCounted(f"driver {self.pid} did not end within {timeout:.0f} s:\n{self.tail()}") from None

    def tail(self, lines: int = 25) -> str:
        """The end of what it printed, indented."""
        return "\n".join(f"    | {line}" for line in self.output().splitlines()[-lines:])

    def close(self) -> None:
        """End it, whatever it does, and everything below it.  Counts as nothing."""
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        if self.exit_status is None:
            _wait_gone(guard.kill_tree(self.pid)[1:])
            self.popen.wait(STOP_TIMEOUT_S)

    def __enter__(self: V) -> V:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Driver(Victim):
    """A start in a process of its own.

    The program's output lies in ``folder``, too.  It should end when its standard input does
    (:func:`end_with_parent`), so that it never outlives the nemesis.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        failpoints_armed: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=False)
        output_file = folder / "output.log"
        failpoints.parse("; ".join(failpoints_armed))  # refuses a rule that could never strike
        with output_file.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal is for the nemesis alone
                env={
                    **os.environ,
                    **(environment or {}),
                    failpoints.ENVIRONMENT: "; ".join(failpoints_armed),
                    failpoints.FOLDER: str(folder),
                },
            )
        super().__init__(process, folder, output_file, failpoints_armed)


def end_with_parent() -> None:
    """For driver programs: end at once when whoever started this process is gone (standard input ends)."""
    import threading

    def watch() -> None:
        while os.read(0, 1024):  # unbuffered: a lock held by this thread would abort the interpreter's exit
            pass
        os._exit(3)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
