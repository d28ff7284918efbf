"""The ways of columns into a table, and the parts in which values are sent; without a server."""

from __future__ import annotations

import pyarrow as pa
import pytest

from epochal.sinks.postgres import given
from epochal.sinks.postgres.ddl import PgColumn
from epochal.sinks.postgres.kinds import Kind
from epochal.sinks.postgres.ways import way_into

TEXT = PgColumn("c", ("text", "character varying"))


@pytest.mark.parametrize(
    ("shown", "plain", "limits"),
    [
        ("text", "text", ()),
        ("character varying(5)", "character varying", (5,)),
        ("numeric(10,2)", "numeric", (10, 2)),
        ("numeric(3,-2)", "numeric", (3, -2)),
        ("timestamp(3) with time zone", "timestamp with time zone", (3,)),
        ("geometry(Point,4326)", "geometry(Point,4326)", ()),
        ('"odd(5)"', '"odd(5)"', ()),
        ('odd."a (5)"', 'odd."a (5)"', ()),
    ],
)
def test_a_type_is_read_from_its_name(shown: str, plain: str, limits: tuple[int, ...]) -> None:
    """A name in quotes is a user's, whatever stands in it."""
    kind = Kind(shown)
    assert (kind.plain, kind.limits) == (plain, limits)


def test_a_type_whose_input_depends_on_more_than_the_text_takes_none() -> None:
    assert way_into(TEXT, Kind("thing", by_text=True)) is not None
    assert way_into(TEXT, Kind("thing")) is None
    assert way_into(TEXT, Kind("integer", by_text=True)) is None


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (25_000, 1), (100, 2_000_000), (3, 40_000_000)])
def test_a_batch_is_sent_in_parts_that_one_statement_can_take(rows: int, width: int) -> None:
    data = pa.py_buffer(bytes(width * rows))
    offsets = pa.py_buffer(b"".join((n * width).to_bytes(8, "little") for n in range(rows + 1)))
    columns = [pa.Array.from_buffers(pa.large_binary(), rows, [None, offsets, data])]
    parts = [part[0] for part in given.in_parts(columns)]
    assert sum(map(len, parts)) == rows
    assert all(1 <= len(part) <= 10_000 for part in parts)
    assert all(len(part) == 1 or len(part) * width <= 32 << 20 for part in parts)
    assert list(given.in_parts([column.slice(0, 0) for column in columns])) == []
