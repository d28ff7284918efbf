"""How the demo reports that it could not run to its end: one paragraph, and a log file with the traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.strike.nemesis import NotCounted


class Failed(Exception):
    """Wraps an error where the processes are known; ``str()`` describes them."""


def report(error: Exception, doing: str, folder: Path) -> str:
    """Write the traceback to a file in `folder`; return what failed, the processes, and where the logs are."""
    processes, cause = _unwrap(error)
    log = folder / "demo.log"
    try:
        log.write_text("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        where = f"the traceback in {log}"
    except OSError as full:
        where = f"no traceback ({full})"
    told = f" Processes then: {'; '.join(processes)}." if processes else ""
    return (
        f"failed at {doing!r}: {_first_line(cause)}.{told} Logs: {where}; the other files *.log below {folder} hold"
        f" what jobs and servers printed. Everything is stopped; to remove it: rm -r {folder}"
    )


def _unwrap(error: BaseException) -> tuple[list[str], BaseException]:
    """What the wrappers say about processes, and the innermost error."""
    processes = []
    while isinstance(error, Failed) and error.__cause__ is not None:
        processes.append(str(error))
        error = error.__cause__
    return processes, error


def _first_line(error: BaseException) -> str:
    """The first line of an error's text.  The rest, such as the end of a log, is in the log file."""
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, ServerUnavailable):
        return first if error.log else f"{first} (Help: {error.help_line})"
    return first if isinstance(error, NotCounted) else f"{type(error).__name__}: {first}"
