"""A small part of the fuzz, and what it must find: a sink that is wrong is reported, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import types as t

from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured
from epochal.sinks import PostgresSink
from epochal.sinks.postgres import publish
from tests.fuzz.frames import Column
from tests.fuzz.plans import Plan, SinkPlan
from tests.fuzz.run import Bounded, run, smallest
from tests.fuzz.trial import Trial, Verdict
from tests.real.sinks.kafka.support import produce

SEED = 29
FEW = 12
COLUMNS = (Column("id", t.LongType(), False), Column("a.b", t.StringType()), Column("more", t.DateType()))
EPOCHS = (((1, b"x", 1), (2, None, None)), ((3, b"z", 3),))


@pytest.mark.timeout(900)
def test_some_pipelines_are_right_or_refused_by_name(bounded: Bounded) -> None:
    """``python -m tests.fuzz`` runs many more."""
    told: list[str] = []
    report = run(bounded, SEED, range(FEW), told.append)
    assert report.failed == [], "\n".join(told)
    assert report.outcomes[Verdict.RIGHT] >= FEW // 4


def one(kind: str, mode: str | None = None, **options: Any) -> Plan:
    """A small pipeline with one sink."""
    return Plan(COLUMNS, EPOCHS, (SinkPlan(kind, options, mode),))


def add_a_row(trial: Trial) -> None:
    trial._sql(f"""INSERT INTO "{trial.place}".s0 SELECT * FROM "{trial.place}".s0 LIMIT 1""")


def change_a_value(trial: Trial) -> None:
    trial._sql(f"""UPDATE "{trial.place}".s0 SET "a.b" = 'y' WHERE id = 1""")


def produce_a_record(trial: Trial) -> None:
    produce(trial.servers.bootstrap, trial.topic("s0"), b'{"id":1,"a.b":"x","more":"1970-01-02"}')


def delete_a_row(trial: Trial) -> None:
    DeltaTable(str(trial.path(trial.plan.sinks[0], "s0"))).delete("id = 1")


@pytest.mark.parametrize(
    ("plan", "damage"),
    [
        (one("postgres", "Plain"), add_a_row),
        (one("postgres", "Plain"), change_a_value),
        (one("kafka"), produce_a_record),
        (one("delta", "Append"), delete_a_row),
    ],
    ids=["row too much", "value changed", "record too much", "row lost"],
)
def test_a_sink_that_shows_something_else_is_reported(
    bounded: Bounded, plan: Plan, damage: Callable[[Trial], None]
) -> None:
    outcome = bounded.run(plan, damage)
    assert (outcome.verdict, outcome.stage) == (Verdict.DIFFERENCE, "epoch 0"), outcome


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("method", "error", "verdict"),
    [
        ("create", KeyError("a"), Verdict.RAW),
        ("check", ValueError("b"), Verdict.RAW),
        ("prepare", AttributeError("c"), Verdict.RAW),
        ("commit", Misconfigured("d", help="e"), Verdict.DOUBT),
        ("prepare", CommitInDoubt("f", help="g"), Verdict.DOUBT),
        ("check", Misconfigured("h", help=" "), Verdict.OTHER),
        ("check", Misconfigured("i", help="j"), Verdict.REFUSED),
    ],
)
def test_how_a_pipeline_ended_is_told_apart(
    bounded: Bounded, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, verdict: Verdict
) -> None:
    monkeypatch.setattr(PostgresSink, method, raising(error))
    assert bounded.run(one("postgres", "Plain")).verdict is verdict


def test_rows_that_had_to_be_refused_are_reported(bounded: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upsert that forgets to look for keys that occur twice shows one row of each."""
    monkeypatch.setattr(publish, "check_twice", lambda *_: None)
    upsert = SinkPlan("postgres", {}, "Upsert", {"key": ["id"], "trial": False})
    twice = Plan(COLUMNS, (((1, b"x", 1), (1, b"y", 2)),), (upsert,))
    assert not bounded.run(twice).fine


def test_a_failing_pipeline_is_told_with_a_small_one(bounded: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresSink, "check", raising(KeyError("a")))
    large = replace(one("postgres", "Plain", connections=1), restarts=True, partitions=2)
    small = smallest(bounded, large, bounded.run(large))
    assert (small.columns, small.epochs) == ((), ((),)) or len(small.columns) == 1
    assert small.sinks == (SinkPlan("postgres", {}, "Plain"),)
    assert not small.restarts
