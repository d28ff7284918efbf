"""Look, fence and abort: read and change the owner of the sink; mark: write the marker for an operator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Digest, Marker, Position, Query, SinkState
from epochal.sinks.postgres import ddl, registering, rights
from epochal.sinks.postgres.core import Core, State

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


def look(sink: Core, query: Query, *, by: Actor | None = None) -> SinkState:
    """Read identity, fence and marker.

    Without ``by`` this is one plain SELECT.  With ``by`` the row is locked, so no older transaction is still under way.
    """
    sink.app = sink.checked(query.app)
    with sink.connector.session() as session:
        if by is None:
            session.refuse_standby()
            return seen(sink, session, query.app, sink.state(session, query.app))
        with sink.reading(), session.transaction(by=by):
            state = sink.state(session, query.app, lock=True)
            sink.conditions.check_owner(state, by)
            return seen(sink, session, query.app, state)


def seen(sink: Core, session: Session, app: str, state: State) -> SinkState:
    """Return the state with the marker's digest.

    The digest is read by a separate statement.  A statement that waited for the row's lock sees other tables as they
    were before the wait, and could miss the newest digest.
    """
    sink.seen = state.identity
    marker = state.marker
    if marker is not None:
        marker = replace(marker, digest=digest_at(sink, session, app, marker.position))
    return SinkState(state.identity, state.fence, marker)


def digest_at(sink: Core, session: Session, app: str, position: Position) -> Digest | None:
    found = session.run(
        "SELECT digest_rows, digest_sum FROM epochal.epochs WHERE app = $1 AND sink = $2 AND position = $3",
        app,
        sink.name,
        position,
    )
    held = [Digest(int(rows), int(total)) for rows, total in found if rows is not None]
    return held[0] if held else None


def fence(sink: Core, query: Query, by: Actor) -> None:
    """Set the fence by compare-and-set on the sink's row, and end older back-ends of ours that hold it for too long.

    The row then names the table that was judged.
    """
    sink.app = sink.checked(query.app)
    with sink.connector.session() as session, session.transaction(by=by), sink.ending_blockers(session, query.app, by):
        state = sink.state(session, query.app, lock=True)
        sink.conditions.check_fence(state, by)
        session.run(
            "UPDATE epochal.sinks SET generation = $3, token = $4, version = $5, rows_table = $6::bigint::oid"
            " WHERE app = $1 AND sink = $2",
            query.app,
            kept := sink.kept_as(session, query.app),
            by.generation,
            by.token,
            ddl.VERSION,
            judged_table(sink, session, query.app, kept, state),
        )


def judged_table(sink: Core, session: Session, app: str, kept: str, state: State) -> int:
    """Return the table to register the sink with: the one that look has seen, if it still has the name.

    A start and an operator's action fence only after the rules have judged what look has seen.  A start is refused
    there, and by its checks, if the table is another one; ``epochal resolve --accept`` is not.
    """
    if state.table == state.registered or state.identity != sink.seen:
        return state.registered
    if sink.also is not None and ddl.registered(session, app, sink.also) == state.table:
        return state.registered  # the sink is renamed, and its other name has the table already
    registering.refuse_other_sink(session, app, kept, sink.target)
    return state.table


def abort(sink: Core, query: Query, by: Actor) -> None:
    """Delete all rows above ``published``, registered or not.  A COPY that ends later fails at its own fence check."""
    app = sink.checked(query.app)
    with (
        sink.connector.session() as session,
        session.transaction(bulk=True, by=by),
        sink.ending_blockers(session, app, by),
    ):
        state = sink.owned(session, app, by)
        session.run(f"DELETE FROM {sink.target.rows} WHERE _epoch > $1", state.published, limit=sink.limits.bulk)
        session.run(
            "DELETE FROM epochal.attempts WHERE app = $1 AND sink = $2 AND position > $3",
            app,
            sink.name,
            state.published,
        )


def check_mark(sink: Core, query: Query) -> None:
    """If the sink is being renamed, refuse a role that may not rename it; see ``rights.refuse_no_owner``."""
    sink.checked(query.app)
    if sink.also is None:
        return
    with sink.connector.session() as session:
        rights.refuse_no_owner(session, sink.name, sink.target, has_view=sink.staging is None)


def mark(sink: Core, query: Query, marker: Marker | None, by: Actor) -> None:
    """Write the marker in one transaction.

    If the sink is being renamed, this transaction also gives its row, its audit and its reader view this name.
    """
    app = sink.checked(query.app)
    with (
        sink.connector.session() as session,
        session.transaction(bulk=True, by=by),
        sink.ending_blockers(session, app, by),
    ):
        sink.owned(session, app, by)
        kept = sink.kept_as(session, app)
        if kept != sink.name:
            ddl.rename(session, app, kept, sink.name, sink.target, has_view=sink.staging is None)
        if marker is not None:
            session.run(
                "UPDATE epochal.sinks SET published = $3, decision = $4 WHERE app = $1 AND sink = $2",
                app,
                sink.name,
                marker.position,
                marker.decision,
            )
