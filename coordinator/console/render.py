"""The answer of a command: tables for people, JSON for programs, and an exit code for each outcome.

Exit codes: 0 fine, 1 found something wrong, 2 wrong usage, 3 cannot tell.  JSON is one object per answer, and nothing
else goes to standard output then.  Its top level has ``version``, ``command`` and ``exit``, and ``error`` after an
error.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ParamSpec

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from epochal.coordinator.environment.redaction import redacted
from epochal.coordinator.model.epoch import Actor, Json
from epochal.coordinator.model.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.query.diagnosis import Problem

P = ParamSpec("P")
FINE, WRONG, USAGE, UNKNOWN = 0, 1, 2, 3
VERSION = 1
"""Version of the JSON.  It goes up when a field is removed or changes its meaning, but not when a field is added."""
NOT_A_TERMINAL = 200
"""Width, in characters, of a table that is written to a file or a pipe."""


class Usage(Exception):
    """The command was asked for something that does not exist, or its arguments contradict each other."""


class CannotTell(Exception):
    """The answer cannot be known in this process.  The text says why, and from where it could be known."""


@dataclass(frozen=True)
class Answer:
    """What a command found: ``data`` as JSON, ``shown`` to people, and its exit code."""

    command: str
    data: Json
    exit: int = FINE
    shown: Sequence[RenderableType] = field(default_factory=list)

    def json(self) -> str:
        return json.dumps({"version": VERSION, "command": self.command, "exit": self.exit, **self.data})

    def print(self, *, as_json: bool) -> None:
        if as_json:
            print(self.json(), flush=True)
        else:
            console = screen()
            for part in self.shown:
                console.print(part, soft_wrap=isinstance(part, Text))


Command = Callable[P, Answer]


def answering(command: Command[P]) -> Callable[P, None]:
    """Make a command print its answer and end with its exit code.  An error ends with the code of its kind."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            answer = command(*args, **kwargs)
        except typer.Exit:
            raise
        except Exception as error:
            answer = failed(command.__name__, error)
            if not as_json:
                complain(error)
        answer.print(as_json=as_json)
        raise typer.Exit(answer.exit)

    return run


def code_of(error: Exception) -> int:
    """Return the exit code of an error.  This is the only place that decides it."""
    if isinstance(error, Usage | Misconfigured):
        return USAGE
    if isinstance(error, EpochalError) and not isinstance(error, SinkUnavailable | OutcomeUnknown):
        return WRONG
    return UNKNOWN


def failed(command: str, error: Exception) -> Answer:
    """Return the answer of a command that failed with this error."""
    return Answer(command, {"error": told(error)}, code_of(error))


def told(error: Exception) -> Json:
    """Return an error as JSON; an error of Epochal is split into its parts."""
    if isinstance(error, EpochalError):
        return asdict(Problem.of(error))
    return asdict(Problem(type(error).__name__, redacted(str(error))))


def complain(error: Exception) -> None:
    """Print the error to standard error, so that nobody takes it for a result; an unknown error with its traceback."""
    if not isinstance(error, Usage | CannotTell | EpochalError):
        traceback.print_exception(error)
    word = "cannot tell: " if code_of(error) == UNKNOWN else ""
    name = f"{type(error).__name__}: " if isinstance(error, EpochalError) else ""
    Console(stderr=True, highlight=False).print(redacted(f"epochal: {word}{name}{error}"), soft_wrap=True, markup=False)


def screen() -> Console:
    """Return a console on standard output, with a fixed width if that is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=NOT_A_TERMINAL)


def table(*columns: str) -> Table:
    """Return a plain table with these headings."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def line(text: str, style: str = "") -> RenderableType:
    """Return one line of text, in which nothing is read as markup."""
    return Text(text, style=style)


def actor(by: Actor | None) -> str | None:
    return str(by) if by is not None else None


def moment(at: datetime.datetime | None) -> str | None:
    """Return the time in UTC, to the second."""
    return at.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if at is not None else None


def shown(value: Any) -> str:
    """Return a value as the text of a table cell; None is a dash."""
    return "-" if value is None else str(value)


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if that is a terminal.  The yielded function sets how much is done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
