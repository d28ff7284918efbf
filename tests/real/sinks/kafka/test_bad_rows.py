"""``bad_rows=``: what Kafka, a topic or JSON cannot hold goes to another sink, in the same epoch and decision."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.chaos import servers
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured, PrepareRefused
from epochal.coordinator.model.failpoints import Point
from epochal.sinks import DeltaSink, KafkaSink
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.delta.support import read
from tests.real.sinks.kafka.support import read_topic, set_max_message_bytes
from tests.real.sinks.plans import newest, plans

LIMIT = 2000
NAN = "JSON cannot hold the value of column 'x' exactly"
LARGE = "it is larger than topic '{topic}' takes: the limit is 1900 bytes"


class Sorted(Job):
    """Row 2 is not a number, row 3 larger than the topic takes; 4 would be neither, and where= keeps it out."""

    def __init__(self, spark: SparkSession, folder: Path, server: servers.Kafka) -> None:
        super().__init__(spark, folder, sinks=())
        self.server_, self.topic = server, f"sorted-{uuid.uuid4().hex[:8]}"
        server.create_topic(self.topic, 2, {"max.message.bytes": str(LIMIT)})
        self.add(1, 2, 3)
        self.add(4, 5)

    def made(self, *, sorts: bool = True, mode: str = "two-phase", **options: Any) -> Pipeline:
        bad: dict[str, Any] = {"bad_rows": DeltaSink(str(self.folder / "bad"), name="bad")} if sorts else {}
        rows = {"where": "id <> 4", "select": ["id", "x", "t"]}
        sink = KafkaSink(self.server_.bootstrap, **{"topic": self.topic, "name": "topic", **rows, **bad, **options})
        pipeline = Pipeline(app=self.topic, sinks=[sink], retry=FAST, mode=mode)
        pipeline.create(self.rows().schema)
        return pipeline

    def rows(self) -> DataFrame:
        x = "CASE WHEN id IN (2, 4) THEN double('NaN') ELSE 0.5D END AS x"
        return self.df().selectExpr("id", x, "repeat('t', if(id = 3, 3000, 1)) AS t", "id + 1 AS more")

    def fails(self, pipeline: Pipeline) -> Any:
        with pytest.raises(StreamingQueryException):
            self.run(pipeline, self.rows())
        return pipeline.last_error

    def sent(self) -> list[int]:
        return sorted(json.loads(r.value or b"")["id"] for r in read_topic(self.server_.bootstrap, self.topic))

    def bad(self) -> list[tuple[int, int, str, str]]:
        found = read(self.folder / "bad").to_pylist()
        return sorted((row["id"], row["more"], row["_sink"], row["_reason"]) for row in found)

    def check_sorted(self) -> None:
        assert self.sent() == [1, 5]
        assert self.bad() == [(2, 3, "topic", NAN), (3, 4, "topic", LARGE.format(topic=self.topic))]

    def limit(self, size: int) -> None:
        """Of the topic, from now on."""
        set_max_message_bytes(self.server_.bootstrap, self.topic, size)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, kafka_server: servers.Kafka) -> Sorted:
    return Sorted(spark, tmp_path, kafka_server)


@contextmanager
def at(where: Point, sink: str, do: Any) -> Iterator[list[int]]:
    """Once."""
    done: list[int] = []

    def strike(point: Point, name: str, epoch: int) -> None:
        if (point, name) == (where, sink) and not done:
            done.append(epoch)
            do()

    with failpoints.handler(strike):
        yield done


def gone() -> None:
    raise RuntimeError("the driver is gone")


@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
def test_every_row_is_in_one_of_the_two(job: Sorted, mode: str) -> None:
    pipeline = job.made(mode=mode)
    job.run(pipeline, job.rows())
    job.check_sorted()
    assert pipeline.status().rejected == {"bad": 2}
    assert "Rows that Kafka, a topic or JSON cannot hold go to sink 'bad'." in pipeline.guarantee().sinks["topic"]


def test_no_job_makes_the_json_of_a_row_twice(job: Sorted) -> None:
    """It was made three times, because the filter of bad rows names it twice."""
    before = newest(job.spark)
    job.run(job.made(), job.rows())
    found = plans(job.spark, before)  # one that Spark adapts is shown twice: as it began, and as it ended
    made = [plan.count("StructsToJson") // (2 if "Initial Plan" in plan else 1) for plan in found]
    assert max(made) == 1
    assert sum(made) > 2  # the copy is judged, its good rows are produced, and its bad rows are written


@pytest.mark.wide
def test_in_several_slots(job: Sorted) -> None:
    job.run(job.made(slots=2), job.rows())
    job.check_sorted()


def test_without_it_such_a_row_refuses_the_epoch(job: Sorted) -> None:
    error = job.fails(job.made(sorts=False))
    assert isinstance(error, PrepareRefused)
    assert job.sent() == []


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
@pytest.mark.parametrize("sink", ["topic", "bad"])
def test_a_driver_that_is_lost_between_the_two_goes_on(job: Sorted, mode: str, sink: str) -> None:
    with at(Point.BEFORE_SINK_COMMIT, sink, gone) as struck:
        job.fails(job.made(mode=mode))
    assert struck
    job.run(job.made(mode=mode), job.rows())
    job.check_sorted()


def test_a_limit_that_is_raised_between_the_two_votes_changes_no_mind(job: Sorted) -> None:
    voted, struck = threading.Event(), []

    def raise_it(point: Point, sink: str, epoch: int) -> None:
        if (point, sink) == (Point.AFTER_SINK_PREPARE, "topic"):
            voted.set()
        if (point, sink, epoch) == (Point.BEFORE_SINK_PREPARE, "bad", 0):
            struck.append(voted.wait(60))
            job.limit(1_000_000)

    with failpoints.handler(raise_it):
        job.run(job.made(), job.rows())
    assert struck == [True]
    job.check_sorted()


@pytest.mark.wide
def test_a_limit_that_is_raised_after_the_decision_brings_nothing_back(job: Sorted) -> None:
    with at(Point.BEFORE_SINK_COMMIT, "topic", lambda: job.limit(1_000_000)) as struck:
        job.run(job.made(), job.rows())
    assert struck == [0]
    job.check_sorted()


def test_of_a_pair_that_shows_an_epoch_by_half_the_rest_is_told_apart_as_before(job: Sorted) -> None:
    """A limit that is raised by then would leave row 3 in neither."""
    with at(Point.BEFORE_SINK_COMMIT, "bad", gone) as struck:
        job.fails(job.made(mode="idempotent"))
    assert struck
    job.limit(1_000_000)
    error = job.fails(job.made(mode="idempotent"))
    assert isinstance(error, CommitInDoubt)
    assert "the condition for rows that sink 'topic' cannot hold has changed" in str(error)
    assert job.bad() == []
    job.limit(LIMIT)
    job.run(job.made(mode="idempotent"), job.rows())
    job.check_sorted()


@pytest.mark.wide
@pytest.mark.parametrize("changed", [True, False])
def test_rejects_that_were_lost_after_the_decision_are_told_apart_as_before(job: Sorted, changed: bool) -> None:
    def lose() -> None:
        for file in (job.folder / "bad").glob("*.parquet"):
            file.unlink()
        if changed:
            job.limit(1_000_000)

    with at(Point.BEFORE_SINK_COMMIT, "bad", lose) as struck:
        if not changed:
            job.run(job.made(), job.rows())
        else:
            error = job.fails(job.made())
            assert isinstance(error, CommitInDoubt)
            assert "the condition for rows that sink 'topic' cannot hold has changed" in str(error)
            job.limit(LIMIT)
            job.run(job.made(), job.rows())
    assert struck
    job.check_sorted()


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
def test_what_the_other_sink_computes_is_meant_in_the_zone_of_the_query(job: Sorted, mode: str) -> None:
    job.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        bad = DeltaSink(str(job.folder / "bad"), name="bad", select=["id", "hour(timestamp_seconds(0)) AS hour"])
        job.run(job.made(mode=mode, bad_rows=bad, select=None, where=None), job.rows())
    finally:
        job.spark.conf.unset("spark.sql.session.timeZone")
    assert sorted((row["id"], row["hour"]) for row in read(job.folder / "bad").to_pylist()) == [(2, 9), (3, 9), (4, 9)]


def test_a_function_that_makes_the_value_is_refused(tmp_path: Path) -> None:
    def make() -> Any:
        return lambda row, _: str(row).encode()

    with pytest.raises(Misconfigured, match=r"bad_rows= does not go with a function as value="):
        KafkaSink("localhost:1", topic="t", value=make, bad_rows=DeltaSink(str(tmp_path)))
