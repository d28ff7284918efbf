"""Run functions in parallel, in threads that have the Spark state of the thread that started them.

Every function gives a result or an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from epochal.coordinator.model.errors import Interrupted
from epochal.sinks.spark.series import inheriting, session_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_SETTLES = "restart the query: it settles what was under way"


def as_exception(error: BaseException) -> Exception:
    """Return ``error`` if it is an ``Exception``, else an ``Interrupted`` in its place.

    If anything but an ``Exception`` leaves the batch function, Spark's callback thread never answers.
    """
    if isinstance(error, Exception):
        return error
    return Interrupted(f"{type(error).__name__}({error}) was raised inside the batch function", help=_SETTLES)


class Threads:
    """Runs each task in a thread of its own, with the query's job group, local properties and session.

    Without Spark the threads are plain ones.  A single task runs in the calling thread.
    """

    def __init__(self, spark: Callable[[], SparkSession | None]) -> None:
        self._spark = spark

    def __call__(self, tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
        results: list[T | Exception] = [_unanswered() for _ in tasks]

        def run(number: int) -> None:
            try:
                if len(tasks) > 1 and (spark := self._spark()) is not None:
                    activate(spark)
                results[number] = tasks[number]()
            except BaseException as error:
                results[number] = as_exception(error)

        if len(tasks) < 2:
            for number in range(len(tasks)):
                run(number)
            return results
        threads = [self._thread(run, number) for number in range(len(tasks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def _thread(self, run: Callable[[int], None], number: int) -> threading.Thread:
        spark, target = self._spark(), run
        if spark is not None:
            target = inheriting(spark, run)
        return threading.Thread(target=target, args=(number,), name=f"epochal-{number}", daemon=True)


def activate(spark: SparkSession) -> None:
    """Make the query's session the one that ``SparkSession.getActiveSession()`` returns in this thread."""
    session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def _unanswered() -> Exception:
    """Return the initial result of a task: a thread that dies without an answer is then never a success."""
    return Interrupted("a thread ended without an answer", help=_SETTLES)
