"""The part of prepare that a task runs: COPY its rows, register them, check the fence, COMMIT, and vote.

The code runs in Spark's Python workers.  Each partition returns one vote as data.  A refusal is a vote too, because an
exception reaches the driver only as text.  Every other failure is raised, so that Spark runs the task again.  If the
vote of an attempt never arrives, the attempt has lost, and commit deletes its rows.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Json
from epochal.coordinator.model.errors import EpochalError, Misconfigured
from epochal.coordinator.model.failpoints import Point, hit
from epochal.sinks.postgres import ddl
from epochal.sinks.postgres.address import Address, Limits
from epochal.sinks.postgres.client import open_session
from epochal.sinks.postgres.ddl import PgColumn
from epochal.sinks.spark.workers import answer, promptly

if TYPE_CHECKING:  # session.py imports psycopg, and a task must be able to report that psycopg is missing
    import pyarrow as pa

    from epochal.sinks.postgres.session import Session

VOTE = "vote string"
"""Spark's schema of the result: one JSON text for each partition, see :func:`write_partition`."""


@dataclass(frozen=True)
class Task:
    """What every task of one epoch receives.  It is never shown, as it holds the connection string."""

    address: Address
    limits: Limits
    app: str
    sink: str
    epoch: int
    position: int
    actor: Actor
    copy: str  # COPY ... FROM STDIN (FORMAT binary); its last two columns are _epoch and _attempt
    table: str
    columns: tuple[PgColumn, ...]  # in the order of the batches' columns
    flagged: tuple[str, ...]  # the columns whose flags follow them in a batch


class _Unholdable(Exception):
    """Some rows have values that Postgres cannot hold; ``rows`` counts them by column."""

    def __init__(self, rows: Counter[str]) -> None:
        self.rows = rows
        super().__init__(dict(rows))


class _Stale(Exception):
    """The sink's row has another fence or another position than when this task was made."""

    def __init__(self, fence: Actor | None, published: int) -> None:
        self.vote: Json = {"fence": fence.to_json() if fence else None, "published": published}
        super().__init__(str(self.vote))


def reached(address: Address, sink: str, limits: Limits) -> str:
    """Return why this worker cannot connect to the server; the text is empty if it can."""
    try:
        open_session(address, sink, limits).close()
    except EpochalError as error:
        return error.what
    return ""


def writer(task: Task) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow``."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield answer(vote=json.dumps(write_partition(task, promptly(batches))))

    return write


def write_partition(task: Task, batches: Iterator[pa.RecordBatch]) -> Json:
    """Write one partition and return its vote.

    A yes is ``{"attempt", "rows"}``, or ``{}`` if the partition has no rows.  A no has one of the keys ``unholdable``,
    ``refused``, ``stale`` and ``client``.
    """
    try:
        importlib.import_module("epochal.sinks.postgres.binary")  # now, while the JVM makes the first batch
    except ImportError as error:
        return {"client": f"numpy is missing here: {error}"}
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return {}
    try:
        session = open_session(task.address, task.sink, task.limits)
    except Misconfigured as error:
        return {"client": error.what}
    try:
        return _write(task, session, first, batches)
    except _Unholdable as error:
        return {"unholdable": dict(error.rows)}
    except Misconfigured as error:  # the server refused the rows, or the table was altered
        return {"refused": error.what, "state": error.state}
    except _Stale as error:
        return {"stale": error.vote}
    finally:
        session.close()


def _write(task: Task, session: Session, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Json:
    """Write rows and registration in one transaction; the fence is checked last, and its row is locked until COMMIT."""
    with session.transaction(by=task.actor):
        chunks = _Chunks(task, int(session.run("SELECT nextval('epochal.attempt')")[0][0]))
        session.run(f"SET LOCAL statement_timeout = {int(task.limits.copy * 1000)}")
        session.copy_in(task.copy, chunks.of(first, rest))
        session.run(f"SET LOCAL statement_timeout = {int(task.limits.answer * 1000)}")
        _check_types(task, session)
        _register(task, session, chunks.attempt, chunks.rows)
        _check_fence(task, session)
    hit(Point.BEFORE_VOTE, task.sink, task.epoch)
    return {"attempt": chunks.attempt, "rows": chunks.rows}


class _Chunks:
    """Encodes the batches for binary COPY, and counts their rows."""

    def __init__(self, task: Task, attempt: int) -> None:
        self._task = task
        self._unholdable: Counter[str] = Counter()
        self.attempt = attempt
        self.rows = 0

    def of(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[bytes | memoryview]:
        """Yield the encoded rows.  After the first value that Postgres cannot hold, only count such values."""
        from epochal.sinks.postgres import binary

        yield binary.HEADER
        yield from self._chunk(first)
        for batch in rest:
            hit(Point.IN_WRITE, self._task.sink, self._task.epoch)
            yield from self._chunk(batch)
        hit(Point.IN_WRITE, self._task.sink, self._task.epoch)
        if self._unholdable:
            raise _Unholdable(self._unholdable)
        yield binary.TRAILER

    def _chunk(self, batch: pa.RecordBatch) -> Iterator[memoryview]:
        from epochal.sinks.postgres import binary

        names = [column.name for column in self._task.columns]
        columns, flags = batch.columns[: len(names)], batch.columns[len(names) :]
        unholdable = {name: binary.count_invalid_text(column) for name, column in zip(names, columns, strict=True)}
        for name, flag in zip(self._task.flagged, flags, strict=True):
            unholdable[name] = max(unholdable[name], flag.true_count)
        self._unholdable.update({name: count for name, count in unholdable.items() if count})
        if batch.num_rows and not self._unholdable:
            self.rows += batch.num_rows
            yield binary.rows(columns, (self._task.position, self.attempt))


def _check_types(task: Task, session: Session) -> None:
    """Require that the table has the types that the rows were encoded for: COPY takes any eight bytes as a ``bigint``.

    The check runs under COPY's own lock, so nobody can alter the table before this transaction ends.
    """
    there = {name: kind for name, kind, _ in ddl.columns_of(session, task.table)}
    for column in task.columns:
        if there[column.name] not in column.types:
            raise ddl.other_type(task.sink, task.table, column, there[column.name])


def _register(task: Task, session: Session, attempt: int, rows: int) -> None:
    """Record in the same transaction that this attempt wrote these rows."""
    session.run(
        "INSERT INTO epochal.attempts (app, sink, position, attempt, generation, token, row_count)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7)",
        task.app,
        task.sink,
        task.position,
        attempt,
        task.actor.generation,
        task.actor.token,
        rows,
    )


def _check_fence(task: Task, session: Session) -> None:
    """Lock the sink's row, and raise if this task's start no longer owns the sink or its position is not the next one.

    A transaction that fences or publishes must wait for this task's COMMIT.
    """
    found = session.run(
        "SELECT generation, token, published FROM epochal.sinks WHERE app = $1 AND sink = $2 FOR SHARE",
        task.app,
        task.sink,
    )
    generation, token, published = found[0] if found else (None, None, -1)
    fence = Actor(generation, token) if generation is not None else None
    if fence != task.actor or published != task.position - 1:
        raise _Stale(fence, published)
