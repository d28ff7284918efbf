"""What a client or a topic refuses is known before the vote: after it, the epoch must become visible."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Committable, Decision, Epoch
from epochal.coordinator.model.errors import CommitInDoubt, EpochalError, Misconfigured, PrepareRefused
from epochal.sinks.kafka import KafkaSink, starting, topics
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import APP, read_topic, set_config

SCHEMA = StructType().add("v", "binary")


def another_epoch() -> Epoch:
    """At position 1, with a decision of its own: within one decision, topics are judged as they were at first."""
    return Epoch(Decision("q1", 0, ONE, uuid.uuid4().hex), 1)


class Job:
    """One sink, whose epoch 0 is prepared and committed."""

    def __init__(self, server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage) -> None:
        self.server, self.topic, self.spark, self.stage = server, topic, spark, stage
        self.marker = f"__epochal.{APP}.{topic}"

    def sink(self, **more: Any) -> KafkaSink:
        return KafkaSink(
            self.server.bootstrap, **{"topic": self.topic, "name": self.topic, "value": "v", "votes": False, **more}
        )

    def fenced(self, **more: Any) -> KafkaSink:
        """A sink whose start has passed its checks."""
        sink = self.sink(**more)
        sink.create(QUERY, SCHEMA)
        sink.check(QUERY, SCHEMA)
        sink.look(QUERY)
        sink.fence(QUERY, ONE)
        return sink

    def rows(self, size: int, count: int = 1) -> DataFrame:
        """Rows that no codec makes smaller."""
        return self.spark.createDataFrame([(os.urandom(size),) for _ in range(count)], SCHEMA).coalesce(1)

    def vote(self, sink: KafkaSink, rows: DataFrame) -> Committable:
        epoch = another_epoch()
        copy = self.stage.write(0, ONE, sink.watch(epoch, rows))
        return sink.prepare(replace(epoch, copy=copy), self.stage.read(copy), ONE)

    def commits(self, sink: KafkaSink, rows: DataFrame) -> int:
        """How many records the topic has once the epoch is committed."""
        assert sink.commit(self.vote(sink, rows), ONE) is CommitOutcome.COMMITTED
        return len(read_topic(self.server.bootstrap, self.topic))

    def set(self, name: str, value: str, topic: str | None = None) -> None:
        set_config(self.server.bootstrap, topic or self.topic, name, value)


@pytest.fixture
def job(kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage) -> Job:
    return Job(kafka_server, topic, spark, stage)


def refusal(call: Callable[[], object], kind: type[EpochalError] = Misconfigured) -> EpochalError:
    with pytest.raises(kind) as refused:
        call()
    return refused.value


# the client's queue


@pytest.mark.remedy(
    "the client's queue holds … kB, and the records of the marker topic need …",
    "set queue.buffering.max.kbytes in options= to … or more, and above the largest row in kilobytes",
)
def test_a_queue_that_holds_no_marker_is_refused_at_start(job: Job) -> None:
    """K1: an option that bounds the client's queue."""
    sink = job.sink(options={"queue.buffering.max.kbytes": 1})
    sink.create(QUERY, SCHEMA)
    told = refusal(lambda: sink.check(QUERY, SCHEMA))
    assert told.what == "the client's queue holds 1 kB, and the records of the marker topic need 16"
    assert "set queue.buffering.max.kbytes in options= to 16 or more" in told.help
    job.sink(options={"queue.buffering.max.kbytes": 16}).check(QUERY, SCHEMA)


@pytest.mark.remedy(
    "… rows are larger than the client's queue: the largest has … bytes, the queue holds …",
    "raise queue.buffering.max.kbytes in options= (it is …), or make rows smaller",
)
def test_a_row_that_is_larger_than_the_queue_is_refused_before_the_vote(job: Job) -> None:
    """K1: a queue that is smaller than a row."""
    sink = job.fenced(options={"queue.buffering.max.kbytes": 16})
    told = refusal(lambda: job.vote(sink, job.rows(20_000)), PrepareRefused)
    assert told.what == (
        "1 rows are larger than the client's queue: the largest has 20000 bytes, the queue holds 16384"
    )
    assert told.help.startswith("raise queue.buffering.max.kbytes in options= (it is 16), or make rows smaller")
    assert job.commits(sink, job.rows(16_384, 3)) == 3
    larger = job.fenced(options={"queue.buffering.max.kbytes": 20})
    job.vote(larger, job.rows(20_000))


@pytest.mark.remedy(
    "the marker's record takes … bytes, most of them offsets, and the client's queue holds …",
    "raise queue.buffering.max.kbytes in options= (it is …), or read fewer partitions",
)
def test_a_marker_that_is_larger_than_the_queue_is_refused_before_the_vote(job: Job) -> None:
    """K1: source offsets of many partitions."""
    sink = job.fenced(options={"queue.buffering.max.kbytes": 16})
    copy = job.stage.write(0, ONE, job.rows(1))
    epoch = replace(another_epoch(), copy=copy, offsets="x" * 20_000)
    told = refusal(lambda: sink.prepare(epoch, job.stage.read(copy), ONE), PrepareRefused)
    assert "most of them offsets, and the client's queue holds 16384" in told.what
    sink.prepare(replace(epoch, offsets="x" * 10_000), job.stage.read(copy), ONE)
    job.fenced(options={"queue.buffering.max.kbytes": 32}).prepare(epoch, job.stage.read(copy), ONE)


@pytest.mark.remedy(
    "a record of … bytes for topic … does not fit into the client's queue",
    "raise queue.buffering.max.kbytes in options=",
)
def test_a_queue_that_shrinks_after_the_vote_is_named_at_once(job: Job) -> None:
    """K1: the options are made anew for each connection.  Nobody waits until the transaction expires."""
    kilobytes = [1_000]
    sink = job.fenced(options=lambda: {"queue.buffering.max.kbytes": kilobytes[0]})
    vote = job.vote(sink, job.rows(20_000))
    kilobytes[0] = 16
    told = refusal(lambda: sink.commit(vote, ONE), CommitInDoubt)
    assert f"a record of 20000 bytes for topic {job.topic!r} does not fit into the client's queue" in told.what
    assert told.help == "raise queue.buffering.max.kbytes in options="
    kilobytes[0] = 1_000
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED


def test_a_queue_of_one_message_is_slow_and_works(job: Job) -> None:
    """K1: what lingers in a full queue is sent at once, however long it may linger."""
    sink = job.fenced(options={"queue.buffering.max.messages": 1, "linger.ms": 60_000})
    assert job.commits(sink, job.rows(10, 20)) == 20


# timestamps


BEFORE, AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"


@pytest.mark.remedy(
    "topic … may refuse records for their timestamps: …=… ms, and it must be … ms or more", "raise … of the topic"
)
@pytest.mark.parametrize(
    ("setting", "few", "enough"), [(BEFORE, "1", "310000"), (BEFORE, "309999", "310000"), (AFTER, "9999", "10000")]
)
def test_a_topic_that_may_refuse_timestamps_is_refused(job: Job, setting: str, few: str, enough: str) -> None:
    """K2: at start, and where the setting changes later, before the vote."""
    sink = job.fenced()
    for topic in (job.topic, job.marker):
        job.set(setting, few, topic)
        what = f"topic {topic!r} may refuse records for their timestamps: {setting}={few} ms, and it must be {enough}"
        assert refusal(lambda: job.sink().check(QUERY, SCHEMA)).what.startswith(what)
        assert refusal(lambda: job.vote(sink, job.rows(1)), PrepareRefused).what.startswith(what)
        job.set(setting, enough, topic)
    assert job.commits(sink, job.rows(1)) == 1


@pytest.mark.remedy(
    "topic … may refuse records for their timestamps: …=… ms, and it must be … ms or more",
    "or set its message.timestamp.type to LogAppendTime",
)
def test_what_a_refusal_of_timestamps_advises_helps(job: Job) -> None:
    """K2: the broker's own time, or a shorter transaction."""
    job.fenced()
    job.set(BEFORE, "60000")
    help_line = refusal(lambda: job.sink().check(QUERY, SCHEMA)).help
    assert help_line == (
        f"raise {BEFORE} of the topic, or set its message.timestamp.type to LogAppendTime, or take a"
        " transaction_timeout= that is 10 s less than it"
    )
    job.sink(transaction_timeout=50).check(QUERY, SCHEMA)
    job.set("message.timestamp.type", "LogAppendTime")
    job.sink().check(QUERY, SCHEMA)
    job.set(BEFORE, "1")
    assert job.commits(job.fenced(), job.rows(1)) == 1


def test_a_fence_that_is_refused_for_its_timestamp_says_so(job: Job) -> None:
    """K2: as with a clock that is wrong.  It is no other start that writes the fence at the same time."""
    sink = job.sink()
    sink.create(QUERY, SCHEMA)
    sink.look(QUERY)
    job.set(BEFORE, "0", job.marker)
    told = refusal(lambda: sink.fence(QUERY, ONE))
    assert f"to write a record into {job.marker}" in told.what
    assert "INVALID_TIMESTAMP" in (told.state or "")


# other settings of a topic, at the vote


@pytest.mark.parametrize(
    ("setting", "value", "of_marker", "what"),
    [
        ("retention.ms", "1000", False, "deletes rows after 1 s, and a transaction may last 300 s"),
        ("cleanup.policy", "compact", False, "is compacted, so its rows need a key"),
        ("cleanup.policy", "delete", True, "must have cleanup.policy=compact"),
    ],
)
def test_a_setting_that_changes_after_the_start_refuses_the_epoch(
    job: Job, setting: str, value: str, of_marker: bool, what: str
) -> None:
    sink = job.fenced()
    job.set(setting, value, job.marker if of_marker else None)
    assert what in refusal(lambda: job.vote(sink, job.rows(1)), PrepareRefused).what


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_topic_that_compresses_anew_takes_every_row_that_was_voted_for(job: Job, codec: str) -> None:
    """Rows that no codec makes smaller become a little larger."""
    sink = job.fenced(topic_config={"compression.type": codec, "max.message.bytes": "400000"})
    told = refusal(lambda: job.vote(sink, job.rows(395_901)), PrepareRefused)
    assert "the largest has 395901 bytes, the limit is 395900" in told.what
    assert job.commits(sink, job.rows(395_900, 2).unionAll(job.rows(9_000, 100)).coalesce(1)) == 102


def test_a_row_that_is_larger_than_a_segment_is_refused_before_the_vote(job: Job) -> None:
    sink = job.fenced(topic_config={"segment.bytes": "1048576", "max.message.bytes": "4000000"})
    told = refusal(lambda: job.vote(sink, job.rows(1_200_000)), PrepareRefused)
    assert "the limit is 1048476" in told.what
    assert told.help.startswith("raise segment.bytes of the topic (it is 1048576)")
    assert job.commits(sink, job.rows(1_048_476)) == 1


def test_a_limit_above_what_the_client_knows_is_no_error(job: Job) -> None:
    sink = job.fenced(topic_config={"max.message.bytes": "2000000000"})
    assert job.commits(sink, job.rows(1)) == 1


def test_more_replicas_in_sync_than_there_are_are_no_error(job: Job) -> None:
    """Brokers need no more than the topic has."""
    sink = job.fenced(topic_config={"min.insync.replicas": "2"})
    assert job.commits(sink, job.rows(1)) == 1


# idempotent mode, in which there is no vote


def test_in_idempotent_mode_nothing_of_the_epoch_is_visible(job: Job) -> None:
    """K1, K2: the same refusals, before the transaction commits."""
    sink = job.fenced(options={"queue.buffering.max.kbytes": 16})

    def apply(size: int) -> object:
        return sink.apply(replace(another_epoch(), digest=True), job.rows(size), ONE, None)

    told = refusal(lambda: apply(20_000), PrepareRefused)
    assert "the largest has 20000 bytes, the queue holds 16384" in told.what
    job.set(BEFORE, "1")
    told = refusal(lambda: apply(1), PrepareRefused)
    assert "may refuse records for their timestamps" in told.what
    assert read_topic(job.server.bootstrap, job.topic) == []


# options of the client


@pytest.mark.parametrize(
    ("options", "what", "right"),
    [
        ({"topic.blacklist": ".*"}, "topic.blacklist would hide a topic from the producer", {}),
        (
            {"default.topic.config": {"message.timeout.ms": 1}},
            "default.topic.config would overrule the fixed options",
            {},
        ),
        (
            {"queue.buffering.max.kbytes": "many"},
            'property "queue.buffering.max.kbytes"',
            {"queue.buffering.max.kbytes": "1000"},
        ),
        pytest.param(
            {"stats_cb": partial(print, threading.Lock())},
            "options= cannot be sent to a task: ",
            {"stats_cb": partial(print, "statistics:")},
            marks=pytest.mark.remedy(
                "options= cannot be sent to a task: …",
                "pass callbacks that can be pickled: functions that hold no lock, socket, file or client",
            ),
        ),
    ],
)
def test_an_option_that_only_a_task_would_stumble_over_is_refused_at_start(
    job: Job, options: dict[str, Any], what: str, right: dict[str, Any]
) -> None:
    job.sink().create(QUERY, SCHEMA)
    assert what in refusal(lambda: job.sink(options=options).check(QUERY, SCHEMA)).what
    job.sink(options=right).check(QUERY, SCHEMA)


def test_settings_that_cannot_be_read_get_a_warning(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    sink = job.sink()
    sink.create(QUERY, SCHEMA)
    monkeypatch.setattr(topics, "_config", lambda *_: {})
    sink.check(QUERY, SCHEMA)
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("epochal")]
    assert f"the settings of topics {[job.topic, job.marker]} cannot be read" in said
    assert "grant DESCRIBE_CONFIGS" in said


def test_a_process_says_why_it_cannot_reach_the_brokers(job: Job) -> None:
    """As an executor is asked at start."""
    job.sink().create(QUERY, SCHEMA)

    def reached(bootstrap: str, **options: str) -> str:
        link = Link(bootstrap, "out", 2, {name.replace("_", "."): value for name, value in options.items()})
        return starting.reached(link, MarkerTopic(APP, job.topic), 60, {})

    assert reached(job.server.bootstrap) == ""
    assert "Broker transport failure" in reached("127.0.0.1:1")
    told = reached(job.server.bootstrap, security_protocol="ssl", ssl_ca_location="/nowhere/ca.pem")
    assert "librdkafka does not take these options" in told
