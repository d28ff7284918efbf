"""Commit: end the transaction that holds the epoch; if there is none, produce it from the durable copy.

One task per slot produces the rows of the slot, in one transaction.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Committable, Copy, EpochNumber, Json, Position
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Misconfigured,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.conditions import marker_of
from epochal.sinks.epochs import KEPT_ALWAYS
from epochal.sinks.kafka import audit, produce, slots, topics
from epochal.sinks.kafka.client import Link, log
from epochal.sinks.kafka.core import PAYLOAD_VERSION, Core
from epochal.sinks.kafka.ending import Vote, end
from epochal.sinks.kafka.fencing import bar_and_read, what_topics
from epochal.sinks.kafka.judging import record_columns
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch
from epochal.sinks.kafka.produce import AttemptResult, Outcome, Plan
from epochal.sinks.kafka.rows import Encoding
from epochal.sinks.kafka.topics import Declared, Topics
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.rows import formats
from epochal.sinks.spark import stage
from epochal.sinks.spark.executors import running_session
from epochal.sinks.spark.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS = 10
"""How many attempts are made, if other producers interrupt them, before the coordinator gets an error."""
EXPIRIES = 2
"""How often the broker ends an epoch's transaction, after its timeout, before the coordinator gets an error."""
LOSSES = 4
"""How often the task of an epoch dies before the coordinator gets an error.  Spark does not repeat a barrier stage that
returns results."""
AGED_S = 60.0
"""After how many seconds the brokers are asked again which epochs are too old for the audit."""


_SHOWN = {
    Outcome.COMMITTED: CommitOutcome.COMMITTED,
    Outcome.ALREADY_COMMITTED: CommitOutcome.ALREADY_COMMITTED,
}


def staged_copies(committable: Committable) -> list[Copy]:
    """Return the copies of the records, one per slot, if records were kept."""
    return [Copy.from_json(copy) for copy in committable.payload.get("staged", ())]


def attempt_until_shown(plan: Plan, attempt: Callable[[], AttemptResult]) -> AttemptResult:
    """Repeat ``attempt`` until the epoch is shown; raise after too many interruptions, dead tasks or expiries."""
    expired = lost = 0
    for number in range(ATTEMPTS):
        answer = attempt()
        if answer.outcome in _SHOWN:
            return answer
        lost += answer.outcome is Outcome.LOST
        if answer.error is not None and (answer.outcome is Outcome.STOPPED or lost >= LOSSES):
            raise definite(plan, answer.error)
        expired += answer.outcome is Outcome.EXPIRED
        if expired >= EXPIRIES:
            raise too_long(plan, expired)
        time.sleep(random.uniform(0, 0.05 * 2 ** min(number, 4)))
    raise SinkUnavailable(
        f"{ATTEMPTS} transactions were ended by other producers of {plan.marker_topic.transactional_id}",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state=f"nothing of the epoch is visible; the sink is still owned by {plan.by}",
        help="end what else uses this transactional id, and restart the query",
    )


def definite(plan: Plan, error: Exception) -> Exception:
    """Return the error to raise for ``error``.

    A ``Misconfigured`` that comes after the vote does not undo the decision, so it becomes ``CommitInDoubt``.  In
    idempotent mode the epoch has no decision; there it becomes ``PrepareRefused``.
    """
    if not isinstance(error, Misconfigured):
        return error
    kind = PrepareRefused if plan.is_applied else CommitInDoubt
    return kind(error.what, help=error.help, sink=error.sink, epoch=error.epoch, state=error.state)


def too_long(plan: Plan, expired: int) -> EpochalError:
    seconds, stands = plan.transaction_timeout, "" if plan.is_applied else "; it is decided, and must become visible"
    kind = PrepareRefused if plan.is_applied else CommitInDoubt
    return kind(
        f"{plan.what} could not be produced within the transaction timeout of {seconds:g} s, {expired} times",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state=f"nothing of the epoch is visible in Kafka{stands}",
        help="raise transaction_timeout= (and the broker's transaction.max.timeout.ms), speed up the brokers or "
        "the link to them, and restart the query; make later epochs smaller with the source's limit per trigger",
    )


def may_use_barrier(session: SparkSession) -> bool:
    """Whether to use a barrier stage: Spark never speculates one, but refuses one with dynamic allocation."""
    dynamic = session.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false")
    return str(dynamic).lower() != "true"


def commit(sink: Core, committable: Committable, by: Actor) -> CommitOutcome:
    """End the transaction that the committable names; else attempt each slot until it is shown.

    Each attempt first calls init and reads the marker, so no attempt can show a row twice.
    """
    formats.check_vote(committable, PAYLOAD_VERSION)
    marker_topic, _ = sink.seen()
    link = sink.link()
    if (ended := end_own_vote(sink, link, marker_topic, committable, by)) is not None:
        return ended
    state = slots.read_all(link, marker_topic)
    if marker_topic.conditions.already_committed(state, by, marker_of(committable), committable.decision.epoch):
        bar_and_read(sink, link, marker_topic, state.slots)  # returns when every partition shows the epoch
        return CommitOutcome.ALREADY_COMMITTED
    tell_that_it_is_redone(sink, committable)
    plans = plans_of(sink, link, marker_topic, committable, by)
    if any(plan.rows for plan in plans):
        sink.own_session(Encoding.from_json(committable.payload["encoding"], sink.name).settings)

    def show(plan: Plan) -> CommitOutcome:
        return _SHOWN[attempt_until_shown(plan, lambda: attempt_once(sink, plan, committable)).outcome]

    return slots.outcome_of(Threads(running_session)([partial(show, plan) for plan in plans]))


def plans_of(sink: Core, link: Link, marker_topic: MarkerTopic, committable: Committable, by: Actor) -> list[Plan]:
    """Return one plan per slot; a slot without rows still has a marker to write."""
    plan = plan_of(sink, link, marker_topic, committable, by)
    cut = committable.payload.get("slots")
    if cut is None:
        return [plan]
    plan = replace(plan, span=int(cut["span"]), before=PreviousEpoch.from_json(cut["before"]))
    counts = [copy.rows for copy in staged_copies(committable)] or [committable.rows]
    counts += [0] * (plan.span - len(counts))
    return [replace(plan, marker_topic=marker_topic.of_slot(slot), rows=rows) for slot, rows in enumerate(counts)]


def finish(sink: Core, committable: Committable) -> None:
    """See ``epochal.sinks.protocol.VotingSink``."""
    formats.check_vote(committable, PAYLOAD_VERSION)
    marker_topic, _ = sink.seen()
    end_vote(sink, sink.link(), marker_topic, committable)


def end_own_vote(
    sink: Core, link: Link, marker_topic: MarkerTopic, committable: Committable, by: Actor
) -> CommitOutcome | None:
    """Do as ``end_vote`` does, if ``by`` is the actor under whose fence the transaction was begun; else return None."""
    return end_vote(sink, link, marker_topic, committable) if by == committable.decision.actor else None


def end_vote(sink: Core, link: Link, marker_topic: MarkerTopic, committable: Committable) -> CommitOutcome | None:
    """End the transaction that the committable names; None: it names none, or it cannot be committed any more."""
    vote = Vote.of(committable)
    if vote is None or not is_there(link, marker_topic, committable):
        return None
    return ended_by(sink, link, vote, committable.decision.epoch)


def ended_by(sink: Core, link: Link, vote: Vote, epoch: EpochNumber) -> CommitOutcome | None:
    """End the transaction, and keep what the marker topic shows then: the next epoch need not read it."""
    held, sink.held = sink.held, None
    outcome = end(link, vote, epoch)
    if outcome is not None and held is not None and held.producer == vote.producer:
        sink.shown = held
    return outcome


def tell_that_it_is_redone(sink: Core, committable: Committable) -> None:
    """Say in the log that a decided epoch is written again, because its transaction was ended and shows nothing."""
    if "votes" in committable.payload:
        log.warning(
            "sink %s: the transaction of epoch %s was ended before its commit (by its timeout, an operator or a newer"
            " start), and nothing of it is visible: the epoch is written again from its durable copy",
            sink.name,
            committable.decision.epoch,
        )


def is_there(link: Link, marker_topic: MarkerTopic, committable: Committable) -> bool:
    """Whether the topics are still those that the epoch was prepared for; if not, ``plan_of`` says so."""
    now = topics.describe(link, declared_in(committable.payload), marker_topic)
    return is_prepared_for(now, committable.payload)


def is_prepared_for(now: Topics, payload: Json) -> bool:
    """Whether these are the topics that the epoch was prepared for."""
    return now.identity == payload["identity"] and now.ids == (payload.get("topics") or now.ids)


def declared_in(payload: Json) -> Declared:
    """Return the topics that the payload of a committable names."""
    ids: Mapping[str, str] = payload.get("topics", {})
    return Declared(tuple(ids), True) if ids else Declared((str(payload["topic"]),))


def plan_of(sink: Core, link: Link, marker_topic: MarkerTopic, committable: Committable, by: Actor) -> Plan:
    payload, decision = committable.payload, committable.decision
    ids: Mapping[str, str] = payload.get("topics", {})
    declared = declared_in(payload)
    now = topics.describe(link, declared, marker_topic)
    if not is_prepared_for(now, payload):
        raise CheckpointMismatch(
            f"{what_topics(now, marker_topic)} is not the one that the epoch was prepared for",
            sink=sink.name,
            epoch=decision.epoch,
            state=f"was {payload['identity']}, {ids}; is {now.identity}, {now.ids}",
            help="the topic was dropped and made again, and the decided rows belong to the old one:"
            f' `epochal resolve --accept {sink.name}` goes on without this epoch (docs/runbook.md, "Kafka topic'
            ' recreated")',
        )
    about: Json = {"decision": decision.to_json(), "rows": committable.rows, **payload["about"]}
    return Plan(
        link=link,
        marker_topic=marker_topic,
        topics=declared.names,
        by=by,
        decision=decision.id,
        position=committable.position,
        epoch=decision.epoch,
        rows=committable.rows,
        partitioner=Encoding.from_json(payload["encoding"], sink.name).partitioner,
        max_message_bytes=tuple(target.batch_bytes for target in now.targets.values()),
        transaction_timeout=sink.timeout(link),
        about=about,
        targets=ids,
        keep_from=keep_from(sink, link, marker_topic, committable.position),
    )


def keep_from(sink: Core, link: Link, marker_topic: MarkerTopic, position: Position) -> Position:
    """Return the lowest position that the audit keeps once ``position`` is committed."""
    lowest, days = sink.retention.keep_from(position), sink.retention.days
    if days is None:
        return lowest
    if sink.aged is None or time.monotonic() > sink.aged[0] + AGED_S:
        sink.aged = time.monotonic(), audit.kept_since(link, marker_topic, days)
    return min(max(lowest, sink.aged[1]), max(1, position - KEPT_ALWAYS + 1))


def attempt_once(sink: Core, plan: Plan, committable: Committable) -> AttemptResult:
    """Make one attempt, in a task; without rows no task is needed."""
    if plan.rows == 0:
        return produce.attempt(plan, ())
    records = records_of(sink, committable, plan.marker_topic.slot)
    answers = records.coalesce(1).mapInArrow(
        partial(produce.task, plan), "answer string", barrier=may_use_barrier(records.sparkSession)
    )
    try:
        told = answers.collect()
    except Exception as error:  # however the job ended, the task may have asked for its commit before
        what = f"the Spark job that produces {plan.rows} rows failed"
        why = produce.unknown(plan, what, error, "its task may have asked for the commit before")
        return AttemptResult(Outcome.LOST, why)
    return AttemptResult.from_json(told[0]["answer"])


def records_of(sink: Core, committable: Committable, slot: int) -> DataFrame:
    """Return the records of the epoch that a slot gets: those that were kept, else those that the copy gives."""
    encoding = Encoding.from_json(committable.payload["encoding"], sink.name)
    session = sink.own_session(encoding.settings)
    if staged := staged_copies(committable):
        kept = stage.read_copy(session, staged[slot])
        return kept.select(*record_columns(kept))
    return encoding.records(stage.read_copy(session, Copy.from_json(committable.payload["copy"])))
