"""Where a checkpoint and its epoch log lie, and what Spark's own files in it say.

These say which query it belongs to, and which epoch Spark will ask for next.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from epochal.checkpoints.bucket import is_on_objects
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.hadoop import Hadoop, HadoopLog
from epochal.checkpoints.hadoop import of_session as hadoop_of
from epochal.checkpoints.log import EpochLog
from epochal.checkpoints.objects import ObjectLog
from epochal.coordinator.model.epoch import EpochNumber, EpochRequest, Query
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured
from epochal.coordinator.query import spark as inside
from epochal.sinks.spark.stage import files_at, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def located(checkpoint: str) -> str:
    """Return the checkpoint's location as a query that runs on it names it: a URI."""
    if not _SCHEME.match(checkpoint):
        return f"file:{os.path.abspath(checkpoint)}"
    local = local_path(checkpoint)
    return checkpoint.rstrip("/") if local is None else f"file:{os.path.abspath(local)}"


def needing(spark: Callable[[], SparkSession | None]) -> Callable[[], SparkSession]:
    """Return a function that gives the session, or raises ``Misconfigured`` if there is none."""

    def session() -> SparkSession:
        found = spark()
        if found is None:
            raise Misconfigured(
                "this needs Spark, and no session runs in this process",
                help="make a session first, configured like the query's (Delta's extension and catalog, file systems)",
            )
        return found

    return session


def default_log(checkpoint: str, hadoop: Callable[[], Hadoop]) -> EpochLog:
    """Return the default log of a resolved checkpoint.  ``hadoop``: gives access to a file system that is not local."""
    if is_on_objects(checkpoint):
        return ObjectLog.of_spark(f"{checkpoint}/epochal/log", hadoop)
    return _log_without_spark(checkpoint) or HadoopLog(f"{checkpoint}/epochal/log", hadoop)


def reachable_log(checkpoint: str, spark: SparkSession | None) -> EpochLog | None:
    """Return the default log of a resolved checkpoint; None if it is reached through a session, and there is none."""
    return _log_without_spark(checkpoint) if spark is None else default_log(checkpoint, lambda: hadoop_of(spark))


def _log_without_spark(checkpoint: str) -> EpochLog | None:
    """Return the default log of a resolved checkpoint if no Spark is needed to reach it, else None.

    The log on an object store then has the credentials of the environment alone.
    """
    local = local_path(checkpoint)
    if local is not None:
        return FilesLog(posixpath.join(local, "epochal", "log"))
    return ObjectLog(f"{checkpoint}/epochal/log") if is_on_objects(checkpoint) else None


def ask_at(app: str, where: str, spark: Callable[[], SparkSession]) -> EpochRequest:
    """Return what Spark will ask for first when it starts on this resolved checkpoint.  This writes nothing.

    ``spark`` is called only if the checkpoint is not on this disk.
    """
    query = Query(app, query_id_at(where, spark), "", where)
    planned, committed = progress_at(where, spark)
    if planned > committed:
        return inside.read_ask(query, planned, spark)
    return EpochRequest(query, committed + 1, fingerprint="")


def query_id_at(where: str, spark: Callable[[], SparkSession]) -> str:
    """Return the query id in Spark's file ``metadata``; "" if there is no such file.

    Without it, Spark refuses to start on a checkpoint that has offsets; by a setting it begins a new query there.
    """
    text = files_at(where, spark).read(f"{where}/metadata")
    if text is None:
        return ""
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatch(
            "Spark's file metadata is not as Spark writes it",
            state=f"{where}/metadata begins {text[:60]!r}",
            help='restore the file from a backup, or write {"id":"..."} into it, with the id of the query that'
            " `epochal log` shows (delete the hidden file .metadata.crc if it is there)",
        ) from error


def progress_at(where: str, spark: Callable[[], SparkSession]) -> tuple[EpochNumber, EpochNumber]:
    """Return the newest epoch that Spark has planned and the newest that it has committed; -1 means none.

    They are read from the names of Spark's files.
    """
    files = files_at(where, spark)
    return _newest(files.listing(f"{where}/offsets")), _newest(files.listing(f"{where}/commits"))


def _newest(names: Mapping[str, int] | None) -> EpochNumber:
    return max((int(name) for name in names or () if name.isdigit()), default=-1)
