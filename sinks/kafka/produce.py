"""One attempt at one epoch: rows and marker in one transaction.  Runs in a Spark task.

    init ─> fence mine? ─> marker mine? one before? ─> begin ─> rows ─> marker ─> flush ─> commit
    bars every   else stop     done      else stop                                           │ whatever the answer
    older producer                                                                           v
                      a new producer: init ─> marker mine? ─> committed and seen, or provably not

Invariants: no row is produced before init, fence and marker were read in this order by this producer;
a transaction whose commit was asked for is never aborted, its producer is dropped and the marker decides;
whatever happens comes back as an :class:`AttemptResult`, never as the text of an exception.

Of an epoch that is *applied* (idempotent mode) there is no copy and was no vote: the records are those of an
:class:`Evaluation`, whose digest and objections are known once all are read.  They are judged then, before the commit
is asked for; what does not pass is aborted, and nothing of it is visible.
"""

from __future__ import annotations

import enum
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

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
from epochal.sinks.spark import workers

if TYPE_CHECKING:
    import pyarrow
    from confluent_kafka import Producer

Row: TypeAlias = "tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Route]"
"""Key and value, and where it goes if it says so itself."""
Route: TypeAlias = "tuple[str | None, int | None, Sequence[Mapping[str, Any]] | None]"
"""Topic, partition, headers; None: the plan's one topic, the partitioner's choice, no headers."""


MOST = 20
"""Records of the audit that one epoch deletes at most: their tombstones fit in any batch that a topic takes."""


class Outcome(enum.Enum):
    """How an attempt ended."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    INTERRUPTED = "interrupted"  # nothing is visible, another producer came in between: go again
    EXPIRED = "expired"  # nothing is visible, the broker ended the transaction: its time was over
    LOST = "lost"  # the task died with its answer: go again, the marker is asked first
    STOPPED = "stopped"  # the error says why and what is known


@dataclass(frozen=True)
class ObjectionCount:
    """The first objection that records of an evaluation meet: its number, how many do, and what is shown of them."""

    number: int
    rows: int
    shown: str | None


@dataclass(frozen=True)
class AttemptResult:
    """What an attempt has to say, as plain data."""

    outcome: Outcome
    error: EpochalError | None = None
    digest: Digest | None = None  # that of the marker, if it shows the epoch; else of the rows that were evaluated
    met: ObjectionCount | None = None  # STOPPED by it, and the error is for the driver to tell

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
    """One epoch as a task gets it; picklable, and holds secrets."""

    link: Link
    marker_topic: MarkerTopic
    topics: tuple[str, ...]  # of several, every row names its own
    by: Actor
    decision: int
    position: Position
    epoch: EpochNumber
    rows: int | None  # None: nobody counted them yet, the epoch is applied
    partitioner: str
    max_message_bytes: tuple[int, ...]  # of each topic
    transaction_timeout: float
    about: Json
    targets: Mapping[str, str] = field(default_factory=dict)  # of several topics, name to id
    span: int = 1  # slots of the epoch; `place` is that of one of them, `rows` are its rows
    before: PreviousEpoch | None = None  # with several slots: where each of them must stand
    agreed: Digest | None = None  # of every other evaluation, when it is applied
    largest: frozenset[int] = frozenset()  # the objections of which the largest number is told
    keep_from: Position = 1  # the lowest position whose record the audit keeps

    @property
    def is_applied(self) -> bool:
        """Whether there is no decision and no copy."""
        return self.rows is None

    @property
    def what(self) -> str:
        """The rows, for people."""
        return f"{self.rows} rows" if not self.is_applied else "the rows"

    @property
    def marker(self) -> Marker:
        """What the transaction sets, but for the digest."""
        return Marker(self.position, self.decision)

    def after(self, state: State, digest: Digest | None = None) -> State:
        """What the slot's partition says once it is committed, where it said ``state``."""
        before = self.before if self.before is not None else PreviousEpoch(state.marker, state.span)
        set_, kept = replace(self.marker, digest=digest), self.forgotten(state).stop or None
        new = replace(state, fence=self.by, marker=set_, targets=self.targets, span=self.span, before=before)
        return replace(new, kept=kept)

    def forgotten(self, state: State) -> range:
        """The positions whose records the transaction deletes: the oldest that fall out of retention, a bounded number.

        Of records that an older Epochal wrote under one key, or that were kept before one ran, nothing is known.
        """
        if self.marker_topic.slot > 0:
            return range(0)
        oldest = state.kept if state.kept is not None else self.position
        return range(oldest, max(oldest, min(self.keep_from, oldest + MOST)))

    def already_committed(self, state: State) -> bool:
        """Whether the slot shows the epoch; an error unless it does, or may be written now."""
        before = None
        if self.before is not None:
            stood = self.before.of_slot(self.marker_topic.slot)
            before = stood.position if stood is not None else 0
        return self.marker_topic.conditions.already_committed(state, self.by, self.marker, self.epoch, before)


class RecordsRefused(Exception):
    """Inside an attempt: nothing of the epoch may be committed, as records meet an objection."""

    def __init__(self, met: ObjectionCount) -> None:
        super().__init__(met)
        self.met = met


class Evaluation:
    """The records of an epoch that is applied, and what is known once all are read."""

    def __init__(self, batches: Iterable[pyarrow.RecordBatch], largest: frozenset[int] = frozenset()) -> None:
        self._batches = batches
        self._largest = largest
        self._met: dict[int, tuple[int, str | None]] = {}
        self._digest = Digest(0, 0)
        self.digest: Digest | None = None  # of all rows, those that the sink does not get included; None: not all read

    def __iter__(self) -> Iterator[Sequence[Row]]:
        """The records to be produced; none once one was objected to."""
        for batch in self._batches:
            self._digest += _digest(batch.column(HASH))
            for met in batch.column(MET).drop_null().to_pylist():
                self._meet(met["number"], met["shown"])
            if not self._met:
                yield _rows(batch.filter(batch.column(KEPT)))
        self.digest = self._digest

    def judge(self, plan: Plan) -> Digest:
        """``NonDeterministicReplay``, or what is objected to; the digest where there is nothing."""
        assert self.digest is not None, "judged when all records are read"
        plan.marker_topic.conditions.check_digest(self.digest, plan.agreed, plan.epoch)
        if self.met is not None:
            raise RecordsRefused(self.met)
        return self.digest

    @property
    def met(self) -> ObjectionCount | None:
        """The first objection of all that were met so far."""
        return min(
            (ObjectionCount(number, *of) for number, of in self._met.items()), key=lambda met: met.number, default=None
        )

    def _meet(self, number: int, shown: str | None) -> None:
        rows, before = self._met.get(number, (0, None))
        both = [text for text in (before, shown) if text is not None]
        told = max(both, key=int, default=None) if number in self._largest else min(both, default=None)
        self._met[number] = rows + 1, told


def _digest(hashes: pyarrow.Array) -> Digest:
    """Of a batch; by halves, of which no sum overflows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask, bits = (workers.of_bytes(pa.int64(), number.to_bytes(8, sys.byteorder)) for number in (0xFFFFFFFF, 32))
    low = pc.sum(pc.bit_wise_and(hashes, mask)).as_py() or 0
    high = pc.sum(pc.shift_right(hashes, bits)).as_py() or 0
    return replace(Digest.of([low + (high << 32)]), rows=len(hashes))


class Transaction:
    """The one transaction of one producer, in one process.  Every call is bounded."""

    def __init__(self, link: Link, marker_topic: MarkerTopic, timeout: float, more: Options) -> None:
        self._link = link
        self._marker_topic = marker_topic
        self._timeout = timeout
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._made: Producer | None = link.producer(marker_topic.transactional_id, timeout, more)

    @property
    def _producer(self) -> Producer:
        """The producer, in the process that made it, until it was let go."""
        if os.getpid() != self._pid:
            raise Misconfigured(
                f"a Kafka producer of process {self._pid} was used in process {os.getpid()}, after a fork",
                sink=self._marker_topic.sink,
                help="make the producer in the process that uses it",
            )
        if self._made is None:
            raise Misconfigured(
                "a Kafka producer was used after its end", sink=self._marker_topic.sink, help="make a new one"
            )
        return self._made

    def init(self) -> None:
        """Bar every older producer of this transactional id; what it had open is aborted."""
        producer, timeout = self._producer, self._link.timeout
        for _ in range(2):  # without it the first coordinator look-up waits for a timer of 500 ms
            producer.list_topics(self._marker_topic.topic, timeout)
        producer.init_transactions(timeout)

    def bar(self) -> None:
        """``init``, with an error that says what was asked for."""
        with self._link.asking(f"to init_transactions of {self._marker_topic.transactional_id}"):
            self.init()

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._began = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the broker may have ended the transaction by now."""
        return time.monotonic() - self._began >= self._timeout

    def send(self, topic: str, rows: Sequence[Row]) -> int:
        """Hand rows to the client, in order; how many.  A failed delivery shows at ``commit``, not here.

        ``topic`` is that of rows that name none.
        """
        producer, given = self._producer, cast("Sequence[Any]", rows)
        produce: Any = producer.produce
        if rows and len(rows[0]) == 2:  # all rows of a batch are of one form, and this one has no time to lose
            for key, value in given:
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._wait_for_room(producer, (topic, value, key))
        else:
            for key, value, route in given:
                call = _routed(topic, value, key, *route)
                try:
                    produce(*call)
                except BufferError:
                    self._wait_for_room(producer, call)
        producer.poll(0)
        return len(rows)

    def _wait_for_room(self, producer: Producer, call: tuple[Any, ...]) -> None:
        produce: Any = producer.produce
        while True:
            producer.poll(0.1)
            try:
                produce(*call)
                return
            except BufferError:
                if self.is_overdue:
                    raise TimeoutError(f"the brokers took no row for {self._timeout:g} s") from None

    def send_state(self, key: bytes, state: State, about: Json | None = None) -> None:
        """Hand a record of the marker topic to the client: the whole state, into the slot's own partition."""
        value = marker.record(self._marker_topic, state, about)
        self.send(self._marker_topic.topic, [(key, value, (None, self._marker_topic.slot, None))])

    def flush(self) -> None:
        """Wait until the brokers have answered for every row, for as long as the transaction may last."""
        producer = self._producer
        while producer.flush(0.5):
            if self.is_overdue:
                raise TimeoutError(f"the brokers had not taken all rows after {self._timeout:g} s")

    def commit(self) -> None:
        """Ask for the commit.  Whatever this raises says nothing about the outcome."""
        self._producer.commit_transaction(self._link.timeout)

    def abort(self) -> None:
        """Abort, as well as can be: what is left open is aborted by the next ``init``."""
        producer = self._producer
        try:
            producer.abort_transaction(min(self._link.timeout, 10.0))
        except kafka().KafkaException:
            pass
        self.drop()

    def drop(self) -> None:
        """Let go of the producer, without abort; its transaction stays as it is."""
        self._made = None


def guarded(
    link: Link, marker_topic: MarkerTopic, timeout: float, judge: Callable[[State], bool], more: Options
) -> tuple[Transaction, State, bool]:
    """A producer that has barred all others, the final state it then read, and what ``judge`` says of it.

    Errors leave no producer behind and have had no effect.
    """
    transaction = Transaction(link, marker_topic, timeout, more)
    try:
        transaction.bar()
        state = marker.read(link, marker_topic, final=True)
        return transaction, state, judge(state)
    except BaseException:
        transaction.drop()
        raise


def task(plan: Plan, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """For ``mapInArrow``: records in, one answer out."""
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


def _routed(
    default: str,
    value: bytes | None,
    key: bytes | None,
    topic: str | None,
    partition: int | None,
    headers: Sequence[Mapping[str, Any]] | None,
) -> tuple[Any, ...]:
    """What ``Producer.produce`` takes of a row that says where it goes."""
    now, nobody = 0, None  # its timestamp; whom it tells of the delivery
    pairs = [(header["key"], header["value"]) for header in headers] if headers else None
    return (topic or default, value, key, -1 if partition is None else partition, nobody, nobody, now, pairs)


def attempt(plan: Plan, batches: Iterable[Sequence[Row]]) -> AttemptResult:
    """Produce the epoch unless it is there; never raises an ``Exception``.

    An epoch that is applied comes as an :class:`Evaluation`, and whatever the outcome, its digest is told where known.
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
    """What this epoch needs of its producer."""
    limits, own = plan.max_message_bytes, plan.link.options.get("batch.size")
    largest = max(*limits, marker.LARGEST)
    needed: Options = {"partitioner": plan.partitioner, "message.max.bytes": largest}
    if min(limits) == largest:
        return needed
    # A batch is of one partition, and one row may always be larger: no batch may exceed what the strictest topic takes.
    return {**needed, "batch.size": min([*limits, *([int(own)] if own is not None else [])])}


def _write(plan: Plan, transaction: Transaction, state: State, batches: Iterable[Sequence[Row]]) -> None:
    """Everything up to the commit request: the rows, exactly as many as were voted for, and the marker."""
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
    """Tombstones for the records that fall out of retention; flushed before the epoch's own record follows.

    Else both could share a batch, which may be no larger than that record alone was judged to be.
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
    """What an error before the commit request means: in any case nothing is visible."""
    if isinstance(error, RecordsRefused):
        return AttemptResult(Outcome.STOPPED, met=error.met)
    if isinstance(error, EpochalError):
        return AttemptResult(Outcome.STOPPED, error)
    return _explain(plan, _first_cause(transaction, error), transaction.is_overdue)


def _first_cause(transaction: Transaction, error: Exception) -> Exception:
    """After a failed delivery the client refuses the next call with "erroneous state"; its commit says why.

    No commit request leaves the client in this state, so nothing becomes ambiguous.
    """
    k = kafka()
    if isinstance(error, k.KafkaException) and error.args[0].name() in ("_STATE", "_FATAL"):
        try:
            transaction.commit()
        except Exception as cause:
            return cause
    return error


def _explain(plan: Plan, error: Exception, late: bool) -> AttemptResult:
    """Nothing is visible: go again, or stop."""
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
    """The commit was asked for: bar that producer, then the marker decides.

    Also after a clear answer: the broker gives it once the commit is certain and lets readers go on a
    little later, partition by partition; a new ``init_transactions`` is answered when all that is done.
    """
    error = error if error is not None else TimeoutError("committed, and not yet shown to readers")
    answer = landed(plan, f"the commit of {plan.what} was asked for and not answered", error)
    return answer if answer is not None else _explain(plan, error, late)


def landed(plan: Plan, what: str, error: Exception) -> AttemptResult | None:
    """Bar whoever produces the epoch, then ask the marker; None: nothing of it is visible.

    ``what`` happened, with ``error``: so it is told where the marker cannot be read.
    """
    try:
        transaction, state, shown = guarded(
            plan.link, plan.marker_topic, plan.transaction_timeout, plan.already_committed, _tuning(plan)
        )
    except (SinkUnavailable, Misconfigured) as unreachable:
        return AttemptResult(
            Outcome.STOPPED, unknown(plan, what, error, f"the marker could not be read: {unreachable.what}")
        )
    except EpochalError as stopped:
        return AttemptResult(Outcome.STOPPED, stopped)
    transaction.drop()
    return AttemptResult(Outcome.COMMITTED, digest=_digest_of(state)) if shown else None


def unknown(plan: Plan, what: str, error: Exception, state: str) -> OutcomeUnknown:
    """The commit may have been asked for, and no marker was read since; ``error`` is why."""
    return OutcomeUnknown(
        f"{what}: {_text(plan, error)}",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state=state,
        help="commit again: the marker is asked before anything is written",
    )


def _unavailable(plan: Plan, error: Exception) -> SinkUnavailable:
    return SinkUnavailable(
        f"Kafka at {plan.link.bootstrap} did not take {plan.what}: {_text(plan, error)}",
        sink=plan.marker_topic.sink,
        epoch=plan.epoch,
        state="the transaction was not committed, nothing of the epoch is visible",
        help="see whether the brokers are up and can be reached from the executors",
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
    """One line without secrets; Spark's errors have pages."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, kafka().KafkaException):
        cause: Any = error.args[0]
        text = f"{cause.name()}: {cause.str()}"
    return plan.link.scrub(text).splitlines()[0][:500]
