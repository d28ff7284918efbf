"""Encode the records of an epoch as record batches, in Spark tasks: into files beside the durable copy.

Nothing is sent here.  What a task writes is read by whoever delivers it, so a batch has the same bytes however often it
is sent.  Files of a task that was repeated elsewhere are not read: only what the winning attempts answered counts.
A small task answers with the records themselves instead of a file, which saves small epochs a second Spark job.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka.batches.write import Layout, Piece, write
from epochal.sinks.kafka.delivery import libraries
from epochal.sinks.kafka.delivery.deliver import Batch
from epochal.sinks.kafka.wire.messages import Partition
from epochal.sinks.spark import parquet, settings, workers
from epochal.sinks.spark.arrow import BatchBounds, Widths

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

INLINE_BYTES = 1 << 20
"""An epoch of at most this many bytes is small: the driver delivers it.  ``inline_bytes`` is the bound of one task."""
FEW_TASKS = 128
"""How many tasks may answer with a sixteenth of ``INLINE_BYTES`` each."""
ANSWER = ("task", "file", "pieces", "data", "failure", "widest")
"""What a task answers with: one row of texts."""
A_FILE_A_TASK = {"spark.sql.files.openCostInBytes": str(2**61)}
"""Each file of the copy is read by a task of its own, as a whole: so its rows keep their order."""


@dataclass(frozen=True)
class Encoded:
    """The batches of an epoch, by topic-partition, in the order in which they are sent."""

    batches: Mapping[Partition, Sequence[Batch]]

    @property
    def rows(self) -> int:
        return sum(batch.rows for its in self.batches.values() for batch in its)

    @property
    def bytes(self) -> int:
        return sum(batch.length for its in self.batches.values() for batch in its)

    @property
    def is_small(self) -> bool:
        """Whether no batch lies in a file, and the driver can deliver all of them."""
        has_file = any(isinstance(batch.source, str) for its in self.batches.values() for batch in its)
        return not has_file and self.bytes <= INLINE_BYTES


class EncodingFailed(Exception):
    """A task could not encode its rows."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a Parquet file are key and value.  ``key`` None: the records have no key."""

    key: str | None
    value: str

    @property
    def names(self) -> Sequence[str]:
        return [name for name in (self.key, self.value) if name is not None]

    def records(self, file: str) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in parquet.batches([file], self.names):
            *keys, value = batch.columns
            key = keys[0] if keys else pa.nulls(batch.num_rows, pa.binary())
            yield pa.RecordBatch.from_arrays([key, value], names=["key", "value"])


@dataclass(frozen=True)
class Job:
    """What tasks need to encode rows; it can be pickled."""

    layout: Layout
    folder: str  # a local path, which is made if a task needs it
    sink: str
    epoch: EpochNumber
    is_durable: bool = False  # whether the files survive a power failure, once their folder does
    is_marked: bool = False  # whether the last column of the records says which of them the sink gets
    inline: int = field(default_factory=lambda: INLINE_BYTES)  # of how many bytes an epoch is small


def encode(records: DataFrame, job: Job, bounds: BatchBounds, held: Mapping[str, str]) -> Encoded:
    """Encode all records in one Spark job.

    Raises ``EncodingFailed`` if a task meets rows that have no place, ``PrepareRefused`` if an executor lacks a
    library, and errors of Spark as they are.
    ``held``: more settings of Spark for the job.
    """
    answers = records.mapInArrow(partial(_task, job), _answer_type())
    with settings.held(records.sparkSession, {**held, **bounds.settings(records.sparkSession)}):
        return _collected(answers, job, bounds)


def encode_files(
    session: SparkSession, files: Sequence[str], columns: Columns, job: Job, bounds: BatchBounds
) -> Encoded:
    """Encode records whose key and value are columns of Parquet files, each file in a task of its own.

    Errors are those of :func:`encode`.
    """
    if not files:
        return Encoded({})
    tasks = session.range(0, len(files), numPartitions=len(files))
    return _collected(tasks.mapInArrow(partial(_file_task, job, files, columns), _answer_type()), job, bounds)


@functools.cache
def _answer_type() -> StructType:
    """Return the type of an answer.  As a text, it would take some more calls into the JVM in every epoch."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in ANSWER])


def _collected(answers: DataFrame, job: Job, bounds: BatchBounds) -> Encoded:
    with libraries.naming(job.sink, job.epoch):
        told = answers.collect()
    bounds.saw(float(row["widest"]) for row in told)
    for row in told:
        if row["failure"]:
            raise EncodingFailed(row["failure"])
    batches: dict[Partition, list[Batch]] = {}
    for row in sorted(told, key=lambda row: int(row["task"])):
        source = os.path.join(job.folder, row["file"]) if row["file"] else base64.b64decode(row["data"])
        for fields in json.loads(row["pieces"]):
            piece = Piece(*fields)
            batch = Batch(source, piece.offset, piece.length, piece.rows, piece.attributes, piece.crc)
            batches.setdefault(Partition(*job.layout.partition_of(piece.code)), []).append(batch)
    return Encoded(batches)


def inline_bytes(job: Job, task: int) -> int:
    """Return how many bytes of records the task with this number may answer with.

    A task does not know how many tasks there are.  The last one of any number of equal tasks gets its part of a small
    epoch, and those before it get more.  Tasks that are not equal get a bound of their own, which decreases after the
    first ``FEW_TASKS``.  The driver holds all answers: at most 32 MiB, even of a million tasks.
    """
    of_equal, of_other = job.inline // (task + 1), job.inline // 16 * FEW_TASKS**2 // max(task, FEW_TASKS) ** 2
    return max(of_equal, of_other)


def _file_task(
    job: Job, files: Sequence[str], columns: Columns, rows: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    for _ in workers.promptly(rows):
        pass
    yield _answer(job, columns.records(files[workers.task()]))


def _task(job: Job, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    sent = workers.promptly(batches)
    yield _answer(job, _kept(sent) if job.is_marked else sent)


def _kept(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records for which the last column is true, without that column."""
    for batch in batches:
        *names, _ = batch.schema.names
        kept = batch.column(len(names))
        if kept.true_count:
            yield batch.filter(kept).select(names)


def _answer(job: Job, records: Iterator[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    libraries.check_here(job.sink)
    number = workers.task()
    widths = Widths()
    sent = widths.of(records)
    pieces, failure = [], ""
    name = f"task-{number}-{uuid.uuid4().hex}.records"
    with _Output(job.folder, name, inline_bytes(job, number), job.is_durable) as output:
        try:
            pieces = write(sent, job.layout, output.add)
        except ValueError as error:
            failure = f"{error}"
            for _ in sent:  # Spark's own figures are of rows that were read
                pass
        failpoints.hit(Point.IN_WRITE, job.sink, job.epoch)
        output.end()
        data = base64.b64encode(output.data).decode()
        return workers.answer(
            task=str(number),
            file=output.name,
            pieces=json.dumps(pieces),
            data=data,
            failure=failure,
            widest=str(widths.widest),
        )


class _Output:
    """What a task writes: bytes, and a file if these are more than ``inline``."""

    def __init__(self, folder: str, name: str, inline: int, is_durable: bool) -> None:
        self._folder = folder
        self._inline = inline
        self._is_durable = is_durable
        self._wanted = name
        self._handle: int | None = None
        self.data = bytearray()
        self.name = ""  # of the file, if there is one

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def end(self) -> None:
        """All was added."""
        if self._handle is not None and self._is_durable:
            os.fsync(self._handle)

    def add(self, data: bytes | memoryview) -> None:
        if self._handle is None and len(self.data) + len(data) <= self._inline:
            self.data += data
            return
        if self._handle is None:
            os.makedirs(self._folder, exist_ok=True)
            self.name = self._wanted
            path = os.path.join(self._folder, self.name)
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            kept, self.data = memoryview(bytes(self.data)), bytearray()
            _write(self._handle, kept)
        _write(self._handle, memoryview(data))


def _write(handle: int, data: memoryview) -> None:
    data = data.cast("B") if data.format != "B" else data
    while len(data):
        data = data[os.write(handle, data) :]
