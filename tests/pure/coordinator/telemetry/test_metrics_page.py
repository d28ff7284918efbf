"""docs/metrics.md and docs/grafana.json say what the code has: tables, names, examples."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.model import events
from epochal.coordinator.model.log_keys import KEYS
from epochal.coordinator.telemetry import metrics
from epochal.sinks.memory import MemoryServer, MemorySink
from tests.pure.coordinator.protocol.test_coordinator import Batch, World

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
BOARD = json.loads((ROOT / "docs" / "grafana.json").read_text())
SERIES = {name: metric for metric in metrics.METRICS for name in metric.series}
BASE = {field.name for field in dataclasses.fields(events.Event)}


def keys_table() -> str:
    return "\n".join(["| key | meaning |", "|---|---|", *(f"| `{key}` | {meaning} |" for key, meaning in KEYS.items())])


def events_table() -> str:
    rows = ["| event | fields | when |", "|---|---|---|"]
    for kind in events.EVENTS:
        names = [field.name for field in dataclasses.fields(kind) if field.name not in BASE]
        said = " ".join((inspect.getdoc(kind) or "").replace("``", "`").split())
        rows.append(f"| `{kind.__name__}` | {', '.join(f'`{name}`' for name in names)} | {said} |")
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("metrics", metrics.table()),
        ("spans", metrics.table_of_spans()),
        ("keys", keys_table()),
        ("events", events_table()),
    ],
)
def test_the_tables_of_the_page_are_those_of_the_code(name: str, table: str) -> None:
    [shown] = re.findall(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert shown == table


def test_every_event_says_when_it_comes() -> None:
    for kind in events.EVENTS:
        assert kind.__doc__, kind
        assert not kind.__doc__.startswith(f"{kind.__name__}("), f"{kind.__name__} has no docstring of its own"


def test_the_events_of_the_list_are_all_there_are() -> None:
    defined = {kind for _, kind in inspect.getmembers(events, inspect.isclass) if issubclass(kind, events.Event)}
    assert defined == {events.Event, *events.EVENTS}


# --- the dashboard --------------------------------------------------------------------------------


def asked(node: Any) -> Iterator[str]:
    """Every PromQL text of the dashboard."""
    if isinstance(node, dict):
        yield from (node[key] for key in ("expr", "definition") if isinstance(node.get(key), str))
        node = list(node.values())
    if isinstance(node, list):
        for below in node:
            yield from asked(below)


def names_in(queries: list[str]) -> set[str]:
    return {name for query in queries for name in re.findall(r"\bepochal_\w+|\berror_type\b", query)}


LABELS = {name.replace(".", "_") for metric in metrics.METRICS for name in metric.attributes}


def test_every_name_in_the_dashboard_is_of_the_table_and_the_other_way_round() -> None:
    found = names_in(list(asked(BOARD)))
    assert found - LABELS <= SERIES.keys()
    assert {SERIES[name].name for name in found - LABELS} == {metric.name for metric in metrics.METRICS}


def test_the_dashboard_groups_a_metric_by_labels_that_it_has() -> None:
    for query in asked(BOARD):
        names = names_in([query])
        [kinds] = [{SERIES[name] for name in names - LABELS}]
        having = {label.replace(".", "_") for metric in kinds for label in metric.attributes}
        assert names & LABELS <= having, query


def test_the_alerts_of_the_page_ask_for_names_of_the_table() -> None:
    rules = re.findall(r"^\| .* \| `(.*?)`.*\|$", PAGE.partition("## Dashboard")[2].partition("##")[0], re.MULTILINE)
    assert len(rules) == 3
    assert names_in(rules) - LABELS <= SERIES.keys()


def test_the_panels_are_placed_side_by_side() -> None:
    taken = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (metrics.EPOCHS, "epochal_epochs_total"),
        (metrics.SINK_ROWS, "epochal_sink_rows_total"),
        (metrics.IN_DOUBT, "epochal_sink_in_doubt"),
        (metrics.OPEN_AGE, "epochal_open_age_seconds"),
        (metrics.PHASE_SECONDS, "epochal_phase_duration_seconds"),
    ],
)
def test_names_in_prometheus(metric: metrics.Metric, name: str) -> None:
    """As OpenTelemetry's exporter for Prometheus writes them."""
    assert metric.prometheus == name


# --- the examples ---------------------------------------------------------------------------------


def example(name: str) -> str:
    [code] = re.findall(rf"<!-- {name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


def test_the_exporter_is_configured_in_five_lines() -> None:
    lines = [line for line in example("exporter").splitlines() if line]
    assert len(lines) == 5
    compile(example("exporter"), "docs/metrics.md", "exec")


def test_records_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("epochal")
    before = logger.level, list(logger.handlers)
    try:
        exec(example("json"), {})
        world = World()
        world.start(world.sink("a")).run(Batch(0))
    finally:
        logger.setLevel(before[0])
        logger.handlers[:] = before[1]
    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["epochal_event"], told["epochal_rows"]) == ("INFO", "EpochCommitted", 1)


def test_the_hook(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"sinks": [MemorySink("a", MemoryServer())]}
    exec(example("hook"), names)
    world = World()
    for hook in names["pipeline"].consumers()[-1:]:
        world.start(world.sink("a"), telling=events.EventPublisher(Batch(0).ask.query, [hook])).run(Batch(0))
    assert capsys.readouterr().out == "epoch 0: 1 rows\n"
