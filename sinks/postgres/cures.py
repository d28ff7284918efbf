"""What cures a unique or exclusion constraint that refuses rows because it is checked row by row.

An upsert may exchange values between rows: after the statement no value is there twice, but between two rows one is.
Postgres checks a constraint that is ``DEFERRABLE`` at the end of the statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.sinks.postgres.address import ServerRefused

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

_CHECKED_BY_ROW = ("SQLSTATE 23505", "SQLSTATE 23P01")
_MEMBERS = "SELECT to_regclass($1)::oid UNION SELECT relid::oid FROM pg_partition_tree(to_regclass($1))"
_CONSTRAINT = f"""
WITH RECURSIVE up AS (SELECT oid, conparentid FROM pg_constraint WHERE conname = $2 AND conrelid IN ({_MEMBERS})
    UNION SELECT above.oid, above.conparentid FROM up JOIN pg_constraint above ON above.oid = up.conparentid)
SELECT conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(c.oid) FROM up JOIN pg_constraint c
USING (oid) WHERE up.conparentid = 0 AND contype IN ('u', 'x') AND NOT condeferrable
"""
"""The constraint of this name ($2) of the table ($1) or of one of its partitions, as the whole table has it."""
_INDEX = f"""
SELECT indrelid::regclass::text, indexrelid::regclass::text, quote_ident(relname),
    CASE WHEN pg_get_indexdef(indexrelid) LIKE '%NULLS NOT DISTINCT%' THEN 'UNIQUE NULLS NOT DISTINCT (' ELSE 'UNIQUE ('
    END || string_agg(pg_get_indexdef(indexrelid, n, false), ', ' ORDER BY n) || ')'
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid CROSS JOIN generate_series(1, indnkeyatts) n
WHERE relname = $2 AND indrelid IN ({_MEMBERS}) AND indisunique AND indexprs IS NULL AND indpred IS NULL
AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid) AND NOT relispartition
GROUP BY indrelid, indexrelid, relname
"""
"""The unique index of this name that belongs to no constraint."""


def _deferring(session: Session, table: str, constraint: str) -> str | None:
    """Return the SQL that has the constraint checked at the end of a statement; None if it cannot be."""
    for owner, name, definition in session.run(_CONSTRAINT, table, constraint):
        return f"ALTER TABLE {owner} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {definition} DEFERRABLE"
    for owner, index, name, definition in session.run(_INDEX, table, constraint):
        return f"DROP INDEX {index}; ALTER TABLE {owner} ADD CONSTRAINT {name} {definition} DEFERRABLE"
    return None


def raise_with_cure(session: Session, table: str, error: ServerRefused) -> None:
    """Raise the error of an upsert again, with the cure in its help; return if there is none.

    The transaction has failed, and is rolled back here, so that the server can be asked.
    """
    if error.constraint is None or str(error.state) not in _CHECKED_BY_ROW:
        return
    session.run("ROLLBACK")
    sql = _deferring(session, table, error.constraint)
    if sql is not None:
        raise ServerRefused(
            error.what,
            sink=error.sink,
            state=error.state,
            help=f"if rows of one epoch only exchange these values: {sql}; else correct the rows",
        ) from error
