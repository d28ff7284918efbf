"""What the benchmarks ask of a topic before they believe a figure."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from benchmarks import topics
from epochal.chaos import servers

ROWS = 7


def transactional(server: servers.Kafka, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def produced(producer: Producer, topic: str, rows: int) -> None:
    for _ in range(rows):
        producer.produce(topic, b"v", b"k")
    assert producer.flush(30) == 0


def test_rows_without_transactions_are_told_exactly(kafka_server: servers.Kafka, topic: str) -> None:
    at = kafka_server.bootstrap
    kafka_server.create_topic(topic, partitions=2)
    produced(Producer({"bootstrap.servers": at, "log_level": 0}), topic, ROWS)
    topics.check(at, topic, ROWS, transactions=False)
    topics.check_count(at, topic, ROWS)
    for wrong in (ROWS - 1, ROWS + 1):
        with pytest.raises(topics.NotAllWritten, match=f"{wrong} rows were to be written"):
            topics.check(at, topic, wrong, transactions=False)
        with pytest.raises(topics.NotAllWritten, match=f"has {ROWS} committed messages, and {wrong} rows"):
            topics.check_count(at, topic, wrong)


def test_of_transactions_only_what_is_committed_counts(kafka_server: servers.Kafka, topic: str) -> None:
    at = kafka_server.bootstrap
    kafka_server.create_topic(topic, partitions=2)
    aborted = transactional(kafka_server, f"{topic}-1")
    produced(aborted, topic, 3)
    aborted.abort_transaction(30)
    committing = transactional(kafka_server, f"{topic}-2")
    produced(committing, topic, ROWS)
    with pytest.raises(topics.NotAllWritten):
        topics.check(at, topic, ROWS, transactions=True)  # it is open still
    stable = sum(topics.stable_ends(at, topic).values())
    assert sum(topics.ends(at, topic).values()) == stable + ROWS
    assert not list(topics.messages(at, topic))
    committing.commit_transaction(30)
    topics.check(at, topic, ROWS, transactions=True)
    topics.check_count(at, topic, ROWS)
    assert sum(topics.stable_ends(at, topic).values()) > ROWS
