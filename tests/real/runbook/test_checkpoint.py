"""Corners in which the checkpoint is not what it was."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from epochal.coordinator.model.failpoints import Point
from tests.real.runbook.conftest import MakeCorner
from tests.real.runbook.support import Corner
from tests.real.sinks.postgres.support import observe

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

pytestmark = pytest.mark.wide

ALL = ("table", "topic", "lake")


def everywhere(*ids: int) -> dict[str, list[int]]:
    return {key: list(ids) for key in ALL}


def reads_from_the_sinks_end(job: Corner) -> None:
    """The source of a new checkpoint has only what was not read yet."""
    for file in job.source.iterdir():
        file.unlink()


def backup(job: Corner, name: str) -> Path:
    return shutil.copytree(job.checkpoint, job.folder / name)


def restore(job: Corner, saved: Path) -> None:
    shutil.rmtree(job.checkpoint)
    shutil.copytree(saved, job.checkpoint)


def test_checkpoint_deleted(corner: MakeCorner) -> None:
    job = corner("Checkpoint deleted")
    shutil.rmtree(job.checkpoint)
    reads_from_the_sinks_end(job)
    job.add(4)
    job.fails()
    refused = job.command(["adopt", str(job.checkpoint), "--why", "too early", "--yes"], code=1)
    assert "Spark has already planned epoch 0 of this new checkpoint" in refused
    shown = job.follow()
    assert "ends with epoch 1" in shown[-1]
    job.add(5)
    job.converges(**everywhere(1, 2, 3, 4, 5))


def test_checkpoint_restored_that_lacks_a_start_and_no_row(corner: MakeCorner) -> None:
    job = corner("Checkpoint rolled back")
    saved = backup(job, "saved")
    job.add(4)
    job.crash(Point.AFTER_FENCE)
    restore(job, saved)
    job.fails(0)
    assert "this would be recorded" in job.follow(0)[0]
    job.fails(0)
    job.follow(1)
    job.converges(**everywhere(1, 2, 3, 4))


def test_checkpoint_rolled_back_and_the_newest_restored_or_lost(corner: MakeCorner) -> None:
    job = corner("Checkpoint rolled back")
    pipeline = job.made()

    def saved_on_the_way(df: DataFrame, epoch: int) -> None:
        pipeline(df, epoch)
        if epoch == 2:
            backup(job, "old")

    for ids in ((4,), (5,)):
        job.add(*ids)
    job.run(saved_on_the_way, job.rows())
    newest = backup(job, "newest")

    restore(job, job.folder / "old")
    job.fails(1)
    assert "belongs to no epoch that this checkpoint's log knows" in job.command(["adopt", str(job.checkpoint)], 1)
    job.follow(2, NEWEST=newest)
    job.add(6)
    job.converges(**everywhere(1, 2, 3, 4, 5, 6))

    restore(job, job.folder / "old")
    shutil.rmtree(f"{job.checkpoint}.old")
    job.fails(0)
    assert "belongs to no epoch that this checkpoint's log knows" in job.command(["adopt", str(job.checkpoint)], 1)
    job.follow(3)
    reads_from_the_sinks_end(job)
    job.add(7)
    job.fails(0, "Checkpoint deleted")
    job.follow(0, "Checkpoint deleted")
    job.converges(**everywhere(1, 2, 3, 4, 5, 6, 7))


def test_checkpoint_copied_and_moved(corner: MakeCorner) -> None:
    job = corner("Checkpoint copied or moved")
    original, copy, elsewhere = job.checkpoint, backup(job, "copy"), job.folder / "elsewhere"
    job.add(4)
    job.checkpoint = copy
    job.fails()
    job.checkpoint = original
    job.follow(0, COPY=copy)
    job.converges(**everywhere(1, 2, 3, 4))

    kept = backup(job, "kept")
    original.rename(elsewhere)
    job.checkpoint = elsewhere
    job.add(5)
    job.fails()
    job.follow(1)
    job.converges(**everywhere(1, 2, 3, 4, 5))

    kept.rename(original)  # what the page warns of: there was an original all the time
    job.checkpoint = original
    assert "which this checkpoint's log does not know" in job.fails(0, "Checkpoint rolled back")
    job.checkpoint = elsewhere
    job.add(6)
    job.converges(**everywhere(1, 2, 3, 4, 5, 6))


def skip_two(job: Corner, *ids: int) -> dict[str, int]:
    """A function that does not hand on the first two of these epochs; what the page calls them."""
    first = planned(job) + 1
    for one in ids:
        job.add(one)
    pipeline = job.made()

    def forgetful(df: DataFrame, epoch: int) -> None:
        if epoch > first + 1:
            pipeline(df, epoch)

    text = job.fails(function=forgetful)
    assert f"epochal resolve --skipped {first}..{first + 1}" in text
    return {"FIRST": first, "LAST": first + 1}


def planned(job: Corner) -> int:
    return max(int(file.name) for file in (job.checkpoint / "offsets").iterdir() if file.name.isdigit())


def test_epochs_skipped(corner: MakeCorner) -> None:
    job = corner("Epochs skipped")
    job.follow(0, **skip_two(job, 4, 5, 6))
    job.converges(**everywhere(1, 2, 3, 4, 5, 6))
    job.follow(1, **skip_two(job, 7, 8, 9))
    job.converges(**everywhere(1, 2, 3, 4, 5, 6, 9))


@pytest.mark.remedy(
    "evaluated more than once, and not to the same rows: …",
    "If it cannot be put back, `epochal resolve --evaluation SINK` lets the sinks that show the epoch keep their rows",
)
def test_a_second_evaluation(corner: MakeCorner) -> None:
    job = corner("A second evaluation")
    job.edit("sinks=sinks", 'mode="idempotent", sinks=sinks')
    job.add(4)
    read = max(job.source.iterdir())
    job.crash(Point.AFTER_SINK_COMMIT, "topic")
    assert job.shown() == {**everywhere(1, 2, 3), "topic": [1, 2, 3, 4]}
    read.write_text(read.read_text().replace('"id": 4', '"id": 5'))
    for _ in range(2):
        job.fails()
    assert "topic keep their rows" in job.follow(SINK="topic")[0]
    job.add(6)
    job.converges(**{**everywhere(1, 2, 3, 5, 6), "topic": [1, 2, 3, 4, 6]})


def test_a_sink_leaves_returns_and_changes_its_name(corner: MakeCorner) -> None:
    job = corner("A sink leaves, returns, or changes its name")
    code = job.file.read_text()
    without = re.sub(r"^ *PostgresSink.*\n", "", code, flags=re.MULTILINE)
    job.file.write_text(without)
    job.add(4)
    job.fails()
    job.file.write_text(code)
    job.follow(0, SINK="table")
    job.file.write_text(without)
    job.converges(**{**everywhere(1, 2, 3, 4), "table": [1, 2, 3]})
    job.file.write_text(code)
    job.add(5)
    job.converges(**{**everywhere(1, 2, 3, 4, 5), "table": [1, 2, 3, 5]})

    names = {"table": "flights", "topic": "records", "lake": "history"}
    job.add(6)
    for (old, new), text in zip(names.items(), (1, 2, 0), strict=True):
        job.edit(f'name="{old}"', f'name="{new}"')
        job.fails(text)
        job.follow(1, SINK=old, NEW=new)
    job.converges(**{**everywhere(1, 2, 3, 4, 5, 6), "table": [1, 2, 3, 5, 6]})
    audit = "SELECT sink, count(*) FROM epochal.epochs GROUP BY sink"
    assert [(name, int(count)) for name, count in observe(job.dsn, audit)] == [("flights", 4)]
