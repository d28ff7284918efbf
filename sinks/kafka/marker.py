"""Fence and marker of one (app, sink): records in a compacted topic, of one partition per slot (``slots.py``).

A record's key says what its transaction did (``fence`` or ``marker-<position>``); its value always is the whole state
after it, so the newest record alone tells fence *and* marker, however long ago the other was written::

    {"version": 1, "app": .., "sink": .., "fence": {"generation": .., "token": ..},
     "marker": {"position": .., "decision": ..} or null, "epoch": {...} for the audit, "kept": position}

Each epoch's record in partition 0 has a key of its own, so compaction keeps it: these records are the sink's audit
(``audit.py``).  ``kept`` is the lowest position whose record is; the transaction of a later epoch deletes those that
fall out of retention, by tombstones in front of its own record.  Other partitions, and older versions of Epochal, have
the one key ``marker``.  No reader of the state looks at keys.

A sink that writes to a list of topics, or in several slots, writes version 2 with more of its state::

    "targets": {topic: id}, "slots": ever used, "span": in how many the epoch is, "before": {"marker": .., "span": ..}

Version 3 is version 2 of a sink whose marker holds a digest, as in idempotent mode::

    "marker": {"position": .., "decision": .., "digest": {"rows": .., "sum": ..}}

The fence counts in partition 0 alone; the marker is that of the partition's own slot.

This is safe because a record is only ever written in a transaction of the one transactional id, after
``init_transactions`` and after a final read: whoever reads in between is fenced before it can write.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Digest, Json, Marker, Position
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.conditions import Conditions
from epochal.sinks.kafka.client import Link, kafka
from epochal.sinks.rows.formats import check_marker

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

VERSION = 3
"""Since 2 with a list of topics and slots, since 3 with a digest; the lowest that says it all is written."""
TAIL = 200
"""Offsets read from the end at first: enough for 100 epochs; more are read while no record is found."""
LONGEST_TOPIC = 249


@dataclass(frozen=True)
class MarkerTopic:
    """Where the state of one (app, sink) lives, and under which transactional id it is written."""

    app: str
    sink: str
    slot: int = 0

    @property
    def topic(self) -> str:
        return f"__epochal.{self.app}.{self.sink}"

    @property
    def transactional_id(self) -> str:
        """With '#', which no name may hold: of another sink it can never be."""
        return f"epochal-{self.app}-{self.sink}" + (f"#{self.slot}" if self.slot else "")

    def of_slot(self, slot: int) -> MarkerTopic:
        return replace(self, slot=slot)

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.sink, f"topic {self.topic}" + (f", slot {self.slot}" if self.slot else ""))


@dataclass(frozen=True)
class PreviousEpoch:
    """What a sink showed when an epoch was prepared: its marker, and in how many slots that epoch was."""

    marker: Marker | None = None
    span: int = 0

    def of_slot(self, slot: int) -> Marker | None:
        """What the slot's own marker must be."""
        return self.marker if slot < self.span else None

    def to_json(self) -> Json:
        return {"marker": _marker_json(self.marker), "span": self.span}

    @classmethod
    def from_json(cls, data: Json) -> PreviousEpoch:
        return cls(_marker(data["marker"]), int(data["span"]))


@dataclass(frozen=True)
class State:
    """Newest fence and newest marker, and what else a record tells."""

    fence: Actor | None = None
    marker: Marker | None = None
    targets: Mapping[str, str] = field(default_factory=dict)  # of a list of topics, name to id at the newest epoch
    slots: int = 1  # ever used, the owner of the fence included
    span: int = 1  # in how many of them the newest epoch is
    before: PreviousEpoch = field(default_factory=PreviousEpoch)  # that epoch
    kept: Position | None = None  # the lowest one whose record has a key of its own; of partition 0


def key(marker_topic: MarkerTopic, position: Position) -> bytes:
    """That of an epoch's record: its own in partition 0."""
    return b"marker-%d" % position if marker_topic.slot == 0 else b"marker"


LARGEST = 1_000_000
"""Bytes that a record may have, whatever the topics of the rows take: librdkafka's own limit."""


def record(marker_topic: MarkerTopic, state: State, about: Json | None = None) -> bytes:
    """The value of a record: the whole state, and what people may want to know about the epoch."""
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
    """The state that a record holds; ``Misconfigured`` for one that is foreign, or of a newer version."""
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
    """The newest state, with the marker of the place's slot.

    Not ``final``: up to the last stable offset as it is, disturbing and awaiting nobody.  ``final`` (after
    ``init_transactions``): up to the high watermark, waiting until no transaction is open below it, so what
    is not seen now will never be seen.  Of another slot's partition, where the fence is, only what is readable
    is read.
    """
    if marker_topic.slot == 0:
        return read_slot(link, marker_topic, final=final)
    owner = read_slot(link, marker_topic.of_slot(0), final=False)
    return replace(read_slot(link, marker_topic, final=final), fence=owner.fence, slots=owner.slots)


def read_slot(link: Link, marker_topic: MarkerTopic, *, final: bool) -> State:
    """What the slot's own partition tells."""
    value = link.ask(
        f"for the newest record of {marker_topic.topic}[{marker_topic.slot}]", lambda: _read(link, marker_topic, final)
    )
    return parse(marker_topic, value) if value is not None else State()


def _read(link: Link, marker_topic: MarkerTopic, final: bool) -> bytes | None:
    """The newest committed value, from a tail that is lengthened until it holds one."""
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
    """The committed records of the place's partition, from the newest back: one stretch after another, each longer.

    Within a stretch they are in their own order.
    """
    with link.consumer() as consumer:
        first, end = _ends(link, marker_topic, consumer)
        reach = TAIL
        while end > first:
            start = max(first, end - reach)
            yield list(records(link, marker_topic, consumer, start, end))
            end, reach = start, reach * 20


def _ends(link: Link, marker_topic: MarkerTopic, consumer: Consumer) -> tuple[int, int]:
    """The first offset, and the last stable one for a read_committed consumer, else the high watermark."""
    marks = consumer.get_watermark_offsets(
        kafka().TopicPartition(marker_topic.topic, marker_topic.slot), timeout=link.timeout
    )
    if marks is None:
        raise TimeoutError(f"no offsets of {marker_topic.topic}")
    return int(marks[0]), int(marks[1])


def _end(link: Link, marker_topic: MarkerTopic, consumer: Consumer) -> int:
    return _ends(link, marker_topic, consumer)[1]


def _settled_end(link: Link, marker_topic: MarkerTopic, consumer: Consumer) -> int:
    """The high watermark, once the last stable offset has reached it."""
    with link.consumer("read_uncommitted") as uncommitted:
        end = _end(link, marker_topic, uncommitted)
    deadline = link.deadline()
    while (stable := _end(link, marker_topic, consumer)) < end:
        if time.monotonic() > deadline:
            raise SinkUnavailable(
                f"a transaction of another transactional id is open in {marker_topic.topic}[{marker_topic.slot}]",
                sink=marker_topic.sink,
                state=f"last stable offset {stable}, high watermark {end}, after {link.timeout:g} s",
                help=f"only {marker_topic.transactional_id} may write to this partition; find and abort the other"
                " transaction",
            )
        time.sleep(0.02)
    return end


def _newest(link: Link, marker_topic: MarkerTopic, consumer: Consumer, start: int, end: int) -> bytes | None:
    """The value of the last committed record in ``[start, end)``, None if there is none."""
    value = None
    for message in records(link, marker_topic, consumer, start, end):
        value = message.value()
    return value


def records(link: Link, marker_topic: MarkerTopic, consumer: Consumer, start: int, end: int) -> Iterator[Message]:
    """The committed records in ``[start, end)``.

    The end is reached by position, not by counting records: compaction and aborted transactions leave
    gaps, and the last offsets of a partition are control records that no consumer is shown.
    """
    deadline, k = link.deadline(), kafka()
    consumer.assign([k.TopicPartition(marker_topic.topic, marker_topic.slot, start)])
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error, offset = message.error(), message.offset() or 0
        if error is not None and error.code() != k.KafkaError._PARTITION_EOF:
            # The broker's no; below 0 the client goes on trying.  No group is joined, so no right to one is needed.
            refused = error.code() > 0 and error.code() != k.KafkaError.GROUP_AUTHORIZATION_FAILED
            if refused and not error.retriable():
                raise k.KafkaException(error)
        elif offset >= end:
            return
        elif error is None:
            yield message
    raise TimeoutError(f"{marker_topic.topic} was not read up to offset {end}")
