"""The verbs, over the one row in ``epochal.sinks`` that everything turns on.

Whoever changes what readers see, or may come to see, holds that row: fence, commit and abort
``FOR UPDATE``, a task's last step ``FOR SHARE``.  What it says under the lock is the truth::

    fence, commit, abort    BEGIN, row FOR UPDATE, conditions, write, COMMIT
    a task of prepare       BEGIN, COPY, register, row FOR SHARE, conditions, COMMIT
    a trial of prepare      BEGIN, row FOR SHARE, conditions, what commit would write, ROLLBACK
    a reader                rows whose position is not above ``published``; where rows are staged, the table
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from epochal.coordinator.model.epoch import (
    UNKNOWN_DECISION,
    Actor,
    Committable,
    Digest,
    Epoch,
    Json,
    Marker,
    Position,
    Query,
    SinkState,
)
from epochal.coordinator.model.errors import (
    EpochalError,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import Point, hit
from epochal.sinks.conditions import Conditions, check_above_zero, check_name, looked, marker_of, refusing
from epochal.sinks.epochs import KEEP_EPOCHS, Epochs, Retention, Wanted
from epochal.sinks.postgres import advice, audit, checking, creating, ddl, modes, rights, staging
from epochal.sinks.postgres.address import Address, Dsn, Limits, ServerRefused
from epochal.sinks.postgres.advice import Script
from epochal.sinks.postgres.blockers import Row, ending_blockers
from epochal.sinks.postgres.client import Connector
from epochal.sinks.postgres.evolution import Evolution
from epochal.sinks.postgres.inspection import PostgresInspection
from epochal.sinks.postgres.modes import Append, Mode, Staging
from epochal.sinks.postgres.publish import Publish, Staged
from epochal.sinks.protocol import CommitOutcome, Rows, Schema, Sink
from epochal.sinks.rows import formats, rejects
from epochal.sinks.rows.digest import watched
from epochal.sinks.rows.projection import Projection, settings_of
from epochal.sinks.spark.executors import check_executors, lacks_epochal

if TYPE_CHECKING:
    from epochal.sinks.postgres.ddl import PgColumn
    from epochal.sinks.postgres.session import Session
    from epochal.sinks.postgres.write import Task

PAYLOAD_VERSION = 1
"""Of what a vote holds."""
FILTERS = 100
"""Of how many attempts the rows are counted by filters."""
SPARE_PAGES = 256
"""So many pages before the end that a table had: what fills its last ones up, or was made ready by one who had more."""

log = logging.getLogger("epochal.sinks.postgres")


@dataclass(frozen=True)
class _State:
    """The sink's row."""

    identity: str
    fence: Actor | None
    published: Position
    decision: int | None
    may_forget: bool = False  # whether this role may delete from the audit

    @property
    def marker(self) -> Marker | None:
        """Where readers stand, whatever was done to the decision by hand: then it is nobody's."""
        if self.published == 0 and self.decision is None:
            return None
        return Marker(self.published, self.decision if self.decision is not None else UNKNOWN_DECISION)


class PostgresSink:
    """Writes every epoch to a table, exactly once.

    ``dsn``: a libpq connection string or URI, or a function that returns one (it runs on the driver).  Parts that it
    leaves out come from the driver's environment, service file and password file; tasks receive what was found there.
    ``table``: ``[schema.]name``.
    ``mode``: ``Append()``, ``Plain()`` or ``Upsert(key=...)`` of ``epochal.sinks.postgres``: how an epoch becomes
    visible, and to whom.
    ``view``: the name that readers use with ``Append()``, whose rows lie in ``<table>__rows``; by default the table's.
    ``name``: the sink's stable name, by default ``postgres-<table>``.
    ``select`` and ``where``: the columns and rows that the sink gets (``epochal.sinks.rows.projection``); the key and
    other columns that ``mode`` names must be among them.
    ``bad_rows``: the sink that gets rows with values that Postgres cannot hold; without it such rows refuse the epoch
    (``epochal.sinks.rows.rejects``).
    ``schema_evolution``: ``create``, or the first epoch that has them, adds columns that are new in the query; without
    it such columns are refused.
    ``connections``: how many tasks write at once, each on its own connection.
    ``connect_timeout``: seconds for opening a connection.
    ``lock_timeout``: seconds to wait for the sink's row while another transaction holds it.
    ``answer_timeout``: seconds for a statement that touches a few rows, COMMIT included.
    ``bulk_timeout``: seconds for a statement whose time grows with the epoch (writing, counting, publishing, deleting).
    ``keep_epochs``: how many epochs the audit in ``epochal.epochs`` keeps; rows of the table itself are never touched.
    ``keep_days``: how many days the audit keeps an epoch; by default its age does not matter
    (``epochal.sinks.epochs.Retention``).
    """

    def __init__(
        self,
        dsn: Dsn,
        *,
        table: str,
        mode: Mode = Append(),  # noqa: B008  # frozen
        name: str | None = None,
        view: str | None = None,
        select: Sequence[str] | None = None,
        where: str | None = None,
        bad_rows: Sink | Literal["fail"] = "fail",
        schema_evolution: bool = False,
        connections: int = 4,
        connect_timeout: float = 10.0,
        lock_timeout: float = 15.0,
        answer_timeout: float = 30.0,
        bulk_timeout: float = 300.0,
        keep_epochs: int | None = KEEP_EPOCHS,
        keep_days: float | None = None,
    ) -> None:
        self._made_with = {what: value for what, value in locals().items() if what != "self"}
        self._also: str | None = None  # the other name, of a sink that is renamed
        self._name = "postgres-" + re.sub(r"[^A-Za-z0-9._-]", "_", table) if name is None else name
        check_name("sink name", self._name)
        modes.check(mode, view, self._name)
        self._staging: Staging | None = None if isinstance(mode, Append) else mode
        self._target = ddl.Target.of(table, view, self._name, stages=self._staging is not None)
        self._projection = Projection.of(self._name, select, where)
        self.bad_rows = rejects.check_bad_rows(bad_rows, self._name)
        self._evolves = schema_evolution
        self.leaves_rows_out = where is not None or self.bad_rows is not None  # a FilteringSink
        check_above_zero(
            self._name,
            connections=connections,
            connect_timeout=connect_timeout,
            lock_timeout=lock_timeout,
            answer_timeout=answer_timeout,
            bulk_timeout=bulk_timeout,
        )
        self._retention = Retention.of(keep_epochs, keep_days, self._name)
        self._connections = connections
        self._limits = Limits(connect_timeout, lock_timeout, answer_timeout, bulk_timeout)
        self._connector = Connector(dsn, self._name, self._limits)
        self._conditions = Conditions(self._name, f"table {self._target.own}, history in epochal.epochs")
        self._app: str | None = None
        self._end: tuple[Position, int] | None = None  # of the table in pages, before any row of the position

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"PostgresSink(table={self._target.table!r}, name={self._name!r})"

    # --- before the query ----------------------------------------------------------------------

    def ddl(self, app: str, schema: Schema, *, adopt: bool = False) -> str:
        """The SQL that ``create`` runs in a database that has nothing; ``adopt``: but the plain table."""
        where, columns = (self._checked(app), self._name, self._target), self._columns(schema)
        if self._staging is not None:
            steps = staging.all_steps(*where, self._staging, columns, adopt)
        else:
            steps = ddl.all_steps(*where, columns, adopt)
        return "".join(f"{sql};\n" for sql in ("BEGIN", *(step.sql for step in steps), "COMMIT"))

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        """Make what is missing, in one transaction.

        ``Append()`` adopts a plain table: it becomes ``<table>__rows``, and a view with its rows takes its name.
        """
        where, columns = (self._checked(query.app), self._name, self._target), self._columns(schema)
        with self._connector.session() as session, session.transaction(bulk=True):
            added = self._evolution(query.app, columns).run(session) if self._evolves else []
            if self._staging is not None:
                return [*added, *staging.create(session, *where, self._staging, columns)]
            return [*added, *creating.create(session, *where, columns)]

    def check(self, query: Query, schema: Schema) -> None:
        """Refuse what can never work: server, table, types, constraints, key, view, rights, executors."""
        from epochal.sinks.postgres.write import reached

        where, columns = (self._checked(query.app), self._name, self._target), self._columns(schema)
        with self._connector.session() as session:
            address = session.address()
            if self._evolves:
                columns = self._evolution(query.app, columns).known(session)
            if self._staging is not None:
                staging.check(session, *where, self._staging, columns)
            else:
                checking.check(session, *where, columns)
            self._warn_of_retention(session)
        reach = partial(reached, address, self._name, self._limits)
        check_executors(self._name, ["psycopg", "numpy"], "'epochal[postgres]' pyarrow", reach)

    def _warn_of_retention(self, session: Session) -> None:
        """Not refused: a role that was granted what an older Epochal asked for goes on, and forgets nothing."""
        grant = rights.lacks_retention(session)
        if grant is not None and self._retention != Retention(None, None):
            log.warning(
                "sink %s: the audit in epochal.epochs is not bounded, as this role may not delete there: %s",
                self._name,
                grant,
            )

    def _columns(self, schema: Schema) -> list[PgColumn]:
        from epochal.sinks.postgres.rows import columns

        return columns(self._projection.check(schema), self._name)

    def _evolution(self, app: str, columns: Sequence[PgColumn]) -> Evolution:
        return Evolution(app, self._name, self._target, self._staging, columns)

    def script(self, app: str, schema: Schema | None = None, filters: Sequence[str] = ()) -> Script:
        """SQL for a DBA; without ``schema`` of the columns that the table has, which is asked then."""
        if schema is not None:
            columns = self._columns(schema)
        else:
            with self._connector.session() as session:
                columns = advice.existing_columns(session, self._name, self._target)
        return advice.script(self._checked(app), self._name, self._target, self._staging, columns, filters)

    def inspection(self, query: Query) -> PostgresInspection:
        """See ``epochal.sinks.inspection``."""
        app = self._checked(query.app)
        given = {**self._projection.to_json(), "bad_rows": self.bad_rows is not None}
        return PostgresInspection(
            self._connector,
            self._target,
            self._conditions,
            app,
            given,
            stages=self._staging is not None,
            row=lambda session, lock: self._state(session, app, lock=lock),
        )

    # --- start ---------------------------------------------------------------------------------

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """Without ``by`` one plain SELECT; with it the row is held, so nothing can be under way."""
        self._app = self._checked(query.app)
        with self._connector.session() as session:
            if by is None:
                return self._seen(session, query.app, self._state(session, query.app))
            with self._reading(), session.transaction():
                return self._seen(session, query.app, self._owned(session, query.app, by))

    def _seen(self, session: Session, app: str, state: _State) -> SinkState:
        """With the digest, asked for in a later statement: one that waited for the row would not see it yet."""
        marker = state.marker
        if marker is not None:
            marker = replace(marker, digest=self._digest(session, app, marker.position))
        return SinkState(state.identity, state.fence, marker)

    def _digest(self, session: Session, app: str, position: Position) -> Digest | None:
        found = session.run(
            "SELECT digest_rows, digest_sum FROM epochal.epochs WHERE app = $1 AND sink = $2 AND position = $3",
            app,
            self._name,
            position,
        )
        held = [Digest(int(rows), int(total)) for rows, total in found if rows is not None]
        return held[0] if held else None

    def fence(self, query: Query, by: Actor) -> None:
        """Compare-and-set on the row; a back-end that holds it for too long is ended."""
        self._app = self._checked(query.app)
        with self._connector.session() as session, session.transaction(), self._ending_blockers(session, query.app, by):
            self._conditions.check_fence(self._state(session, query.app, lock=True), by)
            session.run(
                "UPDATE epochal.sinks SET generation = $3, token = $4, version = $5 WHERE app = $1 AND sink = $2",
                query.app,
                self._kept_as(session, query.app),
                by.generation,
                by.token,
                ddl.VERSION,
            )

    # --- epoch ---------------------------------------------------------------------------------

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """One Spark job: COPY under the next position, vote; then read back what is registered."""
        from epochal.sinks.postgres.rows import columns as columns_in
        from epochal.sinks.postgres.rows import holdable

        app = self._looked()
        with self._connector.anew() as session:
            self._conditions.check_prepare(self._state(session, app), by, marker_of(epoch), epoch.number)
            address = session.address()
        self._end = self._noted(epoch)
        self._projection.check(rows.schema)
        rows, digest = watched(rows) if epoch.digest else (rows, None)
        held = self._held(rows)
        columns = columns_in(held.schema, self._name)  # as this session reads the projection, which writes them
        if self._evolves:
            self._evolve(app, epoch, columns, by)
        self._refuse_columns(epoch, columns)
        written, flagged = holdable(held)
        with self._projection.evaluating(epoch.number):
            votes = self._written(written, self._task(address, app, epoch, by, columns, flagged))
            left_out = self._left_out(epoch, rows) if epoch.copy is not None else 0
        self._raise_refusals(votes, epoch, by)
        attempts = {int(vote["attempt"]): int(vote["rows"]) for vote in votes if vote}
        with self._connector.session() as session:
            registered = self._registered(session, app, epoch.position).get(by, {})
        if not attempts.items() <= registered.items():
            raise PrepareRefused(
                f"read back: {_tell(attempts, registered)}",
                sink=self._name,
                epoch=epoch.number,
                state=f"position {epoch.position}, by {by}",
                help="start the query again; see whether somebody deletes from epochal.attempts",
            )
        payload: Json = {
            "version": PAYLOAD_VERSION,
            "app": app,
            "attempts": [[attempt, count] for attempt, count in sorted(attempts.items())],
            "offsets": epoch.offsets,
            "watermark": epoch.watermark,
        }
        if self._staging is not None:
            payload["publish"] = self._tried(app, self._staging, epoch, columns, attempts, by).to_json()
        return Committable(
            self._name,
            epoch.decision,
            epoch.position,
            sum(attempts.values()),
            payload,
            left_out=left_out,
            digest=digest() if digest is not None else None,
        )

    def reasons(self, epoch: Epoch, rows: Rows) -> Rows:  # noqa: ARG002
        """See ``epochal.sinks.rows.rejects``."""
        from epochal.sinks.postgres.rows import reason

        return self._projection.beside(rows, rejects.REASON, reason)

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:  # noqa: ARG002
        """See ``epochal.sinks.rows.rejects``."""
        settings = {} if self._projection.is_whole else dict(settings_of(rows.sparkSession))
        return {
            "schema": rows.schema.simpleString(),
            "projection": self._projection.to_json(),
            "settings": settings,
        }

    def _held(self, rows: Rows) -> Rows:
        """What is written of the epoch's rows."""
        from epochal.sinks.postgres.rows import reason

        projected = self._projection.apply(rows)
        return projected if self.bad_rows is None else projected.where(reason(projected.schema).isNull())

    def _left_out(self, epoch: Epoch, rows: Rows) -> int:
        return self._projection.left_out(rows) + rejects.left_out(self, epoch, rows)

    def _refuse_columns(self, epoch: Epoch, columns: Sequence[PgColumn]) -> None:
        """Rows or table may have changed since the start looked, and the server would bend what does not fit."""
        with self._connector.session() as session, refusing(self._name, epoch.number):
            if self._staging is not None:
                staging.refuse_rows(session, self._name, self._target, self._staging, columns, fewer=self._evolves)
            else:
                checking.refuse_rows(session, self._name, self._target, columns, fewer=self._evolves)

    def _evolve(self, app: str, epoch: Epoch, columns: Sequence[PgColumn], by: Actor) -> None:
        """Add the columns that are new, as the one who may prepare: nobody who was fenced alters a table."""
        evolution = self._evolution(app, columns)
        with self._connector.session() as session:
            if not evolution.lacking(session):
                return
            with session.transaction():
                self._conditions.check_prepare(self._state(session, app, lock=True), by, marker_of(epoch), epoch.number)
                evolution.run(session)

    def _tried(
        self,
        app: str,
        mode: Staging,
        epoch: Epoch,
        columns: Sequence[PgColumn],
        attempts: Mapping[int, int],
        by: Actor,
    ) -> Publish:
        """How the staged rows will be published; what can be seen of it now has been asked, and tried.

        The trial holds the sink's row as a task does, so that a newer fence ends one that takes long.
        """
        number, wanted = epoch.number, marker_of(epoch)
        with self._connector.session() as session, session.rehearsal():
            self._conditions.check_prepare(self._state(session, app, share=True), by, wanted, number)
            plan = staging.plan_of(session, self._target, mode, columns)
            if attempts:
                plan.check(self._staged(session, number, epoch.position, attempts), trial=mode.trial)
        return plan

    def _staged(self, session: Session, epoch: int, position: Position, attempts: Mapping[int, int]) -> Staged:
        return Staged(session, self._target, self._name, epoch, position, attempts, self._limits.bulk)

    def _task(
        self,
        address: Address,
        app: str,
        epoch: Epoch,
        by: Actor,
        columns: Sequence[PgColumn],
        flagged: tuple[str, ...],
    ) -> Task:
        from epochal.sinks.postgres.write import Task

        names = ", ".join([*(ddl.quoted(column.name) for column in columns), "_epoch", "_attempt"])
        return Task(
            address=address,
            limits=self._limits,
            app=app,
            sink=self._name,
            epoch=epoch.number,
            position=epoch.position,
            actor=by,
            copy=f"COPY {self._target.rows} ({names}) FROM STDIN (FORMAT binary)",
            table=self._target.rows,
            columns=tuple(columns),
            flagged=flagged,
        )

    def _written(self, rows: Any, task: Task) -> list[Json]:
        """The votes of all partitions; ``coalesce`` bounds the connections without a second evaluation."""
        from epochal.sinks.postgres.write import VOTE, writer

        try:
            votes = rows.coalesce(self._connections).mapInArrow(writer(task), VOTE).collect()
        except Exception as error:
            raise self._of_a_task(error, task.epoch) or error from None
        return [json.loads(vote[0]) for vote in votes]

    def _of_a_task(self, error: Exception, epoch: int) -> EpochalError | None:
        """Our own error, if a task ended with one: Spark hands over its text only."""
        for kind in (SinkUnavailable, OutcomeUnknown):
            found = re.search(rf"{kind.__module__}\.{kind.__name__}: (.*)", str(error))
            if found is not None:
                what = f"a task could not write: {found[1].removeprefix(f'sink {self._name!r}: ')}"
                return SinkUnavailable(what, sink=self._name, epoch=epoch, help="see whether the server is up")
        if lacks_epochal(error):
            what = "Epochal is not installed on the executors"
            return Misconfigured(what, sink=self._name, epoch=epoch, help="pip install 'epochal[postgres]' there")
        return None

    def _raise_refusals(self, votes: Sequence[Json], epoch: Epoch, by: Actor) -> None:
        """The votes that say no, as one error; the most telling kind first."""
        where: dict[str, Any] = {"sink": self._name, "epoch": epoch.number}
        for vote in votes:
            if "stale" in vote:
                fence, published = vote["stale"]["fence"], int(vote["stale"]["published"])
                seen = _State("", Actor.from_json(fence) if fence else None, published, None)
                self._conditions.check_prepare(seen, by, marker_of(epoch), epoch.number)
            if "client" in vote:
                raise Misconfigured(
                    f"an executor cannot write: {vote['client']}",
                    help="pip install 'epochal[postgres]' on every executor",
                    **where,
                )
        unholdable = _sums([vote["unholdable"] for vote in votes if "unholdable" in vote])
        if unholdable:
            told = ", ".join(f"column {column!r}: {count}" for column, count in unholdable.items())
            raise PrepareRefused(
                f"rows with values that Postgres cannot hold exactly: {told}",
                help="these are strings with NUL or broken UTF-8, dates or timestamps out of Postgres's range, or NaN"
                " and infinities inside JSON: replace or drop them in the query, or let bad_rows= have them",
                **where,
            )
        for vote in votes:
            if "refused" in vote:
                raise PrepareRefused(
                    vote["refused"],
                    state=vote["state"],
                    help="make the rows fit the table's constraints, or the table the rows",
                    **where,
                )

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """One short transaction; a lost answer is resolved by the marker, on a new connection."""
        formats.check_vote(committable, PAYLOAD_VERSION)
        app = self._looked()
        try:
            return self._publish(app, committable, by)
        except OutcomeUnknown as unknown:
            self.close()
            return self._resolve(app, committable, by, unknown)

    def _publish(self, app: str, c: Committable, by: Actor) -> CommitOutcome:
        """The three conditions, the rows counted, losers dropped, then marker and ``published`` at once."""
        number, outcome = c.decision.epoch, CommitOutcome.ALREADY_COMMITTED

        def answered() -> None:
            if outcome is CommitOutcome.COMMITTED:
                hit(Point.AFTER_PUBLISH, self._name, number)

        with self._connector.session() as session, session.transaction(answered, bulk=True):
            state = self._state(session, app, lock=True)
            if not self._conditions.already_committed(state, by, marker_of(c), number):
                self._refuse_other_way(c)
                losers = self._whole(session, app, c)
                if "publish" in c.payload:
                    self._publish_staged(session, c)
                else:
                    self._drop(session, c, losers)
                self._show(session, app, c, may_forget=state.may_forget)
                outcome = CommitOutcome.COMMITTED
                hit(Point.BEFORE_PUBLISH, self._name, number)
        return outcome

    def _refuse_other_way(self, c: Committable) -> None:
        """What was prepared to be published out of a staging table is not shown by a view, nor the other way round."""
        if ("publish" in c.payload) != (self._staging is not None):
            mode = self._staging or Append()
            raise PreparedLost(
                f"the epoch was prepared under another mode than {mode!r}, and none of its rows is visible",
                sink=self._name,
                epoch=c.decision.epoch,
                state=f"table {self._target.rows}, position {c.position}, prepared by {c.decision.actor}",
                help="start the query again: the rows are redone as the mode wants them now",
            )

    def _whole(self, session: Session, app: str, c: Committable) -> int:
        """How many rows at the position are not the winners'; all of those are there, else they were lost."""
        won, by = _attempts(c), c.decision.actor
        registered = self._registered(session, app, c.position)
        alone = registered == ({by: won} if won else {})
        newest = self._newest(session, c.position) if alone else ()
        if newest and self._counted(session, c.position, sorted(won), newest) == (sum(won.values()), won):
            return 0
        total, counted = self._counted(session, c.position, sorted(won), [self._target.rows])
        for source in (registered.get(by, {}), counted):
            if not won.items() <= source.items():
                raise PreparedLost(
                    f"prepared rows are gone, and none of them is visible: {_tell(won, source)}",
                    sink=self._name,
                    epoch=c.decision.epoch,
                    state=f"table {self._target.rows}, position {c.position}, prepared by {c.decision.actor}",
                    help="start the query again: the rows are redone; see what deleted them",
                )
        return total - sum(counted.values())

    def _noted(self, epoch: Epoch) -> tuple[Position, int] | None:
        """Where the rows of the position will begin, unless they find room before it; None does no harm.

        Of an epoch that is redone there may be rows from before, of which nobody knows where they are.
        """
        if self._staging is not None or epoch.decision.redo > 0:
            return None
        try:
            with self._connector.session() as session, self._reading(), session.transaction():
                return epoch.position, self._pages(session)
        except (ServerRefused, SinkUnavailable):  # no right to ask, or somebody locks the table, whom COPY waits for
            return None

    def _pages(self, session: Session) -> int:
        """Of the rows table; 0 if there is none."""
        size = "SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint"
        [(pages,)] = session.run(size, self._target.rows)
        return int(pages or 0)

    def _newest(self, session: Session, position: Position) -> Sequence[str]:
        """The rows table from there on, in the place of its name; empty where that is not known or saves nothing.

        Its index has no figures of the newest rows before a vacuum has been there, and the planner none at all: a look
        for the position reads all that was written since.  Two halves, as the server has a range of pages read by one
        process, but two ranges by two.
        """
        noted, end = self._end or (position, 0)
        if noted != position or end <= SPARE_PAGES:
            return ()
        begin = end - SPARE_PAGES
        middle = (begin + self._pages(session)) // 2
        ranges = f"ctid >= '({begin},0)' AND ctid < '({middle},0)'", f"ctid >= '({middle},0)'"
        # OFFSET keeps the condition on _epoch, and with it the index, out of there; a number that is to be converted
        # (0 and not '0') would keep the other process out too
        rows = f"SELECT _epoch, _attempt FROM {self._target.rows}"
        return [f"({rows} WHERE {pages} OFFSET '0') AS newest" for pages in ranges]

    def _counted(
        self, session: Session, position: Position, attempts: Sequence[int], tables: Sequence[str]
    ) -> tuple[int, dict[int, int]]:
        """How many rows lie at the position, and how many of them each of the attempts has.

        By filters: the planner has no figures of new rows, and would have them sorted, on disk, for a GROUP BY.  But
        each row is held against each filter, and the server takes no more than 1,664 columns.
        """

        def of_all(select: str, after: str = "") -> list[tuple[Any, ...]]:
            counts = " UNION ALL ".join(f"SELECT {select} FROM {table} WHERE _epoch = $1{after}" for table in tables)
            return session.run(counts, position, limit=self._limits.bulk)

        if len(attempts) > FILTERS:
            found: Counter[int] = Counter()
            for key, count in of_all("_attempt, count(*)", " GROUP BY _attempt"):
                found[int(key)] += int(count)
            return found.total(), {attempt: found[attempt] for attempt in attempts}
        filters = "".join(f", count(*) FILTER (WHERE _attempt = {attempt})" for attempt in attempts)
        total, *of_each = (sum(map(int, each)) for each in zip(*of_all(f"count(*){filters}"), strict=True))
        return total, dict(zip(attempts, of_each, strict=True))

    def _drop(self, session: Session, c: Committable, losers: int) -> None:
        """Delete what attempts that did not win left at the position, whoever made them: so many rows."""
        if losers:
            session.run(
                f"DELETE FROM {self._target.rows} WHERE _epoch = $1 AND _attempt <> ALL($2::bigint[])",
                c.position,
                sorted(_attempts(c)),
                limit=self._limits.bulk,
            )

    def _publish_staged(self, session: Session, c: Committable) -> None:
        """The winners' rows go into the table, and all that is staged up to the position goes away."""
        plan = Publish.from_json(c.payload["publish"])
        plan.run(self._staged(session, c.decision.epoch, c.position, _attempts(c)))
        session.run(f"DELETE FROM {self._target.rows} WHERE _epoch <= $1", c.position, limit=self._limits.bulk)

    def _show(self, session: Session, app: str, c: Committable, *, may_forget: bool) -> None:
        audit.write(session, app, c)
        session.run(
            "DELETE FROM epochal.attempts WHERE app = $1 AND sink = $2 AND position <= $3", app, self._name, c.position
        )
        session.run(
            "UPDATE epochal.sinks SET published = $3, decision = $4 WHERE app = $1 AND sink = $2",
            app,
            self._name,
            c.position,
            c.decision.id,
        )
        if may_forget and audit.is_due(c.position, self._retention):
            self._forget(session, app, c)

    def _forget(self, session: Session, app: str, c: Committable) -> None:
        """Old rows of the audit keep no epoch from its readers: what somebody has locked or protected stays."""
        session.run("SAVEPOINT forget")
        session.run("SET LOCAL lock_timeout = 100")  # milliseconds, up to COMMIT, and no other lock is to be waited for
        try:
            audit.forget(session, app, self._name, c.position, self._retention)
        except (ServerRefused, SinkUnavailable) as error:
            session.run("ROLLBACK TO SAVEPOINT forget")
            log.warning("sink %s: the audit in epochal.epochs could not be shortened: %s", self._name, error)

    def _resolve(self, app: str, c: Committable, by: Actor, unknown: OutcomeUnknown) -> CommitOutcome:
        """COMMIT was sent and not answered.  Under the row's lock the old back-end is through with it."""
        try:
            with (
                self._connector.session() as session,
                self._reading(),
                session.transaction(),
                self._ending_blockers(session, app, by),
            ):
                state = self._state(session, app, lock=True)
        except SinkUnavailable:
            raise unknown from None
        if self._conditions.already_committed(state, by, marker_of(c), c.decision.epoch):
            return CommitOutcome.COMMITTED
        raise SinkUnavailable(
            f"the COMMIT was lost, nothing became visible: {unknown.what}",
            sink=self._name,
            epoch=c.decision.epoch,
            state=f"position {state.published} is shown, {c.position} is to be",
            help="nothing to do: it is tried again",
        )

    def renamed(self, name: str) -> tuple[PostgresSink, PostgresSink]:
        """See ``epochal.sinks.protocol``; the sink has one row, under either name."""
        here, there = self._named(self._name), self._named(name)
        here._also, there._also = name, self._name
        return here, there

    def _named(self, name: str) -> PostgresSink:
        return PostgresSink(**{**self._made_with, "name": name})

    def check_mark(self, query: Query) -> None:
        """A name is changed by the owner of what it stands in."""
        self._checked(query.app)
        if self._also is None:
            return
        with self._connector.session() as session:
            rights.refuse_no_owner(session, self._name, self._target, has_view=self._staging is None)

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """One transaction; with the row its history, and the reader view that names it, go under this name."""
        app = self._checked(query.app)
        with (
            self._connector.session() as session,
            session.transaction(bulk=True),
            self._ending_blockers(session, app, by),
        ):
            self._owned(session, app, by)
            kept = self._kept_as(session, app)
            if kept != self._name:
                ddl.rename(session, app, kept, self._name, self._target, has_view=self._staging is None)
            if marker is not None:
                session.run(
                    "UPDATE epochal.sinks SET published = $3, decision = $4 WHERE app = $1 AND sink = $2",
                    app,
                    self._name,
                    marker.position,
                    marker.decision,
                )

    def _kept_as(self, session: Session, app: str) -> str:
        """The name that the sink's row has: its own, or, while it is renamed, the other one."""
        if self._also is None or ddl.registered(session, app, self._name) is not None:
            return self._name
        return self._also if ddl.registered(session, app, self._also) is not None else self._name

    def abort(self, query: Query, by: Actor) -> None:
        """Delete all rows above ``published``, registered or not; a late COPY is refused by its own look."""
        app = self._checked(query.app)
        with (
            self._connector.session() as session,
            session.transaction(bulk=True),
            self._ending_blockers(session, app, by),
        ):
            state = self._owned(session, app, by)
            session.run(f"DELETE FROM {self._target.rows} WHERE _epoch > $1", state.published, limit=self._limits.bulk)
            session.run(
                "DELETE FROM epochal.attempts WHERE app = $1 AND sink = $2 AND position > $3",
                app,
                self._name,
                state.published,
            )

    def close(self) -> None:
        self._connector.close()

    def guarantee(self) -> str:
        mode = self._staging
        how = ddl.guarantee(self._target) if mode is None else staging.guarantee(self._target, mode)
        return (
            f"Postgres sink {self._name}: exactly once, whole epochs, in order, {how}"
            " NULL, NaN, infinities, dates and microseconds are kept exactly; arrays, maps and structs are JSON text"
            f" (binary in it is base64); what cannot be held {self._fate_of_bad_rows}, not bent."
            f"{self._projection.promise}"
        )

    @property
    def _fate_of_bad_rows(self) -> str:
        return "is refused" if self.bad_rows is None else f"goes to sink {self.bad_rows.name!r}"

    # --- the audit -----------------------------------------------------------------------------

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """See :class:`~epochal.sinks.protocol.AuditedSink`; out of ``epochal.epochs``, in one statement."""
        self._checked(app)
        wanted = Wanted.of(self._name, first, last, limit)
        with self._connector.session() as session:
            self._state(session, app)
            return audit.read(session, app, self._name, wanted)

    # --- the row -------------------------------------------------------------------------------

    def _checked(self, app: str) -> str:
        check_name("app", app, self._name)
        return app

    def _looked(self) -> str:
        return looked(self._app, self._name)

    def _state(self, session: Session, app: str, lock: bool = False, share: bool = False) -> _State:
        """The sink's row; with ``lock`` held until COMMIT, in a statement of its own so that the next sees all.

        With ``share`` it is held as a task does: those that write have to wait, those that prepare do not.
        """
        try:
            found = session.run(
                "SELECT (SELECT system_identifier FROM pg_control_system()), (SELECT oid FROM pg_database"
                " WHERE datname = current_database())::bigint, to_regclass($3)::oid::bigint,"
                " generation, token, published, decision, version,"
                " has_table_privilege(to_regclass('epochal.epochs'), 'DELETE')"
                " FROM epochal.sinks WHERE app = $1 AND sink = $2"
                + (" FOR SHARE" if share else "")
                + (" FOR UPDATE" if lock else ""),
                app,
                self._kept_as(session, app),
                self._target.own,
            )
        except ServerRefused as error:
            if "42P01" in str(error.state) or "3F000" in str(error.state):
                found = []
            else:
                raise
        if not found and (other := ddl.renamed_to(session, app, self._target)) is not None:
            raise Misconfigured(
                f"the table {self._target.own} belongs to sink {other!r} of app {app!r}",
                sink=self._name,
                state=session.where,
                help=f"give the sink name={other!r}; if a renaming was under way, run it again: `epochal rename`",
            )
        if not found or found[0][2] is None:
            raise Misconfigured(
                f"there is no table {self._target.own} of app {app!r}",
                sink=self._name,
                state=session.where,
                help="call pipeline.create() once, or have the SQL run that PostgresSink.ddl(app, schema) returns",
            )
        system, database, table, generation, token, published, decision, version, may_forget = found[0]
        formats.check_marker(f"epochal.sinks, {session.where}", version, ddl.VERSION, self._name)
        fence = Actor(generation, token) if generation is not None else None
        return _State(f"postgres:{system}/{database}/{table}", fence, published, decision, bool(may_forget))

    def _owned(self, session: Session, app: str, by: Actor) -> _State:
        """The row, locked; ``Fenced`` unless it is ``by``'s."""
        state = self._state(session, app, lock=True)
        self._conditions.check_owner(state, by)
        return state

    def _registered(self, session: Session, app: str, position: Position) -> dict[Actor, dict[int, int]]:
        """How many rows each attempt has put at the position: tasks write that with them."""
        found = session.run(
            "SELECT generation, token, attempt, row_count FROM epochal.attempts"
            " WHERE app = $1 AND sink = $2 AND position = $3",
            app,
            self._name,
            position,
        )
        registered: dict[Actor, dict[int, int]] = {}
        for generation, token, attempt, count in found:
            registered.setdefault(Actor(generation, token), {})[int(attempt)] = int(count)
        return registered

    # --- waiting -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """A transaction that wrote nothing: a lost answer is merely unavailable."""
        try:
            yield
        except OutcomeUnknown as lost:
            raise SinkUnavailable(lost.what, sink=self._name, state=lost.state, help=lost.help) from lost

    def _ending_blockers(self, session: Session, app: str, by: Actor) -> contextlib.AbstractContextManager[None]:
        return ending_blockers(session, self._connector, Row(app, self._name, by))


def _attempts(c: Committable) -> Mapping[int, int]:
    return {int(attempt): int(count) for attempt, count in c.payload["attempts"]}


def _tell(won: Mapping[int, int], found: Mapping[int, int]) -> str:
    return ", ".join(
        f"attempt {attempt} of {count} rows has {found.get(attempt, 0)}"
        for attempt, count in won.items()
        if found.get(attempt, 0) != count
    )


def _sums(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for count in counts:
        for column, rows in count.items():
            sums[column] = sums.get(column, 0) + int(rows)
    return sums
