"""Checkpoints, logs and sinks that contradict each other: each help is followed, and the query goes on."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from epochal import Pipeline
from epochal.checkpoints import log
from epochal.checkpoints.files import FilesLog
from epochal.coordinator.model.epoch import Actor, Committable, Digest, Epoch, EpochRequest, Marker, Query, SinkState
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    Fenced,
    LogCorrupt,
    MarkerLost,
    Misconfigured,
    SinkUnavailable,
)
from epochal.coordinator.protocol.coordinator import Coordinator
from epochal.coordinator.protocol.retry import Retry
from epochal.coordinator.query import operate
from epochal.sinks.memory import MemoryRedoSink, MemorySink
from epochal.sinks.protocol import Applied, CommitOutcome, Rows
from tests.pure.coordinator.query.test_operate import OFFSETS, Batch, Holding, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def here(world: World) -> Path:
    """A checkpoint whose epochs 0 and 1 are visible in both sinks."""
    checkpoint = world.checkpoint("here", "q1")
    world.run(checkpoint, [0, 1])
    return checkpoint


def shows(world: World, sink: str = "a") -> list[int]:
    return [row["id"] for row in world.server.visible("app", sink)]


def pipeline(world: World, *names: str) -> Pipeline:
    return Pipeline(app="app", sinks=[MemorySink(name, world.server) for name in names])


def coordinator(world: World, checkpoint: Path, app: str = "app", query_id: str = "q1") -> tuple[Coordinator, Query]:
    query = Query(app, query_id, "run", f"file:{checkpoint}")
    sinks = [MemorySink(name, world.server) for name in world.names]
    log = FilesLog(str(checkpoint / "epochal" / "log"))
    return Coordinator(query=query, sinks=sinks, log=log, stage=world.stage), query


def asked(query: Query, epoch: int, fingerprint: str = "") -> Batch:
    return Batch(EpochRequest(query, epoch, fingerprint or f"fingerprint-{epoch}", OFFSETS % epoch))


# --- the checkpoint ------------------------------------------------------------------------------


@pytest.mark.remedy(
    "the checkpoint belongs to app …, not …",
    "start the pipeline with app=…, or give the query another checkpointLocation",
)
def test_the_app_of_the_checkpoint(world: World, here: Path) -> None:
    for name in world.names:
        world.server.create("other", name)
    other, query = coordinator(world, here, app="other")
    with pytest.raises(CheckpointMismatch):
        other.run(asked(query, 2))
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]
    elsewhere, query = coordinator(world, world.checkpoint("elsewhere", "q2"), app="other", query_id="q2")
    elsewhere.run(asked(query, 0))
    assert [row["id"] for row in world.server.visible("other", "a")] == [0]


@pytest.mark.remedy(
    "the checkpoint was last run at …, now it lies at …: it was copied or moved",
    "if it was moved, move it back to …, or record the move with `epochal adopt`",
)
@pytest.mark.parametrize("back", [True, False])
def test_a_checkpoint_that_was_moved(world: World, here: Path, back: bool) -> None:
    there = here.rename(world.folder / "there")
    with pytest.raises(CheckpointMismatch):
        world.run(there, [2])
    if back:
        there = there.rename(here)
    else:
        operate.adopt(world.pipeline(), str(there), why="moved")
    world.run(there, [2])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "the checkpoint was last run at …, now it lies at …: it was copied or moved",
    "if a checkpoint still lies there, this one is a copy: run the one that lies there",
)
def test_a_checkpoint_that_was_copied(world: World, here: Path) -> None:
    copy = Path(shutil.copytree(here, world.folder / "copy"))
    with pytest.raises(CheckpointMismatch):
        world.run(copy, [2])
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "the epoch log was written by query …, this is query …",
    'if metadata was deleted and Spark has made a new one, stop the query and write {"id":"…"} into it',
)
def test_a_metadata_file_that_spark_has_made_anew(world: World, here: Path) -> None:
    (here / "metadata").write_text('{"id":"q2"}')
    with pytest.raises(CheckpointMismatch):
        world.run(here, [2])
    (here / "metadata").write_text('{"id":"q1"}')
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "Spark asks for epoch …, but epoch … never reached the pipeline",
    "to replay what was left out, stop the query, delete commits/… and offsets/… in the checkpoint, …, and restart",
)
def test_epochs_that_never_reached_the_pipeline_are_replayed(world: World, here: Path) -> None:
    for epoch in (2, 3):
        world.plan(here, epoch)
        world.commit(here, epoch)
    with pytest.raises(CheckpointMismatch, match=r"delete commits/\{2\.\.3\} and offsets/\{3\.\.4\}"):
        world.run(here, [4])
    for file in ("commits/2", "commits/3", "offsets/3", "offsets/4"):
        (here / file).unlink()
    world.run(here, [2, 3, 4])
    assert shows(world) == [0, 1, 2, 3, 4]


@pytest.mark.remedy(
    "Spark asks for epoch …, but epoch … never reached the pipeline",
    "if nobody needs these rows, `epochal resolve --skipped …..…`",
)
@pytest.mark.remedy("epochs …..… are not the skipped epochs; skipped: …", "name exactly the epochs that were skipped")
def test_epochs_that_nobody_needs_are_skipped(world: World, here: Path) -> None:
    for epoch in (2, 3):
        world.plan(here, epoch)
        world.commit(here, epoch)
    with pytest.raises(CheckpointMismatch, match=r"resolve --skipped 2\.\.3"):
        world.run(here, [4])
    (here / "offsets" / "4").unlink()
    with pytest.raises(Misconfigured, match=r"skipped: 2\.\.3"):
        operate.skip(world.pipeline(), str(here), 2, 2, why="test data")
    operate.skip(world.pipeline(), str(here), 2, 3, why="test data")
    world.run(here, [4])
    assert shows(world) == [0, 1, 4]


@pytest.mark.remedy(
    "Spark asks for epoch …, before epoch …: the checkpoint was rolled back",
    "restore the checkpoint, or the sink, to where they agree",
)
def test_a_checkpoint_that_was_rolled_back_in_sparks_files_alone(world: World, here: Path) -> None:
    with pytest.raises(CheckpointMismatch):
        world.run(here, [0])
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "epoch … was … for offsets …, Spark now plans it as …",
    "offsets/… was rewritten after the epoch was …: put that text back into it",
)
def test_offsets_that_were_rewritten(world: World, here: Path) -> None:
    start, query = coordinator(world, here)
    with pytest.raises(CheckpointMismatch):
        start.run(asked(query, 1, "another text"))
    start, query = coordinator(world, here)
    start.run(asked(query, 1))
    start.run(asked(query, 2))
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "this checkpoint has an empty epoch log, but the sink was written from another checkpoint of app …",
    "if the old checkpoint is gone, `epochal adopt` lets this one go on where the sinks end",
)
@pytest.mark.remedy(
    "this checkpoint has an empty epoch log, but the sink was written from another checkpoint of app …",
    "use the checkpoint that these sinks belong to",
)
@pytest.mark.parametrize("gone", [True, False])
def test_a_new_checkpoint_over_sinks_of_an_old_one(world: World, here: Path, gone: bool) -> None:
    new = world.checkpoint("new", "q2")
    with pytest.raises(CheckpointMismatch):
        world.run(new, [0])
    if gone:
        (new / "offsets" / "0").unlink()
        shutil.rmtree(here)
        operate.adopt(world.pipeline(), str(new), why="the old one was deleted")
        world.run(new, [0])
        assert shows(world) == [0, 1, 0]
    else:
        world.run(here, [2])
        assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "the sink is fenced by …, which this checkpoint's log does not know: another checkpoint, or the original of this"
    " copy, writes to it",
    "if this is the original, restored from a backup, record that with `epochal adopt`",
)
def test_a_checkpoint_from_a_backup_that_lacks_a_start(world: World, here: Path) -> None:
    backup = Path(shutil.copytree(here, world.folder / "backup"))
    start, query = coordinator(world, here)
    start.run(asked(query, 1))  # a start that decides nothing new
    shutil.rmtree(here)
    backup.rename(here)
    with pytest.raises(CheckpointMismatch):
        world.run(here, [2])
    operate.adopt(world.pipeline(), str(here), why="restored from a backup")
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "the sink's marker (…) belongs to no epoch that this checkpoint's log knows: the checkpoint or the sink was rolled"
    " back or copied",
    "restore the checkpoint, or the sink, to where they agree",
)
def test_a_checkpoint_that_is_older_than_its_sinks(world: World, here: Path) -> None:
    """The fence of the newer start is accepted, and then the marker says what is wrong: the newest is restored."""
    backup = Path(shutil.copytree(here, world.folder / "backup"))
    world.run(here, [2])
    newest = here.rename(world.folder / "newest")
    backup.rename(here)
    with pytest.raises(CheckpointMismatch, match="belongs to no epoch"):
        operate.adopt(world.pipeline(), str(here), why="restored")
    here.rename(world.folder / "put aside")
    newest.rename(here)
    world.run(here, [3])
    assert shows(world) == [0, 1, 2, 3]


@pytest.mark.remedy(
    "Spark's file metadata is missing in the checkpoint; the epoch log was written by query …",
    'or make it anew in the checkpoint\'s folder, with exactly this text: {"id":"…"}',
)
def test_a_metadata_file_that_is_gone(world: World, here: Path) -> None:
    (here / "metadata").unlink()
    start, query = coordinator(world, here, query_id="")
    with pytest.raises(CheckpointMismatch) as refused:
        start.check(asked(query, 2).ask)
    text = re.search(r"exactly this text: (\S+)", refused.value.help)
    assert text is not None
    (here / "metadata").write_text(text[1])
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "the sink's marker (…) belongs to no epoch that this checkpoint's log knows, and it is not older than the log's"
    " last epoch, at position …",
    "restore the newest checkpoint",
)
@pytest.mark.remedy(
    "the sink's marker (…) belongs to no epoch that this checkpoint's log knows, and it is not older than the log's"
    " last epoch, at position …",
    "if it is lost, begin a new one that reads from where the sinks end, with `epochal adopt`",
)
@pytest.mark.parametrize("lost", [True, False])
def test_a_sink_that_is_ahead_is_not_accepted(world: World, here: Path, lost: bool) -> None:
    backup = Path(shutil.copytree(here, world.folder / "backup"))
    world.run(here, [2, 3])
    newest = here.rename(world.folder / "newest")
    backup.rename(here)
    with pytest.raises(CheckpointMismatch):
        operate.accept(world.pipeline(), str(here), "a", why="as it is")
    here.rename(world.folder / "put aside")
    if lost:
        operate.adopt(world.pipeline(), str(world.folder / "new"), why="lost", new=True)
        world.run(world.folder / "new", [0])
    else:
        newest.rename(here)
        world.run(here, [4])
    assert shows(world) == [0, 1, 2, 3, 0 if lost else 4]


@pytest.mark.remedy(
    "a newer Epochal has written the epoch log: … is a record of version …", "start the query with the newer Epochal"
)
def test_a_log_of_a_newer_epochal(world: World, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older one reads no version that this one writes."""
    with monkeypatch.context() as patch:
        patch.setattr(log, "RECORD_VERSION", 0)
        with pytest.raises(LogCorrupt, match="a newer Epochal has written the epoch log"):
            world.run(here, [2])
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]


# --- the sinks -----------------------------------------------------------------------------------


@pytest.mark.remedy(
    "sink … took part in this query's epochs and is missing from the pipeline",
    "put … back into the pipeline, under the same name",
)
@pytest.mark.remedy(
    "sink … took part in this query's epochs and is missing from the pipeline",
    "or record with `epochal retire` that it leaves",
)
@pytest.mark.parametrize("retired", [True, False])
def test_a_sink_that_is_missing(world: World, here: Path, retired: bool) -> None:
    with pytest.raises(CheckpointMismatch):
        world.run(here, [2], names=["a"])
    if retired:
        operate.retire(world.pipeline(), str(here), "b", why="nobody reads it")
        world.run(here, [2], names=["a"])
    else:
        world.run(here, [2])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "sink … took part in this query's epochs and is missing from the pipeline",
    "or with `epochal rename` its new name",
)
def test_a_sink_that_has_a_new_name(world: World, here: Path) -> None:
    world.server.create("app", "c")
    with pytest.raises(CheckpointMismatch):
        world.run(here, [2], names=["a", "c"])
    operate.rename(world.pipeline(), str(here), "b", "c", why="nicer")
    world.run(here, [2], names=["a", "c"])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "the sink is not what it was: it was …, now …",
    "a recreated target has lost its rows, and `epochal resolve --accept …` goes on without them",
)
@pytest.mark.remedy(
    "the sink is not what it was: it was …, now …", "point the sink at the original again, or restore it"
)
@pytest.mark.parametrize("restored", [True, False])
def test_a_sink_that_was_made_again(world: World, here: Path, restored: bool) -> None:
    original = world.server.table("app", "b")
    world.server.recreate("app", "b")
    with pytest.raises(CheckpointMismatch):
        world.run(here, [2])
    if restored:
        world.server._tables["app", "b"] = original
    else:
        operate.accept(world.pipeline(), str(here), "b", why="its rows are not missed")
    world.run(here, [2])
    assert shows(world, "b") == ([0, 1, 2] if restored else [2])


@pytest.mark.remedy(
    "the sink took part in this query's epochs, but holds no fence any more",
    "to go on from what it shows now, `epochal resolve --accept …`",
)
def test_a_sink_without_its_bookkeeping(world: World, here: Path) -> None:
    table = world.server.table("app", "b")
    table.fence = table.marker = None
    with pytest.raises(MarkerLost):
        world.run(here, [2])
    operate.accept(world.pipeline(), str(here), "b", why="as it is")
    world.run(here, [2])
    assert shows(world, "b") == [0, 1, 2]


@pytest.mark.remedy(
    "the sink holds no marker, but it had one when an operator last recorded its state",
    "to go on from what it shows now, `epochal resolve --accept …`",
)
def test_a_marker_that_is_lost_after_a_person_has_spoken(world: World, here: Path) -> None:
    """The same command as before is no repetition of it: what it recorded is no longer so."""
    operate.accept(world.pipeline(), str(here), "b", why="as it is")
    world.server.table("app", "b").marker = None
    with pytest.raises(MarkerLost):
        world.run(here, [2])
    operate.accept(world.pipeline(), str(here), "b", why="as it is")
    world.run(here, [2])
    assert shows(world, "b") == [0, 1, 2]


@pytest.mark.remedy(
    "the sink holds …; epoch … stands at position … and the newest epoch that the log knows to be visible is …",
    "rows that were visible are gone: restore the sink",
)
@pytest.mark.remedy(
    "the sink holds …; epoch … stands at position … and the newest epoch that the log knows to be visible is …",
    "if the rows are there and only the marker is gone, `epochal resolve --marker …`",
)
@pytest.mark.remedy(
    "the sink holds …; epoch … stands at position … and the newest epoch that the log knows to be visible is …",
    "to go on without the rows, `epochal resolve --accept …`",
)
@pytest.mark.parametrize("way", ["restore", "marker", "accept"])
def test_a_marker_that_is_lost(world: World, here: Path, way: str) -> None:
    world.run(here, [2])
    table = world.server.table("app", "b")
    newest, table.marker = table.marker, None
    with pytest.raises(MarkerLost):
        world.run(here, [3])
    if way == "restore":
        table.marker = newest
    elif way == "marker":
        operate.remark(world.pipeline(), str(here), "b", why="the rows were counted")
        assert table.marker == newest
    else:
        operate.accept(world.pipeline(), str(here), "b", why="not missed")
    world.run(here, [3])
    assert shows(world, "b") == [0, 1, 2, 3]


@pytest.mark.remedy(
    "the sink was renamed, and since then its epochs are kept under its new name only",
    "use the new name, which `epochal log` shows, or change it back with `epochal rename`",
)
@pytest.mark.remedy(
    "the sink goes on under another name",
    "`epochal log` shows the new name; `epochal rename` can change it back",
)
@pytest.mark.parametrize("back", [True, False])
def test_a_name_that_was_given_up(world: World, here: Path, back: bool) -> None:
    world.server.create("app", "c")
    operate.rename(world.pipeline(), str(here), "b", "c", why="nicer")
    with pytest.raises(CheckpointMismatch):
        world.run(here, [2], names=["a", "b", "c"])
    with pytest.raises(Misconfigured):
        operate.accept(world.pipeline(), str(here), "b", why="as it is")
    if back:
        operate.rename(pipeline(world, "a", "c"), str(here), "c", "b", why="known by it")
    world.run(here, [2], names=["a", "b" if back else "c"])
    assert shows(world, "b" if back else "c")[-1] == 2


# --- two starts ----------------------------------------------------------------------------------


@pytest.mark.remedy(
    "the newest record of the log is a … of …, not the fence of …: a newer start has taken over",
    "nothing to do if the newer start is wanted; else stop it and restart this query",
)
def test_a_start_that_another_overtakes(world: World, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer start comes while this one fences.  If this one is wanted, it is restarted after the other ended."""
    start, query = coordinator(world, here)
    newer, its_query = coordinator(world, here)
    fence, began = MemorySink.fence, [False]

    def overtaken(sink: MemorySink, ask: Query, by: Actor) -> None:
        fence(sink, ask, by)
        if sink.name == "b" and not began[0]:
            began[0] = True
            newer.run(asked(its_query, 2))

    monkeypatch.setattr(MemorySink, "fence", overtaken)
    with pytest.raises(Fenced):
        start.run(asked(query, 2))
    newer.run(asked(its_query, 3))
    again, query = coordinator(world, here)
    again.run(asked(query, 4))
    assert shows(world) == [0, 1, 2, 3, 4]


@pytest.mark.remedy(
    "the sink is fenced by …, not by …: another start has taken over",
    "nothing to do if the other start is wanted; else stop it and restart this query",
)
def test_a_start_that_another_overtakes_after_it_has_read_the_log(
    world: World, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, query = coordinator(world, here)
    newer, its_query = coordinator(world, here)
    look, began = MemorySink.look, [False]

    def overtaken(sink: MemorySink, ask: Query, *, by: Actor | None = None) -> SinkState:
        if by is not None and not began[0]:
            began[0] = True
            newer.run(asked(its_query, 2))
        return look(sink, ask, by=by)

    monkeypatch.setattr(MemorySink, "look", overtaken)
    with pytest.raises(Fenced, match="the sink is fenced by"):
        start.run(asked(query, 2))
    newer.run(asked(its_query, 3))
    again, query = coordinator(world, here)
    again.run(asked(query, 4))
    assert shows(world) == [0, 1, 2, 3, 4]


# --- idempotent mode -----------------------------------------------------------------------------


class NotReached(MemoryRedoSink):
    """A sink whose server does not answer when an epoch is to be written."""

    def apply(self, epoch: Epoch, rows: Rows, by: Actor, agreed: Digest | None) -> Applied:  # noqa: ARG002
        raise SinkUnavailable("no answer", sink=self.name, help="start it")


def idempotent(world: World, checkpoint: Path, *, reached: bool = True) -> tuple[Coordinator, Query]:
    """A start in idempotent mode; without ``reached`` the second sink gets no rows."""
    query = Query("app", "q1", "run", f"file:{checkpoint}")
    second = MemoryRedoSink if reached else NotReached
    sinks = [MemoryRedoSink("a", world.server, world.stage), second("b", world.server, world.stage)]
    log = FilesLog(str(checkpoint / "epochal" / "log"))
    once = Retry(attempts=1)
    return Coordinator(query=query, sinks=sinks, log=log, stage=world.stage, mode="idempotent", retry=once), query


@pytest.fixture
def half(world: World, here: Path) -> Path:
    """A checkpoint whose epoch 2 was begun in idempotent mode, and is visible in the first sink alone."""
    start, query = idempotent(world, here, reached=False)
    world.plan(here, 2)
    with pytest.raises(CommitInDoubt):
        start.run(asked(query, 2))
    return here


@pytest.mark.remedy(
    "epoch … was begun in idempotent mode and is not visible in …",
    "restart the query, wait until this epoch is committed, then run the command again",
)
def test_nobody_leaves_while_an_epoch_is_under_way(world: World, half: Path) -> None:
    with pytest.raises(CheckpointMismatch):
        operate.retire(world.pipeline(), str(half), "b", why="nobody reads it")
    start, query = idempotent(world, half)
    start.run(asked(query, 2))
    world.commit(half, 2)
    operate.retire(world.pipeline(), str(half), "b", why="nobody reads it")
    world.run(half, [3], names=["a"])
    assert (shows(world), shows(world, "b")) == ([0, 1, 2, 3], [0, 1, 2])


@pytest.mark.remedy("the sink does not show epoch …, so there are no rows to keep", "name the sinks that show it")
def test_only_a_sink_that_shows_the_epoch_keeps_its_rows(world: World, half: Path) -> None:
    with pytest.raises(Misconfigured):
        operate.evaluate(world.pipeline(), str(half), ["b"], why="the file is gone")
    operate.evaluate(world.pipeline(), str(half), ["a"], why="the file is gone")
    start, query = idempotent(world, half)
    start.run(asked(query, 2))
    assert (shows(world), shows(world, "b")) == ([0, 1, 2], [0, 1, 2])


@pytest.mark.remedy(
    "the sink does not show epoch …, which was applied, and Spark asks for epoch …: only a replay of epoch … can give"
    " the sink its rows",
    "else stop the query and delete commits/… and offsets/… in the checkpoint, …: Spark then replays epoch …, and the"
    " sink gets its rows",
)
def test_an_epoch_that_only_spark_can_give_is_replayed(world: World, half: Path) -> None:
    world.commit(half, 2)
    start, query = idempotent(world, half)
    with pytest.raises(MarkerLost, match="delete commits/2 and offsets/3"):
        start.run(asked(query, 3))
    (half / "commits" / "2").unlink()
    start, query = idempotent(world, half)
    for epoch in (2, 3):
        start.run(asked(query, epoch))
    assert shows(world, "b") == [0, 1, 2, 3]


@pytest.mark.remedy(
    "the log's last epoch was not begun in idempotent mode, so it has no evaluations to compare",
    "start the query: it has nothing of this kind to decide",
)
def test_an_epoch_that_was_decided_has_one_evaluation(world: World, here: Path) -> None:
    with pytest.raises(Misconfigured):
        operate.evaluate(world.pipeline(), str(here), ["a"], why="the file is gone")
    world.run(here, [2])
    assert shows(world) == [0, 1, 2]


# --- a decided epoch whose rows are lost ---------------------------------------------------------


class NeverCommits(MemorySink):
    """A sink whose server does not answer when an epoch is to be shown."""

    def commit(self, committable: Committable, by: Actor) -> CommitOutcome:  # noqa: ARG002
        raise SinkUnavailable("no answer", sink=self.name, help="start it")


@pytest.fixture
def lost(world: World) -> Path:
    """A checkpoint with one sink.  Its epoch 2 is decided, not shown and without a copy; its prepared rows are gone."""
    world.names = ("a",)
    checkpoint = world.checkpoint("here", "q1")
    world.run(checkpoint, [0, 1])
    query, log = Query("app", "q1", "run", f"file:{checkpoint}"), FilesLog(str(checkpoint / "epochal" / "log"))
    sink = NeverCommits("a", world.server)
    world.plan(checkpoint, 2)
    with pytest.raises(CommitInDoubt):
        Coordinator(query=query, sinks=[sink], log=log, retry=Retry(attempts=1)).run(asked(query, 2))
    world.server.table("app", "a").prepared.clear()
    return checkpoint


@pytest.mark.remedy(
    "epoch … is decided, its prepared rows are lost and nothing of it is visible; Spark is already at epoch …, so epoch"
    " … cannot be evaluated again",
    "stop the query and delete commits/… and offsets/… in the checkpoint: Spark then plans epoch … anew after it has"
    " replayed epoch …; then restart",
)
def test_lost_rows_of_an_epoch_that_spark_has_left_behind(world: World, lost: Path) -> None:
    world.commit(lost, 2)
    world.plan(lost, 3)
    start, query = coordinator(world, lost)
    with pytest.raises(CommitInDoubt) as refused:
        start.run(asked(query, 3))
    named = re.findall(r"(?:commits|offsets)/\d+", refused.value.help)
    assert named == ["commits/2", "offsets/3"]
    for file in named:
        (lost / file).unlink()
    world.run(lost, [2, 3])
    assert shows(world) == [0, 1, 2, 3]


@pytest.mark.remedy(
    "epoch … is decided, its prepared rows are lost and there is no copy of them",
    "restart the query, which evaluates the epoch again; then run the command again",
)
def test_lost_rows_of_an_epoch_that_a_command_cannot_finish(world: World, lost: Path) -> None:
    with pytest.raises(CommitInDoubt):
        operate.rename(pipeline(world, "new"), str(lost), "a", "new", why="a better name")
    world.run(lost, [2])
    operate.rename(pipeline(world, "new"), str(lost), "a", "new", why="a better name")
    world.run(lost, [3], names=["new"])
    assert shows(world, "new") == [0, 1, 2, 3]


# --- what a person says --------------------------------------------------------------------------


@pytest.mark.remedy("no reason was given", 'give a reason that still helps in a year: why="..."')
@pytest.mark.remedy("the log knows no sink … that takes part", "name a sink that the log knows")
@pytest.mark.remedy("the pipeline has no sink …", "put the sink back into the pipeline for this command")
@pytest.mark.remedy(
    "the pipeline has no sink …", "if it cannot be reached, it can leave with `epochal retire --unreachable`"
)
@pytest.mark.parametrize("reached", [True, False])
def test_a_sink_that_leaves(world: World, here: Path, reached: bool) -> None:
    at = str(here)
    for wrong, sink, why in (
        (world.pipeline(), "b", " "),
        (world.pipeline(), "z", "w"),
        (pipeline(world, "a"), "b", "w"),
    ):
        with pytest.raises(Misconfigured):
            operate.retire(wrong, at, sink, why=why)
    if reached:
        operate.retire(world.pipeline(), at, "b", why="nobody reads it any more")
    else:
        operate.retire(pipeline(world, "a"), at, "b", why="its server was sold", unreachable=True)
    world.run(here, [2], names=["a"])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy("the name … is taken", "choose a name that this app has not used")
@pytest.mark.remedy("the name … is taken", "or take the sink of the new name out of the pipeline")
def test_a_new_name_that_is_taken(world: World, here: Path) -> None:
    world.server.create("app", "c")
    for taken, sinks in (("a", ["b"]), ("a", ["a", "b"]), ("c", ["a", "b", "c"])):
        with pytest.raises(Misconfigured, match=f"the name '{taken}' is taken"):
            operate.rename(pipeline(world, *sinks), str(here), "b", taken, why="nicer")
    operate.rename(world.pipeline(), str(here), "b", "c", why="nicer")
    world.run(here, [2], names=["a", "c"])
    assert shows(world) == [0, 1, 2]


@pytest.mark.remedy(
    "the log knows no epoch of this sink, so there is no marker to write",
    "`epochal resolve --accept …` lets the sink go on from what it shows",
    over=["the sink holds what it does not show: …"],
)
@pytest.mark.remedy(
    "the sink holds what it does not show: …",
    "if these rows may be deleted, add --drop; else point the sink at a table of its own",
)
def test_a_sink_of_a_new_log_that_holds_what_it_does_not_show(world: World, here: Path) -> None:
    """`--marker` sends to `--accept`, which must not send back to `--marker`."""
    world.lose_log(here)
    operate.adopt(world.pipeline(), str(here), why="the log was lost")
    with pytest.raises(Misconfigured, match="knows no epoch of this sink"):
        operate.remark(world.pipeline(), str(here), "b", why="seen")
    holding = Pipeline(app="app", sinks=[MemorySink("a", world.server), Holding("b", world.server)])
    with pytest.raises(Misconfigured, match="holds what it does not show") as refused:
        operate.accept(holding, str(here), "b", why="as it is")
    assert "--marker" not in refused.value.help
    operate.accept(holding, str(here), "b", why="as it is", drop=True)
    world.run(here, [2])
    assert shows(world, "b") == [0, 1, 2]


@pytest.mark.remedy(
    "the sink has a marker: …",
    "only a missing or older marker is replaced; this one belongs to another checkpoint, or to a newer state of this"
    " checkpoint",
    over=[
        "the sink's marker (…) belongs to no epoch that this checkpoint's log knows: the checkpoint or the sink was"
        " rolled back or copied"
    ],
)
def test_a_marker_that_is_not_replaced(world: World, here: Path) -> None:
    table = world.server.table("app", "b")
    mine = table.marker
    assert mine is not None
    table.marker = Marker(mine.position + 5, 77)
    with pytest.raises(Misconfigured):
        operate.remark(world.pipeline(), str(here), "b", why="seen")
    with pytest.raises(CheckpointMismatch, match="belongs to no epoch"):
        world.run(here, [2])
    table.marker = replace(mine)
    world.run(here, [2])
    assert shows(world, "b") == [0, 1, 2]
