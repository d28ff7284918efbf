"""Columns that were renamed in the table (column mapping) while the query still says the old name.

To add a column with the old name would split the data: the rows so far under one name, the new ones under another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Json
from epochal.sinks.delta import gates, jvm
from epochal.sinks.delta.core import Core
from epochal.sinks.delta.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NEWEST = 1_000
"""How many versions of the table are searched for a RENAME COLUMN."""
_PHYSICAL = "delta.columnMapping.physicalName"


def renamed(sink: Core, rows: StructType, metadata: Json) -> Mapping[str, str]:
    """Return the columns of the rows that the table has under another name now, with that name.

    ``rows``: what the sink is given, with columns that only the mode reads.  The table's history is read only if a
    column is missing, and once for each schema of the table.
    """
    missing = [name for name in sink.added(rows, metadata).names if name not in sink.unwritten]
    if not missing or not gates.is_mapped(metadata):
        return {}
    if sink.renames is None or sink.renames[0] != metadata["schemaString"]:
        with sink.say.unavailable("the table's history"):
            sink.renames = metadata["schemaString"], _of_history(jvm.session(sink.name), sink.target)
    fields = jvm.schema_of(metadata).fields
    told = {str(field.metadata.get(_PHYSICAL)): field.name for field in fields} | dict(sink.renames[1])
    known = told if sink.case_sensitive() else {old.lower(): new for old, new in told.items()}
    now = {name: known.get(name if sink.case_sensitive() else name.lower()) for name in missing}
    return {name: new for name, new in now.items() if new in [field.name for field in fields]}


def problems(found: Mapping[str, str]) -> list[str]:
    """Return a sentence for each renamed column."""
    return [f"column {old}: the table has renamed it, to {new}" for old, new in found.items()]


def remedy(found: Mapping[str, str]) -> str:
    calls = "".join(f".withColumnRenamed({old!r}, {new!r})" for old, new in found.items())
    return f"rename it in the query too: df{calls}; if you mean another column, add it with ALTER TABLE ... ADD COLUMNS"


def _of_history(spark: SparkSession, target: Target) -> Mapping[str, str]:
    """Return old names of columns, each with the name to which the last RENAME COLUMN of it leads."""
    with jvm.java_errors():
        lines = jvm.run(spark, f"DESCRIBE HISTORY {target.sql} LIMIT {NEWEST}").where("operation = 'RENAME COLUMN'")
        steps = [row[0] for row in lines.orderBy("version").select("operationParameters").collect()]
    return followed([(_name(step["oldColumnPath"]), _name(step["newColumnPath"])) for step in steps])


def followed(steps: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """Follow a column that was renamed several times.  ``steps``: old name and new name, the oldest first."""
    found: dict[str, str] = {}
    for old, new in steps:
        found = {first: new if last == old else last for first, last in found.items()} | {old: new}
    return found


def _name(path: str) -> str:
    """Return a column's name as Delta's history quotes it."""
    return path[1:-1].replace("``", "`") if path.startswith("`") and path.endswith("`") else path
