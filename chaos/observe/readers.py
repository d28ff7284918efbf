"""What our own sinks show to readers that know nothing of Spark or Epochal, and what they still hold at rest.

A topic of records that replace each other by their key (tombstones are asked for) is read as the table that they make.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from epochal.chaos.observe.roles import Output, RoleError
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import MarkerLost
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink

TIMEOUT_S = 30
PASSES = 10
Rows = Sequence[Mapping[str, Any]]


class SinkReader(Protocol):
    """A :class:`~epochal.chaos.observe.roles.Reader` of one sink that can also be asked for leftovers (I13)."""

    @property
    def sink(self) -> str: ...
    @property
    def in_parts(self) -> bool:
        """Whether an epoch is promised to be whole in each of several parts alone."""
        ...

    def read(self) -> Output: ...
    def left(self) -> tuple[str, ...] | None:
        """What nobody needs any more; None where such things are kept on purpose."""
        ...

    def lose_prepared(self) -> str:
        """Take away what is prepared and not committed, as somebody might who cleans up; what it was, if anything."""
        ...

    def decision(self, app: str, incarnation: str) -> int:
        """The decision that the sink's marker is of; 0 where there is no marker, or one that is no epoch's."""
        ...


def reader_of(sink: Sink) -> SinkReader:
    """The reader that belongs to one of our sinks; RoleError for any other."""
    if isinstance(sink, PostgresSink):
        return PostgresReader(sink)
    if isinstance(sink, KafkaSink):
        return KafkaReader(sink)
    if isinstance(sink, DeltaSink):
        return DeltaReader(sink)
    raise RoleError(f"sink {sink.name!r} is a {type(sink).__name__}: say with --reader how its output is read")


def _decision(sink: Sink, app: str, incarnation: str) -> int:
    """As any start looks at a sink before it has done anything."""
    try:
        marker = sink.look(Query(app, incarnation, "chaos", "")).marker
        return marker.decision if marker is not None else 0
    except MarkerLost:  # what came of a fault is judged, and does not end the run
        return 0
    finally:
        sink.close()


@dataclass(frozen=True)
class PostgresReader:
    """psycopg, through the view or from the table itself."""

    of: PostgresSink
    in_parts = False

    @property
    def sink(self) -> str:
        return self.of.name

    @property
    def _published(self) -> str:
        """The position that readers see, in SQL; its one parameter is the sink's name."""
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
        """Rows beyond the marker, where rows are staged all of them; and transactions that wait for a client."""
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
    """A read_committed consumer, from the beginning to the last stable offset."""

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
        """Nothing: rows are produced in the commit, from the copy."""
        return ""

    def left(self) -> tuple[str, ...]:
        """Partitions whose last stable offset has not reached the high watermark: a transaction is open."""
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
    """A record as a consumer sees it; without a value it is a tombstone."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def _newest(records: Sequence[Record]) -> list[bytes | None]:
    """Of each key the last record; those of one key lie in one partition."""
    return list({record.key: record.value for record in records}.values())


def _twice_the_same(consumer: Any, places: Sequence[Any]) -> list[Record]:
    """Partitions are read at different moments: a transaction in between would look torn, so two passes agree."""
    before: list[Record] | None = None
    for _ in range(PASSES):
        consumer.assign(places)
        records = sorted(_to_the_end(consumer, {place.partition for place in places}), key=lambda r: r[:2])
        if records == before:
            return records
        before = records
    raise TimeoutError(f"in {PASSES} passes no two showed the same")


def _to_the_end(consumer: Any, partitions: set[int]) -> list[Record]:
    """Records up to the end that each partition had when it was reached."""
    from confluent_kafka import KafkaError, KafkaException

    records: list[Record] = []
    deadline = time.monotonic() + TIMEOUT_S
    while partitions:
        for message in consumer.consume(10_000, timeout=0.5):
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
    """delta-rs, the newest snapshot."""

    of: DeltaSink
    in_parts = False

    @property
    def sink(self) -> str:
        return self.of.name

    def read(self) -> Output:
        from deltalake import DeltaTable

        return {self.sink: DeltaTable(self.of.location).to_pyarrow_table().to_pylist()}

    def decision(self, app: str, incarnation: str) -> int:  # noqa: ARG002
        """delta-rs reads the transaction version that Delta's commit carries; no Spark is needed for it."""
        from deltalake import DeltaTable

        self.of._core.app = app
        _, decision, _, _ = self.of._core.ids()
        return int(DeltaTable(self.of.location).transaction_version(decision) or 0)

    def lose_prepared(self) -> str:
        """Files that no version of the table names."""
        from deltalake import DeltaTable

        named = {Path(uri).name for uri in DeltaTable(self.of.location).file_uris()}
        table = Path(self.of.location)
        rows = [file for file in table.glob("**/*.parquet") if "_delta_log" not in file.relative_to(table).parts]
        lost = [file for file in rows if file.name not in named]
        for file in lost:
            file.unlink()
        return f"{len(lost)} files of {self.of.location}" if lost else ""

    def left(self) -> None:
        """Files of a dead prepare wait for VACUUM, as the guarantee says."""
