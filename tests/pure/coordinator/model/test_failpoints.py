"""Failpoints: rules are read strictly, strike where they say, and leave what a harness needs to see."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.failpoints import AnswerDropped, FailpointError, Point, armed, handler, hit, parse

SCRIPT = """
from epochal.coordinator.model.failpoints import Point, hit
print("alive", flush=True)
hit(Point.AFTER_DECIDE, "pg", 7)
print("went on", flush=True)
"""


def process(rules: str, folder: Path | None = None) -> subprocess.Popen[str]:
    """A process that hits one point under these rules."""
    environment = {**os.environ, failpoints.ENVIRONMENT: rules}
    if folder is not None:
        environment[failpoints.FOLDER] = str(folder)
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit, f"{path.name} never came"
        time.sleep(0.01)


def test_nothing_armed_does_nothing() -> None:
    hit(Point.BEFORE_VOTE, "pg", 3)


def test_a_handler_sees_every_hit_of_its_scope() -> None:
    seen: list[tuple[Point, str, int]] = []
    with handler(lambda point, sink, epoch: seen.append((point, sink, epoch))):
        hit(Point.BEFORE_VOTE, "pg", 3)
        hit(Point.AFTER_DECIDE)
    hit(Point.BEFORE_VOTE, "pg", 4)
    assert seen == [(Point.BEFORE_VOTE, "pg", 3), (Point.AFTER_DECIDE, "", -1)]


def test_raise_and_drop_answer() -> None:
    with armed("after-decide=raise; after-publish=drop-answer"):
        with pytest.raises(FailpointError, match="after-decide"):
            hit(Point.AFTER_DECIDE)
        with pytest.raises(AnswerDropped, match="after-publish"):
            hit(Point.AFTER_PUBLISH, "pg", 1)
        hit(Point.BEFORE_VOTE)
    hit(Point.AFTER_DECIDE)


def test_a_lost_answer_looks_like_a_lost_connection() -> None:
    assert issubclass(AnswerDropped, ConnectionError)


def test_a_rule_strikes_only_where_it_says() -> None:
    with armed("in-write@pg:2#3=raise"):
        for _ in range(5):
            hit(Point.IN_WRITE, "kafka", 2)
            hit(Point.IN_WRITE, "pg", 1)
            hit(Point.BEFORE_VOTE, "pg", 2)
        hit(Point.IN_WRITE, "pg", 2)
        hit(Point.IN_WRITE, "pg", 2)
        with pytest.raises(FailpointError):
            hit(Point.IN_WRITE, "pg", 2)
        hit(Point.IN_WRITE, "pg", 2)


def test_sleep_takes_that_long() -> None:
    began = time.monotonic()
    with armed("after-decide=sleep(0.05)"):
        hit(Point.AFTER_DECIDE)
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize(
    "rules", ["after-decid=raise", "after-decide", "after-decide=explode", "after-decide:x=raise", "=kill"]
)
def test_a_rule_that_is_not_one_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"after|=kill"):
        parse(rules)


def test_every_point_can_be_armed_by_its_name() -> None:
    rules = parse(";".join(f"{point.value}=raise" for point in Point))
    assert [rule.point for rule in rules] == list(Point)


def test_a_killed_process_dies_of_signal_9_at_the_point(tmp_path: Path) -> None:
    killed = process("after-decide:7=kill", tmp_path)
    out, _ = killed.communicate(timeout=60)
    assert (killed.returncode, out) == (-signal.SIGKILL, "alive\n")
    seen = json.loads((tmp_path / "0.blocked").read_text())
    assert seen == {"pid": killed.pid, "point": "after-decide", "sink": "pg", "epoch": 7, "action": "kill"}


def test_a_rule_strikes_once_over_all_processes_that_share_a_folder(tmp_path: Path) -> None:
    first, second = process("after-decide=kill", tmp_path), process("after-decide=kill", tmp_path)
    first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert sorted([first.returncode, second.returncode]) == [-signal.SIGKILL, 0]


def test_without_a_folder_every_process_is_struck() -> None:
    for _ in range(2):
        killed = process("after-decide=kill")
        killed.communicate(timeout=60)
        assert killed.returncode == -signal.SIGKILL


def test_a_stopped_process_goes_on_when_it_is_told(tmp_path: Path) -> None:
    stopped = process("after-decide=stop", tmp_path)
    wait_for(tmp_path / "0.blocked")
    _, status = os.waitpid(stopped.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(stopped.pid, signal.SIGCONT)
    out, _ = stopped.communicate(timeout=60)
    assert (stopped.returncode, out) == (0, "alive\nwent on\n")


def test_a_barrier_blocks_until_the_harness_says_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.FOLDER, str(tmp_path))
    with armed("before-vote=barrier"):
        blocked = threading.Thread(target=hit, args=(Point.BEFORE_VOTE, "pg", 1))
        blocked.start()
        wait_for(tmp_path / "0.blocked")
        assert blocked.is_alive()
        (tmp_path / "0.go").touch()
        blocked.join(timeout=60)
        assert not blocked.is_alive()


def test_a_barrier_that_nobody_opens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process would stay, long after the harness is gone."""
    monkeypatch.setenv(failpoints.FOLDER, str(tmp_path))
    clock = itertools.count(0, 400)
    monkeypatch.setattr(failpoints, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    with armed("before-vote=barrier"), pytest.raises(FailpointError, match="nobody said go within 600 s"):
        hit(Point.BEFORE_VOTE, "sink", 0)


def test_a_barrier_without_a_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failpoints.FOLDER, raising=False)
    with armed("before-vote=barrier"), pytest.raises(ValueError, match=failpoints.FOLDER):
        hit(Point.BEFORE_VOTE)
