"""Checks of the arguments of a Kafka sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.coordinator.model.arguments import are_texts
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.kafka import encode, topics
from epochal.sinks.kafka.encode import MakeValue
from epochal.sinks.kafka.topics import Declared
from epochal.sinks.protocol import Sink

if TYPE_CHECKING:
    pass

PARTITIONERS = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a", "random")
MOST_SLOTS = 64


def declared_topics(topic: str, several: Sequence[str] | None, sink: str, *, named: bool) -> Declared:
    """Return the declared topics.

    ``Misconfigured``: no broker takes a name, ``topics=`` is not a list of different topics, or ``name=`` is missing.
    """
    if several is None:
        topics.check_topic(topic, sink)
        return Declared((topic,))
    if not are_texts(several) or not several or len(set(several)) < len(several):
        raise Misconfigured(
            f"topics={several!r} is not a list of different topics",
            sink=sink,
            help="topics=['a', 'b'] lists all topics that a row may name, topic= names the column that says which",
        )
    for one in several:
        topics.check_topic(one, sink)
    if not named:
        raise Misconfigured(
            "a sink with several topics has no name by itself",
            sink=sink,
            state=f"topics {list(several)}, of column {topic!r}",
            help="give it a name= that stays the same over restarts",
        )
    return Declared(tuple(several), True)


def check_slots_argument(number: object, partitioner: str, sink: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_SLOTS:
        raise Misconfigured(
            f"slots={number!r} is not a number of transactions", sink=sink, help=f"take 1 to {MOST_SLOTS}"
        )
    if number > 1 and partitioner not in encode.PARTITIONERS:
        raise Misconfigured(
            f"partitioner {partitioner!r} exists in librdkafka only",
            sink=sink,
            state=f"slots={number}: a row's partition is chosen before its slot",
            help=f"with several slots take one of {', '.join(encode.PARTITIONERS)}",
        )


def check_bad_rows(bad_rows: Sink | None, value: MakeValue | None, sink: str) -> None:
    if bad_rows is not None and value is not None:
        raise Misconfigured(
            "bad_rows= does not go with a function as value=, which would be called twice and may answer differently",
            sink=sink,
            help="make the value in the query, before the pipeline, and name its column with value=",
        )


def check_tombstones(tombstones: bool, value: str | MakeValue | None, sink: str) -> None:
    if tombstones and value is None:
        raise Misconfigured(
            "tombstones=True has no effect: the value is the JSON of the row, which is never empty",
            sink=sink,
            help="name a column with value=, or pass a function; a row whose value is NULL or None is then a tombstone",
        )


def check_partitioner(partitioner: str, sink: str) -> None:
    if partitioner not in PARTITIONERS:
        raise Misconfigured(
            f"there is no partitioner {partitioner!r}",
            sink=sink,
            help=f"take one of {', '.join(PARTITIONERS)}; murmur2_random is what Java's producer does",
        )
