"""Which table a sink has: ``epochal.sinks`` holds its object id, and a table of the same name may be another one.

A table may be dropped and created again, or renamed, and another may take its name.  Then a start is refused, and a
running query ends before its next epoch is visible.  The runbook has one page about it.  There are two ways out: put
the old table back, or ``epochal resolve --accept``, which registers the table that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured
from epochal.sinks.postgres.ddl import Target, find, missing, registered, run_steps, sink_step

if TYPE_CHECKING:
    from epochal.coordinator.model.epoch import EpochNumber
    from epochal.sinks.postgres.session import Session

_PAGE = 'docs/runbook.md, "Postgres table dropped or created again"'


def register(session: Session, app: str, sink: str, target: Target) -> list[str]:
    """Register the sink with its table, also again if the table of before is gone.  Refuse any other change.

    If the sink has epochs, the log knows the table of before.  So its next start asks a person.
    """
    refuse_other_sink(session, app, sink, target)
    mine, oid = registered(session, app, sink), find(session, target.own)
    if mine is None:
        return run_steps(session, [sink_step(app, sink, target)])
    if mine == oid:
        return []
    refuse_moved(session, app, sink, target)
    sql = "UPDATE epochal.sinks SET rows_table = $3::bigint::oid WHERE app = $1 AND sink = $2"
    session.run(sql, app, sink, oid)
    return [f"registered sink {sink} of app {app} with {target.own}, as its table of before is gone"]


def refuse_other_sink(session: Session, app: str, sink: str, target: Target) -> None:
    """Refuse a table that belongs to another sink."""
    oid = find(session, target.own)
    owners = session.run("SELECT app, sink FROM epochal.sinks WHERE rows_table = $1::bigint::oid", oid)
    if owners and tuple(owners[0]) != (app, sink):
        raise Misconfigured(
            f"the table {target.own} belongs to sink {owners[0][1]!r} of app {owners[0][0]!r}",
            sink=sink,
            state=f"table oid {oid}, asked for by sink {sink!r} of app {app!r}",
            help="give each sink a table of its own; if it is that sink under a new name, say so with `epochal rename`",
        )


def refuse_other_table(session: Session, app: str, sink: str, target: Target) -> None:
    """Refuse a table that is missing, belongs to another sink, or is not the one that the sink is registered with."""
    oid, mine = find(session, target.own), registered(session, app, sink)
    if oid is not None:
        refuse_other_sink(session, app, sink, target)
    if mine is not None and mine != oid and not _is_to_adopt(session, target, mine):
        refuse_moved(session, app, sink, target)
        if oid is not None:
            raise Misconfigured(
                f"app {app!r} registered this sink with another table than {target.own}: that table was created again",
                sink=sink,
                state=f"registered: table oid {mine}, which is gone; {target.own}: oid {oid}",
                help=f"restore the table; or go on with the one that is there: `epochal resolve --accept {sink}`; if"
                f" the query has never run, pipeline.create() is enough ({_PAGE})",
            )
        raise gone(session, app, sink, target)


def refuse_moved(session: Session, app: str, sink: str, target: Target) -> None:
    """Refuse if the table that the sink is registered with has another name now."""
    oid, mine = find(session, target.own), registered(session, app, sink)
    if mine is None or mine == oid or _is_to_adopt(session, target, mine):
        return
    if (now := _name_of(session, mine)) is None:
        return
    away = f"rename {target.own} to another name, and " if oid is not None else ""
    onward = (
        f"to go on with the one that is there, `epochal resolve --accept {sink}`"
        if oid is not None
        else f"to leave it and begin with another one, `epochal retire --unreachable {sink}`, and give the sink another"
        " name="
    )
    raise Misconfigured(
        f"app {app!r} registered this sink with another table than {target.own}: that one is called {now} now",
        sink=sink,
        state=f"registered: table oid {mine}; {target.own}: {f'oid {oid}' if oid is not None else 'missing'}",
        help=f"give the table= that is registered, or {away}rename {now} to {target.own}; {onward} ({_PAGE})",
    )


def gone(session: Session, app: str, sink: str, target: Target) -> Misconfigured:
    """Return the error for the table of a sink that is registered, where no table has that name."""
    mine = registered(session, app, sink)
    if mine is not None and _is_to_adopt(session, target, mine):
        return missing(session, f"the table {target.own}", sink)
    refuse_moved(session, app, sink, target)
    return Misconfigured(
        f"the table {target.own} does not exist any more",
        sink=sink,
        state=session.where,
        help=f"restore it; or call pipeline.create(), which makes it anew, and then, if the query has run before,"
        f" `epochal resolve --accept {sink}` ({_PAGE})",
    )


def swapped(sink: str, epoch: EpochNumber | None, target: Target, was: str, now: str) -> CheckpointMismatch:
    """Return the error for a table that is not the one which the start has looked at."""
    return CheckpointMismatch(
        f"{target.own} is not the table that this start has looked at: it was dropped and created again, or another"
        " table has its name now",
        sink=sink,
        epoch=epoch,
        state=f"at the start: {was}; now: {now}; no epoch became visible in it",
        help=f"put the table of before back in its place, or go on with the one that is there: `epochal resolve"
        f" --accept {sink}` ({_PAGE})",
    )


def _is_to_adopt(session: Session, target: Target, mine: int) -> bool:
    """Return whether ``create`` adopts the very table of the sink, whose mode was ``Plain`` or ``Upsert`` before."""
    return target.plain != target.own and find(session, target.plain) == mine


def _name_of(session: Session, oid: int) -> str | None:
    found = session.run("SELECT oid::regclass::text FROM pg_class WHERE oid = $1::bigint::oid", oid)
    return str(found[0][0]) if found else None
