"""A role that lacks one right is told which at the start, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import PostgresSink
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import QUERY, SCHEMA, observe

ALL = (
    "GRANT USAGE ON SCHEMA epochal",
    "GRANT SELECT, UPDATE ON epochal.sinks",
    "GRANT SELECT, INSERT ON epochal.epochs",
    "GRANT SELECT, INSERT, DELETE ON epochal.attempts",
    "GRANT SELECT, INSERT, DELETE ON flights__rows",
    "GRANT USAGE ON SEQUENCE epochal.attempt",
)
ONE_BY_ONE = [
    (right, table)
    for table, rights in (
        ("epochal.sinks", ("SELECT", "UPDATE")),
        ("epochal.epochs", ("SELECT", "INSERT")),
        ("epochal.attempts", ("SELECT", "INSERT", "DELETE")),
        ('"flights__rows"', ("SELECT", "INSERT", "DELETE")),
    )
    for right in rights
]


@pytest.fixture
def role(pg_database: str) -> Iterator[str]:
    """A role that may do all that a sink does, and no more."""
    support.sink(pg_database).create(QUERY, SCHEMA)
    name = f"writer_{pg_database.rpartition('_')[2]}"
    observe(pg_database, f"CREATE ROLE {name} LOGIN")
    observe(pg_database, "; ".join(f"{grant} TO {name}" for grant in ALL))
    yield name
    observe(pg_database, f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def sink(pg_database: str, role: str) -> Iterator[PostgresSink]:
    made = PostgresSink(pg_database.replace("postgres@", f"{role}@"), table="flights", name="out")
    made.check(QUERY, SCHEMA)
    yield made
    made.close()


@pytest.mark.parametrize(("right", "table"), ONE_BY_ONE)
def test_a_right_on_a_table(sink: PostgresSink, pg_database: str, role: str, right: str, table: str) -> None:
    observe(pg_database, f"REVOKE {right} ON {table} FROM {role}")
    with pytest.raises(Misconfigured) as refused:
        sink.check(QUERY, SCHEMA)
    assert refused.value.what == f"the role {role} lacks {right} on {table}"
    observe(pg_database, refused.value.help)
    sink.check(QUERY, SCHEMA)


@pytest.mark.parametrize("right", ["USAGE ON SEQUENCE epochal.attempt", "EXECUTE ON FUNCTION pg_control_system()"])
@pytest.mark.remedy("the role … lacks …", "… TO …")
def test_a_right_on_something_else(sink: PostgresSink, pg_database: str, role: str, right: str) -> None:
    observe(pg_database, f"REVOKE {right} FROM public, {role}")
    with pytest.raises(Misconfigured, match=f"the role {role} lacks") as refused:
        sink.check(QUERY, SCHEMA)
    assert refused.value.help == f"GRANT {right} TO {role}"
    observe(pg_database, refused.value.help)
    sink.check(QUERY, SCHEMA)


def test_the_size_of_a_table_is_asked_by_who_may(spark: SparkSession, pg_database: str, role: str) -> None:
    """It saves time, and is no right that a sink needs."""
    sink = PostgresSink(pg_database.replace("postgres@", f"{role}@"), table="flights", name="out")
    observe(
        pg_database,
        "REVOKE EXECUTE ON FUNCTION pg_relation_size(regclass), pg_relation_size(regclass, text) FROM public",
    )
    sink.look(QUERY)
    sink.fence(QUERY, support.ONE)
    vote = sink.prepare(support.epoch(), support.rows(spark, [1, 2]), support.ONE)
    sink.commit(vote, support.ONE)
    assert support.visible(pg_database) == [1, 2]
    sink.close()


@pytest.mark.remedy("… refused: …", "grant the right, or change the rows or the table, as the server's message says")
def test_a_role_that_may_not_even_see_the_schema(sink: PostgresSink, pg_database: str, role: str) -> None:
    observe(pg_database, f"REVOKE USAGE ON SCHEMA epochal FROM {role}")
    with pytest.raises(Misconfigured, match="permission denied for schema epochal"):
        sink.check(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="permission denied for schema epochal"):
        sink.look(QUERY)
    observe(pg_database, f"GRANT USAGE ON SCHEMA epochal TO {role}")
    sink.check(QUERY, SCHEMA)


@pytest.mark.remedy(
    "the reader view … names the sink, and belongs to …", "connect as …, or as a member of it, to rename the sink"
)
def test_a_rename_needs_rights_on_all_that_names_the_sink(sink: PostgresSink, pg_database: str, role: str) -> None:
    """The tables of Epochal, one after the other, then the reader view, which only its owner replaces."""
    observe(pg_database, f"REVOKE UPDATE ON epochal.sinks FROM {role}")
    _, there = sink.renamed("other")
    for table in ("sinks", "epochs", "attempts"):
        with pytest.raises(Misconfigured) as refused:
            there.check_mark(QUERY)
        assert refused.value.what == f"the role {role} lacks UPDATE on epochal.{table}"
        observe(pg_database, refused.value.help)
    with pytest.raises(Misconfigured, match="names the sink, and belongs to postgres"):
        there.check_mark(QUERY)
    observe(pg_database, f"GRANT postgres TO {role}")
    there.check_mark(QUERY)
    observe(pg_database, f"REVOKE postgres FROM {role}; ALTER VIEW flights OWNER TO {role}")
    there.check_mark(QUERY)
