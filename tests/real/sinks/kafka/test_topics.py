"""The marker topic is made as safe as the target: a marker that is lost is an epoch written twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from epochal.chaos import servers
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.kafka import KafkaSink, marker, topics
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic
from epochal.sinks.kafka.topics import Topic
from tests.real.sinks.kafka.attempts import QUERY
from tests.real.sinks.kafka.support import APP
from tests.real.sinks.kafka.test_sink import SCHEMA


def settings(bootstrap: str, topic: str) -> dict[str, str]:
    """A topic's settings, asked for from outside."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        found = admin.describe_configs([resource])[resource].result(120)
    return {name: str(entry.value) for name, entry in found.items()}


@pytest.mark.parametrize("needed", ["1", "2"])
def test_the_marker_topic_needs_as_many_replicas_in_sync_as_the_target(
    kafka_server: servers.Kafka, topic: str, needed: str
) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, topic_config={"min.insync.replicas": needed})
    sink.create(QUERY, None)
    for name, policy in ((topic, "delete"), (f"__epochal.{APP}.{topic}", "compact")):
        found = settings(kafka_server.bootstrap, name)
        assert (found["min.insync.replicas"], found["cleanup.policy"]) == (needed, policy)


def test_the_marker_topic_has_as_many_replicas_as_the_target(
    kafka_server: servers.Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker cannot keep three replicas, so that many were asked for is what it then says."""
    tell = topics._await

    def told(link: Link, name: str) -> Topic:
        return replace(tell(link, name), replicas=3)

    monkeypatch.setattr(topics, "_await", told)
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, replication=1)
    with pytest.raises(Misconfigured, match="replication factor of 3 cannot be reached"):
        sink.create(QUERY, None)


def test_a_topic_that_is_gone_is_an_error_when_its_settings_or_partitions_are_asked_for(
    kafka_server: servers.Kafka, topic: str
) -> None:
    """Only a missing right (settings) and partitions that are there already are no error."""
    link = Link(kafka_server.bootstrap, "out", 30)
    resource = ConfigResource(ResourceType.TOPIC, f"gone-{topic}")
    with link.admin() as admin:
        settings = admin.describe_configs([resource], request_timeout=120)[resource]
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            topics._config(link, admin, settings)
    with pytest.raises(SinkUnavailable, match="to make topics"):
        topics._grow(replace(link, timeout=2), f"gone-{topic}", 2)


def test_a_topic_that_no_broker_reports_is_an_error(
    kafka_server: servers.Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, "deadline", lambda _link: time.monotonic() + 1)
    with pytest.raises(SinkUnavailable, match=r"was made, and no broker reports it"):
        topics._await(Link(kafka_server.bootstrap, "out", 30), f"gone-{topic}")


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_request_to_make_a_topic_is_repeated(
    kafka_server: servers.Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """Whether it was lost or its answer.  What was made is told in either case."""
    create, grow = AdminClient.create_topics, AdminClient.create_partitions
    left = ["create", "create", "grow"]

    def lossy(of: str, request: Callable[..., Any]) -> Callable[..., Any]:
        def ask(admin: AdminClient, *given: Any, **named: Any) -> Any:
            if of not in left:
                return request(admin, *given, **named)
            left.remove(of)
            if is_sent:
                for future in request(admin, *given, **named).values():
                    future.result(60)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        return ask

    monkeypatch.setattr(AdminClient, "create_topics", lossy("create", create))
    monkeypatch.setattr(AdminClient, "create_partitions", lossy("grow", grow))
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    marker_topic = f"__epochal.{APP}.{topic}"
    told = [line.split(" ")[2] for line in sink.create(QUERY, None)]
    assert told == [topic, marker_topic]
    more = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, slots=2)
    assert more.create(QUERY, None) == [f"topic {marker_topic} has 2 partitions now, one per slot; it had 1"]
    assert left == []


@pytest.mark.wide
@pytest.mark.remedy(
    "… within … s",
    "start the controllers of the cluster (a majority must be up), and call pipeline.create(schema) again",
)
def test_create_is_called_again_once_the_brokers_report_the_topic(
    kafka_server: servers.Kafka, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic_name, name=topic_name)
    with monkeypatch.context() as patch:
        patch.setattr(Link, "deadline", lambda _link: time.monotonic() + 1)
        patch.setattr(topics, "_describe", lambda *_: None)
        with pytest.raises(SinkUnavailable, match=r"was made, and no broker reports it within"):
            sink.create(QUERY, SCHEMA)
    sink.create(QUERY, SCHEMA)
    sink.check(QUERY, SCHEMA)
    sink.look(QUERY)


JUDGED = {
    "a start refuses it, and so does each vote": """
        cleanup.policy max.message.bytes message.timestamp.after.max.ms message.timestamp.before.max.ms
        message.timestamp.difference.max.ms message.timestamp.type retention.ms
    """,
    "rows and markers are judged by it before the vote": "compression.type segment.bytes",
    "a start warns": "retention.bytes unclean.leader.election.enable",
    "a broker needs no more replicas in sync than the topic has": "min.insync.replicas",
    "what a topic keeps, and when it compacts, is for its readers to know": """
        delete.retention.ms local.retention.bytes local.retention.ms max.compaction.lag.ms min.cleanable.dirty.ratio
        min.compaction.lag.ms remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable
        segment.jitter.ms segment.ms
    """,
    "changes how a broker stores and copies rows, and takes the same rows": """
        compression.gzip.level compression.lz4.level compression.zstd.level file.delete.delay.ms flush.messages flush.ms
        follower.replication.throttled.replicas index.interval.bytes internal.segment.bytes
        leader.replication.throttled.replicas message.downconversion.enable preallocate segment.index.bytes
    """,
    "without effect since Kafka 3.0": "message.format.version",
}
"""What is done about each setting of a topic that could refuse a record of a decided epoch, or lose it."""


def test_every_setting_of_a_topic_is_judged(kafka_server: servers.Kafka, topic: str) -> None:
    """K2: a setting that is new in Kafka fails this test until somebody has judged it."""
    kafka_server.create_topic(topic)
    judged = [name for names in JUDGED.values() for name in names.split()]
    assert len(judged) == len(set(judged))
    assert set(settings(kafka_server.bootstrap, topic)) - set(judged) == set()


def test_topics_that_a_broker_has_not_heard_of_yet_are_looked_for_again(
    kafka_server: servers.Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster, brokers learn of a new topic one after another; here this one seems to learn it late."""
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    sink.create(QUERY, None)
    describe_all, late = topics._describe_all, [None] * 3

    def describes_late(link: Link, admin: AdminClient, names: Sequence[str]) -> Mapping[str, Topic | None]:
        found = describe_all(link, admin, names)
        return {name: late.pop() if late else its for name, its in found.items()}

    monkeypatch.setattr(topics, "_describe_all", describes_late)
    assert sink.look(QUERY).marker is None
    assert not late


def test_a_marker_topic_that_a_broker_has_not_heard_of_yet_is_read_again(
    kafka_server: servers.Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    sink.create(QUERY, None)
    ends, late = marker._ends, [KafkaError(KafkaError._UNKNOWN_PARTITION)]

    def hears_late(link: Link, marker_topic: MarkerTopic, consumer: Consumer) -> tuple[int, int]:
        if late:
            raise KafkaException(late.pop())
        return ends(link, marker_topic, consumer)

    monkeypatch.setattr(marker, "_ends", hears_late)
    assert sink.look(QUERY).marker is None
    assert not late
