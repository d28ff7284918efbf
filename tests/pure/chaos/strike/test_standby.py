"""Starts that share a process, with a program that only pretends to have a Spark session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from epochal.chaos.servers import guard
from epochal.chaos.strike import standby
from epochal.chaos.strike.nemesis import NotCounted, poll
from epochal.chaos.strike.standby import Standby, Start

PROGRAM = """
import os, types
from epochal.chaos.strike import nemesis, standby
from epochal.coordinator.model import failpoints

stopped = []
java = types.SimpleNamespace(isStopped=lambda: bool(stopped))
context = types.SimpleNamespace(environment={}, _jsc=types.SimpleNamespace(sc=lambda: java))
spark = types.SimpleNamespace(sparkContext=context)

def run(settings, folder):
    if settings == "stop":
        stopped.append(True)
    if settings == "lose":
        del context._jsc
    print("said", settings, "to", context.environment["EPOCHAL_FAILPOINTS"] or "nobody", flush=True)
    failpoints.hit(failpoints.Point.AFTER_DECIDE, epoch=7)
    if settings == "raise":
        raise LookupError("nothing there")
    return 0

nemesis.end_with_parent()
standby.serve(spark, run)
"""
RULE = "after-decide:7=barrier"
ENDS_S = 30.0


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Standby]:
    with closing(Standby(["-c", PROGRAM], tmp_path / "processes")) as drivers:
        yield drivers


def ended(start: Start) -> int:
    with start:
        return start.wait(ENDS_S)


def test_who_has_ended_by_itself_takes_the_next_start(drivers: Standby, tmp_path: Path) -> None:
    first = drivers.begin(tmp_path / "1", "one")
    assert ended(first) == 0
    second = drivers.begin(tmp_path / "2", "two")
    assert ended(second) == 0
    assert first.pid == second.pid
    assert second.output() == "said two to nobody\n"


def test_a_start_that_raises_ends_as_a_process_would_and_the_next_one_is_not_blamed(
    drivers: Standby, tmp_path: Path
) -> None:
    first = drivers.begin(tmp_path / "1", "raise")
    assert ended(first) == 1
    assert "LookupError: nothing there" in first.tail()
    second = drivers.begin(tmp_path / "2", "two")
    assert ended(second) == 0
    assert first.pid == second.pid
    assert "LookupError" not in second.tail()


def test_each_start_has_failpoints_of_its_own(drivers: Standby, tmp_path: Path) -> None:
    assert ended(drivers.begin(tmp_path / "1", "one")) == 0
    with drivers.begin(tmp_path / "2", "two", [RULE]) as second:
        assert second.see_blocked(RULE, ENDS_S).pid == second.pid
        assert f"said two to {RULE}" in second.output()
        second.go(RULE)
        assert second.wait(ENDS_S) == 0
    third = drivers.begin(tmp_path / "3", "three")
    assert ended(third) == 0
    assert third.pid == second.pid
    assert third.output() == "said three to nobody\n"


def test_who_was_killed_takes_none(drivers: Standby, tmp_path: Path) -> None:
    with drivers.begin(tmp_path / "1", "one", [RULE]) as first:
        first.see_blocked(RULE, ENDS_S)
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait(ENDS_S) == -signal.SIGKILL
    second = drivers.begin(tmp_path / "2", "two")
    assert ended(second) == 0
    assert second.pid != first.pid


def test_who_dies_while_it_stands_by_takes_none(drivers: Standby, tmp_path: Path) -> None:
    first = drivers.begin(tmp_path / "1", "one")
    assert ended(first) == 0
    os.kill(first.pid, signal.SIGKILL)
    poll(lambda: first.process.exit_status, ENDS_S, "its death")
    second = drivers.begin(tmp_path / "2", "two")
    assert ended(second) == 0
    assert second.pid != first.pid


@pytest.mark.parametrize("how", ["stop", "lose"])
def test_who_has_lost_its_session_takes_none(drivers: Standby, tmp_path: Path, how: str) -> None:
    first = drivers.begin(tmp_path / "1", how)
    assert ended(first) == 0
    assert not guard.alive(first.pid)
    assert ended(drivers.begin(tmp_path / "2", "two")) == 0


def test_who_was_armed_too_often_takes_none(drivers: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "MOST_ARMED", 2)
    pids = []
    for number, rules in enumerate([["after-decide:9=raise"], [], ["after-decide:9=raise"], []]):
        start = drivers.begin(tmp_path / str(number), "one", rules)
        assert ended(start) == 0
        pids.append(start.pid)
    assert pids[0] == pids[1] == pids[2] != pids[3]


def test_a_start_that_goes_on_ends_with_its_block(drivers: Standby, tmp_path: Path) -> None:
    with drivers.begin(tmp_path / "1", "one", [RULE]) as start:
        start.see_blocked(RULE, ENDS_S)
    assert not guard.alive(start.pid)
    assert ended(drivers.begin(tmp_path / "2", "two")) == 0


def test_who_has_waited_longest_is_next_so_that_nobody_repairs_its_own_failure(
    drivers: Standby, tmp_path: Path
) -> None:
    first = drivers.begin(tmp_path / "1", "raise")
    drivers.stand_by()
    assert ended(first) == 1
    second = drivers.begin(tmp_path / "2", "two")
    assert ended(second) == 0
    assert second.pid != first.pid


def test_one_is_enough_to_stand_by(drivers: Standby, tmp_path: Path) -> None:
    drivers.stand_by()
    drivers.stand_by()
    assert ended(drivers.begin(tmp_path / "1", "one")) == 0
    drivers.stand_by()
    assert [folder.name for folder in (tmp_path / "processes").iterdir()] == ["process-1"]


def test_nobody_outlives_the_end(drivers: Standby, tmp_path: Path) -> None:
    idle, busy = drivers.begin(tmp_path / "1", "one"), drivers.begin(tmp_path / "2", "two", [RULE])
    assert ended(idle) == 0
    busy.see_blocked(RULE, ENDS_S)
    drivers.close()
    assert not guard.alive(idle.pid)
    assert not guard.alive(busy.pid)


def test_a_program_that_cannot_start_says_why(tmp_path: Path) -> None:
    program = ["-c", "import time; print('no session', flush=True); time.sleep(1); raise SystemExit(4)"]
    with closing(Standby(program, tmp_path / "processes")) as drivers:
        drivers.stand_by()
        poll(lambda: (tmp_path / "processes/process-1/output.log").read_text() or None, ENDS_S, "its words")
        start = drivers.begin(tmp_path / "1", "one")
        assert ended(start) == 4
        assert "no session" in start.tail()


def test_who_is_not_wanted_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(standby, "IDLE_S", 0.1)
    with pytest.raises(TimeoutError, match="nobody ordered a start"):
        standby._await_order(tmp_path / "order-1.json")


def test_a_rule_that_could_never_strike_is_refused_before_anything_is_begun(drivers: Standby, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no-such-point"):
        drivers.begin(tmp_path / "1", "one", ["no-such-point=barrier"])
    with pytest.raises(NotCounted, match="did not end"), drivers.begin(tmp_path / "2", "one", [RULE]) as start:
        start.wait(0.5)
