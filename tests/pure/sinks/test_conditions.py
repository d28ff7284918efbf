"""The conditions of every sink's writes: each line of `sinks/conditions.py` has a row here that needs it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from epochal.coordinator.model.epoch import UNKNOWN_DECISION, Actor, Committable, Decision, Digest, Epoch, Marker
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    EpochalError,
    Fenced,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
    PrepareRefused,
)
from epochal.sinks.conditions import Conditions, check_name, looked, marker_of, may_drop, refusing

OLDER, MINE, RIVAL, NEWER = Actor(1, 9), Actor(2, 5), Actor(2, 7), Actor(3, 1)
THIS, OTHER = 0xABC, 0xDEF
CONDITIONS = Conditions("out", "table t")


@dataclass(frozen=True)
class Holds:
    """What a sink holds."""

    fence: Actor | None = None
    marker: Marker | None = None


def answer(condition: object, *asked: object) -> bool | type[EpochalError] | None:
    """What a condition says: its answer, or the class of its error."""
    try:
        return condition(*asked)  # type: ignore[operator,no-any-return]
    except EpochalError as error:
        return type(error)


@pytest.mark.parametrize(
    ("held", "says"),
    [
        pytest.param(None, False, id="free"),
        pytest.param(OLDER, False, id="an older generation's, though of a higher token"),
        pytest.param(MINE, True, id="mine"),
        pytest.param(RIVAL, Fenced, id="a higher token's of my generation"),
        pytest.param(Actor(2, 3), Fenced, id="a lower token's of my generation"),
        pytest.param(NEWER, Fenced, id="a newer generation's, though of a lower token"),
    ],
)
def test_who_may_take_the_fence(held: Actor | None, says: object) -> None:
    assert answer(CONDITIONS.check_fence, Holds(held), MINE) == says


@pytest.mark.parametrize("held", [None, OLDER, RIVAL, NEWER])
def test_the_first_condition_is_the_fence(held: Actor | None) -> None:
    """Also where the marker would say more: the fence is asked first."""
    for marker in (None, Marker(1, THIS), Marker(9, OTHER)):
        holds = Holds(held, marker)
        assert answer(CONDITIONS.check_owner, holds, MINE) is Fenced
        assert answer(CONDITIONS.check_prepare, holds, MINE, Marker(1, THIS), 0) is Fenced
        assert answer(CONDITIONS.already_committed, holds, MINE, Marker(1, THIS), 0) is Fenced


def test_the_owner_passes() -> None:
    assert answer(CONDITIONS.check_owner, Holds(MINE, Marker(9, OTHER)), MINE) is None


@pytest.mark.parametrize(
    ("marker", "wanted", "prepare", "commit"),
    [
        pytest.param(None, 1, None, False, id="nothing yet, the first"),
        pytest.param(Marker(1, OTHER), 2, None, False, id="exactly one before"),
        pytest.param(None, 2, MarkerLost, MarkerLost, id="nothing, not the first"),
        pytest.param(Marker(1, OTHER), 3, MarkerLost, MarkerLost, id="two before"),
        pytest.param(Marker(2, THIS), 2, CheckpointMismatch, True, id="this decision's, here"),
        pytest.param(Marker(2, OTHER), 2, CheckpointMismatch, CheckpointMismatch, id="another's, here"),
        pytest.param(Marker(2, UNKNOWN_DECISION), 2, CheckpointMismatch, CheckpointMismatch, id="nobody's, here"),
        pytest.param(Marker(3, OTHER), 2, CheckpointMismatch, CheckpointMismatch, id="another's, beyond"),
        pytest.param(Marker(3, THIS), 2, CheckpointMismatch, CheckpointMismatch, id="this decision's, beyond"),
        pytest.param(Marker(1, THIS), 2, CheckpointMismatch, CheckpointMismatch, id="this decision's, one before"),
    ],
)
def test_the_marker_and_the_position(marker: Marker | None, wanted: int, prepare: object, commit: object) -> None:
    asked = (Holds(MINE, marker), MINE, Marker(wanted, THIS), 4)
    assert answer(CONDITIONS.check_prepare, *asked) == prepare
    assert answer(CONDITIONS.already_committed, *asked) == commit


@pytest.mark.parametrize(
    ("holds", "wanted", "what", "state"),
    [
        (
            Holds(NEWER, Marker(1, OTHER)),
            Marker(2, THIS),
            "the sink is owned by g3/0001, not by g2/0005",
            "table t: fence g3/0001, marker position 1 of decision 3567; asked: by g2/0005",
        ),
        (
            Holds(),
            Marker(1, THIS),
            "the sink is owned by nobody, not by g2/0005",
            "table t: fence none, marker none; asked: by g2/0005",
        ),
        (
            Holds(MINE),
            Marker(2, THIS),
            "the marker stands at position 0, but position 2 was to be written",
            "table t: fence g2/0005, marker none; asked: position 2 of decision 2748, by g2/0005",
        ),
        (
            Holds(MINE, Marker(2, UNKNOWN_DECISION)),
            Marker(2, THIS),
            "position 2 was to be written, and the sink shows position 2",
            "table t: fence g2/0005, marker position 2 of an unknown decision; asked: position 2 of decision 2748,"
            " by g2/0005",
        ),
        (
            Holds(MINE, Marker(1, THIS)),
            Marker(2, THIS),
            "position 2 was to be written, and the sink shows this decision at position 1",
            "table t: fence g2/0005, marker position 1 of decision 2748; asked: position 2 of decision 2748,"
            " by g2/0005",
        ),
    ],
)
def test_an_error_tells_what_is_held_and_what_was_asked(holds: Holds, wanted: Marker, what: str, state: str) -> None:
    with pytest.raises(EpochalError, match="Help: ") as refused:
        CONDITIONS.already_committed(holds, MINE, wanted, 4)
    error = refused.value
    assert (error.sink, error.epoch, error.what, error.state) == ("out", 4, what, state)


@pytest.mark.parametrize(
    ("fence", "remedy"),
    [(NEWER, "another start"), (RIVAL, "another start"), (None, "restore it"), (OLDER, "restore it")],
)
def test_the_remedy_tells_a_newer_owner_from_lost_bookkeeping(fence: Actor | None, remedy: str) -> None:
    with pytest.raises(Fenced) as refused:
        CONDITIONS.check_owner(Holds(fence), MINE)
    assert remedy in refused.value.help


@pytest.mark.remedy(
    "the sink is owned by …, not by …",
    "another start of this query has taken over: let this one end, or stop the other and restart this",
)
@pytest.mark.remedy(
    "the sink is owned by …, not by …",
    "the sink's bookkeeping was deleted or restored from an older state: restore it",
)
@pytest.mark.remedy(
    "the marker stands at position …, but position … was to be written",
    "restore the sink to what the epoch log says it showed; nothing was written",
)
@pytest.mark.remedy(
    "position … was to be written, and the sink shows …position …",
    "run one query per app and sink; nothing was written",
)
def test_each_remedy_of_a_condition_lets_the_write_through() -> None:
    """One start, or the restart of this one; the sink as it was restored; no other query that writes to it."""
    restart, wanted = Actor(4, 2), Marker(3, THIS)
    as_it_was = Holds(MINE, Marker(2, OTHER))
    for damaged, error in (
        (Holds(NEWER, Marker(2, OTHER)), Fenced),
        (Holds(None, Marker(2, OTHER)), Fenced),
        (Holds(MINE, Marker(1, OTHER)), MarkerLost),
        (Holds(MINE, Marker(3, OTHER)), CheckpointMismatch),
    ):
        assert answer(CONDITIONS.already_committed, damaged, MINE, wanted, 4) is error
    assert not CONDITIONS.check_fence(Holds(NEWER, Marker(2, OTHER)), restart)
    assert not CONDITIONS.already_committed(Holds(restart, Marker(2, OTHER)), restart, wanted, 4)
    assert not CONDITIONS.already_committed(as_it_was, MINE, wanted, 4)


def test_what_was_not_looked_at_is_refused() -> None:
    assert looked("app", "out") == "app"
    with pytest.raises(Misconfigured, match="used before look"):
        looked(None, "out")


def test_a_refused_fence_is_of_no_epoch() -> None:
    with pytest.raises(Fenced) as refused:
        CONDITIONS.check_fence(Holds(NEWER), MINE)
    assert (refused.value.sink, refused.value.epoch) == ("out", None)


@pytest.mark.parametrize(("owner", "says"), [(OLDER, True), (MINE, True), (RIVAL, False), (NEWER, False)])
def test_who_may_drop_what_is_prepared(owner: Actor, says: bool) -> None:
    assert may_drop(owner, MINE) is says


def test_the_marker_of_what_is_prepared_is_that_of_what_is_committed() -> None:
    decision = Decision("q1", 6, MINE, "f")
    assert marker_of(Epoch(decision, 7)) == marker_of(Committable("out", decision, 7, 0)) == Marker(7, decision.id)


@pytest.mark.parametrize("name", ["a", "A-1._z", "x" * 120])
def test_a_plain_name_passes(name: str) -> None:
    check_name("app", name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a\n", "x" * 121])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match="Help: ") as refused:
        check_name("sink name", name, "out")
    assert refused.value.what.startswith(f"sink name {name!r} is not of the form")
    assert refused.value.sink == "out"


def test_other_rows_than_every_other_evaluation_gave() -> None:
    agreed = Digest(2, 255)
    for found in (Digest(2, 254), Digest(3, 255)):
        with pytest.raises(NonDeterministicReplay, match="Help: find what differs") as refused:
            CONDITIONS.check_digest(found, agreed, 4)
        error = refused.value
        assert error.what.endswith(f"to the same rows: out {found}, the evaluation before it {agreed}")
        assert (error.sink, error.epoch) == ("out", 4)
        assert error.state == "table t: nothing of this evaluation was written"
    assert answer(CONDITIONS.check_digest, agreed, agreed, 4) is None
    assert answer(CONDITIONS.check_digest, agreed, None, 4) is None


def test_a_marker_holds_the_digest_of_its_committable() -> None:
    decision = Decision("q", 4, MINE, "print")
    assert marker_of(Committable("out", decision, 3, 2, digest=Digest(2, 5))).digest == Digest(2, 5)
    assert marker_of(Committable("out", decision, 3, 2)).digest is None
    assert marker_of(Epoch(decision, 3)).digest is None


def test_what_has_become_a_misconfiguration_since_the_start_refuses_the_epoch() -> None:
    with pytest.raises(PrepareRefused, match="the topic is gone") as refused, refusing("out", 7):
        raise Misconfigured("the topic is gone", state="no topic", help="make it again")
    assert (refused.value.sink, refused.value.epoch, refused.value.state) == ("out", 7, "no topic")
