"""What a sink is: two methods of set-up (create, check), five of the protocol (look, fence, prepare, commit, abort),
and the types that say what a sink can promise.

This file holds no algorithm (that is ``coordinator/protocol/coordinator.py``) and no base class: a sink is any
object with these methods.  Reference implementations: ``sinks/memory.py``.

Every atomic write of a sink is conditional, *inside that write*, on three things, in this order.
``sinks/conditions.py`` checks them for all sinks:

1. the fence is that of the caller, ``by``: else :class:`~epochal.coordinator.model.errors.Fenced`;
2. the marker is that of this decision, at its position: then the answer is ``ALREADY_COMMITTED``;
3. the marker is exactly one position before (no marker counts as position 0): else stop, with
   :class:`~epochal.coordinator.model.errors.MarkerLost` if the marker is older or absent, and with
   :class:`~epochal.coordinator.model.errors.CheckpointMismatch` if it is that of another decision.

The errors of a sink (all from ``epochal.coordinator.model.errors``):

==================  ==========================================================================
``Fenced``          a newer actor, or one of the same generation with another token, owns it
``PrepareRefused``  a definite no, in ``prepare`` only: rows, rights, constraints
``SinkUnavailable`` transient, and known to have had no effect: the coordinator may call again
``OutcomeUnknown``  the request may have been applied: the coordinator calls ``commit`` again,
                    which first reads the marker under the sink's own lock
``PreparedLost``    prepared rows are gone and none of them is visible (read under the lock)
``MarkerLost``      the marker is absent or older than it must be
==================  ==========================================================================

In idempotent mode there is no decision and no durable copy, and the methods are the same.  ``prepare`` is given the
micro-batch itself.  Its vote and the marker carry the digest of the rows (``Epoch.digest`` asks for it), and
``commit`` follows once all digests agree.  A sink that cannot hold rows invisible gets the rows from ``apply``
(:class:`ApplySink`).
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
    """The result of ``commit``.  Both values mean: every reader of this sink sees the epoch now."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"


@runtime_checkable
class Sink(Protocol):
    """One sink.  Picklable before use; after :meth:`look` it may hold live connections."""

    @property
    def name(self) -> str:
        """Unique in a pipeline, stable over restarts, ``[A-Za-z0-9._-]``."""

    def create(self, query: Query, schema: Schema) -> Sequence[str]:
        """Create the tables, views or topics that are missing; return what was done, one line for each.  Idempotent.

        ``query`` holds the app; its ids are empty, because no query runs yet.
        """

    def check(self, query: Query, schema: Schema) -> None:
        """Raise ``Misconfigured`` for what can never work: it names the column, right or setting.  Write nothing."""

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        """Read identity, newest fence and newest marker of (app, sink name); write nothing.

        Without ``by`` it disturbs nobody and never waits for work in flight.  With ``by`` (after
        ``fence(by)``) the answer is final: no older actor can write a marker after it.
        """

    def fence(self, query: Query, by: Actor) -> None:
        """Set the fence by compare-and-set: from now on an older actor can neither show rows nor drop prepared work.

        Raise ``Fenced`` if the sink's fence has a newer generation, or the same with another token.  An actor may
        repeat its own fence.  The call ends in bounded time even if an older actor holds a transaction open.
        """

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        """Make the rows durable and invisible at ``epoch.position``, read them back, and vote yes.

        An exception is the vote no.  ``rows`` is read once.  The committable holds no secret and no live handle.
        If ``epoch.digest`` is set, the committable holds the digest of the rows as they were read here, and ``commit``
        writes it into the marker.
        """

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        """Make the prepared epoch visible, in one atomic write together with its marker.  Idempotent.

        It also works in another process that has only the committable's JSON, after ``look`` with the same names.
        """

    def abort(self, query: Query, by: Actor) -> None:
        """Drop all work that ``by`` and older actors have prepared beyond the marker.  There may be none.

        This is called only when none of this work is decided.  Raise ``Fenced`` if ``by`` no longer owns the sink, as
        in ``commit``.  Never touch what a newer actor prepared.
        """

    def close(self) -> None:
        """Close the connections.  The sink can be used again after another ``look``."""

    def guarantee(self) -> str:
        """Say in plain words what is promised to which reader, under which conditions."""


@runtime_checkable
class RedoSink(Sink, Protocol):
    """A sink that cannot hold prepared rows invisible (Kafka): the durable copy is its prepared work.

    Its ``prepare`` gets ``epoch.copy`` and checks that the copy can be applied.  Its ``commit``
    writes the rows of the copy in one transaction together with the marker.  The coordinator
    asks ``isinstance`` once per start; in two-phase mode it then copies every epoch.
    """

    needs_copy: bool


@runtime_checkable
class WatchingSink(RedoSink, Protocol):
    """A redo sink that can check the rows while they are copied, so that it need not read the copy to vote."""

    def watch(self, epoch: Epoch, rows: Rows) -> Rows:
        """Return the same rows.  While Spark copies them, the sink collects what it needs for its vote.

        What it collects is used only for the vote on this decision.  The call itself evaluates nothing.  It happens at
        most once per decision, before there is a copy.  A sink that has collected nothing of an epoch (a redo, another
        process) reads the copy instead, and its vote is the same.
        """


@runtime_checkable
class StagingSink(RedoSink, Protocol):
    """A redo sink that can write the durable copy itself, in a form of its own, if no other sink reads it."""

    def stage(self, epoch: Epoch, rows: Rows, folder: str) -> Copy | None:
        """Evaluate ``rows`` once and write all that a vote and a redo need into ``folder``; return the copy.

        The copy counts the rows that the sink gets, as its vote does.
        None: not this epoch; the rows were not evaluated, and are copied as for any sink.  The call comes at most once
        per decision, before ``prepare``, which then gets the copy and no rows.  Raise ``PrepareRefused`` for rows that
        cannot be written.
        """


@runtime_checkable
class CopyingSink(Sink, Protocol):
    """A sink whose prepared files hold the rows so that other sinks can read them: they can be the durable copy, too.

    It saves a pipeline of several sinks that the rows are written twice.
    """

    def write_copy(self, epoch: Epoch, rows: Rows, folder: str, by: Actor) -> Copy | None:
        """Evaluate ``rows`` once and write what the sink prepares; return the copy, whose files lie in ``folder``.

        None: not this epoch; the rows were not evaluated, and are copied as for any sink.  The call comes at most once
        per decision, before ``prepare``, which then gets the rows of the copy.  ``abort`` drops what the call wrote for
        the sink.  Raise ``PrepareRefused`` for rows that cannot be written.
        """


@runtime_checkable
class VotingSink(Sink, Protocol):
    """A sink whose prepared epoch is lost when the sink is fenced, and which can show a decided one before that."""

    def finish(self, committable: Committable) -> None:
        """Show the prepared epoch, if it can still be shown; do nothing if it cannot.

        A start calls this after its own fence is in the epoch log, and before it fences the sink.  ``committable`` is
        decided, and no other decision about this epoch can come any more.  Without the call, ``commit`` would have to
        write the rows again.  Raise ``SinkUnavailable`` or ``OutcomeUnknown`` if the server does not answer.
        """


@runtime_checkable
class MarkedSink(Sink, Protocol):
    """A sink whose marker an operator action can set.  This is for markers that no commit can write again.

    Only operator actions use this (``coordinator/protocol/actions.py``), under a fence, after all else is settled.
    """

    def renamed(self, name: str) -> tuple[Sink, Sink]:
        """Return the same sink twice: under its present name, and under the new ``name``.  Ask no server.

        If the server keeps the sink under only one of the two names, both returned sinks find it there.
        """

    def check_mark(self, query: Query) -> None:
        """Raise ``Misconfigured`` if the marker cannot be written to the sink that ``look`` found.  Write nothing."""

    def mark(self, query: Query, marker: Marker | None, by: Actor) -> None:
        """Replace the sink's marker by ``marker``, in one atomic write that is conditional on the fence of ``by``.

        If ``marker`` is None, the marker stays as it is.  After ``renamed``, the state that was stored under the sink's
        other name is stored under this name.  If the server keeps an entry for the other name too, that entry gets a
        marker with ``is_moved``, which is never the marker of an epoch.  Readers see the same rows as before, unless
        the marker's position decides what they see.
        """


@runtime_checkable
class ReplacingSink(Sink, Protocol):
    """A sink in which each epoch replaces all rows of the epoch before it, for output mode ``complete``.

    Its commit removes the visible rows and shows those of the epoch, in one atomic write with the marker.
    """

    replaces: bool


@runtime_checkable
class FilteringSink(Sink, Protocol):
    """A sink that may leave out rows of an epoch (``where=``, ``bad_rows=``).  See also ``ThoroughSink``."""

    leaves_rows_out: bool


@runtime_checkable
class ThoroughSink(FilteringSink, Protocol):
    """A filtering sink whose ``prepare`` has Spark read every row, also those that it leaves out: it needs no copy.

    If Spark can tell that a filter keeps no row, it does not run the micro-batch, and the operator state does not
    advance.  Such a sink notices that, and runs it (``epochal.sinks.spark.observing.sifted``).
    """

    reads_all_rows: bool


@runtime_checkable
class FramedSink(Sink, Protocol):
    """A sink that may get a frame of the micro-batch: one of the DataFrames that ``Pipeline(frames=)`` returns.

    ``frame``: the name of the frame; None for the micro-batch itself.  The other methods of the sink do not differ:
    ``epoch.copy``, rows and schema are those of the frame.
    """

    frame: str | None


@runtime_checkable
class PairedSink(Sink, Protocol):
    """The sink that gets the rows that another sink of the pipeline, ``of``, leaves out.

    Each row is in exactly one of the two sinks.
    """

    @property
    def of(self) -> str: ...

    def judgement(self, epoch: Epoch, rows: Rows) -> Json:
        """Return everything, except the row itself, that decides which of the two sinks gets the row.

        If one of the two sinks shows an epoch already, the result must be the same when the other sink gets that epoch.
        """


@runtime_checkable
class NeighbourSink(Sink, Protocol):
    """A sink whose target may depend on the targets of other sinks of the same pipeline."""

    def check_beside(self, schema: Schema, others: Sequence[Sink]) -> None:
        """Raise ``Misconfigured`` if this sink could not take an epoch before another of these sinks shows it.

        A start asks this after ``check`` of all sinks.  Write nothing.
        """


@runtime_checkable
class AuditedSink(Sink, Protocol):
    """A sink with an audit: it can list the epochs that it shows."""

    def epochs(
        self, app: str, *, first: Position | None = None, last: Position | None = None, limit: int | None = None
    ) -> Epochs:
        """Return the epochs of ``app`` in the sink's own audit: positions ``first`` to ``last``, inclusive.

        ``limit``: return at most this many of them, the newest.  A small ``limit`` is cheap, however many epochs there
        are.  Epochs that the audit no longer keeps are left out.  The call needs no ``look`` before it, writes nothing
        and disturbs nobody.
        """


@dataclass(frozen=True)
class Applied:
    """The result of ``apply``: what it did, and the digest that the marker holds now."""

    outcome: CommitOutcome
    digest: Digest


@runtime_checkable
class ApplySink(RedoSink, Protocol):
    """A redo sink that can also write an epoch without a copy.  Idempotent mode needs this."""

    def check_apply(self) -> None:
        """Raise ``Misconfigured`` if this sink cannot ``apply``, because of its arguments or of what ``look`` found.

        The error says what to change.  The call asks no server.
        """

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:
        """Make ``rows`` visible in one atomic write together with the marker, which holds their digest.

        The write has the conditions of ``commit`` and is idempotent.  ``agreed``: the digest of every other
        evaluation of this epoch; None if this is the first.  If the digest of ``rows`` differs from it, raise
        ``NonDeterministicReplay`` and write nothing.  Raise ``PrepareRefused`` for rows that cannot be written; then
        none of them is visible.
        """


class Stage(Protocol):
    """Where durable copies are kept.  A copy is one evaluation of a micro-batch, which all sinks read."""

    def write(self, epoch: EpochNumber, by: Actor, rows: Rows) -> Copy:
        """Evaluate ``rows`` once into files; return the copy, which lists exactly its files."""

    def read(self, copy: Copy) -> Rows:
        """Return exactly the rows of ``copy``.  A missing or changed file is a named error, never fewer rows."""

    def clean(self, by: Actor, keep: Sequence[Copy]) -> None:
        """Remove copies of ``by`` and of older generations that are not in ``keep``."""


@runtime_checkable
class FolderStage(Stage, Protocol):
    """A stage whose copies lie in folders, so that a sink can write one, and are durable only after ``keep``."""

    def reserve(self, epoch: EpochNumber, by: Actor) -> str:
        """Return the URI of a folder that no earlier attempt of this actor has used; it does not exist yet."""

    def keep(self, epoch: EpochNumber, copy: Copy) -> None:
        """Make a copy of this epoch survive a power failure, whoever wrote it.  It comes before the decision."""


class MicroBatch(Protocol):
    """What Spark hands over: the rows, not yet evaluated, and a way to run the plan without using its rows."""

    @property
    def ask(self) -> EpochRequest: ...

    @property
    def rows(self) -> Rows: ...

    def discard(self) -> None:
        """Run the plan once and drop the rows, so that operator state and watermark advance."""

    def confirm(self) -> None:
        """Raise ``CheckpointMismatch`` if Spark's record of the epoch is not the one that ``ask`` was read from.

        Called right before the decision.  On an object store Spark does not keep two drivers of a checkpoint apart:
        the other one may have written its own offsets for the same epoch.
        """


class ForwardingSink:
    """A sink that lets another sink write its rows: the sink of bad rows, which writes ``into`` a sink of the user."""

    @property
    def into(self) -> Sink:
        """The sink that writes."""
        raise NotImplementedError


class SessionSink:
    """A sink whose marker can only be written through a running Spark session (Delta)."""
