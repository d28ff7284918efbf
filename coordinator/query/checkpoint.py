"""What Spark's own files of a checkpoint say: which query it belongs to, and which epoch Spark will ask for next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import EpochNumber, EpochRequest, Query
from epochal.coordinator.model.errors import CheckpointMismatch
from epochal.coordinator.query import spark as inside
from epochal.sinks.spark.stage import files_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def next_ask(app: str, checkpoint: str, df: DataFrame) -> EpochRequest:
    """Return what Spark will ask for first when it starts on ``checkpoint``.  This writes nothing."""
    session = df.sparkSession
    return ask_at(app, inside.resolve(checkpoint, session), lambda: session)


def ask_at(app: str, where: str, spark: Callable[[], SparkSession]) -> EpochRequest:
    """Return what :func:`next_ask` returns, for a resolved checkpoint.

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
