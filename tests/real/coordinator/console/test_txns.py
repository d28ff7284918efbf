"""``epochal txns`` beside a start that died with a prepared transaction: it is shown, committed or aborted for real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from epochal import Pipeline
from epochal.coordinator.console import txns
from epochal.coordinator.console.standing import Standing, take
from epochal.coordinator.model.epoch import Committable, Query
from epochal.coordinator.model.failpoints import Point
from epochal.sinks import KafkaSink
from epochal.sinks.kafka.marker import MarkerTopic
from tests.real.coordinator.console.support import Console
from tests.real.sinks.kafka.support import hanging, read_topic

SOON = ("--wait", 0.1)
ADDED: list[str] = []
"""The ids that the tests of this file have added to the rows."""


@pytest.fixture
def left(console: Console) -> Iterator[Console]:
    """Afterwards a start has settled everything."""
    yield console
    console.go()
    assert _one(console, code=0)["is_open"] is False
    assert _values(console) == {f"{n}" for n in range(1, 7)} | set(ADDED)


def _one(console: Console, code: int) -> dict[str, Any]:
    """The transaction of the one transactional id."""
    (sink,) = console.epochal("txns", console.checkpoint, code=code)["sinks"]
    (found,) = sink["transactions"]
    assert isinstance(found, dict)
    return found


def _values(console: Console) -> set[str]:
    return {str(json.loads(record.value or b"{}")["id"]) for record in read_topic(console.bootstrap, console.topic)}


def _crashed(console: Console, point: Point) -> int:
    """Add one row, and let the start die there; return the epoch."""
    ADDED.append(str(100 + len(ADDED)))
    console.add(int(ADDED[-1]))
    before = console.epochal("status", console.checkpoint, code=0)["log"]["last_epoch"]
    console.crash(point)
    return int(before) + 1


def test_a_decided_epoch_is_committed_and_never_aborted(left: Console) -> None:
    epoch = _crashed(left, Point.AFTER_DECIDE)
    found = _one(left, code=1)
    assert (found["state"], found["is_open"], found["epoch"], found["by_log"]) == ("Ongoing", True, epoch, "decided")
    assert (found["transactional_id"], found["timeout_seconds"]) == (f"epochal-{left.app}-topic", 300)
    assert 0 <= found["age_seconds"] < 120
    assert found["open_since"].endswith("Z")
    assert {part.partition("[")[0] for part in found["partitions"]} == {left.topic, f"__epochal.{left.app}.topic"}
    assert "--finish topic --yes" in found["to_do"]

    told = left.epochal("txns", left.checkpoint, "--abort", "topic", "--yes", *SOON, code=1)
    assert "nothing is aborted" in told["error"]["what"]
    assert _one(left, code=1)["producer_epoch"] == found["producer_epoch"]

    shown = left.epochal("txns", left.checkpoint, "--finish", "topic", code=1)
    assert shown["done"][0].startswith(f"--yes would commit epoch {epoch}, which is in epochal-{left.app}-topic")
    assert ADDED[-1] not in _values(left)

    done = left.epochal("txns", left.checkpoint, "--finish", "topic", "--yes", *SOON, code=0)
    assert done["done"] == [f"committed epoch {epoch}: the marker shows position {epoch + 1}"]
    assert done["sinks"][0]["transactions"][0]["state"] in ("PrepareCommit", "CompleteCommit")
    assert ADDED[-1] in _values(left)
    again = left.epochal("txns", left.checkpoint, "--finish", "topic", "--yes", *SOON, code=0)
    assert again["done"] == ["no epoch is decided and not shown: nothing is finished"]


def test_an_epoch_that_is_not_decided_is_aborted_and_never_committed(left: Console) -> None:
    epoch = _crashed(left, Point.AFTER_PREPARE)
    found = _one(left, code=1)
    assert (found["state"], found["epoch"], found["by_log"]) == ("Ongoing", epoch, "not decided")
    assert "--abort topic --yes" in found["to_do"]
    told = left.epochal("txns", left.checkpoint, "--finish", "topic", "--yes", *SOON, code=1)
    assert told["done"] == ["no epoch is decided and not shown: nothing is finished"]
    assert _one(left, code=1)["state"] == "Ongoing"
    left.epochal("txns", left.checkpoint, "--abort", "topic", "--yes", *SOON, code=0)
    after = _one(left, code=0)
    assert after["producer_epoch"] > found["producer_epoch"], "a new producer epoch, so a late EndTxn finds nothing"
    assert hanging(left.bootstrap, left.topic, MarkerTopic(left.app, "topic").topic) == []
    assert ADDED[-1] not in _values(left)


@pytest.mark.remedy("…, and no open transaction holds it: nothing is finished", "start the query")
def test_a_decided_epoch_whose_transaction_was_ended_is_left_to_a_start(left: Console) -> None:
    epoch = _crashed(left, Point.AFTER_DECIDE)
    (sink,) = [sink for sink in left.made().sinks if sink.name == "topic"]
    sink.inspection(Query(left.app, "", "", "")).abort()  # type: ignore[attr-defined]
    words = ["txns", str(left.checkpoint), "--finish", "topic", "--yes", "--wait", "0.1", "--json"]
    told = json.loads(left.command(words, code=1))["error"]
    assert (told["kind"], told["epoch"]) == ("CommitInDoubt", epoch)
    assert told["what"].startswith("decided, and no open transaction holds it")
    assert "Empty" in told["state"]


@pytest.mark.remedy("decided, and the marker does not show it although the commit was asked for", "start the query")
def test_a_commit_is_only_called_one_if_the_marker_shows_it(left: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the transaction is ended just before the commit is asked for."""
    _crashed(left, Point.AFTER_DECIDE)
    finish = KafkaSink.finish

    def late(sink: KafkaSink, committable: Committable) -> None:
        sink.inspection(Query(left.app, "", "", "")).abort()
        finish(sink, committable)

    monkeypatch.setattr(KafkaSink, "finish", late)
    words = ["txns", str(left.checkpoint), "--finish", "topic", "--yes", "--wait", "0", "--json"]
    told = json.loads(left.command(words, code=1))["error"]
    assert "the marker does not show it" in told["what"]
    monkeypatch.undo()


@pytest.mark.remedy("a query runs on this checkpoint: nothing is finished or aborted", "stop the query")
def test_nothing_is_done_beside_a_query_that_runs(left: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start settles between the two looks of the command."""
    _crashed(left, Point.AFTER_DECIDE)
    looks: list[object] = []

    def looking(pipeline: Pipeline, where: str) -> Standing:
        looks.append(pipeline)
        if len(looks) == 2:
            left.go()
        return take(pipeline, where)

    monkeypatch.setattr(txns, "take", looking)
    words = ["txns", str(left.checkpoint), "--finish", "topic", "--yes", "--wait", "0", "--json"]
    told = json.loads(left.command(words, code=1))["error"]
    assert (told["kind"], "nothing is finished or aborted" in told["what"]) == ("Fenced", True)
    assert "the epoch log has grown" in told["state"]


def test_all_transactions_at_brokers_are_listed_by_their_prefix(left: Console) -> None:
    _crashed(left, Point.AFTER_PREPARE)
    name = f"epochal-{left.app}-topic"
    told = left.epochal("txns", "--bootstrap", left.bootstrap, "--prefix", name, code=1)
    assert [(found["transactional_id"], found["state"]) for found in told["transactions"]] == [(name, "Ongoing")]
    told = left.epochal("txns", "--bootstrap", left.bootstrap, "--prefix", f"{name}-no", code=0)
    assert told["transactions"] == []
    assert name in left.told("txns", "--bootstrap", left.bootstrap, code=1)
