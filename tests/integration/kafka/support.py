"""What the Kafka tests share: an outside reader, a place to make copies, and a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

SECRET = "s3cret-pa55word"
OPTIONS = {"sasl.password": SECRET}
"""A password that a PLAINTEXT listener never asks for; it must show nowhere."""


@dataclass(frozen=True)
class Record:
    """One record as a read_committed consumer is given it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Record]:
    """All that a consumer with this isolation level sees now, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outside-reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
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


def hanging(bootstrap: str, topic: str) -> list[str]:
    """The partitions whose last stable offset is below the high watermark."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    known = admin.list_topics(timeout=20).topics
    if topic not in known:
        return []
    partitions = [TopicPartition(topic, p) for p in known[topic].partitions]
    stable = _ends(bootstrap, partitions, "read_committed")
    high = _ends(bootstrap, partitions, "read_uncommitted")
    return [f"{topic}[{n}]: {s} < {h}" for n, (s, h) in enumerate(zip(stable, high, strict=True)) if s < h]


def _ends(bootstrap: str, partitions: Sequence[TopicPartition], isolation: str) -> list[int]:
    """Last stable offsets for read_committed, high watermarks for read_uncommitted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": isolation, "log_level": 0})
    try:
        return [_end(consumer, p) for p in partitions]
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """The end of a partition; a broker that has just restarted leads it a moment later."""
    limit = time.monotonic() + 20
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=20)[1])
        except KafkaException as error:
            if time.monotonic() > limit or error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            time.sleep(0.1)


def commit_in_another_process(
    bootstrap: str,
    topic: str,
    name: str,
    app: str,
    committable: dict[str, Any],
    by: dict[str, Any],
    *,
    spark: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Look and commit in a new Python with a Spark session of its own; the outcome's or the error's name.

    ``spark``: its settings; with an empty mapping there is no session.
    """
    task = {"bootstrap": bootstrap, "topic": topic, "name": name, "app": app, "committable": committable, "by": by}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps({**task, "spark": {"a.b": "c"} if spark is None else dict(spark)})],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SECRET not in done.stdout + done.stderr
    return done.stdout.split()[-1]


def main(task: dict[str, Any]) -> str:
    from epochal.coordinator.epoch import Actor, Committable, Query
    from epochal.coordinator.errors import EpochalError
    from epochal.sinks.kafka import KafkaSink

    if task["spark"]:
        _start_spark(task["spark"])
    sink = KafkaSink(task["bootstrap"], topic=task["topic"], name=task["name"], options=OPTIONS)
    try:
        sink.look(Query(task["app"], "q1", "r1", "memory:/checkpoint"))
        committable = Committable.from_json(task["committable"])
        return sink.commit(committable, Actor.from_json(task["by"])).name
    except EpochalError as error:
        print(error, file=sys.stderr)
        return type(error).__name__


def _start_spark(conf: Mapping[str, str]) -> None:
    from epochal.chaos.servers.spark import prepare_environment

    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1,4]")  # type: ignore[attr-defined,unused-ignore]
    for key, value in {"spark.ui.enabled": "false", **conf}.items():
        builder = builder.config(key, value)
    builder.getOrCreate()


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
