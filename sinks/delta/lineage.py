"""Find out which epochs a ``RESTORE TABLE`` has taken out of a table.

A RESTORE removes rows and leaves transaction ids as they are (delta-io/delta#1813; Delta 4.4 still does so).  After it
the marker may name an epoch whose rows are gone.  The table's log shows what happened.  The parent of a RESTORE is the
version that it restored; the parent of any other version is the version below it.  Versions between a RESTORE and its
parent no longer count, and neither do the markers in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from epochal.coordinator.model.epoch import Json, Marker
from epochal.coordinator.model.errors import CheckpointMismatch

LOG = "_delta_log"

Version = int
"""A version of the table."""
ReadLog = Callable[[str], "str | None"]
"""Returns the text of a file of the table; None if there is no such file."""


def log_file(version: Version) -> str:
    return f"{LOG}/{version:020}.json"


@dataclass(frozen=True)
class Lineage:
    """The versions of one table with respect to one marker.  ``ids``: the transaction ids of position and decision."""

    read: ReadLog
    ids: tuple[str, str]
    sink: str

    def marker(self, newest: Version, seen: Version, marker: Marker | None) -> Marker | None:
        """Return the newest marker whose rows the table shows.

        That is ``marker``, or an older one if a RESTORE above version ``seen`` took the rows of ``marker`` away.
        ``CheckpointMismatch``: the RESTORE was to a point in time, and the log does not tell which version that was.
        A RESTORE that the log no longer holds is not noticed.
        """
        at = newest
        while at > seen and (actions := self._actions(at)) is not None:
            restored = self._restored(at, actions)
            if restored is not None and any(self._held(v) for v in range(restored + 1, at)):
                return next(self._markers(restored), None)
            at = at - 1 if restored is None else restored
        return marker

    def _markers(self, newest: Version) -> Iterator[Marker]:
        """Yield the markers that were written up to version ``newest`` and still count, the newest first."""
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
        """Return the marker that this version wrote; None if it wrote none."""
        txns = [action["txn"] for action in self._actions(version) or () if "txn" in action]
        written = {txn["appId"]: int(txn["version"]) for txn in txns}
        position, decision = (written.get(identity) for identity in self.ids)
        return Marker(position, decision) if position is not None and decision is not None else None

    def _restored(self, version: Version, actions: list[Json]) -> Version | None:
        """Return the version that this one restored; None if it is not a RESTORE."""
        info: Json = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if info.get("operation") != "RESTORE":
            return None
        restored = restored_by(info)
        if restored is None:
            given = info.get("operationParameters") or {}
            raise CheckpointMismatch(
                f"version {version} of the table is a RESTORE to a point in time, {given.get('timestamp')!r}, so the"
                " table's log does not tell which epochs were removed",
                sink=self.sink,
                state=f"the transaction ids {', '.join(self.ids)} stay as they were, whatever is restored",
                help=f"restore the table to a version number: version {version - 1} undoes the RESTORE, and DESCRIBE"
                " HISTORY shows the version of that time; then start again (docs/runbook.md)",
            )
        return restored


def counted(commits: Iterable[tuple[Version, Json]]) -> Iterator[Version]:
    """Yield the versions that no later RESTORE has taken back.

    ``commits``: each version with its commit info, the newest first.
    """
    below: Version | None = None
    for version, info in commits:
        if below is None or version <= below:
            yield version
            restored = restored_by(info)
            below = restored if restored is not None else below


def restored_by(info: Json) -> Version | None:
    """Return the version that a commit restored; None if it is not a RESTORE, or one to a point in time."""
    restored = (info.get("operationParameters") or {}).get("version")
    return int(restored) if info.get("operation") == "RESTORE" and restored not in (None, "null") else None


def actions_of(text: str) -> Iterator[Json]:
    """Yield the actions in a file of the log."""
    for line in text.splitlines():
        if line:
            yield json.loads(line)
