"""Every error that Epochal raises, under one base.

A *definite* error means that we know what happened: nothing became visible through the refused step.  An *indefinite*
error (``definite`` is False) means that we do not know.  The main one is ``CommitInDoubt``: an epoch is decided and
not yet proven visible everywhere, or it is not known whether the epoch is decided.  The terms come from Jepsen's
clients and from XA.  Each message says what happened, where, with which value, in which state, and what to do (one
``Help:`` line).

Each docstring has three parts: what the error means, its usual causes, and what to do.  ``make docs`` writes
``docs/errors.md`` from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class EpochalError(Exception):
    """Base of all errors.  ``str()`` gives ``sink 'S', epoch N: what``, then a line ``State:`` and a line ``Help:``."""

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
    """The set-up cannot keep the promise.  It is refused at start, before anything is written.

    Cause: an option, a right, a table, topic, version or query that does not fit; ``docs/limits.md`` lists what is
    not supported.

    Remedy: do what the message's ``Help:`` says, and start again.  An epoch that was in doubt before is still in doubt.
    """


class PrepareRefused(EpochalError):
    """A sink votes no: it cannot make these rows visible.

    Cause: a value that the sink cannot hold, a row that a constraint refuses, a key that occurs twice in an epoch,
    an expression without a result.  The epoch is not decided, and no sink shows anything of it (except in idempotent
    mode: a sink that was written before the refusing one, in this start or in an earlier one, may show it).

    Remedy: correct the rows (in the query, with ``where=``, or with ``bad_rows=`` only for the bad ones) or the table,
    and restart: Spark replays the epoch.
    """


class Fenced(EpochalError):
    """A newer start has taken over, and this start must end.  The newer start settles whatever this one left.

    Cause: the query was started twice, or a driver that was believed dead woke up.

    Remedy: nothing, if you want the newer start.  Else stop the newer start and restart this query.
    """


class CheckpointMismatch(EpochalError):
    """Checkpoint, log and sinks contradict each other.  The start or the epoch is refused, and nothing is written.

    Cause: a checkpoint that was copied, moved, rolled back, deleted or restored from a backup older than the sinks;
    a sink that was left out, renamed or pointed at another table or topic; a table or topic that was dropped and
    created again; a batch for which the pipeline was not called.

    Remedy: put back what was changed, or run the checkpoint that these sinks belong to.  A new checkpoint needs
    ``epochal adopt --new`` or another app name.  Never delete the log or the markers to get past this error: it
    protects you from duplicate rows.
    """


class MarkerLost(EpochalError):
    """A sink no longer holds a marker or fence that the log proves it once had.

    Cause: a sink was restored from a backup older than the checkpoint, was emptied, or lost its bookkeeping (the
    schema ``epochal`` in Postgres, the marker topic in Kafka, the transaction ids in Delta's log).

    Remedy: rows that were visible may be gone, too.  Restore the sink to a newer state that shows the log's last epoch
    or the one before.
    """


class LogCorrupt(EpochalError):
    """A record of the epoch log is damaged, not ours, or newer than this version can read.

    Cause: a file below ``epochal/log`` was edited, cut, or deleted; a disk failed; an older Epochal reads a newer log.

    Remedy: upgrade Epochal if the record is newer.  Else restore the whole checkpoint from a backup that is not
    older than the sinks.
    """


class CalledTwice(EpochalError):
    """The pipeline was called a second time for one micro-batch.

    Cause: your own function calls it in a loop or for parts of the batch, or two pipelines of one app are called in
    one batch.  The rows of the first call are committed, those of the second are not.

    Remedy: union all rows of one epoch and call the pipeline once.  No restart writes the rows of the second call,
    because the epoch is decided: write them in a later epoch.
    """


class NonDeterministicReplay(EpochalError):
    """Idempotent mode: two evaluations of one epoch gave different rows, so no sink may get the second.

    Cause: a random value, the order of rows, or a file, table or service that a function reads and that has
    changed.

    Remedy: put back what the query depended on, and restart.  If no sink shows the epoch yet, ``mode="two-phase"``
    evaluates it once and decides it.
    """

    @classmethod
    def between(
        cls, digests: Mapping[str, object], *, epoch: int, state: str, sink: str | None = None
    ) -> NonDeterministicReplay:
        """Make the error from the digests of the evaluations.

        ``digests``: one digest per evaluation.  The key says which evaluation it is: the name of the sink that shows
        its rows or should have got them, or other words.
        """
        return cls(
            f"evaluated more than once, and not to the same rows: {', '.join(f'{n} {d}' for n, d in digests.items())}",
            sink=sink,
            epoch=epoch,
            state=state,
            help="find what differs between the evaluations (a random value, the order of rows, a file, table or"
            " service that a function reads), put it back as it was, and restart. If no sink shows the epoch yet,"
            ' mode="two-phase" can run it, too. If it cannot be put back, `epochal resolve --evaluation SINK`'
            " lets the sinks that show the epoch keep their rows",
        )


class SinkUnavailable(EpochalError):
    """A server did not answer, and it is *known* that the request had no effect.  Transient.

    Cause: a server that is down or unreachable, a time limit, a disk that cannot be read.  The request was repeated as
    often as ``retry=`` allows.

    Remedy: bring the server back and restart the query.  Nothing else has to be done.
    """


class OutcomeUnknown(EpochalError):
    """A request was sent and its answer was lost, so it is not known whether the write happened.

    Cause: a connection broke, or a server died, after a write was sent.

    Remedy: restart the query: the next start asks the sink or the log whether the write happened, and goes on from
    there.  Do not write the rows by hand.
    """

    definite: ClassVar[bool] = False


class PreparedLost(EpochalError):
    """A sink lost the rows that it had prepared (XA: heuristic abort), and provably shows none of them.

    Cause: prepared rows or files were deleted (VACUUM, a clean-up by hand, a restored table), or the table was
    changed so that they no longer fit.

    Remedy: restart: a decided epoch is redone from the durable copy or, if there is none, from Spark's replay.
    If that is impossible, the start ends with ``CommitInDoubt``, which says why.
    """


class CommitInDoubt(EpochalError):
    """The epoch is decided, or may be decided, and it is not yet proven visible in every sink.

    Cause: after the decision a sink is down or refuses rows, or the answer of the log was lost.  The message names
    which sinks show the epoch and which do not.

    Remedy: repair what the message names (server, rights, disk, constraint) and restart with the same sinks: the next
    start finishes the epoch first.  Do not change the checkpoint, its ``epochal/`` folder or the prepared rows.
    """

    definite: ClassVar[bool] = False


class Interrupted(EpochalError):
    """The query was stopped, or its process was told to end, while an epoch was in progress.

    Cause: ``query.stop()``; or Ctrl-C, ``sys.exit()`` or a signal.  (KeyboardInterrupt, SystemExit and the like are
    replaced by this error, because in a batch they would make ``query.stop()`` hang.)

    Remedy: nothing, if the query shall not run.  Else restart it: the next start finishes what was decided and drops
    what was not.
    """

    definite: ClassVar[bool] = False
