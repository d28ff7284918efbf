"""Flink as a peer of the benchmarks, without Flink: its environment, its program's words, the talk with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.flink import environment, job
from benchmarks.peers.flink.session import Flink, FlinkFailed, Told
from epochal.chaos.servers import ServerUnavailable, environments
from epochal.coordinator.environment.versions import FLINK

# --- its environment ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(3, 8), (3, 13)])
def test_a_python_that_flink_is_not_made_for_is_refused(version: tuple[int, int]) -> None:
    with pytest.raises(ServerUnavailable) as caught:
        environment.python(version)
    assert f"is for Python 3.9 to below 3.13, this is {version[0]}.{version[1]}" in str(caught.value)
    assert "make venv PYTHON=python3.12" in caught.value.help_line


def test_an_environment_is_made_once_and_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[Sequence[str]] = []
    monkeypatch.setenv("EPOCHAL_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "call", lambda command: _made(called, command))
    first, second = environment.python((3, 11)), environment.python((3, 11))
    assert first == second
    assert first.is_relative_to(tmp_path / f"flink-{FLINK}-python{sys.version_info[0]}.{sys.version_info[1]}")
    assert [command[-1] for command in called] == [str(first.parents[1]), f"apache-flink=={FLINK}"]
    assert capsys.readouterr().err.count("is installed into a Python of its own") == 1


def _made(called: list[Sequence[str]], command: Sequence[str]) -> None:
    called.append(command)
    if "venv" in command:
        Path(command[-1]).mkdir()


def test_an_environment_that_was_not_finished_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(command: Sequence[str]) -> None:
        _made([], command)
        if "install" in command:
            raise ServerUnavailable("no index", "look")

    called: list[Sequence[str]] = []
    monkeypatch.setenv("EPOCHAL_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "call", breaks)
    with pytest.raises(ServerUnavailable, match="no index"):
        environments.python_with("some-1", "some==1")
    monkeypatch.setattr(environments, "call", lambda command: _made(called, command))
    environments.python_with("some-1", "some==1")
    assert len(called) == 2


# --- its program --------------------------------------------------------------------------------


def test_the_program_needs_nothing_of_the_project(tmp_path: Path) -> None:
    """It runs where there is neither, and ends with its input."""
    program = [sys.executable, "-I", "-S", str(Path(job.__file__))]
    done = subprocess.run(program, input="", capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_exactly_once_and_at_least_once_differ_in_transactions_alone() -> None:
    exactly, at_least = (job.target("host:1", "topic", each) for each in ("exactly-once", "at-least-once"))
    more = {"sink.transactional-id-prefix": "topic", "properties.transaction.timeout.ms": "600000"}
    assert exactly == {**at_least, **more, "sink.delivery-guarantee": "exactly-once"}
    assert exactly["properties.acks"] == at_least["properties.acks"] == "all"
    assert job.target(None, None, None) == {"connector": "blackhole"}


def test_options_are_quoted() -> None:
    assert job.options({"a": "1", "b": "it's"}) == "('a' = '1', 'b' = 'it''s')"


def pages(state: str = "FINISHED") -> dict[str, Any]:
    return {
        "/jobs/overview": {"jobs": []},
        "/jobs/ab12": {"state": state, "timestamps": {"RUNNING": 10_250, "FINISHED": 24_000, "INITIALIZING": 9_000}},
        "/jobs/ab12/checkpoints": {"counts": {"completed": 13, "failed": 0}},
        "/jobs/ab12/checkpoints/config": {},
        "/jobs/ab12/plan": {},
    }


def archive_of(work: Path, told: Mapping[str, Any]) -> Path:
    """As Flink lays it out."""
    application = job.archive(work) / "cluster" / "applications" / "ab12"
    (application / "jobs").mkdir(parents=True)
    held = [{"path": path, "json": json.dumps(page)} for path, page in told.items()]
    (application / "jobs" / "ab12").write_text(json.dumps({"archive": held}))
    return application


def test_a_job_is_timed_from_running_to_finished_as_its_archive_tells(tmp_path: Path) -> None:
    (archive_of(tmp_path, pages()) / "application-summary").touch()
    assert job.told(job.archived(tmp_path, 1)) == {"seconds": 13.75, "checkpoints": 13}


def test_an_archive_without_its_summary_is_not_read(tmp_path: Path) -> None:
    archive_of(tmp_path, pages())
    with pytest.raises(TimeoutError, match="wrote no archive"):
        job.archived(tmp_path, 0.1)


def test_a_job_that_did_not_finish_has_no_time() -> None:
    with pytest.raises(RuntimeError, match="ended as FAILED"):
        job.told(pages("FAILED"))


# --- the talk with it ---------------------------------------------------------------------------


@pytest.mark.parametrize("line", ['{"seconds": 0, "checkpoints": 3}', '{"seconds": 4.5, "checkpoints": 0}'])
def test_a_job_without_time_or_checkpoint_is_no_measure(line: str) -> None:
    with pytest.raises(FlinkFailed, match="has to have a time and a checkpoint"):
        Told.read(line)


ANSWERS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print("noise", file=sys.stderr)
    print(json.dumps({"seconds": 2.5, "checkpoints": 3 if asked["guarantee"] else 1}), flush=True)
"""


def started(folder: Path, program: str) -> Flink:
    return Flink(folder / "flink", [sys.executable, "-c", program], dict(os.environ))


def test_one_process_answers_job_after_job(tmp_path: Path) -> None:
    with started(tmp_path, ANSWERS) as flink:
        assert flink.write(tmp_path, "host:1", "topic", "exactly-once") == Told(2.5, 3)
        assert flink.read(tmp_path) == Told(2.5, 1)
    assert flink._process.returncode == 0


def test_a_program_that_ends_is_told_with_what_it_printed(tmp_path: Path) -> None:
    with started(tmp_path, "raise SystemExit('no Java here')") as flink, pytest.raises(FlinkFailed) as caught:
        flink.read(tmp_path)
    assert "ended and gave no answer" in str(caught.value)
    assert "no Java here" in str(caught.value)


def test_a_program_that_says_nothing_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with started(tmp_path, "import sys; sys.stdin.readlines()") as flink, pytest.raises(FlinkFailed, match="no answer"):
        flink.read(tmp_path, limit=0.2)


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    """Its JVM is a child of it."""
    program = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, file=sys.stderr, flush=True); input()"
    )
    with started(tmp_path, program):
        while not (pid := (tmp_path / "flink" / "printed.log").read_text().strip()):
            time.sleep(0.02)
    for _ in range(250):
        if not _alive(int(pid)):
            return
        time.sleep(0.02)
    pytest.fail(f"{pid} is still there")


def _alive(pid: int) -> bool:
    """A child that nobody waits for yet is gone."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
