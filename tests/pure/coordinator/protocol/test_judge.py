"""Each rule of the judgement objects to its own case, by name, and to nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.checkpoints.log import Apply, Commit, Entry, Fence, Participant, SinkPosition
from epochal.coordinator.model.epoch import (
    Actor,
    Committable,
    Copy,
    Decision,
    Digest,
    EpochRequest,
    Marker,
    Query,
    SinkState,
)
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    EpochalError,
    Fenced,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
)
from epochal.coordinator.protocol.history import History
from epochal.coordinator.protocol.judge import IDENTIFY, LOOK, LOOK_AGAIN, Case, disagreement, done_after, judge

QUERY = Query("app", "query", "run", "file:/checkpoint")
G1, G2 = Actor(1, 11), Actor(2, 22)
COPY = Copy("file:/copy", (), "{}")


def decision(epoch: int, actor: Actor = G1, redo: int = 0) -> Decision:
    return Decision("query", epoch, actor, f"print-{epoch}", redo)


def commit(epoch: int, position: int, actor: Actor = G1, done: int | None = None) -> Commit:
    vote = Committable("a", decision(epoch, actor), position, 1)
    done_through = {"a": done} if done is not None else {}
    return Commit(decision(epoch, actor), actor, {"a": Participant("id-a", vote)}, copy=COPY, done_through=done_through)


def begun(epoch: int, position: int, actor: Actor = G1, done: int | None = None) -> Apply:
    done_through = {"a": done} if done is not None else {}
    return Apply(decision(epoch, actor), {"a": SinkPosition("id-a", position)}, done_through=done_through)


def log(*records: Fence | Commit | Apply) -> History:
    return History.of([Entry(position, record) for position, record in enumerate(records)])


def state(position: int, epoch: int, actor: Actor = G1, fence: Actor | None = G1) -> dict[str, SinkState]:
    marker = Marker(position, decision(epoch, actor).id) if position else None
    return {"a": SinkState("id-a", fence, marker)}


def ask(epoch: int) -> EpochRequest:
    return EpochRequest(QUERY, epoch, f"print-{epoch}")


FENCE = Fence(G1, QUERY, base=0)
TWO_EPOCHS = log(FENCE, commit(0, 1), commit(1, 2, done=0))
TWO_APPLIED = log(FENCE, begun(0, 1), begun(1, 2, done=0))


def refusal(case: Case) -> EpochalError | None:
    return judge(LOOK, case).refusal


def test_an_empty_log_and_untouched_sinks_take_any_first_epoch() -> None:
    assert refusal(Case(log(), {"a": SinkState("id-a", None, None)}, ask(17))) is None


def test_the_last_epoch_may_be_shown_or_not() -> None:
    assert judge(LOOK, Case(TWO_EPOCHS, state(2, 1), ask(2))).shown == {"a": True}
    assert judge(LOOK, Case(TWO_EPOCHS, state(1, 0), ask(1))).shown == {"a": False}


def test_a_sink_that_joins_needs_no_marker() -> None:
    states = {**state(2, 1), "new": SinkState("id-new", None, None)}
    verdict = judge(LOOK, Case(TWO_EPOCHS, states, ask(2)))
    assert (verdict.refusal, verdict.shown) == (None, {"a": True})


OTHER_APP = Case(TWO_EPOCHS, state(2, 1), replace(ask(2), query=replace(QUERY, app="other")))
OTHER_QUERY = Case(TWO_EPOCHS, state(2, 1), replace(ask(2), query=replace(QUERY, query_id="other")))
MOVED = Case(TWO_EPOCHS, state(2, 1), replace(ask(2), query=replace(QUERY, checkpoint="file:/elsewhere")))
REFUSALS: dict[str, tuple[Case, type[EpochalError], str]] = {
    "app": (OTHER_APP, CheckpointMismatch, "belongs to app 'app', not 'other'"),
    "incarnation": (OTHER_QUERY, CheckpointMismatch, "written by query query, this is query other"),
    "place": (MOVED, CheckpointMismatch, "last run at file:/checkpoint, now it lies at file:/elsewhere"),
    "empty log, marked sink": (Case(log(), state(2, 1), ask(0)), CheckpointMismatch, "empty epoch log"),
    "empty log, fenced sink": (Case(log(), state(0, 0), ask(0)), CheckpointMismatch, "empty epoch log"),
    "empty log, marker without a fence": (
        Case(log(), state(2, 1, fence=None), ask(0)),
        CheckpointMismatch,
        "empty epoch log",
    ),
    "sink left out": (Case(TWO_EPOCHS, {}, ask(2)), CheckpointMismatch, "missing from the pipeline"),
    "sink recreated": (
        Case(TWO_EPOCHS, {"a": replace(state(2, 1)["a"], identity="id-b")}, ask(2)),
        CheckpointMismatch,
        "it was id-a, now id-b",
    ),
    "unknown fence": (Case(TWO_EPOCHS, state(2, 1, fence=G2), ask(2)), CheckpointMismatch, "fenced by g2"),
    "fence of an unknown token": (
        Case(TWO_EPOCHS, state(2, 1, fence=Actor(1, 99)), ask(2)),
        CheckpointMismatch,
        "does not know",
    ),
    "no fence": (Case(TWO_EPOCHS, state(2, 1, fence=None), ask(2)), MarkerLost, "holds no fence"),
    "no marker": (Case(TWO_EPOCHS, state(0, 0), ask(2)), MarkerLost, "holds no marker"),
    "marker too new": (Case(TWO_EPOCHS, state(3, 2), ask(2)), CheckpointMismatch, "to no epoch that this"),
    "marker of another decision": (Case(TWO_EPOCHS, state(2, 1, G2), ask(2)), CheckpointMismatch, "to no epoch"),
    "older marker of another decision": (Case(TWO_EPOCHS, state(1, 0, G2), ask(2)), CheckpointMismatch, "to no epoch"),
    "marker of this decision at another position": (
        Case(TWO_EPOCHS, {"a": SinkState("id-a", G1, Marker(1, decision(1).id))}, ask(2)),
        CheckpointMismatch,
        "to no epoch",
    ),
    "marker before the only epoch that the log still holds": (
        Case(log(FENCE, commit(4, 5)), state(4, 3, G2), ask(5)),
        CheckpointMismatch,
        "to no epoch",
    ),
    "marker older than done": (
        Case(log(FENCE, commit(0, 1), commit(1, 2), Fence(G2, QUERY, 2, done_through={"a": 1})), state(1, 0), ask(2)),
        MarkerLost,
        "the log knows to be visible is 1",
    ),
    "marker of a sink that never took part": (
        Case(TWO_EPOCHS, {**state(2, 1), "new": SinkState("id", None, Marker(1, 7))}, ask(2)),
        CheckpointMismatch,
        "to no epoch",
    ),
    "epoch left out": (Case(TWO_EPOCHS, state(2, 1), ask(3)), CheckpointMismatch, "epoch 2 never reached"),
    "epoch left out before the first": (Case(log(FENCE), state(0, 0), ask(1)), CheckpointMismatch, "epoch 0 never"),
    "older epoch": (Case(TWO_EPOCHS, state(2, 1), ask(0)), CheckpointMismatch, "before epoch 2"),
    "other offsets": (
        Case(TWO_EPOCHS, state(2, 1), replace(ask(1), fingerprint="else")),
        CheckpointMismatch,
        "decided for offsets print-1, Spark now plans it as else",
    ),
    "other offsets of an epoch that was begun": (
        Case(TWO_APPLIED, state(2, 1), replace(ask(1), fingerprint="else")),
        CheckpointMismatch,
        "begun for offsets print-1, Spark now plans it as else",
    ),
    "behind, and Spark is past the epoch": (
        Case(TWO_APPLIED, state(1, 0), ask(2)),
        MarkerLost,
        "does not show epoch 1, which was applied, and Spark asks for epoch 2",
    ),
    "nothing of the first epoch, and Spark is past it": (
        Case(log(FENCE, begun(0, 1)), state(0, 0), ask(1)),
        MarkerLost,
        "does not show epoch 0",
    ),
    "two behind": (Case(TWO_APPLIED, state(0, 0), ask(1)), MarkerLost, "holds no marker"),
    "marker of another start's record": (Case(TWO_APPLIED, state(2, 1, G2), ask(2)), CheckpointMismatch, "to no epoch"),
    "sink of an epoch that was begun recreated": (
        Case(TWO_APPLIED, {"a": replace(state(2, 1)["a"], identity="id-b")}, ask(2)),
        CheckpointMismatch,
        "it was id-a, now id-b",
    ),
    "behind what is done": (
        Case(log(FENCE, begun(0, 1), begun(1, 2), Fence(G2, QUERY, 2, done_through={"a": 1})), state(1, 0), ask(1)),
        MarkerLost,
        "the log knows to be visible is 1",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_rule_says_what_it_saw_and_what_to_do(name: str) -> None:
    case, kind, text = REFUSALS[name]
    found = refusal(case)
    assert type(found) is kind
    assert text in str(found)
    assert "\n  Help: " in str(found)


def test_look_again_is_fenced_by_a_newer_record() -> None:
    history = log(FENCE, commit(0, 1), Fence(G2, QUERY, 1))
    found = judge(LOOK_AGAIN, Case(history, state(1, 0), ask(1), by=G1)).refusal
    assert isinstance(found, Fenced)
    assert "newest record of the log is a fence of g2" in str(found)


def test_look_again_wants_the_fence_itself_to_be_the_newest_record() -> None:
    history = log(FENCE, Fence(G2, QUERY, 0), commit(0, 1, G2))
    found = judge(LOOK_AGAIN, Case(history, state(1, 0, G2, fence=G2), ask(1), by=G2)).refusal
    assert isinstance(found, Fenced)
    assert "newest record of the log is a commit of g2" in str(found)


def test_look_again_is_fenced_by_a_sink_that_another_start_owns() -> None:
    history = log(FENCE, commit(0, 1), Fence(G2, QUERY, 1))
    found = judge(LOOK_AGAIN, Case(history, state(1, 0, fence=G1), ask(1), by=G2)).refusal
    assert isinstance(found, Fenced)
    assert "fenced by g1" in str(found)


def test_identify_needs_no_sink() -> None:
    assert judge(IDENTIFY, Case(TWO_EPOCHS, {}, ask(2))).refusal is None
    assert judge(IDENTIFY, Case(TWO_EPOCHS, {}, ask(4))).refusal is not None


def test_a_superseded_decision_stays_proof() -> None:
    again = Committable("a", decision(1, G2, redo=1), 2, 1)
    superseding = Commit(decision(1, G2, redo=1), G2, {"a": Participant("id-a", again)}, supersedes=decision(1).id)
    history = log(FENCE, commit(0, 1), commit(1, 2), Fence(G2, QUERY, 1), superseding)
    old, new = state(2, 1, fence=G2), {"a": SinkState("id-a", G2, Marker(2, again.decision.id))}
    assert judge(LOOK, Case(history, old, ask(1))).shown == {"a": True}
    assert judge(LOOK, Case(history, new, ask(1))).shown == {"a": True}


def test_done_counts_what_is_shown_and_never_falls() -> None:
    assert done_after(TWO_EPOCHS, {"a": True}) == {"a": 1}
    assert done_after(TWO_EPOCHS, {"a": False}) == {"a": 0}
    assert done_after(log(FENCE, commit(0, 1), commit(1, 2)), {"a": False}) == {"a": 0}
    assert done_after(log(FENCE, commit(0, 1)), {"a": False}) == {}


def test_a_copy_is_needed_until_a_durable_record_says_done() -> None:
    assert log(FENCE, commit(0, 1)).needed_copies() == (COPY,)
    assert log(FENCE, commit(0, 1), Fence(G2, QUERY, 1, done_through={"a": 0})).needed_copies() == ()


def test_a_copy_is_needed_while_one_sink_of_several_is_not_done() -> None:
    alone = commit(0, 1)
    both = replace(alone, participants={**alone.participants, "b": alone.participants["a"]})
    for done, needed in (({"a": 0}, (COPY,)), ({"a": 0, "b": 0}, ())):
        assert log(FENCE, both, Fence(G2, QUERY, 1, done_through=done)).needed_copies() == needed


def test_an_epoch_without_a_copy_needs_none() -> None:
    """One sink that votes has its rows by itself, and an epoch that is applied has no copy at all."""
    alone = replace(commit(0, 1), copy=None)
    assert log(FENCE, alone).needed_copies() == ()
    assert log(FENCE, begun(0, 1)).needed_copies() == ()
    assert log(FENCE, begun(0, 1), Fence(G2, QUERY, 0), commit(0, 1, G2)).needed_copies() == (COPY,)


def test_compaction_keeps_two_epochs_and_every_fence() -> None:
    old = Fence(Actor(0, 5), QUERY, 0)
    newest = Fence(Actor(3, 33), QUERY, 4)
    history = log(
        old, FENCE, commit(0, 1), commit(1, 2), Fence(G2, QUERY, 2), commit(2, 3, G2), commit(3, 4, G2), newest
    )
    floor, kept = history.compaction()
    assert floor == 5
    assert [entry.record for entry in kept] == [old, FENCE, Fence(G2, QUERY, 2)]
    again = History((*kept, *history.entries[5:]))
    assert again.compaction() == (floor, kept)
    assert refusal(Case(again, state(4, 3, G2, fence=G2), ask(4))) is None


def test_compaction_of_a_young_log_forgets_nothing() -> None:
    assert log(FENCE, commit(0, 1)).compaction() == (0, ())


def test_a_sink_may_be_behind_the_epoch_that_is_replayed() -> None:
    assert judge(LOOK, Case(TWO_APPLIED, state(1, 0), ask(1))).shown == {"a": False}
    assert judge(LOOK, Case(TWO_APPLIED, state(2, 1), ask(1))).shown == {"a": True}
    assert judge(LOOK, Case(TWO_APPLIED, state(2, 1), ask(2))).shown == {"a": True}


def test_what_was_begun_and_then_decided_is_decided() -> None:
    """So a sink that is behind is brought up by whoever starts, wherever Spark is."""
    both = log(FENCE, begun(0, 1), begun(1, 2), Fence(G2, QUERY, 1), commit(1, 2, G2))
    assert both.last is not None
    assert isinstance(both.last.current, Commit)
    assert judge(LOOK, Case(both, state(1, 0, fence=G2), ask(2))).shown == {"a": False}
    assert judge(LOOK, Case(both, state(2, 1, G2, fence=G2), ask(2))).shown == {"a": True}


def test_compaction_keeps_two_epochs_of_either_mode() -> None:
    history = log(FENCE, commit(0, 1), commit(1, 2), Fence(G2, QUERY, 2), begun(2, 3, G2), begun(3, 4, G2))
    floor, kept = history.compaction()
    assert (floor, [entry.record for entry in kept]) == (4, [FENCE, Fence(G2, QUERY, 2)])


def test_digests_that_agree() -> None:
    assert disagreement(0, {}, []) is None
    assert disagreement(0, {"a": Digest(2, 5), "b": Digest(2, 5)}, ["a"]) is None


@pytest.mark.parametrize("other", [Digest(2, 6), Digest(3, 5), Digest(0, 0)])
def test_digests_that_disagree_are_all_told(other: Digest) -> None:
    error = disagreement(4, {"b": Digest(2, 5), "a": other}, ["b"])
    assert isinstance(error, NonDeterministicReplay)
    assert (error.epoch, error.state) == (4, "visible in ['b']; nothing was written where it is not")
    assert error.what.endswith(f"not to the same rows: a {other}, b 2 rows, 0000000000000005")
    assert 'mode="two-phase"' in error.help


@pytest.mark.parametrize(("shown", "says"), [(["a"], "its marker holds no digest"), ([], "it voted with no digest")])
def test_without_a_digest_nothing_can_be_held_against_anything(shown: list[str], says: str) -> None:
    for digests in ({"a": None}, {"b": Digest(1, 1), "a": None}):
        error = disagreement(4, digests, shown)
        assert isinstance(error, Misconfigured)
        assert (error.sink, error.epoch) == ("a", 4)
        assert says in error.what
