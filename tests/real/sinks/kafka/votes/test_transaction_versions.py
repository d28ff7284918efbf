"""Votes on brokers whose feature `transaction.version` has an older level, as clusters have that were upgraded.

At level 2 brokers raise the producer epoch with each transaction, for clients that ask so.  The sink relies on none of
it: it asks for a new epoch itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from epochal.chaos.servers.kafka import KafkaServer
from epochal.coordinator.model.errors import Fenced
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO
from tests.real.sinks.kafka.support import bar, hanging
from tests.real.sinks.kafka.votes.test_votes import ALREADY, COMMITTED, MANY, Staged, Votes

FEATURE = "transaction.version"


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.wide)])
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaServer]:
    with KafkaServer(features={FEATURE: request.param}) as server:
        assert level_of(server) == request.param
        yield server


def level_of(server: KafkaServer) -> int:
    """Which level the cluster has decided on; at 0 a feature is not listed."""
    client = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:
        told = client.describe_features()
    finally:
        client.close()
    _, highest = told[FEATURE].get("finalized", (0, 0))
    return int(highest)


@pytest.fixture
def one(spark: SparkSession, broker: KafkaServer, topic_name: str, stage: SparkStage) -> Iterator[Votes]:
    made = Staged(spark, broker.bootstrap, topic_name, stage)
    yield made
    bar(broker.bootstrap, topic_name)
    assert hanging(broker.bootstrap, topic_name, f"__epochal.flights.{topic_name}") == []


def test_the_current_broker_has_a_newer_level(kafka_server: KafkaServer) -> None:
    assert level_of(kafka_server) == 2


def test_epochs_are_shown_once_whatever_ends_their_transactions(one: Votes) -> None:
    last = 0
    for number, rows in enumerate((50, MANY, 50)):
        decided = one.prepare(number, last, last + rows)
        assert decided.payload["version"] == 2
        assert len(one.seen()) == last
        if number == 2:
            bar(one.bootstrap, one.topic)  # so it is written again
        assert one.sink.commit(decided, ONE) is COMMITTED
        assert one.sink.commit(decided, ONE) is ALREADY
        last += rows
    assert (one.seen(), one.position()) == (list(range(last)), 3)


def test_a_newer_start_bars_what_an_older_one_has_prepared_unless_it_is_decided(one: Votes) -> None:
    decided, newer = one.prepare(0, 0, 50), one.another()
    newer.look(QUERY)
    newer.finish(decided)
    assert one.seen() == list(range(50))
    undecided = one.prepare(1, 50, 100)
    newer.fence(QUERY, TWO)
    with pytest.raises(Fenced):
        one.sink.commit(undecided, ONE)
    with pytest.raises(Fenced):
        one.prepare(1, 100, 150)
    older, one.sink = one.sink, newer
    assert newer.commit(one.prepare(1, 200, 250, by=TWO), TWO) is COMMITTED
    older.finish(undecided)
    assert one.seen() == [*range(50), *range(200, 250)]
