"""The nouns of the protocol, as plain data, and its table of phases.

Rules for this file: data only, no I/O, no imports but the standard library.  Everything here is made of plain values:
it can be written as JSON, and another process can read it.  Integers that look alike have type names of their own.

Two identities are kept apart.  A *decision* says who prepared an epoch, and it stays valid for ever: committables and
markers carry it.  An *actor* says which start is calling: it is passed as ``by=``, and fences bar old actors.  A new
actor finishes an old actor's decision.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

EpochNumber = int
"""Spark's batch id: counts from 0 within one checkpoint."""
Position = int
"""An epoch's place in one sink.  It counts up by one per committed epoch and is never reused; 0 means no epoch yet."""
Json = dict[str, Any]
"""Plain JSON: str keys; values str, int, float, bool, None, lists and objects of these."""

NAME = re.compile(r"[A-Za-z0-9._-]{1,120}")
"""What an app or sink may be called (it becomes part of topic names and transaction ids)."""

_63_BITS = (1 << 63) - 1

TWO_PHASE = "two-phase"
"""The mode in which an epoch is decided once for all sinks: a ``Commit`` in the log."""
IDEMPOTENT = "idempotent"
"""The mode without a decision and without a copy: an ``Apply`` in the log.  Each sink gets the epoch, and gets it again
after a failure, until the sink shows it."""
MODES = (TWO_PHASE, IDEMPOTENT)


class Phase(enum.Enum):
    """The steps of the protocol, in order; README's picture and ``coordinator.py`` follow this order."""

    LOOK = "look"
    FENCE = "fence"
    LOOK_AGAIN = "look-again"
    SETTLE = "settle"
    IDENTIFY = "identify"
    PREPARE = "prepare"
    DECIDE = "decide"
    COMMIT = "commit"
    APPLY = "apply"  # idempotent mode: instead of prepare, decide and commit
    RETURN = "return"


NEXT: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.LOOK: (Phase.FENCE,),
    Phase.FENCE: (Phase.LOOK_AGAIN,),
    Phase.LOOK_AGAIN: (Phase.SETTLE,),
    Phase.SETTLE: (Phase.IDENTIFY,),
    Phase.IDENTIFY: (Phase.PREPARE, Phase.APPLY, Phase.RETURN),  # RETURN: visible already, nothing is written again
    Phase.PREPARE: (Phase.DECIDE,),
    Phase.DECIDE: (Phase.COMMIT,),
    Phase.COMMIT: (Phase.RETURN,),
    Phase.APPLY: (Phase.RETURN,),
    Phase.RETURN: (Phase.IDENTIFY,),
}
"""Which phase may follow which.  A transition that is not here is illegal.  After an error no phase follows."""


@dataclass(frozen=True, order=True)
class Actor:
    """Which start is acting.  Generations count up.  The token distinguishes two actors of the same generation."""

    generation: int
    token: int  # random, 63 bits, so that it fits a bigint and a Delta transaction version

    @classmethod
    def new(cls, generation: int) -> Actor:
        return cls(generation, secrets.randbits(63))

    def to_json(self) -> Json:
        return {"generation": self.generation, "token": self.token}

    @classmethod
    def from_json(cls, data: Json) -> Actor:
        return cls(int(data["generation"]), int(data["token"]))

    def __str__(self) -> str:
        return f"g{self.generation}/{self.token & 0xFFFF:04x}"


@dataclass(frozen=True)
class Query:
    """Who is asking: the user's app, Spark's query id (in markers: *incarnation*) and run id."""

    app: str
    query_id: str
    run_id: str
    checkpoint: str  # the resolved checkpoint location, a URI


@dataclass(frozen=True)
class Decision:
    """The identity of one decision, or of an ``Apply`` in idempotent mode; ``id`` is what markers store."""

    incarnation: str  # Spark's query id
    epoch: EpochNumber
    actor: Actor  # who prepared it
    fingerprint: str  # hash of Spark's offsets/N
    redo: int = 0  # counts up when lost prepared work is redone

    @cached_property
    def id(self) -> int:
        """A 63-bit hash of all fields: the same in every process, never negative, and it fits a bigint."""
        text = json.dumps(self.to_json(), sort_keys=True).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") & _63_BITS

    def to_json(self) -> Json:
        return {
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "actor": self.actor.to_json(),
            "fingerprint": self.fingerprint,
            "redo": self.redo,
        }

    @classmethod
    def from_json(cls, data: Json) -> Decision:
        return cls(
            incarnation=str(data["incarnation"]),
            epoch=int(data["epoch"]),
            actor=Actor.from_json(data["actor"]),
            fingerprint=str(data["fingerprint"]),
            redo=int(data["redo"]),
        )


@dataclass(frozen=True)
class EpochRequest:
    """What Spark asks for: to run this epoch, whose planned offsets have this fingerprint."""

    query: Query
    epoch: EpochNumber
    fingerprint: str
    offsets: str = ""  # the text of Spark's offsets/N, for people and for the audit
    watermark: int | None = None  # milliseconds since 1970, as offsets/N records it


PARQUET = "parquet"
"""The form of a copy that every sink can read."""


@dataclass(frozen=True)
class CopyFile:
    """One file of a durable copy: its path relative to the copy's root, its length in bytes, and its number of rows."""

    path: str
    length: int
    rows: int


@dataclass(frozen=True)
class Copy:
    """The durable copy of one epoch's rows: exactly these files, and no other files in the same directory."""

    root: str  # URI of the directory
    files: tuple[CopyFile, ...]
    schema: str  # Spark's JSON of the schema
    form: str = PARQUET  # what the files are; a sink that writes the copy itself may have a form of its own

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    def to_json(self) -> Json:
        files = [[f.path, f.length, f.rows] for f in self.files]
        told = {"root": self.root, "files": files, "schema": self.schema}
        return told if self.form == PARQUET else {**told, "form": self.form}

    @classmethod
    def from_json(cls, data: Json) -> Copy:
        files = tuple(CopyFile(str(p), int(n), int(r)) for p, n, r in data["files"])
        form = str(data.get("form", PARQUET))
        return cls(root=str(data["root"]), files=files, schema=str(data["schema"]), form=form)


@dataclass(frozen=True)
class Digest:
    """The digest of the rows of one evaluation, before a sink changes them.  Order and partitions do not matter.

    ``sum``: the sum of a 64-bit hash of each row, modulo 2**63, so that it fits wherever a decision's id does.
    """

    rows: int
    sum: int

    @classmethod
    def of(cls, hashes: Iterable[int]) -> Digest:
        """Return the digest of rows with these hashes, which may be signed or unsigned."""
        rows = total = 0
        for hashed in hashes:
            rows, total = rows + 1, total + hashed
        return cls(rows, total & _63_BITS)

    def __add__(self, other: Digest) -> Digest:
        """Return the digest of the rows of both."""
        return Digest(self.rows + other.rows, (self.sum + other.sum) & _63_BITS)

    def to_json(self) -> Json:
        return {"rows": self.rows, "sum": self.sum}

    @classmethod
    def from_json(cls, data: Json) -> Digest:
        return cls(int(data["rows"]), int(data["sum"]))

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.sum:016x}"


@dataclass(frozen=True)
class Epoch:
    """What a sink is asked to prepare: an epoch, with its decision and with its position in this sink."""

    decision: Decision
    position: Position
    offsets: str = ""
    watermark: int | None = None
    copy: Copy | None = None  # where the durable copy lies, if there is one
    digest: bool = False  # idempotent mode: the vote and the marker carry the digest of the rows

    @property
    def number(self) -> EpochNumber:
        return self.decision.epoch

    def at(self, position: Position) -> Epoch:
        return replace(self, position=position)


COMMITTABLE_VERSION = 1


@dataclass(frozen=True)
class Committable:
    """All that another process needs to commit what a dead process prepared.  It never contains a secret."""

    sink: str
    decision: Decision
    position: Position
    rows: int
    payload: Json = field(default_factory=dict)  # the sink's own data, JSON
    version: int = COMMITTABLE_VERSION
    left_out: int = 0  # rows that where= keeps out of this sink, or that go to bad_rows=; `rows` does not count them
    digest: Digest | None = None  # of the rows as they were evaluated, if ``Epoch.digest`` asks for it

    def to_json(self) -> Json:
        return {
            "version": self.version,
            "sink": self.sink,
            "decision": self.decision.to_json(),
            "position": self.position,
            "rows": self.rows,
            "payload": self.payload,
            **({"left_out": self.left_out} if self.left_out else {}),
            **({"digest": self.digest.to_json()} if self.digest is not None else {}),
        }

    @classmethod
    def from_json(cls, data: Json) -> Committable:
        version = int(data["version"])
        if version > COMMITTABLE_VERSION:
            raise ValueError(f"committable of version {version}; this Epochal reads up to {COMMITTABLE_VERSION}")
        return cls(
            sink=str(data["sink"]),
            decision=Decision.from_json(data["decision"]),
            position=int(data["position"]),
            rows=int(data["rows"]),
            payload=dict(data["payload"]),
            version=version,
            left_out=int(data.get("left_out", 0)),
            digest=Digest.from_json(data["digest"]) if "digest" in data else None,
        )


UNKNOWN_DECISION = -1
"""The id that stands for an unknown decision; no decision has it."""
MOVED = 0
"""The decision id in the marker that a renamed sink leaves under its old name.  It is not negative: Delta keeps it as
the version of a transaction id, and a negative version would mean that there is none."""


@dataclass(frozen=True)
class Marker:
    """What a sink keeps about its newest epoch, written in the same atomic write as that epoch's rows.

    ``digest``: the digest of the rows, in idempotent mode.  Position and decision alone identify the epoch.
    """

    position: Position
    decision: int  # Decision.id
    digest: Digest | None = field(default=None, compare=False)

    @property
    def is_moved(self) -> bool:
        """Whether the sink goes on under another name.  Such a marker belongs to no epoch."""
        return self.decision == MOVED

    def __str__(self) -> str:
        if self.is_moved:
            return f"position {self.position}, moved to another name"
        known = self.decision != UNKNOWN_DECISION
        return f"position {self.position} of {f'decision {self.decision}' if known else 'an unknown decision'}"


@dataclass(frozen=True)
class SinkState:
    """What ``look`` found in a sink."""

    identity: str  # what the sink physically is: server and object ids, not the name
    fence: Actor | None
    marker: Marker | None
