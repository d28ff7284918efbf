"""Write the epoch's data files before any sink prepares, and let the durable copy consist of the same files.

The rows are written once: the table gets files as Delta writes them, and the copy gets a second name of each.  Delta
never changes a file, and removing one name leaves the other.  So the copy stays whole after a VACUUM of the table, and
the table after a clean-up of the copies.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from epochal.coordinator.model.epoch import Actor, Copy, Epoch, Json
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.sinks.delta import gates, preparing
from epochal.sinks.delta.core import Core, Filed
from epochal.sinks.delta.modes import Merge
from epochal.sinks.spark import settings, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from epochal.sinks.delta.jvm import Table

_SHUFFLES = "spark.databricks.delta.optimizeWrite.enabled"
"""The setting with which Delta shuffles rows before it writes them.  A copy keeps the order of the rows."""
_DISK = "the table and the checkpoint"
"""What lies on the disk that both names of a file are on."""


def write_copy(sink: Core, epoch: Epoch, rows: DataFrame, folder: str, by: Actor) -> Copy | None:
    """See ``epochal.sinks.protocol.CopyingSink``."""
    sink.filed = None
    stage.check_schema(rows.schema, case_sensitive=settings.is_case_sensitive(rows.sparkSession))
    if not gets_all_rows_in_order(sink, rows.sparkSession):
        return None
    try:
        table = sink.table()
        txn = sink.existing(sink.begin(table, known=sink.known))
    except SinkUnavailable:  # prepare asks again
        return None
    metadata = txn.metadata()
    if not stage.can_link(table.root, folder) or not gates.holds_as_they_are(rows.schema, metadata):
        return None
    preparing.check_table(sink, txn, metadata, epoch.number)
    with stage.refusing(epoch.number, folder, _DISK), settings.held(rows.sparkSession, settings.COPY):
        counted, count = stage.counted(rows)
        fitting = preparing.fitting_rows(sink, counted, metadata, epoch.number)
        adds = preparing.write_files(sink, txn, fitting, epoch.number)
    with sink.say.unavailable("the prepared files", epoch.number):
        preparing.note(sink, table, epoch, by, adds)
    with stage.refusing(epoch.number, folder, _DISK):
        copy = stage.linked(_paths(table, adds), folder, rows.schema)
    stage.check_count(count(epoch.number, folder), copy.rows, folder, epoch.number)
    sink.filed = Filed(epoch.decision.id, adds, gates.fingerprint(metadata, txn.protocol()))
    return copy


def gets_all_rows_in_order(sink: Core, spark: SparkSession) -> bool:
    """Return whether the sink gets all rows of the query, and no others, and Delta writes them in their order."""
    shuffles = str(spark.conf.get(_SHUFFLES, "false")).lower() == "true"
    return not isinstance(sink.mode, Merge) and sink.projection.is_whole and not shuffles


def _paths(table: Table, adds: Sequence[Json]) -> list[str]:
    """Return the files as paths of this machine.  In an ``add`` action a path is part of a URI."""
    root = stage.local_path(table.root)
    assert root is not None, "asked before"
    return [posixpath.join(root, unquote(str(add["path"]))) for add in adds]
