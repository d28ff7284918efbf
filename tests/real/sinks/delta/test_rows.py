"""What goes in comes out, exactly, or is refused by name; and the rows are evaluated once."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from epochal.coordinator.model.epoch import Committable, Decision, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.delta import DeltaSink
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark import settings
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, query

ALL_TYPES = """
    i long, s string, b boolean, y byte, h short, n int, f float, d double, x binary, m decimal(38,10),
    w decimal(38,0), day date, t timestamp, z timestamp_ntz, a array<string>, k map<string,int>,
    r struct<p:int,q:array<struct<u:string>>>
"""
UTC = dt.timezone.utc
ROWS: list[tuple[Any, ...]] = [
    (
        1,
        "quote ' \" back\\slash \t tab \n line \r \0 nul 😀 \U0010fffd é",
        True,
        -128,
        -(2**15),
        -(2**31),
        math.inf,
        -math.inf,
        bytes(range(256)),
        Decimal("9999999999999999999999999999.9999999999"),
        Decimal(10**38 - 1),
        dt.date(1, 1, 1),
        dt.datetime(1, 1, 3, tzinfo=UTC),
        dt.datetime(1, 1, 1),
        ["", None, "x"],
        {"k": 1, "": None},
        (1, [("u",), None]),
    ),
    (
        2,
        "",
        False,
        127,
        2**15 - 1,
        2**31 - 1,
        1.5,
        5e-324,
        b"",
        Decimal("-0.0000000001"),
        Decimal(-1),
        dt.date(1582, 10, 10),
        dt.datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        [],
        {},
        (None, []),
    ),
    (3, *[None] * 16),
]
COLUMNS = ["i", "s", "b", "y", "h", "n", "f", "d", "x", "m", "w", "day", "t", "z", "a", "k", "r"]


def sink_at(path: Path, schema: StructType | None = None) -> DeltaSink:
    """The sink of a first start: table made if there is a schema, looked, fenced."""
    sink = DeltaSink(str(path), name="out")
    if schema is not None:
        assert sink.create(query("app"), schema) == [f"created Delta table {path}"]
        assert sink.create(query("app"), schema) == []
    sink.look(query("app"))
    sink.fence(query("app"), ONE)
    return sink


def prepare(sink: DeltaSink, rows: DataFrame, position: int = 1) -> Committable:
    return sink.prepare(Epoch(Decision("q1", position - 1, ONE, "f"), position), rows, ONE)


def independent(path: Path) -> list[dict[str, Any]]:
    """The rows as pyarrow reads the files that delta-rs lists; Spark's timestamps are INT96, years 1 to 9999."""
    files = support.live_files(path)
    tables = [pq.read_table(path / file, coerce_int96_timestamp_unit="us") for file in files]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return sorted(rows, key=lambda row: row["i"])


def test_every_type_comes_out_as_it_went_in(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame(ROWS, ALL_TYPES)
    sink = sink_at(tmp_path / "t", rows.schema)
    sink.check(query("app"), rows.schema)
    assert sink.commit(prepare(sink, rows), ONE) is CommitOutcome.COMMITTED
    seen = independent(tmp_path / "t")
    assert len(seen) == 3
    for want, row in zip(ROWS, seen, strict=True):
        expected = dict(zip(COLUMNS, want, strict=True))
        if expected["r"] is not None:
            p, q = expected["r"]
            expected["r"] = {"p": p, "q": [None if u is None else {"u": u[0]} for u in q]}
        if expected["k"] is not None:
            expected["k"], row["k"] = dict(expected["k"]), dict(row["k"])  # a map has no order
        if row["t"] is not None:
            row["t"] = row["t"].replace(tzinfo=UTC)
        assert row == expected


def test_nan_is_held(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1, math.nan)], "i long, d double")
    sink = sink_at(tmp_path / "t", rows.schema)
    sink.commit(prepare(sink, rows), ONE)
    assert math.isnan(independent(tmp_path / "t")[0]["d"])


def test_columns_are_reordered_by_name_and_widened(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(tmp_path / "t", StructType().add("i", "long").add("s", "string").add("d", "double"))
    sink.commit(prepare(sink, spark.createDataFrame([("x", 1)], "S string, I int")), ONE)
    assert support.read(tmp_path / "t").to_pylist() == [{"i": 1, "s": "x", "d": None}]


def test_the_rows_are_evaluated_once(spark: SparkSession, tmp_path: Path) -> None:
    evaluated = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            evaluated.add(batch.num_rows)
            yield batch

    rows = spark.range(0, 1000, numPartitions=3).toDF("i").mapInArrow(count, "i long")
    sink = sink_at(tmp_path / "t", StructType().add("i", LongType()))
    committable = prepare(sink, rows)
    sink.commit(committable, ONE)
    assert committable.rows == 1000
    assert evaluated.value == 1000


def test_rows_are_counted_without_statistics(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(tmp_path / "t", StructType().add("i", LongType()))
    spark.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        committable = prepare(sink, spark.range(0, 70, numPartitions=2).toDF("i"))
    finally:
        spark.conf.unset("spark.databricks.delta.stats.collect")
    assert committable.rows == 70
    assert all("numRecords" not in (add.get("stats") or "") for add in committable.payload["adds"])


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("select 1L i, 'x' extra", "column extra: the table has no such column"),
        ("select 'x' i", "column i: the rows have string, the table has bigint"),
        ("select cast(null as bigint) i", "violate a constraint"),
    ],
)
def test_rows_that_do_not_fit_are_a_vote_of_no(spark: SparkSession, tmp_path: Path, rows: str, named: str) -> None:
    sink = sink_at(tmp_path / "t", StructType().add("i", LongType(), nullable=False).add("j", "string"))
    with pytest.raises(PrepareRefused, match=named):
        prepare(sink, spark.sql(rows))


def test_what_can_never_work_is_refused_at_start(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    schema = StructType().add("i", LongType())
    sink = DeltaSink(str(path), name="out")
    with pytest.raises(Misconfigured, match="no Delta table at"):
        sink.check(query("app"), schema)
    with pytest.raises(Misconfigured, match="cannot hold void"):
        sink.create(query("app"), StructType().add("v", NullType()))
    sink.create(query("app"), schema)
    sink.check(query("app"), schema)
    with pytest.raises(Misconfigured, match="column s: the table has no such column"):
        sink.check(query("app"), StructType().add("s", StringType()))
    support.sql(
        spark, path, "ALTER TABLE {t} SET TBLPROPERTIES (delta.setTransactionRetentionDuration='interval 1 day')"
    )
    with pytest.raises(Misconfigured, match="forget the marker"):
        sink.check(query("app"), schema)


def test_an_identity_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark.sql(f"CREATE TABLE delta.`{path}` (i bigint, n bigint GENERATED ALWAYS AS IDENTITY) USING delta")
    with pytest.raises(Misconfigured, match="identity column"):
        DeltaSink(str(path)).check(query("app"), StructType().add("i", LongType()))


def test_a_table_feature_that_delta_does_not_know_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    schema = StructType().add("i", LongType())
    sink = DeltaSink(str(path), name="out")
    sink.create(query("app"), schema)
    features = ["appendOnly", "of-the-future"]
    support.upgrade(spark, path, {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features})
    with pytest.raises(Misconfigured, match="refuses to write"):
        sink.check(query("app"), schema)


@pytest.mark.wide
def test_generated_columns_and_row_tracking_are_deltas_own_business(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (i bigint, g bigint GENERATED ALWAYS AS (i + 1)) USING delta "
        "TBLPROPERTIES (delta.enableRowTracking = true)"
    )
    sink = sink_at(path)
    for position in (1, 2):
        sink.commit(prepare(sink, spark.range(2).toDF("i"), position), ONE)
    found = spark.sql(f"SELECT i, g, _metadata.row_id AS row FROM delta.`{path}`").collect()
    assert sorted((row.i, row.g) for row in found) == [(0, 1), (0, 1), (1, 2), (1, 2)]
    assert len({row.row for row in found}) == 4


def test_a_sink_is_plain_data(tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(DeltaSink(f"{tmp_path}/flights.delta/", partition_by=["i"])))
    assert again.name == "delta-flights.delta"


def test_without_a_spark_session_it_says_so() -> None:
    code = (
        "from epochal.sinks.delta import DeltaSink; from epochal.coordinator.model.epoch import Actor, Query\n"
        "DeltaSink('t').fence(Query('app', 'q', 'r', ''), Actor(1, 1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "Misconfigured: sink 'delta-t': there is no Spark session" in done.stderr


@pytest.mark.wide
def test_a_session_without_delta_is_told_which_jars() -> None:
    code = (
        "from pyspark.sql import SparkSession; from epochal.chaos.servers.spark import prepare_environment\n"
        "from epochal.sinks.delta import DeltaSink; from epochal.coordinator.model.epoch import Query\n"
        "prepare_environment()\n"
        "SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "DeltaSink('t').look(Query('app', 'q', 'r', ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False)
    assert "the Spark session has no Delta" in done.stderr
    assert "State: Delta's classes are not there" in done.stderr
    assert "io.delta:delta-spark_4.2_2.13:" in done.stderr


def test_select_and_where_make_the_table_and_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The table has the projected columns, and a value without a result refuses the epoch."""
    sink = DeltaSink(str(tmp_path / "t"), name="out", select=["id", "10 / n AS q"], where="id <> 'c'")
    rows = spark.createDataFrame([("a", 4), ("b", 5), ("c", 0)], "id string, n int")
    sink.create(query("app"), rows.schema)
    sink.check(query("app"), rows.schema)
    sink.look(query("app"))
    sink.fence(query("app"), ONE)
    vote = prepare(sink, rows)
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert (vote.rows, vote.left_out) == (2, 1)
    found = support.read(tmp_path / "t").sort_by("id").to_pylist()
    assert found == [{"id": "a", "q": 2.5}, {"id": "b", "q": 2.0}]
    with pytest.raises(PrepareRefused, match="has no result for a row of the epoch"):
        prepare(sink, spark.createDataFrame([("d", 0)], "id string, n int"), 2)


@pytest.mark.usefixtures("spark")
def test_a_table_that_delta_does_not_make_is_told_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    path = tmp_path / "file" / "t"
    with pytest.raises(Misconfigured, match=f"Delta cannot create the table {path}"):
        DeltaSink(str(path), name="out").create(query("app"), StructType().add("i", LongType()))


@pytest.mark.usefixtures("spark")
def test_a_table_is_created_without_the_python_package_of_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its versions are tied to those of PySpark, so it is often not there."""
    monkeypatch.setitem(sys.modules, "delta", None)
    monkeypatch.setitem(sys.modules, "delta.tables", None)
    sink = DeltaSink(str(tmp_path / "t"), name="out")
    assert sink.create(query("app"), StructType().add("i", LongType()))


def test_a_path_is_made_as_it_is_spelled(tmp_path: Path, spark: SparkSession) -> None:
    """Delta itself refuses braces and backticks in a path."""
    path = tmp_path / "$spark.app.name 'it'"
    schema = StructType([StructField("n", LongType(), False), StructField("a`b", StringType())])
    sink = DeltaSink(str(path), name="out", partition_by=["a`b"])
    assert sink.create(query("app"), schema) == [f"created Delta table {path}"]
    assert DeltaTable(str(path)).metadata().partition_columns == ["a`b"]
    found = spark.read.format("delta").load(str(path)).schema
    assert [(field.name, field.nullable) for field in found] == [("n", False), ("a`b", True)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.parser.escapedStringLiterals", "true"),
        ("spark.sql.ansi.enforceReservedKeywords", "true"),
        ("spark.sql.parser.quotedRegexColumnNames", "true"),
    ],
)
def test_no_setting_gives_the_columns_of_a_new_table_another_meaning(
    tmp_path: Path, spark: SparkSession, setting: str, value: str
) -> None:
    """What else a column has, such as a comment, stays."""
    inner = StructType([StructField("order", TimestampType(), False, {"comment": "it's `a\\b`"})])
    fields = [
        StructField("select", TimestampType(), False, {"comment": "it's `a\\b`"}),
        StructField("nested", MapType(StringType(), ArrayType(inner))),
        StructField("name", StringType(), True, {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
    ]
    with settings.held(spark, {setting: value}):
        DeltaSink(str(tmp_path / "t"), name="out").create(query("app"), StructType(fields))
    found = json.loads(DeltaTable(str(tmp_path / "t")).schema().to_json())["fields"]
    loosened = {"name": "order", "type": "timestamp", "nullable": True, "metadata": {"comment": "it's `a\\b`"}}
    assert [(field["name"], field["nullable"], field["metadata"]) for field in found] == [
        ("select", False, {"comment": "it's `a\\b`"}),
        ("nested", True, {}),
        ("name", True, {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
    ]
    assert found[0]["type"] == "timestamp"
    assert found[1]["type"]["valueType"]["elementType"]["fields"] == [loosened]
