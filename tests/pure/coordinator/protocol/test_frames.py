"""Frames in the records of the log."""

from __future__ import annotations

from epochal.checkpoints.log import Commit, Entry, Participant
from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision
from epochal.coordinator.protocol.history import History

DECISION = Decision("query", 0, Actor(1, 1), "fingerprint")
BATCH, ITEMS = (Copy(f"file:///copies/0/1-1-{n}", (CopyFile("part", 1, 1),), "{}") for n in range(2))


def test_the_copies_of_frames_are_needed_as_long_as_that_of_the_micro_batch() -> None:
    """`epochal clean` and an operator's action delete copies while an epoch is in doubt."""
    vote = Participant("table 1", Committable("items", DECISION, 1, 1), "items")
    decided = Commit(DECISION, Actor(1, 1), {"items": vote}, copy=BATCH, frames={"items": ITEMS})
    assert set(History.of([Entry(0, decided)]).needed_copies()) == {BATCH, ITEMS}
    over = Commit(
        Decision("query", 1, Actor(1, 1), "fingerprint"), Actor(1, 1), {"items": vote}, done_through={"items": 0}
    )
    assert set(History.of([Entry(0, decided), Entry(1, over)]).needed_copies()) == set()
