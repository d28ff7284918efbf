"""The invariants, as pure functions of a history.  No function knows how the history was recorded.

======  ===============================================================================
I1      no loss: every expected row is in every sink
I2      no duplicate: no row occurs more often than expected (rows are a multiset, not a set)
I3      an outside reader sees all of an epoch or nothing of it, also during the faults
I4      one evaluation: all rows of an epoch, in all sinks and reads, have the same attempt
I5      epochs appear in order, and a later read never shows less
I6      agreement: sinks differ by at most one epoch at any time, and not at all at rest
I7      at most one decision per epoch, and everything visible was decided before
I8      every decided epoch becomes visible in every sink, an undecided epoch in none
I9      the operator state is that of a run that never failed
I10     the source position is the same in Spark's offsets, in the log and in the markers
I11     after one more epoch without faults the output is that of a run that never failed
I12     after a fence, an older actor can neither make rows visible nor drop anything
I13     nothing is left behind when everything has ended; the servers are asked for it
I14     loud: a run ends converged, or with a named error and unchanged output.  A driver that
        was refused at start, at any time of the run, changed no output and dropped nothing
I15     every input that was fed is accounted for, also where rows are lost before the sinks
======  ===============================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from epochal.chaos.observe.history import (
    Accepted,
    AtRest,
    Changed,
    Content,
    Decided,
    Ended,
    Evaluated,
    Event,
    Fault,
    Fed,
    History,
    Placed,
    Prepared,
    Read,
    Row,
    Started,
    State,
    TookOver,
)
from epochal.chaos.observe.run import Run, keys, what

T = TypeVar("T")
SHOWN = 4  # how many wrong things one message lists

Check = Callable[[Run], Iterator[str | int]]
"""Checks one invariant.  Yields a string for each thing that is wrong, and numbers of observations, to be added up.

Raises :class:`NotEnough` if it cannot judge.
"""


class NotEnough(Exception):
    """The history lacks what the checker needs."""


def _final(run: Run) -> Content:
    if not run.reads:
        raise NotEnough("nobody read the sinks")
    return run.final


def _times(run: Run) -> int:
    """How many reads of single sinks the history has."""
    return sum(len(content) for _, content in run.reads)


def no_loss(run: Run) -> Iterator[str | int]:
    _final(run)
    expected = run.all_keys
    for sink in run.sinks:
        yield sum(expected.values())
        missing = expected - run.final_keys[sink]
        if missing:
            yield f"{sink} lacks {_few(missing)}"


def no_duplicate(run: Run) -> Iterator[str | int]:
    _final(run)
    expected = run.all_keys
    for sink in run.sinks:
        found = run.final_keys[sink]
        yield sum(found.values())
        extra = found - expected
        if extra:
            yield f"{sink} has too many of {_few(extra)}"


def _few(found: Counter[T]) -> str:
    """The first entries of a multiset and how often each occurs, short enough for a message."""
    shown = ", ".join(f"{_plain(what)} x {times}" for what, times in sorted(found.items())[:SHOWN])
    return shown if len(found) <= SHOWN else f"{shown} and {len(found) - SHOWN} more"


def _differences(missing: Counter[T], extra: Counter[T]) -> str:
    """Text for what is missing and what is too much.  At least one of the two must not be empty."""
    said = [f"{word} {_few(found)}" for word, found in (("missing", missing), ("too many", extra)) if found]
    return ", ".join(said)


def _plain(what: object) -> str:
    """Text of ``what``; a named tuple is written like a plain tuple, without its name and field names."""
    return str(tuple(what)) if isinstance(what, tuple) else str(what)


def all_or_nothing(run: Run) -> Iterator[str | int]:
    epochs = {p.epoch for _, p in run.history.of(Prepared)} & set(run.filled_epochs)
    if not epochs:
        raise NotEnough("no epoch was held while it was prepared and undecided")
    for epoch in epochs:
        yield _reads_while_undecided(run, epoch)
    yield _times(run)
    wanted = {epoch: keys(rows) for epoch, rows in run.expected.items()}
    partial: dict[tuple[Row, ...], list[str]] = {}  # a cache: most of the time the sinks show the same rows
    for at, sink, rows, _ in run.changes:
        if sink in run.in_parts:
            continue
        if rows not in partial:
            partial[rows] = _of_no_epoch(run, rows) if run.after else _partial(wanted, rows)
        yield from (f"read {at}: {sink} shows {what}" for what in partial[rows])


def _partial(wanted: Mapping[int, Counter[tuple[int, int]]], rows: Sequence[Row]) -> list[str]:
    found = keys(rows)
    shown = {row.epoch for row in rows} & wanted.keys()
    return [f"part of {epoch}" for epoch in shown if any(found[key] < number for key, number in wanted[epoch].items())]


def _of_no_epoch(run: Run, rows: Sequence[Row]) -> list[str]:
    """Describe ``rows`` if they are not the content after any epoch.

    The text compares them with the content after the newest epoch that they have rows of.
    """
    if run.reached(rows) is not None:
        return []
    newest = max((row.epoch for row in rows), default=-1)
    wanted, found = keys(run.after.get(newest, ())), keys(rows)
    return [f"what is there after no epoch; beside epoch {newest}: {_differences(wanted - found, found - wanted)}"]


def _reads_while_undecided(run: Run, epoch: int) -> int:
    """How often every sink was read while the epoch was undecided.  Raises NotEnough if a sink was not read then."""
    windows = [(at, _ends_undecided(run, at, epoch)) for at, p in run.history.of(Prepared) if p.epoch == epoch]
    inside = [content for at, content in run.reads if any(begin < at < end for begin, end in windows)]
    times = {sink: sum(sink in content for content in inside) for sink in run.sinks}
    if not all(times.values()):
        raise NotEnough(f"nobody read while epoch {epoch} was prepared and undecided")
    return min(times.values())


def _ends_undecided(run: Run, prepared: int, epoch: int) -> int:
    """The place in the history where a prepared epoch stops being undecided.

    This is its decision.  Code under test may record no decisions; then it is the next fault or the next start.
    """
    decided = [at for at, event in run.history.of(Decided) if at > prepared and event.epoch == epoch]
    let_go = [at for kind in (Fault, Started) for at, _ in run.history.of(kind) if at > prepared]
    return min(decided or let_go, default=len(run.history.events))


def one_evaluation(run: Run) -> Iterator[str | int]:
    """Compare the attempts of all rows of an epoch if the history has its evaluations, else those of each input.

    Without recorded evaluations, each task may have evaluated its own rows again.
    """
    whole = {e.epoch for _, e in run.history.of(Evaluated)}
    attempts: dict[tuple[int, int], set[int]] = {}
    seen: set[tuple[Row, ...]] = set()  # rows whose attempts are in `attempts` already
    for at, content in run.reads:
        if run.rewrites:
            yield from _mixed(at, attempts)
            attempts = {}
        for rows in content.values():
            yield len(rows)
            if rows in seen:
                continue
            if not run.rewrites:
                seen.add(rows)
            for row in rows:
                attempts.setdefault((row.epoch, -1 if row.epoch in whole else row.key), set()).add(row.attempt)
    yield from _mixed(len(run.history.events), attempts)


def _mixed(at: int, attempts: Mapping[tuple[int, int], set[int]]) -> Iterator[str]:
    mixed = {where: sorted(seen) for where, seen in sorted(attempts.items()) if len(seen) > 1}
    for (epoch, key), seen in list(mixed.items())[:SHOWN]:
        yield f"up to read {at}: {'' if key < 0 else f'input {key} of '}epoch {epoch} has rows of attempts {seen}"


def in_order(run: Run) -> Iterator[str | int]:
    yield _times(run)
    yield from _forward(run) if run.after else _growing(run)


def _forward(run: Run) -> Iterator[str]:
    """Where epochs replace rows: every read shows the content after an epoch, never that of an earlier one again."""
    newest: dict[str, int] = {}
    for at, sink, rows, _ in run.changes:
        reached = run.reached(rows)
        if reached is None:
            yield from (f"read {at}: {sink} shows {what}" for what in _of_no_epoch(run, rows))
        elif reached < newest.get(sink, 0):
            yield f"read {at}: {sink} shows {reached} epochs, and had shown {newest[sink]}"
        newest[sink] = max(newest.get(sink, 0), reached or 0)


def _growing(run: Run) -> Iterator[str]:
    """Where epochs only add rows: no row goes away, and no epoch is shown before an earlier one."""
    filled = run.filled_epochs
    for at, sink, rows, before in run.changes:
        if rows[: len(before)] != before and (gone := _shown(run, before) - _shown(run, rows)):
            yield f"read {at}: {sink} no longer shows {_few(gone)}"
        shown = {row.epoch for row in rows}
        holes = [e for e in filled if e not in shown and e < max(shown, default=-1)]
        if holes:
            yield f"read {at}: {sink} shows epoch {max(shown)} and not {holes}"


def _shown(run: Run, rows: Sequence[Row]) -> Counter[Row]:
    return Counter(row._replace(attempt=0) for row in rows) if run.rewrites else Counter(rows)


def agreement(run: Run) -> Iterator[str | int]:
    sinks = set(run.sinks)
    before: list[tuple[Row, ...]] = []
    for at, content in run.reads:
        if content.keys() < sinks:
            continue  # this read did not see all sinks at one time
        yield 1
        rows_of = [content.get(sink, ()) for sink in run.sinks]
        if rows_of == before:
            continue
        before = rows_of
        told = {sink: run.reached(rows) for sink, rows in zip(run.sinks, rows_of, strict=True)}
        reached = {sink: number for sink, number in told.items() if number is not None}  # None breaks I5, not I6
        if reached and max(reached.values()) - min(reached.values()) > 1:
            yield f"read {at}: epochs shown {reached}"
    final = _final(run)
    if all(final.get(sink, ()) == final.get(run.sinks[0], ()) for sink in run.sinks):
        return
    at_rest = {sink: what(final.get(sink, ())) for sink in run.sinks}
    if any(rows != at_rest[run.sinks[0]] for rows in at_rest.values()):
        yield f"at rest the sinks differ: { {sink: sum(rows.values()) for sink, rows in at_rest.items()} }"


def one_decision(run: Run) -> Iterator[str | int]:
    newest: dict[int, int] = {}
    for _, decided in run.history.of(Decided):
        yield 1
        if decided.supersedes != newest.get(decided.epoch):
            yield f"epoch {decided.epoch} was decided again by {decided.by}"
        newest[decided.epoch] = decided.decision
    first = {d.epoch: at for at, d in reversed(list(run.history.of(Decided)))}
    for at, sink, rows, _ in run.changes:
        for epoch in run.epochs_in(rows):
            if first.get(epoch, at) >= at:
                yield f"read {at}: {sink} shows epoch {epoch}, which was not decided"


def decided_is_visible(run: Run) -> Iterator[str | int]:
    final = _final(run)
    decided = {d.epoch for _, d in run.history.of(Decided)}
    for sink in run.sinks:
        yield len(decided)
        shown = run.epochs_in(final.get(sink, ()))
        hidden = [e for e in run.filled_epochs if e in decided and e not in shown]
        if hidden:
            yield f"{sink} never showed decided epochs {hidden}"
        if shown - decided:
            yield f"{sink} shows undecided epochs {sorted(shown - decided)}"


def state_equality(run: Run) -> Iterator[str | int]:
    wanted = {s.epoch: Counter(s.entries) for _, s in run.history.of(State) if s.reference}
    for _, state in run.history.of(State):
        if state.reference:
            continue
        if state.epoch not in wanted:
            raise NotEnough(f"the state of a run without failure after epoch {state.epoch} is not known")
        yield max(1, len(state.entries))
        missing, extra = wanted[state.epoch] - Counter(state.entries), Counter(state.entries) - wanted[state.epoch]
        if missing or extra:
            yield f"state after epoch {state.epoch}: {_differences(missing, extra)}"


def one_position(run: Run) -> Iterator[str | int]:
    """Spark's offsets must be the decided ones, and each marker must be that of the log's decision."""
    placed: dict[int, dict[str, Placed]] = {}
    for _, place in run.history.of(Placed):
        placed.setdefault(place.epoch, {})[place.where] = place
    for epoch, places in sorted(placed.items()):
        if not {"offsets", "log"} < set(places):
            raise NotEnough(f"for epoch {epoch} only {sorted(places)} are known")
        spark, log = places.pop("offsets"), places.pop("log")
        yield 1 + len(places)
        if spark.fingerprint != log.fingerprint:
            yield f"epoch {epoch}: Spark has {spark.fingerprint!r}, the log decided {log.fingerprint!r}"
        for sink, place in places.items():
            if place.decision != log.decision:
                yield f"epoch {epoch}: {sink}'s marker is of decision {place.decision}, the log's is {log.decision}"


def next_epoch_equality(run: Run) -> Iterator[str | int]:
    final, expected = _final(run), what(run.due)
    _one_epoch_after_the_faults(run)
    for sink in run.sinks:
        found = what(final.get(sink, ()))
        yield sum(found.values())
        if found != expected:
            yield f"{sink}: {_differences(expected - found, found - expected)}"


def _one_epoch_after_the_faults(run: Run) -> None:
    """Raise NotEnough if no input was fed after the last fault.  A history without ``Fed`` events is accepted."""
    faults = [at for at, _ in run.history.of(Fault)]
    fed = [at for at, _ in run.history.of(Fed)]
    if faults and fed and max(fed) < max(faults):
        raise NotEnough("nothing was fed after the last fault")


def fence_holds(run: Run) -> Iterator[str | int]:
    owner: dict[str, str] = {}
    taken: dict[str, int] = {}
    for at, event in enumerate(run.history.events):
        if isinstance(event, TookOver):
            owner[event.where], taken[event.where] = event.by, at
            yield 1
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


def nothing_is_left(run: Run) -> Iterator[str | int]:
    rests = {rest.where: rest for _, rest in run.history.of(AtRest)}
    unasked = [sink for sink in run.sinks if sink not in rests]
    if unasked:
        raise NotEnough(f"it was not asked what is left in {unasked}")
    for rest in rests.values():
        yield int(rest.asked)
        if rest.left:
            yield f"{rest.where} still holds {list(rest.left[:SHOWN])}"


def accounted(run: Run) -> Iterator[str | int]:
    final = _final(run)
    fed = Counter(key for _, event in run.history.of(Fed) for key in event.keys)
    yield sum(fed.values())
    if run.after and not run.counted:  # each change of a key feeds it again, and the key may be deleted in the end
        fed = Counter({row.key for row in run.due if row.key in fed})
    for sink in run.sinks:
        rows = final.get(sink, ())
        if run.counted:
            number = run.pending + sum(row.value for row in rows)
            if number != sum(fed.values()):
                yield f"{sink} accounts for {number} inputs of {sum(fed.values())}"
        elif lost := fed - Counter(row.key for row in rows):
            yield f"{sink} does not account for inputs {_few(lost)}"


def _generation(actor: str) -> int:
    """The generation in an actor's name, which is ``g<generation>/<token>``."""
    return int(actor[1:].partition("/")[0])


REFUSALS = frozenset({"CheckpointMismatch", "MarkerLost", "Misconfigured"})
"""Errors that refuse a start.  An accepted driver may also end with one of them, after it changed the output."""


def loud(run: Run) -> Iterator[str | int]:
    ends = list(run.history.of(Ended))
    if not ends:
        raise NotEnough("no driver ended")
    for _, end in ends:
        yield 1
        if not end.named:
            yield f"{end.driver} ended with {end.outcome}, which is not a documented error"
    yield from _refused_and_changed(run)
    at, last = ends[-1]
    if last.outcome == "finished":
        yield from (wrong for wrong in next_epoch_equality(run) if isinstance(wrong, str))
    elif last.named and last.definite and last.outcome != "killed":
        began = max(i for i, s in run.history.of(Started) if s.driver == last.driver)
        before = History(run.history.events[:began]).content
        if any(_differs(content, before) for i, content in run.reads if began < i < at):
            yield f"{last.driver} ended with {last.outcome} and had changed the output"
    else:
        raise NotEnough(f"the last driver ended with {last.outcome}: it was not shown that another start converges")


def _refused_and_changed(run: Run) -> Iterator[str]:
    """The changes during the life of a refused driver that no accepted actor can have made."""
    for at, end in run.history.of(Ended):
        if end.outcome in REFUSALS:
            began = max(i for i, s in run.history.of(Started) if s.driver == end.driver and i < at)
            if _others_may_have(run, end.driver, began, at):
                continue
            for change in _unaccepted(run.history.events, began, at):
                yield f"{end.driver} was refused with {end.outcome}, and {change}"


def _others_may_have(run: Run, driver: str, began: int, ended: int) -> bool:
    """Whether somebody else, or this driver after it was accepted, may have made the changes.

    False if the history has ``Accepted`` events, because then they tell who may change the output.  Without them: true
    if anything was decided meanwhile, or if another driver lived at the same time.
    """
    if any(True for _ in run.history.of(Accepted)):
        return False
    inside = run.history.events[began:ended]
    alive = {s.driver for at, s in run.history.of(Started) if at < ended} - {
        e.driver for at, e in run.history.of(Ended) if at < began
    }
    return alive != {driver} or any(isinstance(event, Decided) for event in inside)


def _differs(read: Content, before: Content) -> bool:
    """Whether a sink changed.  A read may hold only some of the sinks; the others are not compared."""
    return any(rows != before[sink] for sink, rows in read.items() if sink in before)


def _unaccepted(events: Sequence[Event], began: int, ended: int) -> Iterator[str]:
    """The changes from ``began`` to ``ended`` that no accepted actor made."""
    accepted = {event.by for event in events[:began] if isinstance(event, Accepted)}
    content = History(list(events[:began])).content
    explained = not content
    for event in events[began:ended]:
        if isinstance(event, Accepted):
            accepted.add(event.by)
        elif isinstance(event, Changed):
            if event.by not in accepted:
                yield f"{event.by} changed {event.where}"
            explained = explained or event.shown > 0
        elif isinstance(event, Read):
            if _differs(event.content, content) and not explained:
                yield "the output changed"
            content, explained = {**content, **event.content}, False


CHECKS: Mapping[str, Check] = {
    "I1": no_loss,
    "I2": no_duplicate,
    "I3": all_or_nothing,
    "I4": one_evaluation,
    "I5": in_order,
    "I6": agreement,
    "I7": one_decision,
    "I8": decided_is_visible,
    "I9": state_equality,
    "I10": one_position,
    "I11": next_epoch_equality,
    "I12": fence_holds,
    "I13": nothing_is_left,
    "I14": loud,
    "I15": accounted,
}

MEANING: Mapping[str, str] = {
    "I1": "no loss",
    "I2": "no duplicate",
    "I3": "an outside reader sees all of an epoch or nothing, also during the faults",
    "I4": "one evaluation in all outputs",
    "I5": "epochs are in order, and reads never go back",
    "I6": "sinks differ by at most one epoch, and not at all at rest",
    "I7": "at most one decision per epoch, made before the epoch is visible",
    "I8": "every decided epoch becomes visible everywhere, an undecided one nowhere",
    "I9": "the operator state is that of a run that never failed",
    "I10": "the source position is the same in offsets, log and markers",
    "I11": "after one more epoch the output is that of a run that never failed",
    "I12": "a fenced actor changes nothing any more",
    "I13": "nothing is left behind",
    "I14": "a run ends converged, or with a named error and unchanged output",
    "I15": "every input is accounted for",
}

SIMULATED = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I11", "I12", "I14")
"""The invariants of simulated runs, which have no servers, no state store and no source that could be asked."""
