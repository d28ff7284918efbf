"""The Postgres type for each Spark type.  Values are kept exactly, or refused.

``ways.py`` says how each column gets into the table.  This file converts the values in Spark, and finds those that the
table cannot hold, or would change: a text that is too long, a number that would be rounded.  A flag in each row marks
such a value.  So an error can name the column and the number of rows without a second evaluation of the query.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres.ddl import ISOLATION, MOST_COLUMNS, PgColumn
from epochal.sinks.postgres.kinds import Kind
from epochal.sinks.postgres.ways import Way
from epochal.sinks.spark.expressions import (
    anywhere,
    computed,
    exists,
    is_invalid_utf8,
    is_not_finite,
    literal,
    of_text,
)
from epochal.sinks.spark.names import check_names, parts, quoted
from epochal.sinks.spark.settings import TIME_POLICY, changes_times

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
    if len(schema.fields) > MOST_COLUMNS - len(ISOLATION):
        raise Misconfigured(
            f"the rows have {len(schema.fields)} columns, and a table of Postgres has at most {MOST_COLUMNS}, of which"
            f" Epochal adds {len(ISOLATION)}",
            sink=sink,
            state=f"the table that holds rows until they are published also has the columns {' and '.join(ISOLATION)}",
            help="select fewer columns, or put some into a struct, which becomes one column of JSON",
        )
    seen: set[str] = set()
    for name in schema.names:
        why = "occurs twice" if name in seen else _why_no_name(name)
        if why is not None:
            raise Misconfigured(f"the column name {name!r} {why}", sink=sink, help="rename the column in the query")
        seen.add(name)
    check_names(schema, case_sensitive=True, sink=sink)
    return [_pg_column(f.name, f.dataType, sink) for f in schema.fields]


def _pg_column(name: str, kind: T.DataType, sink: str) -> PgColumn:
    types = _pg_types(name, kind, sink)
    item = _pg_column(f"{name}[]", kind.elementType, sink) if isinstance(kind, T.ArrayType) else None
    return PgColumn(name, types, item)


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


def holdable(rows: DataFrame, ways: Sequence[Way], *, judged: bool = False) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the rows, converted and with flags, and the names of the flagged columns.

    The columns are converted to types that fit Postgres.  A column that may have values that the table cannot hold
    gets a flag, a boolean column after all other columns.  The task checks itself that strings are UTF-8 without NUL,
    and the server what it converts.  ``judged``: only rows without a ``reason`` are here, so no column needs a flag.
    """
    fields = list(zip(rows.schema.fields, ways, strict=True))
    if all(_fits_unchanged(field.dataType, way) for field, way in fields):
        return rows, ()
    values: list[str] = []
    flags: list[str] = []
    flagged: list[str] = []
    for number, (field, way) in enumerate(fields):
        name = quoted(field.name)
        values.append(f"{_converted(name, field.dataType, way)} AS c{number}")
        wrong = _either(_unholdable(name, field.dataType), _if_changed(name, field.dataType, way))
        if wrong is not None and not judged:
            flags.append(f"{_false_if_null(wrong)} AS flag{len(flags)}")
            flagged.append(field.name)
    return computed(rows, [*values, *flags]), tuple(flagged)


def reason(schema: T.StructType, ways: Sequence[Way], ask: Ask | None = None) -> Column:
    """Return why Postgres cannot hold a row, as text; NULL if it can.  Unlike ``holdable`` this checks strings, too.

    ``ask``: asks the server about the values that it converts.  It is asked about no row that has a reason already.
    """
    fields = list(zip(schema.fields, ways, strict=True))
    reasons: list[str] = []
    for field, way in fields:
        name = quoted(field.name)
        wrong = _either(
            _invalid_text(name) if isinstance(field.dataType, T.StringType) else _unholdable(name, field.dataType),
            _if_changed(name, field.dataType, way),
        )
        if wrong is not None:
            reasons.append(f"CASE WHEN {wrong} THEN {literal(repr(field.name))} END")
    names = of_text(f"concat_ws(', ', {', '.join(reasons)})") if reasons else F.lit("")
    found = F.when(names != "", F.concat(F.lit(REASON), names))
    if ask is None:
        return found
    values = [of_text(_converted(quoted(f.name), f.dataType, way)) for f, way in fields if way.is_converted]
    return F.coalesce(found, ask(found.isNull(), *values))


Ask = Callable[..., Column]
"""Takes a column that says whether to ask, and the values that the server converts; gives the reason, or NULL."""

REASON = "Postgres cannot hold the value of column "


def _invalid_text(value: str) -> str:
    plain = f"CAST({value} AS STRING)"  # drops the collation
    return f"({is_invalid_utf8(plain)} OR contains({plain}, {literal(_NUL)}))"


def _fits_unchanged(kind: T.DataType, way: Way) -> bool:
    """Return whether the column of the table holds every value of the type without a conversion in Spark."""
    number = _number_for(kind, way.kind.base)
    return (kind in _UNCHANGED or number == kind) and number in (None, kind) and _changed(kind, way) is None


def _converted(value: str, kind: T.DataType, way: Way) -> str:
    """Return the text of the value in the type whose Arrow form ``binary.py`` encodes."""
    number = _number_for(kind, way.kind.base)
    if number is not None and number != kind:
        return _try_cast(value, number)
    if isinstance(kind, T.StringType):
        return f"CAST({value} AS STRING)"  # drops the collation
    if isinstance(kind, _NESTED):
        options = ", ".join(map(literal, itertools.chain(*_JSON.items())))
        return f"to_json({value}, map({options}))"
    return value


def _try_cast(value: str, kind: T.DataType) -> str:
    return f"try_cast({value} AS {kind.simpleString()})"


_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
_NUMBERS: dict[str, T.DataType] = {
    "smallint": T.ShortType(),
    "integer": T.IntegerType(),
    "bigint": T.LongType(),
    "real": T.FloatType(),
    "double precision": T.DoubleType(),
}


def _number_for(kind: T.DataType, base: Kind) -> T.DataType | None:
    """Return the Spark type of the numbers that the column of the table holds; None if these are no numbers.

    For ``numeric`` it is a type that holds what both sides can hold.
    """
    if not isinstance(kind, T.NumericType):
        return None
    if base.plain != "numeric":
        return _NUMBERS.get(base.plain)
    scale = kind.scale if isinstance(kind, T.DecimalType) else 0
    whole = kind.precision - scale if isinstance(kind, T.DecimalType) else _DIGITS[type(kind)]
    if base.limits:
        whole, scale = min(whole, base.limits[0] - base.limits[1]), min(scale, base.limits[1])
    if whole < 1 and scale < 1:
        return T.DecimalType(1, 1)  # of such numbers only zero is in both
    return T.DecimalType(whole + scale, scale)


def _changed(kind: T.DataType, way: Way) -> Check | None:
    """Return the check that is true for a value that the table's column would change, or refuse for its size.

    Return None if the column holds all values of the type, or if the server is asked.
    """
    base = way.kind.base
    number = _number_for(kind, base)
    if number is not None:
        if _holds(number, kind):
            return None
        return lambda value: _differs(value, _try_cast(_try_cast(value, number), kind))
    if isinstance(kind, T.ArrayType) and way.item is not None:
        check = _changed(kind.elementType, way.item)
        return None if check is None else lambda value: exists(value, "x", check("x"))
    if not base.limits:
        return None
    limit = base.limits[0]
    if isinstance(kind, T.StringType) and base.plain in ("character", "bit"):  # the server would fill it up
        return lambda value: f"(length({value}) != {limit})"
    if isinstance(kind, T.StringType) and base.plain in ("character varying", "bit varying"):
        return lambda value: f"(length({value}) > {limit})"
    if isinstance(kind, T.TimestampType | T.TimestampNTZType) and limit < _MICROSECONDS:
        return lambda value: _is_finer(value, limit)
    return None


Check = Callable[[str], str]
"""Makes the text of a condition from the text of a value."""


def _if_changed(value: str, kind: T.DataType, way: Way) -> str | None:
    check = _changed(kind, way)
    return check(value) if check is not None else None


_MICROSECONDS = 6
_ORDER = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)


def _holds(number: T.DataType, kind: T.DataType) -> bool:
    """Return whether the type ``number``, which :func:`_number_for` chose, holds every value of the type ``kind``."""
    if not isinstance(number, T.DecimalType):
        return _ORDER.index(type(number)) >= _ORDER.index(type(kind))
    if isinstance(kind, T.DecimalType):
        return number == kind
    return number.precision - number.scale >= _DIGITS[type(kind)]


def _is_finer(time: str, digits: int) -> str:
    """Return a condition that is true where the seconds of the time have more than ``digits`` decimal digits."""
    seconds = f"extract(SECOND FROM {time})"
    return _differs(seconds, _try_cast(seconds, T.DecimalType(2 + digits, digits)))


def _differs(value: str, other: str) -> str:
    return f"({value} IS NOT NULL AND NOT ({value} <=> {other}))"


def _in_utc(value: str) -> str:
    """Return the text of the timestamp's wall clock in UTC.  A cast would use the session's time zone."""
    return f"timestampadd(MICROSECOND, unix_micros({value}), {_1970})"


def _unholdable(value: str, kind: T.DataType) -> str | None:
    """Return a condition that is true where Postgres cannot hold the value.

    Return None if Postgres holds all values of the type, or if the task checks the bytes.
    """
    if isinstance(kind, T.DateType):
        return f"(unix_date({value}) NOT BETWEEN {FIRST_DAY} AND {LAST_DAY})"
    if isinstance(kind, T.TimestampNTZType):
        return f"({value} < {_FIRST_INSTANT})"
    if isinstance(kind, T.TimestampType):
        return f"({_in_utc(value)} < {_FIRST_INSTANT})"
    if isinstance(kind, _NESTED):
        return anywhere(value, kind, _is_not_json)
    return None


def _is_not_json(value: str, kind: T.DataType) -> str | None:
    """Return a condition that is true where a value has no JSON form, or None if each value of the type has one.

    NaN, infinity, and a string that has a NUL or is not UTF-8 have none.  Postgres stores the escape of a NUL, but each
    reader that takes a text out of such a value gets an error for the whole query.
    """
    if isinstance(kind, T.FloatType | T.DoubleType):
        return is_not_finite(value)
    return _invalid_text(value) if isinstance(kind, T.StringType) else None


def _either(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return one if other is None else other
    return f"({_false_if_null(one)} OR {_false_if_null(other)})"


def _false_if_null(check: str) -> str:
    return f"coalesce({check}, false)"
