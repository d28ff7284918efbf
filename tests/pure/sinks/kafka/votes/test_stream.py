"""Where a delivery goes on after a failure, by what the leader has; and how partitions are dealt to owners."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.sinks.kafka.batches.frame import SEQUENCES
from epochal.sinks.kafka.delivery.deliver import Batch, RowsGone, Stream, dealt
from epochal.sinks.kafka.wire.errors import INVALID_TXN_STATE, BrokerError
from epochal.sinks.kafka.wire.messages import Partition, ProduceAnswer, ProducerState

HERE = Partition("t", 0)
EPOCH, BEGIN = 3, 100
COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def stream_of(counts: Sequence[int]) -> Stream:
    return Stream([Batch(b"", 0, 0, rows, 0, 0) for rows in counts])


def holding(rows: int, first_offset: int = BEGIN) -> ProducerState:
    """What a leader tells that has so many rows of the transaction."""
    return ProducerState(EPOCH, (rows - 1) % SEQUENCES, first_offset)


def answer(offset: int = BEGIN, error: int = 0) -> ProduceAnswer:
    return ProduceAnswer(HERE, error, offset, None)


def acknowledged(counts: Sequence[int], batches: int) -> Stream:
    """A stream of which so many batches were sent and acknowledged, each before the next."""
    stream = stream_of(counts)
    for _ in range(batches):
        number = stream.sent()
        stream.answered(number, answer(BEGIN + stream.sequence_of(number)))
    return stream


# what may be sent


def test_the_first_batch_is_sent_alone() -> None:
    stream = stream_of([2, 3, 4])
    assert (stream.rows, stream.may_send) == (9, True)
    assert stream.sent() == 0
    assert not stream.may_send
    stream.answered(0, answer())
    assert (stream.may_send, stream.acknowledged, stream.first_offset) == (True, 2, BEGIN)
    assert (stream.sent(), stream.may_send, stream.sent(), stream.may_send) == (1, True, 2, False)
    assert [stream.sequence_of(number) for number in range(3)] == [0, 2, 5]


def test_the_first_batch_after_a_failure_is_sent_alone() -> None:
    stream = acknowledged([2, 3, 4, 5], 2)
    stream.resume(HERE, holding(5))
    assert stream.sent() == 1
    assert not stream.may_send
    stream.answered(1, answer(error=0))
    assert stream.may_send


def test_a_batch_that_was_refused_opens_nothing() -> None:
    stream = stream_of([2, 3])
    stream.sent()
    stream.answered(0, answer(offset=-1, error=19))
    assert (stream.is_open, stream.acknowledged, stream.first_offset, stream.in_flight) == (False, 0, -1, 0)


def test_an_epoch_without_rows_sends_nothing() -> None:
    stream = stream_of([])
    assert (stream.rows, stream.may_send) == (0, False)


# where it goes on


@given(COUNTS, st.data())
def test_it_repeats_the_batch_at_which_the_leader_stands(counts: list[int], data: st.DataObject) -> None:
    """The leader has what was acknowledged, and perhaps more; that batch is sent again, then those behind it."""
    done = data.draw(st.integers(0, len(counts)))
    has = data.draw(st.integers(max(done, 1), len(counts)))
    stream = acknowledged(counts, done)
    stream.resume(HERE, holding(sum(counts[:has])))
    assert stream.following == has - 1
    assert stream.sequence_of(stream.following) == sum(counts[: has - 1])
    assert (stream.first_offset, stream.in_flight, stream.is_open) == (BEGIN, 0, False)


@pytest.mark.parametrize(
    "state", [None, ProducerState(EPOCH, -1, -1)], ids=["the leader knows nothing", "only a fence came there"]
)
def test_it_begins_anew_where_the_leader_has_no_row(state: ProducerState | None) -> None:
    stream = stream_of([2, 3])
    stream.sent()
    stream.resume(HERE, state)
    assert (stream.following, stream.first_offset, stream.may_send) == (0, -1, True)


@pytest.mark.parametrize("state", [None, ProducerState(EPOCH, -1, -1), holding(2), holding(4)])
def test_a_leader_that_has_fewer_rows_than_it_acknowledged_is_refused(state: ProducerState | None) -> None:
    stream = acknowledged([2, 2, 2], 3)
    with pytest.raises(RowsGone, match=r"t\[0\] has"):
        stream.resume(HERE, state)


@given(COUNTS, st.data())
def test_a_sequence_at_which_no_batch_ends_is_refused(counts: list[int], data: st.DataObject) -> None:
    ends = {sum(counts[:number]) for number in range(1, len(counts) + 1)}
    other = data.draw(st.integers(1, sum(counts) + 5).filter(lambda rows: rows not in ends))
    with pytest.raises(RowsGone, match="no batch ends"):
        stream_of(counts).resume(HERE, holding(other))


def test_a_transaction_that_was_ended_is_not_gone_on_with() -> None:
    with pytest.raises(BrokerError, match="was ended") as refused:
        stream_of([2, 3]).resume(HERE, holding(2, first_offset=-1))
    assert refused.value.code == INVALID_TXN_STATE


# sequence numbers that begin anew


@pytest.mark.parametrize("has", [1, 2, 3, 4])
def test_sequences_are_counted_modulo_their_number(has: int) -> None:
    """Four batches; the second ends with the last sequence there is, and the third contains the first of the next."""
    counts = [SEQUENCES - 3, 3, 5, 5]
    stream = acknowledged(counts, max(0, has - 1))
    rows = sum(counts[:has])
    stream.resume(HERE, holding(rows))
    assert stream.following == has - 1


def test_a_batch_across_the_last_sequence_is_found() -> None:
    counts = [SEQUENCES - 3, 8, 5]
    stream = acknowledged(counts, 1)
    stream.resume(HERE, holding(SEQUENCES + 5))
    assert stream.following == 1


def test_a_sequence_that_may_mean_two_batches_is_not_guessed_at() -> None:
    """A second attempt does not know what the first one was told; it must not take batch 3 for batch 0."""
    counts = [5, SEQUENCES - 5, 5, 7]
    with pytest.raises(RowsGone, match="two batches"):
        stream_of(counts).resume(HERE, holding(SEQUENCES + 5))
    stream = acknowledged(counts, 1)
    with pytest.raises(RowsGone, match="two batches"):
        stream.resume(HERE, holding(SEQUENCES + 5))
    stream = acknowledged(counts, 2)
    stream.resume(HERE, holding(SEQUENCES + 5))
    assert stream.following == 2


# who sends what


@given(st.dictionaries(st.integers(0, 50), st.integers(0, 1000), max_size=20), st.integers(0, 8))
def test_every_partition_is_dealt_to_one_owner(sizes: dict[int, int], owners: int) -> None:
    shares = dealt({Partition("t", number): size for number, size in sizes.items()}, owners)
    assert sorted(where.partition for share in shares for where in share) == sorted(sizes)
    assert len(shares) <= max(1, owners)
    assert all(shares)


def test_the_largest_partitions_go_to_different_owners() -> None:
    sizes = {Partition("t", number): size for number, size in enumerate([10, 100, 90, 20, 5])}
    shares = dealt(sizes, 2)
    assert [sum(sizes[where] for where in share) for share in shares] == [115, 110]
    assert shares == dealt(dict(reversed(sizes.items())), 2)
