"""The daemon that forks Spark's Python workers, where drivers live for a minute or two.

    spark.python.daemon.module=epochal.chaos.job.workers

Spark's own daemon imports next to nothing, so that each worker imports Arrow, the clients and what tasks need of the
sinks anew (half a second of processor time), and after each of its tasks it looks for garbage among all that. This one
has them imported before it forks, out of the collector's sight, and pandas for tasks that come to it; otherwise it is
Spark's. The threads that two of them start when they are imported (jemalloc's, OpenBLAS's) are taken care of at a fork
by handlers of their own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

from pyspark.daemon import manager

NEEDED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "confluent_kafka",
    "psycopg",
    "epochal.sinks.delta",
    "epochal.sinks.spark.executors",
    "epochal.sinks.kafka.encode",
    "epochal.sinks.kafka.produce",
    "epochal.sinks.postgres.binary",
    "epochal.sinks.postgres.session",
    "epochal.sinks.postgres.write",
)


def load() -> None:
    """What is not installed here is missed by the task that needs it, as ever."""
    for name in NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load()
    manager()
