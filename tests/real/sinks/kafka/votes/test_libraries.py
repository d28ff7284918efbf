"""When executors are asked whether they can write votes, and how long the answer holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.sinks.kafka import possible
from epochal.sinks.questions import Question
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import bar
from tests.real.sinks.kafka.votes.test_votes import Staged
from tests.real.sinks.spark.workers import SLOW_CHECKSUMS, workers_that_load

FACTS = {"longest"}
"""What asking may keep: how long the brokers let a transaction be open, which is asked once."""


@pytest.fixture
def one(spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> Iterator[Staged]:
    yield Staged(spark, kafka_server.bootstrap, topic, stage)
    bar(kafka_server.bootstrap, topic)


def executors_of(one: Staged) -> Question:
    return next(each for each in one.sink.questions(QUERY, None) if each.what == "executors")


def test_asking_changes_nothing(one: Staged, tmp_path: Path) -> None:
    before = dict(vars(one.sink._core))
    with workers_that_load(one.spark, tmp_path / "slow", "google_crc32c", SLOW_CHECKSUMS):
        (told,) = executors_of(one).answer().cautions
        assert "google_crc32c with its C extension" in told
        one.sink.check(QUERY, None)
    after = vars(one.sink._core)
    assert {name for name in after if after[name] is not before[name]} <= FACTS
    assert one.prepare(0, 0, 50).payload["version"] == 2


def test_a_start_asks_an_executor_once(one: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its check has found to be there is not asked again in the first epoch: that would be a Spark job."""
    asked: list[str] = []
    monkeypatch.setattr(possible, "check_executors", lambda sink, *_, **__: asked.append(sink))
    one.sink.check(QUERY, None)
    assert one.prepare(0, 0, 50).payload["version"] == 2
    assert asked == []
    one.sink.close()
    one.sink.look(QUERY)
    assert one.prepare(0, 0, 50).payload["version"] == 2
    assert asked == [one.sink.name]


def test_a_sink_that_was_closed_asks_anew_and_tells_anew(
    one: Staged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines(way: str = possible.REDONE) -> int:
        return sum(each.startswith(f"sink {one.topic}: {way}") for each in caplog.messages)

    caplog.set_level(logging.INFO, "epochal.sinks.kafka")
    with workers_that_load(one.spark, tmp_path / "slow", "google_crc32c", SLOW_CHECKSUMS):
        assert [one.prepare(0, 0, 50).payload["version"] for _ in range(2)] == [1, 1]
        assert lines() == 1
        one.sink.close()
        one.sink.look(QUERY)
        assert one.prepare(0, 0, 50).payload["version"] == 1
        assert lines() == 2
    one.sink.close()
    one.sink.look(QUERY)
    voted, again = (one.prepare(0, 0, 50) for _ in range(2))
    assert (voted.payload["version"], again.payload["version"]) == (2, 2)
    assert (lines(), lines(possible.WRITTEN)) == (2, 1)
    assert caplog.messages[-1].endswith("the durable copy consists of the same record batches")
    one.sink.close()
    one.sink.look(QUERY)
    voted = one.prepare(0, 0, 50)
    assert lines(possible.WRITTEN) == 2
    one.sink.commit(voted, ONE)
    assert one.seen() == list(range(50))


def test_a_closed_sink_knows_nothing(one: Staged) -> None:
    """All that methods note is forgotten, and none of the arguments is."""
    new = vars(one.another()._core)
    one.sink.check(QUERY, None)
    one.sink.commit(one.prepare(0, 0, 50), ONE)
    one.sink.close()
    closed = vars(one.sink._core)
    noted = {name for name, value in new.items() if value is None}
    assert {name for name in noted if closed[name] is not None} == set()
    assert closed["ever_used"] == new["ever_used"]
