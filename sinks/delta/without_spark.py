"""A Delta table read by delta-rs, in a process where no Spark runs: for the console command, never for a start.

Paths alone: which table a name of Spark's catalog means only a session knows.
"""

from __future__ import annotations

import contextlib
import json
import os
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


def located(target: Target, sink: str) -> str:
    """Where delta-rs finds the table."""
    if target.path is None:
        raise SinkUnavailable(
            f"table={target.table!r} is a name in Spark's catalog, and no Spark runs in this process",
            sink=sink,
            state="without Spark a Delta table is read by its path",
            help="ask from a process with a SparkSession, or give the sink the path of the table and its own name=",
        )
    return local_path(target.path) or target.path


class Snapshot:
    """The newest version of a table; as much of ``jvm.Transaction`` as a look asks for."""

    def __init__(self, target: Target, sink: str) -> None:
        self._sink = sink
        self._where = located(target, sink)
        self.read = Folder(target, sink).read
        with self._reading():
            self.table = _delta_rs(sink).DeltaTable(self._where)

    @property
    def exists(self) -> bool:
        """A table that is not there is an error already."""
        return True

    @property
    def version(self) -> int:
        with self._reading():
            return int(self.table.version())

    def version_of(self, identity: str) -> int | None:
        """The version of that transaction id, None for none."""
        with self._reading():
            found: int | None = self.table.transaction_version(identity)
        return found

    def metadata(self) -> Json:
        """The id of Delta's ``metaData`` action."""
        return {"id": str(self.table.metadata().id)}

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with reading(self._where, self._sink):
            yield


@contextlib.contextmanager
def reading(where: str, sink: str) -> Iterator[None]:
    """What delta-rs says, as a named error: there is no table, it cannot read this one, or nobody answers."""
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
            help="see whether the table can be reached from here; else ask from a process with a SparkSession",
        ) from error


@dataclass(frozen=True)
class Commit:
    """One version of the table that is an epoch of this sink."""

    version: int
    facts: Json  # what the sink wrote into it for people
    adds: tuple[Json, ...]

    @property
    def position(self) -> int:
        return int(self.facts["position"])

    @property
    def rows(self) -> int | None:
        """As the files' statistics say; None where one has none."""
        counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in self.adds]
        return None if None in counts else sum(counts)


class Folder:
    """The files of a table, as the verbs of ``jvm.Table`` that look and delete."""

    def __init__(self, target: Target, sink: str) -> None:
        self._sink = sink
        self.where = located(target, sink)

    def list(self, folder: str) -> Sequence[str]:
        """Names in that folder, none if there is no folder."""
        from pyarrow.fs import FileSelector

        with reading(self.where, self._sink):
            found = self.files.get_file_info(FileSelector(folder, allow_not_found=True))
        return sorted(str(info.path).rpartition("/")[2] for info in found)

    def read(self, path: str) -> str | None:
        """The text of that file; None if there is none."""
        with reading(self.where, self._sink):
            try:
                return bytes(self.files.open_input_file(path).read()).decode()
            except FileNotFoundError:
                return None

    def write(self, path: str, text: str) -> None:
        """Nothing is written without Spark."""
        raise NotImplementedError(f"{path}: {len(text)} characters")

    def delete(self, path: str) -> None:
        """Delete that file, also when it is gone."""
        with reading(self.where, self._sink), contextlib.suppress(FileNotFoundError):
            self.files.delete_file(path)

    def commits(self, app: str, first: int) -> Iterator[Commit]:
        """The versions that are epochs of this sink at or above position ``first``, as far as the log reaches back."""
        for version in self._counted():
            commit = self._commit(version, app)
            if commit is not None and commit.position >= first:
                yield commit

    def _counted(self) -> Sequence[int]:
        """Versions that the log still holds and no RESTORE has taken back, the oldest first."""
        table = self.table()
        with reading(self.where, self._sink):
            told = [(int(commit["version"]), commit) for commit in table.history()]
        return sorted(counted(told))

    def _commit(self, version: int, app: str) -> Commit | None:
        """None: of somebody else, a fence, or gone by now."""
        actions = list(actions_of(self.read(log_file(version)) or ""))
        facts = _facts(actions)
        if (facts.get("app"), facts.get("sink")) != (app, self._sink):
            return None
        return Commit(version, facts, tuple(action["add"] for action in actions if "add" in action))

    @cached_property
    def files(self) -> FileSystem:
        """The table's folder as pyarrow sees it."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        uri = self.where if "://" in self.where else f"file://{os.path.abspath(self.where)}"
        return PyFileSystem(DeltaStorageHandler(uri))

    def table(self) -> DeltaTable:
        """Its newest version."""
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
