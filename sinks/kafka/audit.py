"""What a sink's marker topic says about the epochs that the sink shows.

The audit is the markers themselves (``marker.py``): no other record is written for it.  The newest record says from
which position on epochs are kept.  A record below that position is not part of the audit, even if the topic still holds
it: compaction may not have removed it yet, or may have removed its tombstone first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Decision, Position
from epochal.sinks.epochs import Epochs, ShownEpoch, Wanted
from epochal.sinks.kafka import marker, slots
from epochal.sinks.kafka.client import Link, kafka
from epochal.sinks.kafka.marker import MarkerTopic

if TYPE_CHECKING:
    from confluent_kafka import Message

DAY_MS = 86_400_000


def read(link: Link, marker_topic: MarkerTopic, wanted: Wanted) -> Epochs:
    """Read the epochs from the newest back, no further than ``wanted``.

    With several slots, read only the epochs that all slots show.
    """
    state = slots.read_all(link, marker_topic)
    if state.marker is None:
        return Epochs()
    shown, kept = state.marker.position, state.kept if state.kept is not None else 1

    def told() -> Epochs:
        found: list[ShownEpoch] = []
        for stretch in marker.read_back(link, marker_topic):
            rows = [row for row in _rows(marker_topic, stretch) if kept <= row.position <= shown]
            found += reversed(rows)
            positions = [row.position for row in found]
            if wanted.is_met(positions) or any(position <= kept for position in positions):
                break
        return wanted.of_all(found)

    return link.ask(f"for the epochs in {marker_topic.topic}", told)


def kept_since(link: Link, marker_topic: MarkerTopic, days: float) -> Position:
    """Return the lowest position that was committed within ``days`` days before the newest record; 1: all were.

    The timestamps of the records decide, and the broker has an index of them; no clock is read.
    """
    return link.ask(
        f"for the epochs of {days:g} days in {marker_topic.topic}", lambda: _kept_since(link, marker_topic, days)
    )


def _kept_since(link: Link, marker_topic: MarkerTopic, days: float) -> Position:
    newest = next((stretch[-1] for stretch in marker.read_back(link, marker_topic) if stretch), None)
    if newest is None:
        return 1
    with link.consumer() as consumer:
        since = newest.timestamp()[1] - int(days * DAY_MS)
        asked = kafka().TopicPartition(marker_topic.topic, marker_topic.slot, max(since, 0))
        (found,) = consumer.offsets_for_times([asked], timeout=link.timeout)
        if found.error is not None:
            raise kafka().KafkaException(found.error)
        end = (newest.offset() or 0) + 1
        for message in marker.records(link, marker_topic, consumer, found.offset if found.offset >= 0 else end, end):
            if message.timestamp()[1] >= since:  # an older one can follow a record whose clock was ahead
                for row in _rows(marker_topic, [message]):
                    return row.position
    return 1


def _rows(marker_topic: MarkerTopic, records: Iterable[Message]) -> list[ShownEpoch]:
    """Return the epochs that these records are about.  A fence is about none, and a tombstone has no value."""
    rows = []
    for message in records:
        value = message.value()
        if value is None:
            continue
        state, about = marker.parse(marker_topic, value), json.loads(value).get("epoch")
        if state.marker is not None and about:
            rows.append(_row(marker_topic, state, about, message.timestamp()[1]))
    return rows


def _row(marker_topic: MarkerTopic, state: marker.State, about: dict[str, Any], milliseconds: int) -> ShownEpoch:
    assert state.marker is not None, "asked before"
    decision = Decision.from_json(about["decision"])
    return ShownEpoch(
        app=marker_topic.app,
        sink=marker_topic.sink,
        position=state.marker.position,
        epoch=decision.epoch,
        incarnation=decision.incarnation,
        decision=state.marker.decision,
        offsets=str(about.get("offsets", "")),
        rows=int(about.get("rows", 0)),
        digest=state.marker.digest,
        watermark=about.get("watermark"),
        committed_at=datetime.fromtimestamp(milliseconds / 1000, timezone.utc),
    )
