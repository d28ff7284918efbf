"""Python workers that lack what the driver has, as on an executor with other packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW_CHECKSUMS = 'implementation = "python"'
"""The package google_crc32c, as it says that it has no C extension."""


def missing(package: str) -> str:
    """The text of a package that is not there."""
    return f'raise ImportError("No module named {package!r}")'


@contextmanager
def workers_that_load(spark: SparkSession, folder: Path, package: str, text: str) -> Iterator[None]:
    """New Python workers load this text as ``package``.  ``folder`` is made."""
    folder.mkdir()
    (folder / f"{package}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        # Workers of a changed environment are started anew.
        patch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(folder))
        yield
