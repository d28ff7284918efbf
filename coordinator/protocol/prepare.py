"""Prepare: the micro-batch is evaluated once, and every sink votes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from epochal.checkpoints.log import Commit, Participant
from epochal.coordinator.model.epoch import PARQUET, Committable, Copy, Decision, Epoch
from epochal.coordinator.model.errors import PrepareRefused
from epochal.coordinator.model.events import Step
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.cleanup import abort_quietly
from epochal.coordinator.protocol.pairs import ask_judgements, in_groups
from epochal.coordinator.protocol.start import Start
from epochal.sinks.conditions import before_the_decision
from epochal.sinks.protocol import CopyingSink, FolderStage, MicroBatch, Rows, Sink, StagingSink


def prepare(start: Start, batch: MicroBatch, again: bool) -> Commit:
    """Evaluate the micro-batch once and let every sink vote.  A no vote, or any error, aborts the epoch everywhere."""
    ask = batch.ask
    redo = start.decided.decision.redo + 1 if start.lost else 0
    decision = Decision(start.query.query_id, ask.epoch, start.me, ask.fingerprint, redo)
    hit(Point.BEFORE_PREPARE, epoch=ask.epoch)
    try:
        epoch = Epoch(decision, 0, ask.offsets, ask.watermark)
        epoch = replace(epoch, copy=copied(start, epoch, batch.rows))
        hit(Point.AFTER_COPY, epoch=ask.epoch)
        judgements = ask_judgements(start, epoch, lambda: batch.rows)
        votes = voted(start, epoch, batch.rows)
    except Exception:
        abort_quietly(start)
        raise
    hit(Point.AFTER_PREPARE, epoch=ask.epoch)
    return Commit(
        decision=decision,
        actor=start.me,
        participants={name: Participant(start.identities[name], vote) for name, vote in votes.items()},
        offsets=ask.offsets,
        watermark=ask.watermark,
        copy=epoch.copy,
        supersedes=start.current.decision.id if again else None,
        done_through=judge.done_after(start.history, start.shown),
        judgements=judgements,
    )


def copied(start: Start, epoch: Epoch, rows: Rows) -> Copy | None:
    """Evaluate the epoch into a durable copy and return the copy, or None if this start makes no copies."""
    if start.stage is None or not start.copies:
        return None
    with start.publisher.step(Step.COPY):
        copy = copied_by_sink(start, epoch, rows)
        if copy is not None:
            return copy
        for sink in start.watching:
            rows = sink.watch(epoch, rows)
        copy = copied_with_a_sink(start, epoch, rows)
        return copy if copy is not None else start.stage.write(epoch.number, start.me, rows)


def copied_by_sink(start: Start, epoch: Epoch, rows: Rows) -> Copy | None:
    """Let the only sink write the copy in a form of its own, if it can."""
    sink, stage = next(iter(start.sinks.values())), start.stage
    if len(start.sinks) > 1 or not isinstance(sink, StagingSink) or not isinstance(stage, FolderStage):
        return None
    return sink.stage(epoch, rows, stage.reserve(epoch.number, start.me))


def copied_with_a_sink(start: Start, epoch: Epoch, rows: Rows) -> Copy | None:
    """Let a sink write what it prepares and the copy at once, if one can."""
    stage = start.stage
    if not isinstance(stage, FolderStage):
        return None
    for sink in start.sinks.values():
        if isinstance(sink, CopyingSink):
            folder = stage.reserve(epoch.number, start.me)
            copy = sink.write_copy(epoch.at(start.place_in(sink.name)), rows, folder, start.me)
            if copy is not None:
                return copy
    return None


def voted(start: Start, epoch: Epoch, rows: Rows) -> Mapping[str, Committable]:
    """Let every sink vote, and meanwhile make the copy survive a power failure.

    The disk may take as long as a sink, and nothing depends on the copy before the decision.
    """
    stage, copy = start.stage, epoch.copy
    meanwhile = []
    if copy is not None and isinstance(stage, FolderStage):
        meanwhile = [partial(stage.keep, epoch.number, copy)]
    groups = in_groups(list(start.sinks.values()))
    return start.each(lambda sink: ask_vote(start, sink, epoch, rows), meanwhile, groups)


def ask_vote(start: Start, sink: Sink, epoch: Epoch, rows: Rows) -> Committable:
    epoch = epoch.at(start.place_in(sink.name))
    hit(Point.BEFORE_SINK_PREPARE, sink.name, epoch.number)
    with start.publisher.step(Step.PREPARE, sink.name, epoch.number) as told:
        if epoch.copy is not None:
            with before_the_decision(sink.name, epoch):
                vote = prepare_from(start, epoch.copy, sink, epoch)
        elif epoch.digest:  # idempotent mode: the rows may be evaluated again, so the call may be repeated
            vote = start.patiently(lambda: sink.prepare(epoch, rows, start.me))
        else:
            vote = sink.prepare(epoch, rows, start.me)
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
