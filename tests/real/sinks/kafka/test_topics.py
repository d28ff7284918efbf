"""The marker topic is made as safe as the target: a marker that is lost is an epoch written twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from epochal.chaos import servers
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.kafka import KafkaSink, topics
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.topics import Topic
from tests.real.sinks.kafka.attempts import QUERY
from tests.real.sinks.kafka.support import APP


def settings(bootstrap: str, topic: str) -> dict[str, str]:
    """A topic's settings, asked for from outside."""
    admin, resource = AdminClient({"bootstrap.servers": bootstrap}), ConfigResource(ResourceType.TOPIC, topic)
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
