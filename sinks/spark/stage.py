"""The durable copy: Spark evaluates a micro-batch once and writes it as Parquet under the checkpoint.

Layout: ``<checkpoint>/epochal/copies/<epoch>/<generation>-<token>[-<n>]/part-*.parquet``.  Only the files of
the manifest (:class:`~epochal.coordinator.model.epoch.Copy`) belong to a copy, never other files in the folder:
a copy is read by the names, lengths and order that the manifest lists.  The idea is MillWheel's strong
production, applied to a whole epoch.

Invariants: a file of a copy is never changed after ``write`` has returned, and survives a power failure once ``keep``
has returned; ``clean`` touches only folders of its caller and of lower generations.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from epochal.checkpoints.bucket import is_on_objects
from epochal.coordinator.model.epoch import PARQUET, Actor, Copy, CopyFile, EpochNumber
from epochal.coordinator.model.errors import CommitInDoubt, EpochalError, Misconfigured, PrepareRefused
from epochal.sinks.conditions import may_drop
from epochal.sinks.spark import settings
from epochal.sinks.spark.executors import first_cause, running_session
from epochal.sinks.spark.names import check_names, parts
from epochal.sinks.spark.objects import ObjectFiles
from epochal.sinks.spark.observing import observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_LOCAL = re.compile(r"file:(//[^/]*)?(?=/)")
_COPY = re.compile(r"(?P<generation>\d+)-(?P<token>\d+)(-\d+)?")

_CODEC = {  # measured among none, snappy, lz4, lz4_raw and zstd: the fastest to write and to read, and the smallest
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.enable.dictionary": "false",
}
_COMMITTER = {  # the files of a task appear only when the job commits; no empty _SUCCESS file is written
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_OPEN_FILES = "spark.sql.maxConcurrentOutputFileWriters"  # one per part, else Spark sorts the rows by part
_READ = {  # a missing file is an error, never fewer rows; a path is a name, not a pattern
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "__globPaths__": "false",
}
_NO_PARQUET = ("void", "interval", "geometry", "geography")


class Files(Protocol):
    """The file operations that a copy needs.  Every path is a Hadoop path string below one root."""

    def listing(self, folder: str) -> Mapping[str, int] | None:
        """Return name to length in bytes of the entries of ``folder`` (-1: a folder); None if there is no folder."""

    def read(self, path: str) -> bytes | None:
        """Return the whole file, or None if it does not exist."""

    def parquet_rows(self, path: str) -> int:
        """Return the row count in a Parquet footer."""

    def sync(self, folder: str, top: str) -> None:
        """Make ``folder``, its files and its parents up to ``top`` survive a power failure."""

    def sync_file(self, path: str) -> None:
        """Make one file and its name survive a power failure."""

    def delete(self, folder: str, recursive: bool = True) -> None:
        """Delete a folder.  If not ``recursive``, delete it only if it is empty."""


def files_at(uri: str, spark: Callable[[], SparkSession]) -> Files:
    """Return direct file access if ``uri`` is a local path, else access through Spark's file system layer.

    Where no Spark runs in this process, an object store is reached by a client of its own.
    """
    if local_path(uri) is not None:
        return LocalFiles()
    if is_on_objects(uri) and running_session() is None:
        return ObjectFiles(uri)
    return HadoopFiles(spark)


class LocalFiles:
    """Files of this machine.  They are made durable with fsync, which Spark itself does not call."""

    def listing(self, folder: str) -> Mapping[str, int] | None:
        try:
            with os.scandir(_local(folder)) as entries:
                return {e.name: -1 if e.is_dir() else e.stat().st_size for e in entries}
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str) -> bytes | None:
        try:
            with open(_local(path), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def parquet_rows(self, path: str) -> int:
        from pyarrow import parquet

        return int(parquet.read_metadata(_local(path)).num_rows)

    def sync(self, folder: str, top: str) -> None:
        path, end = _local(folder), _local(top)
        for name in os.listdir(path):
            _fsync(os.path.join(path, name))
        while True:
            _fsync(path)
            if len(path) <= len(end):
                return
            path = os.path.dirname(path)

    def sync_file(self, path: str) -> None:
        _fsync(_local(path))
        _fsync(os.path.dirname(_local(path)))

    def delete(self, folder: str, recursive: bool = True) -> None:
        if recursive:
            shutil.rmtree(_local(folder), ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.rmdir(_local(folder))


class HadoopFiles:
    """Files behind Hadoop's FileSystem, reached through Spark's JVM.

    A closed file of another writer cannot be synced there: on HDFS only the writer can ask for a sync, while it writes,
    and Spark's writers do not ask.  So a copy depends on the file system keeping closed files, as Spark's own files of
    a checkpoint do.  docs/deployment.md says which settings that needs.
    """

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self._spark = spark

    def listing(self, folder: str) -> Mapping[str, int] | None:
        path, fs, _ = self._open(folder)
        if not fs.exists(path):
            return None
        return {s.getPath().getName(): -1 if s.isDirectory() else s.getLen() for s in fs.listStatus(path)}

    def read(self, path: str) -> bytes | None:
        where, fs, _ = self._open(path)
        if not fs.exists(where):
            return None
        stream = fs.open(where)
        try:
            return bytes(getattr(self._jvm, "org.apache.commons.io.IOUtils").toByteArray(stream))
        finally:
            stream.close()

    def parquet_rows(self, path: str) -> int:
        where, _, conf = self._open(path)
        reader = getattr(self._jvm, "org.apache.parquet.hadoop.ParquetFileReader").open(conf, where)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def sync(self, folder: str, top: str) -> None:
        """Do nothing: see the class."""

    def sync_file(self, path: str) -> None:
        """Do nothing: see the class."""

    def delete(self, folder: str, recursive: bool = True) -> None:
        path, fs, _ = self._open(folder)
        if recursive or (fs.exists(path) and not len(fs.listStatus(path))):
            fs.delete(path, recursive)

    @property
    def _jvm(self) -> Any:
        return self._spark()._jvm

    def _open(self, uri: str) -> tuple[Any, Any, Any]:
        conf = self._spark()._jsparkSession.sessionState().newHadoopConf()
        path = getattr(self._jvm, "org.apache.hadoop.fs.Path")(uri)
        return path, path.getFileSystem(conf), conf


class SparkStage:
    """The copies of one query, under its checkpoint.  Implements ``Stage`` of ``sinks/protocol.py``."""

    def __init__(self, checkpoint: str, spark: Callable[[], SparkSession]) -> None:
        self._checkpoint = checkpoint.rstrip("/")
        self._root = f"{self._checkpoint}/epochal/copies"
        self._spark = spark
        self._files = files_at(checkpoint, spark)

    def write(self, epoch: EpochNumber, by: Actor, rows: DataFrame) -> Copy:
        """Evaluate ``rows`` in one Spark job; return the copy, which lists exactly its files.  See also ``keep``.

        ``PrepareRefused``: the job or the write failed, or the files do not hold as many rows as Spark wrote.
        """
        schema = rows.schema
        check_schema(schema, case_sensitive=settings.is_case_sensitive(rows.sparkSession))
        root = self._new_folder(epoch, by)
        with refusing(epoch, root):
            counted = _write(rows, root, epoch)
        copy = _copy(self._files, root, schema)
        check_count(counted, copy.rows, root, epoch)
        return copy

    def reserve(self, epoch: EpochNumber, by: Actor) -> str:
        """See ``epochal.sinks.protocol.FolderStage``."""
        return self._new_folder(epoch, by)

    def keep(self, epoch: EpochNumber, copy: Copy) -> None:
        """See ``epochal.sinks.protocol.FolderStage``.  ``PrepareRefused``: the disk refuses it."""
        with refusing(epoch, copy.root):
            self._files.sync(copy.root, self._checkpoint)

    def read(self, copy: Copy) -> DataFrame:
        """Return exactly the rows of ``copy``; within a file they have the order in which they were written."""
        return read_copy(self._spark(), copy)

    def clean(self, by: Actor, keep: Sequence[Copy]) -> None:
        """Remove copies of ``by`` and of lower generations that are not in ``keep``."""
        for epoch, (gone, stay) in self._removable(by, keep).items():
            folder = f"{self._root}/{epoch}"
            for name in gone:
                self._files.delete(f"{folder}/{name}")
            if epoch.isdigit() and not stay:
                self._files.delete(folder, recursive=False)

    def removable(self, by: Actor, keep: Sequence[Copy]) -> list[str]:
        """Return the folders that ``clean`` would remove, as ``<epoch>/<generation>-<token>[-<n>]``."""
        return [f"{epoch}/{name}" for epoch, (gone, _) in self._removable(by, keep).items() for name in gone]

    def _removable(self, by: Actor, keep: Sequence[Copy]) -> Mapping[str, tuple[list[str], list[str]]]:
        """Return for each epoch the copies to remove, and those that stay."""
        kept, found = {_tail(copy.root) for copy in keep}, {}
        for epoch in self._files.listing(self._root) or ():
            names = sorted(self._files.listing(f"{self._root}/{epoch}") or {})
            gone = [n for n in names if _removable(n, by) and f"{epoch}/{n}" not in kept]
            found[epoch] = gone, [n for n in names if n not in gone]
        return found

    def _new_folder(self, epoch: EpochNumber, by: Actor) -> str:
        """Return a folder name that no earlier attempt of this actor has used."""
        there = self._files.listing(f"{self._root}/{epoch}") or {}
        first = f"{by.generation}-{by.token}"
        tries = [first, *(f"{first}-{n}" for n in range(2, len(there) + 3))]
        return f"{self._root}/{epoch}/{next(name for name in tries if name not in there)}"


def write_parts(beside: Copy, name: str, epoch: EpochNumber, rows: DataFrame, part: str, parts: int) -> list[Copy]:
    """Evaluate ``rows`` in one Spark job; return one copy for each number in column ``part``, from 0 to ``parts`` - 1.

    For a sink that has to keep more than the rows.  The files lie in a folder below the copy ``beside``, and are
    removed with that copy.  Within a file rows keep their order.
    """
    root = f"{beside.root}/{name}-{uuid.uuid4().hex}"
    files = files_at(root, lambda: rows.sparkSession)
    schema = type(rows.schema)([field for field in rows.schema.fields if field.name != part])
    folders = [f"{root}/{part}={number}" for number in range(parts)]
    with refusing(epoch, root), settings.held(rows.sparkSession, {_OPEN_FILES: str(parts + 1)}):
        counted = _write(rows, root, epoch, part)
        for folder in folders:
            if files.listing(folder) is not None:
                files.sync(folder, beside.root)
    copies = [_copy(files, folder, schema) for folder in folders]
    check_count(counted, sum(copy.rows for copy in copies), root, epoch)
    return copies


def _copy(files: Files, root: str, schema: StructType) -> Copy:
    """Return the copy that consists of the files in ``root`` now."""
    there = files.listing(root) or {}
    names = sorted((n for n in there if not n.startswith(("_", "."))), key=lambda n: (len(n), n))
    manifest = tuple(CopyFile(n, there[n], files.parquet_rows(f"{root}/{n}")) for n in names)
    return Copy(root=root, files=manifest, schema=schema.json())


def check_count(counted: int, held: int, root: str, epoch: EpochNumber) -> None:
    if counted != held:
        raise PrepareRefused(
            f"Spark wrote {counted} rows to the durable copy and its files hold {held}",
            epoch=epoch,
            state=f"copy {root}",
            help="nothing was decided; restart the query, and check the file system if it happens again",
        )


def read_copy(spark: SparkSession, copy: Copy) -> DataFrame:
    """Read exactly the files that ``copy`` lists; raise ``CommitInDoubt`` if one is missing or has another length."""
    from pyspark.sql.types import StructType

    assert copy.form == PARQUET, "only the sink that wrote it reads another form"
    _check_files(files_at(copy.root, lambda: spark), copy)
    schema = StructType.fromJson(json.loads(copy.schema, object_hook=_as_written))
    if not copy.files:
        return spark.createDataFrame([], schema)
    paths = [posixpath.join(copy.root, f.path) for f in copy.files]
    return spark.read.schema(schema).options(**_READ).parquet(*paths)


def _as_written(part: dict[str, Any]) -> dict[str, Any]:
    """Remove what the query's source said of a column and what would change the reading of the copy's files.

    By a Parquet field id a session may read another column, or NULL.  A text that was CHAR(n) would be padded again.
    """
    for source_says in ("parquet.field.id", "__CHAR_VARCHAR_TYPE_STRING"):
        part.pop(source_says, None)
    return part


def can_link(source: str, folder: str) -> bool:
    """Return whether files below ``source`` can get a second name in ``folder``, which may not exist yet.

    Both must lie on one file system of this machine.  To copy them would take the driver longer than it takes tasks to
    write them.
    """
    there, here = local_path(source), local_path(folder)
    if there is None or here is None:
        return False
    while not os.path.exists(here):
        here = os.path.dirname(here)
    return os.path.exists(there) and os.stat(there).st_dev == os.stat(here).st_dev


def linked(paths: Sequence[str], root: str, schema: StructType) -> Copy:
    """Return a copy of these files, which are whole and never change; each gets a second name in ``root``.

    ``root`` is a folder on this machine that does not exist yet.  Where the file system gives no file a second name, it
    gets a second file.  Order is that of the names.  ``OSError``: the disk refuses it.
    """
    folder = local_path(root)
    assert folder is not None, "can_link was asked"
    os.makedirs(folder)
    for path in paths:
        where, name = os.path.split(path)
        sums = f".{name}.crc"  # Hadoop's checksums, against which Spark reads
        for each in (name, sums) if os.path.exists(os.path.join(where, sums)) else (name,):
            _link(os.path.join(where, each), os.path.join(folder, each))
    return _copy(LocalFiles(), root, schema)


def _link(source: str, name: str) -> None:
    try:
        os.link(source, name)
    except OSError:  # a file system without hard links, or a file of another user
        shutil.copyfile(source, name)


def check_schema(schema: StructType, *, case_sensitive: bool = False) -> None:
    """Raise ``Misconfigured``, with the column's name, for a schema that the durable copy cannot hold exactly."""
    if not schema.fields:
        raise Misconfigured(
            "the DataFrame has no columns",
            state="schema struct<>",
            help="select at least one column before handing the DataFrame to the pipeline",
        )
    check_names(schema, case_sensitive=case_sensitive)
    for field in schema.fields:
        _check_type(field.name, field.dataType)


def _check_type(column: str, kind: DataType) -> None:
    name = kind.typeName()
    inner = list(parts(kind))
    if name in _NO_PARQUET or (name == "struct" and not inner):
        raise Misconfigured(
            f"column {column!r} has the type {kind.simpleString()}, which the durable copy cannot hold",
            state="the copy is Parquet",
            help="cast the column to another type (a string, for instance), or leave it out",
        )
    for child, part in inner:
        _check_type(f"{column}.{child}", part)


def _write(rows: DataFrame, root: str, epoch: EpochNumber, *folders: str) -> int:
    """Write ``rows`` in one job, with a folder for each value of ``folders``; return how many rows Spark counted."""
    with settings.held(rows.sparkSession, settings.COPY):
        observed, count = counted(rows)
        observed.write.options(**_CODEC, **_COMMITTER).partitionBy(*folders).mode("errorifexists").parquet(root)
    return count(epoch, root)


def counted(rows: DataFrame) -> tuple[DataFrame, Callable[[EpochNumber, str], int]]:
    """Return the same rows, and a function that says how many of them Spark has written.

    Call the function after the rows were written, with the epoch and the copy's folder for its error:
    ``PrepareRefused``, if Spark does not say it.
    """
    from pyspark.sql import functions as f

    seen, figures = observed(rows, f.count(f.lit(1)).alias("rows"))

    def told(epoch: EpochNumber, root: str) -> int:
        state = f"copy {root}, nothing was decided"
        found = figures("how many rows it wrote to the durable copy", state, epoch)
        return int(found["rows"]) if found is not None else 0

    return seen, told


@contextlib.contextmanager
def refusing(epoch: EpochNumber, root: str, disk: str = "the checkpoint") -> Iterator[None]:
    """Raise ``PrepareRefused``, with the original text, for an error of the query or of the disk inside this scope.

    ``root``: the folder of the copy.  ``disk``: what lies on the disk that is written to.
    """
    try:
        yield
    except EpochalError:
        raise
    except Exception as error:
        raise PrepareRefused(
            f"the epoch could not be evaluated and written to its durable copy: {first_cause(error)}",
            epoch=epoch,
            state=f"copy {root}, nothing was decided",
            help=f"correct the query, or the disk of {disk} (space, rights), whichever caused the error, and"
            " restart: the epoch is evaluated again",
        ) from error


def check_files(copy: Copy) -> None:
    """Raise ``CommitInDoubt`` if a file of a copy on a local path is missing or has another length."""
    _check_files(LocalFiles(), copy)


def _check_files(files: Files, copy: Copy) -> None:
    there = files.listing(copy.root) or {}
    wrong = [
        f"{f.path}: {there.get(f.path, 'missing')}, was {f.length} bytes"
        for f in copy.files
        if there.get(f.path) != f.length
    ]
    if wrong:
        raise CommitInDoubt(
            f"{len(wrong)} of {len(copy.files)} files of the durable copy {copy.root} are missing or changed",
            state="; ".join(wrong[:3]),
            help="restore these files from a backup of the checkpoint; without them a decided epoch "
            "cannot be redone; an epoch that is not decided is evaluated again at the next start",
        )


def _removable(name: str, by: Actor) -> bool:
    match = _COPY.fullmatch(name)
    if match is None:
        return False
    return may_drop(Actor(int(match["generation"]), int(match["token"])), by)


def _tail(root: str) -> str:
    """Return ``<epoch>/<folder>``, which identifies a copy wherever the checkpoint lies."""
    return "/".join(root.rstrip("/").split("/")[-2:])


def local_path(uri: str) -> str | None:
    """Return the path on this machine that ``uri`` names, or None if it names another file system."""
    return _local(uri) if _LOCAL.match(uri) else None


def _local(uri: str) -> str:
    return _LOCAL.sub("", uri, count=1)


def _fsync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
