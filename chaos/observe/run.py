"""One run, as its invariants see it: a history, and what was expected of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from epochal.chaos.observe.history import Content, History, Read, Row


@dataclass(frozen=True)
class Run:
    """Everything that a checker may look at.

    * ``expected``: per epoch, the rows that a run without failure writes.  Their attempts are ignored, because attempts
      differ from run to run.
    * ``counted``: a row stands for as many inputs as its value says.  ``pending`` more inputs are still in the state.
    * ``rewrites``: the output may replace a row by the row of a newer evaluation, as an upsert does.  Each single read
      must still show one evaluation.
    * ``after``: only where epochs replace or delete rows of earlier epochs: per epoch, the whole content after it.  At
      any time a sink must show exactly the content after one of the epochs.
    * ``in_parts``: the sinks that promise only that each part of an epoch is whole.
    * ``proves_nothing``: why this run is not a pass, whatever the invariants say.  For example, the run stopped early,
      or too few of the planned faults struck.

    Results that are needed more than once are cached, so each judgement starts with a new Run.
    """

    history: History
    sinks: tuple[str, ...]
    expected: Mapping[int, tuple[Row, ...]]
    counted: bool = False
    pending: int = 0
    rewrites: bool = False
    proves_nothing: str = ""
    after: Mapping[int, tuple[Row, ...]] = field(default_factory=dict)
    in_parts: tuple[str, ...] = ()

    @cached_property
    def reads(self) -> list[tuple[int, Content]]:
        return [(at, read.content) for at, read in self.history.of(Read)]

    @cached_property
    def filled_epochs(self) -> list[int]:
        """The epochs that change what readers see, in order."""
        if self.after:
            return [epoch for epoch, _ in self._contents[1:]]
        return sorted(epoch for epoch, rows in self.expected.items() if rows)

    @cached_property
    def due(self) -> list[Row]:
        """The rows that must be visible at the end."""
        if self.after:
            return list(self.after[max(self.after)])
        return [row for rows in self.expected.values() for row in rows]

    @cached_property
    def _contents(self) -> list[tuple[int, Counter[tuple[int, int]]]]:
        """Where epochs replace rows: each different content in order, with its epoch.  The first one is empty."""
        found: list[tuple[int, Counter[tuple[int, int]]]] = [(-1, Counter())]
        for epoch, rows in sorted(self.after.items()):
            if keys(rows) != found[-1][1]:
                found.append((epoch, keys(rows)))
        return found

    @cached_property
    def _numbers(self) -> Mapping[frozenset[tuple[tuple[int, int], int]], int]:
        return {frozenset(content.items()): number for number, (_, content) in enumerate(self._contents)}

    def reached(self, rows: Sequence[Row]) -> int | None:
        """How many of the epochs that change something are shown.

        None if ``rows`` are not the content after any epoch; only possible where epochs replace rows.
        """
        if self.after:
            return self._numbers.get(frozenset(keys(rows).items()))
        return len({row.epoch for row in rows}.intersection(self.filled_epochs))

    def epochs_in(self, rows: Sequence[Row]) -> set[int]:
        """The epochs that these rows show: those that wrote them and, where epochs replace rows, all earlier ones."""
        shown = {row.epoch for row in rows}
        if self.after and (reached := self.reached(rows)) is not None:
            shown.update(self.filled_epochs[:reached])
        return shown

    @cached_property
    def changes(self) -> list[tuple[int, str, tuple[Row, ...], tuple[Row, ...]]]:
        """Each read of a sink that differs from the read before: (place in the history, sink, rows, rows before)."""
        before: dict[str, tuple[Row, ...]] = {}
        found = []
        for at, content in self.reads:
            for sink, rows in content.items():
                if rows is not before.get(sink, ()) and rows != before.get(sink, ()):
                    found.append((at, sink, rows, before.get(sink, ())))
                    before[sink] = rows
        return found

    @cached_property
    def final(self) -> Content:
        """What the newest read of each sink saw, by sink."""
        return self.history.content

    @cached_property
    def all_keys(self) -> Counter[tuple[int, int]]:
        """The rows that must be visible at the end, as a multiset of (epoch, input)."""
        return keys(self.due)

    @cached_property
    def final_keys(self) -> Mapping[str, Counter[tuple[int, int]]]:
        """What each sink shows at the end, as a multiset of (epoch, input)."""
        return {sink: keys(self.final.get(sink, ())) for sink in self.sinks}


def what(rows: Sequence[Row]) -> Counter[tuple[int, int, int]]:
    """Return the rows as a multiset of (epoch, input, value), without their attempt."""
    return Counter((row.epoch, row.key, row.value) for row in rows)


def keys(rows: Sequence[Row]) -> Counter[tuple[int, int]]:
    """Return the rows as a multiset of (epoch, input)."""
    return Counter((row.epoch, row.key) for row in rows)
