"""What the modes that stage run: the statements of one publish, and what is asked of the staged rows before.

A plan (:class:`Publish`) is made by prepare and rides in the committable, so that whoever commits runs what was
tried, with no need of the query's schema.  In all statements ``$1`` is the position, ``$2`` the attempts that won.
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
    """The rows of one epoch that won, and the transaction that looks at them."""

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
        return f"FROM {self.target.rows} WHERE _epoch = $1 AND _attempt = ANY($2::bigint[])"

    @property
    def where(self) -> dict[str, Any]:
        """What an error says of it."""
        return {"sink": self.sink, "epoch": self.epoch}


class Publish(Upsertion):
    """How the staged rows of one epoch go into the table."""

    # --- the publish -----------------------------------------------------------------------------

    def run(self, staged: Staged) -> None:
        """Write the rows into the table, within the caller's transaction, which decides what comes of it.

        Constraints that were deferred are looked at here and not at COMMIT; ``ServerRefused``, also where a
        trigger or a rule leaves out a row without a word.
        """
        if self.delete_when is not None:
            staged.change(self._delete(staged))
        written = staged.change(self._insert(staged))
        staged.session.run("SET CONSTRAINTS ALL IMMEDIATE", limit=staged.limit)
        wanted = self._count(staged)
        if written != wanted and (self.update or not self.key):  # DO NOTHING is meant to write fewer
            raise _left_out(staged, f"took {written} of {wanted} rows")
        absent = self._absent(staged) if written != wanted else 0
        if absent:
            raise _left_out(staged, f"has no row for {absent} of {wanted} keys")
        kept = self._kept(staged)
        if kept:
            raise _left_out(staged, f"kept {kept} of the rows to be deleted")

    def explain(self, staged: Staged) -> None:
        """The server plans what :meth:`run` runs, and looks at the rights."""
        if self.delete_when is not None:
            staged.ask(f"EXPLAIN {self._delete(staged)}")
        staged.ask(f"EXPLAIN {self._insert(staged)}")

    def _delete(self, staged: Staged) -> str:
        return f"DELETE FROM {staged.target.plain} shown USING ({self._last(staged)}) new WHERE {self._to_delete()}"

    def _absent(self, staged: Staged) -> int:
        """How many rows were inserted whose key is not there now."""
        there = f"SELECT FROM {staged.target.plain} shown WHERE {self._same()}"
        return int(
            staged.ask(f"SELECT count(*) FROM (SELECT * {self._written(staged)}) new WHERE NOT EXISTS ({there})")[0][0]
        )

    def _kept(self, staged: Staged) -> int:
        if self.delete_when is None:
            return 0
        found = f"FROM {staged.target.plain} shown, ({self._last(staged)}) new WHERE {self._to_delete()}"
        return int(staged.ask(f"SELECT count(*) {found}")[0][0])

    def _to_delete(self) -> str:
        return f"{self._same()} AND {self._deleted()}"

    def _same(self) -> str:
        return " AND ".join(f"shown.{quoted(name)} = new.{quoted(name)}" for name in self.key)

    def _insert(self, staged: Staged) -> str:
        names = _list(self.columns)
        return f"INSERT INTO {staged.target.plain} ({names}) SELECT {names} {self._written(staged)}{self._conflict()}"

    def _conflict(self) -> str:
        if not self.key:
            return ""
        if not self.update:
            return f" ON CONFLICT ({_list(self.key)}) DO NOTHING"
        sets = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in self.update)
        return f" ON CONFLICT ({_list(self.key)}) DO UPDATE SET {sets}"

    def _count(self, staged: Staged) -> int:
        """How many rows there are to insert; each key stands once where no order says which is the last."""
        if self.delete_when is None and not self.order:
            return sum(staged.attempts.values())
        return int(staged.ask(f"SELECT count(*) {self._written(staged)}")[0][0])

    def _written(self, staged: Staged) -> str:
        return f"FROM ({self._last(staged)}) new" + (f" WHERE NOT {self._deleted()}" if self.delete_when else "")

    def _deleted(self) -> str:
        return f"(new.{quoted(self.delete_when or '')} IS TRUE)"

    def _last(self, staged: Staged) -> str:
        """The epoch's rows, of each key the last one."""
        if not self.order:
            return f"SELECT * {staged.rows}"
        return (
            f"SELECT DISTINCT ON ({_list(self.key)}) * {staged.rows} ORDER BY {_list(self.key)}, {self._last_first()}"
        )

    def _last_first(self) -> str:
        return ", ".join(f"{quoted(name)} DESC" for name in self.order)

    # --- what is asked of the staged rows before -------------------------------------------------

    def check(self, staged: Staged, *, trial: bool) -> None:
        """``PrepareRefused`` for what publishing could not do; the caller's transaction is rolled back.

        That is a row that has no key or no place in the order, a key that names several rows and, after a trial,
        whatever else the table does not take.
        """
        if self.key:
            self._refuse_null(staged)
            self._refuse_twice(staged)
        if trial:
            try:
                self.run(staged)
            except ServerRefused as error:
                what = f"the table does not take the rows: {error.what}"
                raise PrepareRefused(what, state=error.state, help=error.help, **staged.where) from error

    def _refuse_null(self, staged: Staged) -> None:
        named = (*self.key, *self.order)
        (counts,) = staged.ask(
            f"SELECT {', '.join(f'count(*) FILTER (WHERE {quoted(name)} IS NULL)' for name in named)} {staged.rows}"
        )
        counted = dict(zip(named, map(int, counts), strict=True))
        check_nulls(counted, staged.sink, staged.epoch)

    def _refuse_twice(self, staged: Staged) -> None:
        key, rows = _list(self.key), staged.rows
        if self.order:
            place = f"rank() OVER (PARTITION BY {key} ORDER BY {self._last_first()})"
            rows = f"FROM (SELECT {key}, {place} AS place {staged.rows}) ranked WHERE place = 1"
        found = staged.ask(
            f"SELECT count(*), count(*) OVER (), {', '.join(f'left({quoted(name)}::text, 80)' for name in self.key)}"
            f" {rows} GROUP BY {key} HAVING count(*) > 1 ORDER BY count(*) DESC, {key} LIMIT {TOLD}"
        )
        check_twice(self, Upsert.__name__, found, staged.sink, staged.epoch)


def _left_out(staged: Staged, what: str) -> ServerRefused:
    return ServerRefused(
        f"{staged.target.plain} {what}",
        state="a trigger or a rule of the table decided so, and raised no error",
        help="drop it, or have it raise an error",
        **staged.where,
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
