"""What a start warns about in the query's own sources: options by which a source gives rows it should not, or too few.

Such a query is not refused: its sinks show exactly the rows that the source gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epochal.coordinator.query.plan import class_of, nodes, seq

_READ = ("subscribe", "subscribepattern", "assign", "path")
"""Options that say what a source reads."""


@dataclass(frozen=True)
class Source:
    """One source of a streaming query.  ``options``: as the user has given them, with names in lower case."""

    format: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        read = next((self.options[name] for name in _READ if name in self.options), "")
        return f"source {self.format} {read}".strip()

    def is_of(self, kind: str) -> bool:
        """Return whether the user's name of the format, or the class that it names, is of this kind."""
        return kind in self.format.lower()

    def has(self, option: str, value: str) -> bool:
        return self.options.get(option.lower(), "").lower() == value


@dataclass(frozen=True)
class Line:
    """One caution: whether it is about a source, and what it says."""

    is_about: Callable[[Source], bool]
    text: str


TABLE = (
    Line(
        lambda source: source.is_of("kafka") and not source.has("kafka.isolation.level", "read_committed"),
        "is read without kafka.isolation.level=read_committed, so rows of aborted transactions are read, too: set"
        ' .option("kafka.isolation.level", "read_committed")',
    ),
    Line(
        lambda source: source.has("failOnDataLoss", "false"),
        "is read with failOnDataLoss=false: what is gone before it was read is left out without an error, and the"
        " epochs' ranges of offsets contain it nevertheless; leave the option out, and such an epoch fails",
    ),
    *(
        Line(
            lambda source, option=option: source.has(option, "true"),  # type: ignore[misc]
            f"is read with {option}=true: {what} are left out without an error; leave the option out, and such an"
            " epoch fails",
        )
        for option, what in (
            ("ignoreMissingFiles", "rows of files that are gone"),
            ("ignoreCorruptFiles", "rows of files that cannot be read"),
            ("skipChangeCommits", "all rows of commits that change or delete others"),
        )
    ),
    Line(
        lambda source: source.is_of("socket"),
        "cannot read a row twice, so a restart loses rows: it is for tests alone",
    ),
)
"""The cautions, each about one option or kind of source."""

_OF_SESSION = {f"spark.sql.files.{option}": option for option in ("ignoreMissingFiles", "ignoreCorruptFiles")}
"""Settings of the session that are options of every source of files."""


def cautions(plan: Any, setting: Callable[[str], str | None]) -> list[str]:
    """Return the cautions about the sources in an analyzed plan.  ``setting``: gives a setting of the session."""
    session = {option: str(setting(key)) for key, option in _OF_SESSION.items()}
    found = []
    for source in sources(plan):
        given = {**{name.lower(): value for name, value in session.items()}, **source.options}
        seen = Source(source.format, given if is_of_files(source) else source.options)
        found += [f"{source} {line.text}" for line in TABLE if line.is_about(seen)]
    return list(dict.fromkeys(found))


def is_of_files(source: Source) -> bool:
    return "path" in source.options and not source.is_of("delta")


def sources(plan: Any) -> Iterator[Source]:
    """Yield the streaming sources of an analyzed plan, a JVM object."""
    for node in nodes(plan):
        if class_of(node) == "StreamingRelationV2":
            yield Source(str(node.sourceName()), _lower(dict(node.extraOptions().asCaseSensitiveMap())))
        elif class_of(node) == "StreamingRelation":
            read = node.dataSource()
            options = {str(pair._1()): str(pair._2()) for pair in seq(read.options().toSeq())}
            yield Source(str(read.className()), _lower(options))


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in options.items()}
