"""What the reader view costs and shows, and the index that docs/postgres.md names."""

from __future__ import annotations

import pytest

from epochal.sinks.postgres.address import Address, Limits
from epochal.sinks.postgres.client import open_session
from tests.real.sinks.postgres.support import QUERY, SCHEMA, observe, sink

ROWS = 50_000


@pytest.fixture
def filled(pg_database: str) -> str:
    """Many rows, half of them published."""
    sink(pg_database).create(QUERY, SCHEMA)
    observe(
        pg_database,
        "INSERT INTO flights__rows (id, attempt, _epoch, _attempt)"
        f" SELECT n, repeat('a', 60), n / 100, n FROM generate_series(0, {ROWS - 1}) n;"
        f" UPDATE epochal.sinks SET published = {ROWS // 200 - 1};"
        " SELECT brin_summarize_new_values('flights__rows__epoch_idx'); ANALYZE flights__rows",
    )
    return pg_database


def plan(dsn: str, query: str) -> str:
    return "\n".join(str(line) for (line,) in observe(dsn, f"EXPLAIN {query}"))


def test_a_scan_looks_at_each_row_once(filled: str) -> None:
    """By way of the BRIN index every row was looked at a second time, as nearly all are shown."""
    assert observe(filled, "SELECT count(*) FROM flights") == [(ROWS // 2,)]
    told = plan(filled, "SELECT count(*) FROM flights")
    assert "Seq Scan on flights__rows" in told
    assert "Bitmap" not in told


def test_the_epoch_has_a_fixed_place_in_a_row(filled: str) -> None:
    """Behind a column of text it would have to be looked for, in every row that is scanned."""
    of_the_rows = "attrelid = 'flights__rows'::regclass AND attnum > 0"
    assert observe(filled, f"SELECT attname FROM pg_attribute WHERE {of_the_rows} ORDER BY attnum LIMIT 1") == [
        ("_epoch",)
    ]


def test_without_the_sinks_row_nothing_is_shown(filled: str) -> None:
    observe(filled, "DELETE FROM epochal.sinks")
    assert observe(filled, "SELECT count(*) FROM flights") == [(0,)]


def test_an_index_that_includes_the_epoch_answers_alone(filled: str) -> None:
    observe(filled, "CREATE INDEX by_id ON flights__rows (id) INCLUDE (_epoch)")
    observe(filled, "VACUUM flights__rows")
    assert "Index Only Scan using by_id" in plan(filled, "SELECT id FROM flights WHERE id = 7")
    assert observe(filled, f"SELECT id FROM flights WHERE id IN (7, {ROWS - 1})") == [(7,)]


def test_the_rows_of_an_epoch_are_found_by_their_position(filled: str) -> None:
    assert "flights__rows__epoch_idx" in plan(filled, "SELECT * FROM flights__rows WHERE _epoch = 7")


def test_a_back_end_is_asked_for_within_its_transaction(pg_database: str) -> None:
    """Behind a pool the next transaction may have another, and the wrong one's blockers would be ended."""
    session = open_session(Address(pg_database), "out", Limits())
    with session.transaction():
        assert session.backend() > 0
    with pytest.raises(AssertionError, match="within a transaction"):
        session.backend()
    session.close()
