"""What a real query tells: to OpenTelemetry, to ``on_event``, and in Spark's own progress, as docs/metrics.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured
from epochal.coordinator.model.events import Closed, EpochBegan, EpochCommitted, Event, Failed, InDoubt, StepEnded
from epochal.coordinator.query import pipeline
from epochal.coordinator.telemetry import metrics
from epochal.coordinator.telemetry.otel import Telemetry
from tests.real.coordinator.query.support import APP, WAIT, Job
from tests.real.examples.test_readme import run_example

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def observed(query: StreamingQuery) -> list[dict[str, Any]]:
    """Per epoch what the query's progress says was observed."""
    assert query.awaitTermination(WAIT)
    return [{name: row.asDict() for name, row in p.observedMetrics.items()} for p in query.recentProgress]


def inside(df: DataFrame) -> DataFrame:
    return df.observe("inside", f.count(f.lit(1)).alias("rows"))


@pytest.mark.parametrize(("mode", "evaluations"), [("two-phase", 1), ("idempotent", 2)])
def test_what_reaches_sparks_progress(mode: str, evaluations: int, spark: SparkSession, tmp_path: Path) -> None:
    """The rows that were counted before the batch function; nothing that is observed in it."""
    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1, 2)
    job.add(3)
    made = job.pipeline(mode=mode)

    def function(df: DataFrame, epoch: int) -> None:
        made(inside(df), epoch)

    assert observed(job.start(function, made.observed(job.df()))) == [
        {f"epochal.{APP}": {"rows": 2 * evaluations}},
        {f"epochal.{APP}": {"rows": 1 * evaluations}},
    ]
    assert job.ids("one") == job.ids("two") == [1, 2, 3]


def test_the_example_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    """With a stateful query, whose groups are the rows that the pipeline is given."""
    job = Job(spark, tmp_path)
    job.add(1, 1, 2)
    [code] = re.findall(r"<!-- observed -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert ".writeStream." in code
    once = code.replace(".start()", '.trigger(availableNow=True).outputMode("update").start()')
    names = {
        "pipeline": job.pipeline(),
        "flights": job.df().groupBy("id").count(),
        "CHECKPOINT": str(job.checkpoint),
    }
    assert observed(run_example(once, names)["query"]) == [{f"epochal.{APP}": {"rows": 2}}]


def test_a_dataframe_that_does_not_stream_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="not streaming"):
        Job(spark, tmp_path).pipeline().observed(spark.range(1))


def test_events_and_metrics_of_a_query_that_fails_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the pipeline's own list of consumers, in threads of Spark's; a hook that raises loses nothing."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    telemetry = Telemetry(meters.get_meter("epochal"), pipeline_tracer())
    monkeypatch.setattr(pipeline, "telemetry", lambda: telemetry)
    events: list[Event] = []

    def hook(event: Event) -> None:
        events.append(event)
        if isinstance(event, InDoubt):
            raise ValueError("of my own")

    job = Job(spark, tmp_path, sinks=("one", "two"))
    job.add(1, 2)
    made = job.pipeline(on_event=hook)
    with failpoints.armed("before-sink-commit@two=raise"), pytest.raises(StreamingQueryException):
        job.run(made)
    error = made.last_error
    assert isinstance(error, CommitInDoubt)
    assert isinstance(events[-1], InDoubt)
    assert events[-1].pending == ("two",)
    status = made.status()
    assert (events[-1].app, events[-1].query_id, events[-1].run_id) == (APP, status.query_id, status.run_id)
    assert values(reader, metrics.IN_DOUBT) == {"one": 0, "two": 1}
    assert values(reader, metrics.FAILURES) == {"commit": 1}
    job.add(3)
    job.run(made)
    assert job.ids("one") == job.ids("two") == [1, 2, 3]
    second = events[events.index(next(e for e in events if isinstance(e, InDoubt))) + 1 :]
    assert [e.epoch for e in second if isinstance(e, EpochBegan)] == [0, 1]
    assert [(e.epoch, e.rows, e.replayed) for e in second if isinstance(e, EpochCommitted)] == [
        (0, 2, True),
        (1, 1, False),
    ]
    assert {e.sink for e in second if isinstance(e, StepEnded)} == {None, "one", "two"}
    assert values(reader, metrics.IN_DOUBT) == {"one": 0, "two": 0}
    assert values(reader, metrics.SINK_ROWS) == {"one": 3, "two": 3}
    made.close()
    assert isinstance(events[-1], Closed)
    assert values(reader, metrics.IN_DOUBT) == {}
    meters.shutdown()


def test_a_start_that_is_refused_before_the_protocol_has_failed_too(spark: SparkSession, tmp_path: Path) -> None:
    events: list[Event] = []
    job = Job(spark, tmp_path)
    job.add(1)
    made = job.pipeline(on_event=events.append)
    with pytest.raises(StreamingQueryException, match="called with epoch 7"):
        job.run(lambda df, _: made(df, 7))
    assert [(type(event), event.epoch) for event in events] == [(Failed, 0)]


def pipeline_tracer() -> Any:
    from opentelemetry.trace import NoOpTracer

    return NoOpTracer()


def values(reader: InMemoryMetricReader, metric: metrics.Metric) -> dict[str, float]:
    """By the last attribute but the error's."""
    data = reader.get_metrics_data()
    found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
    by = [name for name in metric.attributes if name != metrics.ERROR][-1]
    return {
        str((point.attributes or {}).get(by)): getattr(point, "value", 0)
        for one in found
        if one.name == metric.name
        for point in one.data.data_points
    }
