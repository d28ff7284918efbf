"""What a sink must do for idempotent mode, in addition to :class:`~epochal.chaos.contract.sinks.SinkContract`.

In this mode an epoch has no decision and no durable copy.  A sink that can hold rows invisible prepares and commits as
usual.  Any other sink gets the rows through ``apply``.  In both cases the digest of the rows goes into the marker, so
that one evaluation can be compared with another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from epochal.chaos.contract.audited import Given, tells
from epochal.chaos.contract.harness import SinkHarness, query
from epochal.chaos.contract.sinks import ONE, SAME_GENERATION, TWO, Start
from epochal.coordinator.model.epoch import Committable, Digest, Epoch, Marker
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    Fenced,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
)
from epochal.sinks.protocol import Applied, ApplySink, CommitOutcome, RedoSink, Rows

COMMITTED, ALREADY_COMMITTED = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED
OTHER = Digest(77, 7)


class Applying(Start):
    """A start of the query in idempotent mode, acting on one sink."""

    def begun(self, number: int, position: int = 0) -> Epoch:
        """Return epoch ``number`` as this start begins it."""
        return replace(self.epoch(number, position or number + 1), digest=True)

    def apply(self, epoch: Epoch, rows: Rows, agreed: Digest | None = None) -> Applied:
        """Write the rows as the coordinator does, once the digests agree: apply, or prepare and commit."""
        if isinstance(self.sink, ApplySink):
            return self.sink.apply(epoch, rows, self.actor, agreed)
        vote = self.sink.prepare(epoch, rows, self.actor)
        assert vote.digest is not None
        return Applied(self.commit(vote), vote.digest)

    def give(self, ids: Sequence[str], number: int = 0, position: int = 0) -> Applied:
        """Write ``ids`` as epoch ``number``.  The rows do not depend on the actor."""
        return self.apply(self.begun(number, position), self.harness.rows(ids, "any"))

    def marker(self) -> Marker:
        marker = self.look(final=True).marker
        assert marker is not None
        return marker


class IdempotentContract:
    """The suite for idempotent mode.  Subclass it as ``Test...`` and define the fixture ``harness``."""

    @pytest.fixture
    def harness(self) -> SinkHarness:
        raise NotImplementedError("define the fixture `harness`: a new SinkHarness with an empty target")

    @pytest.fixture
    def one(self, harness: SinkHarness) -> Applying:
        """The first start: the target is created, and the start has looked and fenced."""
        sink = harness.sink()
        sink.create(query(harness.app), harness.schema)
        start = Applying(harness, ONE, sink)
        start.fenced()
        return start

    def newer(self, harness: SinkHarness) -> Applying:
        start = Applying(harness, TWO)
        start.fenced()
        return start

    def ids(self, harness: SinkHarness) -> list[str]:
        return sorted(key for key, _ in harness.visible())

    def test_a_sink_that_redoes_can_be_given_rows(self, one: Applying) -> None:
        assert isinstance(one.sink, ApplySink) == isinstance(one.sink, RedoSink)

    # rows, marker, digest

    def test_the_rows_are_shown_once_with_their_digest_in_the_marker(self, harness: SinkHarness, one: Applying) -> None:
        applied = one.give(["a", "b", "b"])
        assert applied.outcome is COMMITTED
        assert self.ids(harness) == ["a", "b", "b"]
        marker = one.marker()
        assert (marker.position, marker.decision) == (1, one.begun(0).decision.id)
        assert marker.digest == applied.digest
        assert applied.digest.rows == harness.evaluated(["a", "b", "b"])

    def test_epochs_follow_each_other(self, harness: SinkHarness, one: Applying) -> None:
        digests = [one.give([key], number).digest for number, key in enumerate(["a", "b", "c"])]
        assert self.ids(harness) == harness.after(["a"], ["b"], ["c"])
        assert len(set(digests)) == 3
        assert one.marker().digest == digests[-1]
        tells(harness, [Given(one.begun(number), 1, digest) for number, digest in enumerate(digests)])

    def test_an_epoch_without_rows_has_a_digest(self, harness: SinkHarness, one: Applying) -> None:
        assert one.give([]).digest == Digest(0, 0)
        assert one.marker().digest == Digest(0, 0)
        assert one.apply(one.begun(1), harness.no_partitions()).digest == Digest(0, 0)
        one.give(["a"], 2)
        assert self.ids(harness) == ["a"]

    def test_the_digest_does_not_depend_on_the_order_of_the_rows(self, harness: SinkHarness, one: Applying) -> None:
        rows = harness.rows(["a", "b", "c"], "any")
        assert one.apply(one.begun(0), rows).digest == one.apply(one.begun(1), harness.reordered(rows)).digest

    def test_every_value_and_every_repetition_counts(self, harness: SinkHarness, one: Applying) -> None:
        batches = [["a"], ["b"], ["a", "a"], ["a", "b"], ["a", "b", "b"], ["a", "a", "b"], ["a", "", "b"]]
        digests = [one.give(ids, number).digest for number, ids in enumerate(batches)]
        attempt = one.apply(one.begun(len(batches)), harness.rows(["a"], "another")).digest
        assert len({*digests, attempt}) == len(batches) + 1

    def test_thousands_of_rows_have_the_digest_of_all_of_them(self, harness: SinkHarness, one: Applying) -> None:
        ids = [f"{number:05}" for number in range(3001)]
        applied = one.give(ids)
        assert applied.digest.rows == harness.evaluated(ids)
        assert self.ids(harness) == ids
        assert one.give([*ids[:-1], "other"], 1).digest != applied.digest

    def test_the_marker_and_its_digest_survive_a_restart_of_the_server(
        self, harness: SinkHarness, one: Applying
    ) -> None:
        digest = one.give(["a"]).digest
        one.sink.close()
        harness.restart_server()
        assert Applying(harness, ONE).marker().digest == digest

    # conditions

    def test_what_is_there_is_not_written_again_and_its_digest_is_the_markers(
        self, harness: SinkHarness, one: Applying
    ) -> None:
        first = one.give(["a"])
        if isinstance(one.sink, ApplySink):
            for ids in (["a"], ["b", "c"]):
                assert one.give(ids) == Applied(ALREADY_COMMITTED, first.digest)
        assert self.ids(harness) == ["a"]
        assert one.marker().digest == first.digest

    def test_a_newer_start_goes_on_with_an_older_ones_epoch(self, harness: SinkHarness, one: Applying) -> None:
        one.give(["a"])
        rows = harness.rows(["b"], "any")
        if not isinstance(one.sink, ApplySink):
            one.sink.prepare(one.begun(1), rows, ONE)
        newer = self.newer(harness)
        newer.abort()
        assert newer.apply(newer.begun(1), rows).outcome is COMMITTED
        assert newer.marker().decision == newer.begun(1).decision.id
        assert self.ids(harness) == harness.after(["a"], ["b"])

    def test_who_was_fenced_gives_nothing(self, harness: SinkHarness, one: Applying) -> None:
        rows = harness.rows(["a"], "any")
        self.newer(harness)
        for start in (one, Applying(harness, SAME_GENERATION)):
            with pytest.raises(Fenced):
                start.apply(start.begun(0), rows)
        assert harness.visible() == []

    def test_the_fence_is_asked_before_the_marker(self, harness: SinkHarness, one: Applying) -> None:
        rows = harness.rows(["a"], "any")
        one.apply(one.begun(0), rows)
        self.newer(harness)
        with pytest.raises(Fenced):
            one.apply(one.begun(0), rows)

    def test_a_position_beyond_the_next_is_marker_lost(self, harness: SinkHarness, one: Applying) -> None:
        one.give(["a"])
        with pytest.raises(MarkerLost):
            one.give(["b"], 1, position=3)
        assert self.ids(harness) == ["a"]

    def test_a_position_that_another_epoch_has_is_a_mismatch(self, harness: SinkHarness, one: Applying) -> None:
        one.give(["a"])
        one.give(["b"], 1)
        for number, position in ((0, 1), (7, 2), (7, 1)):
            with pytest.raises(CheckpointMismatch):
                one.give(["c"], number, position)
        assert self.ids(harness) == harness.after(["a"], ["b"])

    def test_other_rows_than_were_agreed_are_not_written(self, harness: SinkHarness, one: Applying) -> None:
        if not isinstance(one.sink, ApplySink):
            return  # the coordinator compares the digests while this sink's rows are prepared and invisible
        rows = harness.rows(["a"], "any")
        with pytest.raises(NonDeterministicReplay, match="77 rows") as refused:
            one.apply(one.begun(0), rows, agreed=OTHER)
        assert f"{harness.evaluated(['a'])} rows, " in str(refused.value)
        assert harness.visible() == []
        assert one.look(final=True).marker is None
        digest = one.give(["a"]).digest
        assert one.apply(one.begun(1), rows, agreed=digest) == Applied(COMMITTED, digest)

    # both modes on one target

    def test_the_modes_take_turns(self, harness: SinkHarness, one: Applying) -> None:
        one.show(["a"])
        assert one.marker().digest is None
        applied = one.give(["b"], 1)
        assert one.marker().digest == applied.digest
        one.show(["c"], 2)
        assert one.marker().digest is None
        assert self.ids(harness) == harness.after(["a"], ["b"], ["c"])

    def test_a_vote_with_a_digest_survives_json(self, harness: SinkHarness, one: Applying) -> None:
        if isinstance(one.sink, RedoSink):
            return  # it does not vote in this mode
        vote = one.sink.prepare(one.begun(0), harness.rows(["a"], "any"), ONE)
        assert Committable.from_json(json.loads(json.dumps(vote.to_json()))) == vote

    def test_before_look_it_is_misconfigured(self, harness: SinkHarness, one: Applying) -> None:
        fresh = harness.sink()
        if isinstance(fresh, ApplySink):
            with pytest.raises(Misconfigured, match="used before look"):
                fresh.apply(one.begun(0), harness.rows(["a"], "any"), ONE, None)
