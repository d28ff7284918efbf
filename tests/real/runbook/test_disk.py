"""Corners in which the checkpoint's disk is full: one of its own, as small as it may be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from epochal.chaos.strike.disk import Disk, why_not
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.failpoints import Point
from tests.real.runbook.conftest import MakeCorner
from tests.real.runbook.support import symptoms

pytestmark = pytest.mark.wide

ALL = [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("title", "point", "prepared"),
    [("Disk full under the log", Point.BEFORE_DECIDE, True), ("Disk full under the copy", Point.BEFORE_PREPARE, False)],
)
def test_a_full_disk(corner: MakeCorner, tmp_path: Path, title: str, point: Point, *, prepared: bool) -> None:
    """It fills up at that point of an epoch; what had been prepared by then is not shown, and not lost."""
    if why_not():  # then the page's words are all that there is to look at
        assert symptoms(title)
        return
    job = corner(title)
    moved = tmp_path / "moved"
    shutil.move(job.checkpoint, moved)
    with Disk(job.checkpoint, megabytes=8) as disk:
        shutil.copytree(moved, job.checkpoint, dirs_exist_ok=True)
        job.add(4)
        struck: list[int] = []

        def fill(at: Point, _: str, epoch: int) -> None:
            if at is point:
                struck.append(epoch)
                disk.fill()

        with failpoints.handler(fill):
            job.fails()
        assert struck == [2]
        assert prepared == any(job.lake.rglob("epochal-stage/**/*.json"))
        assert job.shown() == {"table": [1, 2, 3], "topic": [1, 2, 3], "lake": [1, 2, 3]}
        if prepared:  # each start ends so
            job.fails()
        disk.drain()
        job.add(5)
        job.go()
        job.follow()
        job.converges(table=ALL, topic=ALL, lake=ALL)
