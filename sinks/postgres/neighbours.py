"""Sinks of one pipeline whose tables refer to each other: one epoch cannot bring rows into both.

Each sink tries its rows before the decision, when no other sink shows the epoch, and publishes them in a transaction of
its own.  So a row that refers to a row of the same epoch in another sink's table is refused, also by a constraint that
is deferred: it is deferred to the end of a transaction.  A table that refers to itself is written by one statement, at
whose end its foreign key is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import staging
from epochal.sinks.postgres.ddl import quoted

if TYPE_CHECKING:
    from epochal.sinks.postgres.core import Core
    from epochal.sinks.postgres.session import Session
    from epochal.sinks.protocol import Schema

_FOREIGN_KEYS = """
WITH own AS (SELECT $1::bigint::oid AS oid UNION SELECT relid::oid FROM pg_partition_tree($1::bigint::oid)),
other AS (SELECT $2::bigint::oid AS oid UNION SELECT relid::oid FROM pg_partition_tree($2::bigint::oid))
SELECT quote_ident(conname), conrelid::regclass::text, confrelid::regclass::text,
    ARRAY(SELECT attname::text FROM unnest(conkey) k JOIN pg_attribute ON attrelid = conrelid AND attnum = k),
    ARRAY(SELECT attname::text FROM unnest(confkey) k JOIN pg_attribute ON attrelid = confrelid AND attnum = k)
FROM pg_constraint c WHERE contype = 'f' AND conrelid IN (SELECT oid FROM own)
    AND confrelid IN (SELECT oid FROM other) AND EXISTS (SELECT FROM pg_trigger WHERE tgconstraint = c.oid
        AND tgrelid = conrelid AND tgenabled IN ('O', 'A'))
ORDER BY conparentid <> 0, 1, 2
"""
"""The foreign keys from one table ($1) to another ($2) that the server enforces, those of partitions included."""


def refuse_foreign_keys(sink: Core, schema: Schema, others: Sequence[Core]) -> None:
    """Refuse a foreign key of the sink's table to the table of another sink, if an epoch may fill both ends.

    A table that does not exist has none: other checks refuse it.
    """
    schema = sink.projection.known(schema)
    with sink.connector.session() as session:
        here = _table(session, sink)
        for other in others:
            there = _table_of(other)
            if here is None or there is None or here[0] != there[0]:
                continue
            for name, table, referred, columns, keys in session.run(_FOREIGN_KEYS, here[1], there[1]):
                if set(columns) <= _written(sink, schema) and set(keys) <= _written(other, schema):
                    raise Misconfigured(
                        f"the foreign key {name} of {table} refers to {referred}, which sink {other.name!r} writes: an"
                        " epoch cannot bring rows into both",
                        sink=sink.name,
                        state=f"columns {_list(columns)} refer to {_list(keys)}; each sink writes its table in a"
                        " transaction of its own, and tries that before the decision",
                        help=f"ALTER TABLE {table} DROP CONSTRAINT {name}; or leave one of these columns out of one of"
                        " the sinks, with select=; or write the two tables by two queries, of which that of"
                        f" {table} runs after the other",
                    )


def _table_of(other: Core) -> tuple[str, int] | None:
    with other.connector.session() as session:
        return _table(session, other)


def _table(session: Session, sink: Core) -> tuple[str, int] | None:
    """Return the database and the object id of the sink's own table, or None if there is no such table."""
    ((database, oid),) = session.run(
        "SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || (SELECT oid FROM pg_database"
        " WHERE datname = current_database()), to_regclass($1)::oid::bigint",
        sink.target.own,
    )
    return (str(database), int(oid)) if oid is not None else None


def _written(sink: Core, schema: Schema) -> set[str]:
    """Return the columns of its table that the sink writes."""
    left_out = staging.only_staged(sink.staging) if sink.staging is not None else ()
    return {column.name for column in sink.columns(schema)} - set(left_out)


def _list(names: Sequence[str]) -> str:
    return f"({', '.join(map(quoted, names))})"
