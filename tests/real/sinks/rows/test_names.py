"""Pipelines whose columns have hostile names: copies, digests, projections and bad rows, in all sinks at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from epochal import Pipeline
from epochal.chaos import servers
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.delta import Append, Merge
from epochal.sinks.protocol import Sink
from epochal.sinks.spark.names import column_of, quoted
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.hostile import FIRST, NAMES, SOME, day
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.postgres.support import observe
from tests.real.sinks.settings import under

TEXT, NUMBER = "text.of`it", "nan.of`it"


class Everywhere(Job):
    """Row 2 holds a text that Postgres does not take, row 3 a number that JSON does not; where= keeps out row 4."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        dsn: str,
        server: servers.Kafka,
        topic: str,
        names: Sequence[str],
    ) -> None:
        super().__init__(spark, folder, sinks=())
        self.names = names
        self.dsn, self.broker, self.topic = dsn, server, topic
        self.add(1, 2, 3, 4)
        self.add(5)

    def rows(self) -> DataFrame:
        days = [
            f.date_add(f.lit(FIRST), f.col("id").cast("int") * 1000 + n).alias(name)
            for n, name in enumerate(self.names)
        ]
        text = f.when(f.col("id") == 2, "x\0y").otherwise("t").alias(TEXT)
        return self.df().select(*days, text, f.when(f.col("id") == 3, f.lit("NaN").cast("double")).alias(NUMBER))

    def made(self, mode: str) -> Pipeline:
        rows: dict[str, Any] = {
            "select": [name for name in (*self.names, TEXT, NUMBER) if name.strip()]
            + [f"{quoted('a.b')} AS `__epochal_row`"],
            "where": f"{quoted('a`b')} < DATE'{day(4, self.names.index('a`b'))}'",
        }
        bad = DeltaSink(str(self.folder / "bad"), name="bad-of-pg")
        merge = Merge(key=[TEXT, *self.names[:9]], order_by=self.names[9:19]) if mode == "two-phase" else Append()
        sinks: list[Sink] = [
            PostgresSink(self.dsn, table="flights", name="pg", bad_rows=bad, **rows),
            KafkaSink(
                self.broker.bootstrap,
                topic=self.topic,
                name="topic",
                key=TEXT,
                bad_rows=PostgresSink(self.dsn, table="bad"),
            ),
            DeltaSink(str(self.folder / "lake"), name="lake", mode=merge),
        ]
        schema = self.rows().schema
        for name, more in (("lake", ()), ("bad", ("_sink", "_reason"))):
            table = DeltaTable.createIfNotExists(self.spark).location(str(self.folder / name))
            columns = StructType([*schema.fields])
            for one in more:
                columns = columns.add(one, "string")
            table.addColumns(columns).property("delta.columnMapping.mode", "name").execute()
        pipeline = Pipeline(app=self.topic, sinks=sinks, retry=FAST, mode=mode)
        pipeline.create(schema)
        pipeline.check(self.rows())
        return pipeline

    def of_delta(self, name: str) -> list[Any]:
        found = self.spark.read.format("delta").load(str(self.folder / name))
        return sorted(value for (value,) in found.select(column_of("a.b")).collect())


@pytest.mark.timeout(900)
@pytest.mark.wide
@pytest.mark.parametrize("names", [SOME, NAMES], ids=["some", "all"])
@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
def test_names_of_columns_change_nothing_on_the_way_to_any_sink(
    spark: SparkSession,
    tmp_path: Path,
    pg_database: str,
    kafka_server: servers.Kafka,
    topic_name: str,
    mode: str,
    names: Sequence[str],
) -> None:
    """P2, P3."""
    job = Everywhere(spark, tmp_path, pg_database, kafka_server, topic_name, names)
    of = [day(n, names.index("a.b")) for n in range(6)]
    job.run(job.made(mode), job.rows())
    assert observe(pg_database, 'SELECT "a.b", "__epochal_row" FROM flights ORDER BY 1') == [
        (of[n],) * 2 for n in (1, 3)
    ]
    assert job.of_delta("bad") == [of[2]]
    sent = [json.loads(r.value or b"")["a.b"] for r in read_topic(kafka_server.bootstrap, topic_name)]
    assert sorted(sent) == [str(of[n]) for n in (1, 2, 4, 5)]
    assert observe(pg_database, 'SELECT "a.b", _reason FROM bad') == [
        (of[3], f"JSON cannot hold the value of column {NUMBER!r} exactly")
    ]
    assert job.of_delta("lake") == of[1:]


def test_columns_that_digests_cannot_tell_apart_are_refused_at_check(spark: SparkSession, tmp_path: Path) -> None:
    """P2: in idempotent mode every column is read, whatever a sink selects."""
    job = Job(spark, tmp_path)
    job.add(1)
    twice = job.df().select("id", f.col("name").alias("ID"))
    pipeline = job.pipeline(mode="idempotent")
    with pytest.raises(Misconfigured, match="two columns are named 'id' and 'ID'"):
        pipeline.check(twice)
    with pytest.raises(StreamingQueryException, match="two columns are named"):
        job.run(pipeline, twice)


@pytest.mark.parametrize("mode", ["two-phase", pytest.param("idempotent", marks=pytest.mark.wide)])
def test_a_pattern_in_quotes_is_a_name(
    spark: SparkSession,
    tmp_path: Path,
    pg_database: str,
    kafka_server: servers.Kafka,
    topic_name: str,
    mode: str,
) -> None:
    """P3: with this setting Spark takes quoted names in texts for patterns; a name of a column stays a name."""
    job = Job(spark, tmp_path)
    job.add(1, 2)
    bad = f.when(f.col("id") == 2, "x\0y").otherwise("t")
    frame = job.df().select(
        "id", f.col("id").alias("i."), bad.alias("ix"), f.struct(f.lit(1.5).alias("."), "id").alias(".")
    )
    left = DeltaSink(str(tmp_path / "left"), name="left")
    way = Append() if mode == "idempotent" else Merge(key=["i."], order_by=["ix"])
    sinks: list[Sink] = [
        PostgresSink(pg_database, table="flights", name="out", select=["i.", "ix"], bad_rows=left),
        KafkaSink(kafka_server.bootstrap, topic=f"{topic_name}-{mode}", name="topic", key="ix"),
        DeltaSink(str(tmp_path / "lake"), name="lake", mode=way),
    ]
    for name, more in (("lake", ""), ("left", ", _sink STRING, _reason STRING")):
        columns = f"id BIGINT, `i.` BIGINT, ix STRING, `.` STRUCT<`.`: DOUBLE, id: BIGINT>{more}"
        spark.sql(
            f"CREATE TABLE delta.`{tmp_path / name}` ({columns}) USING delta"
            " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        )
    pipeline = Pipeline(app=f"app-{mode}", sinks=sinks, retry=FAST, mode=mode)
    with under(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"}):
        pipeline.create(frame.schema)
        job.run(pipeline, frame)
    assert observe(pg_database, "SELECT * FROM flights") == [(1, "t")]
    sent = {
        record.key: json.loads(record.value or b"")
        for record in read_topic(kafka_server.bootstrap, f"{topic_name}-{mode}")
    }
    assert sent == {
        text.encode(): {"id": n, "i.": n, "ix": text, ".": {".": 1.5, "id": n}} for n, text in ((1, "t"), (2, "x\0y"))
    }
    kept = [tuple(row) for row in spark.read.format("delta").load(str(tmp_path / "lake")).orderBy("id").collect()]
    assert kept == [(1, 1, "t", (1.5, 1)), (2, 2, "x\0y", (1.5, 2))]
    assert [row["i."] for row in spark.read.format("delta").load(str(tmp_path / "left")).collect()] == [2]
