"""Prepare: the micro-batch is evaluated once, and every sink votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from epochal.checkpoints.log import Commit, Participant
from epochal.coordinator.model.epoch import PARQUET, Committable, Copy, Decision, Epoch
from epochal.coordinator.model.errors import PrepareRefused
from epochal.coordinator.model.events import Step
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.cleanup import abort_quietly
from epochal.coordinator.protocol.frames import BATCH, Copies, Given, frames_of, in_frame
from epochal.coordinator.protocol.pairs import ask_judgements, in_groups
from epochal.coordinator.protocol.start import Start
from epochal.sinks.conditions import before_the_decision
from epochal.sinks.protocol import (
    CopyingSink,
    FolderStage,
    MicroBatch,
    Rows,
    Sink,
    Stage,
    StagingSink,
    WatchingSink,
)


def prepare(start: Start, batch: MicroBatch, again: bool) -> Commit:
    """Evaluate the micro-batch once and let every sink vote.  A no vote, or any error, aborts the epoch everywhere."""
    ask = batch.ask
    redo = start.decided.decision.redo + 1 if start.lost else 0
    decision = Decision(start.query.query_id, ask.epoch, start.me, ask.fingerprint, redo)
    epoch = Epoch(decision, 0, ask.offsets, ask.watermark)
    hit(Point.BEFORE_PREPARE, epoch=ask.epoch)
    try:
        copies = copied(start, epoch, batch.rows)
        hit(Point.AFTER_COPY, epoch=ask.epoch)
        given = Given(epoch, copies, start.reads, partial(rows_of, start.stage, copies, batch.rows))
        judgements = ask_judgements(start, given)
        votes = voted(start, given)
    except Exception:
        abort_quietly(start)
        raise
    hit(Point.AFTER_PREPARE, epoch=ask.epoch)
    return Commit(
        decision=decision,
        actor=start.me,
        participants={n: Participant(start.identities[n], vote, start.reads[n]) for n, vote in votes.items()},
        offsets=ask.offsets,
        watermark=ask.watermark,
        copy=copies.batch,
        supersedes=start.current.decision.id if again else None,
        done_through=judge.done_after(start.history, start.shown),
        judgements=judgements,
        frames=copies.frames,
    )


def copied(start: Start, epoch: Epoch, rows: Rows) -> Copies:
    """Evaluate the epoch into a durable copy, and then each frame that a sink gets.

    Return the copies; none if this start makes no copies.
    """
    if start.stage is None or not start.copies:
        return Copies()
    sinks = list(start.sinks.values())
    read = frames_of(sinks)
    with start.publisher.step(Step.COPY):
        batch = copy_of(start, epoch, rows, in_frame(sinks, BATCH), is_read_again=bool(read))
        if not read:
            return Copies(batch)
        assert start.frames is not None, "a pipeline without it refuses sinks that get a frame"
        frames = start.frames(start.stage.read(batch))
        return Copies(batch, {frame: copy_of(start, epoch, frames[frame], in_frame(sinks, frame)) for frame in read})


def copy_of(start: Start, epoch: Epoch, rows: Rows, sinks: Sequence[Sink], *, is_read_again: bool = False) -> Copy:
    """Evaluate ``rows`` once into a durable copy, which these sinks get.

    ``is_read_again``: somebody else will read the copy, too, so it must have the form that all can read.
    """
    stage = start.stage
    assert stage is not None, "without one no copies are made"
    copy = None if is_read_again else copied_by_sink(start, stage, epoch, rows, sinks)
    if copy is not None:
        return copy
    for sink in sinks:
        if isinstance(sink, WatchingSink):
            rows = sink.watch(epoch, rows)
    copy = copied_with_a_sink(start, stage, epoch, rows, sinks)
    return copy if copy is not None else stage.write(epoch.number, start.me, rows)


def copied_by_sink(start: Start, stage: Stage, epoch: Epoch, rows: Rows, sinks: Sequence[Sink]) -> Copy | None:
    """Let the only sink write the copy in a form of its own, if it can."""
    if len(sinks) != 1 or not isinstance(sinks[0], StagingSink) or not isinstance(stage, FolderStage):
        return None
    return sinks[0].stage(epoch, rows, stage.reserve(epoch.number, start.me))


def copied_with_a_sink(start: Start, stage: Stage, epoch: Epoch, rows: Rows, sinks: Sequence[Sink]) -> Copy | None:
    """Let a sink write what it prepares and the copy at once, if one can."""
    if not isinstance(stage, FolderStage):
        return None
    for sink in sinks:
        if isinstance(sink, CopyingSink):
            folder = stage.reserve(epoch.number, start.me)
            copy = sink.write_copy(epoch.at(start.place_in(sink.name)), rows, folder, start.me)
            if copy is not None:
                return copy
    return None


def rows_of(stage: Stage | None, copies: Copies, batch: Rows, frame: str) -> Rows:
    """Return the rows of a frame of this micro-batch, from the frame's copy."""
    if frame == BATCH:
        return batch
    assert stage is not None, "only a stage makes copies"
    return stage.read(copies.frames[frame])


def voted(start: Start, given: Given) -> Mapping[str, Committable]:
    """Let every sink vote, and meanwhile make the copies survive a power failure.

    The disk may take as long as a sink, and nothing depends on a copy before the decision.
    """
    stage, meanwhile = start.stage, []
    if isinstance(stage, FolderStage):
        meanwhile = [partial(stage.keep, given.asked.number, copy) for copy in given.copies.all]
    groups = in_groups(list(start.sinks.values()))
    return start.each(lambda sink: ask_vote(start, sink, given), meanwhile, groups)


def ask_vote(start: Start, sink: Sink, given: Given) -> Committable:
    epoch = given.epoch(sink.name).at(start.place_in(sink.name))
    hit(Point.BEFORE_SINK_PREPARE, sink.name, epoch.number)
    with start.publisher.step(Step.PREPARE, sink.name, epoch.number) as told:
        if epoch.copy is not None:
            with before_the_decision(sink.name, epoch):
                vote = prepare_from(start, epoch.copy, sink, epoch)
        elif epoch.digest:  # idempotent mode: the rows may be evaluated again, so the call may be repeated
            vote = start.patiently(lambda: sink.prepare(epoch, given.rows_of(sink.name), start.me))
        else:
            vote = sink.prepare(epoch, given.rows_of(sink.name), start.me)
        told.rows = vote.rows
    hit(Point.AFTER_SINK_PREPARE, sink.name, epoch.number)
    start.written[sink.name] = vote.rows
    return vote


def prepare_from(start: Start, copy: Copy, sink: Sink, epoch: Epoch) -> Committable:
    """Ask a sink for its vote on the copy.  The call may be repeated, because the rows of a copy do not change."""
    stage = start.stage
    assert stage is not None, "only a stage makes copies"
    rows = (lambda: stage.read(copy)) if copy.form == PARQUET else (lambda: None)
    vote = start.patiently(lambda: sink.prepare(epoch, rows(), start.me))
    # a copy in a form of the sink's own holds only what the sink gets
    if vote.rows + (vote.left_out if copy.form == PARQUET else 0) != copy.rows:
        left_out = f" and left {vote.left_out} out" if vote.left_out else ""
        raise PrepareRefused(
            f"voted for {vote.rows} rows{left_out}, and the durable copy has {copy.rows}",
            sink=sink.name,
            epoch=epoch.number,
            state=f"copy {copy.root}, nothing was decided",
            help="restart the query; if it happens again, the sink or the file system loses rows",
        )
    return vote
