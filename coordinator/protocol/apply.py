"""Apply: idempotent mode gives the epoch to every sink without a decision.  All digests of the rows must be equal."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.checkpoints.log import Apply, SinkPosition
from epochal.coordinator.model.epoch import Committable, Decision, Digest, Epoch
from epochal.coordinator.model.errors import NonDeterministicReplay, PrepareRefused
from epochal.coordinator.model.events import Step
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.appends import append
from epochal.coordinator.protocol.cleanup import abort_quietly
from epochal.coordinator.protocol.commit import show
from epochal.coordinator.protocol.frames import BATCH, Copies, Given
from epochal.coordinator.protocol.pairs import judged_as_before
from epochal.coordinator.protocol.prepare import ask_vote
from epochal.coordinator.protocol.start import Start
from epochal.sinks.protocol import Applied, ApplySink, CommitOutcome, MicroBatch


def apply(start: Start, batch: MicroBatch, again: bool) -> dict[str, CommitOutcome]:
    """Give the epoch to every sink that does not show it.  Each sink writes rows and marker in one atomic write.

    Before the first write, all digests that are known by then must be equal.
    """
    begin(start, batch, again)
    votes = votes_that_agree(start, batch)
    outcomes = apply_where_nothing_is_held(start, batch, votes)
    errors = show(start, list(votes.values()), outcomes)
    if errors:
        start.in_doubt(list(errors.values()))
    hit(Point.AFTER_COMMIT, epoch=batch.ask.epoch)
    return outcomes


def begin(start: Start, batch: MicroBatch, again: bool) -> None:
    """Append an ``Apply`` record before any sink is written, so that the log knows every marker of the epoch."""
    ask = batch.ask
    decision = Decision(start.query.query_id, ask.epoch, start.me, ask.fingerprint)
    shown = {name: again and start.shown.get(name, False) for name in start.sinks}
    epoch = Epoch(decision, 0, ask.offsets, ask.watermark, digest=True)
    try:
        judgements = judged_as_before(start, as_it_is(start, epoch, batch), [n for n in shown if not shown[n]])
    except PrepareRefused as error:
        if not any(shown.values()):
            raise
        start.in_doubt([error])
    record = Apply(
        decision=decision,
        participants={name: SinkPosition(start.identities[name], start.place_in(name, shown[name])) for name in shown},
        offsets=ask.offsets,
        watermark=ask.watermark,
        supersedes=start.current.decision.id if again else None,
        done_through=judge.done_after(start.history, start.shown),
        judgements=judgements,
    )
    hit(Point.BEFORE_APPLY, epoch=ask.epoch)
    append(start, start.own_position + 1, record)
    start.shown = shown
    start.publisher.decided(start.pending)
    hit(Point.AFTER_APPLY, epoch=ask.epoch)


def as_it_is(start: Start, epoch: Epoch, batch: MicroBatch) -> Given:
    """Give every sink the micro-batch itself: without a copy there are no frames."""
    return Given(epoch, Copies(), dict.fromkeys(start.sinks, BATCH), lambda _: batch.rows)


def votes_that_agree(start: Start, batch: MicroBatch) -> dict[str, Committable]:
    """Return the votes of the sinks that do not show the epoch and can prepare rows without showing them.

    This makes nothing visible.
    The sinks prepare one after another: each evaluates the micro-batch, and two evaluations at the same time would
    both change its operator state.
    """
    epoch = start.epoch_to_apply
    hit(Point.BEFORE_PREPARE, epoch=epoch.number)
    try:
        behind = [sink for sink in map(start.sinks.__getitem__, start.pending) if not isinstance(sink, ApplySink)]
        given = as_it_is(start, epoch, batch)
        votes = {sink.name: ask_vote(start, sink, given) for sink in behind}
        agree(start, votes)
    except Exception:
        abort_quietly(start)
        raise
    hit(Point.AFTER_PREPARE, epoch=epoch.number)
    return votes


def apply_where_nothing_is_held(
    start: Start, batch: MicroBatch, votes: Mapping[str, Committable]
) -> dict[str, CommitOutcome]:
    """Give the epoch, one sink after another, to the sinks that cannot prepare rows without showing them.

    Sinks that show the epoch already are left out.
    The digest of each sink's rows is compared with all digests that are known by then.
    """
    outcomes: dict[str, CommitOutcome] = {}
    behind = [sink for sink in map(start.sinks.__getitem__, start.pending) if isinstance(sink, ApplySink)]
    try:
        for sink in behind:
            applied = apply_to(start, sink, batch, agree(start, votes))
            outcomes[sink.name] = applied.outcome
            start.mark_shown(sink.name, applied.digest)
        agree(start, votes)
    except (NonDeterministicReplay, PrepareRefused):  # rows that other sinks have prepared are not visible yet
        abort_quietly(start)
        raise
    return outcomes


def apply_to(start: Start, sink: ApplySink, batch: MicroBatch, agreed: Digest | None) -> Applied:
    """Apply in one sink.  After an unknown outcome the call is repeated, because the sink reads its marker first."""
    epoch = start.epoch_to_apply.at(start.current.position_of(sink.name))
    hit(Point.BEFORE_SINK_COMMIT, sink.name, epoch.number)
    try:
        with start.publisher.step(Step.APPLY, sink.name, epoch.number) as told:
            applied = start.patiently(lambda: sink.apply(epoch, batch.rows, start.me, agreed))
            told.rows = applied.digest.rows if applied.outcome is CommitOutcome.COMMITTED else 0
    except (NonDeterministicReplay, PrepareRefused):
        raise
    except Exception as error:
        start.in_doubt([error])
    hit(Point.AFTER_SINK_COMMIT, sink.name, epoch.number)
    return applied


def agree(start: Start, votes: Mapping[str, Committable]) -> Digest | None:
    """Return the common digest of all evaluations so far: those of the votes and of the sinks that show the epoch.

    Return None if there is no evaluation yet.  Raise an error if two digests differ or one is missing.
    """
    shown = [name for name, shown in start.shown.items() if shown]
    digests = {name: vote.digest for name, vote in votes.items()}
    digests |= {name: start.digest_in(name) for name in shown if start.history.is_compared(name, start.markers[name])}
    refusal = judge.disagreement(start.current.epoch, digests, shown)
    if refusal is not None:
        raise refusal
    return next(iter(digests.values()), None)
