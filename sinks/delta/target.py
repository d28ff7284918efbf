"""Which table a sink writes: the table at a path, or the table with a name in Spark's session catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta import jvm
from epochal.sinks.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SESSION_CATALOG = "spark_catalog"
"""The catalog in which table names are looked up, even if another catalog is the current one."""


@dataclass(frozen=True)
class Target:
    """A table, by its path or by its name in the catalog: exactly one of the two is not None."""

    path: str | None
    table: str | None

    @classmethod
    def of(cls, path: str | None, table: str | None) -> Target:
        if (path is None) == (table is None):
            raise Misconfigured(
                f"DeltaSink({path!r}, table={table!r}) names {'no table' if path is None else 'two tables'}",
                help="give the path of the table, or table='schema.name' as Spark's catalog has it",
            )
        return cls(path, table)

    def __str__(self) -> str:
        return str(self.path if self.table is None else self.table)

    @property
    def default_name(self) -> str:
        """The name of a sink that was given no name."""
        if self.path is not None:
            return "delta-" + self.path.rstrip("/").rpartition("/")[2]
        return "delta-" + re.sub(r"[^A-Za-z0-9._-]", "_", str(self.table))

    @property
    def sql(self) -> str:
        """The table as an SQL statement names it."""
        return f"delta.{quoted(self.path)}" if self.path is not None else f"{SESSION_CATALOG}.{self.table}"

    def location(self, spark: SparkSession, sink: str) -> str | None:
        """Return the path of the table; None if the catalog has no table with this name.

        ``Misconfigured``: the name has no schema, is invalid, or is not that of a Delta table.
        """
        if self.table is None:
            return self.path
        try:
            if not jvm.names_schema(spark, self.table):
                raise Misconfigured(
                    f"table={self.table!r} names no schema",
                    sink=sink,
                    state="the name means another table if the current schema changes or a temporary view takes it",
                    help=f"give table='schema.name', and name={sink!r}, the name of the sink so far",
                )
            found = jvm.catalogued(spark, self.table)
        except jvm.JavaFailure as failure:
            if failure.is_a("NoSuchTableException", "NoSuchDatabaseException", "NoSuchNamespaceException"):
                return None
            raise Misconfigured(
                f"table={self.table!r} is no name of a table in Spark's session catalog",
                sink=sink,
                state=failure.message.partition("\n")[0],
                help="give table='schema.name'; a table of another catalog by its path",
            ) from failure
        if found.provider != "delta":
            raise Misconfigured(
                f"{self.table} is no Delta table",
                sink=sink,
                state=f"the catalog says: {found.kind}, provider {found.provider}",
                help="give table= the name of a Delta table, or give the path of one in its place",
            )
        return found.location
