"""Make a long history of a query without Spark jobs, with the same code that writes epochs in a real query.

The real coordinator runs every epoch over the real log, with its records, order and compaction.  But no micro-batch is
evaluated, so the rows are written in another way::

    postgres   the function of a task writes the rows in this process; the sink publishes them
    kafka      one producer writes rows, marker and tombstones of every epoch in one transaction, with the functions
               of the sink's task; all epochs use the same producer, while the sink makes a new one for each epoch
    delta      an epoch's data file is a link to a copy of an earlier file; one version of the table has the files of
               ``TOGETHER`` epochs and the marker of the last one, written with the sink's own publish

An epoch's vote is a copy of the newest real vote with the values of this epoch.  Afterwards the checkpoint has the
files that Spark itself would have left, so a real query can continue from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.measuring import say
from benchmarks.rows import record_batch
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit, EpochLog
from epochal.coordinator.model.epoch import (
    Actor,
    Committable,
    Copy,
    CopyFile,
    Epoch,
    EpochNumber,
    EpochRequest,
    Json,
    Query,
    SinkState,
)
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.coordinator.query.checkpoint import located
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.delta.committing import publish
from epochal.sinks.delta.jvm import Table
from epochal.sinks.kafka import committing, produce
from epochal.sinks.kafka.produce import Plan
from epochal.sinks.kafka.transaction import Transaction, guarded
from epochal.sinks.postgres import preparing
from epochal.sinks.postgres.address import Address, Limits
from epochal.sinks.postgres.client import open_session
from epochal.sinks.postgres.rows import columns
from epochal.sinks.postgres.ways import Way
from epochal.sinks.postgres.write import _write
from epochal.sinks.protocol import CommitOutcome, Sink, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from epochal.sinks.kafka.marker import State
    from epochal.sinks.postgres.session import Session

TOGETHER = 1_000
"""How many epochs of a Delta table one version adds."""
LINKS = 10_000
"""How many links one copy gets.  A file system limits them; ext4 allows 65,000."""
RETAINED = 100
"""For how many of the newest epochs Spark keeps its own files (``spark.sql.streaming.minBatchesToRetain``)."""
TOLD = 10_000  # a line of progress comes every so many epochs


@dataclass(frozen=True)
class Rows:
    """``count`` rows (id, k, v, x) per epoch.  Ids continue from epoch to epoch, like those of the source."""

    count: int
    value: int = 100

    def of(self, epoch: EpochNumber) -> list[tuple[int, str, str, float]]:
        return [self._row(i) for i in range(epoch * self.count, (epoch + 1) * self.count)]

    def _row(self, number: int) -> tuple[int, str, str, float]:
        hashed = hashlib.sha1(str(number).encode()).hexdigest()
        return number, hashed[:16], (hashed[:20] * (self.value // 20 + 1))[: self.value], number / 7


# --- the history ------------------------------------------------------------------------------------


def write(checkpoint: Path, app: str, sink: Sink, schema: StructType, rows: Rows, upto: EpochNumber) -> None:
    """Write the epochs after the newest one that Spark has committed, up to ``upto`` - 1.

    At least one epoch must be real, and no query may run meanwhile.
    """
    progress = Progress(checkpoint)
    query = Query(app, progress.query_id, str(uuid.uuid4()), located(str(checkpoint)))
    log = FilesLog(checkpoint / "epochal" / "log")
    historic = _historic(sink, schema, rows, newest_vote(log, sink.name))
    stage = _NoStage(rows.count) if hasattr(sink, "needs_copy") else None
    coordinator = Coordinator(query=query, sinks=[historic], log=log, stage=stage)
    try:
        for epoch in range(progress.committed + 1, upto):
            coordinator.run(_Batch(progress.ask(query, epoch)))
            if epoch % TOLD == 0:
                say(f"  history of {app}: epoch {epoch:,}")
    finally:
        historic.close()
    progress.go_to(upto)


def newest_vote(log: EpochLog, sink: str) -> Committable:
    """Return the sink's vote for the newest decided epoch."""
    records = [entry.record for entry in log.read()]
    return [r for r in records if isinstance(r, Commit)][-1].participants[sink].committable


class Progress:
    """Spark's own files in the checkpoint of a query over ``rate-micro-batch``; offsets are linear in the epoch."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.query_id = str(json.loads((checkpoint / "metadata").read_text())["id"])
        self.committed = max(self._numbers("commits"))
        newest = self._file("offsets", self.committed).read_text()
        self._version, self._metadata, source = newest.splitlines()
        self._each = {what: value // (self.committed + 1) for what, value in json.loads(source).items()}
        assert self._text(self.committed) == newest, f"offsets that are not linear in the epoch: {newest}"
        self._commit = self._file("commits", self.committed).read_text()

    def ask(self, query: Query, epoch: EpochNumber) -> EpochRequest:
        text = self._text(epoch)
        return EpochRequest(query, epoch, hashlib.sha256(text.encode()).hexdigest(), text, 0)

    def go_to(self, upto: EpochNumber) -> None:
        """Write the files as if Spark had run all epochs before ``upto``, and had not planned the next one."""
        lowest = max(0, upto - RETAINED)
        for folder, text in (("offsets", self._text), ("commits", lambda _: self._commit)):
            for old in self._numbers(folder):
                if not lowest <= old <= self.committed:
                    self._file(folder, old).unlink()
                    self._file(folder, old).with_name(f".{old}.crc").unlink(missing_ok=True)
            for epoch in range(max(lowest, self.committed + 1), upto):
                self._file(folder, epoch).write_text(text(epoch))

    def _text(self, epoch: EpochNumber) -> str:
        source = {what: value * (epoch + 1) for what, value in self._each.items()}
        return "\n".join([self._version, self._metadata, json.dumps(source, separators=(",", ":"))])

    def _numbers(self, folder: str) -> list[int]:
        return [int(file.name) for file in (self._checkpoint / folder).iterdir() if file.name.isdigit()]

    def _file(self, folder: str, epoch: EpochNumber) -> Path:
        return self._checkpoint / folder / str(epoch)


@dataclass(frozen=True)
class _Batch:
    """A micro-batch that has only its number; implements ``MicroBatch``."""

    ask: EpochRequest

    @property
    def rows(self) -> EpochNumber:
        return self.ask.epoch

    def discard(self) -> None:
        raise AssertionError("no epoch of a history is replayed")

    def confirm(self) -> None:
        """Nothing else writes here."""


class _NoStage(Stage):
    """A stage without files.  Its copies only name their epoch and its number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, epoch: EpochNumber, by: Actor, rows: Any) -> Copy:  # noqa: ARG002
        return Copy(f"epochal/copies/{epoch}/{by.generation}-{by.token}", (CopyFile("part-0", 1, self._rows),), "{}")

    def read(self, copy: Copy) -> EpochNumber:
        return int(copy.root.split("/")[2])

    def clean(self, by: Actor, keep: Sequence[Copy]) -> None:
        """Do nothing, as there are no files."""


# --- sinks whose rows no Spark job writes -----------------------------------------------------------


class _Historic:
    """A sink whose ``prepare`` and ``commit`` are replaced.  ``prepare`` gets the epoch's number instead of rows."""

    def __init__(self, sink: Sink, prepare: Prepare, commit: CommitIt, end: Callable[[], None]) -> None:
        self._sink, self._prepare, self._commit, self._end = sink, prepare, commit, end

    @property
    def name(self) -> str:
        return self._sink.name

    def create(self, query: Query, schema: Any) -> Sequence[str]:
        return self._sink.create(query, schema)

    def check(self, query: Query, schema: Any) -> None:
        self._sink.check(query, schema)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        return self._sink.look(query, by=by)

    def fence(self, query: Query, by: Actor) -> None:
        self._sink.fence(query, by)

    def prepare(self, epoch: Epoch, rows: EpochNumber, by: Actor) -> Committable:  # noqa: ARG002
        return self._prepare(epoch, by)

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        return self._commit(committable, by)

    def abort(self, query: Query, by: Actor) -> None:
        self._sink.abort(query, by)

    def close(self) -> None:
        self._end()
        self._sink.close()

    def guarantee(self) -> str:
        return self._sink.guarantee()


class _HistoricRedo(_Historic):
    """A historic sink that writes from a durable copy."""

    needs_copy = True


if TYPE_CHECKING:
    Prepare = Callable[[Epoch, Actor], Committable]
    CommitIt = Callable[[Committable, Actor], CommitOutcome]


def _historic(sink: Sink, schema: StructType, rows: Rows, vote: Committable) -> _Historic:
    if isinstance(sink, PostgresSink):
        writer = _Postgres(sink, schema, rows, vote)
        return _Historic(sink, writer.prepare, sink.commit, writer.close)
    if isinstance(sink, KafkaSink):
        producer = _Kafka(sink, rows, vote)
        return _HistoricRedo(sink, producer.prepare, producer.commit, producer.close)
    assert isinstance(sink, DeltaSink), f"no history is written for {sink!r}"
    linker = _Delta(sink, vote)
    return _Historic(sink, linker.prepare, linker.commit, linker.close)


def _voted(vote: Committable, epoch: Epoch, payload: Mapping[str, Any]) -> Committable:
    """Return a copy of ``vote`` with the values of this epoch."""
    return replace(vote, decision=epoch.decision, position=epoch.position, payload={**vote.payload, **payload})


class _Postgres:
    """Does what the only task of a small epoch does, but connects only once."""

    def __init__(self, sink: PostgresSink, schema: StructType, rows: Rows, vote: Committable) -> None:
        self._sink, self._rows, self._vote = sink, rows, vote
        self._ways = [Way.made(column) for column in columns(schema, sink.name)]
        self._opened: tuple[Address, Session] | None = None

    def prepare(self, epoch: Epoch, by: Actor) -> Committable:
        app = str(self._vote.payload["app"])
        if self._opened is None:
            with self._sink._core.connector.session() as session:
                place = session.address()
            self._opened = place, open_session(place, self._sink.name, Limits())
        place, session = self._opened
        task = preparing.task_of(self._sink._core, place, app, epoch, by, self._ways, ())
        self._sink._core.end = preparing.noted_end(self._sink._core, epoch)  # as its prepare does
        written = _write(task, session, self._batch(epoch.number), iter(()))
        attempts = [[written["attempt"], written["rows"]]]
        about = {"attempts": attempts, "offsets": epoch.offsets, "watermark": epoch.watermark}
        return _voted(self._vote, epoch, about)

    def close(self) -> None:
        if self._opened is not None:
            self._opened[1].close()

    def _batch(self, epoch: EpochNumber) -> pa.RecordBatch:
        return record_batch(self._rows.of(epoch))


class _Kafka:
    """One producer for all epochs.  It has fenced all others, so the state is what it wrote last."""

    def __init__(self, sink: KafkaSink, rows: Rows, vote: Committable) -> None:
        self._sink, self._rows, self._vote = sink, rows, vote
        self._made: tuple[Plan, Transaction] | None = None
        self._state: State | None = None

    def prepare(self, epoch: Epoch, by: Actor) -> Committable:  # noqa: ARG002
        assert epoch.copy is not None, "the coordinator makes one for such a sink"
        about = {"offsets": epoch.offsets, "watermark": epoch.watermark}
        return _voted(self._vote, epoch, {"copy": epoch.copy.to_json(), "about": about})

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        plan, transaction = self._producer(committable, by)
        assert self._state is not None, "read when the producer was made"
        assert not plan.already_committed(self._state), "an epoch of a history is written once"
        pairs = [(k.encode(), v.encode()) for _, k, v, _ in self._rows.of(plan.epoch)]
        produce._write(plan, transaction, self._state, [pairs])
        transaction.commit()
        self._state = plan.after(self._state)
        return CommitOutcome.COMMITTED

    def close(self) -> None:
        if self._made is not None:
            self._made[1].drop()

    def _producer(self, c: Committable, by: Actor) -> tuple[Plan, Transaction]:
        """The plan of this epoch and its transaction: the first plan of the sink with the values of this epoch."""
        if self._made is None:
            link, (place, _) = self._sink._core.link(), self._sink._core.seen()
            plan = committing.plan_of(self._sink._core, link, place, c, by)
            more = {**produce._tuning(plan), "linger.ms": 0}
            timeout = plan.transaction_timeout
            transaction, self._state, _ = guarded(link, place, timeout, plan.already_committed, more)
            self._made = plan, transaction
        plan, transaction = self._made
        made = replace(
            plan,
            decision=c.decision.id,
            position=c.position,
            epoch=c.decision.epoch,
            about={"decision": c.decision.to_json(), "rows": c.rows, **c.payload["about"]},
            keep_from=self._sink._core.retention.keep_from(c.position),
        )
        return made, transaction


class _Delta:
    """Makes links instead of files, and one version of the table for many epochs."""

    def __init__(self, sink: DeltaSink, vote: Committable) -> None:
        self._sink, self._vote = sink, vote
        self._adds: list[Json] = []
        self._newest: Committable | None = None

    def prepare(self, epoch: Epoch, by: Actor) -> Committable:  # noqa: ARG002
        adds = [self._linked(add, epoch.number) for add in self._vote.payload["adds"]]
        return _voted(self._vote, epoch, {"adds": adds, "offsets": epoch.offsets, "watermark": epoch.watermark})

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:  # noqa: ARG002
        self._adds += committable.payload["adds"]
        self._newest = committable
        if committable.position % TOGETHER == 0:
            self._show()
        return CommitOutcome.COMMITTED

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        if self._newest is None:
            return
        table = self._sink._core.table()
        payload = {**self._newest.payload, "adds": self._adds}
        vote = replace(self._newest, payload=payload)
        answer = publish(self._sink._core, table, table.begin(), vote)
        assert answer.kind.value == "done", f"Delta did not take {len(self._adds)} files: {answer}"
        self._adds, self._newest = [], None

    def _linked(self, add: Json, epoch: EpochNumber) -> Json:
        return _linked(Path(self._sink.location), add, epoch)


def write_peer(spark: SparkSession, folder: Path, upto: EpochNumber) -> None:
    """Add the same number of files and versions to a table that Spark's own writer has begun."""
    versions = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in versions[-1].read_text().splitlines()]
    add = next(action["add"] for action in actions if "add" in action)
    for first in range(len(versions), upto, TOGETHER):
        epochs = range(first, min(first + TOGETHER, upto))
        adds = [{"add": _linked(folder, add, epoch)} for epoch in epochs]
        Table(spark, str(folder)).begin().commit(adds, query_id="peer", epoch=epochs[-1], user_metadata="")


def _linked(folder: Path, add: Json, epoch: EpochNumber) -> Json:
    """Link a copy of the file under a new name; return the action that adds it."""
    path = str(add["path"])
    copy = folder / f".{epoch // LINKS}-{path}"
    if not copy.exists():
        shutil.copyfile(folder / path, copy)
    name = f"{epoch}-{path}"
    os.link(copy, folder / name)
    return {**add, "path": name}
