"""Prepare and commit go on from the last snapshot if the log has no file of the next version; a version that this
misses is found by the list after the commit."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.model.epoch import Committable
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured, PreparedLost, PrepareRefused
from epochal.sinks.delta import DeltaSink, Merge, jvm
from epochal.sinks.delta.core import Core
from epochal.sinks.delta.lineage import LOG, log_file
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import TWO, query

SCHEMA = StructType().add("id", "string").add("n", "long")


class OwnTable(support.Start):
    """One start of the query on a table of its own, and what others do to that table."""

    @classmethod
    def made(cls, spark: SparkSession, path: Path) -> OwnTable:
        DeltaSink(str(path), name="out").create(query("app"), SCHEMA)
        return cls(spark, path).fenced()

    def vote(self, key: str, position: int = 1) -> Committable:
        """For one row: ``key``, and the position as ``n``."""
        return self.prepare(self.spark.createDataFrame([(key, position)], SCHEMA).coalesce(1), position)

    def hide(self, change: Callable[[], object] = lambda: None) -> Path:
        """``change``, three appends, a checkpoint of the newest version; then the versions between it and the one that
        the sink knows are removed from the log, which a clean-up would remove after that.  The first removed file."""
        known = support.version(self.path)
        change()
        for key in "xyz":
            support.foreign_append(self.spark, self.path, [(key, 0)], "id string, n bigint")
        support.checkpoint(self.spark, self.path)
        for version in range(known + 1, support.version(self.path)):
            support.forget_version(self.path, version)
        return self.path / log_file(known + 1)


@pytest.fixture
def one(spark: SparkSession, tmp_path: Path) -> OwnTable:
    return OwnTable.made(spark, tmp_path / "t")


@pytest.mark.wide
def test_a_put_beside_a_hidden_version_does_not_count_and_is_made_again(one: OwnTable) -> None:
    """The put lands in the gap and does not count; the next one is upon what a list shows."""
    vote = one.vote("a")
    gap = one.hide()
    assert one.commit(vote) is CommitOutcome.COMMITTED
    assert gap.exists()
    assert support.column(one.path, "id") == ["a", "x", "y", "z"]
    assert one.commit(one.vote("b", 2)) is CommitOutcome.COMMITTED
    assert support.column(one.path, "id") == ["a", "b", "x", "y", "z"]


@pytest.mark.wide
def test_after_a_put_the_log_is_listed_whatever_the_names_tell(one: OwnTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean-up goes on, and removes what was put in the gap."""
    vote, put = one.vote("a"), Core.put
    gap = one.hide()

    def removed(self: Core, *given: Any, **more: Any) -> object:
        answer = put(self, *given, **more)
        support.forget_version(one.path, int(gap.stem))
        return answer

    monkeypatch.setattr(Core, "put", removed)
    assert one.commit(vote) is CommitOutcome.COMMITTED
    assert support.column(one.path, "id") == ["a", "x", "y", "z"]


@pytest.mark.wide
def test_what_is_prepared_beside_a_hidden_version_is_judged_by_the_newest(spark: SparkSession, one: OwnTable) -> None:
    one.hide(lambda: support.sql(spark, one.path, "ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 1)"))
    vote = one.vote("a")
    with pytest.raises(PreparedLost, match="constraints"):
        one.commit(vote)
    assert support.column(one.path, "id") == ["x", "y", "z"]


@pytest.mark.wide
def test_where_others_than_the_log_order_the_versions_it_is_listed(spark: SparkSession, one: OwnTable) -> None:
    feature = "delta.feature.coordinatedCommits-preview"
    support.sql(spark, one.path, f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{feature}' = 'supported')")
    two = OwnTable(spark, one.path, TWO).fenced()
    vote = two.vote("a")
    gap = two.hide()
    assert two.commit(vote) is CommitOutcome.COMMITTED
    assert not gap.exists()


@pytest.mark.wide
def test_on_other_file_systems_it_is_listed(one: OwnTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """On S3 a version may be there before its file is, and to ask for a file costs as much as a list."""
    monkeypatch.setattr(jvm, "_SCHEMES", ("hdfs",))
    vote = one.vote("a")
    gap = one.hide()
    assert one.commit(vote) is CommitOutcome.COMMITTED
    assert not gap.exists()


@pytest.mark.wide
def test_a_merge_is_prepared_on_what_a_list_shows(spark: SparkSession, one: OwnTable) -> None:
    """It reads the files of its snapshot, which may be gone where the log was cleaned up."""
    two = OwnTable(spark, one.path, TWO, mode=Merge(key="id")).fenced()
    two.hide(lambda: support.sql(spark, one.path, "ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 1)"))
    with pytest.raises(PrepareRefused, match="rows violate a constraint of the table"):
        two.vote("a")


def test_what_is_known_of_a_session_is_not_pickled(one: OwnTable) -> None:
    """As in a task, or where a sink is copied."""
    one.sink.check(query("app"), SCHEMA)
    vote = one.vote("a")
    again = pickle.loads(pickle.dumps(one.sink))
    assert again.commit(vote, one.actor) is CommitOutcome.COMMITTED
    assert support.column(one.path, "id") == ["a"]


@pytest.mark.parametrize("fewer", [False, True], ids=["as many versions", "fewer"])
def test_another_table_in_its_place_is_another_one(one: OwnTable, tmp_path: Path, fewer: bool) -> None:
    vote = one.vote("a")
    other = OwnTable.made(one.spark, tmp_path / "other")
    if fewer:
        support.forget_version(other.path, support.version(other.path))
    shutil.rmtree(one.path / LOG)
    shutil.copytree(other.path / LOG, one.path / LOG)
    with pytest.raises(CheckpointMismatch, match="was prepared for the table delta:"):
        one.commit(vote)
    assert support.column(one.path, "id") == []


def test_a_table_that_is_gone_is_missing(one: OwnTable) -> None:
    vote = one.vote("a")
    shutil.rmtree(one.path)
    with pytest.raises(Misconfigured, match="there is no Delta table"):
        one.commit(vote)


@pytest.fixture
def lake(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE DATABASE lake")
    yield "lake"
    spark.sql("DROP DATABASE lake CASCADE")


def test_a_name_that_has_become_another_tables_is_another_one(
    spark: SparkSession, one: OwnTable, tmp_path: Path, lake: str
) -> None:
    """Also where both have as many versions, of the same time, and the files that were prepared."""
    other = OwnTable.made(spark, tmp_path / "other")
    name = f"{lake}.named"
    spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{one.path}'")
    start = OwnTable(spark, one.path, TWO, sink=DeltaSink(table=name, name="out")).fenced()
    newest = log_file(support.version(one.path))
    support.foreign_append(spark, other.path, [("x", 0)], "id string, n bigint")
    stat = (one.path / newest).stat()
    os.utime(other.path / newest, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    vote = start.vote("a")
    for prepared in support.data_files(one.path):
        shutil.copy(one.path / prepared, other.path / prepared)
    spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{other.path}'")
    with pytest.raises(CheckpointMismatch, match="was prepared for the table delta:"):
        start.commit(vote)
    assert support.column(other.path, "id") == ["x"]
