"""An epoch log in a folder of HDFS, through the Hadoop client of Spark's JVM; ``names.py`` says which files lie in it.

Rules, on which "a position is never created twice, and an answer is never taken back" rests:

1. A name comes into being whole: a draft is written, synced to the disks of its data nodes and closed, then
   renamed with ``Options.Rename.NONE``.  On HDFS that is one step under the name node's lock, it refuses a target
   that exists, and it is answered once it is in the edit log: a compare-and-set.  (Spark trusts its ``offsets/N``
   and ``commits/N`` to the same call.)
2. A name can be seen a moment before the edit log has it, and a name node that dies then takes it back.  So a
   reader writes something to the edit log before it answers: that log is one sequence, so all that was read is
   in it too.
3. A floor is durable before anything below it is deleted.  Then records go first, lowest first, older floors after
   them, and drafts of what lies below, which can come to nothing any more.
4. After its rename an append lists the folder: something higher there means that a compaction or another start was
   faster, and the answer is "taken".

Why 4 suffices: the name node lists in the order of the names, each part as it is then.  A floor is deleted only
once a higher one is there, which comes later in that order, so a listing shows the highest floor there was when it
began, or a higher one.

Right for ``hdfs``, and for ``viewfs`` where it leads there, as the class of the file system tells.  Others do not
give rule 1: the same call looks first and renames then on a local disk (:class:`~.files.FilesLog` links) and on
``abfs``, and copies on ``s3a``.  They are refused by name, and so is whatever is not known here.

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
from epochal.coordinator.model.errors import Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Hadoop = tuple[Any, Any]
"""A JVM, and the ``org.apache.hadoop.conf.Configuration`` in it."""

ATOMIC = {"hdfs": "org.apache.hadoop.fs.Hdfs", "viewfs": "org.apache.hadoop.fs.viewfs.ViewFs"}
"""Scheme to the class that has rule 1, or leads to one that has."""
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
"""A close that comes a moment before the data node's report asks again after 5 ms, not 400, and as long in all."""
_SYNC_ON_CLOSE = ("CREATE", "SYNC_BLOCK", "SHOULD_REPLICATE")  # erasure coding has no hsync


def of_session(spark: SparkSession) -> Hadoop:
    """The JVM of a session, with Hadoop's configuration as that session sees it."""
    session: Any = spark
    return session._jvm, session._jsparkSession.sessionState().newHadoopConf()


def running() -> Hadoop:
    """:func:`of_session` of the session that runs in this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        raise Misconfigured(
            "an epoch log on HDFS is reached through Spark, and no Spark session runs in this process",
            help="start the session first, or pass hadoop=lambda: of_session(spark)",
        )
    return of_session(SparkSession.builder.getOrCreate())


def check_scheme(uri: str) -> None:
    """``Misconfigured`` where the file system that ``uri`` names cannot hold a log."""
    scheme, colon, _ = uri.partition(":")
    if not colon or scheme in ATOMIC:
        return
    why = "has no name that is created at most once"
    if scheme in OBJECT_STORES:
        why = f"is an object store, which {why}"
    elif scheme != "file":
        why = f"is not known to have names that are created at most once (known: {', '.join(ATOMIC)})"
    raise Misconfigured(f"the epoch log cannot lie on {scheme}://, which {why}", state=uri, help=_OTHER_LOG)


class HadoopLog:
    """Satisfies :class:`~epochal.checkpoints.log.EpochLog`; a folder that does not exist is an empty log.

    Also for a checkpoint that lies elsewhere.

    ``folder``: a URI, such as ``hdfs://name-node/logs/flights``.
    ``hadoop``: gives what it is reached through; by default the JVM of the session that runs in this process.
    """

    def __init__(self, folder: str, hadoop: Callable[[], Hadoop] = running) -> None:
        check_scheme(folder)
        self._files = _Hdfs(folder.rstrip("/"), hadoop)
        self._made = False

    def describe(self) -> str:
        """See :meth:`EpochLog.describe`."""
        return f"hadoop:{self._files.folder}"

    def read(self) -> Sequence[Entry]:
        """See :meth:`EpochLog.read`; what is returned is durable, whoever wrote it, for which it takes write access."""
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
        """What it is called, whole and durable; None where a compaction has taken it, as ``position`` is below a floor.

        HDFS refuses what is still to be written to a file that is deleted.
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
        """Whether the draft has become ``name``; False where that is taken, or below a floor by now."""
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
        """Whether a compaction has taken it, and with it each draft that was for it."""
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
        """Errors before the rename: at most a draft is left."""
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
        """From the rename on it may have happened, whatever was answered."""
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
    """One folder; a name is that of a file in it.  What Java throws is an ``OSError`` here."""

    def __init__(self, folder: str, hadoop: Callable[[], Hadoop]) -> None:
        self.folder = folder
        self._hadoop = hadoop
        self._opened: tuple[Any, Any, Any] | None = None

    def list(self) -> list[str]:
        """All names, in their order; see rule 4."""
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
        """A new file, durable when this returns."""
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
        """Rule 1; ``FileExistsError`` where ``to`` is taken."""
        with self._java() as (jvm, context, _):
            rename = getattr(jvm, "org.apache.hadoop.fs.Options$Rename")
            context.rename(self._path(name), self._path(to), _array(jvm, rename, rename.NONE))

    def delete(self, name: str) -> None:
        """Take a name away; nothing happens where somebody was faster."""
        with self._java() as (_, context, _):
            context.delete(self._path(name), False)

    def make_folder(self) -> None:
        """Also where it is there."""
        with self._java() as (jvm, context, folder):
            rights = getattr(jvm, "org.apache.hadoop.fs.permission.FsPermission").getDirDefault()
            context.mkdir(folder, rights, True)

    def settle(self) -> None:
        """Rule 2: the time of the folder's last change, set to what it is."""
        with self._java() as (_, context, folder):
            context.setTimes(folder, context.getFileStatus(folder).getModificationTime(), -1)

    def _path(self, name: str) -> Any:
        assert self._opened is not None
        jvm, _, folder = self._opened
        return getattr(jvm, "org.apache.hadoop.fs.Path")(folder, name)

    @contextlib.contextmanager
    def _java(self) -> Iterator[tuple[Any, Any, Any]]:
        """The JVM, a ``FileContext`` and the folder's ``Path``, where it really lies."""
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
            f"the epoch log cannot lie where a name is not known to be created at most once: {why}",
            state=self.folder,
            help=_OTHER_LOG,
        )


def _resolved(jvm: Any, context: Any, path: Any) -> Any:
    """Where a path of ``viewfs`` really lies, also one that does not exist yet."""
    parent = path.getParent()
    if parent is None or context.util().exists(path):
        return context.resolvePath(path)
    return getattr(jvm, "org.apache.hadoop.fs.Path")(_resolved(jvm, context, parent), path.getName())


def _array(jvm: Any, kind: Any, *values: Any) -> Any:
    """Java's variable arguments."""
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
    """With the class's simple name in front, which :func:`_help` reads, and without the server's stack trace."""
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
