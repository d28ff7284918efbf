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

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from epochal.checkpoints.log import Apply, Commit, EpochLog, Fence, Operator
from epochal.coordinator.model.epoch import (
    IDEMPOTENT,
    TWO_PHASE,
    Actor,
    EpochNumber,
    EpochRequest,
    Marker,
    Phase,
    Query,
)
from epochal.coordinator.model.errors import CommitInDoubt, Fenced, Misconfigured, OutcomeUnknown
from epochal.coordinator.model.events import EventPublisher
from epochal.coordinator.model.failpoints import Point, hit
from epochal.coordinator.protocol import judge
from epochal.coordinator.protocol.actions import OperatorAction
from epochal.coordinator.protocol.appends import append
from epochal.coordinator.protocol.apply import apply
from epochal.coordinator.protocol.cleanup import abort_all, abort_quietly, clean
from epochal.coordinator.protocol.commit import commit
from epochal.coordinator.protocol.doubt import lost_without_copy
from epochal.coordinator.protocol.history import History
from epochal.coordinator.protocol.judge import Case, Verdict
from epochal.coordinator.protocol.prepare import prepare
from epochal.coordinator.protocol.report import EpochReport, Status
from epochal.coordinator.protocol.retry import Retry, Runner, serial
from epochal.coordinator.protocol.start import Start
from epochal.coordinator.telemetry.records import record as as_record
from epochal.sinks.protocol import (
    ApplySink,
    CommitOutcome,
    FilteringSink,
    MarkedSink,
    MicroBatch,
    RedoSink,
    Sink,
    Stage,
)

COMPACT_EVERY = 100
"""How many obsolete records the log may hold before it is compacted."""

_LOOKS = 2
"""Attempts while starting.  Fewer than during an epoch, so that a server that is down is reported quickly."""


def wants_copy(sinks: Sequence[Sink]) -> bool:
    """One evaluation for several readers, rows that must outlive the decision, or one that leaves some out.

    Where a condition leaves out all of them by what it says, Spark does not run the micro-batch at all, and operator
    state would stay behind.
    """
    return len(sinks) > 1 or any(
        isinstance(sink, RedoSink) or (isinstance(sink, FilteringSink) and sink.leaves_rows_out) for sink in sinks
    )


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


class Coordinator:
    """Runs the epochs of one start over its sinks.

    ``query``: app, query id, run id and checkpoint.  ``sinks``: each with a name of its own.  ``log``: where decisions
    are kept.  ``mode``: that of the epochs it begins.  ``stage``: where durable copies lie.  ``runner``: how
    several sinks are called at once.  ``compact_every``: how many obsolete records the log may hold before it is
    compacted.  ``telling``: who is told what becomes true.

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
        self._start = Start(
            query=query,
            sinks=sinks,
            log=log,
            mode=mode,
            stage=stage,
            copies=wants_copy(sinks),
            runner=runner,
            retry=retry or Retry(),
            compact_every=compact_every,
            publisher=telling or EventPublisher(query, [as_record]),
        )
        self._failed: Exception | None = None
        self._running = threading.Lock()
        if mode == IDEMPOTENT:
            check_appliable(sinks)

    # --- the entry points ----------------------------------------------------------------------

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
            self._start.seconds = {}
            self._start.written.clear()
            self._start.publisher.epoch_began(batch.ask.epoch)
            if self._start.actor is None:
                start_up(self._start, batch.ask)
            return run_epoch(self._start, batch)
        except Exception as error:
            self._failed = error
            self._start.publisher.failed(error, self._start.phase, self._start.pending)
            raise

    def act(self, ask: EpochRequest, act: OperatorAction, before_record: Callable[[], None] = lambda: None) -> Operator:
        """What a person decides, in the order of a start, and then one record.  Every error leaves it undecided.

        All is judged as if the record stood in the log.  ``ask``: what Spark will ask for next.  ``before_record`` is
        called once nothing older can move any more, and may refuse.
        """
        try:
            return act_on(self._start, ask, act, before_record)
        except Exception as error:
            self._start.publisher.failed(error, self._start.phase, self._start.pending)
            raise

    def assume(self, ask: EpochRequest, act: OperatorAction) -> Operator:
        """The record that ``act`` would come to, if all stays as it is; writes nothing."""
        self._start.action = act
        look(self._start, ask)
        if self._start.history.last is not None and isinstance(self._start.current, Commit):
            for name in self._start.pending:
                self._start.mark_shown(name, None)
        found = case_now(self._start, ask)
        record, marks = act.record(found), {name: m for name, m in act.marks(found).items() if m is not None}
        marked = {name: replace(record.stands[name], markers=(marker,)) for name, marker in marks.items()}
        return replace(record, stands={**record.stands, **marked})

    def check(self, ask: EpochRequest) -> None:
        """Look and judge as a start would; writes nothing."""
        look(self._start, ask)

    def status(self) -> Status:
        """What this start knows; asks nobody."""
        last = self._start.history.last
        return Status(
            actor=self._start.actor,
            last_epoch=last.number if last is not None else None,
            shown=judge.done_after(self._start.history, self._start.shown),
            in_doubt=sorted(name for name, shown in self._start.shown.items() if not shown),
            last_report=self._start.last_report,
        )


# --- start: look, fence, look again, settle ---------------------------------------------------------


def start_up(start: Start, ask: EpochRequest) -> None:
    take_over(start, ask)
    start.enter(Phase.SETTLE)
    settle(start)


def take_over(start: Start, ask: EpochRequest) -> None:
    start.enter(Phase.LOOK)
    generation = look(start, ask)
    start.enter(Phase.FENCE)
    fence(start, ask, Actor.new(generation))
    start.enter(Phase.LOOK_AGAIN)
    look_again(start, ask)


def look(start: Start, ask: EpochRequest) -> int:
    """Read log and sinks, judge; the next generation.  A refusal on a log that grew is made anew."""
    hit(Point.BEFORE_LOOK)
    for _ in range(start.retry.attempts):
        case = read_all(start, ask)
        verdict = verdict_of(start, judge.LOOK, case)
        if verdict.refusal is None or tuple(start.log.read()[-1:]) == case.history.entries[-1:]:
            break
    verdict.raise_if_refused()
    check_sinks_appliable(start, case.history, verdict.shown)
    remember(start, case, verdict.shown)
    fences = [f.actor for f in case.history.fences] + [s.fence for s in case.states.values() if s.fence]
    hit(Point.AFTER_LOOK)
    return 1 + max((actor.generation for actor in fences), default=0)


def check_sinks_appliable(start: Start, history: History, shown: Mapping[str, bool]) -> None:
    """The sinks that this start may have to give an epoch of which there is no copy, as they were found now."""
    if start.mode == IDEMPOTENT:
        check_appliable(start.sinks.values())
    elif history.last is not None and isinstance(history.last.current, Apply) and any(shown.values()):
        try:
            check_appliable(sink for name, sink in start.sinks.items() if not shown.get(name, False))
        except Misconfigured as error:
            raise Misconfigured(
                f"an epoch was begun in idempotent mode and has to be finished in it: {error.what}",
                sink=error.sink,
                epoch=history.last.number,
                state=error.state,
                help="start once with this sink as it was then; change it when the epoch is through",
            ) from error


def verdict_of(start: Start, rules: Sequence[judge.Rule], case: Case) -> Verdict:
    """A person's word as if it stood in the log; which sinks show the last epoch is asked of the log as it is."""
    if start.action is None:
        return judge.judge(rules, case)
    if case.by is not None:
        judge.judge(judge.MINE, case).raise_if_refused()
    verdict = judge.judge(judge.OPERATE, judge.assuming(case, start.action.record(case)))
    if case.by is None and verdict.refusal is None:
        check_marks(start, start.action.marks(case))
    shown = judge.judge((), case).shown
    return Verdict(verdict.refusal, {name: shown[name] for name in shown if name not in start.action.without})


def read_all(start: Start, ask: EpochRequest, by: Actor | None = None) -> Case:
    """The log first, then the sinks: a sink is never older than the log it is judged by."""
    history = History.of(start.log.read())
    states = start.each(lambda sink: start.patiently(lambda: sink.look(start.query, by=by), attempts=_LOOKS))
    return Case(history, states, ask, by)


def remember(start: Start, case: Case, shown: Mapping[str, bool]) -> None:
    start.history = case.history
    start.shown = dict(shown)
    start.states = case.states
    start.identities = {name: state.identity for name, state in case.states.items()}
    start.markers = {name: state.marker for name, state in case.states.items()}


def fence(start: Start, ask: EpochRequest, actor: Actor) -> None:
    """The log first, then the sinks in the order of their names; all by compare-and-set."""
    if start.history.empty and ask.epoch > 0:
        start.publisher.log_began()
    hit(Point.BEFORE_FENCE)
    done = judge.done_after(start.history, start.shown)
    # The fence of a person's act keeps the old place: only the record behind it moves the checkpoint.
    query = replace(start.query, checkpoint=start.history.place or start.query.checkpoint)
    append(start, start.history.next_position, Fence(actor, query, ask.epoch, start.mode, done))
    hit(Point.AFTER_FENCE_RECORD)
    for name, sink in start.sinks.items():
        hit(Point.BEFORE_SINK_FENCE, name)
        start.patiently(lambda sink=sink: sink.fence(start.query, actor))  # type: ignore[misc]
        hit(Point.AFTER_SINK_FENCE, name)
    start.actor = actor
    start.publisher.started(actor, start.mode, list(start.sinks))
    hit(Point.AFTER_FENCE)


def look_again(start: Start, ask: EpochRequest) -> None:
    """The same judgement, now final: nothing older can move any more."""
    case = read_all(start, ask, start.me)
    verdict = verdict_of(start, judge.LOOK_AGAIN, case)
    verdict.raise_if_refused()
    remember(start, case, verdict.shown)
    hit(Point.AFTER_LOOK_AGAIN)


def settle(start: Start) -> None:
    """Decided and not shown: commit.  Not decided: abort.  Then drop what dead starts left.

    An epoch that was begun and not decided waits for Spark's replay.
    """
    hit(Point.BEFORE_SETTLE)
    commit_decided(start)
    if not start.lost:
        abort_all(start)
    clean(start)
    hit(Point.AFTER_SETTLE)


def commit_decided(start: Start) -> None:
    if start.history.last is not None and isinstance(start.current, Commit):
        commit(start)


def case_now(start: Start, ask: EpochRequest) -> Case:
    """What a person's word is about, with what this start has done since it looked."""
    states = {name: replace(state, marker=start.markers[name]) for name, state in start.states.items()}
    return Case(start.history, states, ask, start.actor)


def check_marks(start: Start, markers: Mapping[str, Marker | None]) -> None:
    """What cannot be written is refused while nobody has been disturbed."""
    for name in markers:
        sink = start.sinks[name]
        if not isinstance(sink, MarkedSink):
            raise Misconfigured(
                "the sink's marker cannot be written by hand",
                sink=name,
                state=f"{type(sink).__name__} has no method mark",
                help="restore the sink, or give it that method (epochal.sinks.protocol.MarkedSink)",
            )
        sink.check_mark(start.query)


def write_marks(start: Start, markers: Mapping[str, Marker | None]) -> None:
    """A person's word in the place of a write that is not known; under the fence, like any other."""
    for name, marker in markers.items():
        sink = start.sinks[name]
        assert isinstance(sink, MarkedSink), "seen before anything was fenced"
        hit(Point.BEFORE_MARK, name)
        start.patiently(lambda sink=sink, marker=marker: sink.mark(start.query, marker, start.me))  # type: ignore[misc]
        hit(Point.AFTER_MARK, name)
        start.markers[name] = marker or start.markers[name]


def run_epoch(start: Start, batch: MicroBatch) -> EpochReport:
    ask = batch.ask
    start.enter(Phase.IDENTIFY)
    again = identify(start, ask)
    hit(Point.AFTER_IDENTIFY, epoch=ask.epoch)
    if again and not start.lost and all(start.shown.values()):
        start.enter(Phase.RETURN)
        batch.discard()
        return finish(start, ask.epoch, replayed=True, outcomes={})
    if is_applied(start, again):
        start.enter(Phase.APPLY)
        outcomes = apply(start, batch, again)
    else:
        start.enter(Phase.PREPARE)
        record = prepare(start, batch, again)
        start.enter(Phase.DECIDE)
        decide(start, record)
        start.enter(Phase.COMMIT)
        outcomes = commit(start)
    clean(start)
    start.enter(Phase.RETURN)
    return finish(start, ask.epoch, replayed=False, outcomes=outcomes)


def identify(start: Start, ask: EpochRequest) -> bool:
    """Whether this epoch is in the log already; anything but the last or the next is refused."""
    judge.judge(judge.IDENTIFY, Case(start.history, {}, ask)).raise_if_refused()
    last = start.history.last
    again = last is not None and ask.epoch == last.number
    if start.lost and not again:
        assert last is not None
        raise CommitInDoubt(
            f"epoch {last.number} is decided, its prepared rows are lost and nothing of it is visible;"
            f" Spark is already at epoch {ask.epoch}, so it cannot be evaluated again",
            epoch=last.number,
            state=f"sinks {sorted(start.sinks)}, decided by {last.current.actor}",
            help=f"stop the query and delete commits/{last.number} and offsets/{ask.epoch} in the checkpoint:"
            f" Spark then plans epoch {ask.epoch} anew after it has replayed epoch {last.number}; then restart",
        )
    return again


def is_applied(start: Start, again: bool) -> bool:
    """The mode is the epoch's, once it is decided or some sink shows it; else it is this start's."""
    if again and (start.lost or any(start.shown.values())):
        return isinstance(start.current, Apply)
    return start.mode == IDEMPOTENT


def decide(start: Start, record: Commit) -> None:
    """One append: *the* commit point."""
    hit(Point.BEFORE_DECIDE, epoch=record.epoch)
    try:
        append(start, start.own_position + 1, record)
    except Fenced:  # another record holds the position, so this one never will: definitely undecided
        abort_quietly(start)
        raise
    start.shown = dict.fromkeys(record.participants, False)
    start.lost = False
    start.publisher.decided(start.pending)
    hit(Point.AFTER_DECIDE, epoch=record.epoch)


def finish(start: Start, epoch: EpochNumber, *, replayed: bool, outcomes: dict[str, CommitOutcome]) -> EpochReport:
    if not all(start.shown.values()):  # a normal return makes Spark write commits/N
        start.in_doubt([OutcomeUnknown("no sink has said why", help="report this as a bug of Epochal")])
    hit(Point.BEFORE_RETURN, epoch=epoch)
    start.close_phase()
    rows = start.rows_of(start.current)
    start.last_report = EpochReport(epoch, rows, replayed, dict(start.seconds), outcomes, dict(start.written))
    start.publisher.committed(rows, replayed, start.last_report.seconds)
    return start.last_report


# --- what an operator decides -----------------------------------------------------------------------


def act_on(start: Start, ask: EpochRequest, act: OperatorAction, before_record: Callable[[], None]) -> Operator:
    start.action = act
    take_over(start, ask)
    start.enter(Phase.SETTLE)
    hit(Point.BEFORE_SETTLE)
    commit_decided(start)
    if start.lost:
        raise lost_without_copy(start.current.epoch)
    write_marks(start, act.marks(case_now(start, ask)))
    before_record()
    record = replace(act.record(case_now(start, ask)), done_through=judge.done_after(start.history, start.shown))
    hit(Point.BEFORE_OPERATOR)
    append(start, start.own_position + 1, record)
    hit(Point.AFTER_OPERATOR)
    abort_quietly(start)
    clean(start)
    return record
