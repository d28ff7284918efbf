"""The audit ``epochal.epochs``: one row for each epoch that the sink shows, and how old rows are deleted.

The transaction that publishes an epoch writes its row, so the row exists exactly when the epoch is shown.  The same
transaction deletes the oldest rows that retention no longer keeps, up to a fixed number.  So a long audit does not make
a publish slower, and after a user shortens retention the audit shrinks over the next epochs.
"""

from __future__ import annotations

from datetime import timezone
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Committable, Digest, Position
from epochal.sinks.epochs import KEPT_ALWAYS, Epochs, Retention, ShownEpoch, Wanted

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

DELETED_AT_MOST = 100
"""How many rows one publish deletes at most."""

_COLUMNS = (
    "position, epoch, incarnation, decision, offsets, row_count, watermark, digest_rows, digest_sum, committed_at"
)


def write(session: Session, app: str, c: Committable) -> None:
    """Insert the row of an epoch, within the transaction that shows the epoch."""
    session.run(
        "INSERT INTO epochal.epochs"
        " (app, sink, position, epoch, incarnation, decision, offsets, row_count, watermark,"
        " digest_rows, digest_sum)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        app,
        c.sink,
        c.position,
        c.decision.epoch,
        c.decision.incarnation,
        c.decision.id,
        str(c.payload["offsets"]),
        c.rows,
        c.payload["watermark"],
        c.digest.rows if c.digest is not None else None,
        c.digest.sum if c.digest is not None else None,
    )


def _newest_to_examine(newest: Position, keep: Retention) -> Position:
    """Return the highest position whose row retention may delete.  If it is below 1, there is no such row."""
    return keep.keep_from(newest) - 1 if keep.days is None else newest - KEPT_ALWAYS


def is_due(newest: Position, keep: Retention) -> bool:
    """Return whether there may be rows to delete.  This does not ask the server."""
    return _newest_to_examine(newest, keep) >= 1


def forget(session: Session, app: str, sink: str, newest: Position, keep: Retention) -> int:
    """Delete the oldest rows that ``keep`` no longer keeps, in the transaction that shows ``newest``; return how many.

    The statement names rows by their whole key, so its time grows only with the rows that it deletes (or, with
    ``keep_days``, looks at).
    """
    return session.change(
        "DELETE FROM epochal.epochs WHERE app = $1 AND sink = $2 AND position = ANY (ARRAY("
        "SELECT position FROM (SELECT position, committed_at FROM epochal.epochs"
        " WHERE app = $1 AND sink = $2 AND position <= $3::bigint ORDER BY position LIMIT $4::int) oldest"
        " WHERE position <= $5::bigint OR committed_at < clock_timestamp() - $6::float8 * interval '1 day'))",
        app,
        sink,
        _newest_to_examine(newest, keep),
        DELETED_AT_MOST,
        keep.keep_from(newest) - 1,
        keep.days,
    )


def read(session: Session, app: str, sink: str, wanted: Wanted) -> Epochs:
    """Return the epochs that are wanted.  They are read by the primary key, from the newest to the oldest."""
    found = session.run(
        f"SELECT {_COLUMNS} FROM epochal.epochs WHERE app = $1 AND sink = $2 AND position >= $3"
        " AND position <= $4 ORDER BY position DESC LIMIT $5::bigint",
        app,
        sink,
        wanted.first,
        wanted.last if wanted.last is not None else 2**63 - 1,
        wanted.limit,
    )
    return wanted.of_all(_row(app, sink, *columns) for columns in found)


def _row(
    app: str,
    sink: str,
    position: int,
    epoch: int,
    incarnation: str,
    decision: int,
    offsets: str,
    rows: int,
    watermark: int | None,
    digest_rows: int | None,
    digest_sum: int | None,
    committed_at: Any,
) -> ShownEpoch:
    digest = Digest(digest_rows, digest_sum) if digest_rows is not None and digest_sum is not None else None
    at = committed_at.astimezone(timezone.utc)
    return ShownEpoch(app, sink, position, epoch, incarnation, decision, offsets, rows, digest, watermark, at)
