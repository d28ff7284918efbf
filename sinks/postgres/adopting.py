"""Adopts a table: what must not depend on it, and what its readers keep.

``create`` renames the table to ``<table>__rows``, and a view takes its name.  What names the table in its text finds
the view from then on.  What the server has bound to the table itself goes on with the rows table, and would see
prepared rows.  So everything of the second kind is found and refused, before anything is changed.  Readers' rights, the
owner and the comments are carried over to the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres.address import ServerRefused
from epochal.sinks.postgres.checking import refuse_columns, refuse_relation
from epochal.sinks.postgres.ddl import (
    ISOLATION,
    MOST_COLUMNS,
    PgColumn,
    Target,
    columns_ever,
    columns_of,
    literal,
    ownership,
    quoted,
)
from epochal.sinks.postgres.publications import publishing

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

_STAGING = "or give mode=Plain() or mode=Upsert(key=...), which leave the table as it is"

# --- what is refused ------------------------------------------------------------------------------

_DEPENDENTS = """
WITH own AS (SELECT c.oid, c.reltype, typarray FROM pg_class c JOIN pg_type t ON t.oid = c.reltype
    WHERE c.oid = to_regclass($1)),
found AS (SELECT DISTINCT classid, objid, objsubid FROM own JOIN pg_depend d
    ON refclassid = 'pg_class'::regclass AND refobjid = own.oid
    OR refclassid = 'pg_type'::regclass AND refobjid IN (reltype, typarray)
    WHERE NOT (deptype IN ('a', 'i') AND classid IN ('pg_class'::regclass, 'pg_type'::regclass)
            OR classid = 'pg_class'::regclass AND objid = own.oid
            OR classid IN ('pg_publication_rel'::regclass, 'pg_statistic_ext'::regclass)
            OR classid = 'pg_attrdef'::regclass AND EXISTS (SELECT FROM pg_attrdef WHERE oid = objid
                AND adrelid = own.oid)
            OR classid = 'pg_constraint'::regclass AND EXISTS (SELECT FROM pg_constraint WHERE oid = objid
                AND conrelid = own.oid)
            OR classid = 'pg_trigger'::regclass AND EXISTS (SELECT FROM pg_trigger WHERE oid = objid
                AND tgrelid = own.oid)
            OR classid = 'pg_policy'::regclass AND EXISTS (SELECT FROM pg_policy WHERE oid = objid
                AND polrelid = own.oid)
            OR classid = 'pg_rewrite'::regclass AND EXISTS (SELECT FROM pg_rewrite WHERE oid = objid
                AND ev_class = own.oid)))
SELECT DISTINCT CASE WHEN relkind = 'v' THEN 'view ' || ev_class::regclass
    WHEN relkind = 'm' THEN 'materialized view ' || ev_class::regclass
    ELSE (SELECT type || ' ' || identity FROM pg_identify_object(classid, objid, objsubid)) END
FROM found LEFT JOIN pg_rewrite ON classid = 'pg_rewrite'::regclass AND pg_rewrite.oid = objid
LEFT JOIN pg_class ON pg_class.oid = ev_class ORDER BY 1
"""
"""What the server has bound to the table or to its row type, and is no part of the table itself.

Its parts are indexes, sequences, defaults, constraints, statistics, and its own rules, policies and triggers.  Those
among them that act on prepared rows are refused elsewhere.
"""

_CLAIMS = """
WITH own AS (SELECT * FROM pg_class WHERE oid = to_regclass($1))
SELECT 'the subscription ' || quote_ident(subname) || ' writes into it, and would not find it any more'
    FROM own JOIN pg_subscription_rel ON srrelid = own.oid JOIN pg_subscription s ON s.oid = srsubid
UNION ALL SELECT 'it belongs to the extension ' || quote_ident(extname)
    FROM own JOIN pg_depend ON classid = 'pg_class'::regclass AND objid = own.oid AND objsubid = 0 AND deptype = 'e'
    JOIN pg_extension e ON e.oid = refobjid
UNION ALL SELECT 'it has a security label of ' || provider || ', which readers of a view would not meet'
    FROM own JOIN pg_seclabel ON objoid = own.oid AND classoid = 'pg_class'::regclass
UNION ALL SELECT 'it is of the type ' || reloftype::regtype || ', and takes no further columns' FROM own
    WHERE reloftype <> 0
UNION ALL SELECT 'its foreign key ' || quote_ident(conname) || ' deletes or changes its rows when others write into '
    || confrelid::regclass || ', and would do so to prepared rows'
    FROM own JOIN pg_constraint ON conrelid = own.oid AND contype = 'f'
    AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd'))
ORDER BY 1
"""
"""What others do with the table, or what it is, that a rows table with a view cannot keep."""


def refuse(session: Session, sink: str, target: Target, columns: Sequence[PgColumn]) -> None:
    """Refuse a table that cannot be adopted.  In the end the table is locked, so that nothing of it can change."""
    _refuse_all(session, sink, target, columns)
    session.run(f"LOCK TABLE {target.plain} IN ACCESS EXCLUSIVE MODE")
    _refuse_all(session, sink, target, columns)


def _refuse_all(session: Session, sink: str, target: Target, columns: Sequence[PgColumn]) -> None:
    refuse_relation(session, sink, target.plain)
    refuse_columns(session, sink, target.plain, columns_of(session, target.plain), columns)
    _refuse_non_owner(session, sink, target.plain)
    _refuse_no_room(session, sink, target.plain)
    _refuse_dependents(session, sink, target.plain)
    _refuse_publications(session, sink, target.plain)
    claims = [str(claim) for (claim,) in session.run(_CLAIMS, target.plain)]
    if claims:
        raise _cannot(target.plain, claims[0], sink, "; ".join(claims), f"name another table=, {_STAGING}")


def _refuse_non_owner(session: Session, sink: str, name: str) -> None:
    owns, owned_by, user = ownership(session, name)
    if not owns:
        why = f"it belongs to {owned_by}, and the role {user} may not rename it"
        raise _cannot(name, why, sink, session.where, f"GRANT {owned_by} TO {user}, or call create as {owned_by}")


def _refuse_no_room(session: Session, sink: str, name: str) -> None:
    """Refuse a table that cannot get the two columns of a rows table."""
    taken = [column for column, *_ in columns_of(session, name) if column in ISOLATION]
    if taken:
        why = f"its column {quoted(taken[0])} has the name of a column of Epochal's own"
        raise _cannot(name, why, sink, f"all such columns: {taken}", f"rename that column, {_STAGING}")
    used, _ = columns_ever(session, name)
    if used + len(ISOLATION) > MOST_COLUMNS:
        why = f"it has {used} columns, dropped ones included, and gets {len(ISOLATION)} more"
        raise _cannot(name, why, sink, f"Postgres takes {MOST_COLUMNS}", f"name another table=, {_STAGING}")


def bound(session: Session, name: str) -> list[str]:
    """Return what the server has bound to the table itself, each as its kind and its name."""
    return [str(what) for (what,) in session.run(_DEPENDENTS, name)]


def _refuse_dependents(session: Session, sink: str, name: str) -> None:
    found = bound(session, name)
    if found:
        raise _cannot(
            name,
            f"the {found[0]} is bound to it and would use the table with the prepared rows",
            sink,
            f"bound to it: {', '.join(found)}",
            f"drop what is bound to it, call create, and make it again: then it uses the reader view; {_STAGING}",
        )


def _refuse_publications(session: Session, sink: str, name: str) -> None:
    """Refuse a published table: its subscribers would get prepared rows, and under another name."""
    found = publishing(session, name)
    if found:
        publication, by_name = found[0]
        cure = f"ALTER PUBLICATION {publication} DROP TABLE {name}" if by_name else "name another table="
        raise _cannot(
            name,
            f"the publication {publication} publishes it, and subscribers would get prepared rows, of a table with"
            " another name",
            sink,
            f"publications {', '.join(each for each, _ in found)}",
            f"{cure}, {_STAGING}",
        )


def _cannot(name: str, why: str, sink: str, state: str, remedy: str) -> Misconfigured:
    return Misconfigured(f"{name} cannot be adopted: {why}", sink=sink, state=state, help=remedy)


# --- what is carried over -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grant:
    """A right to read, of the whole relation or of one column."""

    grantor: str
    grantee: str | None  # None: every role
    column: str | None
    again: bool  # with grant option
    to: str  # the grantee in SQL

    @property
    def right(self) -> str:
        return "SELECT" if self.column is None else f"SELECT ({quoted(self.column)})"

    @property
    def option(self) -> str:
        return " WITH GRANT OPTION" if self.again else ""


_GRANTS = """
SELECT pg_get_userbyid(grantor)::text, CASE WHEN grantee <> 0 THEN pg_get_userbyid(grantee)::text END, attname::text,
    is_grantable, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END
FROM (SELECT NULL::name, 0, relacl, relowner FROM pg_class WHERE oid = to_regclass($1)
    UNION ALL SELECT attname, attnum, attacl, relowner FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped) held (attname, place, acl, owner),
    aclexplode(acl)
WHERE privilege_type = 'SELECT' AND grantee <> owner ORDER BY place, 5
"""


def carry_over(session: Session, target: Target) -> list[str]:
    """Give the new view the owner, the readers and the comments of the adopted table, and no readers beside them."""
    strangers = session.run(
        "SELECT DISTINCT CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END"
        " FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass($1) AND grantee <> relowner ORDER BY 1",
        target.reader,
    )
    for (who,) in strangers:  # ALTER DEFAULT PRIVILEGES gave them the view; the table was not theirs to read
        session.run(f"REVOKE ALL ON {target.reader} FROM {who} CASCADE")
    return [
        *_same_owner(session, target),
        *pass_on_grants(session, target),
        *_same_comments(session, target),
    ]


def _same_owner(session: Session, target: Target) -> list[str]:
    """Give the view to the owner of the table, who must then be able to read ``epochal.sinks``, as the view does.

    If this role may not, the view stays its own, and the owner may read it and let others read it.
    """
    owner = "SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass($1)"
    ((theirs,),), ((ours,),) = session.run(owner, target.rows), session.run(owner, target.reader)
    if theirs == ours:
        return []
    session.run("SAVEPOINT owner")
    try:
        session.run(
            f"GRANT USAGE ON SCHEMA epochal TO {theirs}; GRANT SELECT ON epochal.sinks TO {theirs};"
            f" ALTER VIEW {target.reader} OWNER TO {theirs}"
        )
        ((reads,),) = session.run(
            "SELECT has_schema_privilege(relowner, 'epochal', 'USAGE')"
            " AND has_table_privilege(relowner, 'epochal.sinks', 'SELECT') FROM pg_class WHERE oid = to_regclass($1)",
            target.reader,
        )
    except ServerRefused:
        reads = False
    if reads:
        return [f"gave {target.reader} to {theirs}, the owner of the table"]
    session.run("ROLLBACK TO SAVEPOINT owner")
    session.run(f"GRANT SELECT ON {target.reader} TO {theirs} WITH GRANT OPTION")
    return [f"left {target.reader} to {ours}, who may not give it to {theirs}, the owner of the table, who may read it"]


def pass_on_grants(session: Session, target: Target) -> list[str]:
    """Grant SELECT on the view, or on its columns, to every role that has this right on the rows table.

    Each right is granted by the role that granted it on the table, if this role may act as that role.
    """
    shown = {name for name, *_ in columns_of(session, target.reader)}
    grants = [_Grant(*row) for row in session.run(_GRANTS, target.rows) if row[2] is None or row[2] in shown]
    ((owner, was),) = session.run(
        "SELECT pg_get_userbyid(relowner)::text, current_setting('role') FROM pg_class WHERE oid = to_regclass($1)",
        target.rows,
    )
    for grant in _in_order(grants, str(owner)):
        sql = f"GRANT {grant.right} ON {target.reader} TO {grant.to}{grant.option}"
        if grant.grantor == owner or not _granted_as(session, grant.grantor, sql, str(was)):
            session.run(sql)
    told = [f"granted {grant.right} on {target.reader} to {grant.to}{grant.option}" for grant in grants]
    return list(dict.fromkeys(told))


def _in_order(grants: Sequence[_Grant], owner: str) -> list[_Grant]:
    """Return the grants so that a role is given a right before it passes it on."""
    ordered: list[_Grant] = []
    givers: set[str | None] = {owner}
    left = list(grants)
    while left:
        now = [grant for grant in left if grant.grantor in givers] or left
        ordered += now
        givers |= {grant.grantee for grant in now}
        left = [grant for grant in left if grant not in now]
    return ordered


def _granted_as(session: Session, grantor: str, sql: str, was: str) -> bool:
    """Run the GRANT as this role; return False, and change nothing, if it cannot be done."""
    session.run("SAVEPOINT as_grantor")
    try:
        session.run("SELECT set_config('role', $1, true)", grantor)
        session.run(sql)
        session.run("SELECT set_config('role', $1, true)", was)
    except ServerRefused:
        session.run("ROLLBACK TO SAVEPOINT as_grantor")
        return False
    return True


def _same_comments(session: Session, target: Target) -> list[str]:
    found = session.run(
        "SELECT attname::text, description FROM pg_description LEFT JOIN pg_attribute"
        " ON attrelid = objoid AND attnum = objsubid AND attnum > 0"
        " WHERE classoid = 'pg_class'::regclass AND objoid = to_regclass($1) ORDER BY objsubid",
        target.rows,
    )
    for column, text in found:
        what = f"VIEW {target.reader}" if column is None else f"COLUMN {target.reader}.{quoted(column)}"
        session.run(f"COMMENT ON {what} IS {literal(text)}")
    return [f"gave {target.reader} the comments of the table"] if found else []
