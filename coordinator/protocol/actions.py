"""What an operator may decide, as pure functions of the log and the sinks.  Each action makes one record of the log.

An action is judged like a start, by the rules in ``judge.OPERATE``.  They get the log *with* the action's record and
the sinks as they are now.  So this file repeats no rule; it refuses only an action that does not fit the log or the
sinks.
``Coordinator.act`` runs an action: look, fence, look again, settle, then the record.

=================  ==================================================================================
``Retire``         a sink leaves; it may return later, just as it is now
``Rename``         a sink goes on under another name
``Adopt``          the checkpoint lies elsewhere, was restored, or is a new one for an old app
``Accept``         a sink goes on from its present state: restored, created again, or unable to take a decided epoch
``RewriteMarker``  a sink shows the last epoch but has lost its marker, which is written again
``Skip``           epochs never reached the pipeline, and nobody needs them
``Evaluate``       idempotent mode: sinks keep the rows of an evaluation that cannot be repeated
=================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol

from epochal.checkpoints.log import Apply, Evaluations, Operator, SinkStanding
from epochal.coordinator.model.epoch import Actor, EpochNumber, Json, Marker, SinkState
from epochal.coordinator.model.errors import CheckpointMismatch, EpochalError, Misconfigured
from epochal.coordinator.protocol.history import LoggedEpoch
from epochal.coordinator.protocol.judge import Case

NOBODY = Actor(0, 0)
"""The actor in a record that is only used to judge a case and is never written to the log."""


class OperatorAction(Protocol):
    """One action of an operator.  Its methods are called several times, each time with the newest case."""

    @property
    def said(self) -> Json:
        """The kind of the action and its arguments, as the record stores them."""

    @property
    def without(self) -> Collection[str]:
        """Sinks in which the last epoch is given up: the action does not commit it there."""

    def marks(self, case: Case) -> Mapping[str, Marker | None]:
        """Return the markers to write before the record, by sink."""

    def record(self, case: Case) -> Operator:
        """Return the record.  Raise ``Misconfigured`` or ``CheckpointMismatch`` if the action does not fit the case."""


@dataclass(frozen=True, kw_only=True)
class _Said:
    """The parts that all actions share: the reason and the time (ISO 8601, UTC).  By default no marker is written."""

    word: ClassVar[str]
    why: str
    at: str

    @property
    def without(self) -> Collection[str]:
        return ()

    def marks(self, case: Case) -> Mapping[str, Marker | None]:  # noqa: ARG002
        return {}

    @property
    def said(self) -> Json:
        told = {name: value for name, value in asdict(self).items() if name not in ("why", "at")}
        return {"act": self.word, **told}

    def _record(self, case: Case, **parts: object) -> Operator:
        if not self.why.strip():
            raise Misconfigured("no reason was given", help='give a reason that still helps in a year: why="..."')
        return Operator(case.by or NOBODY, self.said, self.why, self.at, **parts)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Retire(_Said):
    """The sink leaves the pipeline.

    ``unreachable``: the sink is not asked, so the record allows both cases: it shows the last epoch, or it does not.
    """

    word: ClassVar[str] = "retire"
    sink: str
    unreachable: bool = False

    def record(self, case: Case) -> Operator:
        identity = _member(case, self.sink)
        if self.unreachable:
            stand = SinkStanding(identity, _possible_markers(case, self.sink), _through(case), away=True)
            return self._record(case, stands={self.sink: stand})
        _refuse_begun(case)
        state = _state(case, self.sink)
        return self._record(
            case, stands={self.sink: SinkStanding(identity, (state.marker,), _through(case), away=True)}
        )


@dataclass(frozen=True, kw_only=True)
class Rename(_Said):
    """The sink ``old`` goes on under the name ``new``, from the marker that it has."""

    word: ClassVar[str] = "rename"
    old: str
    new: str

    def marks(self, case: Case) -> Mapping[str, Marker | None]:
        return {self.new: _state(case, self.old).marker}

    def record(self, case: Case) -> Operator:
        identity = _member(case, self.old)
        _refuse_begun(case)
        after, through = _state(case, self.new), _through(case)
        if not self._is_free(case, after):
            raise Misconfigured(
                f"the name {self.new!r} is taken",
                sink=self.old,
                state=f"{self.new!r} shows {after.marker}, fenced by {after.fence}",
                help="choose a name that this app has not used",
            )
        stands = {
            self.old: SinkStanding(identity, (), through, away=True),
            self.new: SinkStanding(after.identity, (after.marker,), through),
        }
        return self._record(case, stands=stands)

    def _is_free(self, case: Case, after: SinkState) -> bool:
        """Return whether the new name is free.

        It is free if no sink uses it.  It is also free if an earlier rename to this name did not finish or was undone,
        and only its fence or marker is left.
        """
        stand = case.history.stands.get(self.new)
        if self.new in case.history.members or (stand is not None and not stand.is_renamed):
            return False
        return after.marker is None or after.marker.is_moved or after.fence in case.history.actors


@dataclass(frozen=True, kw_only=True)
class Adopt(_Said):
    """The checkpoint goes on at its present location.  Unknown fences of its sinks are accepted, but no unknown marker.

    A new log has no epoch and no operator's record about a sink, so it knows no marker.  Then the present marker of
    every sink is accepted, and the checkpoint's first epoch gets the next position in each sink.
    """

    word: ClassVar[str] = "adopt"

    def record(self, case: Case) -> Operator:
        unknown = {state.fence for state in case.states.values() if state.fence not in case.history.actors}
        fences = tuple(sorted(fence for fence in unknown if fence is not None))
        place = case.ask.query.checkpoint
        if not _is_fresh(case):
            return self._record(case, place=place, fences=fences)
        stands = {name: SinkStanding(state.identity, (state.marker,), -1) for name, state in case.states.items()}
        return self._record(case, place=place, fences=fences, stands=stands)


@dataclass(frozen=True, kw_only=True)
class Accept(_Said):
    """The sink goes on from its present identity and marker.  It never gets the epochs of this log that it lacks."""

    word: ClassVar[str] = "accept"
    sink: str

    @property
    def without(self) -> Collection[str]:
        return (self.sink,)

    def record(self, case: Case) -> Operator:
        if self.sink in case.history.stands and case.history.stands[self.sink].is_renamed:
            raise Misconfigured(
                "the sink goes on under another name",
                sink=self.sink,
                help="`epochal log` shows the new name; `epochal rename` can change it back",
            )
        state = _state(case, self.sink)
        self._refuse_ahead(case, state.marker)
        unknown = () if state.fence is None or state.fence in case.history.actors else (state.fence,)
        stand = SinkStanding(state.identity, (state.marker,), _through(case))
        return self._record(case, stands={self.sink: stand}, fences=unknown)

    def _refuse_ahead(self, case: Case, marker: Marker | None) -> None:
        """Refuse a sink that shows epochs which this log does not know, because their rows would be written again."""
        known = _possible_markers(case, self.sink)
        newest = max(m.position if m is not None else 0 for m in known) if known else 0
        is_known = bool(known) and (self.sink in case.history.members or self.sink in case.history.stands)
        if is_known and marker is not None and marker not in known and marker.position >= newest:
            raise CheckpointMismatch(
                f"the sink's marker ({marker}) belongs to no epoch that this checkpoint's log knows, and it is not"
                f" older than the log's last epoch, at position {newest}",
                sink=self.sink,
                state="rows of later epochs are visible in it, which this checkpoint would write again",
                help="restore the newest checkpoint; if it is lost, begin a new one that reads from where the sinks"
                " end, with `epochal adopt`",
            )


@dataclass(frozen=True, kw_only=True)
class RewriteMarker(_Said):
    """The sink's marker is gone, but an operator has seen that the sink shows every epoch up to the log's last one."""

    word: ClassVar[str] = "remark"
    sink: str

    def marks(self, case: Case) -> Mapping[str, Marker | None]:
        last = self._last(case)
        return {self.sink: Marker(last.position_of(self.sink), last.current.decision_of(self.sink).id)}

    @property
    def without(self) -> Collection[str]:
        return (self.sink,)

    def record(self, case: Case) -> Operator:
        _member(case, self.sink)
        state = _state(case, self.sink)
        last = self._last(case)
        is_newer = state.marker is not None and state.marker.position >= last.position_of(self.sink)
        if is_newer and not last.is_shown_by(self.sink, state.marker):
            raise Misconfigured(
                f"the sink has a marker: {state.marker}",
                sink=self.sink,
                state=f"the log's last epoch is {last.number}, at position {last.position_of(self.sink)}",
                help="only a missing or older marker is replaced; this one belongs to another checkpoint, or to a newer"
                " state of this checkpoint",
            )
        return self._record(case, stands={self.sink: SinkStanding(state.identity, (state.marker,), _through(case))})

    def _last(self, case: Case) -> LoggedEpoch:
        took_part = case.history.took_part(self.sink)
        if not took_part:
            raise Misconfigured(
                "the log knows no epoch of this sink, so there is no marker to write",
                sink=self.sink,
                help=f"`epochal resolve --accept {self.sink}` lets the sink go on from what it shows",
            )
        return took_part[0]


@dataclass(frozen=True, kw_only=True)
class Skip(_Said):
    """Epochs ``first`` to ``last`` never reached the pipeline, and nobody needs them."""

    word: ClassVar[str] = "skip"
    first: EpochNumber
    last: EpochNumber

    def record(self, case: Case) -> Operator:
        _refuse_begun(case)
        expected, asked = case.history.expected, case.ask.epoch
        if expected is None or not self.first == expected <= self.last == asked - 1:
            missed = f"{expected}..{asked - 1}" if expected is not None and expected < asked else "none"
            raise Misconfigured(
                f"epochs {self.first}..{self.last} are not the skipped epochs; skipped: {missed}",
                state=f"the log expects epoch {expected}, Spark will ask for epoch {asked}",
                help="name exactly the epochs that were skipped",
            )
        return self._record(case, expected=self.last + 1)


@dataclass(frozen=True, kw_only=True)
class Evaluate(_Said):
    """These sinks keep the rows that they show of the last epoch, although Spark's replay gives other rows."""

    word: ClassVar[str] = "evaluate"
    sinks: tuple[str, ...]

    def record(self, case: Case) -> Operator:
        last = case.history.last
        if last is None or not isinstance(last.current, Apply):
            raise Misconfigured(
                "the log's last epoch was not begun in idempotent mode, so it has no evaluations to compare",
                state=f"last epoch {last.number if last is not None else None}",
                help="start the query: it has nothing of this kind to decide; `epochal status` says what else stops it",
            )
        for name in self.sinks:
            _member(case, name)
            if not last.is_shown_by(name, _state(case, name).marker):
                raise Misconfigured(
                    f"the sink does not show epoch {last.number}, so there are no rows to keep",
                    sink=name,
                    epoch=last.number,
                    help="name the sinks that show it",
                )
        return self._record(case, evaluations=Evaluations(last.number, self.sinks))


def _member(case: Case, sink: str) -> str:
    """Return the identity that the log knows for this sink.  Raise ``Misconfigured`` if it is not a member."""
    members = case.history.members
    if sink not in members:
        raise Misconfigured(
            f"the log knows no sink {sink!r} that takes part",
            state=f"it knows {sorted(members)}",
            help="name a sink that the log knows",
        )
    return members[sink]


def _state(case: Case, sink: str) -> SinkState:
    """Return the sink's state.  Raise ``Misconfigured`` if the operator's pipeline does not have this sink."""
    if sink not in case.states:
        raise Misconfigured(
            f"the pipeline has no sink {sink!r}",
            state=f"it has {sorted(case.states)}",
            help="put the sink back into the pipeline for this command; if it cannot be reached, it can leave with"
            " `epochal retire --unreachable`",
        )
    return case.states[sink]


def _through(case: Case) -> EpochNumber:
    """Return the last epoch that is over for the sink once the action is recorded; -1 if the log has no epoch."""
    return case.history.last.number if case.history.last is not None else -1


def _is_fresh(case: Case) -> bool:
    """Return whether the log has no epoch and no operator's record about a sink."""
    return case.history.last is None and not case.history.stands


def _possible_markers(case: Case, sink: str) -> tuple[Marker | None, ...]:
    """Return all markers that the sink may have, according to the log."""
    took_part, stand = case.history.took_part(sink), case.history.stands.get(sink)
    markers: list[Marker | None] = []
    for epoch in took_part:
        decisions = {r.decision_of(sink).id: None for r in epoch.records if sink in r.participants}
        markers += [Marker(epoch.position_of(sink), decision) for decision in decisions]
    if len(took_part) < 2:
        markers += stand.markers if stand is not None else (None,)
    return tuple(markers)


def _refuse_begun(case: Case) -> None:
    """Refuse the action while a sink lacks an epoch that was begun in idempotent mode.

    Only Spark's replay can give the sink that epoch, and its rows are compared with what the other sinks show.
    """
    last = case.history.last
    if last is None or not isinstance(last.current, Apply):
        return
    taking_part = [name for name in last.current.participants if not case.history.is_over(name, last.number)]
    shown = {name: last.is_shown_by(name, case.states[name].marker) for name in taking_part if name in case.states}
    behind = sorted(name for name, visible in shown.items() if not visible)
    if behind:
        raise _restart_first(last.number, behind)


def _restart_first(epoch: EpochNumber, behind: list[str]) -> EpochalError:
    return CheckpointMismatch(
        f"epoch {epoch} was begun in idempotent mode and is not visible in {', '.join(behind)}",
        epoch=epoch,
        state="only Spark's replay can give these sinks the epoch",
        help="restart the query, wait until this epoch is committed, then run the command again",
    )
