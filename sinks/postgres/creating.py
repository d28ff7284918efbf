"""Creates what a sink lacks in the database, or adopts a table that exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.sinks.postgres.checking import (
    refuse_columns,
    refuse_dependents,
    refuse_misspelt,
    refuse_other_owner,
    refuse_relation,
    refuse_rows,
)
from epochal.sinks.postgres.ddl import (
    ADDED_LATER,
    PgColumn,
    Step,
    Target,
    columns_of,
    find,
    has_housekeeping,
    housekeeping_steps,
    registered,
    rows_steps,
    run_steps,
    sink_step,
    view_step,
)
from epochal.sinks.postgres.publications import mend
from epochal.sinks.postgres.rights import needed

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


def create(session: Session, app: str, sink: str, target: Target, columns: Sequence[PgColumn]) -> list[str]:
    """Make what is missing, within the caller's transaction; return a line for each thing that was made."""
    session.run("SELECT pg_advisory_xact_lock(hashtextextended('epochal.create', 0))")
    refuse_misspelt(session, sink, target)
    done: list[str] = []
    done += make_housekeeping(session)
    if find(session, target.rows) is None:
        done += run_steps(session, _rows_steps(session, sink, target, columns))
    refuse_rows(session, sink, target, columns)
    refuse_other_owner(session, app, sink, target)
    done += mend(session, target)
    if registered(session, app, sink) is None:
        done += run_steps(session, [sink_step(app, sink, target)])
    if find(session, target.reader) is None:
        names = [name for name, *_ in columns_of(session, target.rows) if name not in ("_epoch", "_attempt")]
        done += run_steps(session, [view_step(app, sink, target, names)])
        done += _pass_on_grants(session, target)
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


def _rows_steps(session: Session, sink: str, target: Target, columns: Sequence[PgColumn]) -> list[Step]:
    """Return the steps that make the rows table, or that adopt the plain table if it exists and fits."""
    existing = find(session, target.plain)
    if existing is None:
        return rows_steps(target, columns, adopt=False)
    refuse_relation(session, sink, target.plain)
    refuse_columns(sink, target.plain, columns_of(session, target.plain), columns)
    refuse_dependents(session, sink, target.plain)
    return rows_steps(target, columns, adopt=True)


def _pass_on_grants(session: Session, target: Target) -> list[str]:
    """Grant SELECT on the view to every role that could read the adopted table."""
    grantees = session.run(
        "SELECT CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END"
        " FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass($1) AND privilege_type = 'SELECT'"
        " AND grantee <> relowner",
        target.rows,
    )
    steps = [
        Step(f"GRANT SELECT ON {target.reader} TO {who}", f"granted SELECT on {target.reader} to {who}")
        for (who,) in grantees
    ]
    return run_steps(session, steps)
