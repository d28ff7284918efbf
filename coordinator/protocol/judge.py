"""The rules, as pure functions: (log, sink states, what Spark asks for) -> a verdict.

``look``, ``look again`` and ``identify`` each apply a table of rules from the top.  The first rule that objects gives
the verdict.  Nothing here reads or writes anything, so every line can be checked by eye and by exhaustive simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from epochal.checkpoints.log import Apply, Entry, Fence, Operator, SinkStanding
from epochal.coordinator.model.epoch import Actor, Digest, EpochNumber, EpochRequest, Marker, SinkState
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    EpochalError,
    Fenced,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
)
from epochal.coordinator.protocol.history import History, LoggedEpoch

States = Mapping[str, SinkState]


@dataclass(frozen=True)
class Case:
    """All that a rule may use.

    ``by``: this start's actor, given after it has fenced all sinks.  Of the rules, only those in ``MINE`` use it.
    """

    history: History
    states: States
    ask: EpochRequest
    by: Actor | None = None


@dataclass(frozen=True)
class Verdict:
    """The error that refuses the case; if ``refusal`` is None, ``shown`` says which sinks show the last epoch."""

    refusal: EpochalError | None
    shown: Mapping[str, bool] = field(default_factory=dict)

    def raise_if_refused(self) -> None:
        if self.refusal is not None:
            raise self.refusal


Rule = Callable[[Case], EpochalError | None]

_NEW_NAMES = (
    "use the checkpoint that these sinks belong to; to begin anew, give the pipeline another app name; if the old"
    " checkpoint is gone, `epochal adopt` lets this one go on where the sinks end (docs/runbook.md)"
)
_RESTORE = (
    "restore the checkpoint, or the sink, to where they agree; if this checkpoint is a copy, run the original instead"
    " (docs/runbook.md)"
)

_CHECKSUMS = "each with its hidden .N.crc if there is one"
"""Names Spark's checksum files in a remedy.  If an operator deletes a file on a local disk and leaves its checksum
file, Spark reports that another query has written the file."""


def _same_app(case: Case) -> EpochalError | None:
    if case.history.empty or (app := case.history.fences[-1].query.app) == case.ask.query.app:
        return None
    return CheckpointMismatch(
        f"the checkpoint belongs to app {app!r}, not {case.ask.query.app!r}",
        state=_describe(case),
        help=f"start the pipeline with app={app!r}, or give the query another checkpointLocation",
    )


def _same_incarnation(case: Case) -> EpochalError | None:
    if case.history.empty or (qid := case.history.fences[-1].query.query_id) == case.ask.query.query_id:
        return None
    if not case.ask.query.query_id:
        return CheckpointMismatch(
            f"Spark's file metadata is missing in the checkpoint; the epoch log was written by query {qid}",
            state=_describe(case),
            help="restore the file from a backup, or make it anew in the checkpoint's folder, with exactly this text:"
            f' {{"id":"{qid}"}} (delete the hidden file .metadata.crc if it is there)',
        )
    return CheckpointMismatch(
        f"the epoch log was written by query {qid}, this is query {case.ask.query.query_id}",
        state=_describe(case),
        help="Spark's metadata file and the log belong to two checkpoints: use those that belong together; if metadata"
        f' was deleted and Spark has made a new one, stop the query and write {{"id":"{qid}"}} into it (delete'
        " the hidden file .metadata.crc if it is there); if the"
        " checkpoint of this log is gone, pass another log with log=, and `epochal adopt` lets the new checkpoint go on"
        " where the sinks end (docs/runbook.md)",
    )


def _same_place(case: Case) -> EpochalError | None:
    if case.history.empty or (place := case.history.place) == case.ask.query.checkpoint:
        return None
    return CheckpointMismatch(
        f"the checkpoint was last run at {place}, now it lies at {case.ask.query.checkpoint}: it was copied or moved",
        state=_describe(case),
        help=f"if it was moved, move it back to {place}, or record the move with `epochal adopt`; if a checkpoint still"
        " lies there, this one is a copy: run the one that lies there",
    )


def _empty_log_means_untouched_sinks(case: Case) -> EpochalError | None:
    if not case.history.empty:
        return None
    for name, state in case.states.items():
        if state.fence is not None or state.marker is not None:
            return CheckpointMismatch(
                "this checkpoint has an empty epoch log, but the sink was written from another checkpoint"
                f" of app {case.ask.query.app!r}",
                sink=name,
                epoch=case.ask.epoch,
                state=f"fence {state.fence}, marker {state.marker}",
                help=_NEW_NAMES,
            )
    return None


def _participants_unchanged(case: Case) -> EpochalError | None:
    for name, identity in case.history.members.items():
        if name not in case.states:
            return CheckpointMismatch(
                f"sink {name!r} took part in this query's epochs and is missing from the pipeline",
                state=f"the pipeline has {sorted(case.states)}; {_describe(case)}",
                help=f"put {name!r} back into the pipeline, under the same name; or record with `epochal retire` that"
                f" it leaves, or with `epochal rename` its new name",
            )
        if (found := case.states[name].identity) != identity:
            return _changed(case, name, identity, found)
    for name, stand in case.history.stands.items():
        returns = name in case.states and name not in case.history.members
        if returns and (found := case.states[name].identity) != stand.identity:
            return _changed(case, name, stand.identity, found)
    return None


def _changed(case: Case, sink: str, was: str, found: str) -> EpochalError:
    return CheckpointMismatch(
        f"the sink is not what it was: it was {was}, now {found}",
        sink=sink,
        state=_describe(case),
        help="point the sink at the original again, or restore it; a recreated target has lost its rows, and"
        f" `epochal resolve --accept {sink}` goes on without them",
    )


def _fences_known(case: Case) -> EpochalError | None:
    for name, state in case.states.items():
        if state.fence is not None and state.fence not in case.history.actors and not case.history.empty:
            return CheckpointMismatch(
                f"the sink is fenced by {state.fence}, which this checkpoint's log does not know:"
                " another checkpoint, or the original of this copy, writes to it",
                sink=name,
                state=_describe(case),
                help=f"{_RESTORE}; if this is the original, restored from a backup, record that with `epochal adopt`",
            )
    return None


def _participants_fenced(case: Case) -> EpochalError | None:
    for name, state in case.states.items():
        if (case.history.took_part(name) or name in case.history.stands) and state.fence is None:
            return MarkerLost(
                "the sink took part in this query's epochs, but holds no fence any more",
                sink=name,
                state=_describe(case),
                help="the sink's bookkeeping was deleted, or restored to a state before its first epoch: restore it; to"
                f" go on from what it shows now, `epochal resolve --accept {name}` (docs/runbook.md)",
            )
    return None


def _markers_belong(case: Case) -> EpochalError | None:
    for name, state in case.states.items():
        error = _marker_belongs(case, name, state.marker)
        if error is not None:
            return error
    return None


def _marker_belongs(case: Case, sink: str, marker: Marker | None) -> EpochalError | None:
    """Refuse the marker unless it belongs to the sink's last epoch, or to the epoch before.

    The epoch before is accepted only while no durable record says that the sink shows the last epoch.
    """
    took_part, stand = case.history.took_part(sink), case.history.stands.get(sink)
    if not took_part:
        return _stands(case, sink, marker, stand)
    last = took_part[0]
    if last.is_shown_by(sink, marker):
        return None
    position = last.position_of(sink)
    if marker is not None and marker.position >= position:
        return _unknown_marker(case, sink, marker)
    if not _is_just_before(took_part, stand, sink, marker):
        found = marker.position if marker is not None else 0
        if found == position - 1 and marker is not None:
            return _unknown_marker(case, sink, marker)
        return _lost_marker(case, sink, marker, last)
    if case.history.done_through.get(sink, -1) >= last.number:
        return _lost_marker(case, sink, marker, last)
    return None


def _stands(case: Case, sink: str, marker: Marker | None, stand: SinkStanding | None) -> EpochalError | None:
    """Check a sink that took part in none of the last two epochs.  Epochs that an operator closed for it do not count.

    The sink must hold a marker that the operator record about it names.  If there is no such record, it must hold none.
    """
    if stand is not None and stand.is_renamed:
        return CheckpointMismatch(
            "the sink was renamed, and since then its epochs are kept under its new name only",
            sink=sink,
            state=_describe(case),
            help="use the new name, which `epochal log` shows, or change it back with `epochal rename`",
        )
    if marker in (stand.markers if stand is not None else (None,)):
        return None
    if marker is not None:
        return _unknown_marker(case, sink, marker)
    return MarkerLost(
        "the sink holds no marker, but it had one when an operator last recorded its state",
        sink=sink,
        state=_describe(case),
        help="the sink's bookkeeping was deleted, or restored to an older state: restore it; to go on from what it"
        f" shows now, `epochal resolve --accept {sink}` (docs/runbook.md)",
    )


def _is_just_before(
    took_part: Sequence[LoggedEpoch], stand: SinkStanding | None, sink: str, marker: Marker | None
) -> bool:
    if len(took_part) > 1:
        return took_part[1].is_shown_by(sink, marker)
    if stand is not None and stand.through < took_part[0].number:
        return marker in stand.markers
    return took_part[0].position_of(sink) == 1 and marker is None


def _unknown_marker(case: Case, sink: str, marker: Marker) -> EpochalError:
    return CheckpointMismatch(
        f"the sink's marker ({marker}) belongs to no epoch that this"
        " checkpoint's log knows: the checkpoint or the sink was rolled back or copied",
        sink=sink,
        epoch=case.ask.epoch,
        state=_describe(case),
        help=_RESTORE,
    )


def _lost_marker(case: Case, sink: str, marker: Marker | None, last: LoggedEpoch) -> EpochalError:
    found = "no marker" if marker is None else f"a marker at position {marker.position}"
    done = case.history.done_through.get(sink, "none yet")
    return MarkerLost(
        f"the sink holds {found}; epoch {last.number} stands at position {last.position_of(sink)}"
        f" and the newest epoch that the log knows to be visible is {done}",
        sink=sink,
        epoch=last.number,
        state=_describe(case),
        help="rows that were visible are gone: restore the sink (it was restored from an older backup, or emptied); if"
        f" the rows are there and only the marker is gone, `epochal resolve --marker {sink}`; to go on without the"
        f" rows, `epochal resolve --accept {sink}` (docs/runbook.md)",
    )


def _epoch_is_next_or_last(case: Case) -> EpochalError | None:
    expected, last = case.history.expected, case.history.last
    if expected is None or case.ask.epoch == expected or (last is not None and case.ask.epoch == last.number):
        return None
    return _passed_by(case, expected) if case.ask.epoch > expected else _rolled_back(case, expected)


def _passed_by(case: Case, expected: EpochNumber) -> EpochalError:
    return CheckpointMismatch(
        f"Spark asks for epoch {case.ask.epoch}, but epoch {expected} never reached the pipeline",
        epoch=case.ask.epoch,
        state=_describe(case),
        help="if you have had Spark repartition the operator state (it writes an epoch without rows for that), delete"
        f" nothing: `epochal resolve --skipped {expected}..{case.ask.epoch - 1}`; else"
        " call the pipeline exactly once per micro-batch, also for empty ones (no `if df.isEmpty(): return`);"
        f" to replay what was left out, stop the query, delete commits/{_span(expected, case.ask.epoch - 1)} and"
        f" offsets/{_span(expected + 1, case.ask.epoch)} in the checkpoint, {_CHECKSUMS}, and restart; if nobody needs"
        f" these rows, `epochal resolve --skipped {expected}..{case.ask.epoch - 1}`",
    )


def _rolled_back(case: Case, expected: EpochNumber) -> EpochalError:
    return CheckpointMismatch(
        f"Spark asks for epoch {case.ask.epoch}, before epoch {expected}: the checkpoint was rolled back",
        epoch=case.ask.epoch,
        state=_describe(case),
        help=_RESTORE,
    )


def _span(first: EpochNumber, last: EpochNumber) -> str:
    return str(first) if first == last else f"{{{first}..{last}}}"


def _same_fingerprint(case: Case) -> EpochalError | None:
    last = case.history.last
    if last is None or case.ask.epoch != last.number:
        return None
    if (known := last.current.decision.fingerprint) == case.ask.fingerprint:
        return None
    return CheckpointMismatch(
        f"epoch {last.number} was {_known_as(last)} for offsets {known[:12]},"
        f" Spark now plans it as {case.ask.fingerprint[:12]}",
        epoch=last.number,
        state=f"{_known_as(last)} for offsets: {last.current.offsets!r}; planned now: {case.ask.offsets!r}",
        help=f"offsets/{last.number} was rewritten after the epoch was {_known_as(last)}: put that text back into it",
    )


def _behind_only_in_replay(case: Case) -> EpochalError | None:
    """Refuse if a sink lacks the last epoch, which was begun in idempotent mode: only Spark's replay can give it."""
    last = case.history.last
    if last is None or not isinstance(last.current, Apply) or case.ask.epoch == last.number:
        return None
    for name in last.current.participants:
        if case.history.is_over(name, last.number):
            continue
        marker = case.states[name].marker
        if not last.is_shown_by(name, marker):
            return MarkerLost(
                f"the sink does not show epoch {last.number}, which was applied, and Spark asks for epoch"
                f" {case.ask.epoch}: only a replay of epoch {last.number} can give the sink its rows",
                sink=name,
                epoch=last.number,
                state=_describe(case),
                help="if the sink was restored to an older state, restore it to a newer one; else stop the query and"
                f" delete commits/{last.number} and offsets/{case.ask.epoch} in the checkpoint, {_CHECKSUMS}: Spark"
                f" then replays epoch {last.number}, and the sink gets its rows",
            )
    return None


def _known_as(epoch: LoggedEpoch) -> str:
    return "begun" if isinstance(epoch.current, Apply) else "decided"


def _my_fence_is_newest(case: Case) -> EpochalError | None:
    newest = case.history.entries[-1].record
    if isinstance(newest, Fence) and newest.actor == case.by:
        return None
    return Fenced(
        f"the newest record of the log is a {newest.kind} of {newest.actor}, not the fence of {case.by}:"
        " a newer start has taken over",
        epoch=case.ask.epoch,
        state=_describe(case),
        help="nothing to do if the newer start is wanted; else stop it and restart this query",
    )


def _every_fence_is_mine(case: Case) -> EpochalError | None:
    for name, state in case.states.items():
        if state.fence != case.by:
            return Fenced(
                f"the sink is fenced by {state.fence}, not by {case.by}: another start has taken over",
                sink=name,
                epoch=case.ask.epoch,
                state=_describe(case),
                help="nothing to do if the other start is wanted; else stop it and restart this query",
            )
    return None


IDENTIFY: tuple[Rule, ...] = (
    _same_app,
    _same_incarnation,
    _epoch_is_next_or_last,
    _same_fingerprint,
)
"""The rules for every epoch."""

LOOK: tuple[Rule, ...] = (
    _same_app,
    _same_incarnation,
    _same_place,
    _empty_log_means_untouched_sinks,
    _participants_unchanged,
    _fences_known,
    _participants_fenced,
    _markers_belong,
    _epoch_is_next_or_last,
    _same_fingerprint,
    _behind_only_in_replay,
)
"""The rules for a start, before it has written anything."""

OF_SOME = tuple(rule for rule in LOOK if rule not in (_participants_unchanged, _behind_only_in_replay))
"""The rules that still work when some sinks did not answer and ``case.states`` has only the others.  Only the console
uses this selection; a start uses all rules of its step."""

MINE: tuple[Rule, ...] = (_my_fence_is_newest, _every_fence_is_mine)
"""These rules require that the log and every sink are fenced by this start, and by no newer one."""

LOOK_AGAIN: tuple[Rule, ...] = (*MINE, *LOOK)
"""The rules for a start that has fenced all sinks, when no older start can change anything any more."""

_NOT_YET = (_participants_fenced, _epoch_is_next_or_last, _same_fingerprint, _behind_only_in_replay)
OPERATE: tuple[Rule, ...] = tuple(rule for rule in LOOK if rule not in _NOT_YET)
"""The rules for an operator's record, judged as if the log already held it.  The rules in ``_NOT_YET`` are left out:
during an operator action Spark asks for no epoch, and the start that writes the record fences every sink."""


def assuming(case: Case, record: Operator) -> Case:
    """Return the case as it will be when the log holds this record.

    In an empty log the record comes after the fence of the start that writes it.
    The case leaves out a sink that goes on under another name, because no pipeline has it any more.
    """
    history = case.history
    renamed = {name for name, stand in record.stands.items() if stand.is_renamed}
    states = {name: state for name, state in case.states.items() if name not in renamed}
    if history.empty:
        history = history.with_entry(Entry(0, Fence(record.actor, case.ask.query, case.ask.epoch)))
    return replace(case, history=history.with_entry(Entry(history.next_position, record)), states=states)


def judge(rules: Sequence[Rule], case: Case) -> Verdict:
    """Return the error of the first rule that objects; if none does, which sinks show the last epoch."""
    for refusal in _objections(rules, case):
        return Verdict(refusal)
    return Verdict(None, dict(_shown(case)))


def _objections(rules: Sequence[Rule], case: Case) -> Iterator[EpochalError]:
    for rule in rules:
        refusal = rule(case)
        if refusal is not None:
            yield refusal


def _shown(case: Case) -> Iterator[tuple[str, bool]]:
    last = case.history.last
    for name, state in case.states.items():
        if last is None:
            continue
        if case.history.is_over(name, last.number):
            yield name, True
        elif name in last.current.participants:
            yield name, last.is_shown_by(name, state.marker)


def done_after(history: History, shown: Mapping[str, bool]) -> Mapping[str, EpochNumber]:
    """Return, by sink, the newest epoch known to be visible: ``done_through`` of the next record.

    ``shown`` says which sinks show the last epoch.
    """
    done = dict(history.done_through)
    for sink, visible in shown.items():
        took_part = history.took_part(sink)
        for newest in took_part[:1] if visible else took_part[1:2]:
            done[sink] = max(newest.number, done.get(sink, newest.number))
    return done


def disagreement(epoch: EpochNumber, digests: Mapping[str, Digest | None], shown: Sequence[str]) -> EpochalError | None:
    """Return an error unless all evaluations of one epoch have equal digests.  ``shown``: sinks that show the epoch."""
    for sink, digest in digests.items():
        if digest is None:
            return _no_digest(epoch, sink, shown)
    if len(set(digests.values())) < 2:
        return None
    state = f"visible in {sorted(shown)}; nothing was written where it is not"
    return NonDeterministicReplay.between(dict(sorted(digests.items())), epoch=epoch, state=state)


def _no_digest(epoch: EpochNumber, sink: str, shown: Sequence[str]) -> EpochalError:
    what = "its marker holds" if sink in shown else "it voted with"
    return Misconfigured(
        f"{what} no digest of the rows, so one evaluation cannot be compared with another",
        sink=sink,
        epoch=epoch,
        state=f"visible in {sorted(shown)}; nothing more was written",
        help='leave mode="idempotent" out, or give the sink a digest (Epoch.digest in epochal.coordinator.model.epoch)',
    )


def _describe(case: Case) -> str:
    """Return one line about log and sinks, for the ``State:`` of messages."""
    last = case.history.last
    log = f"last epoch {last.number}, {_known_as(last)}" if last is not None else "no epoch"
    sinks = ", ".join(
        f"{name}: fence {s.fence}, position {s.marker.position if s.marker else 0}" for name, s in case.states.items()
    )
    return f"log: {log}, {len(case.history.fences)} fences; {sinks}"
