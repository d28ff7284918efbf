"""What may happen to a table between the vote and the commit, and inside the commit itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Committable
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    Fenced,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.delta import DeltaSink
from epochal.sinks.delta.jvm import JavaFailure, Table, Transaction
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, TWO, commit_while, query

SCHEMA = StructType().add("id", "string").add("n", "long")


class Start(support.Start):
    """One start of the query on the table at ``path``."""

    def of(self, ids: str, position: int = 1, redo: int = 0) -> Committable:
        """A vote for these ids."""
        rows = self.spark.createDataFrame([(key, position) for key in ids], SCHEMA).coalesce(1)
        return self.prepare(rows, position, redo)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def one(spark: SparkSession, path: Path) -> Start:
    """The first start: table made, looked, fenced."""
    DeltaSink(str(path), name="out").create(query("app"), SCHEMA)
    return Start(spark, path, ONE).fenced()


# others beside us


def test_a_foreign_append_in_the_window_is_no_conflict(spark: SparkSession, path: Path, one: Start) -> None:
    committable = one.of("a")
    support.foreign_append(spark, path, [("x", 0)], "id string, n bigint")
    outcome = commit_while(
        one, committable, lambda: support.foreign_append(spark, path, [("y", 0)], "id string, n bigint")
    )
    assert outcome is CommitOutcome.COMMITTED
    assert support.column(path, "id") == ["a", "x", "y"]


@pytest.mark.wide
def test_optimize_in_the_window_is_no_conflict(spark: SparkSession, path: Path, one: Start) -> None:
    one.commit(one.of("a"))
    one.commit(one.of("b", 2))
    committable = one.of("c", 3)
    outcome = commit_while(one, committable, lambda: support.sql(spark, path, "OPTIMIZE {t}"))
    assert outcome is CommitOutcome.COMMITTED
    assert support.column(path, "id") == ["a", "b", "c"]


# fence and marker, inside the write


def test_a_newer_fence_in_the_window_bars_the_older_commit(spark: SparkSession, path: Path, one: Start) -> None:
    committable = one.of("a")
    newer = Start(spark, path, TWO)
    with pytest.raises(Fenced):
        commit_while(one, committable, lambda: newer.sink.fence(query("app"), TWO))
    assert support.column(path, "id") == []
    assert newer.sink.look(query("app"), by=TWO).marker is None


def test_two_commits_of_one_decision_at_once_show_it_once(spark: SparkSession, path: Path, one: Start) -> None:
    committable = one.of("a")
    twin = Start(spark, path, ONE)
    outcome = commit_while(one, committable, lambda: twin.commit(committable))
    assert outcome is CommitOutcome.COMMITTED
    assert support.column(path, "id") == ["a"]


def test_two_decisions_at_one_position_at_once_show_one(spark: SparkSession, path: Path, one: Start) -> None:
    first, second = one.of("a"), one.of("b", redo=1)
    twin = Start(spark, path, ONE)
    with pytest.raises(CheckpointMismatch):
        commit_while(one, first, lambda: twin.commit(second))
    assert support.column(path, "id") == ["b"]


def test_a_lost_answer_is_found_in_the_marker(path: Path, one: Start) -> None:
    committable = one.of("a")
    with failpoints.armed("after-publish=drop-answer"):
        assert one.commit(committable) is CommitOutcome.COMMITTED
    assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED
    assert support.column(path, "id") == ["a"]


def test_a_put_that_landed_and_is_told_a_conflict_is_not_made_again(
    path: Path, one: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log store writes the version, loses the answer, tries again and meets its own file."""
    committable = one.of("a")
    commit = Transaction.commit
    puts: list[object] = []

    def landed(txn: Transaction, *args: Any, **options: Any) -> None:
        puts.append(txn)
        commit(txn, *args, **options)
        raise JavaFailure("the file is there", ["FileAlreadyExistsException", "DeltaConcurrentModificationException"])

    monkeypatch.setattr(Transaction, "commit", landed)
    assert one.commit(committable) is CommitOutcome.COMMITTED
    assert len(puts) == 1
    assert support.column(path, "id") == ["a"]


def test_a_put_that_may_still_arrive_is_unknown_and_not_made_again(
    path: Path, one: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable, version = one.of("a"), support.version(path)
    puts: list[object] = []

    def lost(txn: Transaction, *_: Any, **__: Any) -> None:
        puts.append(txn)
        raise JavaFailure("no answer", ["SocketTimeoutException"])

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", lost)
        with pytest.raises(OutcomeUnknown, match="no answer"):
            one.commit(committable)
    assert (len(puts), support.version(path)) == (1, version)
    assert one.commit(committable) is CommitOutcome.COMMITTED


@pytest.mark.remedy(
    "each of … commits in a row ended with a conflict",
    "end what else changes the table or writes this app's sink (DESCRIBE HISTORY names it), then restart",
)
def test_a_table_that_others_keep_changing_is_given_up_by_name(one: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = one.of("a")

    def conflict(*_: Any, **__: Any) -> None:
        raise JavaFailure("somebody was faster", ["DeltaConcurrentModificationException"])

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", conflict)
        with pytest.raises(SinkUnavailable) as given_up:
            one.commit(committable)
    assert "somebody was faster" in str(given_up.value)
    assert one.commit(committable) is CommitOutcome.COMMITTED


def test_a_table_that_cannot_be_read_after_the_put_is_unknown(one: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = one.of("a")
    commit, begin = Transaction.commit, Table.begin

    def landed(txn: Transaction, *args: Any, **options: Any) -> None:
        commit(txn, *args, **options)
        monkeypatch.setattr(Table, "begin", unreadable)

    def unreadable(_: Table, _known: Transaction | None) -> Transaction:
        monkeypatch.setattr(Table, "begin", begin)
        raise JavaFailure("the disk is gone", ["IOException"])

    monkeypatch.setattr(Transaction, "commit", landed)
    with pytest.raises(OutcomeUnknown, match="the disk is gone"):
        one.commit(committable)
    assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED


@pytest.mark.wide
def test_a_put_below_a_cleaned_up_log_does_not_count(spark: SparkSession, path: Path, one: Start) -> None:
    """The version that the commit wants is free again: others took it, and a clean-up removed it."""
    committable = one.of("a")

    def others_go_on_and_clean_up() -> None:
        for key in "xyz":
            support.foreign_append(spark, path, [(key, 0)], "id string, n bigint")
        support.checkpoint(spark, path)
        for version in range(support.version(path) + 1):
            support.forget_version(path, version)

    outcome = commit_while(one, committable, others_go_on_and_clean_up)
    assert outcome is CommitOutcome.COMMITTED
    assert support.column(path, "id") == ["a", "x", "y", "z"]


# the table changes under what is prepared


def test_a_nullable_column_that_was_added_is_no_hindrance(spark: SparkSession, path: Path, one: Start) -> None:
    committable = one.of("a")
    support.sql(spark, path, "ALTER TABLE {t} ADD COLUMN more int")
    assert one.commit(committable) is CommitOutcome.COMMITTED
    assert support.read(path).to_pylist() == [{"id": "a", "n": 1, "more": None}]


@pytest.mark.parametrize(
    ("change", "named"),
    [("ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 1)", "constraints"), ("overwrite", "column n")],
)
def test_a_changed_table_makes_the_prepared_epoch_lost(
    spark: SparkSession, path: Path, one: Start, change: str, named: str
) -> None:
    committable = one.of("a")
    if change == "overwrite":
        other = spark.createDataFrame([("x", "text")], "id string, n string")
        other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(path))
    else:
        support.sql(spark, path, change)
    before = support.column(path, "id")
    with pytest.raises(PreparedLost, match=named):
        one.commit(committable)
    assert support.column(path, "id") == before


def test_a_table_of_a_newer_delta_is_not_prepared_for(spark: SparkSession, path: Path, one: Start) -> None:
    support.upgrade(spark, path, {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["of-the-future"]})
    with pytest.raises(PrepareRefused, match="Delta refuses to write to the table"):
        one.of("a")


def test_a_table_of_a_newer_delta_is_not_read(spark: SparkSession, path: Path, one: Start) -> None:
    features = ["of-the-future"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    support.upgrade(spark, path, protocol)
    with pytest.raises(Misconfigured, match="Delta refuses to read the table"):
        one.sink.look(query("app"))


def test_a_file_that_is_gone_when_the_vote_is_given_is_no_vote(one: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "size", lambda *_: None)
    with pytest.raises(PrepareRefused, match="a file that was written is not there") as refused:
        one.of("a")
    assert "State: None bytes, not " in str(refused.value)


@pytest.mark.parametrize(("verb", "what"), [("begin", "the table's log"), ("write", "the prepared files")])
def test_a_disk_that_does_not_answer_is_unavailable(
    one: Start, monkeypatch: pytest.MonkeyPatch, verb: str, what: str
) -> None:
    def broken(*_: object) -> None:
        raise JavaFailure("the disk is gone", ["IOException"])

    with monkeypatch.context() as patch:
        patch.setattr(Table, verb, broken)
        with pytest.raises(SinkUnavailable, match=f"{what} cannot be read or written"):
            one.of("a")
    assert one.commit(one.of("a")) is CommitOutcome.COMMITTED


def test_a_recreated_table_is_another_one(spark: SparkSession, path: Path, one: Start) -> None:
    committable = one.of("a")
    shutil.rmtree(path)
    support.forget_snapshots(spark)
    DeltaSink(str(path), name="out").create(query("app"), SCHEMA)
    again = Start(spark, path, ONE)
    again.sink.fence(query("app"), ONE)
    with pytest.raises(CheckpointMismatch, match="prepared for the table delta:"):
        again.commit(committable)
    assert support.column(path, "id") == []


@pytest.mark.remedy(
    "the prepared epoch cannot be shown any more, and nothing of it is visible: …",
    "start the query again: the rows are redone",
)
def test_vacuumed_files_are_noticed_and_nothing_is_shown(spark: SparkSession, path: Path, one: Start) -> None:
    committable = one.of("a")
    support.vacuum_everything(spark, path)
    assert support.data_files(path) == set()
    with pytest.raises(PreparedLost, match="1 of 1 files are gone"):
        one.commit(committable)
    assert support.column(path, "id") == []
    redone = one.of("a", redo=1)
    assert one.commit(redone) is CommitOutcome.COMMITTED
    assert support.column(path, "id") == ["a"]


def test_prepared_lost_is_final_even_for_a_put_under_way(spark: SparkSession, path: Path, one: Start) -> None:
    """A slow put must not show, after all, an epoch that was given up for lost."""
    committable = one.of("a")
    twin = Start(spark, path, ONE)

    def lose_the_files() -> None:
        for file in support.data_files(path):
            (path / file).unlink()
        with pytest.raises(PreparedLost):
            twin.commit(committable)

    with pytest.raises(PreparedLost):
        commit_while(one, committable, lose_the_files)
    assert support.column(path, "id") == []


# leftovers


def test_a_newer_start_deletes_the_files_of_a_dead_one_and_no_others(
    spark: SparkSession, path: Path, one: Start
) -> None:
    one.commit(one.of("a"))
    support.foreign_append(spark, path, [("x", 0)], "id string, n bigint")
    kept = support.data_files(path)
    one.of("b", 2)
    assert support.data_files(path) > kept
    newer = Start(spark, path, TWO)
    newer.sink.fence(query("app"), TWO)
    newer.sink.abort(query("app"), TWO)
    assert support.data_files(path) == kept
    assert support.notes(path) == []


def test_the_losing_attempt_is_deleted_with_the_commit_of_the_winner(path: Path, one: Start) -> None:
    loser = one.of("a")
    winner = one.of("b", redo=1)
    one.commit(winner)
    assert support.data_files(path) == {add["path"] for add in winner.payload["adds"]}
    assert loser.payload["adds"][0]["path"] not in support.data_files(path)
    assert support.notes(path) == []


def test_a_torn_note_does_not_stop_the_abort(path: Path, one: Start) -> None:
    one.of("a")
    [note] = support.notes(path)
    (path / note).write_text('["part-0')
    (path / note).with_name(f".{Path(note).name}.crc").unlink()
    one.sink.abort(query("app"), ONE)
    assert support.notes(path) == []


# what people see


def test_the_history_tells_the_facts_of_the_epoch(path: Path, one: Start) -> None:
    committable = one.of("ab")
    one.commit(committable)
    assert support.newest_user_metadata(path) == {
        "version": 1,
        "app": "app",
        "sink": "out",
        "incarnation": "q1",
        "epoch": 0,
        "position": 1,
        "decision": committable.decision.id,
        "rows": 2,
        "offsets": "{}",
        "watermark": 7,
    }
