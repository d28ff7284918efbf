"""A start whose epoch is taken from its hands in mid-delivery says so, and leaves the newer start alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.chaos.servers.process import wait_until
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Decision, Epoch
from epochal.coordinator.model.errors import Fenced, SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka import voting
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.reach import reach_of
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO
from tests.real.sinks.kafka.support import bar, hanging
from tests.real.sinks.kafka.votes.test_deliver import soon
from tests.real.sinks.kafka.votes.test_votes import COMMITTED, Votes


@pytest.fixture
def one(spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> Iterator[Votes]:
    yield Votes(spark, kafka_server.bootstrap, topic, stage)
    bar(kafka_server.bootstrap, topic)


def test_a_start_that_was_fenced_while_it_delivered_is_told_so_and_ends_no_newer_transaction(one: Votes) -> None:
    newer = one.another()
    prepared: list[Any] = []

    def take_over(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.IN_WRITE and not prepared:
            prepared.append(None)
            newer.look(QUERY)
            newer.fence(QUERY, TWO)
            older, one.sink = one.sink, newer
            prepared[0] = one.prepare(0, 100, 150, by=TWO)
            one.sink = older

    with failpoints.handler(take_over), pytest.raises(Fenced):
        one.prepare(0, 0, 50)
    assert newer.commit(prepared[0], TWO) is COMMITTED
    assert one.seen() == list(range(100, 150))


def test_a_start_that_was_fenced_while_it_wrote_an_epoch_again_is_told_so(one: Votes, tmp_path: Path) -> None:
    decision = Decision("q1", 0, ONE, "fingerprint")
    epoch = Epoch(decision, 1, "{}", None, None)
    copy = one.sink.stage(epoch, one.rows(0, 50), f"file:{tmp_path}/copy")
    decided = one.sink.prepare(replace(epoch, copy=copy), one.spark.range(0), ONE)
    bar(one.bootstrap, one.topic)  # so it has to be written again
    newer, left = one.another(), [TWO]

    def take_over(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.IN_WRITE and left:
            newer.look(QUERY)
            newer.fence(QUERY, left.pop())

    with failpoints.handler(take_over), pytest.raises(Fenced):
        one.sink.commit(decided, ONE)
    assert not left
    assert newer.commit(decided, TWO) is COMMITTED
    assert one.seen() == list(range(50))


def abort(one: Votes) -> None:
    """End the transaction under its own producer epoch, which goes on: no broker calls the sink's producer old."""
    name = f"epochal-flights-{one.topic}"
    with Cluster(reach_of(one.bootstrap, {}, 60)) as cluster:
        was = cluster.describe_transaction(name, soon())
        assert was.state == "Ongoing"
        assert cluster.end_transaction(name, was.producer, soon(), commit=False) == 0
    assert wait_until(lambda: None if hanging(one.bootstrap, one.topic) else True, 60)


@pytest.mark.parametrize("step", ["_produced", "send_marker", "check_held"])
@pytest.mark.parametrize(
    "end", [pytest.param(lambda one: bar(one.bootstrap, one.topic), id="fenced"), pytest.param(abort, id="aborted")]
)
def test_a_transaction_that_somebody_else_ended_is_begun_anew_by_the_next_attempt(
    one: Votes, monkeypatch: pytest.MonkeyPatch, step: str, end: Callable[[Votes], None]
) -> None:
    real = getattr(voting, step)

    def ending(*given: Any, **named: Any) -> Any:
        end(one)
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(voting, step, ending)
        with pytest.raises(SinkUnavailable, match="another producer ended the transaction"):
            one.prepare(0, 0, 50)
    decided = one.prepare(0, 0, 50)
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(50))


def test_a_transaction_that_is_ended_between_two_answers_is_begun_anew_by_the_next_attempt(one: Votes) -> None:
    left = [one]

    def end(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.IN_WRITE and left:
            left.clear()
            bar(one.bootstrap, one.topic)

    with failpoints.handler(end), pytest.raises(SinkUnavailable, match="another producer ended the transaction"):
        one.prepare(0, 0, 50)
    decided = one.prepare(0, 0, 50)
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(50))
