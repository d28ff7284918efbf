"""The order of the protocol.  One instance is one start: one (query id, run id), one actor.

Read it beside the picture in README: the methods stand in the order of the phases.

::

    start ─> look ─> fence ─> look again ─> settle ─┐                      once per run id
                                                    v
    epoch ─> identify ─> prepare ─> decide ─> commit ─> return             once per micro-batch
                    └──> apply ─────────────────────────┘                  the same, in idempotent mode

Free of Spark and of any server: rows are opaque, sinks, log and durable copy are protocols.  What is
decided is judged in ``judge.py``; this file only acts, and tells ``_telling`` what has become true.
Past the decision there is no way back: an error then is ``CommitInDoubt``, and the next start finishes
the epoch.

The mode is the epoch's, known by its record in the log: whatever mode a start is in, it finishes an epoch
in the mode that began it, and begins the next one in its own.

Roots: presumed abort (Mohan, Lindsay), Flink's two-phase-commit sink, MillWheel's strong productions.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from epochal.checkpoints.log import (
    Apply,
    Commit,
    Entry,
    EpochLog,
    EpochRecord,
    Fence,
    LogPosition,
    Operator,
    Participant,
    Record,
    SinkPosition,
    encode,
)
from epochal.coordinator.model.epoch import (
    IDEMPOTENT,
    NEXT,
    TWO_PHASE,
    Actor,
    Committable,
    Copy,
    Decision,
    Digest,
    Epoch,
    EpochNumber,
    EpochRequest,
    Json,
    Marker,
    Phase,
    Position,
    Query,
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
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.events import EventPublisher, Step
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.actions import OperatorAction
from epochal.coordinator.protocol.judge import Case, History, Verdict
from epochal.coordinator.telemetry.records import record as as_record
from epochal.sinks.protocol import (
    Applied,
    ApplySink,
    CommitOutcome,
    FilteringSink,
    MarkedSink,
    MicroBatch,
    PairedSink,
    RedoSink,
    Rows,
    Sink,
    Stage,
    WatchingSink,
)

COMPACT_EVERY = 100
"""Records of the log that nobody needs any more, before it is compacted."""

_LOOKS = 2
"""A server that is down at start is named soon; in mid-epoch there is more patience."""

T = TypeVar("T")
Runner = Callable[[Sequence[Callable[[], T]]], list[T | Exception]]
"""Runs all tasks, waits for all, and returns a result or an exception for each, in order."""


def serial(tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """The runner for one thread; a failing task does not keep the others from running."""
    results: list[T | Exception] = []
    for task in tasks:
        try:
            results.append(task())
        except Exception as error:
            results.append(error)
    return results


@dataclass(frozen=True)
class Retry:
    """Bounded, jittered back-off for errors that are known to have had no effect, or can be asked.

    ``attempts``: how often a server is asked, the first time included.
    ``first``: seconds before the second attempt; each later pause is twice the one before, times 0.5 to 1.
    ``most``: seconds that no pause exceeds.
    ``sleep``: what waits; for tests.
    """

    attempts: int = 9
    first: float = 0.1
    most: float = 8.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise Misconfigured(f"Retry(attempts={self.attempts!r})", help="the first attempt counts: give at least 1")

    def pause(self, attempt: int) -> None:
        self.sleep(min(self.most, self.first * 2**attempt) * random.uniform(0.5, 1.0))


@dataclass(frozen=True)
class EpochReport:
    """What one call did.  ``rows``: of the micro-batch; ``written``: by each sink that this start asked for a vote.

    ``replayed``: visible already, nothing was written again.
    """

    epoch: EpochNumber
    rows: int
    replayed: bool
    seconds: Mapping[Phase, float]
    sinks: Mapping[str, CommitOutcome] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """Where a start stands.  ``shown``: the newest epoch each sink is known to show."""

    actor: Actor | None
    last_epoch: EpochNumber | None
    shown: Mapping[str, EpochNumber]
    in_doubt: Sequence[str]
    last_report: EpochReport | None


def wants_copy(sinks: Sequence[Sink]) -> bool:
    """One evaluation for several readers, rows that must outlive the decision, or one that leaves some out.

    Where a condition leaves out all of them by what it says, Spark does not run the micro-batch at all, and operator
    state would stay behind.
    """
    return len(sinks) > 1 or any(
        isinstance(sink, RedoSink) or (isinstance(sink, FilteringSink) and sink.leaves_rows_out) for sink in sinks
    )


class Coordinator:
    """Runs the epochs of one start over its sinks; ``mode`` is that of the epochs it begins.

    Errors: everything in ``errors.py``.  After any error the start is over: every later call
    raises that error again, so that a caught exception cannot let Spark pass an epoch by.
    """

    def __init__(
        self,
        *,
        query: Query,
        sinks: Sequence[Sink],
        log: EpochLog,
        mode: str = TWO_PHASE,
        stage: Stage | None = None,
        runner: Runner[object] = serial,
        retry: Retry | None = None,
        compact_every: int = COMPACT_EVERY,
        telling: EventPublisher | None = None,
    ) -> None:
        self._query = query
        self._sinks: dict[str, Sink] = {sink.name: sink for sink in sorted(sinks, key=lambda s: s.name)}
        self._log = log
        self._mode = mode
        self._stage = stage
        self._copies = wants_copy(sinks)
        self._watching = [sink for sink in sinks if isinstance(sink, WatchingSink)]
        self._copies_left = True  # perhaps, of a start whose sinks wanted them
        self._run_all = runner
        self._retry = retry or Retry()
        self._compact_every = compact_every
        self._telling = telling or EventPublisher(query, [as_record])
        self._history = History(())
        self._identities: dict[str, str] = {}
        self._markers: dict[str, Marker | None] = {}
        self._shown: dict[str, bool] = {}  # of the last epoch
        self._states: judge.States = {}
        self._act: OperatorAction | None = None  # what a person wants of this start
        self._actor: Actor | None = None
        self._own_position: LogPosition = -1  # of my own last record
        self._written: dict[str, int] = {}  # rows that each sink voted for in this call
        self._lost = False  # the last decided epoch must be evaluated again: lost, and no copy
        self._phase: Phase | None = None
        self._phase_began = 0.0
        self._seconds: dict[Phase, float] = {}
        self._failed: Exception | None = None
        self._running = threading.Lock()
        self._last_report: EpochReport | None = None
        if len(self._sinks) != len(sinks):
            raise Misconfigured(
                f"two sinks share a name: {sorted(s.name for s in sinks)}", help="give each sink its own name="
            )
        if self._stage is None and self._copies:
            raise Misconfigured("these sinks need a durable copy, and there is no stage", help="pass stage=")
        if mode == IDEMPOTENT:
            check_appliable(sinks)

    # --- the two entry points ------------------------------------------------------------------

    def run(self, batch: MicroBatch) -> EpochReport:
        """One micro-batch.  Returns only when every sink shows the epoch."""
        if not self._running.acquire(blocking=False):
            raise Misconfigured(
                "a second call came while the first is still running",
                epoch=batch.ask.epoch,
                state="nothing of the second call was written",
                help="call the pipeline in the batch function itself, and return only after it has returned",
            )
        try:
            return self._run(batch)
        finally:
            self._running.release()

    def _run(self, batch: MicroBatch) -> EpochReport:
        if self._failed is not None:
            raise self._failed
        try:
            self._seconds = {}
            self._written.clear()
            self._telling.epoch_began(batch.ask.epoch)
            if self._actor is None:
                self._start(batch.ask)
            return self._epoch(batch)
        except Exception as error:
            self._failed = error
            self._telling.failed(error, self._phase, self._pending)
            raise

    def act(self, ask: EpochRequest, act: OperatorAction, before_record: Callable[[], None] = lambda: None) -> Operator:
        """What a person decides, in the order of a start, and then one record.  Every error leaves it undecided.

        All is judged as if the record stood in the log.  ``ask``: what Spark will ask for next.  ``before_record`` is
        called once nothing older can move any more, and may refuse.
        """
        try:
            return self._acted(ask, act, before_record)
        except Exception as error:
            self._telling.failed(error, self._phase, self._pending)
            raise

    def _acted(self, ask: EpochRequest, act: OperatorAction, before_record: Callable[[], None]) -> Operator:
        self._act = act
        self._take_over(ask)
        self._enter(Phase.SETTLE)
        hit(Point.BEFORE_SETTLE)
        self._commit_decided()
        if self._lost:
            raise _lost_without_copy(self._current.epoch)
        self._mark(act.marks(self._found(ask)))
        before_record()
        record = replace(act.record(self._found(ask)), done_through=judge.done_after(self._history, self._shown))
        hit(Point.BEFORE_OPERATOR)
        self._append(self._own_position + 1, record)
        hit(Point.AFTER_OPERATOR)
        self._abort_quietly()
        self._clean()
        return record

    def assume(self, ask: EpochRequest, act: OperatorAction) -> Operator:
        """The record that ``act`` would come to, if all stays as it is; writes nothing."""
        self._act = act
        self._look(ask)
        if self._history.last is not None and isinstance(self._current, Commit):
            for name in self._pending:
                self._is_shown(name, None)
        found = self._found(ask)
        record, marks = act.record(found), {name: m for name, m in act.marks(found).items() if m is not None}
        marked = {name: replace(record.stands[name], markers=(marker,)) for name, marker in marks.items()}
        return replace(record, stands={**record.stands, **marked})

    def check(self, ask: EpochRequest) -> None:
        """Look and judge as a start would; writes nothing."""
        self._look(ask)

    def status(self) -> Status:
        """What this start knows; asks nobody."""
        last = self._history.last
        return Status(
            actor=self._actor,
            last_epoch=last.number if last is not None else None,
            shown=judge.done_after(self._history, self._shown),
            in_doubt=sorted(name for name, shown in self._shown.items() if not shown),
            last_report=self._last_report,
        )

    # --- start: look, fence, look again, settle -------------------------------------------------

    def _start(self, ask: EpochRequest) -> None:
        self._take_over(ask)
        self._enter(Phase.SETTLE)
        self._settle()

    def _take_over(self, ask: EpochRequest) -> None:
        self._enter(Phase.LOOK)
        generation = self._look(ask)
        self._enter(Phase.FENCE)
        self._fence(ask, Actor.new(generation))
        self._enter(Phase.LOOK_AGAIN)
        self._look_again(ask)

    def _look(self, ask: EpochRequest) -> int:
        """Read log and sinks, judge; the next generation.  A refusal on a log that grew is made anew."""
        hit(Point.BEFORE_LOOK)
        for _ in range(self._retry.attempts):
            case = self._read(ask)
            verdict = self._judge(judge.LOOK, case)
            if verdict.refusal is None or tuple(self._log.read()[-1:]) == case.history.entries[-1:]:
                break
        verdict.raise_if_refused()
        self._check_appliable(case.history, verdict.shown)
        self._take(case, verdict.shown)
        fences = [f.actor for f in case.history.fences] + [s.fence for s in case.states.values() if s.fence]
        hit(Point.AFTER_LOOK)
        return 1 + max((actor.generation for actor in fences), default=0)

    def _check_appliable(self, history: History, shown: Mapping[str, bool]) -> None:
        """The sinks that this start may have to give an epoch of which there is no copy, as they were found now."""
        if self._mode == IDEMPOTENT:
            check_appliable(self._sinks.values())
        elif history.last is not None and isinstance(history.last.current, Apply) and any(shown.values()):
            try:
                check_appliable(sink for name, sink in self._sinks.items() if not shown.get(name, False))
            except Misconfigured as error:
                raise Misconfigured(
                    f"an epoch was begun in idempotent mode and has to be finished in it: {error.what}",
                    sink=error.sink,
                    epoch=history.last.number,
                    state=error.state,
                    help="start once with this sink as it was then; change it when the epoch is through",
                ) from error

    def _judge(self, rules: Sequence[judge.Rule], case: Case) -> Verdict:
        """A person's word as if it stood in the log; which sinks show the last epoch is asked of the log as it is."""
        if self._act is None:
            return judge.judge(rules, case)
        if case.by is not None:
            judge.judge(judge.MINE, case).raise_if_refused()
        verdict = judge.judge(judge.OPERATE, judge.assuming(case, self._act.record(case)))
        if case.by is None and verdict.refusal is None:
            self._check_marks(self._act.marks(case))
        shown = judge.judge((), case).shown
        return Verdict(verdict.refusal, {name: shown[name] for name in shown if name not in self._act.without})

    def _read(self, ask: EpochRequest, by: Actor | None = None) -> Case:
        """The log first, then the sinks: a sink is never older than the log it is judged by."""
        history = History.of(self._log.read())
        states = self._each(lambda sink: self._patiently(lambda: sink.look(self._query, by=by), attempts=_LOOKS))
        return Case(history, states, ask, by)

    def _take(self, case: Case, shown: Mapping[str, bool]) -> None:
        self._history = case.history
        self._shown = dict(shown)
        self._states = case.states
        self._identities = {name: state.identity for name, state in case.states.items()}
        self._markers = {name: state.marker for name, state in case.states.items()}

    def _fence(self, ask: EpochRequest, actor: Actor) -> None:
        """The log first, then the sinks in the order of their names; all by compare-and-set."""
        if self._history.empty and ask.epoch > 0:
            self._telling.log_began()
        hit(Point.BEFORE_FENCE)
        done = judge.done_after(self._history, self._shown)
        # The fence of a person's act keeps the old place: only the record behind it moves the checkpoint.
        query = replace(self._query, checkpoint=self._history.place or self._query.checkpoint)
        self._append(self._history.next_position, Fence(actor, query, ask.epoch, self._mode, done))
        hit(Point.AFTER_FENCE_RECORD)
        for name, sink in self._sinks.items():
            hit(Point.BEFORE_SINK_FENCE, name)
            self._patiently(lambda sink=sink: sink.fence(self._query, actor))  # type: ignore[misc]
            hit(Point.AFTER_SINK_FENCE, name)
        self._actor = actor
        self._telling.started(actor, self._mode, list(self._sinks))
        hit(Point.AFTER_FENCE)

    def _look_again(self, ask: EpochRequest) -> None:
        """The same judgement, now final: nothing older can move any more."""
        case = self._read(ask, self._me)
        verdict = self._judge(judge.LOOK_AGAIN, case)
        verdict.raise_if_refused()
        self._take(case, verdict.shown)
        hit(Point.AFTER_LOOK_AGAIN)

    def _settle(self) -> None:
        """Decided and not shown: commit.  Not decided: abort.  Then drop what dead starts left.

        An epoch that was begun and not decided waits for Spark's replay.
        """
        hit(Point.BEFORE_SETTLE)
        self._commit_decided()
        if not self._lost:
            self._abort_all()
        self._clean()
        hit(Point.AFTER_SETTLE)

    def _commit_decided(self) -> None:
        if self._history.last is not None and isinstance(self._current, Commit):
            self._commit()

    def _found(self, ask: EpochRequest) -> Case:
        """What a person's word is about, with what this start has done since it looked."""
        states = {name: replace(state, marker=self._markers[name]) for name, state in self._states.items()}
        return Case(self._history, states, ask, self._actor)

    def _check_marks(self, markers: Mapping[str, Marker | None]) -> None:
        """What cannot be written is refused while nobody has been disturbed."""
        for name in markers:
            sink = self._sinks[name]
            if not isinstance(sink, MarkedSink):
                raise Misconfigured(
                    "the sink's marker cannot be written by hand",
                    sink=name,
                    state=f"{type(sink).__name__} has no method mark",
                    help="restore the sink, or give it that method (epochal.sinks.protocol.MarkedSink)",
                )
            sink.check_mark(self._query)

    def _mark(self, markers: Mapping[str, Marker | None]) -> None:
        """A person's word in the place of a write that is not known; under the fence, like any other."""
        for name, marker in markers.items():
            sink = self._sinks[name]
            assert isinstance(sink, MarkedSink), "seen before anything was fenced"
            hit(Point.BEFORE_MARK, name)
            self._patiently(lambda sink=sink, marker=marker: sink.mark(self._query, marker, self._me))  # type: ignore[misc]
            hit(Point.AFTER_MARK, name)
            self._markers[name] = marker or self._markers[name]

    # --- epoch: identify, prepare, decide, commit or apply, return ------------------------------

    def _epoch(self, batch: MicroBatch) -> EpochReport:
        ask = batch.ask
        self._enter(Phase.IDENTIFY)
        again = self._identify(ask)
        hit(Point.AFTER_IDENTIFY, epoch=ask.epoch)
        if again and not self._lost and all(self._shown.values()):
            self._enter(Phase.RETURN)
            batch.discard()
            return self._return(ask.epoch, replayed=True, outcomes={})
        if self._is_applied(again):
            self._enter(Phase.APPLY)
            outcomes = self._apply(batch, again)
        else:
            self._enter(Phase.PREPARE)
            record = self._prepare(batch, again)
            self._enter(Phase.DECIDE)
            self._decide(record)
            self._enter(Phase.COMMIT)
            outcomes = self._commit()
        self._clean()
        self._enter(Phase.RETURN)
        return self._return(ask.epoch, replayed=False, outcomes=outcomes)

    def _identify(self, ask: EpochRequest) -> bool:
        """Whether this epoch is in the log already; anything but the last or the next is refused."""
        judge.judge(judge.IDENTIFY, Case(self._history, {}, ask)).raise_if_refused()
        last = self._history.last
        again = last is not None and ask.epoch == last.number
        if self._lost and not again:
            assert last is not None
            raise CommitInDoubt(
                f"epoch {last.number} is decided, its prepared rows are lost and nothing of it is visible;"
                f" Spark is already at epoch {ask.epoch}, so it cannot be evaluated again",
                epoch=last.number,
                state=f"sinks {sorted(self._sinks)}, decided by {last.current.actor}",
                help=f"stop the query and delete commits/{last.number} and offsets/{ask.epoch} in the checkpoint:"
                f" Spark then plans epoch {ask.epoch} anew after it has replayed epoch {last.number}; then restart",
            )
        return again

    def _is_applied(self, again: bool) -> bool:
        """The mode is the epoch's, once it is decided or some sink shows it; else it is this start's."""
        if again and (self._lost or any(self._shown.values())):
            return isinstance(self._current, Apply)
        return self._mode == IDEMPOTENT

    def _prepare(self, batch: MicroBatch, again: bool) -> Commit:
        """Evaluate once, let every sink vote; a no, or any error, aborts the epoch everywhere."""
        ask = batch.ask
        redo = self._decided.decision.redo + 1 if self._lost else 0
        decision = Decision(self._query.query_id, ask.epoch, self._me, ask.fingerprint, redo)
        hit(Point.BEFORE_PREPARE, epoch=ask.epoch)
        try:
            epoch = Epoch(decision, 0, ask.offsets, ask.watermark)
            epoch = replace(epoch, copy=self._copied(epoch, batch.rows))
            hit(Point.AFTER_COPY, epoch=ask.epoch)
            judgements = self._judgements(epoch, lambda: batch.rows)
            votes = self._each(lambda sink: self._vote(sink, epoch, batch.rows))
        except Exception:
            self._abort_quietly()
            raise
        hit(Point.AFTER_PREPARE, epoch=ask.epoch)
        return Commit(
            decision=decision,
            actor=self._me,
            participants={name: Participant(self._identities[name], vote) for name, vote in votes.items()},
            offsets=ask.offsets,
            watermark=ask.watermark,
            copy=epoch.copy,
            supersedes=self._current.decision.id if again else None,
            done_through=judge.done_after(self._history, self._shown),
            judgements=judgements,
        )

    def _copied(self, epoch: Epoch, rows: Rows) -> Copy | None:
        """The one evaluation of the epoch, where the sinks want it kept."""
        if self._stage is None or not self._copies:
            return None
        with self._telling.step(Step.COPY):
            for sink in self._watching:
                rows = sink.watch(epoch, rows)
            return self._stage.write(epoch.number, self._me, rows)

    def _vote(self, sink: Sink, epoch: Epoch, rows: Rows) -> Committable:
        epoch = epoch.at(self._place_in(sink.name))
        hit(Point.BEFORE_SINK_PREPARE, sink.name, epoch.number)
        with self._telling.step(Step.PREPARE, sink.name, epoch.number) as told:
            if epoch.copy is not None:
                vote = self._prepare_from(epoch.copy, sink, epoch)
            elif epoch.digest:  # a second evaluation is as good as the first
                vote = self._patiently(lambda: sink.prepare(epoch, rows, self._me))
            else:
                vote = sink.prepare(epoch, rows, self._me)
            told.rows = vote.rows
        hit(Point.AFTER_SINK_PREPARE, sink.name, epoch.number)
        self._written[sink.name] = vote.rows
        return vote

    def _prepare_from(self, copy: Copy, sink: Sink, epoch: Epoch) -> Committable:
        """From a copy a vote can be asked again: the rows do not change."""
        stage = self._stage
        assert stage is not None, "only a stage makes copies"
        vote = self._patiently(lambda: sink.prepare(epoch, stage.read(copy), self._me))
        if vote.rows + vote.left_out != copy.rows:
            left_out = f" and left {vote.left_out} out" if vote.left_out else ""
            raise PrepareRefused(
                f"voted for {vote.rows} rows{left_out}, and the durable copy has {copy.rows}",
                sink=sink.name,
                epoch=epoch.number,
                state=f"copy {copy.root}, nothing was decided",
                help="restart the query; if it happens again, the sink or the file system loses rows",
            )
        return vote

    def _decide(self, record: Commit) -> None:
        """One append: *the* commit point."""
        hit(Point.BEFORE_DECIDE, epoch=record.epoch)
        try:
            self._append(self._own_position + 1, record)
        except Fenced:  # another record holds the position, so this one never will: definitely undecided
            self._abort_quietly()
            raise
        self._shown = dict.fromkeys(record.participants, False)
        self._lost = False
        self._telling.decided(self._pending)
        hit(Point.AFTER_DECIDE, epoch=record.epoch)

    def _commit(self) -> dict[str, CommitOutcome]:
        """Every sink shows the last epoch, which is decided, or an error that says which do not."""
        outcomes: dict[str, CommitOutcome] = {}
        for _ in range(self._retry.attempts):
            lost = self._commit_pending(outcomes)
            if not lost:
                break
            if self._decided.copy is None and self._settling:
                self._lost = True  # Spark's replay of the epoch will be evaluated and decided again
                return outcomes
            with self._telling.step(Step.REDO, epoch=self._current.epoch):
                self._redo(lost)
        else:
            self._in_doubt(
                [PreparedLost("prepared rows were lost again and again", help="see what deletes them in the sink")]
            )
        hit(Point.AFTER_COMMIT, epoch=self._current.epoch)
        return outcomes

    def _commit_pending(self, outcomes: dict[str, CommitOutcome]) -> list[str]:
        """Commit where the last epoch is not shown; the sinks that provably lost it."""
        participants = self._decided.participants
        errors = self._show([participants[name].committable for name in self._pending], outcomes)
        lost = {name: error for name, error in errors.items() if isinstance(error, PreparedLost)}
        if len(lost) < len(errors):
            self._in_doubt([error for name, error in errors.items() if name not in lost])
        if lost and self._decided.copy is None and not self._settling:
            self._in_doubt(list(lost.values()))
        return list(lost)

    def _show(self, committables: Sequence[Committable], outcomes: dict[str, CommitOutcome]) -> dict[str, Exception]:
        """Commit these, all of them; what went wrong, by sink."""
        results = self._run_all([lambda c=c: self._commit_sink(c) for c in committables])  # type: ignore[misc]
        errors: dict[str, Exception] = {}
        for committable, result in zip(committables, results, strict=True):
            if isinstance(result, CommitOutcome):
                outcomes[committable.sink] = result
                self._is_shown(committable.sink, committable.digest)
            else:
                failed = result if isinstance(result, Exception) else _no_answer(committable.sink, result)
                errors[committable.sink] = failed
        return errors

    def _commit_sink(self, committable: Committable) -> CommitOutcome:
        """Idempotent, so an unknown outcome is answered by asking again: the sink reads its marker first."""
        name, epoch = committable.sink, self._current.epoch
        hit(Point.BEFORE_SINK_COMMIT, name, epoch)
        with self._telling.step(Step.COMMIT, name, epoch) as told:
            outcome = self._patiently(lambda: self._sinks[name].commit(committable, self._me))
            told.rows = committable.rows if outcome is CommitOutcome.COMMITTED else 0
        hit(Point.AFTER_SINK_COMMIT, name, epoch)
        return outcome

    def _is_shown(self, name: str, digest: Digest | None) -> None:
        record = self._current
        self._shown[name] = True
        self._markers[name] = Marker(record.position_of(name), record.decision_of(name).id, digest)

    def _redo(self, lost: Sequence[str]) -> None:
        """Prepare lost work anew from the copy and supersede the decision, for these sinks only."""
        current, stage = self._decided, self._stage
        copy = current.copy
        assert copy is not None, "without a copy Spark's replay is evaluated instead"
        assert stage is not None, "a pipeline always has one"
        hit(Point.BEFORE_REDO, epoch=current.epoch)
        decision = replace(current.decision, actor=self._me, redo=current.decision.redo + 1)
        epoch = Epoch(decision, 0, current.offsets, current.watermark, copy)
        redone = dict(current.participants)
        try:
            judgements = self._judged_as_before(epoch, lambda: stage.read(copy), lost)
            for name in lost:
                redone[name] = replace(redone[name], committable=self._prepare_again(name, epoch, copy))
        except Exception as error:
            self._in_doubt([error])
        record = replace(
            current,
            decision=decision,
            actor=self._me,
            participants=redone,
            supersedes=current.decision.id,
            done_through=judge.done_after(self._history, self._shown),
            judgements=judgements,
        )
        self._append(self._own_position + 1, record)
        hit(Point.AFTER_REDO_DECIDED, epoch=current.epoch)

    def _prepare_again(self, name: str, epoch: Epoch, copy: Copy) -> Committable:
        """The same rows as were decided, so far as their number tells."""
        decided = self._decided.participants[name].committable
        with self._telling.step(Step.PREPARE, name, epoch.number) as told:
            vote = self._prepare_from(copy, self._sinks[name], epoch.at(decided.position))
            told.rows = vote.rows
        if vote.rows != decided.rows:
            raise PrepareRefused(
                f"voted for {vote.rows} rows of a copy of which {decided.rows} were decided",
                sink=name,
                epoch=epoch.number,
                state=f"copy {copy.root}, decided by {self._decided.decision.actor}",
                help="start the query as it was when the epoch was decided: where= and what the sink writes to",
            )
        return vote

    # --- bad_rows= ------------------------------------------------------------------------------

    def _judgements(self, epoch: Epoch, rows: Callable[[], Rows]) -> dict[str, Json]:
        """What tells the rows of a pair of sinks apart, by the name of the one that gets the bad ones."""
        return {
            sink.name: self._patiently(lambda sink=sink: sink.judgement(epoch, rows()))  # type: ignore[misc]
            for sink in self._sinks.values()
            if isinstance(sink, PairedSink)
        }

    def _judged_as_before(self, epoch: Epoch, rows: Callable[[], Rows], given: Collection[str]) -> dict[str, Json]:
        """The same, for an epoch that the sinks ``given`` are to have once more: where the other one of a pair keeps
        its rows, nothing may have changed, or a row would be in both, or in neither."""
        now = self._judgements(epoch, rows)
        kept = [name for name in self._sinks if name not in given]
        if kept and (gone := sorted(self._current.judgements.keys() - now.keys())):
            raise PrepareRefused(
                f"{gone} got the rows that another sink could not hold, and now gets all, while {kept} keep their rows",
                sink=gone[0],
                epoch=epoch.number,
                state=f"was {self._current.judgements[gone[0]]}",
                help="give the other sink its bad_rows= again until this epoch is through",
            )
        for sink in self._sinks.values():
            if not isinstance(sink, PairedSink) or (sink.name in given) == (sink.of in given):
                continue
            before = self._current.judgements.get(sink.name)
            if now[sink.name] != before:
                raise PrepareRefused(
                    f"what sink {sink.of!r} cannot hold is no longer what it was, and one of the two keeps its rows",
                    sink=sink.name,
                    epoch=epoch.number,
                    state=f"was {before}, is {now[sink.name]}",
                    help="set back what has changed (the topic's settings, select=, where= or another argument of the"
                    " sink, the session's settings) until this epoch is through",
                )
        return now

    # --- idempotent mode: apply -----------------------------------------------------------------

    def _apply(self, batch: MicroBatch, again: bool) -> dict[str, CommitOutcome]:
        """Every sink that does not show the epoch is given it: rows and marker in one atomic write each.

        The digests of all evaluations agree before the first of these writes, as far as they can be known then.
        """
        self._begin(batch, again)
        votes = self._votes_that_agree(batch)
        outcomes = self._apply_where_nothing_is_held(batch, votes)
        errors = self._show(list(votes.values()), outcomes)
        if errors:
            self._in_doubt(list(errors.values()))
        hit(Point.AFTER_COMMIT, epoch=batch.ask.epoch)
        return outcomes

    def _begin(self, batch: MicroBatch, again: bool) -> None:
        """One record before the first sink, so that every marker of the epoch will be known."""
        ask = batch.ask
        decision = Decision(self._query.query_id, ask.epoch, self._me, ask.fingerprint)
        shown = {name: again and self._shown.get(name, False) for name in self._sinks}
        epoch = Epoch(decision, 0, ask.offsets, ask.watermark, digest=True)
        try:
            judgements = self._judged_as_before(epoch, lambda: batch.rows, [name for name in shown if not shown[name]])
        except PrepareRefused as error:
            if not any(shown.values()):
                raise
            self._in_doubt([error])
        record = Apply(
            decision=decision,
            participants={
                name: SinkPosition(self._identities[name], self._place_in(name, shown[name])) for name in shown
            },
            offsets=ask.offsets,
            watermark=ask.watermark,
            supersedes=self._current.decision.id if again else None,
            done_through=judge.done_after(self._history, self._shown),
            judgements=judgements,
        )
        hit(Point.BEFORE_APPLY, epoch=ask.epoch)
        self._append(self._own_position + 1, record)
        self._shown = shown
        self._telling.decided(self._pending)
        hit(Point.AFTER_APPLY, epoch=ask.epoch)

    def _votes_that_agree(self, batch: MicroBatch) -> dict[str, Committable]:
        """Of the sinks that are behind and can hold rows invisible; nothing is visible through it.

        One after another: each evaluates the micro-batch, and two evaluations at once would meet in its state.
        """
        epoch = self._epoch_to_apply
        hit(Point.BEFORE_PREPARE, epoch=epoch.number)
        try:
            behind = [sink for sink in map(self._sinks.__getitem__, self._pending) if not isinstance(sink, ApplySink)]
            votes = {sink.name: self._vote(sink, epoch, batch.rows) for sink in behind}
            self._agree(votes)
        except Exception:
            self._abort_quietly()
            raise
        hit(Point.AFTER_PREPARE, epoch=epoch.number)
        return votes

    def _apply_where_nothing_is_held(
        self, batch: MicroBatch, votes: Mapping[str, Committable]
    ) -> dict[str, CommitOutcome]:
        """The other sinks that are behind, one after another, each held against all digests that are known by then."""
        outcomes: dict[str, CommitOutcome] = {}
        behind = [sink for sink in map(self._sinks.__getitem__, self._pending) if isinstance(sink, ApplySink)]
        try:
            for sink in behind:
                applied = self._apply_to(sink, batch, self._agree(votes))
                outcomes[sink.name] = applied.outcome
                self._is_shown(sink.name, applied.digest)
            self._agree(votes)
        except (NonDeterministicReplay, PrepareRefused):  # and where rows are held, none of them is visible
            self._abort_quietly()
            raise
        return outcomes

    def _apply_to(self, sink: ApplySink, batch: MicroBatch, agreed: Digest | None) -> Applied:
        """Idempotent, so an unknown outcome is answered by asking again: the sink reads its marker first."""
        epoch = self._epoch_to_apply.at(self._current.position_of(sink.name))
        hit(Point.BEFORE_SINK_COMMIT, sink.name, epoch.number)
        try:
            with self._telling.step(Step.APPLY, sink.name, epoch.number) as told:
                applied = self._patiently(lambda: sink.apply(epoch, batch.rows, self._me, agreed))
                told.rows = applied.digest.rows if applied.outcome is CommitOutcome.COMMITTED else 0
        except (NonDeterministicReplay, PrepareRefused):
            raise
        except Exception as error:
            self._in_doubt([error])
        hit(Point.AFTER_SINK_COMMIT, sink.name, epoch.number)
        return applied

    @property
    def _epoch_to_apply(self) -> Epoch:
        record = self._current
        return Epoch(record.decision, 0, record.offsets, record.watermark, digest=True)

    def _agree(self, votes: Mapping[str, Committable]) -> Digest | None:
        """The one digest of all evaluations so far: of the votes, and of the sinks that show the epoch."""
        shown = [name for name, shown in self._shown.items() if shown]
        digests = {name: vote.digest for name, vote in votes.items()}
        digests |= {
            name: self._digest_in(name) for name in shown if self._history.is_compared(name, self._markers[name])
        }
        refusal = judge.disagreement(self._current.epoch, digests, shown)
        if refusal is not None:
            raise refusal
        return next(iter(digests.values()), None)

    def _digest_in(self, sink: str) -> Digest | None:
        marker = self._markers[sink]
        return marker.digest if marker is not None else None

    # --- return ---------------------------------------------------------------------------------

    def _return(self, epoch: EpochNumber, *, replayed: bool, outcomes: dict[str, CommitOutcome]) -> EpochReport:
        if not all(self._shown.values()):  # a normal return makes Spark write commits/N
            self._in_doubt([OutcomeUnknown("no sink has said why", help="report this as a bug of Epochal")])
        hit(Point.BEFORE_RETURN, epoch=epoch)
        self._close_phase()
        rows = self._rows_of(self._current)
        self._last_report = EpochReport(epoch, rows, replayed, dict(self._seconds), outcomes, dict(self._written))
        self._telling.committed(rows, replayed, self._last_report.seconds)
        return self._last_report

    def _rows_of(self, record: EpochRecord) -> int:
        if isinstance(record, Commit):
            votes = [participant.committable for participant in record.participants.values()]
            return max(vote.rows + vote.left_out for vote in votes)
        held = [self._digest_in(name) for name in record.participants if name in self._markers]
        return max((digest.rows for digest in held if digest), default=0)

    # --- appends --------------------------------------------------------------------------------

    def _append(self, position: LogPosition, record: Record) -> None:
        """The same append at the same position until it is answered; a lost race is ``Fenced``."""
        if not self._append_answered(position, record) and not self._is_mine(position, record):
            raise Fenced(
                f"position {position} of the epoch log holds another start's record",
                epoch=record.epoch,
                state=f"log {self._log.describe()}, own last position {self._own_position}",
                help="nothing to do if the other start is wanted; else stop it and restart this query",
            )
        self._own_position = position
        self._history = self._history.with_entry(Entry(position, record))

    def _append_answered(self, position: LogPosition, record: Record) -> bool:
        for attempt in range(self._retry.attempts):
            try:
                return self._log.append(position, record)
            except Exception as error:
                if isinstance(record, Fence) and isinstance(error, (Misconfigured, LogCorrupt)):
                    raise  # the log says what is wrong with it, and a start that ends after its Fence harms nobody
                self._telling.retrying(error)
                last_error = error
                self._retry.pause(attempt)
        raise self._unanswered(position, record, last_error)

    def _is_mine(self, position: LogPosition, record: Record) -> bool:
        """After "taken": whether the record there is mine, whole.  Below the floor is unknown."""
        entries = self._patiently(self._log.read, also=(OSError,))
        for entry in entries:
            if entry.position == position:
                return encode(entry.record) == encode(record)
        raise self._unanswered(position, record, None)

    def _unanswered(self, position: LogPosition, record: Record, error: Exception | None) -> EpochalError:
        what = f"whether the {record.kind} record at position {position} was written is not known"
        state = f"log {self._log.describe()}; last error: {error!r}"
        remedy = "make the log reachable again and restart: the next start reads what was decided and settles it"
        if isinstance(record, Commit):
            return CommitInDoubt(what, epoch=record.epoch, state=state, help=remedy)
        return OutcomeUnknown(what, epoch=record.epoch, state=state, help=remedy)

    # --- aborting and cleaning ------------------------------------------------------------------

    def _abort_all(self) -> None:
        """Nothing of it is decided: drop all that is prepared."""
        hit(Point.BEFORE_ABORT)
        self._each(lambda sink: self._patiently(lambda: sink.abort(self._query, self._me)))
        hit(Point.AFTER_ABORT)

    def _abort_quietly(self) -> None:
        """On the way out with another error; what is left the next start aborts (presumed abort)."""
        try:
            self._abort_all()
        except Exception as error:
            self._telling.postponed("could not drop prepared rows, the next start will", error)

    def _clean(self) -> None:
        """Drop copies that a durable record calls done, and what dead starts left; compact the log."""
        hit(Point.BEFORE_CLEAN)
        try:
            if self._stage is not None and (self._copies or self._copies_left):
                needed = self._history.needed_copies()
                self._stage.clean(self._me, needed)
                self._copies_left = bool(needed)
            self._compact()
        except Exception as error:  # nothing visible depends on it, and the next epoch tries again
            self._telling.postponed("could not clean up after epoch, will try again", error)

    def _compact(self) -> None:
        floor, kept = self._history.compaction()
        if sum(1 for e in self._history.entries if e.position < floor) - len(kept) < self._compact_every:
            return
        hit(Point.BEFORE_COMPACT)
        with self._telling.step(Step.COMPACT):
            self._log.compact(floor, kept)
        self._history = History((*kept, *(e for e in self._history.entries if e.position >= floor)))
        hit(Point.AFTER_COMPACT)

    # --- small helpers --------------------------------------------------------------------------

    @property
    def _me(self) -> Actor:
        assert self._actor is not None, "nothing acts before it has fenced"
        return self._actor

    @property
    def _current(self) -> EpochRecord:
        assert self._history.last is not None, "no epoch was decided or begun"
        return self._history.last.current

    @property
    def _decided(self) -> Commit:
        assert isinstance(self._current, Commit), "an epoch that was begun is not decided"
        return self._current

    @property
    def _pending(self) -> list[str]:
        """The sinks that do not show the last epoch."""
        return [name for name, shown in self._shown.items() if not shown]

    def _place_in(self, sink: str, shown: bool = False) -> Position:
        """Where an epoch that the sink shows stands in it, or the next one will."""
        marker = self._markers[sink]
        newest = marker.position if marker is not None else 0
        return newest if shown else newest + 1

    @property
    def _settling(self) -> bool:
        return self._phase is Phase.SETTLE

    def _each(self, verb: Callable[[Sink], T]) -> dict[str, T]:
        """``verb`` on every sink; all are waited for, then the gravest error is raised."""
        results = self._run_all([lambda sink=sink: verb(sink) for sink in self._sinks.values()])  # type: ignore[misc]
        errors = [r for r in results if isinstance(r, Exception)]
        if errors:
            raise _gravest(errors)
        return dict(zip(self._sinks, results, strict=True))  # type: ignore[arg-type]

    def _patiently(
        self, call: Callable[[], T], also: tuple[type[Exception], ...] = (), attempts: int | None = None
    ) -> T:
        """Call again, bounded, while the error is transient or its outcome can be asked."""
        transient: tuple[type[Exception], ...] = (SinkUnavailable, OutcomeUnknown, *also)
        for attempt in range((attempts or self._retry.attempts) - 1):
            try:
                return call()
            except transient as error:
                self._telling.retrying(error)
                self._retry.pause(attempt)
        return call()

    def _in_doubt(self, errors: Sequence[Exception]) -> NoReturn:
        """Past the decision, or the first write of what was begun: say what is done and what is pending, and stop."""
        gravest = _gravest(errors)
        if isinstance(gravest, _NOT_CURED_BY_RESTART):
            raise gravest
        done = sorted(name for name, shown in self._shown.items() if shown)
        pending = sorted(self._pending)
        stands = "decided" if isinstance(self._current, Commit) else "begun"
        raise CommitInDoubt(
            f"{stands}, and not yet visible in {', '.join(pending)}: {_what(gravest)}",
            epoch=self._current.epoch,
            state=f"visible in {done}, pending in {pending}, {stands} by {self._current.actor}",
            help=f"{_remedy(gravest)}; then restart the query: it will finish this epoch first (a sink that never will:"
            " docs/runbook.md)",
        ) from gravest

    def _enter(self, phase: Phase) -> None:
        assert self._phase is None or phase in NEXT[self._phase], f"{phase} does not follow {self._phase}"
        self._close_phase()
        self._phase, self._phase_began = phase, time.monotonic()
        self._telling.phase_began(phase)

    def _close_phase(self) -> None:
        if self._phase is not None and self._phase_began:
            self._seconds[self._phase] = time.monotonic() - self._phase_began
            self._telling.phase_ended(self._phase, self._seconds[self._phase])
        self._phase_began = 0.0


_NOT_CURED_BY_RESTART = (Fenced, MarkerLost, CheckpointMismatch)
"""Another owner, or a sink that is not what it was: the next start would be told the same."""
_GRAVITY = (*_NOT_CURED_BY_RESTART, CommitInDoubt)


def _gravest(errors: Sequence[Exception]) -> Exception:
    """The error that says most about whether to go on: a newer owner, then lost proof, then the rest."""
    for kind in _GRAVITY:
        for error in errors:
            if isinstance(error, kind):
                return error
    return next((e for e in errors if isinstance(e, EpochalError)), errors[0])


def check_appliable(sinks: Iterable[Sink]) -> None:
    """``Misconfigured`` names a sink that idempotent mode cannot give an epoch."""
    for sink in sinks:
        if isinstance(sink, RedoSink) and not isinstance(sink, ApplySink):
            raise Misconfigured(
                "the sink writes from a durable copy alone, and in idempotent mode there is none",
                sink=sink.name,
                state=f"{type(sink).__name__} has no method apply",
                help='leave mode="idempotent" out, or use a sink with apply (epochal.sinks.protocol.ApplySink)',
            )
        if isinstance(sink, ApplySink):
            sink.check_apply()


def _lost_without_copy(epoch: EpochNumber) -> CommitInDoubt:
    return CommitInDoubt(
        f"epoch {epoch} is decided, its prepared rows are lost and there is no copy of them",
        epoch=epoch,
        state="nothing of it is visible, and nothing was recorded",
        help="restart the query, which evaluates the epoch again; then say it again",
    )


def _no_answer(sink: str, result: object) -> EpochalError:
    return OutcomeUnknown(
        f"commit answered {result!r}, which is no CommitOutcome",
        sink=sink,
        state="whether this sink shows the epoch is not known",
        help="have the sink's commit return COMMITTED or ALREADY_COMMITTED",
    )


def _what(error: Exception) -> str:
    return error.what if isinstance(error, EpochalError) else f"{type(error).__name__}: {error}"


def _remedy(error: Exception) -> str:
    return error.help if isinstance(error, EpochalError) else "see the error above it"
