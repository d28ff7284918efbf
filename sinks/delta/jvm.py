"""Delta through the JVM: all calls of Delta's private API, in this one module.

Delta's public writer cannot vote, because it writes and commits in one step.  The transaction below it can:
``writeFiles`` makes the files (nobody reads them, as the log does not name them).  ``commit`` of a later transaction,
perhaps in another process, adds them to the log.  These methods did not change from Delta 2.4 to 4.4; those that
begin on a known snapshot did not change since 3.2.  :mod:`~epochal.sinks.delta.self_test` refuses a Delta in which they
may differ.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta.lineage import log_file
from epochal.sinks.delta.log_store import LogStore
from epochal.sinks.spark import scala, series, settings
from epochal.sinks.spark.executors import clone, running_session

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Java = Any
"""A py4j proxy."""
T = TypeVar("T")

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DELTA = "org.apache.spark.sql.delta."

_SCHEMES = ("file", "hdfs")
"""Schemes of file systems on which a version exists if its file exists.  On S3, DynamoDB may know a version earlier."""
_ORDERED_ELSEWHERE = {"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"}
"""Features of tables in which a catalog or a commit coordinator orders the versions."""


class JavaFailure(Exception):
    """An exception in the JVM.  It is recognised by its classes and those of its causes, not by their text."""

    def __init__(self, message: str, classes: Sequence[str]) -> None:
        super().__init__(message)
        self.message = message
        self.classes = classes  # simple names, superclasses and causes included

    def is_a(self, *names: str) -> bool:
        return any(name in self.classes for name in names)

    def __reduce__(self) -> tuple[object, ...]:
        return (JavaFailure, (self.message, self.classes))


@dataclass(frozen=True)
class Written:
    """The result of a MERGE on a snapshot: its actions, and the new files, none of which the log names yet."""

    actions: Sequence[Json]
    files: Sequence[str]


@dataclass(frozen=True)
class Catalogued:
    """An entry of the session catalog."""

    kind: str  # MANAGED, EXTERNAL, VIEW
    provider: str | None
    location: str


def catalogued(spark: SparkSession, name: str) -> Catalogued:
    """Return the catalog's entry with this name.  ``JavaFailure``: there is none, or the name is invalid."""
    with java_errors():
        state = spark._jsparkSession.sessionState()
        found = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier(name))
        kind, provider = str(found.tableType().name()), found.provider()
        is_view = kind == "VIEW"
        return Catalogued(
            kind,
            None if is_view or provider.isEmpty() else str(provider.get()).lower(),
            "" if is_view else str(found.location().toString()),
        )


def create(
    session: SparkSession, path: str | None, table: str | None, schema: StructType, partitions: Sequence[str]
) -> None:
    """Make the table with this path or name if there is none.

    The columns go into the JVM as JSON, so no setting gives them another meaning, and their metadata stays.
    """
    java: Java = session._jvm
    builder = getattr(java, "io.delta.tables.DeltaTable").createIfNotExists(session._jsparkSession)
    builder = builder.addColumns(getattr(java, "org.apache.spark.sql.types.DataType").fromJson(schema.json()))
    builder = builder.tableName(table) if table is not None else builder.location(path)
    if partitions:
        builder = builder.partitionedBy(scala.seq(java, partitions))
    builder.execute()


def run(spark: SparkSession, statement: str) -> DataFrame:
    """Run a statement as it stands: ``${...}`` in a name or path is no variable."""
    session = clone(spark)
    session.conf.set("spark.sql.variable.substitute", "false")
    return session.sql(statement)


def names_schema(spark: SparkSession, table: str) -> bool:
    """Return whether the table name contains its schema.  ``JavaFailure``: the name is invalid.

    Only a name with a schema means the same table whatever the current schema is.
    """
    with java_errors():
        return bool(spark._jsparkSession.sessionState().sqlParser().parseTableIdentifier(table).database().isDefined())


def log_store(spark: SparkSession, path: str) -> LogStore:
    """Return the log store that Delta takes for a table at this path.  No file system is asked."""
    with java_errors():
        jvm: Java = spark._jvm
        home = getattr(jvm, "org.apache.hadoop.fs.FileSystem").getDefaultUri(
            spark._jsparkSession.sessionState().newHadoopConf()
        )
        paths = getattr(jvm, "org.apache.hadoop.fs.Path")
        found = getattr(jvm, DELTA + "storage.LogStore").apply(spark._jsparkSession)
        return _log_store(found, paths(path).makeQualified(home, paths("/")))


def _log_store(found: Java, path: Java) -> LogStore:
    """Look through Delta's classes around a log store: one that chooses by the path's scheme, and an adaptor."""
    if _class(found) == DELTA + "storage.DelegatingLogStore":
        found = found.getDelegate(path)
    if _class(found) == DELTA + "storage.LogStoreAdaptor":
        found = found.logStoreImpl()
    return LogStore(_class(found), str(path.toUri().getScheme()).lower())


def _class(found: Java) -> str:
    return str(found.getClass().getName())


class Table:
    """One Delta table at a path.  The object keeps no state about the table."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        jvm: Java = spark._jvm
        self._jvm = jvm
        with java_errors():
            self._log: Java = getattr(jvm, DELTA + "DeltaLog").forTable(spark._jsparkSession, path)
            self._root: Java = self._log.dataPath()
            self._files: Java = self._root.getFileSystem(self._log.newDeltaHadoopConf())

    @property
    def root(self) -> str:
        """The URI of the table's folder, with its characters as they are."""
        return str(self._root.toString())

    def log_store(self) -> LogStore:
        """Return the log store that this table's log writes its versions with."""
        with java_errors():
            return _log_store(self._log.store(), self._root)

    def begin(self, known: Transaction | None = None) -> Transaction:
        """Begin a transaction on the newest snapshot.  A transaction that is never committed is a plain read.

        To find the newest version Delta lists the whole folder of the log.  ``known``, an earlier transaction, saves
        this: its snapshot is used if the file of its version was not rewritten and there is no file of the next
        version.  That snapshot may be an old one, if a newer version was removed from the log before an older one.
        A commit then lands where nobody reads it.  So after a commit the caller must look again without ``known``.
        """
        with java_errors():
            if known is not None and self._is_newest(known):
                option = getattr(self._jvm, "scala.Option")
                begun = self._log.startTransaction(option.empty(), option.apply(known.snapshot))
            else:
                begun = self._log.startTransaction()
            return Transaction(self._spark, self._log, begun, self.read)

    def _is_newest(self, known: Transaction) -> bool:
        """Return whether the version of ``known`` is still the newest, judged by the files in the log."""
        if not known.exists or known.log != self._log or not self._files_are_versions(known):
            return False
        here, following = (log_file(version) for version in (known.version, known.version + 1))
        written = known.snapshot.logSegment().lastCommitFileModificationTimestamp()
        return self._modified(here) == written and not self._files.exists(self._path(following))

    def _files_are_versions(self, known: Transaction) -> bool:
        """Return whether a version of the table exists if and only if its file in the log exists."""
        features = set(known.protocol().get("writerFeatures") or ())
        return str(self._files.getUri().getScheme()) in _SCHEMES and not features & _ORDERED_ELSEWHERE

    def _modified(self, path: str) -> int | None:
        """Return when a file was written, in milliseconds since 1970; None if there is no such file."""
        return self._unless_missing(lambda: int(self._files.getFileStatus(self._path(path)).getModificationTime()))

    def size(self, path: str) -> int | None:
        """Return the length of a file in bytes; None if there is no such file.

        ``path`` has the form of the paths in ``add`` actions.
        """
        return self._unless_missing(lambda: int(self._files.getFileStatus(self._path(path)).getLen()))

    def may_write(self, folder: str) -> bool:
        """Return whether this process may make files in a folder of a local disk; True on other file systems.

        On other file systems only a try to write would show it.
        """
        where = self._path(folder).toUri()
        local = where.getScheme() in (None, "file")
        return not local or bool(getattr(self._jvm, "java.io.File")(where.getPath()).canWrite())

    def delete(self, path: str) -> None:
        """Delete a file.  It is no error if the file is gone already."""
        with java_errors():
            self._files.delete(self._path(path), False)

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no folder."""
        found = self._unless_missing(lambda: self._files.listStatus(self._path(folder)))
        return sorted(str(status.getPath().getName()) for status in found or ())

    def write(self, path: str, text: str) -> None:
        """Write a file, and make its folders."""
        with java_errors():
            stream = self._files.create(self._path(path), True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if there is no such file."""

        def text() -> str:
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()

        return self._unless_missing(text)

    def count_rows(self, paths: Sequence[str]) -> int:
        """Count the rows in these files, from their footers."""
        if not paths:
            return 0
        files = [str(self._path(path).toString()) for path in paths]
        with java_errors():
            return self._spark.read.parquet(*files).count()

    def _path(self, path: str) -> Java:
        paths = getattr(self._jvm, "org.apache.hadoop.fs.Path")
        return paths(self._root, paths(getattr(self._jvm, "java.net.URI")(path)))

    def _unless_missing(self, ask: Callable[[], T]) -> T | None:
        try:
            with java_errors():
                return ask()
        except JavaFailure as failure:
            if failure.is_a("FileNotFoundException"):
                return None
            raise


class Transaction:
    """A snapshot, a record of what was read of it, and perhaps one commit.

    Delta refuses the commit if another commit has changed metadata or protocol meanwhile, or has written a transaction
    id that :meth:`version_of` has read.
    """

    def __init__(self, spark: SparkSession, log: Java, txn: Java, read: Callable[[str], str | None]) -> None:
        self.read = read
        self._spark = spark
        self._jvm: Java = spark._jvm
        self._log = log
        self._txn = txn

    @property
    def exists(self) -> bool:
        """False: there is no Delta table at that path."""
        return self.version >= 0

    @property
    def log(self) -> Java:
        """Delta's ``DeltaLog`` of this table, even if the table's name means another table later."""
        return self._log

    @property
    def snapshot(self) -> Java:
        """The ``Snapshot`` of Delta that this transaction reads."""
        return self._txn.snapshot()

    @property
    def version(self) -> int:
        """The version of the snapshot; -1 if there is no table."""
        return int(self._txn.readVersion())

    def metadata(self) -> Json:
        """Return Delta's ``metaData`` action."""
        return _action(self._txn.metadata(), "metaData")

    def protocol(self) -> Json:
        """Return Delta's ``protocol`` action."""
        return _action(self._txn.protocol(), "protocol")

    def check_writable(self) -> None:
        """Raise ``JavaFailure`` if the table needs a feature that this version of Delta cannot write."""
        with java_errors():
            self._log.protocolWrite(self._txn.protocol())

    def version_of(self, identity: str) -> int | None:
        """Return the version of the transaction id ``identity``, or None.

        From now on the commit is a conflict if another writer writes this id.
        """
        with java_errors():
            if self._transaction_ids is None:
                version = int(self._txn.txnVersion(identity))
            else:
                scala.add(self._txn.readTxn(), identity)
                version = self._transaction_ids.get(identity, -1)
        return version if version >= 0 else None

    @cached_property
    def _transaction_ids(self) -> dict[str, int] | None:
        """All transaction ids, from the checksum file of the version; None if that does not have them.

        This is so for a version that delta-rs wrote.  Then :meth:`version_of` needs ``txnVersion``, which reads the
        whole state of the table, in a Spark job with as many tasks as the state has partitions.  A checksum file has
        all transaction ids or none (``RecordChecksum`` of Delta).
        """
        checksum = self.snapshot.checksumOpt()
        found = checksum.get().setTransactions() if checksum.isDefined() else checksum
        if not found.isDefined():
            return None
        return {str(t.appId()): int(t.version()) for t in self._each(found.get())}

    def write_files(self, rows: DataFrame) -> list[Json]:
        """Evaluate ``rows`` once into files that the log does not name; return their ``add`` actions."""
        with java_errors(), settings.held(rows.sparkSession, settings.DELTA):
            actions = self._txn.writeFiles(rows._jdf)
            return [_json(action) for action in self._each(actions)]

    def removals(self) -> list[Json]:
        """Return ``remove`` actions of all files in the snapshot.

        From now on the commit is a conflict if another writer removes or changes one of these files.
        """
        with java_errors():
            return [_json(file.remove()) for file in self._each(self._txn.filterFiles())]

    def merge(self, session: SparkSession, statement: str) -> Written:
        """Run a MERGE without its commit.

        From now on the commit is a conflict if another writer changes what the MERGE has read.  Nobody else may use
        ``session``; it must have schema evolution and materialised sources switched off.
        """
        with java_errors(), _active(session):
            command = _analysed(session, statement)
            java = session._jsparkSession
            command.prepareMergeSource(
                java,
                command.source(),
                command.condition(),
                command.matchedClauses(),
                command.notMatchedClauses(),
                command.isInsertOnly(),
            )
            actions = list(self._merged(command, java))
            return Written([_json(action) for action in actions], self._made(actions))

    def _merged(self, command: Java, java: Java) -> Iterator[Java]:
        """Do what Delta's own ``MergeIntoCommand.runMerge`` does, in this transaction and without its commit."""
        each = self._each
        if command.isInsertOnly():
            yield from each(command.writeOnlyInserts(java, self._txn, True, _SOURCE_ROWS))
            return
        touched = command.findTouchedFiles(java, self._txn)
        files, deduplicate = touched._1(), touched._2()
        if files.isEmpty():
            yield from each(command.writeOnlyInserts(java, self._txn, False, _SOURCE_ROWS))
        elif command.shouldWritePersistentDeletionVectors(java, self._txn):
            yield from each(command.writeAllChanges(java, self._txn, files, deduplicate, False))
            yield from each(command.writeDVs(java, self._txn, files))
        else:
            yield from each(command.writeAllChanges(java, self._txn, files, deduplicate, True))
            yield from (file.remove() for file in each(files))

    def _made(self, actions: Iterable[Java]) -> list[str]:
        """Return the paths of the new files: data, change data, deletion vectors."""
        told = [(next(iter(_json(action))), action) for action in actions]
        old = {str(action.path()) for kind, action in told if kind == "remove"}
        made = [str(action.path()) for kind, action in told if kind != "remove" and str(action.path()) not in old]
        vectors = [action.deletionVector() for kind, action in told if kind == "add"]
        root = self._log.dataPath()
        return made + [str(v.absolutePath(root).toUri()) for v in vectors if v is not None and v.isOnDisk()]

    def commit(
        self, actions: Iterable[Json], *, query_id: str, epoch: int, user_metadata: str, output_mode: str = "Append"
    ) -> None:
        """Write the actions to the log as one version, if nothing that was read has changed meanwhile."""
        with java_errors():
            jvm = self._jvm
            action_of = getattr(jvm, DELTA + "actions.Action")
            batch = scala.seq(jvm, [action_of.fromJson(json.dumps(action)) for action in actions])
            what = streaming_update(jvm, output_mode, query_id, epoch, user_metadata)
            self._txn.commit(batch, what)

    def _each(self, found: Java) -> Iterator[Java]:
        return scala.each(self._jvm, found)


def session(sink: str) -> SparkSession:
    """Return the Spark session of this process; raise ``Misconfigured`` if there is none."""
    running = running_session()
    if running is None:
        raise Misconfigured(
            "there is no Spark session in this process, and DeltaSink needs one",
            sink=sink,
            help="start a SparkSession (not Spark Connect) before the sink is used",
        )
    return running


def streaming_update(jvm: Java, output_mode: str, query_id: str, epoch: int, user_metadata: str) -> Java:
    """Return Delta's operation for an epoch, which its history shows."""
    mode = getattr(getattr(jvm, "org.apache.spark.sql.streaming.OutputMode"), output_mode)()
    more = getattr(jvm, "scala.Option").apply(user_metadata)
    return getattr(jvm, DELTA + "DeltaOperations$StreamingUpdate")(mode, query_id, epoch, more)


_SOURCE_ROWS = "numSourceRows"  # the name of a metric of Delta


def _action(action: Java, kind: str) -> Json:
    with java_errors():
        found: Json = _json(action)[kind]
        return found


def _json(action: Java) -> Json:
    found: Json = json.loads(str(action.json()))
    return found


def _analysed(session: SparkSession, statement: str) -> Java:
    """Return Delta's command for the statement, without running it."""
    jvm: Java = session._jvm
    state = session._jsparkSession.sessionState()
    skip = getattr(jvm, "org.apache.spark.sql.execution.CommandExecutionMode").SKIP()
    return state.executePlan(state.sqlParser().parsePlan(statement), skip).analyzed()


@contextlib.contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Make ``session`` the active session of this thread inside this scope, because Delta uses the active session."""
    sessions = series.session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def schema_of(metadata: Json) -> StructType:
    """Return the table's schema from its ``metaData`` action."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(metadata["schemaString"]))


@contextlib.contextmanager
def java_errors() -> Iterator[None]:
    """Turn an exception of the JVM into :class:`JavaFailure`, in whatever exception pyspark wraps it."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:
        raise JavaFailure(str(error.java_exception), _classes(error.java_exception)) from error
    except PySparkException as error:
        raise JavaFailure(str(error), _classes(_origin(error))) from error
    except Py4JError as error:  # no answer from the JVM
        raise JavaFailure(str(error), [type(error).__name__]) from error


def _origin(error: PySparkException) -> Java:
    """Return the Java exception inside a pyspark exception.

    If the package ``delta`` made the pyspark exception, the Java exception is only in its ``__context__``.
    """
    from py4j.protocol import Py4JJavaError

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
