"""Readers of our own sinks.  They read the rows with neither Spark nor Epochal.

They also say what a sink still holds at rest, and which decision its marker names (Postgres and Kafka: by ``look``).

A Kafka topic that is written with tombstones is read as a table: only the newest record of each key counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from epochal.chaos.observe.roles import Output, RoleError
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import MarkerLost
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink

TIMEOUT_S = 30
PASSES = 10  # how often a topic is read at most, until two passes agree
CONSUME_S = 0.02  # a call waits that long for 10,000 messages, also where the end was reached at once


class SinkReader(Protocol):
    """A :class:`~epochal.chaos.observe.roles.Reader` of one sink that can also be asked for leftovers (I13)."""

    @property
    def sink(self) -> str: ...
    @property
    def in_parts(self) -> bool:
        """Whether the sink promises only that each of several parts of an epoch is whole."""
        ...

    def read(self) -> Output: ...
    def left(self) -> tuple[str, ...] | None:
        """Describe what nobody needs any more.  None if the sink keeps such things on purpose."""
        ...

    def lose_prepared(self) -> str:
        """Delete what is prepared and not committed, as a clean-up job might; describe it, "" if there was nothing."""
        ...

    def decision(self, app: str, incarnation: str) -> int:
        """The id of the decision in the sink's marker; 0 if there is no marker, or if it belongs to no epoch."""
        ...


def reader_of(sink: Sink) -> SinkReader:
    """Return the reader for one of our sinks.  Raises RoleError for any other sink."""
    if isinstance(sink, PostgresSink):
        return PostgresReader(sink)
    if isinstance(sink, KafkaSink):
        return KafkaReader(sink)
    if isinstance(sink, DeltaSink):
        return DeltaReader(sink)
    raise RoleError(f"sink {sink.name!r} is a {type(sink).__name__}: say with --reader how its output is read")


def _decision(sink: Sink, app: str, incarnation: str) -> int:
    """The decision in the marker, read with ``look`` as a start reads it."""
    try:
        marker = sink.look(Query(app, incarnation, "chaos", "")).marker
        return marker.decision if marker is not None else 0
    except MarkerLost:  # the checker judges what a fault caused; it must not end the run
        return 0
    finally:
        sink.close()


@dataclass(frozen=True)
class PostgresReader:
    """Reads with psycopg, from the reader view or from the table itself."""

    of: PostgresSink
    in_parts = False

    @property
    def sink(self) -> str:
        return self.of.name

    @property
    def _published(self) -> str:
        """SQL for the position that readers see.  Its one parameter is the sink's name."""
        own = self.of._core.target.own
        return f"(SELECT max(published) FROM epochal.sinks s WHERE s.sink = %s AND s.rows_table = '{own}'::regclass)"

    def _query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        import psycopg

        dsn = self.of._core.connector.address().conninfo
        options = f"-c statement_timeout={TIMEOUT_S}s"
        with psycopg.connect(dsn, options=options, connect_timeout=TIMEOUT_S, autocommit=True) as connection:
            return connection.execute(text.encode(), values).fetchall()

    def read(self) -> Output:
        found = self._query(f"SELECT row_to_json(v) FROM {self.of._core.target.reader} v")
        return {self.sink: [row for (row,) in found]}

    def decision(self, app: str, incarnation: str) -> int:
        return _decision(self.of, app, incarnation)

    def lose_prepared(self) -> str:
        rows = self.of._core.target.rows
        lost = self._query(
            f"WITH lost AS (DELETE FROM {rows} WHERE _epoch > {self._published} RETURNING 1) SELECT count(*) FROM lost",
            self.of.name,
        )
        return f"{lost[0][0]} rows of {rows}" if lost[0][0] else ""

    def left(self) -> tuple[str, ...]:
        """Describe rows beyond the marker and transactions that wait for a client.

        A separate staging table must be empty at rest, so there every row counts.
        """
        rows, staged = self.of._core.target.rows, self.of._core.staging is not None
        prepared = self._query(
            f"SELECT _epoch, count(*) FROM {rows} WHERE _epoch > {self._published} OR {staged} GROUP BY 1 ORDER BY 1",
            self.of.name,
        )
        idle = self._query(
            "SELECT pid, application_name FROM pg_stat_activity"
            " WHERE datname = current_database() AND state LIKE 'idle in transaction%%'"
        )
        return (
            *(f"{number} invisible rows of position {position} in {rows}" for position, number in prepared),
            *(f"back-end {pid} ({application}) idle in transaction" for pid, application in idle),
        )


@dataclass(frozen=True)
class KafkaReader:
    """Reads with a ``read_committed`` consumer, from the beginning to the last stable offset."""

    of: KafkaSink

    @property
    def sink(self) -> str:
        return self.of.name

    @property
    def in_parts(self) -> bool:
        return self.of._core.slots > 1

    def _consumer(self, isolation: str) -> Any:
        from confluent_kafka import Consumer

        options = self.of._core.options() if callable(self.of._core.options) else (self.of._core.options or {})
        return Consumer(
            {
                **options,
                "bootstrap.servers": self.of._core.bootstrap,
                "group.id": "epochal-chaos-reader",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )

    def read(self) -> Output:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer = self._consumer("read_committed")
        try:
            partitions = self._partitions(consumer)
            places = [TopicPartition(self.of._core.topic, number, OFFSET_BEGINNING) for number in partitions]
            records = _twice_the_same(consumer, places)
        finally:
            consumer.close()
        values = _newest(records) if self.of._core.tombstones else [record.value for record in records]
        return {self.sink: [json.loads(value) for value in values if value is not None]}

    def _partitions(self, consumer: Any) -> list[int]:
        known = consumer.list_topics(self.of._core.topic, timeout=TIMEOUT_S).topics
        return sorted(known[self.of._core.topic].partitions)

    def decision(self, app: str, incarnation: str) -> int:
        return _decision(self.of, app, incarnation)

    def lose_prepared(self) -> str:
        """Do nothing: the sink holds no prepared rows, as the commit produces them from the copy."""
        return ""

    def left(self) -> tuple[str, ...]:
        """Describe partitions whose last stable offset is below the high watermark: there a transaction is open."""
        stable, high = (self._ends(isolation) for isolation in ("read_committed", "read_uncommitted"))
        return tuple(
            f"{self.of._core.topic}[{number}]: last stable offset {stable[number]}, high watermark {end}"
            for number, end in high.items()
            if stable[number] < end
        )

    def _ends(self, isolation: str) -> dict[int, int]:
        from confluent_kafka import TopicPartition

        consumer = self._consumer(isolation)
        try:
            return {
                number: consumer.get_watermark_offsets(TopicPartition(self.of._core.topic, number), timeout=TIMEOUT_S)[
                    1
                ]
                for number in self._partitions(consumer)
            }
        finally:
            consumer.close()


class Record(NamedTuple):
    """A record as a consumer sees it.  A record without a value is a tombstone."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def _newest(records: Sequence[Record]) -> list[bytes | None]:
    """The value of the last record of each key.  All records of one key are in one partition."""
    return list({record.key: record.value for record in records}.values())


def _twice_the_same(consumer: Any, places: Sequence[Any]) -> list[Record]:
    """Read the topic until two passes agree.

    Partitions are read at different moments, so a transaction that commits in between would look torn.
    """
    before: list[Record] | None = None
    for _ in range(PASSES):
        consumer.assign(places)
        records = sorted(_to_the_end(consumer, {place.partition for place in places}), key=lambda r: r[:2])
        if records == before:
            return records
        before = records
    raise TimeoutError(f"of {PASSES} passes no two in a row saw the same records")


def _to_the_end(consumer: Any, partitions: set[int]) -> list[Record]:
    """The records of each partition up to the end that it had when the consumer reached it."""
    from confluent_kafka import KafkaError, KafkaException

    records: list[Record] = []
    deadline = time.monotonic() + TIMEOUT_S
    while partitions:
        for message in consumer.consume(10_000, timeout=CONSUME_S):
            error = message.error()
            if error is None:
                records.append(Record(message.partition(), message.offset(), message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                partitions.discard(message.partition())
            else:
                raise KafkaException(error)
        if time.monotonic() > deadline:
            raise TimeoutError(f"partitions {sorted(partitions)} were not read to their end within {TIMEOUT_S} s")
    return records


@dataclass(frozen=True)
class DeltaReader:
    """Reads the newest snapshot with delta-rs."""

    of: DeltaSink
    in_parts = False

    @property
    def sink(self) -> str:
        return self.of.name

    def read(self) -> Output:
        from deltalake import DeltaTable

        return {self.sink: DeltaTable(self.of.location).to_pyarrow_table().to_pylist()}

    def decision(self, app: str, incarnation: str) -> int:  # noqa: ARG002
        """Read the transaction version in Delta's commit with delta-rs, which needs no Spark."""
        from deltalake import DeltaTable

        self.of._core.app = app
        _, decision, _, _ = self.of._core.ids()
        return int(DeltaTable(self.of.location).transaction_version(decision) or 0)

    def lose_prepared(self) -> str:
        """Delete the Parquet files that the newest version of the table does not name."""
        from deltalake import DeltaTable

        named = {Path(uri).name for uri in DeltaTable(self.of.location).file_uris()}
        table = Path(self.of.location)
        rows = [file for file in table.glob("**/*.parquet") if "_delta_log" not in file.relative_to(table).parts]
        lost = [file for file in rows if file.name not in named]
        for file in lost:
            file.unlink()
        return f"{len(lost)} files of {self.of.location}" if lost else ""

    def left(self) -> None:
        """None: files of a prepare that was given up wait for VACUUM, as the sink's guarantee says."""
