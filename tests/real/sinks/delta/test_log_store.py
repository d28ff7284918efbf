"""The start finds out which log store writes a table's versions, and refuses one that loses them.

Hadoop's own ``ViewFileSystemOverloadScheme`` shows a folder of this disk under any scheme, so no store is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.delta import DeltaSink, jvm
from epochal.sinks.delta.log_store import LogStore
from tests.real.sinks.delta.support import forget_snapshots, query

ROWS = StructType().add("id", "string")
JAVA = "io.delta.storage."
OVERLOADED = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
Choose = Callable[[str, str], None]


@pytest.fixture
def choose(spark: SparkSession) -> Iterator[Choose]:
    """Set a setting of the Spark application, as if it had been started with it."""
    java: Any = spark._jvm
    conf = java.org.apache.spark.SparkEnv.get().conf()
    own = spark.sparkContext._jsc.sc().conf()
    chosen = []

    def setting(key: str, value: str) -> None:
        chosen.append(key)
        for each in (conf, own):
            each.set(key, value)
        forget_snapshots(spark)

    yield setting
    for key in chosen:
        for each in (conf, own):
            each.remove(key)
    forget_snapshots(spark)


@pytest.fixture
def at(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Show this test's folder under a scheme; return the path of a table there."""
    schemes = []

    def path(scheme: str) -> str:
        schemes.append(scheme)
        for key, value in _overloading(scheme, tmp_path).items():
            spark.conf.set(key, value)
        return f"{scheme}://here/tables/t"

    yield path
    for scheme in schemes:
        for key in _overloading(scheme, tmp_path):
            spark.conf.unset(key)


def _overloading(scheme: str, folder: Path) -> dict[str, str]:
    return {
        f"fs.{scheme}.impl": OVERLOADED,
        f"fs.{scheme}.impl.disable.cache": "true",
        f"fs.viewfs.overload.scheme.target.{scheme}.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.viewfs.mounttable.here.link./tables": f"file:{folder}",
    }


def checked(path: str) -> DeltaSink:
    sink = DeltaSink(path, name="out")
    sink.create(query("app"), ROWS)
    sink.check(query("app"), ROWS)
    return sink


def test_a_table_on_this_disk_has_deltas_store_for_files(spark: SparkSession, tmp_path: Path) -> None:
    promise = checked(str(tmp_path / "t")).guarantee()
    assert f"Delta's log store here is {JAVA}HDFSLogStore (scheme file)." in promise
    assert "Condition: no two drivers commit to this table in the same instant" in promise
    assert jvm.Table(spark, str(tmp_path / "t")).log_store() == LogStore(JAVA + "HDFSLogStore", "file")


@pytest.mark.usefixtures("spark")
def test_the_doctor_tells_it(tmp_path: Path) -> None:
    pipeline = Pipeline(app="app", sinks=[checked(str(tmp_path / "t"))])
    [finding] = [each for each in pipeline.doctor(schema=ROWS).findings if each.what == "log store"]
    assert finding.value.startswith(f"Delta's log store here is {JAVA}HDFSLogStore (scheme file).")


def test_on_s3_deltas_own_choice_is_one_driver_at_a_time(at: Callable[[str], str]) -> None:
    promise = checked(at("s3a")).guarantee()
    assert f"Delta's log store here is {JAVA}S3SingleDriverLogStore (scheme s3a)." in promise
    assert "Condition: one driver at a time writes this table" in promise


def test_a_name_in_the_catalog_is_asked_by_its_path(spark: SparkSession, at: Callable[[str], str]) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS stored")
    spark.sql(f"CREATE TABLE stored.t (id STRING) USING delta LOCATION '{at('s3a')}'")
    try:
        sink = DeltaSink(table="stored.t", name="out")
        assert f"{JAVA}S3SingleDriverLogStore (scheme s3a)." in sink.guarantee()
    finally:
        spark.sql("DROP DATABASE stored CASCADE")
    assert "Where a Spark session with Delta runs, guarantee() names the log store" in sink.guarantee()


@pytest.mark.remedy(
    "Delta's log store … loses versions of tables with the scheme …",
    "start the session without spark.delta.logStore.class and",
)
@pytest.mark.parametrize("name", ["HDFSLogStore", "LocalLogStore", "AzureLogStore", "GCSLogStore"])
def test_a_store_that_loses_versions_on_s3_is_refused(name: str, at: Callable[[str], str], choose: Choose) -> None:
    path = at("s3a")
    sink = checked(path)
    choose("spark.delta.logStore.s3a.impl", JAVA + name)
    with pytest.raises(Misconfigured) as refused:
        sink.check(query("app"), ROWS)
    assert str(refused.value) == (
        f"sink 'out': Delta's log store {JAVA}{name} loses versions of tables with the scheme s3a\n"
        f"  State: Delta table {path}: on S3 it looks for the version, and then overwrites one that came in"
        " between\n"
        "  Help: start the session without spark.delta.logStore.class and spark.delta.logStore.s3a.impl, or set the"
        " latter to a log store that is made for this scheme"
    )
    choose("spark.delta.logStore.s3a.impl", JAVA + "S3SingleDriverLogStore")
    sink.check(query("app"), ROWS)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("package", [JAVA, "org.apache.spark.sql.delta.storage."])
def test_one_for_all_schemes_is_seen_too(package: str, tmp_path: Path, choose: Choose) -> None:
    sink = checked(str(tmp_path / "t"))
    choose("spark.delta.logStore.class", package + "S3SingleDriverLogStore")
    with pytest.raises(
        Misconfigured, match=f"{package}S3SingleDriverLogStore loses versions of tables with the scheme file"
    ):
        sink.check(query("app"), ROWS)


def test_one_that_nobody_knows_is_a_warning(
    at: Callable[[str], str], choose: Choose, caplog: pytest.LogCaptureFixture
) -> None:
    choose("spark.delta.logStore.elsewhere.impl", JAVA + "LocalLogStore")
    promise = checked(at("elsewhere")).guarantee()
    told = f"Delta's log store here is {JAVA}LocalLogStore (scheme elsewhere). Epochal does not know"
    assert told in promise
    assert f"sink out: {told}" in caplog.text
