"""How far the Spark tasks of a query are: which stages run, how many tasks have ended, and how many rows they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochal.coordinator.telemetry.watchdog import TaskProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = ("inputRecords", "shuffleReadRecords", "shuffleWriteRecords", "outputRecords")


def task_progress(spark: SparkSession, run_id: str) -> TaskProgress:
    """Return how far the tasks of one start of a query are.  Spark runs its jobs in the job group ``run_id``.

    The counts of tasks and rows come from the store behind Spark's UI, which also exists if the UI is off.
    """
    context = spark.sparkContext
    tracker = context.statusTracker()
    # Spark remembers many jobs of the group that have ended
    jobs = map(tracker.getJobInfo, {*tracker.getActiveJobsIds()} & {*tracker.getJobIdsForGroup(run_id)})
    wanted = {stage for job in jobs if job is not None for stage in job.stageIds}
    running: Any = context._jsc.sc().statusStore().activeStages()
    stages = [stage for n in range(running.size()) if (stage := running.apply(n)).stageId() in wanted]
    if not stages:
        return TaskProgress((), "Spark runs no job of the query, so the step waits for a server or for a file system")
    ui = f" ({context.uiWebUrl})" if context.uiWebUrl else ""
    return TaskProgress(tuple(map(_counts, stages)), f"{'; '.join(map(_said, stages))}{ui}")


def _counts(stage: Any) -> tuple[int, ...]:
    """Return numbers of which at least one changes as soon as the stage moves."""
    rows = (int(getattr(stage, name)()) for name in _ROWS)
    return (*map(int, (stage.stageId(), stage.attemptId(), stage.numCompleteTasks(), stage.numFailedTasks())), *rows)


def _said(stage: Any) -> str:
    """Return how far the stage is, in words for people."""
    rows = sum(int(getattr(stage, name)()) for name in _ROWS[:2])
    return (
        f"stage {stage.stageId()} ({stage.name()}): {stage.numCompleteTasks()} of {stage.numTasks()} tasks done,"
        f" {stage.numActiveTasks()} run, {rows:,} rows read"
    )
