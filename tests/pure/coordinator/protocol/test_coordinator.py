"""What the coordinator does with participants, callers and logs that are not as they should be."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from epochal.checkpoints.log import Apply, Commit, Fence, LogPosition, Record
from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import (
    IDEMPOTENT,
    TWO_PHASE,
    Actor,
    Committable,
    Copy,
    Digest,
    Epoch,
    EpochNumber,
    EpochRequest,
    Phase,
    Query,
    SinkState,
)
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Fenced,
    LogCorrupt,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
    OutcomeUnknown,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.protocol.coordinator import Coordinator, wants_copy
from epochal.coordinator.protocol.retry import Retry, serial
from epochal.sinks import DeltaSink, PostgresSink
from epochal.sinks.memory import MemoryRedoSink, MemoryServer, MemorySink, MemoryStage
from epochal.sinks.protocol import Applied, CommitOutcome, Rows, Sink

QUERY = Query("app", "query", "run", "file:/checkpoint")
QUICK = Retry(attempts=3, sleep=lambda _: None)


@dataclass
class Batch:
    """One row; ``discard`` counts."""

    epoch: int
    discarded: int = 0
    changed: bool = False

    @property
    def ask(self) -> EpochRequest:
        return EpochRequest(QUERY, self.epoch, f"print-{self.epoch}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [{"id": f"row-{self.epoch}"}]

    def discard(self) -> None:
        self.discarded += 1

    def confirm(self) -> None:
        if self.changed:
            raise CheckpointMismatch("the offsets were changed", help="stop the other driver")


class World:
    """A server, a log and a durable copy that outlive every start."""

    def __init__(self) -> None:
        self.server, self.log, self.stage = MemoryServer(), MemoryLog(), MemoryStage()

    def sink(self, name: str) -> MemorySink:
        made = MemorySink(name, self.server)
        made.create(QUERY, None)
        return made

    def redo(self, name: str) -> MemoryRedoSink:
        made = MemoryRedoSink(name, self.server, self.stage)
        made.create(QUERY, None)
        return made

    def start(self, *sinks: Sink, compact_every: int = 1, mode: str = TWO_PHASE, **options: Any) -> Coordinator:
        return Coordinator(
            query=QUERY,
            sinks=sinks,
            log=self.log,
            mode=mode,
            stage=self.stage,
            retry=QUICK,
            compact_every=compact_every,
            **options,
        )

    def apply(self, *sinks: Sink) -> Coordinator:
        return self.start(*sinks, mode=IDEMPOTENT)


class Folders(MemoryStage):
    """Its copies survive a power failure only once they are kept; a disk may refuse that."""

    def __init__(self, refuses: bool) -> None:
        super().__init__()
        self.refuses = refuses
        self.kept: list[Copy] = []

    def reserve(self, epoch: int, by: Actor) -> str:
        return f"memory:/{epoch}/{by.generation}-{by.token}"

    def keep(self, epoch: EpochNumber, copy: Copy) -> None:  # noqa: ARG002
        if self.refuses:
            raise PrepareRefused("no space left", help="make room")
        self.kept.append(copy)


def test_a_copy_survives_a_power_failure_before_the_decision() -> None:
    world, folders = World(), Folders(refuses=False)
    world.stage = folders

    def look(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.BEFORE_DECIDE:
            assert [copy.rows for copy in folders.kept] == [1]

    with failpoints.handler(look):
        world.start(world.sink("a"), world.redo("b")).run(Batch(0))
    assert len(folders.kept) == 1


def test_a_copy_that_the_disk_does_not_keep_is_not_decided() -> None:
    world, folders = World(), Folders(refuses=True)
    world.stage = folders
    with pytest.raises(PrepareRefused, match="no space left"):
        world.start(world.sink("a"), world.redo("b")).run(Batch(0))
    assert not [entry for entry in world.log.read() if isinstance(entry.record, Commit)]
    folders.refuses = False
    world.start(MemorySink("a", world.server), MemoryRedoSink("b", world.server, world.stage)).run(Batch(0))
    assert world.server.visible("app", "a") == world.server.visible("app", "b") == [{"id": "row-0"}]


def test_an_epoch_whose_offsets_another_driver_has_changed_is_not_decided() -> None:
    world = World()
    with pytest.raises(CheckpointMismatch, match="the offsets were changed"):
        world.start(world.sink("a"), world.redo("b")).run(Batch(0, changed=True))
    assert not [entry for entry in world.log.read() if isinstance(entry.record, Commit)]
    assert world.server.lose_prepared("app", "a") == 0, "what was prepared is dropped"
    world.start(MemorySink("a", world.server), MemoryRedoSink("b", world.server, world.stage)).run(Batch(0))
    assert world.server.visible("app", "a") == world.server.visible("app", "b") == [{"id": "row-0"}]


class Mute(MemorySink):
    """Commits, and forgets to say so."""

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        super().commit(committable, by)
        return None  # type: ignore[return-value]


class Loser(MemoryRedoSink):
    """Votes for one row less than the copy has."""

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        vote = super().prepare(epoch, rows, by)
        return replace(vote, rows=vote.rows - 1)


class Chooser(MemorySink):
    """Leaves every row out; ``miscounted`` more than there are."""

    miscounted = 0

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        return replace(super().prepare(epoch, [], by), left_out=len(list(rows)) + self.miscounted)


class Refusing(MemorySink):
    """Votes no."""

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:  # noqa: ARG002
        raise PrepareRefused("no", sink=self.name, epoch=epoch.number, help="none")


class Down(MemorySink):
    """A server that never answers; counts who asks."""

    asked = 0

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:  # noqa: ARG002
        self.asked += 1
        raise SinkUnavailable("no answer", sink=self.name, help="start it")


class Forgetful(MemorySink):
    """Loses what it has prepared before it can commit it."""

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        self._server.lose_prepared("app", self.name)
        return super().commit(committable, by)


class Failing(MemorySink):
    """Commits with the error that it was given."""

    error: Exception

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:  # noqa: ARG002
        raise self.error


class BrokenLog(MemoryLog):
    """Refuses every record, or every one of a kind, with the error that it was given."""

    error: Exception
    kind: type[object] = object

    def append(self, position: LogPosition, record: Record) -> bool:
        if isinstance(record, self.kind):
            raise self.error
        return super().append(position, record)


class OvertakenLog(MemoryLog):
    """A newer start writes its fence just before the first decision, and has fenced no sink yet."""

    def append(self, position: LogPosition, record: Record) -> bool:
        if isinstance(record, Commit):
            super().append(position, Fence(Actor(2, 5), QUERY, 0))
        return super().append(position, record)


def test_a_decision_that_lost_its_position_is_aborted_and_never_shown() -> None:
    world = World()
    world.log = OvertakenLog()
    with pytest.raises(Fenced, match="position 1 of the epoch log holds another start's record"):
        world.start(world.sink("a")).run(Batch(0))
    table = world.server.table("app", "a")
    assert (table.shown, table.marker, table.prepared) == ([], None, {})


@pytest.mark.parametrize("kind", [Misconfigured, LogCorrupt])
def test_what_is_wrong_with_the_log_is_said_at_start(kind: type[EpochalError]) -> None:
    world = World()
    world.log = BrokenLog()
    world.log.error = kind("the file system has no hard links", help="pass log=")
    with pytest.raises(kind, match="no hard links"):
        world.start(world.sink("a")).run(Batch(0))


def test_a_pause_doubles_up_to_its_bound_and_is_jittered() -> None:
    slept: list[float] = []
    retry = Retry(first=0.1, most=1.0, sleep=slept.append)
    for attempt in range(7):
        retry.pause(attempt)
    for seconds, bound in zip(slept, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert bound / 2 <= seconds <= bound


def test_no_attempt_at_all_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"Retry\(attempts=0\)"):
        Retry(attempts=0)


def test_between_two_tries_there_is_a_pause() -> None:
    world, slept = World(), list[float]()
    world.log = BrokenLog()
    world.log.error, world.log.kind = OSError("the disk is full"), Commit
    patient = Retry(attempts=4, sleep=slept.append)
    with pytest.raises(CommitInDoubt):
        Coordinator(query=QUERY, sinks=[world.sink("a")], log=world.log, retry=patient).run(Batch(0))
    assert len(slept) == 4
    slept.clear()
    with pytest.raises(SinkUnavailable):
        Coordinator(query=QUERY, sinks=[Down("b", world.server)], log=MemoryLog(), retry=patient).run(Batch(0))
    assert len(slept) == 1


def test_generations_count_up_by_one() -> None:
    world = World()
    for generation, epoch in ((1, 0), (2, 0), (3, 1)):
        start = world.start(world.sink("a"))
        start.run(Batch(epoch))
        actor = start.status().actor
        assert actor is not None
        assert actor.generation == generation


def test_a_report_holds_the_phases_of_its_own_call() -> None:
    world = World()
    start = world.start(world.sink("a"))
    epoch = [Phase.IDENTIFY, Phase.PREPARE, Phase.DECIDE, Phase.COMMIT, Phase.RETURN]
    first = start.run(Batch(0))
    assert list(first.seconds) == [Phase.LOOK, Phase.FENCE, Phase.LOOK_AGAIN, Phase.SETTLE, *epoch]
    assert not first.replayed
    assert list(start.run(Batch(1)).seconds) == epoch
    replayed = start.run(Batch(1))
    assert list(replayed.seconds) == [Phase.IDENTIFY, Phase.RETURN]
    assert all(0 <= seconds < 60 for seconds in replayed.seconds.values())


def test_without_a_retry_there_is_the_default() -> None:
    world = World()
    start = Coordinator(query=QUERY, sinks=[world.sink("a")], log=world.log)
    assert start.run(Batch(0)).rows == 1


def test_a_copy_is_wanted_by_several_sinks_or_by_one_that_redoes() -> None:
    world = World()
    voting, redoing = world.sink("a"), MemoryRedoSink("b", world.server, world.stage)
    wanted = [wants_copy(sinks) for sinks in ([], [voting], [redoing], [voting, world.sink("c")])]
    assert wanted == [False, False, True, True]


def test_a_copy_is_wanted_by_one_that_leaves_rows_out_and_may_not_read_them() -> None:
    """Where it leaves out all, Spark would not run the micro-batch."""
    world = World()
    careless = Filtered("a", world.server)
    thorough = Filtered("a", world.server)
    thorough.reads_all_rows = True  # type: ignore[attr-defined]
    sinks: list[Sink] = [
        careless,
        thorough,
        DeltaSink("/lake/t", where="id IS NULL"),
        PostgresSink("", table="t", where="id IS NULL"),
    ]
    assert [wants_copy([sink]) for sink in sinks] == [True, False, False, False]


class Counting(MemorySink):
    """Counts looks and commits; ``meanwhile`` happens once, before the first look reads, ``afterwards`` after it."""

    looks = commits = 0
    meanwhile: Callable[[], object] = staticmethod(lambda: None)
    afterwards: Callable[[], object] = staticmethod(lambda: None)

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        self.looks += 1
        if self.looks > 1:
            return super().look(query, by=by)
        self.meanwhile()
        state = super().look(query, by=by)
        self.afterwards()
        return state

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
        self.commits += 1
        return super().commit(committable, by)


def test_a_start_looks_once_before_it_fences_and_once_after_refused_or_not() -> None:
    world = World()
    world.start(world.sink("a")).run(Batch(0))
    refused, accepted = Counting("a", world.server), Counting("a", world.server)
    with pytest.raises(CheckpointMismatch, match="never reached the pipeline"):
        world.start(refused).run(Batch(5))
    world.start(accepted).run(Batch(1))
    assert (refused.looks, accepted.looks) == (1, 2)


def test_what_an_older_start_shows_after_the_first_look_is_not_committed_again() -> None:
    world = World()
    world.sink("a")
    older, newer = Failing("a", world.server), Counting("a", world.server)
    older.error = SinkUnavailable("no answer", sink="a", help="start it")
    with pytest.raises(CommitInDoubt):
        world.start(older).run(Batch(0))
    decided = world.log.read()[-1].record
    assert isinstance(decided, Commit)
    newer.afterwards = lambda: MemorySink.commit(older, decided.participants["a"].committable, decided.actor)
    assert world.start(newer).run(Batch(0)).replayed
    assert newer.commits == 0
    assert world.server.visible("app", "a") == [{"id": "row-0"}]


@pytest.mark.remedy(
    "position … of the epoch log holds another start's record",
    "nothing to do if the other start is wanted; else stop it and restart this query",
)
def test_the_slower_of_two_starters_is_fenced() -> None:
    world = World()
    world.sink("a")
    slow = Counting("a", world.server)
    slow.meanwhile = lambda: world.log.append(0, Fence(Actor(1, 5), QUERY, 0))
    with pytest.raises(Fenced, match="position 0 of the epoch log holds another start's record"):
        world.start(slow).run(Batch(0))
    assert world.server.table("app", "a").fence is None
    world.start(MemorySink("a", world.server)).run(Batch(0))
    assert world.server.visible("app", "a") == [{"id": "row-0"}]


def test_a_refusal_is_judged_anew_when_the_log_has_grown_meanwhile() -> None:
    world = World()
    world.sink("a")
    overtaken = Counting("a", world.server)
    overtaken.meanwhile = lambda: world.start(MemorySink("a", world.server)).run(Batch(0))
    assert world.start(overtaken).run(Batch(0)).replayed
    assert overtaken.looks == 3
    assert world.server.visible("app", "a") == [{"id": "row-0"}]


@pytest.mark.parametrize("kind", [Misconfigured, LogCorrupt])
@pytest.mark.remedy(
    "whether the … record at position … was written is not known",
    "make the log reachable again and restart: the next start reads what was decided and settles it",
)
def test_whatever_the_log_says_a_decision_that_was_not_answered_is_in_doubt(kind: type[EpochalError]) -> None:
    world = World()
    world.log = BrokenLog()
    world.log.error, world.log.kind = kind("no right to write", help="grant it"), Commit
    with pytest.raises(CommitInDoubt, match="the commit record at position 1 was written is not known"):
        world.start(world.sink("a")).run(Batch(0))
    assert world.server.table("app", "a").prepared, "nothing is aborted in doubt"
    world.log.kind = type(None)
    world.start(MemorySink("a", world.server)).run(Batch(0))
    assert world.server.visible("app", "a") == [{"id": "row-0"}]


def test_an_append_that_is_never_answered_says_why() -> None:
    world = World()
    world.log = BrokenLog()
    world.log.error = OSError("the disk is full")
    with pytest.raises(OutcomeUnknown, match="the fence record at position 0 was written is not known") as unknown:
        world.start(world.sink("a")).run(Batch(0))
    assert "the disk is full" in str(unknown.value)


def test_a_server_that_is_down_at_start_is_named_soon() -> None:
    world = World()
    down = Down("a", world.server)
    patient = Retry(attempts=9, sleep=lambda _: None)
    with pytest.raises(SinkUnavailable, match="no answer"):
        Coordinator(query=QUERY, sinks=[down], log=world.log, retry=patient).run(Batch(0))
    assert down.asked == 2


def test_of_several_errors_that_of_a_newer_owner_is_raised() -> None:
    world, sinks = World(), []
    for name, error in (
        ("a", SinkUnavailable("down", help="start it")),
        ("b", MarkerLost("gone", help="restore it")),
        ("c", Fenced("taken over", help="end this one")),
    ):
        world.sink(name)
        sinks.append(Failing(name, world.server))
        sinks[-1].error = error
    with pytest.raises(Fenced, match="taken over"):
        world.start(*sinks).run(Batch(0))


def test_of_several_errors_one_of_ours_is_raised_before_a_strangers() -> None:
    world, sinks = World(), []
    for name, error in (("a", RuntimeError("a bug")), ("b", PrepareRefused("no", help="see why"))):
        world.sink(name)
        sinks.append(Failing(name, world.server))
        sinks[-1].error = error
    with pytest.raises(CommitInDoubt, match="not yet visible in a, b: no") as doubt:
        world.start(*sinks).run(Batch(0))
    assert doubt.value.help == (
        "see why; then restart the query: it will finish this epoch first (if a sink can never show it:"
        " docs/runbook.md)"
    )


@pytest.mark.remedy("…, and not yet visible in …: …", "…; then restart the query: it will finish this epoch first")
def test_in_doubt_says_what_is_done_and_what_is_pending() -> None:
    world = World()
    failing = Failing("b", world.server)
    failing.error = RuntimeError("a bug")
    world.sink("b")
    start = world.start(world.sink("a"), failing, world.sink("c"))
    with pytest.raises(CommitInDoubt, match="not yet visible in b: RuntimeError: a bug") as doubt:
        start.run(Batch(0))
    assert doubt.value.state is not None
    assert doubt.value.state.startswith("visible in ['a', 'c'], pending in ['b'], decided by g1/")
    assert doubt.value.help.startswith("cure the error that this message names; then restart")
    assert (start.status().in_doubt, start.status().last_epoch) == (["b"], 0)
    again = world.start(*(MemorySink(name, world.server) for name in "abc"))
    again.run(Batch(0))
    assert again.status().in_doubt == []
    assert again.status().shown == {"a": 0, "b": 0, "c": 0}


def test_rows_that_a_single_sink_lost_are_evaluated_again_and_the_query_goes_on() -> None:
    world = World()
    world.sink("a")
    forgetful = Forgetful("a", world.server)
    with pytest.raises(CommitInDoubt, match="is gone, and none of them is visible"):
        world.start(forgetful).run(Batch(0))
    again = world.start(MemorySink("a", world.server))
    assert not again.run(Batch(0)).replayed
    last = world.log.read()[-1].record
    assert isinstance(last, Commit)
    assert (last.decision.redo, last.supersedes is None) == (1, False)
    again.run(Batch(1))
    assert world.server.visible("app", "a") == [{"id": "row-0"}, {"id": "row-1"}]


def test_where_one_sink_lost_its_rows_and_another_one_fails_nothing_is_decided_again() -> None:
    """A redo is a new decision.  It must wait until the other sink goes on; the next start then redoes and finishes."""
    world = World()
    forgetful, failing = Forgetful("a", world.server), Failing("b", world.server)
    failing.error = Misconfigured("it takes nothing any more", help="let it take rows again")
    for sink in (forgetful, failing):
        sink.create(QUERY, None)
    with pytest.raises(CommitInDoubt, match="not yet visible in a, b: it takes nothing any more"):
        world.start(forgetful, failing).run(Batch(0))
    decided = [entry.record.decision.redo for entry in world.log.read() if isinstance(entry.record, Commit)]
    assert decided == [0]
    world.start(world.sink("a"), world.sink("b")).run(Batch(0))
    assert world.server.visible("app", "a") == world.server.visible("app", "b") == [{"id": "row-0"}]


def test_the_log_is_compacted_when_that_many_records_can_go() -> None:
    world, lengths = World(), []
    start = world.start(world.sink("a"), compact_every=3)
    for epoch in range(9):
        start.run(Batch(epoch))
        lengths.append(len(world.log.read()))
    assert lengths == [2, 3, 4, 5, 3, 4, 5, 3, 4]


@pytest.mark.remedy(
    "commit answered …, which is no CommitOutcome", "have the sink's commit return COMMITTED or ALREADY_COMMITTED"
)
def test_a_sink_that_does_not_say_that_it_committed_is_in_doubt() -> None:
    world = World()
    world.sink("a")
    start = world.start(Mute("a", world.server))
    with pytest.raises(CommitInDoubt, match="commit answered None, which is no CommitOutcome"):
        start.run(Batch(0))
    assert world.start(MemorySink("a", world.server)).run(Batch(0)).replayed
    assert world.server.visible("app", "a") == [{"id": "row-0"}]


@pytest.mark.remedy(
    "voted for … rows…, and the durable copy has …",
    "restart the query; if it happens again, the sink or the file system loses rows",
)
def test_a_vote_for_fewer_rows_than_the_copy_has_is_refused() -> None:
    world = World()
    world.sink("a")
    with pytest.raises(PrepareRefused, match="voted for 0 rows, and the durable copy has 1"):
        world.start(Loser("a", world.server, world.stage)).run(Batch(0))
    assert world.server.visible("app", "a") == []
    world.start(MemoryRedoSink("a", world.server, world.stage)).run(Batch(0))
    assert world.server.visible("app", "a") == [{"id": "row-0"}]


def test_rows_that_a_sink_leaves_out_are_held_against_the_copy() -> None:
    world = World()
    all_of_it, chooser = world.sink("b"), Chooser("a", world.server)
    chooser.create(QUERY, None)
    start = world.start(all_of_it, chooser)
    start.run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "ab"] == [0, 1]
    chooser.miscounted = 1
    with pytest.raises(PrepareRefused, match="voted for 0 rows and left 2 out, and the durable copy has 1"):
        start.run(Batch(1))


class Changed(Forgetful):
    """Loses what it has prepared, and when it is asked again leaves out what it took before."""

    asked = 0

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        self.asked += 1
        taken, left = (list(rows), 0) if self.asked == 1 else ([], len(list(rows)))
        return replace(super().prepare(epoch, taken, by), left_out=left)


@pytest.mark.remedy(
    "voted for … rows, but the decision on the same copy counts …",
    "give the sink the where= and the target that it had when the epoch was decided; then restart",
)
def test_lost_rows_are_redone_as_they_were_decided_or_not_at_all() -> None:
    world = World()
    world.sink("a")
    with pytest.raises(CommitInDoubt, match="voted for 0 rows, but the decision on the same copy counts 1"):
        world.start(Changed("a", world.server), world.sink("b")).run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "ab"] == [0, 1]
    world.start(MemorySink("a", world.server), MemorySink("b", world.server)).run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "ab"] == [1, 1]


class Filtered(Forgetful):
    """Loses what it has prepared, and has a condition, so that there is a copy."""

    leaves_rows_out = True


@pytest.mark.remedy(
    "prepared rows were lost again and again",
    "stop what deletes them in the sink (a clean-up job, VACUUM), and restart the query",
)
def test_an_epoch_with_a_copy_is_finished_from_it_by_a_start_that_makes_none_and_the_copy_goes() -> None:
    world = World()
    world.sink("a")
    with pytest.raises(CommitInDoubt, match="lost again and again"):
        world.start(Filtered("a", world.server)).run(Batch(0))
    [(epoch, _)] = world.stage.copies()
    assert epoch == 0
    again = world.start(MemorySink("a", world.server))
    assert again.run(Batch(0)).replayed
    again.run(Batch(1))
    assert world.server.visible("app", "a") == [{"id": "row-0"}, {"id": "row-1"}]
    assert world.stage.copies() == []


def test_rows_that_are_left_out_are_rows_of_the_epoch() -> None:
    world = World()
    chooser = Chooser("a", world.server)
    chooser.create(QUERY, None)
    report = world.start(chooser).run(Batch(0))
    assert (report.rows, dict(report.written)) == (1, {"a": 0})


@pytest.mark.remedy(
    "a second call came while the first is still running",
    "call the pipeline in the batch function itself, and return only after it has returned",
)
def test_a_call_while_another_is_running_is_refused() -> None:
    world, inside, go = World(), threading.Event(), threading.Event()

    class Slow(Batch):
        @property
        def rows(self) -> list[dict[str, Any]]:
            inside.set()
            assert go.wait(120)
            return super().rows

    start = world.start(world.sink("a"))
    thread = threading.Thread(target=start.run, args=(Slow(0),))
    thread.start()
    try:
        assert inside.wait(120)
        with pytest.raises(Misconfigured, match="a second call came while the first is still running"):
            start.run(Batch(1))
    finally:
        go.set()
        thread.join(120)
    assert world.server.visible("app", "a") == [{"id": "row-0"}]
    start.run(Batch(1))


def test_a_sink_that_was_fenced_and_left_out_for_long_can_come_back() -> None:
    world = World()
    world.sink("b")
    world.start(world.sink("a")).run(Batch(0))
    with pytest.raises(PrepareRefused):
        world.start(MemorySink("a", world.server), Refusing("b", world.server)).run(Batch(1))
    alone = world.start(MemorySink("a", world.server))
    for epoch in range(1, 8):
        alone.run(Batch(epoch))
    assert len(world.log.read()) < 8, "the log was compacted"
    world.start(MemorySink("a", world.server), MemorySink("b", world.server)).run(Batch(8))
    assert world.server.visible("app", "b") == [{"id": "row-8"}]


@pytest.mark.parametrize("epoch", [1, 17])
def test_a_new_log_on_an_old_checkpoint_says_which_epochs_it_never_saw(
    caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "epochal"):
        world.start(world.sink("a")).run(Batch(epoch))
    assert f"epochs before {epoch} never reached it" in caplog.text


def test_a_new_log_on_a_new_checkpoint_and_an_old_log_say_no_such_thing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "epochal"):
        for epoch in (0, 1):
            world.start(world.sink("a")).run(Batch(epoch))
    assert caplog.text == ""


def test_the_remedy_for_epochs_left_out_names_the_files() -> None:
    world = World()
    start = world.start(world.sink("a"))
    start.run(Batch(0))
    with pytest.raises(CheckpointMismatch, match=r"delete commits/\{1\.\.2\} and\s+offsets/\{2\.\.3\}"):
        start.run(Batch(3))


def test_after_an_error_every_call_raises_it_again() -> None:
    world = World()
    start = world.start(world.sink("a"))
    start.run(Batch(0))
    with pytest.raises(CheckpointMismatch) as first:
        start.run(Batch(3))
    with pytest.raises(CheckpointMismatch) as second:
        start.run(Batch(1))
    assert second.value is first.value


@pytest.mark.remedy("two sinks share a name: …", "give each sink its own name=")
def test_two_sinks_of_one_name_and_a_missing_stage_are_refused() -> None:
    world = World()
    with pytest.raises(Misconfigured, match="two sinks share a name"):
        world.start(world.sink("a"), MemorySink("a", world.server))
    with pytest.raises(Misconfigured, match="need a durable copy, and there is no stage"):
        Coordinator(query=QUERY, sinks=[world.sink("b"), world.sink("c")], log=world.log)
    world.start(world.sink("a"), world.sink("b")).run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "ab"] == [1, 1]


# idempotent mode


class Undigested(MemorySink):
    """Votes without a digest, as a sink that was written before there were any."""

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        return replace(super().prepare(epoch, rows, by), digest=None)


class OtherRows(MemoryRedoSink):
    """Says of what it wrote that it was something else."""

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:
        return replace(super().apply(epoch, rows, by, agreed), digest=Digest(1, 1))


class RefusingRows(MemoryRedoSink):
    """Finds while it writes that it cannot hold these rows."""

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:  # noqa: ARG002
        raise PrepareRefused("too large", sink=self.name, epoch=epoch.number, help="none")


class FromCopyAlone(MemorySink):
    """A redo sink that knows nothing of idempotent mode."""

    needs_copy = True


def test_a_report_of_an_applied_epoch_tells_its_phases_and_rows() -> None:
    world = World()
    start = world.apply(world.sink("a"), world.redo("b"))
    first = start.run(Batch(0))
    assert list(first.seconds)[-3:] == [Phase.IDENTIFY, Phase.APPLY, Phase.RETURN]
    assert (first.rows, first.replayed) == (1, False)
    assert first.sinks == {"a": CommitOutcome.COMMITTED, "b": CommitOutcome.COMMITTED}
    replayed = start.run(Batch(0))
    assert (replayed.rows, replayed.replayed, dict(replayed.sinks)) == (1, True, {})
    assert (dict(first.written), dict(replayed.written)) == ({"a": 1}, {})
    assert start.status().shown == {"a": 0, "b": 0}


def test_the_log_tells_the_mode_of_each_start() -> None:
    world = World()
    for number, mode in enumerate([IDEMPOTENT, TWO_PHASE, IDEMPOTENT]):
        world.start(world.sink("a"), mode=mode).run(Batch(number))
    records = [entry.record for entry in world.log.read()]
    assert [r.mode for r in records if isinstance(r, Fence)] == [IDEMPOTENT, TWO_PHASE, IDEMPOTENT]
    assert [type(r) for r in records if not isinstance(r, Fence)][-2:] == [Commit, Apply]


@pytest.mark.remedy(
    "the sink writes from a durable copy alone, and in idempotent mode there is none",
    'leave mode="idempotent" out, or use a sink with apply (epochal.sinks.protocol.ApplySink)',
)
def test_a_sink_that_writes_from_a_copy_alone_is_refused_at_start() -> None:
    world = World()
    with pytest.raises(Misconfigured, match="FromCopyAlone has no method apply") as refused:
        world.apply(world.sink("a"), FromCopyAlone("b", world.server))
    assert refused.value.sink == "b"
    world.start(FromCopyAlone("b", world.server))
    world.apply(world.sink("a"), world.redo("b")).run(Batch(0))


class Found(MemoryRedoSink):
    """What keeps it from idempotent mode shows when it is looked at."""

    looked = False

    def look(self, query: Query, *, by: Actor | None = None) -> SinkState:
        self.looked = True
        return super().look(query, by=by)

    def check_apply(self) -> None:
        if self.looked:
            raise Misconfigured("it was written in slots", sink=self.name, help="none")


def test_what_a_look_finds_in_the_way_of_idempotent_mode_is_refused_before_anything_is_written() -> None:
    world = World()
    world.redo("b")
    for _ in range(2):
        start = world.apply(world.sink("a"), Found("b", world.server, world.stage))
        with pytest.raises(Misconfigured, match="it was written in slots"):
            start.check(Batch(0).ask)
        with pytest.raises(Misconfigured, match="it was written in slots"):
            start.run(Batch(0))
    assert (list(world.log.read()), world.server.table("app", "a").fence) == ([], None)
    world.start(Found("b", world.server, world.stage)).run(Batch(0))


class Ended(MemoryRedoSink):
    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:  # noqa: ARG002
        raise RuntimeError("the driver is gone")


@pytest.mark.remedy(
    "an epoch was begun in idempotent mode and has to be finished in it: …",
    "start once with this sink as it was then; change the sink after the epoch is committed",
)
def test_a_sink_that_cannot_finish_what_was_begun_without_a_copy_is_refused_before_it_is_fenced() -> None:
    """Two-phase mode finishes an epoch that one sink shows as it was begun."""
    world = World()
    world.redo("b")
    with pytest.raises(CommitInDoubt, match="begun, and not yet visible in b"):
        world.apply(world.redo("a"), Ended("b", world.server, world.stage)).run(Batch(0))
    before, fence = list(world.log.read()), world.server.table("app", "b").fence
    start = world.start(world.redo("a"), Found("b", world.server, world.stage))
    with pytest.raises(Misconfigured, match=r"begun in idempotent mode .*: it was written in slots") as refused:
        start.run(Batch(0))
    assert (refused.value.sink, refused.value.epoch) == ("b", 0)
    assert (list(world.log.read()), world.server.table("app", "b").fence) == (before, fence)
    world.start(world.redo("a"), world.redo("b")).run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "ab"] == [1, 1]


@pytest.mark.remedy(
    "… no digest of the rows, so one evaluation cannot be compared with another",
    'leave mode="idempotent" out, or give the sink a digest',
)
@pytest.mark.parametrize("given", [True, False])
def test_a_vote_without_a_digest_is_refused_and_nothing_is_visible(given: bool) -> None:
    world = World()
    world.sink("a")
    with pytest.raises(Misconfigured, match="it voted with no digest"):
        world.apply(Undigested("a", world.server)).run(Batch(0))
    table = world.server.table("app", "a")
    assert (table.shown, table.marker, table.prepared) == ([], None, {})
    if given:
        world.apply(world.sink("a")).run(Batch(0))
    else:
        world.start(Undigested("a", world.server)).run(Batch(0))
    assert len(world.server.visible("app", "a")) == 1


def test_a_no_of_one_vote_is_what_ends_the_epoch_and_nothing_is_visible() -> None:
    world = World()
    world.sink("b")
    with pytest.raises(PrepareRefused, match="no"):
        world.apply(world.sink("a"), Refusing("b", world.server), world.redo("c")).run(Batch(0))
    for name in "abc":
        table = world.server.table("app", name)
        assert (table.shown, table.marker, table.prepared) == ([], None, {})


class Judging(MemorySink):
    """Gets the rows that sink `a` cannot hold, and may find that nobody can say which these are."""

    of, told, condition = "a", True, "as it was"

    def judgement(self, epoch: Epoch, rows: Rows) -> dict[str, Any]:  # noqa: ARG002
        if not self.told:
            raise PrepareRefused("the topic is another one", sink=self.of, epoch=epoch.number, help="none")
        return {"condition": self.condition}


@pytest.mark.parametrize("before", [0, 1])
def test_rows_that_nobody_can_tell_apart_refuse_an_epoch_that_no_sink_shows(before: int) -> None:
    """It is not begun, and nothing is said of the one before."""
    world = World()
    judging = Judging("b", world.server)
    judging.create(QUERY, None)
    start = world.apply(world.sink("a"), judging)
    for epoch in range(before):
        start.run(Batch(epoch))
    applied = [entry for entry in world.log.read() if isinstance(entry.record, Apply)]
    judging.told = False
    with pytest.raises(PrepareRefused, match="the topic is another one"):
        start.run(Batch(before))
    assert [entry for entry in world.log.read() if isinstance(entry.record, Apply)] == applied
    assert len(applied) == before


@pytest.mark.remedy(
    "when the epoch was begun, … got only the rows that another sink could not hold; now … would get all rows, but …"
    " keep the rows that they got then",
    "give the other sink its bad_rows= again until this epoch is committed",
)
@pytest.mark.remedy(
    "the condition for rows that sink … cannot hold has changed, and one of the two sinks keeps the rows that it has",
    "undo what has changed (the topic's settings, select=, where= or another argument of the sink, the session's"
    " settings) until this epoch is committed",
)
def test_a_pair_that_is_torn_apart_while_one_of_it_keeps_its_rows_is_refused() -> None:
    """What the other one had is no longer known, and a row would be in both."""
    world = World()

    class Failing(Judging):
        def commit(self, committable: Committable, by: Actor) -> CommitOutcome:  # noqa: ARG002
            raise SinkUnavailable("no answer", sink="b", help="start it")

    for sink in (world.sink("a"), failing := Failing("b", world.server)):
        sink.create(QUERY, None)
    with pytest.raises(CommitInDoubt, match="not yet visible in b"):
        world.apply(world.sink("a"), failing).run(Batch(0))
    with pytest.raises(CommitInDoubt, match=r"\['b'\] got only the rows that another sink could not hold"):
        world.apply(MemorySink("a", world.server), MemorySink("b", world.server)).run(Batch(0))
    changed = Judging("b", world.server)
    changed.condition = "another one"
    with pytest.raises(CommitInDoubt, match="the condition for rows that sink 'a' cannot hold has changed"):
        world.apply(MemorySink("a", world.server), changed).run(Batch(0))
    assert world.server.visible("app", "b") == []
    world.apply(MemorySink("a", world.server), Judging("b", world.server)).run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "ab"] == [1, 1]


@pytest.mark.parametrize("refuses", [False, True])
def test_of_a_pair_the_sink_that_cannot_hold_some_rows_prepares_first(refuses: bool) -> None:
    """What it finds saves the other one a second look; and if it refuses the epoch, nobody needs that look."""
    world, asked = World(), []

    class Told(MemorySink):
        def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
            asked.append(self.name)
            if refuses and self.name == "z":
                raise PrepareRefused("no", help="none")
            return super().prepare(epoch, rows, by)

    class Second(Judging, Told):
        of = "z"

    sinks = [Second("a", world.server), Told("m", world.server), Told("z", world.server)]
    for sink in sinks:
        sink.create(QUERY, None)
    start = world.start(*sinks)
    if refuses:
        with pytest.raises(PrepareRefused, match="no"):
            start.run(Batch(0))
    else:
        start.run(Batch(0))
    assert sorted(asked) == (["m", "z"] if refuses else ["a", "m", "z"])
    assert refuses or asked.index("z") < asked.index("a")


def test_a_sink_of_bad_rows_whose_other_sink_is_not_there_prepares_too() -> None:
    world = World()
    judging = Judging("b", world.server)
    judging.create(QUERY, None)
    world.start(judging, world.sink("c")).run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "bc"] == [1, 1]


def test_a_sink_of_bad_rows_of_a_sink_of_bad_rows_prepares_too() -> None:
    world = World()

    class OfItself(Judging):
        of = "c"

    class OfB(Judging):
        of = "b"

    sinks = [world.sink("a"), Judging("b", world.server), OfItself("c", world.server), OfB("d", world.server)]
    for sink in sinks:
        sink.create(QUERY, None)
    world.start(*sinks).run(Batch(0))
    assert [len(world.server.visible("app", name)) for name in "abcd"] == [1, 1, 1, 1]


def test_a_marker_without_a_digest_stops_the_replay() -> None:
    world = World()
    failing = Failing("b", world.server)
    failing.error = SinkUnavailable("no answer", sink="b", help="start it")
    world.sink("b")
    with pytest.raises(CommitInDoubt, match="begun, and not yet visible in b: no answer"):
        world.apply(world.sink("a"), failing).run(Batch(0))
    marker = world.server.table("app", "a").marker
    assert marker is not None
    world.server.table("app", "a").marker = replace(marker, digest=None)
    with pytest.raises(Misconfigured, match="its marker holds no digest"):
        world.apply(MemorySink("a", world.server), MemorySink("b", world.server)).run(Batch(0))
    assert world.server.visible("app", "b") == []


def test_in_doubt_says_who_began_it_and_what_is_pending() -> None:
    world = World()
    failing = Failing("b", world.server)
    failing.error = RuntimeError("a bug")
    world.sink("b")
    with pytest.raises(CommitInDoubt) as doubt:
        world.apply(world.sink("a"), failing, world.redo("c")).run(Batch(0))
    assert doubt.value.state is not None
    assert doubt.value.state.startswith("visible in ['a', 'c'], pending in ['b'], begun by g1/")
    again = world.apply(*(MemorySink(name, world.server) for name in "ab"), world.redo("c"))
    assert list(again.run(Batch(0)).sinks) == ["b"]


@pytest.mark.parametrize("kind", [OtherRows, RefusingRows])
def test_what_a_sink_without_votes_finds_while_it_writes_stops_all_before_they_show(kind: type[MemoryRedoSink]) -> None:
    world = World()
    world.redo("b")
    with pytest.raises((NonDeterministicReplay, PrepareRefused)):
        world.apply(world.sink("a"), kind("b", world.server, world.stage)).run(Batch(0))
    table = world.server.table("app", "a")
    assert (table.shown, table.marker, table.prepared) == ([], None, {})


def test_a_record_that_lost_its_position_is_fenced_and_no_sink_is_touched() -> None:
    class Overtaken(MemoryLog):
        def append(self, position: LogPosition, record: Record) -> bool:
            if isinstance(record, Apply):
                super().append(position, Fence(Actor(2, 5), QUERY, 0))
            return super().append(position, record)

    world = World()
    world.log = Overtaken()
    with pytest.raises(Fenced, match="position 1 of the epoch log holds another start's record") as fenced:
        world.apply(world.sink("a")).run(Batch(0))
    assert fenced.value.epoch == 0
    assert not world.server.table("app", "a").prepared


def test_a_record_that_is_never_answered_names_its_epoch() -> None:
    world = World()
    world.log = BrokenLog()
    world.log.error, world.log.kind = OSError("the disk is full"), Apply
    with pytest.raises(OutcomeUnknown, match="the apply record at position 1 was written is not known") as unknown:
        world.apply(world.sink("a")).run(Batch(0))
    assert unknown.value.epoch == 0


def test_evaluations_come_one_after_another() -> None:
    """Two at once would meet in the operator state of a query that has some."""
    world, inside = World(), [0]
    evaluated: list[int] = []
    parallel: list[int] = []

    def runner(tasks: Any) -> Any:
        inside[0] = 1
        parallel.append(len(tasks))
        try:
            return serial(tasks)
        finally:
            inside[0] = 0

    class Evaluating(Batch):
        @property
        def rows(self) -> list[dict[str, Any]]:
            evaluated.append(inside[0])
            return super().rows

    sinks = (world.sink("a"), world.sink("b"))
    world.start(*sinks, world.redo("c"), mode=IDEMPOTENT, runner=runner).run(Evaluating(0))
    assert evaluated == [0, 0, 0]
    assert parallel[-1] == 2, "the commits come at once"
