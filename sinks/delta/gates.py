"""What a Delta table can hold, as pure functions of schemas.

Delta's ``writeFiles`` does not check types (a string written for a bigint makes an unreadable file), and it drops
columns that the table does not have.  Spark's ``DataFrame.to`` narrows types (bigint to int).  So these functions
decide before anything is written.  Columns are matched by name; the type of a column must be the table's type, or one
whose values the table's type holds exactly; no column is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Json
from epochal.sinks.delta.jvm import schema_of
from epochal.sinks.spark.expressions import is_invalid_utf8
from epochal.sinks.spark.names import quoted, twins
from epochal.sinks.spark.types import relaxed

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

RETENTION = "delta.setTransactionRetentionDuration"
RETENTION_DEFAULT = "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration"
"""The session setting that gives this property to every new table."""
APPEND_ONLY = "delta.appendOnly"

MAPPING = "delta.columnMapping.mode"
NTZ_PROPERTY = "delta.feature.timestampNtz"
_OF_MERGE = (  # seen with Delta 4.4: a column of that name is ambiguous inside Delta's MERGE
    "_file_name_",
    "_row_dropped_",
    "_row_id_",
    "_source_row_present_",
    "_target_row_present_",
    "_tmp_metadata_row_index",
)
_NO_NAME = " ,;{}()\n\t="

_DIGITS = {"ByteType": 3, "ShortType": 5, "IntegerType": 10, "LongType": 19}  # decimal digits
_WHOLE_TO = {
    "ByteType": ("ShortType", "IntegerType", "LongType", "FloatType", "DoubleType"),
    "ShortType": ("IntegerType", "LongType", "FloatType", "DoubleType"),
    "IntegerType": ("LongType", "DoubleType"),
    "FloatType": ("DoubleType",),
}
_GENERATED = "delta.generationExpression"
_DEFAULT = "CURRENT_DEFAULT"  # the metadata key under which Spark keeps a column's default, as SQL
_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
_NTZ_FEATURE = NTZ_PROPERTY.rpartition(".")[2]  # the one feature of a type that Delta 4.4 does not turn on itself
_NEVER = ("NullType", "DayTimeIntervalType", "YearMonthIntervalType")


def unholdable(schema: StructType) -> list[str]:
    """Return the columns whose type no Delta table can hold, and names that it takes for one, a sentence each."""
    twice = [f"column {name}: it is there twice" for _, name in twins(schema, case_sensitive=False)]
    return twice + [
        f"column {name}: a Delta table cannot hold {kind.simpleString()}"
        for name, kind in _leaves("", schema)
        if type(kind).__name__ in _NEVER or kind.typeName() == "interval"
    ]


def unsupported(added: StructType, protocol: Json) -> list[str]:
    """Return the columns that Delta adds only to a table with a feature that this table lacks, a sentence each."""
    if _NTZ_FEATURE in protocol.get("writerFeatures", ()):
        return []
    return [
        f"column {name}: {kind.simpleString()} needs the table feature {_NTZ_FEATURE}"
        for name, kind in _leaves("", added)
        if type(kind).__name__ == "TimestampNTZType"
    ]


def unnamed(schema: StructType) -> list[str]:
    """Return the columns whose name a Delta table without column mapping does not take, a sentence each."""
    return [
        f"column {name!r}: Delta takes no name with one of {_NO_NAME!r}, unless the table has column mapping"
        for name in dict.fromkeys(_names("", schema))
        if any(letter in name for letter in _NO_NAME)
    ]


def names_of_merge(columns: Iterable[str]) -> list[str]:
    """Return the columns that a MERGE cannot have in its rows or its table, a sentence each."""
    return [f"column {name}: Delta's MERGE adds one of that name" for name in of_merge(columns)]


def of_merge(columns: Iterable[str]) -> list[str]:
    """Return the names that Delta's MERGE needs for itself."""
    return [name for name in columns if name.lower() in _OF_MERGE]


def is_mapped(metadata: Json) -> bool:
    """Return whether the names of the table's columns are only names, and its files have others."""
    return bool(metadata["configuration"].get(MAPPING, "none") != "none")


def forgets(metadata: Json) -> str | None:
    """Return why Delta may drop this table's transaction ids, as a sentence; None if it keeps them for ever."""
    kept = metadata["configuration"].get(RETENTION)
    return f"{RETENTION} = {kept!r} lets Delta forget the marker and the fence" if kept is not None else None


def identities(metadata: Json) -> list[str]:
    """Return the columns that Delta numbers itself, a sentence each."""
    return [
        f"column {field.name}: an identity column gets repeated values when rows are prepared before they are committed"
        for field in schema_of(metadata).fields
        if any(key.startswith("delta.identity.") for key in field.metadata)
    ]


def append_only(metadata: Json) -> list[str]:
    """Return why rows of the table can be neither replaced nor changed, as a sentence; none if they can."""
    if metadata["configuration"].get(APPEND_ONLY) != "true":
        return []
    return [f"{APPEND_ONLY} = 'true': rows that are there can be neither replaced nor changed"]


def key_problems(metadata: Json, key: Sequence[str]) -> list[str]:
    """Return the columns that cannot be in the key of a MERGE, a sentence each.

    Spark pads what it reads of a CHAR(n), and Delta 4.4 then makes no MERGE on it.
    """
    return [f"column {name}: Delta merges on no key of the type CHAR" for name in char_keys(metadata, key)]


def char_keys(metadata: Json, key: Sequence[str]) -> list[str]:
    """Return the columns of the key that are CHAR(n) in the table.  Spark keeps this type beside that of a string."""
    kinds = {field.name.lower(): str(field.metadata.get(_DECLARED, "")) for field in schema_of(metadata).fields}
    return [name for name in key if kinds.get(name.lower(), "").startswith("char(")]


def inner_not_null(table: StructType, names: Sequence[str]) -> list[str]:
    """Return the paths inside the columns ``names`` of the table that cannot be NULL.

    Delta's MERGE casts each column of the rows to the type of the table's, and Spark casts nothing that may be NULL to
    what may not.  The rows come from a copy, of which Spark says that each part of a column may be NULL.
    """
    wanted = {name.lower() for name in names}
    return [path for f in table.fields if f.name.lower() in wanted for path in _not_null(quoted(f.name), f.dataType)]


def loosened(schema: StructType) -> StructType:
    """Return the columns of a new table: as in ``schema``, but inside a column everything may be NULL.

    Delta refuses a NULL struct if a field of it is NOT NULL.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, relaxed(f.dataType, True), f.nullable, f.metadata) for f in schema.fields])


def row_problems(rows: StructType, table: StructType, *, case_sensitive: bool) -> list[str]:
    """Return why rows with schema ``rows`` do not fit the table exactly, a sentence each."""
    return [*unholdable(rows), *_struct_problems("", rows, table, case_sensitive)]


def added(rows: StructType, table: StructType) -> StructType:
    """Return the columns of the rows that the table does not have, as new columns: nullable, nested fields too."""
    from pyspark.sql.types import StructType

    there = {field.name.lower() for field in table.fields}  # no Delta table has two names that differ only in case
    new = relaxed(StructType([f for f in rows.fields if f.name.lower() not in there]))
    assert isinstance(new, StructType)
    return new


def lacked(rows: StructType, table: StructType, *, case_sensitive: bool) -> list[str]:
    """Return the columns or fields that the table needs a value for and the rows do not have."""
    given = {_key(field.name, case_sensitive) for field in rows.fields}
    return [
        field.name
        for field in table.fields
        if _key(field.name, case_sensitive) not in given
        and not field.nullable
        and not {_GENERATED, _DEFAULT} & field.metadata.keys()
    ]


def in_both(rows: Sequence[str], table: Sequence[str], *, case_sensitive: bool) -> list[str]:
    """Return the columns of the rows that the table has too, as the rows spell them."""
    there = {_key(name, case_sensitive) for name in table}
    return [name for name in rows if _key(name, case_sensitive) in there]


def nameless_partitions(names: Iterable[str]) -> list[str]:
    """Return a sentence if a column without a name partitions the table: Spark finds no name in the folder ``=2``."""
    return ["column '': Spark writes no partition of a column without a name"] if "" in names else []


def partitions(metadata: Json) -> list[StructField]:
    """Return the columns that partition the table."""
    names = set(metadata["partitionColumns"])
    return [field for field in schema_of(metadata).fields if field.name in names]


def is_unkept(value: str, kind: DataType) -> str | None:
    """Return the text of a condition: Delta reads a partition value back as another value.  None: it never does.

    Delta keeps a partition value as text, in the name of a folder.  Seen with Delta 4.4: an empty text
    (delta-io/delta#2100) and Hive's word for NULL come back as NULL; bytes that are not valid text come back as
    replacement characters; of the two times that a repeated hour of the clock has, the later one comes back as the
    earlier one.
    """
    from pyspark.sql.types import BinaryType, StringType, TimestampType

    text = f"CAST({value} AS STRING)"
    if isinstance(kind, (StringType, BinaryType)):
        return f"({text} IN ('', '__HIVE_DEFAULT_PARTITION__') OR {is_invalid_utf8(text)})"
    return f"CAST({text} AS TIMESTAMP_LTZ) != {value}" if isinstance(kind, TimestampType) else None


def with_columns(table: StructType, added: StructType) -> StructType:
    """Return the schema of the table once the columns ``added`` are in it."""
    from pyspark.sql.types import StructType

    return StructType([*table.fields, *added.fields])


def projection(rows: StructType, table: StructType, *, case_sensitive: bool) -> StructType:
    """Return the table's columns that the rows have, as the schema for ``DataFrame.to``.

    The columns are nullable, because Delta itself checks NOT NULL row by row.  Columns that the rows do not have are
    left out, because Delta itself computes generated columns and fills in defaults.  Delta's column metadata is left
    out too.
    """
    from pyspark.sql.types import StructType

    given = {_key(field.name, case_sensitive) for field in rows.fields}
    kept = [field for field in table.fields if _key(field.name, case_sensitive) in given]
    loose = relaxed(StructType(kept))
    assert isinstance(loose, StructType)
    return loose


def is_like(rows: StructType, wanted: StructType) -> bool:
    """Return whether rows have the columns that :func:`projection` returned: names, order, types and metadata."""
    return relaxed(rows, with_metadata=True) == wanted


def holds_as_they_are(rows: StructType, metadata: Json) -> bool:
    """Return whether files of the table hold exactly such rows: each column under its name, with its type, in order."""
    if metadata["partitionColumns"] or _is_on(metadata, *_REARRANGES) or _has_own_parquet(metadata):
        return False
    table = {field.name: field for field in schema_of(metadata).fields}
    if not all(name in table for name in rows.names):
        return False
    same = all(relaxed(table[field.name].dataType) == relaxed(field.dataType) for field in rows.fields)
    return same and not any(_is_marked(table[name]) for name in rows.names) and not _kinds(rows) & _OWN_FORM


_REARRANGES = ("delta.autoOptimize", "delta.autoOptimize.optimizeWrite", "delta.randomizeFilePrefixes")
"""Properties with which Delta gives rows another order, or files other names."""
_OWN_FORM = {"VariantType", "GeometryType", "GeographyType"}
"""Types of which a table may keep another form."""
_HARMLESS = {"comment"}
"""Keys in a column's metadata that change no value of it."""


def _has_own_parquet(metadata: Json) -> bool:
    """Return whether the table says how its Parquet files are written: encrypted, for instance.  Delta then obeys."""
    return any(name.startswith("parquet.") for name in metadata["configuration"])


def _is_on(metadata: Json, *properties: str) -> bool:
    return any(str(metadata["configuration"].get(name, "false")).lower() != "false" for name in properties)


def _is_marked(field: StructField) -> bool:
    """Return whether Delta may treat the column's values, or its name, in a way of its own, or those of a part of it.

    Generated columns, defaults, CHAR(n), collations and column mapping are such marks.
    """
    return bool(field.metadata.keys() - _HARMLESS) or any(map(_is_marked, _inner(field.dataType)))


def _inner(kind: DataType) -> Iterator[StructField]:
    """Yield all fields of structs inside a type."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            yield field
            yield from _inner(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _inner(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _inner(kind.keyType)
        yield from _inner(kind.valueType)


def _kinds(schema: StructType) -> set[str]:
    return {type(kind).__name__ for _, kind in _leaves("", schema)}


def fingerprint(metadata: Json, protocol: Json) -> Json:
    """Return what prepared files depend on.  They fit the table as long as :func:`changes` finds no harmful change."""
    constraints = {k: v for k, v in metadata["configuration"].items() if k.startswith("delta.constraints.")}
    return {
        "id": metadata["id"],
        "schema": metadata["schemaString"],
        "partitions": metadata["partitionColumns"],
        "constraints": constraints,
        "protocol": protocol,
    }


def changes(before: Json, now: Json) -> list[str]:
    """Return the changes that make prepared files unfit for the table as it is now.

    New columns that are nullable and not generated do no harm.
    """
    differing = [part for part in ("partitions", "constraints", "protocol") if before[part] != now[part]]
    was, found = _fields(before["schema"]), _fields(now["schema"])
    differing += [f"column {name}" for name, field in was.items() if found.get(name) != field]
    differing += [f"column {name}" for name in found.keys() - was.keys() if not _may_be_absent(found[name])]
    return differing


def _may_be_absent(field: dict[str, Any]) -> bool:
    return bool(field["nullable"]) and _GENERATED not in field["metadata"]


def _fields(schema: str) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in json.loads(schema)["fields"]}


def _key(name: str, case_sensitive: bool) -> str:
    return name if case_sensitive else name.lower()


def _struct_problems(path: str, rows: StructType, table: StructType, case_sensitive: bool) -> Iterator[str]:
    wanted = {_key(field.name, case_sensitive): field for field in table.fields}
    for field in rows.fields:
        name, key = f"{path}{field.name}", _key(field.name, case_sensitive)
        if key not in wanted:
            alike = [other.name for other in table.fields if other.name.lower() == field.name.lower()]
            if alike:
                yield f"column {name}: the table has no such column, only {alike[0]}"
            else:
                yield f"column {name}: the table has no such column"
        else:
            yield from _type_problems(name, field.dataType, wanted[key].dataType, case_sensitive)
    for name in lacked(rows, table, case_sensitive=case_sensitive):
        yield f"column {path}{name}: it is NOT NULL in the table, and the rows do not have it"


def _type_problems(name: str, row: DataType, table: DataType, case_sensitive: bool) -> Iterator[str]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(row, StructType) and isinstance(table, StructType):
        yield from _struct_problems(f"{name}.", row, table, case_sensitive)
    elif isinstance(row, ArrayType) and isinstance(table, ArrayType):
        yield from _type_problems(f"{name}.element", row.elementType, table.elementType, case_sensitive)
    elif isinstance(row, MapType) and isinstance(table, MapType):
        yield from _type_problems(f"{name}.key", row.keyType, table.keyType, case_sensitive)
        yield from _type_problems(f"{name}.value", row.valueType, table.valueType, case_sensitive)
    elif not _holds(table, row):
        yield f"column {name}: the rows have {row.simpleString()}, the table has {table.simpleString()}"


def _holds(table: DataType, row: DataType) -> bool:
    """Return True if the type ``table`` holds every value of the type ``row`` unchanged."""
    from pyspark.sql.types import DecimalType

    if isinstance(table, DecimalType):
        digits, scale = _DIGITS.get(type(row).__name__, 0), 0
        if isinstance(row, DecimalType):
            digits, scale = row.precision - row.scale, row.scale
        return digits + scale > 0 and table.scale >= scale and table.precision - table.scale >= digits
    return row == table or type(table).__name__ in _WHOLE_TO.get(type(row).__name__, ())


def _leaves(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _leaves(f"{path}.{field.name}" if path else field.name, field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _leaves(f"{path}.element", kind.elementType)
    elif isinstance(kind, MapType):
        yield from _leaves(f"{path}.key", kind.keyType)
        yield from _leaves(f"{path}.value", kind.valueType)
    else:
        yield path, kind


def _names(path: str, kind: DataType) -> Iterator[str]:
    """Yield the paths of all columns and fields."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            name = f"{path}.{field.name}" if path else field.name
            yield name
            yield from _names(name, field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _names(path, kind.elementType)
    elif isinstance(kind, MapType):
        yield from _names(path, kind.keyType)
        yield from _names(path, kind.valueType)


def _not_null(path: str, kind: DataType) -> Iterator[str]:
    """Yield the paths inside a column that cannot be NULL, as SQL names them."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            inner = f"{path}.{quoted(field.name)}"
            yield from () if field.nullable else (inner,)
            yield from _not_null(inner, field.dataType)
    elif isinstance(kind, ArrayType):
        yield from () if kind.containsNull else (f"{path}.element",)
        yield from _not_null(f"{path}.element", kind.elementType)
    elif isinstance(kind, MapType):
        yield from () if kind.valueContainsNull else (f"{path}.value",)
        yield from _not_null(f"{path}.key", kind.keyType)
        yield from _not_null(f"{path}.value", kind.valueType)
