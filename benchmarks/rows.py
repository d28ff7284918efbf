"""The rows that jobs write: folders of Parquet files, with two files (for two tasks) per epoch.

``k`` has 16 bytes, and ``v`` has a given number of bytes.  Both are hexadecimal digits of hashes, which compressors can
halve.  A *wide* row also has an id and a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SMALL = 1_000
"""How many rows the epoch before the measured one has.  It makes connections, code and caches warm."""


def source(
    spark: SparkSession,
    folder: Path,
    epochs: Sequence[int],
    *,
    value: int = 100,
    wide: bool = True,
    again: bool = False,
) -> Path:
    """Return a folder with one epoch of each of these sizes, in this order.  It is made only once.

    Rows are (k, v), or with ``wide`` (id, k, v, x).  ``value``: bytes of ``v``.  ``again`` adds one more epoch with the
    ids and keys of the last one, and other values in all other columns.
    """
    sizes = "-".join(f"{len(list(same))}x{size}" for size, same in itertools.groupby(epochs))
    path = folder / f"rows-{'wide' if wide else 'narrow'}-{value}-{sizes}{'-again' if again else ''}"
    if not path.exists():
        ends = list(itertools.accumulate(epochs, initial=0))
        for first, end in itertools.pairwise(ends):
            _append(_rows(spark, first, end, value, wide), path)
        if again:
            changed = ["id", "k", "reverse(v) AS v", "-x AS x"] if wide else ["k", "reverse(v) AS v"]
            _append(_rows(spark, ends[-2], ends[-1], value, wide).selectExpr(*changed), path)
    return path


def _rows(spark: SparkSession, first: int, end: int, value: int, wide: bool) -> DataFrame:
    return spark.range(first, end, numPartitions=2).selectExpr(*columns(value, wide))


def _append(frame: DataFrame, path: Path) -> None:
    frame.write.mode("append").option("compression", "zstd").parquet(str(path))


def columns(value: int, wide: bool) -> list[str]:
    blocks = f"transform(sequence(1, {-(-value // 40)}), n -> sha(concat(string(id), '-', string(n))))"
    text = f"substr(concat_ws('', {blocks}), 1, {value})"
    narrow = ["substr(sha(string(id)), 1, 16) AS k", f"{text} AS v"]
    return ["id", *narrow, "cast(hash(id) AS double) / 7 AS x"] if wide else narrow


SCHEMA = "id bigint, k string, v string, x double"


def record_batch(rows: Iterable[tuple[int, str, str, float]]) -> pa.RecordBatch:
    """Return rows (id, k, v, x) as a record batch, as a Spark task gets them."""
    import pyarrow as pa

    ids, keys, values, numbers = zip(*rows, strict=True)
    columns = [pa.array(ids, pa.int64()), pa.array(keys), pa.array(values), pa.array(numbers, pa.float64())]
    return pa.RecordBatch.from_arrays(columns, names=["id", "k", "v", "x"])


def write_file(path: Path, ids: Sequence[int]) -> None:
    """Write rows with these ids without Spark, as one Parquet file that appears whole; ``k`` is the id in 16 digits."""
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    keys = [f"{number:016d}" for number in ids]
    columns = {"id": pa.array(ids, pa.int64()), "k": keys, "v": [(key * 7)[:100] for key in keys]}
    hidden = path.with_name(f".{path.name}")
    parquet.write_table(pa.table({**columns, "x": pa.array([number / 7 for number in ids], pa.float64())}), hidden)
    hidden.rename(path)
