"""A table of others is adopted: what is refused by name, what its readers keep, and that nothing else is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import Append, Plain, Upsert
from epochal.sinks.postgres.modes import Mode
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.catalogs import change, snapshot
from tests.real.sinks.postgres.support import QUERY, SCHEMA, observe, visible

TABLE = "CREATE TABLE flights (id bigint, attempt text, extra int DEFAULT 5)"
ROLES = ("p13_owner", "p13_all", "p13_some", "p13_giver", "p13_given", "p13_stranger")
TYPED = {
    "a function": (
        "CREATE FUNCTION f() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM flights; END",
        "function public.f()",
    ),
    "a procedure": (
        "CREATE PROCEDURE p() BEGIN ATOMIC DELETE FROM flights; END",
        "procedure public.p()",
    ),
    "a view": ("CREATE VIEW v AS SELECT id FROM flights", "view v"),
    "a materialized view": ("CREATE MATERIALIZED VIEW m AS SELECT id FROM flights", "materialized view m"),
    "a rule of another table": (
        "CREATE TABLE o (a int); CREATE RULE r AS ON INSERT TO o DO ALSO SELECT count(*) FROM flights",
        "rule r on public.o",
    ),
    "a policy of another table": (
        "CREATE TABLE o (a int); CREATE POLICY p ON o USING (EXISTS (SELECT FROM flights))",
        "policy p on public.o",
    ),
    "a column of the row's type": ("CREATE TABLE o (f flights)", "table column public.o.f"),
    "an array of the row's type": ("CREATE TABLE o (f flights[])", "table column public.o.f"),
    "a function of the row's type": (
        "CREATE FUNCTION f() RETURNS SETOF flights LANGUAGE sql AS 'SELECT * FROM flights'",
        "function public.f()",
    ),
    "a domain of the row's type": ("CREATE DOMAIN d AS flights", "type public.d"),
    "a default of the row's type": (
        "CREATE TABLE o (t text DEFAULT (ROW(1, 'x', 2)::flights)::text)",
        "default value for public.o.t",
    ),
}
CLAIMED = {
    "a publication": (
        "CREATE PUBLICATION p FOR TABLE flights",
        "the publication p publishes it",
        'ALTER PUBLICATION p DROP TABLE "flights"',
    ),
    "a publication of all": (
        "CREATE PUBLICATION p FOR ALL TABLES",
        "the publication p publishes it",
        "DROP PUBLICATION p",
    ),
    "a publication of a schema": (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        "the publication p publishes it",
        "DROP PUBLICATION p",
    ),
    "a subscription": (
        "CREATE SUBSCRIPTION s CONNECTION 'dbname=x' PUBLICATION x WITH (connect = false, slot_name = NONE);"
        " INSERT INTO pg_subscription_rel SELECT oid, 'flights'::regclass, 'r', NULL FROM pg_subscription",
        "the subscription s writes into it",
        "DROP SUBSCRIPTION s",
    ),
    "an extension": (
        "ALTER EXTENSION plpgsql ADD TABLE flights",
        "it belongs to the extension plpgsql",
        "ALTER EXTENSION plpgsql DROP TABLE flights",
    ),
    "a label": (
        "SET allow_system_table_mods = on; INSERT INTO pg_seclabel VALUES"
        " ('flights'::regclass, 'pg_class'::regclass, 0, 'masks', 'hidden')",
        "it has a security label of masks",
        "DELETE FROM pg_seclabel",
    ),
    "a type": (
        "DROP TABLE flights; CREATE TYPE t AS (id bigint, attempt text); CREATE TABLE flights OF t",
        "it is of the type t",
        "ALTER TABLE flights NOT OF",
    ),
    "a cascade": (
        "CREATE TABLE o (id bigint PRIMARY KEY); ALTER TABLE flights ADD CONSTRAINT c FOREIGN KEY (id) REFERENCES o"
        " ON DELETE CASCADE",
        "its foreign key c deletes or changes its rows",
        "ALTER TABLE flights DROP CONSTRAINT c",
    ),
    "a column of ours": (
        "ALTER TABLE flights ADD _epoch int DEFAULT 1",
        'its column "_epoch" has the name of a column of Epochal',
        "ALTER TABLE flights RENAME _epoch TO e",
    ),
    "a rule": ("CREATE RULE r AS ON DELETE TO flights DO INSTEAD NOTHING", "has the rule r", "DROP RULE r ON flights"),
}


CLAIM = pytest.mark.remedy("… cannot be adopted: …", "name another table=, ")
REMEDIES = {
    "a publication": pytest.mark.remedy(
        "… cannot be adopted: …",
        "ALTER PUBLICATION … DROP TABLE …, or give mode=Plain() or mode=Upsert(key=...), which leave the table as it"
        " is",
    ),
    "a column of ours": pytest.mark.remedy("… cannot be adopted: …", "rename that column, "),
    **dict.fromkeys(["a publication of all", "a publication of a schema", "a subscription", "an extension"], CLAIM),
    **dict.fromkeys(["a label", "a type", "a cascade"], CLAIM),
}


def proof(cases: dict[str, Any], *kept: str) -> list[Any]:
    """All cases, of which all but these are marked `wide`."""
    wide = [pytest.mark.wide]
    return [
        pytest.param(case, marks=[*([] if case in kept else wide), *([REMEDIES[case]] if case in REMEDIES else [])])
        for case in cases
    ]


@pytest.fixture
def roles(pg_database: str) -> Iterator[str]:
    for role in ROLES:
        observe(pg_database, f"CREATE ROLE {role} LOGIN")
    yield pg_database
    for role in ROLES:
        observe(pg_database, f"DROP OWNED BY {role} CASCADE")
    for role in ROLES:
        observe(pg_database, f"DROP ROLE {role}")


def reads(dsn: str, role: str, what: str = "*") -> bool:
    try:
        observe(dsn.replace("postgres@", f"{role}@"), f"SELECT {what} FROM flights")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


@pytest.mark.remedy(
    "… cannot be adopted: …", "drop what is bound to it, call create, and make it again: then it uses the reader view"
)
@pytest.mark.parametrize("case", proof(TYPED, "a function", "a policy of another table", "a column of the row's type"))
def test_what_is_bound_to_the_table_is_refused_and_works_when_it_is_made_again(pg_database: str, case: str) -> None:
    """P13: the server binds it to the table itself, so it would go on with the rows table."""
    made, name = TYPED[case]
    observe(pg_database, f"{TABLE}; INSERT INTO flights VALUES (1, 'old'); {made}")
    before = snapshot(pg_database)
    with pytest.raises(Misconfigured) as refused:
        support.sink(pg_database).create(QUERY, SCHEMA)
    assert refused.value.what == (
        f'"flights" cannot be adopted: the {name} is bound to it and would use the table with the prepared rows'
    )
    assert snapshot(pg_database) == before
    kind, _, rest = name.partition(" ")
    drop = {
        "table": "TABLE o",
        "default": "TABLE o",
        "policy": "TABLE o",
        "rule": "TABLE o",
        "materialized": "MATERIALIZED VIEW m",
        "type": "DOMAIN d",
    }.get(kind, f"{kind} {rest}")
    observe(pg_database, f"DROP {drop}")
    support.sink(pg_database).create(QUERY, SCHEMA)
    observe(pg_database, made)
    support.sink(pg_database).check(QUERY, SCHEMA)


@pytest.mark.parametrize("case", proof(CLAIMED, "a publication", "a subscription", "a rule"))
def test_what_a_view_cannot_keep_is_refused_by_name_with_what_helps(pg_database: str, case: str) -> None:
    """P13: publications, subscriptions, extensions, labels, types, cascades."""
    made, why, cure = CLAIMED[case]
    observe(pg_database, f"{TABLE}; {made}")
    before = snapshot(pg_database)
    with pytest.raises(Misconfigured) as refused:
        support.sink(pg_database).create(QUERY, SCHEMA)
    assert why in refused.value.what
    assert "mode=Plain() or mode=Upsert(key=...), which" in refused.value.help
    if cure.startswith("ALTER PUBLICATION"):
        assert refused.value.help.startswith(cure)
    assert snapshot(pg_database) == before
    observe(pg_database, cure)
    support.sink(pg_database).create(QUERY, SCHEMA)


@pytest.mark.parametrize("case", proof(CLAIMED, "a publication", "a subscription"))
@pytest.mark.parametrize("given", [{"mode": Plain()}, {"table": "others"}], ids=["plain", "another table"])
def test_what_a_view_cannot_keep_is_left_alone(pg_database: str, case: str, given: dict[str, Any]) -> None:
    """P13: the other ways out that the help names."""
    observe(pg_database, f"{TABLE}; {CLAIMED[case][0]}")
    with pytest.raises(Misconfigured):
        support.sink(pg_database).create(QUERY, SCHEMA)
    sink = support.sink(pg_database, **given)
    sink.create(QUERY, SCHEMA)
    sink.check(QUERY, SCHEMA)
    observe(pg_database, CLAIMED[case][2])  # no database with a subscription can be dropped


@pytest.mark.remedy("… cannot be adopted: …", "GRANT … TO …, or call create as …")
def test_a_role_that_does_not_own_the_table_is_told_whose_it_is(roles: str) -> None:
    """P13: before it asks for the lock of a table that is not its own."""
    support.sink(roles).create(QUERY, SCHEMA)  # the schema epochal, with rights for all
    observe(roles, "CREATE TABLE theirs (id bigint, attempt text); GRANT ALL ON SCHEMA public TO p13_all")
    observe(roles, "ALTER TABLE theirs OWNER TO p13_owner; GRANT ALL ON SCHEMA public TO p13_owner")
    observe(roles, "GRANT ALL ON SCHEMA epochal TO p13_all; GRANT ALL ON ALL TABLES IN SCHEMA epochal TO p13_all")
    sink = support.sink(roles.replace("postgres@", "p13_all@"), table="theirs", name="theirs")
    with pytest.raises(Misconfigured, match=r"it belongs to p13_owner, and the role p13_all may not rename") as refused:
        sink.create(QUERY, SCHEMA)
    observe(roles, refused.value.help.partition(", or ")[0])
    sink.create(QUERY, SCHEMA)


def test_readers_keep_their_rights_and_nobody_gets_more(roles: str) -> None:
    """P13: whole tables, columns, grant options, who granted what, the owner; default privileges add no reader."""
    observe(
        roles,
        f"{TABLE}; INSERT INTO flights VALUES (1, 'old'); ALTER TABLE flights OWNER TO p13_owner;"
        " GRANT CREATE ON SCHEMA public TO p13_owner;"
        " GRANT SELECT, INSERT, UPDATE, DELETE ON flights TO p13_all; GRANT SELECT (id) ON flights TO p13_some;"
        " GRANT SELECT (attempt), SELECT ON flights TO p13_giver WITH GRANT OPTION;"
        " SET ROLE p13_giver; GRANT SELECT ON flights TO p13_given; GRANT SELECT (id) ON flights TO PUBLIC; RESET ROLE;"
        " REVOKE SELECT (id) ON flights FROM PUBLIC;"
        " ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO p13_stranger",
    )
    held = rights_on(roles, "flights")
    done = support.sink(roles).create(QUERY, SCHEMA)
    observe(roles, "ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM p13_stranger")
    assert rights_on(roles, "flights") == held
    assert 'granted SELECT ("id") on "flights" to p13_some' in done
    assert 'granted SELECT on "flights" to p13_giver WITH GRANT OPTION' in done
    assert 'gave "flights" to p13_owner, the owner of the table' in done
    assert {role: reads(roles, role) for role in ROLES} == {
        "p13_owner": True,
        "p13_all": True,
        "p13_some": False,
        "p13_giver": True,
        "p13_given": True,
        "p13_stranger": False,
    }
    assert reads(roles, "p13_some", "id")
    observe(roles.replace("postgres@", "p13_giver@"), "GRANT SELECT ON flights TO p13_stranger")
    assert reads(roles, "p13_stranger")


def rights_on(dsn: str, name: str) -> list[tuple[str, ...]]:
    """Owner, and every right to read: of which column, by whom, to whom, with which option."""
    return observe(
        dsn,
        "SELECT pg_get_userbyid(owner), coalesce(attname, ''), pg_get_userbyid(grantor), pg_get_userbyid(grantee),"
        f" is_grantable FROM (SELECT NULL::name, relacl, relowner FROM pg_class WHERE oid = '{name}'::regclass"
        " UNION ALL SELECT attname, attacl, relowner FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
        f" WHERE attrelid = '{name}'::regclass AND attnum > 0) held (attname, acl, owner), aclexplode(acl)"
        " WHERE privilege_type = 'SELECT' ORDER BY 1, 2, 3, 4",
    )


def test_a_role_that_may_not_give_the_view_away_lets_the_owner_read(roles: str) -> None:
    """P13: and says so; who granted what is then the role itself."""
    observe(
        roles,
        f"{TABLE}; ALTER TABLE flights OWNER TO p13_owner; GRANT p13_owner TO p13_all; GRANT CREATE ON SCHEMA public TO"
        " p13_all; GRANT SELECT ON flights TO p13_giver WITH GRANT OPTION; SET ROLE p13_giver;"
        " GRANT SELECT ON flights TO p13_given; RESET ROLE; REVOKE CREATE ON SCHEMA public FROM PUBLIC;"
        f" GRANT CREATE ON DATABASE {roles.rpartition('/')[2]} TO p13_all",
    )
    done = support.sink(roles.replace("postgres@", "p13_all@")).create(QUERY, SCHEMA)
    assert any(line.startswith('left "flights" to p13_all, who may not give it to p13_owner') for line in done)
    assert {role: reads(roles, role) for role in ROLES} == {
        "p13_owner": True,
        "p13_all": True,
        "p13_some": False,
        "p13_giver": True,
        "p13_given": True,
        "p13_stranger": False,
    }


OTHERS = """
CREATE TABLE ports (id bigint PRIMARY KEY, name text);
CREATE TABLE flights (
    key bigserial, id bigint, attempt text NOT NULL CHECK (attempt <> ''), port bigint DEFAULT 1 REFERENCES ports,
    double bigint GENERATED ALWAYS AS (id * 2) STORED, extra int GENERATED BY DEFAULT AS IDENTITY, old int
) WITH (fillfactor = 90);
INSERT INTO ports VALUES (1, 'x');
INSERT INTO flights (id, attempt) VALUES (1, 'old');
ALTER TABLE flights DROP COLUMN old;
ALTER TABLE flights ALTER COLUMN attempt SET STATISTICS 500;
CREATE INDEX by_id ON flights (id) INCLUDE (attempt);
CREATE STATISTICS s ON id, port FROM flights;
COMMENT ON TABLE flights IS 'all that''s flying';
COMMENT ON COLUMN flights.id IS 'the \\id';
CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER asleep BEFORE INSERT ON flights EXECUTE FUNCTION t();
ALTER TABLE flights DISABLE TRIGGER asleep;
CREATE POLICY asleep ON flights USING (id > 0);
CREATE VIEW ports_of AS SELECT name FROM ports;
CREATE FUNCTION by_text() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM flights); END';
CREATE PUBLICATION others FOR TABLE ports;
GRANT SELECT ON flights TO p13_all;
GRANT SELECT (id), INSERT (id) ON flights TO p13_some;
GRANT ALL ON flights, ports TO p13_giver WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO p13_stranger;
ALTER ROLE p13_all SET search_path = public;
"""


@pytest.mark.parametrize("mode", [Append(), Plain(), Upsert(key="id")], ids=["append", "plain", "upsert"])
def test_nothing_else_in_the_database_is_changed(roles: str, mode: Mode) -> None:
    """P13: every row of every catalogue, before and after; each difference is ours or is judged here."""
    observe(roles, OTHERS)
    if mode != Append():
        observe(roles, "ALTER TABLE flights ADD UNIQUE (id)")
    before = snapshot(roles)
    support.sink(roles, mode=mode).create(QUERY, SCHEMA)
    told = change(roles, before, snapshot(roles))
    assert told.gone == []
    if mode != Append():
        assert told.changed == told.added == []
        assert all("flights__staged" in what for what in told.made), told.made
        return
    assert told.changed == [
        "pg_class of table public.flights__rows: relname flights -> flights__rows, relnatts 7 -> 9,"
        " relreplident d -> f",
        "pg_type of type public.flights__rows: typname flights -> flights__rows",
        "pg_type of type public.flights__rows[]: typname _flights -> _flights__rows",
    ]
    assert told.added == ["pg_attribute of flights__rows._attempt", "pg_attribute of flights__rows._epoch"]
    assert [what for what in told.made if "_not_null on" not in what] == [
        "index public.flights__rows__epoch_idx",
        'rule "_RETURN" on public.flights',
        "type public.flights",
        "type public.flights[]",
        "view public.flights",
    ]
    assert observe(
        roles,
        "SELECT obj_description('flights'::regclass), col_description('flights'::regclass, 2),"
        " (SELECT count(*) FROM flights), by_text()",
    ) == [("all that's flying", "the \\id", 1, 1)]
    assert visible(roles) == [1]


def test_a_view_that_is_made_again_has_the_readers_of_the_rows(roles: str) -> None:
    """P13: also for columns; what others may do with views by default stays."""
    support.sink(roles).create(QUERY, SCHEMA)
    observe(
        roles,
        "GRANT SELECT (id) ON flights__rows TO p13_some; DROP VIEW flights;"
        " ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO p13_all",
    )
    support.sink(roles).create(QUERY, SCHEMA)
    observe(roles, "ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM p13_all")
    assert reads(roles, "p13_some", "id")
    assert reads(roles, "p13_all")
    assert not reads(roles, "p13_some")


@pytest.mark.parametrize("made", ["SQL for a DBA", "later"])
def test_check_warns_of_what_uses_the_rows_table_itself(
    pg_database: str, caplog: pytest.LogCaptureFixture, made: str
) -> None:
    """P13: the SQL for a DBA adopts without looking; and a person may make such a thing at any time."""
    sink = support.sink(pg_database)
    if made == "later":
        sink.create(QUERY, SCHEMA)
        observe(pg_database, TYPED["a function"][0].replace("flights", "flights__rows"))
    else:
        observe(pg_database, f"CREATE TABLE flights (id bigint, attempt text); {TYPED['a function'][0]}")
        observe(pg_database, sink.ddl("flights", SCHEMA, adopt=True))
    sink.check(QUERY, SCHEMA)
    assert caplog.messages == [
        'sink out: the function public.f() uses "flights__rows" itself, and so sees prepared rows; "flights" is for'
        " readers"
    ]
    observe(pg_database, "DROP FUNCTION f()")
    caplog.clear()
    sink.check(QUERY, SCHEMA)
    assert caplog.messages == []
