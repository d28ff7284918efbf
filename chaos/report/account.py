"""What a report says about one round, as plain values from its history.

Times are seconds since the round's first event.  If a history has no clock, times are the numbers of its events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from epochal.chaos.observe.checker import Finding, Verdict, judge, judge_all, overall, verdict, worst
from epochal.chaos.observe.history import Changed, Decided, Ended, Fault, History, Read, Row, Started
from epochal.chaos.observe.invariants import CHECKS
from epochal.chaos.observe.run import Run

DRIVER = "driver"


@dataclass(frozen=True)
class Round:
    """A run, the findings about it, and what belongs to it alone, such as its seed and its schedule."""

    run: Run
    findings: Mapping[str, Finding]
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def judged(cls, run: Run, about: Mapping[str, Any] | None = None) -> Round:
        """Return the run with the finding of every invariant."""
        return cls(run, judge_all(run), about or {})


@dataclass(frozen=True)
class Band:
    """A fault for as long as it had an effect.  ``ended`` says what ended it; ``orphan``: only its end is recorded."""

    fault: Fault
    start: float
    end: float
    ended: str
    orphan: bool = False


@dataclass(frozen=True)
class Shown:
    """Epochs that were first seen in a sink by one read."""

    at: float
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class Life:
    """A driver from its start to its end.  Without an outcome, it outlived the history."""

    driver: str
    start: float
    end: float
    outcome: str


@dataclass(frozen=True)
class Violation:
    """Where a history first breaks an invariant."""

    invariant: str
    at: float
    place: int  # in the history
    why: str


class Account:
    """What happened in one round.  Each value is computed when it is first needed, and kept."""

    def __init__(self, number: int, round_: Round) -> None:
        self.number = number
        self.round = round_
        self.run = round_.run
        self.verdict = verdict(round_.run, round_.findings)
        history = self.run.history
        counted = [float(n) for n in range(len(history.events))]
        times = history.times or counted
        self.clocked = times != counted
        first = times[0] if times else 0.0
        self.times = [time - first for time in times]
        self.end = max(self.times, default=0.0)

    @property
    def sinks(self) -> tuple[str, ...]:
        return self.run.sinks

    @cached_property
    def shown(self) -> dict[str, list[Shown]]:
        """Sink -> when each epoch was first seen in it."""
        found: dict[str, list[Shown]] = {sink: [] for sink in self.sinks}
        seen: dict[str, set[int]] = {sink: set() for sink in self.sinks}
        before: dict[str, Sequence[Row]] = {}
        for at, read in self.run.history.of(Read):
            for sink, rows in read.content.items():
                if rows == before.get(sink):
                    continue
                before[sink] = rows
                new = {row.epoch for row in rows} - seen.setdefault(sink, set())
                seen[sink] |= new
                if new:
                    found.setdefault(sink, []).append(Shown(self.times[at], tuple(sorted(new))))
        return found

    @cached_property
    def bands(self) -> list[Band]:
        """Every fault, in the order in which they struck."""
        faults = list(self.run.history.of(Fault))
        healed = _healed(faults)
        bands = [self._band(at, fault, healed.get(at)) for at, fault in faults if not fault.healed]
        told = set(healed.values())
        for at, fault in faults:
            if fault.healed and at not in told:
                bands.append(Band(fault, self.times[at], self.times[at], "its beginning is not told", orphan=True))
        return sorted(bands, key=lambda band: band.start)

    @property
    def strikes(self) -> list[Fault]:
        """The faults that struck, without those of which only the end is recorded."""
        return [band.fault for band in self.bands if not band.orphan]

    def _band(self, at: int, fault: Fault, healed: int | None) -> Band:
        start = self.times[at]
        if healed is not None:
            return Band(fault, start, self.times[healed], "undone")
        for later, event in enumerate(self.run.history.events[at + 1 :], at + 1):
            if isinstance(event, Started):
                return Band(fault, start, self.times[later], f"{event.driver} started")
            if fault.victim != DRIVER and isinstance(event, Decided | Changed):
                return Band(fault, start, self.times[later], "work went on")
        return Band(fault, start, self.end, "the round ended")

    @cached_property
    def lives(self) -> list[Life]:
        """The drivers, in the order of their starts."""
        ends = list(self.run.history.of(Ended))
        lives = []
        for at, started in self.run.history.of(Started):
            over = next(((i, e) for i, e in ends if i > at and e.driver == started.driver), None)
            end, outcome = (self.times[over[0]], over[1].outcome) if over else (self.end, "")
            lives.append(Life(started.driver, self.times[at], end, outcome))
        return lives

    @cached_property
    def decisions(self) -> list[tuple[float, Decided]]:
        return [(self.times[at], decided) for at, decided in self.run.history.of(Decided)]

    @cached_property
    def violations(self) -> list[Violation]:
        """The violated invariants, in the order of the violations in the history."""
        found = []
        for name, finding in self.round.findings.items():
            if finding.verdict is Verdict.FALSE:
                place = _place(name, finding, self.run)
                at = self.times[place] if place < len(self.times) else self.end
                found.append(Violation(name, at, place, finding.why))
        return sorted(found, key=lambda violation: violation.place)

    @property
    def epochs(self) -> int:
        return len(self.run.filled_epochs)

    @property
    def rows(self) -> int:
        return sum(len(rows) for rows in self.run.expected.values())

    @property
    def reads(self) -> int:
        return sum(1 for _ in self.run.history.of(Read))


def _healed(faults: Sequence[tuple[int, Fault]]) -> dict[int, int]:
    """Place of a fault -> place of its end.  The end is the first later one that fits, and is used only once."""
    open_: list[tuple[int, Fault]] = []
    pairs: dict[int, int] = {}
    for at, fault in faults:
        if not fault.healed:
            open_.append((at, fault))
            continue
        for candidate in open_:
            if _undoes(fault, candidate[1]):
                pairs[candidate[0]] = at
                open_.remove(candidate)
                break
    return pairs


def _undoes(healing: Fault, fault: Fault) -> bool:
    """Whether kind and victim are the same.  A sink or driver that the healing does not name may be any."""
    return (
        (healing.kind, healing.victim) == (fault.kind, fault.victim)
        and healing.sink in ("", fault.sink)
        and healing.driver in ("", fault.driver)
    )


SINCE = frozenset({"I2", "I4", "I7", "I12"})
"""Invariants that stay false once they are false, and whose findings do not say where.

For these, the smallest number of events is searched after which the invariant is false.  The last of them is the place.
"""

_READ = re.compile(r"\bread (\d{1,12})\b")
LOOKED_AT = 10_000  # characters of a finding that are searched; checkers say first what came first


def _place(invariant: str, finding: Finding, run: Run) -> int:
    """The place of the finding's first violation in the history; the last event if only the end shows it."""
    events = len(run.history.events)
    named = _READ.search(finding.why, 0, LOOKED_AT)
    if named is not None and int(named[1]) < events:
        return int(named[1])
    if invariant in SINCE:
        return _shortest(invariant, run) - 1
    return max(0, events - 1)


def _shortest(invariant: str, run: Run) -> int:
    """The smallest number of events after which the invariant is false."""
    good, bad = 0, len(run.history.events)
    while bad - good > 1:
        middle = (good + bad) // 2
        part = replace(run, history=History(run.history.events[:middle]))
        if judge(CHECKS[invariant], part).verdict is Verdict.FALSE:
            bad = middle
        else:
            good = middle
    return bad


@dataclass(frozen=True)
class Summary:
    """One invariant over all rounds.  ``verdict`` is the worst one; None if it was judged in no round."""

    invariant: str
    verdict: Verdict | None
    observations: int
    rounds: Mapping[Verdict, int]
    reasons: tuple[tuple[int, Finding], ...]  # (number of the round, finding that is not true)


def summaries(accounts: Sequence[Account]) -> list[Summary]:
    """Return one summary for each of our invariants, and for each other one that has findings."""
    more = {name for account in accounts for name in account.round.findings} - set(CHECKS)
    return [_summary(name, accounts) for name in (*CHECKS, *sorted(more))]


def _summary(name: str, accounts: Sequence[Account]) -> Summary:
    asked = [(a.number, a.round.findings[name]) for a in accounts if name in a.round.findings]
    rounds = {verdict: sum(f.verdict is verdict for _, f in asked) for verdict in Verdict}
    verdict = overall({str(number): finding for number, finding in asked}) if asked else None
    reasons = tuple((number, f) for number, f in asked if f.verdict is verdict and f.verdict is not Verdict.TRUE)
    others = tuple((number, f) for number, f in asked if not f and f.verdict is not verdict)
    return Summary(name, verdict, sum(f.observations for _, f in asked), rounds, reasons + others)


def whole(accounts: Sequence[Account]) -> Verdict:
    """Return the worst verdict of all rounds; unknown if there are none."""
    return worst([account.verdict for account in accounts])


def strikes(accounts: Sequence[Account]) -> Iterator[tuple[Account, Band]]:
    """Return every fault of every round."""
    return ((account, band) for account in accounts for band in account.bands)
