"""What the storm calls wrong: rows that are lost, foreign, there twice, out of order, or seen otherwise by another.

Also markers that name other epochs or other numbers of rows than the input has.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.storm.feed import FILE, FILES, GROUP, KEPT, Feed
from tests.storm.readers import Seen, audited, differences, faults, strangers

RIGHT = {0: [0, 2, FILE, 3, GROUP], 1: [1, GROUP + 1, 2 * GROUP]}
EXPECTED = array("q", sorted(i for ids in RIGHT.values() for i in ids))


def seen(partitions: Mapping[int, list[int]]) -> dict[int, Seen]:
    return {n: Seen(array("q", range(len(ids))), array("q", ids)) for n, ids in partitions.items()}


def test_all_rows_in_order_are_right() -> None:
    assert faults(EXPECTED, seen(RIGHT), [1, 2, 3]) == []
    assert differences(seen(RIGHT), seen(RIGHT), "again") == []


@pytest.mark.parametrize(
    ("partition", "ids", "what"),
    [
        (0, [0, 2, FILE, 3], "1 rows lost"),
        (0, [0, 2, FILE, 3, GROUP, GROUP], "1 rows twice"),
        (0, [0, 2, FILE, 3, GROUP, GROUP + 7], "1 rows foreign"),
        (0, [2, 0, FILE, 3, GROUP], "row 0 after 2"),
        (1, [1, 2 * GROUP, GROUP + 1], "of epoch 1 after epoch 2"),
    ],
)
def test_what_is_wrong_is_told(partition: int, ids: list[int], what: str) -> None:
    assert any(what in told for told in faults(EXPECTED, seen({**RIGHT, partition: ids}), [1, 2, 3]))


def test_groups_of_one_epoch_have_no_order() -> None:
    mixed = seen({**RIGHT, 1: [1, 2 * GROUP, GROUP + 1]})
    assert faults(EXPECTED, mixed, [1, 3]) == []


def test_a_reader_that_was_shown_something_else_is_told() -> None:
    other = seen({**RIGHT, 1: [1, GROUP + 1]})
    assert differences(seen(RIGHT), other, "seen uncommitted") != []
    assert differences(other, seen(RIGHT), "seen uncommitted") == []


def test_rows_of_aborted_transactions_may_be_seen_uncommitted_and_strangers_may_not() -> None:
    aborted = {0: [0, 2, FILE, 0, 2, FILE, 3, GROUP], 1: [1, GROUP + 1, 1, GROUP + 1, 2 * GROUP]}
    assert strangers(EXPECTED, seen(aborted)) == []
    assert strangers(EXPECTED, seen({**aborted, 1: [1, 7 * GROUP]})) == [f"1 rows are not of the input: [{7 * GROUP}]"]


def test_an_epoch_that_is_shown_twice_is_told_even_where_its_copies_lie_far_apart() -> None:
    """A redo of an epoch that was visible already: whole, in order, after others."""
    again = {0: [*RIGHT[0], 0, 2, FILE, 3], 1: [*RIGHT[1], 1]}
    told = faults(EXPECTED, seen(again), [1, 2, 3])
    assert any("5 rows twice" in each for each in told)
    assert any("of epoch 0 after epoch" in each or "row 0 of epoch" in each for each in told)


SIZES = [[2, 1], [3, 0], [4, 4], [1, 1]]
ENDS = [1, 3, 4]
SHOWN = [(1, 0, 3), (2, 1, 11), (3, 2, 2)]


def test_markers_of_all_epochs_or_of_the_newest_ones_are_right() -> None:
    assert audited(SIZES, ENDS, SHOWN) == []
    assert audited(SIZES, ENDS, SHOWN[1:]) == []


@pytest.mark.parametrize(
    "shown",
    [
        [],
        [*SHOWN, (4, 3, 2)],
        [SHOWN[0], SHOWN[1], (3, 2, 3)],
        [SHOWN[0], (3, 1, 11), SHOWN[2]],
        [SHOWN[0], (2, 2, 11), SHOWN[2]],
        [SHOWN[0], SHOWN[2]],
        SHOWN[:2],
    ],
)
def test_wrong_markers_are_told(shown: list[tuple[int, int, int]]) -> None:
    assert audited(SIZES, ENDS, shown) != []


def test_groups_appear_whole_and_stay_until_they_are_done(tmp_path: Path) -> None:
    feed = Feed(tmp_path, random.Random(1))
    feed.keep_ahead(KEPT, ahead=3)
    feed.prune(KEPT + 2)
    names = sorted(folder.name for folder in feed.source.iterdir())
    assert names == [f"{n:06}" for n in range(2, KEPT + 3)]
    assert all(len(list(folder.iterdir())) == FILES for folder in feed.source.iterdir())
    assert len(feed.ids()) == feed.rows == len(set(feed.ids()))
    assert list(feed.ids()) == sorted(feed.ids())
