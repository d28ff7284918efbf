"""Ends back-ends that hold the sink's row for too long: a start must not wait for another's open transaction."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor
from epochal.coordinator.model.errors import EpochalError, SinkUnavailable
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.client import Connector

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

PATIENCE_S = 2.0
"""How many seconds the owner of the row waits for another transaction before it ends that back-end."""


@dataclass(frozen=True)
class Row:
    """The row that is waited for, and the actor that waits."""

    app: str
    sink: str
    by: Actor


@contextlib.contextmanager
def ending_blockers(session: Session, connector: Connector, row: Row) -> Iterator[None]:
    """End the back-ends that hold a lock which the body of the ``with`` waits for.

    If the lock is not released in time, the error names these back-ends; this role may not be allowed to end them.
    Once a newer actor owns the row nobody is ended, since the newer actor may be the one that holds the row.
    """
    over, held_by = threading.Event(), list[str]()
    args = (connector, row, session.backend(), over, held_by)
    helper = threading.Thread(target=_end_blockers, args=args, daemon=True)
    helper.start()
    try:
        yield
    except SinkUnavailable as error:
        if not held_by:
            raise
        raise SinkUnavailable(
            f"waited for back-ends that hold the sink's row: {'; '.join(sorted(set(held_by)))}",
            sink=row.sink,
            state=error.what,
            help="end them with pg_terminate_backend(pid), or grant pg_signal_backend to this role",
        ) from error
    finally:
        over.set()
        helper.join(connector.limits.connect)


def _end_blockers(connector: Connector, row: Row, pid: int, over: threading.Event, held_by: list[str]) -> None:
    patience = PATIENCE_S
    while not over.wait(patience):
        try:
            with contextlib.closing(connector.open()) as session:
                _end_each(session, row, pid, held_by)
        except EpochalError as error:
            held_by.append(f"unknown, {error.what}")
        patience = 1.0


def _end_each(session: Session, row: Row, pid: int, held_by: list[str]) -> None:
    """End the back-ends that hold the lock.  A back-end that itself waits for a lock does not block for long."""
    blockers = session.run(
        "SELECT pid, coalesce(application_name, ''), coalesce(state, 'unknown') FROM pg_stat_activity"
        " WHERE pid = ANY(pg_blocking_pids($1)) AND wait_event_type IS DISTINCT FROM 'Lock' AND NOT EXISTS"
        " (SELECT FROM epochal.sinks WHERE app = $2 AND sink = $3 AND generation > $4)",
        pid,
        row.app,
        row.sink,
        row.by.generation,
    )
    for blocker, application, state in blockers:
        held_by.append(f"{blocker} ({application}, {state})")
        with contextlib.suppress(ServerRefused):
            session.run("SELECT pg_terminate_backend($1)", blocker)
