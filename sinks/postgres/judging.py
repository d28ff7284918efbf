"""Which rows go to the sink of bad rows: Spark finds some of them, and the server judges the values that it converts.

A row must be in exactly one of the two sinks.  So both ask the same question (:func:`reasons`), and the types of the
table are read once per epoch.  Each task asks whether these are still the table's types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import Epoch, Json
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.conditions import refusing
from epochal.sinks.postgres import given
from epochal.sinks.postgres.address import Address, Limits, ServerRefused
from epochal.sinks.postgres.client import open_session
from epochal.sinks.postgres.ways import Way, ways_of
from epochal.sinks.protocol import Rows, Schema
from epochal.sinks.rows import rejects
from epochal.sinks.rows.projection import settings_of
from epochal.sinks.spark.observing import sifted_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

    from epochal.sinks.postgres.core import Core
    from epochal.sinks.postgres.rows import Ask
    from epochal.sinks.postgres.session import Session


@dataclass(frozen=True)
class Judge:
    """What each task that asks the server receives.  It is never shown, as it holds the connection string."""

    address: Address
    limits: Limits
    sink: str
    table: str
    ways: tuple[Way, ...]  # of the columns that the server converts


def judgement(sink: Core, epoch: Epoch, rows: Rows) -> Json:
    """See ``epochal.sinks.rows.rejects``.  An older Epochal refused all tables that have an entry in ``types``."""
    from epochal.sinks.postgres.rows import columns

    schema = sink.projection.check(rows.schema)
    found = zip(columns(schema, sink.name), _ways(sink, epoch, schema)[0], strict=True)
    types = {
        column.name: [way.kind.shown, way.kind.all_rules] for column, way in found if way.kind.shown not in column.types
    }
    settings = {} if sink.projection.is_whole else dict(settings_of(rows.sparkSession))
    return {
        "schema": rows.schema.simpleString(),
        "projection": sink.projection.to_json(),
        "settings": settings,
        **({"types": types} if types else {}),
    }


def reasons(sink: Core, epoch: Epoch, rows: Rows) -> Rows:
    """See ``epochal.sinks.rows.rejects``."""
    ways, ask = _asking(sink, epoch, sink.projection.check(rows.schema))
    return sink.projection.beside(_few(sink, rows, ask), rejects.REASON, lambda schema: _reason(schema, ways, ask))


def good(sink: Core, epoch: Epoch, projected: Rows) -> tuple[Rows, Callable[[], int]]:
    """Return the rows that the sink can hold, of those that it gets, and what ``sifted_once`` returns."""
    ways, ask = _asking(sink, epoch, projected.schema)
    fine = _reason(projected.schema, ways, ask).isNull()
    return sifted_once(_few(sink, projected, ask), fine, "Postgres cannot hold")


def _reason(schema: Schema, ways: Sequence[Way], ask: Ask | None) -> Column:
    from epochal.sinks.postgres.rows import reason

    return reason(schema, ways, ask)


def _few(sink: Core, rows: Rows, ask: Ask | None) -> Rows:
    """Return the rows in no more partitions than the sink may have connections."""
    return rows if ask is None else rows.coalesce(sink.connections)


def _ways(sink: Core, epoch: Epoch, schema: Schema) -> tuple[tuple[Way, ...], Address]:
    """Return the ways into the table, and its address, as they were when this was first asked in the epoch."""
    from epochal.sinks.postgres.rows import columns

    kept = sink.judged
    if kept is None or kept[0] != epoch.decision:
        with sink.connector.session() as session, refusing(sink.name, epoch.number):
            ways = ways_of(session, sink.name, sink.target, sink.staging, columns(schema, sink.name))
            kept = sink.judged = (epoch.decision, ways, session.address())
    return kept[1], kept[2]


def _asking(sink: Core, epoch: Epoch, schema: Schema) -> tuple[tuple[Way, ...], Ask | None]:
    ways, address = _ways(sink, epoch, schema)
    converted = tuple(way for way in ways if way.is_converted)
    if not converted:
        return ways, None
    return ways, asking(Judge(address, sink.limits, sink.name, sink.target.own, converted))


def try_out(session: Session, sink: str, ways: Sequence[Way], *, sorts: bool) -> None:
    """Raise ``Misconfigured`` if the server cannot convert to these types, or if this role may not judge values."""
    converted = [way for way in ways if way.is_converted]
    if not converted:
        return
    given.try_converting(session, converted)
    if sorts:
        refuse_without_arrow_udf(sink, [way.name for way in converted])
        try:
            given.try_judging(session, converted)
        except ServerRefused as error:
            session.run("ROLLBACK")
            ((database, user),) = session.run("SELECT quote_ident(current_database()), quote_ident(current_user)")
            raise Misconfigured(
                f"with bad_rows= this role must judge the values of {[way.name for way in converted]}: {error.what}",
                sink=sink,
                state=error.state,
                help=f"GRANT TEMPORARY ON DATABASE {database} TO {user}",
            ) from error


def refuse_without_arrow_udf(sink: str, columns: Sequence[str]) -> None:
    """Raise ``Misconfigured`` if this PySpark lacks ``arrow_udf``, with which tasks ask the server."""
    from pyspark import __version__ as version
    from pyspark.sql.pandas import functions

    if not hasattr(functions, "arrow_udf"):
        raise Misconfigured(
            f"with bad_rows= the server must judge the values of {columns}, and tasks can ask it from Spark 4.1 on",
            sink=sink,
            state=f"Spark {version}",
            help="leave bad_rows= out: then a value that the server cannot hold refuses the epoch; or use Spark"
            " 4.1 or newer",
        )


# --- in a worker --------------------------------------------------------------------------------


def asking(judge: Judge) -> Ask:
    """Return the function of Spark that asks the server; see ``rows.Ask``."""
    import pyarrow as pa
    from pyspark.sql.pandas import functions

    def why_postgres_refuses(batches: Any) -> Any:
        return answers(judge, batches)

    # Spark reads from the types that it gets batches, and evaluates names that this module does not import
    why_postgres_refuses.__annotations__ = {
        "batches": Iterator[tuple[pa.Array, ...]],
        "return": Iterator[pa.Array],
    }
    arrow_udf: Any = functions.arrow_udf  # pyspark declares no form with types
    asked: Ask = arrow_udf(why_postgres_refuses, "string")
    return asked


def answers(judge: Judge, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Yield the reasons for each batch: whether to ask, and the values."""
    import pyarrow as pa

    session = None
    try:
        for asked, *columns in batches:
            if not asked.true_count:
                yield pa.nulls(len(asked), pa.string())
                continue
            session = session or open_session(judge.address, judge.sink, judge.limits)
            yield _answer(judge, session, asked, columns)
    except (ServerRefused, Misconfigured) as error:  # the driver reads the text of this one
        raise PrepareRefused(error.what, sink=judge.sink, state=error.state, help=error.help) from error
    finally:
        if session is not None:
            session.close()


def _answer(judge: Judge, session: Session, asked: pa.Array, columns: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.indices_nonzero(asked).to_pylist()
    reasons: list[str | None] = [None] * len(asked)
    start = 0
    for part in given.in_parts([column.filter(asked) for column in columns]):
        for row, messages in given.refusals(session, judge.ways, part, judge.limits.copy).items():
            reasons[places[start + row]] = _told(judge.ways, messages)
        start += len(part[0])
    if altered := given.altered(session, judge.table, judge.ways):
        raise PrepareRefused(
            f"the types of {altered} in {judge.table} were altered while the epoch was prepared",
            sink=judge.sink,
            help="start the query again",
        )
    return pa.array(reasons, pa.string())


def _told(ways: Sequence[Way], messages: Sequence[str]) -> str:
    from epochal.sinks.postgres.rows import REASON

    bad = [(way.name, message) for way, message in zip(ways, messages, strict=True) if message]
    return f"{REASON}{', '.join(repr(name) for name, _ in bad)}: {bad[0][1]}"
