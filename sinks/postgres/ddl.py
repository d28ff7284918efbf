"""The objects of a sink in the database: their names, the SQL that makes them, and look-ups in the catalog.

``create`` runs the steps whose objects are missing; ``PostgresSink.ddl`` prints all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


ISOLATION = ("_epoch", "_attempt")
"""Columns of the rows table that the reader view does not show."""
MOST_COLUMNS = 1600
"""How many columns a table of Postgres can have: https://www.postgresql.org/docs/18/limits.html."""
VERSION = 1
"""Version of what Epochal's tables hold for a sink.  Each fence writes it into the sink's row."""
HOUSEKEEPING = (
    "CREATE SCHEMA IF NOT EXISTS epochal",
    "CREATE SEQUENCE IF NOT EXISTS epochal.attempt",
    """CREATE TABLE IF NOT EXISTS epochal.sinks (
    app text NOT NULL, sink text NOT NULL,
    rows_table oid NOT NULL UNIQUE,       -- two sinks into one table are refused
    generation bigint, token bigint,      -- the fence: who may act
    published bigint NOT NULL DEFAULT 0,  -- the position that readers see
    decision bigint,                      -- the marker: whose epoch stands there
    version int NOT NULL DEFAULT 1,       -- of Epochal's own form of this row and what belongs to it
    PRIMARY KEY (app, sink))""",
    """CREATE TABLE IF NOT EXISTS epochal.epochs (
    app text NOT NULL, sink text NOT NULL, position bigint NOT NULL,
    epoch bigint NOT NULL, incarnation text NOT NULL, decision bigint NOT NULL,
    offsets text NOT NULL, row_count bigint NOT NULL, watermark bigint,
    digest_rows bigint, digest_sum bigint,    -- of the rows before select= and where=, in idempotent mode
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (app, sink, position))""",
    """CREATE TABLE IF NOT EXISTS epochal.attempts (
    app text NOT NULL, sink text NOT NULL, position bigint NOT NULL, attempt bigint NOT NULL,
    generation bigint NOT NULL, token bigint NOT NULL, row_count bigint NOT NULL,
    PRIMARY KEY (app, sink, position, attempt))""",
)
"""The statements that make the schema ``epochal``, which all sinks in a database share."""
ADDED_LATER = {
    "epochal.sinks": {"version": "int NOT NULL DEFAULT 1"},
    "epochal.epochs": {"digest_rows": "bigint", "digest_sum": "bigint"},
}
"""Columns of these tables that the first release of Epochal did not make."""


@dataclass(frozen=True)
class PgColumn:
    """A column, and the types that fit it, as ``format_type`` prints them.  ``create`` makes the first type.

    A table that ``create`` did not make may have other types: see ``ways.py``.
    """

    name: str
    types: tuple[str, ...]
    item: PgColumn | None = None  # of an array: its items


@dataclass(frozen=True)
class Target:
    """The names of one sink's tables and view.  Each name is one SQL identifier, and is quoted in SQL."""

    schema: str | None
    table: str
    view_schema: str | None
    view: str
    suffix: str = "__rows"  # or __staged

    @classmethod
    def of(cls, table: str, view: str | None, sink: str, *, stages: bool = False) -> Target:
        suffix = "__staged" if stages else "__rows"
        schema, name = _split(table)
        view_schema, view_name = _split(view) if view is not None else (schema, name)
        schemas = [part for part in (schema, view_schema) if part is not None]
        for part in (f"{name}{suffix}", view_name, *schemas):
            if not 0 < len(part.encode()) <= 63 or "\0" in part or part == suffix:
                raise Misconfigured(
                    f"{part!r} is no Postgres name of 1 to 63 bytes",
                    sink=sink,
                    help="choose another table or view name",
                )
        return cls(schema, name, view_schema, view_name, suffix)

    @property
    def plain(self) -> str:
        return _qualified(self.schema, self.table)

    @property
    def rows(self) -> str:
        """The table that tasks write to: it holds the rows behind the reader view, or the staged rows."""
        return _qualified(self.schema, self.table + self.suffix)

    @property
    def own(self) -> str:
        """The table that keeps the committed rows.  It identifies the sink: a new table is another sink."""
        return self.rows if self.suffix == "__rows" else self.plain

    @property
    def reader(self) -> str:
        return _qualified(self.view_schema, self.view)


@dataclass(frozen=True)
class Step:
    """One statement, and the line that ``create`` reports after it ran (empty: no line)."""

    sql: str
    done: str


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return the text as an SQL constant, which means the same whatever ``standard_conforming_strings`` is."""
    plain = "'" + text.replace("'", "''") + "'"
    return "E" + plain.replace("\\", "\\\\") if "\\" in plain else plain


def _split(name: str) -> tuple[str | None, str]:
    schema, dot, rest = name.partition(".")
    return (schema, rest) if dot else (None, name)


def _qualified(schema: str | None, name: str) -> str:
    return f"{quoted(schema)}.{quoted(name)}" if schema is not None else quoted(name)


def housekeeping_steps() -> list[Step]:
    """Return the steps that make the schema ``epochal`` and its tables."""
    return [Step(sql, "made the schema epochal" if n == 0 else "") for n, sql in enumerate(HOUSEKEEPING)]


def identity_step(table: str) -> Step:
    """Return the step that lets a publication take updates and deletes of a table without a key."""
    return Step(f"ALTER TABLE {table} REPLICA IDENTITY FULL", f"gave {table} a replica identity")


def rows_steps(target: Target, columns: Sequence[PgColumn], adopt: bool) -> list[Step]:
    """Return the steps that make the rows table, or rename an existing table, whose rows then have position 0.

    In a new table ``_epoch`` is the first column, since every read of the view compares it.  There it has a fixed
    offset within a row; behind columns of varying length the server would have to search for it.
    """
    brin = Step(
        f"CREATE INDEX ON {target.rows} USING brin (_epoch) WITH (pages_per_range = 32, autosummarize = on)", ""
    )
    identity = Step(identity_step(target.rows).sql, "")
    if not adopt:
        lines = [f"{quoted(c.name)} {c.types[0]}" for c in columns]
        body = ", ".join(["_epoch bigint NOT NULL", "_attempt bigint NOT NULL", *lines])
        return [Step(f"CREATE TABLE {target.rows} ({body})", f"made the table {target.rows}"), brin, identity]
    return [
        Step(
            f"ALTER TABLE {target.plain} RENAME TO {quoted(target.table + '__rows')}",
            f"adopted the table {target.plain} as {target.rows}; its rows are position 0",
        ),
        Step(
            f"ALTER TABLE {target.rows} ADD COLUMN _epoch bigint NOT NULL DEFAULT 0,"
            " ADD COLUMN _attempt bigint NOT NULL DEFAULT 0",
            "",
        ),
        Step(f"ALTER TABLE {target.rows} ALTER COLUMN _epoch DROP DEFAULT, ALTER COLUMN _attempt DROP DEFAULT", ""),
        brin,
        identity,
    ]


def sink_step(app: str, sink: str, target: Target) -> Step:
    """Return the step that registers the sink with its table."""
    return Step(
        "INSERT INTO epochal.sinks (app, sink, rows_table)"
        f" VALUES ({literal(app)}, {literal(sink)}, {literal(target.own)}::regclass::oid)"
        " ON CONFLICT (app, sink) DO NOTHING",
        f"registered sink {sink} of app {app}",
    )


def view_step(app: str, sink: str, target: Target, names: Sequence[str]) -> Step:
    """Return the step that makes the reader view.

    Readers need SELECT on the view alone, because the view reads the tables with the rights of its owner.
    """
    return Step(
        f"CREATE VIEW {target.reader} AS {view_query(app, sink, target, names)}",
        f"made the reader view {target.reader}",
    )


def view_query(app: str, sink: str, target: Target, names: Sequence[str]) -> str:
    """Return the query of the view: the rows at or below the published position.

    It gives no row if the sink has no row in ``epochal.sinks``.

    Nearly all rows are published.  ``IS FALSE`` keeps the planner from using the BRIN index, which would only make the
    server check each row twice.  It also makes the planner expect most of the rows.
    """
    return (
        f"SELECT {', '.join(map(quoted, names))} FROM {target.rows} WHERE (_epoch >"
        f" (SELECT published FROM epochal.sinks WHERE app = {literal(app)} AND sink = {literal(sink)})) IS FALSE"
    )


def all_steps(app: str, sink: str, target: Target, columns: Sequence[PgColumn], adopt: bool) -> list[Step]:
    """Return all steps for a database that has none of these objects; with ``adopt`` it has the plain table."""
    return [
        *housekeeping_steps(),
        *rows_steps(target, columns, adopt),
        sink_step(app, sink, target),
        view_step(app, sink, target, [c.name for c in columns]),
    ]


def run_steps(session: Session, steps: Sequence[Step]) -> list[str]:
    """Run the steps, and return the lines to report."""
    for step in steps:
        session.run(step.sql)
    return [step.done for step in steps if step.done]


def rename(session: Session, app: str, old: str, new: str, target: Target, *, has_view: bool) -> None:
    """Move all that is stored under the name ``old`` to the name ``new``, within the caller's transaction."""
    for table in ("sinks", "epochs", "attempts"):
        session.run(f"UPDATE epochal.{table} SET sink = $3 WHERE app = $1 AND sink = $2", app, old, new)
    if has_view:
        names = [name for name, *_ in columns_of(session, target.reader)]
        session.run(f"CREATE OR REPLACE VIEW {target.reader} AS {view_query(app, new, target, names)}")


def find(session: Session, name: str) -> int | None:
    """Return the object id of a relation, or None if it does not exist."""
    (oid,) = session.run("SELECT to_regclass($1)::oid::bigint", name)[0]
    return int(oid) if oid is not None else None


Found = tuple[str, str, bool]  # name, type, whether a default or an identity fills it


def columns_of(session: Session, name: str) -> list[Found]:
    """Return the columns of a table, in their order."""
    return [
        (str(column), str(kind), bool(filled))
        for column, kind, filled in session.run(
            "SELECT attname, format_type(atttypid, atttypmod), atthasdef OR attidentity <> '' FROM pg_attribute"
            " WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            name,
        )
    ]


def columns_ever(session: Session, table: str) -> tuple[int, int]:
    """Return how many columns the table has, with dropped ones, which count for Postgres too; and how many of those."""
    ((there, dropped),) = session.run(
        "SELECT count(*), count(*) FILTER (WHERE attisdropped) FROM pg_attribute"
        " WHERE attrelid = to_regclass($1) AND attnum > 0",
        table,
    )
    return int(there), int(dropped)


def ownership(session: Session, relation: str) -> tuple[bool, str, str]:
    """Return whether this role may act as the owner of the relation, the owner, and this role, both as SQL names them.

    A relation that does not exist is nobody's: (True, "", "").
    """
    ((owns, owner, user),) = session.run(
        "SELECT pg_has_role(relowner, 'USAGE'), relowner::regrole::text, quote_ident(current_user)"
        " FROM pg_class WHERE oid = to_regclass($1)",
        relation,
    ) or [(True, "", "")]
    return bool(owns), str(owner), str(user)


def refuse_full(session: Session, sink: str, table: str, more: Sequence[str]) -> None:
    """Refuse to add the columns ``more`` to a table if Postgres would not take so many.  It counts dropped ones too."""
    there, dropped = columns_ever(session, table)
    if there + len(more) > MOST_COLUMNS:
        raise Misconfigured(
            f"{table} has {there} columns, and a table of Postgres has at most {MOST_COLUMNS}: {len(more)} more do not"
            " fit",
            sink=sink,
            state=f"to be added: {', '.join(map(quoted, more[:3]))}{', ...' if len(more) > 3 else ''}; of the columns"
            f" {dropped} are dropped, and count until the table is made again",
            help="select fewer columns, or put some into a struct, which becomes one column of JSON",
        )


def has_housekeeping(session: Session) -> bool:
    """Return whether the schema ``epochal`` has all its tables and columns."""
    names = ("epochal.sinks", "epochal.epochs", "epochal.attempts", "epochal.attempt")
    return all(find(session, name) is not None for name in names) and all(
        wanted.keys() <= {name for name, *_ in columns_of(session, table)} for table, wanted in ADDED_LATER.items()
    )


def has_schema(session: Session, schema: str) -> bool:
    return bool(session.run("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema)[0][0])


def schema_alike(session: Session, schema: str) -> str | None:
    """Return a schema whose name differs from this one at most in case or in quotes, or None."""
    found = session.run(
        f"SELECT nspname::text FROM pg_namespace WHERE {_ALIKE.format('nspname')} ORDER BY nspname <> $1::text, 1",
        schema,
    )
    return str(found[0][0]) if found else None


def relation_alike(session: Session, schema: str | None, name: str) -> str | None:
    """Return a relation of the schema whose name differs from this one at most in case or in quotes, or None.

    Without a schema, the search path counts.
    """
    found = session.run(
        f"SELECT relname::text FROM pg_class WHERE {_ALIKE.format('relname')} AND relkind IN ('r', 'p', 'v', 'm', 'f')"
        " AND relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname = ANY(coalesce($2::name[],"
        " current_schemas(false)))) ORDER BY relname <> $1::text, 1",
        name,
        [schema] if schema is not None else None,
    )
    return str(found[0][0]) if found else None


_ALIKE = """lower(replace({}::text, '"', '') COLLATE "C") = lower(replace($1::text, '"', '') COLLATE "C")"""


def registered(session: Session, app: str, sink: str) -> int | None:
    """Return the object id of the table that this sink is registered with, or None."""
    found = session.run("SELECT rows_table::bigint FROM epochal.sinks WHERE app = $1 AND sink = $2", app, sink)
    return int(found[0][0]) if found else None


def renamed_to(session: Session, app: str, target: Target) -> str | None:
    """Return the name of this app's sink that is registered with the table, or None."""
    if not has_housekeeping(session):
        return None
    found = session.run(
        "SELECT sink FROM epochal.sinks WHERE app = $1 AND rows_table = to_regclass($2)::oid", app, target.own
    )
    return str(found[0][0]) if found else None


def missing(session: Session, what: str, sink: str) -> Misconfigured:
    """Return the error for an object that ``create`` makes and that does not exist."""
    return Misconfigured(
        f"{what} does not exist",
        sink=sink,
        state=session.where,
        help="call pipeline.create() once, or have the SQL run that PostgresSink.ddl(app, schema) returns",
    )


def no_column(sink: str, name: str, column: PgColumn, there: Sequence[str], given: Collection[str]) -> Misconfigured:
    """Return the error for a table that lacks a column of the rows.

    ``there``: the columns of the table.  ``given``: the columns of the rows.
    """
    other = misspelt(column.name, there, given)
    if other is not None:
        return Misconfigured(
            f"{name} has no column {quoted(column.name)}, only {quoted(other)}",
            sink=sink,
            state=f"columns {list(there)}",
            help="Postgres tells names apart by case and quotes: spell the column in the query as the table does,"
            f" withColumnRenamed({column.name!r}, {other!r})",
        )
    return Misconfigured(
        f"{name} has no column {quoted(column.name)}",
        sink=sink,
        state=f"columns {list(there)}",
        help=f"ALTER TABLE {name} ADD COLUMN {quoted(column.name)} {column.types[0]}, and add it to the reader view if"
        " there is one; or give schema_evolution=True",
    )


def misspelt(name: str, there: Sequence[str], given: Collection[str]) -> str | None:
    """Return a column of the table that the rows lack, and that differs from ``name`` only in case or in quotes."""
    return next((other for other in there if unspelt(other) == unspelt(name) and other not in given), None)


def unspelt(name: str) -> str:
    """Return the name without what SQL itself ignores or takes away in a name that is not quoted."""
    return name.replace('"', "").lower()


def other_type(sink: str, name: str, column: PgColumn, found: str, remedy: str) -> Misconfigured:
    """Return the error for a column of the table whose type does not fit the rows."""
    return Misconfigured(
        f"column {quoted(column.name)} of {name} is {found}, the rows need {column.types[0]}",
        sink=sink,
        help=remedy,
    )


ONE_EVALUATION = "if Spark evaluates a Python function again, readers see the rows of exactly one evaluation."


def guarantee(target: Target) -> str:
    """Return what a sink in the mode ``Append`` promises, as text."""
    view = target.reader
    return (
        f"for whoever reads the view {view};"
        f" each statement sees the epochs up to one point, and none in part."
        f" Prepared rows lie in {target.rows} and become visible by one committed UPDATE;"
        f" {ONE_EVALUATION}"
        " Conditions: fsync=on and full_page_writes=on on the server, nobody edits the rows table or the schema"
        " epochal by hand, and readers use the view: the rows table, triggers and logical replication see"
        " prepared rows too."
    )
