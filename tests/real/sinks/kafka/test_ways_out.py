"""Arguments and topics that a Kafka sink refuses: each help, followed to the letter, makes what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql.types import CalendarIntervalType, DoubleType, LongType, StringType, StructType

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks import KafkaSink
from tests.real.sinks.kafka.support import APP, set_config

QUERY = Query(APP, "q1", "r1", "file:/checkpoint")
SCHEMA = StructType().add("id", StringType()).add("n", LongType())
Given = Mapping[str, Any]


def setting(name: str, value: str, *, marker: bool = False) -> Callable[[str, str], Given]:
    """Give the topic, or the marker topic, this setting."""

    def way(bootstrap: str, topic: str) -> Given:
        set_config(bootstrap, f"__epochal.{APP}.{topic}" if marker else topic, name, value)
        return {}

    return way


def given(**arguments: Any) -> Callable[[str, str], Given]:
    return lambda _bootstrap, _topic: arguments


Way = Callable[[str, str], Given]


@pytest.mark.parametrize(
    ("wrong", "broken", "ways"),
    [
        pytest.param(
            {},
            setting("cleanup.policy", "compact"),
            [given(key="id")],
            marks=pytest.mark.remedy("topic … is compacted, so its rows need a key", "name the key's column with key="),
            id="no key",
        ),
        pytest.param(
            {},
            setting("retention.ms", "60000"),
            [given(transaction_timeout=60), setting("retention.ms", "3600000")],
            marks=pytest.mark.remedy(
                "topic … deletes rows after … s, and a transaction may last … s: rows could be gone before they become"
                " visible",
                "raise retention.ms, or take transaction_timeout=… or less",
            ),
            id="retention",
        ),
        pytest.param(
            {},
            setting("max.message.bytes", "1500"),
            [setting("max.message.bytes", "2000")],
            marks=pytest.mark.remedy(
                "topic … takes no batch of … bytes", "set max.message.bytes and segment.bytes to … or more"
            ),
            id="small messages",
        ),
        pytest.param(
            {},
            setting("cleanup.policy", "delete", marker=True),
            [setting("cleanup.policy", "compact", marker=True)],
            marks=pytest.mark.remedy(
                "the marker topic … must have cleanup.policy=compact",
                "set cleanup.policy=compact: with another one the newest marker could be deleted",
            ),
            id="the marker topic",
        ),
        pytest.param(
            {"transaction_timeout": 901},
            given(),
            [given(transaction_timeout=900)],
            marks=pytest.mark.remedy(
                "transaction_timeout=… s is above the broker's maximum of … s", "take transaction_timeout=… or less"
            ),
            id="a long transaction",
        ),
        pytest.param(
            {"key": "gone"},
            given(),
            [given(key="id")],
            marks=pytest.mark.remedy(
                "there is no column … to be the …", "name one of these columns with …=, as it is written there"
            ),
            id="no column",
        ),
        pytest.param(
            {"key": "n"},
            given(),
            [given(key="id")],
            marks=pytest.mark.remedy(
                "column … cannot be the …: it has the type …", "a key is bytes: cast the column to string or binary"
            ),
            id="a number as a key",
        ),
        pytest.param(
            {"value": "n"},
            given(),
            [given(value="id")],
            marks=pytest.mark.remedy(
                "column … cannot be the …: it has the type …", "a value is bytes: cast the column to string or binary"
            ),
            id="a number as a value",
        ),
        pytest.param(
            {"options": {"acks": "1", "message.max.bytes": 9}},
            given(),
            [given(options={"compression.type": "zstd", "linger.ms": 20})],
            marks=pytest.mark.remedy("the options … are not for the user to set: …", "leave them out"),
            id="options of ours",
        ),
        pytest.param(
            {"options": {"no.such.option": "1"}},
            given(),
            [given(options={"linger.ms": 20})],
            marks=pytest.mark.remedy(
                "librdkafka does not take these options: …", "see librdkafka's CONFIGURATION.md for names and values"
            ),
            id="options that do not exist",
        ),
    ],
)
def test_what_the_help_says_is_taken(
    kafka_server: servers.Kafka, topic: str, wrong: Given, broken: Way, ways: Sequence[Way]
) -> None:
    made = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    made.create(QUERY, SCHEMA)
    made.check(QUERY, SCHEMA)
    broken(kafka_server.bootstrap, topic)
    for way in ways:
        with pytest.raises(Misconfigured):
            KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, **wrong).check(QUERY, SCHEMA)
        right = way(kafka_server.bootstrap, topic)
        KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, **right).check(QUERY, SCHEMA)


@pytest.mark.remedy("topics … do not exist", "call pipeline.create(schema) once")
@pytest.mark.remedy(
    "the marker topic … needs a partition for each of … slots", "call pipeline.create(schema), which adds them"
)
def test_create_makes_topics_and_partitions(kafka_server: servers.Kafka, topic: str) -> None:
    for slots in (1, 3):
        sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, slots=slots)
        with pytest.raises(Misconfigured):
            sink.check(QUERY, SCHEMA)
        sink.create(QUERY, SCHEMA)
        sink.check(QUERY, SCHEMA)


@pytest.mark.remedy("no column is left to be the value", "select more columns, or name the value's column with value=")
def test_a_value_is_made_of_the_other_columns(kafka_server: servers.Kafka, topic: str) -> None:
    only = StructType().add("n", LongType())
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, partition="n")
    with pytest.raises(Misconfigured):
        sink.create(QUERY, only)
    sink.create(QUERY, SCHEMA)
    KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, partition="n", value="id").check(QUERY, SCHEMA)


def as_text(row: Mapping[str, Any], topic: str) -> bytes | None:  # noqa: ARG001
    return str(row).encode()


@pytest.mark.remedy(
    "column … has the type …, which JSON does not hold exactly",
    "cast the column to another type (a string, for instance), or encode the row yourself with value=",
)
def test_a_type_that_json_does_not_hold(kafka_server: servers.Kafka, topic: str) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    interval = StructType().add("id", StringType()).add("b", CalendarIntervalType())
    with pytest.raises(Misconfigured):
        sink.create(QUERY, interval)
    sink.create(QUERY, StructType().add("id", StringType()).add("b", DoubleType()))
    sink.check(QUERY, StructType().add("id", StringType()).add("b", StringType()))
    KafkaSink(kafka_server.bootstrap, topic=topic, name=topic, value=lambda: as_text).check(QUERY, interval)
