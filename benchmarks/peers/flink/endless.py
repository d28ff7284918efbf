"""The program of one start in Flink's own environment: a job that copies lines of text to a Kafka topic, without end.

Of the project it imports only the other program of Flink, and Flink's package only when it runs.  Its one argument is
JSON: the folder ``source``, into which files come as time goes by; ``bootstrap``, ``topic`` and ``guarantee``; the
folder ``checkpoints``, and ``since``, the checkpoint that the job goes on from, or None; ``jars``.  It ends with an
error when the job fails, and at once when its input ends: whoever started it is gone.
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
    """Every checkpoint that is kept can be gone on from, as the newest one is after a crash."""
    since = {"execution.state-recovery.path": asked["since"]} if asked["since"] else {}
    return {
        **SETTINGS,
        "execution.checkpointing.dir": Path(asked["checkpoints"]).as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in asked["jars"]),
        **since,
    }


def source(folder: str) -> dict[str, str]:
    """Each line of each file is a row."""
    path = Path(folder).as_uri()
    return {"connector": "filesystem", "path": path, "format": "raw", "source.monitor-interval": LOOK}


def lines(asked: Mapping[str, Any]) -> dict[str, str]:
    """The target of the other tables, without a key."""
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
