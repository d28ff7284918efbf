"""The order of the protocol.  One instance is one start: one (query id, run id), one actor.

Read it beside the picture in README: the methods stand in the order of the phases.

::

    start ─> look ─> fence ─> look again ─> settle ─┐                      once per run id
                                                    v
    epoch ─> identify ─> prepare ─> decide ─> commit ─> return             once per micro-batch

Free of Spark and of any server: rows are opaque, sinks, log and durable copy are protocols.  What is
decided is judged in ``judge.py``; this file only acts.  Past the decision there is no way back: an
error then is ``CommitInDoubt``, and the next start finishes the epoch.

Roots: presumed abort (Mohan, Lindsay), Flink's two-phase-commit sink, MillWheel's strong productions.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from epochal.chaos.failpoints import Point, hit
from epochal.checkpoints.log import Commit, Entry, EpochLog, Fence, LogPosition, Participant, Record, encode
from epochal.coordinator import judge
from epochal.coordinator.epoch import (
    NEXT,
    Actor,
    Ask,
    Committable,
    Copy,
    Decision,
    Epoch,
    EpochNumber,
    Marker,
    Phase,
    Query,
)
from epochal.coordinator.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Fenced,
    LogCorrupt,
    MarkerLost,
    Misconfigured,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.judge import Case, History
from epochal.sinks.protocol import CommitOutcome, MicroBatch, RedoSink, Rows, Sink, Stage

_log = logging.getLogger("epochal")

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
    """Bounded, jittered back-off for errors that are known to have had no effect, or can be asked."""

    attempts: int = 9
    first: float = 0.1  # seconds
    most: float = 8.0  # seconds
    sleep: Callable[[float], None] = time.sleep

    def pause(self, attempt: int) -> None:
        self.sleep(min(self.most, self.first * 2**attempt) * random.uniform(0.5, 1.0))


@dataclass(frozen=True)
class EpochReport:
    """What one call did.  ``replayed``: already decided, nothing was written again."""

    epoch: EpochNumber
    rows: int
    replayed: bool
    seconds: Mapping[Phase, float]
    sinks: Mapping[str, CommitOutcome] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """Where a start stands.  ``shown``: the newest epoch each sink is known to show."""

    actor: Actor | None
    last_epoch: EpochNumber | None
    shown: Mapping[str, EpochNumber]
    in_doubt: Sequence[str]
    last_report: EpochReport | None


def wants_copy(sinks: Sequence[Sink]) -> bool:
    """One evaluation for several readers, or rows that must outlive the decision."""
    return len(sinks) > 1 or any(isinstance(sink, RedoSink) for sink in sinks)


class Coordinator:
    """Runs the two-phase commit of one start over its sinks.

    Errors: everything in ``errors.py``.  After any error the start is over: every later call
    raises that error again, so that a caught exception cannot let Spark pass an epoch by.
    """

    def __init__(
        self,
        *,
        query: Query,
        sinks: Sequence[Sink],
        log: EpochLog,
        stage: Stage | None = None,
        runner: Runner[object] = serial,
        retry: Retry | None = None,
        compact_every: int = COMPACT_EVERY,
    ) -> None:
        self._query = query
        self._sinks: dict[str, Sink] = {sink.name: sink for sink in sorted(sinks, key=lambda s: s.name)}
        self._log = log
        copies = wants_copy(sinks)
        self._stage = stage if copies else None
        self._run_all = runner
        self._retry = retry or Retry()
        self._compact_every = compact_every
        self._history = History(())
        self._identities: dict[str, str] = {}
        self._markers: dict[str, Marker | None] = {}
        self._shown: dict[str, bool] = {}  # of the last decided epoch
        self._actor: Actor | None = None
        self._own_position: LogPosition = -1  # of my own last record
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
        if self._stage is None and copies:
            raise Misconfigured("these sinks need a durable copy, and there is no stage", help="pass stage=")

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
            if self._actor is None:
                self._start(batch.ask)
            return self._epoch(batch)
        except Exception as error:
            self._failed = error
            raise

    def check(self, ask: Ask) -> None:
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

    def _start(self, ask: Ask) -> None:
        self._enter(Phase.LOOK)
        generation = self._look(ask)
        self._enter(Phase.FENCE)
        self._fence(ask, Actor.new(generation))
        self._enter(Phase.LOOK_AGAIN)
        self._look_again(ask)
        self._enter(Phase.SETTLE)
        self._settle()

    def _look(self, ask: Ask) -> int:
        """Read log and sinks, judge; the next generation.  A refusal on a log that grew is made anew."""
        hit(Point.BEFORE_LOOK)
        for _ in range(self._retry.attempts):
            case = self._read(ask)
            verdict = judge.judge(judge.LOOK, case)
            if verdict.refusal is None or tuple(self._log.read()[-1:]) == case.history.entries[-1:]:
                break
        verdict.raise_if_refused()
        self._take(case, verdict.shown)
        fences = [f.actor for f in case.history.fences] + [s.fence for s in case.states.values() if s.fence]
        hit(Point.AFTER_LOOK)
        return 1 + max((actor.generation for actor in fences), default=0)

    def _read(self, ask: Ask, by: Actor | None = None) -> Case:
        """The log first, then the sinks: a sink is never older than the log it is judged by."""
        history = History.of(self._log.read())
        states = self._each(lambda sink: self._patiently(lambda: sink.look(self._query, by=by), attempts=_LOOKS))
        return Case(history, states, ask, by)

    def _take(self, case: Case, shown: Mapping[str, bool]) -> None:
        self._history = case.history
        self._shown = dict(shown)
        self._identities = {name: state.identity for name, state in case.states.items()}
        self._markers = {name: state.marker for name, state in case.states.items()}

    def _fence(self, ask: Ask, actor: Actor) -> None:
        """The log first, then the sinks in the order of their names; all by compare-and-set."""
        if self._history.empty and ask.epoch > 0:
            _log.warning("app %s: a new epoch log begins; epochs before %d never reached it", ask.query.app, ask.epoch)
        hit(Point.BEFORE_FENCE)
        done = judge.done_after(self._history, self._shown)
        self._append(self._history.next_position, Fence(actor, self._query, ask.epoch, done_through=done))
        hit(Point.AFTER_FENCE_RECORD)
        for name, sink in self._sinks.items():
            hit(Point.BEFORE_SINK_FENCE, name)
            self._patiently(lambda sink=sink: sink.fence(self._query, actor))  # type: ignore[misc]
            hit(Point.AFTER_SINK_FENCE, name)
        self._actor = actor
        hit(Point.AFTER_FENCE)

    def _look_again(self, ask: Ask) -> None:
        """The same judgement, now final: nothing older can move any more."""
        case = self._read(ask, self._me)
        verdict = judge.judge(judge.LOOK_AGAIN, case)
        verdict.raise_if_refused()
        self._take(case, verdict.shown)
        hit(Point.AFTER_LOOK_AGAIN)

    def _settle(self) -> None:
        """Decided and not shown: commit.  Not decided: abort.  Then drop what dead starts left."""
        hit(Point.BEFORE_SETTLE)
        if self._history.last is not None:
            self._commit()
        if not self._lost:
            self._abort_all()
        self._clean()
        hit(Point.AFTER_SETTLE)

    # --- epoch: identify, prepare, decide, commit, return ---------------------------------------

    def _epoch(self, batch: MicroBatch) -> EpochReport:
        ask = batch.ask
        self._enter(Phase.IDENTIFY)
        again = self._identify(ask)
        hit(Point.AFTER_IDENTIFY, epoch=ask.epoch)
        if again and not self._lost:
            self._enter(Phase.RETURN)
            batch.discard()
            return self._return(ask.epoch, replayed=True, outcomes={})
        self._enter(Phase.PREPARE)
        record = self._prepare(batch)
        self._enter(Phase.DECIDE)
        self._decide(record)
        self._enter(Phase.COMMIT)
        outcomes = self._commit()
        self._clean()
        self._enter(Phase.RETURN)
        return self._return(ask.epoch, replayed=False, outcomes=outcomes)

    def _identify(self, ask: Ask) -> bool:
        """Whether this epoch is already decided; anything but the last or the next is refused."""
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

    def _prepare(self, batch: MicroBatch) -> Commit:
        """Evaluate once, let every sink vote; a no, or any error, aborts the epoch everywhere."""
        ask, last = batch.ask, self._history.last
        redo = last.current.decision.redo + 1 if self._lost and last is not None else 0
        decision = Decision(self._query.query_id, ask.epoch, self._me, ask.fingerprint, redo)
        hit(Point.BEFORE_PREPARE, epoch=ask.epoch)
        try:
            copy = self._stage.write(ask.epoch, self._me, batch.rows) if self._stage is not None else None
            hit(Point.AFTER_COPY, epoch=ask.epoch)
            epoch = Epoch(decision, 0, ask.offsets, ask.watermark, copy)
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
            copy=copy,
            supersedes=last.current.decision.id if redo and last is not None else None,
            done_through=judge.done_after(self._history, self._shown),
        )

    def _vote(self, sink: Sink, epoch: Epoch, rows: Rows) -> Committable:
        marker = self._markers[sink.name]
        epoch = epoch.at(marker.position + 1 if marker is not None else 1)
        hit(Point.BEFORE_SINK_PREPARE, sink.name, epoch.number)
        if epoch.copy is None:
            vote = sink.prepare(epoch, rows, self._me)
        else:
            vote = self._prepare_from(epoch.copy, sink, epoch)
        hit(Point.AFTER_SINK_PREPARE, sink.name, epoch.number)
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
        hit(Point.AFTER_DECIDE, epoch=record.epoch)

    def _commit(self) -> dict[str, CommitOutcome]:
        """Every sink shows the last decided epoch, or an error that says which do not."""
        outcomes: dict[str, CommitOutcome] = {}
        for _ in range(self._retry.attempts):
            lost = self._commit_pending(outcomes)
            if not lost:
                break
            if self._current.copy is None and self._settling:
                self._lost = True  # Spark's replay of the epoch will be evaluated and decided again
                return outcomes
            self._redo(lost)
        else:
            self._in_doubt(
                [PreparedLost("prepared rows were lost again and again", help="see what deletes them in the sink")]
            )
        hit(Point.AFTER_COMMIT, epoch=self._current.epoch)
        return outcomes

    def _commit_pending(self, outcomes: dict[str, CommitOutcome]) -> list[str]:
        """Commit where the last decided epoch is not shown; the sinks that provably lost it."""
        pending = [name for name, shown in self._shown.items() if not shown]
        results = self._run_all([lambda name=name: self._commit_sink(name) for name in pending])  # type: ignore[misc]
        errors: list[Exception] = []
        lost: list[str] = []
        for name, result in zip(pending, results, strict=True):
            if isinstance(result, CommitOutcome):
                outcomes[name] = result
                self._is_shown(name)
            elif isinstance(result, PreparedLost):
                lost.append(name)
            else:
                errors.append(result if isinstance(result, Exception) else _no_answer(name, result))
        if errors:
            self._in_doubt(errors)
        if lost and self._current.copy is None and not self._settling:
            self._in_doubt([r for r in results if isinstance(r, PreparedLost)])
        return lost

    def _commit_sink(self, name: str) -> CommitOutcome:
        """Idempotent, so an unknown outcome is answered by asking again: the sink reads its marker first."""
        current = self._current
        hit(Point.BEFORE_SINK_COMMIT, name, current.epoch)
        committable = current.participants[name].committable
        outcome = self._patiently(lambda: self._sinks[name].commit(committable, self._me))
        hit(Point.AFTER_SINK_COMMIT, name, current.epoch)
        return outcome

    def _is_shown(self, name: str) -> None:
        committable = self._current.participants[name].committable
        self._shown[name] = True
        self._markers[name] = Marker(committable.position, committable.decision.id)

    def _redo(self, lost: Sequence[str]) -> None:
        """Prepare lost work anew from the copy and supersede the decision, for these sinks only."""
        current = self._current
        hit(Point.BEFORE_REDO, epoch=current.epoch)
        decision = replace(current.decision, actor=self._me, redo=current.decision.redo + 1)
        redone = dict(current.participants)
        try:
            for name in lost:
                redone[name] = replace(redone[name], committable=self._prepare_again(name, decision))
        except Exception as error:
            self._in_doubt([error])
        record = replace(
            current,
            decision=decision,
            actor=self._me,
            participants=redone,
            supersedes=current.decision.id,
            done_through=judge.done_after(self._history, self._shown),
        )
        self._append(self._own_position + 1, record)
        hit(Point.AFTER_REDO_DECIDED, epoch=current.epoch)

    def _prepare_again(self, name: str, decision: Decision) -> Committable:
        current = self._current
        assert current.copy is not None, "without a copy Spark's replay is evaluated instead"
        position = current.participants[name].committable.position
        epoch = Epoch(decision, position, current.offsets, current.watermark, current.copy)
        return self._prepare_from(current.copy, self._sinks[name], epoch)

    def _return(self, epoch: EpochNumber, *, replayed: bool, outcomes: dict[str, CommitOutcome]) -> EpochReport:
        if not all(self._shown.values()):  # a normal return makes Spark write commits/N
            self._in_doubt([OutcomeUnknown("no sink has said why", help="report this as a bug of Epochal")])
        hit(Point.BEFORE_RETURN, epoch=epoch)
        self._close_phase()
        rows = max((p.committable.rows for p in self._current.participants.values()), default=0)
        self._last_report = EpochReport(epoch, rows, replayed, dict(self._seconds), outcomes)
        _log.info("app %s, epoch %d: %s", self._query.app, epoch, _line(self._last_report))
        return self._last_report

    # --- appends --------------------------------------------------------------------------------

    def _append(self, position: LogPosition, record: Record) -> None:
        """The same append at the same position until it is answered; a lost race is ``Fenced``."""
        if not self._append_answered(position, record) and not self._is_mine(position, record):
            raise Fenced(
                f"position {position} of the epoch log holds another start's record",
                epoch=record.epoch if isinstance(record, Commit) else None,
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
        return OutcomeUnknown(what, state=state, help=remedy)

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
            _log.warning("could not drop prepared rows, the next start will: %s", error)

    def _clean(self) -> None:
        """Drop copies that a durable record calls done, and what dead starts left; compact the log."""
        hit(Point.BEFORE_CLEAN)
        try:
            if self._stage is not None:
                self._stage.clean(self._me, self._history.needed_copies())
            self._compact()
        except Exception as error:  # nothing visible depends on it, and the next epoch tries again
            _log.warning("could not clean up after epoch, will try again: %s", error)

    def _compact(self) -> None:
        floor, kept = self._history.compaction()
        if sum(1 for e in self._history.entries if e.position < floor) - len(kept) < self._compact_every:
            return
        hit(Point.BEFORE_COMPACT)
        self._log.compact(floor, kept)
        self._history = History((*kept, *(e for e in self._history.entries if e.position >= floor)))
        hit(Point.AFTER_COMPACT)

    # --- small helpers --------------------------------------------------------------------------

    @property
    def _me(self) -> Actor:
        assert self._actor is not None, "nothing acts before it has fenced"
        return self._actor

    @property
    def _current(self) -> Commit:
        assert self._history.last is not None, "no epoch was decided"
        return self._history.last.current

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
                _log.warning("will try again: %s", error)
                self._retry.pause(attempt)
        return call()

    def _in_doubt(self, errors: Sequence[Exception]) -> NoReturn:
        """Past the decision: say what is done and what is pending, and stop."""
        gravest = _gravest(errors)
        if isinstance(gravest, _NOT_CURED_BY_RESTART):
            raise gravest
        done = sorted(name for name, shown in self._shown.items() if shown)
        pending = sorted(name for name, shown in self._shown.items() if not shown)
        raise CommitInDoubt(
            f"decided, and not yet visible in {', '.join(pending)}: {_what(gravest)}",
            epoch=self._current.epoch,
            state=f"visible in {done}, pending in {pending}, decided by {self._current.actor}",
            help=f"{_remedy(gravest)}; then restart the query: it will finish this epoch first",
        ) from gravest

    def _enter(self, phase: Phase) -> None:
        assert self._phase is None or phase in NEXT[self._phase], f"{phase} does not follow {self._phase}"
        self._close_phase()
        self._phase, self._phase_began = phase, time.monotonic()

    def _close_phase(self) -> None:
        if self._phase is not None and self._phase_began:
            self._seconds[self._phase] = time.monotonic() - self._phase_began
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


def _no_answer(sink: str, result: object) -> EpochalError:
    return OutcomeUnknown(
        f"commit answered {result!r}, which is no CommitOutcome",
        sink=sink,
        state="the epoch is decided; whether this sink shows it is not known",
        help="have the sink's commit return COMMITTED or ALREADY_COMMITTED",
    )


def _what(error: Exception) -> str:
    return error.what if isinstance(error, EpochalError) else f"{type(error).__name__}: {error}"


def _remedy(error: Exception) -> str:
    return error.help if isinstance(error, EpochalError) else "see the error above it"


def _line(report: EpochReport) -> str:
    what = "already decided, replayed" if report.replayed else f"{report.rows} rows"
    times = ", ".join(f"{phase.value} {seconds * 1000:.0f} ms" for phase, seconds in report.seconds.items())
    return f"{what} ({times})"
