"""The two topics of a sink: what they are, how they are made, and what is wrong with them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochal.coordinator.errors import Misconfigured, SinkUnavailable
from epochal.sinks.kafka.client import Link, kafka
from epochal.sinks.kafka.marker import LONGEST_TOPIC, Place

SMALLEST_MESSAGE = 2_000
"""librdkafka cannot cut its batches much smaller than this many bytes."""
LONGEST_TRANSACTION = 300.0

_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_TOPIC}}}")


@dataclass(frozen=True)
class Topic:
    """One topic as the cluster describes it."""

    name: str
    id: str
    partitions: int
    replicas: int
    rights: frozenset[str] | None  # None: the cluster does not tell
    config: Mapping[str, str]

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def max_message_bytes(self) -> int:
        return int(self.config.get("max.message.bytes", "1048588"))


@dataclass(frozen=True)
class Topics:
    """Target and marker topic, and the cluster they lie in."""

    cluster: str
    target: Topic
    marker: Topic

    @property
    def identity(self) -> str:
        return f"kafka:{self.cluster}:{self.target.id}:{self.marker.id}"


def describe(link: Link, topic: str, place: Place) -> Topics:
    """What both topics are; ``Misconfigured`` names one that does not exist."""
    return link.ask(f"what {topic!r} and {place.topic!r} are", lambda: _topics(link, topic, place))


def _topics(link: Link, topic: str, place: Place) -> Topics:
    admin = link.admin()
    cluster = admin.describe_cluster(request_timeout=link.timeout)
    target, marker = _describe(link, admin, topic), _describe(link, admin, place.topic)
    if target is None or marker is None:
        missing = [name for name, what in ((topic, target), (place.topic, marker)) if what is None]
        raise Misconfigured(
            f"topics {missing} do not exist",
            sink=place.sink,
            state=f"bootstrap servers {link.bootstrap}",
            help="call pipeline.create(schema) once, or have them made",
        )
    return Topics(str(link.answer(admin, cluster).cluster_id), target, marker)


def longest_transaction(link: Link) -> float | None:
    """The brokers' ``transaction.max.timeout.ms`` in seconds; None where the user may not ask."""
    return link.ask("for transaction.max.timeout.ms", lambda: _longest_transaction(link))


def _longest_transaction(link: Link) -> float | None:
    k = kafka()
    admin = link.admin()
    nodes: Any = link.answer(admin, admin.describe_cluster(request_timeout=link.timeout)).nodes
    resource = k.admin.ConfigResource(k.admin.ResourceType.BROKER, str(nodes[0].id))
    try:
        config: Any = link.answer(admin, admin.describe_configs([resource], request_timeout=link.timeout)[resource])
    except k.KafkaException as error:
        if error.args[0].code() == k.KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            return None
        raise
    entry = config.get("transaction.max.timeout.ms")
    return int(entry.value) / 1000 if entry is not None else None


def create(
    link: Link, topic: str, place: Place, partitions: int | None, replication: int | None, config: Mapping[str, str]
) -> Sequence[str]:
    """Make what is missing: the target as asked, the marker topic as safe as the target.  A line for each."""
    said = []
    with link.asking("to make topics"):
        if _make(link, topic, partitions or -1, replication or -1, config):
            said.append(f"created topic {topic}")
        target = _await(link, topic)
        safe = {"cleanup.policy": "compact"}
        if "min.insync.replicas" in target.config:
            safe["min.insync.replicas"] = target.config["min.insync.replicas"]
        if _make(link, place.topic, 1, target.replicas, safe):
            said.append(f"created topic {place.topic} (fence and marker: one partition, compacted)")
        _await(link, place.topic)
    return said


def check(link: Link, topics: Topics, place: Place, key: str | None) -> None:
    """Refuse topics that cannot keep the promise."""
    target, marker = topics.target, topics.marker
    policy = marker.config.get("cleanup.policy", "compact")
    if marker.partitions != 1 or policy != "compact":
        raise Misconfigured(
            f"the marker topic {marker.name!r} must have one partition and cleanup.policy=compact",
            sink=place.sink,
            state=f"partitions {marker.partitions}, cleanup.policy {policy}",
            help="set cleanup.policy=compact; a topic with more partitions has to be made anew before the first run",
        )
    if target.is_compacted and key is None:
        raise Misconfigured(
            f"topic {target.name!r} is compacted, so its rows need a key",
            sink=place.sink,
            state=f"cleanup.policy {target.config['cleanup.policy']}",
            help="name the key's column with key=",
        )
    if target.max_message_bytes < SMALLEST_MESSAGE:
        raise Misconfigured(
            f"topic {target.name!r} takes no batch of {SMALLEST_MESSAGE} bytes",
            sink=place.sink,
            state=f"max.message.bytes {target.max_message_bytes}",
            help=f"set max.message.bytes to {SMALLEST_MESSAGE} or more",
        )
    for topic, wanted in ((target, ("WRITE", "DESCRIBE")), (marker, ("WRITE", "READ", "DESCRIBE"))):
        lacking = sorted(set(wanted) - topic.rights) if topic.rights is not None else []
        if lacking:
            raise Misconfigured(
                f"the user lacks the rights {lacking} on topic {topic.name!r}",
                sink=place.sink,
                state=f"rights {sorted(topic.rights or ())}, bootstrap servers {link.bootstrap}",
                help=f"grant them, and WRITE and DESCRIBE on the transactional id {place.transactional_id}",
            )


def check_topic(name: str, sink: str) -> None:
    """Refuse what no broker takes as the name of a topic."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise Misconfigured(
            f"no broker takes {name!r} as the name of a topic",
            sink=sink,
            help=f"topic= is of the form {_TOPIC.pattern}, and neither '.' nor '..'",
        )


def check_length(place: Place) -> None:
    """Refuse names that make no topic name."""
    if len(place.topic) > LONGEST_TOPIC:
        raise Misconfigured(
            f"the marker topic's name {place.topic!r} has more than {LONGEST_TOPIC} characters",
            sink=place.sink,
            state=f"{len(place.topic)} characters, of app {place.app!r} and sink {place.sink!r}",
            help="give the app or the sink a shorter name",
        )


def _describe(link: Link, admin: Any, name: str) -> Topic | None:
    k = kafka()
    asked = admin.describe_topics(
        k.TopicCollection([name]), include_authorized_operations=True, request_timeout=link.timeout
    )
    resource = k.admin.ConfigResource(k.admin.ResourceType.TOPIC, name)
    settings = admin.describe_configs([resource], request_timeout=link.timeout)[resource]
    try:
        told: Any = link.answer(admin, asked[name])
    except k.KafkaException as error:
        if error.args[0].code() == k.KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    rights = told.authorized_operations
    return Topic(
        name=name,
        id=str(told.topic_id),
        partitions=len(told.partitions),
        replicas=len(told.partitions[0].replicas),
        rights=frozenset(operation.name for operation in rights) if rights else None,
        config=_config(link, admin, settings),
    )


def _config(link: Link, admin: Any, settings: Any) -> Mapping[str, str]:
    """The topic's settings; empty where the user may not ask."""
    k = kafka()
    try:
        return {name: str(entry.value) for name, entry in link.answer(admin, settings).items()}
    except k.KafkaException as error:
        if error.args[0].code() == k.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return {}
        raise


def _make(link: Link, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> bool:
    """False: it was there."""
    k = kafka()
    admin = link.admin()
    if _describe(link, admin, name) is not None:
        return False
    new = k.admin.NewTopic(name, partitions, replication, config=dict(config))
    try:
        link.answer(admin, admin.create_topics([new], request_timeout=link.timeout)[name])
    except k.KafkaException as error:
        if error.args[0].code() == k.KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def _await(link: Link, name: str) -> Topic:
    """A topic that was just made, once the brokers tell of it."""
    deadline = link.deadline()
    while (topic := _describe(link, link.admin(), name)) is None:
        if time.monotonic() > deadline:
            raise SinkUnavailable(
                f"topic {name!r} was made and does not show within {link.timeout:g} s",
                sink=link.sink,
                state=f"bootstrap servers {link.bootstrap}",
                help="see whether the brokers have a controller",
            )
        time.sleep(0.1)
    return topic
