"""The Kafka sink: it writes each epoch with its marker in one transaction, or in one transaction per slot.

The rows are written before the decision where that is possible, else after it, from the durable copy; in idempotent
mode, from the micro-batch itself.
This file has the arguments and the methods.  Other files of this folder implement the methods.  The methods run on the
driver; ``delivery/producing.py`` and ``produce.py`` send the rows, in tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.epoch import (
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
from epochal.sinks.conditions import check_frame
from epochal.sinks.epochs import Epochs, Wanted
from epochal.sinks.kafka import (
    again,
    applying,
    audit,
    committing,
    fencing,
    judging,
    possible,
    preparing,
    slots,
    staging,
    starting,
)
from epochal.sinks.kafka.client import Options
from epochal.sinks.kafka.core import KEEP_EPOCHS, Core
from epochal.sinks.kafka.encode import MakeValue
from epochal.sinks.kafka.fencing import bar_producer
from epochal.sinks.kafka.inspection import KafkaInspection
from epochal.sinks.pickles import take_state
from epochal.sinks.protocol import Applied, CommitOutcome, Rows, Schema, Sink
from epochal.sinks.questions import Question
from epochal.sinks.rows import rejects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class KafkaSink:
    """Writes every epoch exactly once, in one Kafka transaction.

    ``bootstrap_servers``: ``host:port`` of some brokers, separated by commas.
    ``topic``: the topic that gets the rows.  With ``topics``: the column (string) that names the topic of each row.
    ``topics``: the list of all topics that rows may name.  The sink then needs a ``name``.
    ``key``: the column (string or binary) whose bytes are the key.  With the default ``partitioner``, rows without a
    key go to random partitions.
    ``value``: the column whose bytes are the value; by default the row as JSON (``epochal.sinks.kafka.rows`` says
    exactly how).  Or a function: it is called without arguments, once per task, and returns a second function.  The
    second function takes a row (a dict of the columns that a JSON value would have) and the row's topic, and returns
    the bytes of the value, or None.  It is called once per row, before the vote, and its results are kept; in
    idempotent mode every attempt calls it again.
    ``headers``: the column (``array<struct<key:string,value:binary>>``) of a row's headers.
    ``partition``: the column (an integer from 0) of a row's partition.  Where it is NULL, ``partitioner`` chooses.
    ``tombstones``: True if a row whose value is NULL is meant as a tombstone.  Otherwise such a row is a bad row.
    ``slots``: how many transactions write an epoch at the same time (``epochal.sinks.kafka.slots``), for epochs that
    one transaction does not write in time.  The number may change between starts.
    ``votes``: True: tasks write an epoch into one open transaction before the decision, and one request commits it
    after the decision (``epochal.sinks.kafka.delivery``).  Where that cannot be done, an epoch is produced after the
    decision, by one task, as with False.  ``guarantee()`` says why as far as the arguments tell, the log says the rest.
    ``select`` and ``where``: the columns and rows that the sink gets (``epochal.sinks.rows.projection``).  Other
    arguments can name selected columns only.  If rows are read from the durable copy, they are projected again when
    they are written, maybe after the decision.  The epoch's committable keeps the expressions, and the settings of the
    session that prepared the epoch; both are used then.  Only ``spark.sql.legacy.timeParserPolicy`` is always
    ``CORRECTED``.
    ``bad_rows``: the sink for rows that Kafka, a topic or JSON cannot hold.  By default such rows refuse the epoch
    (``epochal.sinks.rows.rejects``).
    ``frame``: the name of one of the DataFrames that ``Pipeline(frames=)`` returns; by default the sink gets the
    micro-batch.
    ``name``: the sink's stable name, by default ``kafka-<topic>``.
    ``partitioner``: one of librdkafka's partitioners (``PARTITIONERS``); the default does what Java's producer does.
    ``transaction_timeout``: how many seconds a transaction may stay open: while its rows are written and, with
    ``votes``, until all sinks have prepared and the epoch is committed.  By default 300, or the broker's maximum if
    that is less.
    ``request_timeout``: how many seconds a single request may take.
    ``options``: librdkafka's own names and values, or a function that returns them.  The function is called in the
    driver whenever the options are needed: it is the place to read secrets.
    ``partitions``, ``replication`` and ``topic_config``: for target topics that ``create`` makes; by default the
    broker's own.
    ``keep_epochs``: how many epochs the audit in the marker topic keeps: one record each, about as large as Spark's
    offsets.
    ``keep_days``: for how many days the audit keeps an epoch; by default for any number
    (``epochal.sinks.epochs.Retention``).
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
        votes: bool = True,
        select: Sequence[str] | None = None,
        where: str | None = None,
        bad_rows: Sink | Literal["fail"] = "fail",
        frame: str | None = None,
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
        check_types(KafkaSink.__init__.__annotations__, self._made_with)
        self._core = Core(**{what: value for what, value in self._made_with.items() if what != "frame"})
        self.frame = check_frame(frame, self._core.name)  # a FramedSink
        self.bad_rows = self._core.bad_rows

    @property
    def name(self) -> str:
        return self._core.name

    def __repr__(self) -> str:
        several = f", topics={list(self._core.declared.names)!r}" if self._core.declared.several else ""
        return f"KafkaSink({self._core.bootstrap!r}, topic={self._core.topic!r}{several}, name={self._core.name!r})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        take_state(self, state)

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        """Make the target topics and the marker topic if they are missing."""
        return starting.create(self._core, query, schema)

    def check(self, query: Query, schema: Schema) -> None:
        """Refuse what a broker, a topic or an executor would refuse later; writes nothing."""
        starting.check(self._core, query, schema)

    def questions(self, query: Query, schema: Schema | None) -> Iterator[Question]:
        """See ``epochal.sinks.questions.Questioned``."""
        return starting.questions(self._core, query, schema)

    def inspection(self, query: Query) -> KafkaInspection:
        """See ``epochal.sinks.inspection``."""
        marker_topic, link = self._core.marker_topic(query), self._core.link()
        return KafkaInspection(
            link,
            marker_topic,
            self._core.declared.names,
            lambda: slots.read_all(link, marker_topic).slots,
            {**self._core.encoding.projection.to_json(), "bad_rows": self.bad_rows is not None},
            lambda slot: bar_producer(self._core, link, slot),
        )

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """What the sink is, who fenced it, and its marker."""
        return fencing.look(self._core, query, by=by)

    def fence(self, query: Query, by: Actor) -> None:
        """Bar every older producer, and write the fence."""
        fencing.fence(self._core, query, by)

    def watch(self, epoch: Epoch, rows: DataFrame) -> DataFrame:
        """See ``epochal.sinks.protocol.WatchingSink``."""
        return judging.watch(self._core, epoch, rows)

    def stage(self, epoch: Epoch, rows: Rows, folder: str) -> Copy | None:
        """See ``epochal.sinks.protocol.StagingSink``."""
        return staging.stage_records(self._core, epoch, rows, folder)

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """Return the committable once Kafka will take every row of the durable copy, or holds it already."""
        return preparing.prepare(self._core, epoch, rows, by)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Show the epoch, unless its marker says that this was done."""
        if again.is_of_records(committable):
            return again.commit(self._core, committable, by)
        return committing.commit(self._core, committable, by)

    def finish(self, committable: Committable) -> None:
        """See ``epochal.sinks.protocol.VotingSink``."""
        committing.finish(self._core, committable)

    def check_apply(self) -> None:
        """Raise ``Misconfigured`` if idempotent mode cannot keep its promise with this sink."""
        applying.check_apply(self._core)

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:
        """Evaluate and produce in one Spark job."""
        return applying.apply(self._core, epoch, rows, by, agreed)

    def abort(self, query: Query, by: Actor) -> None:
        """End what a dead producer left open."""
        fencing.abort(self._core, query, by)

    def renamed(self, name: str) -> tuple[KafkaSink, KafkaSink]:
        """See ``epochal.sinks.protocol``.  Each name has its own marker topic; ``fence`` makes that of the new name."""
        here, there = (KafkaSink(**{**self._made_with, "name": each}) for each in (self._core.name, name))
        here._core.also, there._core.also = there._core, here._core
        there._core.is_new = True
        return here, there

    def check_mark(self, query: Query) -> None:
        """See ``epochal.sinks.protocol.MarkedSink``."""
        fencing.check_mark(self._core, query)

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """See ``epochal.sinks.protocol.MarkedSink``."""
        fencing.mark(self._core, query, marker, by)

    def reasons(self, epoch: Epoch, rows: DataFrame) -> DataFrame:
        """See ``epochal.sinks.rows.rejects``."""
        return judging.reasons(self._core, epoch, rows)

    def judgement(self, epoch: Epoch, rows: DataFrame) -> Json:
        """See ``epochal.sinks.rows.rejects``."""
        return judging.judgement(self._core, epoch, rows)

    def bad_found(self, epoch: Epoch) -> int | None:
        """See ``epochal.sinks.rows.rejects``."""
        return rejects.found(self._core.counted_bad, epoch)

    def close(self) -> None:
        """Forget what was seen, and the session."""
        self._core.close()

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """See :class:`~epochal.sinks.protocol.AuditedSink`.  Needs READ and DESCRIBE on the marker topic."""
        marker_topic, wanted = self._core.marker_topic_of(app), Wanted.of(self._core.name, first, last, limit)
        return audit.read(self._core.link(), marker_topic, wanted)

    def guarantee(self) -> str:
        return (
            f"{self._core.name}: every epoch is in {self._where} exactly once, in {self._transactions}. "
            "For consumers with isolation.level=read_committed: of an epoch they see, per partition, all rows "
            "or none, and all partitions in the end; epoch t+1 never before epoch t in a partition; rows of one "
            "partition of the batch keep their order. There is no snapshot across partitions: while a commit is "
            "under way one partition may show the epoch and another not yet. Consumers with read_uncommitted "
            "(librdkafka: read_committed is the default; Java: it is not) also see rows of aborted "
            "transactions. Fixed: acks=all, an idempotent producer. "
            "Conditions: acknowledged writes last (replication, min.insync.replicas), rows stay as long as readers "
            "need them (retention, compaction), "
            f"nobody else writes to the marker topic __epochal.<app>.{self._core.name} or uses its transactional id, "
            "and writing an epoch takes less than the transaction timeout. In idempotent mode rows are judged while "
            "they are produced: the rows of an epoch that is refused belong to an aborted transaction."
            f" {self._way}"
            f"{self._fate_of_bad_rows}{self._core.encoding.projection.promise}"
        )

    @property
    def _way(self) -> str:
        if (reason := possible.reason_of_arguments(self._core)) is not None:
            return f"{possible.REDONE.capitalize()} for each transaction: {reason}."
        return (
            "Epochs are written before the decision, by all tasks, and shown after it by one request. From the first"
            " row until then (the slowest sink's vote; after a crash until the next start, or the transaction timeout),"
            " read_committed consumers of these partitions wait, also for rows of other producers. Where brokers,"
            " rights or the checkpoint's file system do not allow it, epochs are produced after the decision, and the"
            " log says why."
        )

    @property
    def _fate_of_bad_rows(self) -> str:
        if self.bad_rows is None:
            return ""
        return f" Rows that Kafka, a topic or JSON cannot hold go to sink {self.bad_rows.name!r}."

    @property
    def _transactions(self) -> str:
        if self._core.slots == 1:
            return "one Kafka transaction"
        return (
            f"{self._core.slots} Kafka transactions side by side, each with its own partitions: if a start dies while"
            " it commits, readers see the epoch in some partitions, and in the others from the next start on"
        )

    @property
    def _where(self) -> str:
        if self._core.declared.several:
            return f"topics {', '.join(map(repr, self._core.declared.names))}, as column {self._core.topic!r} says,"
        return f"topic {self._core.topic!r}"
