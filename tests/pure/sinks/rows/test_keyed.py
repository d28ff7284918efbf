"""What is refused of modes with a key, the same for every sink: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.delta import Merge
from epochal.sinks.postgres import Plain, Upsert
from epochal.sinks.rows import keyed
from epochal.sinks.rows.keyed import Upsertion

KINDS = {"id": "bigint", "a": "string", "seq": "bigint", "gone": "boolean"}


@pytest.mark.parametrize("kind", [Merge, Upsert])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"key": []}, "(key=...) names no column"),
        ({"key": ["id", "id"]}, "key= names 'id' twice"),
        ({"key": "id", "update": ["a", "a"]}, "update= names 'a' twice"),
        ({"key": "id", "order_by": ["a", "a"]}, "order_by= names 'a' twice"),
        ({"key": "id", "update": "id"}, "update= names 'id', which is in the key"),
        ({"key": "id", "order_by": "id"}, "order_by= names 'id', which is in the key"),
        ({"key": "id", "delete_when": "id"}, "delete_when= names 'id', which is in the key"),
        ({"key": "id", "update": "a", "delete_when": "a"}, "update= names 'a', which delete_when= keeps out"),
    ],
)
def test_what_can_never_be(kind: Any, options: Mapping[str, Any], named: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        keyed.check(kind(**options), "out")
    assert named in refused.value.what
    if "names no column" in named:
        assert refused.value.what.startswith(kind.__name__)
    assert refused.value.sink == "out"


def test_a_name_is_one_column_and_never_its_letters() -> None:
    mode = Merge(key="id", update="ab", order_by="seq", delete_when="gone")
    assert (mode.keys, mode.updates, mode.order, mode.deletes) == (("id",), ("ab",), ("seq",), ("gone",))
    assert (Merge(key="id").updates, Merge(key="id", update=()).updates) == (None, ())
    keyed.check(mode, "out")
    keyed.check(Merge(key="id", delete_when="gone"), "out")
    keyed.check_columns(Merge(key="id"), KINDS, "out")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"key": "nr"}, "key= names the column 'nr', which is not in the rows"),
        ({"key": "id", "update": "b"}, "update= names the column 'b', which is not in the rows"),
        ({"key": "id", "order_by": "at"}, "order_by= names the column 'at', which is not in the rows"),
        ({"key": "id", "delete_when": "op"}, "delete_when= names the column 'op', which is not in the rows"),
        ({"key": "id", "delete_when": "a"}, "delete_when= names the column 'a', which is string"),
    ],
)
def test_columns_that_the_rows_have_not(options: Mapping[str, Any], named: str) -> None:
    keyed.check_columns(Merge(key="id", update="a", order_by="seq", delete_when="gone"), KINDS, "out")
    with pytest.raises(Misconfigured) as refused:
        keyed.check_columns(Merge(**options), KINDS, "out")
    assert refused.value.what == named


def test_what_is_written() -> None:
    """What only the mode looks at is written where the table has it, what deletes never is."""
    mode = Upsert(key="id", order_by="seq", delete_when="gone")
    without = Upsertion.of(mode, list(KINDS), ["id", "a"])
    assert (without.columns, without.update) == (("id", "a"), ("a",))
    having = Upsertion.of(mode, list(KINDS), ["id", "a", "seq", "gone"])
    assert (having.columns, having.update) == (("id", "a", "seq"), ("a", "seq"))
    assert Upsertion.of(Upsert(key="id", update="a"), list(KINDS), []).update == ("a",)
    assert Upsertion.of(Plain(), list(KINDS), []) == Upsertion(tuple(KINDS))
    assert Upsertion.from_json(without.to_json()) == without


def test_rows_without_a_key_are_told_by_column() -> None:
    keyed.check_nulls({"id": 0, "seq": 0}, "out", 7)
    with pytest.raises(PrepareRefused) as refused:
        keyed.check_nulls({"id": 2, "a": 0, "seq": 1}, "out", 7)
    assert refused.value.what == "rows with NULL in a column of key= or order_by=: column 'id': 2, column 'seq': 1"
    assert (refused.value.sink, refused.value.epoch) == ("out", 7)


@pytest.mark.parametrize(
    ("order", "what", "remedy"),
    [
        ((), " of one epoch", "give Merge(order_by=...) columns"),
        (("seq",), " that are all last by order_by=", "add a column to order_by="),
    ],
)
def test_keys_that_stand_twice_are_told_the_worst_first(order: tuple[str, ...], what: str, remedy: str) -> None:
    plan = Upsertion(("id", "a"), key=("id", "a"), order=order)
    keyed.check_twice(plan, "Merge", [], "out", 7)
    with pytest.raises(PrepareRefused) as refused:
        keyed.check_twice(plan, "Merge", [(3, 9, "2", "x"), (2, 9, "3", "y")], "out", 7)
    assert refused.value.what == f"key (id, a) = (2, x): 3 rows{what}"
    assert refused.value.state == "9 such keys: (2, x): 3 rows, (3, y): 2 rows"
    assert refused.value.help.startswith(remedy)
