"""What a command answers: tables for people, JSON for programs, and the exit code of each outcome.

Exit codes: 0 fine, 1 found something wrong, 2 wrong usage, 3 cannot tell.  JSON goes to standard output alone, one
object whose top level has ``version``, ``command`` and ``exit``; an error has its place in it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from epochal.coordinator.model.epoch import Actor, Json
from epochal.coordinator.model.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable

P = ParamSpec("P")
FINE, WRONG, USAGE, UNKNOWN = 0, 1, 2, 3
VERSION = 1
"""Of the JSON: a field that is taken away or means something else makes it the next one; a new field does not."""
NOT_A_TERMINAL = 200
"""Columns of a table that goes into a file or a pipe."""


class Usage(Exception):
    """The command was asked for something that is not there, or that does not fit together."""


class CannotTell(Exception):
    """What was asked for cannot be known from here; why, and from where it could."""


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
    """A command that prints its answer and ends with its exit code; an error ends with the code of its kind."""

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
                raise typer.Exit(answer.exit) from error
        answer.print(as_json=as_json)
        raise typer.Exit(answer.exit)

    return run


def code_of(error: Exception) -> int:
    """The one place where an error becomes an exit code."""
    if isinstance(error, Usage | Misconfigured):
        return USAGE
    if isinstance(error, EpochalError) and not isinstance(error, SinkUnavailable | OutcomeUnknown):
        return WRONG
    return UNKNOWN


def failed(command: str, error: Exception) -> Answer:
    """The answer of a command that came to nothing."""
    return Answer(command, {"error": told(error)}, code_of(error))


def told(error: Exception) -> Json:
    """An error as JSON; those of Epochal in their parts."""
    if isinstance(error, EpochalError):
        parts = {"what": error.what, "sink": error.sink, "epoch": error.epoch, "state": error.state, "help": error.help}
        return {"kind": type(error).__name__, **parts}
    return {"kind": type(error).__name__, "what": str(error), "sink": None, "epoch": None, "state": None, "help": None}


def complain(error: Exception) -> None:
    """To standard error, where it is not taken for a result; with its trace where it is nobody's known error."""
    if not isinstance(error, Usage | CannotTell | EpochalError):
        traceback.print_exception(error)
    word = "cannot tell: " if code_of(error) == UNKNOWN else ""
    name = f"{type(error).__name__}: " if isinstance(error, EpochalError) else ""
    Console(stderr=True, highlight=False).print(f"epochal: {word}{name}{error}", soft_wrap=True, markup=False)


def screen() -> Console:
    """Standard output; wide where nobody looks at it."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=NOT_A_TERMINAL)


def table(*columns: str, title: str | None = None) -> Table:
    """A plain table with these headings."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def line(text: str, style: str = "") -> RenderableType:
    """A line of its own, in which nothing is markup."""
    return Text(text, style=style)


def actor(by: Actor | None) -> str | None:
    return str(by) if by is not None else None


def moment(at: datetime.datetime | None) -> str | None:
    """In UTC, to the second."""
    return at.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if at is not None else None


def shown(value: Any) -> str:
    """A value in a cell; nothing is a dash."""
    return "-" if value is None else str(value)


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's standard error, told how far it is; silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
