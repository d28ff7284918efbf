"""Pauses between attempts: short at first, longer each time, and never beyond a deadline."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

LONGER = 2
JITTER = (0.5, 1.5)


class Backoff(NamedTuple):
    """Seconds of the first pause, and the most that a pause grows to."""

    first: float
    most: float


class Pauses:
    """The pauses of one request that is repeated until ``deadline``, a value of ``time.monotonic``.

    Each pause has a random length, so that many tasks that lost one broker do not all come back at the same moment.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._taken = 0

    def pause(self, backoff: Backoff) -> bool:
        """Pause; return whether there is time for another attempt."""
        seconds = min(backoff.most, backoff.first * LONGER ** min(self._taken, 32)) * random.uniform(*JITTER)
        self._taken += 1
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(seconds, left))
        return time.monotonic() < self._deadline
