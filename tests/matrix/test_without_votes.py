"""A broker before Kafka 3.7 gets no votes: the sink says why, and produces each epoch after the decision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE
from tests.real.sinks.kafka.support import bar
from tests.real.sinks.kafka.votes.test_votes import COMMITTED, Votes


@pytest.fixture
def one(spark: SparkSession, kafka_server: servers.Kafka, topic_name: str, tmp_path: Path) -> Iterator[Votes]:
    yield Votes(spark, kafka_server.bootstrap, topic_name, SparkStage(f"file://{tmp_path}", lambda: spark))
    bar(kafka_server.bootstrap, topic_name)


def test_epochs_are_produced_after_the_decision(one: Votes, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2):
        decided = one.prepare(number, 50 * number, 50 * number + 50)
        assert decided.payload["version"] == 1
        assert one.sink.commit(decided, ONE) is COMMITTED
    assert (one.seen(), one.position()) == (list(range(100)), 2)
    assert caplog.text.count("broker 1 is older than Kafka 3.7") == 1
