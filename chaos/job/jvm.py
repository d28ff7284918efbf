"""JVM settings for a driver that lives for a minute or two and spends most processor time on starting.

Six things make it faster:

* only the first compiler is used;
* its code cache has room for everything (with the default of 48 MB the JVM discards code and compiles it again, which
  takes a ninth of the processor time of a session of two minutes);
* the state of Delta's tables, which are small here, is in one partition;
* the Python workers have imported what they need (``workers.py``);
* forks copy nothing (Hadoop starts a ``chmod`` for each local file);
* an archive holds the classes that such a driver loads, already parsed and verified (``servers/classes.py``).

These settings change only the speed, and no result.  The archive is made once per Java, Spark and set of jars, by a
driver that does what the kit's drivers do.  ``python -m epochal.chaos.job.archive`` makes it and the brokers' archive
in advance, so that nothing with a time limit has to wait for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from epochal.chaos.servers import classes
from epochal.chaos.servers.spark import jars_of_sessions

QUICK = (
    "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
    " -Djdk.lang.Process.launchMechanism=VFORK"
)
WORKERS = "spark.python.daemon.module"
MAKE_S = 900.0


def short_lived(*more: Path) -> dict[str, str]:
    """Return Spark settings, with the kit's jars and ``more``, for a driver that lives shortly and for its executors.

    The first call on a machine makes the archive, which takes about a minute; other calls wait for it.  If this Java
    cannot make one, drivers start without it.
    """
    found = [*jars_of_sessions(), *more]
    return _conf(" ".join([QUICK, *classes.options(_archive(found))]), found) | {WORKERS: "epochal.chaos.job.workers"}


def with_other_jars() -> dict[str, str]:
    """Return the settings for drivers with the user's jars.

    They use no archive, because it would hold the classes of the kit's jars.  They use Spark's own daemon of Python
    workers, because their executors may lack the kit.
    """
    return _conf(QUICK, [])


def _conf(options: str, found: Sequence[Path]) -> dict[str, str]:
    """Spark settings with these JVM options.  The jars are on the class path, as an archive holds only its classes."""
    conf = {f"spark.{process}.extraJavaOptions": options for process in ("driver", "executor")}
    conf["spark.databricks.delta.snapshotPartitions"] = "1"
    path = os.pathsep.join(map(str, found))
    return conf | {f"spark.{process}.extraClassPath": path for process in ("driver", "executor") if path}


def _archive(found: Sequence[Path]) -> Path | None:
    return classes.made(_name(found), "Spark's classes (about a minute)", lambda archive: _make(found, archive))


def _name(found: Sequence[Path]) -> str:
    import pyspark

    return classes.name("classes", pyspark.__version__, pyspark.__file__, *found)


def _make(found: Sequence[Path], archive: Path) -> str | None:
    """Make the archive; return why it could not be made, None if it was."""
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="classes-") as folder:
        partial = Path(folder, "partial.jsa")
        conf = _conf(f"{QUICK} -XX:ArchiveClassesAtExit={partial}", found)
        command = [sys.executable, "-m", "epochal.chaos.job.archive", folder, json.dumps(conf)]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=MAKE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not done within {MAKE_S:.0f} s"
        if done.returncode != 0 or not partial.exists():
            return f"exit status {done.returncode}\n{done.stdout[-3000:]}"
        partial.rename(archive)
    return None
