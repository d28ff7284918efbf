"""Figures of rows that Spark computes in the job that reads the rows (``DataFrame.observe``).

Spark counts each partition of the action's last stage once, even if a task ran several times.  Before a shuffle it may
count a partition again that it had to compute again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import PrepareRefused
from epochal.sinks.spark.internals import methods
from epochal.sinks.spark.names import free
from epochal.sinks.spark.scala import Java

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OBSERVATION = "org.apache.spark.sql.Observation"
METRIC_WAIT = 60.0
"""How many seconds to wait until Spark's listener delivers an observation."""
DROPPED = ".numDroppedEvents"
"""How the names of Spark's counters end that say how many events a queue of the listener bus has dropped."""
_MOMENT_MS = 50
"""How long to wait for all listeners before an observation is looked for again: some of them may be slow."""


class Figures(Protocol):
    """Returns the figures by name.  Call it after one action has read all rows.

    None: Spark has ended the action without these rows, because it can tell that nothing of them arrives at its end.

    Args:
        told: what Spark was to say, for the error.
        state: what is true of the epoch then, for the error.
        epoch: its number, for the error.
    """

    def __call__(self, told: str, state: str, epoch: EpochNumber | None = None) -> Mapping[str, Any] | None: ...


def observed(rows: DataFrame, *figures: Column) -> tuple[DataFrame, Figures]:
    """Return the same rows, and a function that returns these aggregates of them."""
    from pyspark.sql import Observation

    spark, observation = rows.sparkSession, cast("Any", Observation())
    dropped = 0 if _completes_without_rows(spark._jvm) else _dropped(spark)

    def answer(told: str, state: str, epoch: EpochNumber | None = None) -> Mapping[str, Any] | None:
        """Return what was observed.  ``Observation.get`` would wait for ever if nothing was."""
        try:
            was_observed = _was_observed(spark, observation._jo, dropped)
        except TimeoutError as error:
            raise PrepareRefused(
                f"Spark did not say {told}: {error}",
                epoch=epoch,
                state=state,
                help="restart the query; if it happens again, see in the driver's log whether its listener bus drops"
                " events (spark.scheduler.listenerbus.eventqueue.capacity)",
            ) from None
        return dict(observation.get) if was_observed else None

    return rows.observe(observation, *figures), answer


def sifted(rows: DataFrame, passes: Column, told: str) -> tuple[DataFrame, Callable[[], int]]:
    """Return the rows for which ``passes`` is true, and a function that counts the others.

    Call the function after one action has read the rows that pass.  ``passes`` is computed twice for each row.
    ``told``: which rows are counted, for the error ("rows that ...").
    """
    from pyspark.sql import functions as f

    passes = f.coalesce(passes, f.lit(False))
    seen, figures = observed(rows, f.count_if(~passes).alias("others"))

    def count() -> int:
        found = figures(f"how many rows {told}", "nothing of the epoch was decided")
        return int(found["others"]) if found is not None else rows.where(~passes).count()

    return seen.where(passes), count


def sifted_once(rows: DataFrame, passes: Column, told: str) -> tuple[DataFrame, Callable[[], int]]:
    """Do what :func:`sifted` does, with a condition that takes long: it is computed once for each row."""
    from pyspark.sql import functions as f

    kept = free("__epochal_kept", rows.columns)
    passed, count = sifted(rows.select("*", passes.alias(kept)), f.col(kept), told)
    return passed.drop(kept), count


def _was_observed(spark: SparkSession, observation: Java, dropped: int) -> bool:
    """Wait until Spark has said what was observed; return whether anything was.

    Observations arrive through Spark's listener bus, and this may drop them.  ``dropped``: how many events it had
    dropped before the action.  ``TimeoutError``: the observation has not arrived within ``METRIC_WAIT`` seconds, or may
    have been dropped.
    """
    if _completes_without_rows(spark._jvm):
        arrived, limit = observation.future(), time.monotonic() + METRIC_WAIT
        while not arrived.isCompleted():
            if time.monotonic() > limit:
                raise _late()
            time.sleep(0.001)
        return bool(observation.getRow().length())
    limit, drained = time.monotonic() + METRIC_WAIT, False
    while not _has_arrived(spark, observation):
        if drained and _dropped(spark) != dropped:
            raise TimeoutError("its listener bus has dropped events")
        if drained:
            return False
        if time.monotonic() > limit:
            raise _late()
        drained = _is_drained(spark)
    return True


def _has_arrived(spark: SparkSession, observation: Java) -> bool:
    """Return whether an observation is complete, without waiting for it."""
    if not _has_future(spark._jvm):
        # Spark 3.5.0 to 3.5.7: all its public methods wait, for ever if nothing is observed
        field = observation.getClass().getDeclaredField("metrics")
        field.setAccessible(True)
        return bool(field.get(observation).isDefined())
    return bool(observation.future().isCompleted())


@cache
def _completes_without_rows(jvm: Java) -> bool:
    """Return whether Spark completes an observation if nothing was observed, as 3.5.8, 4.1 and newer do."""
    return "getRow/0" in (methods(jvm, OBSERVATION) or ())


@cache
def _has_future(jvm: Java) -> bool:
    """Return whether an observation tells whether it is complete, as in 3.5.8, 4.0 and newer."""
    return "future/0" in (methods(jvm, OBSERVATION) or ())


def _dropped(spark: SparkSession) -> int:
    """Return how many events Spark's listener bus has dropped, in all its queues."""
    registry = spark.sparkContext._jsc.sc().listenerBus().metrics().metricRegistry()
    dropped = getattr(spark._jvm, "com.codahale.metrics.MetricFilter").endsWith(DROPPED)
    return sum(int(counter.getCount()) for counter in registry.getCounters(dropped).values())


def _is_drained(spark: SparkSession) -> bool:
    """Return whether Spark's listeners have heard everything that has happened.  Wait for that a moment."""
    from py4j.protocol import Py4JJavaError

    try:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_MOMENT_MS)
    except Py4JJavaError as error:
        if str(error.java_exception.getClass().getSimpleName()) != "TimeoutException":
            raise
        return False
    return True


def _late() -> TimeoutError:
    return TimeoutError(f"nothing came within {METRIC_WAIT:g} s")
