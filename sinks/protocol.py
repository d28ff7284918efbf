"""What a sink is: two verbs of set-up (create, check), five of the protocol (look, fence, prepare, commit, abort), and
the types that say what kind of promise it can make.

No algorithm lives here (that is ``coordinator/protocol/coordinator.py``) and no base class: a sink is any
object with these methods.  Reference implementations: ``sinks/memory.py``.

Every atomic write of a sink is conditional, *inside that write*, on three things in this order, which
``sinks/conditions.py`` judges for all of them:

1. the fence is ``by``: else :class:`~epochal.coordinator.model.errors.Fenced`;
2. the marker is this decision's, at its position: then it is ``ALREADY_COMMITTED``;
3. the marker is exactly one position before (none counts as position 0): else stop, with
   :class:`~epochal.coordinator.model.errors.MarkerLost` when it is older or absent and
   :class:`~epochal.coordinator.model.errors.CheckpointMismatch` when it is another's.

How a sink answers trouble (all from ``epochal.coordinator.model.errors``):

==================  ==========================================================================
``Fenced``          a newer actor, or the same generation with another token, owns the sink
``PrepareRefused``  definite no, in ``prepare`` only: rows, rights, constraints
``SinkUnavailable`` transient, and known to have had no effect: the coordinator may call again
``OutcomeUnknown``  the request may have been applied: the coordinator calls ``commit`` again,
                    which asks the marker under the sink's own guard before anything else
``PreparedLost``    prepared rows are gone and nothing of them is visible (seen under the guard)
``MarkerLost``      the marker is absent or older than it must be
==================  ==========================================================================

In idempotent mode there is no decision and no durable copy, and the verbs are the same: ``prepare`` is given
the micro-batch itself, its vote and the marker carry the digest of the rows (``Epoch.digest`` asks for it),
and ``commit`` follows once all digests agree.  A sink that cannot hold rows invisible is given the rows by
``apply`` (:class:`ApplySink`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from epochal.coordinator.model.epoch import (
    Actor,
    Committable,
    Copy,
    Digest,
    Epoch,
    EpochNumber,
    EpochRequest,
    Json,
    Marker,
    Position,
    Query,
    SinkState,
)
from epochal.sinks.epochs import Epochs

Rows = Any
"""One micro-batch: a pyspark ``DataFrame``; the simulation passes a sequence of mappings."""
Schema = Any
"""A pyspark ``StructType``; the simulation passes ``None``."""


class CommitOutcome(enum.Enum):
    """Both mean: every reader of this sink sees the epoch now."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"


@runtime_checkable
class Sink(Protocol):
    """One sink.  Picklable before use; after :meth:`look` it may hold live connections."""

    @property
    def name(self) -> str:
        """Unique in a pipeline, stable over restarts, ``[A-Za-z0-9._-]``."""

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        """Make what is missing (tables, views, topics), idempotent; say what was done, a line each.

        ``query`` holds the app; its ids are empty, as no query runs yet.
        """

    def check(self, query: Query, schema: Schema) -> None:
        """Refuse, writing nothing, what can never work: ``Misconfigured`` names column, right, setting."""

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """Read identity, newest fence and newest marker of (app, sink name); write nothing.

        Without ``by`` it disturbs nobody and never waits for work in flight.  With ``by`` (after
        ``fence(by)``) the answer is final: a marker it does not show will never appear from an
        older actor.
        """

    def fence(self, query: Query, by: Actor) -> None:
        """Compare-and-set: from now on nothing an older actor does becomes visible or drops ours.

        A newer generation, or the same with another token, is ``Fenced``.  Repeating one's own
        fence is fine.  Bounded in time even if an older actor holds a transaction open.
        """

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """Make the rows durable and invisible at ``epoch.position``, read back, and vote yes.

        Raising votes no.  ``rows`` is read once.  The committable holds no secret and no handle.  With
        ``epoch.digest`` it holds the digest of ``rows`` as this reading gave them, and ``commit`` puts it
        into the marker.
        """

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Make it visible in one atomic write together with its marker.  Idempotent.

        Works in a process that has only the JSON, after ``look`` with the same names.
        """

    def abort(self, query: Query, by: Actor) -> None:
        """Drop all that is prepared beyond the marker by ``by`` or older actors, also when nothing is.

        Called only when nothing of it is decided.  Fenced like commit: ``Fenced`` when ``by`` is
        no longer the owner.  Never touches what a newer actor made.
        """

    def close(self) -> None:
        """Let go of connections; the sink can be used again after another ``look``."""

    def guarantee(self) -> str:
        """In plain words: what is promised to which reader, under which conditions."""


@runtime_checkable
class RedoSink(Sink, Protocol):
    """A sink that cannot hold prepared rows invisible (Kafka): the durable copy is its prepared work.

    Its ``prepare`` gets ``epoch.copy`` and checks that the copy can be applied; its ``commit``
    applies the copy in one transaction together with the marker.  A capability is a type: the
    coordinator asks ``isinstance`` once, and then always makes a copy.
    """

    needs_copy: bool


@runtime_checkable
class WatchingSink(RedoSink, Protocol):
    """A redo sink that can judge the rows while they are copied, and so needs no pass over the copy to vote."""

    def watch(self, epoch: Epoch, rows: Rows) -> Rows:
        """The same rows, to be copied; what is seen of them there is for the vote on this decision alone.

        Lazy, and called at most once per decision, before there is a copy.  A sink that has watched nothing of an epoch
        (a redo, another process) votes on the copy itself, and the same.
        """


@runtime_checkable
class MarkedSink(Sink, Protocol):
    """A sink whose marker a person may have written, where the write that knows it cannot be repeated.

    Used by operator actions alone (``coordinator/protocol/actions.py``), under a fence that has settled all else.
    """

    def renamed(self, name: str) -> tuple[Sink, Sink]:
        """The same sink under the name it has and under ``name``, the new one; asks no server.

        Where a server keeps it under one name only, each of the two finds it, under whichever that is.
        """

    def check_mark(self, query: Query) -> None:
        """``Misconfigured``: as a ``look`` has found it, its marker cannot be written; writes nothing itself."""

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """Write ``marker`` over whatever is there, in one atomic write that is conditional on ``by`` being the fence.

        None: what is there stays.  What is kept under the sink's other name (``renamed``) is under this one then, and
        the other name, where it is kept too, holds a marker that ``is_moved``: it is never that of an epoch again.
        What readers see does not change by it, but where it hangs on the position.
        """


@runtime_checkable
class ReplacingSink(Sink, Protocol):
    """A sink whose every epoch takes the place of all that it shows: the whole result of output mode ``complete``.

    Its commit removes what is shown and shows the epoch, in one atomic write with the marker.
    """

    replaces: bool


@runtime_checkable
class FilteringSink(Sink, Protocol):
    """A sink that may keep rows of an epoch out (``where=``, ``bad_rows=``), so that a copy is made of all of them."""

    leaves_rows_out: bool


@runtime_checkable
class PairedSink(Sink, Protocol):
    """The sink of the rows that another one of the pipeline, ``of``, leaves out: each row is in one of the two."""

    @property
    def of(self) -> str: ...

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:
        """All that tells the rows of the two apart, beside the rows: where one of the two shows an epoch, it has to
        be the same when the other is given that epoch."""


@runtime_checkable
class AuditedSink(Sink, Protocol):
    """A sink that can tell which epochs it shows."""

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """What the sink's own audit says of the epochs of ``app``: positions ``first`` to ``last``, both included.

        ``limit``: of these the newest so many; a few cost little, however many there are.  Epochs that the audit keeps
        no longer are not told.  Needs no ``look`` before it, writes nothing and disturbs nobody.
        """


@dataclass(frozen=True)
class Applied:
    """What one ``apply`` did, and the digest that the marker holds now."""

    outcome: CommitOutcome
    digest: Digest


@runtime_checkable
class ApplySink(RedoSink, Protocol):
    """A redo sink that can also be given an epoch of which there is no copy: what idempotent mode asks of it."""

    def check_apply(self) -> None:
        """``Misconfigured``: as it was made, or as a ``look`` has found it, it cannot ``apply``, and what to change.

        Asks no server itself.
        """

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:
        """Make ``rows`` visible in one atomic write together with the marker, their digest in it.

        Conditional as ``commit`` is, and idempotent.  ``agreed``: the digest of every other evaluation of this
        epoch; if that of ``rows`` is another, it is ``NonDeterministicReplay`` and nothing is written.  None:
        this is the first.  Rows that cannot be written are ``PrepareRefused`` here, and none of them is visible.
        """


class Stage(Protocol):
    """The durable copy: one evaluation of a micro-batch, read by everybody."""

    def write(self, epoch: EpochNumber, by: Actor, rows: Rows) -> Copy:
        """Evaluate ``rows`` once and make them durable; the answer lists exactly the files."""

    def read(self, copy: Copy) -> Rows:
        """Exactly the rows of ``copy``; a missing or changed file is a named error, never fewer rows."""

    def clean(self, by: Actor, keep: Sequence[Copy]) -> None:
        """Remove copies of ``by`` and of older generations that are not in ``keep``."""


class MicroBatch(Protocol):
    """What Spark hands over: the rows, unevaluated, and a way to run the plan for nothing."""

    @property
    def ask(self) -> EpochRequest: ...

    @property
    def rows(self) -> Rows: ...

    def discard(self) -> None:
        """Run the plan once and drop the rows, so that operator state and watermark advance."""


class ForwardingSink:
    """A sink whose rows another sink writes: the sink of bad rows, which are written ``into`` a sink of the user."""

    @property
    def into(self) -> Sink:
        """The sink that writes."""
        raise NotImplementedError


class SessionSink:
    """A sink whose marker can only be written through a running Spark session (Delta)."""
