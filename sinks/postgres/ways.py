"""How a column of the rows gets into a column of the table, or why it cannot.

The rows of each Spark type have one Postgres type of their own (``PgColumn.types``), which ``create`` makes.  A table
that exists already may have other types.  A value goes in only if a reader of the table gets back the same value, or
what the column's own input function makes of a text.  There are three ways:

- *Exact*: the column's type holds every value.  COPY sends the binary form.
- *Limited*: the column's type holds some of the values (``varchar(5)``, ``smallint`` for ``int``).  COPY sends the
  binary form; ``rows.py`` finds the values that the server would change or refuse.
- *Converted*: the server converts (:attr:`Way.sql`): a text by the column's own input function, JSON into an array, a
  value into a domain.  ``given.py`` sends the values and asks which of them the server refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.sinks.postgres.ddl import PgColumn, Target, columns_of, other_type, quoted
from epochal.sinks.postgres.kinds import Kind, kinds_of
from epochal.sinks.postgres.modes import Mode, Upsert
from epochal.sinks.spark import names

if TYPE_CHECKING:
    from epochal.coordinator.model.errors import Misconfigured
    from epochal.sinks.postgres.session import Session

_INTEGERS = ("smallint", "integer", "bigint")
_FLOATS = ("real", "double precision")
_TEXTS = ("text", "character varying", "character", "bpchar")
"""Types whose binary form is the text itself."""
_SPARKS = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
    "bytea": "binary",
    "numeric": "decimal",
}
"""Types that Spark has too.  A text does not go into them: Spark makes the value, and knows what it cannot make."""
_SPARKS_DIGITS = 38
_NUMBERS = ("smallint", "integer", "bigint", "real", "double precision", "numeric")
_CASTS = {
    **dict.fromkeys(_NUMBERS, _NUMBERS),
    "text": tuple(_SPARKS),
    "boolean": _INTEGERS,
    "date": ("timestamp with time zone", "timestamp without time zone"),
    "timestamp with time zone": ("date", "timestamp without time zone"),
    "timestamp without time zone": ("date", "timestamp with time zone"),
}
"""From the rows' type: types of columns that Spark can cast to."""


_NOT_FROM_JSON = (("bytea", "bytea"), ("real", "double precision"))
"""Items whose text in JSON has another value there: base64, and the shortest text of a float."""


@dataclass(frozen=True)
class Way:
    """How one column of the rows gets into its column of the table."""

    name: str
    types: tuple[str, ...]  # the types that the column may have, as format_type writes them
    kind: Kind
    wire: str  # the type whose binary form is sent
    sql: str | None = (
        None  # the expression that converts a sent value, which stands at each ``{}``; None: no conversion
    )
    item: Way | None = None  # for an array: how its items get in

    @property
    def is_converted(self) -> bool:
        """Whether the server converts the values."""
        return self.sql is not None

    @classmethod
    def made(cls, column: PgColumn) -> Way:
        """Return the way into a column that ``create`` makes."""
        return cls(column.name, column.types, Kind(column.types[0]), _plain(column))


def way_into(column: PgColumn, kind: Kind) -> Way | None:
    """Return the way into a column of this type, or None if there is none."""
    if kind.shown in column.types:
        return Way(column.name, column.types, kind, _plain(column))
    base = kind.base
    found = _scalar(column, base) or _array(column, base)
    if found is None:
        return None
    wire, sql, item = found
    if kind.below is not None:
        sql = f"({sql or '{}'})::{kind.shown}"
    return Way(column.name, (kind.shown,), kind, wire, sql, item)


def _plain(column: PgColumn) -> str:
    return Kind(column.types[0]).plain


def _scalar(column: PgColumn, base: Kind) -> tuple[str, str | None, None] | None:
    made, plain = _plain(column), base.plain
    if _is_odd(base):
        return None
    if (made in _INTEGERS and plain in (*_INTEGERS, "numeric")) or (made in _FLOATS and plain in _FLOATS):
        return plain, None, None
    if made == plain or (made == "text" and plain in _TEXTS):
        return made, None, None
    if made == "json" and plain == "jsonb":
        return made, "{}::jsonb", None
    if made == "text" and plain == "json":  # what jsonb refuses, readers cannot take out of the value
        return made, "CASE WHEN {}::jsonb IS NOT NULL THEN {}::json END", None
    if made == "text" and takes_text(base):
        return made, f"{{}}::{base.shown}", None
    return None


def _is_odd(base: Kind) -> bool:
    """Return whether the type is a ``numeric`` whose scale is negative or above its precision, which Spark lacks."""
    return base.plain == "numeric" and bool(base.limits) and not 0 <= base.limits[1] <= base.limits[0]


def takes_text(base: Kind) -> bool:
    """Return whether a text of the rows goes into a column of this type."""
    return base.plain in _TEXTS or (base.by_text and base.plain not in _SPARKS and base.items is None)


def _array(column: PgColumn, base: Kind) -> tuple[str, str, Way] | None:
    """Return the way of an array: its JSON is taken apart, and each item is converted from its text there."""
    if column.item is None or base.items is None:
        return None
    item = way_into(column.item, base.items)
    if item is None or (_plain(column.item), item.wire) in _NOT_FROM_JSON:
        return None
    value = f"e.value::{base.items.shown}" if item.sql is None else item.sql.replace("{}", "e.value")
    items = f"SELECT {value} FROM json_array_elements_text({{}}) WITH ORDINALITY e (value, n) ORDER BY e.n"
    return "json", f"CASE WHEN {{}} IS NOT NULL THEN ARRAY({items}) END", item


def refused(sink: str, table: str, column: PgColumn, kind: Kind) -> Misconfigured:
    """Return the error for a column of the table that the rows cannot get into."""
    return other_type(sink, table, column, kind.shown, _way_out(table, column, kind))


def _way_out(table: str, column: PgColumn, kind: Kind) -> str:
    to = _cast_to(column, kind.base)
    name = names.quoted(column.name)
    if to is not None:
        made = "to_json({})" if to == "string" and column.types[0] == "json" else f"cast({{}} AS {to})"
        return f"convert it in the query: {made.format(name)} AS {name}"
    there, made = quoted(column.name), column.types[0]
    using = f"to_json({there})" if made == "json" else f"{there}::text::{made}"
    return (
        f"ALTER TABLE {table} ALTER COLUMN {there} TYPE {made} USING {using}; or keep the column out of the rows with"
        " select=, if the table can fill it"
    )


def _cast_to(column: PgColumn, base: Kind) -> str | None:
    """Return the type that Spark can cast to, so that the rows get into the column; None if there is none."""
    made = _plain(column)
    if column.item is not None and base.items is not None:
        inner = _cast_to(column.item, base.items.base)
        return f"array<{inner}>" if inner not in (None, "binary") and column.item.types[0] != "json" else None
    if base.plain in _CASTS.get(made, ()) and not _is_odd(base):
        limits = ",".join(str(min(limit, _SPARKS_DIGITS)) for limit in base.limits) or "38,18"
        return f"decimal({limits})" if base.plain == "numeric" else _SPARKS[base.plain]
    if made == "json":
        return "string" if base.plain in _TEXTS else None
    return "string" if takes_text(base) and made not in ("text", "bytea") else None


# --- the ways of a table ------------------------------------------------------------------------


def ways_of(
    session: Session, sink: str, target: Target, mode: Mode | None, columns: Sequence[PgColumn]
) -> tuple[Way, ...]:
    """Return the ways of all columns into the table that readers get the values from.

    A column that this table lacks is made by ``create`` or by ``schema_evolution=``, or is only staged.
    """
    staged_only = mode.deletes if isinstance(mode, Upsert) else ()
    table = target.own
    kinds = kinds_for(session, table, columns, {name: kind for name, kind, _ in columns_of(session, table)})
    return tuple(
        Way.made(column)
        if column.name in staged_only or column.name not in kinds
        else into(sink, table, column, kinds[column.name])
        for column in columns
    )


def kinds_for(
    session: Session, table: str, columns: Sequence[PgColumn], shown: Mapping[str, str]
) -> Mapping[str, Kind]:
    """Return the types of the table's columns.  ``shown``: as format_type writes them.

    The catalogue is asked for what is below them only if a type is not one that ``create`` makes.
    """
    if all(shown.get(column.name, column.types[0]) in column.types for column in columns):
        return {name: Kind(kind) for name, kind in shown.items()}
    return kinds_of(session, table)


def into(sink: str, table: str, column: PgColumn, kind: Kind) -> Way:
    """Return the way into a column of this type, or raise ``Misconfigured``."""
    way = way_into(column, kind)
    if way is None:
        raise refused(sink, table, column, kind)
    return way
