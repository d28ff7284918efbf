"""The pipelines of the fuzz: the same from the same seed, of every kind, and made smaller part by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from tests.fuzz import values
from tests.fuzz.expected import MustRefuse, differences, shown
from tests.fuzz.frames import EXOTIC, Column
from tests.fuzz.plans import SinkPlan, plan
from tests.fuzz.run import smaller_ones

MANY = 400


def test_a_seed_and_a_number_give_the_same_pipeline_again() -> None:
    assert [str(plan(7, n)) for n in range(50)] == [str(plan(7, n)) for n in range(50)]
    assert str(plan(7, 1)) != str(plan(8, 1)) != str(plan(8, 2))


def test_there_are_pipelines_of_every_kind() -> None:
    made = [plan(1, n) for n in range(MANY)]
    sinks = Counter((sink.kind, sink.mode) for one in made for sink in one.sinks)
    modes = {("postgres", m) for m in ("Append", "Plain", "Upsert")} | {
        ("delta", m) for m in ("Append", "Overwrite", "Merge")
    }
    assert sinks.keys() == {*modes, ("kafka", None), ("memory", None)}
    options = {name for one in made for sink in one.sinks for name in (*sink.options, *sink.keyed)}
    assert {
        "headers",
        "partition",
        "topic",
        "key",
        "value",
        "slots",
        "tombstones",
        "options",
        "topic_config",
    } <= options
    assert {"partition_by", "merge_schema", "schema_evolution", "view", "delete_when", "order_by", "update"} <= options
    parts = [(s.select, s.where, s.bad_rows, s.junk or None) for one in made for s in one.sinks]
    assert all(any(part is not None for part in each) for each in zip(*parts, strict=True))
    assert all(any(getattr(one, what) for one in made) for what in ("settings", "restarts", "grows"))
    assert {one.mode for one in made} == {"two-phase", "idempotent"}
    kinds = {type(c.kind) for one in made for c in one.columns}
    assert len(kinds) >= 16
    assert {c.exotic for n in range(MANY * 6) for c in plan(2, n).columns} == {None, *EXOTIC}


@pytest.mark.parametrize(("seed", "numbers"), [(1, range(MANY)), (29, (1755,))], ids=["many", "name is empty"])
def test_values_are_of_the_types_of_their_columns(seed: int, numbers: Iterable[int]) -> None:
    """Also where a column has no name, or the name of one that has a role."""
    for made in (plan(seed, number) for number in numbers):
        for column, *cells in zip(made.columns, *(row for rows in made.epochs for row in rows), strict=True):
            assert len(pa.array(cells, values.arrow(column.kind))) == len(cells)


def test_every_smaller_pipeline_is_smaller() -> None:
    for number in range(60):
        of = plan(3, number)
        for smaller in smaller_ones(of):
            assert smaller != of
            assert len(smaller.columns) <= len(of.columns)
            assert all(len(row) == len(smaller.columns) for rows in smaller.epochs for row in rows)


ID, KEY = Column("id", t.LongType()), Column("key", t.DoubleType())
UPSERT = SinkPlan("postgres", {}, "Upsert", {"key": ["key"], "order_by": ["id"]})


def test_what_an_upsert_must_show() -> None:
    before = [{"id": 1, "key": 0.0}, {"id": 2, "key": float("nan")}]
    found, optional = shown(UPSERT, [ID, KEY], before, [(3, -0.0), (5, float("nan")), (4, float("nan"))])
    assert differences(found, [{"id": 3, "key": 0.0}, {"id": 5, "key": float("nan")}]) == ""
    assert optional == {"id"}


@pytest.mark.parametrize("rows", [[(1, None)], [(None, 1.0)], [(1, 1.0), (1, 1.0)]])
def test_what_an_upsert_must_refuse(rows: list[tuple[object, ...]]) -> None:
    with pytest.raises(MustRefuse):
        shown(UPSERT, [ID, KEY], [], rows)


def test_differences_are_told_row_by_row() -> None:
    row = {"id": 1}
    assert differences([row, row], [row, row]) == ""
    assert differences([row, row], [row]) == "found [\"[('id', 1)]\"], wanted []"
    assert differences([], [row]) == "found [], wanted [\"[('id', 1)]\"]"
    assert differences([{"id": 0.0}], [{"id": -0.0}]) != ""


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("1970-01-01", 0),
        ("2000-03-01", 11_017),
        ("0001-01-01", -719_162),
        ("0000-12-31", -719_163),
        ("-0004-02-29", -720_930),
        ("+10000-01-01", 2_932_897),
    ],
)
def test_days_of_any_year_are_read(text: str, day: int) -> None:
    assert values.days(text) == day
    assert values.microseconds(f"{text}T01:00:00.5") == day * values.DAY + 3_600_500_000
