"""What is simulated: a query's sinks, Spark's checkpoint, and the errors of a driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE


class SimulatedCrash(BaseException):
    """The driver dies here; no production code may catch it."""


class ConcurrentUpdate(Exception):
    """What Spark raises when another driver wrote this entry of its log (CONCURRENT_STREAM_LOG_UPDATE)."""


class StateMissing(Exception):
    """What Spark raises when the state that an epoch builds on was never written."""


@dataclass(frozen=True)
class Pipeline:
    """Which sinks a query writes to: names, by kind; names give the order of the coordinator."""

    voting: tuple[str, ...]
    redo: tuple[str, ...] = ()
    app: str = "flights"
    backwards: bool = False  # the runner takes the sinks in the other order
    modes: tuple[str, ...] = (TWO_PHASE,)  # of the first driver, the second, and so on, over and over

    @property
    def sinks(self) -> tuple[str, ...]:
        return tuple(sorted((*self.voting, *self.redo)))

    @property
    def repeats(self) -> bool:
        """Whether every evaluation has to give the same rows, as idempotent mode asks for."""
        return IDEMPOTENT in self.modes


@dataclass
class Checkpoint:
    """Spark's checkpoint with our log in it.  ``offsets``: epoch -> (first, last + 1) input."""

    path: str = "/checkpoint"
    query_id: str = "query-1"
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    state: dict[int, int] = field(default_factory=lambda: {0: 0})  # before this epoch -> running count
    log: MemoryLog = field(default_factory=MemoryLog)

    def copy(self, path: str) -> Checkpoint:
        """The folder, copied: the same query id in its metadata, the same log."""
        return Checkpoint(path, self.query_id, dict(self.offsets), set(self.commits), dict(self.state), self.log.copy())
