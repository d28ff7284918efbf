"""Look, fence and abort: who owns the sink, and what an operator writes as its marker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from epochal.coordinator.model.epoch import MOVED, Actor, Marker, Query, SinkState
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured, SinkUnavailable
from epochal.sinks.kafka import marker, slots, topics
from epochal.sinks.kafka.client import Link, is_refused, kafka
from epochal.sinks.kafka.core import Core
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch, State
from epochal.sinks.kafka.starting import create
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.kafka.transaction import Transaction, guarded

FENCE_ATTEMPTS = 10
_NOT_YET = "kafka: no marker topic yet"
"""The identity of a sink under its new name, as long as that name has no marker topic."""


def judged_by_owner(marker_topic: MarkerTopic, by: Actor) -> Callable[[State], bool]:
    def judge(state: State) -> bool:
        marker_topic.conditions.check_owner(state, by)
        return True

    return judge


def check_targets(seen: Topics, known: Mapping[str, str], marker_topic: MarkerTopic) -> None:
    """Raise ``CheckpointMismatch`` if a topic was dropped and made again: its rows are lost."""
    for name, id_ in seen.ids.items():
        if known.get(name, id_) != id_:
            raise CheckpointMismatch(
                f"topic {name!r} is not the one that the newest epoch was written to",
                sink=marker_topic.sink,
                state=f"was {known[name]}, is {id_}",
                help="it was dropped and made again, and its rows are lost; if that was meant, leave it out of topics="
                " for one epoch",
            )


def what_topics(now: Topics, marker_topic: MarkerTopic) -> str:
    return f"topic {' or '.join(map(repr, (*now.targets, marker_topic.topic)))}"


def look(sink: Core, query: Query, *, by: Actor | None = None) -> SinkState:
    """See ``epochal.sinks.protocol.Sink``."""
    marker_topic, link = sink.marker_topic(query), sink.link()
    if sink.is_new and not topics.has_marker(link, marker_topic):
        return SinkState(_NOT_YET, None, None)
    seen = topics.describe(link, sink.declared, marker_topic)
    sink.looked = marker_topic, seen
    state = slots.read_all(link, marker_topic)
    check_targets(seen, state.targets, marker_topic)
    topics.check_slots(seen.marker, marker_topic, max(sink.slots, state.slots))
    if by is not None and state.fence == by:
        state = bar_and_read(sink, link, marker_topic, state.slots)
    sink.ever_used = state.slots
    return SinkState(seen.identity, state.fence, marker_of_either_name(sink, query, state))


def marker_of_either_name(sink: Core, query: Query, state: State) -> Marker | None:
    """Return the marker of the sink.  If the sink is being renamed, the marker is under one of its two names."""
    if sink.also is None or state.marker is None or not state.marker.is_moved:
        return state.marker
    return marker.read(sink.link(), sink.also.marker_topic(query), final=False).marker


def fence(sink: Core, query: Query, by: Actor) -> None:
    """Bar every older producer, write the fence unless a newer actor owns the sink, then bar all other slots.

    If two starts fence at the same time, each ``init`` ends the other's transaction.  So at most one of them can write
    its record before the state that it has read changes.  The other start reads that record and is ``Fenced``.  Point 4
    in ``slots.py`` says why the other slots come last, and why each call bars them again.
    """
    marker_topic, link = sink.marker_topic(query), sink.link()
    if sink.is_new:
        create(sink, query, None)
    for attempt in range(FENCE_ATTEMPTS):
        marker_topic.conditions.check_fence(marker.read(link, marker_topic, final=False), by)  # disturbs nobody
        if (
            write_fence(sink, link, marker_topic, by)
            and (state := marker.read(link, marker_topic, final=True)).fence == by
        ):
            for slot in range(1, state.slots):
                bar_producer(sink, link, marker_topic.of_slot(slot))
            sink.ever_used = state.slots
            return
        time.sleep(random.uniform(0, 0.1 * 2 ** min(attempt, 5)))
    raise SinkUnavailable(
        f"another start fenced the sink at the same time, in each of {FENCE_ATTEMPTS} attempts",
        sink=sink.name,
        state=f"transactional id {marker_topic.transactional_id}, by {by}",
        help="start one query per app and sink",
    )


def abort(sink: Core, query: Query, by: Actor) -> None:
    """End the transactions that dead producers left open; nothing else in Kafka is prepared work."""
    marker_topic, link = sink.marker_topic(query), sink.link()
    state = marker.read(link, marker_topic, final=False)
    marker_topic.conditions.check_owner(state, by)
    marker_topic.conditions.check_owner(bar_and_read(sink, link, marker_topic, state.slots), by)


def bar_and_read(sink: Core, link: Link, marker_topic: MarkerTopic, ever_used: int) -> State:
    """Bar every producer of all slots, then return the final state of all slots."""
    for slot in range(ever_used):
        bar_producer(sink, link, marker_topic.of_slot(slot))
    return slots.shown(
        marker_topic, [marker.read_slot(link, marker_topic.of_slot(slot), final=True) for slot in range(ever_used)]
    )


def bar_producer(sink: Core, link: Link, marker_topic: MarkerTopic) -> None:
    transaction = Transaction(link, marker_topic, sink.timeout(link), {})
    try:
        transaction.bar()
    finally:
        transaction.drop()


def write_fence(sink: Core, link: Link, marker_topic: MarkerTopic, by: Actor) -> bool:
    """Write the fence if it is not there.  False: another producer came in between, or the answer was lost."""
    transaction, state, mine = guarded(
        link, marker_topic, sink.timeout(link), lambda state: marker_topic.conditions.check_fence(state, by), {}
    )
    try:
        if not mine or state.slots < sink.slots:
            transaction.begin()
            transaction.send_state(b"fence", replace(state, fence=by, slots=max(state.slots, sink.slots)))
            transaction.commit()
    except kafka().KafkaException as error:
        check_refused(link, marker_topic, error)
        return False
    finally:
        transaction.drop()
    return True


def check_refused(link: Link, marker_topic: MarkerTopic, error: Exception) -> None:
    """Raise ``Misconfigured`` if the broker refused a record of the marker topic: another attempt cannot change that.

    The commit reports the first record that failed.  Then no commit was requested.
    """
    if is_refused(error.args[0]):
        raise link.failure(error, f"to write a record into {marker_topic.topic}") from None


def check_mark(sink: Core, query: Query) -> None:
    """Raise ``Misconfigured`` if the sink uses, or ever used, several slots."""
    marker_topic, link = sink.marker_topic(query), sink.link()
    there = topics.has_marker(link, marker_topic)
    slots = marker.read(link, marker_topic, final=False).slots if there else 1
    if max(slots, sink.slots) > 1:
        raise Misconfigured(
            f"the sink was used with slots={max(slots, sink.slots)}, each with a marker of its own, and these cannot be"
            " written by hand",
            sink=sink.name,
            help="restore the marker topic; a sink with slots= keeps its name",
        )


def mark(sink: Core, query: Query, marker: Marker | None, by: Actor) -> None:
    """Write ``marker`` in a record of its own, by a producer that has barred all others; return once it was read back.

    If the sink is being renamed, its other name gets a marker that says so.
    """
    mark_until_seen(sink, sink.marker_topic(query), marker, by)
    if sink.also is not None:
        position = marker.position if marker is not None else 1
        mark_until_seen(sink.also, sink.also.marker_topic(query), Marker(position, MOVED), by)


def mark_until_seen(sink: Core, marker_topic: MarkerTopic, marker: Marker | None, by: Actor) -> None:
    link = sink.link()
    for attempt in range(FENCE_ATTEMPTS):
        if has_marked(sink, link, marker_topic, marker, by):
            return
        time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1.0))
    raise SinkUnavailable(
        f"the marker could not be written in {FENCE_ATTEMPTS} attempts",
        sink=sink.name,
        state=f"topic {marker_topic.topic}",
        help=f"end what else uses the transactional id {marker_topic.transactional_id}, then repeat the command",
    )


def has_marked(sink: Core, link: Link, marker_topic: MarkerTopic, marker: Marker | None, by: Actor) -> bool:
    transaction, state, _ = guarded(link, marker_topic, sink.timeout(link), judged_by_owner(marker_topic, by), {})
    try:
        if marker is None or state.marker == marker:
            return True
        transaction.begin()
        transaction.send_state(b"marker", replace(state, marker=marker, span=1, before=PreviousEpoch()))
        transaction.commit()
    except kafka().KafkaException as error:
        check_refused(link, marker_topic, error)
        return False
    finally:
        transaction.drop()
    return False
