"""Every error that Epochal raises, under one base.

An error is *definite* (we know what happened: nothing became visible through the refused step) or
*indefinite* (``definite`` is False; above all ``CommitInDoubt``: a decided epoch is not yet proven visible
everywhere, or a decision is not proven taken).  The words are those of Jepsen's clients and of XA.  Each
message says what happened, where, which value, in which state, and what to do (one ``Help:`` line).

Each docstring has three parts: what the error means, its usual causes, and what to do.  ``make docs`` writes
``docs/errors.md`` from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class EpochalError(Exception):
    """Base of all.  ``str()`` gives ``sink 'S', epoch N: what``, and below it lines of ``State:`` and ``Help:``."""

    definite: ClassVar[bool] = True

    def __init__(
        self,
        what: str,
        *,
        help: str,
        sink: str | None = None,
        epoch: int | None = None,
        state: str | None = None,
    ) -> None:
        self.what = what
        self.help = help
        self.sink = sink
        self.epoch = epoch
        self.state = state
        super().__init__(self._text())

    def _text(self) -> str:
        where = []
        if self.sink is not None:
            where.append(f"sink {self.sink!r}")
        if self.epoch is not None:
            where.append(f"epoch {self.epoch}")
        head = f"{', '.join(where)}: " if where else ""
        state = f"\n  State: {self.state}" if self.state else ""
        return f"{head}{self.what}{state}\n  Help: {self.help}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Spark's Python workers to the driver, so they must survive pickling.
        fields = (type(self), self.what, self.help, self.sink, self.epoch, self.state)
        return (_rebuild, fields)


def _rebuild(
    kind: type[EpochalError],
    what: str,
    help: str,
    sink: str | None,
    epoch: int | None,
    state: str | None,
) -> EpochalError:
    return kind(what, help=help, sink=sink, epoch=epoch, state=state)


class Misconfigured(EpochalError):
    """The set-up cannot keep the promise; refused at start, before anything is written.

    Cause: an option, a right, a table, topic, version or query that does not fit; ``docs/limits.md`` lists what is
    not supported.

    Remedy: do what the message's ``Help:`` says, and start again.  An epoch that was in doubt before still is.
    """


class PrepareRefused(EpochalError):
    """A participant votes no: these rows cannot be made visible in that sink.

    Cause: a value that the sink cannot hold, a row that a constraint refuses, a key that stands twice in an epoch,
    an expression without a result.  The epoch is not decided, and no sink shows anything of it.

    Remedy: mend the rows (in the query, with ``where=``, or with ``bad_rows=`` for those alone) or the table, and
    restart: Spark replays the epoch.
    """


class Fenced(EpochalError):
    """A newer start has taken over; this one must end.  Whatever it left, the newer one settles.

    Cause: the query was started twice, or a driver that was taken for dead woke up.

    Remedy: nothing, if the newer start is the one that is wanted.  Else stop that one and restart this one.
    """


class CheckpointMismatch(EpochalError):
    """Checkpoint, log and sinks do not tell the same story; refused without writing anything.

    Cause: a checkpoint that was copied, moved, rolled back, deleted or restored from a backup older than the sinks;
    a sink that was left out, renamed or pointed at another table or topic; a table or topic that was dropped and
    made again; a batch that passed the pipeline by.

    Remedy: put back what was changed, or run the checkpoint that these sinks belong to.  A new checkpoint needs
    another app name.  Never delete the log or the markers to get past this error: it stands between you and rows
    twice.
    """


class MarkerLost(EpochalError):
    """A sink no longer holds a marker or fence that the log proves it once had.

    Cause: a sink was restored from a backup older than the checkpoint, emptied, or lost its bookkeeping (the schema
    ``epochal`` in Postgres, the marker topic in Kafka, the transaction ids in Delta's log).

    Remedy: rows that were visible may be gone with it: restore the sink to a newer state, one that shows the log's
    last epoch or the one before.
    """


class LogCorrupt(EpochalError):
    """A record of the epoch log is torn, foreign, or newer than this version can read.

    Cause: a file below ``epochal/log`` was edited, cut, or deleted; a disk that failed; an older Epochal on a newer
    log.

    Remedy: upgrade Epochal if the record is newer; else restore the checkpoint, whole, from a backup that is not
    older than the sinks.
    """


class CalledTwice(EpochalError):
    """The pipeline was called a second time for one micro-batch.

    Cause: a function of your own that calls it in a loop or for parts of the batch, or two pipelines of one app in
    one batch.  The rows of the first call are committed, those of the second are not.

    Remedy: union what belongs to one epoch and call the pipeline once.  No restart makes up for the rows of the
    second call, as the epoch is decided: write them in a later one.
    """


class NonDeterministicReplay(EpochalError):
    """Idempotent mode: two evaluations of one epoch gave different rows, so no sink may be given the second.

    Cause: a random value, the order of rows, or a file, table or service that a function reads and that has
    changed.

    Remedy: put back what the query depended on, and restart.  If no sink shows the epoch yet, ``mode="two-phase"``
    evaluates it once and decides.
    """

    @classmethod
    def between(
        cls, digests: Mapping[str, object], *, epoch: int, state: str, sink: str | None = None
    ) -> NonDeterministicReplay:
        """``digests``: what each evaluation gave, by the name of the sink that has it or was to have it."""
        return cls(
            f"evaluated more than once, and not to the same rows: {', '.join(f'{n} {d}' for n, d in digests.items())}",
            sink=sink,
            epoch=epoch,
            state=state,
            help="find what differs from one evaluation to the next (a random value, the order of rows, a file, table"
            " or service that a function reads) and put it back as it was, then restart; an epoch that no sink shows"
            ' yet can be run with mode="two-phase" instead; where it cannot be put back, `epochal resolve --evaluation`'
            " lets the sinks that show it keep their rows",
        )


class SinkUnavailable(EpochalError):
    """A server did not answer, and it is *known* that the request had no effect.  Transient.

    Cause: a server that is down or unreachable, a time limit, a disk that cannot be read.  It was asked again as
    often as ``retry=`` says.

    Remedy: bring the server back and restart the query; nothing else has to be done.
    """


class OutcomeUnknown(EpochalError):
    """A request was sent and its answer lost.  Only the marker can tell; ask it under the guard.

    Cause: a connection that broke, or a server that died, after a write was sent.

    Remedy: restart the query: the next start asks the sink or the log whether the write landed, and goes on from
    there. Do not write the rows by hand.
    """

    definite: ClassVar[bool] = False


class PreparedLost(EpochalError):
    """A participant lost prepared work (XA: heuristic abort), and provably shows nothing of it.

    Cause: prepared rows or files were deleted (VACUUM, a clean-up by hand, a restored table), or the table was
    changed so that they no longer fit.

    Remedy: restart: a decided epoch is redone from the durable copy, or from Spark's replay where there is none.
    If that is impossible the start says why, in ``CommitInDoubt``.
    """


class CommitInDoubt(EpochalError):
    """The epoch may be, or is, decided, and is not yet proven visible in every sink.

    Cause: a sink that is down, or refuses rows, after the decision; a log whose answer was lost.  The message names
    which sinks show the epoch and which do not.

    Remedy: mend what the message names (server, rights, disk, constraint) and restart with the same sinks: the next
    start finishes the epoch first.  Leave the checkpoint, its ``epochal/`` folder and what is prepared as they are.
    """

    definite: ClassVar[bool] = False


class Interrupted(EpochalError):
    """KeyboardInterrupt, SystemExit or their like inside a batch; as such it would hang ``query.stop()``.

    Cause: Ctrl-C, ``sys.exit()`` or a signal while an epoch was under way.

    Remedy: restart the query: the next start finishes what was decided and drops what was not.
    """

    definite: ClassVar[bool] = False
