"""What differs between series of Spark, and can be found by looking: from Spark 3.5 on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from epochal.sinks.spark.scala import Java

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


@cache
def is_spark_4() -> bool:
    """Return whether this is Spark 4 or newer: it keeps PySpark's own classes apart from those of Spark Connect."""
    return importlib.util.find_spec("pyspark.sql.classic") is not None


def class_of_sessions() -> str:
    """Return the name of the JVM's class of the sessions that PySpark uses."""
    return f"org.apache.spark.sql.{'classic.' if is_spark_4() else ''}SparkSession"


def session_class(jvm: Java) -> Java:
    """Return the JVM's class of the sessions that PySpark uses."""
    return getattr(jvm, class_of_sessions())


def column(jvm: Java, expression: Java) -> Column:
    """Return the column of an expression of Catalyst."""
    from pyspark.sql import Column

    if not is_spark_4():
        made: Any = Column
        return cast("Column", made(getattr(jvm, "org.apache.spark.sql.Column")(expression)))
    from pyspark.sql.classic.column import Column as ClassicColumn

    utils = getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    return cast("Column", ClassicColumn(utils.column(expression)))


def inheriting(spark: SparkSession, run: Callable[..., None]) -> Callable[..., None]:
    """Return ``run`` for a new thread, in which it has the job group and the local properties of this thread."""
    from pyspark.util import inheritable_thread_target

    inherit: Any = inheritable_thread_target  # Spark 3.5 takes the function alone
    inherited: Callable[..., None] = inherit(spark)(run) if is_spark_4() else inherit(run)
    return inherited
