"""The simulated parts: a query's sinks, Spark's checkpoint, and the errors of a driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE

SAME, DRAWN = "same", "drawn"
"""Frames: the rows of the micro-batch, and rows that are others whenever the frame is computed."""


class SimulatedCrash(BaseException):
    """The driver dies here.  Production code must never catch this."""


class ConcurrentUpdate(Exception):
    """The error that Spark raises if another driver wrote this entry of its log (CONCURRENT_STREAM_LOG_UPDATE)."""


class StateMissing(Exception):
    """The error that Spark raises if the state that an epoch needs was never written."""


@dataclass(frozen=True)
class Pipeline:
    """The names of the sinks that a query writes to, by kind.  The coordinator works in the order of the names."""

    voting: tuple[str, ...]
    redo: tuple[str, ...] = ()
    app: str = "flights"
    backwards: bool = False  # the runner works on the sinks in reverse order
    modes: tuple[str, ...] = (TWO_PHASE,)  # of the first driver, the second, and so on, repeated cyclically
    transactional: tuple[str, ...] = ()  # these vote with one open transaction each, as Kafka does
    frames: tuple[tuple[str, str], ...] = ()  # (sink, SAME or DRAWN): the sinks that get a frame

    @property
    def sinks(self) -> tuple[str, ...]:
        return tuple(sorted((*self.voting, *self.redo, *self.transactional)))

    def frame_of(self, sink: str) -> str | None:
        return dict(self.frames).get(sink)

    @property
    def losing(self) -> tuple[str, ...]:
        """The sinks that can lose what is prepared."""
        return (*self.voting, *self.transactional)

    @property
    def repeats(self) -> bool:
        """Whether every evaluation must give the same rows, as idempotent mode requires."""
        return IDEMPOTENT in self.modes


@dataclass
class Checkpoint:
    """Spark's checkpoint with our log in it.  ``offsets`` maps an epoch to (first input, last input + 1)."""

    path: str = "/checkpoint"
    query_id: str = "query-1"
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    state: dict[int, int] = field(default_factory=lambda: {0: 0})  # epoch -> the running count before it
    log: MemoryLog = field(default_factory=MemoryLog)

    def copy(self, path: str) -> Checkpoint:
        """Return a copy of the folder at ``path``, with the same query id in its metadata and the same log."""
        return Checkpoint(path, self.query_id, dict(self.offsets), set(self.commits), dict(self.state), self.log.copy())
