"""How often a call is repeated, and how several tasks are run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.errors import Misconfigured

T = TypeVar("T")
Runner = Callable[[Sequence[Callable[[], T]]], list[T | Exception]]
"""Runs all tasks, waits for all of them, and returns a result or an exception for each, in order."""


def serial(tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run the tasks one after another in this thread.  The other tasks run even if one fails."""
    results: list[T | Exception] = []
    for task in tasks:
        try:
            results.append(task())
        except Exception as error:
            results.append(error)
    return results


@dataclass(frozen=True)
class Retry:
    """How calls are repeated after an error: a bounded number of times, with growing random pauses.

    A call is repeated only if the failed one is known to have had no effect, or if its outcome can be found out.

    ``attempts``: how often a server is asked; this includes the first attempt.
    ``first``: the pause before the second attempt, in seconds.  It doubles with each attempt, and each pause is
    multiplied by a random factor between 0.5 and 1.
    ``most``: the longest pause, in seconds.
    ``sleep``: the function that waits; tests replace it.
    """

    attempts: int = 9
    first: float = 0.1
    most: float = 8.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        check_types(Retry.__annotations__, vars(self))
        if self.attempts < 1:
            raise Misconfigured(f"Retry(attempts={self.attempts!r})", help="the first attempt counts: give at least 1")

    def pause(self, attempt: int) -> None:
        self.sleep(min(self.most, self.first * 2**attempt) * random.uniform(0.5, 1.0))
