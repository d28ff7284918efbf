"""An epoch over thousands of partitions, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from epochal.chaos.servers.kafka import KafkaServer
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE
from tests.real.sinks.kafka.support import bar, read_topic
from tests.real.sinks.kafka.votes.test_votes import COMMITTED, Staged

PARTITIONS = 3_000
ROWS = 30_000
AN_EPOCH_S = 120.0
"""On two busy cores one takes some ten seconds; a step whose time grows with the square would take minutes."""


@pytest.fixture
def broker() -> Iterator[KafkaServer]:
    with KafkaServer() as server:
        yield server
        server.crash()  # to close so many files takes longer than the test


@pytest.mark.wide
def test_an_epoch_over_thousands_of_partitions(
    spark: SparkSession, broker: KafkaServer, topic_name: str, stage: SparkStage
) -> None:
    one = Staged(spark, broker.bootstrap, topic_name, stage, partitions=PARTITIONS, request_timeout=120.0)
    last = 0
    for number, rows in enumerate((ROWS, 100, ROWS)):
        began = time.monotonic()
        decided = one.prepare(number, last, last + rows)
        assert decided.payload["version"] == 2
        if number == 2:
            bar(one.bootstrap, one.topic)  # so it is written again
        assert one.sink.commit(decided, ONE) is COMMITTED
        assert time.monotonic() - began < AN_EPOCH_S * (1 + (number == 2))
        last += rows
    found = read_topic(one.bootstrap, one.topic)
    assert sorted(int(r.key or b"") for r in found) == list(range(last))
    assert len({r.partition for r in found}) > 0.99 * PARTITIONS
    assert one.position() == 3
