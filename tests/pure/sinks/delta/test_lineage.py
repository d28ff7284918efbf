"""Which epochs a RESTORE took out of a table, by the table's log alone."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from epochal.coordinator.model.epoch import Json, Marker
from epochal.coordinator.model.errors import CheckpointMismatch
from epochal.sinks.delta.lineage import Lineage, log_file

IDS = ("position", "decision")


def lineage(*versions: Json) -> Lineage:
    """A table whose version n has this `commitInfo`; version n also wrote the marker of position n."""
    log: Mapping[str, str] = {
        log_file(number): "\n".join(
            json.dumps(action)
            for action in (
                {"commitInfo": info},
                *({"txn": {"appId": name, "version": number}} for name in IDS if info["operation"] == "WRITE"),
            )
        )
        for number, info in enumerate(versions)
    }
    return Lineage(log.get, IDS, "out")


WRITES = [{"operation": "WRITE"}] * 4


def restored(**to: object) -> Json:
    return {"operation": "RESTORE", "operationParameters": to}


def test_without_a_restore_the_marker_is_what_is_shown() -> None:
    assert lineage(*WRITES).marker(3, 0, Marker(3, 3)) == Marker(3, 3)


def test_after_a_restore_the_marker_of_the_restored_version_is_what_is_shown() -> None:
    assert lineage(*WRITES, restored(version=2)).marker(4, 0, Marker(3, 3)) == Marker(2, 2)


def test_a_restore_to_a_time_names_no_version_and_is_refused() -> None:
    log = lineage(*WRITES, restored(version=None, timestamp="2026-01-01"))
    with pytest.raises(CheckpointMismatch, match="version 4 of the table is a RESTORE to a point in time") as refused:
        log.marker(4, 0, Marker(3, 3))
    assert "version 3 undoes the RESTORE" in refused.value.help
