"""Turns events into OpenTelemetry's metrics and spans, and uses only OpenTelemetry's API.

``metrics.py`` says what is recorded and under which names.  If nobody has configured OpenTelemetry, its API does
nothing.  If its package is not installed, nothing is recorded and no message is given.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.errors import Fenced
from epochal.coordinator.model.events import (
    SHOWS,
    Closed,
    Consumer,
    Decided,
    EpochBegan,
    EpochCommitted,
    Event,
    Failed,
    PhaseBegan,
    PhaseEnded,
    Retrying,
    Started,
    Step,
    StepBegan,
    StepEnded,
)
from epochal.coordinator.telemetry import metrics
from epochal.coordinator.telemetry.metrics import Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Span, Tracer

SCOPE = "epochal"
"""The name of our instrumentation scope."""

Attributes = Mapping[str, str]


@functools.cache
def telemetry() -> Consumer | None:
    """Return the one consumer for all pipelines of this process, or None without the package ``opentelemetry-api``.

    It uses the process's own OpenTelemetry providers.
    """
    try:
        from opentelemetry import metrics as api
        from opentelemetry import trace
    except ImportError:
        return None
    return Telemetry(api.get_meter(SCOPE), trace.get_tracer(SCOPE))


@dataclass
class _Open:
    """What a query has not finished in this process.  ``since``: when its epoch began, by the monotonic clock."""

    app: str
    since: float | None = None
    in_doubt: dict[str, bool] = field(default_factory=dict)  # by sink

    def settled(self) -> None:
        self.since = None
        self.in_doubt = dict.fromkeys(self.in_doubt, False)


@dataclass
class _Spans:
    """The spans of one start that have not ended."""

    epoch: Span
    phase: Span | None = None
    steps: dict[tuple[Step, str | None], Span] = field(default_factory=dict)

    def all(self) -> list[Span]:
        """Return the spans, the innermost first."""
        return [*reversed(self.steps.values()), *([self.phase] if self.phase is not None else []), self.epoch]


class Telemetry:
    """A consumer of events.  Each start calls it from one thread at a time; several starts may call it at once."""

    def __init__(self, meter: Meter, tracer: Tracer, clock: Callable[[], float] = time.monotonic) -> None:
        self._tracer, self._clock = tracer, clock
        self._open: dict[tuple[str, str], _Open] = {}  # by app and query
        self._spans: dict[tuple[str, str], _Spans] = {}
        self._lock = threading.Lock()
        self._epochs = _counter(meter, metrics.EPOCHS)
        self._rows = _counter(meter, metrics.EPOCH_ROWS)
        self._sink_rows = _counter(meter, metrics.SINK_ROWS)
        self._retries = _counter(meter, metrics.RETRIES)
        self._fences = _counter(meter, metrics.FENCES)
        self._failures = _counter(meter, metrics.FAILURES)
        self._phase_seconds = _histogram(meter, metrics.PHASE_SECONDS)
        self._step_seconds = _histogram(meter, metrics.STEP_SECONDS)
        _gauge(meter, metrics.IN_DOUBT, self._in_doubt)
        _gauge(meter, metrics.OPEN_AGE, self._ages)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._keep(event, self._open.setdefault((event.app, event.query_id), _Open(event.app)))
            self._span(event)
        self._count(event)

    # --- metrics ----------------------------------------------------------------------------------

    def _count(self, event: Event) -> None:
        app = {metrics.APP: event.app}
        match event:
            case Started():
                self._fences.add(1, app)
            case PhaseEnded():
                self._phase_seconds.record(event.seconds, app | {metrics.PHASE: event.phase.value})
            case StepEnded():
                self._count_step(event, app | _of_sink(event.sink))
            case EpochCommitted():
                self._epochs.add(1, app | {metrics.OUTCOME: _outcome(event)})
                self._rows.add(0 if event.replayed else event.rows, app)
            case Retrying():
                self._retries.add(1, app | _of_sink(event.sink) | _of_error(event.error))
            case Failed():
                phase = {metrics.PHASE: event.phase.value} if event.phase is not None else {}
                self._failures.add(1, app | phase | _of_error(event.error))

    def _count_step(self, event: StepEnded, attributes: Attributes) -> None:
        step = {metrics.STEP: event.step.value}
        self._step_seconds.record(event.seconds, {**attributes, **step, **_of_error(event.error)})
        if event.step in SHOWS and event.rows is not None:
            self._sink_rows.add(event.rows, attributes)

    def _keep(self, event: Event, work: _Open) -> None:
        """Keep what the gauges will report."""
        match event:
            case EpochBegan() if work.since is None:
                work.since = self._clock()
            case Started():
                work.in_doubt = {sink: work.in_doubt.get(sink, False) for sink in event.sinks}
            case Decided():
                work.in_doubt |= dict.fromkeys(event.pending, True)
            case StepBegan(sink=str(sink)) if event.step in SHOWS:
                work.in_doubt[sink] = True
            case StepEnded(sink=str(sink), error=None) if event.step in SHOWS:
                work.in_doubt[sink] = False
            case EpochCommitted():
                work.settled()
            case Closed() | Failed(error=Fenced()):  # this process will not finish what is open
                del self._open[event.app, event.query_id]

    def _in_doubt(self, _: CallbackOptions) -> Iterable[Observation]:
        found: dict[tuple[str, str], bool] = {}
        with self._lock:
            for work in self._open.values():
                for sink, doubt in work.in_doubt.items():
                    found[work.app, sink] = found.get((work.app, sink), False) or doubt
        return [_observed(int(doubt), {metrics.APP: a, metrics.SINK: sink}) for (a, sink), doubt in found.items()]

    def _ages(self, _: CallbackOptions) -> Iterable[Observation]:
        now, oldest = self._clock(), dict[str, float]()
        with self._lock:
            for work in self._open.values():
                age = now - work.since if work.since is not None else 0.0
                oldest[work.app] = max(age, oldest.get(work.app, 0.0))
        return [_observed(age, {metrics.APP: app}) for app, age in oldest.items()]

    # --- spans ------------------------------------------------------------------------------------

    def _span(self, event: Event) -> None:
        start = (event.app, event.run_id)
        if isinstance(event, EpochBegan):
            self._spans[start] = _Spans(self._tracer.start_span(metrics.EPOCH_SPAN, attributes=_of_call(event)))
            return
        spans = self._spans.get(start)
        if spans is None:
            return
        match event:
            case PhaseBegan():
                name = f"{metrics.PHASE_SPAN} {event.phase.value}"
                spans.phase = self._child(spans.epoch, name, {metrics.PHASE: event.phase.value})
            case PhaseEnded() if spans.phase is not None:
                spans.phase.end()
                spans.phase = None
            case StepBegan():
                name, attributes = f"{metrics.STEP_SPAN} {event.step.value}", {metrics.STEP: event.step.value}
                child = self._child(spans.phase or spans.epoch, name, attributes | _of_sink(event.sink))
                child.set_attributes({} if event.epoch is None else {metrics.EPOCH: event.epoch})
                spans.steps[event.step, event.sink] = child
            case StepEnded():
                if event.rows is not None:
                    spans.steps[event.step, event.sink].set_attribute(metrics.ROWS, event.rows)
                _end(spans.steps.pop((event.step, event.sink)), event.error)
            case EpochCommitted():
                spans.epoch.set_attributes({metrics.ROWS: event.rows, metrics.OUTCOME: _outcome(event)})
                self._end_all(start, None)
            case Failed():
                self._end_all(start, event.error)

    def _child(self, parent: Span, name: str, attributes: Attributes) -> Span:
        from opentelemetry import trace

        return self._tracer.start_span(name, trace.set_span_in_context(parent), attributes=attributes)

    def _end_all(self, start: tuple[str, str], error: Exception | None) -> None:
        for span in self._spans.pop(start).all():
            _end(span, error)


def _counter(meter: Meter, metric: Metric) -> Any:
    return meter.create_counter(metric.name, metric.unit, metric.meaning)


def _histogram(meter: Meter, metric: Metric) -> Any:
    return meter.create_histogram(
        metric.name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metrics.BUCKETS
    )


def _gauge(meter: Meter, metric: Metric, asked: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
    meter.create_observable_gauge(metric.name, [asked], metric.unit, metric.meaning)


def _observed(value: float, attributes: Attributes) -> Observation:
    from opentelemetry.metrics import Observation

    return Observation(value, attributes)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attributes(_of_error(error))
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _outcome(event: EpochCommitted) -> str:
    return "replayed" if event.replayed else "committed"


def _of_sink(sink: str | None) -> dict[str, str]:
    return {metrics.SINK: sink} if sink is not None else {}


def _of_error(error: BaseException | None) -> dict[str, str]:
    return {metrics.ERROR: type(error).__name__} if error is not None else {}


def _of_call(event: EpochBegan) -> dict[str, str | int]:
    who = {metrics.APP: event.app, metrics.QUERY_ID: event.query_id, metrics.RUN_ID: event.run_id}
    return {**who, **({} if event.epoch is None else {metrics.EPOCH: event.epoch})}
