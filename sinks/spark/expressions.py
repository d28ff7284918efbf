"""Expressions over all columns of a row: short to make, and never deeper because a row is wider.

Spark walks an expression by recursion, and copies every level above a part that changes.  A chain over the columns
(``a OR (b OR (c ...))``, ``when(a).otherwise(when(b) ...)``) is as deep as the row is wide: it costs the square of the
columns, and in the end the JVM's stack.  Here all columns are children of one array.  Conditions on the parts of a
value, at any depth, are made here too (:func:`anywhere`).

Each call of a function of ``pyspark.sql.functions`` takes about ten calls into the JVM.  A text takes three, whatever
its length.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from epochal.sinks.spark.names import free, quoted
from epochal.sinks.spark.series import column, session_class

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

PATTERNS = "spark.sql.parser.quotedRegexColumnNames"
"""Spark's setting that makes a name in quotes, in an expression, a regular expression over the names of columns."""
_CUT = "\0"
MOST_ALONE = 100
"""Of how many values of one type each may have an expression of its own: Spark's default for ``codegen.maxFields``.

With more, Spark compiles no whole stage, and reading, resolving and compiling the expressions takes longer than their
evaluation.  Then the values are elements of one array, with one expression for all of them.
"""


def of_text(text: str) -> Column:
    """Return the column of an expression that Epochal itself has written in Spark's SQL.

    ``f.expr`` replaces ``${...}`` by a setting of the session, even in a name that is quoted, and with ``PATTERNS`` it
    takes a name in quotes for a regular expression.  Here the text is read as it stands, and a name stays a name.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None, "columns are made for rows, and rows have a session"
    jvm: Any = context._jvm
    parser = getattr(jvm, "org.apache.spark.sql.catalyst.parser.CatalystSqlParser")()
    with _plain_names(jvm):
        return column(jvm, parser.parseExpression(text))


def reads_otherwise(rows: DataFrame, expressions: Iterable[str]) -> bool:
    """Return whether the session may give ``${...}`` or a name in quotes in one of these texts another meaning."""
    # selectExpr asks the session of the rows, which need not be the one that is active in this thread
    patterns = str(rows.sparkSession.conf.get(PATTERNS)).lower() == "true"
    return patterns or any("${" in expression for expression in expressions)


def _takes_names_for_patterns(jvm: Any) -> bool:
    """Return whether ``PATTERNS`` is set in the session that is active in this thread: Spark's parser asks that one."""
    return bool(getattr(jvm, "org.apache.spark.sql.internal.SQLConf").get().supportQuotedRegexColumnName())


@contextlib.contextmanager
def _plain_names(jvm: Any) -> Iterator[None]:
    """Let Spark's parser take a name in quotes for a name inside the scope, in this thread alone.

    The session's own setting stays, because other threads read the user's expressions with it.
    """
    if not _takes_names_for_patterns(jvm):
        yield
        return
    sessions = session_class(jvm)
    active = sessions.active()
    plain = active.newSession()
    plain.conf().set(PATTERNS, "false")  # a new session has the settings of the Spark context
    sessions.setActiveSession(plain)
    try:
        yield
    finally:
        sessions.setActiveSession(active)


def selected(rows: DataFrame, expressions: Sequence[str]) -> DataFrame:
    """Return the rows with these columns, each of which is an expression in Spark's SQL, as the session reads it.

    All go into the JVM as one text, which is cut there.
    """
    from pyspark.sql import DataFrame as AnyDataFrame

    cut: Any = rows.sparkSession._jvm
    parts = cut.java.util.regex.Pattern.compile(_CUT).split(_CUT.join(expressions))
    return AnyDataFrame(rows._jdf.selectExpr(parts), rows.sparkSession)


def computed(rows: DataFrame, expressions: Sequence[str]) -> DataFrame:
    """Return the rows with these columns, each of which is an expression that Epochal has written.

    Like :func:`of_text`, it reads the expressions as they stand.
    """
    if reads_otherwise(rows, expressions):
        return rows.select(*map(of_text, expressions))
    return selected(rows, expressions)


def computed_once(rows: DataFrame) -> tuple[DataFrame, Column, str]:
    """Return the rows with one more column, a condition that is always true, and the name of that column.

    Spark moves a condition below the columns that it uses, and computes these columns there for each time that the
    condition names them, and above it once more.  It does not do that next to a column that is no function of the row,
    if the condition uses that column, too.
    """
    from pyspark.sql import functions as f

    partition = free("__epochal_partition", rows.columns)
    return rows.select("*", f.spark_partition_id().alias(partition)), f.col(partition) >= 0, partition


def struct_of(names: Iterable[str]) -> str:
    """Return the text of a struct of these columns, whose fields have the columns' names."""
    return f"struct({', '.join(map(quoted, names))})"


def _is_any(conditions: Sequence[str]) -> str:
    """Return the text of a condition: one of the ``conditions`` is true.  It is false or NULL if none is."""
    return conditions[0] if len(conditions) == 1 else f"array_contains({array_of(conditions)}, true)"


def array_of(values: Iterable[str]) -> str:
    """Return the text of an array of values, which have one type."""
    return f"array({', '.join(values)})"


def first_true(conditions: Sequence[str]) -> str:
    """Return the text of a number: which of the ``conditions`` is the first that is true, from 1.  0 if none is."""
    return f"array_position({array_of(conditions)}, true)"


def literal(text: str) -> str:
    """Return the text of a constant.  It is in hexadecimal, so no setting of the session changes how Spark reads it."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def is_invalid_utf8(value: str) -> str:
    """Return the text of a condition: a text holds bytes that are not UTF-8.

    Spark 3.5 has no such function.  Its ``decode`` replaces invalid bytes; from Spark 4 on ``decode`` raises an error.
    """
    from pyspark.sql import functions as f

    if hasattr(f, "is_valid_utf8"):
        return f"(NOT is_valid_utf8({value}))"
    given = f"CAST({value} AS BINARY)"
    return f"(encode(decode({given}, 'UTF-8'), 'UTF-8') != {given})"


def is_not_finite(value: str) -> str:
    """Return the text of a condition: a float or double is NaN or infinite."""
    return f"(isnan({value}) OR abs({value}) = CAST('inf' AS DOUBLE))"


def exists(array: str, element: str, condition: str) -> str:
    """Return the text of a condition: ``condition``, which calls an element ``element``, is true for an element."""
    return f"exists({array}, {element} -> coalesce({condition}, false))"


def anywhere(value: str, kind: DataType, test: Callable[[str, DataType], str | None], depth: int = 0) -> str | None:
    """Return the text of a condition: ``test`` is true for the value or for a part of it, at any depth.

    The condition is false or NULL if ``test`` is true for none of them.  Return None if ``test`` has no condition for
    any of the types.

    Args:
        value: the text of the value.
        kind: its type.
        test: returns the condition for a value that has no parts, or None if no value of its type can meet it.
        depth: in how many arrays the value lies.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        found = [_in_any(values, part, test, depth) for part, values in _by_type(value, kind).items()]
    elif isinstance(kind, ArrayType):
        found = [_in_array(value, kind.elementType, test, depth)]
    elif isinstance(kind, MapType):
        found = [
            _in_array(f"map_keys({value})", kind.keyType, test, depth),
            _in_array(f"map_values({value})", kind.valueType, test, depth),
        ]
    else:
        found = [test(value, kind)]
    conditions = [condition for condition in found if condition is not None]
    return _is_any(conditions) if conditions else None


def _by_type(value: str, kind: DataType) -> dict[DataType, list[str]]:
    """Return type -> texts of the parts of a value that have it, of which none is a struct."""
    from pyspark.sql.types import StructType

    if not isinstance(kind, StructType):
        return {kind: [value]}
    found: dict[DataType, list[str]] = {}
    for field in kind.fields:
        for part, values in _by_type(f"{value}.{quoted(field.name)}", field.dataType).items():
            found.setdefault(part, []).extend(values)
    return found


def _in_any(
    values: Sequence[str], kind: DataType, test: Callable[[str, DataType], str | None], depth: int
) -> str | None:
    """Return the text of a condition: :func:`anywhere` is true for one of the values, which have one type."""
    if len(values) > MOST_ALONE:
        return _in_array(array_of(values), kind, test, depth)
    found = [anywhere(value, kind, test, depth) for value in values]
    conditions = [condition for condition in found if condition is not None]
    return _is_any(conditions) if conditions else None


def _in_array(array: str, kind: DataType, test: Callable[[str, DataType], str | None], depth: int) -> str | None:
    """Return the text of a condition: :func:`anywhere` is true for an element, whose type is ``kind``."""
    element = f"x{depth}"
    condition = anywhere(element, kind, test, depth + 1)
    return exists(array, element, condition) if condition is not None else None


def texts(values: Sequence[str]) -> Column:
    """Return an array of constant texts.  It is one constant in the plan, however many texts it has."""
    from pyspark.sql import functions as f

    return f.from_json(f.lit(json.dumps(list(values))), "array<string>")
