"""Votes of a Kafka sink as this version writes them: read from now on.  (Its marker records: ``unit``.)"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Committable, Decision, Epoch
from epochal.coordinator.model.errors import CommitInDoubt
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import OPTIONS, read_topic
from tests.real.sinks.kept import kept


def doubled() -> Callable[[Mapping[str, Any], str], bytes]:
    return lambda row, topic: json.dumps({"n": 2 * row["n"]}).encode()  # noqa: ARG005


ROUTED = ["n", "0 AS p", "map_entries(map('k', k)) AS h"]
FORMS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "voted": ({"key": "k", "votes": True}, [0, 1, 2]),
    "plain": ({"key": "k"}, [0, 1, 2]),
    "projected": ({"key": "k", "select": ["k", "n * 10 AS n"], "where": "n > 0"}, [10, 20]),
    "routed": (
        {"partition": "p", "headers": "h", "select": ROUTED},
        [0, 1, 2],
    ),
    "made": ({"value": doubled}, [0, 2, 4]),
    "slots": ({"key": "k", "slots": 2, "partitions": 2}, [0, 1, 2]),
}


@pytest.fixture
def make(kafka_server: servers.Kafka, topic: str) -> Callable[..., KafkaSink]:
    return lambda **more: KafkaSink(
        kafka_server.bootstrap, topic=topic, name=topic, options=OPTIONS, **{"votes": False, **more}
    )


def vote(sink: KafkaSink, spark: SparkSession, stage: SparkStage) -> Committable:
    """For epoch 0 of ``ONE`` with the rows 0, 1, 2."""
    rows = spark.range(3).selectExpr("cast(id as string) k", "id n").coalesce(1)
    sink.create(QUERY, rows.schema)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    copy = stage.write(0, ONE, rows)
    epoch = Epoch(Decision("q1", 0, ONE, "f"), 1, offsets="[0]", watermark=7, copy=copy)
    return sink.prepare(epoch, stage.read(copy), ONE)


@pytest.mark.parametrize("form", FORMS)
def test_a_vote_of_this_version_is_committed_and_is_written_so(
    make: Callable[..., KafkaSink],
    kafka_server: servers.Kafka,
    topic: str,
    spark: SparkSession,
    stage: SparkStage,
    form: str,
) -> None:
    options, numbers = FORMS[form]
    now = vote(make(**options), spark, stage).to_json()
    old = kept(f"kafka-{form}-v{now['payload']['version']}.json", now)
    assert old == now
    sink = make(slots=options.get("slots", 1))
    sink.look(QUERY)
    assert sink.commit(Committable.from_json(old), ONE) is CommitOutcome.COMMITTED
    assert sorted(json.loads(r.value or b"")["n"] for r in read_topic(kafka_server.bootstrap, topic)) == numbers


NEWER: dict[str, tuple[tuple[str, ...], int]] = {
    "committable": ((), 3),
    "encoding": (("encoding",), 4),
    "projection": (("encoding", "projection"), 2),
}


@pytest.mark.parametrize("part", NEWER)
def test_a_newer_one_is_not_guessed_at(
    make: Callable[..., KafkaSink],
    kafka_server: servers.Kafka,
    topic: str,
    spark: SparkSession,
    stage: SparkStage,
    part: str,
) -> None:
    """Of the whole, and of each part that has a version of its own."""
    path, version = NEWER[part]
    sink = make(**FORMS["projected"][0])
    prepared = vote(sink, spark, stage)
    payload = json.loads(json.dumps(prepared.payload))
    inner = payload
    for name in path:
        inner = inner[name]
    assert inner["version"] < version
    inner["version"] = version
    with pytest.raises(CommitInDoubt, match=f"by a newer Epochal: its {part} is of version {version}") as doubt:
        sink.commit(replace(prepared, payload=payload), ONE)
    assert f"this one reads up to version {version - 1}; nothing was written" in str(doubt.value)
    assert read_topic(kafka_server.bootstrap, topic) == []
    assert sink.commit(prepared, ONE) is CommitOutcome.COMMITTED
