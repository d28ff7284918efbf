"""Commit an epoch whose durable copy consists of record batches: end its transaction, or write it once more.

A transaction that was ended before the epoch became visible is replaced by a new one, of the same batches.  All rules
of an attempt hold: InitProducerId first, then the fence and the marker, then the rows.
"""

from __future__ import annotations

from epochal.coordinator.model.epoch import Actor, Committable, Copy, Json
from epochal.coordinator.model.errors import CommitInDoubt, PrepareRefused, SinkUnavailable
from epochal.sinks.kafka import possible, voting
from epochal.sinks.kafka.committing import end_own_vote, ended_by, plan_of, tell_that_it_is_redone
from epochal.sinks.kafka.core import PAYLOAD_VERSION, Core
from epochal.sinks.kafka.delivery import index
from epochal.sinks.kafka.ending import Vote
from epochal.sinks.kafka.produce import Plan
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.rows import formats


def copy_of(committable: Committable) -> Copy:
    return Copy.from_json(committable.payload["copy"])


def is_of_records(committable: Committable) -> bool:
    """Whether the epoch's copy consists of record batches, so that only a vote can show it."""
    copy: Json = committable.payload.get("copy", {})
    return copy.get("form") == index.FORM


def commit(sink: Core, committable: Committable, by: Actor) -> CommitOutcome:
    """See ``epochal.sinks.protocol.Sink``."""
    formats.check_vote(committable, PAYLOAD_VERSION)
    marker_topic, _ = sink.seen()
    link = sink.link()
    if (ended := end_own_vote(sink, link, marker_topic, committable, by)) is not None:
        return ended
    plan = plan_of(sink, link, marker_topic, committable, by)
    if (reason := possible.reason_against(sink, link, must=True)) is not None:
        raise CommitInDoubt(
            f"the epoch is decided, and cannot be written as it was prepared: {reason}",
            sink=sink.name,
            epoch=plan.epoch,
            state="its durable copy consists of Kafka's record batches; nothing of it is visible",
            help="start once with the arguments and options that the epoch was prepared with; change them after it is"
            " committed",
        )
    try:
        return _write(sink, plan, committable)
    except PrepareRefused as refused:
        raise CommitInDoubt(
            refused.what,
            sink=sink.name,
            epoch=plan.epoch,
            state="nothing of the epoch is visible in Kafka; it is decided, and must become visible",
            help=refused.help,
        ) from refused


def _write(sink: Core, plan: Plan, committable: Committable) -> CommitOutcome:
    """Write the epoch in a new transaction, unless it is visible already, and commit that."""
    link = plan.link
    encoded = index.read(copy_of(committable), sink.name, plan.epoch)
    with voting.writing(plan, plan.already_committed) as (cluster, clock):
        transaction, state = voting.opened(sink, cluster, plan)
        if plan.already_committed(state):
            return CommitOutcome.ALREADY_COMMITTED
        tell_that_it_is_redone(sink, committable)
        voting.write(sink, cluster, plan, transaction, state, encoded, clock)
    outcome = ended_by(sink, link, Vote(transaction.transactional_id, transaction.producer, plan.marker), plan.epoch)
    if outcome is None:
        raise SinkUnavailable(
            f"another producer of {transaction.transactional_id} ended the transaction of the epoch",
            sink=sink.name,
            epoch=plan.epoch,
            state=f"whether the epoch is visible says the marker; the sink was owned by {plan.by}",
            help="end what else uses this transactional id, and restart the query",
        )
    return outcome
