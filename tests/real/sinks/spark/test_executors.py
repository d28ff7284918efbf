"""Executors without a sink's client library: the query ends with a named error, and a start with it does it all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from epochal.chaos import servers
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.protocol import Sink
from epochal.sinks.spark.executors import check_executors
from tests.real.coordinator.query.support import APP, FAST, Job
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.postgres.support import observe
from tests.real.sinks.spark.workers import SLOW_CHECKSUMS, missing, workers_that_load
from tests.remedies import installed_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MISSING = r"executors' Python cannot load|client is missing here|not installed on the executors"


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    fed = Job(spark, tmp_path / "job")
    fed.add(1, 2)
    return fed


def refused_without(package: str, job: Job, pipeline: Pipeline) -> Misconfigured:
    """How the job ends while its Python workers cannot import ``package``, as the driver can."""
    lacking = workers_that_load(job.spark, job.folder / "executors", package, missing(package))
    with lacking, pytest.raises(StreamingQueryException, match=MISSING):
        job.run(pipeline)
    assert isinstance(pipeline.last_error, Misconfigured)
    return pipeline.last_error


def made(job: Job, sink: Sink) -> Pipeline:
    pipeline = Pipeline(app=APP, sinks=[sink], retry=FAST)
    pipeline.create(job.df().schema)
    return pipeline


def test_kafka(job: Job, kafka_server: servers.Kafka, topic_name: str) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic_name)
    pipeline = made(job, sink)
    error = refused_without("confluent_kafka", job, pipeline)
    assert "the executors' Python cannot load confluent_kafka" in error.what
    assert "epochal[kafka]" in error.help
    topics = (topic_name, f"__epochal.{APP}.{sink.name}")
    assert [read_topic(kafka_server.bootstrap, topic) for topic in topics] == [[], []]
    assert not (job.checkpoint / "epochal").exists()
    job.run(pipeline)
    values = [json.loads(r.value or b"") for r in read_topic(kafka_server.bootstrap, topic_name)]
    assert sorted(value["id"] for value in values) == [1, 2]


@pytest.mark.parametrize(
    ("module", "lacking"),
    [
        (missing("google_crc32c"), "google_crc32c: No module named 'google_crc32c'"),
        (SLOW_CHECKSUMS, "google_crc32c with its C extension"),
    ],
    ids=["missing", "slow"],
)
def test_kafka_without_what_a_vote_needs(
    job: Job,
    kafka_server: servers.Kafka,
    topic_name: str,
    caplog: pytest.LogCaptureFixture,
    module: str,
    lacking: str,
) -> None:
    """The epochs are produced after the decision then, and one line says why."""
    pipeline = made(job, KafkaSink(kafka_server.bootstrap, topic=topic_name))
    with workers_that_load(job.spark, job.folder / "executors", "google_crc32c", module):
        job.run(pipeline)
    values = [json.loads(r.value or b"") for r in read_topic(kafka_server.bootstrap, topic_name)]
    assert sorted(value["id"] for value in values) == [1, 2]
    told = [each for each in caplog.messages if f"the executors' Python cannot load {lacking}" in each]
    assert any("pip install 'epochal[kafka]' on every executor" in each for each in told)
    assert any(
        each.startswith(f"sink {pipeline.sinks[0].name}: epochs are produced after the decision") for each in told
    )


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        pytest.param(
            True,
            "the executors' Python cannot load psycopg",
            marks=pytest.mark.remedy("the executors' Python cannot load …", "pip install … on every executor"),
            id="at start",
        ),
        pytest.param(
            False,
            "the Postgres client is missing here",
            marks=[
                pytest.mark.remedy("an executor cannot write: …", "pip install 'epochal[postgres]' on every executor"),
            ],
            id="in a task",
        ),
    ],
)
def test_postgres(job: Job, pg_database: str, monkeypatch: pytest.MonkeyPatch, asked: bool, what: str) -> None:
    """Also where the one executor that is asked at start has it, and another has not."""
    if not asked:
        monkeypatch.setattr("epochal.sinks.postgres.starting.check_executors", lambda *_: None)
    pipeline = made(job, PostgresSink(pg_database, table="flights"))
    error = refused_without("psycopg", job, pipeline)
    assert what in error.what
    assert "psycopg" in installed_by(error.help)
    assert observe(pg_database, "SELECT count(*) FROM flights__rows") == [(0,)]
    assert job.decided() == []
    job.run(pipeline)
    assert observe(pg_database, "SELECT id FROM flights ORDER BY id") == [(1,), (2,)]


def test_postgres_that_the_driver_reaches_and_no_executor_does(
    job: Job, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = made(job, PostgresSink(pg_database, table="flights"))
    pipeline.check(job.df())
    monkeypatch.setattr("epochal.sinks.postgres.write.reached", lambda *_: "no route to host")
    with pytest.raises(SinkUnavailable, match="an executor has no connection: no route to host"):
        pipeline.check(job.df())


def test_what_spark_itself_needs_for_the_question(job: Job, kafka_server: servers.Kafka, topic_name: str) -> None:
    """Then no task of a sink could run either, and the executor cannot even say so."""
    pipeline = made(job, KafkaSink(kafka_server.bootstrap, topic=topic_name))
    error = refused_without("pyarrow", job, pipeline)
    assert "pyarrow" in error.what
    assert "pyarrow on every executor" in error.help
    assert not (job.checkpoint / "epochal").exists()


def test_epochal_itself(job: Job, kafka_server: servers.Kafka, topic_name: str) -> None:
    """Kafka's tasks run after the decision, so this has to be known before."""
    pipeline = made(job, KafkaSink(kafka_server.bootstrap, topic=topic_name))
    error = refused_without("epochal", job, pipeline)
    assert "Epochal is not installed there" in error.what
    assert not (job.checkpoint / "epochal").exists()


@pytest.mark.remedy("Epochal is not installed on the executors", "pip install 'epochal[postgres]' on every executor")
def test_epochal_itself_in_a_task(job: Job, pg_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.sinks.postgres.starting.check_executors", lambda *_: None)
    pipeline = made(job, PostgresSink(pg_database, table="flights"))
    error = refused_without("epochal", job, pipeline)
    assert "Epochal is not installed on the executors" in error.what
    assert job.decided() == []
    job.run(pipeline)
    assert observe(pg_database, "SELECT id FROM flights ORDER BY id") == [(1,), (2,)]


@pytest.mark.usefixtures("spark")
def test_a_probe_that_fails_otherwise_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("of the probe itself")

    monkeypatch.setattr("epochal.sinks.spark.executors._ask", broken)
    with pytest.raises(Exception, match="of the probe itself"):
        check_executors("out", ["json"], "kafka")
