"""What each operator action makes of what is found: its record, or a refusal.

Whole worlds are in tests/pure/chaos/simulate/test_operate.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from epochal.checkpoints.log import (
    Apply,
    Commit,
    Entry,
    Evaluations,
    Fence,
    Operator,
    Participant,
    SinkPosition,
    SinkStanding,
)
from epochal.coordinator.model.epoch import MOVED, Actor, Committable, Decision, EpochRequest, Marker, Query, SinkState
from epochal.coordinator.model.errors import CheckpointMismatch, EpochalError, Misconfigured
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.actions import (
    NOBODY,
    Accept,
    Adopt,
    Evaluate,
    OperatorAction,
    Rename,
    Retire,
    RewriteMarker,
    Skip,
)
from epochal.coordinator.protocol.history import History
from epochal.coordinator.protocol.judge import Case

SAID: dict[str, Any] = {"why": "a test", "at": "2026-11-23T12:00:00+00:00"}
QUERY = Query("flights", "q1", "r1", "file:/checkpoint")
ONE, TWO, STRANGER = Actor(1, 11), Actor(2, 22), Actor(3, 33)


def decision(epoch: int) -> Decision:
    return Decision("q1", epoch, ONE, f"f{epoch}")


def commit(epoch: int, *sinks: str) -> Commit:
    votes = {name: Participant(f"id-{name}", Committable(name, decision(epoch), epoch + 1, 1)) for name in sinks}
    return Commit(decision(epoch), ONE, votes)


def begun(epoch: int, *sinks: str) -> Apply:
    return Apply(decision(epoch), {name: SinkPosition(f"id-{name}", epoch + 1) for name in sinks})


def marker(epoch: int) -> Marker | None:
    """What a sink shows after this epoch; none before the first."""
    return Marker(epoch + 1, decision(epoch).id) if epoch >= 0 else None


def case(*records: Any, ask: int = 0, by: Actor | None = None, **shows: int | SinkState) -> Case:
    """A log, and sinks by the newest epoch that each shows."""
    entries = [Entry(n, record) for n, record in enumerate((Fence(ONE, QUERY, 0), *records))]
    states = {
        name: state if isinstance(state, SinkState) else SinkState(f"id-{name}", ONE, marker(state))
        for name, state in shows.items()
    }
    return Case(History.of(entries), states, EpochRequest(QUERY, ask, ""), by)


def record(act: OperatorAction, found: Case) -> Operator:
    return act.record(found)


def refusal(act: OperatorAction, found: Case, kind: type[EpochalError]) -> str:
    with pytest.raises(kind) as raised:
        act.record(found)
    return str(raised.value)


BOTH = (commit(0, "a", "b"), commit(1, "a", "b"))


def test_a_record_says_who_what_why_and_when() -> None:
    act = Retire(sink="a", **SAID)
    made = record(act, case(*BOTH, a=1, b=1, by=TWO))
    assert (made.actor, made.why, made.at) == (TWO, SAID["why"], SAID["at"])
    assert made.said == {"act": "retire", "sink": "a", "unreachable": False}
    assert made.stands == {"a": SinkStanding("id-a", (marker(1),), 1, away=True)}
    assert record(act, case(*BOTH, a=1, b=1)).actor == NOBODY


def test_a_sink_that_is_not_asked_may_show_the_last_epoch_or_the_one_before() -> None:
    act = Retire(sink="a", unreachable=True, **SAID)
    assert record(act, case(*BOTH, b=1)).stands["a"].markers == (marker(1), marker(0))
    assert record(act, case(BOTH[0], b=0)).stands["a"].markers == (marker(0), None)
    known = Operator(ONE, {}, "", "", {"a": SinkStanding("id-a", (Marker(9, 9),), 0)})
    assert record(act, case(BOTH[0], known, b=0)).stands["a"].markers == (Marker(9, 9),)
    assert record(act, case(BOTH[0], known, commit(1, "a", "b"), b=1)).stands["a"].markers == (marker(1), Marker(9, 9))


@pytest.mark.parametrize(
    ("fence", "accepted"), [(None, ()), (ONE, ()), (STRANGER, (STRANGER,))], ids=["none", "known", "unknown"]
)
def test_a_sink_is_accepted_with_its_fence(fence: Actor | None, accepted: tuple[Actor, ...]) -> None:
    found = case(*BOTH, a=SinkState("restored", fence, marker(-1)), b=1)
    made = record(Accept(sink="a", **SAID), found)
    assert (made.fences, made.stands) == (accepted, {"a": SinkStanding("restored", (None,), 1)})


def test_a_sink_made_anew_that_shows_the_last_epoch_is_accepted() -> None:
    assert record(Accept(sink="a", **SAID), case(*BOTH, a=SinkState("other", ONE, marker(1)), b=1)).stands


def test_a_sink_that_no_epoch_was_for_is_accepted_as_it_is() -> None:
    spoken = Operator(ONE, {}, "", "", {"a": SinkStanding("id-a", (marker(1),), 1)})
    for shown in (None, Marker(1, 7), marker(1)):
        found = case(*BOTH, spoken, a=SinkState("id-a", ONE, shown), b=1)
        assert record(Accept(sink="a", **SAID), found).stands["a"].markers == (shown,)
    for ahead in (Marker(2, 7), Marker(7, 7)):
        found = case(*BOTH, spoken, a=SinkState("id-a", ONE, ahead), b=1)
        assert "not older than the log's last epoch" in refusal(Accept(sink="a", **SAID), found, CheckpointMismatch)


def test_a_sink_that_the_log_does_not_know_comes_in_as_it_is() -> None:
    assert record(Accept(sink="c", **SAID), case(*BOTH, a=1, b=1, c=7)).stands["c"].markers == (marker(7),)
    assert "the pipeline has no sink 'd'" in refusal(Accept(sink="d", **SAID), case(*BOTH, a=1, b=1), Misconfigured)


@pytest.mark.parametrize("shown", [None, Marker(1, 7), marker(0), marker(1)])
def test_a_marker_is_written_over_an_older_one(shown: Marker | None) -> None:
    act, found = RewriteMarker(sink="a", **SAID), case(*BOTH, a=SinkState("id-a", ONE, shown), b=1)
    assert record(act, found).stands["a"].markers == (shown,)
    assert act.marks(found) == {"a": marker(1)}


@pytest.mark.parametrize("position", [2, 3])
def test_a_marker_is_not_written_over_a_newer_one(position: int) -> None:
    found = case(*BOTH, a=SinkState("id-a", ONE, Marker(position, 7)), b=1)
    assert "the sink has a marker" in refusal(RewriteMarker(sink="a", **SAID), found, Misconfigured)


@pytest.mark.parametrize("act", [Retire(sink="a", **SAID), Rename(old="a", new="c", **SAID)])
def test_a_sink_that_others_are_held_against_stays(act: OperatorAction) -> None:
    found = case(begun(0, "a", "b"), a=0, b=-1, c=-1)
    assert "not visible in b" in refusal(act, found, CheckpointMismatch)


@pytest.mark.parametrize("position", [2, 3])
def test_a_sink_as_far_as_the_log_under_another_decision_is_not(position: int) -> None:
    found = case(*BOTH, a=SinkState("id-a", ONE, Marker(position, 7)), b=1)
    assert "not older than the log's last epoch, at position 2" in refusal(
        Accept(sink="a", **SAID), found, CheckpointMismatch
    )


MOVED_HERE = Marker(1, MOVED)


@pytest.mark.parametrize(
    ("state", "free"),
    [
        (SinkState("id-c", None, None), True),
        (SinkState("id-c", ONE, marker(0)), True),  # as an attempt that died has left it
        (SinkState("id-c", STRANGER, MOVED_HERE), True),
        (SinkState("id-c", STRANGER, marker(0)), False),
    ],
    ids=["free", "half given", "given away", "taken"],
)
def test_a_new_name_is_free_or_half_given(state: SinkState, free: bool) -> None:
    act, found = Rename(old="a", new="c", **SAID), case(*BOTH, a=1, b=1, c=state)
    if not free:
        assert "the name 'c' is taken" in refusal(act, found, Misconfigured)
        return
    made = record(act, found)
    assert made.stands["a"] == SinkStanding("id-a", (), 1, away=True)
    assert made.stands["a"].is_renamed
    assert made.stands["c"] == SinkStanding("id-c", (state.marker,), 1)
    assert act.marks(found) == {"c": marker(1)}


def test_the_name_of_another_member_or_of_one_that_has_left_is_taken() -> None:
    assert "taken" in refusal(Rename(old="a", new="b", **SAID), case(*BOTH, a=1, b=1), Misconfigured)
    left = Operator(ONE, {}, "", "", {"c": SinkStanding("id-c", (marker(0),), 1, away=True)})
    found = case(*BOTH, left, a=1, b=1, c=SinkState("id-c", ONE, marker(0)))
    assert "taken" in refusal(Rename(old="a", new="c", **SAID), found, Misconfigured)
    renamed = Operator(ONE, {}, "", "", {"c": SinkStanding("id-c", (), 1, away=True)})
    found = case(*BOTH, renamed, a=1, b=1, c=SinkState("id-c", ONE, MOVED_HERE))
    assert record(Rename(old="a", new="c", **SAID), found).stands["c"].markers == (MOVED_HERE,)


def test_a_name_that_was_given_up_is_neither_accepted_nor_shown() -> None:
    renamed = Operator(ONE, {}, "", "", {"a": SinkStanding("id-a", (), 1, away=True)})
    found = case(*BOTH, renamed, a=SinkState("id-a", ONE, MOVED_HERE), b=1, ask=2)
    assert "another name" in refusal(Accept(sink="a", **SAID), found, Misconfigured)
    refused = judge.judge(judge.LOOK, found).refusal
    assert isinstance(refused, CheckpointMismatch)
    assert "under its new name only" in str(refused)


def test_adoption_of_a_log_that_persons_spoke_in_takes_no_marker_over() -> None:
    spoken = Operator(ONE, {}, "", "", {"a": SinkStanding("id-a", (marker(1),), -1)})
    assert record(Adopt(**SAID), case(spoken, a=1)).stands == {}
    assert record(Adopt(**SAID), case(a=1)).stands == {"a": SinkStanding("id-a", (marker(1),), -1)}


def test_what_was_skipped_is_between_the_log_and_spark() -> None:
    assert record(Skip(first=2, last=3, **SAID), case(*BOTH, a=1, b=1, ask=4)).expected == 4
    empty = Case(History(()), {}, EpochRequest(QUERY, 4, ""))
    assert "skipped: none" in refusal(Skip(first=0, last=3, **SAID), empty, Misconfigured)
    waiting = case(begun(0, "a", "b"), a=0, b=-1, ask=2)
    assert "not visible in b" in refusal(Skip(first=1, last=1, **SAID), waiting, CheckpointMismatch)
    assert record(Skip(first=1, last=1, **SAID), case(begun(0, "a", "b"), a=0, b=0, ask=2)).expected == 2
    nowhere = case(begun(0, "a", "b"), a=-1, b=-1, ask=2)
    assert "not visible in a, b" in refusal(Skip(first=1, last=1, **SAID), nowhere, CheckpointMismatch)


@pytest.mark.parametrize(
    "act", [RewriteMarker(sink="c", **SAID), Evaluate(sinks=("c",), **SAID), Retire(sink="c", **SAID)]
)
def test_a_sink_that_the_log_does_not_know_is_named(act: OperatorAction) -> None:
    found = case(begun(0, "a", "b"), a=0, b=0, c=0)
    assert "knows no sink 'c'" in refusal(act, found, Misconfigured)


def test_nothing_was_begun_in_a_new_log() -> None:
    assert "last epoch None" in refusal(Evaluate(sinks=("a",), **SAID), case(a=-1), Misconfigured)
    fenced = Operator(ONE, {}, "", "", {"a": SinkStanding("id-a", (None,), -1)})
    assert record(Retire(sink="a", **SAID), case(fenced, a=-1)).stands["a"].away
    unmarked = case(fenced, a=SinkState("id-a", ONE, None))
    assert "the log knows no epoch of this sink" in refusal(RewriteMarker(sink="a", **SAID), unmarked, Misconfigured)


def test_rows_are_compared_but_where_a_person_said_so() -> None:
    accepted = Operator(ONE, {}, "", "", evaluations=Evaluations(1, ("a",)))
    history = case(begun(0, "a", "b"), begun(1, "a", "b"), accepted).history
    assert [history.is_compared(name, marker(1)) for name in ("a", "b")] == [False, True]
    history = history.with_entry(Entry(9, begun(2, "a", "b")))
    assert [history.is_compared(name, marker(2)) for name in ("a", "b")] == [True, True]
    closed = Operator(
        ONE, {}, "", "", {"a": SinkStanding("id-a", (marker(1),), 2), "c": SinkStanding("id-c", (None,), 2)}
    )
    history = history.with_entry(Entry(10, closed))
    assert [history.is_compared("a", marker(1)), history.is_compared("c", None)] == [False, False], "given up, or new"
    assert history.is_compared("a", marker(2)), "a person does not make other rows of what is shown"


def test_what_a_sink_is_now_is_what_its_last_epoch_says_not_what_a_person_said_before() -> None:
    spoken = Operator(ONE, {}, "", "", {"a": SinkStanding("old", (None,), -1)})
    found = case(spoken, commit(0, "a"), a=0)
    assert judge.judge(judge.OPERATE, found).refusal is None
