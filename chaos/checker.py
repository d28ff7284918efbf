"""The invariants, as pure functions of a history; none of them knows how the history came about.

======  ===============================================================================
I1      no loss: every expected row is in every sink
I2      no duplicate: no row more often than expected (a multiset, never a set)
I3      an epoch is all or nothing for an outside reader, also during the faults
I4      one evaluation: all rows of an epoch, in all sinks and reads, have one attempt
I5      in order, and a later read never shows less
I6      agreement: sinks differ by at most one epoch at any time, and not at all at rest
I7      at most one decision per epoch, and everything visible was decided before
I8      what is decided becomes visible everywhere, what is undecided never does
I11     after one more epoch without faults the output is that of a run that never failed
I12     after a fence nothing an older actor does becomes visible or drops anything
I14     loud: a run ends converged, or with a named error and unchanged output; whoever was
        refused at start, also long before the end, has changed no output and dropped nothing
======  ===============================================================================

A verdict is true, false, or unknown.  Unknown is no pass: it is what a checker says that crashed, or
that was not given what it needs to judge.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochal.chaos.history import (
    Accepted,
    Changed,
    Content,
    Decided,
    Ended,
    Event,
    History,
    Prepared,
    Read,
    Row,
    Started,
    TookOver,
)


class Verdict(enum.Enum):
    """What a checker says."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """A verdict and, unless it is true, why."""

    verdict: Verdict
    why: str = ""

    def __bool__(self) -> bool:
        return self.verdict is Verdict.TRUE


@dataclass(frozen=True)
class Run:
    """All that a checker may look at.  ``expected``: the rows of a run that never failed, per epoch.

    Of the expected rows only key and value count: attempts differ from run to run.
    """

    history: History
    sinks: tuple[str, ...]
    expected: Mapping[int, tuple[Row, ...]]

    @property
    def reads(self) -> list[tuple[int, Content]]:
        return [(at, read.content) for at, read in self.history.of(Read)]

    @property
    def filled_epochs(self) -> list[int]:
        """The epochs that have rows, in order."""
        return sorted(epoch for epoch, rows in self.expected.items() if rows)


Check = Callable[[Run], Iterator[str]]
"""Yields what is wrong; raises :class:`NotEnough` when it cannot judge."""


class NotEnough(Exception):
    """The history does not hold what the checker needs."""


def what(rows: Sequence[Row]) -> Counter[tuple[int, int, int]]:
    """Rows as a multiset, without their attempt."""
    return Counter((row.epoch, row.key, row.value) for row in rows)


def keys(rows: Sequence[Row]) -> Counter[tuple[int, int]]:
    """Rows as a multiset of epoch and input."""
    return Counter((row.epoch, row.key) for row in rows)


def _all_keys(run: Run) -> Counter[tuple[int, int]]:
    return keys([row for rows in run.expected.values() for row in rows])


def _final(run: Run) -> Content:
    if not run.reads:
        raise NotEnough("nobody read the sinks")
    return run.history.content


def no_loss(run: Run) -> Iterator[str]:
    final, expected = _final(run), _all_keys(run)
    for sink in run.sinks:
        missing = expected - keys(final.get(sink, ()))
        if missing:
            yield f"{sink} lacks {dict(missing)}"


def no_duplicate(run: Run) -> Iterator[str]:
    final, expected = _final(run), _all_keys(run)
    for sink in run.sinks:
        extra = keys(final.get(sink, ())) - expected
        if extra:
            yield f"{sink} has too many of {dict(extra)}"


def all_or_nothing(run: Run) -> Iterator[str]:
    for epoch in run.filled_epochs:
        _was_read_while_undecided(run, epoch)
    for at, content in run.reads:
        for sink, rows in content.items():
            yield from (f"read {at}: {sink} shows part of {epoch}" for epoch in _partial(run, rows))


def _was_read_while_undecided(run: Run, epoch: int) -> None:
    decided = [at for at, d in run.history.of(Decided) if d.epoch == epoch]
    if not decided:
        return
    prepared = [at for at, p in run.history.of(Prepared) if p.epoch == epoch]
    if not any(p < at < decided[0] for p in prepared for at, _ in run.reads):
        raise NotEnough(f"nobody read while epoch {epoch} was prepared and undecided")


def _partial(run: Run, rows: Sequence[Row]) -> Iterator[int]:
    for epoch in {row.epoch for row in rows}:
        wanted = keys(run.expected.get(epoch, ()))
        if wanted - keys([row for row in rows if row.epoch == epoch]):
            yield epoch


def one_evaluation(run: Run) -> Iterator[str]:
    attempts: dict[int, set[int]] = {}
    for _, content in run.reads:
        for rows in content.values():
            for row in rows:
                attempts.setdefault(row.epoch, set()).add(row.attempt)
    for epoch, seen in sorted(attempts.items()):
        if len(seen) > 1:
            yield f"epoch {epoch} was seen from attempts {sorted(seen)}"


def in_order(run: Run) -> Iterator[str]:
    before: Content = {}
    for at, content in run.reads:
        for sink in run.sinks:
            rows = content.get(sink, ())
            gone = Counter(before.get(sink, ())) - Counter(rows)
            if gone:
                yield f"read {at}: {sink} no longer shows {list(gone)}"
            shown = {row.epoch for row in rows}
            holes = [e for e in run.filled_epochs if e not in shown and e < max(shown, default=-1)]
            if holes:
                yield f"read {at}: {sink} shows epoch {max(shown)} and not {holes}"
        before = content


def agreement(run: Run) -> Iterator[str]:
    for at, content in run.reads:
        reached = {sink: _reached(run, content.get(sink, ())) for sink in run.sinks}
        if max(reached.values()) - min(reached.values()) > 1:
            yield f"read {at}: epochs shown {reached}"
    final = _final(run)
    at_rest = {sink: what(final.get(sink, ())) for sink in run.sinks}
    if any(rows != at_rest[run.sinks[0]] for rows in at_rest.values()):
        yield f"at rest the sinks differ: { {sink: sum(rows.values()) for sink, rows in at_rest.items()} }"


def _reached(run: Run, rows: Sequence[Row]) -> int:
    """How many of the epochs that have rows are shown."""
    shown = {row.epoch for row in rows}
    return sum(1 for epoch in run.filled_epochs if epoch in shown)


def one_decision(run: Run) -> Iterator[str]:
    newest: dict[int, int] = {}
    for _, decided in run.history.of(Decided):
        if decided.supersedes != newest.get(decided.epoch):
            yield f"epoch {decided.epoch} was decided again by {decided.by}"
        newest[decided.epoch] = decided.decision
    first = {d.epoch: at for at, d in reversed(list(run.history.of(Decided)))}
    for at, content in run.reads:
        for sink, rows in content.items():
            for epoch in {row.epoch for row in rows}:
                if first.get(epoch, at) >= at:
                    yield f"read {at}: {sink} shows epoch {epoch}, which was not decided"


def decided_is_visible(run: Run) -> Iterator[str]:
    final = _final(run)
    decided = {d.epoch for _, d in run.history.of(Decided)}
    for sink in run.sinks:
        shown = {row.epoch for row in final.get(sink, ())}
        hidden = [e for e in run.filled_epochs if e in decided and e not in shown]
        if hidden:
            yield f"{sink} never showed decided epochs {hidden}"
        if shown - decided:
            yield f"{sink} shows undecided epochs {sorted(shown - decided)}"


def next_epoch_equality(run: Run) -> Iterator[str]:
    final, expected = _final(run), what([row for rows in run.expected.values() for row in rows])
    for sink in run.sinks:
        found = what(final.get(sink, ()))
        if found != expected:
            yield f"{sink}: missing {dict(expected - found)}, too many {dict(found - expected)}"


def fence_holds(run: Run) -> Iterator[str]:
    owner: dict[str, str] = {}
    taken: dict[str, int] = {}
    for at, event in enumerate(run.history.events):
        if isinstance(event, TookOver):
            owner[event.where], taken[event.where] = event.by, at
        elif isinstance(event, Decided) and owner.get("log", event.by) != event.by:
            yield f"{event.by} decided epoch {event.epoch} after {owner['log']} had fenced the log"
        elif isinstance(event, Changed) and (event.shown or event.dropped):
            if owner.get(event.where, event.by) != event.by:
                yield f"{event.by} changed {event.where} after {owner[event.where]} had fenced it"
            for newer in event.dropped:
                if _generation(newer) > _generation(event.by):
                    yield f"{event.by} dropped what {newer} had made in {event.where}"
    if not taken:
        raise NotEnough("nobody fenced anything")


def _generation(actor: str) -> int:
    """Actors are written ``g<generation>/<token>``."""
    return int(actor[1:].partition("/")[0])


REFUSALS = frozenset({"CheckpointMismatch", "MarkerLost", "Misconfigured"})
"""How a start ends that is refused; later than that, a driver with such an end may have changed the output."""


def loud(run: Run) -> Iterator[str]:
    ends = list(run.history.of(Ended))
    if not ends:
        raise NotEnough("no driver ended")
    for _, end in ends:
        if not end.named:
            yield f"{end.driver} ended with {end.outcome}, which no document names"
    yield from _refused_and_changed(run)
    at, last = ends[-1]
    if last.outcome == "finished":
        yield from next_epoch_equality(run)
    elif last.named and last.definite and last.outcome != "killed":
        began = max(i for i, s in run.history.of(Started) if s.driver == last.driver)
        before = [content for i, content in run.reads if i < began]
        if before and any(content != before[-1] for i, content in run.reads if began < i < at):
            yield f"{last.driver} ended with {last.outcome} and had changed the output"


def _refused_and_changed(run: Run) -> Iterator[str]:
    """What changed while a start lived that ended with a refusal, and by nobody who was accepted before."""
    for at, end in run.history.of(Ended):
        if end.outcome in REFUSALS:
            began = max(i for i, s in run.history.of(Started) if s.driver == end.driver and i < at)
            for change in _unaccepted(run.history.events, began, at):
                yield f"{end.driver} was refused with {end.outcome}, and {change}"


def _unaccepted(events: Sequence[Event], began: int, ended: int) -> Iterator[str]:
    """Of the changes from ``began`` to ``ended``: those that no accepted actor made."""
    accepted = {event.by for event in events[:began] if isinstance(event, Accepted)}
    content = next((event.content for event in reversed(events[:began]) if isinstance(event, Read)), None)
    explained = content is None
    for event in events[began:ended]:
        if isinstance(event, Accepted):
            accepted.add(event.by)
        elif isinstance(event, Changed):
            if event.by not in accepted:
                yield f"{event.by} changed {event.where}"
            explained = explained or event.shown > 0
        elif isinstance(event, Read):
            if event.content != content and not explained:
                yield "the output changed"
            content, explained = event.content, False


CHECKS: Mapping[str, Check] = {
    "I1": no_loss,
    "I2": no_duplicate,
    "I3": all_or_nothing,
    "I4": one_evaluation,
    "I5": in_order,
    "I6": agreement,
    "I7": one_decision,
    "I8": decided_is_visible,
    "I11": next_epoch_equality,
    "I12": fence_holds,
    "I14": loud,
}


def judge(check: Check, run: Run) -> Finding:
    """The verdict of one checker; one that crashes has no opinion."""
    try:
        wrong = list(check(run))
    except Exception as error:
        return Finding(Verdict.UNKNOWN, f"{type(error).__name__}: {error}")
    return Finding(Verdict.FALSE, "; ".join(wrong)) if wrong else Finding(Verdict.TRUE)


def judge_all(run: Run, checks: Mapping[str, Check] = CHECKS) -> dict[str, Finding]:
    """Every invariant's verdict."""
    return {name: judge(check, run) for name, check in checks.items()}
