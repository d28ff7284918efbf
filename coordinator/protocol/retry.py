"""How often a call is repeated, and how tasks are run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from epochal.coordinator.model.errors import Misconfigured

T = TypeVar("T")
Runner = Callable[[Sequence[Callable[[], T]]], list[T | Exception]]
"""Runs all tasks, waits for all of them, and returns a result or an exception for each, in order."""


def serial(tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """The runner for one thread; a failing task does not keep the others from running."""
    results: list[T | Exception] = []
    for task in tasks:
        try:
            results.append(task())
        except Exception as error:
            results.append(error)
    return results


@dataclass(frozen=True)
class Retry:
    """Bounded, jittered back-off for errors that are known to have had no effect, or can be asked.

    ``attempts``: how often a server is asked, the first time included.
    ``first``: seconds before the second attempt; each later pause is twice the one before, times 0.5 to 1.
    ``most``: seconds that no pause exceeds.
    ``sleep``: what waits; for tests.
    """

    attempts: int = 9
    first: float = 0.1
    most: float = 8.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise Misconfigured(f"Retry(attempts={self.attempts!r})", help="the first attempt counts: give at least 1")

    def pause(self, attempt: int) -> None:
        self.sleep(min(self.most, self.first * 2**attempt) * random.uniform(0.5, 1.0))
