"""The cache of downloaded parts, so that a second start needs no network."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import epochal


def cache_dir() -> Path:
    """Return `EPOCHAL_CACHE`, else `.cache/` in a checkout, else `epochal/` in the user's cache (`XDG_CACHE_HOME`)."""
    if named := os.environ.get("EPOCHAL_CACHE"):
        return Path(named)
    checkout = Path(epochal.__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epochal"


@contextlib.contextmanager
def locked(name: str) -> Iterator[Path]:
    """Hold the lock `name` against other processes; yield the cache directory, which is created if missing."""
    directory = cache_dir()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory
