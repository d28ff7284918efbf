"""SQL for a DBA who runs it by hand: it creates a sink's tables, grants each role its rights, and indexes the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import ddl, rights, staging
from epochal.sinks.postgres.ddl import PgColumn, Target, quoted
from epochal.sinks.postgres.modes import Staging

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

_ASCENDING = ("timestamp with time zone", "timestamp without time zone", "date")
"""Types whose values usually ascend with the epochs: for them a block range index of a few pages is enough."""


@dataclass(frozen=True)
class Script:
    """SQL statements by their purpose, without semicolons, and notes for the DBA."""

    ddl: Sequence[str]
    grants: Sequence[str]
    view: str | None
    indexes: Sequence[str]
    notes: Sequence[str]


def script(
    app: str, sink: str, target: Target, mode: Staging | None, columns: Sequence[PgColumn], filters: Sequence[str]
) -> Script:
    """Return the script for a sink with these columns.  ``filters``: the columns that readers filter by."""
    kinds = {column.name: column.types[0] for column in columns}
    unknown = [name for name in filters if name not in kinds]
    if unknown:
        raise Misconfigured(
            f"readers cannot filter by {unknown}: the table has no such columns",
            sink=sink,
            state=f"columns {list(kinds)}",
            help="name columns of the table",
        )
    indexes = [_index(target.own, name, kinds[name]) for name in filters]
    if mode is not None:
        steps = staging.all_steps(app, sink, target, mode, columns, exists=False)
        more = (target.plain, staging.table_rights(mode))
        return Script([step.sql for step in steps], _grants(target, target.plain, more), None, indexes, _STAGED_NOTES)
    steps = ddl.all_steps(app, sink, target, columns, adopt=False)
    view = ddl.view_query(app, sink, target, [column.name for column in columns])
    return Script([step.sql for step in steps], _grants(target, target.reader), view, indexes, _APPEND_NOTES)


_APPEND_NOTES = (
    "The BRIN index on _epoch is what commits and clean-ups use; readers of the view do not need it.",
    "No unique index: it would see rows that are prepared and not yet committed. mode=Upsert(key=...) has one.",
    "Readers get SELECT on the view alone; with SELECT on the rows table they would see prepared rows.",
)
_STAGED_NOTES = (
    "The index on _epoch of the staging table is for commits; the table itself has the indexes that you give it.",
)


def existing_columns(session: Session, sink: str, target: Target) -> list[PgColumn]:
    """Return the columns that the sink's table has now.  Raise ``Misconfigured`` if the table does not exist."""
    found = ddl.columns_of(session, target.own)
    if not found:
        raise ddl.missing(session, f"the table {target.own}", sink)
    return [PgColumn(name, (kind,)) for name, kind, _ in found if name not in ddl.ISOLATION]


def _grants(target: Target, reader: str, *more: tuple[str, str]) -> list[str]:
    schema = [f"GRANT USAGE ON SCHEMA {quoted(target.view_schema)} TO <reader>"] if target.view_schema else []
    writer = [f"GRANT {grant} TO <writer>" for grant in rights.grants(target, *more)]
    return [*writer, *schema, f"GRANT SELECT ON {reader} TO <reader>"]


def _index(table: str, column: str, kind: str) -> str:
    using = " USING brin" if kind in _ASCENDING else ""
    return f"CREATE INDEX CONCURRENTLY ON {table}{using} ({quoted(column)})"
