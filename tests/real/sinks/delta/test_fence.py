"""What may happen between the snapshot that a fence was judged on and the put that writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.model.epoch import Actor, Json
from epochal.coordinator.model.errors import Fenced, OutcomeUnknown, SinkUnavailable
from epochal.sinks.delta import DeltaSink
from epochal.sinks.delta.jvm import JavaFailure, Transaction
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, TWO, query


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Path:  # noqa: ARG001
    """A table that is fenced by ``ONE``."""
    path = tmp_path / "t"
    DeltaSink(str(path), name="out").create(query("app"), StructType().add("id", "string").add("n", "long"))
    fence(path, ONE)
    return path


def fence(path: Path, by: Actor) -> None:
    DeltaSink(str(path), name="out").fence(query("app"), by)


def seen(path: Path) -> Actor:
    """The fence as delta-rs reads the log."""
    table = DeltaTable(str(path))
    generation, token = (table.transaction_version(f"epochal:app:out:{part}") for part in ("generation", "token"))
    assert generation is not None
    assert token is not None
    return Actor(generation, token)


@contextmanager
def at_the_put(strike: Callable[[Callable[[], None]], None]) -> Iterator[list[Transaction]]:
    """Once, in the place of the first put, ``strike``, which is handed that put; what is yielded are all of them."""
    put, puts = Transaction.commit, list[Transaction]()

    def struck(txn: Transaction, actions: list[Json], **options: Any) -> None:
        puts.append(txn)

        def go_on() -> None:
            put(txn, actions, **options)

        strike(go_on) if len(puts) == 1 else go_on()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "commit", struck)
        yield puts
    assert puts, "no put was made"


@pytest.mark.wide
def test_a_fence_below_a_cleaned_up_log_does_not_count(spark: SparkSession, path: Path) -> None:
    """The version that the fence wants is free again: its put succeeds, and nobody reads it."""
    wanted = path / "_delta_log" / f"{support.version(path) + 1:020}.json"

    def after_a_clean_up(put: Callable[[], None]) -> None:
        for key in "xyz":
            support.foreign_append(spark, path, [(key, 0)], "id string, n bigint")
        support.checkpoint(spark, path)
        for pattern in ("*.json", "*.crc", ".*.crc"):
            for file in (path / "_delta_log").glob(pattern):
                file.unlink()
        put()
        assert '"epochal:app:out:generation","version":2' in wanted.read_text()
        assert seen(path) == ONE

    with at_the_put(after_a_clean_up) as puts:
        fence(path, TWO)
    assert len(puts) == 2
    assert seen(path) == TWO
    support.forget_snapshots(spark)
    assert DeltaSink(str(path), name="out").look(query("app")).fence == TWO


@pytest.mark.parametrize("rival", [Actor(2, 7), Actor(2, 77), Actor(3, 7)], ids=str)
def test_of_two_that_fence_at_once_one_wins(path: Path, rival: Actor) -> None:
    def after_the_rival(put: Callable[[], None]) -> None:
        fence(path, rival)
        put()

    with at_the_put(after_the_rival), pytest.raises(Fenced, match=f"owned by {rival}, not by {TWO}"):
        fence(path, TWO)
    assert seen(path) == rival


def test_an_older_start_that_fences_in_between_is_overtaken(path: Path) -> None:
    newest = Actor(3, 33)

    def after_the_older_one(put: Callable[[], None]) -> None:
        fence(path, TWO)
        put()

    with at_the_put(after_the_older_one):
        fence(path, newest)
    assert seen(path) == newest
    with pytest.raises(Fenced):
        fence(path, TWO)


@pytest.mark.parametrize("kind", ["DeltaConcurrentModificationException", "SocketTimeoutException"])
def test_a_fence_whose_answer_is_lost_is_found_in_the_table(path: Path, kind: str) -> None:
    """A put that is repeated below us conflicts with its own first try."""

    def and_lose_the_answer(put: Callable[[], None]) -> None:
        put()
        raise JavaFailure("lost", [kind])

    with at_the_put(and_lose_the_answer) as puts:
        fence(path, TWO)
    assert len(puts) == 1
    assert seen(path) == TWO


def test_a_fence_that_is_taken_again_takes_a_version_whatever_was_in_its_way(spark: SparkSession, path: Path) -> None:
    """That it is mine already is no answer: what is under way still has to meet with a conflict."""

    def after_another_column(put: Callable[[], None]) -> None:
        support.sql(spark, path, "ALTER TABLE {t} ADD COLUMN more int")
        put()

    before = support.version(path)
    with at_the_put(after_another_column) as puts:
        fence(path, ONE)
    assert len(puts) == 2
    assert support.version(path) == before + 2


def test_a_fence_that_may_still_arrive_is_unknown(path: Path) -> None:
    def lose_the_request(_put: Callable[[], None]) -> None:
        raise JavaFailure("no answer", ["SocketTimeoutException"])

    with at_the_put(lose_the_request), pytest.raises(OutcomeUnknown, match="no answer"):
        fence(path, TWO)
    assert seen(path) == ONE


def test_a_fence_that_others_keep_in_conflict_is_given_up_by_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: object, **__: object) -> None:
        raise JavaFailure("somebody was faster", ["DeltaConcurrentModificationException"])

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", conflict)
        with pytest.raises(SinkUnavailable, match="commits in a row ended with a conflict"):
            fence(path, TWO)
    assert seen(path) == ONE
