"""A table that is dropped and created again, or renamed and replaced, is not the table that a start has looked at."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured, PrepareRefused
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert, committing
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, SCHEMA, TWO, epoch, observe, ready, rows, visible

MODES = [Append(), Plain(), Upsert(key="id"), Plain(trial=False)]
OTHER = "is not the table that this start has looked at"
DROPPED, REPLACED = "dropped and created again", "replaced"
CASES = [
    pytest.param(mode, how, id=f"{mode!r} {how}", marks=() if mode in MODES[:2] else pytest.mark.wide)
    for mode in MODES
    for how in (DROPPED, REPLACED)
]


def own(mode: Any) -> str:
    return "flights__rows" if mode == Append() else "flights"


def swap(dsn: str, mode: Any, how: str = DROPPED) -> None:
    """Another table of the same form takes the name; with ``Append()`` the view reads whatever has the name."""
    name, view = own(mode), observe(dsn, "SELECT pg_get_viewdef('flights'::regclass)") if mode == Append() else []
    away = f"DROP TABLE {name} CASCADE" if how == DROPPED else f"ALTER TABLE {name} RENAME TO old"
    observe(dsn, f"CREATE TABLE other (LIKE {name} INCLUDING ALL); {away}; ALTER TABLE other RENAME TO {name}")
    if view:
        observe(dsn, f"CREATE OR REPLACE VIEW flights AS {view[0][0]}")


def put_back(dsn: str, mode: Any) -> None:
    observe(dsn, f"ALTER TABLE {own(mode)} RENAME TO other; ALTER TABLE old RENAME TO {own(mode)}")
    if mode == Append():
        (definition,) = observe(dsn, "SELECT replace(pg_get_viewdef('flights'::regclass), 'other', 'flights__rows')")
        observe(dsn, f"CREATE OR REPLACE VIEW flights AS {definition[0]}")


def held(dsn: str, mode: Any) -> int:
    return int(observe(dsn, f"SELECT count(*) FROM {own(mode)}")[0][0])


def show(sink: PostgresSink, spark: SparkSession, number: int, *ids: int) -> None:
    assert sink.commit(sink.prepare(epoch(number), rows(spark, ids), ONE), ONE) is CommitOutcome.COMMITTED


@pytest.mark.remedy(
    "… is not the table that this start has looked at: it was dropped and created again, or another table has its name"
    " now",
    "put the table of before back in its place",
)
@pytest.mark.parametrize(("mode", "how"), CASES)
def test_prepare_finds_another_table(spark: SparkSession, pg_database: str, mode: Any, how: str) -> None:
    """P14: between two epochs of a running query."""
    sink = ready(pg_database, mode=mode)
    show(sink, spark, 0, 1)
    swap(pg_database, mode, how)
    with pytest.raises(CheckpointMismatch, match=OTHER) as refused:
        sink.prepare(epoch(1), rows(spark, [2]), ONE)
    assert "epochal resolve --accept out" in refused.value.help
    assert held(pg_database, mode) == 0
    if how == REPLACED:
        put_back(pg_database, mode)
        show(sink, spark, 1, 2)
        assert visible(pg_database) == [1, 2]


@pytest.mark.parametrize(("mode", "how"), CASES)
def test_commit_and_abort_find_another_table(spark: SparkSession, pg_database: str, mode: Any, how: str) -> None:
    """P14: after the vote; nothing is written into it, and nothing of it is deleted."""
    sink = ready(pg_database, mode=mode)
    show(sink, spark, 0, 1)
    vote = sink.prepare(epoch(1), rows(spark, [2]), ONE)
    swap(pg_database, mode, how)
    if mode == Append():
        observe(pg_database, "INSERT INTO flights__rows VALUES (2, 9, 9, 'not ours')")
    before = held(pg_database, mode)
    for act in (lambda: sink.commit(vote, ONE), lambda: sink.abort(QUERY, ONE)):
        with pytest.raises(CheckpointMismatch, match=OTHER):
            act()
    assert held(pg_database, mode) == before
    if how == REPLACED:
        put_back(pg_database, mode)
        assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
        assert visible(pg_database) == [1, 2]


@pytest.mark.parametrize("mode", [Plain(), Upsert(key="id")], ids=["plain", "upsert"])
def test_the_publish_itself_finds_a_table_that_comes_while_it_runs(
    spark: SparkSession, pg_database: str, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """P14: the transaction has looked already, and has not yet written."""
    sink = ready(pg_database, mode=mode)
    vote = sink.prepare(epoch(), rows(spark, [1]), ONE)
    count = committing.count_losers

    def swapping(*args: Any) -> int:
        swap(pg_database, mode)
        return count(*args)

    monkeypatch.setattr(committing, "count_losers", swapping)
    with pytest.raises(CheckpointMismatch, match=OTHER):
        sink.commit(vote, ONE)
    assert held(pg_database, mode) == 0
    assert observe(pg_database, "SELECT published FROM epochal.sinks") == [(0,)]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DROP VIEW flights", 'the reader view "flights" does not exist'),
        ("ALTER VIEW flights RENAME TO away; CREATE TABLE flights (id bigint, attempt text)", "is not the reader view"),
        ("CREATE OR REPLACE VIEW flights AS SELECT id, attempt FROM flights__rows", "is not the reader view"),
    ],
)
def test_a_view_that_is_no_longer_ours_refuses_the_epoch(
    spark: SparkSession, pg_database: str, statement: str, why: str
) -> None:
    """P14: nobody would see the epoch, or everybody would see it too early."""
    sink = ready(pg_database)
    show(sink, spark, 0, 1)
    observe(pg_database, statement)
    with pytest.raises(PrepareRefused, match=why):
        sink.prepare(epoch(1), rows(spark, [2]), ONE)


@pytest.mark.remedy(
    "the table … does not exist any more",
    "or call pipeline.create(), which makes it anew",
)
@pytest.mark.parametrize("mode", MODES[:3], ids=map(repr, MODES[:3]))
def test_create_makes_a_table_that_is_gone_and_a_running_query_does_not_take_it(
    spark: SparkSession, pg_database: str, mode: Any
) -> None:
    """P14: check says that it is gone; what create makes is another table."""
    sink = ready(pg_database, mode=mode)
    show(sink, spark, 0, 1)
    before = sink.look(QUERY).identity
    observe(pg_database, f"DROP TABLE {own(mode)} CASCADE")
    with pytest.raises(Misconfigured, match="does not exist any more") as refused:
        support.sink(pg_database, mode=mode).check(QUERY, SCHEMA)
    assert "pipeline.create()" in refused.value.help
    with pytest.raises(Misconfigured, match="does not exist any more"):
        sink.prepare(epoch(1), rows(spark, [2]), ONE)
    done = support.sink(pg_database, mode=mode).create(QUERY, SCHEMA)
    assert f'registered sink out of app flights with "{own(mode)}", as its table of before is gone' in done
    with pytest.raises(CheckpointMismatch, match=OTHER):
        sink.prepare(epoch(1), rows(spark, [2]), ONE)
    again = support.sink(pg_database, mode=mode)
    again.check(QUERY, SCHEMA)
    assert again.look(QUERY).identity != before


@pytest.mark.parametrize("how", [DROPPED, REPLACED])
def test_the_table_that_is_there_is_registered_by_who_was_judged(pg_database: str, how: str) -> None:
    """P14: a start is refused by its checks; `resolve --accept` looks, is judged, and fences."""
    ready(pg_database, mode=Plain())
    swap(pg_database, Plain(), how)
    sink = support.sink(pg_database, mode=Plain())
    told = "that table was created again" if how == DROPPED else "that one is called old now"
    with pytest.raises(Misconfigured, match=told) as refused:
        sink.check(QUERY, SCHEMA)
    assert "epochal resolve --accept out" in refused.value.help
    sink.look(QUERY)
    sink.fence(QUERY, TWO)
    sink.check(QUERY, SCHEMA)


def test_a_table_that_comes_after_the_look_is_not_registered(pg_database: str) -> None:
    """P14: nobody has judged it."""
    sink = ready(pg_database, mode=Plain())
    swap(pg_database, Plain())
    sink.fence(QUERY, TWO)
    with pytest.raises(Misconfigured, match="that table was created again"):
        sink.check(QUERY, SCHEMA)


def test_a_table_of_another_sink_is_not_registered_again(pg_database: str) -> None:
    """P14: though the rules over the log know nothing of that other sink."""
    ready(pg_database, mode=Plain())
    observe(pg_database, "DROP TABLE flights")
    support.sink(pg_database, mode=Plain(), name="new").create(QUERY, SCHEMA)
    sink = support.sink(pg_database, mode=Plain())
    sink.look(QUERY)
    with pytest.raises(Misconfigured, match="belongs to sink 'new' of app 'flights'"):
        sink.fence(QUERY, TWO)


@pytest.mark.remedy(
    "app … registered this sink with another table than …: that one is called … now", "or …rename … to …"
)
def test_a_table_that_was_renamed_away_is_named(pg_database: str) -> None:
    """P14: create makes no other in its place, and `look` says the same."""
    ready(pg_database)
    observe(pg_database, "ALTER TABLE flights__rows RENAME TO away")
    sink = support.sink(pg_database)
    for act in (sink.create, sink.check):
        with pytest.raises(Misconfigured, match="that one is called away now") as refused:
            act(QUERY, SCHEMA)
        assert 'rename away to "flights__rows"' in refused.value.help
    with pytest.raises(Misconfigured, match="that one is called away now"):
        sink.look(QUERY)
    observe(pg_database, 'ALTER TABLE away RENAME TO "flights__rows"')
    sink.check(QUERY, SCHEMA)
    sink.look(QUERY)


@pytest.mark.remedy(
    "… does not exist", "call pipeline.create() once, or have the SQL run that PostgresSink.ddl(app, schema) returns"
)
def test_a_table_that_waits_for_its_adoption_has_not_moved(pg_database: str) -> None:
    """P14: `Plain()` became `Append()`; check asks for create, which adopts the very table."""
    before = ready(pg_database, mode=Plain()).look(QUERY).identity
    sink = support.sink(pg_database)
    for act in (lambda: sink.check(QUERY, SCHEMA), lambda: sink.look(QUERY)):
        with pytest.raises(Misconfigured, match='the table "flights__rows" does not exist') as refused:
            act()
        assert refused.value.help.startswith("call pipeline.create() once")
    sink.create(QUERY, SCHEMA)
    sink.check(QUERY, SCHEMA)
    assert sink.look(QUERY).identity == before
