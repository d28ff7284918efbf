"""The plans that Spark has executed, as the store behind its UI keeps them.

The store keeps the newest 1,000 (``spark.sql.ui.retainedExecutions``), and tests share a session: the position in the
list says nothing, the number of an execution does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEARD = 120_000
"""Milliseconds that Spark's listeners may take to hear of what has ended."""


def newest(spark: SparkSession) -> int:
    """Return the number of the newest execution, -1 before the first."""
    return max(_executed(spark), default=-1)


def plans(spark: SparkSession, after: int = -1) -> list[str]:
    """Return the text of each plan that was executed after the execution ``after`` and is still kept."""
    return [text for number, text in sorted(_executed(spark).items()) if number > after]


def hear(spark: SparkSession) -> None:
    """Wait until Spark's listeners, which are told by another thread, have heard of all jobs and executions."""
    bus: Any = spark.sparkContext._jsc.sc().listenerBus()
    bus.waitUntilEmpty(_HEARD)


def _executed(spark: SparkSession) -> dict[int, str]:
    """Return the text of each plan that is kept, by the number of its execution."""
    hear(spark)
    session: Any = spark._jsparkSession
    listed = session.sharedState().statusStore().executionsList()
    kept = (listed.apply(n) for n in range(listed.size()))
    return {int(one.executionId()): str(one.physicalPlanDescription()) for one in kept}
