"""Commit: one request ends the transaction that a vote holds.

The broker commits the transaction only if no InitProducerId of the same transactional id came after that of
``prepare``.  So the request needs no look at the fence or at the marker before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Committable, EpochNumber, Json, Marker
from epochal.coordinator.model.errors import OutcomeUnknown
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import marker_of
from epochal.sinks.kafka.client import Link, log
from epochal.sinks.kafka.wire import errors
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood, BrokerError, NotByHand
from epochal.sinks.kafka.wire.messages import Producer
from epochal.sinks.protocol import CommitOutcome


@dataclass(frozen=True)
class Vote:
    """The open transaction that a committable names: whoever has this value can commit it."""

    transactional_id: str
    producer: Producer
    marker: Marker  # which the transaction writes

    def to_json(self) -> Json:
        return {
            "id": self.transactional_id,
            "producer": self.producer.id,
            "epoch": self.producer.epoch,
            "position": self.marker.position,
            "decision": self.marker.decision,
        }

    @classmethod
    def of(cls, committable: Committable) -> Vote | None:
        """Return the transaction that holds the rows and the marker of this decision at this position; else None."""
        told = committable.payload.get("votes")
        if told is None:
            return None
        vote = cls(told["id"], Producer(told["producer"], told["epoch"]), Marker(told["position"], told["decision"]))
        return vote if vote.marker == marker_of(committable) else None


_COMMITTED = ("PrepareCommit", "CompleteCommit")
"""The states of a transaction that was committed before, as DescribeTransactions tells them."""


def end(link: Link, vote: Vote, epoch: EpochNumber) -> CommitOutcome | None:
    """Ask the broker to commit; return the outcome once every reader sees the rows.

    None: the transaction was ended before, or is not the newest one of its id.  The marker says how it was ended.
    Also None if this start has options that only librdkafka knows: librdkafka's producer then ends the transaction.
    ``OutcomeUnknown``: no answer came.  The call is idempotent.
    """
    deadline = link.deadline()
    try:
        reach = link.by_hand()
    except NotByHand as option:
        log.warning(
            "sink %s: this start cannot end transaction %s, which epoch %d was prepared in: %s; the epoch is written"
            " again unless it is visible",
            *(link.sink, vote.transactional_id, epoch, option),
        )
        return None
    asked = "not asked for"
    try:
        with Cluster(reach) as cluster:
            was = cluster.describe_transaction(vote.transactional_id, deadline)
            failpoints.hit(Point.BEFORE_PUBLISH, link.sink, epoch)
            asked = "asked for and not answered"
            code = cluster.end_transaction(vote.transactional_id, vote.producer, deadline)
            failpoints.hit(Point.AFTER_PUBLISH, link.sink, epoch)
            if code == 0:  # decided; the second answer comes when all partitions have been told
                code = cluster.end_transaction(vote.transactional_id, vote.producer, deadline)
    except (OSError, BrokerError, AnswerNotUnderstood) as error:
        if isinstance(error, BrokerError) and errors.is_refused(error.code):
            raise _refused(link, vote, epoch, error.code) from error
        raise OutcomeUnknown(
            f"the commit of transaction {vote.transactional_id} was {asked}:"
            f" {link.scrub(f'{type(error).__name__}: {error}'):.300}",
            sink=link.sink,
            epoch=epoch,
            state=f"producer {vote.producer.id}, epoch {vote.producer.epoch}, bootstrap servers {link.bootstrap}",
            help="start the brokers, or make them reachable from the driver under the addresses that they advertise,"
            " then restart the query: the request is repeated, and the marker is asked",
        ) from error
    if code == 0:
        before = was.producer == vote.producer and was.state in _COMMITTED
        return CommitOutcome.ALREADY_COMMITTED if before else CommitOutcome.COMMITTED
    if errors.is_fenced(code):
        return None
    raise _refused(link, vote, epoch, code)


def _refused(link: Link, vote: Vote, epoch: EpochNumber, code: int) -> Exception:
    name = BrokerError(code, "").name
    return OutcomeUnknown(
        f"the broker answers {name} to the commit of transaction {vote.transactional_id}",
        sink=link.sink,
        epoch=epoch,
        state=f"producer {vote.producer.id}, epoch {vote.producer.epoch}; whether it is committed is not known",
        help="correct what Kafka names (the user's rights on the transactional id), then restart the query",
    )
