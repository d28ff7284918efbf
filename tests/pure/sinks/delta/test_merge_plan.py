"""What needs no Spark: what a mode makes of the columns of query and table, the statement that comes of it."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import StructType

from epochal.coordinator.model.epoch import Actor, Committable, Decision
from epochal.coordinator.model.errors import CommitInDoubt
from epochal.sinks.delta import Append, DeltaSink, Merge
from epochal.sinks.delta.core import PAYLOAD_VERSION
from epochal.sinks.delta.merge import MergePlan
from epochal.sinks.delta.modes import Mode

QUERY = ["id", "a", "seq", "gone"]
TABLE = ["id", "a", "more"]


@pytest.mark.parametrize(
    ("mode", "columns", "clauses"),
    [
        (
            Merge(key="id"),
            QUERY,
            "WHEN MATCHED THEN UPDATE SET shown.`a` = new.`a`, shown.`seq` = new.`seq`, shown.`gone` = new.`gone`"
            " WHEN NOT MATCHED THEN INSERT (`id`, `a`, `seq`, `gone`)"
            " VALUES (new.`id`, new.`a`, new.`seq`, new.`gone`)",
        ),
        (
            Merge(key="id", order_by="seq", delete_when="gone"),
            ["id", "a"],
            "WHEN MATCHED AND coalesce(new.`gone`, false) THEN DELETE"
            " WHEN MATCHED THEN UPDATE SET shown.`a` = new.`a`"
            " WHEN NOT MATCHED AND NOT coalesce(new.`gone`, false) THEN INSERT (`id`, `a`) VALUES (new.`id`, new.`a`)",
        ),
        (
            Merge(key="id", update=(), order_by=["a", "seq"], delete_when="gone"),
            ["id", "a"],
            "WHEN MATCHED AND coalesce(new.`gone`, false) THEN DELETE"
            " WHEN NOT MATCHED AND NOT coalesce(new.`gone`, false) THEN INSERT (`id`, `a`) VALUES (new.`id`, new.`a`)",
        ),
    ],
)
def test_the_statement(mode: Merge, columns: list[str], clauses: str) -> None:
    plan = MergePlan.of(mode, QUERY, TABLE)
    assert list(plan.columns) == columns
    assert plan.statement("delta.`t`") == (
        f"MERGE INTO delta.`t` shown USING epochal_source new ON shown.`id` = new.`id` {clauses}"
    )
    assert MergePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_odd_names_are_quoted_and_every_column_of_the_key_is_compared() -> None:
    plan = MergePlan.of(Merge(key=["a`b", "c.d"], update=()), ["a`b", "c.d"], [])
    assert plan.statement("t") == (
        "MERGE INTO t shown USING epochal_source new ON shown.`a``b` = new.`a``b` AND shown.`c.d` = new.`c.d`"
        " WHEN NOT MATCHED THEN INSERT (`a``b`, `c.d`) VALUES (new.`a``b`, new.`c.d`)"
    )


@pytest.mark.parametrize(
    "mode", [Append(), Merge(key="id", delete_when="gone", order_by="seq")], ids=["append", "merge"]
)
def test_what_the_table_gets_of_the_rows(mode: Mode) -> None:
    rows = StructType().add("id", "string").add("a", "string").add("seq", "long").add("gone", "boolean")
    wanted = QUERY if isinstance(mode, Append) else ["id", "a"]
    assert MergePlan.of(mode, rows.names, TABLE).written(rows).names == wanted


def test_a_committable_of_a_newer_epochal_is_not_guessed_at() -> None:
    decision = Decision("q1", 4, Actor(1, 11), "fingerprint")
    vote = Committable("out", decision, 5, 1, {"version": PAYLOAD_VERSION + 1, "adds": []})
    with pytest.raises(CommitInDoubt, match=f"its committable is of version {PAYLOAD_VERSION + 1}") as doubt:
        DeltaSink("/t", name="out").commit(vote, decision.actor)
    assert (doubt.value.sink, doubt.value.epoch) == ("out", 4)
