"""What several slots show together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.coordinator.model.epoch import Actor, Marker
from epochal.coordinator.model.errors import Fenced, MarkerLost, OutcomeUnknown, SinkUnavailable
from epochal.sinks.kafka import marker, slots
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch, State
from epochal.sinks.protocol import CommitOutcome

PLACE = MarkerTopic("flights", "out")
ONE, TWO = Actor(1, 11), Actor(2, 22)
M1, M2, M3 = Marker(1, 101), Marker(2, 102), Marker(3, 103)


def of(marker_: Marker | None, span: int = 1, before: PreviousEpoch | None = None) -> State:
    """What a slot's partition tells, fenced by ``ONE``."""
    return State(ONE, marker_, slots=2, span=span, before=before or PreviousEpoch())


NEW = of(None)
FIRST = of(M1, 2, PreviousEpoch())
SECOND = of(M2, 2, PreviousEpoch(M1, 2))
GROWN = of(M2, 2, PreviousEpoch(M1, 1))


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([NEW, NEW], None),
        ([FIRST, FIRST], M1),
        ([FIRST, NEW], None),
        ([NEW, FIRST], None),
        ([SECOND, SECOND], M2),
        ([SECOND, FIRST], M1),
        ([FIRST, SECOND], M1),
        ([of(M1), NEW], M1),  # an epoch of one slot, and a new slot that no epoch has used
        ([GROWN, NEW], M1),  # the first epoch with the new slot, before and after either of them
        ([of(M1), GROWN], M1),
        ([GROWN, GROWN], M2),
    ],
)
def test_an_epoch_is_shown_when_every_slot_shows_it(states: list[State], shown: Marker | None) -> None:
    assert slots.shown(PLACE, states).marker == shown


@pytest.mark.parametrize(
    ("states", "span"),
    [([NEW, NEW], 1), ([FIRST, NEW], 1), ([GROWN, NEW], 1), ([SECOND, FIRST], 2), ([FIRST, FIRST], 2)],
)
def test_the_slots_of_an_epoch_are_those_of_the_one_that_is_shown(states: list[State], span: int) -> None:
    assert slots.shown(PLACE, states).span == span


def test_the_state_of_one_slot_is_its_own() -> None:
    state = State(ONE, M1)
    assert slots.shown(PLACE, [state]) == state


def test_the_fence_counts_in_the_first_partition_alone() -> None:
    stale = replace(SECOND, fence=TWO, slots=7)
    found = slots.shown(PLACE, [SECOND, stale])
    assert (found.fence, found.slots) == (ONE, 2)
    assert slots.shown(PLACE, [stale, replace(FIRST, slots=2)]).fence == TWO


@pytest.mark.parametrize(
    "states",
    [
        [SECOND, NEW],  # it had the epoch before
        [NEW, SECOND],
        [of(M3, 2, PreviousEpoch(M2, 2)), FIRST],
        [of(M1), of(M1)],
        [GROWN, of(Marker(1, 999), 2)],
        [of(Marker(2, 999), 2, PreviousEpoch(M1, 2)), of(M2, 2, PreviousEpoch(M1, 2))],
    ],
)
def test_a_slot_that_stands_elsewhere_has_lost_its_marker(states: list[State]) -> None:
    with pytest.raises(MarkerLost, match="must show the newest epoch or"):
        slots.shown(PLACE, states)


def test_slots_have_ids_that_no_other_sink_can_have() -> None:
    assert [PLACE.of_slot(n).transactional_id for n in (0, 1)] == ["epochal-flights-out", "epochal-flights-out#1"]


def test_a_record_tells_of_slots_from_version_2_on() -> None:
    one_of_several = State(ONE, M1, targets={"a": "id"})
    for state, version in ((State(ONE, M1), 1), (one_of_several, 2), (replace(GROWN, targets={"a": "id"}), 2)):
        value = marker.record(PLACE, state)
        assert f'"version": {version}'.encode() in value
        assert marker.parse(PLACE, value) == state


def test_what_cannot_go_on_is_told_before_what_may_be_asked_again() -> None:
    again: list[Exception] = [OutcomeUnknown("lost", help="h"), SinkUnavailable("down", help="h")]
    with pytest.raises(Fenced):
        slots.outcome_of([CommitOutcome.COMMITTED, *again, Fenced("newer", help="h")])
    with pytest.raises(OutcomeUnknown):
        slots.outcome_of([CommitOutcome.COMMITTED, *again])
    done = CommitOutcome.ALREADY_COMMITTED
    assert slots.outcome_of([done, CommitOutcome.COMMITTED]) is CommitOutcome.COMMITTED
    assert slots.outcome_of([done, done]) is done


def test_slots_that_stand_still_and_do_not_fit_together_are_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing writes there, so a third reading would tell the same."""
    read: list[int] = []

    def still(_link: object, of_slot: MarkerTopic, final: bool) -> State:
        assert not final
        read.append(of_slot.slot)
        return of(M3, 2) if of_slot.slot else FIRST

    monkeypatch.setattr(marker, "read_slot", still)
    with pytest.raises(MarkerLost):
        slots.read_all(Link("127.0.0.1:1", "out", 0.2), PLACE)
    assert read == [0, 1] * 2


def test_slots_that_never_fit_together_are_a_lost_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading differs from the one before, so something still writes; after ``LOOKS`` readings that is no reason
    to go on."""
    read: list[int] = []

    def changing(_link: object, of_slot: MarkerTopic, final: bool) -> State:
        assert not final
        read.append(of_slot.slot)
        return of(Marker(5 + len(read), 9), 2) if of_slot.slot else FIRST

    monkeypatch.setattr(marker, "read_slot", changing)
    with pytest.raises(MarkerLost):
        slots.read_all(Link("127.0.0.1:1", "out", 0.2), PLACE)
    assert read == [0, 1] * slots.LOOKS
