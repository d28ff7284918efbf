"""The statements that publish staged rows, and the checks of these rows before the decision.

Prepare makes the plan (:class:`Publish`) and puts it into the committable.  So whoever commits runs exactly what was
tried, and does not need the query's schema.  In all statements ``$1`` is the position, and ``$2`` the winning attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import EpochNumber, Position
from epochal.coordinator.model.errors import PrepareRefused
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.ddl import Target, quoted
from epochal.sinks.postgres.modes import Upsert
from epochal.sinks.rows.keyed import TOLD, Upsertion, check_nulls, check_twice

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Row, Session


@dataclass(frozen=True)
class Staged:
    """The staged rows of one epoch's winning attempts, and the session whose transaction reads them."""

    session: Session
    target: Target
    sink: str
    epoch: EpochNumber
    position: Position
    attempts: Mapping[int, int]  # attempt -> rows
    limit: float  # seconds for one statement

    def ask(self, sql: str) -> list[Row]:
        return self.session.run(sql, self.position, list(self.attempts), limit=self.limit)

    def change(self, sql: str) -> int:
        return self.session.change(sql, self.position, list(self.attempts), limit=self.limit)

    @property
    def rows(self) -> str:
        """The part of a SELECT that names these rows."""
        return f"FROM {self.target.rows} WHERE _epoch = $1 AND _attempt = ANY($2::bigint[])"

    @property
    def where(self) -> dict[str, Any]:
        """What every error about these rows says."""
        return {"sink": self.sink, "epoch": self.epoch}


class Publish(Upsertion):
    """How the staged rows of one epoch go into the table."""

    # --- publish ---------------------------------------------------------------------------------

    def run(self, staged: Staged) -> None:
        """Write the rows into the table within the caller's transaction, which the caller commits or rolls back.

        Deferred constraints are checked here and not at COMMIT.  Raises ``ServerRefused``, also if a trigger or a rule
        leaves out a row without an error.
        """
        if self.delete_when is not None:
            staged.change(self._delete(staged))
        written = staged.change(self._insert(staged))
        staged.session.run("SET CONSTRAINTS ALL IMMEDIATE", limit=staged.limit)
        wanted = self._count_wanted(staged)
        if written != wanted and (self.update or not self.key):  # DO NOTHING may write fewer rows
            raise _rows_left_out(staged, f"took {written} of {wanted} rows")
        absent = self._count_missing_keys(staged) if written != wanted else 0
        if absent:
            raise _rows_left_out(staged, f"has no row for {absent} of {wanted} keys")
        kept = self._count_undeleted(staged)
        if kept:
            raise _rows_left_out(staged, f"kept {kept} of the rows to be deleted")

    def explain(self, staged: Staged) -> None:
        """Let the server plan what :meth:`run` runs; this checks names, types and rights."""
        if self.delete_when is not None:
            staged.ask(f"EXPLAIN {self._delete(staged)}")
        staged.ask(f"EXPLAIN {self._insert(staged)}")

    def _delete(self, staged: Staged) -> str:
        last = self._last_per_key(staged)
        return f"DELETE FROM {staged.target.plain} shown USING ({last}) new WHERE {self._delete_where()}"

    def _count_missing_keys(self, staged: Staged) -> int:
        """Count the rows to insert whose key the table does not have now."""
        there = f"SELECT FROM {staged.target.plain} shown WHERE {self._same_key()}"
        rows = f"SELECT * {self._insert_from(staged)}"
        return int(staged.ask(f"SELECT count(*) FROM ({rows}) new WHERE NOT EXISTS ({there})")[0][0])

    def _count_undeleted(self, staged: Staged) -> int:
        """Count the rows to delete that are still in the table."""
        if self.delete_when is None:
            return 0
        found = f"FROM {staged.target.plain} shown, ({self._last_per_key(staged)}) new WHERE {self._delete_where()}"
        return int(staged.ask(f"SELECT count(*) {found}")[0][0])

    def _delete_where(self) -> str:
        return f"{self._same_key()} AND {self._is_deletion()}"

    def _same_key(self) -> str:
        return " AND ".join(f"shown.{quoted(name)} = new.{quoted(name)}" for name in self.key)

    def _insert(self, staged: Staged) -> str:
        names, source = _list(self.columns), self._insert_from(staged)
        return f"INSERT INTO {staged.target.plain} ({names}) SELECT {names} {source}{self._on_conflict()}"

    def _on_conflict(self) -> str:
        if not self.key:
            return ""
        if not self.update:
            return f" ON CONFLICT ({_list(self.key)}) DO NOTHING"
        sets = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in self.update)
        return f" ON CONFLICT ({_list(self.key)}) DO UPDATE SET {sets}"

    def _count_wanted(self, staged: Staged) -> int:
        """Count the rows that must be inserted.  Without an order, each key occurs only once."""
        if self.delete_when is None and not self.order:
            return sum(staged.attempts.values())
        return int(staged.ask(f"SELECT count(*) {self._insert_from(staged)}")[0][0])

    def _insert_from(self, staged: Staged) -> str:
        """Return the SQL for the rows that go into the table: all rows except those that ask for a deletion."""
        where = f" WHERE NOT {self._is_deletion()}" if self.delete_when else ""
        return f"FROM ({self._last_per_key(staged)}) new{where}"

    def _is_deletion(self) -> str:
        return f"(new.{quoted(self.delete_when or '')} IS TRUE)"

    def _last_per_key(self, staged: Staged) -> str:
        """Return the query for the epoch's rows; with an order, for the last row of each key."""
        if not self.order:
            return f"SELECT * {staged.rows}"
        return (
            f"SELECT DISTINCT ON ({_list(self.key)}) * {staged.rows} ORDER BY {_list(self.key)}, {self._newest_first()}"
        )

    def _newest_first(self) -> str:
        return ", ".join(f"{quoted(name)} DESC" for name in self.order)

    # --- checks before the decision --------------------------------------------------------------

    def check(self, staged: Staged, *, trial: bool) -> None:
        """Raise ``PrepareRefused`` for rows that cannot be published; the caller's transaction is rolled back.

        These are rows whose key or order is NULL, keys that name several rows and, with ``trial``, what the table
        refuses.
        """
        if self.key:
            self._refuse_null_keys(staged)
            self._refuse_duplicate_keys(staged)
        if trial:
            try:
                self.run(staged)
            except ServerRefused as error:
                what = f"the table does not take the rows: {error.what}"
                raise PrepareRefused(what, state=error.state, help=error.help, **staged.where) from error

    def _refuse_null_keys(self, staged: Staged) -> None:
        named = (*self.key, *self.order)
        (counts,) = staged.ask(
            f"SELECT {', '.join(f'count(*) FILTER (WHERE {quoted(name)} IS NULL)' for name in named)} {staged.rows}"
        )
        counted = dict(zip(named, map(int, counts), strict=True))
        check_nulls(counted, staged.sink, staged.epoch)

    def _refuse_duplicate_keys(self, staged: Staged) -> None:
        key, rows = _list(self.key), staged.rows
        if self.order:
            rank = f"rank() OVER (PARTITION BY {key} ORDER BY {self._newest_first()})"
            rows = f"FROM (SELECT {key}, {rank} AS place {staged.rows}) ranked WHERE place = 1"
        found = staged.ask(
            f"SELECT count(*), count(*) OVER (), {', '.join(f'left({quoted(name)}::text, 80)' for name in self.key)}"
            f" {rows} GROUP BY {key} HAVING count(*) > 1 ORDER BY count(*) DESC, {key} LIMIT {TOLD}"
        )
        check_twice(self, Upsert.__name__, found, staged.sink, staged.epoch)


def _rows_left_out(staged: Staged, what: str) -> ServerRefused:
    return ServerRefused(
        f"{staged.target.plain} {what}",
        state="a trigger or a rule of the table caused this, and raised no error",
        help="drop it, or have it raise an error",
        **staged.where,
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
