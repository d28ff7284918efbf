"""Metrics and spans, read where OpenTelemetry's SDK keeps them in memory; and what happens without OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from epochal.coordinator.model.epoch import IDEMPOTENT
from epochal.coordinator.model.errors import CommitInDoubt, Fenced, PrepareRefused, SinkUnavailable
from epochal.coordinator.model.events import EventPublisher
from epochal.coordinator.telemetry import metrics
from epochal.coordinator.telemetry.otel import Telemetry
from epochal.sinks.memory import MemorySink
from epochal.sinks.protocol import Sink
from epochal.sinks.spark.threads import Threads
from tests.pure.coordinator.model.test_events import every_event, failing, start
from tests.pure.coordinator.protocol.test_coordinator import QUERY, Batch, OvertakenLog, Refusing, World


class Seen:
    """A telemetry of one test's own, and what it has told."""

    def __init__(self) -> None:
        self._reader, self._spans = InMemoryMetricReader(), InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters, self.tracers = MeterProvider([self._reader]), tracers
        self.now = 1000.0
        meter, tracer = self.meters.get_meter("epochal"), tracers.get_tracer("epochal")
        self.telemetry = Telemetry(meter, tracer, clock=lambda: self.now)

    def instruments(self) -> dict[str, Metric]:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, metric: metrics.Metric) -> dict[tuple[Any, ...], float]:
        """By the values of the attributes in the table's order; of a histogram how many were recorded."""
        found = self.instruments().get(metric.name)
        points = found.data.data_points if found is not None else []
        return {tuple((p.attributes or {}).get(name) for name in metric.attributes): _value(p) for p in points}

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._spans.get_finished_spans()

    def tree(self) -> list[str]:
        """Spans in the order in which they began, indented below their parents."""
        spans = sorted(self.spans(), key=lambda span: span.start_time or 0)
        parents = {span.context.span_id: span.parent.span_id if span.parent else None for span in spans}

        def depth(span: ReadableSpan) -> int:
            above, levels = parents[span.context.span_id], 0
            while above is not None:
                above, levels = parents[above], levels + 1
            return levels

        return ["  " * depth(span) + f"{span.name} {_sink(span)}".strip() for span in spans]


def _value(point: Any) -> float:
    if isinstance(point, HistogramDataPoint):
        return point.count
    assert isinstance(point, NumberDataPoint)
    return point.value


def _sink(span: ReadableSpan) -> str:
    return str((span.attributes or {}).get(metrics.SINK, ""))


@pytest.fixture
def seen() -> Iterator[Seen]:
    made = Seen()
    yield made
    made.meters.shutdown()
    made.tracers.shutdown()


def test_two_epochs_of_two_sinks(seen: Seen) -> None:
    world = World()
    coordinator = start(world, seen.telemetry, world.sink("a"), world.redo("b"))
    for epoch in (0, 1):
        coordinator.run(Batch(epoch))
    assert seen.values(metrics.EPOCHS) == {("app", "committed"): 2}
    assert seen.values(metrics.EPOCH_ROWS) == {("app",): 2}
    assert seen.values(metrics.SINK_ROWS) == {("app", "a"): 2, ("app", "b"): 2}
    assert seen.values(metrics.FENCES) == {("app",): 1}
    phases = {phase: count for (_, phase), count in seen.values(metrics.PHASE_SECONDS).items()}
    once = dict.fromkeys(("look", "fence", "look-again", "settle"), 1.0)
    assert phases == once | dict.fromkeys(("identify", "prepare", "decide", "commit", "return"), 2.0)
    steps = {(sink, step): count for (_, sink, step, _), count in seen.values(metrics.STEP_SECONDS).items()}
    assert steps == {(None, "copy"): 2} | {(sink, step): 2 for sink in "ab" for step in ("prepare", "commit")}
    assert seen.values(metrics.IN_DOUBT) == {("app", "a"): 0, ("app", "b"): 0}
    assert seen.values(metrics.OPEN_AGE) == {("app",): 0}
    assert seen.values(metrics.RETRIES) == seen.values(metrics.FAILURES) == {}


def test_a_replay_adds_no_rows(seen: Seen) -> None:
    world = World()
    start(world, seen.telemetry, world.sink("a")).run(Batch(0))
    start(world, seen.telemetry, world.sink("a")).run(Batch(0))
    assert seen.values(metrics.EPOCHS) == {("app", "committed"): 1, ("app", "replayed"): 1}
    assert seen.values(metrics.EPOCH_ROWS) == {("app",): 1}
    assert seen.values(metrics.SINK_ROWS) == {("app", "a"): 1}
    assert seen.values(metrics.FENCES) == {("app",): 2}


def test_idempotent_mode(seen: Seen) -> None:
    world = World()
    start(world, seen.telemetry, world.sink("a"), world.redo("b"), mode=IDEMPOTENT).run(Batch(0))
    assert seen.values(metrics.SINK_ROWS) == {("app", "a"): 1, ("app", "b"): 1}
    assert ("app", "b", "apply", None) in seen.values(metrics.STEP_SECONDS)
    assert ("app", "apply") in seen.values(metrics.PHASE_SECONDS)


def test_in_doubt_until_the_next_start_has_settled_it(seen: Seen) -> None:
    world = World()
    down = SinkUnavailable("no answer", sink="b", help="start it")
    with pytest.raises(CommitInDoubt):
        start(world, seen.telemetry, world.sink("a"), failing(world, down)).run(Batch(0))
    seen.now += 60
    assert seen.values(metrics.IN_DOUBT) == {("app", "a"): 0, ("app", "b"): 1}
    assert seen.values(metrics.OPEN_AGE) == {("app",): 60}
    assert seen.values(metrics.RETRIES) == {("app", "b", "SinkUnavailable"): 2}
    assert seen.values(metrics.FAILURES) == {("app", "commit", "CommitInDoubt"): 1}
    assert seen.values(metrics.STEP_SECONDS)["app", "b", "commit", "SinkUnavailable"] == 1
    assert seen.values(metrics.EPOCHS) == {}

    class Looking(MemorySink):
        """What the gauges say in the middle of the next start."""

        def commit(self, committable: Any, by: Any) -> Any:
            ages.update(seen.values(metrics.OPEN_AGE))
            return super().commit(committable, by)

    ages: dict[tuple[Any, ...], float] = {}
    start(world, seen.telemetry, world.sink("a"), Looking("b", world.server)).run(Batch(0))
    assert ages == {("app",): 60}, "the same epoch is under way still"
    assert seen.values(metrics.IN_DOUBT) == {("app", "a"): 0, ("app", "b"): 0}
    assert seen.values(metrics.OPEN_AGE) == {("app",): 0}


def test_what_an_older_process_left_is_in_doubt_from_the_moment_that_it_is_settled(seen: Seen) -> None:
    world, during = World(), list[dict[tuple[Any, ...], float]]()
    with pytest.raises(CommitInDoubt):
        world.start(world.sink("a"), failing(world, SinkUnavailable("no", sink="b", help="none"))).run(Batch(0))

    class Looking(MemorySink):
        def commit(self, committable: Any, by: Any) -> Any:
            during.append(seen.values(metrics.IN_DOUBT))
            return super().commit(committable, by)

    start(world, seen.telemetry, world.sink("a"), Looking("b", world.server)).run(Batch(0))
    assert during == [{("app", "a"): 0, ("app", "b"): 1}]


def test_a_closed_pipeline_has_nothing_open(seen: Seen) -> None:
    world = World()
    telling = EventPublisher(QUERY, [seen.telemetry])
    world.sink("a")
    with pytest.raises(PrepareRefused):
        world.start(Refusing("a", world.server), telling=telling).run(Batch(0))
    seen.now += 5
    assert seen.values(metrics.OPEN_AGE) == {("app",): 5}
    telling.closed()
    assert seen.values(metrics.OPEN_AGE) == {}


def test_a_start_that_was_fenced_has_nothing_open_any_more(seen: Seen) -> None:
    """Its epoch is the newer start's, whose process tells of it."""
    world = World()
    world.log = OvertakenLog()
    with pytest.raises(Fenced):
        start(world, seen.telemetry, world.sink("a")).run(Batch(0))
    assert seen.values(metrics.FAILURES) == {("app", "decide", "Fenced"): 1}
    assert seen.values(metrics.OPEN_AGE) == seen.values(metrics.IN_DOUBT) == {}


def test_every_instrument_of_the_table_and_no_other(seen: Seen) -> None:
    """With the names, units, words and attributes that the table has."""
    every_event(World(), seen.telemetry)
    made = seen.instruments()
    assert set(made) == {metric.name for metric in metrics.METRICS}
    for metric in metrics.METRICS:
        assert (made[metric.name].unit, made[metric.name].description) == (metric.unit, metric.meaning)
        for point in made[metric.name].data.data_points:
            assert set(point.attributes or {}) <= set(metric.attributes), metric.name
        seen_together = {name for point in made[metric.name].data.data_points for name in point.attributes or {}}
        assert seen_together == set(metric.attributes), metric.name


def test_bounds_of_the_histograms_are_seconds(seen: Seen) -> None:
    world = World()
    start(world, seen.telemetry, world.sink("a")).run(Batch(0))
    for metric in (metrics.PHASE_SECONDS, metrics.STEP_SECONDS):
        for point in seen.instruments()[metric.name].data.data_points:
            assert isinstance(point, HistogramDataPoint)
            assert tuple(point.explicit_bounds) == metrics.BUCKETS


def test_one_span_per_epoch_with_its_phases_and_the_sinks_steps(seen: Seen) -> None:
    world = World()
    coordinator = start(world, seen.telemetry, world.sink("a"), world.sink("b"), runner=Threads(lambda: None))
    coordinator.run(Batch(0))
    first = seen.tree()
    assert first[:6] == [
        "epochal.epoch",
        *(f"  epochal.phase {phase}" for phase in ("look", "fence", "look-again", "settle", "identify")),
    ]
    coordinator.run(Batch(1))
    second = seen.tree()[len(first) :]
    assert sorted(second[4:6]) == ["    epochal.step prepare a", "    epochal.step prepare b"]
    assert [line for line in second if "step" not in line] == [
        "epochal.epoch",
        *(f"  epochal.phase {phase}" for phase in ("identify", "prepare", "decide", "commit", "return")),
    ]
    assert {name for name in seen.tree() if "step" in name} == {
        "    epochal.step copy",
        *(f"    epochal.step {step} {sink}" for step in ("prepare", "commit") for sink in "ab"),
    }
    root = max((span for span in seen.spans() if span.parent is None), key=lambda span: span.start_time or 0)
    assert root.attributes == {
        metrics.APP: "app",
        metrics.QUERY_ID: "query",
        metrics.RUN_ID: "run",
        metrics.EPOCH: 1,
        metrics.ROWS: 1,
        metrics.OUTCOME: "committed",
    }
    assert all(span.status.status_code is StatusCode.UNSET for span in seen.spans())


def test_spans_have_the_names_and_attributes_of_the_table(seen: Seen) -> None:
    every_event(World(), seen.telemetry)
    table = {name.split(" ")[0]: set(attributes) for name, (_, attributes) in metrics.SPANS.items()}
    found: dict[str, set[str]] = {}
    for span in seen.spans():
        found.setdefault(span.name.split(" ")[0], set()).update(span.attributes or {})
    assert {name: attributes - {metrics.ERROR} for name, attributes in found.items()} == table


def test_an_error_ends_every_span_that_is_open(seen: Seen) -> None:
    world = World()
    down = SinkUnavailable("no answer", sink="b", help="start it")
    with pytest.raises(CommitInDoubt):
        start(world, seen.telemetry, world.sink("a"), failing(world, down)).run(Batch(0))
    failed = {span.name: span for span in seen.spans() if span.status.status_code is StatusCode.ERROR}
    assert {name: (span.attributes or {})[metrics.ERROR] for name, span in failed.items()} == {
        "epochal.step commit": "SinkUnavailable",
        "epochal.phase commit": "CommitInDoubt",
        "epochal.epoch": "CommitInDoubt",
    }
    assert [event.name for event in failed["epochal.epoch"].events] == ["exception"]


def test_two_queries_at_once_have_spans_and_gauges_of_their_own(seen: Seen) -> None:
    """As one process may run them: the second begins and ends while the first is in its commit."""
    first, second = World(), World()

    class Between(MemorySink):
        def commit(self, committable: Any, by: Any) -> Any:
            other = EventPublisher(type(QUERY)("other", "query-2", "run-2", ""), [seen.telemetry])
            second.start(second.sink("z"), telling=other).run(Batch(0))
            return super().commit(committable, by)

    first.sink("a")
    sinks: list[Sink] = [Between("a", first.server)]
    start(first, seen.telemetry, *sinks).run(Batch(0))
    roots = [span for span in seen.spans() if span.parent is None]
    assert [(span.attributes or {})[metrics.APP] for span in roots] == ["other", "app"]
    assert seen.values(metrics.IN_DOUBT) == {("app", "a"): 0, ("other", "z"): 0}


BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import epochal
from epochal.coordinator.telemetry.otel import telemetry
assert telemetry() is None
from epochal.sinks.memory import MemoryServer, MemorySink
pipeline = epochal.Pipeline(app="app", sinks=[MemorySink("a", MemoryServer())])
assert [consumer.__name__ for consumer in pipeline.consumers()] == ["record"]
"""

NOTHING_CONFIGURED = """
import sys
import epochal
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "imported before it is needed"
from epochal.coordinator.telemetry.otel import Telemetry, telemetry
assert isinstance(telemetry(), Telemetry) and telemetry() is telemetry()
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
from tests.pure.coordinator.protocol.test_coordinator import Batch, World
from tests.pure.coordinator.model.test_events import start
world = World()
start(world, telemetry(), world.sink("a")).run(Batch(0))
"""

CONFIGURED_LATER = """
from epochal.coordinator.telemetry.otel import telemetry
listening = telemetry()
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
from tests.pure.coordinator.protocol.test_coordinator import Batch, World
from tests.pure.coordinator.model.test_events import start
world = World()
start(world, listening, world.sink("a")).run(Batch(0))
[scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
assert scope.scope.name == "epochal"
assert "epochal.epochs" in {metric.name for metric in scope.metrics}
"""


@pytest.mark.parametrize("script", [BLOCKED, NOTHING_CONFIGURED, CONFIGURED_LATER])
def test_without_opentelemetry_without_a_provider_and_with_one_that_comes_later(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
