"""Creates what a sink lacks in the database, or adopts a table that exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.sinks.postgres import adopting
from epochal.sinks.postgres.checking import refuse_misspelt, refuse_rows
from epochal.sinks.postgres.ddl import (
    ADDED_LATER,
    ISOLATION,
    PgColumn,
    Step,
    Target,
    columns_of,
    find,
    has_housekeeping,
    housekeeping_steps,
    rows_steps,
    run_steps,
    view_step,
)
from epochal.sinks.postgres.publications import mend
from epochal.sinks.postgres.registering import refuse_moved, register
from epochal.sinks.postgres.rights import needed

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


def create(session: Session, app: str, sink: str, target: Target, columns: Sequence[PgColumn]) -> list[str]:
    """Make what is missing, within the caller's transaction; return a line for each thing that was made."""
    session.run("SELECT pg_advisory_xact_lock(hashtextextended('epochal.create', 0))")
    refuse_misspelt(session, sink, target)
    done: list[str] = []
    done += make_housekeeping(session)
    refuse_moved(session, app, sink, target)
    adopts = find(session, target.rows) is None and find(session, target.plain) is not None
    if adopts:
        adopting.refuse(session, sink, target, columns)
    if find(session, target.rows) is None:
        done += run_steps(session, rows_steps(target, columns, adopts))
    refuse_rows(session, sink, target, columns)
    done += mend(session, target)
    done += register(session, app, sink, target)
    if find(session, target.reader) is None:
        names = [name for name, *_ in columns_of(session, target.rows) if name not in ISOLATION]
        done += run_steps(session, [view_step(app, sink, target, names)])
        done += adopting.carry_over(session, target) if adopts else adopting.pass_on_grants(session, target)
    return [*done, needed(target)] if done else []


def make_housekeeping(session: Session) -> list[str]:
    """Make the tables and columns that the schema ``epochal`` lacks."""
    if has_housekeeping(session):
        return []
    found = {table: [name for name, *_ in columns_of(session, table)] for table in ADDED_LATER}
    added = [
        Step(f"ALTER TABLE {table} ADD COLUMN {name} {kind}", f"added {name} to {table}")
        for table, wanted in ADDED_LATER.items()
        for name, kind in wanted.items()
        if found[table] and name not in found[table]
    ]
    return run_steps(session, [*added, *housekeeping_steps()])
