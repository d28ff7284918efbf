"""The statements that publish staged rows, and the checks of these rows before the decision.

Prepare makes the plan (:class:`Publish`) and puts it into the committable.  So whoever commits runs exactly what was
tried, and does not need the query's schema.  In all statements ``$1`` is the position, and ``$2`` the winning attempts.

A name of a user may be any text, also one that stands here: ``place``, ``new``, ``excluded``.  So three rules hold in
all statements.  Every column of a user is written with the alias of its table: ``new."place"`` is never anything else.
The result of an expression is never named beside columns of a user: the subquery that has it names all its columns
anew, by position.  Every table of a user has an alias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import EpochNumber, Position
from epochal.coordinator.model.errors import PrepareRefused
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.cures import raise_with_cure
from epochal.sinks.postgres.ddl import Target, columns_of, quoted
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
        """The part of a SELECT that names these rows, under the alias ``staged``."""
        return f"FROM {self.target.rows} staged WHERE staged._epoch = $1 AND staged._attempt = ANY($2::bigint[])"

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
        leaves out a row without an error.  A trigger may leave out the update of a row that is already as wanted.
        """
        if self.delete_when is not None:
            staged.change(self._delete(staged))
        written = self._inserted(staged)
        staged.session.run("SET CONSTRAINTS ALL IMMEDIATE", limit=staged.limit)
        wanted = self._count_wanted(staged)
        if written != wanted and not self.key:
            raise _rows_left_out(staged, f"took {written} of {wanted} rows")
        absent = self._count_missing(staged) if written != wanted else 0
        if absent:
            lacks = "lacks the epoch's row" if self.update else "has no row"
            raise _rows_left_out(staged, f"{lacks} for {absent} of {wanted} keys")
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

    def _inserted(self, staged: Staged) -> int:
        """Insert or update the rows; return how many rows the server counts."""
        try:
            return staged.change(self._insert(staged))
        except ServerRefused as error:
            if self.update:
                raise_with_cure(staged.session, staged.target.plain, error)
            raise

    def _count_missing(self, staged: Staged) -> int:
        """Count the rows to insert whose key the table does not have now, or not with the values that are updated.

        Values are compared byte by byte, in the types of the table.
        """
        there = f"SELECT FROM {staged.target.plain} shown WHERE {self._same_key()}"
        if self.update:
            kinds = {name: kind for name, kind, _ in columns_of(staged.session, staged.target.plain)}
            new = ", ".join(f"new.{quoted(name)}::{kinds[name]}" for name in self.update)
            shown = ", ".join(f"shown.{quoted(name)}" for name in self.update)
            there += f" AND ROW({shown})::record *= ROW({new})::record"
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
        return " AND ".join(f"{_of('shown', name)} = {_of('new', name)}" for name in self.key)

    def _insert(self, staged: Staged) -> str:
        names, values = _list(self.columns), _all_of("new", self.columns)
        source = f"SELECT {values} {self._insert_from(staged)}"
        return f"INSERT INTO {staged.target.plain} AS shown ({names}) {source}{self._on_conflict()}"

    def _on_conflict(self) -> str:
        if not self.key:
            return ""
        if not self.update:
            return f" ON CONFLICT ({_list(self.key)}) DO NOTHING"
        sets = ", ".join(f"{quoted(name)} = {_of('EXCLUDED', name)}" for name in self.update)
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
        return f"({_of('new', self.delete_when or '')} IS TRUE)"

    def _last_per_key(self, staged: Staged) -> str:
        """Return the query for the epoch's rows; with an order, for the last row of each key."""
        if not self.order:
            return f"SELECT staged.* {staged.rows}"
        key = _all_of("staged", self.key)
        return f"SELECT DISTINCT ON ({key}) staged.* {staged.rows} ORDER BY {key}, {self._newest_first()}"

    def _newest_first(self) -> str:
        return ", ".join(f"{_of('staged', name)} DESC" for name in self.order)

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
        counts_of = [f"count(*) FILTER (WHERE {_of('staged', name)} IS NULL)" for name in named]
        (counts,) = staged.ask(f"SELECT {', '.join(counts_of)} {staged.rows}")
        counted = dict(zip(named, map(int, counts), strict=True))
        check_nulls(counted, staged.sink, staged.epoch)

    def _refuse_duplicate_keys(self, staged: Staged) -> None:
        """Refuse keys with several rows; with an order, keys with several rows that share the last place."""
        key = _all_of("staged", self.key)
        place = f"rank() OVER (PARTITION BY {key} ORDER BY {self._newest_first()})" if self.order else "1"
        parts = [f"k{n}" for n in range(len(self.key))]  # ours: in `ranked` no column has a name of the user's
        ranked = f"(SELECT {place}, {key} {staged.rows}) ranked (place, {', '.join(parts)})"
        named = _all_of("ranked", parts)
        found = staged.ask(
            f"SELECT count(*), count(*) OVER (), {', '.join(f'left(ranked.{part}::text, 80)' for part in parts)}"
            f" FROM {ranked} WHERE ranked.place = 1 GROUP BY {named} HAVING count(*) > 1"
            f" ORDER BY count(*) DESC, {named} LIMIT {TOLD}"
        )
        check_twice(self, Upsert.__name__, found, staged.sink, staged.epoch)


def _rows_left_out(staged: Staged, what: str) -> ServerRefused:
    return ServerRefused(
        f"{staged.target.plain} {what}",
        state="a trigger or a rule of the table caused this, and raised no error",
        help=f"find the trigger or the rule that leaves rows out (psql: \\d {staged.target.plain}); drop it, or have it"
        " raise an error",
        **staged.where,
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _of(alias: str, name: str) -> str:
    """Return the SQL for a column of the table that has this alias in the statement."""
    return f"{alias}.{quoted(name)}"


def _all_of(alias: str, names: Sequence[str]) -> str:
    return ", ".join(_of(alias, name) for name in names)
