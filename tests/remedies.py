"""Which remedies a test follows: what the marker ``remedy`` names, and whether the test met it.

A *remedy* is a message of an error together with one of its helps, both as docs/errors.md has them.  A test with

    @pytest.mark.remedy("two sinks are named …", "give each a name= of its own")

provokes the error, does literally what the help says, and shows that this leads out.  A part of the help is enough if
the test follows that part.  ``over=`` names the messages that the way out meets: their remedies lead on, never back.

``conftest.py`` fails a marked test that makes no such error; ``pure/project/test_remedies.py`` compares the markers
with the messages of the code.  What has no such test yet stands in ``remedies_open.toml``.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from docs import generate
from docs.generate import HOLE
from epochal.coordinator.model.errors import EpochalError

ROOT = Path(__file__).parents[1]
OPEN = ROOT / "tests" / "remedies_open.toml"


class Remedy(NamedTuple):
    """A message, and a help of it; ``HOLE`` is the help that another error or a server has worded."""

    what: str
    help: str


class Followed(NamedTuple):
    """What one marker says, and where it stands."""

    what: str
    help: str
    over: tuple[str, ...]
    where: str

    def is_of(self, remedy: Remedy) -> bool:
        return self.what == remedy.what and self.help in remedy.help

    def was_met(self, errors: Iterable[EpochalError]) -> bool:
        """Whether one of the errors has this message, and a help with these words."""
        what, words = _pattern(self.what), _pattern(self.help)
        return any(what.fullmatch(error.what) and words.search(error.help) for error in errors)


def known() -> list[Remedy]:
    """Every remedy of the code."""
    found = {Remedy(message.what, text) for message in generate.messages() for text in message.helps or (HOLE,)}
    return sorted(found)


def open_ones() -> tuple[Mapping[str, str], int]:
    """Message -> why no test follows it yet; and how many remedies these are."""
    told = tomli.loads(OPEN.read_text(encoding="utf-8"))
    return {what: group["reason"] for group in told["open"] for what in group["messages"]}, int(told["remedies"])


def followed() -> list[Followed]:
    """What the markers of all tests say, read from their source."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [mark for path in paths if "mark.remedy(" in (text := path.read_text()) for mark in _marks(path, text)]


def _marks(path: Path, text: str) -> Iterator[Followed]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.remedy":
            yield of_marker(
                [ast.literal_eval(argument) for argument in node.args],
                {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords},
                f"{path.relative_to(ROOT)}:{node.lineno}",
            )


def of_marker(args: Sequence[Any], named: Mapping[str, Any], where: str) -> Followed:
    what, words = args
    return Followed(what, words, tuple(named.get("over", ())), where)


def installed_by(help: str) -> set[str]:
    """The packages that the `pip install` of a help brings; the extras are those of pyproject.toml."""
    extras = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    found: set[str] = set()
    for asked in re.findall(r"pip install '?([^' ]+)", help):
        name, _, extra = asked.partition("[")
        needed = extras[extra.rstrip("]")] if extra else [name]
        found |= {re.split(r"[\[><=]", each)[0] for each in needed}
    return found


@contextlib.contextmanager
def errors_made() -> Iterator[list[EpochalError]]:
    """Collect every error of ours that this process makes inside the scope, also those that are caught."""
    made: list[EpochalError] = []
    real = EpochalError.__init__

    def noting(self: EpochalError, *args: Any, **named: Any) -> None:
        real(self, *args, **named)
        made.append(self)

    EpochalError.__init__ = noting  # type: ignore[method-assign]
    try:
        yield made
    finally:
        EpochalError.__init__ = real  # type: ignore[method-assign]


def _pattern(text: str) -> re.Pattern[str]:
    """The text with anything in place of its holes."""
    return re.compile(".*".join(map(re.escape, text.split(HOLE))), re.DOTALL)
