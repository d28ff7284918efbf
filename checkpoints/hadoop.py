"""An epoch log in a folder of HDFS, through the Hadoop client of Spark's JVM; ``names.py`` says which files lie in it.

The promise "a position is never created twice, and an answer is never taken back" depends on these rules:

1. A name appears with its whole content: the writer writes a draft, syncs it to the disks of its data nodes, closes
   it, and renames it with ``Options.Rename.NONE``.  On HDFS this rename is one step under the name node's lock.  It
   refuses a target that exists, and is answered once it is in the edit log: it is a compare-and-set.  (Spark uses the
   same call for its ``offsets/N`` and ``commits/N``.)
2. A name can be visible a moment before it is in the edit log.  If the name node dies then, the name is gone again.
   So a reader writes something to the edit log before it answers.  The edit log is one sequence, so all that the reader
   has read is then in the edit log too.
3. A floor is durable before anything below it is deleted.  Then the records are deleted, lowest first, after them the
   older floors, and at last the drafts for lower positions, which can no longer become records or floors.
4. After its rename an append lists the folder.  If the listing has something higher, then a compaction or another start
   was faster, and the answer is "taken".

Why rule 4 suffices: the name node lists the names in their order, and each part of the listing is current when it is
read.  A floor is deleted only after a higher one exists, which comes later in that order.  So a listing shows the
highest floor that existed when the listing began, or a higher one.

These rules hold on ``hdfs``, and on ``viewfs`` if it leads to ``hdfs``; the class of the file system is checked.  Other
file systems do not have rule 1.  On a local disk and on ``abfs`` the same call first looks and then renames
(:class:`~.files.FilesLog` uses links instead); on ``s3a`` it copies.  They are refused by name, and so is every
file system that is not known here.  (:class:`~.objects.ObjectLog` is the log on object stores.)

Each wait is as long as the Hadoop client's configuration says (``ipc.client.connect.*``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from epochal.checkpoints.log import Entry, LogPosition, Record, encode
from epochal.checkpoints.names import (
    Names,
    draft_name,
    drafted_for,
    encode_floor,
    floor_name,
    gone,
    read_settled,
    record_name,
    sort_names,
)
from epochal.checkpoints.rules import check_compaction, check_order, epoch_of, is_free
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.errors import Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Hadoop = tuple[Any, Any]
"""A JVM, and the ``org.apache.hadoop.conf.Configuration`` in it."""

ATOMIC = {"hdfs": "org.apache.hadoop.fs.Hdfs", "viewfs": "org.apache.hadoop.fs.viewfs.ViewFs"}
"""Scheme to the class of the file system that has rule 1, or that may lead to one that has it."""
OBJECT_STORES = {
    *("s3", "s3a", "s3n", "gs", "abfs", "abfss", "adl", "wasb", "wasbs"),
    *("bos", "cos", "cosn", "ks3", "obs", "oci", "oss", "swift", "tos"),
}

_OTHER_LOG = (
    "pass log=PostgresLog(dsn, name) from epochal.checkpoints.postgres, or put the checkpoint on HDFS or a local disk"
)
_START = "start the name node or make it reachable; the same request may be repeated"
_HELP = {  # Java's simple class name: what to do
    "SafeModeException": "wait until the name node has left safe mode, or see why it does not"
    " (hdfs dfsadmin -safemode get); the same request may be repeated",
    **dict.fromkeys(("ConnectException", "ConnectTimeoutException", "NoRouteToHostException", "EOFException"), _START),
    "UnknownHostException": "correct the host's name, or the name service in hdfs-site.xml",
}
_ANY_HELP = "make the file system answer (data nodes up? quota?); the same request may be repeated"
_CLOSE = "dfs.client.block.write.locateFollowingBlock"
_QUICK_CLOSE = {f"{_CLOSE}.initial.delay.ms": "5", f"{_CLOSE}.retries": "12"}
"""If a file is closed before the data node has reported its block, the client asks again after 5 ms instead of 400 ms.

It asks more often, so that it does not give up earlier than by default.
"""
_SYNC_ON_CLOSE = ("CREATE", "SYNC_BLOCK", "SHOULD_REPLICATE")  # replicated blocks: erasure coding has no hsync


def of_session(spark: SparkSession) -> Hadoop:
    """Return the JVM of a session, and Hadoop's configuration of that session."""
    session: Any = spark
    return session._jvm, session._jsparkSession.sessionState().newHadoopConf()


def running() -> Hadoop:
    """Return :func:`of_session` of the session in this process; ``Misconfigured`` if there is none."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        raise Misconfigured(
            "an epoch log on HDFS is reached through Spark, and no Spark session runs in this process",
            help="start the session first, or pass hadoop=lambda: of_session(spark)",
        )
    return of_session(SparkSession.builder.getOrCreate())


def check_scheme(uri: str) -> None:
    """Raise ``Misconfigured`` if the scheme of ``uri`` is one on which no log can lie."""
    scheme, colon, _ = uri.partition(":")
    if not colon or scheme in ATOMIC:
        return
    why = "cannot create a name at most once"
    if scheme in OBJECT_STORES:
        why = f"is an object store and {why}"
    elif scheme != "file":
        why = f"is not known to create a name at most once (known: {', '.join(ATOMIC)})"
    raise Misconfigured(f"the epoch log cannot lie on {scheme}://, which {why}", state=uri, help=_OTHER_LOG)


class HadoopLog:
    """Implements :class:`~epochal.checkpoints.log.EpochLog`.  A folder that does not exist is an empty log.

    The checkpoint may lie on another file system.

    ``folder``: a URI, such as ``hdfs://name-node/logs/flights``.
    ``hadoop``: a function that returns the JVM and Hadoop's configuration; by default those of the session that runs in
    this process.
    """

    def __init__(self, folder: str, hadoop: Callable[[], Hadoop] = running) -> None:
        check_types(HadoopLog.__init__.__annotations__, {"folder": folder})
        check_scheme(folder)
        self._files = _Hdfs(folder.rstrip("/"), hadoop)
        self._made = False

    def describe(self) -> str:
        """See :meth:`EpochLog.describe`."""
        return f"hadoop:{self._files.folder}"

    def read(self) -> Sequence[Entry]:
        """See :meth:`EpochLog.read`.  The returned entries are durable, also those of other writers.

        Needs write access to the folder: see rule 2.
        """
        with self._no_effect("read"):
            return self._read()[1]

    def append(self, position: LogPosition, record: Record) -> bool:
        """See :meth:`EpochLog.append`."""
        what = f"append at position {position}"
        epoch = epoch_of(record)
        with self._no_effect(what):
            names = self._list()
            if not is_free(position, floor=names.floor, end=names.end, where=self.describe()):
                return False
            draft = self._draft(position, record_name(position), encode(record))
            if draft is None:
                return False
        with self._outcome_unknown(what):
            failpoints.hit(Point.LOG_BEFORE_APPEND, epoch=epoch)
            if not self._create(draft, position, record_name(position)):
                return False
            failpoints.hit(Point.LOG_AFTER_APPEND, epoch=epoch)
            return self._list().ends_with(position)

    def compact(self, floor: LogPosition, kept: Sequence[Entry]) -> None:
        """See :meth:`EpochLog.compact`."""
        what = f"compaction to floor {floor}"
        with self._no_effect(what):
            present, entries = self._read()
            if floor <= present:
                return
            check_compaction(entries, floor, kept)
            draft = self._draft(floor, floor_name(floor), encode_floor(floor, kept))
            if draft is None:
                return
        with self._outcome_unknown(what):
            self._create(draft, floor, floor_name(floor))
            failpoints.hit(Point.LOG_AFTER_FLOOR)
            self._delete_below(floor)

    def _read(self) -> tuple[LogPosition, list[Entry]]:
        where = self.describe()
        names, entries = read_settled(self._list, self._files.read, lambda name: f"{where}/{name}", where)
        check_order(names.records, names.floor, where)
        if names.floors or names.records:
            self._files.settle()
        return names.floor, entries

    def _list(self) -> Names:
        try:
            return sort_names(self._files.list(), self.describe())
        except FileNotFoundError:
            if self._made:
                raise gone(self.describe()) from None
            return Names()

    def _draft(self, position: LogPosition, name: str, data: bytes) -> str | None:
        """Write a draft for ``name``, whole and durable; return the draft's name.

        Return None if ``position`` is below a floor: then a compaction has deleted the draft.  HDFS refuses further
        writes to a deleted file.
        """
        if not self._made:
            self._files.make_folder()
            self._made = True
        draft = draft_name(name)
        try:
            self._files.write(draft, data)
        except FileNotFoundError:
            if self._is_taken(position):
                return None
            raise
        return draft

    def _create(self, draft: str, position: LogPosition, name: str) -> bool:
        """Rename the draft to ``name``; return False if the name is taken, or its position is below a floor now."""
        try:
            self._files.rename(draft, name)
        except FileExistsError:
            with contextlib.suppress(OSError):
                self._files.delete(draft)
            return False
        except FileNotFoundError:
            if self._is_taken(position):
                return False
            raise
        return True

    def _is_taken(self, position: LogPosition) -> bool:
        """Return whether the position is below a floor, so that a compaction may delete each draft for it."""
        return self._list().floor > position

    def _delete_below(self, floor: LogPosition) -> None:
        names = self._list()
        for name in (
            *(record_name(p) for p in names.records if p < floor),
            *(floor_name(p) for p in names.floors if p < floor),
            *(draft for draft in names.drafts if drafted_for(draft) < floor),
        ):
            self._files.delete(name)

    # --- errors ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _no_effect(self, what: str) -> Iterator[None]:
        """Turn an error before the rename into one of ours that says: the request had no effect.

        At most a draft is left.
        """
        try:
            yield
        except PermissionError as error:
            raise self._without_right(what, error) from error
        except OSError as error:
            raise SinkUnavailable(
                f"the {what} of the epoch log failed: {error}",
                state=f"{self.describe()}; it had no effect",
                help=_help(error),
            ) from error

    @contextlib.contextmanager
    def _outcome_unknown(self, what: str) -> Iterator[None]:
        """Turn an error from the rename on into ``OutcomeUnknown``: the request may have been applied."""
        try:
            yield
        except OSError as error:
            raise OutcomeUnknown(
                f"the {what} of the epoch log has no answer: {error}", state=self.describe(), help=_help(error)
            ) from error

    def _without_right(self, what: str, error: Exception) -> Misconfigured:
        return Misconfigured(
            f"the epoch log may not be used ({what}): {error}",
            state=self.describe(),
            help="give the user of the query the rights to read, write and enter this folder",
        )


class _Hdfs:
    """The files of one folder, by their names.  An exception of Java becomes an ``OSError``."""

    def __init__(self, folder: str, hadoop: Callable[[], Hadoop]) -> None:
        self.folder = folder
        self._hadoop = hadoop
        self._opened: tuple[Any, Any, Any] | None = None

    def list(self) -> list[str]:
        """Return all names, in their order; see rule 4."""
        with self._java() as (_, context, folder):
            return [status.getPath().getName() for status in context.util().listStatus(folder)]

    def read(self, name: str) -> bytes:
        with self._java() as (jvm, context, _):
            stream = context.open(self._path(name))
            try:
                return bytes(getattr(jvm, "org.apache.commons.io.IOUtils").toByteArray(stream))
            finally:
                stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Write a new file, which is durable when this returns."""
        with self._java() as (jvm, context, _):
            kinds = getattr(jvm, "org.apache.hadoop.fs.CreateFlag")
            flags = getattr(jvm, "java.util.EnumSet").of(*(getattr(kinds, flag) for flag in _SYNC_ON_CLOSE))
            no_options = _array(jvm, getattr(jvm, "org.apache.hadoop.fs.Options$CreateOpts"))
            stream = context.create(self._path(name), flags, no_options)
            try:
                stream.write(data)
                stream.hsync()
            finally:
                stream.close()

    def rename(self, name: str, to: str) -> None:
        """Rename a file as rule 1 says; ``FileExistsError`` if ``to`` is taken."""
        with self._java() as (jvm, context, _):
            rename = getattr(jvm, "org.apache.hadoop.fs.Options$Rename")
            context.rename(self._path(name), self._path(to), _array(jvm, rename, rename.NONE))

    def delete(self, name: str) -> None:
        """Delete a file.  It is no error if the file is gone already."""
        with self._java() as (_, context, _):
            context.delete(self._path(name), False)

    def make_folder(self) -> None:
        """Make the folder, with its parents, if it does not exist."""
        with self._java() as (jvm, context, folder):
            rights = getattr(jvm, "org.apache.hadoop.fs.permission.FsPermission").getDirDefault()
            context.mkdir(folder, rights, True)

    def settle(self) -> None:
        """Write to the edit log, for rule 2: set the folder's modification time to its present value."""
        with self._java() as (_, context, folder):
            context.setTimes(folder, context.getFileStatus(folder).getModificationTime(), -1)

    def _path(self, name: str) -> Any:
        assert self._opened is not None
        jvm, _, folder = self._opened
        return getattr(jvm, "org.apache.hadoop.fs.Path")(folder, name)

    @contextlib.contextmanager
    def _java(self) -> Iterator[tuple[Any, Any, Any]]:
        """Give the JVM, a ``FileContext`` and the folder's ``Path`` on HDFS."""
        from py4j.protocol import Py4JError

        try:
            if self._opened is None:
                self._opened = self._open()
            yield self._opened
        except Py4JError as error:
            raise _as_os_error(error) from None

    def _open(self) -> tuple[Any, Any, Any]:
        jvm, given = self._hadoop()
        conf = getattr(jvm, "org.apache.hadoop.conf.Configuration")(given)
        for name, value in _QUICK_CLOSE.items():
            conf.set(name, value)
        path = getattr(jvm, "org.apache.hadoop.fs.Path")(self.folder)
        path = path.getFileSystem(conf).makeQualified(path)
        context = self._context(jvm, conf, path)
        if path.toUri().getScheme() != "hdfs":
            path = _resolved(jvm, context, path)
            context = self._context(jvm, conf, path)
            if path.toUri().getScheme() != "hdfs":
                raise self._unknown(f"it leads to {path.toString()}")
        return jvm, context, path

    def _context(self, jvm: Any, conf: Any, path: Any) -> Any:
        check_scheme(str(path.toString()))
        context = getattr(jvm, "org.apache.hadoop.fs.FileContext").getFileContext(path.toUri(), conf)
        found = str(context.getDefaultFileSystem().getClass().getName())
        if found != ATOMIC[path.toUri().getScheme()]:
            raise self._unknown(f"its class is {found}")
        return context

    def _unknown(self, why: str) -> Misconfigured:
        return Misconfigured(
            f"the epoch log cannot lie on a file system that is not known to create a name at most once: {why}",
            state=self.folder,
            help=_OTHER_LOG,
        )


def _resolved(jvm: Any, context: Any, path: Any) -> Any:
    """Return the path to which a path of ``viewfs`` leads, also if it does not exist yet."""
    parent = path.getParent()
    if parent is None or context.util().exists(path):
        return context.resolvePath(path)
    return getattr(jvm, "org.apache.hadoop.fs.Path")(_resolved(jvm, context, parent), path.getName())


def _array(jvm: Any, kind: Any, *values: Any) -> Any:
    """Return an array of Java, for a method with variable arguments."""
    of = getattr(jvm, "java.lang.Class").forName(kind._fqn)
    array = getattr(jvm, "java.lang.reflect.Array").newInstance(of, len(values))
    for index, value in enumerate(values):
        array[index] = value
    return array


_KINDS: dict[str, type[OSError]] = {
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
    "AccessControlException": PermissionError,
}
_WRAPPERS = ("RuntimeException", "IllegalArgumentException", "InvocationTargetException")


def _as_os_error(error: Exception) -> OSError:
    """Turn an exception of Java into an ``OSError``.

    Its text begins with the simple name of Java's class, which :func:`_help` reads.  The server's stack trace is cut.
    """
    thrown = getattr(error, "java_exception", None)
    if thrown is None:
        return OSError(f"{type(error).__name__}: {error}")
    while (kind := str(thrown.getClass().getSimpleName())) in _WRAPPERS and thrown.getCause() is not None:
        thrown = thrown.getCause()
    if kind == "RemoteException":
        kind = str(thrown.getClassName()).rpartition(".")[2]
    return _KINDS.get(kind, OSError)(f"{kind}: {str(thrown.getMessage()).partition(chr(10) + chr(9))[0]}")


def _help(error: OSError) -> str:
    return _HELP.get(str(error).partition(":")[0], _ANY_HELP)
