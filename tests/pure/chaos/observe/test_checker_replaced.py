"""Outputs whose rows are replaced and deleted: every invariant, over a history that keeps it and ones that break it.

What is there after each epoch::

    epoch 0    inserts 1, 2, 3
    epoch 1    updates 1, deletes 2, inserts 4
    epoch 2    deletes 9, which is not there: nothing changes
    epoch 3    deletes 3: only by what is missing can it be seen
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.chaos.observe import checker, recording
from epochal.chaos.observe.checker import Verdict
from epochal.chaos.observe.history import Decided, Ended, Event, Fed, History, Prepared, Read, Row, Started
from epochal.chaos.observe.invariants import CHECKS, SIMULATED
from epochal.chaos.observe.run import Run

ONE, TWO, THREE = (Row(0, key, 10, key) for key in (1, 2, 3))
ONE_AGAIN, FOUR = Row(1, 1, 11, 5), Row(1, 4, 11, 6)
AFTER = ((), (ONE, TWO, THREE), (ONE_AGAIN, THREE, FOUR), (ONE_AGAIN, THREE, FOUR), (ONE_AGAIN, FOUR))
"""Before the first epoch, and after each."""
LAST = AFTER[-1]
JUDGED = [name for name in SIMULATED if name != "I12"] + ["I15"]
BY = "g1/7"


def plain(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(row._replace(attempt=0) for row in rows)


def run(events: Sequence[Event]) -> Run:
    expected = {0: plain((ONE, TWO, THREE)), 1: plain((ONE_AGAIN, FOUR)), 2: (), 3: ()}
    after = {epoch: plain(rows) for epoch, rows in enumerate(AFTER[1:])}
    return Run(History(list(events)), ("a", "b"), expected, after=after)


def read(a: Sequence[Row], b: Sequence[Row] | None = None) -> Read:
    return Read({"a": tuple(sorted(a)), "b": tuple(sorted(a if b is None else b))})


def good() -> list[Event]:
    events: list[Event] = [Started("d"), Fed((1, 2, 3, 1, 2, 4, 9, 3))]
    for epoch, (before, now) in enumerate(itertools.pairwise(AFTER)):
        events += [Prepared(epoch), read(before), Decided(epoch, 100 + epoch, BY), read(now, before), read(now)]
    return [*events, Ended("d", "finished")]


def ending_with(*events: Event) -> list[Event]:
    return [*good()[:-1], *events, good()[-1]]


def in_between(*events: Event) -> list[Event]:
    """While epoch 1 is the newest that is shown."""
    at = good().index(Prepared(3))
    return [*good()[:at], *events, *good()[at:]]


@pytest.mark.parametrize("name", JUDGED)
def test_a_good_run_is_true(name: str) -> None:
    assert checker.judge(CHECKS[name], run(good())).verdict is Verdict.TRUE


APPLIED_TWICE = (*LAST, FOUR)
NOT_DELETED = (*LAST, THREE)
OLD_VERSION = (ONE, FOUR)
BOTH_VERSIONS = (ONE, *LAST)
HALF = (ONE_AGAIN, TWO, THREE)  # of epoch 1: nothing is deleted or inserted yet
SECOND_FIRST = (ONE_AGAIN, TWO, FOUR)  # epoch 3 without the deletion of epoch 1

BAD = [
    ("I1", "a row is gone", ending_with(read(LAST[:1]))),
    ("I1", "an older version of a row", ending_with(read(OLD_VERSION, LAST))),
    ("I2", "a row is there twice", ending_with(read(APPLIED_TWICE, LAST))),
    ("I2", "a row was not deleted", ending_with(read(NOT_DELETED, LAST))),
    ("I2", "both versions of a row", ending_with(read(LAST, BOTH_VERSIONS))),
    ("I2", "a deleted row is back", ending_with(read((*LAST, TWO)))),
    ("I3", "half an epoch, for one read", in_between(read(HALF, AFTER[2]), read(AFTER[2]))),
    ("I3", "half an epoch that only deletes", ending_with(read((ONE_AGAIN, FOUR, THREE, TWO)), read(LAST))),
    ("I3", "nothing at all, for one read", in_between(read((THREE,), AFTER[2]), read(AFTER[2]))),
    ("I4", "an epoch of two attempts", ending_with(read((ONE_AGAIN, FOUR._replace(attempt=12)), LAST))),
    ("I4", "two sinks of different attempts", ending_with(read(LAST, [r._replace(attempt=12) for r in LAST]))),
    ("I5", "an older content again", ending_with(read(AFTER[1], LAST), read(LAST))),
    ("I5", "empty again", in_between(read((), AFTER[2]), read(AFTER[2]))),
    ("I5", "epoch 3 before epoch 1", in_between(read(SECOND_FIRST, AFTER[2]), read(AFTER[2]))),
    ("I5", "half an epoch", in_between(read(HALF, AFTER[2]), read(AFTER[2]))),
    ("I6", "two epochs apart", ending_with(read(LAST, AFTER[1]))),
    ("I6", "different at rest", ending_with(read(LAST, NOT_DELETED))),
    ("I7", "a deletion before it was decided", in_between(read(LAST))),
    ("I7", "an update before it was decided", [Started("d"), read(AFTER[2]), *good()[1:]]),
    ("I8", "decided and never visible, which is seen by a deletion alone", ending_with(read(LAST, AFTER[2]))),
    ("I8", "visible and never decided", [e for e in good() if not (isinstance(e, Decided) and e.epoch == 3)]),
    ("I11", "a wrong value", ending_with(read((ONE_AGAIN, FOUR._replace(value=7, epoch=-1))))),
    ("I11", "a row was not deleted", ending_with(read(NOT_DELETED))),
    ("I14", "finished and not converged", ending_with(read(NOT_DELETED, LAST))),
    ("I15", "a key is not there any more", ending_with(read(LAST[:1], LAST))),
]


@pytest.mark.parametrize(("name", "events"), [pytest.param(n, e, id=f"{n}: {why}") for n, why, e in BAD])
def test_a_bad_run_is_false(name: str, events: list[Event]) -> None:
    found = checker.judge(CHECKS[name], run(events))
    assert found.verdict is Verdict.FALSE, found


def test_every_invariant_has_a_bad_run() -> None:
    assert {name for name, _, _ in BAD} == set(JUDGED)


def test_what_is_there_after_no_epoch_is_told_beside_the_newest_that_it_has_rows_of() -> None:
    found = checker.judge(CHECKS["I5"], run(ending_with(read(LAST, NOT_DELETED), read(LAST))))
    assert "shows what is there after no epoch; beside epoch 1: too many of" not in found.why
    assert found.verdict is Verdict.FALSE
    assert "read 22: b shows 2 epochs, and had shown 3" in found.why  # which is what was there before the deletion
    found = checker.judge(CHECKS["I5"], run(ending_with(read(LAST, BOTH_VERSIONS), read(LAST))))
    assert found.why == (
        "read 22: b shows what is there after no epoch; beside epoch 1: missing (0, 3) x 1, too many (0, 1) x 1"
    )


def test_an_epoch_that_changes_nothing_is_neither_lost_nor_out_of_order() -> None:
    assert run(good()).filled_epochs == [0, 1, 3]


def test_one_that_promises_parts_alone_may_show_parts() -> None:
    """Of an epoch that adds rows, for a time: at rest they are all there."""
    rows = (Row(0, 1, 10, 1), Row(0, 2, 10, 2))
    events: list[Event] = [Prepared(0), read(()), Decided(0, 100, BY), read(rows, rows[:1]), read(rows)]
    told = Run(History(list(events)), ("a", "b"), {0: plain(rows)})
    assert checker.judge(CHECKS["I3"], told).verdict is Verdict.FALSE
    assert checker.judge(CHECKS["I3"], replace(told, in_parts=("b",))).verdict is Verdict.TRUE
    assert checker.judge(CHECKS["I3"], replace(told, in_parts=("a",))).verdict is Verdict.FALSE
    torn = replace(told, history=History(events[:-1]), in_parts=("b",))
    assert checker.judge(CHECKS["I1"], torn).verdict is Verdict.FALSE


@pytest.mark.parametrize("counts", [(3, 2), (2, 2), (3, 3)])
def test_counts_that_are_replaced_account_for_every_input(counts: tuple[int, int]) -> None:
    first, second = (Row(0, 0, 0, 1), Row(0, 1, 0, 1)), tuple(Row(1, k, 0, n) for k, n in enumerate((3, 2)))
    shown = tuple(Row(1, k, 11, n) for k, n in enumerate(counts))
    told = Run(
        History([Fed((1, 2)), Fed((3, 4, 5)), Read({"a": shown})]),
        ("a",),
        {0: first, 1: second},
        counted=True,
        after={0: first, 1: second},
    )
    wanted = Verdict.TRUE if counts == (3, 2) else Verdict.FALSE
    assert checker.judge(CHECKS["I15"], told).verdict is wanted


@pytest.mark.parametrize("events", [pytest.param(good(), id="good"), *(pytest.param(e, id=w) for _, w, e in BAD)])
def test_a_run_survives_its_file(events: list[Event], tmp_path: Path) -> None:
    told = replace(run(events), in_parts=("b",))
    recording.save(told, tmp_path / "h.jsonl")
    again, _ = recording.load(tmp_path / "h.jsonl")
    assert (again.after, again.in_parts) == (told.after, ("b",))
    assert checker.judge_all(again, JUDGED) == checker.judge_all(told, JUDGED)
