"""A table that somebody restored to an older version shows the marker of the epochs whose rows it has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.model.epoch import Marker, SinkState
from epochal.coordinator.model.errors import CheckpointMismatch, MarkerLost
from epochal.sinks.delta import DeltaSink, history
from epochal.sinks.delta.core import Core
from epochal.sinks.delta.jvm import Table
from epochal.sinks.delta.without_spark import Snapshot
from epochal.sinks.epochs import Wanted
from epochal.sinks.inspection import Counted
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, TWO, Start, query


class Shown(Start):
    """A table that shows three epochs, in versions 2, 3 and 4; the rows of an epoch are its position."""

    markers: tuple[Marker, ...] = ()

    @classmethod
    def made(cls, spark: SparkSession, path: Path) -> Shown:
        support.sql(spark, path, "CREATE TABLE {t} (n bigint) USING delta")
        start = cls(spark, path)
        start.fenced()
        start.markers = (Marker(0, 0), *(start.of(position) for position in (1, 2, 3)))
        return start

    def copied(self, path: Path) -> Shown:
        """A table like this one."""
        shutil.copytree(self.path, path)
        start = Shown(self.spark, path)
        start.markers = self.markers
        return start

    def of(self, position: int) -> Marker:
        rows = self.spark.range(position, position + 1).toDF("n").coalesce(1)
        return Marker(position, self.show(rows, position).decision.id)

    def restore(self, to: str) -> None:
        support.sql(self.spark, self.path, f"RESTORE TABLE {{t}} TO {to}")

    def looked(self) -> SinkState:
        """As the next start sees it, and a process without Spark."""
        sink = DeltaSink(str(self.path), name="out")
        found = sink.look(query("app"))
        assert sink._core.state(Snapshot(sink._core.target, "out")) == found
        return found


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown.made(spark, tmp_path_factory.mktemp("restore") / "t")


@pytest.fixture
def shown(made: Shown, tmp_path: Path) -> Shown:
    return made.copied(tmp_path / "t")


@pytest.mark.wide
def test_the_transaction_ids_alone_do_not_tell(shown: Shown) -> None:
    """delta-io/delta#1813: the day this fails, there is less to do here."""
    shown.restore("VERSION AS OF 3")
    txn = Table(shown.spark, str(shown.path)).begin()
    assert (txn.version, txn.version_of("epochal:app:out")) == (5, 3)
    assert support.column(shown.path, "n") == [1, 2]


def test_it_shows_what_it_shows_until_the_restore_is_undone(shown: Shown) -> None:
    shown.restore("VERSION AS OF 3")
    assert shown.looked().marker == shown.markers[2]
    support.foreign_append_by_delta_rs(shown.path, [{"n": 9}])
    assert shown.looked().marker == shown.markers[2]
    shown.restore("VERSION AS OF 1")
    assert shown.looked().marker is None
    shown.restore("VERSION AS OF 4")
    assert shown.looked().marker == shown.markers[3]


def test_a_start_goes_on_from_what_is_shown(shown: Shown) -> None:
    shown.restore("VERSION AS OF 3")
    other = Start(shown.spark, shown.path, TWO).fenced()
    assert shown.looked() == SinkState(other.sink.look(query("app")).identity, TWO, shown.markers[2])
    again = other.show(shown.spark.range(7, 8).toDF("n").coalesce(1), 3)
    assert support.column(shown.path, "n") == [1, 2, 7]
    assert shown.looked().marker == Marker(3, again.decision.id)


def test_the_audit_has_what_is_shown(shown: Shown) -> None:
    """Through Spark and without; the new epoch at a position stands for the one that was taken back."""
    shown.restore("VERSION AS OF 3")
    other = Start(shown.spark, shown.path, TWO).fenced()
    assert [(row.position, row.rows) for row in other.sink.epochs("app")] == [(1, 1), (2, 1)]
    again = other.show(shown.spark.range(7, 9).toDF("n").coalesce(1), 3)
    told = [(row.position, row.rows) for row in other.sink.epochs("app")]
    assert told == [(1, 1), (2, 1), (3, 2)]
    assert [row.decision for row in other.sink.epochs("app", first=3)] == [again.decision.id]
    wanted = Wanted.of("out", None, None, None)
    without = history.read(history.by_delta_rs(str(shown.path), "out"), "app", "out", wanted)
    assert [(row.position, row.rows) for row in without] == told
    assert list(other.sink.inspection(query("app")).counts(1, 3)) == [Counted(*line) for line in told]


def test_a_running_query_does_not_write_above_the_gap(shown: Shown) -> None:
    rows = shown.spark.range(4, 5).toDF("n").coalesce(1)
    vote = shown.prepare(rows, 4)
    shown.restore("VERSION AS OF 2")
    with pytest.raises(MarkerLost, match="stands at position 1, but position 4 was to be written"):
        shown.commit(vote)
    assert support.column(shown.path, "n") == [1]


def test_a_restore_that_slips_in_before_a_commit_is_seen_by_the_next_look(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta finds no conflict between the two."""
    put = Core.put

    def slow(self: Core, *given: object, **more: object) -> object:
        monkeypatch.undo()
        shown.restore("VERSION AS OF 3")
        return put(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Core, "put", slow)
    with pytest.raises(MarkerLost):
        shown.of(4)
    assert support.column(shown.path, "n") == [1, 2, 4]
    assert shown.looked().marker == shown.markers[2]


@pytest.mark.wide
def test_what_others_may_do_is_no_alarm(shown: Shown) -> None:
    """Also a RESTORE that takes back nothing of ours."""
    support.foreign_append(shown.spark, shown.path, [(9,)], "n bigint")
    support.sql(shown.spark, shown.path, "DELETE FROM {t} WHERE n = 9")
    support.sql(shown.spark, shown.path, "OPTIMIZE {t}")
    support.sql(shown.spark, shown.path, "ALTER TABLE {t} ADD COLUMNS (m bigint)")
    shown.restore("VERSION AS OF 5")
    assert shown.looked().marker == shown.markers[3]


@pytest.mark.wide
def test_a_restore_before_a_later_epoch_was_accepted_is_none_of_it(shown: Shown) -> None:
    shown.restore("VERSION AS OF 3")
    other = Start(shown.spark, shown.path, TWO).fenced()
    again = other.show(shown.spark.range(7, 8).toDF("n").coalesce(1), 3)
    shown.restore(f"VERSION AS OF {support.version(shown.path)}")
    assert shown.looked().marker == Marker(3, again.decision.id)


@pytest.mark.remedy(
    "version … of the table is a RESTORE to a point in time, …, so the table's log does not tell which epochs were"
    " removed",
    "restore the table to a version number: version … undoes the RESTORE",
)
@pytest.mark.wide
def test_a_time_is_refused_as_it_names_no_version(shown: Shown) -> None:
    table = f"delta.`{shown.path}`"
    [row] = shown.spark.sql(f"DESCRIBE HISTORY {table}").where("version = 3").collect()
    shown.restore(f"TIMESTAMP AS OF '{row.timestamp}'")
    with pytest.raises(CheckpointMismatch, match="version 5 of the table is a RESTORE to a point in time"):
        shown.looked()
    shown.restore("VERSION AS OF 4")
    assert shown.looked().marker == shown.markers[3]


@pytest.mark.wide
@pytest.mark.parametrize("kept", [pytest.param(5, id="the versions it took back"), pytest.param(6, id="it too")])
def test_a_log_that_was_cleaned_up_tells_no_older_marker(shown: Shown, kept: int) -> None:
    """As Delta does after 30 days, with a checkpoint of the table's state in their place."""
    shown.restore("VERSION AS OF 3")
    support.checkpoint(shown.spark, shown.path)
    support.foreign_append(shown.spark, shown.path, [(9,)], "n bigint")
    for version in range(kept):
        (shown.path / "_delta_log" / f"{version:020}.json").unlink()
    support.forget_snapshots(shown.spark)
    assert shown.looked().marker == shown.markers[3]


def test_a_version_is_read_once(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    of_table: Callable[[Table, str], str | None] = Table.read

    def told(self: Table, path: str) -> str | None:
        read.append(path)
        return of_table(self, path)

    monkeypatch.setattr(Table, "read", told)
    sink = DeltaSink(str(shown.path), name="out")
    for _ in range(3):
        sink.look(query("app"))
    assert read == ["_delta_log/00000000000000000004.json"]
    assert shown.actor == ONE
