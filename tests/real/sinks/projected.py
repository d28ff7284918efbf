"""Rows for a sink with ``select=`` and ``where=``: every second one is left out, the rest gets another schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from epochal.chaos.contract.spark import SCHEMA, SparkHarness

OPTIONS: Mapping[str, Any] = {"select": ["n * 2 AS twice", "attempt", "id"], "where": "n >= 0"}


class ProjectedRows(SparkHarness):
    """Before the harness of a sink: the rows that the contract knows, and as many that it must never see."""

    options = OPTIONS

    def evaluated(self, ids: Sequence[str]) -> int:
        return 2 * len(ids)

    def rows(self, ids: Sequence[str], attempt: str) -> DataFrame:
        some = [(key, attempt, n) for n, key in enumerate(ids)]
        others = [(f"left out {key}", attempt, n) for key, n in zip(ids, (-1, None) * len(ids), strict=False)]
        every = [row for pair in zip(some, others, strict=True) for row in pair]
        return self.spark.createDataFrame(every, SCHEMA)
