"""How the rows are counted that go to the sink of bad rows, and when they need not be judged a second time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision, Epoch, EpochNumber, Json
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.protocol import Sink
from epochal.sinks.rows import rejects

ONE = Actor(1, 11)


class Of(MemorySink):
    """A sink that cannot hold ids above 1, and has found ``bad`` such rows in its copy of epoch ``judged``."""

    bad_rows: Sink | None = None

    def __init__(self, bad: int, judged: EpochNumber = 0) -> None:
        super().__init__("table", MemoryServer())
        self.kept = decision(judged).id, bad
        self.asked = 0

    def reasons(self, epoch: Epoch, rows: DataFrame) -> DataFrame:  # noqa: ARG002
        self.asked += 1
        return rows.selectExpr("*", "CASE WHEN id > 1 THEN 'no' END AS _reason")

    def judgement(self, epoch: Epoch, rows: DataFrame) -> Json:  # noqa: ARG002
        return {}

    def bad_found(self, epoch: Epoch) -> int | None:
        return rejects.found(self.kept, epoch)


class Into(MemorySink):
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__("bad", MemoryServer())
        self.got: list[tuple[Any, ...]] = []

    def prepare(self, epoch: Epoch, rows: DataFrame, by: Actor) -> Committable:  # noqa: ARG002
        assert rows.columns == ["id", "_sink", "_reason"]
        self.got = sorted(tuple(row) for row in rows.collect())
        return Committable(self.name, epoch.decision, epoch.position, len(self.got), {})


def decision(epoch: EpochNumber) -> Decision:
    return Decision("q1", epoch, ONE, f"fingerprint-{epoch}")


def prepared(spark: SparkSession, of: Of, epoch: Epoch) -> tuple[Into, Committable]:
    into = Into()
    return into, rejects.Rejects(of, into).prepare(epoch, spark.range(5).toDF("id"), ONE)


def epoch_with(copy: Copy | None) -> Epoch:
    return Epoch(decision(0), 1, "{}", None, copy)


COPIED = epoch_with(Copy("file:/copy", (CopyFile("a", 1, 5),), "{}"))


def test_rows_of_which_none_is_bad_are_not_judged_again(spark: SparkSession) -> None:
    of = Of(bad=0)
    into, vote = prepared(spark, of, COPIED)
    assert (of.asked, into.got, vote.rows, vote.left_out) == (0, [], 0, 5)


@pytest.mark.parametrize(
    ("of", "epoch"),
    [
        pytest.param(Of(bad=3), COPIED, id="some are bad"),
        pytest.param(Of(bad=0, judged=1), COPIED, id="another epoch was judged"),
        pytest.param(Of(bad=0), replace(COPIED, digest=True), id="the digest needs all rows"),
        pytest.param(Of(bad=0), epoch_with(None), id="each sink has its own evaluation"),
    ],
)
def test_rows_are_judged_again_where_some_may_be_bad(spark: SparkSession, of: Of, epoch: Epoch) -> None:
    into, vote = prepared(spark, of, epoch)
    assert of.asked == 1
    assert into.got == [(number, "table", "no") for number in (2, 3, 4)]
    assert (vote.rows, vote.left_out) == (3, 2 if epoch.copy is not None else 0)


def test_bad_rows_are_counted_anew_where_a_sink_has_read_only_some(spark: SparkSession) -> None:
    """A sink of somebody else may begin with an action on a part of the rows."""
    reasoned = spark.range(5).selectExpr("id", "CASE WHEN id > 1 THEN 'no' END AS _reason")
    for written in (2, 3):
        seen, counted = rejects._counted(reasoned)
        assert len(seen.limit(1).collect()) == 1
        assert counted(written) == 3
