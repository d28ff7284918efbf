"""A Delta table read by delta-rs, in a process where no Spark runs: for the console command, never for a start.

The sink must have the path of its table: only a Spark session knows which table a name in its catalog means.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.delta.lineage import actions_of, counted, log_file
from epochal.sinks.delta.target import Target
from epochal.sinks.spark.stage import local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem

_MISREAD = re.compile(r"[#?\\\x00-\x1f]|%[0-9A-Fa-f]{2}")
"""What delta-rs 1.6 takes for another character, or for the end of a path."""


def located(target: Target, sink: str) -> str:
    """Return the path by which delta-rs finds the table.

    ``SinkUnavailable``: the sink has only a name, or its path has characters by which delta-rs finds another table, or
    a table without history.
    """
    if target.path is None:
        raise SinkUnavailable(
            f"table={target.table!r} is a name in Spark's catalog, and no Spark runs in this process",
            sink=sink,
            state="without Spark a Delta table is read by its path",
            help="ask from a process with a SparkSession, or give the sink the path of the table and its own name=",
        )
    path = local_path(target.path) or target.path
    if (found := _MISREAD.search(path)) is not None:
        raise SinkUnavailable(
            f"delta-rs does not find a table whose path has {found[0]!r}: {path!r}",
            sink=sink,
            state="without Spark a Delta table is read by delta-rs, which takes this for a part of a URL",
            help="ask from a process with a SparkSession, or move the table to a path without it",
        )
    return path


class Snapshot:
    """The newest version of a table, with the part of ``jvm.Transaction`` that ``look`` needs.

    A missing table is an error when the snapshot is made.
    """

    def __init__(self, target: Target, sink: str) -> None:
        self._sink = sink
        self._where = located(target, sink)
        self.read = Folder(target, sink).read
        with self._reading():
            self.table = _delta_rs(sink).DeltaTable(self._where)

    @property
    def version(self) -> int:
        with self._reading():
            return int(self.table.version())

    def version_of(self, identity: str) -> int | None:
        """Return the version of the transaction id ``identity``, or None."""
        with self._reading():
            found: int | None = self.table.transaction_version(identity)
        return found

    def metadata(self) -> Json:
        """Return the id in Delta's ``metaData`` action."""
        return {"id": str(self.table.metadata().id)}

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with reading(self._where, self._sink):
            yield


@contextlib.contextmanager
def reading(where: str, sink: str) -> Iterator[None]:
    """Turn errors of delta-rs inside this scope into named ones.

    ``Misconfigured``: there is no table.  ``SinkUnavailable``: delta-rs cannot read or reach the table.
    """
    exceptions = _delta_rs(sink).exceptions
    try:
        yield
    except exceptions.TableNotFoundError:
        raise Misconfigured(
            f"there is no Delta table at {where}", sink=sink, help="call pipeline.create(schema) once"
        ) from None
    except (exceptions.DeltaError, OSError, ValueError, NotImplementedError) as error:
        raise SinkUnavailable(
            f"the Delta table at {where} cannot be read without Spark: {_line(error)}",
            sink=sink,
            state="read by delta-rs, which knows fewer features of tables than Delta itself",
            help="make it reachable from here (path, rights, credentials), or ask from a process with a SparkSession",
        ) from error


@dataclass(frozen=True)
class Commit:
    """One version of the table that is an epoch of this sink."""

    version: int
    facts: Json  # the facts that the sink wrote into the commit
    adds: tuple[Json, ...]

    @property
    def position(self) -> int:
        return int(self.facts["position"])

    @property
    def rows(self) -> int | None:
        """How many rows the statistics of the files say; None if a file has no statistics."""
        counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in self.adds]
        return None if None in counts else sum(counts)


class Folder:
    """The files of a table, with the methods of ``jvm.Table`` that read and delete."""

    def __init__(self, target: Target, sink: str) -> None:
        self._sink = sink
        self.where = located(target, sink)

    def list(self, folder: str) -> Sequence[str]:
        """Return the names in a folder, sorted; none if there is no folder."""
        from pyarrow.fs import FileSelector

        with reading(self.where, self._sink):
            found = self.files.get_file_info(FileSelector(folder, allow_not_found=True))
        return sorted(str(info.path).rpartition("/")[2] for info in found)

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if there is no such file."""
        with reading(self.where, self._sink):
            try:
                return bytes(self.files.open_input_file(path).read()).decode()
            except FileNotFoundError:
                return None

    def write(self, path: str, text: str) -> None:
        """Not possible: nothing is written without Spark."""
        raise NotImplementedError(f"{path}: {len(text)} characters")

    def delete(self, path: str) -> None:
        """Delete a file.  It is no error if the file is gone already."""
        with reading(self.where, self._sink), contextlib.suppress(FileNotFoundError):
            self.files.delete_file(path)

    def commits(self, app: str, first: int) -> Iterator[Commit]:
        """Yield the versions that are epochs of this sink, from position ``first`` on, if the log still has them."""
        for version in self._counted():
            commit = self._commit(version, app)
            if commit is not None and commit.position >= first:
                yield commit

    def _counted(self) -> Sequence[int]:
        """Return the versions that the log still holds and that no RESTORE has taken back, the oldest first."""
        table = self.table()
        with reading(self.where, self._sink):
            told = [(int(commit["version"]), commit) for commit in table.history()]
        return sorted(counted(told))

    def _commit(self, version: int, app: str) -> Commit | None:
        """Return the version as a commit of this sink; None if it is another writer's or a fence, or gone by now."""
        actions = list(actions_of(self.read(log_file(version)) or ""))
        facts = _facts(actions)
        if (facts.get("app"), facts.get("sink")) != (app, self._sink):
            return None
        return Commit(version, facts, tuple(action["add"] for action in actions if "add" in action))

    @cached_property
    def files(self) -> FileSystem:
        """The table's folder as a file system of pyarrow."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        uri = self.where if "://" in self.where else f"file://{os.path.abspath(self.where)}"
        return PyFileSystem(DeltaStorageHandler(uri))

    def table(self) -> DeltaTable:
        """Return the newest version of the table."""
        with reading(self.where, self._sink):
            found: DeltaTable = _delta_rs(self._sink).DeltaTable(self.where)
        return found


def _facts(actions: list[Json]) -> Json:
    told = next((action["commitInfo"].get("userMetadata") for action in actions if "commitInfo" in action), None)
    try:
        facts = json.loads(told or "{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) and "position" in facts else {}


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _delta_rs(sink: str) -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as missing:
        raise Misconfigured(
            f"without Spark a Delta table is read by the package deltalake: {missing}",
            sink=sink,
            help="pip install 'epochal[console]'",
        ) from None
    return deltalake
