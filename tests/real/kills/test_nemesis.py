"""The nemesis counts what was seen, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochal.chaos.servers import guard
from epochal.chaos.strike import nemesis
from epochal.chaos.strike.nemesis import Death, Driver, NotCounted, kill_seen

RULE = "after-decide:7=barrier"
HIT = "from epochal.chaos import failpoints as f; f.hit(f.Point.{point}, epoch={epoch})"
# Spark's daemon of Python workers ignores the deaths of its children in just this way.
PARENT = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    {child}
print(pid, flush=True)
time.sleep(600)
"""


@contextmanager
def grandchild(child: str) -> Iterator[int]:
    """A process that is not our child, whose parent does not wait for it."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(child=child)], stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            yield int(parent.stdout.readline())
        finally:
            parent.kill()


def test_the_death_of_a_grandchild_is_seen() -> None:
    with grandchild("time.sleep(600)") as pid:
        assert kill_seen(pid) == Death(pid, signal.SIGKILL)
        assert not guard.alive(pid)


def test_one_that_is_gone_is_not_counted() -> None:
    with grandchild("os._exit(0)") as pid:
        nemesis.poll(lambda: None if guard.alive(pid) else True, 10, "its end")
        with pytest.raises(NotCounted, match="cannot be watched"):
            kill_seen(pid)


@pytest.mark.parametrize("end", ["os._exit(0)", "os._exit(9)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_any_other_end_is_not_counted(end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", f"import os, signal; {end}"]) as child:
        _, status = os.waitpid(child.pid, 0)
        with pytest.raises(NotCounted, match="not of signal 9"):
            nemesis.death(child.pid, status)


def test_a_process_that_was_halted_goes_on_when_resumed() -> None:
    with grandchild("time.sleep(600)") as pid:
        nemesis.pause(pid)
        stat = Path(f"/proc/{pid}/stat")
        assert stat.read_text().rpartition(")")[2].split()[0] == "T"
        nemesis.resume(pid)
        nemesis.poll(lambda: stat.read_text().rpartition(")")[2].split()[0] != "T" or None, 10, "it goes on")


def test_a_driver_blocked_at_the_armed_point_is_seen(tmp_path: Path) -> None:
    with Driver(["-c", HIT.format(point="AFTER_DECIDE", epoch=7)], tmp_path / "1", failpoints_armed=[RULE]) as driver:
        seen = driver.see_blocked(RULE, 120)
        assert (seen.pid, seen.point, seen.epoch) == (driver.pid, "after-decide", 7)
        driver.go(RULE)
        assert driver.wait(120) == 0


@pytest.mark.parametrize(("point", "epoch"), [("AFTER_DECIDE", 6), ("BEFORE_DECIDE", 7)])
def test_a_driver_that_ends_elsewhere_is_not_counted(tmp_path: Path, point: str, epoch: int) -> None:
    with (
        Driver(["-c", HIT.format(point=point, epoch=epoch)], tmp_path / "1", failpoints_armed=[RULE]) as driver,
        pytest.raises(NotCounted, match="ended with 0 before"),
    ):
        driver.see_blocked(RULE, 120)


def test_a_stranger_at_the_point_is_not_counted(tmp_path: Path) -> None:
    """Somebody else wrote the file: it is none of the driver's processes."""
    with Driver(["-c", "import time; time.sleep(600)"], tmp_path / "1", failpoints_armed=[RULE]) as driver:
        seen = f'{{"pid": {os.getpid()}, "point": "after-decide", "sink": "", "epoch": 7}}'
        (driver.folder / "0.blocked").write_text(seen)
        with pytest.raises(NotCounted, match="is no process of driver"):
            driver.see_blocked(RULE, 120)


def test_a_sighting_elsewhere_is_not_counted(tmp_path: Path) -> None:
    with Driver(["-c", "import time; time.sleep(600)"], tmp_path / "1", failpoints_armed=[RULE]) as driver:
        seen = f'{{"pid": {driver.pid}, "point": "after-decide", "sink": "", "epoch": 8}}'
        (driver.folder / "0.blocked").write_text(seen)
        with pytest.raises(NotCounted, match="is not where the rule"):
            driver.see_blocked(RULE, 120)


def test_a_driver_without_jvm_is_no_spark_driver(tmp_path: Path) -> None:
    with (
        Driver(["-c", "import time; time.sleep(600)"], tmp_path / "1", failpoints_armed=[RULE]) as driver,
        pytest.raises(NotCounted, match="has no JVM"),
    ):
        driver.kill()


def test_what_does_not_happen_in_time_is_not_counted() -> None:
    with pytest.raises(NotCounted, match="the thing"):
        nemesis.poll(lambda: None, 0.1, "the thing")


def test_a_driver_never_outlives_the_block(tmp_path: Path) -> None:
    with Driver(["-c", "import time; time.sleep(600)"], tmp_path / "1") as driver:
        assert guard.alive(driver.pid)
    assert not guard.alive(driver.pid)
    assert driver.exit_status == -signal.SIGKILL


def test_a_driver_program_ends_with_its_parent() -> None:
    program = (
        "import time; from epochal.chaos.strike import nemesis as n; n.end_with_parent(); "
        "print(1, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(120) == 3
