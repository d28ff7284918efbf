"""The part of prepare that a task runs: COPY its rows, register them, check the fence, COMMIT, and vote.

The code runs in Spark's Python workers.  Each partition returns one vote as data.  A refusal is a vote too, because an
exception reaches the driver only as text.  Every other failure is raised, so that Spark runs the task again.  If the
vote of an attempt never arrives, the attempt has lost, and commit deletes its rows.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Json
from epochal.coordinator.model.errors import EpochalError, Misconfigured
from epochal.coordinator.model.failpoints import Point, hit
from epochal.sinks.postgres import given
from epochal.sinks.postgres.address import Address, Limits, ServerRefused
from epochal.sinks.postgres.client import open_session
from epochal.sinks.postgres.ddl import columns_of, quoted
from epochal.sinks.postgres.ways import Way
from epochal.sinks.spark.arrow import Widths
from epochal.sinks.spark.workers import answer, promptly

if TYPE_CHECKING:  # session.py imports psycopg, and a task must be able to report that psycopg is missing
    import pyarrow as pa

    from epochal.sinks.postgres.session import Session

VOTE = "vote string, widest string"
"""Spark's schema of the result: for each partition one JSON text, see :func:`write_partition`, and its ``Widths``."""


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
    columns: tuple[Way, ...]  # in the order of the batches' columns
    flagged: tuple[str, ...]  # the columns whose flags follow them in a batch
    insert: str | None = None  # instead of COPY, if the server converts a column: see given.py


class _Unholdable(Exception):
    """Some rows have values that Postgres cannot hold; ``rows`` counts them by column.

    ``told``: what the server says about one of them, if it was asked.
    """

    def __init__(self, rows: Counter[str], told: str | None = None) -> None:
        self.rows = rows
        self.told = told
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
        widths = Widths()
        vote = write_partition(task, widths.of(promptly(batches)))
        yield answer(vote=json.dumps(vote), widest=str(widths.widest))

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
        return {"unholdable": dict(error.rows), **({"told": error.told} if error.told else {})}
    except Misconfigured as error:  # the server refused the rows, or the table was altered
        return {"refused": error.what, "state": error.state}
    except _Stale as error:
        return {"stale": error.vote}
    finally:
        session.close()


def _write(task: Task, session: Session, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Json:
    """Write rows and registration in one transaction; the fence is checked last, and its row is locked until COMMIT."""
    with session.transaction(by=task.actor):
        attempt = int(session.run("SELECT nextval('epochal.attempt')")[0][0])
        good = _Good(task)
        session.run(f"SET LOCAL statement_timeout = {int(task.limits.copy * 1000)}")
        if task.insert is None:
            session.copy_in(task.copy, _encoded(task, good.of(first, rest), attempt))
        else:
            _insert(task, session, good.of(first, rest), attempt)
        session.run(f"SET LOCAL statement_timeout = {int(task.limits.answer * 1000)}")
        _check_types(task, session)
        _register(task, session, attempt, good.rows)
        _check_fence(task, session)
    hit(Point.BEFORE_VOTE, task.sink, task.epoch)
    return {"attempt": attempt, "rows": good.rows}


class _Good:
    """Yields the columns of the batches that may be written, and counts their rows."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._unholdable: Counter[str] = Counter()
        self.rows = 0

    def of(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[list[pa.Array]]:
        """After the first value that Postgres cannot hold, only count such values, and raise at the end."""
        yield from self._checked(first)
        for batch in rest:
            hit(Point.IN_WRITE, self._task.sink, self._task.epoch)
            yield from self._checked(batch)
        hit(Point.IN_WRITE, self._task.sink, self._task.epoch)
        if self._unholdable:
            raise _Unholdable(self._unholdable)

    def _checked(self, batch: pa.RecordBatch) -> Iterator[list[pa.Array]]:
        from epochal.sinks.postgres import binary

        names = [column.name for column in self._task.columns]
        columns, flags = batch.columns[: len(names)], batch.columns[len(names) :]
        unholdable = {name: binary.count_invalid_text(column) for name, column in zip(names, columns, strict=True)}
        for name, flag in zip(self._task.flagged, flags, strict=True):
            unholdable[name] = max(unholdable[name], flag.true_count)
        self._unholdable.update({name: count for name, count in unholdable.items() if count})
        if batch.num_rows and not self._unholdable:
            self.rows += batch.num_rows
            yield columns


def _encoded(task: Task, batches: Iterator[list[pa.Array]], attempt: int) -> Iterator[bytes | memoryview]:
    """Yield the rows as binary COPY takes them."""
    from epochal.sinks.postgres import binary

    yield binary.HEADER
    for columns in batches:
        yield binary.rows(columns, (task.position, attempt))
    yield binary.TRAILER


def _insert(task: Task, session: Session, batches: Iterator[list[pa.Array]], attempt: int) -> None:
    """Insert the batches, whose values the server converts."""
    assert task.insert is not None
    limit = task.limits.copy
    session.run(f"SET LOCAL idle_in_transaction_session_timeout = {int(limit * 1000)}")  # between batches, as in a COPY
    parts = chain.from_iterable(map(given.in_parts, batches))
    for columns in parts:
        try:
            session.change(task.insert, *given.encoded(task.columns, columns), task.position, attempt, limit=limit)
        except ServerRefused:
            session.run("ROLLBACK")
            _raise_refusals(task, session, chain([columns], parts))
            raise


def _raise_refusals(task: Task, session: Session, parts: Iterator[Sequence[pa.Array]]) -> None:
    """Raise if the server refuses values of these batches; return if it refused something else."""
    converted = given.converted(task.columns)
    ways = [task.columns[n] for n in converted]
    counts: Counter[str] = Counter()
    told = None
    try:
        for columns in parts:
            found = given.refusals(session, ways, [columns[n] for n in converted], task.limits.copy)
            for messages in found.values():
                counts.update(way.name for way, message in zip(ways, messages, strict=True) if message)
                told = told or next(filter(None, messages))
    except _Unholdable as error:
        counts.update(error.rows)
    except ServerRefused:  # no right to ask: the server's first message says less, but names the value
        session.run("ROLLBACK")
    if counts:
        raise _Unholdable(counts, told)


def _check_types(task: Task, session: Session) -> None:
    """Require that the table has the types that the rows were encoded for: COPY takes any eight bytes as a ``bigint``.

    The check runs under COPY's own lock, so nobody can alter the table before this transaction ends.
    """
    there = {name: kind for name, kind, _ in columns_of(session, task.table)}
    for way in task.columns:
        if there[way.name] not in way.types:
            raise Misconfigured(
                f"column {quoted(way.name)} of {task.table} is {there[way.name]}, the rows need {way.kind.shown}",
                sink=task.sink,
                help="start the query again: the table was altered while the epoch was written",
            )


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
