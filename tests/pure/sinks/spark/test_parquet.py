"""Columns of a copy that a worker reads itself: the same bytes, in bounded batches, against the pages' checksums."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as written
from pyspark.sql import types as t

from epochal.sinks.spark import parquet
from epochal.sinks.spark.arrow import FEW_ROWS, MOST_ROWS, ROOM


def file_of(folder: Path, name: str, group: int | None = None, plain: bool = False, **columns: pa.Array) -> str:
    path = folder / name
    written.write_table(
        pa.table(columns), path, row_group_size=group, write_page_checksum=True, use_dictionary=not plain
    )
    return str(path)


def test_the_rows_of_all_files_in_their_order_and_only_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    files = [
        file_of(tmp_path, "0.parquet", k=pa.array(["a", None]), v=pa.array([b"\xff", b""]), x=pa.array([1, 2])),
        file_of(tmp_path, "1.parquet", k=pa.array(["ä"]), v=pa.array([None], pa.binary()), x=pa.array([3])),
    ]
    found = list(parquet.batches(files, ["k", "v"]))
    assert [batch.schema.names for batch in found] == [["k", "v"]] * 2
    assert {field.type for batch in found for field in batch.schema} == {pa.binary()}
    rows = [tuple(row.values()) for batch in found for row in batch.to_pylist()]
    assert rows == [(b"a", b"\xff"), (None, b""), ("ä".encode(), None)]


def test_text_that_is_not_utf8_has_the_bytes_that_it_had(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xc3\x28")])
    [batch] = parquet.batches([file_of(tmp_path, "0.parquet", k=broken)], ["k"])
    assert batch.column("k").to_pylist() == [b"\xc3\x28"]


def test_a_column_that_is_asked_for_twice(tmp_path: Path) -> None:
    [batch] = parquet.batches([file_of(tmp_path, "0.parquet", k=pa.array(["a"]))], ["k", "k"])
    assert [column.to_pylist() for column in batch.columns] == [[b"a"], [b"a"]]


def test_a_damaged_page_is_an_error(tmp_path: Path) -> None:
    file = Path(file_of(tmp_path, "0.parquet", v=pa.array([b"x" * 50_000])))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        list(parquet.batches([str(file)], ["v"]))


def test_batches_are_bounded_by_rows_and_by_bytes(tmp_path: Path) -> None:
    small = file_of(tmp_path, "small.parquet", plain=True, v=pa.array([f"{n}" for n in range(25_000)]))
    assert max(batch.num_rows for batch in parquet.batches([small], ["v"])) == MOST_ROWS
    values = [os.urandom(1 << 20) for _ in range(40)]
    wide = file_of(tmp_path, "wide.parquet", plain=True, group=40, v=pa.array([b""] * 40 + values))
    assert max(batch.nbytes for batch in parquet.batches([wide], ["v"])) <= ROOM * 1.1
    assert [value for batch in parquet.batches([wide], ["v"]) for value in batch["v"].to_pylist()][40:] == values


def test_fewer_rows_at_once_where_a_value_stands_once_for_many(tmp_path: Path) -> None:
    same = file_of(tmp_path, "same.parquet", v=pa.array([b"x" * 10_000] * 5_000))
    assert max(batch.num_rows for batch in parquet.batches([same], ["v"])) == FEW_ROWS


@pytest.mark.parametrize(
    ("fields", "columns", "can"),
    [
        ({"k": t.StringType(), "v": t.BinaryType(), "x": t.DoubleType()}, ["k", "v"], True),
        ({"k": t.StringType("UTF8_LCASE"), "v": t.BinaryType()}, ["v"], True),
        ({"k": t.StringType(), "v": t.StructType()}, ["k", "v"], False),
        ({"k": t.IntegerType(), "v": t.BinaryType()}, ["k", "v"], False),
        ({"k": t.StringType(), "k.x": t.BinaryType()}, ["k"], False),
        ({"a.b": t.StringType(), "a": t.StructType().add("b", "string")}, ["a.b"], False),
    ],
)
def test_which_columns_can_be_read(fields: Mapping[str, t.DataType], columns: list[str], can: bool) -> None:
    schema = t.StructType([t.StructField(name, kind) for name, kind in fields.items()])
    assert parquet.can_read(schema, columns) is can


def test_files_that_only_spark_can_read(tmp_path: Path) -> None:
    file = Path(file_of(tmp_path, "0.parquet", v=pa.array([b"x" * 50_000])))
    assert parquet.is_readable([str(file)], ["v"])
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1  # stands for a codec that pyarrow does not have
    file.write_bytes(data)
    assert not parquet.is_readable([str(file)], ["v"])


def test_no_rows_can_be_read(tmp_path: Path) -> None:
    assert parquet.is_readable([], ["v"])
    assert parquet.is_readable([file_of(tmp_path, "0.parquet", v=pa.array([], pa.binary()))], ["v"])
