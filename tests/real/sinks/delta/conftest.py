"""Expressions are interpreted here: with as few rows as these tests have, compiling them takes a fifth of the time.

The kills, the cells, the demo and the documents' examples run what Spark compiles, and what other packages' tests
start in the same session does too: not all of it can be interpreted, a Python function behind state for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPILES = "spark.sql.codegen.factoryMode"


@pytest.fixture(scope="module", autouse=True)
def _interpreted(spark: SparkSession) -> Iterator[None]:
    # Not for the package, which without an __init__.py ends with the whole session.
    spark.conf.set(COMPILES, "NO_CODEGEN")
    yield
    spark.conf.unset(COMPILES)
