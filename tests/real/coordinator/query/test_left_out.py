"""``where=`` of a sink that is alone: there is no Parquet copy, and Spark still reads every row of the micro-batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from epochal import Pipeline
from epochal.chaos import servers
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Commit
from epochal.coordinator.model.epoch import Copy
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.kafka.delivery import index
from epochal.sinks.kafka.rows import KEPT, Encoding
from epochal.sinks.rows.projection import Projection
from epochal.sinks.spark.settings import TIME_POLICY
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.delta.support import read
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.postgres.support import observe

NONE = {"a constant": "false", "a condition that Spark finds to be false": "id > 3 AND id < 2"}


class Counted(Job):
    """Counts the rows of each id; the sink gets the counts that have changed."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str, server: Any, topic: str) -> None:
        super().__init__(spark, folder, sinks=())
        self.kind, self.server_, self.topic = kind, server, topic

    def made(self, where: str | None, select: list[str] | None = None) -> Pipeline:
        return Pipeline(app="left-out", sinks=[self.sink(where=where, select=select)], retry=FAST)

    def sink(self, **given: Any) -> Any:
        if self.kind == "delta":
            return DeltaSink(str(self.folder / "lake"), name="it", **given)
        if self.kind == "postgres":
            return PostgresSink(self.server_, table="counts", name="it", **given)
        return KafkaSink(self.server_, topic=self.topic, name=self.topic, **given)

    def rows(self) -> DataFrame:
        return self.df().groupBy("id").count()

    def go(self, where: str | None, select: list[str] | None = None, rows: DataFrame | None = None) -> Pipeline:
        pipeline = self.made(where, select)
        rows = self.rows() if rows is None else rows
        pipeline.create(rows.schema)
        self.run(pipeline, rows, mode="update")
        return pipeline

    def shown_rows(self) -> list[tuple[Any, Any]]:
        if self.kind == "delta":
            return sorted((row["id"], row["count"]) for row in read(self.folder / "lake").to_pylist())
        if self.kind == "postgres":
            return sorted(observe(self.server_, "SELECT id, count FROM counts"))
        told = [json.loads(record.value or b"") for record in read_topic(self.server_, self.topic)]
        return sorted((row["id"], row["count"]) for row in told)

    def commits(self) -> list[Commit]:
        entries = FilesLog(self.checkpoint / "epochal" / "log").read()
        return [entry.record for entry in entries if isinstance(entry.record, Commit)]


@pytest.fixture(params=["delta", "postgres", "kafka"])
def job(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    pg_database: str,
    kafka_server: servers.Kafka,
    topic_name: str,
) -> Counted:
    server = {"postgres": pg_database, "kafka": kafka_server.bootstrap}.get(request.param)
    return Counted(spark, tmp_path, request.param, server, topic_name)


@pytest.mark.parametrize("where", NONE.values(), ids=NONE)
def test_the_operator_state_knows_rows_that_no_sink_gets(job: Counted, where: str) -> None:
    job.add(1, 2)
    job.go(where)
    assert job.shown_rows() == []
    job.add(1)
    job.go(None)
    assert job.shown_rows() == [(1, 2)]


def test_what_is_left_out_is_counted(job: Counted) -> None:
    job.add(1, 2, 2, 3)
    pipeline = job.go("count > 1")
    assert job.shown_rows() == [(2, 2)]
    (commit,) = job.commits()
    (vote,) = (participant.committable for participant in commit.participants.values())
    assert (vote.rows, vote.left_out) == (1, 2)
    assert pipeline.status().rows == 3
    if job.kind != "kafka":
        assert commit.copy is None
    else:
        assert isinstance(commit.copy, Copy)
        assert (commit.copy.form, commit.copy.rows) == (index.FORM, 1)


def test_an_expression_of_the_query_itself_is_not_said_to_be_one_of_the_sink(job: Counted) -> None:
    """Where the rows are not copied first, both are evaluated in one job."""
    job.add(1, 2)
    with pytest.raises(StreamingQueryException, match=r"PrepareRefused.*the query or .*where='id >= 0' has no result"):
        job.go("id >= 0", rows=job.df().select("id", f.expr("CAST(1 / (id - 2) AS BIGINT) AS count")))
    assert job.shown_rows() == []
    job.go("id >= 0", rows=job.df().select("id", f.expr("CAST(try_divide(1, id - 2) AS BIGINT) AS count")))
    assert [row[0] for row in job.shown_rows()] == [1, 2]


@pytest.fixture
def kafka(spark: SparkSession, tmp_path: Path, kafka_server: servers.Kafka, topic_name: str) -> Counted:
    return Counted(spark, tmp_path, "kafka", kafka_server.bootstrap, topic_name)


@pytest.mark.parametrize("where", [None, "id >= 0"])
def test_a_column_of_the_users_is_no_mark_of_ours(kafka: Counted, where: str | None) -> None:
    """The function of a later batch adds it, when the start has looked at the columns already."""
    kafka.add(1)
    kafka.add(2)
    pipeline = kafka.made(where)
    pipeline.create(kafka.df().schema)

    def write(rows: DataFrame, number: int) -> None:
        pipeline(rows.withColumn(KEPT, f.lit(False)) if number else rows, number)

    with pytest.raises(StreamingQueryException, match=f"the column name '{KEPT}' is Epochal's own"):
        kafka.run(write)
    assert [json.loads(record.value or b"")["id"] for record in read_topic(kafka.server_, kafka.topic)] == [1]


def test_texts_of_times_are_read_as_in_every_other_epoch(kafka: Counted) -> None:
    """With the policy EXCEPTION, Spark refuses a text that only its old parser can read; from a copy it is NULL."""
    kafka.add(1)
    select = ["id", "try_to_timestamp('2024-1-1', 'yyyy-MM-dd') AS count"]
    kafka.spark.conf.set(TIME_POLICY, "EXCEPTION")
    try:
        kafka.go(None, select)
    finally:
        kafka.spark.conf.unset(TIME_POLICY)
    assert kafka.shown_rows() == [(1, None)]


def test_nothing_of_a_row_that_is_left_out_goes_to_a_worker(spark: SparkSession) -> None:
    """Its key may be as large as it likes."""
    rows = spark.createDataFrame([("a", "x", True), ("b", "y", False)], f"k string, v string, {KEPT} boolean")
    records = Encoding("k", "v", "murmur2_random").apply(rows).collect()
    assert [(record.key, record.value) for record in records] == [(b"a", b"x"), (None, None)]


def test_rows_that_spark_counted_twice_are_counted_anew(
    spark: SparkSession, tmp_path: Path, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a shuffle of Delta's, Spark may count rows again that it had to compute again."""
    job = Counted(spark, tmp_path, "delta", None, "")
    right = Projection.sifted

    def twice(self: Projection, rows: DataFrame, *, counts: bool) -> Any:
        passed, left_out = right(self, rows, counts=counts)
        return passed, lambda: 2 * left_out()

    monkeypatch.setattr(Projection, "sifted", twice)
    job.add(1, 2, 3)
    sinks = [job.sink(where="id > 2"), PostgresSink(pg_database, table="whole", name="whole")]
    pipeline = Pipeline(app="left-out", sinks=sinks, retry=FAST)
    pipeline.create(job.rows().schema)
    job.run(pipeline, job.rows(), mode="update")
    (commit,) = job.commits()
    assert (commit.participants["it"].committable.rows, commit.participants["it"].committable.left_out) == (1, 2)
