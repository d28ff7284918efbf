"""What a ``RESTORE TABLE`` has taken out of a table again.

It takes back rows and leaves transaction ids as they are (delta-io/delta#1813, so in 4.4): after one the marker names
epochs whose rows are gone.  The table's log tells: a version that is no RESTORE has the version below it as its parent,
one that is has the version that it restored.  Versions between the two count no more, nor do the markers in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from epochal.coordinator.model.epoch import Json, Marker
from epochal.coordinator.model.errors import CheckpointMismatch

LOG = "_delta_log"

Version = int
"""Of the table."""
ReadLog = Callable[[str], "str | None"]
"""The text of a file of the table; None if there is none."""


def log_file(version: Version) -> str:
    return f"{LOG}/{version:020}.json"


@dataclass(frozen=True)
class Lineage:
    """The versions of one table, as far as they are about one marker; ``ids``: those of position and decision."""

    read: ReadLog
    ids: tuple[str, str]
    sink: str

    def marker(self, newest: Version, seen: Version, marker: Marker | None) -> Marker | None:
        """``marker``, or the older one whose rows the table shows, if a RESTORE above version ``seen`` took its rows.

        ``CheckpointMismatch`` after one to a point in time, as the log does not tell which version that was.  What the
        log does not hold any more is not noticed.
        """
        at = newest
        while at > seen and (actions := self._actions(at)) is not None:
            restored = self._restored(at, actions)
            if restored is not None and any(self._held(v) for v in range(restored + 1, at)):
                return next(self._markers(restored), None)
            at = at - 1 if restored is None else restored
        return marker

    def _markers(self, newest: Version) -> Iterator[Marker]:
        """Those that were written up to there and still count, the newest first."""
        at = newest
        while at >= 0 and (actions := self._actions(at)) is not None:
            if (held := self._held(at)) is not None and held.position > 0:
                yield held
            restored = self._restored(at, actions)
            at = at - 1 if restored is None else restored

    def _actions(self, version: Version) -> list[Json] | None:
        text = self.read(log_file(version))
        return list(actions_of(text)) if text is not None else None

    def _held(self, version: Version) -> Marker | None:
        """The marker that this version wrote."""
        txns = [action["txn"] for action in self._actions(version) or () if "txn" in action]
        written = {txn["appId"]: int(txn["version"]) for txn in txns}
        position, decision = (written.get(identity) for identity in self.ids)
        return Marker(position, decision) if position is not None and decision is not None else None

    def _restored(self, version: Version, actions: list[Json]) -> Version | None:
        """Which version it put back, None if it is no RESTORE."""
        info: Json = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if info.get("operation") != "RESTORE":
            return None
        restored = restored_by(info)
        if restored is None:
            given = info.get("operationParameters") or {}
            raise CheckpointMismatch(
                f"version {version} of the table restored it to a point in time, {given.get('timestamp')!r}, so its log"
                " does not tell which epochs it took back",
                sink=self.sink,
                state=f"the transaction ids {', '.join(self.ids)} stay as they were, whatever is restored",
                help=f"restore it by number: to version {version - 1}, which undoes that, or to the version that"
                " DESCRIBE HISTORY shows for that time; then start again (docs/runbook.md)",
            )
        return restored


def counted(commits: Iterable[tuple[Version, Json]]) -> Iterator[Version]:
    """Of versions and what they say of themselves, the newest first, those that no later RESTORE has taken back."""
    below: Version | None = None
    for version, info in commits:
        if below is None or version <= below:
            yield version
            restored = restored_by(info)
            below = restored if restored is not None else below


def restored_by(info: Json) -> Version | None:
    """The version that a commit put back; None where it is no RESTORE, or one to a point in time."""
    restored = (info.get("operationParameters") or {}).get("version")
    return int(restored) if info.get("operation") == "RESTORE" and restored not in (None, "null") else None


def actions_of(text: str) -> Iterator[Json]:
    """The actions in a file of the log."""
    for line in text.splitlines():
        if line:
            yield json.loads(line)
