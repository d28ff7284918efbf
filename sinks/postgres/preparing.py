"""Prepare: tasks write rows under the next position, where no reader sees them, and the sink votes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Actor, Committable, Epoch, Json, Position
from epochal.coordinator.model.errors import (
    EpochalError,
    Misconfigured,
    OutcomeUnknown,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.conditions import marker_of, refusing
from epochal.sinks.postgres import checking, committing, given, judging, publications, staging
from epochal.sinks.postgres.address import Address, ServerRefused
from epochal.sinks.postgres.core import PAYLOAD_VERSION, Core, State, attempts_of, tell_attempts
from epochal.sinks.postgres.modes import Staging
from epochal.sinks.postgres.ways import Way, ways_of
from epochal.sinks.protocol import Rows
from epochal.sinks.rows.digest import watched
from epochal.sinks.spark import settings
from epochal.sinks.spark.executors import error_of_a_worker, lacks_epochal, telling
from epochal.sinks.spark.names import numbered

if TYPE_CHECKING:
    from epochal.sinks.postgres.ddl import PgColumn
    from epochal.sinks.postgres.write import Task


def sums_of(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for count in counts:
        for column, rows in count.items():
            sums[column] = sums.get(column, 0) + int(rows)
    return sums


def prepare(sink: Core, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
    """Copy the rows under the next position in one Spark job, read back what its tasks registered, and vote."""
    from epochal.sinks.postgres.rows import check_times, holdable
    from epochal.sinks.postgres.rows import columns as columns_in

    app = sink.looked()
    with sink.connector.anew() as session:
        session.refuse_standby()
        sink.conditions.check_prepare(sink.same(session, app, epoch.number), by, marker_of(epoch), epoch.number)
        address = session.address()
    sink.end = noted_end(sink, epoch)
    sink.projection.check(rows.schema)
    rows, digest = watched(rows) if epoch.digest else (rows, None)
    projected, kept_out = sink.projection.sifted(rows, counts=not epoch.digest)
    with refusing(sink.name, epoch.number):
        check_times(projected.schema, rows.sparkSession, sink.name)
    columns = columns_in(projected.schema, sink.name)  # of the written rows, in this Spark session
    if sink.evolves:
        evolve(sink, app, epoch, columns, by)
    ways = refuse_columns(sink, epoch, columns)
    held, bad = judging.good(sink, epoch, projected) if sink.bad_rows is not None else (projected, int)
    written, flagged = holdable(held, ways, judged=sink.bad_rows is not None)
    with sink.projection.evaluating(epoch.number, of_query=epoch.copy is None):
        votes = written_by(sink, written, task_of(sink, address, app, epoch, by, ways, flagged))
        raise_refusals(sink, votes, epoch, by)
        with telling(epoch.number):
            left_out, unheld = (kept_out(), bad()) if not epoch.digest else (0, 0)
    if sink.bad_rows is not None and epoch.copy is not None:
        sink.counted_bad = epoch.decision.id, unheld
    attempts = {int(vote["attempt"]): int(vote["rows"]) for vote in votes if vote}
    with sink.connector.session() as session:
        registered = sink.registered(session, app, epoch.position).get(by, {})
    if not attempts.items() <= registered.items():
        raise PrepareRefused(
            f"epochal.attempts lacks rows that the tasks voted for: {tell_attempts(attempts, registered)}",
            sink=sink.name,
            epoch=epoch.number,
            state=f"position {epoch.position}, by {by}",
            help="stop what deletes rows of the table epochal.attempts, and restart the query",
        )
    payload: Json = {
        "version": PAYLOAD_VERSION,
        "app": app,
        "attempts": [[attempt, count] for attempt, count in sorted(attempts.items())],
        "offsets": epoch.offsets,
        "watermark": epoch.watermark,
    }
    vote = Committable(
        sink.name,
        epoch.decision,
        epoch.position,
        sum(attempts.values()),
        payload,
        left_out=left_out + unheld,
        digest=digest() if digest is not None else None,
    )
    if sink.staging is None:
        look_ahead(sink, app, epoch, columns)
    else:
        try_publish(sink, app, sink.staging, epoch, columns, vote, by)
    return vote


def refuse_columns(sink: Core, epoch: Epoch, columns: Sequence[PgColumn]) -> tuple[Way, ...]:
    """Return how the columns get into the table.  Raise ``PrepareRefused`` if the rows do not fit it.

    Rows or table may have changed since the start, and the server would change values that do not fit.
    """
    with sink.connector.session() as session, refusing(sink.name, epoch.number):
        if sink.staging is not None:
            staging.refuse_rows(session, sink.name, sink.target, sink.staging, columns, fewer=sink.evolves)
        else:
            checking.refuse_rows(session, sink.name, sink.target, columns, fewer=sink.evolves)
        return ways_of(session, sink.name, sink.target, sink.staging, columns)


def evolve(sink: Core, app: str, epoch: Epoch, columns: Sequence[PgColumn], by: Actor) -> None:
    """Add the columns that are new.  The conditions of prepare are checked first: a fenced actor alters no table."""
    evolution = sink.evolution(app, columns)
    with sink.connector.session() as session:
        if not evolution.lacking(session):
            return
        with session.transaction(by=by):
            state = sink.same(session, app, epoch.number, lock=True)
            sink.conditions.check_prepare(state, by, marker_of(epoch), epoch.number)
            evolution.run(session)


def look_ahead(sink: Core, app: str, epoch: Epoch, columns: Sequence[PgColumn]) -> None:
    """Refuse the epoch if a right or a publication bars what the publish writes, or if no reader would see it.

    All this may have changed since the start, and after the decision it would be too late to learn of it.
    """
    with sink.connector.session() as session, session.rehearsal(), refusing(sink.name, epoch.number):
        sink.same(session, app, epoch.number)
        checking.refuse_view(session, sink.name, sink.target, columns)
        publications.refuse_publications(session, sink.name, sink.target)
        checking.explain(session, sink.target)


def try_publish(
    sink: Core, app: str, mode: Staging, epoch: Epoch, columns: Sequence[PgColumn], vote: Committable, by: Actor
) -> None:
    """Put into the vote the plan by which the staged rows will be published, after the plan was checked.

    With a trial, every statement of the publish runs and is rolled back, also for an epoch without rows; the staged
    rows alone stay.  Without a trial, the server plans these statements.  The sink's row is locked as by a task.  So a
    newer start that fences the sink can end a long trial.
    """
    with (
        sink.connector.session() as session,
        session.rehearsal(by),
        sink.naming_blockers(session),
        refusing(sink.name, epoch.number),
    ):
        state = sink.same(session, app, epoch.number, share=True)
        sink.conditions.check_prepare(state, by, marker_of(epoch), epoch.number)
        staging.refuse_publications(session, sink.name, sink.target, mode)
        plan = staging.plan_of(session, sink.target, mode, columns)
        vote.payload["publish"] = plan.to_json()
        staged = sink.staged(session, epoch.number, epoch.position, attempts_of(vote))
        plan.check(staged, trial=mode.trial)
        if mode.trial:
            committing.delete_staged(sink, session, epoch.position - 1)
            committing.show(sink, session, app, vote, state=state, may_forget=False)
        else:
            checking.explain(session, sink.target)
            plan.explain(staged)


def task_of(
    sink: Core,
    address: Address,
    app: str,
    epoch: Epoch,
    by: Actor,
    ways: Sequence[Way],
    flagged: tuple[str, ...],
) -> Task:
    from epochal.sinks.postgres.write import Task

    return Task(
        address=address,
        limits=sink.limits,
        app=app,
        sink=sink.name,
        epoch=epoch.number,
        position=epoch.position,
        actor=by,
        copy=f"COPY {sink.target.rows} ({given.written(ways)}) FROM STDIN (FORMAT binary)",
        table=sink.target.rows,
        columns=tuple(ways),
        flagged=flagged,
        insert=given.insertion(sink.target.rows, ways) if given.converted(ways) else None,
    )


def written_by(sink: Core, rows: Any, task: Task) -> list[Json]:
    """Write the rows and return the votes of all partitions.

    ``coalesce`` limits the number of connections, and does not evaluate the rows a second time.
    """
    from epochal.sinks.postgres.write import VOTE, writer

    try:
        with settings.held(rows.sparkSession, sink.bounds.settings(rows.sparkSession)):
            votes = numbered(rows).coalesce(sink.connections).mapInArrow(writer(task), VOTE).collect()
    except Exception as error:
        raise error_of_a_task(sink, error, task.epoch) or error from None
    sink.bounds.saw(float(vote["widest"]) for vote in votes)
    return [json.loads(vote["vote"]) for vote in votes]


def error_of_a_task(sink: Core, error: Exception, epoch: int) -> EpochalError | None:
    """Return Epochal's error if a task ended with one, else None.  From Spark only the text of the error arrives."""
    told = error_of_a_worker(error, epoch)
    if isinstance(told, PrepareRefused):
        return told
    for kind in (SinkUnavailable, OutcomeUnknown):
        found = re.search(rf"{kind.__module__}\.{kind.__name__}: (.*)(?:\n +State: .*)?(?:\n +Help: (.*))?", str(error))
        if found is not None:
            what = f"a task could not write: {found[1].removeprefix(f'sink {sink.name!r}: ')}"
            own = found[2] if kind is SinkUnavailable else None
            way_on = own or "make the server reachable from the executors, and restart the query"
            return SinkUnavailable(what, sink=sink.name, epoch=epoch, help=way_on)
    if lacks_epochal(error):
        lacking = "Epochal is not installed on the executors"
        remedy = "pip install 'epochal[postgres]' on every executor"
        return Misconfigured(lacking, sink=sink.name, epoch=epoch, help=remedy)
    return None


def raise_refusals(sink: Core, votes: Sequence[Json], epoch: Epoch, by: Actor) -> None:
    """Raise one error if votes say no.  If they have reasons of several kinds, the kind checked first counts."""
    where: dict[str, Any] = {"sink": sink.name, "epoch": epoch.number}
    for vote in votes:
        if "stale" in vote:
            fence, published = vote["stale"]["fence"], int(vote["stale"]["published"])
            seen = State("", Actor.from_json(fence) if fence else None, published, None)
            sink.conditions.check_prepare(seen, by, marker_of(epoch), epoch.number)
        if "client" in vote:
            raise Misconfigured(
                f"an executor cannot write: {vote['client']}",
                help="pip install 'epochal[postgres]' on every executor",
                **where,
            )
    unholdable = sums_of([vote["unholdable"] for vote in votes if "unholdable" in vote])
    if unholdable:
        told = ", ".join(f"column {column!r}: {count}" for column, count in unholdable.items())
        messages = [vote["told"] for vote in votes if vote.get("told")]
        raise PrepareRefused(
            f"rows with values that Postgres cannot hold exactly: {told}",
            state=f"for instance, {messages[0]}" if messages else "",
            help="these are strings with NUL or broken UTF-8, dates or timestamps out of Postgres's range, NaN,"
            " infinities, NUL and broken UTF-8 inside JSON, or values that the column's type refuses or would change"
            " (docs/postgres.md, Types): replace or drop them in the query, or write them elsewhere with bad_rows=",
            **where,
        )
    for vote in votes:
        if "refused" in vote:
            raise PrepareRefused(
                vote["refused"],
                state=vote["state"],
                help="change the rows so that they fit the table, or change the table",
                **where,
            )


def noted_end(sink: Core, epoch: Epoch) -> tuple[Position, int] | None:
    """Return the position, and the page at which its rows will begin; None if this is not known.

    Some rows may go into free space in earlier pages (``SPARE_PAGES``).  A redone epoch may have older rows at an
    unknown place.  If the page is not known, the commit only takes longer.
    """
    if sink.staging is not None or epoch.decision.redo > 0:
        return None
    try:
        with sink.connector.session() as session, sink.reading(), session.transaction():
            return epoch.position, sink.pages(session)
    except (ServerRefused, SinkUnavailable):  # no right to ask, or the table is locked, and COPY will wait for that
        return None
