"""A world that a test directs by hand: what the known schedules have in common."""

from __future__ import annotations

from typing import Any, Protocol

from epochal.chaos.observe.history import Decided
from epochal.chaos.simulate.driver import Driver, Person
from epochal.chaos.simulate.pipelines import Checkpoint, Pipeline
from epochal.chaos.simulate.simulation import Simulation
from epochal.coordinator.model.errors import EpochalError
from epochal.coordinator.protocol.actions import OperatorAction

APP = "flights"


class Scene(Simulation):
    """A world that a test directs by hand, and that is judged at the end like any other."""

    def start(self, name: str, until: int, checkpoint: Checkpoint | None = None, **options: Any) -> Driver:
        return self.driver(name, until, checkpoint, **options).go()

    def says(self, name: str, act: OperatorAction, checkpoint: Checkpoint | None = None, **options: Any) -> Person:
        person = Person(self, checkpoint or self.checkpoint, name, act, **options)
        person.go()
        return person

    def also(self, checkpoint: Checkpoint) -> Checkpoint:
        """What another checkpoint's log says from now on belongs to the history, too."""
        self._told |= {(len(self.logs), entry.position) for entry in checkpoint.log.read()}
        self.logs.append(checkpoint.log)
        return checkpoint

    def ids(self, sink: str = "pg") -> list[int]:
        return [row["id"] for row in self.server.visible(APP, self.kept_as(sink))]

    def decisions(self, epoch: int) -> list[Decided]:
        return [d for _, d in self.history.of(Decided) if d.epoch == epoch]

    def fences(self) -> list[object]:
        return [self.server.table(APP, self.kept_as(sink)).fence for sink in self.pipeline.sinks]

    def markers(self) -> list[object]:
        return [self.server.table(APP, self.kept_as(sink)).marker for sink in self.pipeline.sinks]

    def holds(self, until: int) -> None:
        """One more start over one more epoch without faults; then everything is as if nothing had failed."""
        self.converge(until)
        outcome = self.outcome(until)
        assert not outcome.wrong, f"{outcome}"

    def everything(self) -> tuple[list[object], list[object], list[list[int]]]:
        """Fences, markers and visible rows of all sinks: what a refused start leaves as it is."""
        return self.fences(), self.markers(), [self.ids(sink) for sink in self.pipeline.sinks]


class MakeScene(Protocol):
    """Makes a world of its own kind; all that it was told to do must have happened in the end."""

    def __call__(self, pipeline: Pipeline, kind: type[Scene] = Scene) -> Scene: ...


def refused(driver: Driver, *kinds: type[EpochalError]) -> EpochalError:
    """The error it ended with, which is one of ``kinds``."""
    assert isinstance(driver.error, kinds), f"{driver.name} ended with {driver.outcome}: {driver.error}"
    return driver.error
