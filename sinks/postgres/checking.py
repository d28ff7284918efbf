"""Refuses, without writing anything, what can never work: server, table, columns, view and owner of a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.environment import versions
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import rights, settings
from epochal.sinks.postgres.ddl import (
    ISOLATION,
    Found,
    PgColumn,
    Target,
    columns_of,
    find,
    has_housekeeping,
    has_schema,
    missing,
    no_column,
    quoted,
    registered,
    relation_alike,
    schema_alike,
)
from epochal.sinks.postgres.publications import refuse_publications
from epochal.sinks.postgres.registering import refuse_other_table
from epochal.sinks.postgres.rights import ON_SINKS, On
from epochal.sinks.postgres.ways import into, kinds_for
from epochal.sinks.questions import Question, whats

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "p": "a partitioned table"}
"""Names for ``pg_class.relkind`` in errors."""


Columns = Callable[["Session"], Sequence[PgColumn]]
"""Gives the columns of the rows that the tables must have; ``NotAsked`` if the rows are not known."""

SERVER, NAMES, OURS = "server", "names of the tables", "tables of Epochal"
"""Questions that others need."""


def questions(on: On, app: str, sink: str, target: Target, columns: Columns) -> Iterator[Question]:
    """Yield what a start asks the server for a sink in the mode ``Append``."""
    rows = f"table {target.rows}"
    may = list(rights.questions(on, sink, target, needs=(rows,)))
    yield from questions_of_any_mode(on, app, sink, target)
    yield Question(rows, on(lambda s: refuse_missing(s, sink, target.rows)), (NAMES, OURS))
    yield Question(f"columns of {target.rows}", on(lambda s: refuse_rows(s, sink, target, columns(s))), (rows,))
    yield from may
    yield question_of_row(on, app, sink)
    yield Question(f"view {target.reader}", on(lambda s: refuse_view(s, sink, target, columns(s))), (rows,))
    yield Question("publications", on(lambda s: refuse_publications(s, sink, target)), (rows,))
    yield Question("statements of a publish", on(lambda s: explain(s, target)), (ON_SINKS, *whats(may)))


def questions_of_any_mode(on: On, app: str, sink: str, target: Target) -> Iterator[Question]:
    yield Question(SERVER, on(lambda s: refuse_server(s, sink)))
    yield Question("settings of the server", on(settings.told), (SERVER,))
    yield Question(NAMES, on(lambda s: refuse_misspelt(s, sink, target)), (SERVER,))
    yield Question(OURS, on(lambda s: refuse_no_housekeeping(s, sink)), (SERVER,))
    yield rights.question_of_sinks(on, sink, (OURS,))
    yield Question("table of the sink", on(lambda s: refuse_other_table(s, app, sink, target)), (NAMES, ON_SINKS))


def question_of_row(on: On, app: str, sink: str) -> Question:
    return Question("row of the sink", on(lambda s: refuse_unregistered(s, app, sink)), (ON_SINKS,))


def refuse_no_housekeeping(session: Session, sink: str) -> None:
    if not has_housekeeping(session):
        raise missing(session, "the schema epochal and its tables", sink)


def refuse_missing(session: Session, sink: str, table: str) -> None:
    if find(session, table) is None:
        raise missing(session, f"the table {table}", sink)


def refuse_unregistered(session: Session, app: str, sink: str) -> None:
    if registered(session, app, sink) is None:
        raise missing(session, f"the row of app {app!r} in epochal.sinks", sink)


def explain(session: Session, target: Target) -> None:
    """Let the server plan what every publish and abort writes into Epochal's own tables.

    The server then checks rights and publications, with their filters and lists of columns.
    """
    session.run(
        "EXPLAIN INSERT INTO epochal.epochs SELECT * FROM epochal.epochs WHERE false;"
        " EXPLAIN DELETE FROM epochal.attempts WHERE false;"
        " EXPLAIN UPDATE epochal.sinks SET published = 0, decision = 0 WHERE false;"
        f" EXPLAIN DELETE FROM {target.rows} WHERE false"
    )


def refuse_server(session: Session, sink: str) -> str:
    """Refuse a server of an unsupported version, or a database that is not in UTF-8.  Return what it is."""
    ((version, encoding),) = session.run(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
    )
    told = versions.check(versions.POSTGRES_SERVER, str(version // 10000), sink)
    if encoding != "UTF8":
        raise Misconfigured(
            f"the database's encoding is {encoding}, which cannot hold all strings",
            sink=sink,
            state=session.where,
            help="name a database of encoding UTF8 (CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0)",
        )
    return f"{told}, {encoding}"


def refuse_misspelt(session: Session, sink: str, target: Target) -> None:
    """Refuse a name that leads nowhere, if another one is likely meant: a schema that is not there, another spelling.

    Postgres takes a name in quotes as it stands, and so does Epochal.  SQL without quotes ignores case.
    """
    _refuse_schema(session, sink, "table", target.schema, target.table)
    if find(session, target.own) is None and find(session, target.plain) is None:
        _refuse_spelling(session, sink, "table", target.schema, target.table, target.suffix)
    if target.reader != target.plain:
        _refuse_schema(session, sink, "view", target.view_schema, target.view)
        if find(session, target.reader) is None:
            _refuse_spelling(session, sink, "view", target.view_schema, target.view)


def _refuse_schema(session: Session, sink: str, what: str, schema: str | None, name: str) -> None:
    if schema is None:
        if session.run("SELECT current_schema()")[0][0] is None:
            raise Misconfigured(
                f"{what}={name!r} names no schema, and no schema on the search_path of this role exists",
                sink=sink,
                state=session.where,
                help=f"give {what}='schema.{name}'",
            )
    elif not has_schema(session, schema):
        other = schema_alike(session, schema)
        alike = (relation_alike(session, other, name) or name) if other is not None else ""
        raise Misconfigured(
            f"{what}={f'{schema}.{name}'!r} names the schema {quoted(schema)}, which does not exist",
            sink=sink,
            state=session.where,
            help=f"give {what}={f'{other}.{alike}'!r}" if other else f"CREATE SCHEMA {quoted(schema)}, or name another",
        )


def _refuse_spelling(session: Session, sink: str, what: str, schema: str | None, name: str, suffix: str = "") -> None:
    """Refuse a relation that is not there, if there is one whose name differs only in case or in quotes."""
    there = relation_alike(session, schema, name)
    if there is None and suffix and (rows := relation_alike(session, schema, name + suffix)) is not None:
        there = rows.removesuffix(suffix)
    if there is not None and there != name:
        before = f"{schema}." if schema is not None else ""
        raise Misconfigured(
            f"{what}={before + name!r} differs only in case or quotes from {quoted(there)}, which exists",
            sink=sink,
            state=session.where,
            help=f"give {what}={before + there!r}, as the database spells it, or a name that differs in letters",
        )


def refuse_rows(
    session: Session, sink: str, target: Target, columns: Sequence[PgColumn], *, fewer: bool = False
) -> None:
    """Refuse a rows table that does not fit; with ``fewer`` the rows may lack columns, which are then NULL."""
    refuse_relation(session, sink, target.rows)
    found = columns_of(session, target.rows)
    isolation = {name: kind for name, kind, _ in found if name in ISOLATION}
    if isolation != dict.fromkeys(ISOLATION, "bigint"):
        raise Misconfigured(
            f"the table {target.rows} lacks the columns _epoch and _attempt (bigint)",
            sink=sink,
            state=f"columns {', '.join(f'{name} {kind}' for name, kind, _ in found)}",
            help="rename that table; the name is needed for the rows of this sink",
        )
    given = {column.name for column in columns}
    held = [c for c in found if c[0] not in isolation and (c[0] in given or not fewer)]
    refuse_columns(session, sink, target.rows, held, columns)


def refuse_columns(session: Session, sink: str, name: str, found: Sequence[Found], columns: Sequence[PgColumn]) -> None:
    """Require that names match, in any order, that the types take the rows, and that other columns have a default."""
    shown = {column: kind for column, kind, _ in found}
    there = list(shown)
    kinds = kinds_for(session, name, columns, shown)
    for column in columns:
        if column.name not in there:
            raise no_column(sink, name, column, there, {each.name for each in columns})
        into(sink, name, column, kinds[column.name])
    wanted = {column.name for column in columns}
    unfilled = [column for column, _, filled in found if not filled and column not in wanted]
    if unfilled:
        raise Misconfigured(
            f"column {quoted(unfilled[0])} of {name} is not in the rows and has no default",
            sink=sink,
            state=f"all such columns: {unfilled}",
            help="select it in the query, or give it a default",
        )


def refuse_relation(session: Session, sink: str, name: str) -> None:
    """Require a plain, logged table, without row-level security and inheritance.

    It must have no constraint and no trigger that acts on rows before they are committed.
    """
    ((kind, persistence, secured, parent),) = session.run(
        "SELECT relkind::text, relpersistence::text, relrowsecurity,"
        " EXISTS (SELECT FROM pg_inherits WHERE inhparent = pg_class.oid OR inhrelid = pg_class.oid)"
        " FROM pg_class WHERE oid = to_regclass($1)",
        name,
    )
    why = None
    if kind != "r":
        why = f"is {KINDS.get(kind, 'no table')}"
    elif persistence != "p":
        why = "is unlogged or temporary: a crash of the server would empty it"
    elif secured:
        why = "has row-level security, under which COPY does not work"
    elif parent:
        why = "is part of an inheritance tree"
    if why is not None:
        raise Misconfigured(f"{name} {why}", sink=sink, help="name another table=, which pipeline.create() can make")
    _refuse_constraints(session, sink, name)


def _refuse_constraints(session: Session, sink: str, name: str) -> None:
    """Refuse unique constraints, exclusion constraints, triggers and rules: they act on prepared rows too."""
    found = session.run(
        "SELECT 'unique or exclusion constraint ' || indexrelid::regclass FROM pg_index"
        " WHERE indrelid = to_regclass($1) AND (indisunique OR indisexclusion)"
        " UNION ALL SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger"
        " WHERE tgrelid = to_regclass($1) AND NOT tgisinternal AND tgenabled <> 'D'"
        " UNION ALL SELECT 'rule ' || quote_ident(rulename) FROM pg_rewrite"
        " WHERE ev_class = to_regclass($1) AND ev_enabled <> 'D' ORDER BY 1",
        name,
    )
    if found:
        raise Misconfigured(
            f"{name} has the {found[0][0]}, which would see rows that are prepared and not yet committed",
            sink=sink,
            state=", ".join(str(each) for (each,) in found),
            help="drop it, name another table=, or give mode=Plain() or mode=Upsert(key=...), which stage the rows",
        )


def refuse_view(session: Session, sink: str, target: Target, columns: Sequence[PgColumn]) -> None:
    """Require that the reader view reads the rows table and ``epochal.sinks``, and shows every column."""
    if find(session, target.reader) is None:
        raise missing(session, f"the reader view {target.reader}", sink)
    ((kind, reads),) = session.run(
        "SELECT relkind::text, (SELECT count(DISTINCT refobjid) FROM pg_rewrite JOIN pg_depend"
        " ON pg_depend.objid = pg_rewrite.oid AND classid = 'pg_rewrite'::regclass WHERE ev_class = pg_class.oid"
        " AND refobjid IN (to_regclass($2), to_regclass('epochal.sinks')))"
        " FROM pg_class WHERE oid = to_regclass($1)",
        target.reader,
        target.rows,
    )
    shown = {name for name, *_ in columns_of(session, target.reader)}
    hidden = [column.name for column in columns if column.name not in shown]
    if kind != "v" or reads != 2 or hidden:
        raise Misconfigured(
            f"{target.reader} is not the reader view of {target.rows}"
            + (f": it lacks the column {quoted(hidden[0])}" if hidden else ""),
            sink=sink,
            state=f"it is {KINDS.get(kind, 'a table')} with the columns {sorted(shown)}",
            help="drop or rename it and call pipeline.create(), or name another view=",
        )
