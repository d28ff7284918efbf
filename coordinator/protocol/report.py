"""What one call did, and where a start stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epochal.coordinator.model.epoch import Actor, EpochNumber, Phase
from epochal.sinks.protocol import CommitOutcome


@dataclass(frozen=True)
class EpochReport:
    """What one call did.  ``rows``: of the micro-batch; ``written``: by each sink that this start asked for a vote.

    ``replayed``: visible already, nothing was written again.
    """

    epoch: EpochNumber
    rows: int
    replayed: bool
    seconds: Mapping[Phase, float]
    sinks: Mapping[str, CommitOutcome] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """Where a start stands.  ``shown``: the newest epoch each sink is known to show."""

    actor: Actor | None
    last_epoch: EpochNumber | None
    shown: Mapping[str, EpochNumber]
    in_doubt: Sequence[str]
    last_report: EpochReport | None
