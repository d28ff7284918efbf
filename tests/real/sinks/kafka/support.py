"""What the Kafka tests share: outside readers and a writer, and a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from epochal.chaos.contract import act_in_another_process
from epochal.chaos.job import jvm
from epochal.chaos.servers.process import wait_until
from epochal.coordinator.model.epoch import Json

APP = "flights"
SECRET = "s3cret-pa55word"
OPTIONS = {"sasl.password": SECRET}
"""A password that a PLAINTEXT listener never asks for; it must show nowhere."""


_SOON = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE)
"""What a broker that has just come to lead a partition answers for a moment."""


@dataclass(frozen=True)
class Record:
    """One record as a consumer is given it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def produce(bootstrap: str, topic: str, value: bytes, partition: int = 0) -> None:
    """One record, acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Record]:
    """All that a consumer sees now, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outside-reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,  # the end of a partition is reported only when a fetch comes back empty
            "log_level": 0,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, timeout=120).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found = []
        while partitions:
            message = consumer.poll(30)
            assert message is not None, f"{topic}: no end within 30 s"
            error = message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if error is None:
                found.append(Record(partition, offset, message.key(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                partitions.discard(partition)
        return sorted(found, key=lambda r: (r.partition, r.offset))
    finally:
        consumer.close()


def hanging(bootstrap: str, *topics: str) -> list[str]:
    """The partitions whose last stable offset is below the high watermark.  Topics that do not exist have none."""
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        known = admin.list_topics(timeout=120).topics
    places = [TopicPartition(topic, p) for topic in topics if topic in known for p in known[topic].partitions]
    stable = _ends(bootstrap, places, "read_committed")
    high = _ends(bootstrap, places, "read_uncommitted")
    return [f"{at.topic}[{at.partition}]: {s} < {h}" for at, s, h in zip(places, stable, high, strict=True) if s < h]


def bar(bootstrap: str, *names: str) -> None:
    """End the open transactions of these sinks."""
    for name in names:
        Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"epochal-{APP}-{name}", "log_level": 0}
        ).init_transactions(120)


def set_max_message_bytes(bootstrap: str, topic: str, value: int) -> None:
    set_config(bootstrap, topic, "max.message.bytes", str(value))


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.incremental_alter_configs([resource])[resource].result(120)
    time.sleep(0.5)  # brokers apply it a moment after they have answered


def await_markers(bootstrap: str, topic: str) -> None:
    """Wait until the broker has written the markers that its log of transactions owes ``topic``.

    One that was crashed answers before that; a reader that comes first finds the end in front of the committed rows.
    """
    written = wait_until(lambda: None if hanging(bootstrap, topic) else True, 120)
    assert written, hanging(bootstrap, topic)


def _ends(bootstrap: str, partitions: Sequence[TopicPartition], isolation: str) -> list[int]:
    """Last stable offsets for read_committed, high watermarks for read_uncommitted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": isolation, "log_level": 0})
    try:
        return [_end(consumer, p) for p in partitions]
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """The end of a partition; a broker that has just restarted leads it a moment later."""
    limit = time.monotonic() + 120
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=120)[1])
        except KafkaException as error:
            if time.monotonic() > limit or error.args[0].code() not in _SOON:
                raise
            time.sleep(0.1)


def in_another_process(
    bootstrap: str,
    topic: str,
    committable: Json | None,
    by: Json,
    *,
    spark: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """As ``SinkHarness.in_another_process``, by the sink whose name is the topic's.

    ``spark``: the settings of the Spark session there; None: there is none.
    """
    source = (
        "from epochal.chaos.servers.spark import spark_session\n"
        "from epochal.sinks.kafka import KafkaSink\n"
        f"sink = KafkaSink({bootstrap!r}, topic={topic!r}, name={topic!r}, options={OPTIONS!r})\n"
    )
    if spark is not None:
        source += f"spark_session('local[1,4]', conf={jvm.short_lived() | dict(spark)!r})"
    return act_in_another_process(source, APP, committable, by, secrets=[SECRET], environment=environment)
