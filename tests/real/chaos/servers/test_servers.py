"""A broker of the run answers a client of the test's own, which reads all that is committed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from epochal.chaos import servers
from tests.real.sinks.kafka.support import await_markers, hanging, produce, read_topic


def test_kafka(kafka_server: servers.Kafka, topic_name: str) -> None:
    kafka_server.create_topic(topic_name, partitions=2)
    produce(kafka_server.bootstrap, topic_name, b"zero")
    produce(kafka_server.bootstrap, topic_name, b"one", partition=1)
    records = read_topic(kafka_server.bootstrap, topic_name)
    assert [(r.partition, r.value) for r in records] == [(0, b"zero"), (1, b"one")]


def test_rows_whose_markers_are_owed_are_waited_for(kafka_server: servers.Kafka, topic_name: str) -> None:
    kafka_server.create_topic(topic_name)
    options = {"bootstrap.servers": kafka_server.bootstrap, "transactional.id": topic_name, "log_level": 0}
    producer = Producer(options)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_name, b"late")
    producer.flush(30)
    assert hanging(kafka_server.bootstrap, topic_name) != []

    def commit_later() -> None:
        time.sleep(1)
        producer.commit_transaction(30)

    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(commit_later)
        await_markers(kafka_server.bootstrap, topic_name)
        assert [r.value for r in read_topic(kafka_server.bootstrap, topic_name)] == [b"late"]
        committed.result(120)
