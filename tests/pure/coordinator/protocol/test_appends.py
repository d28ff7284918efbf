"""What an append says if its answer is lost and the log then cannot tell whose record is at the position."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from epochal.checkpoints.log import Commit, Entry, Fence, LogPosition, Record
from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model.epoch import EpochRequest, Query
from epochal.coordinator.model.errors import CommitInDoubt, EpochalError, LogCorrupt, Misconfigured
from epochal.coordinator.protocol.coordinator import Coordinator
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


def run(log: MemoryLog) -> MemoryServer:
    server = MemoryServer()
    server.create("app", "a")
    retry = Retry(attempts=3, sleep=lambda _: None)
    Coordinator(query=QUERY, sinks=[MemorySink("a", server)], log=log, retry=retry).run(Batch())
    return server


@pytest.mark.parametrize("kind", [Misconfigured, LogCorrupt])
def test_a_fence_without_an_answer_names_what_is_wrong_with_the_log(kind: type[EpochalError]) -> None:
    """Whether the fence was written does not matter: the start ends, and the next one writes a newer fence."""
    with pytest.raises(kind, match="no right to read"):
        run(LostAnswers(Fence, kind("no right to read", help="grant it")))


def test_a_decision_whose_record_is_compacted_away_is_in_doubt() -> None:
    """The position is taken, and no record is there: it may have been ours, or that of another start."""
    with pytest.raises(CommitInDoubt, match="the commit record at position 1 was written is not known"):
        run(LostAnswers(Commit))
