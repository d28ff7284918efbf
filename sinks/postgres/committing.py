"""Commit: one short transaction counts the prepared rows, shows them and writes the marker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Actor, Committable, Position
from epochal.coordinator.model.errors import OutcomeUnknown, PreparedLost, SinkUnavailable
from epochal.coordinator.model.failpoints import Point, hit
from epochal.sinks.conditions import marker_of
from epochal.sinks.postgres import audit, registering
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.core import PAYLOAD_VERSION, Core, State, attempts_of, tell_attempts
from epochal.sinks.postgres.modes import Append
from epochal.sinks.postgres.publish import Publish
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.rows import formats

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

log = logging.getLogger("epochal.sinks.postgres")


FILTERS = 100
"""With more attempts than this, rows are counted by GROUP BY instead of by filters."""
SPARE_PAGES = 256
"""How many pages before the old end of the table are read too: they may have had room for new rows."""


def commit(sink: Core, committable: Committable, by: Actor) -> CommitOutcome:
    """Publish the epoch in one short transaction.  If its answer is lost, read the marker on a new connection."""
    formats.check_vote(committable, PAYLOAD_VERSION)
    app = sink.looked()
    try:
        return publish_epoch(sink, app, committable, by)
    except OutcomeUnknown as unknown:
        sink.close()
        return resolve(sink, app, committable, by, unknown)


def publish_epoch(sink: Core, app: str, c: Committable, by: Actor) -> CommitOutcome:
    """Check the three conditions, count the rows, delete those of losing attempts, then write the marker."""
    number, outcome = c.decision.epoch, CommitOutcome.ALREADY_COMMITTED

    def answered() -> None:
        if outcome is CommitOutcome.COMMITTED:
            hit(Point.AFTER_PUBLISH, sink.name, number)

    with (
        sink.connector.session() as session,
        session.transaction(answered, bulk=True, by=by),
        sink.naming_blockers(session),
    ):
        state = sink.same(session, app, number, lock=True)
        if not sink.conditions.already_committed(state, by, marker_of(c), number):
            refuse_other_way(sink, c)
            losers = count_losers(sink, session, app, c)
            if "publish" in c.payload:
                publish_staged(sink, session, c)
            else:
                drop_losers(sink, session, c, losers)
            show(sink, session, app, c, state=state, may_forget=state.may_forget)
            outcome = CommitOutcome.COMMITTED
            hit(Point.BEFORE_PUBLISH, sink.name, number)
    return outcome


def refuse_other_way(sink: Core, c: Committable) -> None:
    """Raise ``PreparedLost`` if the epoch was staged and the sink's mode does not stage now, or the other way round.

    ``Plain`` and ``Upsert`` stage rows; ``Append`` does not.
    """
    if ("publish" in c.payload) != (sink.staging is not None):
        mode = sink.staging or Append()
        raise PreparedLost(
            f"the epoch was prepared under another mode than {mode!r}, and none of its rows is visible",
            sink=sink.name,
            epoch=c.decision.epoch,
            state=f"table {sink.target.rows}, position {c.position}, prepared by {c.decision.actor}",
            help="start the query again: the rows are prepared again in the present mode",
        )


def count_losers(sink: Core, session: Session, app: str, c: Committable) -> int:
    """Return how many rows at the position belong to losing attempts: those that are not in the committable.

    Raise ``PreparedLost`` unless all rows of the winning attempts are there.
    """
    won, by = attempts_of(c), c.decision.actor
    registered = sink.registered(session, app, c.position)
    alone = registered == ({by: won} if won else {})
    newest = newest_rows(sink, session, c.position) if alone else ()
    if newest and count_rows(sink, session, c.position, sorted(won), newest) == (sum(won.values()), won):
        return 0
    total, counted = count_rows(sink, session, c.position, sorted(won), [sink.target.rows])
    for source in (registered.get(by, {}), counted):
        if not won.items() <= source.items():
            raise PreparedLost(
                f"prepared rows are gone, and none of them is visible: {tell_attempts(won, source)}",
                sink=sink.name,
                epoch=c.decision.epoch,
                state=f"table {sink.target.rows}, position {c.position}, prepared by {c.decision.actor}",
                help="stop what deletes rows of this table, and start the query again: the rows are redone",
            )
    return total - sum(counted.values())


def newest_rows(sink: Core, session: Session, position: Position) -> Sequence[str]:
    """Return SQL for the newest pages of the rows table, to use in FROM instead of the table's name.

    Return nothing if it is not known where these pages begin, or if the table had at most ``SPARE_PAGES`` pages before.
    Until a vacuum runs, the index has no summary of the newest rows, and the planner has no statistics of them.  So a
    query for the position would read all rows that were written since.  The pages are returned as two halves, because
    the server reads one range of pages in one process, but two ranges in two.
    """
    noted, end = sink.end or (position, 0)
    if noted != position or end <= SPARE_PAGES:
        return ()
    begin = end - SPARE_PAGES
    middle = (begin + sink.pages(session)) // 2
    ranges = f"ctid >= '({begin},0)' AND ctid < '({middle},0)'", f"ctid >= '({middle},0)'"
    # OFFSET keeps the planner from moving the condition on _epoch, and with it the use of the index, into the subquery.
    # The offset is '0' and not 0: the server must first convert a number, and then it does not use a second process.
    rows = f"SELECT _epoch, _attempt FROM {sink.target.rows}"
    return [f"({rows} WHERE {pages} OFFSET '0') AS newest" for pages in ranges]


def count_rows(
    sink: Core, session: Session, position: Position, attempts: Sequence[int], tables: Sequence[str]
) -> tuple[int, dict[int, int]]:
    """Return how many rows lie at the position, and how many of them each of the attempts has.

    Filters count the rows of few attempts.  The planner has no statistics of new rows, so for a GROUP BY it would sort
    them on disk.  But each row is compared with each filter, and the server takes no more than 1,664 columns: with more
    than ``FILTERS`` attempts GROUP BY is used.
    """

    def of_all(select: str, after: str = "") -> list[tuple[Any, ...]]:
        counts = " UNION ALL ".join(f"SELECT {select} FROM {table} WHERE _epoch = $1{after}" for table in tables)
        return session.run(counts, position, limit=sink.limits.bulk)

    if len(attempts) > FILTERS:
        found: Counter[int] = Counter()
        for key, count in of_all("_attempt, count(*)", " GROUP BY _attempt"):
            found[int(key)] += int(count)
        return found.total(), {attempt: found[attempt] for attempt in attempts}
    filters = "".join(f", count(*) FILTER (WHERE _attempt = {attempt})" for attempt in attempts)
    total, *of_each = (sum(map(int, each)) for each in zip(*of_all(f"count(*){filters}"), strict=True))
    return total, dict(zip(attempts, of_each, strict=True))


def drop_losers(sink: Core, session: Session, c: Committable, losers: int) -> None:
    """Delete the rows at the position that belong to losing attempts of any actor, if there are any (``losers``)."""
    if losers:
        session.run(
            f"DELETE FROM {sink.target.rows} WHERE _epoch = $1 AND _attempt <> ALL($2::bigint[])",
            c.position,
            sorted(attempts_of(c)),
            limit=sink.limits.bulk,
        )


def publish_staged(sink: Core, session: Session, c: Committable) -> None:
    """Write the rows of the winning attempts into the table, and delete all staged rows up to the position."""
    plan = Publish.from_json(c.payload["publish"])
    plan.run(sink.staged(session, c.decision.epoch, c.position, attempts_of(c)))
    delete_staged(sink, session, c.position)


def delete_staged(sink: Core, session: Session, last: Position) -> None:
    session.run(f"DELETE FROM {sink.target.rows} WHERE _epoch <= $1", last, limit=sink.limits.bulk)


def show(sink: Core, session: Session, app: str, c: Committable, *, state: State, may_forget: bool) -> None:
    """Write the marker and the audit.  ``may_forget``: delete old rows of the audit, too, if some are due.

    ``state``: the sink's row as it was locked.  By now this transaction has read or written the table that has the
    name, so nobody can put another in its place.  The marker is written only if this is the table of ``state``.
    """
    audit.write(session, app, c)
    session.run(
        "DELETE FROM epochal.attempts WHERE app = $1 AND sink = $2 AND position <= $3", app, sink.name, c.position
    )
    shown = session.run(
        "UPDATE epochal.sinks SET published = $3, decision = $4 WHERE app = $1 AND sink = $2"
        " AND to_regclass($5)::oid::bigint = $6 RETURNING published",
        app,
        sink.name,
        c.position,
        c.decision.id,
        sink.target.own,
        state.table,
    )
    if not shown:
        now = sink.state(session, app)
        raise registering.swapped(sink.name, c.decision.epoch, sink.target, state.identity, now.identity)
    if may_forget and audit.is_due(c.position, sink.retention):
        forget(sink, session, app, c)


def forget(sink: Core, session: Session, app: str, c: Committable) -> None:
    """Delete old rows of the audit.  Rows that somebody has locked or protected stay, without an error."""
    session.run("SAVEPOINT forget")
    session.run("SET LOCAL lock_timeout = 100")  # milliseconds, until COMMIT: no later statement waits for a lock
    try:
        audit.forget(session, app, sink.name, c.position, sink.retention)
    except (ServerRefused, SinkUnavailable) as error:
        session.run("ROLLBACK TO SAVEPOINT forget")
        log.warning("sink %s: the audit in epochal.epochs could not be shortened: %s", sink.name, error)


def resolve(sink: Core, app: str, c: Committable, by: Actor, unknown: OutcomeUnknown) -> CommitOutcome:
    """Find out whether a COMMIT without an answer was applied.

    Whoever gets the row's lock knows that the old back-end has ended its transaction, so the marker it reads is final.
    """
    try:
        with (
            sink.connector.session() as session,
            sink.reading(),
            session.transaction(by=by),
            sink.ending_blockers(session, app, by),
        ):
            state = sink.state(session, app, lock=True)
    except SinkUnavailable:
        raise unknown from None
    if sink.conditions.already_committed(state, by, marker_of(c), c.decision.epoch):
        return CommitOutcome.COMMITTED
    raise SinkUnavailable(
        f"the COMMIT was lost, nothing became visible: {unknown.what}",
        sink=sink.name,
        epoch=c.decision.epoch,
        state=f"position {state.published} is shown, position {c.position} is not",
        help="restart the query if it has ended: the epoch is committed again",
    )
