"""The daemon that forks Spark's Python workers, for drivers that live for a minute or two.

    spark.python.daemon.module=epochal.chaos.job.workers

Spark's own daemon imports almost nothing.  So each worker imports Arrow, the clients and parts of the sinks again (half
a second of processor time), and after each task the garbage collector scans all of that.  This daemon imports these
modules and pandas before it forks, and hides them from the collector.  Otherwise it is Spark's daemon.  Two of the
modules start threads at import (jemalloc's and OpenBLAS's); their own fork handlers take care of these threads.

Spark puts archives in front of Python's path: pyspark as a zip file, and a jar.  Python compiles a zip file's modules
anew in each process (another half a second), and each worker reads the jar's list of files again.  This daemon takes
pyspark from the folder that the archives lie in, which has the same modules.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import sys
from pathlib import Path

NEEDED = (
    "concurrent.futures.thread",
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
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


def leave_archives() -> None:
    """Take pyspark's archives out of ``sys.path``, if pyspark and what it needs can be imported from folders."""
    folders = [entry for entry in sys.path if not Path(entry).is_file()]
    pyspark, py4j = (importlib.machinery.PathFinder.find_spec(name, folders) for name in ("pyspark", "py4j"))
    if pyspark is None or pyspark.origin is None or py4j is None:
        return
    home = Path(pyspark.origin).parent
    sys.path[:] = [entry for entry in sys.path if entry in folders or home not in Path(entry).parents]


def load() -> None:
    """Import the modules.  A missing one is skipped; a task that needs it fails, as with Spark's daemon."""
    for name in NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    leave_archives()
    from pyspark.daemon import manager

    load()
    manager()
