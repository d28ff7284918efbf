"""The topics of a sink, targets and marker topic: what they are, how they are made, and what is wrong with them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.clocks import CLOCKS_S
from epochal.sinks.kafka.client import HEARD_S, Link, kafka
from epochal.sinks.kafka.marker import LONGEST_TOPIC, MarkerTopic
from epochal.sinks.questions import Question, Told

SMALLEST_MESSAGE = 2_000
"""librdkafka cannot cut its batches much smaller than this many bytes."""
LONGEST_TRANSACTION = 300.0
"""How many seconds a transaction may last by default."""
SHORT_RETENTION_H = 24
"""A topic that keeps its rows for fewer hours gets a warning: a reader that is away for a night loses some."""

_LARGEST_OF_CLIENT = 1_000_000_000
"""librdkafka's largest ``message.max.bytes``."""
_TIMES = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms", "message.timestamp.after.max.ms")
"""Settings by which a topic refuses records for their timestamps.  Brokers before Kafka 4 have the second one."""
_LIMITS = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "segment.bytes"),
    *("min.insync.replicas", "unclean.leader.election.enable", "compression.type"),
)
"""Settings of a target that people want to know."""
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_TOPIC}}}")


@dataclass(frozen=True)
class Topic:
    """One topic as the cluster describes it."""

    name: str
    id: str
    partitions: int
    replicas: int
    rights: frozenset[str] | None  # None: the cluster does not say
    config: Mapping[str, str]

    def told(self, *settings: str) -> str:
        """Return these settings and their values, for people."""
        return ", ".join(f"{name}={self.config[name]}" for name in settings if name in self.config) or "not told"

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def max_message_bytes(self) -> int:
        return int(self.config.get("max.message.bytes", "1048588"))

    @property
    def segment_bytes(self) -> int:
        return int(self.config.get("segment.bytes", "1073741824"))

    @property
    def batch_bytes(self) -> int:
        """How many bytes a batch of records may have when it is sent.

        A batch must fit into a segment.  A topic with a ``compression.type`` of its own compresses each batch anew.
        Bytes that cannot be compressed then take some more room, and the limit of the topic holds for the result.
        """
        most = min(self.max_message_bytes, self.segment_bytes, _LARGEST_OF_CLIENT)
        as_sent = self.config.get("compression.type", "producer") in ("producer", "uncompressed")
        return most if as_sent else most - most // 100

    @property
    def retention(self) -> float | None:
        """How many seconds rows are kept; None: for ever, or the cluster does not say."""
        milliseconds = int(self.config.get("retention.ms", "-1"))
        return milliseconds / 1000 if "delete" in self.config.get("cleanup.policy", "") and milliseconds >= 0 else None

    @property
    def retained_bytes(self) -> int | None:
        """How many bytes a partition keeps; None: any number, or the cluster does not say."""
        size = int(self.config.get("retention.bytes", "-1"))
        return size if "delete" in self.config.get("cleanup.policy", "") and size >= 0 else None


@dataclass(frozen=True)
class Declared:
    """The topics that a sink may write to: one topic, or a list from which each row names one."""

    names: tuple[str, ...]
    several: bool = False


@dataclass(frozen=True)
class Topics:
    """Targets and marker topic, and the cluster they lie in."""

    cluster: str
    targets: Mapping[str, Topic]
    marker: Topic
    several: bool = False

    @property
    def identity(self) -> str:
        """What the sink physically is.  A list of topics is left out: it may change, and the marker holds its ids."""
        ids = [] if self.several else [topic.id for topic in self.targets.values()]
        return ":".join(["kafka", self.cluster, *ids, self.marker.id])

    @property
    def ids(self) -> Mapping[str, str]:
        """The targets: name to topic id."""
        return {name: topic.id for name, topic in self.targets.items()}


def describe(link: Link, declared: Declared, marker_topic: MarkerTopic) -> Topics:
    """Return what the topics are; ``Misconfigured`` names those that do not exist."""
    return link.ask_anew(
        f"about {', '.join(declared.names)} and {marker_topic.topic}",
        lambda attempt: _topics(attempt, declared, marker_topic),
    )


def has_marker(link: Link, marker_topic: MarkerTopic) -> bool:
    """Whether the sink's marker topic is there."""
    return _told(link, marker_topic.topic) is not None


def _told(link: Link, name: str) -> Topic | None:
    """Return what a topic is now; None: there is none."""
    return link.ask_anew(f"for {name}", lambda attempt: _describe(attempt, name))


def _topics(link: Link, declared: Declared, marker_topic: MarkerTopic) -> Topics:
    with link.admin() as admin:
        asked = admin.describe_cluster(request_timeout=link.timeout)
        found = _shown(link, admin, (*declared.names, marker_topic.topic))
        cluster = str(link.answer(admin, asked).cluster_id)
    missing = [name for name, topic in found.items() if topic is None]
    if missing:
        raise Misconfigured(
            f"topics {missing} do not exist",
            sink=marker_topic.sink,
            state=f"bootstrap servers {link.bootstrap}",
            help="call pipeline.create(schema) once, or have them made; if a sink got a new name, say so with"
            " `epochal rename`, which makes its marker topic",
        )
    there = {name: topic for name, topic in found.items() if topic is not None}
    marker = there.pop(marker_topic.topic)
    return Topics(cluster, there, marker, declared.several)


def longest_transaction(link: Link) -> float | None:
    """Return the brokers' ``transaction.max.timeout.ms`` in seconds; None if the user has no right to ask."""
    return link.ask_anew("for transaction.max.timeout.ms", _longest_transaction)


def _longest_transaction(link: Link) -> float | None:
    k = kafka()
    with link.admin() as admin:
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
    link: Link,
    declared: Declared,
    marker_topic: MarkerTopic,
    partitions: int | None,
    replication: int | None,
    config: Mapping[str, str],
    slots: int,
) -> Sequence[str]:
    """Make missing topics, the marker topic as safe as the safest target; return a line for each thing done."""
    said = []
    for name in declared.names:
        if _make(link, name, partitions or -1, replication or -1, config):
            said.append(f"created topic {name}")
    targets = [_await(link, name) for name in declared.names]
    safe = {"cleanup.policy": "compact"}
    in_sync = [int(t.config["min.insync.replicas"]) for t in targets if "min.insync.replicas" in t.config]
    if in_sync:
        safe["min.insync.replicas"] = str(max(in_sync))
    if _make(link, marker_topic.topic, slots, max(target.replicas for target in targets), safe):
        said.append(f"created topic {marker_topic.topic} (fence and marker: one partition per slot, compacted)")
    if (there := _await(link, marker_topic.topic).partitions) < slots:
        _grow(link, marker_topic.topic, slots)
        said.append(f"topic {marker_topic.topic} has {slots} partitions now, one per slot; it had {there}")
    return said


def check(
    link: Link, topics: Topics, marker_topic: MarkerTopic, key: str | None, transaction_timeout: float, slots: int
) -> None:
    """Raise ``Misconfigured`` for topics that cannot keep the promise.

    A start asks this, and each epoch asks again before its vote, because settings and rights may change in between.
    """
    for question in questions(
        lambda: link, tuple(topics.targets), marker_topic, key, slots, lambda: topics, lambda: transaction_timeout
    ):
        question.ask()


def questions(
    link: Callable[[], Link],
    names: Sequence[str],
    marker_topic: MarkerTopic,
    key: str | None,
    slots: int,
    topics: Callable[[], Topics],
    timeout: Callable[[], float],
) -> Iterator[Question]:
    """Yield what :func:`check` asks, a question for each object.

    ``names``: the targets.  ``topics``: what they and the marker topic are.  ``timeout``: that of a transaction.
    """
    all_names = (*names, marker_topic.topic)

    def about(name: str, refuse: Callable[[Topic], Told]) -> Callable[[], Told]:
        return lambda: refuse({**topics().targets, marker_topic.topic: topics().marker}[name])

    yield Question(
        "policy of the marker topic", about(marker_topic.topic, partial(_check_marker, marker_topic=marker_topic))
    )
    for name in all_names:
        yield Question(f"timestamps of {name}", about(name, lambda topic: _check_times(topic, marker_topic, timeout())))
    enough = partial(check_slots, marker_topic=marker_topic, slots=slots)
    yield Question("partitions of the marker topic", about(marker_topic.topic, enough))
    for name in names:
        fits = about(name, lambda topic: _check_target(topic, marker_topic, key, timeout()))
        yield Question(f"limits of {name}", fits)
    for name in all_names:
        rights = ("WRITE", "READ", "DESCRIBE") if name == marker_topic.topic else ("WRITE", "DESCRIBE")
        may = partial(_check_rights, link=link, marker_topic=marker_topic, rights=rights)
        yield Question(f"rights on {name}", about(name, may))


def _check_marker(marker: Topic, marker_topic: MarkerTopic) -> str:
    policy = marker.config.get("cleanup.policy", "compact")
    if policy != "compact":
        raise Misconfigured(
            f"the marker topic {marker.name!r} must have cleanup.policy=compact",
            sink=marker_topic.sink,
            state=f"cleanup.policy {policy}",
            help="set cleanup.policy=compact: with another one the newest marker could be deleted",
        )
    return f"cleanup.policy={policy}, {marker.told('min.insync.replicas')}"


def check_slots(marker: Topic, marker_topic: MarkerTopic, slots: int) -> str:
    """Raise ``Misconfigured`` if the marker topic has too few partitions for these slots."""
    if marker.partitions < slots:
        raise Misconfigured(
            f"the marker topic {marker.name!r} needs a partition for each of {slots} slots",
            sink=marker_topic.sink,
            state=f"partitions {marker.partitions}",
            help="call pipeline.create(schema), which adds them, or have them added",
        )
    return f"{marker.partitions} for {slots} slots"


def _check_target(target: Topic, marker_topic: MarkerTopic, key: str | None, transaction_timeout: float) -> str:
    if target.is_compacted and key is None:
        raise Misconfigured(
            f"topic {target.name!r} is compacted, so its rows need a key",
            sink=marker_topic.sink,
            state=f"cleanup.policy {target.config['cleanup.policy']}",
            help="name the key's column with key=",
        )
    if min(target.max_message_bytes, target.segment_bytes) < SMALLEST_MESSAGE:
        raise Misconfigured(
            f"topic {target.name!r} takes no batch of {SMALLEST_MESSAGE} bytes",
            sink=marker_topic.sink,
            state=f"max.message.bytes {target.max_message_bytes}, segment.bytes {target.segment_bytes}",
            help=f"set max.message.bytes and segment.bytes to {SMALLEST_MESSAGE} or more",
        )
    if target.retention is not None and target.retention < transaction_timeout:
        raise Misconfigured(
            f"topic {target.name!r} deletes rows after {target.retention:g} s, and a transaction may last"
            f" {transaction_timeout:g} s: rows could be gone before they become visible",
            sink=marker_topic.sink,
            state=f"retention.ms {target.config['retention.ms']}, cleanup.policy {target.config['cleanup.policy']}",
            help=f"raise retention.ms, or take transaction_timeout={target.retention:g} or less",
        )
    return target.told(*_LIMITS)


def _check_times(topic: Topic, marker_topic: MarkerTopic, transaction_timeout: float) -> str:
    """Refuse a topic that could refuse a record of a decided epoch for its timestamp.

    The timestamp is the time at which the client was given the record.  The broker compares it with its own clock when
    the record arrives, which may be as late as the end of the transaction.
    """
    if topic.config.get("message.timestamp.type") == "LogAppendTime":
        return topic.told("message.timestamp.type")
    for setting in _TIMES:
        is_after = setting == "message.timestamp.after.max.ms"
        needed = CLOCKS_S if is_after else transaction_timeout + CLOCKS_S
        found = topic.config.get(setting)
        if found is None or int(found) >= needed * 1000:
            continue
        shorter = "" if is_after else f", or take a transaction_timeout= that is {CLOCKS_S:g} s less than it"
        raise Misconfigured(
            f"topic {topic.name!r} may refuse records for their timestamps: {setting}={found} ms, and it must be"
            f" {needed * 1000:.0f} ms or more",
            sink=marker_topic.sink,
            state=f"a record may wait for {transaction_timeout:g} s (transaction_timeout) until a broker takes it, and"
            f" clocks may differ by {CLOCKS_S:g} s",
            help=f"raise {setting} of the topic, or set its message.timestamp.type to LogAppendTime{shorter}",
        )
    return topic.told("message.timestamp.type", *_TIMES)


def _check_rights(topic: Topic, link: Callable[[], Link], marker_topic: MarkerTopic, rights: Sequence[str]) -> str:
    lacking = sorted(set(rights) - topic.rights) if topic.rights is not None else []
    if lacking:
        raise Misconfigured(
            f"the user lacks the rights {lacking} on topic {topic.name!r}",
            sink=marker_topic.sink,
            state=f"rights {sorted(topic.rights or ())}, bootstrap servers {link().bootstrap}",
            help=f"grant them, and WRITE and DESCRIBE on the transactional id {marker_topic.transactional_id}",
        )
    return ", ".join(sorted(topic.rights)) if topic.rights is not None else "the brokers do not say"


def cautions(topics: Topics) -> Sequence[str]:
    """Return warnings: about topics whose settings are unknown, and about targets that delete or may lose rows.

    Of a target that deletes rows, a reader that comes late does not see them all.
    """
    said = []
    if unknown := [topic.name for topic in (*topics.targets.values(), topics.marker) if not topic.config]:
        said.append(
            f"the settings of topics {unknown} cannot be read, so Kafka's defaults are assumed: if they differ, brokers"
            " may refuse records of an epoch that is decided; grant DESCRIBE_CONFIGS on these topics"
        )
    for name, target in topics.targets.items():
        if target.is_compacted:
            said.append(
                f"topic {name!r} is compacted: of each key only the newest row stays, so a reader that comes later sees"
                " every key and not every row"
            )
        if target.retention is not None and target.retention < SHORT_RETENTION_H * 3600:
            said.append(
                f"topic {name!r} keeps rows for {target.retention / 3600:.2g} h (retention.ms"
                f" {target.config['retention.ms']}): a reader that is away for longer loses rows"
            )
        if target.config.get("unclean.leader.election.enable") == "true":
            said.append(
                f"topic {name!r} may elect a leader that lacks rows (unclean.leader.election.enable): rows of committed"
                " epochs can then be lost"
            )
        if target.retained_bytes is not None:
            said.append(
                f"topic {name!r} keeps {target.retained_bytes} bytes of a partition (retention.bytes): a larger epoch,"
                " or a reader that is further behind, loses rows"
            )
    return said


def check_topic(name: str, sink: str) -> None:
    """Raise ``Misconfigured`` for what no broker takes as the name of a topic."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise Misconfigured(
            f"no broker takes {name!r} as the name of a topic",
            sink=sink,
            help=f"topic= is of the form {_TOPIC.pattern}, and neither '.' nor '..'",
        )


def check_length(marker_topic: MarkerTopic) -> None:
    """Raise ``Misconfigured`` if app and sink name make a name that is too long for a topic."""
    if len(marker_topic.topic) > LONGEST_TOPIC:
        raise Misconfigured(
            f"the marker topic's name {marker_topic.topic!r} has more than {LONGEST_TOPIC} characters",
            sink=marker_topic.sink,
            state=f"{len(marker_topic.topic)} characters, of app {marker_topic.app!r} and sink {marker_topic.sink!r}",
            help="give the app or the sink a shorter name",
        )


def _describe(link: Link, name: str) -> Topic | None:
    with link.admin() as admin:
        return _describe_all(link, admin, [name])[name]


def newest_timestamp(link: Link, name: str) -> float | None:
    """Return the largest timestamp in a topic with one partition, in seconds since 1970; None without a record."""
    k = kafka()
    with link.asking(f"for the newest record of {name}"), link.admin() as admin:
        partition = k.TopicPartition(name, 0)
        asked = admin.list_offsets({partition: k.admin.OffsetSpec.max_timestamp()}, request_timeout=link.timeout)
        found: Any = link.answer(admin, asked[partition])
    return found.timestamp / 1000 if found.timestamp >= 0 else None


def _shown(link: Link, admin: Any, names: Sequence[str]) -> Mapping[str, Topic | None]:
    """Describe all topics; look again for some time for those that the broker does not know."""
    until = time.monotonic() + HEARD_S
    while None in (found := _describe_all(link, admin, names)).values() and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _describe_all(link: Link, admin: Any, names: Sequence[str]) -> Mapping[str, Topic | None]:
    """Describe all topics with two requests; None: there is no such topic."""
    k = kafka()
    asked = admin.describe_topics(
        k.TopicCollection(list(names)), include_authorized_operations=True, request_timeout=link.timeout
    )
    resources = [k.admin.ConfigResource(k.admin.ResourceType.TOPIC, name) for name in names]
    settings = admin.describe_configs(resources, request_timeout=link.timeout)
    return {
        name: _described(link, admin, name, asked[name], settings[resource])
        for name, resource in zip(names, resources, strict=True)
    }


def _described(link: Link, admin: Any, name: str, asked: Any, settings: Any) -> Topic | None:
    k = kafka()
    try:
        told: Any = link.answer(admin, asked)
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
    """Return the topic's settings; none if the user has no right to ask."""
    k = kafka()
    try:
        return {name: str(entry.value) for name, entry in link.answer(admin, settings).items()}
    except k.KafkaException as error:
        if error.args[0].code() == k.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return {}
        raise


def _make(link: Link, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> bool:
    """Make a topic.  False: it was there already."""
    k = kafka()
    is_asked_for = False

    def attempt(link: Link) -> bool:
        nonlocal is_asked_for
        may_be_ours = is_asked_for  # an answer may be lost: then an earlier attempt has made the topic
        if _describe(link, name) is not None:
            return may_be_ours
        is_asked_for = True
        new = k.admin.NewTopic(name, partitions, replication, config=dict(config))
        try:
            with link.admin() as admin:
                link.answer(admin, admin.create_topics([new], request_timeout=link.timeout)[name])
        except k.KafkaException as error:
            if error.args[0].code() != k.KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return may_be_ours
        return True

    return link.ask_anew("to make topics", attempt)


def _grow(link: Link, name: str, partitions: int) -> None:
    """Give a topic more partitions; it is no error if somebody else has done that meanwhile."""
    k = kafka()

    def attempt(link: Link) -> None:
        try:
            with link.admin() as admin:
                grown = admin.create_partitions([k.admin.NewPartitions(name, partitions)], request_timeout=link.timeout)
                link.answer(admin, grown[name])
        except k.KafkaException as error:
            if error.args[0].code() != k.KafkaError.INVALID_PARTITIONS:
                raise

    link.ask_anew("to make topics", attempt)
    deadline = link.deadline()
    while _await(link, name).partitions < partitions:
        if time.monotonic() > deadline:
            raise _not_shown(link, f"topic {name!r} was given {partitions} partitions, and no broker reports them")
        time.sleep(0.1)


def _not_shown(link: Link, what: str) -> SinkUnavailable:
    return SinkUnavailable(
        f"{what} within {link.timeout:g} s",
        sink=link.sink,
        state=f"bootstrap servers {link.bootstrap}",
        help="start the controllers of the cluster (a majority must be up), and call pipeline.create(schema) again",
    )


def _await(link: Link, name: str) -> Topic:
    """Return a topic that was just made, once the brokers report it."""
    deadline = link.deadline()
    while (topic := _told(link, name)) is None:
        if time.monotonic() > deadline:
            raise _not_shown(link, f"topic {name!r} was made, and no broker reports it")
        time.sleep(0.1)
    return topic
