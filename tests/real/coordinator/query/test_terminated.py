"""SIGTERM to a driver in the middle of an epoch: it dies at once, the next start settles what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[4]
WAIT = 150


def driver(folder: Path, dsn: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """What it prints is in ``folder/output``."""
    with open(folder / "output", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.real.coordinator.query.driver", str(folder), dsn],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def blocked(folder: Path, process: subprocess.Popen[bytes]) -> int:
    """The process that was seen at the failpoint."""
    seen = folder / "points" / "0.blocked"
    limit = time.monotonic() + WAIT
    while not seen.exists():
        assert process.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < limit, "the point was never reached"
        time.sleep(0.05)
    return int(json.loads(seen.read_text())["pid"])


@pytest.mark.wide
@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", ["after-sink-prepare", "after-decide"])
def test_sigterm_in_the_middle_of_an_epoch(tmp_path: Path, pg_database: str, point: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "points").mkdir()
    for n in range(2):
        file = tmp_path / "source" / f"{n}.json"
        file.write_text(json.dumps({"id": n}))
        os.utime(file, (1_704_067_200 + n,) * 2)  # Spark reads the oldest first
    armed = {"EPOCHAL_FAILPOINTS": f"{point}:1=barrier", "EPOCHAL_FAILPOINTS_DIR": str(tmp_path / "points")}
    first = driver(tmp_path, pg_database, armed)
    try:
        assert blocked(tmp_path, first) == first.pid
        first.terminate()
        assert first.wait(120) == -signal.SIGTERM
    finally:
        first.kill()
        first.wait(120)
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert ids(pg_database) == [0]
    second = driver(tmp_path, pg_database)
    try:
        assert second.wait(WAIT) == 0, (tmp_path / "output").read_text()
    finally:
        second.kill()
        second.wait(120)
    assert ids(pg_database) == [0, 1]


def ids(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select id from rows order by id")]
