"""What the storm calls wrong: rows that are lost, foreign, there twice, out of order, or seen otherwise by another."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.storm.feed import FILE, FILES, GROUP, KEPT, Feed
from tests.storm.readers import Seen, differences, faults

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


def test_groups_appear_whole_and_stay_until_they_are_done(tmp_path: Path) -> None:
    feed = Feed(tmp_path, random.Random(1))
    feed.keep_ahead(KEPT, ahead=3)
    feed.prune(KEPT + 2)
    names = sorted(folder.name for folder in feed.source.iterdir())
    assert names == [f"{n:06}" for n in range(2, KEPT + 3)]
    assert all(len(list(folder.iterdir())) == FILES for folder in feed.source.iterdir())
    assert len(feed.ids()) == feed.rows == len(set(feed.ids()))
    assert list(feed.ids()) == sorted(feed.ids())
