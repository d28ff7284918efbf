"""The answers of a Delta sink to the console command, read with delta-rs: see ``epochal.sinks.inspection``.

The table's log tells which files belong to which epoch: each epoch is one version, whose ``userMetadata`` holds its
position.  The log retention of the table limits how far back this goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from epochal.coordinator.model.epoch import Actor, Json, Position, Query, SinkState
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.sinks.conditions import Conditions
from epochal.sinks.delta.modes import Merge, Mode
from epochal.sinks.delta.staged import Note, Staged
from epochal.sinks.delta.target import Target
from epochal.sinks.delta.without_spark import Commit, Folder, reading
from epochal.sinks.inspection import Counted, Leftover, Value, decimal_text, strictly_below
from epochal.sinks.protocol import Sink

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = {
    "byte": "integer",
    "short": "integer",
    "integer": "integer",
    "long": "integer",
    "float": "real",
    "double": "double",
    "boolean": "boolean",
    "string": "text",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}


class DeltaInspection:
    """Implements :class:`~epochal.sinks.inspection.Inspection`."""

    def __init__(self, sink: Sink, target: Target, mode: Mode, conditions: Conditions, app: str, projection: Json):
        self._sink = sink
        self._conditions = conditions
        self._app = app
        self._target = target
        self.projection = projection
        self.cautions: Sequence[str] = (
            "no note names the files of a start that died while it wrote them, or of failed tasks: VACUUM removes them",
        )
        self.complete = False
        self.content = "the files that each version of the table added, by their statistics"
        self.unattributed = (
            "a merge also rewrites rows of earlier epochs, so the files of its version hold more than the epoch's rows"
            if isinstance(mode, Merge)
            else ""
        )

    def counts(self, first: Position, last: Position) -> Iterator[Counted]:
        """Yield the counts as they were committed.  A later DELETE by another writer does not change them."""
        for commit in self._folder.commits(self._app, first):
            if commit.position > last:
                return
            yield Counted(commit.position, commit.rows)

    def columns(self) -> Mapping[str, str]:
        fields = json.loads(self._folder.table().schema().to_json())["fields"]
        return {field["name"]: _kind(field["type"]) for field in fields}

    def rows(self, position: Position, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        """Yield the rows of the files that the epoch added.

        ``SinkUnavailable``: the table's log no longer has the epoch, or its files were replaced or changed since.
        """
        commit = next(iter(self._folder.commits(self._app, position)), None)
        if commit is None or commit.position != position:
            raise self._unavailable(f"no version of position {position} is in the table's log any more")
        self._refuse_changed(commit)
        kinds = self.columns()
        for add in commit.adds:
            yield from self._of_file(add, [(name, kinds[name]) for name in columns])

    def leftovers(self) -> Sequence[Leftover]:
        """Return the prepared files that a note names.  A start that died while writing its files left no note."""
        marker = self._state().marker
        return [
            Leftover("prepared data files, named by a note", note.position, note.actor)
            for note in self._notes()
            if note.can_still_be_shown(marker)
        ]

    def remove(self, newest: Actor) -> Sequence[str]:
        """Delete notes and their files.  No version of the table names these files.

        No actor below the fence can commit them any more.
        """
        state = self._state()
        self._conditions.check_owner(state, newest)
        before = len(self._notes())
        Staged(self._folder, self._app, self._conditions.sink).drop_undecided(state.marker, strictly_below(newest))
        return [f"deleted {before - len(self._notes())} notes and the data files that they name"]

    def close(self) -> None:
        """Nothing to do: nothing is open."""

    @property
    def _folder(self) -> Folder:
        return Folder(self._target, self._conditions.sink)

    def _state(self) -> SinkState:
        return self._sink.look(Query(self._app, "", "", ""))

    def _notes(self) -> Sequence[Note]:
        return Staged(self._folder, self._app, self._conditions.sink).notes()

    def _refuse_changed(self, commit: Commit) -> None:
        """Raise ``SinkUnavailable`` unless the table still has the commit's files, with all their rows.

        OPTIMIZE, DELETE and UPDATE replace files or delete rows from them.
        """
        table = self._folder.table()
        there = {unquote(str(path)) for path in _active(table)}
        gone = [add["path"] for add in commit.adds if unquote(str(add["path"])) not in there]
        if gone:
            raise self._unavailable(
                f"{len(gone)} of {len(commit.adds)} files of version {commit.version} were rewritten"
            )
        with reading(self._folder.where, self._conditions.sink):
            deleted = {str(path) for path in _deleted_from(table)}
        if any(str(add["path"]).rpartition("/")[2] in path for add in commit.adds for path in deleted):
            raise self._unavailable(f"rows of version {commit.version} were deleted since")

    def _of_file(self, add: Json, columns: Sequence[tuple[str, str]]) -> Iterator[tuple[Value, ...]]:
        import pyarrow.parquet as pq

        folder = self._folder
        parts = add.get("partitionValues") or {}
        with reading(folder.where, self._conditions.sink):
            # no pre-buffering: Arrow's threads free the bytes late, which aborts a Python process that is exiting
            file = pq.ParquetFile(folder.files.open_input_file(unquote(str(add["path"]))), pre_buffer=False)
            names = file.schema_arrow.names
            lacking = [name for name, _ in columns if name not in names and name not in parts]
            if lacking:
                raise self._unavailable(f"the files have other names for the columns {lacking} (column mapping)")
            stored = [name for name, _ in columns if name in names]
            for batch in file.iter_batches(columns=stored):
                values = [_values(batch, name, kind, parts) for name, kind in columns]
                yield from zip(*values, strict=True)

    def _unavailable(self, why: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"the rows of one epoch cannot be read: {why}",
            sink=self._conditions.sink,
            state=f"Delta table {self._target}",
            help="compare a range of epochs that the table still shows as they were written",
        )


def _active(table: Any) -> list[Any]:
    import pyarrow as pa

    found: list[Any] = pa.table(table.get_add_actions()).column("path").to_pylist()
    return found


def _deleted_from(table: Any) -> list[Any]:
    import pyarrow as pa

    vectors = pa.table(table.deletion_vectors())
    found: list[Any] = vectors.column("filepath").to_pylist() if vectors.num_rows else []
    return found


def _kind(kind: Any) -> str:
    if not isinstance(kind, str):
        return str(kind.get("type", kind))
    return "decimal" if kind.startswith("decimal") else _KINDS.get(kind, kind)


def _values(batch: pa.RecordBatch, name: str, kind: str, parts: Mapping[str, str | None]) -> list[Value]:
    """Return one column of the batch as values that can be compared."""
    import pyarrow as pa

    if name in parts:
        return [_of_text(parts[name], kind)] * batch.num_rows
    column = batch.column(name)
    if kind in ("timestamp", "timestamp_ntz"):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif kind == "date":
        column = column.cast(pa.int32())
    found: list[Any] = column.to_pylist()
    return [None if value is None else decimal_text(value) for value in found] if kind == "decimal" else found


def _of_text(text: str | None, kind: str) -> Value:
    """Return a partition value, which Delta keeps as text, as a value of this kind."""
    import pyarrow as pa

    if text is None or kind == "text":
        return text
    if kind == "decimal":
        from decimal import Decimal

        return decimal_text(Decimal(text))
    if kind == "binary":
        return text.encode()
    types = {"integer": pa.int64(), "real": pa.float64(), "double": pa.float64(), "boolean": pa.bool_()}
    if kind in types:
        plain: Value = pa.scalar(text).cast(types[kind]).as_py()
        return plain
    if kind == "date":
        days: Value = pa.scalar(text).cast(pa.date32()).cast(pa.int32()).as_py()
        return days
    moment: Value = pa.scalar(text.rstrip("Z")).cast(pa.timestamp("us")).cast(pa.int64()).as_py()
    return moment
