"""The daemon that forks Spark's Python workers, for drivers that live for a minute or two.

    spark.python.daemon.module=epochal.chaos.job.workers

Spark's own daemon imports almost nothing.  So each worker imports Arrow, the clients and parts of the sinks again (half
a second of processor time), and after each task the garbage collector scans all of that.  This daemon imports these
modules and pandas before it forks, and hides them from the collector.  Otherwise it is Spark's daemon.  Two of the
modules start threads at import (jemalloc's and OpenBLAS's); their own fork handlers take care of these threads.
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
    """Import the modules.  A missing one is skipped; a task that needs it fails, as with Spark's daemon."""
    for name in NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load()
    manager()
