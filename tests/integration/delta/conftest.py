"""Expressions are interpreted here: with as few rows as these tests have, compiling them takes a fifth of the time.

The kills, the cells, the demo and the documents' examples run what Spark compiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPILES = "spark.sql.codegen.factoryMode"


@pytest.fixture(scope="package", autouse=True)
def _interpreted(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(COMPILES, "NO_CODEGEN")
    yield
    spark.conf.unset(COMPILES)
