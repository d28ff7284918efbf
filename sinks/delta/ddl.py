"""Columns as ``ALTER TABLE ... ADD COLUMNS`` takes them, so that no setting of a session gives them another meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.sinks.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def columns(added: StructType) -> str:
    """Return new columns, which may be NULL, as their fields may."""
    return ", ".join(f"{quoted(field.name)} {type_of(field.dataType)}" for field in added.fields)


def type_of(kind: DataType) -> str:
    """Return the type.  ``TIMESTAMP`` alone would be what ``spark.sql.timestampType`` says."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {type_of(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{type_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_of(kind.keyType)}, {type_of(kind.valueType)}>"
    return "TIMESTAMP_LTZ" if isinstance(kind, TimestampType) else kind.simpleString().upper()
