"""The program of one start in Flink's own environment: an endless job that copies lines of text to a Kafka topic.

From the project it imports only Flink's other program, and it imports Flink's package only when it runs.  Its only
argument is JSON: the folder ``source``, which gets files over time; ``bootstrap``, ``topic`` and ``guarantee``; the
folder ``checkpoints``; ``since``, the checkpoint from which the job continues, or None; and ``jars``.  It ends with an
error when the job fails.  It ends at once when its standard input ends, because then its parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.flink.job import SETTINGS, options, target

LOOK = "100 ms"
TABLES = ("CREATE TABLE source (v STRING) WITH {}", "CREATE TABLE target (v STRING) WITH {}")
COPY = "INSERT INTO target SELECT v FROM source"


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run(json.loads(sys.argv[1]))


def run(asked: Mapping[str, Any]) -> None:
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    for name, value in settings(asked).items():
        configuration.set_string(name, value)
    streaming = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    tables = TableEnvironment.create(streaming)
    for table, of in zip(TABLES, (source(asked["source"]), lines(asked)), strict=True):
        tables.execute_sql(table.format(options(of)))
    tables.execute_sql(COPY).wait()


def settings(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return Flink's settings.  All checkpoints are kept, so that a start can continue from any of them."""
    since = {"execution.state-recovery.path": asked["since"]} if asked["since"] else {}
    return {
        **SETTINGS,
        "execution.checkpointing.dir": Path(asked["checkpoints"]).as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in asked["jars"]),
        **since,
    }


def source(folder: str) -> dict[str, str]:
    """Return the source table's options.  Each line of each file is a row."""
    path = Path(folder).as_uri()
    return {"connector": "filesystem", "path": path, "format": "raw", "source.monitor-interval": LOOK}


def lines(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the target of the other program, without a key."""
    keyed = target(asked["bootstrap"], asked["topic"], asked["guarantee"])
    return {
        name: value for name, value in keyed.items() if not name.startswith("key.") and name != "value.fields-include"
    }


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(3)


if __name__ == "__main__":
    main()
