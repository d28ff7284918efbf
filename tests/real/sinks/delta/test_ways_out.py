"""Tables, names and columns that a sink refuses: each help, followed to the letter, makes a table that it takes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.coordinator.environment import versions
from epochal.coordinator.model.epoch import Decision, Epoch
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    Misconfigured,
    OutcomeUnknown,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite, jvm, self_test
from epochal.sinks.delta.jvm import JavaFailure, Table
from epochal.sinks.delta.target import Target
from epochal.sinks.delta.without_spark import Snapshot
from tests.real.coordinator.query.support import Job
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, Start, query

pytestmark = pytest.mark.wide

SHAPE = "id string, n bigint"
ROW = "SELECT 'a' AS id, 1L AS n"

Way = Callable[[str], "tuple[Sequence[str], dict[str, Any], str]"]
"""What somebody does who reads the help: SQL, other arguments, other rows."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def sql(given: dict[str, Any], rows: str) -> Way:
    """Run the statements that the help names."""
    return lambda told: (
        re.split(r", or give|: (?=ALTER)", told)[-1 if ": ALTER" in told else 0].split("; "),
        given,
        rows,
    )


def do(rows: str = ROW, *statements: str, **given: Any) -> Way:
    return lambda _: (statements, given, rows)


def accepted(spark: SparkSession, path: Path, given: dict[str, Any], rows: str) -> None:
    frame = spark.sql(rows).coalesce(1)
    sink = DeltaSink(str(path), name="out", **given)
    if not path.exists():
        sink.create(query("app"), frame.schema)
    sink.check(query("app"), frame.schema)
    Start(spark, path, sink=sink).fenced().show(frame)


ADDED = "SELECT 'a' AS id, 1L AS n, 2 AS `a b`"


@pytest.mark.parametrize(
    ("made", "given", "rows", "ways"),
    [
        pytest.param(
            "id string",
            {},
            ROW,
            [sql({}, ROW), do(merge_schema=True), do(select=["id"])],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …",
                "…, or give the sink merge_schema=True, or leave the columns out with select=",
            ),
            id="no column",
        ),
        pytest.param(
            SHAPE,
            {"merge_schema": True},
            ADDED,
            [sql({"merge_schema": True}, ADDED), do(ADDED, select=["id", "n", "`a b` AS ab"], merge_schema=True)],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …",
                "give them other names with select=, or let the table have them: …",
            ),
            id="a name that would be added",
        ),
        pytest.param(
            SHAPE,
            {},
            ADDED,
            [sql({"merge_schema": True}, ADDED), do(ADDED, select=["id", "n"])],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …",
                "give them other names with select=, or let the table have them: …",
            ),
            id="a name",
        ),
        pytest.param(
            SHAPE,
            {},
            "SELECT 'a' AS id, 1L AS n, INTERVAL '1' DAY AS day",
            [do("SELECT 'a' AS id, 1L AS n, string(INTERVAL '1' DAY) AS day", merge_schema=True)],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …", "cast or rename in the query"
            ),
            id="a type that no table has",
        ),
        pytest.param(
            "id string, n int",
            {},
            ROW,
            [
                do("SELECT 'a' AS id, 1 AS n"),
                do(
                    ROW,
                    "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
                    "ALTER TABLE {t} ALTER COLUMN n TYPE bigint",
                ),
            ],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …",
                "cast or rename in the query, or give the column of … that type or name",
            ),
            id="another type",
        ),
        pytest.param(
            "id string, n bigint NOT NULL",
            {},
            "SELECT 'a' AS id",
            [sql({}, "SELECT 'a' AS id"), do()],
            marks=pytest.mark.remedy("the Delta table … cannot hold the rows exactly: …", "…, or give the rows …"),
            id="not null",
        ),
        pytest.param(
            f"{SHAPE}, _Row_Id_ int",
            {"mode": Merge(key="id")},
            ROW,
            [sql({"mode": Merge(key="id")}, ROW)],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …", "ALTER TABLE … RENAME COLUMN … TO …"
            ),
            id="a name of Delta's in the table",
        ),
        pytest.param(
            SHAPE,
            {"mode": Merge(key="id")},
            "SELECT 'a' AS id, 1L AS n, 1 AS _row_id_",
            [do(mode=Merge(key="id")), do(mode=Merge(key="id"), select=["id", "n"])],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …", "give it another name in the query or with select="
            ),
            id="a name of Delta's in the rows",
        ),
        pytest.param(
            SHAPE,
            {"mode": Overwrite()},
            ROW,
            [sql({"mode": Overwrite()}, ROW), do(mode=Append())],
            marks=pytest.mark.remedy(
                "the Delta table … cannot hold the rows exactly: …", "…, or give the sink mode=Append()"
            ),
            id="append only",
        ),
    ],
)
def test_what_the_help_says_is_taken(
    spark: SparkSession, tmp_path: Path, made: str, given: dict[str, Any], rows: str, ways: Sequence[Way]
) -> None:
    """Each way by itself, from the same state."""
    for turn, way in enumerate(ways):
        path = tmp_path / str(turn)
        only_adds = "TBLPROPERTIES ('delta.appendOnly' = 'true')" if given.get("mode") == Overwrite() else ""
        support.sql(spark, path, f"CREATE TABLE {{t}} ({made}) USING delta {only_adds}")
        with pytest.raises(Misconfigured) as refused:
            accepted(spark, path, given, rows)
        statements, arguments, others = way(refused.value.help)
        for statement in statements:
            support.sql(spark, path, statement)
        accepted(spark, path, arguments, others)


@pytest.mark.remedy("the Delta table … cannot hold the rows exactly: …", "write to a table without it")
def test_a_table_with_an_identity_column_is_left_for_another(spark: SparkSession, path: Path) -> None:
    support.sql(spark, path, f"CREATE TABLE {{t}} ({SHAPE}, i bigint GENERATED ALWAYS AS IDENTITY) USING delta")
    with pytest.raises(Misconfigured, match="identity column"):
        accepted(spark, path, {}, ROW)
    accepted(spark, path.with_name("other"), {}, ROW)


@pytest.mark.remedy(
    "the Delta table … cannot hold the rows exactly: …",
    "give them other names with select=, or make the table yourself with TBLPROPERTIES ('…' = 'name')",
)
def test_a_name_that_create_cannot_make(spark: SparkSession, path: Path) -> None:
    with pytest.raises(Misconfigured) as refused:
        accepted(spark, path, {}, ADDED)
    accepted(spark, path.with_name("other"), {"select": ["id", "`a b` AS ab"]}, ADDED)
    properties = refused.value.help.rpartition("with ")[2]
    support.sql(spark, path, f"CREATE TABLE {{t}} ({SHAPE}, `a b` int) USING delta {properties}")
    accepted(spark, path, {}, ADDED)


@pytest.mark.remedy(
    "Delta cannot create the table …",
    "change the table, the session or the sink's arguments as Delta's message asks (State:); start again",
)
def test_a_table_that_is_partitioned_by_everything(spark: SparkSession, path: Path) -> None:
    with pytest.raises(Misconfigured) as refused:
        accepted(spark, path, {"partition_by": ["id", "n"]}, ROW)
    assert "all columns" in str(refused.value.state).lower()
    accepted(spark, path, {"partition_by": ["id"]}, ROW)


# --- names ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """That of a database called `lake`."""
    spark.sql(f"CREATE DATABASE lake LOCATION '{tmp_path}/lake'")
    yield tmp_path / "lake"
    spark.sql("DROP DATABASE lake CASCADE")


def looked(sink: DeltaSink) -> None:
    sink.create(query("app"), support_schema())
    sink.look(query("app"))


def support_schema() -> Any:
    from pyspark.sql.types import StructType

    return StructType().add("id", "string")


@pytest.mark.remedy("table=… names no schema", "give table='schema.name', and name=…, the name of the sink so far")
@pytest.mark.remedy(
    "table=… is no name of a table in Spark's session catalog",
    "give table='schema.name'; a table of another catalog by its path",
)
@pytest.mark.remedy(
    "… is no Delta table", "give table= the name of a Delta table, or give the path of one in its place"
)
@pytest.mark.remedy("there is no Delta table …", "call pipeline.create(schema) once")
def test_another_name_in_the_catalog(spark: SparkSession, folder: Path) -> None:
    spark.sql("CREATE VIEW lake.viewed AS SELECT 1 AS id")
    for refused_as in ("flights", "other.lake.flights", "lake.viewed", "lake.flights"):
        with pytest.raises(Misconfigured):
            DeltaSink(table=refused_as, name="out").look(query("app"))
    looked(DeltaSink(table="lake.flights", name="out"))
    DeltaSink(str(folder / "flights"), name="out").look(query("app"))


@pytest.mark.usefixtures("spark")
@pytest.mark.remedy(
    "DeltaSink(…, table=…) names …", "give the path of the table, or table='schema.name' as Spark's catalog has it"
)
def test_a_sink_is_given_one_table(folder: Path) -> None:
    for path, table in ((None, None), (str(folder / "t"), "lake.t")):
        with pytest.raises(Misconfigured):
            DeltaSink(path, table=table)
    looked(DeltaSink(table="lake.t"))
    looked(DeltaSink(str(folder / "t")))


# --- the session ---------------------------------------------------------------------------------


@pytest.mark.remedy(
    "there is no Spark session in this process, and DeltaSink needs one",
    "start a SparkSession (not Spark Connect) before the sink is used",
)
@pytest.mark.usefixtures("spark")
def test_a_session_that_is_started_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(jvm, "running_session", lambda: None)
        with pytest.raises(Misconfigured, match="there is no Spark session"):
            looked(DeltaSink(str(path), name="out"))
    looked(DeltaSink(str(path), name="out"))


@pytest.mark.remedy(
    "the Spark session has no Delta",
    "start it with spark.jars.packages=… spark.sql.extensions=… spark.sql.catalog.spark_catalog=…",
)
@pytest.mark.remedy("the Spark session has no Delta", "use Spark …, because no release of Delta is made for Spark …")
@pytest.mark.remedy("Delta … on the Spark session is not one that this Epochal was tried with", "use Delta …")
def test_the_settings_of_the_help_are_those_of_a_session_that_is_taken(
    spark: SparkSession, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "_passed", set())
    with monkeypatch.context() as patch:
        patch.setattr(self_test, "_METHODS", {"LogSegment": {"lastCommit/0"}})
        with pytest.raises(Misconfigured) as other:
            looked(DeltaSink(str(path), name="out"))
    found: Any = spark._jvm
    assert other.value.help == f"use Delta {found.io.delta.package.VERSION()}"
    before = spark.conf.get("spark.sql.extensions")
    with monkeypatch.context() as patch:
        patch.setattr(self_test, "EXTENSION", "org.example.Another")
        with pytest.raises(Misconfigured, match="the Spark session has no Delta"):
            looked(DeltaSink(str(path), name="out"))
    told = self_test._no_delta(spark, "out", "").help
    settings = dict(setting.split("=", 1) for setting in told.removeprefix("start it with ").split())
    assert settings.pop("spark.jars.packages").split(",") == list(versions.delta_jars(spark.version).coordinates)
    assert settings == {name: spark.conf.get(name) for name in settings}
    assert settings["spark.sql.extensions"] == before
    with monkeypatch.context() as patch:
        patch.setattr(versions, "SERIES", [replace(each, delta=None) for each in versions.SERIES])
        told = self_test._no_delta(spark, "out", "").help
    assert told.startswith(f"use Spark {versions.PYSPARK}, because no release of Delta is made for Spark ")
    looked(DeltaSink(str(path), name="out"))


# --- without Spark -------------------------------------------------------------------------------


@pytest.mark.remedy("there is no Delta table at …", "call pipeline.create(schema) once")
@pytest.mark.remedy(
    "the Delta table at … cannot be read without Spark: …",
    "make it reachable from here (path, rights, credentials), or ask from a process with a SparkSession",
)
@pytest.mark.usefixtures("spark")
def test_a_table_that_delta_rs_is_given(path: Path) -> None:
    target = Target.of(str(path), None)
    with pytest.raises(Misconfigured, match="there is no Delta table at"):
        Snapshot(target, "out")
    looked(DeltaSink(str(path), name="out"))
    assert Snapshot(target, "out").version == 0
    shutil.move(path / "_delta_log", path / "unreachable")
    (path / "_delta_log").mkdir()
    (path / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(SinkUnavailable, match="cannot be read without Spark"):
        _ = Snapshot(target, "out").version
    shutil.rmtree(path / "_delta_log")
    shutil.move(path / "unreachable", path / "_delta_log")
    assert Snapshot(target, "out").version == 0


# --- between the epochs --------------------------------------------------------------------------


@pytest.fixture
def start(spark: SparkSession, path: Path, rows: DataFrame) -> Start:
    DeltaSink(str(path), name="out").create(query("app"), rows.schema)
    return Start(spark, path).fenced()


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(ROW).coalesce(1)


@pytest.mark.remedy(
    "the epoch was prepared for the table …, and the table is … now",
    "put the table of before back in its place (its folder, or its name in the catalog), and start again",
)
def test_a_table_that_was_made_again_is_put_back(
    spark: SparkSession, path: Path, start: Start, rows: DataFrame
) -> None:
    vote = start.prepare(rows)
    path.rename(path.with_name("before"))
    support.forget_snapshots(spark)
    start.sink.create(query("app"), rows.schema)
    with pytest.raises(CheckpointMismatch):
        Start(spark, path).fenced().commit(vote)
    path.rename(path.with_name("again"))
    path.with_name("before").rename(path)
    support.forget_snapshots(spark)
    Start(spark, path).commit(vote)
    assert support.column(path, "id") == ["a"]


@pytest.mark.remedy(
    "Delta refuses to write to the table",
    "let a client that knows them take them out of the table (ALTER TABLE ... DROP FEATURE); start again",
)
def test_a_feature_of_a_newer_delta_is_taken_out(
    spark: SparkSession, path: Path, start: Start, rows: DataFrame
) -> None:
    features = ["appendOnly", "invariants"]
    known = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    support.upgrade(spark, path, {**known, "writerFeatures": [*features, "of-the-future"]})
    with pytest.raises(Misconfigured, match="refuses to write"):
        start.sink.check(query("app"), rows.schema)
    with pytest.raises(PrepareRefused, match="refuses to write"):
        start.prepare(rows)
    support.upgrade(spark, path, known)
    start.sink.check(query("app"), rows.schema)
    start.show(rows)


@pytest.mark.remedy(
    "Delta refuses to read the table",
    "change the table, the session or the sink's arguments as Delta's message asks (State:); start again",
)
def test_a_table_whose_log_lacks_a_version(spark: SparkSession, path: Path, start: Start, rows: DataFrame) -> None:
    start.show(rows)
    lost = path / "_delta_log" / f"{1:020}.json"
    lost.rename(path / "lost")
    support.forget_snapshots(spark)
    with pytest.raises(Misconfigured) as refused:
        Start(spark, path)
    assert "not contiguous" in str(refused.value.state)
    (path / "lost").rename(lost)
    support.forget_snapshots(spark)
    Start(spark, path).show(rows, 2)
    assert support.column(path, "id") == ["a", "a"]


@pytest.mark.remedy(
    "a sink that merges has no durable copy to merge", "leave the epoch to epochal.Pipeline, which makes the copy"
)
def test_a_merge_of_a_pipeline(spark: SparkSession, tmp_path: Path, path: Path) -> None:
    job = Job(spark, tmp_path / "job", sinks=())
    job.add(1, 2)
    sink = DeltaSink(str(path), name="out", mode=Merge(key="id"))
    pipeline = Pipeline(app="app", sinks=[sink])
    pipeline.create(job.df().schema)
    sink.look(query("app"))
    with pytest.raises(PrepareRefused, match="no durable copy to merge"):
        sink.prepare(Epoch(Decision("q1", 0, ONE, "f"), 1), spark.createDataFrame([], job.df().schema), ONE)
    job.run(pipeline)
    assert support.column(path, "id") == [1, 2]


@pytest.mark.remedy(
    "a file that was written is not there: …",
    "stop what deletes files in the table's folder (a clean-up, VACUUM), and restart the query",
)
def test_a_clean_up_that_deletes_what_is_written(
    spark: SparkSession, path: Path, start: Start, rows: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs when the files are written and the vote is not given yet."""
    write = Table.write

    def cleaned(table: Table, name: str, text: str) -> None:
        write(table, name, text)
        support.vacuum_everything(spark, path)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "write", cleaned)
        with pytest.raises(PrepareRefused, match="a file that was written is not there"):
            start.prepare(rows)
    Start(spark, path).fenced().show(rows)
    assert support.column(path, "id") == ["a"]


@pytest.mark.remedy(
    "no answer to a commit, and a new snapshot does not show it (yet)",
    "restart the query: it reads the marker before it writes",
)
@pytest.mark.remedy(
    "… cannot be read or written",
    "make … reachable from the driver (path, rights, credentials), then restart the query",
)
def test_a_disk_that_is_away_for_a_while(
    spark: SparkSession, path: Path, start: Start, rows: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise JavaFailure("the disk is gone", ["IOException"])

    vote = start.prepare(rows)
    with monkeypatch.context() as patch:
        patch.setattr(jvm.Transaction, "commit", broken)
        with pytest.raises(OutcomeUnknown):
            start.commit(vote)
        patch.setattr(Table, "begin", broken)
        with pytest.raises(SinkUnavailable, match="cannot be read or written"):
            Start(spark, path)
    again = Start(spark, path)
    assert again.sink.look(query("app")).marker is None
    again.commit(vote)
    assert support.column(path, "id") == ["a"]
