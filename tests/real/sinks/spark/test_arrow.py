"""How many rows a Python worker gets at once: bounded by bytes until rows are known to be small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from epochal.sinks.spark import settings
from epochal.sinks.spark.arrow import BYTES, FEW_ROWS, MOST_ROWS, NO_BOUND, ROOM, ROWS, BatchBounds, Widths

NARROW, WIDE = 100, 100_000


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of this test's own."""
    return spark.newSession()


def after(*widest: float) -> BatchBounds:
    bounds = BatchBounds()
    bounds.saw(widest)
    return bounds


def batches_of(session: SparkSession, bounds: BatchBounds, rows: int, size: int) -> list[int]:
    """Send rows of ``size`` bytes to one worker, and return the rows of each batch.  ``bounds`` learns from them."""

    def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        widths = Widths()
        found = [batch.num_rows for batch in widths.of(batches)]
        yield pa.RecordBatch.from_pylist([{"rows": found, "widest": widths.widest}])

    frame = session.range(0, rows, 1, 1).select(f.repeat(f.lit("x"), size).alias("v"))
    with settings.held(session, bounds.settings(session)):
        [told] = frame.mapInArrow(lengths, "rows array<long>, widest double").collect()
    bounds.saw([told["widest"]])
    return list(told["rows"])


def test_bytes_bound_the_first_epoch_and_every_epoch_after_wide_rows(session: SparkSession) -> None:
    bounds = BatchBounds()

    assert max(batches_of(session, bounds, 1_500, WIDE)) < 1_000  # 67 MB, Spark's bound, are 671 rows
    assert max(batches_of(session, bounds, 1_500, WIDE)) < 1_000
    assert BYTES not in bounds.settings(session)


def test_small_rows_are_bounded_by_their_number(session: SparkSession) -> None:
    bounds = BatchBounds()
    assert batches_of(session, bounds, 25_000, NARROW) == [10_000, 10_000, 5_000]

    assert bounds.settings(session) == {ROWS: str(MOST_ROWS), BYTES: NO_BOUND}
    assert batches_of(session, bounds, 25_000, NARROW) == [10_000, 10_000, 5_000]

    session.conf.set(ROWS, "700")
    assert batches_of(session, bounds, 1_500, NARROW) == [700, 700, 100]


@pytest.mark.parametrize(
    ("widest", "rows"), [(ROOM / MOST_ROWS, MOST_ROWS), (ROOM / 2_000, 2_000), (ROOM / FEW_ROWS, FEW_ROWS)]
)
def test_a_batch_of_small_rows_has_room(session: SparkSession, widest: float, rows: int) -> None:
    assert after(1.0, widest, 0.0).settings(session) == {ROWS: str(rows), BYTES: NO_BOUND}


@pytest.mark.parametrize("asked", ["0", "-1", "20000"])
def test_no_setting_of_the_user_makes_batches_larger(session: SparkSession, asked: str) -> None:
    session.conf.set(ROWS, asked)

    assert BatchBounds().settings(session) == {ROWS: str(MOST_ROWS)}
    assert after(1.0).settings(session)[ROWS] == str(MOST_ROWS)


def test_an_epoch_without_rows_teaches_nothing(session: SparkSession) -> None:
    bounds = after(1.0)
    known: Any = bounds.settings(session)

    bounds.saw([])
    bounds.saw([0.0, 0.0])

    assert bounds.settings(session) == known
