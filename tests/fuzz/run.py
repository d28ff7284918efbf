"""Runs many pipelines, one after another, each within a time limit; and finds a smaller one that fails alike."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fuzz.plans import Plan, SinkPlan, plan
from tests.fuzz.trial import Outcome, Servers, Trial, Verdict

LIMIT_S = 900.0
"""How many seconds a pipeline may take.  Most take one or two, on a machine that has nothing else to do."""
MOST_TRIES = 40
"""How many smaller pipelines are tried for one that fails."""

Tell = Callable[[str], None]


@dataclass
class Report:
    """All outcomes of a run."""

    outcomes: Counter[Verdict] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    sinks: Counter[str] = field(default_factory=Counter)

    def add(self, number: int, of: Plan, outcome: Outcome) -> None:
        self.outcomes[outcome.verdict] += 1
        self.sinks.update(f"{sink.kind} {sink.mode or ''}: {outcome.verdict.value}" for sink in of.sinks)
        if outcome.verdict is Verdict.REFUSED:
            self.refusals[outcome.stage.partition(" ")[0], outcome.told] += 1
        if not outcome.fine:
            self.failed.append(number)

    def __str__(self) -> str:
        return ", ".join(f"{count} {verdict.value}" for verdict, count in self.outcomes.most_common())


class Bounded:
    """Runs pipelines in one thread; one that does not end is a ``HANG``, after which nothing else can be run."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._thread = ThreadPoolExecutor(1, "fuzz")
        self._count = 0

    def run(self, of: Plan, damage: Callable[[Trial], None] | None = None) -> Outcome:
        self._count += 1
        trial = Trial(of, self._servers, f"p{self._count}x{time.time_ns() // 1_000_000 % 10**9}", damage)
        future = self._thread.submit(trial.run)
        try:
            return future.result(LIMIT_S)
        except Late:
            return Outcome(Verdict.HANG, trial._stage, f"no end within {LIMIT_S:g} s", _stacks())
        except Exception as error:
            return Outcome(Verdict.ITSELF, trial._stage, repr(error), traceback.format_exc())


def _stacks() -> str:
    frames = sys._current_frames()
    named = [thread for thread in threading.enumerate() if thread.name.startswith(("fuzz", "epochal"))]
    return "\n".join(
        f"{t.name}:\n{''.join(traceback.format_stack(frames[t.ident]))}" for t in named if t.ident in frames
    )


def run(bounded: Bounded, seed: int, numbers: Sequence[int], tell: Tell, *, shrink: bool = True) -> Report:
    """Run these pipelines of a seed; tell of each that fails, with a smaller one, and of the progress."""
    report, began = Report(), time.monotonic()
    for done, number in enumerate(numbers, 1):
        outcome = bounded.run(made := plan(seed, number))
        report.add(number, made, outcome)
        if outcome.verdict is Verdict.REFUSED:
            tell(f"pipeline {number} refused in {outcome.stage}: {outcome.told[:300]}")
        if not outcome.fine:
            tell(
                f"pipeline {number}: {outcome.verdict.value} in {outcome.stage}: {outcome.told[:3000]}\n{outcome.trace}"
            )
            if outcome.verdict is Verdict.HANG:
                break
            small = smallest(bounded, made, outcome) if shrink else made
            tell(f"pipeline {number} again: python -m tests.fuzz --seed {seed} --only {number}\n{small}\n")
        if done % 20 == 0 or done == len(numbers):
            tell(f"{done} of {len(numbers)} in {time.monotonic() - began:.0f} s: {report}")
    return report


def smallest(bounded: Bounded, of: Plan, outcome: Outcome) -> Plan:
    """A smaller pipeline with the same outcome, by leaving out one part after another."""
    tries = 0
    found = True
    while found:
        found = False
        for smaller in smaller_ones(of):
            tries += 1
            if tries > MOST_TRIES:
                return of
            again = bounded.run(smaller)
            if again.verdict is outcome.verdict and _kind(again) == _kind(outcome):
                of, found = smaller, True
                break
            if again.verdict is Verdict.HANG:
                return of
    return of


def _kind(outcome: Outcome) -> str:
    """The first words of what was told: the class of an error."""
    return outcome.told[:40].partition(":")[0]


def smaller_ones(of: Plan) -> Iterator[Plan]:
    """The same pipeline without one of its parts, the largest parts first."""
    if of.settings:
        yield replace(of, settings={})
        yield from (replace(of, settings=without(of.settings, name)) for name in of.settings)
    if len(of.sinks) > 1:
        yield from (replace(of, sinks=(sink,)) for sink in of.sinks)
    if len(of.epochs) > 1:
        yield from (replace(of, epochs=(rows,), grows=False) for rows in of.epochs)
    for n, rows in enumerate(of.epochs):
        for at in range(len(rows)):
            yield replace(of, epochs=(*of.epochs[:n], rows[:at] + rows[at + 1 :], *of.epochs[n + 1 :]))
    for n in range(len(of.columns)):
        yield replace(
            of,
            columns=of.columns[:n] + of.columns[n + 1 :],
            epochs=tuple(tuple(row[:n] + row[n + 1 :] for row in rows) for rows in of.epochs),
        )
    for n, sink in enumerate(of.sinks):
        yield from (replace(of, sinks=(*of.sinks[:n], less, *of.sinks[n + 1 :])) for less in _less(sink))
    plain = replace(of, mode="two-phase", restarts=False, grows=False, partitions=1)
    if plain != of:
        yield plain


def _less(sink: SinkPlan) -> Iterator[SinkPlan]:
    if sink.select is not None:
        yield replace(sink, select=None)
    if sink.where is not None:
        yield replace(sink, where=None)
    if sink.bad_rows is not None:
        yield replace(sink, bad_rows=None)
    yield from (replace(sink, options=without(sink.options, name)) for name in sink.options)
    yield from (replace(sink, keyed=without(sink.keyed, name)) for name in sink.keyed if name != "key")
    yield from (replace(sink, junk=without(sink.junk, name)) for name in sink.junk)


def without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}
