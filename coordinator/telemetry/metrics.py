"""The table of metrics and spans: every name, unit and meaning, once.

``otel.py`` makes its instruments of it, ``docs/metrics.md`` shows it, and ``docs/grafana.json`` asks for
these names as Prometheus knows them; tests hold both against it.  Names and units follow OpenTelemetry's
conventions: https://opentelemetry.io/docs/specs/semconv/general/metrics/.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

APP = "epochal.app"
SINK = "epochal.sink"
PHASE = "epochal.phase"
STEP = "epochal.step"
OUTCOME = "epochal.outcome"
ERROR = "error.type"  # OpenTelemetry's own
EPOCH = "epochal.epoch"
QUERY_ID = "epochal.query_id"
RUN_ID = "epochal.run_id"
ROWS = "epochal.rows"


class Kind(enum.Enum):
    """Of an instrument; the value is OpenTelemetry's word."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True)
class Metric:
    """One instrument; ``unit`` in UCUM, as OpenTelemetry wants it."""

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    meaning: str

    @property
    def prometheus(self) -> str:
        """Its name after the translation that OpenTelemetry specifies for Prometheus: no dots, the unit, ``_total``."""
        name = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        return f"{name}_total" if self.kind is Kind.COUNTER else name

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in Prometheus."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.prometheus}_{part}" for part in ("bucket", "sum", "count"))
        return (self.prometheus,)


EPOCHS = Metric(
    "epochal.epochs",
    Kind.COUNTER,
    "{epoch}",
    (APP, OUTCOME),
    "Epochs that every sink shows: `committed` now, or `replayed` by Spark and visible already",
)
EPOCH_ROWS = Metric("epochal.rows", Kind.COUNTER, "{row}", (APP,), "Rows of the micro-batches that were committed")
SINK_ROWS = Metric("epochal.sink.rows", Kind.COUNTER, "{row}", (APP, SINK), "Rows that a sink has made visible")
PHASE_SECONDS = Metric(
    "epochal.phase.duration", Kind.HISTOGRAM, "s", (APP, PHASE), "How long a phase took that went through"
)
STEP_SECONDS = Metric(
    "epochal.step.duration",
    Kind.HISTOGRAM,
    "s",
    (APP, SINK, STEP, ERROR),
    "How long a step took: of a sink `prepare`, `commit` or `apply`; for all of them `copy`, `redo`, `compact`,"
    " which have no sink; `error.type` where it failed",
)
RETRIES = Metric(
    "epochal.retries",
    Kind.COUNTER,
    "{retry}",
    (APP, SINK, ERROR),
    "Calls that failed and may be made again; without a sink: of the epoch log",
)
FENCES = Metric(
    "epochal.fences", Kind.COUNTER, "{fence}", (APP,), "Starts that have fenced the log and every sink, one per start"
)
FAILURES = Metric(
    "epochal.failures",
    Kind.COUNTER,
    "{failure}",
    (APP, PHASE, ERROR),
    "Starts that ended with an error; `Fenced`: another start has taken over, `CommitInDoubt`: an epoch is left open",
)
IN_DOUBT = Metric(
    "epochal.sink.in_doubt",
    Kind.GAUGE,
    "{epoch}",
    (APP, SINK),
    "1 while a decided epoch is not known to be visible in the sink, else 0; more than moments only after an error",
)
OPEN_AGE = Metric(
    "epochal.open.age",
    Kind.GAUGE,
    "s",
    (APP,),
    "Since when the oldest epoch that not every sink shows has been under way in this process; 0 if there is none",
)

METRICS = (
    EPOCHS,
    EPOCH_ROWS,
    SINK_ROWS,
    PHASE_SECONDS,
    STEP_SECONDS,
    RETRIES,
    FENCES,
    FAILURES,
    IN_DOUBT,
    OPEN_AGE,
)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms, in seconds; advice, which a view of the user's overrules."""

EPOCH_SPAN = "epochal.epoch"
PHASE_SPAN = "epochal.phase"
STEP_SPAN = "epochal.step"
SPANS = {
    EPOCH_SPAN: ("one call of the pipeline", (APP, EPOCH, QUERY_ID, RUN_ID, ROWS, OUTCOME)),
    f"{PHASE_SPAN} <phase>": ("its child, one per phase; those of the start in the first call", (PHASE,)),
    f"{STEP_SPAN} <step>": ("child of the phase, one per step and sink", (STEP, SINK, EPOCH, ROWS)),
}
"""Span -> what it is, and its attributes; one that failed has ``error.type`` and the exception as an event too."""


def table() -> str:
    """The table of metrics in Markdown, as docs/metrics.md shows it."""
    rows = ["| metric | kind, unit | attributes | meaning | in Prometheus |", "|---|---|---|---|---|"]
    for metric in METRICS:
        kind = f"{metric.kind.value}, `{metric.unit}`"
        rows.append(
            f"| `{metric.name}` | {kind} | {_names(metric.attributes)} | {metric.meaning} | `{metric.prometheus}` |"
        )
    return "\n".join(rows)


def table_of_spans() -> str:
    """The table of spans in Markdown."""
    rows = ["| span | what it is | attributes |", "|---|---|---|"]
    rows += [f"| `{name}` | {what} | {_names(attributes)} |" for name, (what, attributes) in SPANS.items()]
    return "\n".join(rows)


def _names(attributes: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in attributes)
