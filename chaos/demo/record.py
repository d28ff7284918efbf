"""A run of the demo as data, from which the page and the picture are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epochal.chaos.demo.readers import Count
from epochal.chaos.demo.strikes import Struck

VERSION = 1


@dataclass(frozen=True)
class Attack:
    """One job under its strikes; ``began`` and ``ended`` are seconds of ``time.monotonic()``."""

    began: float
    ended: float
    epochs: int
    struck: Sequence[Struck]
    counts: Mapping[tuple[str, str], Count]  # (job, sink): what readers found
    votes: Mapping[str, Any] | None = None  # how Kafka showed the epochs (``votes.py``)


def record(attacks: Mapping[str, Attack]) -> dict[str, Any]:
    """Return ``{"version": 1, "jobs": {name: {"seconds", "epochs", "strikes": [...], "sinks": {sink: counts}}}}``.

    A job whose Kafka sink is ours also has ``"votes"``.
    """
    return {
        "version": VERSION,
        "jobs": {
            name: {
                "seconds": round(attack.ended - attack.began, 1),
                "epochs": attack.epochs,
                "strikes": [_strike(struck, attack.began) for struck in attack.struck],
                "sinks": {sink: asdict(found) for (_, sink), found in attack.counts.items()},
                **({"votes": dict(attack.votes)} if attack.votes is not None else {}),
            }
            for name, attack in attacks.items()
        },
    }


def _strike(struck: Struck, began: float) -> dict[str, Any]:
    return {
        "at": round(struck.at - began, 1),
        "when": struck.strike.when,
        "victim": struck.strike.victim,
        "epoch": struck.strike.epoch,
        "signals": sorted({death.signal for death in struck.deaths}),
        "outcome": struck.outcome,
    }
