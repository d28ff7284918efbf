"""Make records before the vote, so that they can be kept: call the user's function for values, choose slots.

This runs in Spark tasks, once, at prepare.  The user's function may return something else the next time (another
version of a schema, a registry that is down), and the slot of a row must never be chosen twice.  So after the decision
only what was written here is read.  In idempotent mode there is no decision: every evaluation of an epoch makes its
records here, in the job that produces them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.spark.executors import running_session
from epochal.sinks.spark.workers import answer, promptly

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Value = Callable[[Mapping[str, Any], str], "bytes | None"]
"""Takes a row (its columns by name) and its topic; returns the bytes of its value."""
MakeValue = Callable[[], Value]
"""Called once per task: the place to make clients of registries."""

SLOT, FAILURE = "slot", "failure"
"""Columns that are added to those of a record."""
PARTITIONERS = ("murmur2_random", "murmur2", "random")
"""The partitioners that are implemented here; ``murmur2`` is that of Java's client."""
STICKY = 100
"""How many rows without a key go into one partition before the next partition is taken."""


@dataclass(frozen=True)
class Encoder:
    """What a task does to records.  Spark can pickle it; it holds whatever the user's function holds."""

    make_value: MakeValue | None  # None: the records have their value already
    partitions: Mapping[str, int]  # of each topic
    partitioner: str
    slots: int

    def schema(self, records: StructType) -> StructType:
        """Return the schema of the records that ``encoded`` makes of records with this schema."""
        from pyspark.sql import types as t

        kept = [t.StructField("value", t.BinaryType()) if f.name == "value" else f for f in records.fields]
        if "partition" not in records.names:
            kept.append(t.StructField("partition", t.LongType()))
        return t.StructType([*kept, t.StructField(FAILURE, t.StringType()), t.StructField(SLOT, t.IntegerType())])

    def records(self, records: DataFrame) -> DataFrame:
        """Return ``records`` with the columns that are made here; nothing runs yet."""
        return records.mapInArrow(partial(_encoded, self), self.schema(records.schema))

    def encoded(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Make the columns, in a task."""
        import pyarrow as pa

        values, spread = _Values(self.make_value), itertools.count(random.randrange(1 << 20))
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            topics = self._topics(columns)
            failures: list[str | None] = [None] * batch.num_rows
            if self.make_value is not None:
                made, failures = values.of(_in_utc(columns["value"]).to_pylist(), topics)
                columns["value"] = pa.array(made, pa.binary())
            partitions = self._partitions(columns, topics, spread)
            columns["partition"] = pa.array(partitions, pa.int64())
            columns[FAILURE] = pa.array(failures, pa.string())
            columns[SLOT] = pa.array(self._slots(topics, partitions), pa.int32())
            yield pa.RecordBatch.from_pydict(columns)

    def _topics(self, columns: Mapping[str, pyarrow.Array]) -> list[str]:
        """Return the topic of every row.  A row without a declared topic gets the first one: the vote refuses it."""
        first = next(iter(self.partitions))
        if "topic" not in columns:
            return [first] * len(columns["key"])
        return [topic if topic in self.partitions else first for topic in columns["topic"].to_pylist()]

    def _partitions(
        self, columns: Mapping[str, pyarrow.Array], topics: Sequence[str], spread: Iterator[int]
    ) -> list[int | None]:
        """Return the partitions that rows name.  With several slots, choose partitions for all other rows."""
        named = columns["partition"].to_pylist() if "partition" in columns else [None] * len(topics)
        if self.slots == 1:
            return named
        keys = columns["key"].to_pylist()
        hashes = murmur2([key or b"" for key in keys])
        return [
            partition if partition is not None else self._chosen(self.partitions[topic], key, hash_, spread)
            for partition, topic, key, hash_ in zip(named, topics, keys, hashes, strict=True)
        ]

    def _chosen(self, partitions: int, key: bytes | None, hash_: int, spread: Iterator[int]) -> int:
        if self.partitioner == "random" or (key is None and self.partitioner == "murmur2_random"):
            return next(spread) // STICKY % partitions
        return hash_ % partitions

    def _slots(self, topics: Sequence[str], partitions: Sequence[int | None]) -> list[int]:
        """Return the slot of every row: always the same one for a topic-partition."""
        place = {topic: number for number, topic in enumerate(self.partitions)}
        return [(place[topic] + (p or 0)) % self.slots for topic, p in zip(topics, partitions, strict=True)]


def check(make_value: MakeValue, sink: str, scrub: Callable[[str], str]) -> None:
    """Raise ``Misconfigured`` if the function cannot be sent to a task or makes nothing there; one task tries it."""
    spark = running_session()
    if spark is None:
        return
    try:
        failure = (
            spark.range(1, numPartitions=1).mapInArrow(partial(_tried, make_value), "failure string").collect()[0][0]
        )
    except Exception as error:
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
    if failure:
        raise Misconfigured(
            f"the function of value= cannot be used in a task: {scrub(failure):.300}",
            sink=sink,
            state="one task called it without arguments; nothing was written",
            help="it is called once per task, and returns a function of a row (a dict) and a topic; make clients in it",
        )


def _tried(make_value: MakeValue, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    for _ in batches:
        pass
    try:
        made: object = make_value()
        failure = "" if callable(made) else f"it returned {type(made).__name__}, not a function"
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    yield answer(failure=failure)


def _encoded(encoder: Encoder, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    return encoder.encoded(promptly(batches))


class _Values:
    """The user's function in one task.  After its first failure it is not called again: the epoch is refused anyway."""

    def __init__(self, make: MakeValue | None) -> None:
        self._make = make
        self._value: Value | None = None
        self._failure: str | None = None

    def of(
        self, rows: Sequence[Mapping[str, Any] | None], topics: Sequence[str]
    ) -> tuple[list[bytes | None], list[str | None]]:
        """Return values and failures, one of each per row.  A row that is None is one that the sink does not get."""
        made = [
            self._of(row, topic) if row is not None else (None, None) for row, topic in zip(rows, topics, strict=True)
        ]
        return [value for value, _ in made], [failure for _, failure in made]

    def _of(self, row: Mapping[str, Any], topic: str) -> tuple[bytes | None, str | None]:
        if self._failure is None:
            try:
                return self._checked(row, topic), None
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"
        return None, self._failure

    def _checked(self, row: Mapping[str, Any], topic: str) -> bytes | None:
        if self._value is None:
            assert self._make is not None, "asked only where there is a function"
            self._value = self._make()
        value = self._value(row, topic)
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"a value is bytes or None, and it returned {type(value).__name__}")
        return value


def _in_utc(rows: pyarrow.Array) -> pyarrow.Array:
    """Return the rows with timestamps in UTC, so that the time zone of the session makes no difference."""
    kind = _utc(rows.type)
    return rows.cast(kind) if kind != rows.type else rows


def _utc(kind: pyarrow.DataType) -> pyarrow.DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([_utc_field(kind.field(n)) for n in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_utc_field(kind.key_field), _utc_field(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(_utc_field(kind.value_field))
    return kind


def _utc_field(field: pyarrow.Field) -> pyarrow.Field:
    return field.with_type(_utc(field.type))


def murmur2(keys: Sequence[bytes]) -> list[int]:
    """Return the hash that Java's client computes of each key: ``Utils.toPositive(Utils.murmur2(key))``."""
    import numpy as np

    by_length: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(number)
    hashes = np.empty(len(keys), np.uint32)
    for length, numbers in by_length.items():
        data = np.frombuffer(b"".join(keys[n] for n in numbers), np.uint8).reshape(len(numbers), length)
        hashes[numbers] = _murmur2(data, length)
    found: list[int] = (hashes & np.uint32(0x7FFFFFFF)).tolist()
    return found


def _murmur2(data: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """Return the hashes of keys of one length; each row of ``data`` is a key.  Arithmetic is modulo 2**32."""
    import numpy as np

    m, words, rest = np.uint32(0x5BD1E995), length // 4, length % 4
    h = np.full(len(data), 0x9747B28C ^ length, np.uint32)
    for word in np.ascontiguousarray(data[:, : words * 4]).view("<u4").T:
        k = word * m
        k ^= k >> np.uint32(24)
        h = h * m ^ k * m
    for n in reversed(range(rest)):
        h ^= data[:, words * 4 + n].astype(np.uint32) << np.uint32(8 * n)
    if rest:
        h = h * m
    h ^= h >> np.uint32(13)
    h = h * m
    hashed: np.ndarray[Any, Any] = h ^ (h >> np.uint32(15))
    return hashed
