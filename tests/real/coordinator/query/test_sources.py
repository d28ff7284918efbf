"""What a start warns about in the query's own sources, and what it says of them in the guarantee."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable

from epochal.chaos import servers
from epochal.coordinator.query.plan import analyzed
from epochal.coordinator.query.sources import cautions
from tests.real.coordinator.query.support import Job
from tests.real.sinks.kafka.support import produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ISOLATION = "kafka.isolation.level"


@pytest.fixture
def read(spark: SparkSession, kafka_server: servers.Kafka) -> Callable[..., DataFrame]:
    """A stream of a topic, which gets one more row with each call."""
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic)

    def reading(**options: str) -> DataFrame:
        produce(kafka_server.bootstrap, topic, b"a flight")
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka_server.bootstrap)
        given = {name.replace("_", "."): value for name, value in options.items()}
        rows = source.option("subscribe", topic).option("startingOffsets", "earliest").options(**given).load()
        return rows.selectExpr("cast(offset AS long) AS id", "timestamp AS at", "cast(value AS string) AS name")

    return reading


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "epochal" and r.levelno == logging.WARNING]


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
def test_a_kafka_source_that_reads_aborted_rows_gets_a_warning(
    read: Callable[..., DataFrame],
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    v2: bool,
) -> None:
    """K4: by a check and by a start, in the words of the option, and only without it."""
    providers = "spark.sql.streaming.disabledV2MicroBatchReaders"
    before = spark.conf.get(providers, "")
    spark.conf.set(providers, "" if v2 else "org.apache.spark.sql.kafka010.KafkaSourceProvider")
    try:
        job, plain = Job(spark, tmp_path), read()
        pipeline = job.pipeline()
        pipeline.check(plain)
        job.run(pipeline, plain)
        (by_check, by_start) = said(caplog)
        assert by_check == by_start
        assert f"is read without {ISOLATION}=read_committed" in by_start
        assert f'set .option("{ISOLATION}", "read_committed")' in by_start
        assert f"* condition: {by_start}" in str(pipeline.guarantee())
        caplog.clear()
        job.run(pipeline, read(kafka_Isolation_Level="read_committed"))
        assert said(caplog) == []
        assert ISOLATION not in str(pipeline.guarantee())
    finally:
        spark.conf.set(providers, before or "")


@pytest.mark.wide
def test_a_source_that_leaves_out_what_is_gone_gets_a_warning(
    read: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """K5: and the guarantee names it."""
    job = Job(spark, tmp_path)
    pipeline = job.pipeline()
    committed = {"kafka_isolation_level": "read_committed"}
    job.run(pipeline, read(**committed, failOnDataLoss="FALSE"))
    (told,) = said(caplog)
    assert "is read with failOnDataLoss=false: what is gone before it was read is left out without an error" in told
    assert f"* condition: {told}" in str(pipeline.guarantee())
    caplog.clear()
    job.run(pipeline, read(**committed, failOnDataLoss="true"))
    assert said(caplog) == []


def told(df: DataFrame) -> list[str]:
    return cautions(analyzed(df), lambda key: df.sparkSession.conf.get(key, None))


def test_sources_of_other_kinds_that_leave_rows_out(spark: SparkSession, tmp_path: Path) -> None:
    """K5: files and tables, by an option or by a setting of the session; each source by what it reads."""
    job = Job(spark, tmp_path)
    reader = spark.readStream.schema("id long")
    assert told(job.df()) == []
    for option in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        (by_option,) = told(reader.option(option, "true").json(str(job.source)))
        assert by_option.startswith(f"source json {job.source} is read with {option}=true: rows of files that ")
        setting = f"spark.sql.files.{option}"
        before = spark.conf.get(setting)
        spark.conf.set(setting, "true")
        try:
            (by_setting,) = told(job.df())
        finally:
            spark.conf.set(setting, str(before))
        assert f"is read with {option}=true" in by_setting
        reader = spark.readStream.schema("id long")
    table = str(tmp_path / "table")
    DeltaTable.create(spark).location(table).addColumn("id", "long").execute()
    delta = spark.readStream.format("delta")
    assert told(delta.load(table)) == []
    found = told(delta.options(failOnDataLoss="false", skipChangeCommits="true").load(table))
    assert ["failOnDataLoss=false" in found[0], "skipChangeCommits=true" in found[1], len(found)] == [True, True, 2]


def test_a_source_that_cannot_read_a_row_twice(spark: SparkSession) -> None:
    (found,) = told(spark.readStream.format("socket").options(host="127.0.0.1", port=1).load())
    assert found.startswith("source socket cannot read a row twice")


def test_each_source_of_a_join_is_seen(read: Callable[..., DataFrame], spark: SparkSession) -> None:
    """K4: a source that does not stream has no offsets, and is not meant."""
    both = read().union(read(kafka_isolation_level="read_committed", failOnDataLoss="false"))
    assert len(told(both.join(spark.range(3), "id"))) == 2
