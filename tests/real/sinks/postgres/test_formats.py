"""What a Postgres sink of this version leaves in a database and in a log: read from now on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.model.epoch import Actor, Committable, Digest, Marker
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured
from epochal.sinks.postgres import PostgresSink, Upsert, committing, ddl
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.kept import FORMATS, kept
from tests.real.sinks.postgres.support import ONE, QUERY, SCHEMA, TWO, epoch, observe, ready, rows, sink, visible

DATABASE = (FORMATS / "postgres-v1.sql").read_text()
FORMS: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"mode": Upsert(key=["id"], order_by="attempt")},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_vote_of_this_version_is_committed_and_is_written_so(
    spark: SparkSession, pg_database: str, form: str
) -> None:
    if form == "upsert":
        observe(pg_database, "CREATE TABLE flights (id bigint PRIMARY KEY, attempt text)")
    now = ready(pg_database, **FORMS[form]).prepare(epoch(), rows(spark, [1, 2]).coalesce(1), ONE).to_json()
    old = kept(f"postgres-{form}-v1.json", now)
    assert old == now
    other = sink(pg_database, **FORMS[form])
    other.look(QUERY)
    assert other.commit(Committable.from_json(old), ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1, 2]


@pytest.mark.remedy(
    "the epoch was prepared by a newer Epochal: its … is of version …",
    "start the query with the newer Epochal: it will finish this epoch first",
)
def test_a_newer_vote_is_not_guessed_at(spark: SparkSession, pg_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started = ready(pg_database)
    vote = started.prepare(epoch(), rows(spark, [1]), ONE)
    newer = replace(vote, payload={**vote.payload, "version": 2})
    with pytest.raises(CommitInDoubt, match="by a newer Epochal: its committable is of version 2"):
        started.commit(newer, ONE)
    assert visible(pg_database) == []
    monkeypatch.setattr(committing, "PAYLOAD_VERSION", 2)  # the newer one
    assert started.commit(newer, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1]


def test_a_database_of_this_version_is_read_and_is_made_so(spark: SparkSession, pg_database: str) -> None:
    """Made by the printed SQL, then a start of ``ONE`` whose sixth epoch, of idempotent mode, is shown.

    The tables are the form; the view and the index are readers' and may be made otherwise one day.
    """
    made, _, left = DATABASE.partition("-- left by a start\n")
    assert [sql for sql in ddl.HOUSEKEEPING if f"{sql};\n" not in made] == []
    observe(pg_database, made + left)
    started = sink(pg_database)
    state = started.look(QUERY)
    assert (state.fence, state.marker) == (ONE, Marker(6, 60))
    assert state.marker is not None
    assert state.marker.digest == Digest(1, 2**63 - 1)
    assert visible(pg_database) == [5]
    started.check(QUERY, SCHEMA)
    started.fence(QUERY, TWO)
    vote = started.prepare(epoch(6, TWO), rows(spark, [6]), TWO)
    assert started.commit(vote, TWO) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [5, 6]


VERBS: dict[str, Callable[[PostgresSink, Committable], object]] = {
    "look": lambda one, _: one.look(QUERY),
    "fence": lambda one, _: one.fence(QUERY, Actor(9, 99)),
    "commit": lambda one, vote: one.commit(vote, ONE),
    "abort": lambda one, _: one.abort(QUERY, ONE),
}


@pytest.mark.remedy(
    "a newer Epochal has run this sink: its fence and marker are of version …",
    "start the query with the newer Epochal, or give the sink another name= and another place to write to",
)
def test_a_newer_database_is_refused_by_name_and_nothing_is_written(
    spark: SparkSession, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = ready(pg_database)
    vote = started.prepare(epoch(), rows(spark, [1]), ONE)
    observe(pg_database, "UPDATE epochal.sinks SET version = 2")
    before = observe(pg_database, "SELECT * FROM epochal.sinks")
    for verb in VERBS.values():
        with pytest.raises(Misconfigured, match="a newer Epochal has run this sink") as refused:
            verb(started, vote)
        assert "are of version 2" in refused.value.what
        assert "this one reads up to version 1, and has written nothing" in str(refused.value.state)
    assert observe(pg_database, "SELECT * FROM epochal.sinks") == before
    assert visible(pg_database) == []
    assert ready(pg_database, name="another", table="others").look(QUERY).fence == ONE
    monkeypatch.setattr(ddl, "VERSION", 2)  # the newer one
    assert started.look(QUERY).fence == ONE
    assert started.commit(vote, ONE) is CommitOutcome.COMMITTED


def test_a_fence_says_of_which_version_the_row_is_now(pg_database: str) -> None:
    started = ready(pg_database)
    observe(pg_database, "UPDATE epochal.sinks SET version = 0")
    started.fence(QUERY, TWO)
    assert observe(pg_database, "SELECT version FROM epochal.sinks") == [(1,)]
