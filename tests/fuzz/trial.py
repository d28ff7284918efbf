"""Runs one pipeline on real servers, and says how it ended: right, refused by name, or by a defect.

A pipeline runs as a start of its query would: ``create``, the checks, then a coordinator that gets one DataFrame per
epoch.  After every epoch, and after a refusal, outside readers compare what the sinks show with what they must show.
"""

from __future__ import annotations

import contextlib
import enum
import io
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.coordinator.model.epoch import EpochRequest, Query
from epochal.coordinator.model.errors import EpochalError, Misconfigured, PrepareRefused
from epochal.coordinator.protocol.retry import Retry
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.protocol import Sink
from epochal.sinks.questions import require
from tests.fuzz import expected, readers, select, settings, tables
from tests.fuzz.expected import Found, MustRefuse, Record
from tests.fuzz.frames import Column, Frames, Row
from tests.fuzz.plans import MAKERS, Plan, SinkPlan

if TYPE_CHECKING:
    from epochal.coordinator.protocol.coordinator import Coordinator

SOON = Retry(attempts=3, first=0.02, most=0.1)


class Verdict(enum.Enum):
    RIGHT = "right"
    REFUSED = "refused by name"
    RAW = "RAW ERROR"
    DOUBT = "IN DOUBT"
    OTHER = "ANOTHER ERROR OF OURS"
    DIFFERENCE = "DIFFERENCE"
    ACCEPTED = "NOT REFUSED"
    HANG = "HANG"
    ITSELF = "THE FUZZ ITSELF FAILED"


FINE = (Verdict.RIGHT, Verdict.REFUSED)


@dataclass(frozen=True)
class Outcome:
    """How a pipeline ended.  ``stage``: make, create, check or epoch N.  ``told``: an error's text, or a difference."""

    verdict: Verdict
    stage: str
    told: str = ""
    trace: str = field(default="", compare=False, repr=False)
    epochs: int = 0

    @property
    def fine(self) -> bool:
        return self.verdict in FINE


@dataclass(frozen=True)
class Servers:
    """What all pipelines of a run share."""

    spark: SparkSession
    dsn: str
    bootstrap: str
    folder: Path
    frames: Frames
    admin: AdminClient
    reader: readers.KafkaReader

    @classmethod
    @contextlib.contextmanager
    def using(cls, spark: SparkSession, dsn: str, bootstrap: str, folder: Path) -> Iterator[Servers]:
        """``folder``: empty, for Delta tables, checkpoints and the rows."""
        reader = readers.KafkaReader(bootstrap)
        spark.sql(f"CREATE DATABASE IF NOT EXISTS fuzz LOCATION '{folder}/fuzz.db'")
        try:
            with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
                yield cls(spark, dsn, bootstrap, folder, Frames(spark, folder / "rows"), admin, reader)
        finally:
            reader.close()
            spark.sql("DROP DATABASE fuzz CASCADE")


@dataclass
class _Batch:
    """Implements ``MicroBatch``."""

    ask: EpochRequest
    rows: DataFrame

    def discard(self) -> None:
        self.rows.count()

    def confirm(self) -> None:
        """Nothing else writes here."""


class _Ended(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.told)
        self.outcome = outcome


def make_value(what: str) -> Callable[[Any, str], Any]:
    """What ``value=`` of a Kafka sink calls once per task."""

    def make(_: Any, topic: str) -> Any:
        made = MAKERS[what]
        if made is ValueError:
            raise ValueError("no value")
        return topic.encode() if made is ... else made

    return make


class Trial:
    """One pipeline in a place of its own: a schema of Postgres, topics, a folder."""

    def __init__(self, plan: Plan, servers: Servers, place: str, damage: Callable[[Trial], None] | None = None) -> None:
        self.plan, self.servers, self.place = plan, servers, place
        self.folder = servers.folder / place
        self._damage = damage  # called after each epoch, for tests of this file
        self._memory = MemoryServer()
        self._shown: dict[str, list[Found]] = {}
        self._records: dict[str, list[Record]] = {}
        self._stage = "make"
        self._done = 0

    # --- the pipeline ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.folder.mkdir(parents=True)
        self._sql(f'CREATE SCHEMA "{self.place}"')
        try:
            self._run()
        except _Ended as ended:
            return ended.outcome
        finally:
            self._clean()
        return Outcome(Verdict.RIGHT, self._stage, epochs=self._done)

    def _run(self) -> None:
        with settings.under(self.servers.spark, {} if self.plan.compiled else settings.INTERPRETED):
            self._run_starts()

    def _run_starts(self) -> None:
        plan = self.plan
        frames = [
            self.servers.frames.frame(plan.columns_of(n), self._rows(n), plan.partitions)
            for n in range(len(plan.epochs))
        ]
        with settings.under(self.servers.spark, plan.settings), contextlib.ExitStack() as opened:
            start = self._start(frames[0], 0, opened)
            for number, frame in enumerate(frames):
                if number and plan.restarts:
                    start = self._start(frame, number, opened)
                self._epoch(start, frame, number)

    def _start(self, frame: DataFrame, number: int, opened: contextlib.ExitStack) -> Coordinator:
        spark = self.servers.spark
        with self._refusals("make"):
            sinks = [self.made(sink, f"s{n}") for n, sink in enumerate(self.plan.sinks)]
            pipeline = Pipeline(app=self.place, sinks=sinks, mode=self.plan.mode, retry=SOON)
        query = Query(self.place, self.place, f"{self.place}-{number}", f"file:{self.folder}/checkpoint")
        with self._refusals("create"), contextlib.redirect_stdout(io.StringIO()):
            pipeline.create(frame.schema)
        ready = pipeline.new_sinks()
        for sink in ready:
            opened.callback(sink.close)
        with self._refusals("check"):
            require(pipeline._asking.of_rows(frame.schema, spark), lambda caution: None)  # noqa: ARG005
            for sink in ready:
                sink.check(query, frame.schema)
            return pipeline.coordinator(query, ready, lambda: spark)

    def _epoch(self, start: Coordinator, frame: DataFrame, number: int) -> None:
        query = Query(self.place, self.place, f"{self.place}-{number}", f"file:{self.folder}/checkpoint")
        ask = EpochRequest(query, number, f"fingerprint {number}", f"[{number}]", None)
        self._stage = f"epoch {number}"
        failed: Exception | None = None
        try:
            start.run(_Batch(ask, frame))
        except Exception as error:
            failed = error
        if self._damage is not None:
            self._damage(self)
        with settings.without(self.servers.spark, self.plan.settings):
            self._judge(number, failed)
        self._done = number + 1

    def _judge(self, number: int, failed: Exception | None) -> None:
        """Compare; a refused epoch must show nothing, except where idempotent mode says that it may."""
        junk = any(sink.junk for sink in self.plan.sinks)
        if failed is not None and not self._of(failed).fine:
            raise _Ended(self._of(failed))
        if not junk and (failed is None or self.plan.mode != "idempotent" or len(self.plan.sinks) == 1):
            for n, sink in enumerate(self.plan.sinks):
                if wrong := self._difference(sink, f"s{n}", None if failed is not None else number):
                    raise _Ended(Outcome(Verdict.DIFFERENCE, self._stage, f"{sink.kind} {sink.mode}: {wrong}"))
        if failed is not None:
            raise _Ended(self._of(failed))

    @contextlib.contextmanager
    def _refusals(self, stage: str) -> Iterator[None]:
        self._stage = stage
        try:
            yield
        except Exception as error:
            raise _Ended(self._of(error)) from error

    def _of(self, error: Exception) -> Outcome:
        trace = "".join(traceback.format_exception(error))
        if not isinstance(error, EpochalError):
            return Outcome(Verdict.RAW, self._stage, f"{type(error).__name__}: {error}", trace, self._done)
        told = f"{type(error).__name__}: {error.what} | {error.state} | {error.help}"
        if not error.definite:
            return Outcome(Verdict.DOUBT, self._stage, told, trace, self._done)
        named = isinstance(error, (Misconfigured, PrepareRefused)) and bool(error.help.strip())
        return Outcome(Verdict.REFUSED if named else Verdict.OTHER, self._stage, told, trace, self._done)

    # --- its sinks ------------------------------------------------------------------------------

    def made(self, sink: SinkPlan, name: str) -> Sink:
        from epochal.sinks import DeltaSink, KafkaSink, PostgresSink

        options: dict[str, Any] = {"name": name, **self._common(sink, name)}
        if sink.kind == "memory":
            return MemorySink(name, self._memory)
        if sink.kind == "postgres":
            options |= {k: v for k, v in sink.options.items() if k not in ("table", "view")}
            options |= {"table": f"{self.place}.{self._table(sink, name)}", "mode": _mode(sink)}
            options |= {"view": f"{self.place}.reader"} if "view" in sink.options else {}
            return PostgresSink(self.servers.dsn, **{**options, **sink.junk})
        if sink.kind == "delta":
            options |= {k: v for k, v in sink.options.items() if k not in ("table", "path")} | {"mode": _mode(sink)}
            options |= {"table": f"fuzz.{self.place}_{name}"} if "table" in sink.options else {}
            path = () if "table" in sink.options else (str(self.path(sink, name)),)
            return DeltaSink(*path, **{**options, **sink.junk})
        options |= {"topic": self.topic(name), **sink.options}
        options |= {"topics": self.topics(sink, name)} if "topic" in sink.options else {}
        if sink.options.get("value") in MAKERS:
            options["value"] = partial(make_value, sink.options["value"])
        return KafkaSink(self.servers.bootstrap, **{**options, **sink.junk})

    def _common(self, sink: SinkPlan, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if sink.select is not None:
            found["select"] = list(sink.select.texts)
        if sink.where is not None:
            found["where"] = sink.where.text
        if sink.bad_rows is not None:
            found["bad_rows"] = self.made(sink.bad_rows, f"{name}bad")
        return found

    def _table(self, sink: SinkPlan, name: str) -> str:
        return str(sink.options.get("table", name))

    def path(self, sink: SinkPlan, name: str) -> Path:
        """Of a Delta table."""
        if "table" in sink.options:
            return self.servers.folder / "fuzz.db" / f"{self.place}_{name}"
        return self.folder / name / str(sink.options.get("path", "table"))

    def topic(self, name: str) -> str:
        return f"{self.place}-{name}"

    def topics(self, sink: SinkPlan, name: str) -> list[str]:
        return [f"{self.topic(name)}.{part}" for part in "ab"] if "topic" in sink.options else [self.topic(name)]

    def _rows(self, number: int) -> list[Row]:
        """The rows of an epoch, with the names of topics of this place."""
        routed = next((f"s{n}" for n, s in enumerate(self.plan.sinks) if s.kind == "kafka"), "s0")
        topic = self.topic(routed).encode()
        put = lambda v: v.replace(b"{topic}", topic) if isinstance(v, bytes) else v  # noqa: E731
        return [tuple(map(put, row)) for row in self.plan.rows_of(number)]

    # --- what they show -------------------------------------------------------------------------

    def _difference(self, sink: SinkPlan, name: str, number: int | None) -> str:
        """What a reader finds too much or too little, with the epoch ``number`` or, for None, without a new one."""
        if number is None and sink.kind == "kafka" and name not in self._records:
            return ""
        columns, rows = self._given(number)
        rows = self._without_bad(sink, name, number, columns, rows)
        try:
            if sink.kind == "kafka":
                return self._in_topics(sink, name, number, columns, rows)
            return self._in_table(sink, name, number, columns, rows)
        except MustRefuse as why:
            raise _Ended(Outcome(Verdict.ACCEPTED, self._stage, f"{sink.kind} {sink.mode}: {why}")) from None

    def _given(self, number: int | None) -> tuple[Sequence[Column], list[Row]]:
        if number is None:
            return expected.seen(self.plan.columns, [])
        return expected.seen(self.plan.columns_of(number), self._rows(number))

    def _without_bad(
        self, sink: SinkPlan, name: str, number: int | None, columns: Sequence[Column], rows: list[Row]
    ) -> list[Row]:
        """The rows without those that went to the sink of bad rows."""
        if sink.bad_rows is None or number is None:
            return rows
        bad = self._read(sink.bad_rows, f"{name}bad", columns)
        ended = self._shown.setdefault(f"{name}bad", [])
        by_text = {
            repr(found): row for found, row in zip(map(_sorted, expected.as_rows(columns, rows)), rows, strict=True)
        }
        new = [_sorted(row) for row in bad if _sorted(row) not in map(_sorted, ended)]
        self._shown[f"{name}bad"] = bad
        if strange := [row for row in new if repr(row) not in by_text]:
            raise _Ended(Outcome(Verdict.DIFFERENCE, self._stage, f"bad_rows= has rows that nobody gave: {strange}"))
        gone = {id(by_text[repr(row)]) for row in new}
        return [row for row in rows if id(row) not in gone]

    def _in_table(
        self, sink: SinkPlan, name: str, number: int | None, columns: Sequence[Column], rows: list[Row]
    ) -> str:
        before = wanted = self._shown.get(name, [])
        optional: set[str] = set()
        if number is not None:
            wanted, optional = expected.shown(sink, columns, before, rows)
        kinds, _ = select.given(sink, columns, []) if not (sink.select and sink.select.wrong) else (columns, [])
        found = self._read(sink, name, kinds)
        self._shown[name] = wanted
        there = set().union(*(row.keys() for row in found)) if found else set()
        lacks = (optional | ({sink.keyed["delete_when"]} if "delete_when" in sink.keyed else set())) - there
        names = [c.name for c in kinds if c.exotic is None and c.name not in lacks]
        complete = [{n: row.get(n) for n in names} for row in wanted]
        return expected.differences(found, complete)

    def _in_topics(
        self, sink: SinkPlan, name: str, number: int | None, columns: Sequence[Column], rows: list[Row]
    ) -> str:
        wanted = self._records.setdefault(name, [])
        if number is not None:
            wanted += expected.records(sink, columns, rows, self.topic(name))
        routes = [sink.options[role] for role in ("topic", "partition", "headers") if role in sink.options]
        kinds = [c for c in select.given(sink, columns, [])[0] if c.name not in routes]
        found = self.servers.reader.read(self.topics(sink, name), None if "value" in sink.options else kinds)
        if self.plan.grows:  # records of the first epoch have fewer fields
            found, wanted = found[:0], []
        anywhere = [w.partition is None for w in wanted]
        if any(anywhere):
            found, wanted = _without_partitions(found), _without_partitions(wanted)
        return expected.differences(found, wanted)

    def _read(self, sink: SinkPlan, name: str, columns: Sequence[Column]) -> list[Found]:
        if sink.kind == "memory":
            return readers.memory(self._memory.visible(self.place, name), columns)
        if sink.kind == "delta":
            return tables.rows(self.path(sink, name), columns)
        view = "reader" if "view" in sink.options else self._table(sink, name)
        return readers.postgres(self.servers.dsn, self.place, view, columns)

    # --- cleaning -------------------------------------------------------------------------------

    def _sql(self, statement: str) -> None:
        with psycopg.connect(self.servers.dsn, autocommit=True, connect_timeout=60) as connection:
            connection.execute(statement.encode())

    def _clean(self) -> None:
        drop = f'DROP SCHEMA "{self.place}" CASCADE'
        forget = [
            f"DELETE FROM epochal.{table} WHERE app = '{self.place}'" for table in ("sinks", "epochs", "attempts")
        ]
        self._sql(
            f"{drop}; DO $$ BEGIN {'; '.join(forget)};"
            " EXCEPTION WHEN undefined_table OR invalid_schema_name THEN END $$"
        )
        shutil.rmtree(self.folder, ignore_errors=True)
        names = [f"s{n}" for n, sink in enumerate(self.plan.sinks) if sink.kind == "kafka"]
        if names:
            topics = [
                each for name in names for each in (self.topic(name), f"{self.topic(name)}.a", f"{self.topic(name)}.b")
            ]
            self.servers.admin.delete_topics([*topics, *(f"__epochal.{self.place}.{name}" for name in names)])


def _sorted(row: Found) -> list[tuple[str, Any]]:
    return sorted(row.items())


def _without_partitions(records: Sequence[Record]) -> list[Record]:
    return [Record(r.topic, None, r.key, r.value, r.headers) for r in records]


def _mode(sink: SinkPlan) -> Any:
    from epochal.sinks import delta, postgres

    kind: Any = getattr(postgres if sink.kind == "postgres" else delta, sink.mode or "")
    return kind(**sink.keyed)
