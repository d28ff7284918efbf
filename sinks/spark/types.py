"""Spark's types of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def relaxed(kind: DataType, with_metadata: bool = False) -> DataType:
    """Return the type, with everything inside it nullable."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    def inner(part: DataType) -> DataType:
        return relaxed(part, with_metadata)

    def told(field: StructField) -> dict[str, Any] | None:
        return field.metadata if with_metadata else None

    if isinstance(kind, StructType):
        return StructType([StructField(f.name, inner(f.dataType), True, told(f)) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(inner(kind.elementType), containsNull=True)
    if isinstance(kind, MapType):
        return MapType(inner(kind.keyType), inner(kind.valueType), valueContainsNull=True)
    return kind
