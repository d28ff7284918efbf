"""``schema_evolution=True``: adds columns that are new in the query to the tables and to the reader view.

Columns are only ever added, and may be NULL: rows of earlier epochs have NULL there, and an epoch that is decided but
not yet published still fits.  A changed type, a dropped column, and a view that ``create`` did not make are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import ddl, staging
from epochal.sinks.postgres.ddl import Step, Target, quoted
from epochal.sinks.postgres.modes import Staging

if TYPE_CHECKING:
    from epochal.sinks.postgres.ddl import PgColumn
    from epochal.sinks.postgres.session import Session
    from epochal.sinks.postgres.staging import TableColumn


@dataclass(frozen=True)
class Evolution:
    """The columns that a sink's tables lack.  A table that does not exist yet lacks none."""

    app: str
    sink: str
    target: Target
    mode: Staging | None
    columns: Sequence[PgColumn]

    def lacking(self, session: Session) -> dict[str, list[PgColumn]]:
        """Return, for each table, the columns that it lacks.  Refuse a column that it only spells otherwise."""
        found = {}
        for table, columns in self._wanted().items():
            there = [name for name, *_ in ddl.columns_of(session, table)]
            new = [column for column in columns if column.name not in there]
            self._refuse_misspelt(table, new, there)
            if there and new:
                ddl.refuse_full(session, self.sink, table, [column.name for column in new])
                found[table] = new
        return found

    def _refuse_misspelt(self, table: str, new: Sequence[PgColumn], there: Sequence[str]) -> None:
        given = {column.name for column in self.columns}
        for column in new:
            if ddl.misspelt(column.name, there, given) is not None:
                raise ddl.no_column(self.sink, table, column, there, given)

    def known(self, session: Session) -> list[PgColumn]:
        """Return the columns that the tables have.  Refuse a role that cannot add the others.  Write nothing."""
        lacking = self.lacking(session)
        for table, columns in lacking.items():
            self._refuse_non_owner(session, table, columns)
        if lacking and self.mode is None:
            self._refuse_non_owner(session, self.target.reader, lacking[self.target.rows])
        new = {column.name for columns in lacking.values() for column in columns}
        return [column for column in self.columns if column.name not in new]

    def run(self, session: Session) -> list[str]:
        """Add the columns within the caller's transaction; return a line for each thing that was done."""
        lacking = self.lacking(session)
        there = staging.written_columns(session, self.target, self.mode) if self.mode is not None else {}
        steps = [
            Step(
                _addition(table, column, there),
                f"added the column {quoted(column.name)} to {table}",
            )
            for table, columns in lacking.items()
            for column in columns
        ]
        done = ddl.run_steps(session, steps)
        if lacking and self.mode is None and ddl.find(session, self.target.reader) is not None:
            done += self._extend_view(session, lacking[self.target.rows])
        return done

    def _wanted(self) -> dict[str, Sequence[PgColumn]]:
        """Return, for each table, the columns that it must have."""
        if self.mode is None:
            return {self.target.rows: self.columns}
        only_staged = staging.only_staged(self.mode)
        own = [column for column in self.columns if column.name not in only_staged]
        return {self.target.rows: self.columns, self.target.plain: own}

    def _extend_view(self, session: Session, added: Sequence[PgColumn]) -> list[str]:
        """Add the new columns at the end of the reader view, if the view is the one that ``create`` made."""
        new = [column.name for column in added]
        shown = [name for name, *_ in ddl.columns_of(session, self.target.reader)]
        ours = ddl.view_query(self.app, self.sink, self.target, shown)
        reader = ddl.find(session, self.target.reader)  # before the next view, whose name the user's may have, too
        session.run(f"CREATE TEMPORARY VIEW epochal_same AS {ours}")
        ((same,),) = session.run(
            "SELECT pg_get_viewdef('pg_temp.epochal_same'::regclass) = pg_get_viewdef($1::bigint::oid)", reader
        )
        session.run("DROP VIEW pg_temp.epochal_same")
        if not same:
            raise Misconfigured(
                f"the reader view {self.target.reader} is not the one that create() made, and lacks"
                f" {', '.join(map(quoted, new))}",
                sink=self.sink,
                help=f"{'; '.join(_addition(self.target.rows, column, {}) for column in added)}; then add them at the"
                f" end of the view: CREATE OR REPLACE VIEW {self.target.reader} AS SELECT ...",
            )
        query = ddl.view_query(self.app, self.sink, self.target, [*shown, *new])
        ((options,),) = session.run(
            "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = to_regclass($1)", self.target.reader
        )
        kept = f" WITH ({options})" if options else ""  # CREATE OR REPLACE VIEW without them would reset them
        step = Step(
            f"CREATE OR REPLACE VIEW {self.target.reader}{kept} AS {query}",
            f"added them to the view {self.target.reader}",
        )
        return ddl.run_steps(session, [step])

    def _refuse_non_owner(self, session: Session, relation: str, columns: Sequence[PgColumn]) -> None:
        """Refuse a role that does not own the relation: only its owner may add columns."""
        owns, owner, user = ddl.ownership(session, relation)
        if not owns:
            raise Misconfigured(
                f"schema_evolution=True, and the role {user} does not own {relation}, which lacks"
                f" {', '.join(quoted(column.name) for column in columns)}",
                sink=self.sink,
                state=f"owner {owner}",
                help=f"GRANT {owner} TO {user}, or run pipeline.create() once as {owner}",
            )


def _addition(table: str, column: PgColumn, there: Mapping[str, TableColumn]) -> str:
    return f"ALTER TABLE {table} ADD COLUMN {quoted(column.name)} {staging.staged_type(column, there)}"
