"""The sink contract, over both in-memory references."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.chaos.contract import ABORTED, IdempotentContract, MarkedContract, SinkContract, SinkHarness, Start, query
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision, Epoch, Json
from epochal.coordinator.model.errors import (
    EpochalError,
    Fenced,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.memory import (
    Delivery,
    MemoryRedoSink,
    MemoryServer,
    MemorySink,
    MemoryStage,
    Prepared,
    Row,
    as_rows,
    deliver,
    digest_of,
)
from epochal.sinks.memory_transaction import MemoryTransactionSink, TransactionServer
from epochal.sinks.protocol import CommitOutcome, ForwardingSink, RedoSink, Rows, Sink, VotingSink


class VotingHarness(SinkHarness):
    """The reference that holds prepared rows invisible."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.stage = MemoryStage()

    def named(self, name: str) -> Sink:
        return MemorySink(name, self.server)

    def visible(self) -> list[tuple[str, str]]:
        return [(row["id"], row["attempt"]) for row in self.server.visible(self.app, "out")]

    def restart_server(self) -> None:
        self.server.crash()
        self.server.restart()

    def in_another_process(self, committable: Json | None, by: Json) -> str:
        """A process that shares nothing but the server cannot be had in memory: a fresh object stands for it."""
        sink = self.sink()
        sink.look(query(self.app))
        try:
            if committable is not None:
                return sink.commit(Committable.from_json(committable), Actor.from_json(by)).name
            sink.abort(query(self.app), Actor.from_json(by))
            return ABORTED
        except EpochalError as error:
            return type(error).__name__


class RenamedHarness(VotingHarness):
    """A reader that finds the table under either of its names."""

    def visible(self) -> list[tuple[str, str]]:
        rows = self.server.visible(self.app, self.server.kept_as(self.app, ["out", "out-2"]))
        return [(row["id"], row["attempt"]) for row in rows]


class RedoHarness(VotingHarness):
    """The reference that redoes its rows from the durable copy."""

    prepare_is_fenced = False

    def named(self, name: str) -> Sink:
        return MemoryRedoSink(name, self.server, self.stage)

    def copy(self, rows: Rows, epoch: int, by: Actor) -> Copy | None:
        return self.stage.write(epoch, by, rows)


class TestMemorySink(SinkContract):
    @pytest.fixture
    def harness(self) -> VotingHarness:
        return VotingHarness()

    def test_it_votes(self, harness: VotingHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)


class TestMemoryRedoSink(SinkContract):
    @pytest.fixture
    def harness(self) -> RedoHarness:
        return RedoHarness()

    def test_it_redoes(self, harness: RedoHarness) -> None:
        assert isinstance(harness.sink(), RedoSink)

    def test_what_is_committed_needs_its_copy_no_more(self, harness: RedoHarness, one: Start) -> None:
        committable = one.show(["a"])
        harness.stage.clean(one.actor, keep=[])
        assert harness.stage.copies() == []
        assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED


class TransactionHarness(RenamedHarness):
    """The reference that holds its rows in an open transaction, and redoes them if that was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = self.server = TransactionServer()

    def named(self, name: str) -> Sink:
        return MemoryTransactionSink(name, self.transactions, self.stage)

    def copy(self, rows: Rows, epoch: int, by: Actor) -> Copy | None:
        return self.stage.write(epoch, by, rows)


class TestMemoryTransactionSink(SinkContract):
    @pytest.fixture
    def harness(self) -> TransactionHarness:
        return TransactionHarness()

    def test_it_votes_and_can_redo(self, harness: TransactionHarness) -> None:
        assert isinstance(harness.sink(), VotingSink)
        assert isinstance(harness.sink(), RedoSink)

    def test_what_it_holds_needs_no_copy(self, harness: TransactionHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        harness.stage.clean(one.actor, keep=[])
        assert one.commit(committable) is CommitOutcome.COMMITTED

    def test_what_is_open_can_be_finished_by_a_start_that_has_not_fenced(
        self, harness: TransactionHarness, one: Start
    ) -> None:
        committable = one.prepare(["a"])
        two = Start(harness, Actor(2, 22))
        assert isinstance(two.sink, VotingSink)
        two.sink.finish(committable)
        two.sink.finish(committable)
        assert harness.visible() == [("a", "1.11.0")]
        assert two.fenced().commit(committable) is CommitOutcome.ALREADY_COMMITTED

    @pytest.mark.parametrize("ends", ["fenced", "abort", "expires", "prepare"])
    def test_what_was_ended_is_not_finished(self, harness: TransactionHarness, one: Start, ends: str) -> None:
        committable = one.prepare(["a"])
        if ends == "expires":
            assert harness.server.lose_prepared(harness.app, "out") == 1
        elif ends == "prepare":
            one.prepare(["b"], redo=1)
        else:
            getattr(one, ends)()
        assert isinstance(one.sink, VotingSink)
        one.sink.finish(committable)
        assert harness.visible() == []
        assert one.commit(committable) is CommitOutcome.COMMITTED
        assert harness.visible() == [("a", "1.11.0")]

    def test_the_transaction_of_another_decision_is_left_alone(self, harness: TransactionHarness, one: Start) -> None:
        """The rows of a superseding decision come from its copy, although the vote of another is open."""
        first = one.prepare(["a"])
        newer = Start(harness, Actor(2, 22)).fenced().prepare(["b"])
        two = Start(harness, Actor(2, 22))
        payload = {**newer.payload, "transaction": first.payload["transaction"]}
        assert two.commit(replace(newer, payload=payload)) is CommitOutcome.COMMITTED
        assert harness.visible() == [("b", "2.22.0")]

    def test_only_who_prepared_it_ends_it_in_a_commit(self, harness: TransactionHarness, one: Start) -> None:
        committable = one.prepare(["a"])
        with pytest.raises(Fenced):
            Start(harness, Actor(2, 22)).commit(committable)
        assert harness.visible() == []
        assert one.commit(committable) is CommitOutcome.COMMITTED


class TestMarkedMemoryTransactionSink(MarkedContract):
    @pytest.fixture
    def harness(self) -> TransactionHarness:
        return TransactionHarness()


class TestMemoryTransactionSinkInIdempotentMode(IdempotentContract):
    @pytest.fixture
    def harness(self) -> TransactionHarness:
        return TransactionHarness()


class TestMarkedMemorySink(MarkedContract):
    @pytest.fixture
    def harness(self) -> RenamedHarness:
        return RenamedHarness()


class TestMemorySinkInIdempotentMode(IdempotentContract):
    @pytest.fixture
    def harness(self) -> VotingHarness:
        return VotingHarness()


class TestMemoryRedoSinkInIdempotentMode(IdempotentContract):
    @pytest.fixture
    def harness(self) -> RedoHarness:
        return RedoHarness()


def test_an_answer_that_is_dropped_leaves_the_outcome_unknown() -> None:
    harness = VotingHarness()
    harness.sink().create(query(harness.app), None)
    one = Start(harness, Actor(1, 1)).fenced()
    committable = one.prepare(["a"])
    with failpoints.armed("after-publish=drop-answer"), pytest.raises(OutcomeUnknown, match="its answer lost"):
        one.commit(committable)
    assert one.commit(committable) is CommitOutcome.ALREADY_COMMITTED


def test_a_server_that_is_down_takes_no_request() -> None:
    harness = VotingHarness()
    harness.sink().create(query(harness.app), None)
    one = Start(harness, Actor(1, 1))
    harness.server.crash()
    with pytest.raises(SinkUnavailable, match="the server is down"):
        one.fenced()
    harness.server.restart()
    assert one.look().fence is None


def with_a_late_fence() -> tuple[VotingHarness, Start]:
    """A start whose fence is under way, and not there yet."""
    harness = VotingHarness()
    harness.sink().create(query(harness.app), None)
    one = Start(harness, Actor(1, 1))
    harness.server.network = lambda _verb, _sink: Delivery.LATE
    with pytest.raises(OutcomeUnknown):
        one.fenced()
    return harness, one


def test_a_crash_loses_what_is_under_way() -> None:
    harness, _ = with_a_late_fence()
    harness.restart_server()
    assert harness.server.deliver_late() == 0


def test_a_late_request_arrives_when_it_is_delivered_and_once() -> None:
    harness, one = with_a_late_fence()
    harness.server.network = deliver
    assert one.look().fence is None
    assert (harness.server.deliver_late(), harness.server.deliver_late()) == (1, 0)
    assert one.look().fence == one.actor


def test_prepared_rows_that_are_fewer_than_the_vote_said_are_lost() -> None:
    harness = VotingHarness()
    harness.sink().create(query(harness.app), None)
    one = Start(harness, Actor(1, 1)).fenced()
    committable = one.prepare(["a", "b"])
    with pytest.raises(PreparedLost, match="of 3 rows is gone"):
        one.commit(replace(committable, rows=3))
    assert harness.visible() == []


def test_an_abort_says_how_much_it_dropped() -> None:
    harness = VotingHarness()
    harness.sink().create(query(harness.app), None)
    one = Start(harness, Actor(1, 1)).fenced()
    for attempt in range(2):
        one.prepare([f"a{attempt}"])
    harness.server.table(harness.app, "out").prepared[99] = Prepared(99, 1, Actor(2, 2), ())
    assert harness.server.abort(harness.app, "out", one.actor) == 2
    assert harness.server.abort(harness.app, "out", one.actor) == 0


def test_a_table_that_was_never_made_is_refused() -> None:
    harness = VotingHarness()
    for verb in (lambda: harness.sink().check(query(harness.app), None), lambda: harness.sink().look(query("flights"))):
        with pytest.raises(Misconfigured, match="no table for app 'flights'"):
            verb()


@pytest.mark.remedy("used before look", "call look(query) first")
def test_after_close_comes_a_look() -> None:
    harness = VotingHarness()
    harness.sink().create(query(harness.app), None)
    one = Start(harness, Actor(1, 1)).fenced()
    one.sink.close()
    with pytest.raises(Misconfigured, match="used before look"):
        one.prepare(["a"])
    one.sink.look(query(harness.app))
    assert one.prepare(["a"]).rows == 1


def test_a_copy_that_is_gone_or_has_other_rows_is_lost() -> None:
    stage = MemoryStage()
    copy = stage.write(0, Actor(1, 1), [{"id": "a"}])
    assert stage.read(copy) == ({"id": "a"},)
    with pytest.raises(PreparedLost, match="is gone or has changed") as gone:
        stage.read(replace(copy, root="memory:/gone"))
    assert gone.value.state == "it is not there"
    with pytest.raises(PreparedLost, match="of 2 rows is gone or has changed") as changed:
        stage.read(replace(copy, files=(CopyFile("rows", 2, 2),)))
    assert changed.value.state == "1 rows are there"


def test_rows_may_be_anything_that_is_iterated_once() -> None:
    def once() -> list[Row]:
        evaluations.append(1)
        return [{"id": "a"}]

    class Lazy:
        def __iter__(self) -> object:
            return iter(once())

    evaluations: list[int] = []
    MemoryStage().write(0, Actor(1, 1), Lazy())
    assert evaluations == [1]


def test_a_digest_knows_rows_and_not_the_order_of_their_columns() -> None:
    assert digest_of([{"a": 1, "b": 2}]) == digest_of([{"b": 2, "a": 1}])
    assert digest_of([{"a": 1, "b": 2}]) != digest_of([{"a": 2, "b": 1}])


def test_the_reference_that_redoes_votes_for_a_copy_alone() -> None:
    sink = MemoryRedoSink("a", MemoryServer(), MemoryStage())
    with pytest.raises(PrepareRefused, match="there is no durable copy to apply"):
        sink.prepare(Epoch(Decision("q1", 0, Actor(1, 11), "f"), 1), [], Actor(1, 11))


def test_a_sink_that_forwards_says_where() -> None:
    with pytest.raises(NotImplementedError):
        _ = ForwardingSink().into


class FarAway:
    """Rows as pyspark gives them if one has a date of the year 10000."""

    def collect(self) -> list[object]:
        raise ValueError("year 10000 is out of range")


def test_a_value_that_python_does_not_have_refuses_the_epoch() -> None:
    """The ValueError came out as it was."""
    with pytest.raises(PrepareRefused, match="cannot hold: year 10000 is out of range") as refused:
        as_rows(FarAway(), "out", 3)
    assert (refused.value.sink, refused.value.epoch) == ("out", 3)


@pytest.mark.remedy(
    "another producer has ended the transaction while it was written",
    "run one query per app and sink, and write an epoch within the transaction's timeout",
)
def test_a_transaction_that_expires_while_it_is_written_is_written_again() -> None:
    harness = TransactionHarness()
    harness.sink().create(query(harness.app), None)
    one = Start(harness, Actor(1, 1)).fenced()

    def expiring(verb: str, sink: str) -> Delivery:
        if verb == "write":
            harness.server.lose_prepared(harness.app, sink)
        return Delivery.DELIVERED

    harness.server.network = expiring
    with pytest.raises(SinkUnavailable, match="while it was written"):
        one.prepare(["a"])
    harness.server.network = deliver
    one.show(["a"])
    assert harness.visible() == [("a", "1.1.0")]
