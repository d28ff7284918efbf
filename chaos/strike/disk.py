"""A small disk (tmpfs) only for a checkpoint.  It can be filled and made read-only.

Mounting needs Linux and root.  :func:`why_not` says what is missing here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from io import RawIOBase
from pathlib import Path

from epochal.chaos.strike.nemesis import NotCounted, poll

SIZE_MB = 96
BLOCK = 1 << 20
TIMEOUT_S = 120
BUSY_S = 10
"""How many seconds a disk may refuse to become read-only before it is reported as busy."""


def why_not() -> str:
    """Return why no disk can be mounted here; empty if one can be mounted."""
    if not sys.platform.startswith("linux"):
        return f"a disk of its own is mounted on Linux only, this is {sys.platform}"
    if os.geteuid() != 0:
        return "mounting a disk of its own needs root"
    return ""


class Disk:
    """A disk that is mounted on ``folder`` while its context is entered.  Its files are lost at the end."""

    def __init__(self, folder: Path, megabytes: int = SIZE_MB) -> None:
        self.folder = folder
        self._megabytes = megabytes
        self._ballast = folder / ".ballast"

    def __enter__(self) -> Disk:
        self.folder.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self._megabytes}m", "epochal-chaos", str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "--lazy", str(self.folder))  # a process that is still ending may have a file open

    def fill(self) -> None:
        """Fill the disk until not one more byte can be written."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (BLOCK, 1):  # the last bytes one by one
                while _fits(file, size):
                    pass

    def drain(self) -> None:
        """Free the space that :meth:`fill` took."""
        self._ballast.unlink(missing_ok=True)

    def read_only(self) -> None:
        """Make the disk read-only.  If it stays busy, raise NotCounted with the open files and their processes.

        Linux refuses to make a disk read-only while a file is open for writing, or is open and deleted.  Spark writes
        some files of a checkpoint in the background, and a JVM keeps files of a failed task open until it collects
        garbage.
        """
        try:
            poll(self._refusing, BUSY_S, f"{self.folder} read-only")
        except NotCounted as late:
            open_files = ", ".join(_open_below(self.folder)) or "none found"
            raise NotCounted(f"{late}: the disk is busy; open files: {open_files}") from None

    def _refusing(self) -> bool | None:
        """Remount the disk; return None if it is busy, else True."""
        try:
            _run("mount", "-o", "remount,ro", str(self.folder))
        except NotCounted as refused:
            if "busy" in str(refused):
                return None
            raise
        return True

    def writable(self) -> None:
        """Make the disk writable again."""
        _run("mount", "-o", "remount,rw", str(self.folder))


def _fits(file: RawIOBase, size: int) -> bool:
    try:
        file.write(b"\0" * size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _open_below(folder: Path) -> list[str]:
    """Every file below a folder that a process has open, also for reading, as "PID NAME FILE"."""
    found = []
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # the file was closed meanwhile, or its process ended
            file, process = os.readlink(handle), handle.parents[1]
            if file.startswith(f"{folder}/"):
                found.append(f"{process.name} {(process / 'comm').read_text().strip()} {file}")
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise NotCounted(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
