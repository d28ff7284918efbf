"""Create the topics, and check before a start what a broker, a topic or an executor would refuse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.kafka import encode, produce, topics
from epochal.sinks.kafka.client import SMALLEST_QUEUE_KB, Link, Options, kafka, log
from epochal.sinks.kafka.core import Core
from epochal.sinks.kafka.marker import MarkerTopic
from epochal.sinks.kafka.transaction import Transaction
from epochal.sinks.protocol import Schema
from epochal.sinks.spark.executors import check_executors


def create(sink: Core, query: Query, schema: Schema) -> Sequence[str]:
    """Make the target topics and the marker topic if they are missing; return a line for each thing that was done."""
    marker_topic = sink.marker_topic(query)
    sink.check_schema(schema)
    made = sink.partitions, sink.replication, sink.topic_config, sink.slots
    return topics.create(sink.link(), sink.declared, marker_topic, *made)


def check(sink: Core, query: Query, schema: Schema) -> None:
    """Raise ``Misconfigured`` for what brokers, topics or executors would refuse later; log cautions about topics."""
    marker_topic = sink.marker_topic(query)
    kafka()
    sink.check_schema(schema)
    link = sink.link()
    seen, timeout = topics.describe(link, sink.declared, marker_topic), sink.timeout(link)
    topics.check(link, seen, marker_topic, sink.encoding.key, timeout, sink.slots)
    tuning = produce.tuning(link, sink.encoding.partitioner, [target.batch_bytes for target in seen.targets.values()])
    Transaction(link, marker_topic, timeout, tuning).drop()  # librdkafka checks the options; no broker is asked
    check_queue(link)
    check_sendable(link)
    needed = ["confluent_kafka", *(["numpy"] if sink.slots > 1 else [])]
    packages = "'epochal[kafka]' pyarrow" + (" numpy" if sink.slots > 1 else "")
    check_executors(sink.name, needed, packages, partial(reached, link, marker_topic, timeout, tuning))
    if sink.make_value is not None:
        encode.check(sink.make_value, sink.name, sink.link().scrub)
    for caution in topics.cautions(seen):
        log.warning("sink %s: %s", sink.name, caution)


def check_queue(link: Link) -> None:
    """Raise ``Misconfigured`` if the client's queue is too small for the records of the marker topic."""
    if link.queue_bytes < SMALLEST_QUEUE_KB * 1024:
        raise Misconfigured(
            f"the client's queue holds {link.queue_bytes // 1024} kB, and the records of the marker topic need"
            f" {SMALLEST_QUEUE_KB}",
            sink=link.sink,
            state=f"queue.buffering.max.kbytes {link.queue_bytes // 1024}",
            help=f"set queue.buffering.max.kbytes in options= to {SMALLEST_QUEUE_KB} or more, and above the largest row"
            " in kilobytes",
        )


def check_sendable(link: Link) -> None:
    """Raise ``Misconfigured`` if the options cannot be sent to the tasks that produce."""
    try:
        from pyspark import cloudpickle
    except ImportError:  # without Spark there are no tasks
        return
    dumps: Any = cloudpickle.dumps
    try:
        dumps(link)
    except Exception as error:
        raise Misconfigured(
            f"options= cannot be sent to a task: {link.scrub(f'{type(error).__name__}: {error}')}",
            sink=link.sink,
            state=f"options {sorted(link.options)}",
            help="pass callbacks that can be pickled: functions that hold no lock, socket, file or client",
        ) from None


def reached(link: Link, marker_topic: MarkerTopic, timeout: float, tuning: Options) -> str:
    """Return why a producer of this process cannot reach the cluster; "": it can.  Runs on an executor."""
    try:
        producer = link.producer(marker_topic.transactional_id, timeout, tuning)
        producer.list_topics(marker_topic.topic, link.timeout)
    except (Misconfigured, kafka().KafkaException) as error:
        return link.scrub(error.what if isinstance(error, Misconfigured) else error.args[0].str())
    return ""
