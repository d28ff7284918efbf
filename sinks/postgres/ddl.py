"""What must exist in the database, how it is made, and what is refused.

One list of steps serves ``create`` (which runs those that are missing) and ``ddl`` (which prints them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.environment import versions
from epochal.coordinator.model.errors import Misconfigured

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

VERSION = 1
"""Of all that is kept of a sink in these tables; in its row since its newest fence."""
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
_SINCE = {
    "epochal.sinks": {"version": "int NOT NULL DEFAULT 1"},
    "epochal.epochs": {"digest_rows": "bigint", "digest_sum": "bigint"},
}
"""Columns of these tables that the first Epochal did not make."""


@dataclass(frozen=True)
class PgColumn:
    """A column as Postgres names it; ``types`` as ``format_type`` prints them, the first is what we make."""

    name: str
    types: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """The names of one sink's objects; each is one SQL identifier, quoted where it is needed."""

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
        """Where tasks write: rows that a view shows up to a position, or staged ones."""
        return _qualified(self.schema, self.table + self.suffix)

    @property
    def own(self) -> str:
        """The table that is the sink: where the rows are in the end.  Made anew, it is another."""
        return self.rows if self.suffix == "__rows" else self.plain

    @property
    def reader(self) -> str:
        return _qualified(self.view_schema, self.view)


@dataclass(frozen=True)
class Step:
    """One statement, and what is said when it was run."""

    sql: str
    done: str


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _split(name: str) -> tuple[str | None, str]:
    schema, dot, rest = name.partition(".")
    return (schema, rest) if dot else (None, name)


def _qualified(schema: str | None, name: str) -> str:
    return f"{quoted(schema)}.{quoted(name)}" if schema is not None else quoted(name)


def make_housekeeping(session: Session) -> list[str]:
    """The schema epochal with all its tables and columns, as far as they are missing."""
    if has_housekeeping(session):
        return []
    found = {table: [name for name, *_ in columns_of(session, table)] for table in _SINCE}
    added = [
        Step(f"ALTER TABLE {table} ADD COLUMN {name} {kind}", f"added {name} to {table}")
        for table, wanted in _SINCE.items()
        for name, kind in wanted.items()
        if found[table] and name not in found[table]
    ]
    return run_steps(session, [*added, *housekeeping_steps()])


def housekeeping_steps() -> list[Step]:
    return [Step(sql, "made the schema epochal" if n == 0 else "") for n, sql in enumerate(HOUSEKEEPING)]


def rows_steps(target: Target, columns: Sequence[PgColumn], adopt: bool) -> list[Step]:
    """The rows table: made, or an existing table renamed, whose rows become position 0.

    ``_epoch`` comes first, as every reader looks at it: there its place in a row is fixed, and behind columns of
    varying length it would have to be looked for.
    """
    brin = Step(
        f"CREATE INDEX ON {target.rows} USING brin (_epoch) WITH (pages_per_range = 32, autosummarize = on)", ""
    )
    if not adopt:
        lines = [f"{quoted(c.name)} {c.types[0]}" for c in columns]
        body = ", ".join(["_epoch bigint NOT NULL", "_attempt bigint NOT NULL", *lines])
        return [Step(f"CREATE TABLE {target.rows} ({body})", f"made the table {target.rows}"), brin]
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
    ]


def sink_step(app: str, sink: str, target: Target) -> Step:
    return Step(
        "INSERT INTO epochal.sinks (app, sink, rows_table)"
        f" VALUES ({literal(app)}, {literal(sink)}, {literal(target.own)}::regclass::oid)"
        " ON CONFLICT (app, sink) DO NOTHING",
        f"registered sink {sink} of app {app}",
    )


def view_step(app: str, sink: str, target: Target, names: Sequence[str]) -> Step:
    """Readers need no right but SELECT on the view: it reads with its owner's."""
    return Step(
        f"CREATE VIEW {target.reader} AS {view_query(app, sink, target, names)}",
        f"made the reader view {target.reader}",
    )


def view_query(app: str, sink: str, target: Target, names: Sequence[str]) -> str:
    """The rows up to what is published; none without the sink's row.

    Nearly all rows are.  ``IS FALSE`` keeps the planner from asking the BRIN index, which would only have every row
    looked at twice, and has it expect most of the rows.
    """
    return (
        f"SELECT {', '.join(map(quoted, names))} FROM {target.rows} WHERE (_epoch >"
        f" (SELECT published FROM epochal.sinks WHERE app = {literal(app)} AND sink = {literal(sink)})) IS FALSE"
    )


def all_steps(app: str, sink: str, target: Target, columns: Sequence[PgColumn], adopt: bool) -> list[Step]:
    """Everything, for a database that has nothing (but the table to adopt)."""
    return [
        *housekeeping_steps(),
        *rows_steps(target, columns, adopt),
        sink_step(app, sink, target),
        view_step(app, sink, target, [c.name for c in columns]),
    ]


def create(session: Session, app: str, sink: str, target: Target, columns: Sequence[PgColumn]) -> list[str]:
    """Make what is missing, within the caller's transaction; what was done, a line each."""
    session.run("SELECT pg_advisory_xact_lock(hashtextextended('epochal.create', 0))")
    done: list[str] = []
    done += make_housekeeping(session)
    if find(session, target.rows) is None:
        done += run_steps(session, _rows_steps(session, sink, target, columns))
    refuse_rows(session, sink, target, columns)
    refuse_other_owner(session, app, sink, target)
    if registered(session, app, sink) is None:
        done += run_steps(session, [sink_step(app, sink, target)])
    if find(session, target.reader) is None:
        names = [name for name, *_ in columns_of(session, target.rows) if name not in ("_epoch", "_attempt")]
        done += run_steps(session, [view_step(app, sink, target, names)])
        done += _pass_on_grants(session, target)
    return [*done, needed(target)] if done else []


def run_steps(session: Session, steps: Sequence[Step]) -> list[str]:
    for step in steps:
        session.run(step.sql)
    return [step.done for step in steps if step.done]


def _rows_steps(session: Session, sink: str, target: Target, columns: Sequence[PgColumn]) -> list[Step]:
    existing = find(session, target.plain)
    if existing is None:
        return rows_steps(target, columns, adopt=False)
    _refuse_relation(session, sink, target.plain)
    refuse_columns(sink, target.plain, columns_of(session, target.plain), columns)
    _refuse_dependents(session, sink, target.plain)
    return rows_steps(target, columns, adopt=True)


def _pass_on_grants(session: Session, target: Target) -> list[str]:
    """Whoever could read the adopted table can read the view."""
    grantees = session.run(
        "SELECT CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END"
        " FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass($1) AND privilege_type = 'SELECT'"
        " AND grantee <> relowner",
        target.rows,
    )
    steps = [
        Step(f"GRANT SELECT ON {target.reader} TO {who}", f"granted SELECT on {target.reader} to {who}")
        for (who,) in grantees
    ]
    return run_steps(session, steps)


def check(session: Session, app: str, sink: str, target: Target, columns: Sequence[PgColumn]) -> None:
    """Refuse, writing nothing, what can never work."""
    refuse_server(session, sink)
    if not has_housekeeping(session):
        raise missing(session, "the schema epochal and its tables", sink)
    if find(session, target.rows) is None:
        raise missing(session, f"the table {target.rows}", sink)
    refuse_rows(session, sink, target, columns)
    refuse_other_owner(session, app, sink, target)
    if registered(session, app, sink) is None:
        raise missing(session, f"the row of app {app!r} in epochal.sinks", sink)
    _refuse_view(session, sink, target, columns)
    refuse_rights(session, sink, target)


def has_housekeeping(session: Session) -> bool:
    names = ("epochal.sinks", "epochal.epochs", "epochal.attempts", "epochal.attempt")
    return all(find(session, name) is not None for name in names) and all(
        wanted.keys() <= {name for name, *_ in columns_of(session, table)} for table, wanted in _SINCE.items()
    )


def find(session: Session, name: str) -> int | None:
    """The object id of a relation, or None."""
    (oid,) = session.run("SELECT to_regclass($1)::oid::bigint", name)[0]
    return int(oid) if oid is not None else None


def missing(session: Session, what: str, sink: str) -> Misconfigured:
    return Misconfigured(
        f"{what} does not exist",
        sink=sink,
        state=session.where,
        help="call pipeline.create() once, or have the SQL run that PostgresSink.ddl(app, schema) returns",
    )


def registered(session: Session, app: str, sink: str) -> int | None:
    found = session.run("SELECT rows_table::bigint FROM epochal.sinks WHERE app = $1 AND sink = $2", app, sink)
    return int(found[0][0]) if found else None


def renamed_to(session: Session, app: str, target: Target) -> str | None:
    """The sink of this app that the table belongs to."""
    if not has_housekeeping(session):
        return None
    found = session.run(
        "SELECT sink FROM epochal.sinks WHERE app = $1 AND rows_table = to_regclass($2)::oid", app, target.own
    )
    return str(found[0][0]) if found else None


def refuse_no_owner(session: Session, sink: str, target: Target, *, has_view: bool) -> None:
    """Whoever renames a sink changes its rows in epochal's tables, and its view."""
    for table in ("sinks", "epochs", "attempts"):
        if not session.run("SELECT has_table_privilege($1, 'UPDATE')", f"epochal.{table}")[0][0]:
            raise _no_right(session, sink, f"UPDATE on epochal.{table}", f"GRANT UPDATE ON epochal.{table}")
    owner = "SELECT pg_has_role(relowner, 'USAGE'), pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass($1)"
    found = session.run(owner, target.reader) if has_view else []
    if found and not found[0][0]:
        raise Misconfigured(
            f"the reader view {target.reader} names the sink, and belongs to {found[0][1]}",
            sink=sink,
            state=session.where,
            help=f"connect as {found[0][1]}, or as a member of it, to rename the sink",
        )


def rename(session: Session, app: str, old: str, new: str, target: Target, *, has_view: bool) -> None:
    """All that is kept under one name goes under the other, within the caller's transaction."""
    for table in ("sinks", "epochs", "attempts"):
        session.run(f"UPDATE epochal.{table} SET sink = $3 WHERE app = $1 AND sink = $2", app, old, new)
    if has_view:
        names = [name for name, *_ in columns_of(session, target.reader)]
        session.run(f"CREATE OR REPLACE VIEW {target.reader} AS {view_query(app, new, target, names)}")


def refuse_other_owner(session: Session, app: str, sink: str, target: Target) -> None:
    """A table has one sink, a sink one table, and that table is still the one it was."""
    oid = find(session, target.own)
    owners = session.run("SELECT app, sink FROM epochal.sinks WHERE rows_table = $1::bigint::oid", oid)
    if owners and tuple(owners[0]) != (app, sink):
        raise Misconfigured(
            f"the table {target.own} belongs to sink {owners[0][1]!r} of app {owners[0][0]!r}",
            sink=sink,
            state=f"table oid {oid}, asked for by sink {sink!r} of app {app!r}",
            help="give each sink a table of its own; if it is that sink under a new name, say so with `epochal rename`",
        )
    mine = registered(session, app, sink)
    if mine is not None and mine != oid:
        raise Misconfigured(
            f"app {app!r} wrote this sink into another table than {target.own}, or that table was made anew",
            sink=sink,
            state=f"registered: table oid {mine}; {target.own}: oid {oid}",
            help="name the table it wrote, restore it, or give the sink another name=",
        )


def refuse_server(session: Session, sink: str) -> None:
    ((version, recovery, encoding),) = session.run(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('server_encoding')"
    )
    versions.check(versions.POSTGRES_SERVER, str(version // 10000), sink)
    if recovery:
        raise Misconfigured(
            "the server is a read-only replica",
            sink=sink,
            state=session.where,
            help="connect to the primary (target_session_attrs=read-write)",
        )
    if encoding != "UTF8":
        raise Misconfigured(
            f"the database's encoding is {encoding}, which cannot hold all strings",
            sink=sink,
            state=session.where,
            help="use a UTF8 database",
        )


def refuse_rows(
    session: Session, sink: str, target: Target, columns: Sequence[PgColumn], *, fewer: bool = False
) -> None:
    """The table for the sink's rows is no such table; ``fewer``: these may lack columns, which are NULL then."""
    _refuse_relation(session, sink, target.rows)
    found = columns_of(session, target.rows)
    isolation = {name: kind for name, kind, _ in found if name in ("_epoch", "_attempt")}
    if isolation != {"_epoch": "bigint", "_attempt": "bigint"}:
        raise Misconfigured(
            f"the table {target.rows} lacks the columns _epoch and _attempt (bigint)",
            sink=sink,
            state=f"columns {', '.join(f'{name} {kind}' for name, kind, _ in found)}",
            help="rename that table; the name is needed for the rows of this sink",
        )
    given = {column.name for column in columns}
    held = [c for c in found if c[0] not in isolation and (c[0] in given or not fewer)]
    refuse_columns(sink, target.rows, held, columns)


KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "p": "a partitioned table"}


def _refuse_relation(session: Session, sink: str, name: str) -> None:
    """Only a plain, logged table whose rows nothing sees before readers do."""
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
        raise Misconfigured(f"{name} {why}", sink=sink, help="name another table=, it can be made by pipeline.create()")
    _refuse_seers(session, sink, name)


def _refuse_seers(session: Session, sink: str, name: str) -> None:
    """Unique and exclusion constraints and triggers see rows that readers must not see yet."""
    seers = session.run(
        "SELECT 'unique or exclusion constraint ' || indexrelid::regclass FROM pg_index"
        " WHERE indrelid = to_regclass($1) AND (indisunique OR indisexclusion)"
        " UNION ALL SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger"
        " WHERE tgrelid = to_regclass($1) AND NOT tgisinternal AND tgenabled <> 'D' ORDER BY 1",
        name,
    )
    if seers:
        raise Misconfigured(
            f"{name} has the {seers[0][0]}, which would see rows that are prepared and not yet committed",
            sink=sink,
            state=", ".join(str(seer) for (seer,) in seers),
            help="drop it, name another table=, or give mode=Plain() or mode=Upsert(key=...), which stage the rows",
        )


def _refuse_dependents(session: Session, sink: str, name: str) -> None:
    """A view on an adopted table would go on to read the table, and see prepared rows."""
    views = session.run(
        "SELECT DISTINCT ev_class::regclass::text FROM pg_rewrite JOIN pg_depend ON pg_depend.objid = pg_rewrite.oid"
        " AND classid = 'pg_rewrite'::regclass WHERE refobjid = to_regclass($1) AND ev_class <> refobjid ORDER BY 1",
        name,
    )
    if views:
        raise Misconfigured(
            f"{name} cannot be adopted: the view {views[0][0]} reads it and would see prepared rows",
            sink=sink,
            state=f"views {', '.join(str(view) for (view,) in views)}",
            help="drop the view, call create, and make it again on top of the reader view",
        )


Found = tuple[str, str, bool]  # name, type, whether somebody fills it


def columns_of(session: Session, name: str) -> list[Found]:
    return [
        (str(column), str(kind), bool(filled))
        for column, kind, filled in session.run(
            "SELECT attname, format_type(atttypid, atttypmod), atthasdef OR attidentity <> '' FROM pg_attribute"
            " WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            name,
        )
    ]


def refuse_columns(sink: str, name: str, found: Sequence[Found], columns: Sequence[PgColumn]) -> None:
    """Names and types exactly, in any order; further columns only where the table fills them itself."""
    there = {column: kind for column, kind, _ in found}
    for column in columns:
        if column.name not in there:
            raise no_column(sink, name, column, list(there))
        if there[column.name] not in column.types:
            raise other_type(sink, name, column, there[column.name])
    wanted = {column.name for column in columns}
    unfilled = [column for column, _, filled in found if not filled and column not in wanted]
    if unfilled:
        raise Misconfigured(
            f"column {quoted(unfilled[0])} of {name} is not in the rows and has no default",
            sink=sink,
            state=f"all such columns: {unfilled}",
            help="select it in the query, or give it a default",
        )


def no_column(sink: str, name: str, column: PgColumn, there: Sequence[str]) -> Misconfigured:
    return Misconfigured(
        f"{name} has no column {quoted(column.name)}",
        sink=sink,
        state=f"columns {list(there)}",
        help=f"ALTER TABLE {name} ADD COLUMN {quoted(column.name)} {column.types[0]}, and add it to the reader view if"
        " there is one; or give schema_evolution=True",
    )


def other_type(sink: str, name: str, column: PgColumn, found: str) -> Misconfigured:
    return Misconfigured(
        f"column {quoted(column.name)} of {name} is {found}, the rows need {column.types[0]}",
        sink=sink,
        help="change the column's type, or cast in the query",
    )


def _refuse_view(session: Session, sink: str, target: Target, columns: Sequence[PgColumn]) -> None:
    """The reader view reads our rows, up to what is published, and shows every column."""
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


_RIGHTS = (
    ("epochal.sinks", "SELECT, UPDATE"),
    ("epochal.epochs", "SELECT, INSERT, DELETE"),
    ("epochal.attempts", "SELECT, INSERT, DELETE"),
)
_MAY_LACK = ("epochal.epochs", "DELETE")
"""A right that the first Epochal did not ask for: a role without it goes on, and its audit keeps every epoch."""


def needed(target: Target, *more: tuple[str, str]) -> str:
    """The SQL for a role that only runs the query; ``more``: further tables, with the rights that are needed there."""
    return f"a role that only writes needs: {'; '.join(f'GRANT {grant} TO <role>' for grant in grants(target, *more))}"


def grants(target: Target, *more: tuple[str, str]) -> list[str]:
    """What :func:`needed` tells, as it stands between GRANT and TO."""
    schemas = dict.fromkeys(["epochal", *([quoted(target.schema)] if target.schema is not None else [])])
    return [
        *(f"USAGE ON SCHEMA {schema}" for schema in schemas),
        *(f"{rights} ON {table}" for table, rights in _rights(target, more)),
        "USAGE ON SEQUENCE epochal.attempt",
    ]


def _rights(target: Target, more: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [*_RIGHTS, (target.rows, "SELECT, INSERT, DELETE"), *more]


def refuse_rights(session: Session, sink: str, target: Target, *more: tuple[str, str]) -> None:
    """``more``: further tables, with the rights that are needed there."""
    for table, rights in _rights(target, more):
        for right in rights.split(", "):
            if (table, right) == _MAY_LACK:
                continue
            if not session.run("SELECT has_table_privilege(to_regclass($1), $2)", table, right)[0][0]:
                raise _no_right(session, sink, f"{right} on {table}", f"GRANT {rights} ON {table}")
    if not session.run("SELECT has_sequence_privilege('epochal.attempt', 'USAGE')")[0][0]:
        raise _no_right(session, sink, "USAGE on epochal.attempt", "GRANT USAGE ON SEQUENCE epochal.attempt")
    if not session.run("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")[0][0]:
        identify = "EXECUTE ON FUNCTION pg_control_system()"
        raise _no_right(session, sink, identify, f"GRANT {identify}")


def lacks_retention(session: Session) -> str | None:
    """The grant that the role lacks to bound its audit."""
    table, right = _MAY_LACK
    if session.run("SELECT has_table_privilege(to_regclass($1), $2)", table, right)[0][0]:
        return None
    user = str(session.run("SELECT quote_ident(current_user)")[0][0])
    return f"GRANT {right} ON {table} TO {user}"


def _no_right(session: Session, sink: str, right: str, grant: str) -> Misconfigured:
    user = str(session.run("SELECT quote_ident(current_user)")[0][0])
    return Misconfigured(f"the role {user} lacks {right}", sink=sink, help=f"{grant} TO {user}")


ONE_EVALUATION = "a Python function that Spark evaluates again gives the rows of exactly one evaluation."


def guarantee(target: Target) -> str:
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
