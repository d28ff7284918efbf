"""Strikes that count: a process is seen blocked at a named point, is sent a signal, and is seen to die of it.

A driver program is started with failpoints armed (:mod:`epochal.coordinator.model.failpoints`).  At the armed point
the process writes its process id to a file and blocks.  The nemesis reads the file, checks that the process belongs to
that driver, and strikes.  A strike that was not seen raises :class:`NotCounted`.

The wait status of a process shows that it died *of the signal*.  For our own child, ``wait`` returns the status.  For a
grandchild, the kernel reports it to the process that traces it (``ptrace``).  This also works if the parent ignores the
deaths of its children, as Spark's daemon of Python workers does.  Linux only.
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
WALL = 0x40000000  # option of waitpid: also wait for processes that are not our children

T = TypeVar("T")
V = TypeVar("V", bound="Victim")


class NotCounted(Exception):
    """The requested fault did not happen, or was not seen to happen."""


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
    """Call ``look`` until its result is not None; return that.  Raises NotCounted after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        got = look()
        if got is not None:
            return got
        if time.monotonic() > deadline:
            raise NotCounted(f"not seen within {timeout:.0f} s: {what}")
        time.sleep(POLL_S)


def kill_seen(pid: int) -> Death:
    """Send SIGKILL to a process that is not our child, and read its wait status as its tracer."""
    _trace(pid)
    os.kill(pid, signal.SIGKILL)
    return death(pid, poll(lambda: _wait_status(pid), SEEN_TIMEOUT_S, f"the death of process {pid}"))


def death(pid: int, status: int) -> Death:
    """Return the death that a wait status shows.  Raises NotCounted unless the process died of SIGKILL."""
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise NotCounted(f"process {pid} ended with wait status {status}, not of signal {signal.SIGKILL:d}")
    return Death(pid, os.WTERMSIG(status))


def _trace(pid: int) -> None:
    """Become the tracer of the process, without stopping it."""
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
    """Send SIGSTOP, and wait until all threads of the process are stopped."""
    os.kill(pid, signal.SIGSTOP)
    poll(lambda: _halted(pid) or None, SEEN_TIMEOUT_S, f"process {pid} halted")


def resume(pid: int) -> None:
    """Send SIGCONT."""
    os.kill(pid, signal.SIGCONT)


def crash(server: Server) -> Death:
    """Send SIGKILL to a server and all its children.  It can be started again on the same data and port."""
    pid = server.pid
    if pid is None:
        raise NotCounted(f"{server.kind} is not running")
    children = guard.descendants(pid)
    seen = kill_seen(pid)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _wait_gone(children)
    server.stop()  # the process is dead already; this makes the Server object forget it
    return seen


def parent_of(pid: int) -> int | None:
    """Return the process id of the parent; None if the process does not exist."""
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
    """The fields of /proc/<pid>/stat from the state to the exit status; empty if the process does not exist."""
    path = Path(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[:50]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _wait_gone(pids: Sequence[int]) -> None:
    poll(lambda: None if any(map(guard.alive, pids)) else True, GONE_TIMEOUT_S, f"the end of {list(pids)}")


class Victim:
    """One start of a Spark driver program, which can be struck: a process with its JVM and everything below it.

    ``folder`` belongs to this start alone and holds its failpoint files.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, output_file: Path, armed: Sequence[str], printed: int = 0
    ) -> None:
        self.folder = folder
        self.output_file = output_file
        self.popen = process
        self._armed = list(armed)
        self._printed = printed  # bytes that earlier starts of the same process printed

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def jvm(self) -> int:
        """The process id of the driver's JVM.  Raises NotCounted if there is none."""
        for pid in guard.descendants(self.pid):
            if _name(pid) == "java" and parent_of(pid) == self.pid:
                return pid
        raise NotCounted(f"driver {self.pid} has no JVM")

    @property
    def exit_status(self) -> int | None:
        """The exit status as ``subprocess`` returns it: None while the process runs, negative for a signal."""
        return self.popen.poll()

    def output(self) -> str:
        """Return everything that this start has printed so far."""
        return self.output_file.read_bytes()[self._printed :].decode(errors="replace")

    def see_blocked(self, rule: str, timeout: float) -> Sighting:
        """Wait until a process of this driver is blocked where the armed rule says.  Raises NotCounted otherwise."""
        sighting = poll(lambda: self._blocked_or_ended(rule), timeout, f"a process blocked by {rule}\n{self.tail()}")
        (armed,) = failpoints.parse(rule)
        where = (armed.point.value, armed.sink or sighting.sink, sighting.epoch if armed.epoch is None else armed.epoch)
        if where != (sighting.point, sighting.sink, sighting.epoch):
            raise NotCounted(f"{sighting} is not where the rule {rule} says")
        if sighting.pid != self.pid and sighting.pid not in guard.descendants(self.pid):
            raise NotCounted(f"{sighting} is no process of driver {self.pid}")
        return sighting

    def see_hit(self, rule: str, timeout: float) -> Sighting:
        """Wait until the armed rule has struck.  The struck process may be gone already."""
        return poll(lambda: self._blocked_or_ended(rule), timeout, f"a process struck by {rule}\n{self.tail()}")

    def was_hit(self, rule: str) -> bool:
        """Return whether the armed rule has struck by now."""
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
        """Let the process that is blocked by this rule go on."""
        self._file(rule, "go").touch()

    def _file(self, rule: str, kind: str) -> Path:
        return self.folder / f"{self._armed.index(rule)}.{kind}"

    def kill(self) -> list[Death]:
        """Kill the driver's JVM and Python process with SIGKILL.  Return when no process of the driver is left.

        The Python process is stopped first, so that neither of the two sees the other die.
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
        """Return the process ids of the executor JVMs of a ``local-cluster`` driver."""
        return [pid for pid in guard.descendants(self.pid) if "CoarseGrainedExecutorBackend" in _arguments(pid)]

    def pause(self) -> None:
        """Stop the Python process and its JVM with SIGSTOP."""
        for pid in (self.pid, self.jvm):
            pause(pid)

    def resume(self) -> None:
        """Continue both with SIGCONT."""
        for pid in (self.jvm, self.pid):
            resume(pid)

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit status.  Raises NotCounted after ``timeout`` seconds."""
        try:
            return poll(lambda: self.exit_status, timeout, "its end")
        except NotCounted:
            raise NotCounted(f"driver {self.pid} did not end within {timeout:.0f} s:\n{self.tail()}") from None

    def tail(self, lines: int = 25) -> str:
        """Return the last lines that it printed, indented."""
        return "\n".join(f"    | {line}" for line in self.output().splitlines()[-lines:])

    def close(self) -> None:
        """End the process and everything below it, whatever it is doing.  This is no strike."""
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
    """One start in its own process.

    ``folder`` holds the program's output, too.  The program should end when its standard input ends
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
        failpoints.parse("; ".join(failpoints_armed))  # raises for a rule that could never strike
        with output_file.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal must reach only the nemesis
                env={
                    **os.environ,
                    **(environment or {}),
                    failpoints.ENVIRONMENT: "; ".join(failpoints_armed),
                    failpoints.FOLDER: str(folder),
                },
            )
        super().__init__(process, folder, output_file, failpoints_armed)


def end_with_parent() -> None:
    """End this process at once when its standard input ends, because then its parent is gone.  For driver programs."""
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
