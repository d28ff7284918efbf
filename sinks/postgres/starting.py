"""Create what is missing, and refuse before a start what can never work."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Query
from epochal.sinks.clocks import compared
from epochal.sinks.epochs import Retention
from epochal.sinks.postgres import adopting, advice, checking, creating, ddl, judging, rights, staging
from epochal.sinks.postgres.advice import Script
from epochal.sinks.postgres.core import Core
from epochal.sinks.postgres.inspection import PostgresInspection
from epochal.sinks.postgres.ways import ways_of
from epochal.sinks.protocol import Schema
from epochal.sinks.questions import Answer, NotAsked, Question, Told, require
from epochal.sinks.spark.executors import check_executors, running_session

if TYPE_CHECKING:
    from epochal.sinks.postgres.ddl import PgColumn
    from epochal.sinks.postgres.session import Session

CONNECTION = "connection"
"""The question that all other questions to the server need."""

log = logging.getLogger("epochal.sinks.postgres")


def all_sql(sink: Core, app: str, schema: Schema, *, adopt: bool = False) -> str:
    """Return the SQL that ``create`` runs in an empty database, or with ``adopt`` if only the plain table exists."""
    where, columns = (sink.checked(app), sink.name, sink.target), sink.columns(schema)
    if sink.staging is not None:
        steps = staging.all_steps(*where, sink.staging, columns, adopt)
    else:
        steps = ddl.all_steps(*where, columns, adopt)
    return "".join(f"{sql};\n" for sql in ("BEGIN", *(step.sql for step in steps), "COMMIT"))


def create(sink: Core, query: Query, schema: Schema) -> Sequence[str]:
    """Make what is missing, in one transaction.

    ``Append()`` adopts a plain table: it becomes ``<table>__rows``, and a view with its rows takes its name.
    """
    where, columns = (sink.checked(query.app), sink.name, sink.target), sink.columns(schema)
    with sink.connector.session() as session, session.transaction(bulk=True), sink.naming_blockers(session):
        added = sink.evolution(query.app, columns).run(session) if sink.evolves else []
        if sink.staging is not None:
            return [*added, *staging.create(session, *where, sink.staging, columns)]
        return [*added, *creating.create(session, *where, columns)]


def check(sink: Core, query: Query, schema: Schema) -> None:
    """Refuse what can never work: server, table, types, constraints, key, view, rights, executors."""
    require(questions(sink, query, schema), lambda caution: log.warning("sink %s: %s", sink.name, caution))


def questions(sink: Core, query: Query, schema: Schema | None) -> Iterator[Question]:
    """See ``epochal.sinks.questions.Questioned``."""
    where, columns = (sink.checked(query.app), sink.name, sink.target), _columns(sink, query.app, schema)
    yield Question("columns of the rows", partial(_check_rows, sink, schema))
    yield Question(CONNECTION, partial(_connected, sink))
    with contextlib.closing(Rehearsal(sink)) as server:
        yield Question("clock", server.on(_clock), (CONNECTION,))
        if sink.staging is not None:
            asked = staging.questions(server.on, *where, sink.staging, columns)
        else:
            asked = chain(checking.questions(server.on, *where, columns), [_readers_asked(server, sink)])
        for question in asked:
            yield replace(question, needs=(CONNECTION, *question.needs))
        converts = server.on(lambda session: _try_converting(sink, session, columns(session)))
        yield Question("values that the server converts", converts, (CONNECTION, f"columns of {sink.target.own}"))
        keeps = server.on(partial(_retention, sink))
        yield Question("right to delete from the audit", keeps, (CONNECTION, checking.OURS))
    yield Question("executors", partial(_check_executors, sink), (CONNECTION,))


class Rehearsal:
    """One session and one transaction for the questions to the server, which writes nothing.

    After an error, the next question gets new ones.
    """

    def __init__(self, sink: Core) -> None:
        self._sink = sink
        self._opened: tuple[Session, contextlib.ExitStack] | None = None

    def on(self, ask: Callable[[Session], Told]) -> Callable[[], Told]:
        """Return a question that is asked in this session."""
        return partial(self._ask, ask)

    def _ask(self, ask: Callable[[Session], Told]) -> Told:
        session, stack = self._opened or self._open()
        try:
            return ask(session)
        except NotAsked:
            raise
        except BaseException as error:
            self._opened = None
            stack.__exit__(type(error), error, error.__traceback__)  # may raise an error that tells more
            raise

    def _open(self) -> tuple[Session, contextlib.ExitStack]:
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(self._sink.connector.session())
            stack.enter_context(session.rehearsal())
            stack.enter_context(self._sink.naming_blockers(session))
            self._opened = session, stack.pop_all()
        return self._opened

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()


def _check_rows(sink: Core, schema: Schema) -> str:
    """Refuse types that Postgres cannot hold."""
    from epochal.sinks.postgres.rows import check_times

    schema = sink.projection.known(schema)
    columns = sink.columns(schema)
    if (spark := running_session()) is not None:
        check_times(sink.projection.check(schema), spark, sink.name)
    return ", ".join(f"{column.name} {column.types[0]}" for column in columns)


def _connected(sink: Core) -> str:
    with sink.connector.session() as session:
        return session.about()


def _clock(session: Session) -> Answer:
    sql = "SELECT extract(epoch FROM clock_timestamp())::float8"
    return compared("the server's clock", lambda: float(session.run(sql)[0][0]))


def _columns(sink: Core, app: str, schema: Schema | None) -> checking.Columns:
    """Return a function that gives the columns of the rows which the tables must have already."""

    def columns(session: Session) -> Sequence[PgColumn]:
        wanted = sink.columns(sink.projection.known(schema))
        return sink.evolution(app, wanted).known(session) if sink.evolves else wanted

    return columns


def _try_converting(sink: Core, session: Session, columns: Sequence[PgColumn]) -> str:
    ways = ways_of(session, sink.name, sink.target, sink.staging, columns)
    judging.try_out(session, sink.name, ways, sorts=sink.bad_rows is not None)
    return ", ".join(f"{way.name} {way.kind.shown}" for way in ways if way.is_converted)


def _readers_asked(server: Rehearsal, sink: Core) -> Question:
    return Question("who else uses the rows", server.on(partial(_readers, sink)), (f"table {sink.target.rows}",))


def _readers(sink: Core, session: Session) -> Answer:
    """Return a caution if something in the database uses the rows table itself, other than the reader view.

    It sees prepared rows.  Somebody may have made it on purpose, so the query is not refused.
    """
    view = f"view {session.run('SELECT to_regclass($1)::text', sink.target.reader)[0][0]}"
    found = [what for what in adopting.bound(session, sink.target.rows) if what != view]
    used = (
        f"the {', the '.join(found)} uses {sink.target.rows} itself, and so sees prepared rows; {sink.target.reader} is"
        " for readers"
    )
    return Answer(cautions=[used] if found else [])


def _retention(sink: Core, session: Session) -> Answer:
    """Return a caution if this role may not delete old rows of the audit.

    An older Epochal did not ask for this right.  So the query is not refused, and its audit keeps all epochs.
    """
    grant = rights.lacks_retention(session)
    if grant is None or sink.retention == Retention(None, None):
        return Answer(f"the audit keeps keep_epochs={sink.retention.epochs}, keep_days={sink.retention.days}")
    lacking = f"the audit in epochal.epochs is not bounded, as this role may not delete there: {grant}"
    return Answer(cautions=[lacking])


def _check_executors(sink: Core) -> Told:
    from epochal.sinks.postgres.write import reached

    with sink.connector.session() as session:
        address = session.address()
    reach = partial(reached, address, sink.name, sink.limits)
    return check_executors(sink.name, ["psycopg", "numpy"], "'epochal[postgres]' pyarrow", reach)


def script(sink: Core, app: str, schema: Schema | None = None, filters: Sequence[str] = ()) -> Script:
    """Return SQL for a DBA.  Without ``schema`` the columns are read from the existing table."""
    if schema is not None:
        columns = sink.columns(schema)
    else:
        with sink.connector.session() as session:
            columns = advice.existing_columns(session, sink.name, sink.target)
    return advice.script(sink.checked(app), sink.name, sink.target, sink.staging, columns, filters)


def inspection(sink: Core, query: Query) -> PostgresInspection:
    """See ``epochal.sinks.inspection``."""
    app = sink.checked(query.app)
    given = {**sink.projection.to_json(), "bad_rows": sink.bad_rows is not None}
    return PostgresInspection(
        sink.connector,
        sink.target,
        sink.conditions,
        app,
        given,
        stages=sink.staging is not None,
        row=lambda session, lock: sink.state(session, app, lock=lock),
    )
