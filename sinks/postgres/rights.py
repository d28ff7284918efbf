"""The rights that a role needs for a sink: which they are, and the errors for those that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres.ddl import Target, quoted
from epochal.sinks.questions import Question, Told

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session


SINKS = "epochal.sinks"
ON_SINKS = f"rights on {SINKS}"
"""The question about the table that names each sink's own table.  It is asked first."""
_RIGHTS = (
    (SINKS, "SELECT, UPDATE"),
    ("epochal.epochs", "SELECT, INSERT, DELETE"),
    ("epochal.attempts", "SELECT, INSERT, DELETE"),
)
"""The rights on Epochal's own tables that a role needs to run the query."""
_MAY_LACK = ("epochal.epochs", "DELETE")
"""A right that the first release did not ask for.  A role without it runs the query, but its audit keeps all epochs."""


def needed(target: Target, *more: tuple[str, str]) -> str:
    """Return one line with the SQL for a role that only runs the query.

    ``more``: further tables and the rights on them.
    """
    return f"a role that only writes needs: {'; '.join(f'GRANT {grant} TO <role>' for grant in grants(target, *more))}"


def grants(target: Target, *more: tuple[str, str]) -> list[str]:
    """Return the rights of :func:`needed`, each as the text between GRANT and TO."""
    schemas = dict.fromkeys(["epochal", *([quoted(target.schema)] if target.schema is not None else [])])
    return [
        *(f"USAGE ON SCHEMA {schema}" for schema in schemas),
        *(f"{rights} ON {table}" for table, rights in of_a_query(target, *more)),
        "USAGE ON SEQUENCE epochal.attempt",
    ]


def of_a_query(target: Target, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the tables that a running query uses, and the rights on each."""
    return [*_RIGHTS, (target.rows, "SELECT, INSERT, DELETE"), *more]


On = Callable[[Callable[["Session"], Told]], Callable[[], Told]]
"""Makes a function that needs a session one that opens it: each question is asked on its own, in its own rehearsal."""


def question_of_sinks(on: On, sink: str, needs: tuple[str, ...]) -> Question:
    """Return the question :data:`ON_SINKS`."""
    rights = dict(_RIGHTS)[SINKS]
    return Question(ON_SINKS, on(partial(_refuse_table, sink=sink, table=SINKS, rights=rights)), needs)


def questions(
    on: On,
    sink: str,
    target: Target,
    *more: tuple[str, str],
    needs: tuple[str, ...],
) -> Iterator[Question]:
    """Yield a question for each object but ``epochal.sinks``: whether the role has the rights on it to run the query.

    ``more``: further tables and the rights on them.
    """
    for table, rights in of_a_query(target, *more):
        if table == SINKS:
            continue
        yield Question(f"rights on {table}", on(partial(_refuse_table, sink=sink, table=table, rights=rights)), needs)
    yield Question("right on epochal.attempt", on(partial(_refuse_sequence, sink=sink)), needs)
    yield Question("right on pg_control_system()", on(partial(_refuse_control, sink=sink)), needs)


def _refuse_table(session: Session, sink: str, table: str, rights: str) -> str:
    for right in rights.split(", "):
        if (table, right) == _MAY_LACK:
            continue
        if not session.run("SELECT has_table_privilege(to_regclass($1), $2)", table, right)[0][0]:
            raise _no_right(session, sink, f"{right} on {table}", f"GRANT {rights} ON {table}")
    return rights


def _refuse_sequence(session: Session, sink: str) -> str:
    if not session.run("SELECT has_sequence_privilege('epochal.attempt', 'USAGE')")[0][0]:
        raise _no_right(session, sink, "USAGE on epochal.attempt", "GRANT USAGE ON SEQUENCE epochal.attempt")
    return "USAGE"


def _refuse_control(session: Session, sink: str) -> str:
    if not session.run("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")[0][0]:
        identify = "EXECUTE ON FUNCTION pg_control_system()"
        raise _no_right(session, sink, identify, f"GRANT {identify}")
    return "EXECUTE"


def lacks_retention(session: Session) -> str | None:
    """Return the GRANT that this role needs to delete old epochs from the audit, or None if it has the right."""
    table, right = _MAY_LACK
    if session.run("SELECT has_table_privilege(to_regclass($1), $2)", table, right)[0][0]:
        return None
    user = str(session.run("SELECT quote_ident(current_user)")[0][0])
    return f"GRANT {right} ON {table} TO {user}"


def refuse_no_owner(session: Session, sink: str, target: Target, *, has_view: bool) -> None:
    """Refuse a role that may not rename the sink: renaming changes rows in Epochal's tables, and the reader view."""
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


def _no_right(session: Session, sink: str, right: str, grant: str) -> Misconfigured:
    user = str(session.run("SELECT quote_ident(current_user)")[0][0])
    return Misconfigured(f"the role {user} lacks {right}", sink=sink, help=f"{grant} TO {user}")
