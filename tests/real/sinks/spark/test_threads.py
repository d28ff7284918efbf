"""The threads that an epoch's sinks are called in, on a real Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from epochal.sinks.spark.series import session_class
from epochal.sinks.spark.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "spark.jobGroup.id"


def test_two_tasks_run_side_by_side_each_with_the_querys_session_and_job_group(spark: SparkSession) -> None:
    query = spark.newSession()
    jvm: Any = spark._jvm
    sessions = session_class(jvm)
    both_are_there = threading.Barrier(2, timeout=60)

    def task() -> tuple[threading.Thread, bool, str | None]:
        both_are_there.wait()
        active = sessions.getActiveSession().get()
        return (
            threading.current_thread(),
            active.equals(query._jsparkSession),
            spark.sparkContext.getLocalProperty(GROUP),
        )

    spark.sparkContext.setLocalProperty(GROUP, "the query's")
    try:
        found = Threads(lambda: query)([task, task])
    finally:
        spark.sparkContext.setLocalProperty(GROUP, None)  # type: ignore[arg-type,unused-ignore]
    told = [answer for answer in found if not isinstance(answer, Exception)]
    assert [(of_query, group) for _, of_query, group in told] == [(True, "the query's")] * 2, found
    threads = {thread for thread, _, _ in told}
    assert len(threads | {threading.current_thread()}) == 3
    assert all(thread.daemon for thread in threads), "none keeps a driver alive that has ended"


def test_an_error_of_one_task_stands_in_its_place(spark: SparkSession) -> None:
    def fails() -> int:
        raise KeyError("one")

    first, second = Threads(lambda: spark)([fails, lambda: 2])
    assert isinstance(first, KeyError)
    assert second == 2


def test_one_task_needs_no_thread() -> None:
    def no_session() -> SparkSession:
        raise AssertionError("nobody needs it")

    assert Threads(no_session)([threading.current_thread]) == [threading.current_thread()]
