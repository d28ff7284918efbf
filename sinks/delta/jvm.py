"""Delta through the JVM: every call of Epochal that is not public API, in this one module.

Delta's public writer cannot vote: it writes and commits in one go.  The transaction under it can:
``writeFiles`` makes the files (nobody reads them, the log does not name them), and ``commit`` of a
later transaction, perhaps in another process, puts them into the log.  These entry points did not
change from Delta 2.4 to 4.4; :func:`self_test` refuses a Delta where they may have.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.epoch import Json
from epochal.coordinator.errors import Misconfigured
from epochal.coordinator.versions import DELTA_JAR, DELTA_JARS
from epochal.sinks.executors import running_session

Java = Any
"""A py4j proxy."""
T = TypeVar("T")

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_tested: set[str] = set()  # Spark application ids


class JavaFailure(Exception):
    """An exception in the JVM, known by the classes it and its causes are, not by their text."""

    def __init__(self, message: str, classes: Sequence[str]) -> None:
        super().__init__(message)
        self.message = message
        self.classes = classes  # simple names, superclasses and causes included

    def is_a(self, *names: str) -> bool:
        return any(name in self.classes for name in names)

    def __reduce__(self) -> tuple[object, ...]:
        return (JavaFailure, (self.message, self.classes))


class Table:
    """One Delta table at a path.  It keeps no state of its own: every transaction reads the log anew."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        jvm: Java = spark._jvm
        self._jvm = jvm
        with java_errors():
            self._log: Java = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
            self._root: Java = self._log.dataPath()
            self._files: Java = self._root.getFileSystem(self._log.newDeltaHadoopConf())

    def begin(self) -> Transaction:
        """A transaction on the newest snapshot; one that is never committed is a plain read."""
        with java_errors():
            return Transaction(self._spark, self._log, self._log.startTransaction())

    def size(self, path: str) -> int | None:
        """Bytes of the file with that path, as an ``add`` action writes paths; None if there is none."""
        return self._unless_missing(lambda: int(self._files.getFileStatus(self._path(path)).getLen()))

    def may_write(self, folder: str) -> bool:
        """Whether this process may make files in that folder; elsewhere than on a local disk only a write tells."""
        where = self._path(folder).toUri()
        local = where.getScheme() in (None, "file")
        return not local or bool(self._jvm.java.io.File(where.getPath()).canWrite())

    def delete(self, path: str) -> None:
        """Delete that file, also when it is gone."""
        with java_errors():
            self._files.delete(self._path(path), False)

    def list(self, folder: str) -> list[str]:
        """Names in that folder, none if there is no folder."""
        found = self._unless_missing(lambda: self._files.listStatus(self._path(folder)))
        return sorted(str(status.getPath().getName()) for status in found or ())

    def write(self, path: str, text: str) -> None:
        """Make that file, with its folders."""
        with java_errors():
            stream = self._files.create(self._path(path), True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def read(self, path: str) -> str | None:
        """The text of that file; None if there is none."""

        def text() -> str:
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()

        return self._unless_missing(text)

    def count_rows(self, paths: Sequence[str]) -> int:
        """Rows in those files, from their footers."""
        if not paths:
            return 0
        files = [str(self._path(path).toString()) for path in paths]
        with java_errors():
            return self._spark.read.parquet(*files).count()

    def _path(self, path: str) -> Java:
        child = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(path))
        return self._jvm.org.apache.hadoop.fs.Path(self._root, child)

    def _unless_missing(self, ask: Callable[[], T]) -> T | None:
        try:
            with java_errors():
                return ask()
        except JavaFailure as failure:
            if failure.is_a("FileNotFoundException"):
                return None
            raise


class Transaction:
    """A snapshot, what was read of it, and perhaps one commit.  Delta refuses the commit when another
    commit wrote a transaction id that :meth:`version_of` was asked for, or changed metadata or protocol."""

    def __init__(self, spark: SparkSession, log: Java, txn: Java) -> None:
        self._spark = spark
        self._jvm: Java = spark._jvm
        self._log = log
        self._txn = txn

    @property
    def exists(self) -> bool:
        """False: there is no Delta table at that path."""
        return int(self._txn.readVersion()) >= 0

    def metadata(self) -> Json:
        """Delta's ``metaData`` action."""
        return _action(self._txn.metadata(), "metaData")

    def protocol(self) -> Json:
        """Delta's ``protocol`` action."""
        return _action(self._txn.protocol(), "protocol")

    def check_writable(self) -> None:
        """JavaFailure when the table needs a feature that this Delta cannot write."""
        with java_errors():
            self._log.protocolWrite(self._txn.protocol())

    def version_of(self, identity: str) -> int | None:
        """The version of that transaction id, None for none.  From now on a conflict if another writes it."""
        with java_errors():
            version = int(self._txn.txnVersion(identity))
        return version if version >= 0 else None

    def write_files(self, rows: DataFrame) -> list[Json]:
        """Evaluate ``rows`` once into files that the log does not name; their ``add`` actions."""
        with java_errors():
            actions = self._txn.writeFiles(rows._jdf)
            return [json.loads(str(action.json())) for action in self._converters().asJava(actions)]

    def commit(self, actions: Iterable[Json], *, query_id: str, epoch: int, user_metadata: str) -> None:
        """Put the actions into the log as one version, if nothing that was read has changed meanwhile."""
        with java_errors():
            delta, scala = self._jvm.org.apache.spark.sql.delta, self._jvm.scala
            batch = self._jvm.java.util.ArrayList()
            for action in actions:
                batch.add(delta.actions.Action.fromJson(json.dumps(action)))
            append = self._jvm.org.apache.spark.sql.streaming.OutputMode.Append()
            what = delta.DeltaOperations.StreamingUpdate(append, query_id, epoch, scala.Option.apply(user_metadata))
            self._txn.commit(self._converters().asScala(batch).toSeq(), what)

    def _converters(self) -> Java:
        return self._jvm.scala.jdk.javaapi.CollectionConverters


def session(sink: str) -> SparkSession:
    """The Spark session, which this sink cannot do without."""
    running = running_session()
    if running is None:
        raise Misconfigured(
            "there is no Spark session in this process, and Delta is written through one",
            sink=sink,
            help="start a SparkSession (not Spark Connect) before the sink is used",
        )
    return running


def self_test(spark: SparkSession, sink: str) -> None:
    """Refuse a session without Delta, or with one whose private parts were not tried; once per application."""
    application = spark.sparkContext.applicationId
    if application in _tested:
        return
    jvm: Java = spark._jvm
    if not isinstance(jvm.org.apache.spark.sql.delta.DeltaLog, JavaClass):
        raise _no_delta(sink, "Delta's classes are not there")
    if EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise _no_delta(sink, f"spark.sql.extensions does not name {EXTENSION}")
    version = str(getattr(jvm.io.delta, "package").VERSION())  # noqa: B009
    if version.split(".")[:2] != DELTA_JAR.split(".")[:2]:
        raise _unknown_delta(sink, version, f"tried with {DELTA_JAR}")
    try:
        _try_private_parts(jvm)
    except (JavaFailure, TypeError, AttributeError) as error:
        raise _unknown_delta(sink, version, str(error).partition("\n")[0]) from error
    _tested.add(application)


def _try_private_parts(jvm: Java) -> None:
    with java_errors():
        delta = jvm.org.apache.spark.sql.delta
        for action in ({"txn": {"appId": "a", "version": 1, "lastUpdated": 1}}, {"add": _AN_ADD}):
            there_and_back = json.loads(str(delta.actions.Action.fromJson(json.dumps(action)).json()))
            kind = next(iter(action))
            lost = {key: value for key, value in action[kind].items() if there_and_back[kind].get(key) != value}
            if lost:
                raise TypeError(f"an action does not survive JSON: {lost}")
        append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        delta.DeltaOperations.StreamingUpdate(append, "q", 0, jvm.scala.Option.apply("m"))
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        kind = loader.loadClass("org.apache.spark.sql.delta.OptimisticTransaction")
        missing = _TRANSACTION_METHODS - {str(method.getName()) for method in kind.getMethods()}
        if missing:
            raise TypeError(f"OptimisticTransaction has no {sorted(missing)}")


_AN_ADD: Json = {"path": "p", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
_TRANSACTION_METHODS = {"txnVersion", "writeFiles", "commit", "metadata", "protocol", "readVersion"}


def _no_delta(sink: str, state: str) -> Misconfigured:
    return Misconfigured(
        "the Spark session has no Delta",
        sink=sink,
        state=state,
        help=f"start it with spark.jars.packages={','.join(DELTA_JARS.coordinates)} "
        f"spark.sql.extensions={EXTENSION} spark.sql.catalog.spark_catalog={CATALOG}",
    )


def _unknown_delta(sink: str, version: str, state: str) -> Misconfigured:
    return Misconfigured(
        f"Delta {version} on the Spark session is not one that this Epochal was tried with",
        sink=sink,
        state=state,
        help=f"use Delta {DELTA_JAR}",
    )


def _action(action: Java, kind: str) -> Json:
    with java_errors():
        found: Json = json.loads(str(action.json()))[kind]
        return found


def schema_of(metadata: Json) -> StructType:
    """The table's schema as its ``metaData`` action has it."""
    return StructType.fromJson(json.loads(metadata["schemaString"]))


@contextlib.contextmanager
def java_errors() -> Iterator[None]:
    """Turn what the JVM throws, however pyspark dresses it, into :class:`JavaFailure`."""
    try:
        yield
    except Py4JJavaError as error:
        raise JavaFailure(str(error.java_exception), _classes(error.java_exception)) from error
    except PySparkException as error:
        raise JavaFailure(str(error), _classes(_origin(error))) from error
    except Py4JError as error:  # the JVM does not answer
        raise JavaFailure(str(error), [type(error).__name__]) from error


def _origin(error: PySparkException) -> Java:
    """The Java exception under it.  Those that the package delta dresses keep it only as their context."""
    if isinstance(error.__context__, Py4JJavaError):
        return error.__context__.java_exception
    return getattr(error, "_origin", None)


def _classes(throwable: Java) -> list[str]:
    names: list[str] = []
    while throwable is not None:
        kind = throwable.getClass()
        while kind is not None:
            names.append(str(kind.getSimpleName()))
            kind = kind.getSuperclass()
        throwable = throwable.getCause()
    return names
