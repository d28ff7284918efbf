"""A broker of the run answers a client of the test's own, which reads all that is committed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from epochal.chaos import servers
from epochal.chaos.servers import kafka
from tests.real.sinks.kafka.support import await_markers, hanging, produce, read_topic


def test_kafka(kafka_server: servers.Kafka, topic_name: str) -> None:
    kafka_server.create_topic(topic_name, partitions=2)
    produce(kafka_server.bootstrap, topic_name, b"zero")
    produce(kafka_server.bootstrap, topic_name, b"one", partition=1)
    records = read_topic(kafka_server.bootstrap, topic_name)
    assert [(r.partition, r.value) for r in records] == [(0, b"zero"), (1, b"one")]


def test_a_topic_is_shown_once_it_is_created_and_no_more_once_it_is_deleted(
    kafka_server: servers.Kafka, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker learns both from its controller, some milliseconds after the answer; here it seems to learn it later."""
    shows, late = kafka._shows, list[bool]()

    def shows_late(admin: AdminClient, name: str) -> bool:
        return late.pop() if late else shows(admin, name)

    monkeypatch.setattr(kafka, "_shows", shows_late)
    with AdminClient({"bootstrap.servers": kafka_server.bootstrap}) as admin:
        for _ in range(3):
            late += [False] * 3
            kafka_server.create_topic(topic_name, partitions=3)
            assert not late
            assert len(admin.list_topics(timeout=120).topics[topic_name].partitions) == 3
            late += [True] * 3
            kafka_server.delete_topic(topic_name)
            assert not late
            assert topic_name not in admin.list_topics(timeout=120).topics


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
