"""The Kafka sink's six verbs.  Runs in the driver; the rows travel in ``produce.py``.

Kafka holds no prepared rows, so the durable copy is the prepared work, and a commit applies it in one
transaction together with the marker.  A decided epoch whose transaction is lost is simply produced again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.chaos import failpoints
from epochal.chaos.failpoints import Point
from epochal.coordinator.epoch import Actor, Committable, Copy, Epoch, Json, Query, SinkState
from epochal.coordinator.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    Misconfigured,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks import stage
from epochal.sinks.conditions import check_name, looked, marker_of
from epochal.sinks.executors import check_executors, clone, running_session
from epochal.sinks.kafka import marker, produce, topics
from epochal.sinks.kafka.client import Link, Options, check_options, kafka
from epochal.sinks.kafka.marker import Place, State
from epochal.sinks.kafka.produce import Answer, Outcome, Plan
from epochal.sinks.kafka.rows import OVERHEAD, Encoding
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.projection import Projection, settings_of, take_settings
from epochal.sinks.protocol import CommitOutcome, Rows, Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONERS = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a", "random")
ATTEMPTS = 10
"""How often an attempt may be interrupted by another producer before the epoch is given back."""
EXPIRIES = 2
"""How often the broker may end an epoch's transaction because its time was over."""
LOSSES = 4
"""How often the task of an epoch may die; Spark itself does not repeat a barrier stage that returns results."""
FENCE_ATTEMPTS = 10

_EXACT = {  # of the sink's own clone of the session: the same rows in the same order, whatever the user has set
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.files.maxPartitionBytes": str(2**62),
    "spark.sql.files.minPartitionNum": "1",
}


class KafkaSink:
    """Every epoch once, in one Kafka transaction.

    ``topic`` gets the rows.  ``key`` names the column (string or binary) whose bytes are the key; rows without
    one go to random partitions.  ``value`` names the column whose bytes are the value; by default it is the row
    as JSON (``epochal.sinks.kafka.rows`` says exactly how).  ``select`` and ``where``: the columns and rows that
    it gets (``epochal.sinks.projection``); ``key``, ``value`` and the JSON are of the selected columns.  Rows
    are projected again when they are produced, after the decision: by the text and under the settings of the
    session that prepared the epoch, which its committable keeps; only ``spark.sql.legacy.timeParserPolicy`` is
    always ``CORRECTED``.  ``name`` is the sink's stable name, by default ``kafka-<topic>``.
    ``transaction_timeout`` (seconds) bounds how long producing one epoch may take, by default 300 or the
    broker's maximum; ``request_timeout`` (seconds) every single request.  ``options`` are librdkafka's own names
    and values, or a function that returns them, called in the driver whenever they are needed: a place for
    secrets.  ``partitions``, ``replication`` and ``topic_config`` are for ``create``.
    """

    needs_copy = True

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topic: str,
        key: str | None = None,
        value: str | None = None,
        select: Sequence[str] | None = None,
        where: str | None = None,
        name: str | None = None,
        partitioner: str = "murmur2_random",
        transaction_timeout: float | None = None,
        request_timeout: float = 30.0,
        options: Options | Callable[[], Options] | None = None,
        partitions: int | None = None,
        replication: int | None = None,
        topic_config: Mapping[str, str] | None = None,
    ) -> None:
        self._bootstrap = bootstrap_servers
        self._topic = topic
        self._name = name if name is not None else f"kafka-{topic}"
        topics.check_topic(topic, self._name)
        check_name("sink name", self._name)
        _check_partitioner(partitioner, self._name)
        self._encoding = Encoding(key, value, partitioner, Projection.of(self._name, select, where))
        self._transaction_timeout = transaction_timeout
        self._request_timeout = request_timeout
        self._options = options
        self._partitions = partitions
        self._replication = replication
        self._topic_config = dict(topic_config or {})
        self._looked: tuple[Place, str] | None = None  # where, and the identity that was seen there
        self._longest: float | None = None  # seconds that one transaction may last
        self._session: SparkSession | None = None
        self._settings: Mapping[str, str] = {}  # those that the session was given

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"KafkaSink({self._bootstrap!r}, topic={self._topic!r}, name={self._name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        """Make the target topic and the marker topic where they are missing."""
        place = self._place(query)
        self._check_schema(schema)
        return topics.create(self._link(), self._topic, place, self._partitions, self._replication, self._topic_config)

    def check(self, query: Query, schema: Schema) -> None:
        place = self._place(query)
        kafka()
        self._check_schema(schema)
        link = self._link()
        topics.check(link, topics.describe(link, self._topic, place), place, self._encoding.key)
        produce.Transaction(link, place, self._timeout(link), {}).drop()  # takes the options, asks the brokers nothing
        check_executors(self._name, "confluent_kafka", "kafka")

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        place, link = self._place(query), self._link()
        seen = topics.describe(link, self._topic, place)
        self._looked = place, seen.identity
        state = marker.read(link, place, final=False)
        if by is not None and state.fence == by:
            state = self._bar_and_read(link, place)
        return SinkState(seen.identity, state.fence, state.marker)

    def fence(self, query: Query, by: Actor) -> None:
        """Bar every older producer, then write the fence, unless a newer actor has.

        Of two that fence at once, each ``init`` ends the other's transaction, so at most one record is
        written on top of what its writer has read; the other reads it and is ``Fenced``.
        """
        place, link = self._place(query), self._link()
        for attempt in range(FENCE_ATTEMPTS):
            place.conditions.check_fence(marker.read(link, place, final=False), by)  # disturbs nobody
            if self._write_fence(link, place, by) and marker.read(link, place, final=True).fence == by:
                return
            time.sleep(random.uniform(0, 0.1 * 2 ** min(attempt, 5)))
        raise SinkUnavailable(
            f"another start fences the sink at the same time, {FENCE_ATTEMPTS} times over",
            sink=self._name,
            state=f"transactional id {place.transactional_id}, by {by}",
            help="start one query per app and sink",
        )

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:  # noqa: ARG002
        """Vote: the copy is there, and Kafka will take every row of it as the topic is now."""
        if epoch.copy is None:
            raise PrepareRefused(
                "Kafka cannot hold rows back, and there is no durable copy to produce them from",
                sink=self._name,
                epoch=epoch.number,
                help="give the coordinator a stage",
            )
        place, identity = self._seen()
        now = topics.describe(self._link(), self._topic, place)
        if now.identity != identity:
            raise PrepareRefused(
                f"topic {self._topic!r} or {place.topic!r} is not the one that was looked at",
                sink=self._name,
                epoch=epoch.number,
                state=f"was {identity}, is {now.identity}",
                help="the topic was dropped and made again; restart the query to have it looked at",
            )
        encoding = self._meant(rows.sparkSession)
        copied = stage.read_copy(self._own_session(encoding.settings), epoch.copy)  # as a commit will read it
        with encoding.projection.evaluating(epoch.number):
            count = self._check_rows(epoch, encoding, copied, now)
            left_out = encoding.projection.left_out(copied)
        if count + left_out != epoch.copy.rows:
            told = f"{count} rows and {left_out} that are left out were read from a durable copy of {epoch.copy.rows}"
            raise self._refuse(epoch, told, "restart the query; if it happens again, the file system loses rows")
        failpoints.hit(Point.BEFORE_VOTE, self._name, epoch.number)
        payload = {
            "copy": epoch.copy.to_json(),
            "identity": identity,
            "topic": self._topic,
            "encoding": encoding.to_json(),
            "about": {"offsets": epoch.offsets, "watermark": epoch.watermark},
        }
        return Committable(self._name, epoch.decision, epoch.position, count, payload, left_out=left_out)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Attempts until one answers; each begins with init and marker, so none can show a row twice."""
        place, _ = self._seen()
        link = self._link()
        state = marker.read(link, place, final=False)
        place.conditions.check_owner(state, by, committable.decision.epoch)
        if state.marker == marker_of(committable):
            self._bar_and_read(link, place)  # answered when every partition shows it
            return CommitOutcome.ALREADY_COMMITTED
        plan = self._plan(link, place, committable, by)
        return settle(plan, lambda: self._attempt(plan, committable))

    def abort(self, query: Query, by: Actor) -> None:
        """Nothing prepared lies in Kafka; what a dead producer left open is ended."""
        place, link = self._place(query), self._link()
        place.conditions.check_owner(marker.read(link, place, final=False), by)
        place.conditions.check_owner(self._bar_and_read(link, place), by)

    def close(self) -> None:
        self._looked = self._session = None

    def guarantee(self) -> str:
        return (
            f"{self._name}: every epoch is in topic {self._topic!r} exactly once, in one Kafka transaction. "
            "For consumers with isolation.level=read_committed: of an epoch they see, per partition, all rows "
            "or none, and all partitions in the end; epoch t+1 never before epoch t in a partition; rows of one "
            "partition of the batch keep their order. There is no snapshot across partitions: while a commit is "
            "under way one partition may show the epoch and another not yet. Consumers with read_uncommitted "
            "(librdkafka: read_committed is the default; Java: it is not) also see rows of aborted "
            "transactions. Conditions: acknowledged writes last (replication, min.insync.replicas), "
            f"nobody else writes to the marker topic __epochal.<app>.{self._name} or uses its transactional id, "
            "and producing an epoch takes less than the transaction timeout."
            f"{self._encoding.projection.promise}"
        )

    def _place(self, query: Query) -> Place:
        check_name("app", query.app, self._name)
        place = Place(query.app, self._name)
        topics.check_length(place)
        return place

    def _seen(self) -> tuple[Place, str]:
        return looked(self._looked, self._name)

    def _link(self) -> Link:
        options = dict((self._options() if callable(self._options) else self._options) or {})
        check_options(options, self._name)
        return Link(self._bootstrap, self._name, self._request_timeout, options)

    def _check_schema(self, schema: Schema) -> None:
        if schema is not None:
            self._encoding.check(self._encoding.projection.check(schema), self._name)

    def _meant(self, session: SparkSession) -> Encoding:
        """How the rows of an epoch become records, as the session reads it now."""
        if self._encoding.projection.is_whole:
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

    def _bar_and_read(self, link: Link, place: Place) -> State:
        transaction, state, _ = produce.guarded(link, place, self._timeout(link), lambda _: False, {})
        transaction.drop()
        return state

    def _write_fence(self, link: Link, place: Place, by: Actor) -> bool:
        """False: another producer came in between, or the answer is lost; look again."""
        transaction, state, mine = produce.guarded(
            link, place, self._timeout(link), lambda state: place.conditions.check_fence(state, by), {}
        )
        try:
            if not mine:
                transaction.begin()
                transaction.send(place.topic, [(b"fence", marker.record(place, by, state.marker))])
                transaction.commit()
        except kafka().KafkaException:
            return False
        finally:
            transaction.drop()
        return True

    def _check_rows(self, epoch: Epoch, encoding: Encoding, copied: DataFrame, now: Topics) -> int:
        """One pass over the copy: how many rows, after refusing those that Kafka or JSON cannot hold."""
        from pyspark.sql import functions as f

        encoding.check(encoding.projection.check(copied.schema), self._name)
        rows = encoding.projection.apply(copied)
        limit = now.target.max_message_bytes - OVERHEAD
        refusals = list(encoding.refusals(rows.schema))
        names = [f"bad{n}" for n in range(len(refusals))]
        encoded = encoding.apply(rows, *(c.alias(n) for n, (_, c) in zip(names, refusals, strict=True)))
        size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
        encoded = encoded.select(size.alias("size"), f.isnull("key").alias("keyless"), *names)
        found = encoded.agg(
            f.count(f.lit(1)).alias("rows"),
            f.max("size").alias("largest"),
            f.count_if(f.col("size") > limit).alias("oversize"),
            f.count_if("keyless").alias("keyless"),
            *(f.count_if(n).alias(n) for n in names),
        ).collect()[0]
        bad = [(column, found[n]) for n, (column, _) in zip(names, refusals, strict=True) if found[n]]
        if bad:
            told = ", ".join(f"column {column!r} in {number} rows" for column, number in bad)
            raise self._refuse(
                epoch,
                f"JSON cannot hold these values exactly: {told}",
                "NaN, infinities, years outside 0001 to 9999 and text that is not UTF-8 have no place in JSON: "
                "replace them, cast the column to string, or encode the row yourself with value=",
            )
        if found["oversize"]:
            raise self._refuse(
                epoch,
                f"{found['oversize']} rows are larger than topic {self._topic!r} takes: "
                f"the largest has {found['largest']} bytes, the limit is {limit}",
                f"raise max.message.bytes of the topic (it is {now.target.max_message_bytes}), or make rows smaller",
            )
        if now.target.is_compacted and found["keyless"]:
            raise self._refuse(
                epoch,
                f"{found['keyless']} rows have no key (column {self._encoding.key!r} is "
                f"null), and topic {self._topic!r} is compacted",
                "give these rows a key, or filter them out",
            )
        return int(found["rows"])

    def _refuse(self, epoch: Epoch, what: str, help_line: str) -> PrepareRefused:
        return PrepareRefused(
            what, sink=self._name, epoch=epoch.number, state="nothing of the epoch was decided", help=help_line
        )

    def _plan(self, link: Link, place: Place, committable: Committable, by: Actor) -> Plan:
        payload, decision = committable.payload, committable.decision
        now = topics.describe(link, str(payload["topic"]), place)
        if now.identity != payload["identity"]:
            raise CheckpointMismatch(
                f"topic {payload['topic']!r} or {place.topic!r} is not the one that the epoch was prepared for",
                sink=self._name,
                epoch=decision.epoch,
                state=f"was {payload['identity']}, is {now.identity}",
                help="the topic was dropped and made again; the decided rows belong to the old one",
            )
        about: Json = {"decision": decision.to_json(), "rows": committable.rows, **payload["about"]}
        return Plan(
            link=link,
            place=place,
            topic=str(payload["topic"]),
            by=by,
            decision=decision.id,
            position=committable.position,
            epoch=decision.epoch,
            rows=committable.rows,
            partitioner=Encoding.from_json(payload["encoding"], self._name).partitioner,
            max_message_bytes=now.target.max_message_bytes,
            transaction_timeout=self._timeout(link),
            about=about,
        )

    def _attempt(self, plan: Plan, committable: Committable) -> Answer:
        """One attempt, in a task; an epoch without rows has no need of one."""
        if plan.rows == 0:
            return produce.attempt(plan, ())
        encoding = Encoding.from_json(committable.payload["encoding"], self._name)
        session = self._own_session(encoding.settings)
        rows = stage.read_copy(session, Copy.from_json(committable.payload["copy"]))
        records = encoding.records(rows).coalesce(1)
        answers = records.mapInArrow(partial(produce.task, plan), "answer string", barrier=_may_use_barrier(session))
        try:
            told = answers.collect()
        except Exception as error:  # whatever ended the job, the task may have asked for its commit before
            what = f"the Spark job that produces {plan.rows} rows failed"
            why = produce.unknown(plan, what, error, "its task may have asked for the commit before")
            return Answer(Outcome.LOST, why)
        return Answer.from_json(told[0]["answer"])

    def _own_session(self, settings: Mapping[str, str]) -> SparkSession:
        """A clone of the session with the settings that order and text of the rows depend on.

        ``settings`` are those under which the epoch's projection is meant, whatever the session says now.
        """
        if self._session is None or self._session._jsc is None or self._settings != settings:
            self._session, self._settings = clone(_active_session(self._name)), settings
            self._session.conf.set("spark.sql.session.timeZone", "UTC")
            if settings:
                take_settings(self._session, settings)
            for key, value in _EXACT.items():
                self._session.conf.set(key, value)
        return self._session


def settle(plan: Plan, attempt: Callable[[], Answer]) -> CommitOutcome:
    """Attempt until there is an answer; bounded in interruptions, dead tasks and expired transactions."""
    expired = lost = 0
    for number in range(ATTEMPTS):
        answer = attempt()
        if answer.outcome is Outcome.COMMITTED:
            return CommitOutcome.COMMITTED
        if answer.outcome is Outcome.ALREADY_COMMITTED:
            return CommitOutcome.ALREADY_COMMITTED
        lost += answer.outcome is Outcome.LOST
        if answer.error is not None and (answer.outcome is Outcome.STOPPED or lost >= LOSSES):
            raise _after_the_decision(answer.error)
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


def _after_the_decision(error: Exception) -> Exception:
    """Set-up that has gone wrong since the vote does not undo the decision."""
    if not isinstance(error, Misconfigured):
        return error
    return CommitInDoubt(error.what, help=error.help, sink=error.sink, epoch=error.epoch, state=error.state)


def _too_long(plan: Plan, expired: int) -> CommitInDoubt:
    seconds = plan.transaction_timeout
    return CommitInDoubt(
        f"{plan.rows} rows could not be produced within the transaction timeout of {seconds:g} s, {expired} times",
        sink=plan.place.sink,
        epoch=plan.epoch,
        state="nothing of the epoch is visible in Kafka; it is decided, and must become visible",
        help="raise transaction_timeout= (and the broker's transaction.max.timeout.ms), speed up the brokers or "
        "the link to them, and restart the query; make later epochs smaller with the source's limit per trigger",
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
