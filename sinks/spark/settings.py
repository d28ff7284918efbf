"""The settings of a Spark session that change values on their way into a file: what they must be while we write.

A user's session may have any settings; they must change no value in any sink.  So all that matters is decided here, and
is set around our own writes only.  What we read is read by its schema (``stage.read_copy``), which needs no settings.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARQUET = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 holds nanoseconds, which others read as such
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
COPY = _PARQUET | {
    "spark.sql.files.maxRecordsPerFile": "0",  # one file per task: Spark reads files by size, which loses their order
}
"""For the files of a durable copy."""
DELTA = _PARQUET | {
    "spark.sql.parquet.fieldId.write.enabled": "true",  # a table may know its columns by these ids alone
    "spark.databricks.delta.write.utcTimestampPartitionValues": "true",  # else a reader needs the writer's time zone
}
"""For the data files of a Delta table."""
MERGE = DELTA | {
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.merge.materializeSource": "none",  # the copy's files never change
}
"""For a MERGE, in a session that nobody else uses."""

TIME_POLICY = "spark.sql.legacy.timeParserPolicy"
"""The setting that says how Spark makes text of times."""

FUNCTIONS_ORDER = "spark.sql.functionResolution.sessionOrder"
"""The setting of Spark 4.2 that says whether functions of a session come before those of Spark under the same name."""

TOLD = (
    *("spark.sql.caseSensitive", "spark.sql.ansi.enabled", "spark.sql.session.timeZone", TIME_POLICY),
    *dict.fromkeys([*COPY, *DELTA]),
    *("spark.sql.extensions", "spark.sql.catalog.spark_catalog"),
    *("spark.sql.streaming.stateStore.checkpointFormatVersion", "spark.sql.streaming.offsetLog.formatVersion"),
)
"""The settings of a session that people want to know when something is wrong."""

_lock = threading.Lock()
_held: dict[tuple[str, str], tuple[int, str | None]] = {}  # (session, setting): how many hold it, the user's value


@contextlib.contextmanager
def held(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set ``settings`` inside this scope.  The last one who leaves puts back what the user had set.

    Several sinks write at once, in threads that share the session.  All of them need the same value of a setting.
    """
    session = str(spark._jsparkSession.sessionUUID())
    with _lock:
        for key, value in settings.items():
            count, before = _held.get((session, key)) or (0, spark.conf.get(key, None))
            _held[session, key] = count + 1, before
            spark.conf.set(key, value)
    try:
        yield
    finally:
        with _lock:
            for key in settings:
                _let_go(spark, session, key)


def _let_go(spark: SparkSession, session: str, key: str) -> None:
    count, before = _held.pop((session, key))
    if count > 1:
        _held[session, key] = count - 1, before
    elif before is not None:
        spark.conf.set(key, before)
    else:
        spark.conf.unset(key)


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether the session tells columns apart that differ in case alone."""
    return spark.conf.get("spark.sql.caseSensitive", "false") == "true"


def changes_times(spark: SparkSession) -> bool:
    """Return whether the session makes text of times that says other times: without microseconds, by another calendar.

    The setting counts for all expressions of a job, those of the user's query too.  So nothing may be set there.
    """
    return str(spark.conf.get(TIME_POLICY)).upper() == "LEGACY"


def check_functions(spark: SparkSession) -> None:
    """Raise ``Misconfigured`` if functions of a session come first: then ours and ``select=`` may call other ones."""
    order = str(spark.conf.get(FUNCTIONS_ORDER, "second"))
    if order.lower() == "first":
        raise Misconfigured(
            f"with {FUNCTIONS_ORDER}={order}, functions of the session take the place of Spark's own",
            state="a function named to_json or coalesce, for example, would make other values of the rows",
            help='set it to "second", which is the default, before the query starts',
        )
