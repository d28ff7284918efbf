"""Runs tests in lanes: pytest processes side by side, each with servers and a Spark session of its own.

    python -m tests.run --proof            what `make test` runs
    python -m tests.run --shard 3/9        the third of nine parts of all tests
    python -m tests.run --fast             what `make test-fast` runs
    python -m tests.run --shards-of N      which shards CI runs on the N-th commit, one per line

The exit status is 1 if a test of any lane failed or did not run.  Interrupted, it ends its lanes first.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests import selection
from tests.selection import Part

LANES = 3
"""On two cores: the lanes wait for servers about a third of the time."""
FAST_LANES = 2
"""Of tests that wait for nothing: as many as there are cores."""
SHARDS = 9
END_S = 120
"""How long an interrupted lane may take to end what it started."""
NO_TESTS = 5
"""pytest's exit status for a selection without any test."""
TOLD_AGAIN = ("____", "E   ", "FAILED ", "ERROR ")
"""How those lines begin that name a failed test or its error.  They are repeated last, below those of other lanes."""
MOST_TOLD = 12
"""How many lines of one lane are repeated at most."""


@dataclass
class Lane:
    """One pytest process; its lines are printed with its number in front."""

    number: int
    process: subprocess.Popen[str]
    began: float
    seconds: float = 0.0
    last: str = ""
    failures: list[str] = field(default_factory=list)

    def follow(self) -> None:
        """Print what it prints, until it ends."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                print(f"{self.number}| {line}", end="", flush=True)
                if line.startswith(TOLD_AGAIN):
                    self.failures.append(line)
                if line.strip():
                    self.last = line.strip(" =\n")
        self.seconds = time.monotonic() - self.began

    def wait(self) -> None:
        """Until it ends.  Not by joining the thread: an interrupted join would count it as ended (Python 3.11)."""
        self.process.wait()

    def end(self) -> None:
        """Interrupt it, so that pytest tears its fixtures down: servers and Spark end.  Kill it if that takes long."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def passed(self) -> bool:
        return self.process.returncode in (0, NO_TESTS)


def start(number: int, files: Sequence[str], options: Sequence[str]) -> Lane:
    """Begin a lane.  It is a process group of its own, so that an interrupt reaches it once, from here.

    This process, and so its lanes, can be interrupted afterwards, also if a script started it in the background: such a
    process begins with SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "pytest", "--durations=12", "--durations-min=20", *options, *files]
    process = subprocess.Popen(
        command,
        cwd=selection.ROOT,
        env={**os.environ, "EPOCHAL_EVERY_TEST": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    return Lane(number, process, time.monotonic())


def run(lanes: Sequence[Lane]) -> bool:
    """Wait for all lanes; whether each passed."""
    threads = [threading.Thread(target=lane.follow, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        for lane in lanes:
            lane.wait()
    except BaseException:
        enders = [threading.Thread(target=lane.end) for lane in lanes]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()
        raise
    for thread in threads:
        thread.join()
    for lane in lanes:
        if not lane.passed:
            print(*lane.failures[-MOST_TOLD:], sep="", end="")
        print(f"lane {lane.number}: {'passed' if lane.passed else 'FAILED'} in {lane.seconds:.0f} s; {lane.last}")
    return all(lane.passed for lane in lanes)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--proof", action="store_true", help="every test that is not wide, or that a planted bug names")
    which.add_argument("--shard", type=Part.parse, metavar="I/N", help="the I-th of N parts of all tests")
    which.add_argument("--all", action="store_true", help=f"all tests, as {SHARDS} shards one after another")
    which.add_argument("--fast", action="store_true", help="tests/pure without wide and slow tests, in two lanes")
    which.add_argument("--shards-of", type=int, metavar="N", help="print the shards of the N-th commit; run nothing")
    parser.add_argument("--lanes", type=int, default=LANES, help="how many processes side by side (%(default)s)")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    return parser.parse_args(arguments)


def run_part(took: str, files: Sequence[str], lanes: int, options: Sequence[str]) -> bool:
    """Run ``files`` in lanes of like length; ``took`` says which of the stored times count, ``proof`` or ``all``."""
    parts = selection.parted(files, selection.seconds()[took], lanes)
    return run([start(number, part, options) for number, part in enumerate(parts, 1) if part])


def run_shard(shard: Part, lanes: int, options: Sequence[str]) -> bool:
    """Run one part of all tests."""
    parts = selection.parted(selection.files(), selection.seconds()["all"], shard.of)
    print(f"shard {shard}: {len(parts[shard.number - 1])} files", flush=True)
    return run_part("all", parts[shard.number - 1], lanes, options)


def main(arguments: Sequence[str]) -> int:
    asked = parse(arguments)
    if asked.shards_of is not None:
        print(*selection.shards_of_commit(asked.shards_of, SHARDS), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if asked.proof:
        return 0 if run_part("proof", selection.files(), asked.lanes, ["--proof", *asked.options]) else 1
    if asked.fast:
        files = selection.files(folders=("tests/pure",))
        return 0 if run_part("proof", files, FAST_LANES, ["--fast", *asked.options]) else 1
    shards = [Part(number, SHARDS) for number in range(1, SHARDS + 1)] if asked.all else [asked.shard]
    passed = [run_shard(shard, asked.lanes, asked.options) for shard in shards]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
