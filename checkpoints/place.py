"""A folder of a local disk in which a checkpoint lies: its file system, its free space, and whether it is writable.

Nothing is written here.  Whether a log of files can lie there is tried out before its first record (``filesystem.py``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from epochal.coordinator.model.errors import Misconfigured

ROOM = 1 << 30
"""With fewer free bytes than this there is a caution."""
NAMES = 1_000
"""With fewer free names (inodes) than this there is a caution."""

_GONE_WITH_IT = ("tmpfs", "ramfs", "overlay")
_OF_A_SERVER = ("nfs", "nfs4", "9p", "cifs", "smb3", "virtiofs")


@dataclass(frozen=True)
class Place:
    """What is known of a folder.  ``folder``: the nearest one that exists.  ``names``: free inodes; None: no limit."""

    folder: str
    kind: str
    mount: str
    free: int
    size: int
    names: int | None

    def __str__(self) -> str:
        return f"{self.folder}: {self.kind} at {self.mount}, {gib(self.free)} of {gib(self.size)} free"

    def cautions(self) -> list[str]:
        """Return what may go wrong here, as sentences."""
        said = []
        if self.free < ROOM:
            said.append(f"{self.folder} has only {gib(self.free)} of free space: a larger epoch would end the query")
        if self.names is not None and self.names < NAMES:
            said.append(f"{self.folder} has room for only {self.names} more files")
        if self.kind in _GONE_WITH_IT:
            said.append(
                f"{self.mount} is of the kind {self.kind}: its files may be gone after a restart of the machine or"
                " container, and without its checkpoint a query cannot go on"
            )
        if self.kind in _OF_A_SERVER or self.kind.startswith("fuse"):
            said.append(
                f"{self.mount} is of the kind {self.kind}: the first start tries out whether a log can lie there, and"
                " refuses if it cannot"
            )
        return said


def of(path: str) -> Place:
    """Return what is known of the place; ``Misconfigured`` if no folder can be made there."""
    folder = _nearest(Path(os.path.abspath(path)))
    found = os.statvfs(folder)
    kind, mount = _mounted(folder)
    if found.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise Misconfigured(
            f"this process may not write in {folder}",
            state=f"user id {os.geteuid()}, {kind} at {mount}"
            + (", mounted read-only" if found.f_flag & os.ST_RDONLY else ""),
            help="give its user the right to write there, or put the checkpoint elsewhere",
        )
    unit = found.f_frsize
    names = found.f_favail if found.f_files else None
    return Place(str(folder), kind, mount, found.f_bavail * unit, found.f_blocks * unit, names)


def _nearest(path: Path) -> Path:
    """Return the folder, or the nearest folder above it that this process can see."""
    there = next(each for each in (path, *path.parents) if os.path.exists(each))
    if not os.path.isdir(there):
        raise Misconfigured(
            f"{there} is a file, so no folder can be there", state=f"asked for {path}", help="name a folder"
        )
    return there


def _mounted(folder: Path) -> tuple[str, str]:
    """Return kind and mount point of the folder's file system, by the kernel's list of mounts."""
    whole = os.path.realpath(folder)
    best = ("unknown", "/")
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return best
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = _unescaped(before.split()[4])
        inside = whole == mount or whole.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[1]):  # of several mounts at one point, the last counts
            best = (after.split()[0], mount)
    return best


def _unescaped(mount: str) -> str:
    r"""Return the path; the kernel writes blanks and backslashes in it as ``\040`` and ``\134``."""
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount = mount.replace(code, letter)
    return mount


def gib(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / 2**30:.1f} GiB"
