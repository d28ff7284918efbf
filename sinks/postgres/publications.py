"""Publications: the server refuses updates and deletes of a published table whose rows have no replica identity.

A person may make a publication at any time, also one for all tables.  So a start asks, and each prepare asks again.
``REPLICA IDENTITY FULL`` costs nothing until the server's ``wal_level`` is ``logical``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import rights
from epochal.sinks.postgres.ddl import Target, identity_step, run_steps

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

_SCHEMAS_FROM = 150000
"""The first server version that has publications of all tables in a schema."""

_IN_SCHEMA = (
    " OR EXISTS (SELECT FROM pg_publication_namespace JOIN pg_class ON relnamespace = pnnspid"
    " WHERE pnpubid = p.oid AND pg_class.oid IN (SELECT relid FROM named))"
)
_LACKING = """
WITH asked AS (SELECT place, to_regclass(name)::oid AS top, updates, deletes
    FROM unnest($1::text[], $2::bool[], $3::bool[]) WITH ORDINALITY AS a(name, updates, deletes, place)),
members AS (SELECT place, top AS member, updates, deletes FROM asked
    UNION SELECT place, relid::oid, updates, deletes FROM asked, pg_partition_tree(top))
SELECT member::regclass::text, p.pubname::text, updates AND p.pubupdate
FROM members JOIN pg_class c ON c.oid = member CROSS JOIN pg_publication p
WHERE (updates AND p.pubupdate OR deletes AND p.pubdelete)
    AND c.relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = member
        AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL
        AND CASE c.relreplident WHEN 'd' THEN indisprimary WHEN 'i' THEN indisreplident ELSE false END)
    AND (p.puballtables OR EXISTS (
        WITH named AS (SELECT member AS relid UNION SELECT relid::oid FROM pg_partition_ancestors(member))
        SELECT WHERE EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = p.oid
            AND prrelid IN (SELECT relid FROM named)){in_schema}))
ORDER BY place, 1, 2
"""
"""Tables ($1) that a publication covers and whose updates ($2) or deletes ($3) it would refuse, partitions included."""


def refuse_publications(session: Session, sink: str, target: Target, *more: tuple[str, str]) -> None:
    """Refuse tables that the sink updates or deletes from, if a publication would refuse that.

    ``more``: tables beside those that every sink writes, and the rights on them, as for ``rights.questions``.
    """
    found = _lacking(session, target, more)
    if found:
        table, publication, updates = found[0]
        others = list(dict.fromkeys(name for name, *_ in found[1:] if name != table))
        raise Misconfigured(
            f"{table} has no replica identity, so its publication {publication} makes the server refuse"
            f" {'updates' if updates else 'deletes'}",
            sink=sink,
            state=f"{session.where}" + (f"; so do {', '.join(others)}" if others else ""),
            help=f"ALTER TABLE {table} REPLICA IDENTITY FULL"
            + "".join(f"; {identity_step(name).sql}" for name in others),
        )


_PUBLISHING = """
SELECT quote_ident(pubname), EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = p.oid AND prrelid = c.oid)
FROM pg_publication p CROSS JOIN pg_class c WHERE c.oid = to_regclass($1) AND (puballtables
    OR EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = p.oid AND prrelid = c.oid){in_schema}) ORDER BY 2, 1
"""


def publishing(session: Session, name: str) -> list[tuple[str, bool]]:
    """Return the publications that cover a table, quoted; and of each, whether it names the table itself."""
    in_schema = (
        " OR EXISTS (SELECT FROM pg_publication_namespace WHERE pnpubid = p.oid AND pnnspid = relnamespace)"
        if session.version >= _SCHEMAS_FROM
        else ""
    )
    found = session.run(_PUBLISHING.format(in_schema=in_schema), name)
    return [(str(publication), bool(by_name)) for publication, by_name in found]


def mend(session: Session, target: Target) -> list[str]:
    """Give the sink's own table a replica identity if a publication asks for it and this role may."""
    lacking = {name for name, *_ in _lacking(session, target, ())}
    owned = "SELECT to_regclass($1)::text, pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass($1)"
    ((name, owns),) = session.run(owned, target.rows)
    return run_steps(session, [identity_step(target.rows)]) if owns and name in lacking else []


def _lacking(session: Session, target: Target, more: tuple[tuple[str, str], ...]) -> list[tuple[str, str, bool]]:
    asked = rights.of_a_query(target, *more)
    sql = _LACKING.format(in_schema=_IN_SCHEMA if session.version >= _SCHEMAS_FROM else "")
    found = session.run(
        sql,
        [table for table, _ in asked],
        ["UPDATE" in held.split(", ") for _, held in asked],
        ["DELETE" in held.split(", ") for _, held in asked],
    )
    return [(str(name), str(publication), bool(updates)) for name, publication, updates in found]
