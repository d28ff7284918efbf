"""The demo's expected rows and its way of counting."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from epochal.chaos.demo import data
from epochal.chaos.demo.readers import SCHEMA, Count, compare
from epochal.chaos.demo.strikes import NAIVE, OURS, Checkpoint


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return data.flights()


@pytest.fixture(scope="module")
def expected(flights: pa.Table) -> pa.Table:
    return data.expected(flights)


def changed(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    """The same rows but for one value."""
    values = table[column].to_pylist()
    values[row] = value
    index = table.schema.get_field_index(column)
    return table.set_column(index, SCHEMA.field(column), pa.array(values, SCHEMA.field(column).type))


def test_every_flight_is_expected_once(flights: pa.Table, expected: pa.Table) -> None:
    data.check(flights)
    assert len(expected) == data.TOTAL
    assert expected.schema == SCHEMA
    assert expected["tailnum"].null_count == data.WITHOUT_TAILNUM
    assert expected["name"].null_count == 0
    # Most tail numbers are known; a null one is no plane's.
    known = pa.compute.is_in(flights["tailnum"], data.planes()["tailnum"])
    assert pa.compute.sum(known).as_py() == len(expected) - expected["manufacturer"].null_count


def test_the_two_years_are_kept_apart(expected: pa.Table) -> None:
    assert set(expected["year"].to_pylist()) == {2013}
    assert min(year for year in expected["plane_year"].to_pylist() if year is not None) < 2000


def test_empty_is_null_and_never_nan(expected: pa.Table) -> None:
    for name in ("dep_delay", "arr_delay", "air_time", "speed"):
        assert expected[name].null_count > 0
        assert pa.compute.sum(pa.compute.is_nan(expected[name])).as_py() == 0


def test_another_version_of_the_package_is_refused(flights: pa.Table) -> None:
    with pytest.raises(ValueError, match="336775 flights"):
        data.check(flights.slice(1))


def test_json_lines_hold_every_value(flights: pa.Table) -> None:
    first = flights.slice(0, 1000)
    for line, row in zip(data.json_lines(first), first.to_pylist(), strict=True):
        row["time_hour"] = row["time_hour"].strftime("%Y-%m-%dT%H:%M:%SZ")
        assert json.loads(line) == row


def test_the_same_rows_in_another_order_are_exact(expected: pa.Table) -> None:
    some = expected.slice(0, 1000)
    found = pa.concat_tables([some.slice(500), some.slice(0, 500)])
    assert compare(some, found) == Count(1000, 1000, lost=0, duplicated=0, wrong=0)
    assert compare(some, found).exact


@pytest.mark.parametrize(
    ("column", "value"), [("plane_year", 1900), ("speed", float("nan")), ("tailnum", ""), ("dep_delay", None)]
)
def test_one_other_value_is_wrong_and_not_lost(expected: pa.Table, column: str, value: object) -> None:
    some = expected.slice(0, 100)
    count = compare(some, changed(some, 7, column, value))
    assert count == Count(100, 100, lost=0, duplicated=0, wrong=1)
    assert not count.exact


def test_lost_duplicated_and_foreign_rows_are_told_apart(expected: pa.Table) -> None:
    some, foreign = expected.slice(0, 100), expected.slice(100, 2)
    found = pa.concat_tables([some.slice(3), some.slice(10, 1), some.slice(10, 1), some.slice(11, 1), foreign])
    assert compare(some, found) == Count(100, 102, lost=3, duplicated=3, wrong=2)


def test_lost_and_doubled_do_not_cancel_out(expected: pa.Table) -> None:
    some = expected.slice(0, 100)
    found = pa.concat_tables([some.slice(1), some.slice(50, 1)])
    assert compare(some, found) == Count(100, 100, lost=1, duplicated=1, wrong=0)


def test_nothing_found_is_all_lost(expected: pa.Table) -> None:
    assert compare(expected, SCHEMA.empty_table()) == Count(data.TOTAL, 0, lost=data.TOTAL, duplicated=0, wrong=0)


def test_the_plain_job_is_struck_no_more_often_than_ours() -> None:
    for victim in ("driver", "worker"):
        assert sum(s.victim == victim for s in NAIVE) <= sum(s.victim == victim for s in OURS)
    assert len(NAIVE) <= len(OURS)


def test_the_rows_of_an_epoch_are_read_from_sparks_offsets(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    for epoch, end in enumerate((10, 10, 35)):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"topic":{{"0":{end},"1":{end}}}}}'
        (tmp_path / "offsets" / str(epoch)).write_text(text)
    checkpoint = Checkpoint(tmp_path)
    assert [checkpoint.rows_through(epoch) for epoch in (-1, 0, 1, 2)] == [0, 20, 20, 70]
    assert checkpoint.epochs() == 1
    assert (checkpoint.is_done(0), checkpoint.is_done(1)) == (True, False)
