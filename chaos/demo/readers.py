"""Read what the sinks really hold, with clients that use neither Spark nor Epochal, and compare it row by row.

Every reader returns the columns of :data:`~epochal.chaos.demo.data.OUTPUT`, in that order and with those types.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from epochal.chaos.demo.data import KEY, OUTPUT, arrow_schema

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

SCHEMA = arrow_schema(OUTPUT)
KAFKA_TIMEOUT_S = 60.0
CONSUME_S = 0.05  # a call waits that long for 10,000 messages, also where the end was reached at once


@dataclass(frozen=True)
class Count:
    """How a sink differs from what was expected, as multisets over all columns."""

    expected: int
    found: int
    lost: int  # expected rows that are missing, without those that were found with wrong values
    duplicated: int  # surplus of rows that were found more often than expected
    wrong: int  # found rows that are not expected: another value in some column, or an unknown key

    @property
    def exact(self) -> bool:
        return self.expected == self.found and not (self.lost or self.duplicated or self.wrong)


def compare(expected: pa.Table, found: pa.Table) -> Count:
    """Compare all columns of all rows.  A missing row and a wrong one of the same key count once, as wrong."""
    columns = list(SCHEMA.names)
    both = pa.concat_tables([_weighed(expected, 1, 0), _weighed(found, 0, 1)])
    sums = both.group_by(columns).aggregate([("in_expected", "sum"), ("in_found", "sum")])
    wanted, got = sums["in_expected_sum"], sums["in_found_sum"]
    foreign = sums.filter(pc.equal(wanted, 0))
    missing = sums.filter(pc.greater(wanted, got))
    surplus = sums.filter(pc.and_(pc.greater(wanted, 0), pc.greater(got, wanted)))
    absent = _total(missing, "in_expected_sum") - _total(missing, "in_found_sum")
    keys_of_foreign = set(_keys(foreign))
    return Count(
        expected=len(expected),
        found=len(found),
        lost=absent - sum(key in keys_of_foreign for key in _keys(missing)),
        duplicated=_total(surplus, "in_found_sum") - _total(surplus, "in_expected_sum"),
        wrong=_total(foreign, "in_found_sum"),
    )


def _weighed(table: pa.Table, in_expected: int, in_found: int) -> pa.Table:
    ones = pa.array([1] * len(table), pa.int64())
    table = table.select(SCHEMA.names).cast(SCHEMA)
    table = table.append_column("in_expected", pc.multiply(ones, in_expected))
    return table.append_column("in_found", pc.multiply(ones, in_found))


def _total(table: pa.Table, column: str) -> int:
    return pc.sum(table[column]).as_py() or 0


def _keys(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in KEY), strict=True))


def read_postgres(dsn: str, relation: str) -> pa.Table:
    """Return all rows of a table or view, read with one statement."""
    import psycopg
    from psycopg import sql

    columns = [
        sql.SQL("{}::timestamptz" if kind == "timestamp" else "{}").format(sql.Identifier(name))
        for name, kind in OUTPUT.items()
    ]
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(columns), sql.Identifier(relation)
    )
    text = io.BytesIO()
    options = "-c timezone=UTC -c statement_timeout=60s"
    with (
        psycopg.connect(dsn, options=options, connect_timeout=60) as connection,
        connection.cursor().copy(query) as copy,
    ):
        for block in copy:
            text.write(block)
    if text.tell() == 0:
        return SCHEMA.empty_table()
    text.seek(0)
    return pyarrow.csv.read_csv(
        text,
        read_options=pyarrow.csv.ReadOptions(column_names=SCHEMA.names),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=SCHEMA, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def read_kafka(bootstrap: str, topic: str) -> pa.Table:
    """Return all committed records of a topic.  Raises ValueError if a record's key is not its tail number."""
    messages = committed_records(bootstrap, topic)
    if not messages:
        return SCHEMA.empty_table()
    values = b"\n".join(_bytes(message.value()) for message in messages)
    table = pyarrow.json.read_json(
        io.BytesIO(values),
        read_options=pyarrow.json.ReadOptions(block_size=16 << 20),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error"),
    )
    keys = [None if message.key() is None else _bytes(message.key()).decode() for message in messages]
    if len(table) != len(keys) or table["tailnum"].to_pylist() != keys:
        raise ValueError(f"topic {topic!r}: there are records whose key is not their tail number")
    return table


def _bytes(part: str | bytes | None) -> bytes:
    if not isinstance(part, bytes):
        raise ValueError(f"a record holds {part!r} where bytes were expected")
    return part


def committed_records(bootstrap: str, topic: str) -> list[Message]:
    """Return all records that a read_committed consumer gets.  Raises TimeoutError if it does not reach the end."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    consumer = _consumer(bootstrap, "read_committed")
    try:
        ends = _ends(bootstrap, topic)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        return _read_to(consumer, topic, ends)
    finally:
        consumer.close()


def _read_to(consumer: Consumer, topic: str, ends: dict[int, int]) -> list[Message]:
    from confluent_kafka import KafkaError, KafkaException

    messages: list[Message] = []
    open_partitions = {partition for partition, end in ends.items() if end > 0}
    deadline = time.monotonic() + KAFKA_TIMEOUT_S
    while open_partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {topic!r}: {sorted(open_partitions)} not readable to their ends {ends}")
        for message in consumer.consume(10_000, timeout=CONSUME_S):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif (message.offset() or 0) >= ends[message.partition() or 0]:
                open_partitions.discard(message.partition() or 0)
    return messages


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The high watermark per partition, including open transactions."""
    from confluent_kafka import TopicPartition

    consumer = _consumer(bootstrap, "read_uncommitted")
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "epochal-demo-reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,  # the end is reported when a fetch comes back empty
            "log_level": 0,
        }
    )


def read_delta(path: str) -> pa.Table:
    """Return all rows of the newest snapshot, read with delta-rs.  Raises ValueError if it has other columns."""
    from deltalake import DeltaTable

    table = DeltaTable(path).to_pyarrow_table()
    if sorted(table.column_names) != sorted(SCHEMA.names):
        raise ValueError(f"Delta table {path!r} has the columns {table.column_names}, expected {SCHEMA.names}")
    return table.select(SCHEMA.names).cast(SCHEMA)


def count_postgres(dsn: str, relation: str) -> int:
    """Return how many rows a reader of the table or view sees now."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(dsn, options="-c statement_timeout=60s", connect_timeout=60) as connection:
        row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(relation))).fetchone()
    assert row is not None
    return int(row[0])


def count_delta(path: str) -> int:
    """Return how many rows the newest snapshot has."""
    from deltalake import DeltaTable

    return int(DeltaTable(path).to_pyarrow_dataset().count_rows())
