"""Create the topics, and check before a start what a broker, a topic or an executor would refuse."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.coordinator.model.epoch import Query
from epochal.sinks.kafka import encode, topics
from epochal.sinks.kafka.client import kafka, log
from epochal.sinks.kafka.core import Core
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
    Transaction(link, marker_topic, timeout, {}).drop()  # librdkafka checks the options; no broker is asked
    needed = ["confluent_kafka", *(["numpy"] if sink.slots > 1 else [])]
    check_executors(sink.name, needed, "'epochal[kafka]' pyarrow" + (" numpy" if sink.slots > 1 else ""))
    if sink.make_value is not None:
        encode.check(sink.make_value, sink.name, sink.link().scrub)
    for caution in topics.cautions(seen):
        log.warning("sink %s: %s", sink.name, caution)
