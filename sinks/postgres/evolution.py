"""``schema_evolution=True``: columns that are new in the query are added to the tables, and to the reader view.

Only ever added, as columns that may be NULL: rows of earlier epochs are NULL there, and an epoch that is decided and
not yet published fits as before.  A changed type, a dropped column or a view that somebody wrote anew are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import ddl, staging
from epochal.sinks.postgres.ddl import Step, Target, quoted
from epochal.sinks.postgres.modes import Staging

if TYPE_CHECKING:
    from epochal.sinks.postgres.ddl import PgColumn
    from epochal.sinks.postgres.session import Session


@dataclass(frozen=True)
class Evolution:
    """What ``columns`` need that a sink's tables do not have; nothing at all where a table is still to be made."""

    app: str
    sink: str
    target: Target
    mode: Staging | None
    columns: Sequence[PgColumn]

    def lacking(self, session: Session) -> dict[str, list[PgColumn]]:
        """Per table: the columns that it will be given."""
        found = {}
        for table, columns in self._wanted().items():
            there = {name for name, *_ in ddl.columns_of(session, table)}
            new = [column for column in columns if column.name not in there]
            if there and new:
                found[table] = new
        return found

    def known(self, session: Session) -> list[PgColumn]:
        """The columns without those to come, which this role must be able to add; writes nothing."""
        lacking = self.lacking(session)
        for table, columns in lacking.items():
            self._refuse_role(session, table, columns)
        if lacking and self.mode is None:
            self._refuse_role(session, self.target.reader, lacking[self.target.rows])
        new = {column.name for columns in lacking.values() for column in columns}
        return [column for column in self.columns if column.name not in new]

    def run(self, session: Session) -> list[str]:
        """Add them within the caller's transaction; what was done, a line each."""
        lacking = self.lacking(session)
        steps = [
            Step(
                f"ALTER TABLE {table} ADD COLUMN {quoted(column.name)} {column.types[0]}",
                f"added the column {quoted(column.name)} to {table}",
            )
            for table, columns in lacking.items()
            for column in columns
        ]
        done = ddl.run_steps(session, steps)
        if lacking and self.mode is None and ddl.find(session, self.target.reader) is not None:
            done += self._show(session, [column.name for column in lacking[self.target.rows]])
        return done

    def _wanted(self) -> dict[str, Sequence[PgColumn]]:
        if self.mode is None:
            return {self.target.rows: self.columns}
        unwritten = staging.unwritten(self.mode)
        own = [column for column in self.columns if column.name not in unwritten]
        return {self.target.rows: self.columns, self.target.plain: own}

    def _show(self, session: Session, new: Sequence[str]) -> list[str]:
        """The view with the new columns at its end, if it is the one that ``create`` made."""
        shown = [name for name, *_ in ddl.columns_of(session, self.target.reader)]
        ours = ddl.view_query(self.app, self.sink, self.target, shown)
        session.run(f"CREATE TEMPORARY VIEW epochal_same AS {ours}")
        ((same,),) = session.run(
            "SELECT pg_get_viewdef('pg_temp.epochal_same'::regclass) = pg_get_viewdef($1::regclass)",
            self.target.reader,
        )
        session.run("DROP VIEW pg_temp.epochal_same")
        if not same:
            raise Misconfigured(
                f"the reader view {self.target.reader} is not the one that create() made, and lacks"
                f" {', '.join(map(quoted, new))}",
                sink=self.sink,
                help="add the columns to the table and to the view by hand",
            )
        query = ddl.view_query(self.app, self.sink, self.target, [*shown, *new])
        ((options,),) = session.run(
            "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = to_regclass($1)", self.target.reader
        )
        kept = f" WITH ({options})" if options else ""  # without them they would be reset
        step = Step(
            f"CREATE OR REPLACE VIEW {self.target.reader}{kept} AS {query}",
            f"added them to the view {self.target.reader}",
        )
        return ddl.run_steps(session, [step])

    def _refuse_role(self, session: Session, relation: str, columns: Sequence[PgColumn]) -> None:
        ((owns, owner, user),) = session.run(
            "SELECT pg_has_role(relowner, 'USAGE'), relowner::regrole::text, quote_ident(current_user)"
            " FROM pg_class WHERE oid = to_regclass($1)",
            relation,
        ) or [(True, "", "")]
        if not owns:
            raise Misconfigured(
                f"schema_evolution=True, and the role {user} does not own {relation}, which lacks"
                f" {', '.join(quoted(column.name) for column in columns)}",
                sink=self.sink,
                state=f"owner {owner}",
                help=f"GRANT {owner} TO {user}, or run pipeline.create() once as {owner}",
            )
