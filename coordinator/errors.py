"""Every error that Epochal raises, under one base.

An error is *definite* (we know what happened: nothing became visible through the refused step) or
*indefinite* (``definite`` is False; above all ``CommitInDoubt``: a decided epoch is not yet proven visible
everywhere, or a decision is not proven taken).  The words are those of Jepsen's clients and of XA.  Each
message says what happened, where, which value, in which state, and what to do (one ``Help:`` line).
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
    """The set-up cannot keep the promise; refused at start, before anything is written."""


class PrepareRefused(EpochalError):
    """A participant votes no: these rows cannot be made visible in that sink."""


class Fenced(EpochalError):
    """A newer start has taken over; this one must end.  Whatever it left, the newer one settles."""


class CheckpointMismatch(EpochalError):
    """Checkpoint, log and sinks do not tell the same story; refused without writing anything."""


class MarkerLost(EpochalError):
    """A sink no longer holds a marker or fence that the log proves it once had."""


class LogCorrupt(EpochalError):
    """A record of the epoch log is torn, foreign, or newer than this version can read."""


class CalledTwice(EpochalError):
    """The pipeline was called a second time for one micro-batch."""


class NonDeterministicReplay(EpochalError):
    """Idempotent mode: two evaluations of one epoch gave different rows, so no sink may be given the second."""

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
    """A server did not answer, and it is *known* that the request had no effect.  Transient."""


class OutcomeUnknown(EpochalError):
    """A request was sent and its answer lost.  Only the marker can tell; ask it under the guard."""

    definite: ClassVar[bool] = False


class PreparedLost(EpochalError):
    """A participant lost prepared work (XA: heuristic abort), and provably shows nothing of it."""


class CommitInDoubt(EpochalError):
    """The epoch may be, or is, decided, and is not yet proven visible in every sink."""

    definite: ClassVar[bool] = False


class Interrupted(EpochalError):
    """KeyboardInterrupt, SystemExit or their like inside a batch; as such it would hang ``query.stop()``."""

    definite: ClassVar[bool] = False
