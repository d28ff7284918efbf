"""How the rows of one epoch are merged: the SQL statement, its source, and the checks of the source.

Delta's own MERGE does the work, in a transaction of ours (``jvm.Transaction.merge``).  Prepare makes the plan and
stores it in the committable.  So a commit always makes the MERGE that prepare tried, even if ``mode=`` has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Copy, EpochNumber, Json
from epochal.sinks.delta import gates
from epochal.sinks.delta.modes import Merge
from epochal.sinks.rows.keyed import TOLD, Upsertion, check_nulls, check_twice
from epochal.sinks.rows.projection import Projection, settings_of, take_settings
from epochal.sinks.spark.executors import clone
from epochal.sinks.spark.names import column_of, free, quoted
from epochal.sinks.spark.settings import MERGE
from epochal.sinks.spark.stage import read_copy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE = "epochal_source"
"""The temporary view that holds an epoch's rows, in a session that nobody else uses."""


class MergePlan(Upsertion):
    """How the rows of one epoch are merged into the table."""

    def written(self, rows: StructType) -> StructType:
        """Return the columns of the rows that are written to the table."""
        from pyspark.sql.types import StructType

        return StructType([field for field in rows.fields if field.name in self.columns])

    def fitting(self, rows: DataFrame, table: StructType, *, case_sensitive: bool) -> DataFrame:
        """Return the rows, with the written columns in the table's types.

        Columns that are not written, which only the MERGE statement reads, keep their types.
        """
        from pyspark.sql.types import StructType

        fitted = gates.projection(self.written(rows.schema), table, case_sensitive=case_sensitive)
        more = [field for field in rows.schema.fields if field.name not in self.columns]
        return rows.to(StructType([*fitted.fields, *more]))

    def check(self, rows: DataFrame, sink: str, epoch: EpochNumber) -> int:
        """Return how many rows there are.

        ``PrepareRefused``: a column of ``key`` or ``order_by`` is NULL, or a key has several rows and no single last
        one.
        """
        count, most, *nulls = self._counts(rows).collect()[0]
        check_nulls(dict(zip((*self.key, *self.order), nulls, strict=True)), sink, epoch)
        found = self._twice(rows).collect() if most > 1 else []
        check_twice(self, Merge.__name__, found, sink, epoch)
        return int(count)

    def _counts(self, rows: DataFrame) -> DataFrame:
        """Return one row: how many rows, how many of the most frequent key, how many NULL in each required column."""
        from pyspark.sql import functions as f

        named, key, order = self._named(rows)
        nulls = [f.count_if(f.isnull(name)).alias(f"nulls{n}") for n, name in enumerate((*key, *order))]
        by_key = named.groupBy(*key).agg(f.count(f.lit(1)).alias("times"), *nulls)
        sums = [f.sum(f"nulls{n}") for n in range(len(nulls))]
        return by_key.agg(f.sum("times"), f.max("times"), *sums).na.fill(0)

    def _twice(self, rows: DataFrame) -> DataFrame:
        """Return the keys that have several rows and no single last one, those with most rows first, at most ``TOLD``.

        The columns: how many such rows the key has, how many such keys there are, then the values of the key.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        named, key, order = self._named(rows)
        times = _last(named, key, order, f.rank()).groupBy(*key).agg(f.count(f.lit(1)).alias("times"))
        values = [f.col(name).cast("string").substr(1, 80).alias(name) for name in key]
        several = f.count(f.lit(1)).over(Window.partitionBy(f.lit(0)))
        twice = times.where("times > 1").select("times", several.alias("keys"), *values)
        return twice.orderBy(f.desc("times"), *key).limit(TOLD)

    def _named(self, rows: DataFrame) -> tuple[DataFrame, list[str], list[str]]:
        """Return the columns of key and order under names of ours, and these names: none of a user's is among them."""
        key, order = ([f"{what}{n}" for n in range(len(of))] for what, of in (("key", self.key), ("order", self.order)))
        given = zip((*self.key, *self.order), (*key, *order), strict=True)
        return rows.select(*(column_of(name).alias(ours) for name, ours in given)), key, order

    def source(self, rows: DataFrame) -> DataFrame:
        """Return the last row of each key in the epoch."""
        from pyspark.sql import functions as f

        return _last(rows, self.key, self.order, f.row_number())

    def statement(self, target: str) -> str:
        """Return the MERGE statement of ``SOURCE`` into ``target``, which is already quoted."""
        deleted = f"coalesce(new.{quoted(self.delete_when or '')}, false)"
        clauses = [f"WHEN MATCHED AND {deleted} THEN DELETE"] if self.delete_when is not None else []
        if self.update:
            sets = ", ".join(f"shown.{quoted(name)} = new.{quoted(name)}" for name in self.update)
            clauses.append(f"WHEN MATCHED THEN UPDATE SET {sets}")
        inserted = f" AND NOT {deleted}" if self.delete_when is not None else ""
        values = ", ".join(f"new.{quoted(name)}" for name in self.columns)
        clauses.append(f"WHEN NOT MATCHED{inserted} THEN INSERT ({_list(self.columns)}) VALUES ({values})")
        same = " AND ".join(f"shown.{quoted(name)} = new.{quoted(name)}" for name in self.key)
        return f"MERGE INTO {target} shown USING {SOURCE} new ON {same} {' '.join(clauses)}"


@dataclass(frozen=True)
class Work:
    """One epoch to be merged: its copy, which part the sink gets, and the plan.  Stored as JSON in the committable."""

    copy: Copy
    projection: Projection
    settings: Mapping[str, str]  # the session settings with which the projection must be evaluated
    plan: MergePlan

    @classmethod
    def of(cls, copy: Copy, projection: Projection, plan: MergePlan, session: SparkSession) -> Work:
        return cls(copy, projection, {} if projection.is_whole else settings_of(session), plan)

    def session(self, running: SparkSession) -> SparkSession:
        """Return a session that nobody else uses, with the settings of the projection and of the MERGE."""
        own = clone(running)
        if self.settings:
            take_settings(own, self.settings)
        for key, value in MERGE.items():
            own.conf.set(key, value)
        return own

    def rows(self, session: SparkSession) -> DataFrame:
        """Return the rows of the epoch that the sink gets."""
        return self.projection.apply(read_copy(session, self.copy))

    def to_json(self) -> Json:
        return {
            "copy": self.copy.to_json(),
            "projection": self.projection.to_json(),
            "settings": dict(self.settings),
            "plan": self.plan.to_json(),
        }

    @classmethod
    def from_json(cls, sink: str, data: Json) -> Work:
        return cls(
            Copy.from_json(data["copy"]),
            Projection.from_json(sink, data["projection"]),
            data["settings"],
            MergePlan.from_json(data["plan"]),
        )


def _last(rows: DataFrame, key: Sequence[str], order: Sequence[str], place: Column) -> DataFrame:
    """Return the last rows of each key by ``order``; without an order return all rows.

    ``place`` counts from the last row.  With ``rank`` all rows of a tie are returned.
    """
    from pyspark.sql import Window

    if not order:
        return rows
    last_first = Window.partitionBy(*map(column_of, key)).orderBy(*(column_of(name).desc() for name in order))
    ours = free("epochal place", rows.columns)
    return rows.select("*", place.over(last_first).alias(ours)).where(column_of(ours) == 1).drop(ours)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, names))
