"""Tasks side by side, in threads that Spark takes for the one that started them; every one has an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from epochal.coordinator.model.errors import Interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_SETTLES = "restart the query: it settles what was under way"


def as_exception(error: BaseException) -> Exception:
    """Spark's callback thread never answers when anything but an ``Exception`` leaves the function."""
    if isinstance(error, Exception):
        return error
    return Interrupted(f"{type(error).__name__}({error}) was raised inside the batch function", help=_SETTLES)


class Threads:
    """One thread per task, each with the query's job group, properties and session; without Spark, threads."""

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
            from pyspark.util import inheritable_thread_target

            target = inheritable_thread_target(spark)(run)
        return threading.Thread(target=target, args=(number,), name=f"epochal-{number}", daemon=True)


def activate(spark: SparkSession) -> None:
    """Make the query's clone what ``SparkSession.getActiveSession()`` finds in this thread."""
    jvm: Any = spark._jvm
    getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)


def _unanswered() -> Exception:
    """Stands until the task has answered, so that a thread that dies unseen is never a success."""
    return Interrupted("a thread ended without an answer", help=_SETTLES)
