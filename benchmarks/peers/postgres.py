"""Spark's JDBC writer, COPY by psycopg from the tasks, and COPY of a file by the server itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

BATCH = 10_000
"""Rows per JDBC batch.  Larger batches were not faster."""
CONNECT_S = 30
COLUMNS = "id bigint, k text, v text, x double precision"


def jdbc(url: str, table: str) -> Callable[[DataFrame, int], None]:
    """Write with Spark's JDBC writer.  With ``reWriteBatchedInserts=true`` in ``url``, one INSERT has many rows."""

    def write(df: DataFrame, _: int) -> None:
        writer = df.write.format("jdbc").mode("append").option("url", url).option("dbtable", table)
        writer.option("batchsize", BATCH).option("driver", "org.postgresql.Driver").save()

    return write


def copy(dsn: str, table: str) -> Callable[[DataFrame, int], None]:
    """COPY in binary, row by row, in one transaction per task, as psycopg's documentation shows."""

    def write(df: DataFrame, _: int) -> None:
        df.mapInArrow(_copied(dsn, table), "rows bigint").collect()

    return write


def _copied(dsn: str, table: str) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def task(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import psycopg
        import pyarrow

        count = 0
        statement = f"COPY {table} FROM STDIN (FORMAT binary)".encode()
        with (
            psycopg.connect(dsn, connect_timeout=CONNECT_S) as connection,
            connection.cursor().copy(statement) as stream,
        ):
            stream.set_types(["int8", "text", "text", "float8"])
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    stream.write_row(row)
                count += batch.num_rows
        yield pyarrow.RecordBatch.from_pydict({"rows": [count]})

    return task


def prepare_file(dsn: str, source: Path, file: Path, form: str) -> None:
    """Write the same rows to a file that the server can read; ``form``: text or binary."""
    from pyarrow import dataset

    with psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_S) as connection, file.open("wb") as out:
        connection.execute(f"CREATE TEMPORARY TABLE prepared ({COLUMNS})".encode())
        with connection.cursor() as cursor:
            with cursor.copy("COPY prepared FROM STDIN") as stream:
                for batch in dataset.dataset(source, format="parquet").to_batches():
                    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        stream.write_row(row)
            with cursor.copy(f"COPY prepared TO STDOUT (FORMAT {form})".encode()) as stream:
                for part in stream:
                    out.write(part)
    file.chmod(0o644)


def copy_file(dsn: str, table: str, file: Path, form: str) -> None:
    """Let one back-end read the prepared file, and nothing else.  This is not a foreachBatch function."""
    with psycopg.connect(dsn, connect_timeout=CONNECT_S) as connection:
        statement = sql.SQL("COPY {} FROM {} (FORMAT {})")
        connection.execute(statement.format(sql.Identifier(table), sql.Literal(str(file)), sql.SQL(form)))


def create(dsn: str, table: str) -> None:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_S) as connection:
        connection.execute(f"CREATE TABLE {table} ({COLUMNS})".encode())


def count(dsn: str, table: str) -> int:
    with psycopg.connect(dsn, connect_timeout=CONNECT_S) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert found is not None, "a count has a row"
    return int(found[0])


def not_durable(dsn: str) -> str:
    """Return the settings with which acknowledged rows may be lost; empty if there are none."""
    settings = ("fsync", "synchronous_commit", "full_page_writes")
    with psycopg.connect(dsn, connect_timeout=CONNECT_S) as connection:
        found = {name: str(connection.execute(f"SHOW {name}".encode()).fetchone()[0]) for name in settings}  # type: ignore[index]
    return ", ".join(f"{name}={value}" for name, value in found.items() if value != "on")


def drop(dsn: str, *tables: str) -> None:
    """Drop the tables and a sink's tables beside them.

    A checkpoint follows, so that dirty pages of one turn are not written during another.
    """
    with psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_S) as connection:
        for table in tables:  # a sink's own tables first: its view has the table's name and depends on them
            connection.execute(f"DROP TABLE IF EXISTS {table}__rows, {table}__staged CASCADE".encode())
            connection.execute(f"DROP TABLE IF EXISTS {table}".encode())
        connection.execute("CHECKPOINT")
