"""The epoch log: durable decisions, added by compare-and-append.  The append of a ``Commit`` is *the* commit point.

Kinds of records: :class:`Fence` (a start took over), :class:`Commit` (an epoch is decided), :class:`Apply`
(idempotent mode: an epoch is begun), :class:`Operator` (a person decided what the protocol cannot decide).  A record
is one line of text: a checksum, then JSON with a version.  A record that does not match its checksum raises
``LogCorrupt``; it is never taken for an empty log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from epochal.coordinator.model.epoch import (
    TWO_PHASE,
    Actor,
    Committable,
    Copy,
    Decision,
    EpochNumber,
    Json,
    Marker,
    Position,
    Query,
)
from epochal.coordinator.model.errors import LogCorrupt

LogPosition = int
"""A record's place in the log, from 0.  A position is never created twice."""

RECORD_VERSION = 3
"""The newest version of a record.  A ``Commit`` with frames has version 3, because an older Epochal would redo such an
epoch from the wrong copy.  ``Operator`` records have version 2.  All others have version 1, for older readers."""


@dataclass(frozen=True)
class Participant:
    """One sink of one epoch: ``identity`` (which table or topic it physically is), and its committable.

    ``frame``: the frame whose rows the sink gets; "" for the micro-batch itself.
    """

    identity: str
    committable: Committable
    frame: str = ""

    def to_json(self) -> Json:
        frame = {"frame": self.frame} if self.frame else {}
        return {"identity": self.identity, "committable": self.committable.to_json(), **frame}

    @classmethod
    def from_json(cls, data: Json) -> Participant:
        return cls(str(data["identity"]), Committable.from_json(data["committable"]), str(data.get("frame", "")))


@dataclass(frozen=True)
class Fence:
    """A start took over.  ``base`` is the first epoch that Spark asked this start for."""

    kind: ClassVar[str] = "fence"
    epoch: ClassVar[None] = None  # the record belongs to no epoch
    actor: Actor
    query: Query
    base: EpochNumber
    mode: str = TWO_PHASE  # the mode of the epochs that this start begins; an epoch's mode is that of its record
    done_through: Mapping[str, EpochNumber] = field(default_factory=dict)

    def to_json(self) -> Json:
        q = self.query
        return {
            "actor": self.actor.to_json(),
            "query": {"app": q.app, "query_id": q.query_id, "run_id": q.run_id, "checkpoint": q.checkpoint},
            "base": self.base,
            "mode": self.mode,
            "done_through": dict(self.done_through),
        }

    @classmethod
    def from_json(cls, data: Json) -> Fence:
        return cls(
            actor=Actor.from_json(data["actor"]),
            query=Query(**{k: str(v) for k, v in data["query"].items()}),
            base=int(data["base"]),
            mode=str(data["mode"]),
            done_through={str(k): int(v) for k, v in data["done_through"].items()},
        )


@dataclass(frozen=True)
class Commit:
    """An epoch is decided.  With ``decision.redo > 0`` the record supersedes the earlier ``Commit`` of the same epoch.

    A superseding record has all participants.  Those that were not redone keep their committable, and with it their
    decision, so an old marker remains a proof.
    """

    kind: ClassVar[str] = "commit"
    decision: Decision
    actor: Actor  # the actor that appended the record
    participants: Mapping[str, Participant]
    offsets: str = ""
    watermark: int | None = None
    copy: Copy | None = None
    supersedes: int | None = None  # Decision.id of the record it replaces
    done_through: Mapping[str, EpochNumber] = field(default_factory=dict)
    judgements: Mapping[str, Json] = field(default_factory=dict)  # for bad_rows=: by the sink that gets the bad rows
    frames: Mapping[str, Copy] = field(default_factory=dict)  # the copy of each frame that a sink gets, by its name

    @property
    def epoch(self) -> EpochNumber:
        return self.decision.epoch

    @property
    def copies(self) -> tuple[Copy, ...]:
        """All durable copies of the epoch: that of the micro-batch, and those of its frames."""
        return tuple(copy for copy in (self.copy, *self.frames.values()) if copy is not None)

    def position_of(self, sink: str) -> Position:
        return self.participants[sink].committable.position

    def decision_of(self, sink: str) -> Decision:
        """Return the decision that the sink's marker names: an earlier one if the sink was not redone."""
        return self.participants[sink].committable.decision

    def to_json(self) -> Json:
        return {
            "decision": self.decision.to_json(),
            "actor": self.actor.to_json(),
            "participants": {name: p.to_json() for name, p in self.participants.items()},
            "offsets": self.offsets,
            "watermark": self.watermark,
            "copy": self.copy.to_json() if self.copy is not None else None,
            "supersedes": self.supersedes,
            "done_through": dict(self.done_through),
            **({"judgements": dict(self.judgements)} if self.judgements else {}),
            **({"frames": {name: copy.to_json() for name, copy in self.frames.items()}} if self.frames else {}),
        }

    @classmethod
    def from_json(cls, data: Json) -> Commit:
        copy, mark, supersedes = data["copy"], data["watermark"], data["supersedes"]
        return cls(
            decision=Decision.from_json(data["decision"]),
            actor=Actor.from_json(data["actor"]),
            participants={str(n): Participant.from_json(p) for n, p in data["participants"].items()},
            offsets=str(data["offsets"]),
            watermark=int(mark) if mark is not None else None,
            copy=Copy.from_json(copy) if copy is not None else None,
            supersedes=int(supersedes) if supersedes is not None else None,
            done_through={str(k): int(v) for k, v in data["done_through"].items()},
            judgements=dict(data.get("judgements", {})),
            frames={str(name): Copy.from_json(copy) for name, copy in data.get("frames", {}).items()},
        )


@dataclass(frozen=True)
class SinkPosition:
    """One sink of an epoch that is applied: which table or topic it physically is, and the epoch's position in it."""

    identity: str
    position: Position

    def to_json(self) -> Json:
        return {"identity": self.identity, "position": self.position}

    @classmethod
    def from_json(cls, data: Json) -> SinkPosition:
        return cls(str(data["identity"]), int(data["position"]))


@dataclass(frozen=True)
class Apply:
    """Idempotent mode: a start begins an epoch, or continues it.

    The record is durable before the start gives any row of the epoch to a sink.  It decides nothing: if no sink shows
    the epoch, nothing has happened.  A marker names the ``decision`` of the start that wrote the marker, so every
    ``Apply`` of an epoch remains a proof.
    """

    kind: ClassVar[str] = "apply"
    decision: Decision
    participants: Mapping[str, SinkPosition]
    offsets: str = ""
    watermark: int | None = None
    supersedes: int | None = None  # Decision.id of the earlier record of the same epoch that this one continues
    done_through: Mapping[str, EpochNumber] = field(default_factory=dict)
    judgements: Mapping[str, Json] = field(default_factory=dict)  # for bad_rows=: by the sink that gets the bad rows

    @property
    def actor(self) -> Actor:
        return self.decision.actor

    @property
    def epoch(self) -> EpochNumber:
        return self.decision.epoch

    def position_of(self, sink: str) -> Position:
        return self.participants[sink].position

    def decision_of(self, sink: str) -> Decision:  # noqa: ARG002
        return self.decision

    def to_json(self) -> Json:
        return {
            "decision": self.decision.to_json(),
            "participants": {name: place.to_json() for name, place in self.participants.items()},
            "offsets": self.offsets,
            "watermark": self.watermark,
            "supersedes": self.supersedes,
            "done_through": dict(self.done_through),
            **({"judgements": dict(self.judgements)} if self.judgements else {}),
        }

    @classmethod
    def from_json(cls, data: Json) -> Apply:
        mark, supersedes = data["watermark"], data["supersedes"]
        return cls(
            decision=Decision.from_json(data["decision"]),
            participants={str(n): SinkPosition.from_json(p) for n, p in data["participants"].items()},
            offsets=str(data["offsets"]),
            watermark=int(mark) if mark is not None else None,
            supersedes=int(supersedes) if supersedes is not None else None,
            done_through={str(k): int(v) for k, v in data["done_through"].items()},
            judgements=dict(data.get("judgements", {})),
        )


@dataclass(frozen=True)
class SinkStanding:
    """What an ``Operator`` record says of one sink: ``identity`` (which table or topic it is) and its valid markers.

    ``through``: for this sink all epochs of this log up to this one are over, whether the sink shows them or not.
    ``markers``: each of them is valid; there are several only if the sink could not be asked.
    ``away``: the sink has left the pipeline, and may return with a valid marker.  If ``away`` and without markers the
    sink may never return, because it continues under another name.
    """

    identity: str
    markers: tuple[Marker | None, ...]
    through: EpochNumber
    away: bool = False

    @property
    def is_renamed(self) -> bool:
        return self.away and not self.markers

    def to_json(self) -> Json:
        markers = [None if m is None else {"position": m.position, "decision": m.decision} for m in self.markers]
        return {"identity": self.identity, "markers": markers, "through": self.through, "away": self.away}

    @classmethod
    def from_json(cls, data: Json) -> SinkStanding:
        markers = tuple(None if m is None else Marker(int(m["position"]), int(m["decision"])) for m in data["markers"])
        return cls(str(data["identity"]), markers, int(data["through"]), bool(data["away"]))


@dataclass(frozen=True)
class Evaluations:
    """Idempotent mode: these sinks keep their rows of the epoch, although another evaluation gives other rows."""

    epoch: EpochNumber
    sinks: tuple[str, ...]

    def to_json(self) -> Json:
        return {"epoch": self.epoch, "sinks": list(self.sinks)}

    @classmethod
    def from_json(cls, data: Json) -> Evaluations:
        return cls(int(data["epoch"]), tuple(map(str, data["sinks"])))


@dataclass(frozen=True)
class Operator:
    """What a person decided, and why.  The record applies to the records before it, and is kept for ever.

    ``said``: the command and its arguments, for people.  ``place``: the checkpoint's location from now on.
    ``fences``: fences that were found in sinks and accepted.  ``expected``: the next epoch, if epochs were skipped.
    """

    kind: ClassVar[str] = "operator"
    epoch: ClassVar[None] = None  # the record belongs to no single epoch
    actor: Actor
    said: Json
    why: str
    at: str  # ISO 8601, UTC
    stands: Mapping[str, SinkStanding] = field(default_factory=dict)
    place: str | None = None
    fences: tuple[Actor, ...] = ()
    expected: EpochNumber | None = None
    evaluations: Evaluations | None = None
    done_through: Mapping[str, EpochNumber] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "actor": self.actor.to_json(),
            "said": self.said,
            "why": self.why,
            "at": self.at,
            "stands": {name: stand.to_json() for name, stand in self.stands.items()},
            "place": self.place,
            "fences": [fence.to_json() for fence in self.fences],
            "expected": self.expected,
            "evaluations": self.evaluations.to_json() if self.evaluations is not None else None,
            "done_through": dict(self.done_through),
        }

    @classmethod
    def from_json(cls, data: Json) -> Operator:
        place, expected, evaluations = data["place"], data["expected"], data["evaluations"]
        return cls(
            actor=Actor.from_json(data["actor"]),
            said=dict(data["said"]),
            why=str(data["why"]),
            at=str(data["at"]),
            stands={str(n): SinkStanding.from_json(s) for n, s in data["stands"].items()},
            place=str(place) if place is not None else None,
            fences=tuple(map(Actor.from_json, data["fences"])),
            expected=int(expected) if expected is not None else None,
            evaluations=Evaluations.from_json(evaluations) if evaluations is not None else None,
            done_through={str(k): int(v) for k, v in data["done_through"].items()},
        )


EpochRecord = Commit | Apply
"""The records that belong to one epoch."""
Record = Fence | Commit | Apply | Operator
_KINDS: Mapping[str, type[Fence] | type[Commit] | type[Apply] | type[Operator]] = {
    kind.kind: kind for kind in (Fence, Commit, Apply, Operator)
}


@dataclass(frozen=True)
class Entry:
    """A record and its position."""

    position: LogPosition
    record: Record


class EpochLog(Protocol):
    """Ordered records, appended by compare-and-set on the position."""

    def read(self) -> Sequence[Entry]:
        """Return all entries, in order: those that the newest compaction kept, then all from its floor on."""

    def append(self, position: LogPosition, record: Record) -> bool:
        """Append durably at exactly this position; return False if the position is taken, perhaps by the caller itself.

        After an exception the outcome is *unknown*: the caller repeats the same append at the same position.
        """

    def compact(self, floor: LogPosition, kept: Sequence[Entry]) -> None:
        """Forget all entries below ``floor`` except ``kept``.  The floor is durable before anything is deleted.

        A floor that is not above the present one changes nothing.  ``kept`` must depend only on the
        records below ``floor``, so that two compactions to the same floor write the same.
        """

    def describe(self) -> str:
        """Say where the log is, for messages; never with a secret."""


def encode(record: Record) -> bytes:
    """Return the record as one line: its checksum, then JSON."""
    body = json.dumps(
        {"version": _version_of(record), "kind": record.kind, "record": record.to_json()},
        sort_keys=True,
        ensure_ascii=False,
    )
    return f"{_checksum(body)} {body}\n".encode()


def _version_of(record: Record) -> int:
    if isinstance(record, Commit) and record.frames:
        return 3
    return 2 if isinstance(record, Operator) else 1


def decode(data: bytes, where: str) -> Record:
    """Return the record in ``data``; raise ``LogCorrupt``, which names ``where``, if it is damaged or newer."""
    try:
        text = data.decode()
        checksum, _, body = text.partition(" ")
        if not text.endswith("\n") or checksum != _checksum(body[:-1]):
            raise ValueError("checksum does not match: torn or foreign")
        outer = json.loads(body)
        _check_version(int(outer["version"]), where)
        return _KINDS[outer["kind"]].from_json(outer["record"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogCorrupt(
            f"{where} is not a whole record of the epoch log: {error!r}",
            state=f"{len(data)} bytes, beginning {data[:40]!r}",
            help="restore the file from a backup of the checkpoint, or upgrade Epochal if it is newer",
        ) from error


def _check_version(found: int, where: str) -> None:
    if found > RECORD_VERSION:
        raise LogCorrupt(
            f"a newer Epochal has written the epoch log: {where} is a record of version {found}",
            state=f"this one reads up to version {RECORD_VERSION}, and has written nothing",
            help="start the query with the newer Epochal",
        )


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
