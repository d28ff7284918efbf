"""A small disk of a checkpoint's own (tmpfs), which can be filled up and made read-only.

Mounting needs Linux and root (``CAP_SYS_ADMIN``); where that cannot be had, :func:`why_not` says so in words.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from io import RawIOBase
from pathlib import Path

from epochal.chaos.nemesis import NotCounted, poll

SIZE_MB = 96
BLOCK = 1 << 20
TIMEOUT_S = 30
BUSY_S = 10
"""How long a file may stay open for writing before a disk is called busy."""


def why_not() -> str:
    """Why no disk can be mounted here; empty where one can be."""
    if not sys.platform.startswith("linux"):
        return f"a disk of its own is mounted on Linux only, this is {sys.platform}"
    if os.geteuid() != 0:
        return "mounting a disk of its own needs root"
    return ""


class Disk:
    """Mounted on ``folder`` for as long as it is entered; files on it are lost at the end."""

    def __init__(self, folder: Path, megabytes: int = SIZE_MB) -> None:
        self.folder = folder
        self._megabytes = megabytes
        self._ballast = folder / ".ballast"

    def __enter__(self) -> Disk:
        self.folder.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self._megabytes}m", "epochal-chaos", str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "--lazy", str(self.folder))  # whoever is still being ended may have a file open

    def fill(self) -> None:
        """Until nothing more can be written."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (BLOCK, 1):  # the last bytes one by one
                while _fits(file, size):
                    pass

    def drain(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)

    def read_only(self) -> None:
        """Refuse every write; NotCounted if somebody keeps a file open for writing.

        Linux refuses that while any file is, and Spark writes some of a checkpoint's beside its query.
        """
        poll(self._refusing, BUSY_S, f"{self.folder} read-only: it is busy, a file is open for writing")

    def _refusing(self) -> bool | None:
        """None while the disk is busy."""
        try:
            _run("mount", "-o", "remount,ro", str(self.folder))
        except NotCounted as refused:
            if "busy" in str(refused):
                return None
            raise
        return True

    def writable(self) -> None:
        """Take that back."""
        _run("mount", "-o", "remount,rw", str(self.folder))


def _fits(file: RawIOBase, size: int) -> bool:
    try:
        file.write(b"\0" * size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise NotCounted(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
