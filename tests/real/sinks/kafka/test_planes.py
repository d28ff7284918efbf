"""Text of every Unicode plane, written by the sink and read by a consumer of the test's own."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Decision, Epoch
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.values import PLANES

TEXTS = [*PLANES, PLANES]


@pytest.mark.parametrize("value", [None, "t"])
def test_text_of_every_plane_comes_back(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage, value: str | None
) -> None:
    """As the key, as the value, and inside a value that is JSON: as text, in lists, as keys of a map."""
    rows = spark.createDataFrame([(t,) for t in TEXTS], "t string").coalesce(1)
    rows = rows.selectExpr("t", "array(t) as l", "map(t, named_struct('x', t)) as m")
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, key="t", value=value)
    sink.create(QUERY, rows.schema)
    sink.check(QUERY, rows.schema)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    copy = stage.write(0, ONE, rows)
    epoch = Epoch(Decision("q1", 0, ONE, "f"), 1, copy=copy)
    assert sink.commit(sink.prepare(epoch, stage.read(copy), ONE), ONE) is CommitOutcome.COMMITTED
    records = read_topic(kafka_server.bootstrap, topic)
    assert [r.key for r in records] == [t.encode() for t in TEXTS]
    if value is not None:
        assert [r.value for r in records] == [t.encode() for t in TEXTS]
    else:
        assert [json.loads(r.value or b"") for r in records] == [{"t": t, "l": [t], "m": {t: {"x": t}}} for t in TEXTS]
