"""A table by its name in Spark's session catalog."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from epochal.chaos.demo.jobs import jdbc_url
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured
from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite
from epochal.sinks.delta.modes import Mode
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import Start, query

SHAPE = "id string, n bigint"


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """That of a database called `lake`."""
    spark.sql(f"CREATE DATABASE lake LOCATION '{tmp_path}/lake'")
    yield tmp_path / "lake"
    spark.sql("DROP DATABASE lake CASCADE")


def sink(**options: Any) -> DeltaSink:
    return DeltaSink(table="lake.flights", name="out", **options)


def test_a_table_is_made_and_written_by_its_name(spark: SparkSession, folder: Path) -> None:
    options: dict[str, Any] = {"mode": Merge(key="id"), "merge_schema": True}
    rows = spark.createDataFrame([("a", 1)], SHAPE).coalesce(1)
    with pytest.raises(Misconfigured, match=r"there is no Delta table called lake\.flights"):
        sink().look(query("app"))
    assert sink(**options).create(query("app"), rows.schema) == ["created Delta table lake.flights"]
    assert sink(**options).create(query("app"), rows.schema) == []
    sink(**options).check(query("app"), rows.schema)
    start = Start(spark, folder / "flights", sink=sink(**options)).fenced()
    start.show(rows)
    start.show(spark.createDataFrame([("a", 2), ("b", 2)], SHAPE).selectExpr("*", "'x' AS more").coalesce(1), 2)
    assert support.read(folder / "flights").sort_by("id").to_pylist() == [
        {"id": "a", "n": 2, "more": "x"},
        {"id": "b", "n": 2, "more": "x"},
    ]
    assert [row.n for row in spark.sql("SELECT n FROM lake.flights").collect()] == [2, 2]


ELSEWHERE = "spark.sql.catalog.elsewhere"


@pytest.fixture
def elsewhere(spark: SparkSession, pg_database: str) -> Iterator[str]:
    """The current catalog is a Postgres database, which has a table of that name, too."""
    with psycopg.connect(pg_database) as connection:
        connection.execute("CREATE SCHEMA lake")
        connection.execute("CREATE TABLE lake.flights (id text, n bigint)")
    settings = {
        "": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        ".url": jdbc_url(pg_database),
        ".driver": "org.postgresql.Driver",
    }
    for key, value in settings.items():
        spark.conf.set(ELSEWHERE + key, value)
    spark.sql("SET CATALOG elsewhere")  # by a statement, as the API asks the settings of the thread's active session
    spark.conf.set("spark.sql.defaultCatalog", "elsewhere")  # of clones of the session
    yield pg_database
    spark.conf.unset("spark.sql.defaultCatalog")
    spark.sql("SET CATALOG spark_catalog")
    for key in settings:
        spark.conf.unset(ELSEWHERE + key)


@pytest.mark.parametrize("mode", [Append(), Merge(key="id")], ids=["append", "merge"])
def test_it_is_that_of_the_session_catalog_whichever_is_the_current_one(
    spark: SparkSession, folder: Path, elsewhere: str, mode: Mode
) -> None:
    rows = spark.createDataFrame([("a", 1)], SHAPE).coalesce(1)
    made = sink(mode=mode, merge_schema=True)
    assert made.create(query("app"), rows.schema) == ["created Delta table lake.flights"]
    start = Start(spark, folder / "flights", sink=made).fenced()
    start.show(rows.selectExpr("*", "'x' AS more"))
    assert support.read(folder / "flights").to_pylist() == [{"id": "a", "n": 1, "more": "x"}]
    with psycopg.connect(elsewhere) as connection:
        columns = connection.execute("SELECT * FROM lake.flights").description
    assert columns is not None
    assert [column.name for column in columns] == ["id", "n"]


@pytest.mark.parametrize("mode", [Append(), Overwrite(), Merge(key="id")], ids=["append", "overwrite", "merge"])
def test_a_table_that_was_made_again_under_the_name_is_another_one(
    spark: SparkSession, folder: Path, mode: Mode
) -> None:
    rows = spark.createDataFrame([("a", 1)], SHAPE).coalesce(1)
    sink().create(query("app"), rows.schema)
    start = Start(spark, folder / "flights", sink=sink(mode=mode)).fenced()
    vote = start.prepare(rows)
    spark.sql("DROP TABLE lake.flights")
    start.sink.create(query("app"), rows.schema)
    start.fenced()
    with pytest.raises(CheckpointMismatch, match="was prepared for the table delta:"):
        start.commit(vote)
    assert support.column(folder / "flights", "id") == []


def test_what_is_no_delta_table_of_the_session_catalog_is_refused(spark: SparkSession, folder: Path) -> None:
    spark.sql("CREATE TABLE lake.parquet (id string) USING parquet")
    spark.sql("CREATE VIEW lake.viewed AS SELECT 1 AS id")
    for table, why in (
        ("lake.parquet", "is no Delta table"),
        ("lake.viewed", "is no Delta table"),
        ("other.lake.flights", "is no name of a table in Spark's session catalog"),
        ("no such lake.flights", "is no name of a table in Spark's session catalog"),
        ("flights", "table='flights' names no schema"),
        ("nowhere.flights", "there is no Delta table called nowhere.flights"),
    ):
        with pytest.raises(Misconfigured, match=why):
            DeltaSink(table=table, name="out").look(query("app"))
    assert folder.exists()


@pytest.mark.usefixtures("spark")
def test_who_follows_the_refusal_of_a_bare_name_keeps_the_name_of_the_sink() -> None:
    """Under another one its markers would not be found."""
    with pytest.raises(Misconfigured) as refused:
        DeltaSink(table="flights").look(query("app"))
    assert refused.value.help == "give table='schema.name', and name='delta-flights', the name of the sink so far"


def test_a_sink_names_one_table(tmp_path: Path) -> None:
    for path, table, why in ((None, None, "names no table"), (str(tmp_path), "t", "names two tables")):
        with pytest.raises(Misconfigured, match=why):
            DeltaSink(path, table=table)
    again = pickle.loads(pickle.dumps(DeltaSink(table="`the lake`.flights")))
    assert (again.name, repr(again)) == (
        "delta-_the_lake_.flights",
        "DeltaSink(table='`the lake`.flights', name='delta-_the_lake_.flights')",
    )
