"""What a pipeline tells people about itself: its guarantee and its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epochal.coordinator.model.epoch import TWO_PHASE, EpochNumber


@dataclass(frozen=True)
class Guarantee:
    """What a pipeline promises; ``print`` it.  ``sinks``: the promise of each sink in words, by sink name."""

    app: str
    mode: str
    sinks: Mapping[str, str]
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        decided = "one decision per epoch for" if self.mode == TWO_PHASE else "no decision, each by itself:"
        lines = [f"app {self.app!r}, {self.mode}, {decided} {len(self.sinks)} sink(s)"]
        lines += [f"- {name}: {text.strip()}" for name, text in self.sinks.items()]
        lines += [f"* {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True)
class PipelineStatus:
    """The state of the newest start in this process.

    ``seconds``: how long each phase took, in seconds.  ``shown``: per sink the newest epoch that it is known to show.
    ``in_doubt``: sinks that do not yet show ``last_epoch``, which is decided.  ``rejected``: how many rows each sink of
    ``bad_rows=`` has got since this start.
    """

    app: str
    query_id: str = ""
    run_id: str = ""
    last_epoch: EpochNumber | None = None
    rows: int = 0
    shown: Mapping[str, EpochNumber] = field(default_factory=dict)
    in_doubt: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: Exception | None = None
    rejected: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.query_id:
            return f"app {self.app!r}: no query has called this pipeline yet"
        lines = [f"app {self.app!r}, query {self.query_id}, run {self.run_id}"]
        lines.append(f"last epoch {self.last_epoch}, {self.rows} rows")
        lines += [
            f"- {name}: epoch {epoch}{' (next one in doubt)' if name in self.in_doubt else ''}"
            for name, epoch in self.shown.items()
        ]
        lines += [f"- {name}: nothing yet, in doubt" for name in self.in_doubt if name not in self.shown]
        lines += [f"- {name}: {rows} bad rows since this start" for name, rows in self.rejected.items()]
        if self.seconds:
            lines.append(", ".join(f"{phase} {spent * 1000:.0f} ms" for phase, spent in self.seconds.items()))
        if self.error is not None:
            lines.append(f"error: {type(self.error).__name__}: {self.error}")
        return "\n".join(lines)
