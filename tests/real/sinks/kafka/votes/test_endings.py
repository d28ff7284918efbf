"""What may come between a vote and its end: newer starts, operators, clocks, options.  No row is lost or twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.chaos.servers.process import wait_until
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Committable, Decision, Epoch
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    Fenced,
    MarkerLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka import KafkaSink, committing, ending, voting
from epochal.sinks.kafka.wire import cluster
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.messages import TransactionState
from epochal.sinks.kafka.wire.reach import reach_of
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO
from tests.real.sinks.kafka.support import OPTIONS, bar, hanging
from tests.real.sinks.kafka.votes.test_deliver import soon
from tests.real.sinks.kafka.votes.test_votes import Votes

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED
ONLY_LIBRDKAFKAS = {**OPTIONS, "sasl.kerberos.service.name": "kafka"}
FEW = list(range(50))


@pytest.fixture
def make(
    spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
) -> Iterator[Callable[..., Votes]]:
    yield lambda **options: Votes(spark, kafka_server.bootstrap, topic, stage, **options)
    bar(kafka_server.bootstrap, topic)


@pytest.fixture
def one(make: Callable[..., Votes]) -> Votes:
    return make()


def newer_of(one: Votes, **options: Any) -> KafkaSink:
    """The sink of a newer start, which has fenced it."""
    newer = one.another(**options)
    newer.look(QUERY)
    newer.fence(QUERY, TWO)
    return newer


def state_of(one: Votes) -> TransactionState:
    with Cluster(reach_of(one.bootstrap, {}, 60)) as cluster:
        return cluster.describe_transaction(f"epochal-flights-{one.topic}", soon())


def redoing(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is produced from the copy from now on."""
    attempt, made = committing.attempt_once, list[object]()

    def noting(*given: Any) -> object:
        made.append(given[1].position)
        return attempt(*given)

    monkeypatch.setattr(committing, "attempt_once", noting)
    return made


# zombies


STEPS = [
    *(pytest.param(step, marks=pytest.mark.wide) for step in ("encoded_rows", "opened", "_produced", "send_marker")),
    "check_held",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_newer_start_that_fences_between_two_steps_of_a_prepare(
    one: Votes, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The older one gives no vote and shows nothing.  It may try again, and is fenced then."""
    real, newer = getattr(voting, step), list[KafkaSink]()

    def waking(*given: Any, **named: Any) -> Any:
        if not newer:
            newer.append(newer_of(one))
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(voting, step, waking)
        with pytest.raises((Fenced, SinkUnavailable)):
            one.prepare(0, 0, 50)
    with pytest.raises(Fenced):
        one.prepare(0, 0, 50)
    assert one.seen() == []
    one.sink = newer[0]
    decided = one.prepare(0, 100, 150, by=TWO)
    assert one.sink.commit(decided, TWO) is COMMITTED
    assert one.seen() == list(range(100, 150))


def test_an_older_start_that_wakes_destroys_a_vote_and_no_row(one: Votes) -> None:
    """It bars the newer producer before it reads that it is fenced.  The epoch is then produced from the copy."""
    zombie, one.sink = one.sink, newer_of(one)
    decided = one.prepare(0, 0, 50, by=TWO)
    newer, one.sink = one.sink, zombie
    with pytest.raises(Fenced):
        one.prepare(0, 500, 550)
    assert newer.commit(decided, TWO) is COMMITTED
    assert (one.seen(), one.position()) == (FEW, 1)


def test_finish_of_a_start_that_was_fenced_itself_changes_nothing(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for the end of a transaction that was barred long ago, while the newer start has one open."""
    old, older = one.prepare(0, 0, 50), one.sink
    one.sink = newer_of(one)
    assert one.sink.commit(old, TWO) is COMMITTED  # from the copy
    decided = one.prepare(1, 50, 60, by=TWO)
    older.finish(old)
    assert (one.seen(), one.position()) == (FEW, 1)
    redone = redoing(monkeypatch)
    assert one.sink.commit(decided, TWO) is COMMITTED
    assert (one.seen(), one.position(), redone) == (list(range(60)), 2, [])


# the clock


@pytest.mark.wide
def test_a_transaction_that_expires_is_redone_from_the_copy(make: Callable[..., Votes]) -> None:
    """Whether its time is over before the decision or after it: the sink cannot know which, and it is the same."""
    one = make(transaction_timeout=1)
    decided = one.prepare(0, 0, 50)
    assert state_of(one).state == "Ongoing"
    assert wait_until(lambda: state_of(one).state == "CompleteAbort" or None, 60)
    assert hanging(one.bootstrap, one.topic) == []
    one.sink.finish(decided)
    assert one.seen() == []
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert (one.seen(), one.position()) == (FEW, 1)
    assert one.sink.commit(decided, ONE) is ALREADY


@pytest.mark.parametrize(
    "step", [*(pytest.param(step, marks=pytest.mark.wide) for step in ("_produced", "send_marker")), "check_held"]
)
@pytest.mark.remedy(
    "the epoch could not be written within the transaction timeout of … s: …", "raise transaction_timeout="
)
def test_a_transaction_that_expires_before_the_vote_is_told_as_too_slow(
    make: Callable[..., Votes], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    one, real = make(transaction_timeout=1), getattr(voting, step)

    def slow(*given: Any) -> Any:
        wait_until(lambda: state_of(one).state != "Ongoing" or None, 5)
        return real(*given)

    monkeypatch.setattr(voting, step, slow)
    with pytest.raises(PrepareRefused, match="within the transaction timeout of 1 s"):
        one.prepare(0, 0, 50)
    assert one.seen() == []
    one.sink = one.another(transaction_timeout=60)
    one.sink.look(QUERY)
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED
    assert one.seen() == FEW


# topics


@pytest.mark.parametrize("partitions", [3, pytest.param(5, marks=pytest.mark.wide)])
def test_rows_of_a_topic_that_was_made_again_are_not_called_shown(
    one: Votes, kafka_server: servers.Kafka, partitions: int
) -> None:
    decided = one.prepare(0, 0, 50)
    kafka_server.delete_topic(one.topic)
    kafka_server.create_topic(one.topic, partitions)
    one.sink.finish(decided)
    with pytest.raises(CheckpointMismatch, match="is not the one that the epoch was prepared for"):
        one.sink.commit(decided, ONE)
    assert (one.seen(), one.position()) == ([], 0)


@pytest.mark.remedy(
    "a topic was deleted while the epoch was written into it: …",
    "create it again and restart the query, whose error then says how to go on",
)
def test_a_topic_that_is_deleted_while_rows_are_delivered_is_named(
    make: Callable[..., Votes], kafka_server: servers.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told as too slow, and not only when the time of the transaction is over."""
    one, deleted = make(transaction_timeout=60), list[str]()
    monkeypatch.setattr(cluster, "GONE_S", 1.0)

    def delete(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.IN_WRITE and not deleted:
            deleted.append(one.topic)
            kafka_server.delete_topic(one.topic)

    with failpoints.handler(delete), pytest.raises(PrepareRefused, match=r"was deleted while .*no leader"):
        one.prepare(0, 0, 50)
    kafka_server.create_topic(one.topic, 3)
    one.sink = one.another()
    one.sink.look(QUERY)
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED
    assert one.seen() == FEW


@pytest.mark.wide
def test_partitions_that_are_added_change_nothing(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = one.prepare(0, 0, 50)
    with AdminClient({"bootstrap.servers": one.bootstrap}) as admin:
        admin.create_partitions([NewPartitions(one.topic, 6)])[one.topic].result(120)
    redone = redoing(monkeypatch)
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert (one.seen(), redone) == (FEW, [])


# operators


@pytest.mark.wide
def test_an_operator_who_aborts_transactions_costs_a_redo(one: Votes) -> None:
    decided = one.prepare(0, 0, 50)
    assert one.sink.inspection(QUERY).abort() == [f"epochal-flights-{one.topic}"]
    assert hanging(one.bootstrap, one.topic) == []
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert (one.seen(), one.position()) == (FEW, 1)


@pytest.mark.wide
def test_a_marker_that_an_operator_wrote_bars_what_was_prepared(one: Votes) -> None:
    """As `epochal resolve` does for an epoch that it gives up."""
    decided = one.prepare(0, 0, 50)
    given_up = replace(ending.Vote.of(decided).marker, decision=7)  # type: ignore[union-attr]
    one.sink.mark(QUERY, given_up, ONE)
    one.sink.finish(decided)
    with pytest.raises((CheckpointMismatch, MarkerLost)):
        one.sink.commit(decided, ONE)
    assert (one.seen(), one.another().look(QUERY).marker) == ([], given_up)
    assert one.sink.commit(one.prepare(1, 50, 60), ONE) is COMMITTED
    assert one.seen() == list(range(50, 60))


# what a start has, and the one before had not


@pytest.mark.parametrize("is_newer", [True, pytest.param(False, marks=pytest.mark.wide)])
def test_a_start_whose_options_only_librdkafka_has_redoes(
    one: Votes, is_newer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot end the transaction by hand, and says so; the copy is there."""
    decided = one.prepare(0, 0, 50)
    sink, by = one.another(options=ONLY_LIBRDKAFKAS), TWO if is_newer else ONE
    sink.look(QUERY)
    sink.finish(decided)
    assert "this start cannot end transaction" in caplog.text
    assert "sasl.kerberos.service.name" in caplog.text
    assert one.seen() == []
    sink.fence(QUERY, by)
    assert sink.commit(decided, by) is COMMITTED
    assert (one.seen(), one.position()) == (FEW, 1)


def test_a_vote_of_a_newer_epochal_is_not_ended(one: Votes) -> None:
    decided = one.prepare(0, 0, 50)
    newer = replace(decided, payload={**decided.payload, "version": 3})
    for end in (lambda: one.sink.finish(newer), lambda: one.sink.commit(newer, ONE)):
        with pytest.raises(CommitInDoubt, match="by a newer Epochal: its committable is of version 3"):
            end()
    assert one.seen() == []
    assert one.sink.commit(decided, ONE) is COMMITTED


@pytest.mark.wide
def test_an_epoch_that_no_transaction_holds_is_committed_by_a_start_that_votes(
    make: Callable[..., Votes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(votes=False)
    decided = one.prepare(0, 0, 50)
    newer = one.another(votes=True)
    newer.look(QUERY)
    newer.finish(decided)
    newer.fence(QUERY, TWO)
    assert newer.commit(decided, TWO) is COMMITTED
    one.sink = newer
    following = one.prepare(1, 50, 60, by=TWO)
    redone = redoing(monkeypatch)
    assert newer.commit(following, TWO) is COMMITTED
    assert (one.seen(), redone) == (list(range(60)), [])


@pytest.mark.wide
def test_a_sink_that_was_used_in_slots_redoes_and_says_why(
    make: Callable[..., Votes], caplog: pytest.LogCaptureFixture
) -> None:
    one = make(votes=False, slots=2)
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED
    one.sink = one.another(votes=True, slots=1)
    one.sink.look(QUERY)
    one.sink.fence(QUERY, TWO)
    decided = one.prepare(1, 50, 60, by=TWO)
    assert (decided.payload["version"], "was used with slots=2" in caplog.text) == (1, True)
    assert one.sink.commit(decided, TWO) is COMMITTED
    assert one.seen() == list(range(60))


@pytest.mark.wide
def test_a_broker_that_is_too_old_gets_no_vote(
    one: Votes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[float] = []

    def lacking(_: Cluster, deadline: float) -> list[str]:
        told.append(deadline)
        return ["the broker is older than Kafka 3.7"]

    monkeypatch.setattr(Cluster, "lacking", lacking)
    for number in range(2):
        decided = one.prepare(number, 50 * number, 50 * number + 50)
        assert decided.payload["version"] == 1
        assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(100))
    assert caplog.text.count("older than Kafka 3.7") == len(told) == 1


@pytest.mark.wide
def test_idempotent_mode_takes_no_vote_and_ends_what_was_prepared(one: Votes) -> None:
    one.prepare(0, 500, 550)
    applied = one.sink.apply(Epoch(Decision("q1", 0, ONE, "f"), 1, "{}", None, digest=True), one.rows(0, 50), ONE, None)
    assert applied.digest.rows == 50
    assert (one.seen(), one.position()) == (FEW, 1)
    assert hanging(one.bootstrap, one.topic) == []


@pytest.mark.wide
def test_a_decision_on_other_rows_does_not_end_the_transaction(one: Votes) -> None:
    """A committable whose decision is another one than that in the marker that was written with the rows."""
    decided = one.prepare(0, 0, 50)
    other = replace(decided, decision=replace(decided.decision, redo=1))
    assert isinstance(other, Committable)
    one.sink.finish(other)
    assert (one.seen(), one.position()) == ([], 0)
    assert one.sink.commit(other, ONE) is COMMITTED  # from the copy, with a marker of this decision
    assert one.seen() == FEW
    with pytest.raises(CheckpointMismatch):
        one.sink.commit(decided, ONE)
    assert one.seen() == FEW
