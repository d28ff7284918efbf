"""The durable copy holds exactly the rows, of every type, and nothing but what its manifest lists."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet
from pyspark.sql.types import LongType, StructType

from epochal.coordinator.model.epoch import Actor, Copy
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured, PrepareRefused
from epochal.sinks.spark import stage
from epochal.sinks.spark.stage import HadoopFiles, LocalFiles, SparkStage, check_schema, files_at, local_path, read_copy
from tests.real.coordinator.query.support import drop_observations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ME = Actor(3, 7)

VALUES = """
select * from values
 (1, timestamp_micros(-9223372036854775808), timestamp'0001-01-01 00:00:00', date'0001-01-01',
  timestamp_ntz'1500-02-28 23:59:59.999999', double('NaN'), float('-0.0'), 99999999999999999999999999999999999999BD,
  X'00FF', 'a\\'"\\\\\\t\\n\\u0000😀', array(1, null), map('k', cast(null as int)),
  named_struct('x', 1, 'y', cast(null as string)),
  interval '-3' month, interval '1 02:03:04.000005' day to second, true, parse_json('{"a":[1]}')),
 (2, timestamp_micros(9223372036854775807), timestamp'1582-10-10 00:00:00', date'9999-12-31',
  timestamp_ntz'9999-12-31 23:59:59', double('-Infinity'), float('NaN'), -0.00000000000000000000000000000000000001BD,
  X'', '', cast(array() as array<int>), cast(map() as map<string, int>), named_struct('x', cast(null as int), 'y', 'z'),
  interval '0' month, interval '0 00:00:00' day to second, false, parse_json('null')),
 (3, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
as t(id, extreme, ts, d, ntz, f8, f4, dec, bin, s, a, m, st, ym, dt, b, v)
"""
READ = """id, unix_micros(extreme), unix_micros(ts), unix_date(d), cast(ntz as string), cast(f8 as string),
 cast(f4 as string), cast(dec as string), hex(bin), hex(s), to_json(struct(a, m, st)), cast(ym as string),
 cast(dt as string), b, cast(v as string)"""


@pytest.fixture
def confs(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Set for one test."""
    wanted: dict[str, str] = {}
    before: dict[str, str | None] = {}

    class Confs(dict[str, str]):
        def __setitem__(self, key: str, value: str) -> None:
            before.setdefault(key, spark.conf.get(key, None))
            spark.conf.set(key, value)

    yield Confs(wanted)
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def stage_at(spark: SparkSession, folder: Path) -> SparkStage:
    return SparkStage(f"file:{folder}", lambda: spark)


def seen(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in df.selectExpr(*split(READ)).collect()), key=lambda row: str(row[0]))


def split(columns: str) -> list[str]:
    """At the commas that stand outside of parentheses."""
    parts, depth = [""], 0
    for letter in columns:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def test_every_type_and_value_comes_back(spark: SparkSession, tmp_path: Path, confs: dict[str, str]) -> None:
    confs["spark.sql.ansi.enabled"] = "true"
    values = spark.sql(VALUES)
    before = seen(values)
    assert len(before) == 3
    confs["spark.sql.parquet.outputTimestampType"] = "INT96"
    confs["spark.sql.parquet.datetimeRebaseModeInWrite"] = "LEGACY"
    confs["spark.sql.parquet.datetimeRebaseModeInRead"] = "LEGACY"
    copy = stage_at(spark, tmp_path).write(0, ME, values)
    back = stage_at(spark, tmp_path).read(Copy.from_json(copy.to_json()))
    assert seen(back) == before
    assert [(f.name, f.dataType) for f in back.schema] == [(f.name, f.dataType) for f in values.schema]
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"


def test_the_copy_does_not_depend_on_the_session(spark: SparkSession, tmp_path: Path, confs: dict[str, str]) -> None:
    """As an independent reader sees it: no other calendar, no INT96, lists as the format says."""
    confs["spark.sql.parquet.datetimeRebaseModeInWrite"] = "LEGACY"
    confs["spark.sql.parquet.outputTimestampType"] = "INT96"
    confs["spark.sql.parquet.writeLegacyFormat"] = "true"
    old = spark.sql("select date'1000-01-01' d, timestamp'1000-01-01 00:00:00Z' t, array(1) a, cast(1 as decimal(9)) n")
    copy = stage_at(spark, tmp_path).write(0, ME, old)
    file = parquet.ParquetFile(f"{local_path(copy.root)}/{copy.files[0].path}")
    assert file.read().to_pylist() == [
        {"d": date(1000, 1, 1), "t": datetime(1000, 1, 1, tzinfo=timezone.utc), "a": [1], "n": Decimal(1)}
    ]
    physical = [(c.path, c.physical_type) for c in map(file.schema.column, range(4))]
    assert physical == [("d", "INT32"), ("t", "INT64"), ("a.list.element", "INT32"), ("n", "INT32")]


@pytest.mark.parametrize("missing", ["fails", "is NULL"])
def test_columns_are_read_by_name_whatever_ids_the_source_gave_them(
    spark: SparkSession, tmp_path: Path, confs: dict[str, str], missing: str
) -> None:
    confs["spark.sql.parquet.fieldId.write.enabled"] = "false"  # the files of the copy have none
    confs["spark.sql.parquet.fieldId.read.enabled"] = "true"
    confs["spark.sql.parquet.fieldId.read.ignoreMissing"] = str(missing == "is NULL").lower()
    ids = [{"parquet.field.id": number} for number in range(3)]
    inner = StructType().add("x", LongType(), metadata=ids[2])
    schema = StructType().add("id", LongType(), metadata=ids[0]).add("s", inner, metadata=ids[1])
    copy = stage_at(spark, tmp_path).write(0, ME, spark.createDataFrame([(1, (2,))], schema))
    assert stage_at(spark, tmp_path).read(copy).collect() == [(1, (2,))]


def test_names_that_are_not_identifiers(spark: SparkSession, tmp_path: Path, confs: dict[str, str]) -> None:
    confs["spark.sql.caseSensitive"] = "true"
    names = ["a b", "a.b", "ä😀", "x;{}()=,", "_hidden", "A", "a"]
    row = spark.range(1).selectExpr(*[f"{i} as `{name}`" for i, name in enumerate(names)])
    stage = stage_at(spark, tmp_path / "with space [x] 100%25")
    back = stage.read(stage.write(0, ME, row))
    assert back.columns == names
    assert list(back.collect()[0]) == list(range(len(names)))


def test_an_empty_batch(spark: SparkSession, tmp_path: Path) -> None:
    stage = stage_at(spark, tmp_path)
    for empty in (spark.range(0), spark.range(9).where("id < 0"), spark.createDataFrame([], "id long")):
        copy = stage.write(0, ME, empty)
        assert copy.rows == 0
        assert stage.read(copy).columns == ["id"]
        assert stage.read(copy).count() == 0


def test_a_copy_without_files(spark: SparkSession, tmp_path: Path) -> None:
    written = stage_at(spark, tmp_path).write(0, ME, spark.range(1))
    none = Copy(written.root, (), written.schema)
    assert read_copy(spark, none).collect() == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select 1 a, 2 A", "two columns are named 'a' and 'A'"),
        ("select 1 a, 2 a", "two columns are named 'a' and 'a'"),
        ("select named_struct('x', 1, 'X', 2) s", "two fields are named 's.x' and 's.X'"),
        ("select null n", "column 'n' has the type void"),
        ("select array(null) n", "column 'n.element' has the type void"),
        ("select make_interval(1) i", "column 'i' has the type interval"),
        ("select struct() s", "column 's' has the type struct<>"),
    ],
)
def test_what_parquet_cannot_hold_is_named(spark: SparkSession, tmp_path: Path, query: str, says: str) -> None:
    with pytest.raises(Misconfigured, match="Help:") as refused:
        stage_at(spark, tmp_path).write(0, ME, spark.sql(query))
    assert says in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.remedy(
    "column … has the type …, which the durable copy cannot hold",
    "cast the column to another type (a string, for instance), or leave it out",
)
@pytest.mark.parametrize("way", ["string(i) AS i, n", "n"])
def test_what_parquet_cannot_hold_is_cast_or_left_out(spark: SparkSession, tmp_path: Path, way: str) -> None:
    rows, stage = spark.sql("SELECT make_interval(1) AS i, 2 AS n"), stage_at(spark, tmp_path)
    with pytest.raises(Misconfigured, match="which the durable copy cannot hold"):
        stage.write(0, ME, rows)
    taken = rows.selectExpr(*way.split(", "))
    assert stage.read(stage.write(0, ME, taken)).collect() == taken.collect()


@pytest.mark.remedy(
    "the DataFrame has no columns",
    "select at least one column before handing the DataFrame to the pipeline",
)
def test_no_columns(spark: SparkSession) -> None:
    with pytest.raises(Misconfigured, match="has no columns"):
        check_schema(spark.range(1).drop("id").schema)
    check_schema(spark.range(1).select("id").schema)


def test_order_within_a_file_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    shuffled = spark.range(100_000, numPartitions=3).selectExpr("id", "spark_partition_id() part", "rand() r")
    copy = stage_at(spark, tmp_path).write(0, ME, shuffled)
    assert [f.rows for f in copy.files] == [33333, 33333, 33334]
    back = read_copy(spark, copy).toPandas()
    for _, rows in back.groupby("part"):
        assert rows["id"].is_monotonic_increasing


def test_the_rows_of_a_partition_stay_in_one_file_whatever_the_session_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of several, Spark reads the largest first."""
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "7")
    try:
        copy = stage_at(spark, tmp_path).write(0, ME, spark.range(100, numPartitions=2))
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert [f.rows for f in copy.files] == [50, 50]


def test_only_the_listed_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    stage = stage_at(spark, tmp_path)
    copy = stage.write(0, ME, spark.range(5))
    spark.range(9).write.mode("append").parquet(copy.root)
    assert stage.read(copy).count() == 5


@pytest.mark.remedy(
    "the epoch could not be evaluated and written to its durable copy: …",
    "correct the query, or the disk of … (space, rights), whichever caused the error, and restart",
)
def test_a_disk_that_cannot_be_written_to_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "epochal").write_text("a file where the copies' folder has to be")
    with pytest.raises(PrepareRefused, match=r"written to its durable copy: .*Exception") as refused:
        stage_at(spark, tmp_path).write(3, ME, spark.range(5))
    assert "epoch 3" in str(refused.value).lower()
    assert "nothing was decided" in str(refused.value)
    (tmp_path / "epochal").unlink()
    assert stage_at(spark, tmp_path).write(3, ME, spark.range(5)).rows == 5


@pytest.mark.remedy(
    "the epoch could not be evaluated and written to its durable copy: …",
    "correct the query, or the disk of … (space, rights), whichever caused the error, and restart",
)
def test_an_error_of_the_query_is_told_in_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    def fails(number: int) -> int:
        raise ValueError(f"no such flight: {number}")

    rows = spark.range(5).select(f.udf(fails, "long", useArrow=False)("id").alias("id"))
    with pytest.raises(PrepareRefused, match=r"ValueError: no such flight: \d"):
        stage_at(spark, tmp_path).write(0, ME, rows)
    assert stage_at(spark, tmp_path).write(0, ME, spark.range(5).select("id")).rows == 5


@pytest.mark.parametrize("damage", ["missing", "shorter"])
@pytest.mark.remedy(
    "… of … files of the durable copy … are missing or changed",
    "restore these files from a backup of the checkpoint",
)
def test_a_lost_copy_is_named(spark: SparkSession, tmp_path: Path, damage: str, confs: dict[str, str]) -> None:
    confs["spark.sql.files.ignoreMissingFiles"] = "true"
    stage = stage_at(spark, tmp_path)
    copy = stage.write(0, ME, spark.range(5, numPartitions=2))
    file = Path(copy.root.removeprefix("file:")) / copy.files[0].path
    backup = file.read_bytes()
    file.unlink() if damage == "missing" else file.write_bytes(backup[:-1])
    with pytest.raises(CommitInDoubt, match="1 of 2 files of the durable copy") as lost:
        stage.read(copy)
    assert copy.files[0].path in str(lost.value)
    file.write_bytes(backup)
    assert stage.read(copy).count() == 5


def test_a_file_lost_after_the_check_is_an_error(spark: SparkSession, tmp_path: Path, confs: dict[str, str]) -> None:
    confs["spark.sql.files.ignoreMissingFiles"] = "true"
    confs["spark.sql.files.ignoreCorruptFiles"] = "true"
    copy = stage_at(spark, tmp_path).write(0, ME, spark.range(5, numPartitions=2))
    back = read_copy(spark, copy)
    (Path(copy.root.removeprefix("file:")) / copy.files[0].path).unlink()
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound"):
        back.collect()


@pytest.mark.remedy(
    "Spark wrote … rows to the durable copy and its files hold …",
    "nothing was decided; restart the query",
)
def test_a_listing_that_misses_a_file_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LocalFiles.listing

    def partial(self: LocalFiles, folder: str) -> Mapping[str, int] | None:
        there = whole(self, folder) or {}
        return {name: size for name, size in there.items() if not name.startswith("part-00001")}

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "listing", partial)
        with pytest.raises(PrepareRefused, match=r"wrote 4 rows .* its files hold 2"):
            stage_at(spark, tmp_path).write(0, ME, spark.range(4, numPartitions=2))
    restart = Actor(ME.generation + 1, 8)
    assert stage_at(spark, tmp_path).write(0, restart, spark.range(4, numPartitions=2)).rows == 4


def test_a_copy_is_on_disk_once_it_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    copy = stage_at(spark, tmp_path).write(4, ME, spark.range(5, numPartitions=2))
    root = Path(copy.root.removeprefix("file:"))
    stage_at(spark, tmp_path).keep(0, copy)
    assert {str(p) for p in root.iterdir()} < set(synced)
    assert [str(root), *map(str, list(root.parents)[:4])] == synced[-5:]
    assert synced[-1] == str(tmp_path)


def test_a_copy_that_the_disk_does_not_keep_names_its_epoch(spark: SparkSession, tmp_path: Path) -> None:
    copy = stage_at(spark, tmp_path).write(4, ME, spark.range(5, numPartitions=2))
    shutil.rmtree(copy.root.removeprefix("file:"))
    with pytest.raises(PrepareRefused, match="durable copy") as refused:
        stage_at(spark, tmp_path).keep(4, copy)
    assert refused.value.epoch == 4


def in_parts(spark: SparkSession, beside: Copy, rows: int, parts: int) -> list[Copy]:
    made = spark.range(rows, numPartitions=3).selectExpr("id", "spark_partition_id() task", "rand() r", "int(id % 2) p")
    return stage.write_parts(beside, "out", 0, made, "p", parts)


@pytest.mark.wide
def test_parts_hold_their_rows_in_order_below_the_copy_that_they_go_with(spark: SparkSession, tmp_path: Path) -> None:
    """One evaluation; a part without rows is an empty copy; whoever removes the copy removes them."""
    copies = stage_at(spark, tmp_path)
    beside = copies.write(0, ME, spark.range(5))
    parts = in_parts(spark, beside, 100_000, 3)
    assert [(part.rows, len(part.files)) for part in parts] == [(50_000, 3), (50_000, 3), (0, 0)]
    for number, part in enumerate(parts):
        back = read_copy(spark, part).toPandas()
        assert list(back.columns) == ["id", "task", "r"]
        assert set(back["id"] % 2) <= {number}
        assert all(rows["id"].is_monotonic_increasing for _, rows in back.groupby("task"))
    assert {part.root.rpartition("/out-")[0] for part in parts} == {beside.root}
    assert copies.read(beside).count() == 5
    again = in_parts(spark, beside, 10, 3)
    assert {part.root for part in again}.isdisjoint(part.root for part in parts)
    copies.clean(ME, [])
    assert not Path(beside.root.removeprefix("file:")).exists()


def test_parts_are_on_disk_before_they_are_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, synced, sync = stage_at(spark, tmp_path).write(0, ME, spark.range(5)), list[str](), os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for part in in_parts(spark, beside, 10, 2):
        root = Path(part.root.removeprefix("file:"))
        assert {*map(str, root.iterdir()), str(root), str(root.parent), str(root.parent.parent)} <= set(synced)


def test_a_listing_that_misses_a_file_of_a_part_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, whole = stage_at(spark, tmp_path).write(0, ME, spark.range(5)), LocalFiles.listing

    def partial(self: LocalFiles, folder: str) -> Mapping[str, int] | None:
        there = whole(self, folder)
        return {n: size for n, size in there.items() if not n.startswith("part-00001")} if there is not None else None

    monkeypatch.setattr(LocalFiles, "listing", partial)
    with pytest.raises(PrepareRefused, match=r"wrote 9 rows .* its files hold 6"):
        in_parts(spark, beside, 9, 2)


def test_each_write_has_a_folder_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    stage = stage_at(spark, tmp_path)
    roots = [stage.write(2, ME, spark.range(n)).root for n in range(3)]
    assert [root.rsplit("/", 2)[1:] for root in roots] == [["2", "3-7"], ["2", "3-7-2"], ["2", "3-7-3"]]


def test_the_copies_of_many_starts_do_not_meet(spark: SparkSession, tmp_path: Path) -> None:
    copies = [stage_at(spark, tmp_path).write(2, Actor(start, 7), spark.range(start)) for start in range(1, 4)]
    assert [stage_at(spark, tmp_path).read(copy).count() for copy in copies] == [1, 2, 3]


def test_clean_removes_own_and_older_copies_only(spark: SparkSession, tmp_path: Path) -> None:
    stage = stage_at(spark, tmp_path)
    twin, newer, older = Actor(3, 8), Actor(4, 7), Actor(2, 9)
    kept = stage.write(1, ME, spark.range(1))
    for actor in (older, ME, twin, newer):
        stage.write(2, actor, spark.range(1))
    for actor in (older, ME):
        stage.write(3, actor, spark.range(1))
    (tmp_path / "epochal/copies/2/notes").mkdir()
    stage.clean(ME, [kept])
    left = {str(p.relative_to(tmp_path / "epochal/copies")) for p in (tmp_path / "epochal/copies").glob("*/*")}
    assert left == {"1/3-7", "2/3-8", "2/4-7", "2/notes"}
    assert not (tmp_path / "epochal/copies/3").exists()
    assert stage.read(kept).count() == 1


def test_another_file_system(spark: SparkSession, tmp_path: Path) -> None:
    """Through Hadoop's own file system layer, on a scheme that is not the local one."""
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.epochal.link./data", f"file:{tmp_path}")
    where = "viewfs://epochal/data/checkpoint"
    assert isinstance(files_at(where, lambda: spark), HadoopFiles)
    stage = SparkStage(where, lambda: spark)
    copy = stage.write(0, ME, spark.range(100, numPartitions=3))
    assert [f.rows for f in copy.files] == [33, 33, 34]
    assert sorted(row.id for row in stage.read(copy).collect()) == list(range(100))
    local = tmp_path / "checkpoint/epochal/copies/0/3-7"
    assert {f.path: f.length for f in copy.files} == {p.name: p.stat().st_size for p in local.glob("part*")}
    (local / copy.files[1].path).unlink()
    with pytest.raises(CommitInDoubt, match="missing"):
        stage.read(copy)
    files = HadoopFiles(lambda: spark)
    (tmp_path / "text").write_bytes(b"\x00\xff text")
    assert files.read("viewfs://epochal/data/text") == b"\x00\xff text"
    assert files.read("viewfs://epochal/data/none") is None
    stage.clean(ME, [copy])
    assert local.exists()
    stage.clean(ME, [])
    assert not (tmp_path / "checkpoint/epochal/copies/0").exists()


@pytest.mark.remedy("Spark did not say …: …", "restart the query")
def test_a_count_that_never_arrives_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(3)
    with monkeypatch.context() as patch:
        drop_observations(patch, rows)
        with pytest.raises(
            PrepareRefused,
            match=r"Spark did not say how many rows it wrote to the durable copy: nothing came within 0\.2 s",
        ):
            stage_at(spark, tmp_path).write(0, ME, rows)
    assert stage_at(spark, tmp_path).write(0, Actor(ME.generation + 1, 8), rows).rows == 3
