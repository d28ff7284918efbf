"""Databases for tests: one that a test has used is emptied and used again, which is ten times as fast as a new one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from epochal.chaos import servers

EMPTY_FROM = 150000
"""Before Postgres 15 the schema ``public`` had other rights; such databases are made anew."""

CHANGED = """
SELECT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = d.oid)
    OR d.datacl IS NOT NULL OR d.datconnlimit <> -1
    OR EXISTS (SELECT FROM pg_extension WHERE extname <> 'plpgsql')
    OR EXISTS (SELECT FROM pg_publication) OR EXISTS (SELECT FROM pg_subscription WHERE subdbid = d.oid)
    OR EXISTS (SELECT FROM pg_event_trigger) OR EXISTS (SELECT FROM pg_default_acl)
    OR EXISTS (SELECT FROM pg_largeobject_metadata) OR EXISTS (SELECT FROM pg_foreign_data_wrapper)
    OR EXISTS (SELECT FROM pg_prepared_xacts WHERE database = d.datname)
    OR EXISTS (SELECT FROM pg_replication_slots WHERE database = d.datname)
FROM pg_database d WHERE datname = current_database()
"""
"""Whether a test has left anything that is in no schema."""

RIGHTS = """
SELECT string_agg(object || rights, ' ' ORDER BY object) FROM (
    SELECT 'p' || oid AS object, proacl::text AS rights FROM pg_proc WHERE oid < 16384
    UNION ALL SELECT 'c' || oid, relacl::text FROM pg_class WHERE oid < 16384
) AS of_the_system
"""
"""The rights on objects of the system, as far as they are not the usual ones."""

END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
SCHEMAS = "SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
PUBLIC = "CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC"


class Databases:
    """The databases of one run; ``spare`` are empty and wait for a test."""

    def __init__(self) -> None:
        self._spare: dict[str, list[str]] = {}  # by the server's address
        self._rights: dict[str, object] = {}  # of a new database, by the server's address

    @contextmanager
    def one(self, server: servers.Postgres) -> Iterator[str]:
        """The connection string of an empty database, for one test; a server that the test stopped is started."""
        spare = self._spare.setdefault(server.address, [])
        name = spare.pop() if spare else None
        if name is None:
            name = f"test_{uuid.uuid4().hex[:12]}"
            with psycopg.connect(server.create_database(name), autocommit=True) as connection:
                self._rights[server.address] = connection.execute(RIGHTS).fetchone()
        yield server.database_dsn(name)
        if not server.running():
            server.start()
        if emptied(server.database_dsn(name), self._rights[server.address]):
            spare.append(name)
        else:
            server.drop_database(name)


def emptied(dsn: str, rights: object) -> bool:
    """Empty a database; False where a test has changed what cannot be put back so.  ``rights``: of a new database."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=60) as connection:
            if connection.info.server_version < EMPTY_FROM or connection.execute(CHANGED).fetchone() != (False,):
                return False
            if connection.execute(RIGHTS).fetchone() != rights:
                return False
            connection.execute(END_OTHERS)
            schemas = [name for (name,) in connection.execute(SCHEMAS)]
            connection.execute("".join(f"DROP SCHEMA {name} CASCADE; " for name in schemas) + PUBLIC)
            return True
    except psycopg.Error:
        return False
