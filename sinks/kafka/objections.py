"""Objections: which records of an epoch Kafka, or one of the topics, would not take.  Found at prepare, in one pass.

The condition of an objection is about records (``rows.py``).  The first objection that any record meets refuses the
epoch, while nothing of it is decided.  After the decision an epoch cannot be aborted, so every reason for which a
broker can refuse a record belongs here.  In idempotent mode nothing is prepared: a column of the records names the
objection (:func:`of_each`), and the task that produces the records reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import PrepareRefused
from epochal.sinks.kafka.encode import FAILURE
from epochal.sinks.kafka.rows import BAD, Encoding
from epochal.sinks.kafka.topics import Topic
from epochal.sinks.spark.expressions import is_invalid_utf8, literal, of_text, texts
from epochal.sinks.spark.observing import observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OVERHEAD = 100
"""How many bytes a record batch needs around one record, rounded up."""
HEADER_OVERHEAD = 10
"""How many bytes a header needs around its key and value, rounded up."""
_NUL = "\0"


@dataclass(frozen=True)
class Objection:
    """A kind of rows that cannot be written: the condition, and the words of the error."""

    bad: Column
    reason: str | Column  # why one such row cannot be written
    tell: Callable[[int, Any], str]  # makes the error's text from the number of rows and a value of `shown`
    help: str
    shown: Column | None = None  # a value of each such row; the error shows the smallest
    largest: bool = False  # `shown` is a number, and the error shows the largest
    separable: bool = True  # such rows may go to the sink for bad rows


Figures = Mapping[str, Any]
"""Figures of all records of an epoch: how many there are, how many meet each objection, what is shown of these."""
LEFT_OUT = "left_out"
"""The figure that says how many rows of the epoch the sink does not get."""


def count(records: DataFrame, objections: Sequence[Objection], sink: str, epoch: EpochNumber) -> int:
    """Return how many records there are; ``PrepareRefused`` names the first objection that any of them meets."""
    told = records.agg(*figures(objections)).collect()[0].asDict()
    return judged(told, objections, sink, epoch)


def watched(records: DataFrame, wanted: Sequence[Column]) -> tuple[DataFrame, Callable[[], Figures | None]]:
    """Return the same records, and a function that returns their figures once one action has read them all.

    ``wanted`` is what ``figures`` returned; ``judged`` takes the figures.  None instead of figures: Spark has run that
    action without reading records, because there are none.
    """
    seen, figures = observed(records, *wanted)
    return seen, lambda: figures("what it saw of the rows that it copied", "nothing was decided")


def judged(told: Figures, objections: Sequence[Objection], sink: str, epoch: EpochNumber) -> int:
    """Return how many records there were; ``PrepareRefused`` names the first objection that any of them meets."""
    for n, objection in enumerate(objections):
        if bad := told[f"bad{n}"]:
            raise refusal(objection, bad, told[f"shown{n}"], sink, epoch, "nothing of the epoch was decided")
    return int(told["rows"])


def figures(objections: Sequence[Objection], kept: Column | None = None) -> list[Column]:
    """Return the aggregates of records that make up ``Figures``.  ``kept``: only records for which it is true count."""
    from pyspark.sql import functions as f

    bad = [o.bad if kept is None else kept & o.bad for o in objections]
    return [
        (f.count(f.lit(1)) if kept is None else f.count_if(kept)).alias("rows"),
        *([f.count_if(~kept).alias(LEFT_OUT)] if kept is not None else []),
        *(f.count_if(each).alias(f"bad{n}") for n, each in enumerate(bad)),
        *(_told(o, each).alias(f"shown{n}") for n, (o, each) in enumerate(zip(objections, bad, strict=True))),
    ]


def of_each(objections: Sequence[Objection]) -> Column:
    """Return a column for the first objection that a record meets, or NULL if it meets none.

    The column is a struct: the number of the objection, and the value that the error shows, as text.
    """
    from pyspark.sql import functions as f

    def met(number: int, objection: Objection) -> Column:
        told = f.struct(f.lit(number).alias("number"), _shown(objection).cast("string").alias("shown"))
        return f.when(objection.bad, told)

    return f.coalesce(f.lit(None), *(met(number, objection) for number, objection in enumerate(objections)))


def reason_of_each(objections: Sequence[Objection]) -> Column:
    """Return a column: the reason of the first objection that a record meets; NULL: it meets none."""
    from pyspark.sql import functions as f

    return f.coalesce(f.lit(None), *(f.when(objection.bad, objection.reason) for objection in objections))


def refusal(met: Objection, rows: int, shown: object, sink: str, epoch: EpochNumber, state: str) -> PrepareRefused:
    """Return the error for ``rows`` rows that meet an objection."""
    more = "; or write such rows elsewhere with bad_rows=" if met.separable else ""
    return PrepareRefused(met.tell(rows, shown), sink=sink, epoch=epoch, state=state, help=met.help + more)


def _told(objection: Objection, bad: Column) -> Column:
    from pyspark.sql import functions as f

    return (f.max if objection.largest else f.min)(f.when(bad, _shown(objection)))


def _shown(objection: Objection) -> Column:
    from pyspark.sql import functions as f

    return objection.shown if objection.shown is not None else f.lit(None).cast("string")


def of_json(columns: Sequence[str]) -> Objection:
    """Values that JSON cannot hold; the column ``BAD`` of the records counts in ``columns``."""
    from pyspark.sql import functions as f

    column = f.get(texts(list(map(repr, columns))), f.col(BAD).cast("int") - 1)
    return Objection(
        f.col(BAD) > 0,
        f.concat(f.lit("JSON cannot hold the value of column "), column, f.lit(" exactly")),
        lambda rows, shown: f"JSON cannot hold these values exactly: {rows} rows, for instance in column {shown}",
        "NaN, infinities, years outside 0001 to 9999 and text that is not UTF-8 have no place in JSON: "
        "replace them, cast the column to string, or encode the row yourself with value=",
        column,
    )


def of_values(scrub: Callable[[str], str]) -> Objection:
    """Rows for which the user's function failed to make a value."""
    from pyspark.sql import functions as f

    return Objection(
        f.isnotnull(FAILURE),
        "value= made no value of it",
        lambda rows, shown: f"value= made no value of {rows} rows, and was not called again: {scrub(shown):.300}",
        "fix what the function reports; the epoch is evaluated again at the next start",
        f.col(FAILURE),
        separable=False,
    )


def of_records(
    encoding: Encoding, targets: Mapping[str, Topic], tombstones: bool, queue_bytes: int
) -> Iterator[Objection]:
    """Yield the objections that follow from the topics as they are now, and from the sink's arguments.

    ``queue_bytes``: how much the client's queue holds.
    """
    if encoding.topic is not None:
        yield _unknown_topic(encoding.topic, targets)
    if not tombstones:
        yield _no_value(encoding.value)
    if encoding.headers is not None:
        yield _nameless_header(encoding.headers)
        yield _unspeakable_header(encoding.headers)
    if encoding.partition is not None:
        yield _no_such_partition(encoding.partition, targets)
    compacted = sorted(name for name, topic in targets.items() if topic.is_compacted)
    if compacted:
        yield _keyless(encoding, compacted)
    size = _size(encoding)
    yield from _too_large(encoding, targets, size)
    if queue_bytes < max(topic.batch_bytes for topic in targets.values()):
        yield _above_queue(size, queue_bytes)


def _unknown_topic(column: str, targets: Mapping[str, Topic]) -> Objection:
    from pyspark.sql import functions as f

    topic = f.col("topic")
    bad = ~f.coalesce(topic.isin(*targets), f.lit(False))
    return Objection(
        bad,
        f"its topic is not declared (column {column!r})",
        lambda rows, shown: f"{rows} rows are for topics that are not declared (column {column!r}): {shown}",
        f"declare the topic in topics=, which has {sorted(targets)}, or keep such rows out with where=",
        f.coalesce(f.concat(f.lit("'"), topic, f.lit("'")), f.lit("NULL")),
    )


def _no_value(column: str | None) -> Objection:
    from pyspark.sql import functions as f

    where = f"column {column!r} is NULL" if column is not None else "the function of value= returned None"
    return Objection(
        f.isnull("value"),
        f"it has no value ({where})",
        lambda rows, _: f"{rows} rows have no value ({where}): each would be a tombstone, which deletes its key",
        "pass tombstones=True if that is what these rows are for, or keep them out with where=",
    )


def _nameless_header(column: str) -> Objection:
    from pyspark.sql import functions as f

    return Objection(
        f.coalesce(f.exists("headers", lambda header: f.isnull(header["key"])), f.lit(False)),
        f"it has a header without a key (column {column!r})",
        lambda rows, _: f"{rows} rows have a header without a key (column {column!r})",
        "give every header a key; its value may be NULL, and so may the whole column",
    )


def _unspeakable_header(column: str) -> Objection:
    """Header keys that the client cannot send: it sends a key as text, and the text ends at the first NUL."""
    bad = f"{is_invalid_utf8('header.key')} OR contains(header.key, {literal(_NUL)})"
    return Objection(
        of_text(f"coalesce(exists(headers, header -> coalesce({bad}, false)), false)"),
        f"the key of a header holds a NUL or is not UTF-8 (column {column!r})",
        lambda rows, _: f"{rows} rows have a header whose key holds a NUL or is not UTF-8 (column {column!r})",
        "give headers keys of text; any bytes can be their values",
    )


def _no_such_partition(column: str, targets: Mapping[str, Topic]) -> Objection:
    from pyspark.sql import functions as f

    partition = f.col("partition")
    bad = (partition < 0) | (partition >= _of_topic(targets, lambda topic: topic.partitions))
    there = ", ".join(f"{name!r} has {topic.partitions}" for name, topic in sorted(targets.items()))
    return Objection(
        f.coalesce(bad, f.lit(False)),
        f"its partition does not exist (column {column!r})",
        lambda rows, shown: f"{rows} rows are for partitions that do not exist (column {column!r}): {shown}; {there}",
        "partitions count from 0; NULL leaves the choice to the partitioner",
        partition,
    )


def _keyless(encoding: Encoding, compacted: Sequence[str]) -> Objection:
    from pyspark.sql import functions as f

    bad = f.isnull("key")
    if encoding.topic is not None:
        bad = bad & f.col("topic").isin(*compacted)
    names = ", ".join(map(repr, compacted))
    return Objection(
        bad,
        f"it has no key (column {encoding.key!r} is null), and the topic is compacted",
        lambda rows, _: f"{rows} rows have no key (column {encoding.key!r} is null), and topic {names} is compacted",
        "give these rows a key, or filter them out",
    )


def _size(encoding: Encoding) -> Column:
    """Return a column: how many bytes the record has."""
    from pyspark.sql import functions as f

    size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
    if encoding.headers is not None:
        size = size + f.coalesce(f.aggregate("headers", f.lit(0), _add_header), f.lit(0))
    return size


def _above_queue(size: Column, queue_bytes: int) -> Objection:
    """Rows that the client can never send: each row must fit into the client's queue as a whole."""
    return Objection(
        size > queue_bytes,
        f"it is larger than the client's queue, which holds {queue_bytes} bytes",
        lambda rows, largest: (
            f"{rows} rows are larger than the client's queue: the largest has {largest} bytes, the queue holds"
            f" {queue_bytes}"
        ),
        f"raise queue.buffering.max.kbytes in options= (it is {queue_bytes // 1024}), or make rows smaller",
        size,
        largest=True,
    )


def _too_large(encoding: Encoding, targets: Mapping[str, Topic], size: Column) -> Iterator[Objection]:
    """Yield one objection per topic, because each topic has its own limit."""
    from pyspark.sql import functions as f

    for name, topic in sorted(targets.items()):
        mine = f.col("topic") == name if encoding.topic is not None else f.lit(True)
        limit = topic.batch_bytes - OVERHEAD
        settings = {"max.message.bytes": topic.max_message_bytes, "segment.bytes": topic.segment_bytes}
        setting = min(settings, key=lambda name: settings[name])
        yield Objection(
            mine & (size > limit),
            f"it is larger than topic {name!r} takes: the limit is {limit} bytes",
            lambda rows, largest, name=name, limit=limit: (  # type: ignore[misc]
                f"{rows} rows are larger than topic {name!r} takes: "
                f"the largest has {largest} bytes, the limit is {limit}"
            ),
            f"raise {setting} of the topic (it is {settings[setting]}), or make rows smaller",
            size,
            largest=True,
        )


def _add_header(size: Column, header: Column) -> Column:
    from pyspark.sql import functions as f

    key, value = (f.coalesce(f.octet_length(header[part]), f.lit(0)) for part in ("key", "value"))
    return size + key + value + HEADER_OVERHEAD


def _of_topic(targets: Mapping[str, Topic], what: Callable[[Topic], int]) -> Column:
    """Return a column: a number of the row's own topic; NULL if that topic is not declared."""
    from pyspark.sql import functions as f

    if len(targets) == 1:
        return f.lit(what(*targets.values()))
    pairs = [f.lit(part) for name, topic in targets.items() for part in (name, what(topic))]
    return f.try_element_at(f.create_map(*pairs), f.col("topic"))
