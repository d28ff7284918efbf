"""How Spark is told the names of columns, so that no name of a user means something else.

In Spark's SQL, ``a.b`` without quotes is the field ``b`` of a column ``a``.  So every name is quoted, in one place.
A column that Epochal adds beside those of a user gets a name that none of them has (:func:`free`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.spark.executors import running_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

CASE = "spark.sql.caseSensitive"
"""The setting by which a session tells ``Id`` from ``id``."""
_PLAIN = re.compile(r"\w+")
"""Names that pyspark finds without quotes."""


def quoted(name: str) -> str:
    """Return the name as Spark's SQL quotes it."""
    return f"`{name.replace('`', '``')}`"


def column_of(name: str) -> Column:
    """Return the column with exactly this name, whatever characters the name has."""
    from pyspark.sql import functions as f

    return f.col(quoted(name))


def free(wish: str, taken: Iterable[str]) -> str:
    """Return a name that none of ``taken`` has, not even in other upper and lower case: ``wish``, if it is free."""
    there = {name.lower() for name in taken}
    while wish.lower() in there:
        wish += "_"
    return wish


def numbered(rows: DataFrame) -> DataFrame:
    """Return the same rows for ``mapInArrow``, whose function must read columns by position.

    pyspark finds the columns by their names without quotes (``mapInArrow`` of Spark 4.2).  So if a name needs quotes,
    the columns get other names.
    """
    names = rows.columns
    return rows if all(map(_PLAIN.fullmatch, names)) else rows.toDF(*(f"c{n}" for n in range(len(names))))


def refuse_twins(schema: StructType, sink: str) -> None:
    """Raise ``Misconfigured`` if the running session cannot tell two columns or fields apart, by case alone."""
    found = next(twins(schema), None)
    session = running_session() if found is not None else None
    if found is not None and session is not None and session.conf.get(CASE, "false") != "true":
        raise are_twins(found, sink)


def twins(schema: StructType) -> Iterator[tuple[str, str, str]]:
    """Yield names that differ only in case: the path of their struct (empty: they are columns), and both names."""
    for path, names in _structs("", schema):
        if (found := _twins(names)) is not None:
            yield (path, *found)


def are_twins(found: tuple[str, str, str], sink: str | None = None, *, case_sensitive: bool = False) -> Misconfigured:
    """Return the error for two names that the session takes for one: what ``twins`` found, or equal ones."""
    path, one, other = found
    return Misconfigured(
        f"two fields are named {one!r} and {other!r}" if path else f"two columns are named {one!r} and {other!r}",
        sink=sink,
        state=f"{f'inside column {path!r}, ' if path else ''}{CASE}={str(case_sensitive).lower()}",
        help="rename one of them in the query, for instance with withColumnRenamed before a join",
    )


def _twins(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the first two names that differ only in upper and lower case."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            return other, name
    return None


def _structs(path: str, kind: DataType) -> Iterator[tuple[str, list[str]]]:
    """Yield the path and the field names of each struct inside a type."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        yield path, list(kind.names)
        for field in kind.fields:
            yield from _structs(f"{path}.{field.name}" if path else field.name, field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _structs(path, kind.elementType)
    elif isinstance(kind, MapType):
        yield from _structs(path, kind.keyType)
        yield from _structs(path, kind.valueType)
