"""The Postgres sink as the tests see it: one database each, watched through a second connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch, Json, Query
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.postgres.address import Address, Limits
from epochal.sinks.postgres.ddl import PgColumn
from epochal.sinks.postgres.ways import Way
from epochal.sinks.postgres.write import Task

PASSWORD = "open-Sesame-42"
PATIENT = Limits(connect=60.0, lock=60.0, answer=60.0, bulk=300.0, copy=3600.0)
"""Limits that a machine which stands still for a while does not reach."""

ONE = Actor(1, 11)
TWO = Actor(2, 22)
QUERY = Query("flights", "q1", "r1", "file:/checkpoint")
SCHEMA = StructType().add("id", LongType()).add("attempt", StringType())


_LIMITS = {f"{name}_timeout": seconds for name, seconds in dataclasses.asdict(PATIENT).items() if name != "copy"}


def set_limits(limits: Limits, **seconds: float) -> None:
    """Change limits in place, also for sessions that are open.

    A limit that a test waits for is made short when the wait begins.  Before, and after, it is long: what must
    succeed has time.
    """
    for name, limit in seconds.items():
        object.__setattr__(limits, name, limit)


HASTY = {"connect": 2.0, "lock": 2.0, "answer": 2.0, "bulk": 2.0}
"""For ``set_limits``: a link that is down is given up soon."""


def with_password(dsn: str) -> str:
    """The same place; the server trusts everybody, so any password will do."""
    return dsn.replace("postgres@", f"postgres:{PASSWORD}@")


def sink(dsn: str, **options: Any) -> PostgresSink:
    return PostgresSink(with_password(dsn), **{"table": "flights", "name": "out", **_LIMITS, **options})


def ready(dsn: str, by: Actor = ONE, **options: Any) -> PostgresSink:
    """A sink whose table is made (columns of SCHEMA), looked at and fenced."""
    made = sink(dsn, **options)
    made.create(QUERY, SCHEMA)
    made.look(QUERY)
    made.fence(QUERY, by)
    return made


def rows(spark: SparkSession, ids: Iterable[int], attempt: str = "a") -> DataFrame:
    return spark.createDataFrame([(key, attempt) for key in ids], SCHEMA)


def epoch(number: int = 0, by: Actor = ONE, position: int | None = None, redo: int = 0) -> Epoch:
    decision = Decision("q1", number, by, f"fingerprint-{number}", redo)
    return Epoch(decision, number + 1 if position is None else position, offsets=f"[{number}]", watermark=number)


def observe(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """What a second connection sees, or does."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=60) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []


def visible(dsn: str) -> list[int]:
    return [key for (key,) in observe(dsn, "SELECT id FROM flights ORDER BY id")]


def stored(dsn: str) -> list[tuple[Any, ...]]:
    """Everything in the rows table, visible or not: position, id."""
    return observe(dsn, "SELECT _epoch, id FROM flights__rows ORDER BY _epoch, id")


def registered(dsn: str) -> list[tuple[Any, ...]]:
    return observe(dsn, "SELECT position, row_count FROM epochal.attempts ORDER BY attempt")


def task(dsn: str, by: Actor = ONE, position: int = 1, **changed: Any) -> Task:
    """One task of prepare, to be run in this process by `write_partition`."""
    given: dict[str, Any] = {
        "address": Address(with_password(dsn)),
        "limits": dataclasses.replace(PATIENT),
        "app": QUERY.app,
        "sink": "out",
        "epoch": position - 1,
        "position": position,
        "actor": by,
        "copy": "COPY flights__rows (id, attempt, _epoch, _attempt) FROM STDIN (FORMAT binary)",
        "table": "flights__rows",
        "columns": tuple(
            Way.made(column)
            for column in (PgColumn("id", ("bigint",)), PgColumn("attempt", ("text", "character varying")))
        ),
        "flagged": (),
    }
    return Task(**{**given, **changed})


def batches(*groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """What Spark would hand a task: one batch per group of ids."""
    for ids in groups:
        columns = [pa.array(ids, pa.int64()), pa.array(["task"] * len(ids), pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=["c0", "c1"])


def voted(votes: Sequence[Json], of: Epoch) -> Committable:
    """The committable that prepare makes of these votes."""
    attempts = [[vote["attempt"], vote["rows"]] for vote in votes]
    payload: Json = {"app": QUERY.app, "attempts": attempts, "offsets": of.offsets, "watermark": of.watermark}
    return Committable("out", of.decision, of.position, sum(count for _, count in attempts), payload)
