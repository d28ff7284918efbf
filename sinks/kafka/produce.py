"""One attempt at one epoch: produce its rows and its marker in one transaction.  Runs in a Spark task.

    init ─> fence mine? ─> marker mine? one before? ─> begin ─> rows ─> marker ─> flush ─> commit
    bars every   else stop     done      else stop                                           │ whatever the answer
    older producer                                                                           v
                      a new producer: init ─> marker mine? ─> committed and seen, or provably not

Invariants:
- A producer sends rows only after it has called init, checked the fence and checked the marker, in this order.
- After the request to commit, no transaction is aborted: its producer is dropped, and the marker decides.
- Every outcome is returned as an :class:`AttemptResult`, never as the text of an exception.

An epoch that is *applied* (idempotent mode) has no copy and no vote.  Its records are an :class:`Evaluation`, whose
digest and objections are known once all records are read.  They are judged then, before the request to commit: if
they do not pass, the transaction is aborted, and nothing of the epoch is visible.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model import errors, failpoints
from epochal.coordinator.model.epoch import Actor, Digest, EpochNumber, Json, Marker, Position
from epochal.coordinator.model.errors import (
    CommitInDoubt,
    EpochalError,
    Misconfigured,
    OutcomeUnknown,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka import marker
from epochal.sinks.kafka.client import Link, Options, is_fenced, is_refused, kafka
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch, State
from epochal.sinks.kafka.rows import HASH, KEPT, MET, ROUTES
from epochal.sinks.kafka.transaction import Row, Transaction, guarded
from epochal.sinks.spark import workers

if TYPE_CHECKING:
    import pyarrow

MOST = 20
"""How many audit records one epoch deletes at most: so few tombstones fit into any batch that a topic takes."""


class Outcome(enum.Enum):
    """How an attempt ended."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    INTERRUPTED = "interrupted"  # nothing is visible, another producer came in between: try again
    EXPIRED = "expired"  # nothing is visible, the broker ended the transaction: its timeout was over
    LOST = "lost"  # the task died before its result arrived: try again, the marker is read first
    STOPPED = "stopped"  # ``error`` says why and what is known, or ``met`` says what was objected to


@dataclass(frozen=True)
class ObjectionCount:
    """The first objection that records meet: its number, how many records meet it, what the error shows of them."""

    number: int
    rows: int
    shown: str | None


@dataclass(frozen=True)
class AttemptResult:
    """The result of one attempt, as plain data."""

    outcome: Outcome
    error: EpochalError | None = None
    digest: Digest | None = None  # the marker's, if it shows the epoch; else that of the evaluated rows
    met: ObjectionCount | None = None  # the objection that STOPPED the attempt: the driver makes the error

    def to_json(self) -> str:
        e = self.error
        told = [type(e).__name__, e.what, e.help, e.sink, e.epoch, e.state] if e is not None else None
        digest = self.digest.to_json() if self.digest is not None else None
        met = [self.met.number, self.met.rows, self.met.shown] if self.met is not None else None
        return json.dumps({"outcome": self.outcome.value, "error": told, "digest": digest, "met": met})

    @classmethod
    def from_json(cls, text: str) -> AttemptResult:
        data: Json = json.loads(text)
        digest = Digest.from_json(data["digest"]) if data["digest"] is not None else None
        met = ObjectionCount(*data["met"]) if data["met"] is not None else None
        return cls(Outcome(data["outcome"]), _error(data["error"]), digest, met)


def _error(told: Any) -> EpochalError | None:
    if told is None:
        return None
    kind, what, help_line, sink, epoch, state = told
    error: EpochalError = getattr(errors, kind)(what, help=help_line, sink=sink, epoch=epoch, state=state)
    return error


@dataclass(frozen=True)
class Plan:
    """One epoch as a task gets it.  The plan can be pickled and holds secrets."""

    link: Link
    marker_topic: MarkerTopic
    topics: tuple[str, ...]  # if there are several, every row names one of them
    by: Actor
    decision: int
    position: Position
    epoch: EpochNumber
    rows: int | None  # None: the epoch is applied, and nobody has counted its rows
    partitioner: str
    max_message_bytes: tuple[int, ...]  # how many bytes a batch may have, for each topic
    transaction_timeout: float  # seconds
    about: Json  # what the marker's record says of the epoch, for people and for the audit
    targets: Mapping[str, str] = field(default_factory=dict)  # with several topics: name to topic id
    span: int = 1  # how many slots the epoch has; `marker_topic` and `rows` are those of one slot
    before: PreviousEpoch | None = None  # with several slots: what each of them must show
    agreed: Digest | None = None  # if the epoch is applied: the digest of its other evaluations, if known
    largest: frozenset[int] = frozenset()  # the objections whose error shows the largest number
    keep_from: Position = 1  # the audit keeps the records from this position on

    @property
    def is_applied(self) -> bool:
        """Whether the epoch is applied, so that it has no decision and no copy."""
        return self.rows is None

    @property
    def what(self) -> str:
        """The rows, as errors name them."""
        return f"{self.rows} rows" if not self.is_applied else "the rows"

    @property
    def marker(self) -> Marker:
        """The marker that the transaction writes, without its digest."""
        return Marker(self.position, self.decision)

    def after(self, state: State, digest: Digest | None = None) -> State:
        """Return the state in the slot's partition after the commit.  ``state``: the state before it."""
        before = self.before if self.before is not None else PreviousEpoch(state.marker, state.span)
        set_, kept = replace(self.marker, digest=digest), self.forgotten(state).stop or None
        new = replace(state, fence=self.by, marker=set_, targets=self.targets, span=self.span, before=before)
        return replace(new, kept=kept)

    def forgotten(self, state: State) -> range:
        """Return the positions whose audit records the transaction deletes: the oldest ones, ``MOST`` at most."""
        if self.marker_topic.slot > 0:
            return range(0)
        # Without ``kept``, an older Epochal wrote last, or nobody did: no record is known to have a key of its own.
        oldest = state.kept if state.kept is not None else self.position
        return range(oldest, max(oldest, min(self.keep_from, oldest + MOST)))

    def already_committed(self, state: State) -> bool:
        """Whether the slot shows the epoch already; raises as ``Conditions.already_committed`` does."""
        before = None
        if self.before is not None:
            stood = self.before.of_slot(self.marker_topic.slot)
            before = stood.position if stood is not None else 0
        return self.marker_topic.conditions.already_committed(state, self.by, self.marker, self.epoch, before)


class RecordsRefused(Exception):
    """Raised inside an attempt: records meet an objection, so nothing of the epoch may be committed."""

    def __init__(self, met: ObjectionCount) -> None:
        super().__init__(met)
        self.met = met


class Evaluation:
    """The records of an epoch that is applied; their digest and objections are known once all are read."""

    def __init__(self, batches: Iterable[pyarrow.RecordBatch], largest: frozenset[int] = frozenset()) -> None:
        self._batches = batches
        self._largest = largest
        self._met: dict[int, tuple[int, str | None]] = {}
        self._digest = Digest(0, 0)
        self.digest: Digest | None = None  # of all rows, also those that the sink does not get; None: not all are read

    def __iter__(self) -> Iterator[Sequence[Row]]:
        """Yield the records to produce, batch by batch; after the first objection only read the rest."""
        for batch in self._batches:
            self._digest += _digest(batch.column(HASH))
            for met in batch.column(MET).drop_null().to_pylist():
                self._meet(met["number"], met["shown"])
            if not self._met:
                yield _rows(batch.filter(batch.column(KEPT)))
        self.digest = self._digest

    def judge(self, plan: Plan) -> Digest:
        """Return the digest; raise ``NonDeterministicReplay`` if it differs, ``RecordsRefused`` after an objection."""
        assert self.digest is not None, "judged when all records are read"
        plan.marker_topic.conditions.check_digest(self.digest, plan.agreed, plan.epoch)
        if self.met is not None:
            raise RecordsRefused(self.met)
        return self.digest

    @property
    def met(self) -> ObjectionCount | None:
        """Of the objections that records have met so far, the first one in the list; None: there is none."""
        return min(
            (ObjectionCount(number, *of) for number, of in self._met.items()), key=lambda met: met.number, default=None
        )

    def _meet(self, number: int, shown: str | None) -> None:
        rows, before = self._met.get(number, (0, None))
        both = [text for text in (before, shown) if text is not None]
        told = max(both, key=int, default=None) if number in self._largest else min(both, default=None)
        self._met[number] = rows + 1, told


def _digest(hashes: pyarrow.Array) -> Digest:
    """Digest of one batch.  The two 32-bit halves are summed separately so that no int64 sum can overflow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask, bits = (workers.of_bytes(pa.int64(), number.to_bytes(8, sys.byteorder)) for number in (0xFFFFFFFF, 32))
    low = pc.sum(pc.bit_wise_and(hashes, mask)).as_py() or 0
    high = pc.sum(pc.shift_right(hashes, bits)).as_py() or 0
    return replace(Digest.of([low + (high << 32)]), rows=len(hashes))


def task(plan: Plan, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """For ``mapInArrow``: takes records, yields one row with the :class:`AttemptResult` as JSON."""
    sent = workers.promptly(batches)
    records = Evaluation(sent, plan.largest) if plan.is_applied else (_rows(batch) for batch in sent)
    yield workers.answer(answer=attempt(plan, records).to_json())


def _rows(batch: pyarrow.RecordBatch) -> Sequence[Row]:
    pairs = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    if not set(ROUTES) & set(batch.schema.names):
        return list(zip(*pairs, strict=True))
    none = [None] * batch.num_rows
    routes = (batch.column(r).to_pylist() if r in batch.schema.names else none for r in ROUTES)
    return list(zip(*pairs, zip(*routes, strict=True), strict=True))


def attempt(plan: Plan, batches: Iterable[Sequence[Row]]) -> AttemptResult:
    """Produce the epoch unless it is visible already; never raises an ``Exception``.

    An epoch that is applied comes as an :class:`Evaluation`.  The result then holds the digest, if it is known.
    """
    answer = _attempt(plan, batches)
    if answer.digest is None and isinstance(batches, Evaluation):
        return replace(answer, digest=batches.digest)
    return answer


def _attempt(plan: Plan, batches: Iterable[Sequence[Row]]) -> AttemptResult:
    try:
        transaction, state, already = guarded(
            plan.link, plan.marker_topic, plan.transaction_timeout, plan.already_committed, _tuning(plan)
        )
    except EpochalError as error:
        return AttemptResult(Outcome.STOPPED, error)
    if already:
        transaction.drop()
        return AttemptResult(Outcome.ALREADY_COMMITTED, digest=_digest_of(state))
    try:
        _write(plan, transaction, state, batches)
        failpoints.hit(Point.BEFORE_PUBLISH, plan.marker_topic.sink, plan.epoch)
    except Exception as error:
        answer = _failed(plan, transaction, error)
        transaction.abort()
        return answer
    try:
        transaction.commit()
        failpoints.hit(Point.AFTER_PUBLISH, plan.marker_topic.sink, plan.epoch)
    except Exception as error:
        late = transaction.is_overdue
        transaction.drop()
        return _resolve(plan, error, late)
    transaction.drop()
    return _resolve(plan)


def _tuning(plan: Plan) -> Options:
    """The producer options that this epoch needs."""
    return tuning(plan.link, plan.partitioner, plan.max_message_bytes)


def tuning(link: Link, partitioner: str, limits: Sequence[int]) -> Options:
    """The producer options for topics with these limits."""
    largest = max(*limits, marker.LARGEST)
    needed: Options = {"partitioner": partitioner, "message.max.bytes": largest}
    if min(limits) == largest:
        return needed
    # Batches of several rows must fit into the strictest topic.  A batch of one row may always exceed batch.size.
    return {**needed, "batch.size": min([*limits, link.number("batch.size", max(limits))])}


def _write(plan: Plan, transaction: Transaction, state: State, batches: Iterable[Sequence[Row]]) -> None:
    """Do everything up to the commit request: send the rows, check their number or judge them, send the marker."""
    sent = 0
    transaction.begin()
    for batch in batches:
        sent += transaction.send(plan.topics[0], batch[:1])
        failpoints.hit(Point.IN_WRITE, plan.marker_topic.sink, plan.epoch)
        sent += transaction.send(plan.topics[0], batch[1:])
    digest, about = None, plan.about
    if isinstance(batches, Evaluation):
        digest, about = batches.judge(plan), {**about, "rows": sent}
    else:
        _check_count(plan, sent)
    _forget(plan, transaction, state)
    transaction.flush()
    transaction.send_state(marker.key(plan.marker_topic, plan.position), plan.after(state, digest), about)
    transaction.flush()


def _forget(plan: Plan, transaction: Transaction, state: State) -> None:
    """Send tombstones for the audit records that are no longer kept.  The caller flushes before it sends the marker.

    Without the flush, tombstones and marker could share one batch, and that batch could be too large for the topic:
    prepare has checked only the size of the marker's record.
    """
    own_partition = (None, plan.marker_topic.slot, None)
    tombstones: list[Row] = [
        (marker.key(plan.marker_topic, gone), None, own_partition) for gone in plan.forgotten(state)
    ]
    if tombstones:
        transaction.send(plan.marker_topic.topic, tombstones)


def _check_count(plan: Plan, sent: int) -> None:
    if sent != plan.rows:
        raise CommitInDoubt(
            f"the durable copy gave {sent} rows, and {plan.rows} were voted for",
            sink=plan.marker_topic.sink,
            epoch=plan.epoch,
            state="the transaction was aborted, nothing of the epoch is visible",
            help="bring the copy back as it was (from a backup of the checkpoint), then restart the query",
        )


def _digest_of(state: State) -> Digest | None:
    return state.marker.digest if state.marker is not None else None


def _failed(plan: Plan, transaction: Transaction, error: Exception) -> AttemptResult:
    """Return the result of an error before the commit request: nothing is visible in any case."""
    if isinstance(error, RecordsRefused):
        return AttemptResult(Outcome.STOPPED, met=error.met)
    if isinstance(error, EpochalError):
        return AttemptResult(Outcome.STOPPED, error)
    return _explain(plan, _first_cause(transaction, error), transaction.is_overdue)


def _first_cause(transaction: Transaction, error: Exception) -> Exception:
    """Return the error of the delivery that failed, if ``error`` only says that the client is in "erroneous state".

    ``commit`` raises the first error.  In this state the client sends no commit request, so nothing becomes ambiguous.
    """
    k = kafka()
    if isinstance(error, k.KafkaException) and error.args[0].name() in ("_STATE", "_FATAL"):
        try:
            transaction.commit()
        except Exception as cause:
            return cause
    return error


def _explain(plan: Plan, error: Exception, late: bool) -> AttemptResult:
    """Nothing is visible: return whether to try again or to stop."""
    k = kafka()
    if isinstance(error, k.KafkaException):
        cause = error.args[0]
        if is_fenced(cause):
            return AttemptResult(Outcome.EXPIRED if late else Outcome.INTERRUPTED)
        if is_refused(cause):
            return AttemptResult(Outcome.STOPPED, _refused(plan, f"{cause.name()}: {cause.str()}"))
    if late:
        return AttemptResult(Outcome.EXPIRED)
    if isinstance(error, (k.KafkaException, ConnectionError, TimeoutError)):
        return AttemptResult(Outcome.STOPPED, _unavailable(plan, error))
    return AttemptResult(Outcome.STOPPED, _refused(plan, f"{type(error).__name__}: {error}"))


def _resolve(plan: Plan, error: Exception | None = None, late: bool = False) -> AttemptResult:
    """After the request to commit: bar that producer, then let the marker decide.

    This is done even after a clear answer.  The broker answers as soon as the commit is certain, but it shows the rows
    to readers a little later, partition by partition.  It answers a new ``init_transactions`` when all that is
    done.
    """
    error = error if error is not None else TimeoutError("committed, and not yet shown to readers")
    answer = landed(plan, f"the commit of {plan.what} was asked for and not answered", error)
    return answer if answer is not None else _explain(plan, error, late)


def landed(plan: Plan, what: str, error: Exception) -> AttemptResult | None:
    """Bar whoever produces the epoch, then read the marker.  Return None if nothing of the epoch is visible.

    If the marker cannot be read, an error is returned.  It holds ``what`` (what happened) and ``error`` (its cause).
    """
    try:
        transaction, state, shown = guarded(
            plan.link, plan.marker_topic, plan.transaction_timeout, plan.already_committed, _tuning(plan)
        )
    except (SinkUnavailable, Misconfigured) as unreachable:
        return AttemptResult(Outcome.STOPPED, unknown(plan, what, error, f"no marker was read: {unreachable.what}"))
    except EpochalError as stopped:
        return AttemptResult(Outcome.STOPPED, stopped)
    transaction.drop()
    return AttemptResult(Outcome.COMMITTED, digest=_digest_of(state)) if shown else None


def unknown(plan: Plan, what: str, error: Exception, state: str) -> OutcomeUnknown:
    """The error if a commit may have been requested and no marker was read since; ``error`` is the cause."""
    return OutcomeUnknown(
        f"{what}: {_text(plan, error)}",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state=state,
        help="restart the query: the marker is asked before anything is written",
    )


def _unavailable(plan: Plan, error: Exception) -> SinkUnavailable:
    return SinkUnavailable(
        f"Kafka at {plan.link.bootstrap} did not take {plan.what}: {_text(plan, error)}",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state="the transaction was not committed, nothing of the epoch is visible",
        help="start the brokers, or make them reachable from the executors under the addresses that they advertise"
        " (advertised.listeners), and restart the query",
    )


def _refused(plan: Plan, why: str) -> EpochalError:
    where = ", ".join(map(repr, plan.topics))
    if plan.is_applied:
        return PrepareRefused(
            f"the rows cannot be produced into {where}: {plan.link.scrub(why)}",
            sink=plan.marker_topic.sink,
            epoch=plan.epoch,
            state="nothing of the epoch is visible in Kafka",
            help="remove what the broker objects to (rights, settings of the topic), then restart the query",
        )
    return CommitInDoubt(
        f"{plan.rows} rows that were voted for cannot be produced into {where}: {plan.link.scrub(why)}",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state="nothing of the epoch is visible in Kafka; it is decided, and must become visible",
        help="remove what the broker objects to (rights, settings of the topic), then restart the query",
    )


def _text(plan: Plan, error: Exception) -> str:
    """The error in one line, without secrets: errors of Spark may have many lines."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, kafka().KafkaException):
        cause: Any = error.args[0]
        text = f"{cause.name()}: {cause.str()}"
    return plan.link.scrub(text).splitlines()[0][:500]
