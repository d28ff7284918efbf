"""A sink of another package: installed, found by its entry point, struck on real Spark; as docs/authors.md has it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.chaos.cli import VALID
from epochal.chaos.observe import recording
from epochal.chaos.observe.history import Fault

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "authors.md").read_text()
STRIKES = ("kill:driver:after-decide", "pause:driver:before-decide", "kill:driver:after-sink-commit@out")


def run(*command: object, cwd: Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which pip has installed the example."""
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    for name in ("pyproject.toml", "sqlite_sink.py"):
        shutil.copy(ROOT / "examples" / name, project)
    code, said = run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, project), cwd=tmp_path
    )
    assert code == 0, said
    return site


@pytest.mark.timeout(900)
def test_it_is_found_by_its_name_and_survives(site: Path, tmp_path: Path) -> None:
    [job] = re.findall(r"<!-- job.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert "from epochal.sinks import SqliteSink" in job
    (tmp_path / "job.py").write_text(job)
    [command] = re.findall(r"^(epochal chaos run --target job:sink .*)$", PAGE, re.MULTILINE)
    code, said = run(
        *(sys.executable, "-m", "epochal.coordinator.console.cli", *command.split()[1:]),
        *(word for strike in STRIKES for word in ("--strike", strike)),
        *("--history", tmp_path / "history"),
        cwd=tmp_path,
        PYTHONPATH=os.pathsep.join([str(site), str(ROOT / "src")]),
    )
    assert code == VALID, said
    told, _ = recording.load(tmp_path / "history" / "round-1.jsonl")
    struck = {(fault.kind, fault.sink) for _, fault in told.history.of(Fault) if not fault.healed}
    assert struck == {("kill", ""), ("pause", ""), ("kill", "out")}
    assert (tmp_path / "report.html").stat().st_size > 10_000
