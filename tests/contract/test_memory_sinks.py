"""The sink contract, over both in-memory references."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from epochal.coordinator.epoch import Actor, Committable, Copy, Json
from epochal.coordinator.errors import EpochalError
from epochal.sinks.memory import MemoryRedoSink, MemoryServer, MemorySink, MemoryStage, Row
from epochal.sinks.protocol import RedoSink, Rows, Sink
from tests.contract.sink_contract import ABORTED, SinkContract, query


class VotingHarness:
    """The reference that holds prepared rows invisible."""

    prepare_is_fenced = True

    def __init__(self) -> None:
        self.app = "flights"
        self.schema = None
        self.secrets: Sequence[str] = ()
        self.server = MemoryServer()
        self.stage = MemoryStage()

    def sink(self) -> Sink:
        return self.named("out")

    def named(self, name: str) -> Sink:
        return MemorySink(name, self.server)

    def neighbour(self) -> Sink:
        return self.sink()

    def rows(self, ids: Sequence[str], attempt: str) -> Rows:
        return [{"id": key, "attempt": attempt, "n": n} for n, key in enumerate(ids)]

    def no_partitions(self) -> Rows:
        return []

    def copy(self, rows: Rows, epoch: int, by: Actor) -> Copy | None:  # noqa: ARG002
        return None

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
