"""The sink contract, over both in-memory references."""

from __future__ import annotations

import pytest

from epochal.chaos.contract import ABORTED, SinkContract, SinkHarness, query
from epochal.coordinator.epoch import Actor, Committable, Copy, Json
from epochal.coordinator.errors import EpochalError
from epochal.sinks.memory import MemoryRedoSink, MemoryServer, MemorySink, MemoryStage, Row
from epochal.sinks.protocol import RedoSink, Rows, Sink


class VotingHarness(SinkHarness):
    """The reference that holds prepared rows invisible."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.stage = MemoryStage()

    def named(self, name: str) -> Sink:
        return MemorySink(name, self.server)

    def visible(self) -> list[tuple[str, str]]:
        return [(row["id"], row["attempt"]) for row in self.server.visible(self.app, "out")]

    def restart_server(self) -> None:
        self.server.crash()
        self.server.restart()

    def in_another_process(self, committable: Json | None, by: Json) -> str:
        """A process that shares nothing but the server cannot be had in memory: a fresh object stands for it."""
        sink = self.sink()
        sink.look(query(self.app))
        try:
            if committable is not None:
                return sink.commit(Committable.from_json(committable), Actor.from_json(by)).name
            sink.abort(query(self.app), Actor.from_json(by))
            return ABORTED
        except EpochalError as error:
            return type(error).__name__


class RedoHarness(VotingHarness):
    """The reference that redoes its rows from the durable copy."""

    prepare_is_fenced = False

    def named(self, name: str) -> Sink:
        return MemoryRedoSink(name, self.server, self.stage)

    def copy(self, rows: Rows, epoch: int, by: Actor) -> Copy | None:
        return self.stage.write(epoch, by, rows)


class TestMemorySink(SinkContract):
    @pytest.fixture
    def harness(self) -> VotingHarness:
        return VotingHarness()

    def test_it_votes(self, harness: VotingHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)


class TestMemoryRedoSink(SinkContract):
    @pytest.fixture
    def harness(self) -> RedoHarness:
        return RedoHarness()

    def test_it_redoes(self, harness: RedoHarness) -> None:
        assert isinstance(harness.sink(), RedoSink)


def test_rows_may_be_anything_that_is_iterated_once() -> None:
    def once() -> list[Row]:
        evaluations.append(1)
        return [{"id": "a"}]

    class Lazy:
        def __iter__(self) -> object:
            return iter(once())

    evaluations: list[int] = []
    MemoryStage().write(0, Actor(1, 1), Lazy())
    assert evaluations == [1]
