"""The Kafka sink's verbs.  Runs in the driver; the rows travel in ``produce.py``.

Kafka holds no prepared rows, so the durable copy is the prepared work, and a commit applies it in one
transaction together with the marker.  A decided epoch whose transaction is lost is simply produced again.
In idempotent mode ``apply`` evaluates and produces in one Spark job; what a vote would have refused, its task does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import (
    MOVED,
    Actor,
    Committable,
    Copy,
    Digest,
    Epoch,
    Json,
    Marker,
    Position,
    Query,
    SinkState,
)
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Misconfigured,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import check_above_zero, check_name, looked, marker_of, refusing
from epochal.sinks.epochs import KEPT_ALWAYS, Epochs, Retention, Wanted
from epochal.sinks.kafka import audit, encode, marker, objections, produce, slots, topics
from epochal.sinks.kafka.client import Link, Options, check_options, kafka, log, read_options
from epochal.sinks.kafka.encode import SLOT, Encoder, MakeValue
from epochal.sinks.kafka.inspection import KafkaInspection
from epochal.sinks.kafka.marker import Before, MarkerTopic, State
from epochal.sinks.kafka.objections import Objection
from epochal.sinks.kafka.produce import Answer, Evaluation, Outcome, Plan
from epochal.sinks.kafka.rows import HASH, KEPT, MET, ROUTES, WHOLE_ROW, Encoding
from epochal.sinks.kafka.topics import Declared, Topics
from epochal.sinks.protocol import Applied, CommitOutcome, Rows, Schema, Sink
from epochal.sinks.rows import formats, rejects
from epochal.sinks.rows.digest import row_hash
from epochal.sinks.rows.projection import Projection, of_an_expression, settings_of, take_settings
from epochal.sinks.spark import stage
from epochal.sinks.spark.executors import check_executors, clone, first_cause, running_session
from epochal.sinks.spark.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

PARTITIONERS = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a", "random")
ATTEMPTS = 10
"""How often an attempt may be interrupted by another producer before the epoch is given back."""
EXPIRIES = 2
"""How often the broker may end an epoch's transaction because its time was over."""
LOSSES = 4
"""How often the task of an epoch may die; Spark itself does not repeat a barrier stage that returns results."""
FENCE_ATTEMPTS = 10
MOST_SLOTS = 64
KEEP_EPOCHS = 1_000
"""By default, of the audit: a source with many partitions has offsets of some kilobytes."""
AGED_S = 60.0
"""Seconds after which it is asked again which epochs are too old for the audit."""
MARKER_SPARE = 1000
"""Bytes of a marker's record that are known when it is written: the digest, slots, the record's frame."""
_NOT_YET = "kafka: no marker topic yet"
"""The identity of a sink under a name that it is about to get."""
PAYLOAD_VERSION = 1
"""Of what a vote holds; how rows become records has a version of its own (``rows.py``)."""

_EXACT = {  # of the sink's own clone of the session: the same rows in the same order, whatever the user has set
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.files.maxPartitionBytes": str(2**62),
    "spark.sql.files.minPartitionNum": "1",
}
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""At most 10,000, whatever the user has set."""


@dataclass(frozen=True)
class Judging:
    """How rows of a schema are judged for topics as they are; kept, as each column takes ten calls into the JVM."""

    schema: StructType
    targets: Mapping[str, topics.Topic]
    record: Sequence[Column]
    found: Sequence[Objection]
    figures: Sequence[Column]


@dataclass(frozen=True)
class Watched:
    """Rows that are judged while they are copied: for which decision, how, and what is seen of them."""

    decision: int
    judging: Judging
    figures: Callable[[], objections.Figures | None]


class KafkaSink:
    """Every epoch once, in one Kafka transaction.

    ``bootstrap_servers``: ``host:port`` of some brokers, with commas between them.
    ``topic``: the topic that gets the rows; with ``topics`` the column (string) that names one of them for each row.
    ``topics``: a list, all that rows may name; the sink needs a ``name`` then.
    ``key``: the column (string or binary) whose bytes are the key; rows without one go to random partitions.
    ``value``: the column whose bytes are the value; by default the row as JSON (``epochal.sinks.kafka.rows`` says
    exactly how).  Or a function: it is called without arguments once per task, and returns a function of a row (a dict
    of the columns that a JSON value would have) and its topic that returns the value's bytes, or None; that one is
    asked once per row, before the vote, and what it returned is kept.
    ``headers``: the column (``array<struct<key:string,value:binary>>``) of a row's headers.
    ``partition``: the column (an integer from 0) of a row's partition; NULL: ``partitioner`` chooses.
    ``tombstones``: a NULL as value is meant; else it refuses the epoch.
    ``slots``: so many transactions side by side write an epoch (``epochal.sinks.kafka.slots``), for epochs that one
    does not write in time; it may change between starts.
    ``select`` and ``where``: the columns and rows that it gets (``epochal.sinks.rows.projection``); all columns that
    are named here are of the selected ones.  Rows are projected again when they are produced, after the decision: by
    the text and under the settings of the session that prepared the epoch, which its committable keeps; only
    ``spark.sql.legacy.timeParserPolicy`` is always ``CORRECTED``.
    ``bad_rows``: the sink of rows that Kafka, a topic or JSON cannot hold, which else refuse the epoch
    (``epochal.sinks.rows.rejects``).
    ``name``: the sink's stable name, by default ``kafka-<topic>``.
    ``partitioner``: one of librdkafka's (``PARTITIONERS``); the default is what Java's producer does.
    ``transaction_timeout``: seconds that producing one epoch may take, by default 300 or the broker's maximum.
    ``request_timeout``: seconds that a single request may take.
    ``options``: librdkafka's own names and values, or a function that returns them, called in the driver whenever they
    are needed: a place for secrets.
    ``partitions``, ``replication`` and ``topic_config``: of topics that ``create`` makes, by default the broker's own.
    ``keep_epochs``: how many epochs the audit in the marker topic keeps, a record each, the size of Spark's offsets.
    ``keep_days``: for how many days; by default for any (``epochal.sinks.epochs.Retention``).
    """

    needs_copy = True

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topic: str,
        topics: Sequence[str] | None = None,
        key: str | None = None,
        value: str | MakeValue | None = None,
        headers: str | None = None,
        partition: str | None = None,
        tombstones: bool = False,
        slots: int = 1,
        select: Sequence[str] | None = None,
        where: str | None = None,
        bad_rows: Sink | Literal["fail"] = "fail",
        name: str | None = None,
        partitioner: str = "murmur2_random",
        transaction_timeout: float | None = None,
        request_timeout: float = 30.0,
        options: Options | Callable[[], Options] | None = None,
        partitions: int | None = None,
        replication: int | None = None,
        topic_config: Mapping[str, str] | None = None,
        keep_epochs: int | None = KEEP_EPOCHS,
        keep_days: float | None = None,
    ) -> None:
        self._made_with = {what: value for what, value in locals().items() if what != "self"}
        self._also: KafkaSink | None = None  # the same under its other name, of a sink that is renamed
        self._is_new = False  # under this name, of a sink that is renamed: its marker topic may be missing
        self._bootstrap = bootstrap_servers
        self._topic = topic
        self._name = name if name is not None else f"kafka-{topic}"
        self._declared = _declared(topic, topics, self._name, named=name is not None)
        check_name("sink name", self._name)
        _check_partitioner(partitioner, self._name)
        self._make_value = value if callable(value) else None
        self._encoding = Encoding(
            key,
            None if callable(value) else value,
            partitioner,
            Projection.of(self._name, select, where),
            topic=topic if self._declared.several else None,
            partition=partition,
            headers=headers,
            made=callable(value),
        )
        self.bad_rows = rejects.check_bad_rows(bad_rows, self._name)
        _check_bad_rows(self.bad_rows, self._make_value, self._name)
        self._slots = slots
        self._ever_used = 1  # slots, as the sink was last seen
        _check_slots(slots, partitioner, self._name)
        self._tombstones = tombstones
        _check_tombstones(tombstones, value, self._name)
        check_above_zero(
            self._name,
            transaction_timeout=transaction_timeout,
            request_timeout=request_timeout,
            partitions=partitions,
            replication=replication,
        )
        self._transaction_timeout = transaction_timeout
        self._request_timeout = request_timeout
        self._options = options
        self._partitions = partitions
        self._replication = replication
        self._topic_config = dict(topic_config or {})
        self._retention = Retention.of(keep_epochs, keep_days, self._name)
        self._aged: tuple[float, Position] | None = None  # when asked, and which position the days of retention keep
        self._lock = threading.Lock()
        self._judged_by: tuple[int, Topics] | None = None  # the newest epoch's decision, and the topics as they were
        self._looked: tuple[MarkerTopic, Topics] | None = None  # where, and what was seen there
        self._longest: float | None = None  # seconds that one transaction may last
        self._session: SparkSession | None = None
        self._settings: Mapping[str, str] = {}  # those that the session was given
        self._judging: Judging | None = None
        self._watched: Watched | None = None
        self._evaluated: tuple[int, Digest] | None = None  # the newest epoch that was applied, and its rows

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        several = f", topics={list(self._declared.names)!r}" if self._declared.several else ""
        return f"KafkaSink({self._bootstrap!r}, topic={self._topic!r}{several}, name={self._name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"} | {
            "_session": None,
            "_judging": None,
            "_watched": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        """Make the target topic and the marker topic where they are missing."""
        place = self._place(query)
        self._check_schema(schema)
        made = self._partitions, self._replication, self._topic_config, self._slots
        return topics.create(self._link(), self._declared, place, *made)

    def check(self, query: Query, schema: Schema) -> None:
        place = self._place(query)
        kafka()
        self._check_schema(schema)
        link = self._link()
        seen, timeout = topics.describe(link, self._declared, place), self._timeout(link)
        topics.check(link, seen, place, self._encoding.key, timeout, self._slots)
        produce.Transaction(link, place, timeout, {}).drop()  # takes the options, asks the brokers nothing
        needed = ["confluent_kafka", *(["numpy"] if self._slots > 1 else [])]
        check_executors(self._name, needed, "'epochal[kafka]' pyarrow" + (" numpy" if self._slots > 1 else ""))
        if self._make_value is not None:
            encode.check(self._make_value, self._name, self._link().scrub)
        for caution in topics.cautions(seen):
            log.warning("sink %s: %s", self._name, caution)

    def inspection(self, query: Query) -> KafkaInspection:
        """See ``epochal.sinks.inspection``."""
        place, link = self._place(query), self._link()
        return KafkaInspection(
            link,
            place,
            self._declared.names,
            lambda: slots.read_all(link, place).slots,
            {**self._encoding.projection.to_json(), "bad_rows": self.bad_rows is not None},
            lambda slot: self._init(link, slot),
        )

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        place, link = self._place(query), self._link()
        if self._is_new and not topics.has_marker(link, place):
            return SinkState(_NOT_YET, None, None)
        seen = topics.describe(link, self._declared, place)
        self._looked = place, seen
        state = slots.read_all(link, place)
        _check_targets(seen, state.targets, place)
        topics.check_slots(seen.marker, place, max(self._slots, state.slots))
        if by is not None and state.fence == by:
            state = self._bar_and_read(link, place, state.slots)
        self._ever_used = state.slots
        return SinkState(seen.identity, state.fence, self._marker_of(query, state))

    def _marker_of(self, query: Query, state: State) -> Marker | None:
        """Of a sink that is renamed the marker is under one of its names."""
        if self._also is None or state.marker is None or not state.marker.is_moved:
            return state.marker
        return marker.read(self._link(), self._also._place(query), final=False).marker

    def fence(self, query: Query, by: Actor) -> None:
        """Bar every older producer, then write the fence, unless a newer actor has; then bar those of other slots.

        Of two that fence at once, each ``init`` ends the other's transaction, so at most one record is
        written on top of what its writer has read; the other reads it and is ``Fenced``.  Why the other slots
        come last, and again whenever this is called again: ``slots.py``, 4.
        """
        place, link = self._place(query), self._link()
        if self._is_new:
            self.create(query, None)
        for attempt in range(FENCE_ATTEMPTS):
            place.conditions.check_fence(marker.read(link, place, final=False), by)  # disturbs nobody
            if self._write_fence(link, place, by) and (state := marker.read(link, place, final=True)).fence == by:
                for slot in range(1, state.slots):
                    self._init(link, place.of_slot(slot))
                self._ever_used = state.slots
                return
            time.sleep(random.uniform(0, 0.1 * 2 ** min(attempt, 5)))
        raise SinkUnavailable(
            f"another start fences the sink at the same time, {FENCE_ATTEMPTS} times over",
            sink=self._name,
            state=f"transactional id {place.transactional_id}, by {by}",
            help="start one query per app and sink",
        )

    def watch(self, epoch: Epoch, rows: DataFrame) -> DataFrame:
        """See ``epochal.sinks.protocol.WatchingSink``; rows that become other ones first are judged from the copy."""
        self._watched = None
        if not self._is_watchable(rows):
            return rows
        try:
            now = self._as_looked_at(epoch)
        except SinkUnavailable:  # the vote asks more patiently
            return rows
        judging = self._judging
        if judging is None or (judging.schema, judging.targets) != (rows.schema, now.targets):
            judging = self._judging = self._judging_of(rows.schema, now)
        seen, figures = objections.watched(rows.select(*judging.record), judging.figures)
        self._watched = Watched(epoch.decision.id, judging, figures)
        return seen.select(f"{WHOLE_ROW}.*")

    def _judging_of(self, schema: StructType, now: Topics) -> Judging:
        from pyspark.sql import functions as f

        self._encoding.check(schema, self._name)
        refusals = _refusals(self._encoding, schema)
        found = self._objections({column: name for column, (name, _) in refusals.items()}, now)
        whole = f.struct(*map(_quoted, schema.names)).alias(WHOLE_ROW)
        bad = [condition.alias(name) for name, condition in refusals.values()]
        record = [*self._encoding.columns(schema.names), whole, *bad]
        return Judging(schema, now.targets, record, found, objections.figures(found))

    def _is_watchable(self, rows: DataFrame) -> bool:
        """Every row is a record as it stands, and in the query's session the same one as in the sink's own."""
        if self._keeps_records or not self._encoding.projection.is_whole:
            return False
        policy = rows.sparkSession.conf.get("spark.sql.legacy.timeParserPolicy", "CORRECTED")
        return str(policy).upper() != "LEGACY" and not _has_twins(rows.schema)

    @property
    def _keeps_records(self) -> bool:
        """Beside the copy, as nobody could make the same ones again."""
        return self._make_value is not None or self._slots > 1 or self.bad_rows is not None

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """Vote: the copy is there, and Kafka will take every row of it as the topic is now."""
        if epoch.copy is None:
            raise PrepareRefused(
                "Kafka cannot hold rows back, and there is no durable copy to produce them from",
                sink=self._name,
                epoch=epoch.number,
                help="give the coordinator a stage",
            )
        place, _ = self._seen()
        now = self._topics_of(epoch)
        cut = self._cut(place, epoch, by)
        encoding = self._meant(rows.sparkSession)
        self._refuse_large_marker(epoch, place, now, by)
        staged: list[Copy] = []
        left_out = 0
        count = self._judged_while_copied(epoch, now)
        if count is None:
            copied = stage.read_copy(self._own_session(encoding.settings), epoch.copy)  # as a commit will read it
            with encoding.projection.evaluating(epoch.number):
                count, staged = self._check_rows(epoch, encoding, copied, now)
                left_out = encoding.projection.left_out(copied) + rejects.left_out(self, epoch, copied)
        if count + left_out != epoch.copy.rows:
            told = f"{count} rows and {left_out} that are left out were read from a durable copy of {epoch.copy.rows}"
            raise self._refuse(epoch, told, "restart the query; if it happens again, the file system loses rows")
        failpoints.hit(Point.BEFORE_VOTE, self._name, epoch.number)
        payload = {
            "version": PAYLOAD_VERSION,
            "copy": epoch.copy.to_json(),
            "identity": now.identity,
            **({"topics": dict(now.ids)} if now.several else {"topic": self._topic}),
            "encoding": encoding.to_json(),
            **({"slots": cut} if cut is not None else {}),
            **({"staged": [copy.to_json() for copy in staged]} if staged else {}),
            "about": {"offsets": epoch.offsets, "watermark": epoch.watermark},
        }
        return Committable(self._name, epoch.decision, epoch.position, count, payload, left_out=left_out)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Attempts until one answers; each begins with init and marker, so none can show a row twice."""
        formats.check_vote(committable, PAYLOAD_VERSION)
        place, _ = self._seen()
        link = self._link()
        state = slots.read_all(link, place)
        if place.conditions.already_committed(state, by, marker_of(committable), committable.decision.epoch):
            self._bar_and_read(link, place, state.slots)  # answered when every partition shows it
            return CommitOutcome.ALREADY_COMMITTED
        plans = self._plans(link, place, committable, by)
        if any(plan.rows for plan in plans):
            self._own_session(Encoding.from_json(committable.payload["encoding"], self._name).settings)

        def show(plan: Plan) -> CommitOutcome:
            return _SHOWN[attempt_until_shown(plan, lambda: self._attempt(plan, committable)).outcome]

        return slots.outcome_of(Threads(running_session)([partial(show, plan) for plan in plans]))

    def check_apply(self) -> None:
        if self._slots > 1:
            raise Misconfigured(
                f"slots={self._slots} would write an epoch in {self._slots} transactions, and in idempotent mode there"
                " is no decision that holds them together",
                sink=self._name,
                help='take slots=1, with a transaction_timeout= that an epoch fits in, or leave mode="idempotent" out',
            )
        self._check_one_slot(self._ever_used)

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:
        """Evaluate and produce in one job: what is objected to, or is not as agreed, is found before its commit."""
        place, _ = self._seen()
        link = self._link()
        state = slots.read_all(link, place)
        if place.conditions.already_committed(state, by, marker_of(epoch), epoch.number):
            return _applied(CommitOutcome.ALREADY_COMMITTED, self._bar_and_read(link, place, state.slots))
        with refusing(self._name, epoch.number):
            self._check_one_slot(state.slots)
            self._check_session(epoch, rows.sparkSession)
            now = self._topics_of(epoch)
            self._refuse_large_marker(epoch, place, now, by)
            records, found = self._judged(rows, now)
            plan = self._plan_to_apply(link, place, epoch, now, found, by)
        return self._apply_until_shown(plan, records, found, agreed)

    def abort(self, query: Query, by: Actor) -> None:
        """Nothing prepared lies in Kafka; what a dead producer left open is ended."""
        place, link = self._place(query), self._link()
        state = marker.read(link, place, final=False)
        place.conditions.check_owner(state, by)
        place.conditions.check_owner(self._bar_and_read(link, place, state.slots), by)

    def renamed(self, name: str) -> tuple[KafkaSink, KafkaSink]:
        """See ``epochal.sinks.protocol``; each name has a marker topic, that of the new one is made by its fence."""
        here, there = (KafkaSink(**{**self._made_with, "name": each}) for each in (self._name, name))
        here._also, there._also = there, here
        there._is_new = True
        return here, there

    def check_mark(self, query: Query) -> None:
        place, link = self._place(query), self._link()
        there = topics.has_marker(link, place)
        slots = marker.read(link, place, final=False).slots if there else 1
        if max(slots, self._slots) > 1:
            raise Misconfigured(
                f"the sink was used with slots={max(slots, self._slots)}, each with a marker of its own, which nobody"
                " writes by hand",
                sink=self._name,
                help="restore the marker topic; a sink with slots= keeps its name",
            )

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """A record of its own, by a producer that has barred all others; seen by the next one before it answers."""
        self._mark_until_seen(self._place(query), marker, by)
        if self._also is not None:
            position = marker.position if marker is not None else 1
            self._also._mark_until_seen(self._also._place(query), Marker(position, MOVED), by)

    def _mark_until_seen(self, place: MarkerTopic, marker: Marker | None, by: Actor) -> None:
        link = self._link()
        for attempt in range(FENCE_ATTEMPTS):
            if self._has_marked(link, place, marker, by):
                return
            time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1.0))
        raise SinkUnavailable(
            f"the marker could not be written in {FENCE_ATTEMPTS} attempts",
            sink=self._name,
            state=f"topic {place.topic}",
            help="see what else uses its transactional id",
        )

    def _has_marked(self, link: Link, place: MarkerTopic, marker: Marker | None, by: Actor) -> bool:
        transaction, state, _ = produce.guarded(link, place, self._timeout(link), _owned(place, by), {})
        try:
            if marker is None or state.marker == marker:
                return True
            transaction.begin()
            transaction.send_state(b"marker", replace(state, marker=marker, span=1, before=Before()))
            transaction.commit()
        except kafka().KafkaException:
            return False
        finally:
            transaction.drop()
        return False

    def close(self) -> None:
        self._looked = self._session = self._evaluated = self._aged = self._watched = self._judging = None

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """See :class:`~epochal.sinks.protocol.AuditedSink`; out of the marker topic, which takes READ and DESCRIBE."""
        place, wanted = self._place_of(app), Wanted.of(self._name, first, last, limit)
        return audit.read(self._link(), place, wanted)

    def guarantee(self) -> str:
        return (
            f"{self._name}: every epoch is in {self._where} exactly once, in {self._transactions}. "
            "For consumers with isolation.level=read_committed: of an epoch they see, per partition, all rows "
            "or none, and all partitions in the end; epoch t+1 never before epoch t in a partition; rows of one "
            "partition of the batch keep their order. There is no snapshot across partitions: while a commit is "
            "under way one partition may show the epoch and another not yet. Consumers with read_uncommitted "
            "(librdkafka: read_committed is the default; Java: it is not) also see rows of aborted "
            "transactions. Fixed: acks=all, an idempotent producer. "
            "Conditions: acknowledged writes last (replication, min.insync.replicas), rows stay as long as readers "
            "need them (retention, compaction), "
            f"nobody else writes to the marker topic __epochal.<app>.{self._name} or uses its transactional id, "
            "and producing an epoch takes less than the transaction timeout. In idempotent mode its rows are judged "
            "while they are produced: those of an epoch that is refused are rows of an aborted transaction."
            f"{self._fate_of_bad_rows}{self._encoding.projection.promise}"
        )

    @property
    def _fate_of_bad_rows(self) -> str:
        if self.bad_rows is None:
            return ""
        return f" Rows that Kafka, a topic or JSON cannot hold go to sink {self.bad_rows.name!r}."

    def _place(self, query: Query) -> MarkerTopic:
        return self._place_of(query.app)

    def _place_of(self, app: str) -> MarkerTopic:
        check_name("app", app, self._name)
        place = MarkerTopic(app, self._name)
        topics.check_length(place)
        return place

    @property
    def _transactions(self) -> str:
        if self._slots == 1:
            return "one Kafka transaction"
        return (
            f"{self._slots} Kafka transactions side by side, each of partitions of its own: if a start dies while it "
            "commits, readers see the epoch in some partitions, and in the others from the next start on"
        )

    @property
    def _where(self) -> str:
        if self._declared.several:
            return f"topics {', '.join(map(repr, self._declared.names))}, as column {self._topic!r} says,"
        return f"topic {self._topic!r}"

    def _seen(self) -> tuple[MarkerTopic, Topics]:
        return looked(self._looked, self._name)

    def _link(self) -> Link:
        options = read_options(self._options, self._name)
        check_options(options, self._name)
        return Link(self._bootstrap, self._name, self._request_timeout, options)

    def _check_schema(self, schema: Schema) -> None:
        if schema is not None:
            self._encoding.check(self._encoding.projection.check(schema), self._name)

    def _meant(self, session: SparkSession) -> Encoding:
        """How the rows of an epoch become records, as the session reads it now."""
        if self._encoding.projection.is_whole and self.bad_rows is None:
            return self._encoding
        return replace(self._encoding, settings=settings_of(session))

    def _timeout(self, link: Link) -> float:
        """How long a transaction may last, asked for once."""
        if self._longest is None:
            longest = topics.longest_transaction(link)
            wanted = self._transaction_timeout
            if wanted is not None and longest is not None and wanted > longest:
                raise Misconfigured(
                    f"transaction_timeout={wanted:g} s is above the broker's maximum of {longest:g} s",
                    sink=self._name,
                    state=f"transaction.max.timeout.ms {longest * 1000:g}",
                    help=f"take transaction_timeout={longest:g} or less, or raise transaction.max.timeout.ms",
                )
            self._longest = wanted or min(topics.LONGEST_TRANSACTION, longest or topics.LONGEST_TRANSACTION)
        return self._longest

    def _bar_and_read(self, link: Link, place: MarkerTopic, ever_used: int) -> State:
        """The final state of all slots, after every producer of theirs is barred."""
        for slot in range(ever_used):
            self._init(link, place.of_slot(slot))
        return slots.shown(
            place, [marker.read_slot(link, place.of_slot(slot), final=True) for slot in range(ever_used)]
        )

    def _init(self, link: Link, place: MarkerTopic) -> None:
        transaction = produce.Transaction(link, place, self._timeout(link), {})
        try:
            transaction.bar()
        finally:
            transaction.drop()

    def _write_fence(self, link: Link, place: MarkerTopic, by: Actor) -> bool:
        """False: another producer came in between, or the answer is lost; look again."""
        transaction, state, mine = produce.guarded(
            link, place, self._timeout(link), lambda state: place.conditions.check_fence(state, by), {}
        )
        try:
            if not mine or state.slots < self._slots:
                transaction.begin()
                transaction.send_state(b"fence", replace(state, fence=by, slots=max(state.slots, self._slots)))
                transaction.commit()
        except kafka().KafkaException:
            return False
        finally:
            transaction.drop()
        return True

    def _cut(self, place: MarkerTopic, epoch: Epoch, by: Actor) -> Json | None:
        """With several slots: in how many the epoch is to be, and what the sink shows before it."""
        if max(self._slots, self._ever_used) == 1:
            return None
        state = slots.read_all(self._link(), place)
        place.conditions.check_prepare(state, by, marker_of(epoch), epoch.number)
        before = Before(state.marker, state.span if state.marker is not None else 0)
        return {"span": state.slots, "before": before.to_json()}

    def _as_looked_at(self, epoch: Epoch) -> Topics:
        """The topics as they are now, if they are those that were looked at."""
        place, seen = self._seen()
        now = topics.describe(self._link(), self._declared, place)
        if (now.identity, now.ids) != (seen.identity, seen.ids):
            raise PrepareRefused(
                f"{_what(now, place)} is not the one that was looked at",
                sink=self._name,
                epoch=epoch.number,
                state=f"was {seen.identity}, {seen.ids}; is {now.identity}, {now.ids}",
                help="the topic was dropped and made again; restart the query to have it looked at",
            )
        return now

    def _topics_of(self, epoch: Epoch) -> Topics:
        """As they were when an epoch was first judged: what a row is refused for must be the same to all who ask.

        That they still are the topics that were looked at is asked every time.
        """
        now = self._as_looked_at(epoch)
        with self._lock:
            if self._judged_by is None or self._judged_by[0] != epoch.decision.id:
                self._judged_by = epoch.decision.id, now
            return self._judged_by[1]

    def reasons(self, epoch: Epoch, rows: DataFrame) -> DataFrame:
        """See ``epochal.sinks.rows.rejects``; of a copy, as the vote reads it."""
        from pyspark.sql import functions as f

        if epoch.copy is not None:
            rows = stage.read_copy(self._own_session(self._meant(rows.sparkSession).settings), epoch.copy)
        whole = f.struct(*(_quoted(name) for name in rows.columns)).alias(WHOLE_ROW)
        records, found = self._marked(rows, self._topics_of(epoch), whole)
        reason = f.when(f.col(KEPT), objections.reason_of_each(found)).alias(rejects.REASON)
        return records.select(WHOLE_ROW, reason).select(f"{WHOLE_ROW}.*", rejects.REASON)

    def judgement(self, epoch: Epoch, rows: DataFrame) -> Json:
        """See ``epochal.sinks.rows.rejects``."""
        targets = self._topics_of(epoch).targets.values()
        return {
            "schema": rows.schema.simpleString(),
            "encoding": self._meant(rows.sparkSession).to_json(),
            "tombstones": self._tombstones,
            "topics": {t.name: [t.partitions, t.max_message_bytes, t.is_compacted] for t in targets},
        }

    def _judged_while_copied(self, epoch: Epoch, now: Topics) -> int | None:
        """How many rows, after refusing; None: nobody has watched the rows of this decision for topics as they are."""
        watched, self._watched = self._watched, None
        if watched is None or watched.decision != epoch.decision.id or watched.judging.targets != now.targets:
            return None
        told = watched.figures()
        return objections.judged(told, watched.judging.found, self._name, epoch.number) if told is not None else None

    def _check_rows(self, epoch: Epoch, encoding: Encoding, copied: DataFrame, now: Topics) -> tuple[int, list[Copy]]:
        """How many rows, after refusing those that Kafka or JSON cannot hold; and their records, a copy per slot, where
        they are kept."""
        schema = encoding.projection.check(copied.schema)
        encoding.check(schema, self._name)
        refusals = _refusals(encoding, schema)
        rows = encoding.projection.apply(copied)
        records = encoding.apply(rows, *(bad.alias(name) for name, bad in refusals.values()))
        found = self._objections({column: name for column, (name, _) in refusals.items()}, now)
        if self.bad_rows is not None:
            records = records.where(objections.reason_of_each(found).isNull())
        staged: list[Copy] = []
        if self._keeps_records:
            assert epoch.copy is not None, "asked for at once"
            made = self._encoder(now).records(records)
            staged = stage.write_parts(epoch.copy, self._name, epoch.number, made, SLOT, self._slots)
            kept = [stage.read_copy(copied.sparkSession, copy) for copy in staged]
            records = reduce(lambda some, more: some.unionByName(more), kept)
        return objections.count(records, found, self._name, epoch.number), staged

    def _refuse_large_marker(self, epoch: Epoch, place: MarkerTopic, now: Topics, by: Actor) -> None:
        """The marker's record holds Spark's offsets, whose text grows with the partitions of the source."""
        about = {"decision": epoch.decision.to_json(), "offsets": epoch.offsets, "watermark": epoch.watermark}
        state = State(by, marker_of(epoch), targets=dict(now.ids) if now.several else {})
        size = len(marker.record(place, state, about)) + MARKER_SPARE
        limit = min(now.marker.max_message_bytes, marker.LARGEST)
        if size > limit:
            raise self._refuse(
                epoch,
                f"the marker's record takes {size} bytes, most of them offsets, and its topic {now.marker.name!r} takes"
                f" {limit}",
                f"raise max.message.bytes of that topic, to {marker.LARGEST} at most, or read fewer partitions",
            )

    def _encoder(self, now: Topics) -> Encoder:
        partitions = {name: topic.partitions for name, topic in now.targets.items()}
        return Encoder(self._make_value, partitions, self._encoding.partitioner, self._slots)

    def _objections(self, refusals: Mapping[str, str], now: Topics) -> list[Objection]:
        """All of them.  ``refusals``: column of the rows to that of the records that says which JSON cannot hold."""
        return [
            *([objections.of_values(self._link().scrub)] if self._make_value is not None else []),
            *(objections.of_json(column, name) for column, name in refusals.items()),
            *objections.of_records(self._encoding, now.targets, self._tombstones),
        ]

    def _refuse(self, epoch: Epoch, what: str, help_line: str) -> PrepareRefused:
        return PrepareRefused(
            what, sink=self._name, epoch=epoch.number, state="nothing of the epoch was decided", help=help_line
        )

    def _plans(self, link: Link, place: MarkerTopic, committable: Committable, by: Actor) -> list[Plan]:
        """One per slot; those without rows have a marker to set."""
        plan = self._plan(link, place, committable, by)
        cut = committable.payload.get("slots")
        if cut is None:
            return [plan]
        plan = replace(plan, span=int(cut["span"]), before=Before.from_json(cut["before"]))
        counts = [copy.rows for copy in _staged(committable)] or [committable.rows]
        counts += [0] * (plan.span - len(counts))
        return [replace(plan, place=place.of_slot(slot), rows=rows) for slot, rows in enumerate(counts)]

    def _plan(self, link: Link, place: MarkerTopic, committable: Committable, by: Actor) -> Plan:
        payload, decision = committable.payload, committable.decision
        ids: Mapping[str, str] = payload.get("topics", {})
        declared = Declared(tuple(ids), True) if ids else Declared((str(payload["topic"]),))
        now = topics.describe(link, declared, place)
        if now.identity != payload["identity"] or (ids and now.ids != ids):
            raise CheckpointMismatch(
                f"{_what(now, place)} is not the one that the epoch was prepared for",
                sink=self._name,
                epoch=decision.epoch,
                state=f"was {payload['identity']}, {ids}; is {now.identity}, {now.ids}",
                help="the topic was dropped and made again; the decided rows belong to the old one",
            )
        about: Json = {"decision": decision.to_json(), "rows": committable.rows, **payload["about"]}
        return Plan(
            link=link,
            place=place,
            topics=declared.names,
            by=by,
            decision=decision.id,
            position=committable.position,
            epoch=decision.epoch,
            rows=committable.rows,
            partitioner=Encoding.from_json(payload["encoding"], self._name).partitioner,
            max_message_bytes=tuple(target.max_message_bytes for target in now.targets.values()),
            transaction_timeout=self._timeout(link),
            about=about,
            targets=ids,
            keep_from=self._keep_from(link, place, committable.position),
        )

    def _keep_from(self, link: Link, place: MarkerTopic, position: Position) -> Position:
        """The lowest position that the audit keeps once this one is committed."""
        lowest, days = self._retention.keep_from(position), self._retention.days
        if days is None:
            return lowest
        if self._aged is None or time.monotonic() > self._aged[0] + AGED_S:
            self._aged = time.monotonic(), audit.kept_since(link, place, days)
        return min(max(lowest, self._aged[1]), max(1, position - KEPT_ALWAYS + 1))

    def _attempt(self, plan: Plan, committable: Committable) -> Answer:
        """One attempt, in a task; an epoch without rows has no need of one."""
        if plan.rows == 0:
            return produce.attempt(plan, ())
        encoding = Encoding.from_json(committable.payload["encoding"], self._name)
        session = self._own_session(encoding.settings)
        if staged := _staged(committable):
            kept = stage.read_copy(session, staged[plan.place.slot])
            records = kept.select(*_record(kept))
        else:
            records = encoding.records(stage.read_copy(session, Copy.from_json(committable.payload["copy"])))
        answers = records.coalesce(1).mapInArrow(
            partial(produce.task, plan), "answer string", barrier=_may_use_barrier(session)
        )
        try:
            told = answers.collect()
        except Exception as error:  # whatever ended the job, the task may have asked for its commit before
            what = f"the Spark job that produces {plan.rows} rows failed"
            why = produce.unknown(plan, what, error, "its task may have asked for the commit before")
            return Answer(Outcome.LOST, why)
        return Answer.from_json(told[0]["answer"])

    # --- idempotent mode ------------------------------------------------------------------------

    def _check_one_slot(self, ever_used: int) -> None:
        """A slot that is idle must be marked as well, in a transaction of its own."""
        if ever_used > 1:
            raise Misconfigured(
                f"the sink was written in {ever_used} slots before, each of which has a marker of its own, and in"
                " idempotent mode there is no decision that holds them together",
                sink=self._name,
                state="nothing more was written",
                help='leave mode="idempotent" out, or give the sink another name= (its readers are the same)',
            )

    def _check_session(self, epoch: Epoch, session: SparkSession) -> None:
        """The rows are evaluated in the query's own session, where nothing may be set for what is made of them."""
        encoding, key = self._encoding, "spark.sql.legacy.timeParserPolicy"
        as_they_are = encoding.projection.is_whole and (encoding.value is not None or encoding.made)
        if not as_they_are and (policy := session.conf.get(key)) != _EXACT[key]:
            raise PrepareRefused(
                f"under {key}={policy} times have another text than the one that is promised",
                sink=self._name,
                epoch=epoch.number,
                state="nothing of the epoch is visible in Kafka",
                help=f'set {key} to {_EXACT[key]}, or leave mode="idempotent" out: it has a session of its own',
            )

    def _judged(self, rows: DataFrame, now: Topics) -> tuple[DataFrame, list[Objection]]:
        """The records, those that the sink does not get included, with hash and objections of each; lazy."""
        from pyspark.sql import functions as f

        records, found = self._marked(rows, now, row_hash(rows).alias(HASH))
        met = f.when(f.col(KEPT), objections.of_each(found)).alias(MET)
        if self.bad_rows is not None:
            fine = (f.col(KEPT) & objections.reason_of_each(found).isNull()).alias(KEPT)
            return records.select(*_record(records), HASH, fine, f.when(f.lit(False), met).alias(MET)), found
        return records.select(*_record(records), HASH, KEPT, met), found

    def _marked(self, rows: DataFrame, now: Topics, more: Column) -> tuple[DataFrame, list[Objection]]:
        """The records of all ``rows``, with ``KEPT``, one more column of the rows, and what is objected to; lazy."""
        from pyspark.sql import functions as f

        encoding = self._encoding
        schema = encoding.projection.check(rows.schema)
        encoding.check(schema, self._name)
        refusals = _refusals(encoding, schema)
        marked = encoding.projection.marked(rows, KEPT, more)
        bad = [condition.alias(name) for name, condition in refusals.values()]
        records = encoding.apply(marked, f.col(marked.columns[-1]), f.col(KEPT), *bad)
        if self._make_value is not None:
            records = self._encoder(now).records(records)
        return records, self._objections({column: name for column, (name, _) in refusals.items()}, now)

    def _plan_to_apply(
        self, link: Link, place: MarkerTopic, epoch: Epoch, now: Topics, found: Sequence[Objection], by: Actor
    ) -> Plan:
        return Plan(
            link=link,
            place=place,
            topics=self._declared.names,
            by=by,
            decision=epoch.decision.id,
            position=epoch.position,
            epoch=epoch.number,
            rows=None,
            partitioner=self._encoding.partitioner,
            max_message_bytes=tuple(target.max_message_bytes for target in now.targets.values()),
            transaction_timeout=self._timeout(link),
            about={"decision": epoch.decision.to_json(), "offsets": epoch.offsets, "watermark": epoch.watermark},
            targets=dict(now.ids) if now.several else {},
            largest=frozenset(number for number, objection in enumerate(found) if objection.largest),
            keep_from=self._keep_from(link, place, epoch.position),
        )

    def _apply_until_shown(
        self, plan: Plan, records: DataFrame, found: Sequence[Objection], agreed: Digest | None
    ) -> Applied:
        """Every attempt evaluates again, and is held against the first of which the rows are known."""
        if self._evaluated is not None and self._evaluated[0] != plan.decision:
            self._evaluated = None

        def attempt() -> Answer:
            first = self._evaluated[1] if self._evaluated is not None else None
            answer = self._evaluate(replace(plan, agreed=agreed if agreed is not None else first), records, found)
            if answer.digest is not None and first is None:
                self._evaluated = plan.decision, answer.digest
            return answer

        answer = attempt_until_shown(plan, attempt)
        assert answer.digest is not None, "that of the marker, which was read"
        return Applied(_SHOWN[answer.outcome], answer.digest)

    def _evaluate(self, plan: Plan, records: DataFrame, found: Sequence[Objection]) -> Answer:
        """One attempt: rows are evaluated wherever Spark likes, and produced in one task."""
        barrier = _may_use_barrier(records.sparkSession)
        answers = records.repartition(1).mapInArrow(partial(produce.task, plan), "answer string", barrier=barrier)
        try:
            told = answers.collect()
        except Exception as error:
            return _unanswered(plan, error)
        if not told:  # Spark knows that there are no rows, and starts no task for them
            return produce.attempt(plan, Evaluation(()))
        answer = Answer.from_json(told[0]["answer"])
        if answer.met is None:
            return answer
        met, state = answer.met, "the transaction was aborted, nothing of the epoch is visible"
        refusal = objections.refusal(found[met.number], met.rows, met.shown, self._name, plan.epoch, state)
        return replace(answer, error=refusal)

    # --- sessions -------------------------------------------------------------------------------

    def _own_session(self, settings: Mapping[str, str]) -> SparkSession:
        """A clone of the session with the settings that order and text of the rows depend on.

        ``settings`` are those under which the epoch's projection is meant, whatever the session says now.
        """
        with self._lock:
            if self._session is None or self._session._jsc is None or self._settings != settings:
                session = clone(_active_session(self._name))
                session.conf.set("spark.sql.session.timeZone", "UTC")
                if settings:
                    take_settings(session, settings)
                most = int(str(session.conf.get(_BATCH, "10000")))
                for key, value in {**_EXACT, _BATCH: str(min(most, 10000) if most > 0 else 10000)}.items():
                    session.conf.set(key, value)
                self._session, self._settings = session, settings
            return self._session


def _owned(place: MarkerTopic, by: Actor) -> Callable[[State], bool]:
    def judge(state: State) -> bool:
        place.conditions.check_owner(state, by)
        return True

    return judge


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _has_twins(kind: DataType) -> bool:
    """Whether two fields differ in case alone, which a session may read as one."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        twins = len({name.lower() for name in kind.names}) < len(kind.names)
        return twins or any(_has_twins(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _has_twins(kind.keyType) or _has_twins(kind.valueType)
    return isinstance(kind, ArrayType) and _has_twins(kind.elementType)


def _record(records: DataFrame) -> list[str]:
    """The columns that are produced."""
    return [name for name in ("key", "value", *ROUTES) if name in records.columns]


def _refusals(encoding: Encoding, schema: StructType) -> dict[str, tuple[str, Column]]:
    """By column of the projected rows: the name of one of the records, which says what JSON cannot hold."""
    return {column: (f"bad{n}", bad) for n, (column, bad) in enumerate(encoding.refusals(schema))}


def _applied(outcome: CommitOutcome, state: State) -> Applied:
    assert state.marker is not None, "it was there a moment ago"
    assert state.marker.digest is not None, "apply writes none without"
    return Applied(outcome, state.marker.digest)


def _unanswered(plan: Plan, error: Exception) -> Answer:
    """The job of an epoch that is applied has failed: what became of the epoch is known at once."""
    what = "the Spark job that evaluates and produces the rows failed"
    answer = produce.landed(plan, what, error)
    if answer is not None:
        return answer
    cause = of_an_expression(error)
    refusal = PrepareRefused(
        f"{what}: {plan.link.scrub(cause or _last_words(first_cause(error))):.500}",
        sink=plan.place.sink,
        epoch=plan.epoch,
        state="nothing of the epoch is visible in Kafka",
        help="see what Spark says of the job; an expression of select= or where= must have a result for every row",
    )
    return Answer(Outcome.STOPPED if cause is not None else Outcome.LOST, refusal)


def _last_words(cause: str) -> str:
    """Of a traceback the line that says what it is about; Spark adds one."""
    lines = [line for line in cause.splitlines() if line.strip() and not line.strip().startswith("SQLSTATE")]
    return lines[-1] if "Traceback" in cause else lines[0]


def _staged(committable: Committable) -> list[Copy]:
    """The records of each slot, where they were kept."""
    return [Copy.from_json(copy) for copy in committable.payload.get("staged", ())]


_SHOWN = {
    Outcome.COMMITTED: CommitOutcome.COMMITTED,
    Outcome.ALREADY_COMMITTED: CommitOutcome.ALREADY_COMMITTED,
}


def attempt_until_shown(plan: Plan, attempt: Callable[[], Answer]) -> Answer:
    """The answer that says so; bounded in interruptions, dead tasks and expired transactions."""
    expired = lost = 0
    for number in range(ATTEMPTS):
        answer = attempt()
        if answer.outcome in _SHOWN:
            return answer
        lost += answer.outcome is Outcome.LOST
        if answer.error is not None and (answer.outcome is Outcome.STOPPED or lost >= LOSSES):
            raise _definite(plan, answer.error)
        expired += answer.outcome is Outcome.EXPIRED
        if expired >= EXPIRIES:
            raise _too_long(plan, expired)
        time.sleep(random.uniform(0, 0.05 * 2 ** min(number, 4)))
    raise SinkUnavailable(
        f"{ATTEMPTS} transactions were ended by other producers of {plan.place.transactional_id}",
        sink=plan.place.sink,
        epoch=plan.epoch,
        state=f"nothing of the epoch is visible; the sink is still owned by {plan.by}",
        help="end whatever else uses this transactional id",
    )


def _definite(plan: Plan, error: Exception) -> Exception:
    """Set-up that has gone wrong since the vote does not undo the decision; where there is none, it refuses."""
    if not isinstance(error, Misconfigured):
        return error
    kind = PrepareRefused if plan.is_applied else CommitInDoubt
    return kind(error.what, help=error.help, sink=error.sink, epoch=error.epoch, state=error.state)


def _too_long(plan: Plan, expired: int) -> EpochalError:
    seconds, stands = plan.transaction_timeout, "" if plan.is_applied else "; it is decided, and must become visible"
    kind = PrepareRefused if plan.is_applied else CommitInDoubt
    return kind(
        f"{plan.what} could not be produced within the transaction timeout of {seconds:g} s, {expired} times",
        sink=plan.place.sink,
        epoch=plan.epoch,
        state=f"nothing of the epoch is visible in Kafka{stands}",
        help="raise transaction_timeout= (and the broker's transaction.max.timeout.ms), speed up the brokers or "
        "the link to them, and restart the query; make later epochs smaller with the source's limit per trigger",
    )


def _declared(topic: str, several: Sequence[str] | None, sink: str, *, named: bool) -> Declared:
    """The topics that were declared; ``Misconfigured`` for what no broker takes, or what is no list."""
    if several is None:
        topics.check_topic(topic, sink)
        return Declared((topic,))
    if isinstance(several, str) or not several or len(set(several)) < len(several):
        raise Misconfigured(
            f"topics={several!r} is not a list of different topics",
            sink=sink,
            help="topics=['a', 'b'] lists all topics that a row may name, topic= names the column that says which",
        )
    for one in several:
        topics.check_topic(one, sink)
    if not named:
        raise Misconfigured(
            "a sink with several topics has no name by itself",
            sink=sink,
            state=f"topics {list(several)}, of column {topic!r}",
            help="give it a name= that stays the same over restarts",
        )
    return Declared(tuple(several), True)


def _check_targets(seen: Topics, known: Mapping[str, str], place: MarkerTopic) -> None:
    """A topic of the list that was dropped and made again has lost its rows."""
    for name, id_ in seen.ids.items():
        if known.get(name, id_) != id_:
            raise CheckpointMismatch(
                f"topic {name!r} is not the one that the newest epoch was written to",
                sink=place.sink,
                state=f"was {known[name]}, is {id_}",
                help="it was dropped and made again, and its rows are lost; if that was meant, leave it out of topics="
                " for one epoch",
            )


def _what(now: Topics, place: MarkerTopic) -> str:
    return f"topic {' or '.join(map(repr, (*now.targets, place.topic)))}"


def _check_slots(number: object, partitioner: str, sink: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_SLOTS:
        raise Misconfigured(
            f"slots={number!r} is not a number of transactions", sink=sink, help=f"take 1 to {MOST_SLOTS}"
        )
    if number > 1 and partitioner not in encode.PARTITIONERS:
        raise Misconfigured(
            f"partitioner {partitioner!r} is librdkafka's alone",
            sink=sink,
            state=f"slots={number}: a row's partition is chosen before its slot",
            help=f"with several slots take one of {', '.join(encode.PARTITIONERS)}",
        )


def _check_bad_rows(bad_rows: Sink | None, value: MakeValue | None, sink: str) -> None:
    if bad_rows is not None and value is not None:
        raise Misconfigured(
            "bad_rows= beside a function of value=, which would be asked twice and may answer otherwise",
            sink=sink,
            help="make the value in the query, before the pipeline, and name its column with value=",
        )


def _check_tombstones(tombstones: bool, value: str | MakeValue | None, sink: str) -> None:
    if tombstones and value is None:
        raise Misconfigured(
            "tombstones=True, and the JSON of a row is never empty",
            sink=sink,
            help="name a column with value=, or a function; a row of which it is NULL or None is a tombstone",
        )


def _check_partitioner(partitioner: str, sink: str) -> None:
    if partitioner not in PARTITIONERS:
        raise Misconfigured(
            f"there is no partitioner {partitioner!r}",
            sink=sink,
            help=f"take one of {', '.join(PARTITIONERS)}; murmur2_random is what Java's producer does",
        )


def _active_session(sink: str) -> SparkSession:
    session = running_session()
    if session is None:
        raise Misconfigured(
            "rows are produced by Spark, and no Spark session runs in this process",
            sink=sink,
            help="create a SparkSession before calling commit",
        )
    return session


def _may_use_barrier(session: SparkSession) -> bool:
    """Barrier stages are never speculated; with dynamic allocation Spark refuses them."""
    dynamic = session.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false")
    return str(dynamic).lower() != "true"
