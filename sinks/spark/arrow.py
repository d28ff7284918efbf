"""How many rows Spark hands to a Python worker at once, as one Arrow batch.

Spark bounds a batch by rows and, since 4.1, by bytes.  For the bytes it measures the whole batch anew after every row.
That takes a third of the time in which rows get to Python (2 million rows of 116 bytes on two cores: 1.25 s, and 0.87 s
without it).  So where rows are known to be small, their number alone bounds a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MOST_ROWS = 10_000
"""Spark's own default: a user's setting may be smaller, but not larger."""
ROOM = 16 << 20
"""How many bytes a batch should have at most, a quarter of Spark's own bound."""
FEW_ROWS = 1_000
"""Rows of which fewer fit into the room are not small: measuring them costs little, compared with what they hold."""
NO_BOUND = str(2**31 - 1)


def rows_of_a_batch(spark: SparkSession) -> int:
    """Return how many rows an Arrow batch may have: what the user has set, and at most ``MOST_ROWS``."""
    asked = int(str(spark.conf.get(ROWS, str(MOST_ROWS))))
    return min(asked, MOST_ROWS) if asked > 0 else MOST_ROWS


class BatchBounds:
    """Chooses the bounds of the batches of one sink by the rows of the sink's last epoch.

    A start knows nothing, so its first epoch has Spark's bound of bytes.  If rows suddenly grow so much that a batch of
    them does not fit into memory, the epoch is refused before any decision, and the restart writes it with that bound.
    """

    def __init__(self) -> None:
        self._widest = 0.0

    def saw(self, widest: Iterable[float]) -> None:
        """Note the largest mean of bytes of a row in any batch of an epoch, of each task; 0 for a task without rows.

        If no task had rows, what was known before stays.
        """
        self._widest = max(widest, default=0.0) or self._widest

    def settings(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the settings for a job of the next epoch, for the session in which its rows are evaluated."""
        rows = rows_of_a_batch(spark)
        fit = int(ROOM / self._widest) if self._widest else 0
        return {ROWS: str(min(rows, fit)), BYTES: NO_BOUND} if fit >= FEW_ROWS else {ROWS: str(rows)}


class Widths:
    """Passes batches on, and notes how many bytes their rows have."""

    def __init__(self) -> None:
        self.widest = 0.0
        """The largest number of bytes that a row of one batch has on average; 0 if there were no rows."""

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                self.widest = max(self.widest, batch.nbytes / batch.num_rows)
            yield batch
