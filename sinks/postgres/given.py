"""Values that the server converts: they are sent as arrays, inserted with a conversion, and judged row by row.

COPY has no expressions, so if a column needs a conversion (:attr:`Way.sql`), all columns of a batch are sent as arrays
in their binary form, and one INSERT unpacks them.  In all statements ``$1`` is the array of the first column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from epochal.sinks.postgres.address import Encoded, ServerRefused
from epochal.sinks.postgres.ddl import ISOLATION, literal, quoted
from epochal.sinks.postgres.kinds import kinds_of
from epochal.sinks.postgres.ways import Way

if TYPE_CHECKING:
    import pyarrow as pa

    from epochal.sinks.postgres.session import Session

_TYPES = {
    "boolean": 16,
    "bytea": 17,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "json": 114,
    "real": 700,
    "double precision": 701,
    "date": 1082,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "numeric": 1700,
}
"""The object ids of the types that are sent.  They are the same in every database (``pg_type.dat``)."""
_ROWS, _BYTES = 10_000, 32 << 20
"""A part of a batch that one statement gets has at most so many rows, and about so many bytes."""
_TOLD = 200
"""How many characters of the server's message a reason has."""
_OF_THE_VALUE = "^(22|23|0A000|42601|P0001|XX000)"
"""SQLSTATEs that say that the value is wrong.  Input functions of odd types and of extensions use the last four."""


def written(ways: Sequence[Way]) -> str:
    """Return the columns of the rows table that a task writes, in their order, as SQL names them."""
    return ", ".join([*(quoted(way.name) for way in ways), *ISOLATION])


def insertion(table: str, ways: Sequence[Way]) -> str:
    """Return the INSERT for one batch.  After the arrays come the values of ``_epoch`` and ``_attempt``."""
    values = [_converted(way, f"u.c{n}") for n, way in enumerate(ways)]
    more = f"${len(ways) + 1}::bigint, ${len(ways) + 2}::bigint"
    return f"INSERT INTO {table} ({written(ways)}) SELECT {', '.join(values)}, {more} FROM {_unpacked(ways)}"


def in_parts(columns: Sequence[pa.Array]) -> Iterator[list[pa.Array]]:
    """Yield the columns of a batch in parts that are small enough for one statement."""
    rows, size = len(columns[0]), sum(column.nbytes for column in columns)
    step = max(1, min(_ROWS, rows * _BYTES // max(size, 1)))
    for start in range(0, rows, step):
        yield [column.slice(start, step) for column in columns]


def encoded(ways: Sequence[Way], columns: Sequence[pa.Array]) -> list[Encoded]:
    from epochal.sinks.postgres import binary

    return [Encoded(binary.array(column, _TYPES[way.wire])) for way, column in zip(ways, columns, strict=True)]


def converted(ways: Sequence[Way]) -> list[int]:
    """Return the positions of the columns that the server converts."""
    return [n for n, way in enumerate(ways) if way.is_converted]


def refusals(session: Session, ways: Sequence[Way], columns: Sequence[pa.Array], limit: float) -> dict[int, list[str]]:
    """Return why the server refuses rows: row number to the message for each column, empty where it takes the value.

    All ``ways`` need a conversion.  Nothing is written.  Most batches need one statement.  After a refusal a function
    that lives as long as the transaction asks for each value alone.
    """
    values = encoded(ways, columns)
    try:
        with session.rehearsal():
            session.run(_probe(ways), *values, limit=limit)
            return {}
    except ServerRefused:
        session.run("ROLLBACK")
    with session.rehearsal():
        session.run("; ".join(_function(n, way) for n, way in enumerate(ways)))
        found = session.run(_question(ways), *values, limit=limit)
    return {int(row) - 1: [str(message or "") for message in messages] for row, *messages in found}


def try_judging(session: Session, ways: Sequence[Way]) -> None:
    """Raise ``ServerRefused`` if this role cannot judge values: it needs the right TEMPORARY on the database."""
    session.run("; ".join(_function(n, way) for n, way in enumerate(ways)))


def try_converting(session: Session, ways: Sequence[Way]) -> None:
    """Raise ``ServerRefused`` if the server has no conversion to one of the types.  Nothing is evaluated."""
    session.run(f"EXPLAIN SELECT {', '.join(_converted(way, f'NULL::{way.wire}') for way in ways)}")


def altered(session: Session, table: str, ways: Sequence[Way]) -> list[str]:
    """Return the columns whose types, or what these types take, are no longer those of ``ways``."""
    there = kinds_of(session, table)
    return [way.name for way in ways if there.get(way.name) != way.kind]


def _unpacked(ways: Sequence[Way], *more: str) -> str:
    arrays = ", ".join(f"${n}::{way.wire}[]" for n, way in enumerate(ways, 1))
    names = ", ".join([*(f"c{n}" for n in range(len(ways))), *more])
    return f"unnest({arrays}) {'WITH ORDINALITY ' if more else ''}u ({names})"


def _converted(way: Way, value: str) -> str:
    return value if way.sql is None else way.sql.replace("{}", value)


def _probe(ways: Sequence[Way]) -> str:
    counts = ", ".join(f"count({_converted(way, f'u.c{n}')})" for n, way in enumerate(ways))
    return f"SELECT {counts} FROM {_unpacked(ways)}"


def _function(number: int, way: Way) -> str:
    """Return the statement that makes a function that returns the server's message for a value that it refuses."""
    body = (
        f"BEGIN PERFORM {_converted(way, '$1')}; RETURN NULL; EXCEPTION WHEN OTHERS THEN"
        f" IF SQLSTATE ~ '{_OF_THE_VALUE}' THEN RETURN left(SQLERRM, {_TOLD}); END IF; RAISE; END"
    )
    name = f"pg_temp.epochal_refusal_{number}"
    return f"CREATE FUNCTION {name}({way.wire}) RETURNS text LANGUAGE plpgsql AS {literal(body)}"


def _question(ways: Sequence[Way]) -> str:
    asked = ", ".join(f"pg_temp.epochal_refusal_{n}(u.c{n})" for n in range(len(ways)))
    named = ", ".join(f"r{n}" for n in range(len(ways)))
    some = " OR ".join(f"x.r{n} IS NOT NULL" for n in range(len(ways)))
    return f"SELECT x.* FROM (SELECT u.n, {asked} FROM {_unpacked(ways, 'n')}) x (n, {named}) WHERE {some}"
