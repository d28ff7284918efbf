"""Idempotent mode between a table in Postgres and one in Delta: one shows the epoch, the other not yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from epochal import Pipeline
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import Misconfigured, NonDeterministicReplay
from epochal.coordinator.model.failpoints import Point
from epochal.sinks import DeltaSink, PostgresSink
from epochal.sinks.delta import Merge
from epochal.sinks.postgres import Append, Upsert
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.delta.support import read
from tests.real.sinks.postgres.support import observe

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from epochal.sinks.postgres.modes import Mode


class Tables(Job):
    """A job whose rows hold what a file said when they were evaluated."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str, mode: Mode) -> None:
        super().__init__(spark, folder, sinks=())
        self.dsn, self.mode = dsn, mode
        self.rate = folder / "rate"
        self.rate.write_text("1.1")
        self.add(1, 2)
        self.add(3)
        self.made().create(self.rows().schema)

    def made(self, **options: Any) -> Pipeline:
        lake = DeltaSink(str(self.folder / "lake"), name="lake", where="id <> 2")
        table = PostgresSink(self.dsn, table="rows", name="table", mode=self.mode)
        options = {"mode": "idempotent", "deterministic": ["looked_up"], **options}
        return Pipeline(app="idempotent", sinks=[lake, table], retry=FAST, **options)

    def rows(self) -> DataFrame:
        rate = self.rate

        def looked_up(_: int) -> str:
            return rate.read_text()

        return self.df().select("id", f.udf(looked_up, "string", useArrow=False)("id").alias("rate"))

    def go(self) -> Pipeline:
        pipeline = self.made()
        self.run(pipeline, self.rows())
        return pipeline

    def fails(self) -> Any:
        pipeline = self.made()
        with pytest.raises(StreamingQueryException):
            self.run(pipeline, self.rows())
        return pipeline.last_error

    def lake(self) -> list[tuple[int, str]]:
        return sorted((row["id"], row["rate"]) for row in read(self.folder / "lake").to_pylist())

    def table(self) -> list[tuple[int, str]]:
        return [(int(key), str(rate)) for key, rate in observe(self.dsn, "SELECT id, rate FROM rows ORDER BY id")]


@pytest.fixture(
    params=[Append(), pytest.param(Upsert(key=["id"]), marks=pytest.mark.wide)],
    ids=["append", "upsert"],
)
def tables(spark: SparkSession, tmp_path: Path, pg_database: str, request: pytest.FixtureRequest) -> Tables:
    return Tables(spark, tmp_path, pg_database, request.param)


@contextmanager
def lost_before(sink: str) -> Iterator[None]:
    """A driver that ends when it is about to show an epoch in this sink."""

    def end(point: Point, at: str, _: int) -> None:
        if (point, at) == (Point.BEFORE_SINK_COMMIT, sink):
            raise RuntimeError("the driver is gone")

    with failpoints.handler(end):
        yield


@pytest.mark.wide
def test_a_sink_that_is_behind_is_brought_up_with_the_same_rows(tables: Tables) -> None:
    with lost_before("table"):
        tables.fails()
    assert (tables.lake(), tables.table()) == ([(1, "1.1")], [])
    tables.go()
    assert tables.lake() == [(1, "1.1"), (3, "1.1")]
    assert tables.table() == [(1, "1.1"), (2, "1.1"), (3, "1.1")]


def test_other_rows_on_replay_are_told_with_both_digests_and_written_nowhere(tables: Tables) -> None:
    with lost_before("table"):
        tables.fails()
    tables.rate.write_text("1.2")
    for _ in range(2):
        error = tables.fails()
        assert isinstance(error, NonDeterministicReplay)
        assert (error.epoch, error.what.count("2 rows, ")) == (0, 2)
        assert "visible in ['lake']" in str(error)
        assert (tables.lake(), tables.table()) == ([(1, "1.1")], [])
    tables.rate.write_text("1.1")
    tables.go()
    assert tables.table() == [(1, "1.1"), (2, "1.1"), (3, "1.1")]


def test_each_sink_promises_for_itself(tables: Tables) -> None:
    told = str(tables.made().guarantee())
    assert told.startswith("app 'idempotent', idempotent, no decision, each by itself: 2 sink(s)")


def test_a_merge_needs_a_copy_and_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"sink 'merged': .* durable copy alone"):
        Pipeline(app="a", sinks=[DeltaSink(str(tmp_path), name="merged", mode=Merge(key="id"))], mode="idempotent")
