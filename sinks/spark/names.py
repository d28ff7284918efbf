"""How Spark is told the names of columns, so that no name of a user means something else.

In Spark's SQL, ``a.b`` without quotes is the field ``b`` of a column ``a``.  So every name is quoted, in one place.
A column that Epochal adds beside those of a user gets a name that none of them has (:func:`free`).  Columns, or fields
inside them, that something on the way to a reader cannot tell apart are refused (:func:`check_names`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

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


def parts(kind: DataType) -> Iterator[tuple[str, DataType]]:
    """Yield the types inside a type: the fields of a struct, the elements of an array, keys and values of a map."""
    from pyspark.sql.types import ArrayType, MapType, StructType, UserDefinedType

    if isinstance(kind, StructType):
        yield from ((f.name, f.dataType) for f in kind.fields)
    elif isinstance(kind, ArrayType):
        yield "element", kind.elementType
    elif isinstance(kind, MapType):
        yield "key", kind.keyType
        yield "value", kind.valueType
    elif isinstance(kind, UserDefinedType):
        yield "sqlType", kind.sqlType()


def twins(kind: DataType, *, case_sensitive: bool, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield pairs of columns or fields with one name, each with its path, at any depth of ``kind``."""
    seen: dict[str, str] = {}
    for name, part in parts(kind):
        key = name if case_sensitive else name.lower()
        if key in seen:
            yield f"{path}{seen[key]}", f"{path}{name}"
        seen[key] = name
        yield from twins(part, case_sensitive=case_sensitive, path=f"{path}{name}.")


def check_names(schema: StructType, *, case_sensitive: bool, sink: str | None = None) -> None:
    """Raise ``Misconfigured`` if two columns, or two fields of one struct, have the same name.

    Of two such fields a reader gets the last one, or Spark can read neither.
    """
    for one, other in twins(schema, case_sensitive=case_sensitive):
        raise Misconfigured(
            f"two {'columns' if other in schema.names else 'fields'} are named {one!r} and {other!r}",
            sink=sink,
            state=f"columns {schema.names}, spark.sql.caseSensitive={str(case_sensitive).lower()}",
            help="rename one of them: a column with withColumnRenamed before a join, a field where its struct is made",
        )
