"""The table of metrics and spans: every name, unit and meaning in one place.

``otel.py`` makes its instruments from this table, and ``docs/metrics.md`` shows it.  ``docs/grafana.json`` uses the
names that Prometheus gives these metrics.  Tests compare both files with this table.  Names and units follow
OpenTelemetry's conventions: https://opentelemetry.io/docs/specs/semconv/general/metrics/.
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
    """The kind of an instrument; the value is OpenTelemetry's term."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True)
class Metric:
    """One instrument.  ``unit`` is written in UCUM, as OpenTelemetry requires."""

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    meaning: str

    @property
    def prometheus(self) -> str:
        """The metric's name in Prometheus, as OpenTelemetry specifies it: no dots, the unit added, ``_total`` added."""
        name = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        return f"{name}_total" if self.kind is Kind.COUNTER else name

    @property
    def series(self) -> tuple[str, ...]:
        """The names of the metric's series in Prometheus."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.prometheus}_{part}" for part in ("bucket", "sum", "count"))
        return (self.prometheus,)


EPOCHS = Metric(
    "epochal.epochs",
    Kind.COUNTER,
    "{epoch}",
    (APP, OUTCOME),
    "Epochs that every sink shows. Outcome `committed`: committed now; `replayed`: asked for again by Spark and"
    " visible already",
)
EPOCH_ROWS = Metric("epochal.rows", Kind.COUNTER, "{row}", (APP,), "Rows of the micro-batches that were committed")
SINK_ROWS = Metric(
    "epochal.sink.rows",
    Kind.COUNTER,
    "{row}",
    (APP, SINK),
    "Rows that a sink has made visible. A Kafka sink in idempotent mode also counts the rows that it leaves out",
)
PHASE_SECONDS = Metric(
    "epochal.phase.duration", Kind.HISTOGRAM, "s", (APP, PHASE), "Duration of a phase that ended without an error"
)
STEP_SECONDS = Metric(
    "epochal.step.duration",
    Kind.HISTOGRAM,
    "s",
    (APP, SINK, STEP, ERROR),
    "How long a step took: `prepare`, `commit` and `apply` have a sink; `copy`, `redo` and `compact` are done once for"
    " all sinks and have none; `error.type` only if the step failed",
)
RETRIES = Metric(
    "epochal.retries",
    Kind.COUNTER,
    "{retry}",
    (APP, SINK, ERROR),
    "Calls that failed and may be repeated; a call to the epoch log has no sink",
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
    "1 while a decided epoch is not known to be visible in the sink, else 0; it stays 1 for long only after an error",
)
OPEN_AGE = Metric(
    "epochal.open.age",
    Kind.GAUGE,
    "s",
    (APP,),
    "Age in seconds of the oldest epoch that some sink does not show yet, since it began in this process; 0 if none",
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
"""Upper bounds of the histograms, in seconds.  They are advice: a view of the user overrides them."""

EPOCH_SPAN = "epochal.epoch"
PHASE_SPAN = "epochal.phase"
STEP_SPAN = "epochal.step"
SPANS = {
    EPOCH_SPAN: ("one call of the pipeline", (APP, EPOCH, QUERY_ID, RUN_ID, ROWS, OUTCOME)),
    f"{PHASE_SPAN} <phase>": ("child of it, one per phase; the first call has the phases of the start, too", (PHASE,)),
    f"{STEP_SPAN} <step>": ("child of the phase, one per step and sink", (STEP, SINK, EPOCH, ROWS)),
}
"""Span -> what it is, and its attributes.  A failed span also has ``error.type``, and the exception as an event."""


def table() -> str:
    """Return the table of metrics in Markdown, as docs/metrics.md shows it."""
    rows = ["| metric | kind, unit | attributes | meaning | in Prometheus |", "|---|---|---|---|---|"]
    for metric in METRICS:
        kind = f"{metric.kind.value}, `{metric.unit}`"
        rows.append(
            f"| `{metric.name}` | {kind} | {_names(metric.attributes)} | {metric.meaning} | `{metric.prometheus}` |"
        )
    return "\n".join(rows)


def table_of_spans() -> str:
    """Return the table of spans in Markdown."""
    rows = ["| span | what it is | attributes |", "|---|---|---|"]
    rows += [f"| `{name}` | {what} | {_names(attributes)} |" for name, (what, attributes) in SPANS.items()]
    return "\n".join(rows)


def _names(attributes: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in attributes)
