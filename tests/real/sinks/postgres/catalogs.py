"""Everything that a database says of itself, before and after, and what was changed, in words that a test can judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.real.sinks.postgres.support import observe

FIRST = 16384
"""The first object id that is not the server's own."""
LEFT_OUT = {"pg_statistic", "pg_statistic_ext_data", "pg_largeobject", "pg_largeobject_metadata"}
"""Catalogues of the rows of others, which autovacuum may change at any time."""
SHARED = {"pg_database", "pg_shdepend", "pg_authid", "pg_auth_members", "pg_db_role_setting", "pg_subscription"}
"""Catalogues of the whole server in which an owner or a right could be changed."""
VOLATILE = {
    *("relpages", "reltuples", "relallvisible", "relallfrozen", "relfrozenxid", "relminmxid", "indcheckxmin"),
    *("datfrozenxid", "datminmxid"),
}
"""Columns that the server itself changes, also where nobody does anything."""

ONLY = {
    "pg_shdepend": "WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())",
    "pg_database": "WHERE datname = current_database()",
    "pg_attribute": f"WHERE attrelid >= {FIRST} OR attacl IS NOT NULL",
    "pg_proc": f"WHERE oid >= {FIRST} OR proacl IS NOT NULL",
    "pg_type": f"WHERE oid >= {FIRST} OR typacl IS NOT NULL",
    "pg_depend": f"WHERE objid >= {FIRST}",
    "pg_description": f"WHERE objoid >= {FIRST}",
    **dict.fromkeys(("pg_operator", "pg_amop", "pg_amproc", "pg_cast", "pg_collation"), f"WHERE oid >= {FIRST}"),
}
"""Of catalogues that hold much of the server's own, what somebody could have made or granted."""

Row = dict[str, Any]
Snapshot = dict[str, dict[str, Row]]


@dataclass
class Change:
    """What is new, what is gone, and what is another, outside of the schema ``epochal``."""

    made: list[str] = field(default_factory=list)  # whole objects
    gone: list[str] = field(default_factory=list)  # rows of catalogues
    added: list[str] = field(default_factory=list)  # rows of catalogues about objects that were there before
    changed: list[str] = field(default_factory=list)


def snapshot(dsn: str) -> Snapshot:
    found = observe(
        dsn,
        "SELECT relname::text, relisshared, ARRAY(SELECT attname::text FROM pg_index JOIN pg_attribute"
        " ON attrelid = indrelid AND attnum = ANY(indkey) WHERE indrelid = c.oid AND indisprimary ORDER BY attnum)"
        " FROM pg_class c WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' ORDER BY 1",
    )
    keys = {name: key for name, shared, key in found if name not in LEFT_OUT and (not shared or name in SHARED)}
    parts = (f"SELECT '{name}', to_jsonb(t) FROM pg_catalog.{name} t {ONLY.get(name, '')}" for name in keys)
    taken: Snapshot = {name: {} for name in keys}
    for name, row in observe(dsn, " UNION ALL ".join(parts)):
        kept = {part: value for part, value in row.items() if part not in VOLATILE}
        taken[name][_key(kept, keys[name])] = kept
    return taken


def _key(row: Row, key: list[str]) -> str:
    return " ".join(f"{name}={row[name]}" for name in key or row)


def change(dsn: str, before: Snapshot, after: Snapshot) -> Change:
    told = Change()
    fresh = {
        str(row["oid"]) for name in after for key, row in after[name].items() if key not in before[name] if "oid" in row
    }
    for name, rows in after.items():
        for key, row in rows.items():
            if key not in before[name]:
                _judge_new(dsn, told, fresh, name, row)
            elif row != (old := before[name][key]):
                parts = (f"{part} {old[part]} -> {row[part]}" for part in row if row[part] != old[part])
                told.changed.append(f"{name} of {_named(dsn, name, row)}: {', '.join(parts)}")
        told.gone += [f"{name}: {row}" for key, row in before[name].items() if key not in rows]
    for part in (told.made, told.gone, told.added, told.changed):
        part.sort()
    return told


def _judge_new(dsn: str, told: Change, fresh: set[str], catalog: str, row: Row) -> None:
    """An object of the schema ``epochal`` is nobody else's, and a row about an object that is new goes with it."""
    if "oid" in row:
        identity = _named(dsn, catalog, row)
        if " epochal" not in identity and "pg_toast" not in identity:
            told.made.append(identity)
    elif not fresh & {
        str(value) for name, value in row.items() if name.endswith(("id", "class", "relid", "indexrelid"))
    }:
        told.added.append(f"{catalog} of {_named(dsn, catalog, row)}")


def _named(dsn: str, catalog: str, row: Row) -> str:
    if "oid" in row:
        ask = f"SELECT type || ' ' || identity FROM pg_identify_object('{catalog}'::regclass, {row['oid']}, 0)"
        return str(observe(dsn, ask)[0][0]) if catalog not in SHARED else f"{catalog} {row['oid']}"
    if catalog == "pg_attribute":
        return str(observe(dsn, f"SELECT {row['attrelid']}::regclass || '.{row['attname']}'")[0][0])
    return str(row)
