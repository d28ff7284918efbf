"""What the sink refuses, what it never shows, and its commit task under Spark."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Committable, Copy, Decision, Epoch
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured, OutcomeUnknown, PrepareRefused
from epochal.sinks.kafka import KafkaSink, core
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO
from tests.real.sinks.kafka.support import APP, OPTIONS, SECRET, in_another_process, read_topic

SCHEMA = StructType().add("k", "string").add("n", "long")


@pytest.fixture
def make(kafka_server: servers.Kafka, topic: str) -> Callable[..., KafkaSink]:
    def made(**more: Any) -> KafkaSink:
        settings = {"topic": topic, "name": topic, "options": OPTIONS, **more}
        return KafkaSink(kafka_server.bootstrap, **settings)

    return made


def prepared(sink: KafkaSink, spark: SparkSession, stage: SparkStage, rows: int = 100) -> Committable:
    """Epoch 0 with the rows 0, 1, 2, ..., voted for by ``ONE``."""
    sink.create(QUERY, SCHEMA)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    epoch = Epoch(Decision("q1", 0, ONE, "f"), 1)
    copy = stage.write(0, ONE, spark.range(rows).selectExpr("cast(id as string) k", "id n").coalesce(1))
    return sink.prepare(replace(epoch, copy=copy), stage.read(copy), ONE)


def numbers(server: servers.Kafka, topic: str) -> list[int]:
    return [json.loads(r.value or b"")["n"] for r in read_topic(server.bootstrap, topic)]


# set-up


def test_create_says_what_it_made_and_only_once(make: Callable[..., KafkaSink], topic: str) -> None:
    said = make(partitions=3).create(QUERY, SCHEMA)
    assert [topic in line for line in said] == [True, True]
    assert make().create(QUERY, SCHEMA) == []
    make().check(QUERY, SCHEMA)


def test_create_refuses_rows_that_do_not_fit_before_it_makes_a_topic(make: Callable[..., KafkaSink]) -> None:
    sink = make(key="gone")
    with pytest.raises(Misconfigured, match="there is no column 'gone' to be the key"):
        sink.create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match="do not exist"):
        make().look(QUERY)


def test_topics_that_do_not_exist_are_named(make: Callable[..., KafkaSink], topic: str) -> None:
    for call in (lambda: make().look(QUERY), lambda: make().check(QUERY, SCHEMA)):
        with pytest.raises(Misconfigured) as refused:
            call()
        assert repr(topic) in str(refused.value)
        assert repr(f"__epochal.{APP}.{topic}") in str(refused.value)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_marker_topic_that_could_forget_is_refused(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, policy: str
) -> None:
    kafka_server.create_topic(f"__epochal.{APP}.{topic}", 1, {"cleanup.policy": policy})
    make().create(QUERY, SCHEMA)
    with pytest.raises(Misconfigured, match=r"must have cleanup\.policy=compact") as refused:
        make().check(QUERY, SCHEMA)
    assert f"cleanup.policy {policy}" in str(refused.value)


def test_a_marker_topic_has_a_partition_per_slot_and_may_have_more(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    kafka_server.create_topic(f"__epochal.{APP}.{topic}", 2, {"cleanup.policy": "compact"})
    three = make(slots=3, topic_config={"min.insync.replicas": "1"})
    make().create(QUERY, SCHEMA)
    for verb in (lambda: three.check(QUERY, SCHEMA), lambda: three.look(QUERY)):
        with pytest.raises(Misconfigured, match="needs a partition for each of 3 slots") as refused:
            verb()
        assert "partitions 2" in str(refused.value)
    committable = prepared(make(), spark, stage, rows=3)
    assert make(slots=3).create(QUERY, SCHEMA) == [
        f"topic __epochal.{APP}.{topic} has 3 partitions now, one per slot; it had 2"
    ]
    three.check(QUERY, SCHEMA)
    three.look(QUERY)
    assert three.commit(committable, ONE) is CommitOutcome.COMMITTED
    assert sorted(numbers(kafka_server, topic)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"key": "gone"}, "there is no column 'gone' to be the key"),
        ({"value": "n"}, "column 'n' cannot be the value: it has the type bigint"),
        ({"options": {"acks": "1"}}, "the options ['acks'] are not for the user to set: acks is fixed: a row counts"),
        ({"options": {"enable.idempotence": False}}, "['enable.idempotence'] are not for the user to set"),
        ({"options": {"message.max.bytes": 9}}, "message.max.bytes follows from max.message.bytes of the topics"),
        ({"options": lambda: {"transactional.id": "x"}}, "the options ['transactional.id'] are not for the user"),
        ({"options": {"no.such.option": "1"}}, "no.such.option"),
        ({"options": {"sasl.password": SECRET, "security.protocol": SECRET}}, "does not take these options"),
        ({"transaction_timeout": 901}, "transaction_timeout=901 s is above the broker's maximum of 900 s"),
        ({"topic_config": {"cleanup.policy": "compact"}}, "is compacted, so its rows need a key"),
        ({"topic_config": {"max.message.bytes": "1500"}}, "takes no batch of 2000 bytes"),
        ({"topic_config": {"retention.ms": "60000"}}, "deletes rows after 60 s, and a transaction may last 300 s"),
        ({"name": "x" * 120}, None),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    make: Callable[..., KafkaSink], more: dict[str, Any], told: str | None
) -> None:
    sink = make(**more)
    if told is None:
        with pytest.raises(Misconfigured, match="more than 249 characters"):
            sink.check(replace(QUERY, app="y" * 120), SCHEMA)
        return
    make(topic_config=more.get("topic_config")).create(QUERY, None)
    with pytest.raises(Misconfigured) as refused:
        sink.check(QUERY, SCHEMA)
    assert told in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_shared_configuration_may_repeat_what_is_fixed(make: Callable[..., KafkaSink]) -> None:
    sink = make(options={"acks": "all", "enable.idempotence": "true", "compression.type": "zstd", "linger.ms": 20})
    sink.create(QUERY, SCHEMA)
    sink.check(QUERY, SCHEMA)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"cleanup.policy": "compact"}, "is compacted: of each key only the newest row stays"),
        ({"retention.ms": "3600000"}, "keeps rows for 1 h (retention.ms 3600000)"),
        ({"retention.bytes": "1000000"}, "keeps 1000000 bytes of a partition (retention.bytes)"),
        ({"retention.ms": "86400000", "retention.bytes": "-1"}, None),
        ({"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "9"}, "only the newest row stays"),
    ],
)
def test_a_topic_that_loses_rows_gets_a_warning(
    make: Callable[..., KafkaSink], caplog: pytest.LogCaptureFixture, config: dict[str, str], told: str | None
) -> None:
    """A start is not refused: the rows were there exactly once."""
    sink = make(key="k", topic_config=config)
    sink.create(QUERY, SCHEMA)
    with caplog.at_level(logging.WARNING, "epochal"):
        sink.check(QUERY, SCHEMA)
    said = [record.getMessage() for record in caplog.records]
    assert [told in text for text in said] == [True] if told is not None else said == []


def test_without_a_copy_there_is_no_vote(make: Callable[..., KafkaSink]) -> None:
    sink = make()
    sink.create(QUERY, SCHEMA)
    sink.look(QUERY)
    with pytest.raises(PrepareRefused, match="no durable copy"):
        sink.prepare(Epoch(Decision("q1", 0, ONE, "f"), 1), None, ONE)


def test_a_sink_is_used_after_a_look(make: Callable[..., KafkaSink]) -> None:
    with pytest.raises(Misconfigured, match="used before look"):
        make().commit(Committable("s", Decision("q1", 0, ONE, "f"), 1, 0), ONE)


def test_another_topic_of_the_same_name_is_not_the_same(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    sink = make(votes=False)
    committable = prepared(sink, spark, stage)
    identity = sink.look(QUERY).identity
    kafka_server.delete_topic(topic)
    kafka_server.create_topic(topic)
    with pytest.raises(CheckpointMismatch, match="is not the one that the epoch was prepared for"):
        sink.commit(committable, ONE)
    epoch = Epoch(committable.decision, 1, copy=stage.write(0, ONE, spark.range(1).selectExpr("'a' k", "id n")))
    with pytest.raises(PrepareRefused, match="is not the one that was looked at"):
        sink.prepare(epoch, spark.range(1), ONE)
    assert sink.look(QUERY).identity != identity


# secrets


def test_a_secret_shows_nowhere(
    make: Callable[..., KafkaSink], topic: str, spark: SparkSession, stage: SparkStage, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def options() -> dict[str, str]:
        calls.append(1)
        return OPTIONS

    with caplog.at_level(logging.DEBUG):
        sink = make(options=options)
        committable = prepared(sink, spark, stage)
        sink.commit(committable, ONE)
    told = [repr(sink), sink.guarantee(), json.dumps(committable.to_json()), caplog.text, repr(sink._core.link())]
    records = read_topic(sink._core.bootstrap, f"__epochal.{APP}.{topic}")
    assert not [text for text in [*told, *map(repr, records)] if SECRET in text]
    assert calls


def test_a_sink_travels_by_pickle_even_after_use(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    sink = make(key="k")
    committable = prepared(sink, spark, stage)
    other: KafkaSink = pickle.loads(pickle.dumps(sink))
    other.look(QUERY)
    assert other.commit(committable, ONE) is CommitOutcome.COMMITTED
    again: KafkaSink = pickle.loads(pickle.dumps(other))
    assert again.commit(committable, ONE) is CommitOutcome.ALREADY_COMMITTED
    assert sorted(numbers(kafka_server, topic)) == list(range(100))


# the commit task


def test_what_was_voted_for_is_produced_whatever_the_settings_are_now(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    committable = prepared(make(key="k"), spark, stage, rows=3)
    changed = make(value="k", key=None)
    changed.look(QUERY)
    assert changed.commit(committable, ONE) is CommitOutcome.COMMITTED
    records = read_topic(kafka_server.bootstrap, topic)
    assert [(r.key, r.value) for r in records] == [
        (str(n).encode(), f'{{"k":"{n}","n":{n}}}'.encode()) for n in range(3)
    ]


HOURS = {"select": ["k", "date_format(timestamp_seconds(n), 'HH') AS hour"], "where": "n <> 1"}


def test_a_projection_means_after_the_decision_what_it_meant_before(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    """Another start, under another time zone, with other arguments, finishes what was decided."""
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        committable = prepared(make(**HOURS), spark, stage, rows=3)
        assert (committable.rows, committable.left_out) == (2, 1)
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        changed = make(select=["k"], where="n = 1")
        changed.look(QUERY)
        again = Committable.from_json(json.loads(json.dumps(committable.to_json())))
        assert changed.commit(again, ONE) is CommitOutcome.COMMITTED
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    records = read_topic(kafka_server.bootstrap, topic)
    assert [r.value for r in records] == [b'{"k":"0","hour":"19"}', b'{"k":"2","hour":"19"}']


def test_an_epoch_that_an_older_version_prepared_is_committed(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    """And what needs nothing newer is written as that version wrote it."""
    committable = prepared(make(key="k", votes=False), spark, stage, rows=2)
    assert committable.payload["encoding"] == {
        "version": 1,
        "key": "k",
        "value": None,
        "partitioner": "murmur2_random",
    }
    changed = make(**HOURS)
    changed.look(QUERY)
    assert changed.commit(committable, ONE) is CommitOutcome.COMMITTED
    assert sorted(numbers(kafka_server, topic)) == [0, 1]
    assert prepared(make(**HOURS, votes=False), spark, stage).payload["encoding"]["version"] == 2


@pytest.mark.remedy(
    "… rows and … that are left out were read from a durable copy of … rows",
    "restart the query; if it happens again, the file system loses rows",
)
def test_a_copy_that_gives_other_rows_than_it_lists_is_refused(
    make: Callable[..., KafkaSink], spark: SparkSession, stage: SparkStage
) -> None:
    sink = make(where="n > 0", votes=False)
    committable = prepared(sink, spark, stage, rows=3)
    copy = Copy.from_json(committable.payload["copy"])
    more = replace(copy, files=(replace(copy.files[0], rows=4),))
    with pytest.raises(PrepareRefused, match="2 rows and 1 that are left out were read from a durable copy of 4"):
        sink.prepare(replace(Epoch(committable.decision, 1), copy=more), stage.read(copy), ONE)
    assert prepared(make(where="n > 0", votes=False), spark, stage, rows=3).rows == 2


def test_a_projection_without_a_result_for_a_row_refuses_the_epoch(
    make: Callable[..., KafkaSink], spark: SparkSession, stage: SparkStage
) -> None:
    with pytest.raises(PrepareRefused, match="has no result for a row of the epoch"):
        prepared(make(select=["1 / n AS x"]), spark, stage, rows=3)


@pytest.mark.wide
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dynamic", ["false", "true"])
@pytest.mark.parametrize("point", ["in-write", "after-publish"])
def test_a_worker_that_is_killed_loses_and_doubles_nothing(
    make: Callable[..., KafkaSink],
    kafka_server: servers.Kafka,
    topic: str,
    spark: SparkSession,
    stage: SparkStage,
    tmp_path: Path,
    dynamic: str,
    point: str,
) -> None:
    """With and without a barrier stage: dynamic allocation forbids it."""
    committable = prepared(make(votes=False), spark, stage, rows=20_000)
    faults = tmp_path / "faults"
    faults.mkdir()
    outcome = in_another_process(
        kafka_server.bootstrap,
        topic,
        committable.to_json(),
        ONE.to_json(),
        spark={"spark.dynamicAllocation.enabled": dynamic},
        environment={"EPOCHAL_FAILPOINTS": f"{point}@{topic}=kill", "EPOCHAL_FAILPOINTS_DIR": str(faults)},
    )
    struck = json.loads((faults / "0.blocked").read_text())
    assert (struck["point"], struck["action"]) == (point, "kill")
    assert outcome == ("COMMITTED" if point == "in-write" else "ALREADY_COMMITTED")
    sink = make()
    sink.look(QUERY)
    assert sink.commit(committable, ONE) is CommitOutcome.ALREADY_COMMITTED
    assert numbers(kafka_server, topic) == list(range(20_000))


def test_without_spark_a_commit_with_rows_is_refused(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    committable = prepared(make(votes=False), spark, stage)
    outcome = in_another_process(kafka_server.bootstrap, topic, committable.to_json(), ONE.to_json())
    assert outcome == Misconfigured.__name__
    assert numbers(kafka_server, topic) == []


@pytest.mark.wide
@pytest.mark.remedy(
    "rows are produced by Spark, and no Spark session runs in this process",
    "create a SparkSession before calling commit",
)
def test_a_commit_after_a_session_was_made(
    make: Callable[..., KafkaSink],
    kafka_server: servers.Kafka,
    topic: str,
    spark: SparkSession,
    stage: SparkStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committable, restarted = prepared(make(votes=False), spark, stage), make(votes=False)
    restarted.look(QUERY)
    with monkeypatch.context() as patch:
        patch.setattr(core, "running_session", lambda: None)
        with pytest.raises(Misconfigured, match="rows are produced by Spark"):
            restarted.commit(committable, ONE)
    assert restarted.commit(committable, ONE) is CommitOutcome.COMMITTED
    assert numbers(kafka_server, topic) == list(range(100))


@pytest.mark.wide
@pytest.mark.remedy(
    "the Spark job that produces … rows failed: …", "restart the query: the marker is asked before anything is written"
)
def test_workers_that_always_die(
    make: Callable[..., KafkaSink], kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    sink = make(votes=False)
    committable = prepared(sink, spark, stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(spark.sparkContext.environment, "EPOCHAL_FAILPOINTS", f"in-write@{topic}=kill")
        with pytest.raises(OutcomeUnknown, match="the Spark job that produces 100 rows failed"):
            sink.commit(committable, ONE)
    restarted = make(votes=False)
    restarted.look(QUERY)
    restarted.fence(QUERY, TWO)
    restarted.commit(committable, TWO)
    assert numbers(kafka_server, topic) == list(range(100))
