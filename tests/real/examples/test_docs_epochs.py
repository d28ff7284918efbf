"""The queries of docs/epochs.md, asked of three sinks that one query has written from a Kafka topic."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer

import epochal
from epochal.chaos import servers
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.epochs import OffsetRange
from epochal.sinks.protocol import AuditedSink
from tests.real.examples.test_readme import python_blocks, run_example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.wide

PAGE = (Path(__file__).parents[3] / "docs" / "epochs.md").read_text()
SQL = re.findall(r"^```sql\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
GIVEN = [[(0, "N1"), (0, "N2"), (1, "N9")], [(0, "N3")]]
"""By epoch: partition and value."""


def produce(bootstrap: str, topic: str, rows: list[tuple[int, str]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for partition, value in rows:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


@pytest.fixture(params=["1", "2"])
def offsets_version(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """The format of Spark's file ``offsets/N``."""
    name = "spark.sql.streaming.offsetLog.formatVersion"
    spark.conf.set(name, request.param)
    yield f"v{request.param}"
    spark.conf.unset(name)


@pytest.mark.timeout(400)
def test_the_examples(
    spark: SparkSession,
    offsets_version: str,
    tmp_path: Path,
    pg_database: str,
    kafka_server: servers.Kafka,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S1: with both versions of Spark's file of offsets."""
    bootstrap, topic = kafka_server.bootstrap, f"flights-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic, 2)
    sinks: list[Any] = [
        PostgresSink(pg_database, table="flights"),
        KafkaSink(bootstrap, topic=f"{topic}-out", value="tailnum"),
        DeltaSink(str(tmp_path / "lake")),
    ]
    pipeline = epochal.Pipeline(app="flights", sinks=sinks)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("kafka.isolation.level", "read_committed")
    rows = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    flights = rows.selectExpr("cast(value AS string) AS tailnum", "partition", "offset")
    pipeline.create(flights.schema)
    for given in GIVEN:
        produce(bootstrap, topic, given)
        write = flights.writeStream.foreachBatch(pipeline).trigger(availableNow=True)
        query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        assert query.exception() is None
    pipeline.close()
    assert (tmp_path / "checkpoint" / "offsets" / "1").read_text().startswith(offsets_version)

    for sink in sinks:
        assert isinstance(sink, AuditedSink)
        assert [(row.epoch, row.rows, row.position) for row in sink.epochs("flights")] == [(0, 3, 1), (1, 1, 2)]
        same: dict[str, Any] = {"app": "flights", "sink": sink.name, "source": 0, "topic": topic, "text": None}
        same["incarnation"] = str(query.id)
        assert sink.epochs("flights").ranges().rows == (
            OffsetRange(**same, position=1, epoch=0, partition=0, first=None, last=1),
            OffsetRange(**same, position=1, epoch=0, partition=1, first=None, last=0),
            OffsetRange(**same, position=2, epoch=1, partition=0, first=2, last=2),
        )

    with psycopg.connect(pg_database) as connection:
        assert connection.execute(SQL[0]).fetchall() == [(1, topic, 0, 2, 2)]
        assert connection.execute(SQL[0].replace("N3", "N9")).fetchall() == [
            (0, topic, 0, None, 1),
            (0, topic, 1, None, 0),
        ]
        found = connection.execute(SQL[1].replace("{flights,0}", f"{{{topic},0}}")).fetchall()
        assert [(position, epoch) for position, epoch, _ in found] == [(2, 1)]

    blocks = [block.replace('"flights")\n    &', f'"{topic}")\n    &') for block in python_blocks(PAGE)]
    blocks[3] = blocks[3].replace("'flights'", f"'{topic}'")
    capsys.readouterr()
    printed = run_example(blocks[0], {"POSTGRES": pg_database})
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [["1", "0", "3"], ["2", "1", "1"]]
    for sink in (printed["sink"], *sinks[1:]):
        names = {"sink": sink, "spark": spark, "POSITION": 2}
        for block in blocks[1:]:
            names = run_example(block, names)
        assert [(r["partition"], r["first"], r["last"]) for r in names["produced"].to_pylist()] == [(0, 2, 2)]
        assert [r["position"] for r in names["holds"].to_pylist()] == [2]
        assert [tuple(row) for row in names["found"].collect()] == [(2, 1)]
        [epoch] = (
            sink.epochs("flights", limit=1).spark(spark).selectExpr("*", "unix_micros(committed_at) AS at").collect()
        )
        newest = sink.epochs("flights").newest
        assert newest is not None
        assert epoch["at"] == round(newest.committed_at.timestamp() * 1_000_000)


def test_every_example_is_run() -> None:
    assert (len(python_blocks(PAGE)), len(SQL)) == (4, 2)
