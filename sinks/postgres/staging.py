"""The tables of the modes that stage: the table itself, as its owner wants it, and ``<table>__staged``.

The table has no column of Epochal's own and may have any constraint: one transaction writes the rows into it, and no
reader sees half of that.  ``create`` makes the table if it is missing, and never alters a table that exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import checking, creating, ddl, publications, registering, rights
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.ddl import Step, Target, quoted
from epochal.sinks.postgres.modes import Staging, Upsert
from epochal.sinks.postgres.publish import Publish, Staged
from epochal.sinks.postgres.ways import into, kinds_for
from epochal.sinks.questions import Question, whats
from epochal.sinks.rows import keyed

if TYPE_CHECKING:
    from epochal.sinks.postgres.ddl import PgColumn
    from epochal.sinks.postgres.session import Session


NO_OPERATOR = "42883"
DEFAULT = ' COLLATE pg_catalog."default"'
"""The clause for a column that has no collation of its own."""


@dataclass(frozen=True)
class TableColumn:
    """A column of the table; ``collate`` is the clause that gives a column of another table the same collation."""

    name: str
    kind: str
    collate: str
    filled: bool  # a default, an identity, a generation expression or NULL fills it
    generated: str | None  # how the table generates it, so that nobody else may write it


def columns_of(session: Session, table: str) -> list[TableColumn]:
    found = session.run(
        "SELECT attname, format_type(atttypid, atttypmod),"
        " CASE WHEN attcollation <> typcollation THEN format(' COLLATE %I.%I', collnamespace::regnamespace, collname)"
        " ELSE '' END, atthasdef OR attidentity <> '' OR NOT attnotnull,"
        " CASE WHEN attgenerated <> '' THEN 'generated' WHEN attidentity = 'a' THEN 'generated always as identity' END"
        " FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid LEFT JOIN pg_collation c ON c.oid = attcollation"
        " WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        table,
    )
    return [TableColumn(*row) for row in found]


# --- create ---------------------------------------------------------------------------------


def table_step(target: Target, mode: Staging, columns: Sequence[PgColumn]) -> Step:
    """Return the step that makes the table: the columns of the rows, and for upserts the key."""
    lines = [f"{quoted(c.name)} {c.types[0]}" for c in columns if c.name not in only_staged(mode)]
    if isinstance(mode, Upsert):
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, mode.keys))})")
    return Step(f"CREATE TABLE {target.plain} ({', '.join(lines)})", f"made the table {target.plain}")


def staged_steps(target: Target, columns: Sequence[PgColumn], table: Mapping[str, TableColumn]) -> list[Step]:
    """Return the steps that make the staging table, whose columns have the types and collations of ``table``.

    So the server compares staged keys as it compares those of the table, and a staged value is one that the table can
    hold.  The staging table has only an index by position.  It needs no other, because every publish empties it.
    """
    lines = [f"{quoted(c.name)} {staged_type(c, table)}" for c in columns]
    body = ", ".join([*lines, "_epoch bigint NOT NULL", "_attempt bigint NOT NULL"])
    return [
        Step(f"CREATE TABLE {target.rows} ({body})", f"made the staging table {target.rows}"),
        Step(f"CREATE INDEX ON {target.rows} (_epoch)", ""),
        Step(ddl.identity_step(target.rows).sql, ""),
    ]


def staged_type(column: PgColumn, table: Mapping[str, TableColumn]) -> str:
    """Return the type, and the clause for its collation, that a column of the staging table needs."""
    there = table.get(column.name)
    return f"{there.kind}{there.collate}" if there is not None else column.types[0]


def written_columns(session: Session, target: Target, mode: Staging) -> dict[str, TableColumn]:
    """Return the columns of the table that staged columns of the same name go into."""
    return {c.name: c for c in columns_of(session, target.plain) if c.name not in only_staged(mode)}


def all_steps(
    app: str, sink: str, target: Target, mode: Staging, columns: Sequence[PgColumn], exists: bool
) -> list[Step]:
    """Return all steps for a database that has none of these objects; with ``exists`` it has the table itself."""
    check_mode(mode, columns, sink)
    return [
        *ddl.housekeeping_steps(),
        *([] if exists else [table_step(target, mode, columns)]),
        *staged_steps(target, columns, {}),
        ddl.sink_step(app, sink, target),
    ]


def create(
    session: Session, app: str, sink: str, target: Target, mode: Staging, columns: Sequence[PgColumn]
) -> list[str]:
    """Make what is missing, within the caller's transaction; return a line for each thing that was made."""
    check_mode(mode, columns, sink)
    session.run("SELECT pg_advisory_xact_lock(hashtextextended('epochal.create', 0))")
    checking.refuse_misspelt(session, sink, target)
    done: list[str] = []
    done += creating.make_housekeeping(session)
    registering.refuse_moved(session, app, sink, target)
    if ddl.find(session, target.plain) is None:
        done += ddl.run_steps(session, [table_step(target, mode, columns)])
    _refuse_table(session, sink, target, mode, columns)
    if ddl.find(session, target.rows) is None:
        done += ddl.run_steps(session, staged_steps(target, columns, written_columns(session, target, mode)))
    _refuse_staged(session, sink, target, mode, columns)
    done += publications.mend(session, target)
    done += registering.register(session, app, sink, target)
    return [*done, rights.needed(target, (target.plain, table_rights(mode)))] if done else []


# --- check ------------------------------------------------------------------------------


def questions(
    on: rights.On, app: str, sink: str, target: Target, mode: Staging, columns: checking.Columns
) -> Iterator[Question]:
    """Yield what a start asks the server for a sink in a mode that stages."""

    def plan(session: Session) -> None:
        _explain(session, sink, target, mode, columns(session))

    tables = tuple(f"table {name}" for name in (target.plain, target.rows))
    may = list(rights.questions(on, sink, target, (target.plain, table_rights(mode)), needs=tables))
    mays = (rights.ON_SINKS, *whats(may))
    yield Question("columns that the mode names", on(lambda s: check_mode(mode, columns(s), sink)))
    yield from checking.questions_of_any_mode(on, app, sink, target)
    for what, name in zip(tables, (target.plain, target.rows), strict=True):
        ask = on(partial(checking.refuse_missing, sink=sink, table=name))
        yield Question(what, ask, (checking.NAMES, checking.OURS))
    fits = on(lambda s: _refuse_table(s, sink, target, mode, columns(s)))
    yield Question(f"columns of {target.plain}", fits, tables[:1])
    staged = on(lambda s: _refuse_staged(s, sink, target, mode, columns(s)))
    yield Question(f"columns of {target.rows}", staged, tables)
    yield from may
    yield checking.question_of_row(on, app, sink)
    yield Question("publications", on(lambda s: refuse_publications(s, sink, target, mode)), tables)
    yield Question("statements of a publish", on(lambda s: checking.explain(s, target)), mays)
    yield Question("statements that write the table", on(plan), (f"columns of {target.plain}", *mays))


def _explain(session: Session, sink: str, target: Target, mode: Staging, columns: Sequence[PgColumn]) -> None:
    try:
        plan_of(session, target, mode, columns).explain(Staged(session, target, sink, 0, 0, {}, 0))
    except ServerRefused as error:
        if isinstance(mode, Upsert) and mode.order and NO_OPERATOR in str(error.state):
            raise Misconfigured(
                f"a column of order_by={list(mode.order)} has a type without an order: {error.what}",
                sink=sink,
                state=error.state,
                help="name columns whose type has an order, for instance a number or a time",
            ) from error
        raise


def refuse_rows(
    session: Session, sink: str, target: Target, mode: Staging, columns: Sequence[PgColumn], *, fewer: bool
) -> None:
    """Refuse rows that do not fit the tables as they are; with ``fewer`` rows may lack columns, which are then NULL."""
    _refuse_columns(session, sink, target, mode, columns)
    _refuse_staged(session, sink, target, mode, columns, fewer=fewer)


def refuse_publications(session: Session, sink: str, target: Target, mode: Staging) -> None:
    """Refuse tables whose updates or deletes a publication would refuse; see ``publications``."""
    publications.refuse_publications(session, sink, target, (target.plain, table_rights(mode)))


def only_staged(mode: Staging) -> tuple[str, ...]:
    """Return the columns of the query that are staged and not written into the table."""
    return mode.deletes if isinstance(mode, Upsert) else ()


def plan_of(session: Session, target: Target, mode: Staging, columns: Sequence[PgColumn]) -> Publish:
    """Return the plan by which rows of these columns go into the table as it is now."""
    return Publish.of(mode, [c.name for c in columns], [c.name for c in columns_of(session, target.plain)])


def table_rights(mode: Staging) -> str:
    """Return the rights on the table itself that a role needs to run the query."""
    if not isinstance(mode, Upsert):
        return "INSERT"
    update = "" if mode.updates == () else ", UPDATE"
    return f"SELECT, INSERT{update}{', DELETE' if mode.delete_when is not None else ''}"


def check_mode(mode: Staging, columns: Sequence[PgColumn], sink: str) -> None:
    """Require that the rows have every column that the mode names, and that the column that deletes is boolean."""
    if isinstance(mode, Upsert):
        keyed.check_columns(mode, {column.name: column.types[0] for column in columns}, sink)


def _refuse_table(session: Session, sink: str, target: Target, mode: Staging, columns: Sequence[PgColumn]) -> None:
    _refuse_relation(session, sink, target.plain)
    _refuse_columns(session, sink, target, mode, columns)
    if isinstance(mode, Upsert):
        _refuse_key(session, sink, target, mode.keys)


def _refuse_relation(session: Session, sink: str, table: str) -> None:
    """Require a logged table, plain or partitioned, in which one transaction can write every row."""
    tree = session.run(
        "WITH RECURSIVE tree AS (SELECT to_regclass($1)::oid AS member"
        " UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = member)"
        " SELECT oid::regclass::text, relkind::text, relpersistence::text, row_security_active(oid),"
        " oid = to_regclass($1), EXISTS (SELECT FROM pg_inherits WHERE inhrelid = pg_class.oid)"
        " FROM tree JOIN pg_class ON oid = member ORDER BY oid <> to_regclass($1)",
        table,
    )
    for name, kind, persistence, secured, root, inherits in tree:
        why = None
        if kind not in ("r", "p"):
            why = f"is {checking.KINDS.get(kind, 'no table')}"
        elif persistence != "p":
            why = "is unlogged or temporary: a crash of the server would empty it"
        if why is not None:
            what = table if root else f"{table}: its partition {name}"
            raise Misconfigured(f"{what} {why}", sink=sink, help="name another table=")
        if root and secured:
            raise Misconfigured(
                f"{table} has row-level security for this role, which leaves out rows without an error",
                sink=sink,
                help="name another table=",
            )
        if root and (inherits or (kind == "r" and len(tree) > 1)):
            raise Misconfigured(f"{table} is part of an inheritance tree", sink=sink, help="name another table=")


def _refuse_columns(session: Session, sink: str, target: Target, mode: Staging, columns: Sequence[PgColumn]) -> None:
    """Require that the table has the written columns, of the same types and writable; other columns need a default."""
    table = {column.name: column for column in columns_of(session, target.plain)}
    written = plan_of(session, target, mode, columns).columns
    rows = [column for column in columns if column.name in written]
    kinds = kinds_for(session, target.plain, rows, {name: column.kind for name, column in table.items()})
    for column in columns:
        if column.name not in written:
            _refuse_other_case(sink, target, mode, column.name, list(table))
            continue
        found = table.get(column.name)
        if found is None:
            raise ddl.no_column(sink, target.plain, column, list(table), {each.name for each in columns})
        into(sink, target.plain, column, kinds[column.name])
        if found.generated is not None:
            raise Misconfigured(
                f"column {quoted(column.name)} of {target.plain} is {found.generated}: the table alone writes it",
                sink=sink,
                help="leave it out of the query, or have it generated by default",
            )
    unfilled = [column.name for column in table.values() if not column.filled and column.name not in written]
    if unfilled:
        raise Misconfigured(
            f"column {quoted(unfilled[0])} of {target.plain} is not written, is NOT NULL and has no default",
            sink=sink,
            state=f"all such columns: {unfilled}",
            help="select it in the query, or give it a default",
        )


def _refuse_other_case(sink: str, target: Target, mode: Staging, name: str, table: Sequence[str]) -> None:
    """Refuse a column of the order whose name differs from a column of the table only in upper and lower case."""
    alike = [other for other in table if other.lower() == name.lower()]
    if isinstance(mode, Upsert) and name in mode.order and alike:
        raise Misconfigured(
            f"order_by= names the column {quoted(name)}, and {target.plain} has {quoted(alike[0])}",
            sink=sink,
            help=f"to have it written, name it as the table does ({name} AS {alike[0]}); else give it another name",
        )


def _refuse_key(session: Session, sink: str, target: Target, key: Sequence[str]) -> None:
    """Require what ON CONFLICT needs: a unique index on exactly the key, with its collations and not deferrable."""
    fits = session.run(
        "SELECT FROM pg_index WHERE indrelid = to_regclass($1) AND indisunique AND indisvalid AND indimmediate"
        " AND indpred IS NULL AND indexprs IS NULL AND indnkeyatts = cardinality($2::text[])"
        " AND NOT EXISTS (SELECT FROM generate_series(0, indnkeyatts - 1) n WHERE NOT EXISTS"
        " (SELECT FROM pg_attribute WHERE attrelid = indrelid AND attnum = indkey[n] AND attname = ANY($2)"
        " AND attcollation = indcollation[n]))",
        target.plain,
        list(key),
    )
    if fits:
        return
    unique = session.run(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = to_regclass($1) AND indisunique ORDER BY 1",
        target.plain,
    )
    names = ", ".join(map(quoted, key))
    raise Misconfigured(
        f"{target.plain} has no unique constraint on just the key ({names})",
        sink=sink,
        state=f"unique indexes: {[definition for (definition,) in unique]}; partial and deferrable ones do not serve",
        help=f"ALTER TABLE {target.plain} ADD UNIQUE ({names}), or name the columns of one that is there",
    )


def _refuse_staged(
    session: Session, sink: str, target: Target, mode: Staging, columns: Sequence[PgColumn], *, fewer: bool = False
) -> None:
    """Require that the staging table fits the rows, and that it compares keys as the table does."""
    checking.refuse_rows(session, sink, target, columns, fewer=fewer)
    table = written_columns(session, target, mode)
    types = {column.name: column.types for column in columns}
    for column in columns_of(session, target.rows):
        wanted = table.get(column.name)
        _refuse_staged_type(sink, target, column, wanted, types.get(column.name, ()))
        if wanted is not None and isinstance(mode, Upsert) and wanted.collate != column.collate:
            raise Misconfigured(
                f"column {quoted(column.name)} of {target.rows} compares by another collation than that of"
                f" {target.plain}",
                sink=sink,
                state=f"{target.plain}:{wanted.collate or DEFAULT}; {target.rows}:{column.collate or DEFAULT}",
                help=f"ALTER TABLE {target.rows} ALTER COLUMN {quoted(column.name)} TYPE {column.kind}"
                f"{wanted.collate or DEFAULT}",
            )


def _refuse_staged_type(
    sink: str, target: Target, staged: TableColumn, wanted: TableColumn | None, exact: Sequence[str]
) -> None:
    """Require that a column of the staging table has the type of the column that its values go into.

    ``exact``: the types that hold every value of the rows.  An older Epochal may have made another one of these.
    """
    if not exact or (wanted is not None and staged.kind == wanted.kind):
        return
    if staged.kind in exact and (wanted is None or wanted.kind in exact):
        return
    kind = wanted.kind if wanted is not None else exact[0]
    collate = wanted.collate if wanted is not None else ""
    name = quoted(staged.name)
    raise Misconfigured(
        f"column {name} of {target.rows} is {staged.kind}, and its values go into a column of type {kind}",
        sink=sink,
        help=f"ALTER TABLE {target.rows} ALTER COLUMN {name} TYPE {kind}{collate} USING {name}::text::{kind}",
    )


# --- guarantee -----------------------------------------------------------------------------


def guarantee(target: Target, mode: Staging) -> str:
    """Return what a sink in a mode that stages promises, as text."""
    return (
        f"for whoever reads the table {target.plain}, which needs no view and no column of ours;"
        " each statement sees the epochs up to one point, and none in part."
        f" {_write_promise(mode)} Rows wait in {target.rows}; one transaction writes them into the table together with"
        f" the marker, and takes longer the more rows it has; {ddl.ONE_EVALUATION} {_trial_promise(mode)}. In that case"
        " the query ends with CommitInDoubt, and its next start finishes the epoch once the table takes it."
        " Conditions: fsync=on and full_page_writes=on on the server, nobody edits the staging table or the schema"
        " epochal by hand, and nobody else writes these rows."
    )


def _trial_promise(mode: Staging) -> str:
    if not mode.trial:
        return "As nothing is tried before (trial=False), a constraint or a trigger may refuse a decided epoch"
    return (
        "Every prepare writes the rows and rolls back. So what a constraint or a trigger refuses is refused before the"
        " decision, but triggers fire twice and sequences have gaps. What others write between trial and publish may"
        " still make the table refuse a decided epoch"
    )


def _write_promise(mode: Staging) -> str:
    if not isinstance(mode, Upsert):
        return "Rows are inserted."
    return keyed.way(mode)
