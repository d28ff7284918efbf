"""Every command after a start has died: what is decided and not shown is found, and nobody touches it."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka.marker import MarkerTopic
from tests.real.coordinator.console.support import SINKS, Console, by_name
from tests.real.sinks.delta import support
from tests.real.sinks.postgres.support import observe

pytestmark = pytest.mark.wide


@pytest.mark.remedy("…, and not shown yet: nothing is aborted", "a decided epoch is finished by starting the query")
def test_a_crash_after_the_decision_is_in_doubt_until_a_start(console: Console) -> None:
    console.add(7, 8)
    console.crash(Point.AFTER_DECIDE)
    told = console.epochal("status", console.checkpoint, code=0)
    assert {row["name"]: (row["in_doubt"], row["lag_epochs"]) for row in told["sinks"]} == dict.fromkeys(
        SINKS, ("decided", 1)
    )
    _no_transaction_of_it_is_aborted(console)
    console.crash(Point.BEFORE_SETTLE)  # its fence has ended Kafka's transaction, which is decided
    told = console.epochal("status", console.checkpoint, code=0)
    assert {row["name"]: (row["in_doubt"], row["lag_epochs"]) for row in told["sinks"]} == {
        **dict.fromkeys(SINKS, ("decided", 1)),
        "topic": (None, 0),
    }
    assert told["spark"] == {"planned": 3, "committed": 2}
    findings = console.epochal("verify", console.checkpoint, "--wait", 0.1, code=1)["findings"]
    assert {(found["kind"], found["sink"], found["epoch"]) for found in findings} == {
        ("in-doubt", name, 3) for name in ("table", "lake")
    }
    _nothing_is_touched_while_it_is_in_doubt(console)
    console.go()
    assert console.epochal("verify", console.checkpoint, code=0)["findings"] == []
    console.epochal("txns", console.checkpoint, "--abort", "topic", "--yes", code=0)
    assert console.epochal("reconcile", console.checkpoint, "table", "lake", code=0)["epochs"] == 4
    _a_foreign_record_in_the_marker_topic_is_a_named_error(console)


def _no_transaction_of_it_is_aborted(console: Console) -> None:
    told = console.command(["txns", str(console.checkpoint), "--abort", "topic", "--yes", "--json"], code=1)
    assert "nothing is aborted" in json.loads(told)["error"]["what"]


def _nothing_is_touched_while_it_is_in_doubt(console: Console) -> None:
    """Although a start of a lower generation made it, and a newer one owns the sinks."""
    rows = observe(console.dsn, "SELECT count(*) FROM rows__rows")
    files, copies = support.data_files(console.lake), sorted((console.checkpoint / "epochal" / "copies").rglob("*"))
    kept = by_name(console.epochal("clean", console.checkpoint, "--yes", code=0)["sinks"])
    for name in ("table", "lake"):
        assert [left["removable"] for left in kept[name]["leftovers"]] == [False]
        assert any("nothing is removed" in note for note in kept[name]["notes"])
    assert observe(console.dsn, "SELECT count(*) FROM rows__rows") == rows
    assert support.data_files(console.lake) == files
    assert sorted((console.checkpoint / "epochal" / "copies").rglob("*")) == copies


def _a_foreign_record_in_the_marker_topic_is_a_named_error(console: Console) -> None:
    """Nothing takes it back."""
    producer = Producer({"bootstrap.servers": console.bootstrap})
    producer.produce(MarkerTopic(console.app, "topic").topic, b"not ours", b"marker")
    assert producer.flush(30) == 0
    told = console.epochal("status", console.checkpoint, code=3)
    assert by_name(told["sinks"])["topic"]["error"]["kind"] == "Misconfigured"
