"""Prepare: data files that the table's log does not name yet, or a MERGE that is not committed yet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Digest, Epoch, EpochNumber, Json
from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import marker_of
from epochal.sinks.delta import gates, jvm, modes, renames
from epochal.sinks.delta.core import NO_CAST, PAYLOAD_VERSION, Core, UncommittedMerge
from epochal.sinks.delta.jvm import JavaFailure, Table, Transaction, Written
from epochal.sinks.delta.merge import SOURCE, Work
from epochal.sinks.delta.modes import Merge
from epochal.sinks.delta.refusals import ANOTHER_DELTA, AS_DELTA_SAYS
from epochal.sinks.delta.staged import Note, Staged
from epochal.sinks.delta.starting import refuse_forgetful, refuse_properties
from epochal.sinks.rows.digest import watched
from epochal.sinks.spark.expressions import of_text
from epochal.sinks.spark.names import column_of, numbered, quoted
from epochal.sinks.spark.stage import read_copy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

UNKEPT = (
    "a column that partitions the table has a value that Delta gives back as another one: an empty text, bytes that are"
    " not valid text, Hive's word for NULL, or a time in the hour that clocks repeat in the session's time zone"
)
VIOLATIONS = ("InvariantViolationException", "DeltaInvariantViolationException")


def without_row_ids(add: Json) -> Json:
    """Return the ``add`` action without row ids.

    The commit that shows the file assigns row ids, so that two appends cannot get the same ones.
    """
    return {key: value for key, value in add.items() if key not in ("baseRowId", "defaultRowCommitVersion")}


def count_rows(table: Table, adds: Sequence[Json]) -> int:
    counts = [json.loads(add.get("stats") or "{}").get("numRecords") for add in adds]
    if None in counts:
        return table.count_rows([str(add["path"]) for add in adds])
    return sum(counts)


def hit_between_rows(sink: str, epoch: EpochNumber) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that hits the failpoint after the first row of each batch.

    Used only while this failpoint is armed.
    """

    def strike(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            failpoints.hit(Point.IN_WRITE, sink, epoch)
            yield batch.slice(1)

    return strike


def prepare(sink: Core, epoch: Epoch, rows: DataFrame, by: Actor) -> Committable:
    """Write the data files and a note that says whose they are; the table's log names none of them yet.

    With mode ``Merge`` Delta's MERGE writes these files, from the durable copy and the table as it is now.
    """
    sink.looked()
    table = sink.table()
    known = None if isinstance(sink.mode, Merge) else sink.known
    txn = sink.existing(sink.begin(table, known=known))
    metadata = txn.metadata()
    check_table(sink, txn, metadata, epoch.number)
    given = sink.projected(rows.schema)
    if old := renames.renamed(sink, given, metadata):
        raise sink.say.refused("; ".join(renames.problems(old)), epoch.number, help=renames.remedy(old))
    written = sink.written(given, jvm.schema_of(metadata).names)
    if sink.merge_schema and sink.added(written, metadata):
        txn = with_columns(sink, table, txn, sink.added(written, metadata), epoch, by)
        metadata = txn.metadata()
    if isinstance(sink.mode, Merge):
        return prepare_merge(sink, sink.mode, table, txn, epoch, rows, by)
    rows, digest = watched(rows) if epoch.digest else (rows, None)
    fingerprint = gates.fingerprint(metadata, txn.protocol())
    there = sink.filed if sink.filed is not None and sink.filed.decision == epoch.decision.id else None
    left_out = 0
    if there is not None and there.table == fingerprint and are_there(sink, table, there.adds, epoch.number):
        adds = there.adds
    else:
        gets, out = sink.projection.sifted(rows, counts=not epoch.digest)
        fitting = fitting_rows(sink, gets, metadata, epoch.number)
        with sink.projection.evaluating(epoch.number, of_query=epoch.copy is None):
            adds = write_files(sink, txn, fitting, epoch.number)
            left_out = out()
        with sink.say.unavailable("the prepared files", epoch.number):
            note(sink, table, epoch, by, [*adds, *(there.adds if there is not None else ())])
            read_back(sink, table, adds, epoch.number)
    with sink.say.unavailable("the prepared files", epoch.number):
        count = count_rows(table, adds)
    if epoch.copy is not None and count + left_out != epoch.copy.rows:
        left_out = sink.projection.left_out(rows)  # where Delta shuffles rows, Spark may count some twice
    payload = {"adds": adds, "table": fingerprint}
    return vote_for(sink, epoch, count, payload, left_out, digest() if digest is not None else None)


def prepare_merge(
    sink: Core, mode: Merge, table: Table, txn: Transaction, epoch: Epoch, rows: DataFrame, by: Actor
) -> Committable:
    """Make the MERGE on this snapshot without committing it.  Keep its transaction, which commit may use."""
    if epoch.copy is None:
        raise sink.say.refused(
            "a sink that merges has no durable copy to merge",
            epoch.number,
            help="leave the epoch to epochal.Pipeline, which makes the copy",
        )
    sink.conditions.check_prepare(sink.state(txn), by, marker_of(epoch), epoch.number)
    metadata = txn.metadata()
    table_names = jvm.schema_of(metadata).names
    plan = sink.planned(mode, sink.projection.check(rows.schema).names, table_names)
    work = Work.of(epoch.copy, sink.projection, plan, rows.sparkSession)
    if inner := sink.inner_not_null(metadata, plan.columns):
        raise sink.say.refused("; ".join(map(NO_CAST.format, inner)), epoch.number, help=sink.without_not_null(inner))
    session = work.session(rows.sparkSession)
    with sink.projection.evaluating(epoch.number):
        given = work.rows(session)
        refuse_rows(sink, plan.written(given.schema), metadata, epoch.number)
        count = plan.check(given, sink.name, epoch.number)
        left_out = sink.projection.left_out(read_copy(session, epoch.copy))
        with refusing_violations(sink, epoch.number):
            written = merged_by_delta(sink, txn, work, session, count, epoch.number)
    with sink.say.unavailable("the prepared files", epoch.number):
        note = Note(epoch.position, by, epoch.decision.id)
        Staged(table, sink.looked(), sink.name).note(note, written.files)
    sink.tried = UncommittedMerge(epoch.decision.id, txn, written)
    return vote_for(sink, epoch, count, {"work": work.to_json(), "table": {"id": metadata["id"]}}, left_out)


def vote_for(
    sink: Core, epoch: Epoch, count: int, payload: Json, left_out: int, digest: Digest | None = None
) -> Committable:
    failpoints.hit(Point.BEFORE_VOTE, sink.name, epoch.number)
    mode = modes.name_of(sink.mode)
    versioned = {"version": 1} if mode == "append" else {"version": PAYLOAD_VERSION, "mode": mode}
    about = {"offsets": epoch.offsets, "watermark": epoch.watermark}
    payload = {**versioned, **payload, **about}
    return Committable(sink.name, epoch.decision, epoch.position, count, payload, left_out=left_out, digest=digest)


def check_table(sink: Core, txn: Transaction, metadata: Json, epoch: EpochNumber) -> None:
    """Repeat checks of the start: the table may have changed since.  Raise ``PrepareRefused``."""
    try:
        refuse_forgetful(sink, metadata)
        refuse_properties(sink, metadata)
    except Misconfigured as error:
        raise sink.say.refused(error.what, epoch, help=error.help) from error
    try:
        txn.check_writable()
    except JavaFailure as failure:
        what = "Delta refuses to write to the table"
        raise sink.say.refused(what, epoch, failure.message, help=ANOTHER_DELTA) from failure


def with_columns(sink: Core, table: Table, txn: Transaction, added: StructType, epoch: Epoch, by: Actor) -> Transaction:
    """Add these columns to the table; return a transaction on a snapshot that has them.

    All their values are NULL so far.  The columns stay even if the epoch is never decided.
    """
    sink.conditions.check_owner(sink.state(txn), by, epoch.number)
    failed: JavaFailure | None = None
    try:
        with jvm.java_errors():
            jvm.run(jvm.session(sink.name), sink.add_columns(added))
    except JavaFailure as error:  # no failure if somebody else has added the columns meanwhile: checked below
        failed = error
    txn = sink.existing(sink.begin(table))
    if sink.added(added, txn.metadata()).fields:
        what = f"Delta does not add the columns {added.names}"
        state = failed.message if failed is not None else "it reported success, and the table does not have them"
        raise sink.say.refused(what, epoch.number, state, help=AS_DELTA_SAYS) from failed
    return txn


def fitting_rows(sink: Core, rows: DataFrame, metadata: Json, epoch: EpochNumber) -> DataFrame:
    """Return the rows with the table's types; ``PrepareRefused`` if the table cannot hold them."""
    refuse_rows(sink, rows.schema, metadata, epoch)
    wanted = gates.projection(rows.schema, jvm.schema_of(metadata), case_sensitive=sink.case_sensitive())
    fitting = with_failpoint(sink, rows, epoch)
    if not gates.is_like(rows.schema, wanted):  # `to` takes time with the square of the columns
        fitting = fitting.to(wanted)
    return kept_in_partitions(sink, fitting, metadata)


def kept_in_partitions(sink: Core, rows: DataFrame, metadata: Json) -> DataFrame:
    """Return the rows, with a check of each row.

    The job fails at a row if Delta would read back another value from one of its partition columns.
    """
    from pyspark.sql import functions as f

    checked = {}
    for field in gates.partitions(metadata):
        for name in gates.in_both(rows.columns, [field.name], case_sensitive=sink.case_sensitive()):
            if (unkept := gates.is_unkept(quoted(name), field.dataType)) is not None:
                checked[name] = f.when(of_text(unkept), f.raise_error(f.lit(UNKEPT))).otherwise(column_of(name))
    return rows.withColumns(checked) if checked else rows


def refuse_rows(sink: Core, rows: StructType, metadata: Json, epoch: EpochNumber) -> None:
    problems = sink.row_problems(rows, metadata)
    if problems:
        raise sink.say.refused("; ".join(problems), epoch, help=sink.remedy(rows, metadata))


def with_failpoint(sink: Core, rows: DataFrame, epoch: EpochNumber) -> DataFrame:
    if failpoints.is_armed(Point.IN_WRITE):
        return numbered(rows).mapInArrow(hit_between_rows(sink.name, epoch), rows.schema)
    return rows


def write_files(sink: Core, txn: Transaction, rows: DataFrame, epoch: EpochNumber) -> list[Json]:
    with refusing_violations(sink, epoch):
        return [without_row_ids(action["add"]) for action in txn.write_files(rows)]


@contextlib.contextmanager
def refusing_violations(sink: Core, epoch: EpochNumber) -> Iterator[None]:
    try:
        yield
    except JavaFailure as failure:
        if UNKEPT in failure.message:
            help_line = (
                "give such rows another value, keep them out with where=, or partition by another column; for"
                " times set spark.sql.session.timeZone to UTC"
            )
            raise sink.say.refused(UNKEPT, epoch, help=help_line) from failure
        if failure.is_a(*VIOLATIONS):
            way_out = (
                "correct these rows in the query, keep them out with where=, or drop the constraint (ALTER TABLE"
                f" {sink.target.sql} DROP CONSTRAINT name, or ALTER COLUMN name DROP NOT NULL)"
            )
            what = "rows violate a constraint of the table"
            raise sink.say.refused(what, epoch, failure.message, help=way_out) from failure
        raise


def note(sink: Core, table: Table, epoch: Epoch, by: Actor, adds: Sequence[Json]) -> None:
    """Write the note that says whose these files are."""
    files = [str(add["path"]) for add in adds]
    Staged(table, sink.looked(), sink.name).note(Note(epoch.position, by, epoch.decision.id), files)


def are_there(sink: Core, table: Table, adds: Sequence[Json], epoch: EpochNumber) -> bool:
    """Return whether the table's folder still has these files, whole."""
    with sink.say.unavailable("the prepared files", epoch):
        return all(table.size(str(add["path"])) == add["size"] for add in adds)


def read_back(sink: Core, table: Table, adds: Sequence[Json], epoch: EpochNumber) -> None:
    for add in adds:
        size = table.size(str(add["path"]))
        if size != add["size"]:
            raise sink.say.refused(
                f"a file that was written is not there: {add['path']}",
                epoch,
                f"{size} bytes, not {add['size']}",
                help="stop what deletes files in the table's folder (a clean-up, VACUUM), and restart the query",
            )


def merged_by_delta(
    sink: Core, txn: Transaction, work: Work, session: SparkSession, count: int, epoch: EpochNumber
) -> Written:
    """Make Delta's MERGE of the epoch's rows on the snapshot of ``txn``; without rows return no actions."""
    if count == 0:
        return Written([], [])
    table = jvm.schema_of(txn.metadata())
    rows = work.plan.fitting(work.rows(session), table, case_sensitive=sink.case_sensitive())
    rows = kept_in_partitions(sink, rows, txn.metadata())
    with_failpoint(sink, work.plan.source(rows), epoch).createOrReplaceTempView(SOURCE)
    return txn.merge(session, work.plan.statement(sink.target.sql))
