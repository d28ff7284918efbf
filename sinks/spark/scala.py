"""Scala's collections, in the JVM of any series of Spark.

Spark 3.5 runs on Scala 2.12, later ones on 2.13.  What is used here is in both, with the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Java = Any
"""A py4j proxy."""
_CONVERTERS = "scala.collection.JavaConverters"


def each(jvm: Java, found: Java) -> Iterator[Java]:
    """Return the elements of a Scala collection."""
    # not by a Java iterator: it ends with an exception, which costs PySpark 20 ms
    array = getattr(jvm, _CONVERTERS).asJavaCollection(found).toArray()
    return (array[index] for index in range(len(array)))


def keys(jvm: Java, found: Java) -> Iterator[str]:
    """Return the keys of a Scala map of texts."""
    return map(str, getattr(jvm, _CONVERTERS).mapAsJavaMap(found).keySet().toArray())


def seq(jvm: Java, items: Sequence[Java]) -> Java:
    """Return a Scala ``Seq``."""
    found = getattr(jvm, "java.util.ArrayList")()
    for item in items:
        found.add(item)
    return getattr(jvm, "org.apache.spark.api.python.PythonUtils").toSeq(found)


def add(buffer: Java, item: Java) -> None:
    """Append to a Scala buffer."""
    getattr(buffer, "$plus$eq")(item)
