"""Commit: make every sink show the decided epoch.  Rows that a sink lost are prepared again from the durable copy.

After the decision an epoch is never aborted.  An error here is ``CommitInDoubt``, and the next start finishes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from epochal.checkpoints.log import Commit
from epochal.coordinator.model.epoch import Committable, Epoch
from epochal.coordinator.model.errors import PreparedLost, PrepareRefused
from epochal.coordinator.model.events import Step
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.appends import append
from epochal.coordinator.protocol.doubt import no_answer
from epochal.coordinator.protocol.frames import BATCH, Copies, Given
from epochal.coordinator.protocol.pairs import judged_as_before
from epochal.coordinator.protocol.prepare import prepare_from
from epochal.coordinator.protocol.start import Start
from epochal.sinks.protocol import CommitOutcome, PairedSink, Sink


def commit(start: Start) -> dict[str, CommitOutcome]:
    """Make every sink show the last epoch, which is decided.  ``CommitInDoubt`` names the sinks that do not show it.

    While settling, an epoch whose rows are lost and have no copy is left to Spark's replay (``start.lost``).
    """
    outcomes: dict[str, CommitOutcome] = {}
    for _ in range(start.retry.attempts):
        lost = commit_pending(start, outcomes)
        if not lost:
            break
        if start.decided.copy is None and start.settling:
            start.lost = True  # Spark will replay the epoch, which is then evaluated and decided again
            return outcomes
        with start.publisher.step(Step.REDO, epoch=start.current.epoch):
            redo(start, lost)
    else:
        start.in_doubt(
            [
                PreparedLost(
                    "prepared rows were lost again and again",
                    help="stop what deletes them in the sink (a clean-up job, VACUUM), and restart the query",
                )
            ]
        )
    hit(Point.AFTER_COMMIT, epoch=start.current.epoch)
    return outcomes


def commit_pending(start: Start, outcomes: dict[str, CommitOutcome]) -> list[str]:
    """Commit in the sinks that do not show the last epoch.  Return the sinks that provably lost what they prepared."""
    participants = start.decided.participants
    errors = show(start, [participants[name].committable for name in start.pending], outcomes)
    lost = {name: error for name, error in errors.items() if isinstance(error, PreparedLost)}
    if len(lost) < len(errors):
        start.in_doubt([error for name, error in errors.items() if name not in lost])
    if lost and start.decided.copy is None and not start.settling:
        start.in_doubt(list(lost.values()))
    return list(lost)


def show(start: Start, committables: Sequence[Committable], outcomes: dict[str, CommitOutcome]) -> dict[str, Exception]:
    """Commit all these committables, also after one fails.  Return the errors by sink."""
    results = start.run_all([lambda c=c: commit_sink(start, c) for c in committables])  # type: ignore[misc]
    errors: dict[str, Exception] = {}
    for committable, result in zip(committables, results, strict=True):
        if isinstance(result, CommitOutcome):
            outcomes[committable.sink] = result
            start.mark_shown(committable.sink, committable.digest)
        else:
            failed = result if isinstance(result, Exception) else no_answer(committable.sink, result)
            errors[committable.sink] = failed
    return errors


def commit_sink(start: Start, committable: Committable) -> CommitOutcome:
    """Commit in one sink.  After an unknown outcome the call is repeated, because the sink reads its marker first."""
    name, epoch = committable.sink, start.current.epoch
    hit(Point.BEFORE_SINK_COMMIT, name, epoch)
    with start.publisher.step(Step.COMMIT, name, epoch) as told:
        outcome = start.patiently(lambda: start.sinks[name].commit(committable, start.me))
        told.rows = committable.rows if outcome is CommitOutcome.COMMITTED else 0
    hit(Point.AFTER_SINK_COMMIT, name, epoch)
    return outcome


def redo(start: Start, lost: Sequence[str]) -> None:
    """Prepare again, from the copy, what these sinks lost, and append a decision that supersedes the old one."""
    current, stage = start.decided, start.stage
    assert current.copy is not None, "without a copy Spark's replay is evaluated instead"
    assert stage is not None, "a pipeline always has one"
    hit(Point.BEFORE_REDO, epoch=current.epoch)
    decision = replace(current.decision, actor=start.me, redo=current.decision.redo + 1)
    copies = Copies(current.copy, current.frames)
    reads = {name: frame_decided(sink, current) for name, sink in start.sinks.items()}
    epoch = Epoch(decision, 0, current.offsets, current.watermark)
    given = Given(epoch, copies, reads, lambda frame: stage.read(copies.needed(frame)))
    redone = dict(current.participants)
    try:
        judgements = judged_as_before(start, given, lost)
        for name in lost:
            redone[name] = replace(redone[name], committable=prepare_again(start, name, given))
    except Exception as error:
        start.in_doubt([error])
    record = replace(
        current,
        decision=decision,
        actor=start.me,
        participants=redone,
        supersedes=current.decision.id,
        done_through=judge.done_after(start.history, start.shown),
        judgements=judgements,
    )
    append(start, start.own_position + 1, record)
    hit(Point.AFTER_REDO_DECIDED, epoch=current.epoch)


def frame_decided(sink: Sink, record: Commit) -> str:
    """Return the frame that the sink got in this decision.

    A sink of bad rows that joined the pipeline later has the frame of its other sink.
    """
    named = [sink.name, *([sink.of] if isinstance(sink, PairedSink) else [])]
    return next((record.participants[name].frame for name in named if name in record.participants), BATCH)


def prepare_again(start: Start, name: str, given: Given) -> Committable:
    """Prepare the decided rows of one sink again.  Raise ``PrepareRefused`` if their number is not the decided one."""
    decided, epoch = start.decided.participants[name].committable, given.epoch(name)
    assert epoch.copy is not None, "without a copy Spark's replay is evaluated instead"
    with start.publisher.step(Step.PREPARE, name, epoch.number) as told:
        vote = prepare_from(start, epoch.copy, start.sinks[name], epoch.at(decided.position))
        told.rows = vote.rows
    if vote.rows != decided.rows:
        raise PrepareRefused(
            f"voted for {vote.rows} rows, but the decision on the same copy counts {decided.rows}",
            sink=name,
            epoch=epoch.number,
            state=f"copy {epoch.copy.root}, decided by {start.decided.decision.actor}",
            help="give the sink the where= and the target that it had when the epoch was decided; then restart",
        )
    return vote
