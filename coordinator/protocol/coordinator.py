"""The order of the protocol.  One instance of ``Coordinator`` is one start: one (query id, run id) and one actor.

The functions below stand in the order of the phases, as in README's picture:

::

    start ─> look ─> fence ─> look again ─> settle ─┐                      once per start
                                                    v
    epoch ─> identify ─> prepare ─> decide ─> commit ─> return             once per micro-batch
                    └──> apply ─────────────────────────┘                  the same, in idempotent mode

This file needs no Spark and no server: rows are opaque objects, and sinks, log and durable copy are protocols.
The rules are in ``judge.py``.  This file only acts, and publishes each event after it has happened.
After the decision an epoch is never aborted.  An error is then ``CommitInDoubt``, and the next start finishes it.

The mode is a property of the epoch, and is stored in the epoch's record in the log.  A start finishes an epoch in the
mode that began it, and begins the next epoch in the start's own mode.

Sources of the ideas: presumed abort (Mohan, Lindsay), Flink's two-phase-commit sink, MillWheel's strong productions.
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
from epochal.coordinator.protocol.frames import Frames, frame_of
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
    ThoroughSink,
    VotingSink,
)

COMPACT_EVERY = 100
"""How many obsolete records the log may hold before it is compacted."""

_LOOKS = 2
"""Attempts while starting.  Fewer than during an epoch, so that a server that is down is reported quickly."""


def wants_copy(sinks: Sequence[Sink]) -> bool:
    """Return whether the rows of an epoch must be copied before these sinks prepare them.

    They must if there are several sinks (all shall read one evaluation), if a sink gets a frame (which may read the
    rows twice, or not at all), if a sink needs the rows after the decision (``RedoSink``), or if a sink leaves rows out
    (``FilteringSink``) and does not itself see to it that Spark reads all (``ThoroughSink``).
    """
    if len(sinks) > 1 or any(map(frame_of, sinks)):
        return True
    return any(isinstance(sink, RedoSink) or _may_skip_rows(sink) for sink in sinks)


def _may_skip_rows(sink: Sink) -> bool:
    return isinstance(sink, FilteringSink) and sink.leaves_rows_out and not isinstance(sink, ThoroughSink)


def check_appliable(sinks: Iterable[Sink]) -> None:
    """Raise ``Misconfigured`` if a sink cannot work in idempotent mode; the error names that sink."""
    for sink in sinks:
        if frame_of(sink):
            raise Misconfigured(
                "a frame is computed from the durable copy, and in idempotent mode there is none",
                sink=sink.name,
                state=f"frame {frame_of(sink)!r}",
                help='leave mode="idempotent" out, or leave frame= out',
            )
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

    ``query``: app, query id, run id and checkpoint.  ``sinks``: each with a unique name.  ``log``: where decisions
    are kept.  ``mode``: the mode of the epochs that this start begins.  ``stage``: where durable copies are kept.
    ``runner``: calls several sinks at once.  ``retry``: how often and after which pauses a call is repeated.
    ``compact_every``: how many obsolete records the log may hold before it is compacted.  ``telling``: publishes what
    has happened, as events.  ``frames``: makes the frames of a micro-batch.  ``explain``: returns the error to raise
    for one that has ended the start.

    Errors: every class in ``errors.py``.  After any error the start is over, and every later call of ``run`` raises
    the same error again.  So a user's function that catches the error cannot make Spark skip an epoch.
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
        frames: Frames | None = None,
        explain: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        self._explain = explain
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
            frames=frames,
        )
        self._failed: Exception | None = None
        self._running = threading.Lock()
        if mode == IDEMPOTENT:
            check_appliable(sinks)

    # --- the entry points ----------------------------------------------------------------------

    def run(self, batch: MicroBatch) -> EpochReport:
        """Run one micro-batch as an epoch.  Return only when every sink shows the epoch."""
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
            self._failed = self._explain(error)
            self._start.publisher.failed(self._failed, self._start.phase, self._start.pending)
            if self._failed is error:
                raise
            raise self._failed from error

    def act(self, ask: EpochRequest, act: OperatorAction, before_record: Callable[[], None] = lambda: None) -> Operator:
        """Carry out what an operator decides: the steps of a start, and then one record.

        After an error the action is not decided.  Only after ``OutcomeUnknown`` the record may be in the log.
        The rules are applied as if the log already held the record.  ``ask``: what Spark will ask for next.
        ``before_record`` is called just before the record, when no older start can change anything any more.  It may
        raise an error to refuse.
        """
        try:
            return act_on(self._start, ask, act, before_record)
        except Exception as error:
            self._start.publisher.failed(error, self._start.phase, self._start.pending)
            raise

    def assume(self, ask: EpochRequest, act: OperatorAction) -> Operator:
        """Return the record that ``act`` would write if nothing changes until then.  This writes nothing."""
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
        """Look and judge as a start would.  This writes nothing."""
        look(self._start, ask)

    def status(self) -> Status:
        """Return what this start knows, without asking the log or a sink."""
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
    """Read the log and the sinks, apply the rules, and return the next generation.

    A refusal does not count if the log has grown meanwhile: then everything is read and judged again.
    """
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
    """Refuse sinks that need a durable copy, if this start may have to give them an epoch in idempotent mode."""
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
                help="start once with this sink as it was then; change the sink after the epoch is committed",
            ) from error


def verdict_of(start: Start, rules: Sequence[judge.Rule], case: Case) -> Verdict:
    """Judge the case.  An operator action is judged as if the log already held its record.

    The verdict's ``shown`` is computed from the log as it is now, without that record.  It leaves out the sinks in
    which the action gives up the last epoch.
    """
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
    """Read the log first and then the sinks, so that no sink's state is older than the log that it is compared with."""
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
    """Fence the log first, then the sinks in the order of their names.  Each fence is a compare-and-set."""
    if start.history.empty and ask.epoch > 0:
        start.publisher.log_began()
    hit(Point.BEFORE_FENCE)
    done = judge.done_after(start.history, start.shown)
    # The fence of an operator action keeps the old location: only the action's record may move the checkpoint.
    query = replace(start.query, checkpoint=start.history.place or start.query.checkpoint)
    append(start, start.history.next_position, Fence(actor, query, ask.epoch, start.mode, done))
    hit(Point.AFTER_FENCE_RECORD)
    finish_decided(start)
    for name, sink in start.sinks.items():
        hit(Point.BEFORE_SINK_FENCE, name)
        start.patiently(lambda sink=sink: sink.fence(start.query, actor))  # type: ignore[misc]
        hit(Point.AFTER_SINK_FENCE, name)
    start.actor = actor
    start.publisher.started(actor, start.mode, list(start.sinks))
    hit(Point.AFTER_FENCE)


def finish_decided(start: Start) -> None:
    """Let sinks show what is decided, where their own fence would destroy it.

    Older starts can decide nothing any more, because this start's fence is in the log.  A sink in which an operator
    gives the epoch up is not pending.
    """
    if start.history.last is None or not isinstance(start.current, Commit):
        return
    for name in start.pending:
        sink = start.sinks[name]
        if isinstance(sink, VotingSink):
            committable = start.current.participants[name].committable
            start.patiently(lambda sink=sink, its=committable: sink.finish(its))  # type: ignore[misc]


def look_again(start: Start, ask: EpochRequest) -> None:
    """Read and judge again.  This result is final, because no older start can change anything any more."""
    case = read_all(start, ask, start.me)
    verdict = verdict_of(start, judge.LOOK_AGAIN, case)
    verdict.raise_if_refused()
    remember(start, case, verdict.shown)
    hit(Point.AFTER_LOOK_AGAIN)


def settle(start: Start) -> None:
    """Commit an epoch that is decided and not shown.  Abort what is not decided.  Then delete what dead starts left.

    An epoch that was begun in idempotent mode is not finished here: Spark's replay finishes it.
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
    """Return the case that an operator action is about, with the markers that this start wrote since it looked."""
    states = {name: replace(state, marker=start.markers[name]) for name, state in start.states.items()}
    return Case(start.history, states, ask, start.actor)


def check_marks(start: Start, markers: Mapping[str, Marker | None]) -> None:
    """Refuse markers that cannot be written, before anything is fenced."""
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
    """Write the markers of an operator action.  Like every write, this is conditional on this start's fence."""
    for name, marker in markers.items():
        sink = start.sinks[name]
        assert isinstance(sink, MarkedSink), "check_marks has refused every other sink"
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
        decide(start, batch, record)
        start.enter(Phase.COMMIT)
        outcomes = commit(start)
    clean(start)
    start.enter(Phase.RETURN)
    return finish(start, ask.epoch, replayed=False, outcomes=outcomes)


def identify(start: Start, ask: EpochRequest) -> bool:
    """Return whether the log already has this epoch.  Refuse every epoch but the log's last one and the next one."""
    judge.judge(judge.IDENTIFY, Case(start.history, {}, ask)).raise_if_refused()
    last = start.history.last
    again = last is not None and ask.epoch == last.number
    if start.lost and not again:
        assert last is not None
        raise CommitInDoubt(
            f"epoch {last.number} is decided, its prepared rows are lost and nothing of it is visible;"
            f" Spark is already at epoch {ask.epoch}, so epoch {last.number} cannot be evaluated again",
            epoch=last.number,
            state=f"sinks {sorted(start.sinks)}, decided by {last.current.actor}",
            help=f"stop the query and delete commits/{last.number} and offsets/{ask.epoch} in the checkpoint:"
            f" Spark then plans epoch {ask.epoch} anew after it has replayed epoch {last.number}; then restart",
        )
    return again


def is_applied(start: Start, again: bool) -> bool:
    """Return whether to run the epoch in idempotent mode.

    An epoch that is decided, or that some sink shows, keeps the mode of its record.  Any other epoch gets the start's
    mode.
    """
    if again and (start.lost or any(start.shown.values())):
        return isinstance(start.current, Apply)
    return start.mode == IDEMPOTENT


def decide(start: Start, batch: MicroBatch, record: Commit) -> None:
    """Append the decision to the log.  This one append is *the* commit point."""
    hit(Point.BEFORE_DECIDE, epoch=record.epoch)
    try:
        batch.confirm()
    except Exception:
        abort_quietly(start)
        raise
    try:
        append(start, start.own_position + 1, record)
    except Fenced:  # another record holds the position, so this one was not appended: the epoch is not decided
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
