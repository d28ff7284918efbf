"""What the log cannot tell of a person's wish, and the sinks' audits and Spark's files can; without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from epochal import Pipeline
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Operator
from epochal.coordinator.model.epoch import Actor, EpochRequest, Query
from epochal.coordinator.model.errors import CheckpointMismatch, EpochalError, Misconfigured, SinkUnavailable
from epochal.coordinator.protocol.actions import (
    Accept,
    Adopt,
    Evaluate,
    OperatorAction,
    Rename,
    Retire,
    RewriteMarker,
    Skip,
)
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.coordinator.query import operate
from epochal.sinks.delta import DeltaSink
from epochal.sinks.inspection import Leftover
from epochal.sinks.memory import MemoryServer, MemorySink, MemoryStage
from epochal.sinks.protocol import Rows, Sink

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":%d}'


class Batch:
    """One row of one epoch."""

    def __init__(self, ask: EpochRequest) -> None:
        self.ask = ask
        self.rows: Rows = [{"id": ask.epoch}]

    def discard(self) -> None:
        """Nothing has state."""

    def confirm(self) -> None:
        """Nothing else writes here."""


class World:
    """Sinks in memory, and checkpoints as Spark and the pipeline leave them."""

    def __init__(self, folder: Path) -> None:
        self.server = MemoryServer()
        self.names: tuple[str, ...] = ("a", "b")
        self.folder = folder
        self.stage = MemoryStage()
        for name in self.names:
            self.server.create("app", name)

    def pipeline(self, *more: Sink) -> Pipeline:
        return Pipeline(app="app", sinks=[*(MemorySink(name, self.server) for name in self.names), *more])

    def checkpoint(self, name: str, query_id: str) -> Path:
        made = self.folder / name
        made.mkdir()
        (made / "metadata").write_text(json.dumps({"id": query_id}))
        return made

    def run(self, checkpoint: Path, epochs: Sequence[int], names: Sequence[str] = ()) -> None:
        """A start that runs these epochs, as the newest of them is still to be committed by Spark."""
        query_id = json.loads((checkpoint / "metadata").read_text())["id"]
        query = Query("app", query_id, "run", f"file:{checkpoint}")
        sinks = [MemorySink(name, self.server) for name in names or self.names]
        log = FilesLog(str(checkpoint / "epochal" / "log"))
        coordinator = Coordinator(query=query, sinks=sinks, log=log, stage=self.stage)
        for epoch in epochs:
            self.plan(checkpoint, epoch)
            text = (checkpoint / "offsets" / str(epoch)).read_text()
            coordinator.run(Batch(EpochRequest(query, epoch, f"fingerprint-{epoch}", text)))
            self.commit(checkpoint, epoch)

    def plan(self, checkpoint: Path, epoch: int) -> None:
        (checkpoint / "offsets").mkdir(exist_ok=True)
        (checkpoint / "offsets" / str(epoch)).write_text(OFFSETS % epoch)

    def commit(self, checkpoint: Path, epoch: int) -> None:
        (checkpoint / "commits").mkdir(exist_ok=True)
        (checkpoint / "commits" / str(epoch)).write_text("v1\n{}")

    def lose_log(self, checkpoint: Path) -> None:
        (checkpoint / "epochal").rename(checkpoint / "lost")

    def markers(self) -> list[Any]:
        return [(self.server.table("app", n).fence, self.server.table("app", n).marker) for n in self.names]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refused(world: World, kind: type[EpochalError], act: Any, *given: Any, **named: Any) -> str:
    """The refusal's text; nobody was disturbed."""
    before = world.markers()
    with pytest.raises(kind) as raised:
        act(*given, **named)
    assert world.markers() == before
    return str(raised.value)


def test_a_lost_log_is_begun_anew_behind_what_all_sinks_show(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0, 1])
    world.lose_log(old)
    assert operate.adopt(world.pipeline(), str(old), why="lost").place == f"file:{old}"
    world.run(old, [2])
    assert [row["id"] for row in world.server.visible("app", "a")] == [0, 1, 2]


@pytest.mark.remedy(
    "the sinks show epochs of this very checkpoint, and Spark will ask for epoch …",
    "restore the epoch log (the folder epochal of the checkpoint) from a backup",
)
def test_an_epoch_that_spark_will_replay_is_not_behind_the_sinks(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0, 1])
    world.lose_log(old)
    (old / "commits" / "1").unlink()
    told = refused(world, CheckpointMismatch, operate.adopt, world.pipeline(), str(old), why="lost")
    assert "epochs of this very checkpoint, and Spark will ask for epoch 1" in told
    (old / "lost").rename(old / "epochal")
    world.run(old, [1, 2])
    assert [row["id"] for row in world.server.visible("app", "a")] == [0, 1, 2]


@pytest.mark.remedy(
    "the sinks show epochs of this very checkpoint, and Spark will ask for epoch …",
    "if it is lost, begin a new checkpoint where the sinks end: `epochal adopt --new`",
)
def test_a_lost_log_that_spark_has_left_behind_is_replaced_with_the_checkpoint(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0, 1])
    world.lose_log(old)
    (old / "commits" / "1").unlink()
    refused(world, CheckpointMismatch, operate.adopt, world.pipeline(), str(old), why="lost")
    operate.adopt(world.pipeline(), str(world.folder / "new"), why="the log was lost", new=True)
    world.run(world.folder / "new", [0])
    assert [row["id"] for row in world.server.visible("app", "a")] == [0, 1, 0]


def test_sinks_of_a_lost_log_that_differ_are_not_adopted(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0, 1])
    world.lose_log(old)
    table = world.server.table("app", "b")
    table.audit.pop()
    assert "b: epoch 0" in refused(world, CheckpointMismatch, operate.adopt, world.pipeline(), str(old), why="lost")
    assert operate.adopt(world.pipeline(), str(old), why="b goes without", uneven=True).stands


@pytest.mark.remedy(
    "the sinks do not all show the same epoch, so a new checkpoint cannot begin where all of them end",
    "or go without them, and add --uneven",
)
def test_a_new_checkpoint_begins_where_all_sinks_end(world: World) -> None:
    world.run(world.checkpoint("old", "q1"), [0, 1])
    world.server.table("app", "b").audit.pop()
    new = str(world.folder / "new")
    told = refused(world, CheckpointMismatch, operate.adopt, world.pipeline(), new, why="deleted", new=True)
    assert "the sinks do not all show the same epoch" in told
    assert not Path(new).exists(), "nothing is begun that is refused"
    assert operate.adopt(world.pipeline(), new, why="deleted", new=True, uneven=True).stands
    world.run(Path(new), [0])


@pytest.mark.remedy(
    "no query has been started on …, so it is no checkpoint yet",
    "to begin a new checkpoint on a local disk, `epochal adopt --new`",
)
@pytest.mark.remedy("… is no new checkpoint", "or name a folder that is empty or does not exist")
def test_a_new_checkpoint_is_begun_only_when_it_is_said_and_is_not_there(world: World) -> None:
    world.run(world.checkpoint("old", "q1"), [0])
    new = world.folder / "new"
    assert "no checkpoint yet" in refused(world, Misconfigured, operate.adopt, world.pipeline(), str(new), why="typo")
    (new / "offsets").mkdir(parents=True)
    told = refused(world, Misconfigured, operate.adopt, world.pipeline(), str(new), why="lost metadata", new=True)
    assert "it has offsets, and no file metadata" in told
    assert "no checkpoint yet" in refused(
        world, Misconfigured, operate.retire, world.pipeline(), str(world.folder / "no"), "a", why="x"
    )
    operate.adopt(world.pipeline(), str(world.folder / "no"), why="begun anew", new=True)
    world.run(world.folder / "no", [0])


@pytest.mark.remedy(
    "Spark has already planned epoch … of this new checkpoint, so the offsets where it begins are fixed",
    "move this checkpoint away, have the query read from where the sinks end, and begin another one: `epochal adopt"
    " --new`",
)
@pytest.mark.remedy(
    "Spark has already planned epoch … of this new checkpoint, so the offsets where it begins are fixed",
    "if the planned epoch begins exactly where the sinks end, add --uneven",
)
@pytest.mark.parametrize("exactly", [True, False])
def test_what_spark_has_planned_from_the_wrong_place_is_not_adopted(world: World, exactly: bool) -> None:
    world.run(world.checkpoint("old", "q1"), [0, 1])
    new = world.checkpoint("new", "q2")
    world.plan(new, 0)
    told = refused(world, CheckpointMismatch, operate.adopt, world.pipeline(), str(new), why="deleted")
    assert "Spark has already planned epoch 0 of this new checkpoint" in told
    if exactly:
        operate.adopt(world.pipeline(), str(new), why="deleted", uneven=True)
    else:
        new.rename(world.folder / "away")
        operate.adopt(world.pipeline(), str(new), why="deleted", new=True)
    world.run(new, [0])
    assert [row["id"] for row in world.server.visible("app", "a")] == [0, 1, 0]


def test_sinks_that_move_while_a_person_is_heard_are_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0])
    act = Coordinator.act

    def late(self: Coordinator, *given: Any, **named: Any) -> Operator:
        world.run(old, [1])  # the old query was not dead
        return act(self, *given, **named)

    monkeypatch.setattr(Coordinator, "act", late)
    monkeypatch.setattr(MemorySink, "epochs", _only_once_even(MemorySink.epochs))
    with pytest.raises(CheckpointMismatch, match="do not all show the same epoch"):
        operate.adopt(world.pipeline(), str(world.folder / "new"), why="deleted", new=True)


def _only_once_even(epochs: Any) -> Any:
    """In the end the second sink lacks the newest epoch, as its commit was fenced."""
    asked: list[str] = []

    def told(self: MemorySink, app: str, **wanted: Any) -> Any:
        asked.append(self.name)
        first = asked.count(self.name) == 1
        return epochs(self, app, **(wanted if first or self.name == "a" else {"last": 1}))

    return told


@pytest.mark.remedy(
    "the sink shows epoch … of this very query, and the log does not know the sink",
    "the checkpoint was rolled back to before the sink joined: restore the newest one",
)
def test_a_sink_that_this_query_wrote_and_the_log_does_not_know_is_not_accepted(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0], names=["a"])
    backup = FilesLog(str(old / "epochal" / "log")).read()
    world.run(old, [1])
    older = World.checkpoint(world, "older", "q1")
    log = FilesLog(str(older / "epochal" / "log"))
    for entry in backup:
        log.append(entry.position, entry.record)
    told = refused(world, CheckpointMismatch, operate.accept, world.pipeline(), str(older), "b", why="joined")
    assert "epoch 1 of this very query, and the log does not know the sink" in told
    world.run(old, [2])
    assert [row["id"] for row in world.server.visible("app", "b")] == [1, 2]


def test_what_was_recorded_is_not_recorded_again(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0])
    first = operate.retire(world.pipeline(), str(old), "a", why="nobody reads it")
    fences = world.markers()
    assert operate.retire(world.pipeline(), str(old), "a", why="said again") == first
    assert world.markers() == fences
    assert "knows no sink 'a'" in refused(
        world, Misconfigured, operate.retire, world.pipeline(), str(old), "a", why="otherwise", unreachable=True
    )


def test_what_is_said_again_after_an_epoch_is_another_word(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0])
    first = operate.retire(world.pipeline(), str(old), "a", why="nobody reads it")
    world.run(old, [1])  # it has returned
    again = operate.retire(world.pipeline(), str(old), "a", why="nobody reads it")
    assert (first.stands["a"].through, again.stands["a"].through) == (0, 1)


def test_no_checkpoint_is_begun_where_a_sink_does_not_answer(world: World) -> None:
    world.run(world.checkpoint("old", "q1"), [0])
    world.server.down = True
    with pytest.raises(SinkUnavailable):
        operate.adopt(world.pipeline(), str(world.folder / "new"), why="deleted", new=True, uneven=True)
    assert not (world.folder / "new").exists()


def test_a_preview_is_what_is_recorded(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0, 1])
    act = Adopt(why="moved", at=operate.now())
    before = world.markers()
    assumed = operate.assume(world.pipeline(), str(old), act)
    assert world.markers() == before
    done = operate.run(world.pipeline(), str(old), act)
    assert (assumed.stands, assumed.place, assumed.said) == (done.stands, done.place, done.said)


class WithoutRight(MemorySink):
    """The database user may not write the marker's table."""

    def check_mark(self, query: Query) -> None:  # noqa: ARG002
        raise Misconfigured("no right to write the marker", sink=self.name, help="grant it")


class Unmarked(MemorySink):
    """A sink of which a person cannot write the marker."""

    mark = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (WithoutRight, "no right to write the marker"),
        pytest.param(
            Unmarked,
            "cannot be written by hand",
            marks=pytest.mark.remedy(
                "the sink's marker cannot be written by hand",
                "restore the sink, or give it that method (epochal.sinks.protocol.MarkedSink)",
            ),
        ),
    ],
)
def test_a_marker_that_cannot_be_written_is_refused_before_anybody_is_fenced(
    world: World, kind: type[MemorySink], told: str
) -> None:
    checkpoint = world.checkpoint("here", "q1")
    world.run(checkpoint, [0, 1])
    world.server.table("app", "a").marker = None
    pipeline = Pipeline(app="app", sinks=[kind("a", world.server), MemorySink("b", world.server)])
    assert told in refused(world, Misconfigured, operate.remark, pipeline, str(checkpoint), "a", why="seen")
    assert operate.remark(world.pipeline(), str(checkpoint), "a", why="seen").why == "seen"


@pytest.mark.remedy(
    "the sink's marker cannot be written under another name", "give it that method (epochal.sinks.protocol.MarkedSink)"
)
def test_a_sink_without_a_marker_of_its_own_keeps_its_name(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0])
    pipeline = Pipeline(app="app", sinks=[Unmarked("a", world.server), MemorySink("b", world.server)])
    told = refused(world, Misconfigured, operate.rename, pipeline, str(old), "a", "c", why="nicer")
    assert "the sink's marker cannot be written under another name" in told
    assert operate.rename(world.pipeline(), str(old), "a", "c", why="nicer").why == "nicer"


class Holding(MemorySink):
    """A sink that holds rows which it does not show."""

    def inspection(self, query: Query) -> Any:  # noqa: ARG002
        left = Leftover("prepared rows", 2, Actor(1, 11), 7)
        return SimpleNamespace(leftovers=lambda: [left], close=lambda: None)


@pytest.mark.remedy(
    "the sink holds what it does not show: …",
    "if these rows were visible and only the marker is wrong, `epochal resolve --marker …`",
)
@pytest.mark.remedy("the sink holds what it does not show: …", "if the rows may be deleted, add --drop")
def test_rows_that_were_visible_before_are_not_given_up_by_accepting_a_sink(world: World) -> None:
    old = world.checkpoint("old", "q1")
    world.run(old, [0])
    pipeline = Pipeline(app="app", sinks=[MemorySink("a", world.server), Holding("b", world.server)])
    told = refused(world, Misconfigured, operate.accept, pipeline, str(old), "b", why="as it is")
    assert "the sink holds what it does not show: prepared rows (7 rows)" in told
    assert operate.remark(pipeline, str(old), "b", why="they were visible").why == "they were visible"
    assert operate.accept(pipeline, str(old), "b", why="as it is", drop=True).why == "as it is"
    world.run(old, [1])


@pytest.mark.remedy("the new checkpoint cannot be made: …", "name a folder that you may write to")
def test_a_checkpoint_that_cannot_be_made_is_refused(world: World) -> None:
    world.run(world.checkpoint("old", "q1"), [0])
    (world.folder / "new" / ".metadata.epochal").mkdir(parents=True)  # where the file is written first
    at = str(world.folder / "new")
    told = refused(world, Misconfigured, operate.adopt, world.pipeline(), at, why="moved", new=True)
    assert "the new checkpoint cannot be made" in told
    operate.adopt(world.pipeline(), str(world.folder / "newer"), why="moved", new=True)
    world.run(world.folder / "newer", [0])


@pytest.mark.parametrize("at", ["file", "file/new"])
@pytest.mark.remedy("… cannot be a checkpoint", "name a folder that is empty or does not exist")
def test_a_file_and_a_place_below_one_are_no_checkpoint(world: World, at: str) -> None:
    world.run(world.checkpoint("old", "q1"), [0])
    (world.folder / "file").write_text("")
    told = refused(world, Misconfigured, operate.adopt, world.pipeline(), str(world.folder / at), why="moved", new=True)
    assert "cannot be a checkpoint" in told
    (world.folder / "empty").mkdir()
    for folder in ("empty", "not there"):
        assert operate.adopt(world.pipeline(), str(world.folder / folder), why="moved", new=True).why == "moved"


SAID = {"why": "w", "at": "now"}
ACTIONS: dict[str, tuple[Callable[[Pipeline], Operator], OperatorAction]] = {
    "adopt": (lambda p: operate.adopt(p, "at", why="w", new=True), Adopt(**SAID)),
    "retire": (
        lambda p: operate.retire(p, "at", "a", why="w", unreachable=True),
        Retire(**SAID, sink="a", unreachable=True),
    ),
    "rename": (lambda p: operate.rename(p, "at", "a", "b", why="w"), Rename(**SAID, old="a", new="b")),
    "accept": (lambda p: operate.accept(p, "at", "a", why="w", drop=True), Accept(**SAID, sink="a")),
    "remark": (lambda p: operate.remark(p, "at", "a", why="w"), RewriteMarker(**SAID, sink="a")),
    "skip": (lambda p: operate.skip(p, "at", 3, 5, why="w"), Skip(**SAID, first=3, last=5)),
    "evaluate": (lambda p: operate.evaluate(p, "at", ["a"], why="w"), Evaluate(**SAID, sinks=("a",))),
}
"""What each function of the library decides.  The console makes the same actions."""


@pytest.mark.parametrize(("call", "expected"), ACTIONS.values(), ids=ACTIONS)
def test_each_function_decides_what_its_name_says(
    call: Callable[[Pipeline], Operator], expected: OperatorAction, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, recorded = list[OperatorAction](), Operator.__new__(Operator)

    def run(_: Pipeline, checkpoint: str, act: OperatorAction, **_flags: bool) -> Operator:
        assert checkpoint == "at"
        seen.append(act)
        return recorded

    monkeypatch.setattr(operate, "run", run)
    monkeypatch.setattr(operate, "now", lambda: "now")
    assert call(world.pipeline()) is recorded
    assert seen == [expected]


def test_a_delta_sink_needs_spark_before_anybody_is_fenced(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "epochal.coordinator.query.operate.running_session", lambda: None
    )  # tests before this may run one
    old = world.checkpoint("old", "q1")
    world.run(old, [0])
    act = Adopt(why="moved", at=operate.now())
    pipeline = world.pipeline(DeltaSink(str(tmp_path / "lake"), name="lake"))
    assert "no session runs in this process" in refused(world, Misconfigured, operate.run, pipeline, str(old), act)
