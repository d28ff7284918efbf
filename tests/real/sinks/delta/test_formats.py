"""What a Delta sink of this version leaves in a table's log and in a log of epochs: read from now on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.coordinator.model.epoch import Actor, Committable, Digest, Json, Marker
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured
from epochal.sinks.delta import DeltaSink, Merge, Overwrite
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, TWO, Start, query
from tests.real.sinks.kept import FORMATS, kept

TABLE = FORMATS / "delta-v1"
FORMS: dict[str, dict[str, Any]] = {
    "append": {},
    "overwrite": {"mode": Overwrite()},
    "merge": {"mode": Merge(key="id"), "where": "id > 0"},
}


def made(spark: SparkSession, path: Path) -> DataFrame:
    """A table, and one row for it."""
    rows = spark.createDataFrame([(1,)], "id bigint").coalesce(1)
    DeltaSink(str(path), name="out").create(query("app"), rows.schema)
    return rows


def ids(path: Path, version: int) -> Json:
    """The transaction ids that one version of the table wrote."""
    lines = (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    found = [action["txn"] for action in map(json.loads, lines) if "txn" in action]
    return {txn["appId"]: txn["version"] for txn in found}


@pytest.mark.parametrize("form", FORMS)
def test_a_vote_of_this_version_is_committed_and_is_written_so(spark: SparkSession, tmp_path: Path, form: str) -> None:
    rows = made(spark, tmp_path / "t")
    now = Start(spark, tmp_path / "t", **FORMS[form]).fenced().prepare(rows).to_json()
    old = kept(f"delta-{form}-v1.json", now)
    assert old == now
    assert Start(spark, tmp_path / "t").commit(Committable.from_json(old)) is CommitOutcome.COMMITTED
    assert support.column(tmp_path / "t", "id") == [1]


def test_a_newer_part_of_a_vote_is_not_guessed_at(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(spark, tmp_path / "t")
    start = Start(spark, tmp_path / "t", **FORMS["merge"]).fenced()
    vote = start.prepare(rows)
    payload = json.loads(json.dumps(vote.payload))
    payload["work"]["projection"]["version"] = 2
    other = Start(spark, tmp_path / "t")
    with pytest.raises(CommitInDoubt, match="by a newer Epochal: its projection is of version 2"):
        other.commit(replace(vote, payload=payload))
    assert support.column(tmp_path / "t", "id") == []
    assert start.commit(vote) is CommitOutcome.COMMITTED


def test_a_table_of_this_version_is_read_and_is_written_so(spark: SparkSession, tmp_path: Path) -> None:
    """A start of ``ONE`` has fenced it, and shows its first epoch, of idempotent mode and without rows.

    The first Epochal did not write how far it had looked for a RESTORE.
    """
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(TABLE, old)
    digest, marker = Digest(0, 0), Marker(1, ids(old, 2)["epochal:app:out:decision"])
    start = Start(spark, old)
    state = start.sink.look(query("app"))
    assert (state.fence, state.marker) == (ONE, marker)
    assert state.marker is not None
    assert state.marker.digest == digest

    rows = made(spark, new)
    again = Start(spark, new).fenced()
    again.commit(replace(again.prepare(rows.where("id > 1")), digest=digest))
    for version in (1, 2):
        assert ids(new, version) == {**ids(old, version), "epochal:app:out:seen": version - 1}

    newer = Start(spark, old, TWO).fenced()
    newer.show(rows, 2)
    assert support.column(old, "id") == [1]


VERBS: dict[str, Callable[[Start, Committable], object]] = {
    "look": lambda start, _: start.sink.look(query("app")),
    "fence": lambda start, _: start.sink.fence(query("app"), Actor(9, 99)),
    "commit": lambda start, vote: start.commit(vote),
    "abort": lambda start, _: start.sink.abort(query("app"), ONE),
}


def test_a_newer_table_is_refused_by_name_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    rows = made(spark, tmp_path / "t")
    start = Start(spark, tmp_path / "t").fenced()
    vote = start.prepare(rows)
    newest = support.version(tmp_path / "t") + 1
    action = {"txn": {"appId": "epochal:app:out:version", "version": 2, "lastUpdated": 1}}
    (tmp_path / "t" / "_delta_log" / f"{newest:020}.json").write_text(json.dumps(action) + "\n")
    for verb in VERBS.values():
        with pytest.raises(Misconfigured, match="a newer Epochal has run this sink") as refused:
            verb(start, vote)
        assert "are of version 2" in refused.value.what
        assert "this one reads up to version 1, and has written nothing" in str(refused.value.state)
    assert support.version(tmp_path / "t") == newest
