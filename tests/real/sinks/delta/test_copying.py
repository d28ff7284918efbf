"""Data files that are the durable copy, too: when they can be, what the table and the copy have of each other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.coordinator.model.epoch import Committable, Copy, Decision, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.delta import DeltaSink, Merge, Overwrite
from epochal.sinks.protocol import CommitOutcome, CopyingSink
from epochal.sinks.spark.stage import SparkStage, check_files
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, TWO, query

COMMITTED = CommitOutcome.COMMITTED
SCHEMA = "id bigint, text string"


def epoch_of(position: int = 1, redo: int = 0) -> Epoch:
    return Epoch(Decision("q1", position - 1, ONE, f"fingerprint-{position}", redo), position, "{}", 7)


class Copying:
    """One start on one table, with the checkpoint in a folder of its own."""

    def __init__(self, spark: SparkSession, path: Path, checkpoint: Path, **options: Any) -> None:
        self.spark, self.path = spark, path
        self.sink = DeltaSink(str(path), name="out", **options)
        self.sink.look(query("app"))
        self.sink.fence(query("app"), ONE)
        self.stage = SparkStage(f"file:{checkpoint}", lambda: spark)

    def copy(self, rows: DataFrame, epoch: Epoch | None = None) -> Copy | None:
        epoch = epoch or epoch_of()
        copy = self.sink.write_copy(epoch, rows, self.stage.reserve(epoch.number, ONE), ONE)
        if copy is not None:
            self.stage.keep(epoch.number, copy)
        return copy

    def copied(self, rows: DataFrame, epoch: Epoch | None = None) -> Epoch:
        copy = self.copy(rows, epoch)
        assert copy is not None
        return replace(epoch or epoch_of(), copy=copy)

    def prepare(self, epoch: Epoch) -> Committable:
        assert epoch.copy is not None
        return self.sink.prepare(epoch, self.stage.read(epoch.copy), ONE)

    def ids(self) -> list[Any]:
        return sorted(row["id"] for row in self.spark.read.format("delta").load(str(self.path)).collect())


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Path:
    return made(spark, tmp_path / "table")


def made(spark: SparkSession, path: Path, schema: str = SCHEMA, more: str = "") -> Path:
    support.sql(spark, path, f"CREATE TABLE {{t}} ({schema}) USING delta {more}")
    return path


@pytest.fixture
def one(spark: SparkSession, path: Path, tmp_path: Path) -> Copying:
    return Copying(spark, path, tmp_path / "checkpoint")


def rows_of(spark: SparkSession, count: int = 6, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, numPartitions=tasks).selectExpr("id", "cast(id AS string) AS text")


def files_of(copy: Copy) -> list[Path]:
    return [Path(copy.root.removeprefix("file:")) / file.path for file in copy.files]


def test_the_rows_are_written_once_and_serve_table_and_copy(one: Copying, spark: SparkSession) -> None:
    assert isinstance(one.sink, CopyingSink)
    epoch = one.copied(rows_of(spark))
    assert epoch.copy is not None
    written = support.data_files(one.path)
    assert {file.name for file in files_of(epoch.copy)} == written
    assert {os.stat(file).st_nlink for file in files_of(epoch.copy)} == {2}
    assert all((file.parent / f".{file.name}.crc").exists() for file in files_of(epoch.copy)), "Spark reads against it"
    assert epoch.copy.rows == 6
    vote = one.prepare(epoch)
    assert support.data_files(one.path) == written, "nothing was written again"
    assert vote.rows == 6
    assert one.sink.commit(vote, ONE) is COMMITTED
    assert one.ids() == list(range(6))
    assert set(support.live_files(one.path)) == written


def test_an_overwrite_copies_as_well(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    one = Copying(spark, path, tmp_path / "checkpoint", mode=Overwrite())
    for position, count in ((1, 6), (2, 3)):
        vote = one.prepare(one.copied(rows_of(spark, count), epoch_of(position)))
        assert one.sink.commit(vote, ONE) is COMMITTED
    assert one.ids() == [0, 1, 2]


def test_a_vote_of_a_retried_prepare_names_the_same_files(one: Copying, spark: SparkSession) -> None:
    epoch = one.copied(rows_of(spark))
    first, again = one.prepare(epoch), one.prepare(epoch)
    assert first == again
    assert one.sink.commit(again, ONE) is COMMITTED
    assert one.ids() == list(range(6))


def test_rows_keep_their_order_in_one_file_of_each_task(one: Copying, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "10")
    try:
        epoch = one.copied(rows_of(spark, 100))
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert epoch.copy is not None
    assert len(epoch.copy.files) == 2
    for file, first in zip(files_of(epoch.copy), (0, 50), strict=True):
        found = [row["id"] for row in spark.read.parquet(f"file:{file}").collect()]
        assert found == list(range(first, first + 50))


def test_an_epoch_without_rows(one: Copying, spark: SparkSession) -> None:
    epoch = one.copied(rows_of(spark, 0))
    assert epoch.copy is not None
    assert (epoch.copy.rows, one.stage.read(epoch.copy).collect()) == (0, [])
    vote = one.prepare(epoch)
    assert (vote.rows, one.sink.commit(vote, ONE)) == (0, COMMITTED)


@pytest.mark.parametrize(
    ("schema", "more"),
    [
        ("id bigint, text string", "PARTITIONED BY (text)"),
        ("id bigint, text string", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"),
        ("id bigint, text string", "TBLPROPERTIES ('delta.autoOptimize.optimizeWrite' = 'true')"),
        ("id bigint, text string", "TBLPROPERTIES ('delta.randomizeFilePrefixes' = 'true')"),
        ("id bigint, text string", "TBLPROPERTIES ('parquet.page.write-checksum.enabled' = 'false')"),
        ("id bigint, text varchar(20)", ""),
        ("id decimal(30, 0), text string", ""),
        ("id bigint, TEXT string", ""),
    ],
)
def test_files_that_would_not_hold_the_rows_as_they_are(
    spark: SparkSession, tmp_path: Path, schema: str, more: str
) -> None:
    one = Copying(spark, made(spark, tmp_path / "table", schema, more), tmp_path / "checkpoint")
    assert one.copy(rows_of(spark)) is None
    assert support.data_files(one.path) == set()
    vote = one.prepare(replace(epoch_of(), copy=one.stage.write(0, ONE, rows_of(spark))))
    assert one.sink.commit(vote, ONE) is COMMITTED
    assert [int(number) for number in one.ids()] == list(range(6))


@pytest.mark.parametrize("options", [{"where": "id > 1"}, {"select": ["id"]}, {"mode": Merge(key=["id"])}])
def test_a_sink_that_writes_other_rows_than_the_copy_has(
    spark: SparkSession, path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    assert Copying(spark, path, tmp_path / "checkpoint", **options).copy(rows_of(spark)) is None
    assert support.data_files(path) == set()


def test_columns_that_the_table_gets_only_in_prepare(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    one = Copying(spark, path, tmp_path / "checkpoint", merge_schema=True)
    assert one.copy(rows_of(spark).selectExpr("*", "id AS more")) is None


def test_a_type_of_which_delta_may_keep_another_form(spark: SparkSession, tmp_path: Path) -> None:
    one = Copying(spark, made(spark, tmp_path / "table", "id bigint, text variant"), tmp_path / "checkpoint")
    assert one.copy(rows_of(spark).selectExpr("id", "parse_json(text) AS text")) is None


def test_marks_inside_a_column(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id bigint, text struct<a: array<struct<b: varchar(3)>>>"
    one = Copying(spark, made(spark, tmp_path / "table", schema), tmp_path / "checkpoint")
    assert one.copy(rows_of(spark).selectExpr("id", "struct(array(struct(text AS b)) AS a) AS text")) is None


def test_a_schema_that_no_copy_holds(one: Copying, spark: SparkSession) -> None:
    with pytest.raises(Misconfigured, match="which the durable copy cannot hold"):
        one.copy(rows_of(spark).selectExpr("id", "INTERVAL '1' MONTH AS text", "NULL AS more"))


def test_a_session_in_which_delta_shuffles_the_rows(one: Copying, spark: SparkSession) -> None:
    spark.conf.set("spark.databricks.delta.optimizeWrite.enabled", "true")
    try:
        assert one.copy(rows_of(spark)) is None
    finally:
        spark.conf.unset("spark.databricks.delta.optimizeWrite.enabled")


def test_columns_that_only_the_table_has_are_null(spark: SparkSession, tmp_path: Path) -> None:
    path = made(spark, tmp_path / "table", "note string COMMENT 'of people', id bigint COMMENT 'x', text string")
    one = Copying(spark, path, tmp_path / "checkpoint")
    vote = one.prepare(one.copied(rows_of(spark)))
    assert one.sink.commit(vote, ONE) is COMMITTED
    assert support.read(path).column("note").to_pylist() == [None] * 6


def test_files_of_another_decision_are_no_vote(one: Copying, spark: SparkSession) -> None:
    one.copied(rows_of(spark, 4))
    other = replace(epoch_of(redo=1), copy=one.stage.write(0, ONE, rows_of(spark, 6)))
    vote = one.prepare(other)
    assert (vote.rows, one.sink.commit(vote, ONE)) == (6, COMMITTED)
    assert one.ids() == list(range(6))


def test_files_for_a_table_that_was_changed_meanwhile_are_no_vote(one: Copying, spark: SparkSession) -> None:
    epoch = one.copied(rows_of(spark))
    before = support.data_files(one.path)
    support.sql(spark, one.path, "ALTER TABLE {t} ADD COLUMNS (note string)")
    vote = one.prepare(epoch)
    assert not before & {str(add["path"]) for add in vote.payload["adds"]}
    one.sink.abort(query("app"), ONE)
    assert support.data_files(one.path) == set(), "those that serve the copy alone are the sink's, too"


def test_an_abort_removes_the_table_s_names_and_leaves_the_copy(one: Copying, spark: SparkSession) -> None:
    epoch = one.copied(rows_of(spark))
    assert epoch.copy is not None
    later = DeltaSink(str(one.path), name="out")
    later.look(query("app"))
    later.fence(query("app"), TWO)
    later.abort(query("app"), TWO)
    assert support.data_files(one.path) == set()
    assert support.notes(one.path) == []
    check_files(epoch.copy)
    assert one.stage.read(epoch.copy).count() == 6


def test_a_vacuum_of_the_table_leaves_the_copy_and_its_rows_are_written_again(
    one: Copying, spark: SparkSession
) -> None:
    epoch = one.copied(rows_of(spark))
    support.vacuum_everything(spark, one.path)
    assert support.data_files(one.path) == set()
    assert one.sink.commit(one.prepare(epoch), ONE) is COMMITTED
    assert one.ids() == list(range(6))


def test_a_clean_up_of_the_copies_leaves_the_table(one: Copying, spark: SparkSession) -> None:
    assert one.sink.commit(one.prepare(one.copied(rows_of(spark))), ONE) is COMMITTED
    one.stage.clean(ONE, [])
    assert one.ids() == list(range(6))
    assert spark.read.format("delta").load(str(one.path)).count() == 6


def test_rows_that_violate_a_constraint(spark: SparkSession, tmp_path: Path) -> None:
    path = made(spark, tmp_path / "table", "id bigint NOT NULL, text string")
    support.sql(spark, path, "ALTER TABLE {t} ADD CONSTRAINT few CHECK (id < 3)")
    one = Copying(spark, path, tmp_path / "checkpoint")
    with pytest.raises(PrepareRefused, match="rows violate a constraint of the table"):
        one.copy(rows_of(spark))


def test_a_query_that_fails_says_so_as_in_any_copy(one: Copying, spark: SparkSession) -> None:
    rows = rows_of(spark).selectExpr("id", "if(id > 2, raise_error('no such text'), 'a') AS text")
    with pytest.raises(PrepareRefused, match=r"written to its durable copy: .*no such text") as refused:
        one.copy(rows)
    assert "correct the query, or the disk of the table and the checkpoint (space, rights)" in refused.value.help


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system than the tests' own."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.fail("this test needs a second file system at /dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


def test_a_checkpoint_on_another_file_system(spark: SparkSession, path: Path, elsewhere: Path, tmp_path: Path) -> None:
    if os.stat(elsewhere).st_dev == os.stat(tmp_path).st_dev:
        pytest.fail("the tests' folder lies on /dev/shm, too: set TMPDIR to another file system")
    one = Copying(spark, path, elsewhere / "checkpoint")
    assert one.copy(rows_of(spark)) is None
    assert support.data_files(path) == set()


def test_a_checkpoint_that_is_not_local(one: Copying, spark: SparkSession) -> None:
    assert one.sink.write_copy(epoch_of(), rows_of(spark), "hdfs://nowhere:1/checkpoint/copies/0/1-11", ONE) is None
    assert support.data_files(one.path) == set()


def test_a_file_system_without_hard_links(one: Copying, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuses)
    epoch = one.copied(rows_of(spark))
    assert epoch.copy is not None
    assert {os.stat(file).st_nlink for file in files_of(epoch.copy)} == {1}
    assert sorted(row["id"] for row in one.stage.read(epoch.copy).collect()) == list(range(6))
