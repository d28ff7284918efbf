"""Create what is missing, and refuse before a start what can never work."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Query
from epochal.sinks.epochs import Retention
from epochal.sinks.postgres import adopting, advice, checking, creating, ddl, rights, staging
from epochal.sinks.postgres.advice import Script
from epochal.sinks.postgres.core import Core
from epochal.sinks.postgres.inspection import PostgresInspection
from epochal.sinks.protocol import Schema
from epochal.sinks.spark.executors import check_executors, running_session

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

log = logging.getLogger("epochal.sinks.postgres")


def all_sql(sink: Core, app: str, schema: Schema, *, adopt: bool = False) -> str:
    """Return the SQL that ``create`` runs in an empty database, or with ``adopt`` if only the plain table exists."""
    where, columns = (sink.checked(app), sink.name, sink.target), sink.columns(schema)
    if sink.staging is not None:
        steps = staging.all_steps(*where, sink.staging, columns, adopt)
    else:
        steps = ddl.all_steps(*where, columns, adopt)
    return "".join(f"{sql};\n" for sql in ("BEGIN", *(step.sql for step in steps), "COMMIT"))


def create(sink: Core, query: Query, schema: Schema) -> Sequence[str]:
    """Make what is missing, in one transaction.

    ``Append()`` adopts a plain table: it becomes ``<table>__rows``, and a view with its rows takes its name.
    """
    where, columns = (sink.checked(query.app), sink.name, sink.target), sink.columns(schema)
    with sink.connector.session() as session, session.transaction(bulk=True), sink.naming_blockers(session):
        added = sink.evolution(query.app, columns).run(session) if sink.evolves else []
        if sink.staging is not None:
            return [*added, *staging.create(session, *where, sink.staging, columns)]
        return [*added, *creating.create(session, *where, columns)]


def check(sink: Core, query: Query, schema: Schema) -> None:
    """Refuse what can never work: server, table, types, constraints, key, view, rights, executors."""
    from epochal.sinks.postgres.rows import check_times
    from epochal.sinks.postgres.write import reached

    where, columns = (sink.checked(query.app), sink.name, sink.target), sink.columns(schema)
    if (spark := running_session()) is not None:
        check_times(sink.projection.check(schema), spark, sink.name)
    with sink.connector.session() as session, session.rehearsal(), sink.naming_blockers(session):
        address = session.address()
        if sink.evolves:
            columns = sink.evolution(query.app, columns).known(session)
        if sink.staging is not None:
            staging.check(session, *where, sink.staging, columns)
        else:
            checking.check(session, *where, columns)
            warn_of_readers(sink, session)
        warn_of_retention(sink, session)
    reach = partial(reached, address, sink.name, sink.limits)
    check_executors(sink.name, ["psycopg", "numpy"], "'epochal[postgres]' pyarrow", reach)


def warn_of_readers(sink: Core, session: Session) -> None:
    """Log a warning if something in the database uses the rows table itself, other than the reader view.

    It sees prepared rows.  Somebody may have made it on purpose, so the query is not refused.
    """
    view = f"view {session.run('SELECT to_regclass($1)::text', sink.target.reader)[0][0]}"
    found = [what for what in adopting.bound(session, sink.target.rows) if what != view]
    if found:
        log.warning(
            "sink %s: the %s uses %s itself, and so sees prepared rows; %s is for readers",
            sink.name,
            ", the ".join(found),
            sink.target.rows,
            sink.target.reader,
        )


def warn_of_retention(sink: Core, session: Session) -> None:
    """Log a warning if this role may not delete old rows of the audit.

    An older Epochal did not ask for this right.  So the query is not refused, and its audit keeps all epochs.
    """
    grant = rights.lacks_retention(session)
    if grant is not None and sink.retention != Retention(None, None):
        log.warning(
            "sink %s: the audit in epochal.epochs is not bounded, as this role may not delete there: %s",
            sink.name,
            grant,
        )


def script(sink: Core, app: str, schema: Schema | None = None, filters: Sequence[str] = ()) -> Script:
    """Return SQL for a DBA.  Without ``schema`` the columns are read from the existing table."""
    if schema is not None:
        columns = sink.columns(schema)
    else:
        with sink.connector.session() as session:
            columns = advice.existing_columns(session, sink.name, sink.target)
    return advice.script(sink.checked(app), sink.name, sink.target, sink.staging, columns, filters)


def inspection(sink: Core, query: Query) -> PostgresInspection:
    """See ``epochal.sinks.inspection``."""
    app = sink.checked(query.app)
    given = {**sink.projection.to_json(), "bad_rows": sink.bad_rows is not None}
    return PostgresInspection(
        sink.connector,
        sink.target,
        sink.conditions,
        app,
        given,
        stages=sink.staging is not None,
        row=lambda session, lock: sink.state(session, app, lock=lock),
    )
