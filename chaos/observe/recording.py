"""Histories as files of JSON lines, which can be judged again later without running anything.

The first line says what the file is and what was expected.  Each further line is an event with its time in seconds.
A read holds only what changed in a sink since the read before, so reads that show nothing new add little to the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from epochal.chaos.observe.history import Content, Event, History, Read, Row
from epochal.chaos.observe.run import Run

VERSION = 2
"""Version 2 added ``after`` and ``in_parts``.  A run that has neither is still written as version 1."""
KIND = "epochal-history"
_EVENTS: Mapping[str, Callable[..., Event]] = {kind.__name__: kind for kind in get_args(Event)}


class NotAHistory(Exception):
    """The file is not a history, is incomplete, or was written by a newer Epochal."""


def save(run: Run, path: Path, about: Mapping[str, Any] | None = None) -> None:
    """Write a run to a file.  ``about`` may hold anything, such as the seed, the environment and what was tested."""
    with path.open("w", encoding="utf-8") as file:
        for line in lines(run, about or {}):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def load(path: Path) -> tuple[Run, dict[str, Any]]:
    """Return the run in a file and its ``about``.  Raises NotAHistory, which names the line that cannot be read."""
    found: list[Any] = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            found.append(json.loads(text))
        except ValueError as error:
            raise NotAHistory(f"{path}, line {number}: {error}") from error
    return parse(found, str(path))


def lines(run: Run, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a run's file, as JSON objects."""
    yield {
        KIND: VERSION if run.after or run.in_parts else 1,
        "sinks": list(run.sinks),
        "counted": run.counted,
        "pending": run.pending,
        "rewrites": run.rewrites,
        "proves_nothing": run.proves_nothing,
        "expected": _by_epoch(run.expected),
        **({"after": _by_epoch(run.after), "in_parts": list(run.in_parts)} if run.after or run.in_parts else {}),
        "about": dict(about),
        "events": len(run.history.events),
    }
    seen: dict[str, Counter[Row]] = {}
    times = run.history.times or [float(n) for n in range(len(run.history.events))]
    for at, event in zip(times, run.history.events, strict=True):
        data = {"changes": _changes(event.content, seen)} if isinstance(event, Read) else asdict(event)
        yield {"event": type(event).__name__, "at": round(at, 6), **data}


def _by_epoch(rows: Mapping[int, Sequence[Row]]) -> dict[str, list[list[int]]]:
    return {str(epoch): [list(row) for row in found] for epoch, found in rows.items()}


def _from_epochs(rows: Mapping[str, Any]) -> dict[int, tuple[Row, ...]]:
    return {int(epoch): tuple(Row(*row) for row in found) for epoch, found in rows.items()}


def _changes(content: Content, seen: dict[str, Counter[Row]]) -> dict[str, dict[str, list[list[int]]]]:
    changes = {}
    for sink, rows in content.items():
        before, now = seen.get(sink, Counter()), Counter(rows)
        changes[sink] = {"more": _rows(now - before), "less": _rows(before - now)}
        seen[sink] = now
    return changes


def _rows(found: Counter[Row]) -> list[list[int]]:
    return [list(row) for row in found.elements()]


def parse(found: Sequence[Any], name: str) -> tuple[Run, dict[str, Any]]:
    """Return the run and its ``about`` from the lines of its file; errors name the file as ``name``."""
    head = found[0] if found and isinstance(found[0], dict) else {}
    if head.get(KIND) not in range(1, VERSION + 1):
        raise NotAHistory(f"{name}: the first line says {KIND}={head.get(KIND)!r}, this Epochal reads up to {VERSION}")
    if len(found) - 1 != head.get("events"):
        raise NotAHistory(f"{name}: {len(found) - 1} events of {head.get('events')}; the file is incomplete")
    history = History()
    seen: dict[str, Counter[Row]] = {}
    for number, data in enumerate(found[1:], start=2):
        try:
            history.events.append(_event(data, seen))
            history.times.append(float(data["at"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAHistory(f"{name}, line {number}: {type(error).__name__}: {error}") from error
    try:
        expected = _from_epochs(head["expected"])
        how = {name: head[name] for name in ("counted", "pending", "rewrites")}
        how["after"] = _from_epochs(head.get("after", {}))
        how["in_parts"] = tuple(head.get("in_parts", ()))
        sinks, about = tuple(head["sinks"]), dict(head["about"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAHistory(f"{name}, line 1: {type(error).__name__}: {error}") from error
    how["proves_nothing"] = head.get("proves_nothing", "")
    return Run(history, sinks, expected, **how), about


def _event(data: Mapping[str, Any], seen: dict[str, Counter[Row]]) -> Event:
    kind = _EVENTS[data["event"]]
    if kind is Read:
        return Read({sink: _changed(sink, change, seen) for sink, change in data["changes"].items()})
    values = {name: value for name, value in data.items() if name not in ("event", "at")}
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def _changed(sink: str, change: Mapping[str, Any], seen: dict[str, Counter[Row]]) -> tuple[Row, ...]:
    rows = seen.setdefault(sink, Counter())
    rows.subtract(Row(*row) for row in change["less"])
    rows.update(Row(*row) for row in change["more"])
    return tuple(rows.elements())
