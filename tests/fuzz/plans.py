"""Random pipelines, as data: columns, rows, sinks with their options, and settings of the session.

A plan is made from a seed and a number alone, so the same two give the same pipeline again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pyspark.sql import types as t

from tests.fuzz import settings, values
from tests.fuzz.frames import EXOTIC, Column, Row
from tests.fuzz.select import Projected, Where, projected, where
from tests.real.sinks.hostile import NAMES

TAKEN: tuple[str, ...] = ("_epoch", "_attempt", "ctid", "xmin", "_sink", "_reason", "__epochal_hash", "__epochal_kept")
TAKEN += ("__epochal_row", "_file_name_", "_row_id_", "_commit_version", "_change_type", "_metadata", "", "a\0b")
TAKEN += ("n" * 64, "é" * 40)
HEADERS = t.ArrayType(t.StructType().add("key", "string", nullable=False).add("value", "binary"))
LOOSE_HEADERS = t.ArrayType(t.StructType().add("key", "string").add("value", "string"))
JUNK: tuple[Any, ...] = (
    None,
    0,
    -1,
    1.5,
    10**30,
    float("nan"),
    True,
    "",
    " ",
    "x",
    b"x",
    (),
    ["a"],
    [None],
    {},
    {"a": 1},
)
JUNK += (object, "a\0b", "`", float("inf"), ["a", "a"], 3)
EPOCHS = (1, 1, 2, 2)


@dataclass(frozen=True)
class SinkPlan:
    """One sink: its ``options`` are the arguments of its class, except those that have fields of their own here."""

    kind: str  # postgres, kafka, delta, memory
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    keyed: Mapping[str, Any] = field(default_factory=dict)  # the arguments of Upsert and Merge
    select: Projected | None = None
    where: Where | None = None
    bad_rows: SinkPlan | None = None
    junk: Mapping[str, Any] = field(default_factory=dict)  # options that somebody has set without thinking

    def __repr__(self) -> str:
        parts = [f"{self.mode}({dict(self.keyed) or ''})" if self.mode else "", str(dict(self.options))]
        parts += [f"{name}={part!r}" for name in ("select", "where", "bad_rows") if (part := getattr(self, name))]
        parts += [f"junk={dict(self.junk)!r}"] if self.junk else []
        return f"{self.kind}[{', '.join(filter(None, parts))}]"


@dataclass(frozen=True)
class Plan:
    """One pipeline."""

    columns: tuple[Column, ...]
    epochs: tuple[tuple[Row, ...], ...]
    sinks: tuple[SinkPlan, ...]
    mode: str = "two-phase"
    settings: Mapping[str, str] = field(default_factory=dict)
    restarts: bool = False  # each epoch is the first one of a new start
    grows: bool = False  # the last column is there from the second epoch on
    partitions: int = 1
    compiled: bool = False  # whether Spark makes Java code of its plans, which takes most of the time of a small job

    def __str__(self) -> str:
        lines = [f"columns: {list(self.columns)}"]
        lines += [f"epoch {n}: {[_short(row) for row in rows]}" for n, rows in enumerate(self.epochs)]
        lines += [f"sink: {sink}" for sink in self.sinks]
        lines += [f"settings: {dict(self.settings)}"] if self.settings else []
        lines += [", ".join(f"{n}={getattr(self, n)}" for n in ("mode", "restarts", "grows", "partitions", "compiled"))]
        return "\n".join(lines)

    def columns_of(self, epoch: int) -> tuple[Column, ...]:
        return self.columns[:-1] if self.grows and epoch == 0 else self.columns

    def rows_of(self, epoch: int) -> list[Row]:
        return [row[: len(self.columns_of(epoch))] for row in self.epochs[epoch]]


def _short(row: Row) -> str:
    return ", ".join(text if len(text := repr(value)) < 200 else f"{text[:40]}... of {len(text)}" for value in row)


def plan(seed: int, number: int) -> Plan:
    """The ``number``-th pipeline of a seed."""
    return _Maker(Random(f"{seed} {number}")).plan()


class _Maker:
    def __init__(self, choose: Random) -> None:
        self.choose = choose
        self.hostile = choose.random() < 0.45
        self.plain = choose.random() < 0.5  # without the signs that a table of Delta refuses
        self.taken: set[str] = set()
        self.columns: list[Column] = []
        self.partition: Column | None = None  # the columns that say where a row goes in Kafka
        self.routed: Column | None = None

    def often(self, probability: float) -> bool:
        return self.choose.random() < probability

    def name(self) -> str:
        """A name for a column or a field.  Seldom one that the session takes for another one of the same schema."""
        while True:
            name = f"c{self.choose.randint(0, 999)}"
            if self.hostile:
                name = self.choose.choice(TAKEN if self.often(0.02) else NAMES)
            if self.plain and set(name) & set(" ,;{}()\n\t="):
                continue
            if name.lower() not in self.taken or (self.hostile and self.often(0.01)):
                self.taken.add(name.lower())
                return name

    def add(self, kind: t.DataType, nullable: bool | None = None, exotic: str | None = None) -> str:
        nullable = self.often(0.85) if nullable is None else nullable
        self.columns.append(Column(self.name(), kind, nullable, exotic))
        return self.columns[-1].name

    def plan(self) -> Plan:
        serial = self.add(t.LongType(), nullable=False)
        few = self.add(self.choose.choice((t.StringType(), t.LongType(), t.DateType())), nullable=False)
        serials, fews = self.columns
        flag = self.add(t.BooleanType()) if self.often(0.4) else None
        most = (40, 30, 36 if self.plain else 8, 4)
        kinds = self.choose.choices(("postgres", "kafka", "delta", "memory"), most, k=self.choose.choice((1, 1, 1, 2)))
        mode = "idempotent" if self.often(0.2) else "two-phase"
        if "memory" in kinds and len(kinds) > 1:
            mode = "two-phase"  # the digest of a sink in memory is its own, and agrees with no other sink's
        roles = self._roles() if "kafka" in kinds else {}
        for _ in range(self.choose.randint(0, 4)):
            self.add(values.kind(self.choose, self.name))
        if self.often(0.04):
            self.add(t.LongType(), True, self.choose.choice(list(EXOTIC)))
        sinks = [self._sink(kind, mode, serial, few, flag, roles) for kind in kinds]
        self.choose.shuffle(self.columns)
        count = self.choose.choice(EPOCHS)
        odd = self.choose.choice((0.0, 0.0, 0.0, 0.05, 0.2))
        grows = count > 1 and self.columns[-1].name not in _named(sinks) and self.often(0.12)
        return Plan(
            tuple(self.columns),
            tuple(self._rows(odd, fews, serials, epoch) for epoch in range(count)),
            tuple(sinks),
            mode,
            settings.some(self.choose) if self.often(0.3) else {},
            restarts=grows or self.often(0.2),
            grows=grows,
            partitions=self.choose.choice((1, 1, 2)),
            compiled=self.often(0.25),
        )

    def _rows(self, odd: float, few: Column, serial: Column, epoch: int) -> tuple[Row, ...]:
        rows = []
        # not by name: two columns may have one
        at_serial, at_few = (next(n for n, c in enumerate(self.columns) if c is one) for one in (serial, few))
        for number in range(self.choose.choice((0, 1, 2, 4))):
            given = [self._value(c, odd) for c in self.columns]
            given[at_serial] = 100 * epoch + number
            low = self.choose.randint(0, 9)
            given[at_few] = str(low).encode() if isinstance(few.kind, t.StringType) else low
            rows.append(tuple(given))
        return tuple(rows)

    def _value(self, column: Column, odd: float) -> Any:
        if column is self.partition:
            return self.choose.choice((None, 0, 0, 0, 7 if odd else 0))
        if column is self.routed:
            return self.choose.choice((b"{topic}.a", b"{topic}.b", b"nowhere" if odd else b"{topic}.a"))
        return values.value(self.choose, column.kind, 0.0 if column.exotic else odd, column.nullable)

    def _roles(self) -> Mapping[str, str]:
        roles: dict[str, str] = {}
        if self.often(0.5):
            roles["key"] = self.add(self.choose.choice((t.StringType(), t.BinaryType())))
        if self.often(0.3):
            roles["value"] = self.add(self.choose.choice((t.StringType(), t.BinaryType())))
        if self.often(0.25):
            roles["headers"] = self.add(LOOSE_HEADERS if self.often(0.2) else HEADERS)
        if self.often(0.2):
            roles["partition"] = self.add(self.choose.choice((t.IntegerType(), t.LongType())), True)
            self.partition = self.columns[-1]
        if self.often(0.15):
            roles["topic"] = self.add(t.StringType(), False)
            self.routed = self.columns[-1]
        return {role: self._any() if self.often(0.03) else name for role, name in roles.items()}

    def _any(self) -> str:
        return self.choose.choice([*(c.name for c in self.columns), "no such column"])

    def _sink(
        self, kind: str, mode: str, serial: str, few: str, flag: str | None, roles: Mapping[str, str]
    ) -> SinkPlan:
        select = projected(self.choose, self.columns, serial) if self.often(0.25) else None
        condition = where(self.choose, serial) if self.often(0.2) else None
        if kind == "memory":
            return SinkPlan("memory")
        if kind == "kafka":
            return self._kafka(mode, roles, select, condition)
        options: dict[str, Any] = {}
        weights = (4, 2, 4) if kind == "postgres" else (4, 3, 2.5 if mode == "two-phase" else 0.2)
        modes = ("Append", "Plain" if kind == "postgres" else "Overwrite", "Upsert" if kind == "postgres" else "Merge")
        (way,) = self.choose.choices(modes, weights)
        keyed = self._keyed(serial, few, flag, kind) if way == modes[2] else {}
        if kind == "delta":
            return self._delta(way, keyed, select, condition)
        if way == "Plain" and self.often(0.2):
            keyed = {"trial": False}
        options |= {"connections": self.choose.choice((1, 2))} if self.often(0.3) else {}
        options |= {"schema_evolution": True} if self.often(0.3) else {}
        options |= {"keep_epochs": self.choose.choice((1, 10, 20, None))} if self.often(0.2) else {}
        options |= {"keep_days": 0.5} if self.often(0.1) else {}
        options |= {"view": "reader"} if way == "Append" and self.often(0.2) else {}
        options |= (
            {"table": self.choose.choice(('"', "a b", "Ä'", "select", "%s", "x" * 50, "T"))} if self.often(0.15) else {}
        )
        bad = self._bad() if self.often(0.25) else None
        junk = self._junk("connections", "bulk_timeout", "keep_epochs", "view", "table", "select", "where", "bad_rows")
        return SinkPlan("postgres", options, way, keyed, select, condition, bad, junk)

    def _delta(self, way: str, keyed: Mapping[str, Any], select: Projected | None, condition: Where | None) -> SinkPlan:
        options: dict[str, Any] = {"merge_schema": True} if self.often(0.3) else {}
        if self.often(0.25):
            options["partition_by"] = [self._any()]
        if self.often(0.1):
            options["path"] = self.choose.choice(("a b", "ä", "x=1", "p+q", "a'b"))
        elif self.often(0.15):
            options["table"] = True
        junk = self._junk("partition_by", "merge_schema", "select", "where", "table", "name")
        return SinkPlan("delta", options, way, keyed, select, condition, None, junk)

    def _kafka(
        self, mode: str, roles: Mapping[str, str], select: Projected | None, condition: Where | None
    ) -> SinkPlan:
        options: dict[str, Any] = dict(roles)
        options |= {"tombstones": True} if "value" in roles and self.often(0.5) else {}
        options |= {"slots": self.choose.choice((2, 3))} if mode == "two-phase" and self.often(0.15) else {}
        options |= {"partitions": self.choose.choice((2, 3))} if self.often(0.3) else {}
        options |= {"transaction_timeout": self.choose.choice((5, 60.5))} if self.often(0.1) else {}
        options |= {"keep_epochs": self.choose.choice((1, 10, 20, None))} if self.often(0.2) else {}
        options |= {"partitioner": self.choose.choice(("murmur2", "consistent", "random"))} if self.often(0.15) else {}
        options |= {"options": self.choose.choice(CLIENT)} if self.often(0.2) else {}
        options |= {"topic_config": self.choose.choice(TOPIC)} if self.often(0.15) else {}
        if "value" not in roles and self.often(0.1):
            options["value"] = self.choose.choice(sorted(MAKERS))
        bad = self._bad() if self.often(0.2) else None
        junk = self._junk("key", "value", "headers", "partition", "slots", "options", "topic_config", "partitions")
        return SinkPlan("kafka", options, None, {}, select, condition, bad, junk)

    def _keyed(self, serial: str, few: str, flag: str | None, kind: str) -> Mapping[str, Any]:
        key = self.choose.choice(([few], [few], [few], [serial], [few, serial], few))
        key = [self._any()] if self.often(0.15) else key
        keyed: dict[str, Any] = {"key": key}
        rest = [c.name for c in self.columns if c.name not in key and c.name != flag]
        if flag is not None and self.often(0.7):
            keyed["delete_when"] = flag
        if self.often(0.7) and rest:
            keyed["order_by"] = [serial] if serial in rest and self.often(0.6) else [self.choose.choice(rest)]
        if self.often(0.25):
            keyed["update"] = self.choose.sample(rest, self.choose.randint(0, min(2, len(rest))))
        if kind == "postgres" and self.often(0.1):
            keyed["trial"] = False
        return keyed

    def _bad(self) -> SinkPlan:
        if self.often(0.05):
            return SinkPlan("kafka")
        return (
            SinkPlan("delta", {}, "Append")
            if self.often(0.6)
            else SinkPlan("postgres", {}, self.choose.choice(("Append", "Plain")))
        )

    def _junk(self, *names: str) -> Mapping[str, Any]:
        return {self.choose.choice(names): self.choose.choice(JUNK)} if self.often(0.06) else {}


CLIENT: Sequence[Mapping[str, Any]] = (
    {"compression.type": "zstd"},
    {"linger.ms": 1},
    {"queue.buffering.max.kbytes": 16},
    {"queue.buffering.max.messages": 1},
    {"message.max.bytes": 2000},
    {"acks": "1"},
    {"no.such.option": "x"},
    {"batch.size": 1},
    {"compression.type": "none"},
)
TOPIC: Sequence[Mapping[str, str]] = (
    {"cleanup.policy": "compact"},
    {"max.message.bytes": "2000"},
    {"retention.ms": "1000"},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.before.max.ms": "1"},
    {"no.such": "x"},
    {"min.insync.replicas": "2"},
)
MAKERS = {"bytes": b"made", "none": None, "text": "made", "raises": ValueError, "topic": ...}
"""Functions for ``value=``, by name, and what they return."""


def _named(sinks: Sequence[SinkPlan]) -> set[str]:
    """Every name that an option of a sink may mean."""
    found: set[str] = set()
    for sink in sinks:
        for given in (*sink.options.values(), *sink.keyed.values()):
            found |= {given} if isinstance(given, str) else set(given) if isinstance(given, list) else set()
        found |= set(sink.select.names if sink.select is not None else ())
        found |= {sink.where.of} if sink.where is not None else set()
    return found
