"""Apply, in idempotent mode: rows are evaluated and produced in one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Digest, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.conditions import marker_of, refusing
from epochal.sinks.kafka import objections, produce, slots
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.committing import _SHOWN, attempt_until_shown, keep_from, may_use_barrier
from epochal.sinks.kafka.core import EXACT, Core
from epochal.sinks.kafka.fencing import bar_and_read
from epochal.sinks.kafka.judging import check_topics, judged_records, topics_of
from epochal.sinks.kafka.marker import MarkerTopic, State
from epochal.sinks.kafka.objections import Objection
from epochal.sinks.kafka.preparing import refuse_large_marker
from epochal.sinks.kafka.produce import AttemptResult, Evaluation, Outcome, Plan
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.protocol import Applied, CommitOutcome, Rows
from epochal.sinks.rows.projection import of_an_expression
from epochal.sinks.spark.executors import first_cause
from epochal.sinks.spark.settings import TIME_POLICY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def as_applied(outcome: CommitOutcome, state: State) -> Applied:
    assert state.marker is not None, "it was there a moment ago"
    assert state.marker.digest is not None, "apply writes no marker without a digest"
    return Applied(outcome, state.marker.digest)


def unanswered(plan: Plan, error: Exception) -> AttemptResult:
    """Return the result after the Spark job that applies an epoch has failed.

    The marker says whether the epoch is visible.
    """
    what = "the Spark job that evaluates and produces the rows failed"
    answer = produce.landed(plan, what, error)
    if answer is not None:
        return answer
    cause = of_an_expression(error)
    refusal = PrepareRefused(
        f"{what}: {plan.link.scrub(cause or last_words(first_cause(error))):.500}",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state="nothing of the epoch is visible in Kafka",
        help="correct what Spark names, and restart; an expression of select= and where= needs a result for every row",
    )
    return AttemptResult(Outcome.STOPPED if cause is not None else Outcome.LOST, refusal)


def last_words(cause: str) -> str:
    """Return the line that says what went wrong.

    In a traceback this is the last line before the SQLSTATE line, which Spark adds.
    """
    lines = [line for line in cause.splitlines() if line.strip() and not line.strip().startswith("SQLSTATE")]
    return lines[-1] if "Traceback" in cause else lines[0]


def check_apply(sink: Core) -> None:
    """Raise ``Misconfigured`` if the sink uses, or ever used, more than one slot."""
    if sink.slots > 1:
        raise Misconfigured(
            f"slots={sink.slots} would write an epoch in {sink.slots} transactions, and in idempotent mode there"
            " is no decision that holds them together",
            sink=sink.name,
            help='take slots=1, with a transaction_timeout= that an epoch fits in, or leave mode="idempotent" out',
        )
    check_one_slot(sink, sink.ever_used)


def apply(sink: Core, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:
    """Evaluate and produce in one job, which checks objections and the agreed digest before it commits."""
    marker_topic, _ = sink.seen()
    link = sink.link()
    state = slots.read_all(link, marker_topic)
    if marker_topic.conditions.already_committed(state, by, marker_of(epoch), epoch.number):
        return as_applied(CommitOutcome.ALREADY_COMMITTED, bar_and_read(sink, link, marker_topic, state.slots))
    with refusing(sink.name, epoch.number):
        check_one_slot(sink, state.slots)
        check_session(sink, epoch, rows.sparkSession)
        now = topics_of(sink, epoch)
        check_topics(sink, epoch, now)
        refuse_large_marker(sink, epoch, marker_topic, now, by)
        records, found = judged_records(sink, rows, now)
        plan = plan_to_apply(sink, link, marker_topic, epoch, now, found, by)
    return apply_until_shown(sink, plan, records, found, agreed)


def check_one_slot(sink: Core, ever_used: int) -> None:
    """Raise ``Misconfigured`` if several slots were ever used.

    Then an epoch would still take several transactions: every slot that was ever used must get the marker.
    """
    if ever_used > 1:
        raise Misconfigured(
            f"the sink was written in {ever_used} slots before, each of which has a marker of its own, and in"
            " idempotent mode there is no decision that holds them together",
            sink=sink.name,
            state="nothing more was written",
            help='leave mode="idempotent" out, or give the sink another name= (its readers are the same)',
        )


def check_session(sink: Core, epoch: Epoch, session: SparkSession) -> None:
    """Raise ``PrepareRefused`` if the query's own session would give times another text.

    In idempotent mode rows are evaluated in that session, and nothing may be set there for the records.
    """
    encoding, key = sink.encoding, TIME_POLICY
    as_they_are = encoding.projection.is_whole and (encoding.value is not None or encoding.made)
    if not as_they_are and (policy := session.conf.get(key)) != EXACT[key]:
        raise PrepareRefused(
            f"under {key}={policy} times have another text than the one that is promised",
            sink=sink.name,
            epoch=epoch.number,
            state="nothing of the epoch is visible in Kafka",
            help=f'set {key} to {EXACT[key]}, or leave mode="idempotent" out: two-phase mode reads the rows in a'
            " session of its own",
        )


def plan_to_apply(
    sink: Core, link: Link, marker_topic: MarkerTopic, epoch: Epoch, now: Topics, found: Sequence[Objection], by: Actor
) -> Plan:
    return Plan(
        link=link,
        marker_topic=marker_topic,
        topics=sink.declared.names,
        by=by,
        decision=epoch.decision.id,
        position=epoch.position,
        epoch=epoch.number,
        rows=None,
        partitioner=sink.encoding.partitioner,
        max_message_bytes=tuple(target.batch_bytes for target in now.targets.values()),
        transaction_timeout=sink.timeout(link),
        about={"decision": epoch.decision.to_json(), "offsets": epoch.offsets, "watermark": epoch.watermark},
        targets=dict(now.ids) if now.several else {},
        largest=frozenset(number for number, objection in enumerate(found) if objection.largest),
        keep_from=keep_from(sink, link, marker_topic, epoch.position),
    )


def apply_until_shown(
    sink: Core, plan: Plan, records: DataFrame, found: Sequence[Objection], agreed: Digest | None
) -> Applied:
    """Attempt until the epoch is shown.  Each attempt evaluates again; its digest must equal the first known one."""
    if sink.evaluated is not None and sink.evaluated[0] != plan.decision:
        sink.evaluated = None

    def attempt() -> AttemptResult:
        first = sink.evaluated[1] if sink.evaluated is not None else None
        answer = evaluate_once(sink, replace(plan, agreed=agreed if agreed is not None else first), records, found)
        if answer.digest is not None and first is None:
            sink.evaluated = plan.decision, answer.digest
        return answer

    answer = attempt_until_shown(plan, attempt)
    assert answer.digest is not None, "the marker was read, and it holds a digest"
    return Applied(_SHOWN[answer.outcome], answer.digest)


def evaluate_once(sink: Core, plan: Plan, records: DataFrame, found: Sequence[Objection]) -> AttemptResult:
    """Make one attempt: Spark evaluates the rows in any number of tasks, and one task produces them."""
    barrier = may_use_barrier(records.sparkSession)
    answers = records.repartition(1).mapInArrow(partial(produce.task, plan), "answer string", barrier=barrier)
    try:
        told = answers.collect()
    except Exception as error:
        return unanswered(plan, error)
    if not told:  # Spark knows that there are no rows, and starts no task for them
        return produce.attempt(plan, Evaluation(()))
    answer = AttemptResult.from_json(told[0]["answer"])
    if answer.met is None:
        return answer
    met, state = answer.met, "the transaction was aborted, nothing of the epoch is visible"
    refusal = objections.refusal(found[met.number], met.rows, met.shown, sink.name, plan.epoch, state)
    return replace(answer, error=refusal)
