"""The Postgres type for each Spark type.  Values are kept exactly, or refused.

A flag in each row marks a value that Postgres cannot hold.  So an error can name the column and the number of rows
without a second evaluation of the query.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres.ddl import PgColumn
from epochal.sinks.spark.names import check_names, column_of, parts
from epochal.sinks.spark.settings import TIME_POLICY, changes_times

ISOLATION = ("_epoch", "_attempt")
"""Columns of the rows table that the reader view does not show."""

_NAME_BYTES = 63
_SYSTEM = (
    "tableoid",
    "xmin",
    "cmin",
    "xmax",
    "cmax",
    "ctid",
)  # https://www.postgresql.org/docs/18/ddl-system-columns.html

_EXACT: dict[type[T.DataType], tuple[str, ...]] = {
    T.StringType: ("text", "character varying"),
    T.BooleanType: ("boolean",),
    T.ByteType: ("smallint",),
    T.ShortType: ("smallint",),
    T.IntegerType: ("integer",),
    T.LongType: ("bigint",),
    T.FloatType: ("real",),
    T.DoubleType: ("double precision",),
    T.DateType: ("date",),
    T.TimestampType: ("timestamp with time zone",),
    T.TimestampNTZType: ("timestamp without time zone",),
    T.BinaryType: ("bytea",),
}
_UNCHANGED = (
    T.StringType(),  # the type without a collation
    T.BooleanType(),
    T.ShortType(),
    T.IntegerType(),
    T.LongType(),
    T.FloatType(),
    T.DoubleType(),
    T.BinaryType(),
)
_NUL = "\0"
_NESTED = (T.ArrayType, T.MapType, T.StructType)

FIRST_DAY = -2440588  # 4714-11-24 BC in days since 1970: Postgres's first date
LAST_DAY = 2145042905  # 5874897-12-31: Postgres's last date (its last timestamp is later than Spark's)
_FIRST_INSTANT = "TIMESTAMP_NTZ'-4713-11-24 00:00:00'"
_1970 = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"

_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}


def columns(schema: T.StructType, sink: str) -> list[PgColumn]:
    """Return the schema in Postgres's types.

    Raise ``Misconfigured`` for the first column that Postgres cannot hold exactly.
    """
    if not schema.fields:
        raise Misconfigured("the rows have no columns", sink=sink, help="select at least one column")
    seen: set[str] = set()
    for name in schema.names:
        why = "occurs twice" if name in seen else _why_no_name(name)
        if why is not None:
            raise Misconfigured(f"the column name {name!r} {why}", sink=sink, help="rename the column in the query")
        seen.add(name)
    check_names(schema, case_sensitive=True, sink=sink)
    return [PgColumn(f.name, _pg_types(f.name, f.dataType, sink)) for f in schema.fields]


def _why_no_name(name: str) -> str | None:
    """Return why no column of a sink's table can have this name, or None if it can."""
    if name in ISOLATION:
        return "is Epochal's own"
    if name in _SYSTEM:
        return "is that of a column which Postgres itself gives to every table"
    if not name or len(name.encode()) > _NAME_BYTES:
        return f"is empty or longer than the {_NAME_BYTES} bytes of a Postgres name"
    return "holds a NUL, which Postgres takes in no name" if _NUL in name else None


def _pg_types(name: str, kind: T.DataType, sink: str) -> tuple[str, ...]:
    if isinstance(kind, T.DecimalType) and kind.scale >= 0:
        return (f"numeric({kind.precision},{kind.scale})", "numeric")
    if isinstance(kind, _NESTED):
        _check_json(name, kind, sink)
        return ("json",)
    if type(kind) not in _EXACT:
        raise _unsupported_type(name, kind, sink)
    return _EXACT[type(kind)]


def _check_json(name: str, kind: T.DataType, sink: str) -> None:
    """Refuse a type if a type inside it cannot be written as JSON and read back exactly."""
    if isinstance(kind, T.ArrayType):
        _check_json(f"{name}[]", kind.elementType, sink)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, T.StringType):
            raise Misconfigured(
                f"column {name!r} is a map with keys of type {kind.keyType.simpleString()}: keys of JSON are strings",
                sink=sink,
                help="turn the keys into strings, or the map into an array with map_entries()",
            )
        _check_json(f"{name}{{}}", kind.valueType, sink)
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            if _NUL in field.name:
                raise Misconfigured(
                    f"the field name {field.name!r} in column {name!r} has a NUL, which no key of Postgres's JSON has",
                    sink=sink,
                    help="give the field another name where its struct is made",
                )
            _check_json(f"{name}.{field.name}", field.dataType, sink)
    elif type(kind) not in _EXACT and not isinstance(kind, T.DecimalType):
        raise _unsupported_type(name, kind, sink)


def check_times(schema: T.StructType, spark: SparkSession, sink: str) -> None:
    """Raise ``Misconfigured`` if this session would write other times into the JSON of a column."""
    if not changes_times(spark):
        return
    for field in schema.fields:
        if isinstance(field.dataType, _NESTED) and _has_times(field.dataType):
            raise Misconfigured(
                f"under {TIME_POLICY}=LEGACY the JSON of column {field.name!r} would have other times than the rows",
                sink=sink,
                state=f"the column has the type {field.dataType.simpleString()}",
                help=f"set {TIME_POLICY} to CORRECTED, or make text of these times in the query",
            )


def _has_times(kind: T.DataType) -> bool:
    return isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType) or any(
        _has_times(part) for _, part in parts(kind)
    )


def _unsupported_type(name: str, kind: T.DataType, sink: str) -> Misconfigured:
    return Misconfigured(
        f"column {name!r} has the type {kind.simpleString()}, which Postgres cannot hold exactly",
        sink=sink,
        help="cast it in the query, for instance to string",
    )


def holdable(rows: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the rows, converted and with flags, and the names of the flagged columns.

    The columns are converted to types that fit Postgres.  A column that may have values that Postgres cannot hold gets
    a flag, a boolean column after all other columns.  Strings need no flag: the task checks that they are
    UTF-8 without NUL.
    """
    if all(_fits_unchanged(field.dataType) for field in rows.schema.fields):
        return rows, ()  # each column expression costs ten calls into the JVM
    values: list[Column] = []
    flags: list[Column] = []
    flagged: list[str] = []
    for number, field in enumerate(rows.schema.fields):
        column = column_of(field.name)
        values.append(_converted(column, field.dataType).alias(f"c{number}"))
        wrong = _unholdable(column, field.dataType)
        if wrong is not None:
            flags.append(F.coalesce(wrong, F.lit(False)).alias(f"flag{len(flags)}"))
            flagged.append(field.name)
    return rows.select(*values, *flags), tuple(flagged)


def reason(schema: T.StructType) -> Column:
    """Return why Postgres cannot hold a row, as text; NULL if it can.  Unlike ``holdable`` this checks strings, too."""
    reasons: list[Column] = []
    for field in schema.fields:
        column = column_of(field.name)
        wrong = (
            _invalid_text(column) if isinstance(field.dataType, T.StringType) else _unholdable(column, field.dataType)
        )
        if wrong is not None:
            reasons.append(F.when(wrong, F.lit(repr(field.name))))
    names = F.concat_ws(", ", *reasons) if reasons else F.lit("")
    return F.when(names != "", F.concat(F.lit("Postgres cannot hold the value of column "), names))


def _invalid_text(column: Column) -> Column:
    plain = column.cast(T.StringType())
    return ~F.is_valid_utf8(plain) | F.contains(plain, F.lit(_NUL))


def _fits_unchanged(kind: T.DataType) -> bool:
    """Return whether Postgres holds every value of the type without a conversion."""
    return isinstance(kind, T.DecimalType) or kind in _UNCHANGED


def _converted(column: Column, kind: T.DataType) -> Column:
    """Return the value in the type whose Arrow form ``binary.py`` encodes."""
    if isinstance(kind, T.StringType):
        return column.cast(T.StringType())  # drops the collation
    if isinstance(kind, _NESTED):
        return F.to_json(column, _JSON)
    if isinstance(kind, T.ByteType):
        return column.cast(T.ShortType())
    return column


def _in_utc(column: Column) -> Column:
    """Return the timestamp's wall clock in UTC.  A cast would use the session's time zone."""
    return F.timestamp_add("MICROSECOND", F.unix_micros(column), F.expr(_1970))


def _unholdable(column: Column, kind: T.DataType) -> Column | None:
    """Return a column that is true where Postgres cannot hold the value.

    Return None if Postgres holds all values of the type, or if the task checks the bytes.
    """
    if isinstance(kind, T.DateType):
        return ~F.unix_date(column).between(FIRST_DAY, LAST_DAY)
    if isinstance(kind, T.TimestampNTZType):
        return column < F.expr(_FIRST_INSTANT)
    if isinstance(kind, T.TimestampType):
        return _in_utc(column) < F.expr(_FIRST_INSTANT)
    if isinstance(kind, _NESTED):
        return _not_json(column, kind)
    return None


def _not_json(value: Column, kind: T.DataType) -> Column | None:
    """Return a column that is true where a part of the value has no JSON form, or None if each value has one.

    NaN, infinity, and a string that has a NUL or is not UTF-8 have none.  Postgres stores the escape of a NUL, but each
    reader that takes a text out of such a value gets an error for the whole query.
    """
    if isinstance(kind, T.FloatType | T.DoubleType):
        return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))
    if isinstance(kind, T.StringType):
        return _invalid_text(value)
    if isinstance(kind, T.ArrayType):
        return _any(value, kind.elementType)
    if isinstance(kind, T.MapType):
        return _either(_any(F.map_keys(value), kind.keyType), _any(F.map_values(value), kind.valueType))
    if isinstance(kind, T.StructType):
        wrong: Column | None = None
        for field in kind.fields:
            wrong = _either(wrong, _not_json(value.getField(field.name), field.dataType))
        return wrong
    return None


def _any(array: Column, kind: T.DataType) -> Column | None:
    if _not_json(F.lit(None), kind) is None:
        return None
    check: Callable[[Column], Column] = lambda item: _false_if_null(_not_json(item, kind))  # noqa: E731
    return F.exists(array, check)


def _either(one: Column | None, other: Column | None) -> Column | None:
    if one is None or other is None:
        return one if other is None else other
    return _false_if_null(one) | _false_if_null(other)


def _false_if_null(check: Column | None) -> Column:
    return F.lit(False) if check is None else F.coalesce(check, F.lit(False))
