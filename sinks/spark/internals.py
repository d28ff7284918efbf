"""Spark's internal methods that Epochal calls, and a check at start that this Spark has them.

If a later release has changed one of them, a start ends with one error that names it.  Those of Delta are in
``delta/jvm.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.spark.scala import Java
from epochal.sinks.spark.series import class_of_sessions, is_spark_4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SQL = "org.apache.spark.sql."
_OF_A_QUERY = (
    *("resolvedCheckpointRoot/0", "outputMode/0", "trigger/0", "analyzedPlan/0", "logicalPlan/0"),
    *("lastExecution/0", "runId/0", "isActive/0"),
)
_OF_SESSIONS = (
    *("cloneSession/0", "newSession/0", "sessionState/0", "sessionUUID/0", "sharedState/0"),
    *("active/0", "getActiveSession/0", "setActiveSession/1", "clearActiveSession/0"),
)
CALLED: Sequence[Mapping[str, Sequence[str]]] = (
    {_SQL + "internal.SharedState": ["activeStreamingQueries/0"]},
    {_SQL + "internal.SessionState": ["catalog/0", "conf/0", "executePlan/2", "newHadoopConf/0", "sqlParser/0"]},
    {_SQL + "internal.SQLConf": ["get/0", "getAllConfs/0", "supportQuotedRegexColumnName/0"]},
    {_SQL + "catalyst.parser.ParserInterface": ["parseExpression/1", "parsePlan/1", "parseTableIdentifier/1"]},
    {_SQL + "catalyst.parser.CatalystSqlParser": ["parseExpression/1"]},
    {_SQL + "catalyst.analysis.FunctionRegistry": ["builtin/0"]},
    {_SQL + "catalyst.catalog.SessionCatalog": ["getTableMetadata/1"]},
    {_SQL + "execution.CommandExecutionMode": ["SKIP/0"]},
    {_SQL + "execution.QueryExecution": ["analyzed/0", "toRdd/0"]},
    {
        _SQL + "execution.streaming.runtime.StreamExecution": _OF_A_QUERY,
        _SQL + "execution.streaming.StreamExecution": _OF_A_QUERY,
    },
    {_SQL + "Observation": ["getAsJava/0"]},  # observing.py looks for its other methods
    {"org.apache.spark.scheduler.LiveListenerBus": ["metrics/0", "waitUntilEmpty/1"]},
    {"org.apache.spark.SparkContext": ["statusStore/0"]},
    {"org.apache.spark.api.python.PythonUtils": ["toSeq/1"]},
    {"scala.collection.JavaConverters": ["asJavaCollection/1", "mapAsJavaMap/1"]},
)
"""Classes, each with the methods that are called, as name/number of arguments.

A class that has other names in other series is there under each of them; the first one that Spark has counts.
Classes whose names depend on PySpark come from :func:`_called`.
"""
_METHOD = re.compile(r"\.([\w$]+)\(([^()]*)\)")
_tested: set[str] = set()


def self_test(spark: SparkSession) -> str:
    """Raise ``Misconfigured`` if this Spark lacks a method in ``CALLED``; return what was looked for.

    Asked once per Spark application.
    """
    application = spark.sparkContext.applicationId
    missing = [] if application in _tested else list(_missing(spark._jvm))
    if missing:
        raise Misconfigured(
            f"Spark {spark.version} lacks internal methods that this Epochal calls",
            state=f"missing: {'; '.join(missing)}",
            help="use a version of Spark that is in the table of docs/operations.md, or a newer Epochal",
        )
    _tested.add(application)
    return f"{len(_called())} classes have the methods that are called"


def _called() -> Sequence[Mapping[str, Sequence[str]]]:
    columns = {_SQL + "classic.ExpressionUtils": ["column/1"]}
    return [{class_of_sessions(): _OF_SESSIONS}, *([columns] if is_spark_4() else []), *CALLED]


def methods(jvm: Java, name: str) -> frozenset[str] | None:
    """Return the public methods of a class, as name/number of arguments; None if there is no such class."""
    from py4j.protocol import Py4JJavaError

    loader = getattr(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
    try:
        found = loader.loadClass(name).getMethods()
    except Py4JJavaError as error:
        if str(error.java_exception.getClass().getSimpleName()) != "ClassNotFoundException":
            raise
        return None
    # one call, not two for each of some hundred methods; py4j passes no array of methods to java.util.Arrays
    text = str(getattr(jvm, "org.apache.commons.lang3.ArrayUtils").toString(found))
    return frozenset(f"{method}/{len(given.split(',')) if given else 0}" for method, given in _METHOD.findall(text))


def _missing(jvm: Java) -> Iterator[str]:
    for names in _called():
        found = {name: there for name in names if (there := methods(jvm, name)) is not None}
        name = next(iter(found or names))
        if lacking := sorted({*names[name]} - found.get(name, frozenset())):
            yield f"{name}: {', '.join(lacking)}"
