"""What every sink must do: one suite for the in-memory references, for real servers and for any author's sink.

The test of a sink subclasses :class:`SinkContract` and defines the fixture ``harness``
(:class:`~epochal.chaos.contract.harness.SinkHarness`), whose target is empty before each test.  In these tests an
*actor* is a start of the query: a fresh sink object that has looked, as another process would make it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from epochal.chaos.contract.audited import Given, tells
from epochal.chaos.contract.harness import ABORTED, SinkHarness, query
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch, SinkState
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    Fenced,
    MarkerLost,
    Misconfigured,
    PreparedLost,
)
from epochal.sinks.protocol import CommitOutcome, RedoSink, Rows, Sink


class Start:
    """One start of the query, which acts on one sink."""

    def __init__(self, harness: SinkHarness, actor: Actor, sink: Sink | None = None, app: str = "") -> None:
        self.harness = harness
        self.actor = actor
        self.sink = sink if sink is not None else harness.sink()
        self.query = query(app or harness.app)
        self.sink.look(self.query)

    def fenced(self) -> Start:
        self.sink.fence(self.query, self.actor)
        return self

    def epoch(self, number: int, position: int, redo: int = 0) -> Epoch:
        decision = Decision("q1", number, self.actor, f"fingerprint-{number}", redo)
        return Epoch(decision, position, offsets=f'{{"offset":{number}}}', watermark=number)

    def prepare(self, ids: Sequence[str], number: int = 0, position: int = 0, redo: int = 0) -> Committable:
        """Prepare ``ids`` as epoch ``number``; the position is ``number + 1`` unless given.

        The rows' attempt is ``<generation>.<token>.<redo>``.
        """
        attempt = f"{self.actor.generation}.{self.actor.token}.{redo}"
        return self.prepare_rows(self.harness.rows(ids, attempt), self.epoch(number, position or number + 1, redo))

    def prepare_rows(self, rows: Rows, epoch: Epoch) -> Committable:
        copy = self.harness.staged(self.sink, rows, epoch, self.actor)
        if copy is not None:
            return self.sink.prepare(replace(epoch, copy=copy), self.harness.read(copy), self.actor)
        copy = self.harness.copy(rows, epoch.number, self.actor)
        return self.sink.prepare(replace(epoch, copy=copy), rows, self.actor)

    def commit(self, committable: Committable) -> CommitOutcome:
        return self.sink.commit(committable, self.actor)

    def show(self, ids: Sequence[str], number: int = 0) -> Committable:
        committable = self.prepare(ids, number)
        assert self.commit(committable) is CommitOutcome.COMMITTED
        return committable

    def abort(self) -> None:
        self.sink.abort(self.query, self.actor)

    def look(self, *, final: bool = False) -> SinkState:
        return self.sink.look(self.query, by=self.actor if final else None)


ONE = Actor(1, 11)
SAME_GENERATION = Actor(1, 99)
TWO = Actor(2, 22)
MANY = 5003  # a prime, so it is not a multiple of any block size


class ModeContract:
    """What depends on how rows are written.  A sink with several modes must do this in each of its modes.

    Subclass it as ``Test...`` and define the fixture ``harness``.
    """

    @pytest.fixture
    def harness(self) -> SinkHarness:
        raise NotImplementedError("define the fixture `harness`: a new SinkHarness with an empty target")

    @pytest.fixture
    def one(self, harness: SinkHarness) -> Start:
        """The first start: the target is created, and the start has looked and fenced."""
        sink = harness.sink()
        sink.create(query(harness.app), harness.schema)
        return Start(harness, ONE, sink).fenced()

    def newer(self, harness: SinkHarness) -> Start:
        return Start(harness, TWO).fenced()

    def ids(self, harness: SinkHarness) -> list[str]:
        return sorted(key for key, _ in harness.visible())

    # prepare, commit

    def test_nothing_is_visible_before_the_commit(self, harness: SinkHarness, one: Start) -> None:
        one.prepare(["a", "b"])
        assert harness.visible() == []
        assert one.look().marker is None

    def test_commit_shows_all_rows_once_and_sets_the_marker(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a", "b", "b"])
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a", "b", "b"]
        marker = one.look().marker
        assert marker is not None
        assert (marker.position, marker.decision) == (1, committable.decision.id)

    def test_an_epoch_of_thousands_of_rows_is_shown_to_the_last(self, harness: SinkHarness, one: Start) -> None:
        """Rows may be written in blocks; rows of the last, incomplete block must not be lost."""
        ids = [f"{number:05}" for number in range(MANY)]
        committable = one.show(ids)
        assert committable.rows == MANY
        assert self.ids(harness) == ids
        one.show(["next"], 1)
        assert self.ids(harness) == harness.after(ids, ["next"])

    def test_the_vote_says_whose_decision_where_and_how_many_rows(self, one: Start) -> None:
        committable = one.prepare(["a", "b"])
        assert committable.sink == one.sink.name
        assert committable.decision == one.epoch(0, 1).decision
        assert (committable.position, committable.rows) == (1, 2)

    def test_commit_twice_is_already_committed(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show(["a"])
        assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED
        assert self.ids(harness) == ["a"]

    def test_epochs_follow_each_other(self, harness: SinkHarness, one: Start) -> None:
        tells(harness, [])
        votes = []
        for number, key in enumerate(["a", "b", "c"]):
            votes.append(one.show([key], number))
            assert self.ids(harness) == harness.after(*["a", "b", "c"][: number + 1])
        marker = one.look().marker
        assert marker is not None
        assert marker.position == 3
        tells(harness, [Given(one.epoch(number, number + 1), vote.rows) for number, vote in enumerate(votes)])

    def test_an_epoch_without_rows_moves_the_marker(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show([])
        assert committable.rows == 0
        assert harness.visible() == []
        assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED
        one.show(["a"], 1)
        assert self.ids(harness) == ["a"]

    def test_an_epoch_without_partitions_moves_the_marker(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare_rows(harness.no_partitions(), one.epoch(0, 1))
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED
        one.show(["a"], 1)
        assert self.ids(harness) == ["a"]

    # by whom, from where

    def test_a_fresh_sink_object_commits_from_the_json(self, harness: SinkHarness, one: Start) -> None:
        text = json.dumps(one.prepare(["a"]).to_json())
        one.sink.close()
        fresh = Start(harness, ONE)
        assert fresh.commit(Committable.from_json(json.loads(text))) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a"]

    def test_another_process_commits_from_the_json(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        outcome = harness.in_another_process(committable.to_json(), ONE.to_json())
        assert outcome == CommitOutcome.COMMITTED.name
        assert self.ids(harness) == ["a"]
        assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED

    def test_a_newer_actor_finishes_an_older_decision(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        newer = self.newer(harness)
        assert newer.commit(committable) is CommitOutcome.COMMITTED
        assert newer.commit(committable) is CommitOutcome.ALREADY_COMMITTED
        assert self.ids(harness) == ["a"]

    def test_commit_by_an_older_actor_is_fenced(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        self.newer(harness)
        with pytest.raises(Fenced):
            one.commit(committable)
        assert harness.visible() == []

    def test_commit_by_a_newer_actor_that_did_not_fence_is_fenced(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        with pytest.raises(Fenced):
            Start(harness, TWO).commit(committable)
        assert harness.visible() == []

    def test_the_fence_is_asked_before_the_marker(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show(["a"])
        self.newer(harness)
        with pytest.raises(Fenced):
            one.commit(committable)
        assert self.ids(harness) == ["a"]

    def test_prepare_by_a_fenced_actor_is_refused_or_comes_to_nothing(self, harness: SinkHarness, one: Start) -> None:
        newer = self.newer(harness)
        committable = newer.prepare(["new"])
        if harness.prepare_is_fenced:
            with pytest.raises(Fenced):
                one.prepare(["old"])
        else:
            late = one.prepare(["old"])
            with pytest.raises(Fenced):
                one.commit(late)
        assert harness.visible() == []
        assert newer.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["new"]

    # fence

    def test_fencing_twice_is_fine_and_keeps_what_is_prepared(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        one.fenced()
        assert one.look().fence == ONE
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a"]

    # position and marker

    def test_a_position_beyond_the_next_is_marker_lost(self, harness: SinkHarness, one: Start) -> None:
        committable = replace(one.prepare(["a"]), position=2)
        with pytest.raises(MarkerLost):
            one.commit(committable)
        assert harness.visible() == []

    def test_a_marker_that_is_older_than_it_must_be_is_lost(self, harness: SinkHarness, one: Start) -> None:
        one.show(["a"])
        committable = replace(one.prepare(["b"], 1), position=3)
        with pytest.raises(MarkerLost):
            one.commit(committable)
        assert self.ids(harness) == ["a"]

    def test_another_decision_at_its_own_position_is_a_mismatch(self, harness: SinkHarness, one: Start) -> None:
        first = one.prepare(["a"])
        other = one.prepare(["b"], redo=1)
        assert one.commit(other) is CommitOutcome.COMMITTED
        with pytest.raises(CheckpointMismatch):
            one.commit(first)
        assert self.ids(harness) == ["b"]

    def test_the_same_epoch_prepared_by_another_actor_is_not_already_committed(
        self, harness: SinkHarness, one: Start
    ) -> None:
        first = one.prepare(["a"])
        newer = self.newer(harness)
        newer.show(["b"])
        with pytest.raises(CheckpointMismatch):
            newer.commit(first)
        assert self.ids(harness) == ["b"]

    def test_a_position_long_gone_is_a_mismatch(self, harness: SinkHarness, one: Start) -> None:
        loser = one.prepare(["a"])
        assert one.commit(one.prepare(["b"], redo=1)) is CommitOutcome.COMMITTED
        one.show(["c"], 1)
        with pytest.raises(CheckpointMismatch):
            one.commit(loser)
        assert self.ids(harness) == harness.after(["b"], ["c"])

    def test_positions_do_not_follow_the_epoch_number(self, harness: SinkHarness, one: Start) -> None:
        one.show(["a"])
        committable = one.prepare(["b"], number=40, position=2)
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == harness.after(["a"], ["b"])

    # several attempts, abort

    def test_rows_of_a_superseded_attempt_are_never_visible(self, harness: SinkHarness, one: Start) -> None:
        one.prepare(["a", "b"])
        winner = one.prepare(["a", "c"], redo=1)
        assert one.commit(winner) is CommitOutcome.COMMITTED
        assert {attempt for _, attempt in harness.visible()} == {"1.11.1"}
        one.show(["d"], 1)
        assert self.ids(harness) == harness.after(["a", "c"], ["d"])

    def test_rows_of_a_dead_start_are_never_visible(self, harness: SinkHarness, one: Start) -> None:
        one.prepare(["a"])
        newer = self.newer(harness)
        newer.show(["b"])
        newer.show(["c"], 1)
        assert self.ids(harness) == harness.after(["b"], ["c"])

    def test_abort_drops_what_is_prepared(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        one.abort()
        if not isinstance(one.sink, RedoSink):
            with pytest.raises(PreparedLost):
                one.commit(committable)
        one.show(["b"])
        assert self.ids(harness) == ["b"]

    def test_abort_by_a_newer_actor_drops_what_an_older_one_prepared(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        newer = self.newer(harness)
        newer.abort()
        if not isinstance(one.sink, RedoSink):
            with pytest.raises(PreparedLost):
                newer.commit(committable)
        assert harness.visible() == []

    def test_abort_leaves_what_is_committed(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show(["a"])
        one.prepare(["b"], 1)
        one.abort()
        assert self.ids(harness) == ["a"]
        assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED

    def test_abort_by_an_older_actor_is_fenced_and_drops_nothing(self, harness: SinkHarness, one: Start) -> None:
        newer = self.newer(harness)
        committable = newer.prepare(["a"])
        with pytest.raises(Fenced):
            one.abort()
        assert newer.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a"]

    # look

    def test_look_disturbs_nothing(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        stranger = Start(harness, TWO)
        assert stranger.look() == stranger.look()
        stranger.sink.close()
        assert one.look().fence == ONE
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a"]

    # the server

    def test_prepared_rows_survive_a_restart_of_the_server(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        one.sink.close()
        harness.restart_server()
        assert Start(harness, ONE).commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a"]

    # names, apps, set-up

    def test_create_again_changes_nothing(self, harness: SinkHarness, one: Start) -> None:
        one.show(["a"])
        before = one.look()
        harness.sink().create(query(harness.app), harness.schema)
        assert one.look() == before
        assert self.ids(harness) == ["a"]

    def test_a_committable_survives_json_and_holds_no_secret(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        text = json.dumps(committable.to_json())
        assert Committable.from_json(json.loads(text)) == committable
        assert not [secret for secret in harness.secrets if secret in text]

    def test_the_guarantee_names_the_sink(self, one: Start) -> None:
        assert one.sink.name in one.sink.guarantee()


class SinkContract(ModeContract):
    """Everything that a sink must do.  Subclass it as ``Test...`` and define the fixture ``harness``."""

    # by whom, from where

    def test_another_process_sees_that_it_is_already_committed(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show(["a"])
        outcome = harness.in_another_process(committable.to_json(), ONE.to_json())
        assert outcome == CommitOutcome.ALREADY_COMMITTED.name
        assert self.ids(harness) == ["a"]

    def test_another_process_of_an_older_actor_is_fenced(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        self.newer(harness)
        outcome = harness.in_another_process(committable.to_json(), ONE.to_json())
        assert outcome == Fenced.__name__
        assert harness.visible() == []

    def test_commit_by_an_equal_generation_with_another_token_is_fenced(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        with pytest.raises(Fenced):
            Start(harness, SAME_GENERATION).commit(committable)
        assert harness.visible() == []

    # fence

    @pytest.mark.usefixtures("one")
    def test_a_fence_can_be_read(self, harness: SinkHarness) -> None:
        assert Start(harness, TWO).look().fence == ONE

    def test_before_any_fence_there_is_none(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        sink.create(query(harness.app), harness.schema)
        state = sink.look(query(harness.app))
        assert (state.fence, state.marker) == (None, None)

    @pytest.mark.usefixtures("one")
    def test_a_newer_fence_takes_over(self, harness: SinkHarness) -> None:
        newer = self.newer(harness)
        assert newer.look(final=True).fence == TWO
        newer.show(["a"])
        assert self.ids(harness) == ["a"]

    def test_an_older_fence_is_refused(self, harness: SinkHarness, one: Start) -> None:
        newer = self.newer(harness)
        with pytest.raises(Fenced):
            one.fenced()
        assert newer.look().fence == TWO
        newer.show(["a"])

    def test_a_fence_of_equal_generation_with_another_token_is_refused(self, harness: SinkHarness, one: Start) -> None:
        with pytest.raises(Fenced):
            Start(harness, SAME_GENERATION).fenced()
        assert one.look().fence == ONE
        one.show(["a"])

    # position and marker

    def test_the_same_epoch_of_another_query_is_not_already_committed(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show(["a"])
        foreign = replace(committable, decision=replace(committable.decision, incarnation="q2"))
        with pytest.raises(CheckpointMismatch):
            one.commit(foreign)
        assert self.ids(harness) == ["a"]

    # several attempts, abort

    def test_abort_is_idempotent_and_may_find_nothing(self, harness: SinkHarness, one: Start) -> None:
        one.abort()
        one.prepare(["a"])
        one.abort()
        one.abort()
        one.show(["b"])
        assert self.ids(harness) == ["b"]

    def test_abort_in_another_process_drops_what_is_prepared(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        assert harness.in_another_process(None, ONE.to_json()) == ABORTED
        if not isinstance(one.sink, RedoSink):
            with pytest.raises(PreparedLost):
                one.commit(committable)
        one.show(["b"])
        assert self.ids(harness) == ["b"]

    def test_abort_in_another_process_of_an_older_actor_is_fenced_and_drops_nothing(
        self, harness: SinkHarness, one: Start
    ) -> None:
        newer = self.newer(harness)
        committable = newer.prepare(["a"])
        assert harness.in_another_process(None, one.actor.to_json()) == Fenced.__name__
        assert newer.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a"]

    def test_abort_by_an_equal_generation_with_another_token_is_fenced_and_drops_nothing(
        self, harness: SinkHarness, one: Start
    ) -> None:
        committable = one.prepare(["a"])
        with pytest.raises(Fenced):
            Start(harness, SAME_GENERATION).abort()
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert self.ids(harness) == ["a"]

    # look

    def test_the_final_look_shows_what_an_older_actor_committed(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show(["a"])
        newer = self.newer(harness)
        marker = newer.look(final=True).marker
        assert marker is not None
        assert marker.decision == committable.decision.id

    def test_identity_is_the_same_for_every_start(self, harness: SinkHarness, one: Start) -> None:
        before = one.look().identity
        one.show(["a"])
        newer = self.newer(harness)
        assert before == one.look().identity == newer.look(final=True).identity

    def test_a_closed_sink_can_be_used_again_after_a_look(self, one: Start) -> None:
        committable = one.prepare(["a"])
        one.sink.close()
        one.sink.close()
        one.look()
        assert one.commit(committable) is CommitOutcome.COMMITTED

    # the server

    def test_abort_after_a_restart_of_the_server_drops_what_is_prepared(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        one.sink.close()
        harness.restart_server()
        again = Start(harness, ONE)
        again.abort()
        if not isinstance(again.sink, RedoSink):
            with pytest.raises(PreparedLost):
                again.commit(committable)
        again.show(["b"])
        assert self.ids(harness) == ["b"]

    def test_fence_marker_and_identity_survive_a_restart_of_the_server(self, harness: SinkHarness, one: Start) -> None:
        committable = one.show(["a"])
        before = one.look()
        one.sink.close()
        harness.restart_server()
        again = Start(harness, ONE)
        assert again.look() == before
        assert again.commit(committable) is CommitOutcome.ALREADY_COMMITTED
        assert self.ids(harness) == ["a"]

    # names, apps, set-up

    def test_two_apps_do_not_see_each_other(self, harness: SinkHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        other_app = f"{harness.app}-2"
        sink = harness.neighbour()
        sink.create(query(other_app), harness.schema)
        other = Start(harness, TWO, sink, other_app)
        assert (other.look().fence, other.look().marker) == (None, None)
        other.fenced().abort()
        assert one.look().fence == ONE
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert other.look(final=True).marker is None

    def test_check_accepts_what_create_made(self, harness: SinkHarness, one: Start) -> None:
        before = one.look()
        harness.sink().check(query(harness.app), harness.schema)
        assert one.look() == before

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 121])
    @pytest.mark.usefixtures("one")
    def test_a_sink_name_is_checked(self, harness: SinkHarness, name: str) -> None:
        with pytest.raises(Misconfigured, match="is not of the form") as refused:
            harness.named(name).check(query(harness.app), harness.schema)
        assert repr(name) in str(refused.value)

    @pytest.mark.parametrize("app", ["", "a b", "a'b"])
    def test_an_app_name_is_checked_by_whatever_comes_first(self, harness: SinkHarness, one: Start, app: str) -> None:
        for verb in (
            lambda: one.sink.create(query(app), harness.schema),
            lambda: one.sink.check(query(app), harness.schema),
            lambda: one.sink.look(query(app)),
        ):
            with pytest.raises(Misconfigured, match="is not of the form") as refused:
                verb()
            assert repr(app) in str(refused.value)
