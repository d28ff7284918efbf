"""Which questions do the benchmarks answer?  Each module is one table, and its ``run(options)`` measures it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.results import Result

TABLES: Mapping[str, str] = {
    "throughput": "rows per second of each sink and of three together, beside each peer",
    "small": "time of a small epoch over a bare foreachBatch, phase by phase",
    "modes": "each mode of each sink, beside a plain append",
    "width": "rows of 1,500 columns, and of a struct of 1,500 fields, beside Spark's own writer of each system",
    "reader-view": "scans and look-ups through a Postgres sink's view, beside a plain table",
    "flink": "rows per second into Kafka beside Flink's KafkaSink, exactly-once and at-least-once, 8 million rows",
    "recovery": "from the start of a driver to its first new commit after each kind of fault, beside Spark alone",
    "latency": "from a row's making to its being seen by a reader of the sink, at triggers of 1 s, beside each peer",
    "memory": "peaks of driver, JVM and Python workers at 1, 10 and 50 million rows per epoch",
    "growth-postgres": "an epoch, a start, the bytes kept and the view, from epoch 10 to 100,000",
    "growth-kafka": "an epoch, a start and the bytes kept, from epoch 10 to 100,000",
    "growth-delta": "the same of Delta, beside Spark's own append to a table as old",
    "consistency": "what faults do to each sink, mode and peer: lost, duplicated, torn, out of order; the cost beside",
    "consistency-flink": "what faults do to Flink's job into Kafka, exactly-once and at-least-once: lost, duplicated",
}

GROWTH = ("growth-postgres", "growth-kafka", "growth-delta")
LONG = (*GROWTH, "consistency", "consistency-flink")
"""The long tables, which `most` leaves out."""
SEVERAL: Mapping[str, Sequence[str]] = {
    "all": tuple(TABLES),
    "most": tuple(name for name in TABLES if name not in LONG),
    "growth": GROWTH,
}


@dataclass(frozen=True)
class Options:
    """``rounds``: how many rounds count.  ``quick``: fewer rows and cases, only to see that everything runs."""

    rounds: int
    quick: bool

    @property
    def warm_up(self) -> int:
        """How many rounds come before and are not kept.  A quick run, which answers no goal, has none."""
        return 0 if self.quick else 1


class Table(Protocol):
    """What a module of ``tables/`` must have."""

    def run(self, options: Options) -> Result: ...


def table(name: str) -> Table:
    module: Table = importlib.import_module(f"benchmarks.tables.{name.replace('-', '_')}")
    return module
