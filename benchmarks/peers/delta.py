"""Spark's Delta writer, without and with its idempotence marker, and delta-rs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spark(path: str, app: str | None = None) -> Callable[[DataFrame, int], None]:
    """Append with Spark.  ``app`` sets ``txnAppId`` and ``txnVersion``, so that Delta drops an epoch that it has."""

    def write(df: DataFrame, epoch: int) -> None:
        writer = df.write.format("delta").mode("append")
        if app is not None:
            writer = writer.option("txnAppId", app).option("txnVersion", epoch)
        writer.save(path)

    return write


def delta_rs(path: str) -> Callable[[DataFrame, int], None]:
    """Collect the epoch as one Arrow table in the driver, and write it without Spark."""
    from deltalake import write_deltalake

    def write(df: DataFrame, _: int) -> None:
        write_deltalake(path, df.toArrow(), mode="append")

    return write


def count(path: Path) -> int:
    """Return the number of rows according to the table's log."""
    from deltalake import DeltaTable

    return sum(DeltaTable(path).get_add_actions(flatten=True).column("num_records").to_pylist())
