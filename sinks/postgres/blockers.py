"""What a transaction of ours waits for: who holds it is named, and ended only if the holder is an older part of us.

A start must not wait for a transaction that an older start has left open.  So a back-end that holds the sink's own row
is ended, if its application name says that an older actor, or this one, runs it (``session.named``).  Whatever else
others hold is waited for until the time limit, and the error names it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor
from epochal.coordinator.model.errors import EpochalError, SinkUnavailable
from epochal.sinks.conditions import may_drop
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.client import Connector

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

PATIENCE_S = 2.0
"""How many seconds a transaction waits for another back-end before it looks who that is."""

_BLOCKERS = """
WITH waiting AS (SELECT * FROM pg_locks WHERE pid = $1 AND NOT granted),
row_locked AS (SELECT relation FROM pg_locks WHERE pid = $1 AND granted AND locktype = 'tuple'),
blockers AS (SELECT DISTINCT unnest(pg_blocking_pids($1)) AS pid)
SELECT blockers.pid, coalesce(application_name, ''), coalesce(state, 'unknown'),
    CASE WHEN locktype <> 'relation' THEN 'holds'
         ELSE coalesce((SELECT 'holds ' || string_agg(held.mode, ', ') || ' on' FROM pg_locks held
                WHERE held.pid = blockers.pid AND held.granted AND held.locktype = 'relation'
                AND held.database = waiting.database AND held.relation = waiting.relation), 'waits before us for') END,
    CASE WHEN locktype = 'relation' THEN waiting.relation::regclass::text
         WHEN EXISTS (SELECT FROM row_locked) THEN (SELECT 'a row of ' || relation::regclass FROM row_locked LIMIT 1)
         WHEN locktype = 'tuple' THEN 'a row of ' || waiting.relation::regclass
         WHEN locktype = 'transactionid' THEN 'a row'
         ELSE 'a lock of the type ' || locktype END,
    locktype = 'transactionid' AND EXISTS (SELECT FROM row_locked WHERE relation = to_regclass('epochal.sinks'))
        AND NOT EXISTS (SELECT FROM pg_locks WHERE pid = blockers.pid AND NOT granted)
FROM blockers CROSS JOIN waiting LEFT JOIN pg_stat_activity ON pg_stat_activity.pid = blockers.pid
"""
"""Who holds what the back-end $1 waits for, and whether that is the sink's own row.

While a back-end waits for a row it holds a lock of the type ``tuple`` on it; what it waits for is the other's
transaction.  A back-end that itself waits for a lock does not block for long.  The statement reads no table, so that it
has to wait for nobody.
"""

_END = """
SELECT pg_terminate_backend($1)
WHERE NOT EXISTS (SELECT FROM epochal.sinks WHERE app = $2 AND sink = $3 AND generation > $4)
"""


@dataclass(frozen=True)
class Row:
    """The sink's row, and the actor whose transaction needs it."""

    app: str
    sink: str
    by: Actor


@contextlib.contextmanager
def watching(session: Session, connector: Connector, sink: str, row: Row | None = None) -> Iterator[None]:
    """Name the back-ends in whose way the body of the ``with`` had to give up a wait, and what they hold.

    With ``row``, older back-ends of this sink that hold its row are ended while the body waits for it.  Once a newer
    actor owns the row nobody is ended, since the newer actor may be the one that holds it.
    """
    over, held_by = threading.Event(), dict[str, None]()
    args = (connector, row, session.backend(), over, held_by)
    helper = threading.Thread(target=_watch, args=args, daemon=True)
    helper.start()
    try:
        yield
    except SinkUnavailable as error:
        if not held_by:
            raise
        raise SinkUnavailable(
            f"waited for what other back-ends hold: {'; '.join(held_by)}",
            sink=sink,
            state=error.what,
            help="wait until they are done, or end those that may be ended: SELECT pg_terminate_backend(pid)",
        ) from error
    finally:
        over.set()
        helper.join(connector.limits.connect)


def _watch(connector: Connector, row: Row | None, pid: int, over: threading.Event, held_by: dict[str, None]) -> None:
    patience = min(PATIENCE_S, connector.limits.lock / 2)
    while not over.wait(patience):
        try:
            with contextlib.closing(connector.open()) as session:
                _look(session, row, pid, held_by)
        except EpochalError as error:
            held_by[f"unknown, {error.what}"] = None
        patience = 1.0


def _look(session: Session, row: Row | None, pid: int, held_by: dict[str, None]) -> None:
    """Note the back-ends that are in the way, and end those that may be ended."""
    for blocker, application, state, does, what, own_row in session.run(_BLOCKERS, pid):
        who = f"pid {blocker} ({application or 'unnamed'}, {state})" if blocker else "a prepared transaction"
        held_by[f"{who} {does} {what}"] = None
        if row is not None and own_row and _is_ours(session, application, row):
            with contextlib.suppress(ServerRefused):
                session.run(_END, blocker, row.app, row.sink, row.by.generation)


def _is_ours(session: Session, application: str, row: Row) -> bool:
    """Return whether the application name is that of an older actor of this sink, or of this actor itself."""
    from epochal.sinks.postgres.session import default_name, named

    if application == default_name(row.sink):
        return True  # of an Epochal that did not yet name its actors
    found = re.search(r" (\d+)/(\d+)$", application)
    if found is None:
        return False
    owner = Actor(int(found[1]), int(found[2]))
    return application == named(session.name, owner) and may_drop(owner, row.by)
