"""What an outside reader finds in a Delta table: delta-rs, or pyarrow with the log where delta-rs is known to fail.

Seen with deltalake 1.6: ``to_pyarrow_table`` fails if a partition value is a negative decimal with a fraction (it makes
``0.-5`` of -0.05), or a time outside the years 1 to 9999; and if a date outside these years is a partition value or in
the statistics of a file.  It panics at dates far beyond.  Such tables are read by hand: the log's JSON, then each file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import types as t

from tests.fuzz import values
from tests.fuzz.frames import Column
from tests.fuzz.values import DAY, FIRST_DAY, LAST_DAY, Value

Found = Mapping[str, Value]


def rows(path: Path, columns: Sequence[Column]) -> list[Found]:
    """All rows of the newest version; the values of those columns that it has."""
    found = by_hand(path, columns)
    kinds = {c.name: c.kind for c in columns}
    if any(fails_delta_rs(value, kinds[name]) for row in found for name, value in row.items()):
        return found
    table = DeltaTable(str(path)).to_pyarrow_table()
    return _named(_plain(columns, table.column_names), table.column, table.num_rows)


def fails_delta_rs(value: Value, kind: t.DataType) -> bool:
    """Whether delta-rs may not read a table that has the value in a column of this type."""
    if value is None:
        return False
    if isinstance(kind, t.DateType):
        return not FIRST_DAY <= value <= LAST_DAY
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        return not FIRST_DAY <= value // DAY <= LAST_DAY
    return isinstance(kind, t.DecimalType) and kind.scale > 0 and bool(value < 0)


def by_hand(path: Path, columns: Sequence[Column]) -> list[Found]:
    """The same rows, without delta-rs."""
    names, files = _log(path)
    read = _plain(columns, names)
    return [row for file in files for row in _of_file(path, file, read)]


def _log(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the table's columns, and the ``add`` actions of its files.  Every version must still be there."""
    texts = sorted((path / "_delta_log").glob("*.json"))
    assert [int(text.stem) for text in texts] == list(range(len(texts))), texts
    names: list[str] = []
    files: dict[str, dict[str, Any]] = {}
    for text in texts:
        for action in map(json.loads, text.read_bytes().decode("utf-8", "surrogateescape").splitlines()):
            if about := action.get("metaData"):
                assert about["configuration"].get("delta.columnMapping.mode", "none") == "none", about
                names = [field["name"] for field in json.loads(about["schemaString"])["fields"]]
            if gone := action.get("remove"):
                files.pop(gone["path"], None)
            if new := action.get("add"):
                assert not new.get("deletionVector"), new
                files[new["path"]] = new
    return names, list(files.values())


def _of_file(path: Path, add: Mapping[str, Any], read: Sequence[Column]) -> list[Found]:
    place = os.path.join(os.fsencode(path), unquote_to_bytes(add["path"]))  # a name need not be text
    with open(place, "rb") as opened:
        table = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us").read()
    parts = add["partitionValues"]
    found = _named([c for c in read if c.name in table.column_names], table.column, table.num_rows)
    fixed = {c.name: _of_text(text, c.kind) if (text := parts.get(c.name)) else None for c in read}
    return [{**fixed, **row} for row in found]


def _of_text(text: str, kind: t.DataType) -> Value:
    """The value of a partition.  An empty text is NULL, and never comes here."""
    if isinstance(kind, (t.StringType, t.BinaryType)):
        return text.encode("utf-8", "surrogateescape")
    if isinstance(kind, t.DateType):
        return values.days(text)
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        return values.microseconds(text.replace(" ", "T").removesuffix("Z"))
    if isinstance(kind, t.BooleanType):
        return {"true": True, "false": False}[text]
    if isinstance(kind, t.DecimalType):
        return Decimal(text)
    return int(text) if isinstance(kind, t.IntegralType) else float(text)


def _plain(columns: Iterable[Column], names: Sequence[str]) -> list[Column]:
    return [c for c in columns if c.exotic is None and c.name in names]


def _named(columns: Sequence[Column], column: Callable[[str], pa.ChunkedArray], count: int) -> list[Found]:
    parts = [values.from_arrow(column(c.name), c.kind) for c in columns]
    return [{c.name: part[at] for c, part in zip(columns, parts, strict=True)} for at in range(count)]
