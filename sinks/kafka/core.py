"""What all methods of a Kafka sink share: its arguments, the link to the brokers, and what a start has seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from epochal.coordinator.model.epoch import Digest, Epoch, Position, Query
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.conditions import check_above_zero, check_name, looked
from epochal.sinks.epochs import Retention
from epochal.sinks.kafka import objections, topics
from epochal.sinks.kafka.arguments import (
    check_bad_rows,
    check_partitioner,
    check_slots_argument,
    check_tombstones,
    declared_topics,
)
from epochal.sinks.kafka.client import Link, Options, check_options, read_options
from epochal.sinks.kafka.delivery.encoding import Encoded
from epochal.sinks.kafka.encode import Encoder, MakeValue
from epochal.sinks.kafka.marker import MarkerTopic, State
from epochal.sinks.kafka.objections import Objection
from epochal.sinks.kafka.rows import Encoding
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.kafka.wire.messages import Producer
from epochal.sinks.protocol import Schema, Sink
from epochal.sinks.rows import rejects
from epochal.sinks.rows.projection import Projection, settings_of, take_settings
from epochal.sinks.spark import arrow
from epochal.sinks.spark.executors import clone, running_session
from epochal.sinks.spark.settings import TIME_POLICY

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

KEEP_EPOCHS = 1_000
"""How many epochs the audit keeps by default: each holds Spark's offsets, some kilobytes with many partitions."""
EXACT = {  # for the sink's own clone of the session: the same rows in the same order, whatever the user has set
    TIME_POLICY: "CORRECTED",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.files.maxPartitionBytes": str(2**62),
    "spark.sql.files.minPartitionNum": "1",
}

WITHOUT_TRANSACTION, WITH_TRANSACTION = 1, 2
"""The versions of a committable's payload: whether it names an open transaction (``votes``).

The encoding of rows in it has a version of its own (``rows.py``)."""
PAYLOAD_VERSION = WITH_TRANSACTION
"""The newest version of a payload that this Epochal reads."""


@dataclass(frozen=True)
class Judging:
    """How rows of a schema are judged for the present topics.

    The sink keeps it for later epochs, because each column expression takes ten calls into the JVM.
    """

    schema: StructType
    targets: Mapping[str, topics.Topic]
    queue_bytes: int
    record: Sequence[Column]
    whole: Column
    found: Sequence[Objection]
    figures: Sequence[Column]


@dataclass(frozen=True)
class Watched:
    """What the sink keeps while rows are judged and copied.

    ``decision``: that of the epoch.  ``judging``: how its rows are judged.  ``figures``: returns what was counted.
    """

    decision: int
    judging: Judging
    figures: Callable[[], objections.Figures | None]


@dataclass(frozen=True)
class Shown:
    """What a transaction of this process leaves in the marker topic."""

    producer: Producer
    state: State


def active_session(sink: str) -> SparkSession:
    """Return the Spark session of this process; ``Misconfigured`` if there is none."""
    session = running_session()
    if session is None:
        raise Misconfigured(
            "rows are produced by Spark, and no Spark session runs in this process",
            sink=sink,
            help="create a SparkSession before calling commit",
        )
    return session


class Core:
    """The arguments of a sink (``KafkaSink`` explains them), and what a start has seen."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topic: str,
        topics: Sequence[str] | None,
        key: str | None,
        value: str | MakeValue | None,
        headers: str | None,
        partition: str | None,
        tombstones: bool,
        slots: int,
        votes: bool,
        select: Sequence[str] | None,
        where: str | None,
        bad_rows: Sink | Literal["fail"],
        name: str | None,
        partitioner: str,
        transaction_timeout: float | None,
        request_timeout: float,
        options: Options | Callable[[], Options] | None,
        partitions: int | None,
        replication: int | None,
        topic_config: Mapping[str, str] | None,
        keep_epochs: int | None,
        keep_days: float | None,
    ) -> None:
        self.also: Core | None = None  # if the sink is being renamed: the same sink under its other name
        self.is_new = False  # whether this is the new name of a renamed sink: its marker topic may be missing
        self.bootstrap = bootstrap_servers
        self.topic = topic
        self.name = name if name is not None else f"kafka-{topic}"
        self.declared = declared_topics(topic, topics, self.name, named=name is not None)
        check_name("sink name", self.name)
        check_partitioner(partitioner, self.name)
        self.make_value = value if callable(value) else None
        self.encoding = Encoding(
            key,
            None if callable(value) else value,
            partitioner,
            Projection.of(self.name, select, where),
            topic=topic if self.declared.several else None,
            partition=partition,
            headers=headers,
            made=callable(value),
        )
        self.bad_rows = rejects.check_bad_rows(bad_rows, self.name)
        check_bad_rows(self.bad_rows, self.make_value, self.name)
        self.slots = slots
        self.votes = votes
        self.lacking: Sequence[str] | None = None  # the requests of a vote that the brokers lack; None: not asked yet
        self.workers_lack: str | None = None  # why executors cannot write a vote; "": they can; None: not asked yet
        self.told_why: str | None = None  # why epochs are not votes, as the log was told; "": they are
        self.ever_used = 1  # how many slots, as the sink was last seen
        check_slots_argument(slots, partitioner, self.name)
        self.tombstones = tombstones
        check_tombstones(tombstones, value, self.name)
        check_above_zero(
            self.name,
            transaction_timeout=transaction_timeout,
            request_timeout=request_timeout,
            partitions=partitions,
            replication=replication,
        )
        self.transaction_timeout = transaction_timeout
        self.request_timeout = request_timeout
        self.options = options
        self.partitions = partitions
        self.replication = replication
        self.topic_config = dict(topic_config or {})
        self.retention = Retention.of(keep_epochs, keep_days, self.name)
        self.aged: tuple[float, Position] | None = None  # when last asked, and the lowest position that keep_days keeps
        self.lock = threading.Lock()
        self.judged_by: tuple[int, Topics] | None = None  # decision of the epoch judged last, and the topics then
        self.looked: tuple[MarkerTopic, Topics] | None = None  # the marker topic, and what the last look has seen
        self.longest: float | None = None  # seconds that one transaction may last
        self.session: SparkSession | None = None
        self.settings: Mapping[str, str] = {}  # settings that `session` was given
        self.judging: Judging | None = None
        self.watched: Watched | None = None
        self.held: Shown | None = None  # the newest transaction of this process that is open, and what it will show
        self.shown: Shown | None = None  # the same of the newest one that is committed, until the next one begins
        self.bounds = arrow.BatchBounds()
        self.counted_bad: tuple[int, int] | None = None  # decision of the epoch judged last, and its bad rows
        self.staged: tuple[int, Encoded] | None = None  # decision of the epoch staged last, and its batches
        self.evaluated: tuple[int, Digest] | None = None  # decision of the newest applied epoch, and its digest

    def marker_topic(self, query: Query) -> MarkerTopic:
        return self.marker_topic_of(query.app)

    def marker_topic_of(self, app: str) -> MarkerTopic:
        check_name("app", app, self.name)
        marker_topic = MarkerTopic(app, self.name)
        topics.check_length(marker_topic)
        return marker_topic

    def seen(self) -> tuple[MarkerTopic, Topics]:
        return looked(self.looked, self.name)

    def link(self) -> Link:
        options = read_options(self.options, self.name)
        check_options(options, self.name)
        return Link(self.bootstrap, self.name, self.request_timeout, options)

    def timeout(self, link: Link) -> float:
        """Return how many seconds a transaction may last; the brokers are asked once."""
        if self.longest is None:
            longest = topics.longest_transaction(link)
            wanted = self.transaction_timeout
            if wanted is not None and longest is not None and wanted > longest:
                raise Misconfigured(
                    f"transaction_timeout={wanted:g} s is above the broker's maximum of {longest:g} s",
                    sink=self.name,
                    state=f"transaction.max.timeout.ms {longest * 1000:g}",
                    help=f"take transaction_timeout={longest:g} or less, or raise transaction.max.timeout.ms",
                )
            self.longest = wanted or min(topics.LONGEST_TRANSACTION, longest or topics.LONGEST_TRANSACTION)
        return self.longest

    def meant(self, session: SparkSession) -> Encoding:
        """Return how rows become records, for rows that are evaluated in this session.

        If its settings can change the records, the result holds these settings as they are now.
        """
        if self.encoding.projection.is_whole and self.bad_rows is None:
            return self.encoding
        return replace(self.encoding, settings=settings_of(session))

    def own_session(self, settings: Mapping[str, str]) -> SparkSession:
        """Return a clone of the session with the settings that order and text of the rows depend on.

        ``settings``: those under which the epoch's projection was prepared, whatever the session says now.
        """
        with self.lock:
            if self.session is None or self.session._jsc is None or self.settings != settings:
                session = clone(active_session(self.name))
                session.conf.set("spark.sql.session.timeZone", "UTC")
                if settings:
                    take_settings(session, settings)
                for key, value in {**EXACT, arrow.ROWS: str(arrow.rows_of_a_batch(session))}.items():
                    session.conf.set(key, value)
                self.session, self.settings = session, settings
            return self.session

    def check_schema(self, schema: Schema) -> None:
        if schema is not None:
            self.encoding.check(self.encoding.projection.check(schema), self.name)

    @property
    def keeps_records(self) -> bool:
        """Whether records are kept beside the copy, because making them again might give other records."""
        return self.make_value is not None or self.slots > 1 or self.bad_rows is not None

    def encoder(self, now: Topics) -> Encoder:
        partitions = {name: topic.partitions for name, topic in now.targets.items()}
        return Encoder(self.make_value, partitions, self.encoding.partitioner, self.slots)

    def refuse(self, epoch: Epoch, what: str, help_line: str) -> PrepareRefused:
        return PrepareRefused(
            what, sink=self.name, epoch=epoch.number, state="nothing of the epoch was decided", help=help_line
        )

    def close(self) -> None:
        self.looked = self.session = self.evaluated = self.aged = self.watched = self.judging = self.lacking = None
        self.staged = self.held = self.shown = self.workers_lack = self.told_why = self.longest = self.judged_by = None
        self.ever_used = 1

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"} | {
            "session": None,
            "judging": None,
            "watched": None,
            "staged": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.Lock())
