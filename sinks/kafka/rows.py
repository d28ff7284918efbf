"""How a row becomes a Kafka record: its key, value, headers, topic and partition; which values cannot be held.

Without ``value=`` the value is the row as one JSON object, in UTF-8:

- fields in the order of the schema, without the columns that say where a row goes (``headers=``, ``partition=``,
  ``topic=``), nulls written as ``null``, nested structs and maps as objects;
- integers and decimals as JSON numbers with every digit (a parser that reads them as doubles loses some);
- float and double as the shortest text that gives the same number; dates ``2013-01-31``; timestamps
  ``2013-01-31T23:59:59.123456Z`` in UTC; timestamps without zone the same without ``Z``; binary as base64;
- refused, because JSON or ISO 8601 cannot hold them: NaN, infinities, years outside 0001 to 9999, text that is not
  UTF-8, types other than these, maps whose keys are not strings.

With ``value=`` the bytes of that column are the value.  NULL makes a tombstone, if tombstones were asked for.

A row becomes a *record*: the columns ``key`` and ``value`` (binary) and, if the row says itself where it goes,
``topic`` (string), ``partition`` (bigint) and ``headers`` (Spark's own type for them).  Rows that cannot become a
record are found at prepare, in one pass (``objections.py``); in idempotent mode, while the records are produced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.rows.formats import check_part
from epochal.sinks.rows.projection import Projection
from epochal.sinks.spark.expressions import anywhere, is_invalid_utf8, is_not_finite, of_text, struct_of
from epochal.sinks.spark.names import check_names, column_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

VERSION = 3
"""Version 2 added the projection, 3 topic, partition, headers and ``made``.  The lowest sufficient one is written."""
ROUTES = ("topic", "partition", "headers")
"""What a row may say itself about where it goes; also the names of these columns of a record."""
HASH, KEPT, MET, WHOLE_ROW = "__epochal_hash", "__epochal_kept", "__epochal_met", "__epochal_row"
"""Epochal's own columns: a row's hash, whether the sink gets the row, what is objected to it, the row itself."""
BAD = "bad"
"""A column of records: which is the first column that JSON cannot hold, counted from 1; 0 if JSON holds all."""
HEADERS = "array<struct<key:string,value:binary>>"

_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "locale": "en-US",
}
_EXACT = frozenset(
    {"string", "char", "varchar", "binary", "boolean", "byte", "short", "integer", "long", "decimal"}
    | {"float", "double", "date", "timestamp", "timestamp_ntz", "array", "struct", "map"}
)
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # microseconds: the years 0001 to 9999
_NAIVE = {_FIRST: "0001-01-01 00:00:00", _LAST: "9999-12-31 23:59:59.999999"}
_DAY = 86_400_000_000

WHOLE = Projection("")


@dataclass(frozen=True)
class Encoding:
    """How rows become records.  This must not change between prepare and commit, so the committable holds it."""

    key: str | None
    value: str | None
    partitioner: str
    projection: Projection = WHOLE
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The settings of the session under which the projection is evaluated."""
    topic: str | None = None
    partition: str | None = None
    headers: str | None = None
    made: bool = False  # a function of the user makes the value from the row, before the vote (``encode.py``)

    @property
    def routes(self) -> Mapping[str, str]:
        """Role to column, for the columns that say where a row goes.  They are not part of a JSON value."""
        named = {"topic": self.topic, "partition": self.partition, "headers": self.headers}
        return {role: column for role, column in named.items() if column is not None}

    @property
    def takes_rows_as_they_are(self) -> bool:
        """Whether a record is a key and a value that are columns of the row, and nothing else."""
        return self.value is not None and self.projection.is_whole and not self.routes and not self.made

    def to_json(self) -> Json:
        told: Json = {"version": 1, "key": self.key, "value": self.value, "partitioner": self.partitioner}
        newest: Json = {**self.routes, **({"made": True} if self.made else {})}
        if not self.projection.is_whole or newest:
            told |= {"version": 2, "projection": self.projection.to_json(), "settings": dict(self.settings)}
        return told | ({"version": VERSION, **newest} if newest else {})

    @classmethod
    def from_json(cls, data: Json, sink: str = "") -> Encoding:
        check_part("encoding", data["version"], VERSION, sink)
        plain = cls(data["key"], data["value"], data["partitioner"])
        if data["version"] == 1:
            return plain
        return replace(
            plain,
            projection=Projection.from_json(sink, data["projection"]),
            settings=data["settings"],
            topic=data.get("topic"),
            partition=data.get("partition"),
            headers=data.get("headers"),
            made=bool(data.get("made", False)),
        )

    def records(self, rows: DataFrame) -> DataFrame:
        """Return the records of an epoch's rows: ``key``, ``value``, and those of ``ROUTES`` that rows name."""
        return self.apply(self.projection.apply(rows))

    def apply(self, rows: DataFrame, *more: Column) -> DataFrame:
        """Return the records of projected rows, with ``more`` columns.  A value that will be ``made`` is a struct here.

        If the rows are marked (``KEPT``), a row that the sink does not get has neither key nor value.
        """
        return rows.select(*self.columns(rows.columns), *more)

    def columns(self, names: Sequence[str]) -> list[Column]:
        """Return the columns of a record, for rows whose columns have these names."""
        from pyspark.sql import functions as f

        key = column_of(self.key) if self.key is not None else f.lit(None)
        if self.value is not None:
            value = column_of(self.value).cast("binary")
        else:
            row = of_text(struct_of(self._valued(names)))
            value = row if self.made else f.to_json(row, _JSON).cast("binary")
        record = {"key": key.cast("binary"), "value": value}
        record |= {role: _ROUTE[role](column_of(name)) for role, name in self.routes.items()}
        if KEPT in names:  # nothing of a row that the sink does not get, which may be large
            record = {part: f.when(f.col(KEPT), column) for part, column in record.items()}
        return [column.alias(part) for part, column in record.items()]

    def check(self, schema: StructType, sink: str) -> None:
        """Raise ``Misconfigured``, with the column's name, if projected rows of this schema cannot be held exactly."""
        if taken := [name for name in schema.names if name.lower() in (HASH, KEPT, MET, WHOLE_ROW)]:
            raise Misconfigured(f"the column name {taken[0]!r} is Epochal's own", sink=sink, help="rename the column")
        for role, name in (("key", self.key), ("value", self.value), *self.routes.items()):
            if name is not None:
                _check_role(schema, name, role, sink)
        if self.value is None:
            valued = self._valued(schema.names)
            if not valued:
                raise Misconfigured(
                    "no column is left to be the value",
                    sink=sink,
                    state=f"columns {schema.names}, of which {dict(self.routes)} say where a row goes",
                    help="select more columns, or name the value's column with value=",
                )
            check_names(schema, case_sensitive=True, sink=sink)
            kinds = {field.name: field.dataType for field in schema.fields}
            for name in valued if not self.made else ():
                _check_type(name, kinds[name], sink)

    def refusals(self, schema: StructType) -> dict[str, str]:
        """Return column -> condition, as text: rows for which a condition is true cannot be held."""
        if self.value is not None or self.made:
            return {}
        kinds = {field.name: field.dataType for field in schema.fields}
        found = {name: anywhere(quoted(name), kinds[name], _is_bad) for name in self._valued(schema.names)}
        return {name: bad for name, bad in found.items() if bad is not None}

    def _valued(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that make up a row's value."""
        return [name for name in columns if name not in (HASH, KEPT, WHOLE_ROW, *self.routes.values())]


def _as_headers(column: Column) -> Column:
    from pyspark.sql import functions as f

    return f.transform(column, lambda h: f.struct(h["key"].alias("key"), h["value"].cast("binary").alias("value")))


_ROUTE: Mapping[str, Callable[[Column], Column]] = {
    "topic": lambda column: column.cast("string"),
    "partition": lambda column: column.cast("bigint"),
    "headers": _as_headers,
}
_WANTED = {  # role: which type it needs, and what to do
    "key": "a key is bytes: cast the column to string or binary",
    "value": "a value is bytes: cast the column to string or binary",
    "topic": "the name of a topic is text: cast the column to string",
    "partition": "the number of a partition is an integer: cast the column to int",
    "headers": f"headers have Spark's type {HEADERS}, or string values; map_entries(...) makes them from a map",
}


def _check_role(schema: StructType, name: str, role: str, sink: str) -> None:
    if name not in schema.names:
        raise Misconfigured(
            f"there is no column {name!r} to be the {role}",
            sink=sink,
            state=f"columns {schema.names}",
            help=f"name one of these columns with {role}=, as it is written there",
        )
    kind = schema[name].dataType
    if not _is_fit(role, kind):
        raise Misconfigured(
            f"column {name!r} cannot be the {role}: it has the type {kind.simpleString()}",
            sink=sink,
            help=_WANTED[role],
        )


def _is_fit(role: str, kind: DataType) -> bool:
    from pyspark.sql import types as t

    text = (t.StringType, t.CharType, t.VarcharType)
    if role == "topic":
        return isinstance(kind, text)
    if role == "partition":
        return isinstance(kind, t.IntegralType)
    if role != "headers":
        return isinstance(kind, (*text, t.BinaryType))
    if not isinstance(kind, t.ArrayType) or not isinstance(kind.elementType, t.StructType):
        return False
    header = kind.elementType
    return (
        header.names == ["key", "value"]
        and isinstance(header["key"].dataType, text)
        and isinstance(header["value"].dataType, (*text, t.BinaryType))
    )


def _check_type(path: str, kind: DataType, sink: str) -> None:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    base = kind.typeName().partition("(")[0].partition(" ")[0]
    if base not in _EXACT or (isinstance(kind, MapType) and not isinstance(kind.keyType, StringType)):
        raise Misconfigured(
            f"column {path!r} has the type {kind.simpleString()}, which JSON does not hold exactly",
            sink=sink,
            help="cast the column to another type (a string, for instance), or encode the row yourself with value=",
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_type(f"{path}.{field.name}", field.dataType, sink)
    elif isinstance(kind, ArrayType):
        _check_type(f"{path}.element", kind.elementType, sink)
    elif isinstance(kind, MapType):
        _check_type(f"{path}.value", kind.valueType, sink)


def _is_bad(value: str, kind: DataType) -> str | None:
    """Return a condition that is true where JSON cannot hold the value, or None if JSON holds all of this type."""
    from pyspark.sql import types as t

    if isinstance(kind, (t.DoubleType, t.FloatType)):
        return is_not_finite(value)
    if isinstance(kind, t.DateType):
        return _outside(value, lambda micros: f"date_from_unix_date({micros // _DAY})")
    if isinstance(kind, t.TimestampType):
        return _outside(value, lambda micros: f"timestamp_micros({micros}L)")
    if isinstance(kind, t.TimestampNTZType):
        return _outside(value, lambda micros: f"CAST('{_NAIVE[micros]}' AS TIMESTAMP_NTZ)")
    if isinstance(kind, t.StringType):
        return is_invalid_utf8(value)
    return None


def _outside(value: str, literal: Callable[[int], str]) -> str:
    return f"({value} < {literal(_FIRST)} OR {value} > {literal(_LAST)})"
