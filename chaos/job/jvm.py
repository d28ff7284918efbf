"""The JVM of a driver that lives for a minute or two, whose processor time goes into starting.

Six things shorten that: the first compiler alone; room for all that it compiles (beyond its default of 48 MB it throws
code away and compiles it again, a ninth of the processor time of a session of two minutes); the state of Delta's
tables, which are small here, in one partition; Python workers that have imported what they need (``workers.py``); forks
that copy nothing, as Hadoop starts a ``chmod`` for each local file; and an archive of the classes that such a driver
loads, already parsed and verified (``servers/classes.py``). The archive is made once per Java, Spark and set of jars,
by a driver that does what the kit's drivers do. All change when things are ready, and nothing that is computed.
``python -m epochal.chaos.job.archive`` makes it, and that of brokers, so that nothing with a time limit has to
wait for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from epochal.chaos.servers import classes, jars
from epochal.chaos.servers.spark import session_jars
from epochal.coordinator.environment.versions import POSTGRES_JDBC_JARS

QUICK = (
    "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
    " -Djdk.lang.Process.launchMechanism=VFORK"
)
WORKERS = "spark.python.daemon.module"
MAKE_S = 900.0


def short_lived() -> dict[str, str]:
    """Spark settings for a driver that is killed soon, and for its executors; the kit's jars are among them.

    The first call on a machine makes the archive, which takes about a minute; others wait for it.  Where this Java
    makes none, drivers start without one.
    """
    found = jars_of_sessions()
    return _conf(" ".join([QUICK, *classes.options(_archive(found))]), found) | {WORKERS: "epochal.chaos.job.workers"}


def with_other_jars() -> dict[str, str]:
    """The same for drivers whose jars are the user's: an archive would hold those of the kit.

    Their executors may lack the kit, too, and with it a daemon of its own.
    """
    return _conf(QUICK, [])


def jars_of_sessions() -> list[Path]:
    """The jars of the kit's sessions, from the cache or fetched: Delta, Spark's Kafka source, the JDBC driver."""
    return [*session_jars(), *jars.resolve(POSTGRES_JDBC_JARS)]


def _conf(options: str, found: Sequence[Path]) -> dict[str, str]:
    """An archive holds classes of the class path alone, hence the jars there."""
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
    """Why it could not be made, None where it was."""
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
