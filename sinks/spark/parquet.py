"""Read columns of a durable copy in a Python worker, straight from the copy's files.

Spark's JVM would read the same files, make rows, make Arrow batches of them, and send these through a socket.  That
gives the same values of plain columns, for more processor time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from epochal.sinks.spark.arrow import FEW_ROWS, MOST_ROWS, ROOM

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData
    from pyspark.sql.types import StructType

_PLAIN = ("string", "binary")
_BUFFER = 1 << 20
"""How many bytes of a column are read at once."""


def can_read(schema: StructType, columns: Sequence[str]) -> bool:
    """Return whether these columns have the same bytes here as in Spark.

    Arrow finds a column by its path in the file, in which a dot is also what joins a struct and its field.
    """
    if any("." in name for name in schema.names):
        return False
    return all(schema[name].dataType.jsonValue() in _PLAIN for name in columns)


def is_readable(paths: Sequence[str], columns: Sequence[str]) -> bool:
    """Return whether this process can read the first rows: not without the codec, or if files are encrypted."""
    try:
        next(batches(paths, columns), None)
    except Exception:  # whatever it is, Spark reads the files then, and its error says more
        return False
    return True


def batches(paths: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these files, in their order; each column has the type ``binary``.

    ``columns``: names of text or bytes.  A name may stand twice.  ``OSError``: a page of a file is damaged.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    wanted = list(dict.fromkeys(columns))
    for path in paths:
        with ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True) as file:
            size = rows_at_once(file.metadata)
            for batch in file.iter_batches(size, columns=wanted, use_threads=False):
                found = [batch.column(name).cast(pa.binary()) for name in columns]
                yield pa.RecordBatch.from_arrays(found, names=list(columns))


def rows_at_once(metadata: FileMetaData) -> int:
    """Return how many rows of a file a batch may have, by the widest rows of any of its row groups.

    A row group tells how large its rows are as they are encoded.  In a dictionary a value stands once, for many rows.
    So rows of which a column has one may be larger, and fewer are read.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    most = FEW_ROWS if any(chunk.has_dictionary_page for chunk in chunks) else MOST_ROWS
    widest = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=0)
    return max(1, min(most, int(ROOM / widest) if widest else most))
