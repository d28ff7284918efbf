"""Fence and marker of one (app, sink): records in a compacted topic that has one partition per slot (``slots.py``).

The key of a record says what its transaction did (``fence`` or ``marker-<position>``).  The value is always the whole
state after that transaction, so the newest record alone tells fence *and* marker, however old either of them is::

    {"version": 1, "app": .., "sink": .., "fence": {"generation": .., "token": ..},
     "marker": {"position": .., "decision": ..} or null, "epoch": {...} for the audit, "kept": position}

In partition 0 the record of each epoch has a key of its own, so compaction keeps it: these records are the sink's
audit (``audit.py``).  ``kept`` is the lowest position whose record is kept.  The transaction of a later epoch deletes
records that need not be kept any longer: it sends tombstones for them before its own record.  In other partitions, and
in records of an operator or of older versions of Epochal, the key of a marker is ``marker``.  No reader of the state
looks at keys.

A sink that writes to a list of topics, or in several slots, writes version 2, which holds more::

    "targets": {topic: id}, "slots": ever used, "span": slots of the epoch, "before": {"marker": .., "span": ..}

Version 3 is version 2 with a digest in the marker, as idempotent mode writes it::

    "marker": {"position": .., "decision": .., "digest": {"rows": .., "sum": ..}}

Only the fence in partition 0 counts.  The marker in a partition is that of the partition's own slot.

To read the state and then write a new one is safe, because a record is only ever written in a transaction of the slot's
one transactional id, after ``init_transactions`` and a final read.  If another producer calls ``init_transactions``
between the read and the write, the write fails.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Digest, EpochNumber, Json, Marker, Position
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.conditions import Conditions
from epochal.sinks.kafka.client import Link, kafka
from epochal.sinks.rows.formats import check_marker

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

VERSION = 3
"""Version 2 added the list of topics and the slots, 3 the digest.  A record has the lowest version that can hold it."""
TAIL = 200
"""How many offsets before the end are read at first: enough for 100 epochs.  If no record is there, more are read."""
LONGEST_TOPIC = 249


@dataclass(frozen=True)
class MarkerTopic:
    """The topic and the slot that hold state of one (app, sink), and the transactional id that writes it."""

    app: str
    sink: str
    slot: int = 0

    @property
    def topic(self) -> str:
        return f"__epochal.{self.app}.{self.sink}"

    @property
    def transactional_id(self) -> str:
        """The id of the slot.  From slot 1 on it contains '#', which no name may contain: it is no id of a slot 0."""
        return f"epochal-{self.app}-{self.sink}" + (f"#{self.slot}" if self.slot else "")

    def of_slot(self, slot: int) -> MarkerTopic:
        return replace(self, slot=slot)

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.sink, f"topic {self.topic}" + (f", slot {self.slot}" if self.slot else ""))


Place = MarkerTopic
"""The name of the class in sinks that earlier versions pickled."""


@dataclass(frozen=True)
class PreviousEpoch:
    """What a sink showed when an epoch was prepared: its marker, and how many slots the epoch of that marker had."""

    marker: Marker | None = None
    span: int = 0

    def of_slot(self, slot: int) -> Marker | None:
        """Return what the slot's own marker must be; None: the slot must have no marker."""
        return self.marker if slot < self.span else None

    def to_json(self) -> Json:
        return {"marker": _marker_json(self.marker), "span": self.span}

    @classmethod
    def from_json(cls, data: Json) -> PreviousEpoch:
        return cls(_marker(data["marker"]), int(data["span"]))


@dataclass(frozen=True)
class State:
    """The newest fence and the newest marker, and what else a record says."""

    fence: Actor | None = None
    marker: Marker | None = None
    targets: Mapping[str, str] = field(default_factory=dict)  # with a list of topics: name to id, at the newest epoch
    slots: int = 1  # how many were ever used, also by the owner of the fence
    span: int = 1  # how many of them the newest epoch has
    before: PreviousEpoch = field(default_factory=PreviousEpoch)  # what the sink showed before that epoch
    kept: Position | None = None  # the lowest position whose record is kept, with its own key; in partition 0 only


def key(marker_topic: MarkerTopic, position: Position) -> bytes:
    """Return the key of an epoch's record: in partition 0 each epoch has its own."""
    return b"marker-%d" % position if marker_topic.slot == 0 else b"marker"


LARGEST = 1_000_000
"""How many bytes a record may have, whatever the topics of the rows take: librdkafka's default limit."""


def record(marker_topic: MarkerTopic, state: State, about: Json | None = None) -> bytes:
    """Return the value of a record: the whole state, and ``about``: what people may want to know about the epoch."""
    assert state.fence is not None, "nothing is written before the first fence"
    value: Json = {
        "version": 1,
        "app": marker_topic.app,
        "sink": marker_topic.sink,
        "fence": state.fence.to_json(),
        "marker": _marker_json(state.marker),
        "epoch": about,
        **({"kept": state.kept} if state.kept is not None else {}),
    }
    digested = state.marker is not None and state.marker.digest is not None
    if digested or state.targets or state.slots > 1:
        slots = {"slots": state.slots, "span": state.span, "before": state.before.to_json()}
        value |= {"version": VERSION if digested else 2, "targets": dict(state.targets), **slots}
    return json.dumps(value).encode()


def _marker_json(marker: Marker | None) -> Json | None:
    if marker is None:
        return None
    digest = {"digest": marker.digest.to_json()} if marker.digest is not None else {}
    return {"position": marker.position, "decision": marker.decision, **digest}


def _marker(data: Json | None) -> Marker | None:
    if data is None:
        return None
    digest = Digest.from_json(data["digest"]) if "digest" in data else None
    return Marker(int(data["position"]), int(data["decision"]), digest)


def parse(marker_topic: MarkerTopic, value: bytes | None) -> State:
    """Return the state that a record holds; ``Misconfigured`` if it is another sink's, or of a newer version."""
    try:
        data: Json = json.loads(value or b"")
        if (data["app"], data["sink"]) != (marker_topic.app, marker_topic.sink):
            raise ValueError("of another app or sink")
        check_marker(f"topic {marker_topic.topic}", int(data["version"]), VERSION, marker_topic.sink)
        kept = int(data["kept"]) if "kept" in data else None
        old = State(Actor.from_json(data["fence"]), _marker(data["marker"]), kept=kept)
        if data["version"] == 1:
            return old
        return replace(
            old,
            targets=dict(data["targets"]),
            slots=int(data["slots"]),
            span=int(data["span"]),
            before=PreviousEpoch.from_json(data["before"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Misconfigured(
            f"topic {marker_topic.topic} holds a record that is not this sink's: {value!r:.300}",
            sink=marker_topic.sink,
            state=f"app {marker_topic.app}, version {VERSION}: {error}",
            help="give the sink another name; nobody but the sink may write to that topic",
        ) from None


def read(link: Link, marker_topic: MarkerTopic, *, final: bool) -> State:
    """Return the newest state; the marker in it is that of the slot of ``marker_topic``.

    Not ``final``: read up to the last stable offset as it is now; this disturbs nobody and waits for nobody.
    ``final`` (after ``init_transactions``): wait until no transaction is open below the high watermark, then read up
    to there.  What an older producer wrote and this read does not see will never be seen.  The fence of any slot is
    read from partition 0; for a slot other than 0 that read is not ``final``.
    """
    if marker_topic.slot == 0:
        return read_slot(link, marker_topic, final=final)
    owner = read_slot(link, marker_topic.of_slot(0), final=False)
    return replace(read_slot(link, marker_topic, final=final), fence=owner.fence, slots=owner.slots)


def read_slot(link: Link, marker_topic: MarkerTopic, *, final: bool) -> State:
    """Return what the slot's own partition says."""
    value = link.ask(
        f"for the newest record of {marker_topic.topic}[{marker_topic.slot}]", lambda: _read(link, marker_topic, final)
    )
    return parse(marker_topic, value) if value is not None else State()


def _read(link: Link, marker_topic: MarkerTopic, final: bool) -> bytes | None:
    """Return the newest committed value: read the tail of the partition, and a longer tail until it holds one."""
    with link.consumer() as consumer:
        end = _settled_end(link, marker_topic, consumer) if final else _end(link, marker_topic, consumer)
        reach = TAIL
        while True:
            start = max(0, end - reach)
            value = _newest(link, marker_topic, consumer, start, end) if end else None
            if value is not None or start == 0:
                return value
            reach *= 20


def read_back(link: Link, marker_topic: MarkerTopic) -> Iterator[list[Message]]:
    """Yield the committed records of the slot's partition in stretches, from the newest to the oldest.

    Each stretch is longer than the one before it, except that the last one ends at the partition's first record.
    Within a stretch the records are in the order of their offsets.
    """
    with link.consumer() as consumer:
        first, end = _ends(link, marker_topic, consumer)
        reach = TAIL
        while end > first:
            start = max(first, end - reach)
            yield list(records(link, marker_topic, consumer, start, end))
            end, reach = start, reach * 20


def epoch_above_stable(link: Link, marker_topic: MarkerTopic) -> EpochNumber | None:
    """Return the epoch of the newest marker above the last stable offset; None if there is none.

    Only the sink's own transactional id writes there, so that marker is in its open transaction.
    """
    with link.consumer() as committed, link.consumer("read_uncommitted") as consumer:
        start, end = _end(link, marker_topic, committed), _end(link, marker_topic, consumer)
        value = _newest(link, marker_topic, consumer, start, end) if start < end else None
    if value is None:
        return None
    about: Json | None = json.loads(value).get("epoch")
    return int(about["decision"]["epoch"]) if about is not None else None


def _ends(link: Link, marker_topic: MarkerTopic, consumer: Consumer) -> tuple[int, int]:
    """Return the first offset and the end: the last stable offset if ``consumer`` is read_committed, else the high
    watermark."""
    marks = consumer.get_watermark_offsets(
        kafka().TopicPartition(marker_topic.topic, marker_topic.slot), timeout=link.timeout
    )
    if marks is None:
        raise TimeoutError(f"no offsets of {marker_topic.topic}")
    return int(marks[0]), int(marks[1])


def _end(link: Link, marker_topic: MarkerTopic, consumer: Consumer) -> int:
    return _ends(link, marker_topic, consumer)[1]


def _settled_end(link: Link, marker_topic: MarkerTopic, consumer: Consumer) -> int:
    """Return the high watermark once the last stable offset has reached it; ``SinkUnavailable`` after too long."""
    with link.consumer("read_uncommitted") as uncommitted:
        end = _end(link, marker_topic, uncommitted)
    deadline = link.deadline()
    while (stable := _end(link, marker_topic, consumer)) < end:
        if time.monotonic() > deadline:
            raise SinkUnavailable(
                f"a transaction of another transactional id is open in {marker_topic.topic}[{marker_topic.slot}]",
                sink=marker_topic.sink,
                state=f"last stable offset {stable}, high watermark {end}, after {link.timeout:g} s",
                help=f"only {marker_topic.transactional_id} may write to this partition: end the other producer, and"
                " restart the query once the broker has aborted its transaction (after its transaction.timeout.ms)",
            )
        time.sleep(0.02)
    return end


def _newest(link: Link, marker_topic: MarkerTopic, consumer: Consumer, start: int, end: int) -> bytes | None:
    """Return the value of the last committed record in ``[start, end)``; None if there is none."""
    value = None
    for message in records(link, marker_topic, consumer, start, end):
        value = message.value()
    return value


def records(link: Link, marker_topic: MarkerTopic, consumer: Consumer, start: int, end: int) -> Iterator[Message]:
    """Yield the committed records in ``[start, end)``.

    The end is known by the offset, not by a count of records: compaction and aborted transactions leave gaps, and
    the last offsets of a partition belong to control records, which no consumer gets.
    """
    deadline, k = link.deadline(), kafka()
    consumer.assign([k.TopicPartition(marker_topic.topic, marker_topic.slot, start)])
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error, offset = message.error(), message.offset() or 0
        if error is not None and error.code() != k.KafkaError._PARTITION_EOF:
            # Codes above 0 come from the broker; after one below 0 the client itself tries again.
            # No group is joined, so no right to a group is needed.
            refused = error.code() > 0 and error.code() != k.KafkaError.GROUP_AUTHORIZATION_FAILED
            if refused and not error.retriable():
                raise k.KafkaException(error)
        elif offset >= end:
            return
        elif error is None:
            yield message
    raise TimeoutError(f"{marker_topic.topic} was not read up to offset {end}")
