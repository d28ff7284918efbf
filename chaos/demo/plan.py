"""The plans of the demo, which say which strike falls into which epoch: a short run of about three minutes, a full one.

The plain job is never struck more often than ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from epochal.chaos.demo.data import TOTAL
from epochal.chaos.demo.strikes import Strike


@dataclass(frozen=True)
class Plan:
    """How many epochs the flights are divided into, and the strikes on both jobs, in the order of their epochs."""

    epochs: int
    ours: Sequence[Strike]
    naive: Sequence[Strike]

    @property
    def rows_per_epoch(self) -> int:
        """The number of rows with which ``epochs`` epochs hold all flights."""
        return -(-TOTAL // self.epochs)

    def of(self, job: str) -> Sequence[Strike]:
        """The strikes on one job, ``ours`` or ``naive``."""
        return self.ours if job == "ours" else self.naive


FULL = Plan(
    31,
    ours=(
        Strike("a worker in mid-write", 2, "in-write@postgres", "worker", hidden="postgres"),
        Strike("the broker in mid-commit", 5, "before-publish@kafka", "kafka"),
        Strike("the database in mid-commit", 8, "before-publish@postgres", "postgres"),
        Strike("after the votes", 11, "after-prepare", "driver", hidden="postgres"),
        Strike("after the decision", 15, "after-decide", "driver", hidden="postgres"),
        Strike(
            "between two sinks' commits",
            19,
            "after-sink-commit@delta",
            "driver",
            hold=("before-sink-commit@postgres",),
            shown="delta",
            hidden="postgres",
        ),
        Strike("before Spark wrote commits/N", 23, "before-return", "driver", shown="postgres"),
    ),
    naive=(
        Strike("in mid-write", 8, "in-write@postgres", "driver", shown="postgres"),
        Strike("between two writes", 15, "after-sink-commit@kafka", "driver"),
        Strike("before Spark wrote commits/N", 23, "before-return", "driver"),
    ),
)

# Between two strikes on a driver comes one on a server or a worker, so that the next driver has time to start Spark.
_SHORT_EPOCHS: Mapping[str, int] = {
    "after the votes": 1,
    "a worker in mid-write": 2,
    "after the decision": 4,
    "the broker in mid-commit": 5,
    "between two sinks' commits": 6,
    "the database in mid-commit": 7,
    "in mid-write": 2,
    "before Spark wrote commits/N": 6,
}


def _shortened(strikes: Sequence[Strike], left_out: str) -> tuple[Strike, ...]:
    """The same strikes in the epochs of the short run, without the one that is left out."""
    moved = [replace(strike, epoch=_SHORT_EPOCHS[strike.when]) for strike in strikes if strike.when != left_out]
    return tuple(sorted(moved, key=lambda strike: strike.epoch))


SHORT = Plan(
    9,
    ours=_shortened(FULL.ours, left_out="before Spark wrote commits/N"),
    naive=_shortened(FULL.naive, left_out="between two writes"),
)
