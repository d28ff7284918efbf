"""Judges rows: what Kafka, a topic or JSON cannot hold makes the sink refuse the epoch, or goes to ``bad_rows=``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Copy, Epoch, Json
from epochal.coordinator.model.errors import PrepareRefused, SinkUnavailable
from epochal.sinks.conditions import refusing
from epochal.sinks.kafka import objections, topics
from epochal.sinks.kafka.core import EXACT, Core, Judging, Watched
from epochal.sinks.kafka.encode import SLOT
from epochal.sinks.kafka.fencing import what_topics
from epochal.sinks.kafka.objections import Objection
from epochal.sinks.kafka.rows import BAD, HASH, KEPT, MET, ROUTES, WHOLE_ROW, Encoding
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.rows import rejects
from epochal.sinks.rows.digest import row_hash
from epochal.sinks.spark import stage
from epochal.sinks.spark.expressions import computed_once, first_true, of_text, struct_of
from epochal.sinks.spark.names import twins
from epochal.sinks.spark.observing import sifted_once
from epochal.sinks.spark.settings import TIME_POLICY, changes_times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Judged:
    """What was found of rows that Kafka can hold.

    ``count``: how many the sink gets.  ``left_out``: how many other rows the epoch has.  ``staged``: the copies of
    their records, one per slot, if records are kept.
    """

    count: int
    left_out: int = 0
    staged: Sequence[Copy] = ()


def record_columns(records: DataFrame) -> list[str]:
    """Return the names of the columns that are produced."""
    there = records.columns
    return [name for name in ("key", "value", *ROUTES) if name in there]


def bad_column(refusals: Mapping[str, str]) -> list[Column]:
    """Return the column ``BAD``; no column if JSON can hold all values."""
    return [of_text(first_true([*refusals.values()])).alias(BAD)] if refusals else []


def watch(sink: Core, epoch: Epoch, rows: DataFrame) -> DataFrame:
    """See ``epochal.sinks.protocol.WatchingSink``.

    Rows that the sink changes before they become records are not watched: the vote judges them from the copy.
    """
    sink.watched = None
    if not is_watchable(sink, rows):
        return rows
    try:
        now = as_looked_at(sink, epoch)
    except SinkUnavailable:  # the vote asks again
        return rows
    judging = judging_for(sink, rows.schema, now)
    seen, figures = objections.watched(rows.select(*judging.record, judging.whole), judging.figures)
    sink.watched = Watched(epoch.decision.id, judging, figures)
    return seen.select(f"{WHOLE_ROW}.*")


def judging_for(sink: Core, schema: StructType, now: Topics) -> Judging:
    """Return how rows of this schema are judged for these topics; the sink keeps it."""
    judging = sink.judging
    wanted = schema, now.targets, sink.link().queue_bytes
    if judging is None or (judging.schema, judging.targets, judging.queue_bytes) != wanted:
        judging = sink.judging = judging_of(sink, schema, now)
    return judging


def judging_of(sink: Core, schema: StructType, now: Topics) -> Judging:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    kept = [f.col(KEPT)] if sink.encoding.projection.where is not None else []
    given = StructType([field for field in schema.fields if not kept or field.name != KEPT])
    sink.encoding.check(given, sink.name)
    refusals = sink.encoding.refusals(given)
    found = all_objections(sink, [*refusals], now)
    whole = of_text(struct_of(schema.names)).alias(WHOLE_ROW)
    record = [*sink.encoding.columns(schema.names), *bad_column(refusals), *kept]
    figures = objections.figures(found, *kept)
    return Judging(schema, now.targets, sink.link().queue_bytes, record, whole, found, figures)


def is_watchable(sink: Core, rows: DataFrame) -> bool:
    """Whether rows become records unchanged, and the query's session and the sink's own give equal records."""
    return sink.encoding.projection.is_whole and gives_equal_records(sink, rows)


def gives_equal_records(sink: Core, rows: DataFrame) -> bool:
    """Whether the query's session makes of projected rows the records that the sink's own session would make."""
    projection, policy = sink.encoding.projection, str(rows.sparkSession.conf.get(TIME_POLICY)).upper()
    if sink.keeps_records or changes_times(rows.sparkSession):
        return False
    if not projection.is_whole and policy != EXACT[TIME_POLICY]:  # its expressions may parse texts
        return False
    return next(twins(projection.check(rows.schema), case_sensitive=False), None) is None


def projected(sink: Core, rows: DataFrame) -> DataFrame:
    """Return what the sink gets of the micro-batch.  With ``where=`` return all rows; ``KEPT`` says which it gets.

    ``Misconfigured``: the rows have columns that the sink cannot take, such as a ``KEPT`` of the user's.
    If Spark itself can tell that a filter keeps no row, it does not run the micro-batch at all, and the operator state
    does not advance.
    """
    projection = sink.encoding.projection
    if projection.where is None:
        return projection.apply(rows)
    sink.encoding.check(projection.check(rows.schema), sink.name)
    return projection.marked(rows, KEPT)


def as_looked_at(sink: Core, epoch: Epoch) -> Topics:
    """Return the topics as they are now; ``PrepareRefused`` if they are not those that were looked at."""
    marker_topic, seen = sink.seen()
    now = topics.describe(sink.link(), sink.declared, marker_topic)
    if (now.identity, now.ids) != (seen.identity, seen.ids):
        raise PrepareRefused(
            f"{what_topics(now, marker_topic)} is not the one that was looked at",
            sink=sink.name,
            epoch=epoch.number,
            state=f"was {seen.identity}, {seen.ids}; is {now.identity}, {now.ids}",
            help="the topic was dropped and made again; restart the query to have it looked at",
        )
    return now


def topics_of(sink: Core, epoch: Epoch) -> Topics:
    """Return the topics as they were when the epoch was first judged: all who ask must get the same refusals.

    Every call checks that they still are the topics that were looked at.
    """
    now = as_looked_at(sink, epoch)
    with sink.lock:
        if sink.judged_by is None or sink.judged_by[0] != epoch.decision.id:
            sink.judged_by = epoch.decision.id, now
        return sink.judged_by[1]


def check_topics(sink: Core, epoch: Epoch, now: Topics) -> None:
    """Refuse the epoch if a start would refuse the topics as they are now: after the decision it would be too late."""
    marker_topic, _ = sink.seen()
    link = sink.link()
    with refusing(sink.name, epoch.number):
        topics.check(link, now, marker_topic, sink.encoding.key, sink.timeout(link), sink.slots)


def reasons(sink: Core, epoch: Epoch, rows: DataFrame) -> DataFrame:
    """See ``epochal.sinks.rows.rejects``.  If there is a copy, the rows are read from it, as the vote reads them."""
    from pyspark.sql import functions as f

    if epoch.copy is not None:
        rows = stage.read_copy(sink.own_session(sink.meant(rows.sparkSession).settings), epoch.copy)
    whole = of_text(struct_of(rows.columns)).alias(WHOLE_ROW)
    records, found = marked_records(sink, rows, topics_of(sink, epoch), whole)
    records, always, _ = computed_once(records)
    reason = f.when(f.col(KEPT) & always, objections.reason_of_each(found)).alias(rejects.REASON)
    return records.select(WHOLE_ROW, reason).select(f"{WHOLE_ROW}.*", rejects.REASON)


def judgement(sink: Core, epoch: Epoch, rows: DataFrame) -> Json:
    """See ``epochal.sinks.rows.rejects``."""
    targets = topics_of(sink, epoch).targets.values()
    queue = sink.link().queue_bytes
    return {
        "schema": rows.schema.simpleString(),
        "encoding": sink.meant(rows.sparkSession).to_json(),
        "tombstones": sink.tombstones,
        "topics": {t.name: [t.partitions, t.batch_bytes, t.is_compacted] for t in targets},
        **({"queue": queue} if queue < max(t.batch_bytes for t in targets) else {}),
    }


def judged_while_copied(sink: Core, epoch: Epoch, now: Topics, *, keeps: bool = False) -> Judged | None:
    """Return what was found while the rows were copied.

    ``PrepareRefused``: a row meets an objection.  None: the rows of this decision were not watched for the topics as
    they are now, or there were no rows.
    ``keeps``: another call for this decision gets the same answer.
    """
    watched = sink.watched
    if not keeps:
        sink.watched = None
    if watched is None or watched.decision != epoch.decision.id or watched.judging.targets != now.targets:
        return None
    told = watched.figures()
    return by_figures(sink, epoch, watched.judging, told) if told is not None else None


def check_rows(sink: Core, epoch: Epoch, encoding: Encoding, copied: DataFrame, now: Topics) -> Judged:
    """Judge the rows of a durable copy.  ``PrepareRefused``: Kafka or JSON cannot hold some of them."""
    if sink.keeps_records:
        return check_kept(sink, epoch, encoding, copied, now)
    given = projected(sink, copied)
    judging = judging_for(sink, given.schema, now)
    told = given.select(*judging.record).agg(*judging.figures).collect()[0].asDict()
    return by_figures(sink, epoch, judging, told)


def check_kept(sink: Core, epoch: Epoch, encoding: Encoding, copied: DataFrame, now: Topics) -> Judged:
    """Judge the rows as :func:`check_rows` does; keep their records beside the copy, one copy per slot."""
    assert epoch.copy is not None, "prepare has checked it"
    schema = encoding.projection.check(copied.schema)
    encoding.check(schema, sink.name)
    refusals = encoding.refusals(schema)
    given, kept_out = encoding.projection.sifted(copied, counts=True)
    records = encoding.apply(given, *bad_column(refusals))
    bad: Callable[[], int] = int
    found = all_objections(sink, [*refusals], now)
    if sink.bad_rows is not None:
        records, bad = sifted_once(records, objections.reason_of_each(found).isNull(), "Kafka cannot hold")
    made = sink.encoder(now).records(records)
    staged = stage.write_parts(epoch.copy, sink.name, epoch.number, made, SLOT, sink.slots)
    kept = [stage.read_copy(copied.sparkSession, copy) for copy in staged]
    records = reduce(lambda some, more: some.unionByName(more), kept)
    count, left_out = objections.count(records, found, sink.name, epoch.number), bad()
    sink.counted_bad = epoch.decision.id, left_out
    return Judged(count, kept_out() + left_out, staged)


def by_figures(sink: Core, epoch: Epoch, judging: Judging, told: objections.Figures) -> Judged:
    """Return what the figures of the rows say; ``PrepareRefused``: a row meets an objection."""
    count = objections.judged(told, judging.found, sink.name, epoch.number)
    return Judged(count, int(told.get(objections.LEFT_OUT, 0)))


def all_objections(sink: Core, refused: Sequence[str], now: Topics) -> list[Objection]:
    """Return all objections.  ``refused``: the columns whose values JSON may be unable to hold."""
    link = sink.link()
    return [
        *([objections.of_values(link.scrub)] if sink.make_value is not None else []),
        *([objections.of_json(refused)] if refused else []),
        *objections.of_records(sink.encoding, now.targets, sink.tombstones, link.queue_bytes),
    ]


def judged_records(sink: Core, rows: DataFrame, now: Topics) -> tuple[DataFrame, list[Objection]]:
    """Return all records with ``HASH``, ``KEPT`` and ``MET``, and the objections; nothing runs yet."""
    from pyspark.sql import functions as f

    records, found = marked_records(sink, rows, now, row_hash(rows).alias(HASH))
    met = f.when(f.col(KEPT), objections.of_each(found)).alias(MET)
    if sink.bad_rows is not None:
        fine = (f.col(KEPT) & objections.reason_of_each(found).isNull()).alias(KEPT)
        return records.select(*record_columns(records), HASH, fine, f.when(f.lit(False), met).alias(MET)), found
    return records.select(*record_columns(records), HASH, KEPT, met), found


def marked_records(sink: Core, rows: DataFrame, now: Topics, more: Column) -> tuple[DataFrame, list[Objection]]:
    """Return the records of all ``rows`` with ``KEPT`` and the column ``more``, and the objections.  Nothing runs."""
    from pyspark.sql import functions as f

    encoding = sink.encoding
    schema = encoding.projection.check(rows.schema)
    encoding.check(schema, sink.name)
    refusals = encoding.refusals(schema)
    marked = encoding.projection.marked(rows, KEPT, more)
    records = encoding.apply(marked, f.col(marked.columns[-1]), f.col(KEPT), *bad_column(refusals))
    if sink.make_value is not None:
        records = sink.encoder(now).records(records)
    return records, all_objections(sink, [*refusals], now)
