"""Prepare: judge every row of the durable copy; where the sink can, also write it into an open transaction.

Where it cannot (``possible.py``), Kafka holds no prepared rows, and the vote says that Kafka will take all of them.
"""

from __future__ import annotations

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Copy, Epoch, Json
from epochal.coordinator.model.errors import PrepareRefused
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import marker_of
from epochal.sinks.kafka import marker, possible, slots, voting
from epochal.sinks.kafka.client import log
from epochal.sinks.kafka.core import WITHOUT_TRANSACTION, Core
from epochal.sinks.kafka.delivery import index
from epochal.sinks.kafka.judging import Judged, check_rows, check_topics, judged_while_copied, topics_of
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch, State
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.protocol import Rows
from epochal.sinks.spark import stage

MARKER_SPARE = 1000
"""How many bytes are reserved for what is known only when a marker's record is written: digest, slots, frame."""


def prepare(sink: Core, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
    """Return the committable once the copy is there and Kafka will take every row of it, or holds it already."""
    if epoch.copy is None:
        raise PrepareRefused(
            "Kafka cannot hold rows back, and there is no durable copy to produce them from",
            sink=sink.name,
            epoch=epoch.number,
            help="run the sink in an epochal.Pipeline, which makes the copy",
        )
    marker_topic, _ = sink.seen()
    now = topics_of(sink, epoch)
    check_topics(sink, epoch, now)
    cut = cut_of(sink, marker_topic, epoch, by)
    of_records = epoch.copy.form == index.FORM
    encoding = sink.encoding if of_records else sink.meant(rows.sparkSession)
    refuse_large_marker(sink, epoch, marker_topic, now, by)
    judged = judged_while_copied(sink, epoch, now, keeps=of_records)
    if judged is None and of_records:
        if epoch.copy.rows:
            changed = "topics have changed since the rows of the durable copy were judged"
            raise sink.refuse(epoch, changed, "restart the query: the epoch is evaluated again")
        judged = Judged(0)
    if judged is None:
        copied = stage.read_copy(sink.own_session(encoding.settings), epoch.copy)  # as a commit will read it
        with encoding.projection.evaluating(epoch.number):
            judged = check_rows(sink, epoch, encoding, copied, now)
    count, left_out, staged = judged.count, judged.left_out, judged.staged
    apart = 0 if of_records else left_out  # a copy of records has only what the sink gets
    if count + apart != epoch.copy.rows:
        told = f"{count} rows and {apart} that are left out were read from a durable copy of {epoch.copy.rows} rows"
        raise sink.refuse(epoch, told, "restart the query; if it happens again, the file system loses rows")
    payload = {
        "version": WITHOUT_TRANSACTION,
        "copy": epoch.copy.to_json(),
        "identity": now.identity,
        **({"topics": dict(now.ids)} if now.several else {"topic": sink.topic}),
        "encoding": encoding.to_json(),
        **({"slots": cut} if cut is not None else {}),
        **({"staged": [copy.to_json() for copy in staged]} if staged else {}),
        "about": {"offsets": epoch.offsets, "watermark": epoch.watermark},
    }
    vote = Committable(sink.name, epoch.decision, epoch.position, count, payload, left_out=left_out)
    vote = voted(sink, epoch, vote, now, by)
    failpoints.hit(Point.BEFORE_VOTE, sink.name, epoch.number)
    return vote


def voted(sink: Core, epoch: Epoch, vote: Committable, now: Topics, by: Actor) -> Committable:
    """Write the epoch into an open transaction where the sink can do that; else leave the vote as it is."""
    assert epoch.copy is not None, "prepare has checked it"
    link = sink.link()
    with voting.named(link, epoch.number):
        reason = possible.reason_now(sink, link, now, epoch.copy.root)
    tell_which_way(sink, epoch.copy, reason)
    if reason is None:
        return voting.vote(sink, epoch, vote, now, by)
    if epoch.copy.form == index.FORM:
        told = f"the epoch cannot be written as a vote any more, and its durable copy serves nothing else: {reason}"
        raise sink.refuse(epoch, told, "restart the query: the epoch is evaluated again, and copied as rows")
    return vote


def tell_which_way(sink: Core, copy: Copy, reason: str | None) -> None:
    """Log once per start, and when it changes, whether epochs are votes.  ``reason``: why they are not; None: they are.

    With ``votes=False`` nobody needs to be told.
    """
    way = reason or ""
    if not sink.votes or sink.told_why == way:
        return
    sink.told_why = way
    if reason is not None:
        log.warning("sink %s: %s: %s", sink.name, possible.REDONE, reason)
    elif copy.form == index.FORM:
        log.info("sink %s: %s; the durable copy consists of the same record batches", sink.name, possible.WRITTEN)
    else:
        log.info("sink %s: %s; the record batches lie beside the durable copy", sink.name, possible.WRITTEN)


def cut_of(sink: Core, marker_topic: MarkerTopic, epoch: Epoch, by: Actor) -> Json | None:
    """With several slots: return how many of them the epoch gets, and what the sink shows before it.  Else None."""
    if max(sink.slots, sink.ever_used) == 1:
        return None
    state = slots.read_all(sink.link(), marker_topic)
    marker_topic.conditions.check_prepare(state, by, marker_of(epoch), epoch.number)
    before = PreviousEpoch(state.marker, state.span if state.marker is not None else 0)
    return {"span": state.slots, "before": before.to_json()}


def refuse_large_marker(sink: Core, epoch: Epoch, marker_topic: MarkerTopic, now: Topics, by: Actor) -> None:
    """Raise ``PrepareRefused`` if the marker's record is too large for its topic.

    The record holds Spark's offsets, whose text grows with the partitions of the source.
    """
    about = {"decision": epoch.decision.to_json(), "offsets": epoch.offsets, "watermark": epoch.watermark}
    state = State(by, marker_of(epoch), targets=dict(now.ids) if now.several else {})
    size = len(marker.record(marker_topic, state, about)) + MARKER_SPARE
    limit, queue = min(now.marker.batch_bytes, marker.LARGEST), sink.link().queue_bytes
    if size > queue:
        raise sink.refuse(
            epoch,
            f"the marker's record takes {size} bytes, most of them offsets, and the client's queue holds {queue}",
            f"raise queue.buffering.max.kbytes in options= (it is {queue // 1024}), or read fewer partitions",
        )
    if size > limit:
        raise sink.refuse(
            epoch,
            f"the marker's record takes {size} bytes, most of them offsets, and its topic {now.marker.name!r} takes"
            f" {limit}",
            f"raise max.message.bytes of that topic, to {marker.LARGEST} at most, or read fewer partitions",
        )
