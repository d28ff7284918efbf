"""Corners in which the checkpoint is not what it was."""

from __future__ import annotations

import shutil

from tests.integration.runbook.conftest import MakeCorner


def test_checkpoint_deleted(corner: MakeCorner) -> None:
    job = corner("Checkpoint deleted")
    shutil.rmtree(job.checkpoint)
    for file in job.source.iterdir():  # the new query reads from where the sinks end
        file.unlink()
    job.add(4)
    job.fails()
    refused = job.command(["adopt", str(job.checkpoint), "--why", "too early", "--yes"], code=1)
    assert "Spark has planned epoch 0 of this new checkpoint already" in refused
    shown = job.follow()
    assert "ends with epoch 1" in shown[-1]
    job.add(5)
    job.converges(table=[1, 2, 3, 4, 5], topic=[1, 2, 3, 4, 5], lake=[1, 2, 3, 4, 5])
