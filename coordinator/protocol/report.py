"""What one call of the pipeline did, and what state a start is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epochal.coordinator.model.epoch import Actor, EpochNumber, Phase
from epochal.sinks.protocol import CommitOutcome


@dataclass(frozen=True)
class EpochReport:
    """What one call did.

    ``rows``: rows of the micro-batch.  ``written``: rows that each sink voted for, if this start asked it for a vote.
    ``replayed``: the epoch was visible already, and nothing was written again.
    """

    epoch: EpochNumber
    rows: int
    replayed: bool
    seconds: Mapping[Phase, float]
    sinks: Mapping[str, CommitOutcome] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """The state of a start.  ``shown``: per sink the newest epoch that it is known to show."""

    actor: Actor | None
    last_epoch: EpochNumber | None
    shown: Mapping[str, EpochNumber]
    in_doubt: Sequence[str]
    last_report: EpochReport | None
