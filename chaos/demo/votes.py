"""How Kafka showed the epochs of the demo: in which transaction, and how long after the decision.

The driver notes it as it is told of the events of its pipeline, and asks Kafka for the transaction that was ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from epochal.chaos.demo.verdict import LOG_FOLDER
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit
from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.events import Decided, Event, Step, StepEnded
from epochal.sinks.inspection import Transactional


@dataclass(frozen=True)
class Shown:
    """An epoch that Kafka shows.  ``by_vote``: in the transaction that it was prepared in before the decision."""

    epoch: EpochNumber
    milliseconds: float  # from the decision until every reader sees it
    by_vote: bool


class Notes:
    """A consumer of events that appends a line to ``path`` for each epoch that one process decides and shows."""

    def __init__(self, path: Path, checkpoint: Path, sink: str, asked: Transactional) -> None:
        self._path, self._sink, self._asked = path, sink, asked
        self._log = FilesLog(checkpoint / LOG_FOLDER)
        self._decided: tuple[EpochNumber | None, float] | None = None

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Decided):
            self._decided = event.epoch, now
        elif isinstance(event, StepEnded) and (event.step, event.sink) == (Step.COMMIT, self._sink):
            if event.epoch is None or event.error is not None or self._decided is None:
                return
            epoch, decided = self._decided
            if epoch == event.epoch:
                self._note(Shown(epoch, (now - decided) * 1000, self._is_by_vote(epoch)))

    def _is_by_vote(self, epoch: EpochNumber) -> bool:
        """Whether the newest transaction of the sink is the one that the decision names, and is committed."""
        records = [entry.record for entry in self._log.read()]
        newest = [record for record in records if isinstance(record, Commit) and record.epoch == epoch][-1]
        vote = newest.participants[self._sink].committable
        found = self._asked.described() or ()
        return any(each.state.endswith("Commit") and self._asked.is_prepared(each, vote) for each in found)

    def _note(self, shown: Shown) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(shown)) + "\n")


def path_of(checkpoint: str) -> Path:
    """Return where the notes on a job lie."""
    return Path(f"{checkpoint}-kafka.jsonl")


def read(checkpoint: str) -> Mapping[str, Any] | None:
    """Return the epochs that were noted, as figures; None if there are none.  A line that was cut is left out."""
    path = path_of(checkpoint)
    lines = path.read_text().splitlines() if path.exists() else []
    notes = [Shown(**json.loads(line)) for line in lines if line.endswith("}")]
    if not notes:
        return None
    voted = [note.milliseconds for note in notes if note.by_vote]
    return {
        "noted": len(notes),
        "by_vote": len(voted),
        "visible_ms": round(median(voted)) if voted else None,
        "slowest_ms": round(max(voted)) if voted else None,
    }


def told(votes: Mapping[str, Any], epochs: int) -> str:
    """Return the figures as sentences."""
    noted, by_vote = votes["noted"], votes["by_vote"]
    text = f"Kafka: of {epochs} epochs one process decided and showed {noted}; the others were cut by a strike."
    if not by_vote:
        return f"{text} All of them were produced after the decision."
    return (
        f"{text} {by_vote} of them were in the open transaction before the decision, and one request committed them:"
        f" {votes['visible_ms']} ms from decision to visible (median), {votes['slowest_ms']} ms at most."
    )
