"""Epochs that lie in an open transaction: when readers see them, and what becomes of them when something ends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos import servers
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch
from epochal.coordinator.model.errors import Fenced, OutcomeUnknown, PrepareRefused
from epochal.coordinator.model.failpoints import AnswerDropped, Point
from epochal.sinks.kafka import KafkaSink, marker, voting
from epochal.sinks.kafka.delivery import producing
from epochal.sinks.kafka.delivery.encoding import Encoded
from epochal.sinks.kafka.marker import State
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO
from tests.real.sinks.kafka.support import OPTIONS, bar, hanging, read_topic

MANY = 16_000
"""So many rows that each task writes a file."""
COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


class Votes:
    """One topic with a sink on it that votes, fenced by ``ONE``; an epoch is some ids."""

    is_staged = False
    """Whether the sink writes the durable copy itself."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, stage: SparkStage, **options: Any) -> None:
        self.spark, self.bootstrap, self.topic, self.stage = spark, bootstrap, topic, stage
        self.options = {"key": "id", "partitions": 3, "votes": True, **options}
        self.sink = self.another()
        self.sink.create(QUERY, None)
        self.sink.look(QUERY)
        self.sink.fence(QUERY, ONE)

    def another(self, **options: Any) -> KafkaSink:
        return KafkaSink(
            self.bootstrap, topic=self.topic, name=self.topic, **{"options": OPTIONS, **self.options, **options}
        )

    def rows(self, first: int, last: int) -> DataFrame:
        """Ids from ``first`` up to ``last``, in four Spark partitions, each in order."""
        return self.spark.range(first, last, 1, 4).selectExpr("cast(id as string) id", "id % 7 as n")

    def prepare(self, number: int, first: int, last: int, by: Actor = ONE, redo: int = 0) -> Committable:
        return self.prepared(number, self.rows(first, last), by, redo)

    def prepared(self, number: int, rows: DataFrame, by: Actor = ONE, redo: int = 0) -> Committable:
        decision = Decision("q1", number, by, f"fingerprint-{number}", redo)
        epoch = Epoch(decision, number + 1, "{}", None)
        copy = self.sink.stage(epoch, rows, self.stage.reserve(number, by)) if self.is_staged else None
        if copy is not None:
            self.stage.keep(number, copy)
            return self.sink.prepare(replace(epoch, copy=copy), None, by)
        copy = self.stage.write(number, by, rows)
        return self.sink.prepare(replace(epoch, copy=copy), self.stage.read(copy), by)

    def seen(self) -> list[int]:
        """The ids that a read_committed consumer sees."""
        return sorted(int(r.key or b"-1") for r in read_topic(self.bootstrap, self.topic))

    def position(self) -> int:
        marker = self.another().look(QUERY).marker
        return marker.position if marker is not None else 0


class Staged(Votes):
    is_staged = True


@pytest.fixture(params=[Staged, pytest.param(Votes, marks=pytest.mark.wide)], ids=["copy of records", "copy of rows"])
def votes(
    request: pytest.FixtureRequest, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> Iterator[Callable[..., Votes]]:
    yield lambda **options: request.param(spark, kafka_server.bootstrap, topic, stage, **options)
    bar(kafka_server.bootstrap, topic)


def dropping(point: Point) -> Callable[[Point, str, int], None]:
    """The first answer at ``point`` is lost."""
    left = [point]

    def handle(at: Point, _sink: str, _epoch: int) -> None:
        if at in left:
            left.remove(at)
            raise AnswerDropped(at.value)

    return handle


# what readers see


def test_rows_lie_in_kafka_before_the_decision_and_are_seen_after_it(votes: Callable[..., Votes]) -> None:
    one = votes()
    first = one.prepare(0, 0, 50)
    assert first.payload["version"] == 2
    assert (one.seen(), one.position()) == ([], 0)  # nor is the marker, which is in the same transaction
    assert len(hanging(one.bootstrap, one.topic)) == 3  # the rows are there
    assert (one.sink.commit(first, ONE), one.seen(), one.position()) == (COMMITTED, list(range(50)), 1)
    assert hanging(one.bootstrap, one.topic, f"__epochal.flights.{one.topic}") == []
    assert one.sink.commit(first, ONE) is ALREADY
    second = one.prepare(1, 50, 60)
    assert one.sink.commit(second, ONE) is COMMITTED
    assert (one.seen(), one.position()) == (list(range(60)), 2)


def test_an_epoch_without_rows_has_a_marker(votes: Callable[..., Votes]) -> None:
    one = votes()
    empty = one.prepare(0, 0, 0)
    assert (empty.rows, empty.payload["version"]) == (0, 2)
    assert (one.sink.commit(empty, ONE), one.seen(), one.position()) == (COMMITTED, [], 1)


def test_rows_of_a_spark_partition_keep_their_order(votes: Callable[..., Votes]) -> None:
    one = votes(options={**OPTIONS, "batch.num.messages": 7})
    assert one.sink.commit(one.prepare(0, 0, 400), ONE) is COMMITTED
    for partition in range(3):
        ids = [int(r.key or b"") for r in read_topic(one.bootstrap, one.topic) if r.partition == partition]
        for part in range(4):
            mine = [i for i in ids if i // 100 == part]
            assert mine == sorted(mine)


def test_in_a_steady_run_fence_and_marker_need_not_be_read(
    votes: Callable[..., Votes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, reads = votes(), []
    read = marker.read

    def counted(*given: Any, **more: Any) -> State:
        reads.append(given)
        return read(*given, **more)

    monkeypatch.setattr(marker, "read", counted)
    for number in range(3):
        assert one.sink.commit(one.prepare(number, number, number + 1), ONE) is COMMITTED
    assert len(reads) == 1
    bar(one.bootstrap, one.topic)  # somebody came in between
    assert one.sink.commit(one.prepare(3, 3, 4), ONE) is COMMITTED
    assert (len(reads), one.seen()) == (2, [0, 1, 2, 3])


def test_a_fence_between_two_epochs_of_a_steady_run_is_seen(votes: Callable[..., Votes]) -> None:
    one = votes()
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED
    newer = one.another()
    newer.look(QUERY)
    newer.fence(QUERY, TWO)
    with pytest.raises(Fenced):
        one.prepare(1, 50, 60)
    assert one.seen() == list(range(50))


@pytest.mark.wide
def test_the_audit_and_its_retention_are_those_of_any_epoch(votes: Callable[..., Votes]) -> None:
    one = votes(keep_epochs=10)
    for number in range(12):
        one.sink.commit(one.prepare(number, number, number + 1), ONE)
    assert [(epoch.position, epoch.rows) for epoch in one.sink.epochs("flights").rows] == [(n, 1) for n in range(3, 13)]


# what ends the transaction


def test_a_transaction_that_was_ended_after_the_decision_is_redone_from_the_copy(
    votes: Callable[..., Votes], caplog: pytest.LogCaptureFixture
) -> None:
    one = votes()
    decided = one.prepare(0, 0, 50)
    bar(one.bootstrap, one.topic)  # as the broker does when the transaction's timeout is over, or an administrator
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert (one.seen(), one.position()) == (list(range(50)), 1)
    assert one.sink.commit(decided, ONE) is ALREADY
    assert one.seen() == list(range(50))
    assert one.sink.commit(one.prepare(1, 50, 60), ONE) is COMMITTED
    assert caplog.text.count("the transaction of epoch 0 was ended before its commit") == 1
    assert "of epoch 1 was ended" not in caplog.text


def test_a_commit_whose_answer_is_that_of_a_fence_shows_no_row_twice(
    votes: Callable[..., Votes], caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction is committed, and an administrator fences its producer before the request is repeated."""
    one = votes()
    decided = one.prepare(0, 0, 50)
    left = [Point.AFTER_PUBLISH]

    def fence(at: Point, _sink: str, _epoch: int) -> None:
        if at in left:
            left.remove(at)
            bar(one.bootstrap, one.topic)

    with failpoints.handler(fence):
        assert one.sink.commit(decided, ONE) is ALREADY
    assert (one.seen(), one.position(), left) == (list(range(50)), 1, [])
    assert "was ended before its commit" not in caplog.text


def test_a_newer_start_that_did_not_finish_redoes(votes: Callable[..., Votes]) -> None:
    one = votes()
    decided = one.prepare(0, 0, 50)
    newer = one.another()
    newer.look(QUERY)
    newer.fence(QUERY, TWO)
    with pytest.raises(Fenced):
        one.sink.commit(decided, ONE)
    assert one.seen() == []
    assert newer.commit(decided, TWO) is COMMITTED
    assert one.seen() == list(range(50))


def test_a_newer_start_finishes_before_it_fences(votes: Callable[..., Votes]) -> None:
    one = votes()
    decided = Committable.from_json(json.loads(json.dumps(one.prepare(0, 0, 50).to_json())))
    newer = one.another(votes=False)
    newer.look(QUERY)
    newer.finish(decided)
    assert (one.seen(), one.position()) == (list(range(50)), 1)
    newer.fence(QUERY, TWO)
    newer.finish(decided)  # it is committed, and its producer is barred
    assert newer.commit(decided, TWO) is ALREADY
    assert one.seen() == list(range(50))


def test_an_abort_leaves_nothing(votes: Callable[..., Votes]) -> None:
    one = votes()
    one.prepare(0, 0, 50)
    one.sink.abort(QUERY, ONE)
    assert hanging(one.bootstrap, one.topic) == []
    again = one.prepare(0, 0, 50)
    assert one.sink.commit(again, ONE) is COMMITTED
    assert one.seen() == list(range(50))


def test_a_late_commit_of_an_aborted_epoch_shows_nothing(votes: Callable[..., Votes]) -> None:
    one = votes()
    first = one.prepare(0, 0, 50)
    second = one.prepare(0, 100, 150, redo=1)  # prepared anew: the first transaction is barred
    assert one.sink.commit(second, ONE) is COMMITTED
    assert one.seen() == list(range(100, 150))
    with pytest.raises(Exception, match="position 1 was to be written"):
        one.sink.commit(first, ONE)
    assert one.seen() == list(range(100, 150))


# answers that are lost


@pytest.mark.parametrize(
    ("point", "told"),
    [(Point.BEFORE_PUBLISH, "was not asked for"), (Point.AFTER_PUBLISH, "was asked for and not answered")],
)
def test_a_commit_without_an_answer_is_asked_again(votes: Callable[..., Votes], point: Point, told: str) -> None:
    one = votes()
    decided = one.prepare(0, 0, 50)
    with failpoints.handler(dropping(point)), pytest.raises(OutcomeUnknown, match=told):
        one.sink.commit(decided, ONE)
    assert one.sink.commit(decided, ONE) is (COMMITTED if point is Point.BEFORE_PUBLISH else ALREADY)
    assert one.seen() == list(range(50))


def test_a_vote_without_an_answer_is_no_vote(votes: Callable[..., Votes]) -> None:
    one = votes()
    with failpoints.handler(dropping(Point.BEFORE_VOTE)), pytest.raises(AnswerDropped):
        one.prepare(0, 0, 50)
    assert one.seen() == []
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED
    assert one.seen() == list(range(50))


# what a vote is not given for


def test_a_file_that_was_changed_is_not_delivered(votes: Callable[..., Votes], monkeypatch: pytest.MonkeyPatch) -> None:
    one = votes()

    def damaging(session: SparkSession, delivery: producing.Delivery, encoded: Encoded) -> Any:
        files = {str(batch.source) for its in encoded.batches.values() for batch in its}
        for path in map(Path, files):
            path.write_bytes(path.read_bytes().replace(b'"n":3', b'"n":4'))
        return producing.produce(session, delivery, encoded)

    with monkeypatch.context() as patch:
        patch.setattr(voting, "produce", damaging)
        with pytest.raises(PrepareRefused, match="has other bytes"):
            one.prepare(0, 0, MANY)
    assert one.sink.commit(one.prepare(0, 0, MANY), ONE) is COMMITTED
    assert one.seen() == list(range(MANY))


# options


@pytest.mark.parametrize("codec", ["lz4", pytest.param("zstd", marks=pytest.mark.wide), "gzip", "snappy"])
def test_compressed_batches_are_read_back(votes: Callable[..., Votes], codec: str) -> None:
    one = votes(options={**OPTIONS, "compression.type": codec})
    assert one.sink.commit(one.prepare(0, 0, 500), ONE) is COMMITTED
    assert one.seen() == list(range(500))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"slots": 2}, "slots=2"),
        ({"options": {**OPTIONS, "sasl.kerberos.service.name": "kafka"}}, "is librdkafka's alone"),
    ],
)
def test_where_it_cannot_vote_it_redoes_and_says_why(
    votes: Callable[..., Votes], caplog: pytest.LogCaptureFixture, options: dict[str, Any], why: str
) -> None:
    one = votes(**options)
    decided = one.prepare(0, 0, 50)
    assert decided.payload["version"] == 1
    assert why in caplog.text
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(50))
