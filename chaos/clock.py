"""The clock on the wall of a driver and all below it, set forward and back while it runs.

By libfaketime (Debian: package ``faketime``), which is loaded before everything else and reads the offset from a
file.  The monotonic clock is left alone: no JVM would survive that, and no machine does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PLACES = ("/usr/lib", "/usr/local/lib", "/lib")
NAMES = ("*/faketime/libfaketime.so.1", "faketime/libfaketime.so.1")
JUMP_S = 26 * 3600  # further than any time zone


def library() -> Path | None:
    """Where libfaketime lies on this machine."""
    found = (path for place in PLACES for name in NAMES for path in Path(place).glob(name))
    return next(found, None)


def why_not() -> str:
    """Why no clock can be set here; empty where it can be."""
    return "" if library() is not None else "no libfaketime on this machine: install the package faketime"


class Clock:
    """One offset for all starts of a run, in ``file``; right at first."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.right()

    def environment(self) -> Mapping[str, str]:
        """What a process needs to go by this clock."""
        found = library()
        if found is None:
            return {}
        return {
            "LD_PRELOAD": str(found),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # second between two looks at the file
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def jump(self, seconds: int) -> None:
        """Off by so much from now on."""
        self._file.write_text(f"{seconds:+d}\n")

    def right(self) -> None:
        """The machine's own time again."""
        self.jump(0)
