"""Runs one server as its child, and kills it when the parent process is gone.

This is a stand-alone script (standard library only), started as `python guard.py <json>`. It prints the server's
process id and waits. If the server ends, the guard ends with the same status. If its own parent ends for any reason,
the guard kills the server and everything below it. `kill <guard>` stops the server with its own stop signal. After
SIGUSR1 the server may outlive the parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.5
GRACE_S = 20.0  # after the stop signal, before the server is killed


def descendants(root: int) -> list[int]:
    """Return the ids of all processes that are below `root` now."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _parents() -> list[tuple[int, int]]:
    if not os.path.isdir("/proc/self"):
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        return [(int(pid), int(parent)) for pid, parent in map(str.split, listing.stdout.splitlines())]
    pairs = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                pairs.append((int(name), int(_stat(int(name))[1])))
    return pairs


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat, beginning with the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    """Return whether a process still runs. A dead process that is not reaped yet does not run."""
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    try:
        return _stat(pid)[0] not in ("Z", "X")
    except OSError:
        return False


def kill_tree(root: int) -> list[int]:
    """Kill `root` and all below it with SIGKILL; return their ids. `root` is stopped first, so that it cannot fork."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
    victims = [root, *descendants(root)]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return victims


class Guard:
    """Watches one server and the guard's parent."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._watched = True
        self._stop_asked_at: float | None = None
        self._server = self._spawn()
        self._wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGUSR1, self._on_detach)

    def _spawn(self) -> subprocess.Popen[bytes]:
        user: int | None = self._task["user"]
        identity: dict[str, Any] = {}
        if user is not None:
            identity = {"user": user, "group": self._task["group"], "extra_groups": []}
        with open(self._task["log"], "ab") as log:
            return subprocess.Popen(
                self._task["argv"],
                cwd=self._task["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **identity,
            )

    def _on_terminate(self, *_: object) -> None:
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
            self._server.send_signal(self._task["stop_signal"])

    def _on_detach(self, *_: object) -> None:
        self._watched = False

    def run(self) -> int:
        """Wait until the server has ended; kill it if the parent ends first. Return its exit status."""
        parent = self._task["parent"]
        with contextlib.suppress(BrokenPipeError):
            print(self._server.pid, flush=True)
        while self._server.poll() is None:
            if self._watched and os.getppid() != parent:
                kill_tree(self._server.pid)
                self._server.wait()
                self._remove()
            elif self._stop_asked_at is not None and time.monotonic() - self._stop_asked_at > GRACE_S:
                kill_tree(self._server.pid)
            readable, _, _ = select.select([self._wake], [], [], POLL_S)
            if readable:
                os.read(self._wake, 4096)
        return self._server.returncode

    def _remove(self) -> None:
        for directory in self._task["remove"]:
            shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    status = Guard(json.loads(sys.argv[1])).run()
    if status < 0:  # die of the same signal, so that the process that waits for the guard sees what killed the server
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
