"""Create the table, and check before a start that the sink can work."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Json, Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.conditions import check_name
from epochal.sinks.delta import gates, jvm, renames, self_test
from epochal.sinks.delta.core import CAST, NO_CAST, Core
from epochal.sinks.delta.jvm import JavaFailure
from epochal.sinks.delta.log_store import Drivers
from epochal.sinks.delta.modes import Merge
from epochal.sinks.delta.staged import Staged
from epochal.sinks.delta.target import SESSION_CATALOG
from epochal.sinks.questions import Answer, Question, known, require
from epochal.sinks.spark.executors import clone
from epochal.sinks.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("epochal.sinks.delta")


def create(sink: Core, query: Query, schema: StructType) -> Sequence[str]:
    """Create the table if there is none; ``Misconfigured`` for types that no Delta table can hold."""
    from pyspark.errors import PySparkException

    check_name("app", query.app, sink.name)
    rows = sink.projected(schema)
    schema = sink.written(rows, rows.names)
    sink.say.refuse_set_up(gates.unholdable(schema), CAST)
    table = sink.find()
    if table is not None and sink.begin(table).exists:
        return []
    _refuse_partitions(sink, sink.partition_by)
    try:
        create_table(sink, schema)
    except (JavaFailure, PySparkException) as error:
        sink.say.refuse_set_up(
            gates.unnamed(schema),
            "give them other names with select=, or make the table yourself with TBLPROPERTIES"
            f" ('{gates.MAPPING}' = 'name')",
        )
        raise sink.say.misconfigured(f"Delta cannot create the table {sink.target}", str(error)) from error
    return [f"created Delta table {sink.target}"]


def create_table(sink: Core, schema: StructType) -> None:
    """Make the table, in a session of its own."""
    session = clone(jvm.session(sink.name))
    session.catalog.setCurrentCatalog(SESSION_CATALOG)
    session.conf.unset(gates.RETENTION_DEFAULT)  # a table with this setting is refused by check
    with jvm.java_errors():
        jvm.create(session, sink.target.path, sink.target.table, gates.loosened(schema), sink.partition_by)


DELTA, TABLE = "internal methods of Delta", "table"
"""The questions that all others need."""


def check(sink: Core, query: Query, schema: StructType) -> None:
    """Raise ``Misconfigured`` for what can never work: no table, other columns, types that it cannot hold exactly."""
    require(questions(sink, query, schema), lambda caution: log.warning("sink %s: %s", sink.name, caution))


def questions(sink: Core, query: Query, schema: StructType | None) -> Iterator[Question]:
    """See ``epochal.sinks.questions.Questioned``."""
    check_name("app", query.app, sink.name)
    there = There(sink)
    yield Question(DELTA, lambda: self_test.tell(jvm.session(sink.name), sink.name))
    yield Question(TABLE, there.told, (DELTA,))
    yield Question("log store", there.refuse_losing, (TABLE,))
    yield Question("transaction ids are kept", lambda: refuse_forgetful(sink, there.metadata), (TABLE,))
    yield Question("properties of the table", lambda: refuse_properties(sink, there.metadata), (TABLE,))
    yield Question("columns", lambda: _refuse_columns(sink, there, known(schema)), (TABLE,))
    yield Question("features of the table", there.refuse_unwritable, (TABLE,))
    yield Question("spelling of app and sink", lambda: there.refuse_twins(query.app), (TABLE,))
    yield Question("right to write files", there.refuse_closed, (TABLE,))


class There:
    """The table as it is now, read once and when it is first needed."""

    def __init__(self, sink: Core) -> None:
        self._sink = sink

    @cached_property
    def table(self) -> jvm.Table:
        return self._sink.table()

    @cached_property
    def txn(self) -> jvm.Transaction:
        return self._sink.existing(self._sink.begin(self.table))

    @cached_property
    def metadata(self) -> Json:
        return self.txn.metadata()

    def told(self) -> str:
        names = {"id", "name", "partitionColumns", "configuration"}
        about = {name: value for name, value in self.metadata.items() if name in names and value}
        return f"{self._sink.target}, version {self.txn.version}, {about}, {self.txn.protocol()}"

    def refuse_losing(self) -> Answer:
        """Raise ``Misconfigured`` if the log store is known to lose versions.

        Warn of one that does not keep drivers apart, or is not known.
        """
        with self._sink.say.unavailable("the table"):
            found = self.table.log_store()
        if (problem := found.problem()) is not None:
            raise self._sink.say.loses(found, problem)
        on_condition = found.drivers() in (Drivers.ONE, Drivers.UNKNOWN)
        return Answer(cautions=[found.promise()]) if on_condition else Answer(found.promise())

    def refuse_unwritable(self) -> None:
        try:
            self.txn.check_writable()
        except JavaFailure as failure:
            raise self._sink.say.unwritable(failure) from failure

    def refuse_twins(self, app: str) -> None:
        with self._sink.say.unavailable("the table"):
            Staged(self.table, app, self._sink.name).check_spelling()

    def refuse_closed(self) -> None:
        with self._sink.say.unavailable("the table"):
            closed = [folder for folder in (".", "_delta_log") if not self.table.may_write(folder)]
        if closed:
            raise Misconfigured(
                f"this process may not write to the Delta table {self._sink.target}",
                sink=self._sink.name,
                state=f"folders without write permission: {closed}",
                help="give its user the right to make files there",
            )


def refuse_properties(sink: Core, metadata: Json) -> None:
    """Raise ``Misconfigured`` if no rows at all can be written to this table exactly once."""
    sink.say.refuse_set_up(gates.identities(metadata), "write to a table without it")
    if not sink.adds_only:
        statement = f"ALTER TABLE {sink.target.sql} SET TBLPROPERTIES ('{gates.APPEND_ONLY}' = 'false')"
        sink.say.refuse_set_up(gates.append_only(metadata), f"{statement}, or give the sink mode=Append()")
    if isinstance(sink.mode, Merge):
        for name in gates.of_merge(jvm.schema_of(metadata).names):
            mapped = sink.mapping(metadata["configuration"][gates.MAPPING] if gates.is_mapped(metadata) else "name")
            statements = f"{mapped}; ALTER TABLE {sink.target.sql} RENAME COLUMN {quoted(name)} TO {name}_"
            sink.say.refuse_set_up(gates.names_of_merge([name]), statements)
    _refuse_partitions(sink, metadata["partitionColumns"])
    chars = gates.char_keys(metadata, sink.key)
    sink.say.refuse_set_up(gates.key_problems(metadata, sink.key), sink.as_text(chars))


def _refuse_partitions(sink: Core, names: Sequence[str]) -> None:
    sink.say.refuse_set_up(gates.nameless_partitions(names), "partition a new table by a column that has a name")


def _refuse_columns(sink: Core, there: There, schema: StructType) -> None:
    metadata, given = there.metadata, sink.projected(schema)
    old = renames.renamed(sink, given, metadata)
    sink.say.refuse_set_up(renames.problems(old), renames.remedy(old))
    rows = sink.written(given, jvm.schema_of(metadata).names)
    sink.refuse_unsupported(rows, metadata, there.txn.protocol())
    sink.say.refuse_set_up(sink.row_problems(rows, metadata), sink.remedy(rows, metadata))
    inner = sink.inner_not_null(metadata, rows.names)
    sink.say.refuse_set_up(list(map(NO_CAST.format, inner)), sink.without_not_null(inner))


def refuse_forgetful(sink: Core, metadata: Json) -> None:
    """Raise ``Misconfigured`` if Delta may forget the table's transaction ids: such a marker proves nothing."""
    forgets = gates.forgets(metadata)
    if forgets is not None:
        statement = f"ALTER TABLE {sink.target.sql} UNSET TBLPROPERTIES ('{gates.RETENTION}')"
        sink.say.refuse_set_up([forgets], f"{statement}; a marker that is gone already is then refused as lost")
