"""Workloads: what is fed, what runs on Spark, and what the output must be, computed without Spark.

One file of the source is one epoch.  Every input has an ``id`` that is unique in the whole run, its ``epoch``, an event
time ``at`` (ten seconds per epoch) and a group ``k``.  An output row has an ``id``, a value ``n`` and an ``attempt``.
The kit adds ``attempt`` after the last operator, with new values in every evaluation, because a deterministic job hides
the worst faults.

Where rows are replaced, the value shows which epoch wrote a row: no key has the same value twice.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochal.chaos.job.workload import CheckedWorkload, Input, Workload
from epochal.chaos.observe.history import Row
from epochal.chaos.observe.roles import RoleError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

SCHEMA = "id long, epoch long, at timestamp, k long, original long, deleted boolean"
ROWS = 20  # per epoch
STRIDE = 100_000  # ids reserved per epoch
GROUPS = 4
SECONDS = 10  # event time per epoch
BEGIN = 1_704_067_200  # 2024-01-01 00:00:00 UTC
Fed = Mapping[int, Sequence[Input]]
Expected = Mapping[int, tuple[Row, ...]]


def _inputs(epoch: int, ids: Sequence[int]) -> list[Input]:
    """Plain inputs, with times spread over the ten seconds of the epoch."""
    step = SECONDS / max(1, len(ids))
    return [
        {"id": i, "epoch": epoch, "at": BEGIN + epoch * SECONDS + int(step * n), "k": i % GROUPS, "original": i}
        for n, i in enumerate(ids)
    ]


def file_of(folder: Path, epoch: int) -> Path:
    """Return the source file of an epoch."""
    return folder / f"{epoch:06}.json"


def feed(folder: Path, epoch: int, inputs: Sequence[Input]) -> None:
    """Write the file of one epoch, atomically.  Spark reads the oldest file first, so its time is set."""
    hidden = folder / f".{epoch:06}.json"
    hidden.write_text("\n".join(json.dumps(data) for data in inputs))
    os.utime(hidden, (BEGIN + epoch,) * 2)
    hidden.rename(file_of(folder, epoch))


def _same(fed: Fed) -> Expected:
    """Each input is one output row, in its own epoch."""
    return {epoch: tuple(Row(epoch, i["id"], 0, 1) for i in inputs) for epoch, inputs in fed.items()}


def _plain(stream: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return stream.select("id", f.lit(1).cast("long").alias("n"))


@dataclass(frozen=True)
class Stateless:
    """A query without state.  ``size`` gives the number of inputs of an epoch."""

    name: str
    size: Callable[[int], int] = lambda epoch: ROWS  # noqa: ARG005
    run: Callable[[DataFrame], DataFrame] = _plain
    expect: Callable[[Fed], Expected] = _same
    counted: bool = False

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        return _inputs(epoch, range(first, first + self.size(epoch)))

    def query(self, stream: DataFrame) -> DataFrame:
        return self.run(stream)

    def expected(self, fed: Fed) -> Expected:
        return self.expect(fed)

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [i["id"] for i in inputs]

    def pending(self, fed: Fed) -> int:  # noqa: ARG002
        return 0


def _mapped(stream: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return stream.select("id", (f.col("id") % STRIDE * 7 + f.col("k")).alias("n"))  # 7 times a whole id overflows


def _expect_mapped(fed: Fed) -> Expected:
    return {e: tuple(Row(e, i["id"], 0, i["id"] % STRIDE * 7 + i["k"]) for i in inputs) for e, inputs in fed.items()}


def _skewed(stream: DataFrame) -> DataFrame:
    """Put all but a few rows into one of four partitions."""
    from pyspark.sql import functions as f

    return _plain(stream.repartition(4, f.when(f.col("id") % 10 == 0, f.col("k")).otherwise(f.lit(1))))


@dataclass(frozen=True)
class Windowed:
    """A count per ten seconds of event time.  It comes when the watermark has passed, two epochs later."""

    base: int = 0  # windows are numbered from here, like inputs
    name: str = "window"
    counted: bool = True

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        return _inputs(epoch, range(first, first + ROWS))

    def query(self, stream: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        windows = stream.withWatermark("at", "0 seconds").groupBy(f.window("at", f"{SECONDS} seconds")).count()
        number = ((f.col("window.start").cast("long") - BEGIN) / SECONDS).cast("long")
        return windows.select((number + self.base).alias("id"), f.col("count").alias("n"))

    def expected(self, fed: Fed) -> Expected:
        told = {epoch: len(fed[epoch - 2]) for epoch in fed if epoch - 2 in fed}
        return {epoch: (Row(epoch, self.base + epoch - 2, 0, told[epoch]),) if told.get(epoch) else () for epoch in fed}

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [i["id"] for i in inputs]

    def pending(self, fed: Fed) -> int:
        return sum(len(inputs) for _, inputs in sorted(fed.items())[-2:])


class Joined:
    """A stream-stream join: each left row is joined with its right row, which is fed one epoch later."""

    name = "join"
    counted = True

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        """Return left rows with even ids, and right rows whose ``original`` is a left row of the epoch before."""
        lefts = _inputs(epoch, range(first, first + ROWS, 2))
        rights = _inputs(epoch, range(first + 1, first + ROWS, 2)) if epoch else []
        return [*lefts, *({**i, "original": i["id"] - 1 - STRIDE} for i in rights)]

    def query(self, stream: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        stream = stream.withWatermark("at", "20 seconds")
        lefts = stream.where("id % 2 = 0").select("id", f.col("at").alias("left_at"))
        rights = stream.where("id % 2 = 1").select("original", f.col("at").alias("right_at"))
        meets = (f.col("id") == f.col("original")) & f.expr(
            "right_at >= left_at and right_at <= left_at + interval 30 seconds"
        )
        return lefts.join(rights, meets).select("id", f.lit(2).cast("long").alias("n"))

    def expected(self, fed: Fed) -> Expected:
        lefts = {i["id"] for inputs in fed.values() for i in inputs if i["id"] % 2 == 0}
        return {
            epoch: tuple(Row(epoch, i["original"], 0, 2) for i in inputs if i["id"] % 2 and i["original"] in lefts)
            for epoch, inputs in fed.items()
        }

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [i["id"] for i in inputs]

    def pending(self, fed: Fed) -> int:
        told = sum(row.value for rows in self.expected(fed).values() for row in rows)
        return sum(map(len, fed.values())) - told


class Deduplicated:
    """Half of an epoch's inputs repeat inputs of the epoch before; the output has each original once."""

    name = "dedup"
    counted = False

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        fresh = _inputs(epoch, range(first, first + ROWS))
        if not epoch:
            return fresh
        return [*fresh[: ROWS // 2], *({**i, "original": i["id"] - STRIDE - ROWS // 2} for i in fresh[ROWS // 2 :])]

    def query(self, stream: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        kept = stream.withWatermark("at", "60 seconds").dropDuplicatesWithinWatermark(["original"])
        return kept.select(f.col("original").alias("id"), f.lit(1).cast("long").alias("n"))

    def expected(self, fed: Fed) -> Expected:
        return {e: tuple(Row(e, key, 0, 1) for key in self.accounts(inputs)) for e, inputs in fed.items()}

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [i["id"] for i in inputs if i["original"] == i["id"]]

    def pending(self, fed: Fed) -> int:  # noqa: ARG002
        return 0


class Counting:
    """A query with ``applyInPandasWithState``.  Each input gets its number in its group, counted over all epochs."""

    name = "state"
    counted = False

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        return _inputs(epoch, range(first, first + ROWS))

    def query(self, stream: DataFrame) -> DataFrame:
        numbered = stream.groupBy("k").applyInPandasWithState(
            _number, "id long, n long", "count long", "append", "NoTimeout"
        )
        # Without another operator here, Spark 4.2 passes rows that a Python function cannot read.
        return numbered.where("n > 0")

    def expected(self, fed: Fed) -> Expected:
        counts: Counter[int] = Counter()
        found: dict[int, tuple[Row, ...]] = {}
        for epoch, inputs in sorted(fed.items()):
            rows = []
            for i in sorted(inputs, key=lambda i: int(i["id"])):
                counts[i["k"]] += 1
                rows.append(Row(epoch, i["id"], 0, counts[i["k"]]))
            found[epoch] = tuple(rows)
        return found

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [i["id"] for i in inputs]

    def pending(self, fed: Fed) -> int:  # noqa: ARG002
        return 0


def _number(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG001
    import pandas as pd

    ids = sorted(i for frame in frames for i in frame["id"])
    before = state.get[0] if state.exists else 0
    state.update((before + len(ids),))
    yield pd.DataFrame({"id": ids, "n": range(before + 1, before + len(ids) + 1)})


@dataclass(frozen=True)
class Changes:
    """Changes to rows by their key, for sinks that upsert: inserts, updates, deletes, and inserts of deleted keys.

    The output has one more column, ``deleted``.  If it is true, the row of that ``id`` must be deleted.
    """

    base: int = 0  # inputs are numbered from here
    name: str = "upsert"
    counted: bool = False

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        fresh = [(i, i, False) for i in range(first, first + FRESH)]
        changes = [(key, deleted) for back, which, deleted in AGAIN for key in _fresh(epoch - back, first, back, which)]
        made = [*fresh, *((first + FRESH + n, key, deleted) for n, (key, deleted) in enumerate(changes))]
        about = {i: (key, deleted) for i, key, deleted in made}
        return [
            {**plain, "original": about[plain["id"]][0], "deleted": about[plain["id"]][1]}
            for plain in _inputs(epoch, list(about))
        ]

    def query(self, stream: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return stream.select(f.col("original").alias("id"), (f.col("id") - self.base).alias("n"), "deleted")

    def expected(self, fed: Fed) -> Expected:
        return {epoch: tuple(self._row(i) for i in inputs if not i["deleted"]) for epoch, inputs in fed.items()}

    def after(self, fed: Fed) -> Expected:
        table: dict[int, Row] = {}
        found: dict[int, tuple[Row, ...]] = {}
        for epoch, inputs in sorted(fed.items()):
            for i in inputs:
                table.pop(i["original"], None)
                if not i["deleted"]:
                    table[i["original"]] = self._row(i)
            found[epoch] = tuple(table.values())
        return found

    def _row(self, change: Input) -> Row:
        return Row(change["epoch"], change["original"], 0, change["id"] - self.base)

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [i["original"] for i in inputs]

    def pending(self, fed: Fed) -> int:  # noqa: ARG002
        return 0


FRESH = 8  # keys that an epoch of changes inserts
AGAIN = (
    (1, range(4), False),  # updated by the next epoch,
    (2, range(2), False),  # and by the one after that
    (1, range(4, 8), True),  # deleted by the next epoch,
    (2, range(4, 6), False),  # inserted again,
    (3, range(4, 5), True),  # and deleted again
    (2, range(6, 7), True),  # deleted although it is deleted already
)
"""The changes in an epoch: (how many epochs ago the keys were inserted, which of them, whether they are deleted)."""


def _fresh(epoch: int, first: int, back: int, which: range) -> Iterator[int]:
    """Keys that were inserted ``back`` epochs before the epoch whose ids begin at ``first``."""
    return (first - back * STRIDE + number for number in which if epoch >= 0)


@dataclass(frozen=True)
class Totals:
    """A count per group over all inputs so far, in output mode ``complete``: each epoch is the whole result."""

    base: int = 0  # groups are numbered from here, like inputs
    name: str = "complete"
    counted: bool = True

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        return _inputs(epoch, range(first, first + ROWS))

    def query(self, stream: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return stream.groupBy("k").count().select((f.col("k") + self.base).alias("id"), f.col("count").alias("n"))

    def expected(self, fed: Fed) -> Expected:
        return self.after(fed)

    def after(self, fed: Fed) -> Expected:
        counts: Counter[int] = Counter()
        found: dict[int, tuple[Row, ...]] = {}
        for epoch, inputs in sorted(fed.items()):
            counts.update(i["k"] for i in inputs)
            found[epoch] = tuple(Row(epoch, self.base + k, 0, number) for k, number in sorted(counts.items()))
        return found

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return [i["id"] for i in inputs]

    def pending(self, fed: Fed) -> int:  # noqa: ARG002
        return 0


_ALL: Mapping[str, Callable[[int], Workload]] = {
    "rows": lambda base: Stateless("rows"),  # noqa: ARG005
    "map": lambda base: Stateless("map", run=_mapped, expect=_expect_mapped),  # noqa: ARG005
    "empty": lambda base: Stateless("empty", size=lambda epoch: 0 if epoch % 3 == 1 else ROWS),  # noqa: ARG005
    "huge": lambda base: Stateless("huge", size=lambda epoch: 20_000 if epoch == 2 else ROWS),  # noqa: ARG005
    "skewed": lambda base: Stateless("skewed", size=lambda epoch: 200, run=_skewed),  # noqa: ARG005
    "window": Windowed,
    "join": lambda base: Joined(),  # noqa: ARG005
    "dedup": lambda base: Deduplicated(),  # noqa: ARG005
    "state": lambda base: Counting(),  # noqa: ARG005
    "upsert": Changes,
    "complete": Totals,
}
NAMES = tuple(_ALL)
STATEFUL = frozenset({"window", "join", "dedup", "state", "complete"})


def output_mode(name: str) -> str:
    """Return Spark's output mode for that workload."""
    return "complete" if name == "complete" else "append"


def make_workload(name: str, base: int) -> CheckedWorkload:
    """Return the workload of that name for a run whose ids begin at ``base``.  Raises RoleError for an unknown name."""
    if name not in _ALL:
        raise RoleError(f"workload {name!r} is none of {', '.join(NAMES)}")
    return CheckedWorkload(_ALL[name](base))
