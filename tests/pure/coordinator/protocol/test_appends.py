"""What an append says if its answer is lost and the log then cannot tell whose record is at the position."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from epochal.checkpoints.log import Commit, Entry, Fence, LogPosition, Record
from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model.epoch import EpochRequest, Query
from epochal.coordinator.model.errors import CommitInDoubt, EpochalError, LogCorrupt, Misconfigured, SinkUnavailable
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.coordinator.protocol.report import EpochReport
from epochal.coordinator.protocol.retry import Retry
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.protocol import Rows

QUERY = Query("app", "query", "run", "file:/checkpoint")


class Batch:
    """One row of one epoch."""

    ask = EpochRequest(QUERY, 0, "fingerprint")
    rows: Rows = ({"id": 0},)

    def discard(self) -> None:
        """Nothing has state."""

    def confirm(self) -> None:
        """Nothing else writes here."""


class LostAnswers(MemoryLog):
    """Writes the first record of ``kind`` and does not answer.  After that, reads give ``error``, or no record."""

    def __init__(self, kind: type[Record], error: EpochalError | None = None) -> None:
        super().__init__()
        self.kind, self.error, self.is_lost = kind, error, False

    def append(self, position: LogPosition, record: Record) -> bool:
        taken = super().append(position, record)
        if isinstance(record, self.kind) and not self.is_lost:
            self.is_lost = True
            raise OSError("no answer")
        return taken

    def read(self) -> Sequence[Entry]:
        if not self.is_lost:
            return super().read()
        if self.error is not None:
            raise self.error
        return ()


class World:
    """A server with one sink, and a log that loses an answer."""

    def __init__(self, log: LostAnswers) -> None:
        self.log, self.server = log, MemoryServer()
        self.server.create("app", "a")

    def run(self) -> EpochReport:
        retry = Retry(attempts=3, sleep=lambda _: None)
        sink = MemorySink("a", self.server)
        return Coordinator(query=QUERY, sinks=[sink], log=self.log, retry=retry).run(Batch())


@pytest.mark.parametrize("kind", [Misconfigured, LogCorrupt])
def test_a_fence_without_an_answer_names_what_is_wrong_with_the_log(kind: type[EpochalError]) -> None:
    """Whether the fence was written does not matter: the start ends, and the next one writes a newer fence."""
    with pytest.raises(kind, match="no right to read"):
        World(LostAnswers(Fence, kind("no right to read", help="grant it"))).run()


def test_a_decision_at_a_taken_position_of_a_log_that_cannot_be_read_is_in_doubt() -> None:
    world = World(LostAnswers(Commit, SinkUnavailable("the log cannot be read", help="start it")))
    with pytest.raises(CommitInDoubt, match="the commit record at position 1 was written is not known") as doubt:
        world.run()
    assert "the log cannot be read" in str(doubt.value)
    assert world.server.table("app", "a").prepared, "nothing is aborted in doubt"
    world.log.is_lost = False
    assert world.run().replayed
    assert world.server.visible("app", "a") == [{"id": 0}]


def test_a_decision_whose_record_is_compacted_away_is_in_doubt() -> None:
    """The position is taken, and no record is there: it may have been ours, or that of another start."""
    with pytest.raises(CommitInDoubt, match="the commit record at position 1 was written is not known"):
        World(LostAnswers(Commit)).run()
