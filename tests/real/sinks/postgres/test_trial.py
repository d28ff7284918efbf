"""A sink on a real server, as its author would put it on trial: the real coordinator, a few schedules of faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

from epochal.chaos.simulate.schedule import Action, Strike
from epochal.chaos.trial import DidNotSurvive, Plan, Subject, Target, play, survives
from epochal.sinks.memory import Row
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support

COLUMNS = ("id", "attempt", "epoch", "n")
SCHEMA = StructType()
for _column in COLUMNS:
    SCHEMA.add(_column, LongType())


def subject(spark: SparkSession, dsn: str, kind: type[PostgresSink] = PostgresSink) -> Subject:
    def sinks(target: Target) -> list[PostgresSink]:
        return [kind(support.with_password(dsn), table=target.name, name="out", lock_timeout=4.0)]

    def read(target: Target) -> dict[str, list[dict[str, Any]]]:
        found = support.observe(dsn, f"SELECT {', '.join(COLUMNS)} FROM {target.name}")
        return {"out": [dict(zip(COLUMNS, row, strict=True)) for row in found]}

    def rows(given: Sequence[Row]) -> DataFrame:
        return spark.createDataFrame([tuple(row[column] for column in COLUMNS) for row in given], SCHEMA)

    return Subject(sinks, read, rows=rows, schema=SCHEMA)


@pytest.mark.timeout(400)
def test_the_sink_survives_schedules_drawn_by_a_seed(spark: SparkSession, pg_database: str) -> None:
    plan = Plan("pairs", at_most=6, seed=11, epochs=1)
    survival = survives(subject(spark, pg_database), plan)
    assert survival.schedules == 6
    assert len(survival.traces) >= 5


class Forgetful(PostgresSink):
    """Takes what an older start prepared for shown."""

    def commit(self, committable: Any, by: Any) -> CommitOutcome:
        if committable.decision.actor != by:
            return CommitOutcome.ALREADY_COMMITTED
        return super().commit(committable, by)


@pytest.mark.timeout(400)
def test_a_wrong_one_does_not(spark: SparkSession, pg_database: str) -> None:
    wrong = subject(spark, pg_database, Forgetful)
    smooth = play(wrong, epochs=1)
    assert smooth.wrong == {}
    (decided,) = (e.number for e in smooth.happenings if (e.driver, e.step) == ("d1", "after-decide"))
    with pytest.raises(DidNotSurvive, match="after-decide <== CRASH") as failed:
        survives(wrong, Plan(schedules=((Strike("d1", decided, Action.CRASH),),), epochs=1))
    assert "I1: false: out lacks" in str(failed.value)
