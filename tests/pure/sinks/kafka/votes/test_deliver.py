"""Deliveries to leaders that do at random what real ones do rarely: each row is there once, in order, or it is told."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.sinks.kafka.batches import frame
from epochal.sinks.kafka.delivery import deliver as module
from epochal.sinks.kafka.delivery.deliver import (
    Batch,
    Delivered,
    RecordsDamaged,
    RowsGone,
    Stream,
    Transaction,
    deliver,
)
from epochal.sinks.kafka.wire.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    AnswerNotUnderstood,
    BrokerError,
    PartitionGone,
)
from epochal.sinks.kafka.wire.messages import Partition, Producer, ProducerState
from tests.pure.sinks.kafka.votes.leaders import BEGIN, PRODUCER, Client, Leaders, Log

TRANSACTION = Transaction("id", Producer(PRODUCER, 3), 1_700_000_000_000)
Epoch = Mapping[Partition, list[Batch]]


class Killed(BaseException):
    """A deliverer dies."""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)


def epoch_of(seed: int) -> Epoch:
    """Three partitions on two leaders, each with up to nine batches of different bytes."""
    chosen = random.Random(seed)
    return {Partition("t", number): [batch(chosen, number) for _ in range(chosen.randint(1, 9))] for number in range(3)}


def batch(chosen: random.Random, partition: int) -> Batch:
    data = b"%d/%d" % (partition, chosen.getrandbits(64))
    return Batch(data, 0, len(data), chosen.randint(1, 4), 0, frame.checksum(data))


def attempt(
    leaders: Leaders,
    epoch: Epoch,
    *,
    is_repeated: bool = False,
    between: Callable[[], None] = lambda: None,
    seconds: float = 1e6,
) -> Mapping[Partition, Delivered]:
    return deliver(
        leaders.client(),
        TRANSACTION,
        {where: Stream(batches) for where, batches in epoch.items()},
        in_flight=5,
        deadline=time.monotonic() + seconds,
        is_repeated=is_repeated,
        between=between,
    )


def check_whole(leaders: Leaders, epoch: Epoch, delivered: Mapping[Partition, Delivered]) -> None:
    for where, batches in epoch.items():
        assert [each.records for each in leaders.log(where).batches] == [each.source for each in batches]
        assert leaders.log(where).replicated == len(batches), "what was acknowledged is on every replica"
        assert delivered[where] == Delivered(sum(each.rows for each in batches), BEGIN)


@pytest.mark.parametrize("faults", [0.0, 0.05, 0.2])
def test_one_deliverer_among_faults(faults: float) -> None:
    for seed in range(150):
        leaders, epoch = Leaders(seed, faults), epoch_of(seed)
        check_whole(leaders, epoch, attempt(leaders, epoch))
        assert leaders.most_at_once == 1, "the first batch of a partition is under way alone"


def test_attempts_that_die_or_run_at_the_same_time() -> None:
    """While one attempt waits, others of the same partitions come, end, or die; one that is told of them asks first."""
    for seed in range(150):
        leaders, epoch, chosen = Leaders(seed, 0.05), epoch_of(seed), random.Random(seed)

        def dies(chosen: random.Random = chosen) -> None:
            if chosen.random() < 0.3:
                raise Killed

        def between(leaders: Leaders = leaders, epoch: Epoch = epoch, chosen: random.Random = chosen) -> None:
            if chosen.random() < 0.2:
                try:
                    attempt(leaders, epoch, is_repeated=chosen.random() < 0.5, between=dies)
                except Killed:
                    leaders.arrive_late()

        check_whole(leaders, epoch, attempt(leaders, epoch, is_repeated=seed % 2 == 0, between=between))


def test_what_was_sent_and_given_up_arrives_after_the_end_and_adds_nothing() -> None:
    for seed in range(100):
        leaders, epoch = Leaders(seed, 0.2), epoch_of(seed)
        delivered = attempt(leaders, epoch)
        leaders.faults = 0.0
        while leaders.late:
            leaders.arrive_late()
        check_whole(leaders, epoch, delivered)


# what is told


def test_a_leader_that_lost_acknowledged_rows_is_told() -> None:
    leaders, epoch = Leaders(1, 0.0), {Partition("t", 0): [batch(random.Random(n), 0) for n in range(6)]}
    answered = []

    def between() -> None:
        answered.append(1)
        if len(answered) == 3:
            log = leaders.log(Partition("t", 0))
            log.replicated = 1
            log.lose()

    with pytest.raises(RowsGone, match="has"):
        attempt(leaders, epoch, between=between)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_fence_ends_a_delivery(is_repeated: bool) -> None:
    leaders, epoch = Leaders(1, 0.0), epoch_of(4)
    with pytest.raises(BrokerError) as refused:
        attempt(leaders, epoch, is_repeated=is_repeated, between=lambda: leaders.fence(TRANSACTION.producer.epoch + 1))
    assert refused.value.code == INVALID_PRODUCER_EPOCH
    with pytest.raises(BrokerError) as refused:
        attempt(leaders, epoch, is_repeated=is_repeated)
    assert refused.value.code == INVALID_PRODUCER_EPOCH
    assert all(not log.batches for log in leaders.logs.values())


def test_a_newer_epoch_is_noticed_before_anything_is_sent() -> None:
    """A leader that has forgotten the fence's epoch would take the rows of an older one."""
    leaders, epoch = Leaders(1, 0.0), epoch_of(4)
    attempt(leaders, epoch)
    for log in leaders.logs.values():
        log.batches = [replace(each, producer=Producer(PRODUCER, 4)) for each in log.batches[:1]]
    with pytest.raises(BrokerError, match="newer epoch") as refused:
        attempt(leaders, epoch, is_repeated=True)
    assert refused.value.code == INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("source", [b"other", b"th", "/nowhere/at-all.records"])
def test_records_that_are_not_those_that_were_written_are_not_sent(source: bytes | str) -> None:
    leaders = Leaders(1, 0.0)
    epoch = {Partition("t", 0): [Batch(source, 0, 5, 1, 0, frame.checksum(b"these"))]}
    with pytest.raises(RecordsDamaged):
        attempt(leaders, epoch)
    assert leaders.log(Partition("t", 0)).batches == []


def test_an_epoch_of_many_files_has_few_of_them_open(tmp_path: Path) -> None:
    leaders, opened = Leaders(1, 0.0), []
    epoch: Epoch = {Partition("t", number): [] for number in range(2)}
    for number in range(3 * module.OPEN_FILES):
        path = tmp_path / f"{number}.records"
        path.write_bytes(b"%d" % number)
        for its in epoch.values():
            its.append(Batch(str(path), 0, len(f"{number}"), 1, 0, frame.checksum(b"%d" % number)))
    before = len(os.listdir("/proc/self/fd"))
    delivered = attempt(leaders, epoch, between=lambda: opened.append(len(os.listdir("/proc/self/fd")) - before))
    assert {each.rows for each in delivered.values()} == {3 * module.OPEN_FILES}
    assert 0 < max(opened) <= module.OPEN_FILES + 1  # the folder that is listed is open, too
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_transaction_that_was_ended_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders, epoch = Leaders(1, 0.0), epoch_of(4)
    attempt(leaders, epoch)
    monkeypatch.setattr("tests.pure.sinks.kafka.votes.leaders.BEGIN", -1)
    with pytest.raises(BrokerError) as refused:
        attempt(leaders, epoch, is_repeated=True)
    assert refused.value.code == INVALID_TXN_STATE


def test_what_an_earlier_transaction_left_with_a_leader_is_not_taken_for_rows_of_this_one() -> None:
    leaders, epoch = Leaders(1, 0.0), {Partition("t", 0): [batch(random.Random(n), 0) for n in range(3)]}
    first = epoch[Partition("t", 0)][0].rows
    leaders.logs[Partition("t", 0)] = Log(before=ProducerState(TRANSACTION.producer.epoch - 1, first - 1, -1))
    check_whole(leaders, epoch, attempt(leaders, epoch, is_repeated=True))


def test_an_answer_for_another_partition_is_not_understood() -> None:
    leaders = Leaders(1, 0.0)
    leaders.lies = 1
    with pytest.raises(AnswerNotUnderstood, match="for other partitions"):
        attempt(leaders, {Partition("t", 0): [batch(random.Random(1), 0)]})


def test_a_connection_whose_answers_are_not_understood_is_not_used_again() -> None:
    """One leader has to be asked anew.  Meanwhile the other one answers for a partition that it was not sent."""
    for seed in range(40):
        leaders, epoch = Leaders(seed, 0.0), epoch_of(seed)
        answered: list[int] = []

        def between(leaders: Leaders = leaders, answered: list[int] = answered) -> None:
            answered.append(1)
            leaders.faults = 0.9 * (len(answered) == 3)
            leaders.lies = int(len(answered) == 3)

        try:
            check_whole(leaders, epoch, attempt(leaders, epoch, between=between))
        except AnswerNotUnderstood:
            continue


# limits


def test_a_delivery_ends_with_the_last_error_when_its_time_is_over() -> None:
    with pytest.raises((ConnectionError, BrokerError)):
        attempt(Leaders(1, 1.0), epoch_of(1), seconds=-1)


def test_an_answer_is_not_waited_for_until_the_transaction_ends() -> None:
    leaders, epoch = Leaders(1, 0.0), epoch_of(1)
    attempt(leaders, epoch)
    assert 10 < leaders.longest_wait <= 12


def test_leaders_wait_for_their_replicas_as_long_as_the_options_say() -> None:
    leaders = Leaders(1, 0.0)
    attempt(leaders, epoch_of(1))
    assert leaders.waits_ms == {2000}
    leaders = Leaders(1, 0.0)
    attempt(leaders, epoch_of(1), seconds=1)
    assert max(leaders.waits_ms) <= 1000


def test_a_partition_that_was_deleted_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders, asked = Leaders(1, 1.0), list[float]()

    def gone(_client: object, _partitions: object, deadline: float) -> None:
        asked.append(deadline)
        raise PartitionGone(3, "t[0] has no leader")

    monkeypatch.setattr(Client, "leaders", gone)
    with pytest.raises(PartitionGone):
        attempt(leaders, epoch_of(1))
    assert len(asked) == 1


def test_a_request_is_as_large_as_it_may_be_and_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except if one batch alone is larger."""
    chosen = random.Random(1)
    sizes = {Partition("t", 2 * number): [batch(chosen, number) for _ in range(4)] for number in range(9)}
    largest = max(each.length for batches in sizes.values() for each in batches)
    leaders = Leaders(1, 0.0)
    check_whole(leaders, sizes, attempt(leaders, sizes))
    assert leaders.largest_request > 3 * largest
    for limit in (3 * largest, 1):
        monkeypatch.setattr(module, "REQUEST_BYTES", limit)
        leaders = Leaders(1, 0.0)
        check_whole(leaders, sizes, attempt(leaders, sizes))
        assert largest <= leaders.largest_request <= max(limit, largest)
