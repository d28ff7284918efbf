"""What the reader view of a Postgres sink costs compared with a plain table, and whether publishing stays fast.

The epochs are written as tasks write them, and the sink publishes them, without Spark.  Figures are the processor time
of the server's back-end, which other work on the machine hardly changes, and also the time by the clock.  All tables
are in the server's memory.  If they are read from a disk, the ratios are closer to 1.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from benchmarks.measuring import Measure, Ratio, in_turn, say
from benchmarks.results import Result
from benchmarks.rows import record_batch
from epochal.chaos.servers.postgres import PostgresServer
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch, Query
from epochal.sinks.postgres import PostgresSink, preparing
from epochal.sinks.postgres.address import Address, Limits
from epochal.sinks.postgres.client import open_session
from epochal.sinks.postgres.rows import columns
from epochal.sinks.postgres.session import Session
from epochal.sinks.postgres.ways import Way
from epochal.sinks.postgres.write import _write

if TYPE_CHECKING:
    from benchmarks.tables import Options

SCHEMA = StructType().add("id", LongType()).add("k", StringType()).add("v", StringType()).add("x", DoubleType())
BY = Actor(1, 1)
SIDE = 100  # how many epochs at the beginning and at the end are compared
WARM_UP = 10  # how many epochs come before the first compared one
LOOK_UPS = 300
SETTINGS = {"shared_buffers": "1GB", "autovacuum_naptime": "10s"}

SCANS = {
    "count(*)": "SELECT count(*) FROM {}",
    "sums of two numbers": "SELECT sum(x), max(id) FROM {}",
    "aggregates over all columns": "SELECT count(id), sum(x), max(k), sum(length(v)) FROM {}",
    "group by": "SELECT left(k, 2), count(*), sum(x) FROM {} GROUP BY 1",
}
LOOK_UP = "SELECT id, v FROM {} WHERE id = %s"

Took = tuple[float, float]
"""Milliseconds: (processor time of the back-end, time by the clock)."""


class Clock:
    """Measures from its creation the time of one back-end, which must do nothing else."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = self._now()

    def read(self) -> Took:
        processor, clock = self._now()
        return (processor - self._began[0]) * 1000, (clock - self._began[1]) * 1000

    def _now(self) -> Took:
        nanoseconds = Path(f"/proc/{self._pid}/schedstat").read_text().split()[0]
        return int(nanoseconds) / 1e9, time.perf_counter()


class Loaded:
    """One sink with ``rows`` rows in ``epochs`` epochs, and a plain table with the same rows."""

    def __init__(self, server: PostgresServer, rows: int, epochs: int) -> None:
        self.dsn = server.create_database(f"epochs_{epochs}")
        self.rows, self.epochs, self.each = rows, epochs, rows // epochs
        self._sink = PostgresSink(self.dsn, table="flights", name="out")
        self._query = Query("bench", "q1", "r1", "file:/checkpoint")
        self.published = self._load()

    def _load(self) -> list[Took]:
        """Publish all epochs; return the time of each publish, including COMMIT."""
        self._sink.create(self._query, SCHEMA)
        self._sink.look(self._query)
        self._sink.fence(self._query, BY)
        taken = []
        with contextlib.closing(open_session(Address(self.dsn), "out", Limits())) as tasks:
            for number in range(self.epochs):
                committable = self._prepared(tasks, number)
                clock = Clock(self._backend())
                self._sink.commit(committable, BY)
                taken.append(clock.read())
        self._sink.close()
        return taken

    def _backend(self) -> int:
        """The process id of the back-end of the session that the sink uses all the time."""
        with self._sink._core.connector.session() as session, session.transaction():
            return session.backend()

    def _prepared(self, session: Session, number: int) -> Committable:
        epoch = Epoch(Decision("q1", number, BY, f"fingerprint-{number}", 0), number + 1, offsets="[]", watermark=0)
        ways = [Way.made(column) for column in columns(SCHEMA, "out")]
        task = preparing.task_of(self._sink._core, Address(self.dsn), "bench", epoch, BY, ways, ())
        self._sink._core.end = preparing.noted_end(self._sink._core, epoch)
        vote = _write(task, session, self._batch(number), iter(()))  # what a task does, without connecting
        attempts = [[vote["attempt"], vote["rows"]]]
        payload = {"app": "bench", "attempts": attempts, "offsets": epoch.offsets, "watermark": epoch.watermark}
        return Committable("out", epoch.decision, epoch.position, int(vote["rows"]), payload)

    def _batch(self, number: int) -> pa.RecordBatch:
        ids = range(number * self.each, (number + 1) * self.each)
        return record_batch((i, f"{i * 2654435761 % 2**64:016x}", f"{i * 40503 % 2**32:020d}" * 5, i / 7) for i in ids)

    # --- reading ------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Make the plain table, the index of docs/postgres.md for both, and statistics; read all of it into memory."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in (
                "CREATE TABLE plain AS SELECT id, k, v, x, _epoch AS epoch FROM flights__rows ORDER BY id",
                "CREATE INDEX ON plain (id)",
                "CREATE INDEX ON plain USING brin (epoch) WITH (pages_per_range = 32)",
                "CREATE INDEX ON flights__rows (id) INCLUDE (_epoch)",
                "SELECT brin_summarize_new_values('flights__rows__epoch_idx')",
                "VACUUM ANALYZE",
                "SELECT sum(length(v)) FROM flights__rows",
                "SELECT sum(length(v)) FROM plain",
            ):
                connection.execute(statement.encode())

    def scans(self, rounds: int) -> dict[str, Turns]:
        """Return query -> times per reader and round.  View and table take turns, and scans use no index."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SET enable_indexonlyscan = off; SET max_parallel_workers_per_gather = 0")
            return {
                name: turns(connection, rounds, {r: partial(ask, connection, sql.format(r)) for r in READERS})
                for name, sql in SCANS.items()
            }

    def look_ups(self, rounds: int) -> dict[str, Turns]:
        """Return the same for LOOK_UPS queries by key, the rows of one epoch, and a count that only uses an index."""
        found: dict[str, Turns] = {}
        step = max(1, self.rows // LOOK_UPS)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for prepared in (False, True):
                by_key = {
                    r: lambda r=r, p=prepared: [
                        ask(connection, LOOK_UP.format(r), i, prepare=p) for i in range(0, step * LOOK_UPS, step)
                    ]
                    for r in READERS
                }
                found[f"{LOOK_UPS} look-ups by key{', prepared' if prepared else ''}"] = turns(
                    connection, rounds, by_key
                )
            counted = {r: partial(ask, connection, f"SELECT count(*) FROM {r} WHERE id >= 0") for r in READERS}
            found["count(*) by the index alone"] = turns(connection, rounds, counted)
            middle = self.epochs // 2
            of_epoch = {  # this uses the rows table, because the view does not show positions
                "plain": lambda: ask(connection, "SELECT count(*), sum(x) FROM plain WHERE epoch = %s", middle),
                "flights": lambda: ask(
                    connection, "SELECT count(*), sum(x) FROM flights__rows WHERE _epoch = %s", middle
                ),
            }
            found["the rows of one epoch, in the rows table"] = turns(connection, rounds, of_epoch)
        return found


READERS = ("plain", "flights")
JOBS = {"plain": "plain table", "flights": "reader view"}


Connection = psycopg.Connection[tuple[object, ...]]


def ask(connection: Connection, sql: str, *values: object, prepare: bool = False) -> object:
    return connection.execute(sql.encode(), values or None, prepare=prepare).fetchall()


Turns = Mapping[str, Sequence[Took]]


def turns(connection: Connection, rounds: int, jobs: Mapping[str, Callable[[], object]]) -> Turns:
    """Run the jobs in turn; return their times in each round.  One more round before is a warm-up."""
    taken: dict[str, list[Took]] = {name: [] for name in jobs}
    for turn in range(-1, rounds):
        for name in in_turn(jobs, turn):
            clock = Clock(connection.info.backend_pid)
            jobs[name]()
            if turn >= 0:
                taken[name].append(clock.read())
    return taken


def lines(case: Mapping[str, object], taken: Turns) -> tuple[list[Measure], list[Ratio]]:
    """Return the ratio by processor time, which counts, and the one by the clock."""
    measures, ratios = [], []
    for which, unit in enumerate(("processor ms", "ms by the clock")):
        by_reader = {reader: [each[which] for each in took] for reader, took in taken.items()}
        measures += [Measure(JOBS[reader], case, unit, values) for reader, values in by_reader.items()]
        values = [view / plain for view, plain in zip(by_reader["flights"], by_reader["plain"], strict=True)]
        goal = "view" if which == 0 and case["query"] in SCANS else None
        ratios.append(Ratio(JOBS["flights"], JOBS["plain"], case, unit, values, goal))
    return measures, ratios


def publishing(loaded: Loaded) -> tuple[list[Measure], list[Ratio]]:
    """Compare the last hundred epochs with the hundred after the first ten, one by one."""
    kept = {"first": loaded.published[WARM_UP : WARM_UP + SIDE], "last": loaded.published[-SIDE:]}
    case = {"epochs": loaded.epochs, "rows of an epoch": loaded.each}
    by_side = {side: [took[0] for took in each] for side, each in kept.items()}
    measures = [Measure(f"publish, the {side} {SIDE}", case, "processor ms", each) for side, each in by_side.items()]
    grown = [last / first for last, first in zip(by_side["last"], by_side["first"], strict=True)]
    return measures, [Ratio(measures[1].job, measures[0].job, case, "processor ms", grown)]


def run(options: Options) -> Result:
    result = Result("reader-view", options.rounds, options.quick)
    rows, counts = (100_000, (10, 300)) if options.quick else (1_000_000, (10, 1_000, 10_000))
    with PostgresServer(settings=SETTINGS) as server:
        for epochs in counts:
            loaded = Loaded(server, rows, epochs)
            if epochs >= WARM_UP + 2 * SIDE:
                told, ratios = publishing(loaded)
                result.add(told, *ratios)
            loaded.settle()
            for what, taken in {**loaded.scans(options.rounds), **loaded.look_ups(options.rounds)}.items():
                say(f"  {rows:,} rows, {epochs:,} epochs  {what}")
                measures, ratios = lines({"rows": rows, "epochs": epochs, "query": what}, taken)
                result.add(measures, *ratios)
    return result
