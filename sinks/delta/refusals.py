"""The errors of the Delta sink's own, in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from epochal.coordinator.model.epoch import Committable, EpochNumber
from epochal.coordinator.model.errors import (
    CommitInDoubt,
    EpochalError,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.delta.jvm import JavaFailure
from epochal.sinks.delta.log_store import LogStore
from epochal.sinks.delta.target import Target

AS_DELTA_SAYS = "change the table, the session or the sink's arguments as Delta's message asks (State:); start again"
ANOTHER_DELTA = (
    "start the session with a Delta that knows these features (State:), or let a client that knows them take them out"
    " of the table (ALTER TABLE ... DROP FEATURE); start again"
)


@dataclass(frozen=True)
class Refusals:
    """Makes the errors of one sink about its table."""

    sink: str
    target: Target

    def missing(self) -> Misconfigured:
        where = f"at {self.target}" if self.target.table is None else f"called {self.target}"
        return Misconfigured(
            f"there is no Delta table {where}", sink=self.sink, help="call pipeline.create(schema) once"
        )

    def refuse_set_up(self, problems: Sequence[str], remedy: str) -> None:
        if problems:
            raise Misconfigured(
                f"the Delta table {self.target} cannot hold the rows exactly: {'; '.join(problems)}",
                sink=self.sink,
                help=remedy,
            )

    def loses(self, found: LogStore, problem: str) -> Misconfigured:
        return Misconfigured(
            f"Delta's log store {found.kind} loses versions of tables with the scheme {found.scheme}",
            sink=self.sink,
            state=f"Delta table {self.target}: {problem}",
            help="start the session without spark.delta.logStore.class and"
            f" spark.delta.logStore.{found.scheme}.impl, or set the latter to a log store that is made for this scheme",
        )

    def misconfigured(self, what: str, state: str) -> Misconfigured:
        return Misconfigured(what, sink=self.sink, state=_first_line(state), help=AS_DELTA_SAYS)

    def unwritable(self, failure: JavaFailure) -> Misconfigured:
        what = "Delta refuses to write to the table"
        return Misconfigured(what, sink=self.sink, state=_first_line(failure.message), help=ANOTHER_DELTA)

    def refused(
        self,
        what: str,
        epoch: EpochNumber,
        state: str | None = None,
        *,
        help: str,
    ) -> PrepareRefused:
        state = _first_line(state) if state is not None else None
        return PrepareRefused(what, sink=self.sink, epoch=epoch, state=state, help=help)

    def prepared_lost(self, lost: Sequence[str], c: Committable) -> PreparedLost:
        return PreparedLost(
            f"the prepared epoch cannot be shown any more, and nothing of it is visible: {'; '.join(lost)}",
            sink=self.sink,
            epoch=c.decision.epoch,
            state=f"Delta table {self.target}: {c.rows} rows, for position {c.position}, by {c.decision.actor}",
            help="start the query again: the rows are redone",
        )

    def in_doubt(self, what: str, c: Committable, state: str | None = None) -> CommitInDoubt:
        return CommitInDoubt(
            f"the table does not take the decided rows: {what}",
            sink=self.sink,
            epoch=c.decision.epoch,
            state=_first_line(state) if state else f"Delta table {self.target}, nothing of the epoch is visible in it",
            help="undo what was changed in the table since the epoch was prepared (see its history)",
        )

    def unknown(self, epoch: EpochNumber | None = None, state: str | None = None) -> OutcomeUnknown:
        return OutcomeUnknown(
            "no answer to a commit, and a new snapshot does not show it (yet)",
            sink=self.sink,
            epoch=epoch,
            state=_first_line(state) if state else None,
            help="restart the query: it reads the marker before it writes",
        )

    def contended(self, attempts: int, why: str | None, epoch: EpochNumber | None = None) -> SinkUnavailable:
        return SinkUnavailable(
            f"each of {attempts} commits in a row ended with a conflict",
            sink=self.sink,
            epoch=epoch,
            state=_first_line(why) if why is not None else None,
            help="end what else changes the table or writes this app's sink (DESCRIBE HISTORY names it), then restart",
        )

    def not_read(self, what: str, failure: JavaFailure, epoch: EpochNumber | None = None) -> EpochalError:
        """Return ``Misconfigured`` if Delta itself refuses the table, else ``SinkUnavailable``, which may pass."""
        if any(name.startswith("Delta") for name in failure.classes) or failure.is_a("AnalysisException"):
            return self.misconfigured("Delta refuses to read the table", failure.message)
        return SinkUnavailable(
            f"{what} cannot be read or written",
            sink=self.sink,
            epoch=epoch,
            state=_first_line(failure.message),
            help=f"make {self.target} reachable from the driver (path, rights, credentials), then restart the query",
        )

    @contextlib.contextmanager
    def unavailable(self, what: str, epoch: EpochNumber | None = None) -> Iterator[None]:
        try:
            yield
        except JavaFailure as failure:
            raise self.not_read(what, failure, epoch) from failure


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
