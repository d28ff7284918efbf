"""What `guarantee()` says of each sink in each mode, held against the table of sinks and against what the sink is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.delta import Merge, Overwrite
from epochal.sinks.postgres import Plain, Upsert
from epochal.sinks.protocol import ApplySink, RedoSink, ReplacingSink, Sink, VotingSink

PAGE = (Path(__file__).parents[3] / "docs" / "sinks.md").read_text()
MADE: dict[str, list[Sink]] = {
    "`PostgresSink`": [PostgresSink("", table="t")],
    "`PostgresSink(mode=Upsert(key=...))`, `mode=Plain()`": [
        PostgresSink("", table="t", mode=Upsert(key="id")),
        PostgresSink("", table="t", mode=Plain()),
    ],
    "`KafkaSink`": [KafkaSink("h:1", topic="t"), KafkaSink("h:1", topic="t", slots=2)],
    "`DeltaSink`": [DeltaSink("/t")],
    "`DeltaSink(mode=Overwrite())`": [DeltaSink("/t", mode=Overwrite())],
    "`DeltaSink(mode=Merge(key=...))`": [DeltaSink("/t", mode=Merge(key="id"))],
}
READERS = {  # as the table says it, to the words of guarantee()
    "read the view, not `<table>__rows`": "for whoever reads the view",
    "nothing: it is the table itself": "for whoever reads the table",
    "`isolation.level=read_committed`": "For consumers with isolation.level=read_committed",
    "any snapshot": "each snapshot shows it whole or not at all",
}
LIMITS = {  # of the table's last column, what guarantee() has to say too
    "takes longer the more rows it has": "takes longer the more rows it has",
    "ends in `CommitInDoubt`": "CommitInDoubt",
    "no snapshot across partitions": "There is no snapshot across partitions",
    "files of a killed prepare wait for `VACUUM`": "until VACUUM",
}


def table() -> dict[str, list[str]]:
    """The page's table of sinks: the first column to the others."""
    [found] = re.findall(r"^\| sink \| kind \|.*?\n\|[-|]+\n(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
    return {sink: rest for sink, *rest in rows}


def promise(sink: Sink, mode: str) -> str:
    return Pipeline(app="app", sinks=[sink], mode=mode).guarantee().sinks[sink.name]


CASES: list[Any] = [pytest.param(row, sink, id=repr(sink)) for row, sinks in MADE.items() for sink in sinks]


def test_every_row_of_the_table_has_a_sink() -> None:
    assert set(table()) == set(MADE)
    told = {cell for _, reader, _ in table().values() for cell in [reader]}
    assert told == set(READERS)


@pytest.mark.parametrize(("row", "sink"), CASES)
def test_the_table_says_what_the_sink_is_and_what_it_promises(row: str, sink: Sink) -> None:
    kind, reader, limits = table()[row]
    assert kind.startswith("votes") != isinstance(sink, RedoSink)
    assert ("the commit removes all that the table held" in kind) == isinstance(sink, ReplacingSink)
    told = promise(sink, "two-phase")
    assert READERS[reader] in told
    assert all(words in told for said, words in LIMITS.items() if said in limits)
    assert "exactly once" in told


@pytest.mark.parametrize(("row", "sink"), CASES)
def test_each_mode_is_promised_as_it_is(row: str, sink: Sink) -> None:  # noqa: ARG001
    two = promise(sink, "two-phase")
    assert "only after the epoch is decided for all sinks. All sinks show the rows of one evaluation, whatever" in two
    redoes = isinstance(sink, RedoSink) and not isinstance(sink, VotingSink)
    assert ("written after the decision, from the durable copy" in two) == redoes
    assert ("shown after it by one request" in two) == (isinstance(sink, VotingSink) and "slots=2" not in _slots(sink))
    assert ("are produced after the decision, by one task" in two) == ("slots=2" in _slots(sink))
    if isinstance(sink, RedoSink) and not (isinstance(sink, ApplySink) and "slots=2" not in _slots(sink)):
        with pytest.raises(Misconfigured):
            promise(sink, "idempotent")
        return
    alone = promise(sink, "idempotent")
    assert "independently of the other sinks, without a common decision" in alone
    assert "exactly once if the query gives the same rows whenever the epoch is run" in alone
    assert "whatever the query is" not in alone


def _slots(sink: Sink) -> str:
    return f"slots={sink._core.slots}" if isinstance(sink, KafkaSink) else ""
