"""What the user's session says of Parquet, time, JSON, case, padding or ANSI changes no value in any sink."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Actor, Decision, Epoch, Query
from epochal.coordinator.model.errors import EpochalError
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.delta import Append, Merge, Overwrite
from epochal.sinks.postgres import Upsert
from epochal.sinks.protocol import RedoSink, Sink
from epochal.sinks.spark.stage import SparkStage, local_path
from epochal.sinks.spark.types import relaxed
from tests.databases import Databases
from tests.real.sinks.delta import support as delta
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.postgres.support import observe
from tests.real.sinks.settings import under

ONE = Actor(1, 11)
QUERY = Query("settings", "q1", "r1", "file:/checkpoint")
JUDGED = tomli.loads(Path(__file__).with_name("judged_settings.toml").read_text())
TOUCHES = re.compile(JUDGED["touches"], re.IGNORECASE)

ROWS = """
SELECT id, concat('k', id) AS k, if(id = 2, NULL, named_struct('a', id, 'b', 'x')) AS s,
  map('z', 1.50BD, 'a', CAST(NULL AS DECIMAL(3,2))) AS m, array(date'1000-01-01', date'1582-10-10', NULL) AS l,
  named_struct('at', timestamp'1000-01-01 00:00:00.000001Z', 'n', timestamp_ntz'1000-01-01 00:00:00.000001') AS t,
  date'0001-01-01' AS day, timestamp'0001-01-03 00:00:00.123456Z' AS old,
  timestamp'2013-03-10 07:30:00.123456Z' AS at, timestamp'2024-07-01 00:00:00.5Z' AS part,
  timestamp_ntz'1582-10-10 00:00:00.123456' AS n, 12345678901234567.89BD AS big, 0.1D AS d, -0.0F AS f,
  X'00FF' AS bytes, 'a b ' AS blank, '' AS nothing, CAST(NULL AS STRING) AS none
FROM VALUES (1L), (2L) AS ids(id)
"""
"""Rows whose values a setting could change: old days, microseconds, NULL beside structs of NULLs, blanks at the end."""


class Sinks:
    """A durable copy and one sink of every kind and mode; each epoch writes the same rows."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str, kafka: servers.Kafka) -> None:
        self.spark, self.folder, self.kafka, self.dsn = spark, folder, kafka, dsn
        self.topic = f"settings-{folder.name}"
        self.stage = SparkStage(f"file:{folder}/checkpoint", lambda: spark)
        made = spark.sql(ROWS)
        self.rows = spark.createDataFrame(made.rdd, cast("StructType", relaxed(made.schema))).coalesce(1)
        self.position = 0
        self.sinks: dict[str, Sink] = {
            "postgres": PostgresSink(dsn, table="settings", mode=Upsert(key="id"), name="pg"),
            "kafka": KafkaSink(kafka.bootstrap, topic=self.topic, name="kafka", key="k"),
            "append": DeltaSink(str(folder / "append"), name="append", mode=Append()),
            "parts": DeltaSink(str(folder / "parts"), name="parts", mode=Overwrite(), partition_by=["part"]),
            "merge": DeltaSink(str(folder / "merge"), name="merge", mode=Merge(key="k")),
        }
        for sink in self.sinks.values():
            sink.create(QUERY, self.rows.schema)
            sink.look(QUERY)
            sink.fence(QUERY, ONE)

    def write(self) -> dict[str, Any]:
        """One epoch in all of them; what an outside reader sees of it, or the class of the error that refuses it."""
        self.position += 1
        copy = self.stage.write(self.position, ONE, self.rows)
        seen: dict[str, Any] = {"copy": self._copied(local_path(copy.root) or "")}
        for name, sink in self.sinks.items():
            decision = Decision("q1", self.position, ONE, f"f{self.position}")
            epoch = Epoch(decision, self.position, "{}", copy=copy)
            rows = self.stage.read(copy) if isinstance(sink, RedoSink) else self.rows
            try:
                sink.check(QUERY, self.rows.schema)
                sink.commit(
                    sink.prepare(epoch if isinstance(sink, RedoSink) else replace(epoch, copy=None), rows, ONE), ONE
                )
            except EpochalError as error:
                seen[name] = error
                continue
            seen[name] = getattr(self, f"_{name}")()
        return seen

    def _copied(self, root: str) -> Any:
        return sorted_rows(pa.concat_tables([pq.read_table(file) for file in sorted(Path(root).glob("part-*"))]))

    def _postgres(self) -> Any:
        return observe(self.dsn, "SELECT settings::text FROM settings ORDER BY id")

    def _kafka(self) -> Any:
        return [(record.key, record.value) for record in read_topic(self.kafka.bootstrap, self.topic)[-2:]]

    def _append(self) -> Any:
        files = sorted((self.folder / "append").glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
        return sorted_rows(pq.read_table(files[-1]))

    def _parts(self) -> Any:
        return sorted_rows(delta.read(self.folder / "parts"))

    def _merge(self) -> Any:
        return sorted_rows(delta.read(self.folder / "merge"))


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


@pytest.fixture(scope="module")
def sinks(
    spark: SparkSession,
    postgres_server: servers.Postgres,
    kafka_server: servers.Kafka,
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sinks]:
    with databases.one(postgres_server) as dsn:
        yield Sinks(spark, tmp_path_factory.mktemp("sinks"), dsn, kafka_server)


@pytest.fixture(scope="module")
def expected(sinks: Sinks) -> Mapping[str, Any]:
    """What is seen under the settings of the tests' session."""
    return sinks.write()


HOSTILE = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.databricks.delta.write.utcTimestampPartitionValues": "false",
    "spark.databricks.delta.merge.preserveNullSourceStructs": "false",
    "spark.databricks.delta.table.parquetV2.timestampOutputType": "INT96",
}
"""Settings that have changed values in one sink or another."""


def test_settings_of_every_kind_at_once_change_no_value(
    spark: SparkSession, sinks: Sinks, expected: Mapping[str, Any]
) -> None:
    """D1: the microseconds were lost in Delta, and kept in the other sinks."""
    with under(spark, HOSTILE):
        seen = sinks.write()
    for name, rows in expected.items():
        assert seen[name] == rows, name


def registered(spark: SparkSession) -> dict[str, str]:
    """Name and default of every setting that Spark and Delta know and that touches what this file is about."""
    jvm: Any = spark._jvm
    getattr(getattr(jvm, "org.apache.spark.sql.delta.sources.DeltaSQLConf$"), "MODULE$")  # loads Delta's
    entries = getattr(getattr(jvm, "org.apache.spark.sql.internal.SQLConf$"), "MODULE$").getConfigEntries().toArray()
    found = {str(entry.key()): entry for entry in entries}
    return {name: str(found[name].defaultValueString()) for name in sorted(found) if TOUCHES.search(name)}


def test_every_setting_that_may_touch_a_value_was_judged(spark: SparkSession) -> None:
    """A new version of Spark or Delta may have new ones.  Try each (the next test), then write its name down."""
    assert list(registered(spark)) == sorted(JUDGED["judged"])


def values_of(spark: SparkSession, name: str, default: str) -> list[str]:
    """The other values of a setting: of two, or those that Spark's error names, or those that are written down."""
    if name in JUDGED["given"]:
        return list(JUDGED["given"][name])
    if default in ("true", "false"):
        return ["false" if default == "true" else "true"]
    with pytest.raises(Exception, match="should be one of") as refused, under(spark, {name: "no such value"}):
        pass
    listed = re.search(r"should be one of '([^']*)'", str(refused.value))
    assert listed is not None, str(refused.value)
    return [value for value in listed[1].split(", ") if value != default]


SHARDS = 12


@pytest.mark.wide
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_value_of_any_setting_changes_a_value(
    spark: SparkSession, sinks: Sinks, expected: Mapping[str, Any], shard: int
) -> None:
    """D1: one setting at a time; a sink that refuses the rows by a named error changes none."""
    tried = [item for item in registered(spark).items() if item[0] not in JUDGED["untried"]]
    wrong = []
    for name, default in tried[shard::SHARDS]:
        for value in values_of(spark, name, default):
            with under(spark, {name: value}):
                seen = sinks.write()
            refuses = JUDGED["refuses"].get(name, {}).get(value, [])
            wrong += [
                f"{name}={value}: {sink}: {seen[sink]}" for sink in expected if not same(sink, seen, expected, refuses)
            ]
    assert wrong == []


def same(sink: str, seen: Mapping[str, Any], expected: Mapping[str, Any], refuses: Sequence[str]) -> bool:
    if sink in refuses:
        return isinstance(seen[sink], EpochalError)
    return bool(seen[sink] == expected[sink])
