"""The file operations of ``FilesLog``, about one system call each, so that a test can watch their order."""

from __future__ import annotations

import fcntl
import os


class Disk:
    """A local file system with hard links, on which ``fsync`` of a folder makes the names in it durable."""

    def make_folder(self, path: str) -> None:
        """Make a folder.  Its name is durable once the parent folder is synced."""
        os.mkdir(path)

    def create(self, path: str) -> int:
        """Make an empty file and return a handle on it; ``FileExistsError`` if the name is taken."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open(self, path: str) -> int:
        """Return a handle for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def claim(self, handle: int) -> None:
        """Lock the file until ``close`` or the death of the process; ``BlockingIOError`` if another holds the lock."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, handle: int, data: bytes) -> int:
        """Write bytes; return how many were written, which may be fewer than all."""
        return os.write(handle, data)

    def sync(self, handle: int) -> None:
        """Make durable what was written."""
        os.fsync(handle)

    def names_of(self, handle: int) -> int:
        """Return how many names the file still has."""
        return os.fstat(handle).st_nlink

    def close(self, handle: int) -> None:
        """Close the handle, which also releases its lock."""
        os.close(handle)

    def link(self, path: str, name: str) -> None:
        """Give the file a second name, atomically; ``FileExistsError`` if the name is taken."""
        os.link(path, name)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Make durable which names were added to the folder and removed from it."""
        handle = self.open(path)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder.  Names that are added or removed meanwhile may be missing."""
        return os.listdir(path)

    def read(self, path: str) -> bytes:
        """Return the whole content of a file."""
        with open(path, "rb") as file:
            return file.read()
