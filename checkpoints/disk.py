"""The file operations of the ``files`` log, one system call each, so that a test can watch their order."""

from __future__ import annotations

import fcntl
import os


class Disk:
    """A local file system that has hard links, and whose ``fsync`` of a folder keeps its names."""

    def make_folder(self, path: str) -> None:
        """A new folder; its name is durable once the parent is synced."""
        os.mkdir(path)

    def create(self, path: str) -> int:
        """A handle on a new, empty file."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open(self, path: str) -> int:
        """A handle for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def claim(self, handle: int) -> None:
        """Hold the file until ``close`` or death; ``BlockingIOError`` while somebody else does."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, handle: int, data: bytes) -> int:
        """How many bytes were taken; maybe not all."""
        return os.write(handle, data)

    def sync(self, handle: int) -> None:
        """What was written is durable."""
        os.fsync(handle)

    def names_of(self, handle: int) -> int:
        """How many names the file still has."""
        return os.fstat(handle).st_nlink

    def close(self, handle: int) -> None:
        """Let go of the handle, and of the claim on it."""
        os.close(handle)

    def link(self, path: str, name: str) -> None:
        """Give the file a second name, at once and whole; ``FileExistsError`` where it is taken."""
        os.link(path, name)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Names that were given and taken in the folder are durable."""
        handle = self.open(path)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def list(self, path: str) -> list[str]:
        """The names in a folder; those that come and go meanwhile may be missing."""
        return os.listdir(path)

    def read(self, path: str) -> bytes:
        """All that is in a file."""
        with open(path, "rb") as file:
            return file.read()
