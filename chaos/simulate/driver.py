"""One start of a simulated query: a small model of Spark's micro-batch execution, with the real coordinator."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from epochal.chaos.observe.history import Started
from epochal.chaos.simulate.network import LogWorld, RemoteLog, WatchedServer, WatchedStage
from epochal.chaos.simulate.pipelines import (
    DRAWN,
    SAME,
    Checkpoint,
    ConcurrentUpdate,
    Pipeline,
    SimulatedCrash,
    StateMissing,
)
from epochal.coordinator.model.epoch import TWO_PHASE, EpochNumber, EpochRequest, Query
from epochal.coordinator.model.errors import EpochalError
from epochal.coordinator.model.events import EventPublisher
from epochal.coordinator.protocol.actions import OperatorAction, Rename
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.coordinator.protocol.report import EpochReport
from epochal.coordinator.protocol.retry import Retry, serial
from epochal.sinks.memory import MemoryRedoSink, MemorySink
from epochal.sinks.memory import Row as StoredRow
from epochal.sinks.memory_transaction import MemoryTransactionSink
from epochal.sinks.protocol import Rows, Sink

T = TypeVar("T")


class DriverWorld(LogWorld, Protocol):
    """The world of a driver: what survives the driver, and which driver runs now."""

    pipeline: Pipeline
    batch: int
    server: WatchedServer
    stage: WatchedStage
    compact_every: int
    current: Driver | None

    def needs_thread(self, driver: str) -> bool: ...
    def evaluation(self, epoch: EpochNumber) -> int: ...
    def another(self) -> int: ...
    def ended(self, driver: str, outcome: str, named: bool, definite: bool) -> None: ...


class Driver:
    """One start of the query: Spark's driver with a coordinator.  Everything in it is lost when it dies."""

    def __init__(
        self,
        world: DriverWorld,
        checkpoint: Checkpoint,
        name: str,
        until: int,
        *,
        mode: str = TWO_PHASE,
        pipeline: Pipeline | None = None,
        batch: int | None = None,
        calls: Callable[[int], bool] = lambda epoch: True,  # noqa: ARG005
    ) -> None:
        self.world = world
        self.checkpoint = checkpoint
        self.name = name
        self.until = until
        self.mode = mode
        self.pipeline = pipeline or world.pipeline
        self.batch = batch or world.batch
        self.calls = calls  # whether the user's function passes this epoch to the pipeline
        self.outcome = ""  # "" while it runs or is paused
        self.error: Exception | None = None
        self.paused = False
        self.state: dict[int, int] = {}  # state that this run wrote and no commits/N names yet
        self.reports: list[EpochReport] = []
        self.query = Query(self.pipeline.app, checkpoint.query_id, f"run-{name}", checkpoint.path)
        self.coordinator = self._coordinator()
        self._began = False
        self._wake = _taken()
        self._rest = _taken()
        self._broken: BaseException | None = None

    @property
    def finished(self) -> bool:
        return self.outcome == "finished"

    def _coordinator(self) -> Coordinator:
        world, pipeline = self.world, self.pipeline
        return Coordinator(
            query=self.query,
            sinks=self.sinks(),
            log=RemoteLog(self.checkpoint.log, world),
            mode=self.mode,
            stage=world.stage,
            runner=backwards if pipeline.backwards else serial,
            retry=Retry(attempts=4, sleep=lambda seconds: None),  # noqa: ARG005
            compact_every=world.compact_every,
            frames=self._frames if pipeline.frames else None,
            telling=EventPublisher(self.query),  # nobody listens: its warnings would be about the schedule's faults
        )

    def sinks(self) -> Sequence[Sink]:
        """Return new sink objects, as a process makes them that has just started."""
        server, stage, pipeline = self.world.server, self.world.stage, self.pipeline
        frame = pipeline.frame_of
        sinks: list[Sink] = [MemorySink(name, server, frame=frame(name)) for name in pipeline.voting]
        sinks += [MemoryRedoSink(name, server, stage, frame=frame(name)) for name in pipeline.redo]
        transactional = pipeline.transactional
        return sinks + [MemoryTransactionSink(name, server, stage, frame=frame(name)) for name in transactional]

    def _frames(self, rows: Rows) -> Mapping[str, Rows]:
        """Make the frames of rows that are evaluated already."""

        def draw() -> Iterator[StoredRow]:
            drawn = self.world.another()
            return ({**row, "attempt": drawn} for row in rows)

        return {SAME: rows, DRAWN: Evaluation(draw)}

    # --- life -----------------------------------------------------------------------------------

    def go(self) -> Driver:
        """Run or continue this driver until it ends or pauses."""
        before, self.world.current = self.world.current, self
        self.paused = False
        if self._began:
            self._wake.release()
        else:
            self._began = True
            self.world.history.add(Started(self.name))
            if self.world.needs_thread(self.name):
                _thread.start_new_thread(self._live, ())
            else:
                self._live()
        if not self._rest.acquire(timeout=300):
            raise AssertionError(f"{self.name} neither ended nor paused")
        self.world.current = before
        if self._broken is not None:
            raise self._broken
        return self

    def pause(self) -> None:
        """Stop, as a stopped process does, until :meth:`go` is called again."""
        self.paused = True
        self._rest.release()
        if not self._wake.acquire(timeout=300):
            raise SimulatedCrash

    def _live(self) -> None:
        try:
            self._end(*self._outcome())
        except BaseException as error:
            self._broken = error
        finally:
            self._rest.release()

    def _outcome(self) -> tuple[str, bool, bool]:
        """Run to the end; return (outcome, named, definite)."""
        try:
            self._spark()
            return "finished", True, True
        except SimulatedCrash:
            return "killed", True, True
        except EpochalError as error:
            self.error = error
            return type(error).__name__, True, error.definite
        except ConcurrentUpdate as error:
            self.error = error
            return "ConcurrentUpdate", True, True
        except Exception as error:
            self.error = error
            return type(error).__name__, False, False

    def _end(self, outcome: str, named: bool, definite: bool) -> None:
        self.outcome = outcome
        self.world.ended(self.name, outcome, named, definite)

    # --- Spark ----------------------------------------------------------------------------------

    def _spark(self) -> None:
        """Micro-batch execution: plan, run and commit each epoch.  An epoch without ``commits/N`` is run again."""
        planned = max(self.checkpoint.offsets, default=-1)
        epoch = planned if planned >= 0 and planned not in self.checkpoint.commits else planned + 1
        while epoch <= self.until:
            first, last = self._plan(epoch)
            self.world.happen("spark", "planned", epoch=epoch)
            self._batch(epoch, first, last)
            self.world.happen("spark", "returned", epoch=epoch)
            if epoch in self.checkpoint.commits:
                raise ConcurrentUpdate(f"commits/{epoch}")
            self._commit(epoch)
            self.world.touch()
            self.world.happen("spark", "committed", epoch=epoch)
            epoch += 1

    def _commit(self, epoch: int) -> None:
        """Write ``commits/N``, which names the state that this run wrote.  Raises StateMissing if it wrote none."""
        if epoch + 1 not in self.state:
            raise StateMissing(f"epoch {epoch} is to be committed, and its plan was never run")
        self.checkpoint.commits.add(epoch)
        self.checkpoint.state[epoch + 1] = self.state.pop(epoch + 1)

    def _plan(self, epoch: int) -> tuple[int, int]:
        known = self.checkpoint.offsets.get(epoch)
        if known is not None:
            if epoch in self.checkpoint.commits:
                raise ConcurrentUpdate(f"offsets/{epoch}")
            return known
        start = self.checkpoint.offsets[epoch - 1][1] if epoch > 0 else 0
        self.checkpoint.offsets[epoch] = (start, start + self.batch)
        return self.checkpoint.offsets[epoch]

    def _batch(self, epoch: int, first: int, last: int) -> None:
        fingerprint = f"{first}-{last}"
        ask = EpochRequest(self.query, epoch, fingerprint, offsets=fingerprint)
        batch = SimulatedBatch(self, ask, first, last)
        if self.calls(epoch):
            self.reports.append(self.coordinator.run(batch))
        else:
            batch.discard()


class Person(Driver):
    """A start that carries out one operator action (``epochal.coordinator.protocol.actions``) and runs no epoch."""

    def __init__(
        self, world: DriverWorld, checkpoint: Checkpoint, name: str, act: OperatorAction, **options: Any
    ) -> None:
        self._act = act
        super().__init__(world, checkpoint, name, -1, **options)

    def sinks(self) -> Sequence[Sink]:
        """Return the sinks; a sink that is renamed comes under both names."""
        sinks = super().sinks()
        if not isinstance(self._act, Rename):
            return sinks
        both = [s.renamed(self._act.new) if s.name == self._act.old else (s,) for s in sinks]  # type: ignore[attr-defined]
        return [sink for part in both for sink in part]

    def _spark(self) -> None:
        planned = max(self.checkpoint.offsets, default=-1)
        done = planned in self.checkpoint.commits or planned < 0
        self.record = self.coordinator.act(EpochRequest(self.query, planned + 1 if done else planned, ""), self._act)


class SimulatedBatch:
    """A micro-batch as Spark passes it.  Every iteration over ``rows`` evaluates it again."""

    def __init__(self, driver: Driver, ask: EpochRequest, first: int, last: int) -> None:
        self._driver = driver
        self._ask = ask
        self._keys = range(first, last)

    @property
    def ask(self) -> EpochRequest:
        return self._ask

    @property
    def rows(self) -> Rows:
        return Evaluation(self._evaluate)

    def discard(self) -> None:
        list(self._evaluate())

    def confirm(self) -> None:
        """The simulated checkpoint lets one driver write an epoch's offsets."""

    def _evaluate(self) -> Iterator[StoredRow]:
        """Evaluate a running count.  It reads the state of the epoch before, and writes the state of this epoch."""
        epoch, state = self._ask.epoch, self._driver.checkpoint.state
        if epoch not in state:
            raise StateMissing(f"epoch {epoch} builds on state version {epoch}, which was never written")
        attempt = self._driver.world.evaluation(epoch)
        count = state[epoch]
        for key in self._keys:
            count += 1
            yield {"id": key, "attempt": attempt, "epoch": epoch, "n": count}
        self._driver.state[epoch + 1] = count


class Evaluation:
    """Rows that are computed each time somebody reads them."""

    def __init__(self, evaluate: Callable[[], Iterator[StoredRow]]) -> None:
        self._evaluate = evaluate

    def __iter__(self) -> Iterator[StoredRow]:
        return self._evaluate()


def backwards(tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run the tasks one after another in reverse order; return the results in the given order."""
    return list(reversed(serial(list(reversed(tasks)))))


def _taken() -> threading.Lock:
    """Return a lock that is held already.  It works like a semaphore that starts at 0, and is cheaper."""
    lock = threading.Lock()
    lock.acquire()
    return lock
