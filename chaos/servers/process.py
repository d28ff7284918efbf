"""What all embedded servers have in common: a process on loopback that never outlives the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from epochal.chaos.servers import guard
from epochal.chaos.servers.errors import ServerUnavailable

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
GONE_TIMEOUT_S = 60.0
LOG_TAIL = 30  # lines of the log in an error

# These ports lie below the range that the kernel uses for outgoing connections. While a server is down, any client may
# get a port of that range, even a client that connects to itself. Then the restart of the server would fail.
PORTS = range(20_000, 32_000)

T = TypeVar("T")
S = TypeVar("S", bound="Server")


class Ports:
    """The ports that this process has taken, kept from every other process of this user until this one ends.

    A port is taken long before a server listens on it, and a server that is down still owns its port. A free port is
    therefore not one that nothing listens on, but one that nobody has taken. Each port is one byte of one file, and who
    takes the port locks the byte: the kernel gives it back however the process ends. A lock binds processes, not what
    runs inside one, so the process also notes what it has taken.
    """

    def __init__(self, ports: range = PORTS, *, file: Path | None = None) -> None:
        self._ports = ports
        self._file = file or Path(tempfile.gettempdir()) / f"epochal-ports-{os.getuid()}"
        self._taken: set[int] = set()
        self._turn = threading.Lock()

    def take(self) -> int:
        """Take a port on loopback that nobody has taken and nothing listens on. Raises ServerUnavailable."""
        with self._turn:
            for port in random.SystemRandom().sample(self._ports, min(200, len(self._ports))):
                if port not in self._taken and self._locked(port) and _unused(port):
                    self._taken.add(port)
                    return port
        raise ServerUnavailable(
            f"no free port found in {self._ports.start} to {self._ports.stop}",
            "end what listens there, or the processes of epochal that have taken them",
        )

    @cached_property
    def _lock(self) -> int:
        return os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)  # to close it would end all locks

    def _locked(self, port: int) -> bool:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            return True
        return False


def _unused(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False


_PORTS = Ports()


def free_port() -> int:
    """Return a TCP port on loopback that is this process's own until it ends. Raises ServerUnavailable."""
    return _PORTS.take()


def wait_until(answer: Callable[[], T | None], timeout: float, pause: float = 0.05) -> T | None:
    """Call `answer` until its result is not None; return that. Return None after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        got = answer()
        if got is not None or time.monotonic() > deadline:
            return got
        time.sleep(pause)


@dataclass(frozen=True)
class Command:
    """A server's command line, and the user that runs it if that is not the caller."""

    argv: Sequence[str]
    user: int | None = None
    group: int | None = None


class Server(ABC):
    """One server process with its own data directory and port. After `stop` or `crash`, `start` uses both again.

    As a context manager it is started on entry and closed on exit. Without `directory` it uses a temporary directory,
    which `close` removes.
    """

    kind: str
    stop_signal = signal.SIGTERM

    def __init__(self, *, directory: Path | None = None) -> None:
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"epochal-{self.kind}-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self.log_file = self.directory / "server.log"
        self._guard: subprocess.Popen[str] | None = None
        self.pid: int | None = None
        self._prepared = False

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data directory. Called once, before the first start."""

    def _recover(self) -> None:  # noqa: B027 - most servers recover by themselves
        """Repair data that a crash left behind, if necessary. Called before each start."""

    @abstractmethod
    def _command(self) -> Command:
        """Return the command that runs the server."""

    @abstractmethod
    def _ready(self) -> bool:
        """Return whether the server answers a client. Must not block for more than two seconds."""

    def running(self) -> bool:
        """Return whether the server process runs."""
        return self.pid is not None and guard.alive(self.pid)

    def start(self: S) -> S:
        """Start, and wait until the server answers. Raises ServerUnavailable with the end of its log if it does not."""
        if self.running():
            raise ServerUnavailable(f"{self.kind} on {self.address} is running already", "stop() it first")
        if not self._prepared:
            self._prepare()
            self._prepared = True
        self._recover()
        self._spawn(self._command())
        if wait_until(self._answers_or_died, START_TIMEOUT_S) is not True:
            log = self.log_tail()
            self.close()
            raise ServerUnavailable(
                f"{self.kind} on {self.address} did not come up in {START_TIMEOUT_S:.0f} s",
                "the log above says why",
                log,
            )
        return self

    def stop(self) -> None:
        """Ask the server to stop, and wait; kill it after STOP_TIMEOUT_S. Do nothing if it is not running."""
        if self._guard is None or self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, self.stop_signal)
        if wait_until(self._ended, STOP_TIMEOUT_S) is None:
            guard.kill_tree(self.pid)
        self._forget()

    def crash(self) -> None:
        """Kill the server and its children with SIGKILL. Return when all are gone."""
        if self._guard is None or self.pid is None:
            raise ServerUnavailable(f"{self.kind} on {self.address} is not running", "start() it first")
        victims = guard.kill_tree(self.pid)
        if wait_until(lambda: None if any(map(guard.alive, victims)) else True, GONE_TIMEOUT_S) is None:
            raise ServerUnavailable(f"{self.kind}: {victims} outlive SIGKILL", "look at them with ps")
        self._forget()

    def restart(self: S) -> S:
        """Stop if it is running, and start on the same data and port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop, and remove the directory if it is a temporary one."""
        self.stop()
        atexit.unregister(self.close)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._prepared = False

    def detach(self) -> int:
        """Let the server outlive this process. Return the process id to `kill` when it is no longer needed."""
        if self._guard is None:
            raise ServerUnavailable(f"{self.kind} on {self.address} is not running", "start() it first")
        atexit.unregister(self.close)
        self._guard.send_signal(signal.SIGUSR1)
        pid, self._guard, self.pid = self._guard.pid, None, None
        return pid

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-LOG_TAIL:])

    def __enter__(self: S) -> S:
        return self if self.running() else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spawn(self, command: Command) -> None:
        task = {
            "argv": [str(part) for part in command.argv],
            "user": command.user,
            "group": command.group,
            "cwd": str(self.directory),
            "log": str(self.log_file),
            "parent": os.getpid(),
            "stop_signal": int(self.stop_signal),
            "remove": [str(folder) for folder in self._left_behind()],
        }
        with self.log_file.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, json.dumps(task)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        told = self._guard.stdout.readline().strip()
        if not told:
            self._forget()
            raise ServerUnavailable(f"{self.kind} could not be run", "the log above says why", self.log_tail())
        self.pid = int(told)
        atexit.register(self.close)

    def _left_behind(self) -> list[Path]:
        """Return the folders that are removed when the process that started the server is gone."""
        return [self.directory] if self._temporary else []

    def _answers_or_died(self) -> bool | None:
        """True if the server answers, False if it ended, None if neither is the case yet."""
        if self._ended():
            return False
        return True if self._ready() else None

    def _ended(self) -> bool | None:
        return None if self._guard is not None and self._guard.poll() is None else True

    def _forget(self) -> None:
        if self._guard is not None:
            self._guard.wait(GONE_TIMEOUT_S)
            if self._guard.stdout is not None:
                self._guard.stdout.close()
        self._guard = self.pid = None
